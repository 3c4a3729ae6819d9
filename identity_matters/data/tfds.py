"""TFDS sets: found or downloaded, and read record by record, in any order.

A TFRecord file is a sequence of records, each with its length in front, so one pass over the lengths gives the place of
every example. It also gives the checksum of each record, and so a digest of the whole set, without reading the images.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Iterator

import google_crc32c
import keras
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from identity_matters.config import MAX_CLASSES, DataConfig
from identity_matters.data.source import MAX_BYTES_IN_MEMORY, SPLITS, Source, Split
from identity_matters.data.tfds_builder import image_and_label, prepared_builder
from identity_matters.errors import UserError, VaryingSizes
from identity_matters.fields import require
from identity_matters.runs.files import open_file

if keras.backend.backend() != "tensorflow":  # which only reads data then, and would take the memory of the GPUs
    with contextlib.suppress(RuntimeError):  # it is running already
        tf.config.set_visible_devices([], "GPU")

# Test splits without labels, and what is evaluated instead.
_EVAL_SPLITS = {"i_naturalist2021": "val"} | dict.fromkeys(
    ("imagenet2012", "i_naturalist2017", "i_naturalist2018", "visual_domain_decathlon"), "validation"
)
_MAX_SIDE = 2**14  # pixels, or channels
# ImageNet's usual test protocol: the central 224 of 256 pixels of the shorter side.
CROP_FRACTION = 224 / 256
_FRAME = 12  # bytes in front of a record: its length, and a checksum of that; behind it is its own checksum, of 4
_THREADS = 16  # that wait for the disk


class TfdsSource(Source):
    """A prepared TFDS image-classification set, by the name config.dataset.

    Attributes:
      stored_shape: (height, width, channels) of the images as they are stored; None where a side varies.

    Raises:
      UserError: not an image-classification set, a split is missing, its files are damaged, or its images vary in size
        and no image_size is given.
    """

    def __init__(self, config: DataConfig) -> None:
        builder = prepared_builder(config.dataset, config.data_dir, config.download)
        self.name, self._builder, info = builder.name, builder, builder.info
        self._opened: dict[str, _Records] = {}
        default = _EVAL_SPLITS.get(builder.name, "test" if "test" in info.splits else "validation")
        self.split_names = (config.train_split or "train", config.test_split or default)
        self._image_key, self._label_key = image_and_label(builder)
        for split in self.split_names:
            if split not in info.splits:
                raise UserError(
                    f"{self.name} has no split {split!r}, only {', '.join(info.splits)}; --train_split and "
                    "--test_split (train_split=…, test_split=…) name two of them"
                )
        counts = [info.splits[split].num_examples for split in self.split_names]
        numbers = f"{counts[0]} training and {counts[1]} test images"
        require(all(counts), f"{self.name} has {numbers}; it cannot be trained or tested on")
        self.num_classes = info.features[self._label_key].num_classes
        feature = info.features[self._image_key]
        if feature.np_dtype != np.uint8:
            raise UserError(f"the images of {self.name} are {np.dtype(feature.np_dtype)}; only 0–255, uint8, are read")
        self.stored_shape = feature.shape
        sides = [side for side in (feature.shape[2] or 0, *feature.shape) if side is not None]
        is_possible = 1 <= min(sides) <= max(sides) <= _MAX_SIDE and 1 <= (self.num_classes or 0) <= MAX_CLASSES
        require(is_possible, f"{self.name} has images {feature.shape} and {self.num_classes} classes, which no set has")
        self.varies = None in self.stored_shape
        self.stored_size = None if self.varies else self.stored_shape[:2]
        if self.varies and not config.image_size:
            raise VaryingSizes(f"the images of {self.name} vary in size; give --image_size=224 (image_size=224), say")
        sides = (config.image_size, config.image_size) if config.image_size else self.stored_shape[:2]
        self.image_shape = (*sides, self.stored_shape[2])

    @property
    def digest(self) -> str:
        """Returns a digest of the checksums of all records of both splits."""
        result = hashlib.blake2b(digest_size=8)
        for split in SPLITS:
            result.update(self._records(split).checksums)
        return result.hexdigest()

    def num(self, split: Split) -> int:
        """Returns the number of examples of a split."""
        return self._builder.info.splits[self._stored_name(split)].num_examples

    def labels(self, split: Split) -> np.ndarray | None:
        """Returns the labels of a whole split; None for a split that would not fit in memory as it is stored."""
        records = self._records(split)
        if sum(map(os.path.getsize, records.paths)) > MAX_BYTES_IN_MEMORY:
            return None
        with self._reading():
            return self._labels_of(records.read(np.arange(records.count))).numpy()

    def read(
        self, split: Split, indices: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns examples of a split; `places` are those of the windows of images that vary in size."""
        middle = np.full((len(indices), 2), 0.5, np.float32)
        corners = middle if places is None else places.astype(np.float32)
        with self._reading():
            images, labels = self._decoded(self._records(split).read(indices), corners)
            images, labels = images.numpy(), labels.numpy()
        if labels.size and not 0 <= labels.min() <= labels.max() < self.num_classes:
            place = f"{self.name} in {self._builder.data_dir}"
            raise UserError(f"cannot read {place}: labels {labels.min()}–{labels.max()} of {self.num_classes} classes")
        return images, labels

    def _stored_name(self, split: Split) -> str:
        return self.split_names[split == "test"]

    def _records(self, split: Split) -> "_Records":
        """Returns the records of a split, whose places are found when they are first asked for."""
        name = self._stored_name(split)
        if name not in self._opened:
            info = self._builder.info.splits[name]
            with self._reading():
                paths = list(map(os.fspath, info.filepaths))
                self._opened[name] = _Records(self.name, paths, list(info.shard_lengths))
        return self._opened[name]

    @functools.cached_property
    def _labels_of(self) -> tf.types.experimental.PolymorphicFunction:
        """The function from serialised examples, text [n], to their labels, int32 [n]."""
        skip = {self._image_key: tfds.decode.SkipDecoding()}
        features = self._builder.info.features

        def label(example: tf.Tensor) -> tf.Tensor:
            return tf.cast(features.deserialize_example(example, decoders=skip)[self._label_key], tf.int32)

        signature = [tf.TensorSpec([None], tf.string)]
        return tf.function(
            lambda examples: tf.map_fn(label, examples, fn_output_signature=tf.int32), input_signature=signature
        )

    @functools.cached_property
    def _decoded(self) -> tf.types.experimental.PolymorphicFunction:
        """The function from serialised examples, text [n], and places of windows, [n, 2], to images and labels."""
        skip = {self._image_key: tfds.decode.SkipDecoding()}
        features = self._builder.info.features
        feature = features[self._image_key]
        is_jpeg = feature.encoding_format == "jpeg"

        def decode(inputs: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            example = features.deserialize_example(inputs[0], decoders=skip)
            encoded = example[self._image_key]
            if self.varies:
                image = _window(encoded, self.image_shape, is_jpeg, inputs[1])
            else:
                image = feature.decode_example(encoded)
                image = image if self.stored_shape == self.image_shape else _resize(image, self.image_shape[:2])
            return image, tf.cast(example[self._label_key], tf.int32)

        types = (tf.TensorSpec(self.image_shape, tf.uint8), tf.TensorSpec([], tf.int32))
        signature = [tf.TensorSpec([None], tf.string), tf.TensorSpec([None, 2], tf.float32)]
        # The iterations of map_fn run on all cores at once.
        return tf.function(
            lambda examples, places: tf.map_fn(
                decode, (examples, places), fn_output_signature=types, parallel_iterations=4 * (os.cpu_count() or 1)
            ),
            input_signature=signature,
        )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Opens a context in which damaged files are a UserError, not one of TensorFlow's."""
        try:
            yield
        except (
            tf.errors.OpError,
            OSError,
            UnicodeDecodeError,
        ) as error:  # the last where a text quotes bytes of a file
            message = getattr(error, "strerror", None) or getattr(error, "message", "damaged")
            reason = re.sub(r"\{\{.*?\}\} *| *\[Op:.*", "", message.splitlines()[0])
            raise UserError(f"cannot read {self.name} in {self._builder.data_dir}: {reason[:200]}") from error


class _Records:
    """The records of the files of one split, found by their places in it.

    Attributes:
      checksums: bytes [4 · count]. The CRC-32C of each record, as the files hold it.

    Raises:
      UserError: a file ends inside a record, or holds another number of records than the set says.
    """

    def __init__(self, name: str, paths: list[str], lengths: list[int]) -> None:
        self.paths, self.count, self._name = paths, sum(lengths), name
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            scans = list(pool.map(self._scan, paths, lengths))
        self._spans = np.concatenate([spans for spans, _ in scans])
        self.checksums = b"".join(checksums for _, checksums in scans)
        self._file_of = np.repeat(np.arange(len(paths)), lengths)

    def _scan(self, path: str, count: int) -> tuple[np.ndarray, bytes]:
        """Returns the start and the length of each record of a file, int64 [count, 2], and their checksums."""
        spans, checksums = np.empty((count, 2), np.int64), []
        folder, name = os.path.split(path)
        inside = f"cannot read {self._name} in {folder}: {name} ends inside a record"
        with open_file(path) as file:
            size, position, place = os.path.getsize(path), 0, 0
            header = os.pread(file.fileno(), 8, 0)
            while position < size:
                length = int.from_bytes(header, "little")
                end = position + _FRAME + length
                require(end + 4 <= size, inside)
                other = f"cannot read {self._name} in {folder}: {name} holds other than {count} examples"
                require(place < count, other)
                spans[place] = position + _FRAME, length
                tail = os.pread(file.fileno(), 12, end)  # the checksum of this record, and the length of the next one
                checksums.append(tail[:4])
                header, position, place = tail[4:], end + 4, place + 1
            require(place == count, f"cannot read {self._name} in {folder}: {name} holds {place} of {count} examples")
        return spans, b"".join(checksums)

    def _checksum(self, index: int) -> int:
        return int.from_bytes(self.checksums[4 * index : 4 * index + 4], "little")

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Returns serialised examples, an object array of bytes [n]; raises UserError where one is damaged."""
        result = np.empty(len(indices), object)
        order = np.argsort(indices, kind="stable")  # each file is opened once, and read forwards
        groups = np.split(order, np.flatnonzero(np.diff(self._file_of[indices[order]])) + 1)

        def fill(group: np.ndarray) -> None:
            path = self.paths[self._file_of[indices[group[0]]]]
            with open_file(path) as file:
                for i in group:
                    start, length = self._spans[indices[i]]
                    result[i] = os.pread(file.fileno(), length, start)
                    if _masked_crc(result[i]) != self._checksum(indices[i]):
                        folder, name = os.path.split(path)
                        raise UserError(f"cannot read {self._name} in {folder}: a record of {name} is damaged")

        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fill, groups))
        return result


def _masked_crc(record: bytes) -> int:
    """Returns the checksum of a record as TFRecord files hold it."""
    crc = google_crc32c.value(record)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _window(encoded: tf.Tensor, image_shape: tuple[int, int, int], is_jpeg: bool, place: tf.Tensor) -> tf.Tensor:
    """Returns a square window of an encoded image, resized to image_shape: uint8 [h, w, c].

    It lies at `place`, [2] in [0, 1), down and across.
    """
    if is_jpeg:  # of which no more than the window is decoded
        shape = tf.image.extract_jpeg_shape(encoded)
    else:
        image = tf.io.decode_image(encoded, channels=image_shape[2], expand_animations=False)
        shape = tf.shape(image)
    side = tf.cast(CROP_FRACTION * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
    corner = tf.cast(place * tf.cast(shape[:2] - side + 1, tf.float32), tf.int32)
    if is_jpeg:
        image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([corner, [side, side]], axis=0), channels=image_shape[2])
    else:
        image = tf.image.crop_to_bounding_box(image, corner[0], corner[1], side, side)
    return _resize(image, image_shape[:2])


def _resize(image: tf.Tensor, sides: tuple[int, int]) -> tf.Tensor:
    """Returns the image at (height, width) = sides, as uint8."""
    resized = tf.image.resize(tf.cast(image, tf.float32), sides, antialias=True)
    return tf.cast(tf.round(resized), tf.uint8)  # means of bytes
