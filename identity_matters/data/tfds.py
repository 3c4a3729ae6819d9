"""TFDS sets: read into memory, or streamed where they are too large or their images vary in size.

The stream is a pure function of (seed, step) too: the order of an epoch and the crop of each
of its examples are seeded by (seed, epoch). TensorFlow mixes its global seed into the order,
so that seed must be the same too; training sets it to the config's. Starting inside an epoch
reads, but does not decode, the examples before.
"""

import difflib
import os

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from identity_matters.config import TrainConfig
from identity_matters.data.arrays import MAX_BYTES_IN_MEMORY, MNIST_SAMPLE, ArrayData
from identity_matters.runs.errors import UserError

# Test splits without labels, and what is evaluated instead.
_EVAL_SPLITS = {"imagenet2012": "validation"}
# ImageNet's usual test protocol: the central 224 of 256 pixels of the shorter side.
CROP_FRACTION = 224 / 256
# Encoded images, about 110 kB each for ImageNet.
SHUFFLE_BUFFER = 8192


class TfdsSource:
    """A prepared TFDS image-classification set.

    Args:
      builder: tfds.core.DatasetBuilder, prepared.
      eval_split: str. The labelled split to test on.
      image_size: int. Pixels a side (0: as in the set).
      train_examples, eval_examples: int. Use the first so many (0: all).

    Raises:
      ValueError: not an image-classification set, a split is missing, or its images vary in
        size and no image_size is given.
    """

    def __init__(self, builder, eval_split: str, image_size=0, train_examples=0, eval_examples=0):
        self.name, self._builder, self._image_size = builder.name, builder, image_size
        self._image_key, self._label_key = _supervised_keys(builder)
        for split in ("train", eval_split):
            if split not in builder.info.splits:
                raise UserError(f"{self.name} has no split {split!r}, only {', '.join(builder.info.splits)}")
        self._splits = {
            "train": _first("train", train_examples, builder),
            "test": _first(eval_split, eval_examples, builder),
        }
        self.num_train = builder.info.splits[self._splits["train"]].num_examples
        self.num_test = builder.info.splits[self._splits["test"]].num_examples
        self.num_classes = builder.info.features[self._label_key].num_classes
        self._stored_shape = builder.info.features[self._image_key].shape
        if None in self._stored_shape[:2] and not image_size:
            raise UserError(f"the images of {self.name} vary in size; give --image_size")
        sides = (image_size, image_size) if image_size else self._stored_shape[:2]
        self.image_shape = (*sides, self._stored_shape[2])

    @property
    def is_streamed(self) -> bool:
        """Whether the set is too large for memory, or has images of varying size."""
        if None in self._stored_shape:
            return True
        size = np.prod(self.image_shape) * (self.num_train + self.num_test)
        return size > MAX_BYTES_IN_MEMORY

    def load(self) -> ArrayData:
        """The whole set in memory."""
        arrays = {}
        for split in ("train", "test"):
            images, labels = zip(*self._whole_images(split).batch(1000).as_numpy_iterator())
            arrays[f"{split}_images"] = np.concatenate(images)
            arrays[f"{split}_labels"] = np.concatenate(labels).astype(np.int32)
        return ArrayData(self.name, **arrays, num_classes=self.num_classes)

    def train_batches(
        self, seed: int, first_step: int, batch_size: int, random_flip: bool = True, rows: range | None = None
    ):
        """Yields (uint8 images [b, h, w, c], labels [b]) of first_step, first_step + 1, … without end.

        An epoch is num_train // batch_size ≥ 1 steps; what is left over differs in each epoch.

        Args:
          rows: range. Only these rows of every batch are decoded and given, b of them; None: all.
        """
        rows = rows or range(batch_size)
        steps_per_epoch = self.num_train // batch_size
        epoch, step = divmod(first_step, steps_per_epoch)
        while True:
            yield from (
                self._epoch(seed, epoch, step * batch_size, steps_per_epoch * batch_size, batch_size, rows, random_flip)
                .batch(len(rows))
                .prefetch(2)
                .as_numpy_iterator()
            )
            epoch, step = epoch + 1, 0

    def test_batches(self, batch_size: int, rows: range | None = None):
        """Yields (uint8 images [b, h, w, c], labels [b]) once through the test split, in order; rows as train_batches."""
        rows = rows or range(batch_size)
        if self.is_streamed:
            images = self._cropped(_of_rows(self._encoded("test").enumerate(), batch_size, rows), None)
        else:
            images = _of_rows(self._whole_images("test").enumerate(), batch_size, rows).map(lambda _, example: example)
        yield from images.batch(len(rows)).prefetch(2).as_numpy_iterator()

    def _whole_images(self, split: str) -> tf.data.Dataset:
        images = self._builder.as_dataset(split=self._splits[split], as_supervised=True)
        if self._image_size and self._stored_shape != self.image_shape:
            return images.map(lambda image, label: (_resize(image, self.image_shape[:2]), label), tf.data.AUTOTUNE)
        return images

    def _encoded(self, split: str, shuffle_seed: int | None = None) -> tf.data.Dataset:
        shuffle = shuffle_seed is not None
        return self._builder.as_dataset(
            split=self._splits[split],
            decoders={self._image_key: tfds.decode.SkipDecoding()},
            shuffle_files=shuffle,
            read_config=tfds.ReadConfig(shuffle_seed=shuffle_seed, shuffle_reshuffle_each_iteration=False),
        ).map(lambda example: (example[self._image_key], example[self._label_key]))

    def _epoch(self, seed: int, epoch: int, skip: int, stop: int, batch_size: int, rows: range, random_flip: bool):
        """The examples number skip … stop − 1 of an epoch's order that lie in `rows` of their batches."""
        order_seed = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0] >> 1)
        examples = self._encoded("train", order_seed).shuffle(
            SHUFFLE_BUFFER, order_seed, reshuffle_each_iteration=False
        )
        examples = examples.enumerate().take(stop).skip(skip)
        return self._cropped(_of_rows(examples, batch_size, rows), order_seed, random_flip)

    def _cropped(self, examples: tf.data.Dataset, seed: int | None, random_flip: bool = False) -> tf.data.Dataset:
        """Decoded square crops: at random and flipped at random under a seed, central without one."""
        is_jpeg = self._builder.info.features[self._image_key].encoding_format == "jpeg"

        def crop(index, example):
            encoded, label = example
            shape = tf.image.extract_jpeg_shape(encoded) if is_jpeg else tf.shape(tf.io.decode_image(encoded))
            side = tf.cast(CROP_FRACTION * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
            if seed is None:
                position = tf.constant([0.5, 0.5, 0.0])
            else:
                position = tf.random.stateless_uniform([3], seed=tf.stack([tf.constant(seed, tf.int64), index]))
            corner = tf.cast(position[:2] * tf.cast(shape[:2] - side + 1, tf.float32), tf.int32)
            window = tf.concat([corner, [side, side]], axis=0)
            image = _decode(encoded, window, self.image_shape[2], is_jpeg)
            image = _resize(image, self.image_shape[:2])
            if random_flip:
                image = tf.cond(position[2] > 0.5, lambda: tf.reverse(image, [1]), lambda: image)
            return image, label

        return examples.map(crop, tf.data.AUTOTUNE, deterministic=True)


def _of_rows(enumerated: tf.data.Dataset, batch_size: int, rows: range) -> tf.data.Dataset:
    """Of pairs (index, example) those that lie in these rows of their batches."""
    if len(rows) == batch_size:
        return enumerated
    return enumerated.filter(lambda i, _: (i % batch_size >= rows.start) & (i % batch_size < rows.stop))


def _first(split: str, count: int, builder) -> str:
    """The first `count` examples of a split; all of it for 0 or a larger number than it has."""
    return f"{split}[:{count}]" if 0 < count < builder.info.splits[split].num_examples else split


def _supervised_keys(builder) -> tuple[str, str]:
    keys, features = builder.info.supervised_keys, builder.info.features
    if (
        not keys
        or len(keys) != 2
        or not isinstance(features[keys[0]], tfds.features.Image)
        or not isinstance(features[keys[1]], tfds.features.ClassLabel)
    ):
        raise UserError(f"{builder.name} is not an image-classification set")
    return keys


def _decode(encoded, window, channels: int, is_jpeg: bool):
    """The window (top, left, height, width) of an encoded image; of a JPEG no more is decoded."""
    if is_jpeg:
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=channels)
    image = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
    return tf.image.crop_to_bounding_box(image, window[0], window[1], window[2], window[3])


def _resize(image, sides):
    resized = tf.image.resize(tf.cast(image, tf.float32), sides, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)


def tfds_source(config: TrainConfig):
    """The TFDS set that the config names, not yet read. See `load`."""
    builder = prepared_builder(config.dataset, config.data_dir, config.download)
    return TfdsSource(
        builder,
        eval_split=_EVAL_SPLITS.get(builder.name, "test" if "test" in builder.info.splits else "validation"),
        image_size=config.image_size,
        train_examples=config.train_examples,
        eval_examples=config.eval_examples,
    )


def prepared_builder(name: str, data_dir: str = "", download: bool = False):
    """The tfds.core.DatasetBuilder of a data set whose files are there.

    Raises:
      ValueError: TFDS knows no such set, or it is not prepared and download is False.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir or None)
    except tfds.core.DatasetNotFoundError:
        near = difflib.get_close_matches(name, tfds.list_builders(with_community_datasets=False) + [MNIST_SAMPLE], n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else f"; {MNIST_SAMPLE} needs no files"
        raise UserError(f"there is no data set {name!r}{hint}") from None
    except (ValueError, AssertionError, ImportError) as error:  # of a version, a config or the name's syntax
        raise UserError(f"TFDS cannot make {name!r}: {str(error).splitlines()[0]}") from error
    if not builder.is_prepared():
        if not download:
            raise UserError(
                f"{name} is not prepared under {data_dir or os.path.dirname(builder.data_dir)}; add --download "
                f"to have TFDS fetch it, or name another --data_dir"
            )
        from identity_matters.runs.errors import Preempted

        try:
            builder.download_and_prepare()
        except Preempted:
            raise
        except Exception as error:  # no network, no space, or files to be fetched by hand: TFDS raises anything
            raise UserError(f"TFDS cannot download {name}: {' '.join(str(error).split())}") from error
    return builder
