"""TFDS sets: found or downloaded, read into memory, or streamed where too large or of images that vary in size.

The stream is a pure function of (seed, step) too: the order of an epoch and the crop or shift of each of its examples
are seeded by (seed, epoch). TensorFlow mixes its global seed into the order, so that seed must be the same too;
training sets it to the config's. Starting inside an epoch reads, but does not decode, the examples before.
"""

import contextlib
import math
import re
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from identity_matters.config import MAX_CLASSES, TrainConfig
from identity_matters.data.arrays import MAX_BYTES_IN_MEMORY, ArrayData
from identity_matters.data.tfds_builder import image_and_label, prepared_builder
from identity_matters.data.tfds_files import check_records
from identity_matters.errors import UserError, VaryingSizes
from identity_matters.fields import require

if keras.backend.backend() != "tensorflow":  # which only reads data then, and would take the memory of the GPUs
    with contextlib.suppress(RuntimeError):  # it is running already
        tf.config.set_visible_devices([], "GPU")

# Test splits without labels, and what is evaluated instead.
_EVAL_SPLITS = {"i_naturalist2021": "val"} | dict.fromkeys(
    ("imagenet2012", "i_naturalist2017", "i_naturalist2018", "visual_domain_decathlon"), "validation"
)
# File after file, so that the first examples are the same ones whether all are read or they alone; TFDS reads 16 files
# in turn.
_IN_ORDER = tfds.ReadConfig(interleave_cycle_length=1)
# Encoded images, about 110 kB each for ImageNet.
SHUFFLE_BUFFER = 8192
_MAX_SIDE = 2**14  # pixels, or channels
# ImageNet's usual test protocol: the central 224 of 256 pixels of the shorter side.
CROP_FRACTION = 224 / 256


class TfdsSource:
    """A prepared TFDS image-classification set: trained on train_split, tested on the labelled eval_split.

    Attributes:
      split_names: train_split and eval_split.
      stored_shape: (height, width, channels) of the images as they are stored; None where a side varies.
      image_shape: (height, width, channels) of the images that it gives.

    Raises:
      UserError: not an image-classification set, a split is missing, or its images vary in size and no image_size is
        given.
    """

    def __init__(
        self,
        builder: tfds.core.DatasetBuilder,
        eval_split: str,
        image_size: int = 0,
        train_examples: int = 0,
        eval_examples: int = 0,
        train_split: str = "train",
    ) -> None:
        self.name, self._builder = builder.name, builder
        self._image_key, self._label_key = image_and_label(builder)
        check_records(self.name, str(builder.data_dir))
        self.split_names = (train_split, eval_split)
        for split in self.split_names:
            if split not in builder.info.splits:
                raise UserError(
                    f"{self.name} has no split {split!r}, only {', '.join(builder.info.splits)}; --train_split and "
                    "--test_split (train_split=…, test_split=…) name two of them"
                )
        self._splits = {
            "train": _shortened_split(train_split, train_examples, builder),
            "test": _shortened_split(eval_split, eval_examples, builder),
        }
        self.num_train = builder.info.splits[self._splits["train"]].num_examples
        self.num_test = builder.info.splits[self._splits["test"]].num_examples
        numbers = f"{self.num_train} training and {self.num_test} test images"
        require(min(self.num_train, self.num_test) > 0, f"{self.name} has {numbers}; it cannot be trained or tested on")
        self.num_classes = builder.info.features[self._label_key].num_classes
        feature = builder.info.features[self._image_key]
        if feature.np_dtype != np.uint8:
            raise UserError(f"the images of {self.name} are {np.dtype(feature.np_dtype)}; only 0–255, uint8, are read")
        self.stored_shape = feature.shape
        sides = [side for side in (feature.shape[2] or 0, *feature.shape) if side is not None]
        is_possible = 1 <= min(sides) <= max(sides) <= _MAX_SIDE and 1 <= (self.num_classes or 0) <= MAX_CLASSES
        require(is_possible, f"{self.name} has images {feature.shape} and {self.num_classes} classes, which no set has")
        self._varies = None in self.stored_shape[:2]
        if self._varies and not image_size:
            raise VaryingSizes(f"the images of {self.name} vary in size; give --image_size=224 (image_size=224), say")
        sides = (image_size, image_size) if image_size else self.stored_shape[:2]
        self.image_shape = (*sides, self.stored_shape[2])

    @property
    def summary(self) -> str:
        """Returns a line that other data would not have, as ArrayData's, without reading them."""
        return f"{self.num_train} training and {self.num_test} test images of {self._builder.info.full_name}"

    @property
    def is_streamed(self) -> bool:
        """Returns whether the set, before it is shortened, is too large for memory, or has images of varying size."""
        splits = self._builder.info.splits
        count = sum(splits[name].num_examples for name in self.split_names)
        return self._varies or math.prod(self.image_shape) * count > MAX_BYTES_IN_MEMORY

    def load(self) -> ArrayData:
        """Returns the whole set in memory."""
        arrays = {}
        for split in ("train", "test"):
            with self._reading():
                images, labels = zip(*self._whole_images(split).batch(1000).as_numpy_iterator())
            arrays[f"{split}_images"] = np.concatenate(images)
            arrays[f"{split}_labels"] = np.concatenate(labels).astype(np.int32)
        return ArrayData(self.name, **arrays, num_classes=self.num_classes)

    def train_batches(
        self,
        seed: int,
        first_step: int,
        batch_size: int,
        random_flip: bool = True,
        rows: range | None = None,
        crop_padding: int = 0,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (uint8 images [b, h, w, c], labels [b]) of first_step, first_step + 1, … without end.

        An epoch is num_train // batch_size ≥ 1 steps; what is left over differs in each epoch. Only the given rows of
        every batch are decoded, b of them (None: all). Images of one size are shifted by up to crop_padding pixels; of
        others, windows are taken at random.
        """
        rows = rows or range(batch_size)
        steps_per_epoch = self.num_train // batch_size
        epoch, step = divmod(first_step, steps_per_epoch)
        while True:
            first, stop = step * batch_size, steps_per_epoch * batch_size
            order_seed = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0] >> 1)
            encoded = self._encoded("train", order_seed)
            shuffled = encoded.shuffle(SHUFFLE_BUFFER, order_seed, reshuffle_each_iteration=False).enumerate()
            examples = _select_rows(shuffled.take(stop).skip(first), batch_size, rows)
            examples = self._decoded(examples, order_seed, random_flip, crop_padding)
            yield from self._batches(examples, len(rows))
            epoch, step = epoch + 1, 0

    def raw_test_batches(self, batch_size: int, rows: range | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (uint8 images [b, h, w, c], labels [b]) once through the test split, in order; the last b may be less.

        Only the given rows of every batch are decoded (None: all).
        """
        rows = rows or range(batch_size)
        examples = self._encoded("test") if self._varies else self._whole_images("test")
        selected = _select_rows(examples.enumerate(), batch_size, rows)
        images = self._decoded(selected, None) if self._varies else selected.map(lambda _, example: example)
        yield from self._batches(images, len(rows))

    def _batches(self, examples: tf.data.Dataset, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the examples in batches; raises UserError where they are damaged, or of a class that the set lacks."""
        with self._reading():
            for images, labels in examples.batch(size).prefetch(2).as_numpy_iterator():
                if not 0 <= labels.min() <= labels.max() < self.num_classes:
                    place = f"{self.name} in {self._builder.data_dir}"
                    raise UserError(
                        f"cannot read {place}: labels {labels.min()}–{labels.max()} of {self.num_classes} classes"
                    )
                yield images, labels

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Opens a context in which damaged files are a UserError, not one of TensorFlow's."""
        try:
            yield
        except (tf.errors.OpError, UnicodeDecodeError) as error:  # the latter where its text quotes bytes of a file
            reason = re.sub(r"\{\{.*?\}\} *| *\[Op:.*", "", getattr(error, "message", "damaged").splitlines()[0])
            raise UserError(f"cannot read {self.name} in {self._builder.data_dir}: {reason[:200]}") from error

    def _whole_images(self, split: str) -> tf.data.Dataset:
        """Returns (image, label) of every example of a split, decoded."""
        examples = self._builder.as_dataset(split=self._splits[split], read_config=_IN_ORDER)
        return examples.map(
            lambda found: (self._sized(found[self._image_key]), found[self._label_key]), tf.data.AUTOTUNE
        )

    def _sized(self, image: tf.Tensor) -> tf.Tensor:
        """Returns a whole image at image_size, if there is one."""
        return image if self.stored_shape == self.image_shape else _resize(image, self.image_shape[:2])

    def _encoded(self, split: str, shuffle_seed: int | None = None) -> tf.data.Dataset:
        """Returns (encoded image, label) of every example of a split, whose files a seed shuffles."""
        shuffle = shuffle_seed is not None
        shuffled = tfds.ReadConfig(shuffle_seed=shuffle_seed, shuffle_reshuffle_each_iteration=False)
        return self._builder.as_dataset(
            split=self._splits[split],
            decoders={self._image_key: tfds.decode.SkipDecoding()},
            shuffle_files=shuffle,
            read_config=shuffled if shuffle else _IN_ORDER,
        ).map(lambda example: (example[self._image_key], example[self._label_key]))

    def _decoded(
        self, examples: tf.data.Dataset, seed: int | None, random_flip: bool = False, crop_padding: int = 0
    ) -> tf.data.Dataset:
        """Returns (image, label) of encoded ones: at random under a seed, and without one the central windows."""
        feature = self._builder.info.features[self._image_key]
        is_jpeg = feature.encoding_format == "jpeg"

        def decode(index: tf.Tensor, example: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label = example
            is_training, position = seed is not None, None
            if is_training:
                position = tf.random.stateless_uniform([3], seed=tf.stack([tf.constant(seed, tf.int64), index]))
            if self._varies:
                image = _window(encoded, self.image_shape, is_jpeg, position)
            else:
                image = self._sized(feature.decode_example(encoded))
                image = _shifted(image, crop_padding, position) if is_training else image
            if random_flip:
                image = tf.cond(position[2] > 0.5, lambda: tf.reverse(image, [1]), lambda: image)
            return image, label

        return examples.map(decode, tf.data.AUTOTUNE, deterministic=True)


def _select_rows(enumerated: tf.data.Dataset, batch_size: int, rows: range) -> tf.data.Dataset:
    """Returns those of the pairs (index, example) that lie in these rows of their batches."""
    if len(rows) == batch_size:
        return enumerated
    return enumerated.filter(lambda i, _: (i % batch_size >= rows.start) & (i % batch_size < rows.stop))


def _test_split(builder: tfds.core.DatasetBuilder) -> str:
    return _EVAL_SPLITS.get(builder.name, "test" if "test" in builder.info.splits else "validation")


def _shortened_split(split: str, count: int, builder: tfds.core.DatasetBuilder) -> str:
    """Returns TFDS's name for the first `count` examples of a split; for all of it where count is 0 or too large."""
    return f"{split}[:{count}]" if 0 < count < builder.info.splits[split].num_examples else split


def tfds_source(config: TrainConfig) -> TfdsSource:
    """Returns the TFDS set that the config names, not yet read; raises UserError as prepared_builder and TfdsSource."""
    builder = prepared_builder(config.dataset, config.data_dir, config.download)
    return TfdsSource(
        builder,
        config.test_split or _test_split(builder),
        config.image_size,
        config.train_examples,
        config.eval_examples,
        config.train_split or "train",
    )


def _window(
    encoded: tf.Tensor, image_shape: tuple[int, int, int], is_jpeg: bool, position: tf.Tensor | None
) -> tf.Tensor:
    """Returns a square window of an encoded image, resized to image_shape: uint8 [h, w, c].

    It lies at position, random in [0, 1), down and across; without one it is the central window.
    """
    if is_jpeg:  # of which no more than the window is decoded
        shape = tf.image.extract_jpeg_shape(encoded)
    else:
        image = tf.io.decode_image(encoded, channels=image_shape[2], expand_animations=False)
        shape = tf.shape(image)
    side = tf.cast(CROP_FRACTION * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
    place = tf.constant([0.5, 0.5]) if position is None else position[:2]
    corner = tf.cast(place * tf.cast(shape[:2] - side + 1, tf.float32), tf.int32)
    if is_jpeg:
        image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([corner, [side, side]], axis=0), channels=image_shape[2])
    else:
        image = tf.image.crop_to_bounding_box(image, corner[0], corner[1], side, side)
    return _resize(image, image_shape[:2])


def _shifted(image: tf.Tensor, padding: int, position: tf.Tensor) -> tf.Tensor:
    """Returns an image uint8 [h, w, c] at random in its frame, off by `padding` pixels at most; outside of it is 0."""
    height, width, channels = image.shape
    corner = tf.cast(position[:2] * (2 * padding + 1), tf.int32)
    padded = tf.pad(image, [[padding, padding], [padding, padding], [0, 0]])
    return tf.ensure_shape(tf.slice(padded, [corner[0], corner[1], 0], [height, width, channels]), image.shape)


def _resize(image: tf.Tensor, sides: tuple[int, int]) -> tf.Tensor:
    """Returns the image at (height, width) = sides, as uint8."""
    resized = tf.image.resize(tf.cast(image, tf.float32), sides, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
