"""TFDS sets, found or downloaded by name.

A set that fits in memory is read whole, as tfds.load reads it. A larger one is read record by record, in any order, so
that a batch stays a pure function of (seed, step): a TFRecord file is a sequence of records, each with its length in
front, and one pass over the lengths gives the position of every example. It also gives the checksum of each record, and
so a digest of the whole set, without reading the images. Records that are read by position are not compared with their
checksums.
"""

import concurrent.futures
import contextlib
import difflib
import functools
import hashlib
import math
import os
import re
import shlex
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from identity_matters.config import DataConfig
from identity_matters.data.arrays import check_dataset_is_reloadable
from identity_matters.data.base import MAX_BYTES_IN_MEMORY, MNIST_SAMPLE, SPLITS, Source, Split
from identity_matters.errors import UserError, VaryingSizes, first_line
from identity_matters.runs.record import require_mounted
from identity_matters.untrusted import check_features

if keras.backend.backend() != "tensorflow":  # which only reads data then, and would take the memory of the GPUs
    with contextlib.suppress(RuntimeError):  # it is running already
        tf.config.set_visible_devices([], "GPU")

# Test splits without labels, and the splits that are evaluated instead.
_EVAL_SPLITS = {"i_naturalist2021": "val"} | dict.fromkeys(
    ("imagenet2012", "i_naturalist2017", "i_naturalist2018", "visual_domain_decathlon"), "validation"
)
# ImageNet's usual test protocol: the central 224 of 256 pixels of the shorter side.
CROP_FRACTION = 224 / 256
_FRAME = 12  # bytes in front of a record: its length, and a checksum of that; behind it is its own checksum, of 4
_THREADS = 16  # that wait for the disk


def prepared_builder(name: str, data_dir: str = "", download: bool = False) -> tfds.core.DatasetBuilder:
    """Returns the builder of a data set whose files are there, or are downloaded on request; else raises UserError."""
    check_dataset_is_reloadable(name)
    try:
        parsed, _ = tfds.core.naming.parse_builder_name_kwargs(name)
        if parsed.namespace:
            raise UserError("third-party data sets bring their own code")
        if data_dir:
            require_mounted(data_dir)
            # Before tfds.builder, which imports the classes that features.json names.
            check_features(os.path.join(os.path.expanduser(data_dir), parsed.name))
        builder = tfds.builder(name, data_dir=data_dir or None)
    except tfds.core.DatasetNotFoundError:
        # Without community data sets, which are rejected above.
        near = difflib.get_close_matches(name, [*tfds.list_builders(with_community_datasets=False), MNIST_SAMPLE], n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"{MNIST_SAMPLE} needs no files"
        place = f" under {data_dir}" if data_dir else ""
        raise UserError(f"there is no data set {name!r}{place}; {hint}") from None
    except Exception as error:  # a wrong version, config or syntax of the name, damaged files: TFDS raises anything
        raise UserError(f"TFDS cannot make {name!r}: {first_line(error)[:300]}") from error
    if builder.is_prepared():
        return builder
    if not download:
        place = f" --data_dir={shlex.quote(data_dir)}" if data_dir else ""
        raise UserError(
            f"{name} is not prepared under {data_dir or os.path.dirname(builder.data_dir)}; --data_dir "
            f"(data_dir=…) names another place; --download of launch.train (download=True) has TFDS fetch it, or "
            f"python -m launch.export_npz --dataset={name}{place} --download --npz={builder.name}.npz"
        )
    try:
        builder.download_and_prepare()
    except Exception as error:  # no network, no space, or files to be fetched by hand: TFDS raises anything
        raise UserError(
            f"TFDS cannot download {name}: {first_line(error)}; without a network, copy a prepared {name} to "
            "--data_dir (data_dir=…)"
        ) from error
    return builder


def image_and_label(builder: tfds.core.DatasetBuilder) -> tuple[str, str]:
    """Returns the names of an example's image and label: the supervised keys, or the only image and class label.

    Raises UserError if the set has other ones, or several.
    """
    features = builder.info.features
    connectors = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    types = (tfds.features.Image, tfds.features.ClassLabel)
    keys = builder.info.supervised_keys
    candidates = [[key for key, feature in connectors.items() if isinstance(feature, kind)] for kind in types]
    if not keys and [len(names) for names in candidates] == [1, 1]:
        keys = tuple(names[0] for names in candidates)
    if not keys or len(keys) != 2 or not all(key in names for key, names in zip(keys, candidates)):
        raise UserError(f"{builder.name} is not an image-classification set: its features are {', '.join(connectors)}")
    return keys


class TfdsSource(Source):
    """A prepared TFDS image-classification set, by the name config.dataset.

    Attributes:
      stored_shape: (height, width, channels) of the images as they are stored; None for a side that varies.

    Raises:
      UserError: not an image-classification set, a split is missing, its files are damaged, or its images vary in size
        and no image_size is given.
    """

    def __init__(self, config: DataConfig) -> None:
        self._builder = prepared_builder(config.dataset, config.data_dir, config.download)
        self.name = self._builder.name
        info = self._builder.info
        default = _EVAL_SPLITS.get(self.name, "test" if "test" in info.splits else "validation")
        self.split_names = (config.train_split or "train", config.test_split or default)
        for split in self.split_names:
            if split not in info.splits:
                raise UserError(
                    f"{self.name} has no split {split!r}, only {', '.join(info.splits)}; --train_split and "
                    "--test_split (train_split=…, test_split=…) name two of them"
                )
            if not info.splits[split].num_examples:
                raise UserError(f"the split {split!r} of {self.name} is empty")
        self._image_key, self._label_key = image_and_label(self._builder)
        if info.features[self._image_key].np_dtype != np.uint8:
            raise UserError(f"the images of {self.name} are not uint8, 0–255; only these are read")
        self.num_classes = info.features[self._label_key].num_classes
        self.stored_shape = info.features[self._image_key].shape
        self.varies = None in self.stored_shape
        self.stored_size = None if self.varies else self.stored_shape[:2]
        if self.varies and not config.image_size:
            raise VaryingSizes(f"the images of {self.name} vary in size; give --image_size=224 (image_size=224), say")
        sides = (config.image_size, config.image_size) if config.image_size else self.stored_shape[:2]
        self.image_shape = (*sides, self.stored_shape[2])
        self._opened: dict[Split, _Records] = {}
        self._loaded: dict[Split, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def digest(self) -> str:
        """A digest of the checksums of all records of both splits."""
        result = hashlib.blake2b(digest_size=8)
        for split in SPLITS:
            result.update(self._records(split).checksums)
        return result.hexdigest()

    def num(self, split: Split) -> int:
        """Returns the number of examples of a split."""
        return self._split_info(split).num_examples

    def labels(self, split: Split) -> np.ndarray | None:
        """Returns the labels of a whole split; None for a split that does not fit in memory."""
        return self._load(split)[1] if self._fits(split) else None

    def read(
        self, split: Split, indices: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns examples of a split; `places` are those of the windows of images that vary in size."""
        if self._fits(split):
            images, labels = self._load(split)
            return images[indices], labels[indices]
        middle = np.full((len(indices), 2), 0.5, np.float32)
        corners = middle if places is None else places.astype(np.float32)
        with self._reading():
            images, labels = self._decoded(self._records(split).read(indices), corners)
        return images.numpy(), self._checked_labels(labels.numpy())

    def locate(self, split: Split, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the files and the spans of records."""
        return self._records(split).locate(indices)

    def read_located(self, files: tf.Tensor, spans: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns images uint8 [n, h, w, c] and labels int32 [n] of records."""

        def read_record(record: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            file, span = record
            before, length, behind = tf.unstack(span)
            dataset = tf.data.FixedLengthRecordDataset(file, length, header_bytes=before, footer_bytes=behind)
            return dataset.get_single_element()

        signature = tf.TensorSpec([], tf.string)
        return self._decoded(tf.map_fn(read_record, (files, spans), fn_output_signature=signature), places)

    def _checked_labels(self, labels: np.ndarray) -> np.ndarray:
        """Returns labels; raises UserError for −1, say, as in test splits without labels."""
        if labels.size and not 0 <= labels.min() <= labels.max() < self.num_classes:
            place = f"{self.name} in {self._builder.data_dir}"
            raise UserError(f"cannot read {place}: labels {labels.min()}–{labels.max()} of {self.num_classes} classes")
        return labels

    def _split_info(self, split: Split) -> tfds.core.SplitInfo:
        return self._builder.info.splits[self.split_names[split == "test"]]

    def _fits(self, split: Split) -> bool:
        return not self.varies and self.num(split) * math.prod(self.image_shape) <= MAX_BYTES_IN_MEMORY

    def _load(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Returns all images, uint8 [n, h, w, c], and labels, int32 [n], in the order of the records."""
        if split not in self._loaded:
            images = np.empty((self.num(split), *self.image_shape), np.uint8)
            labels = np.empty(self.num(split), np.int32)
            # One file after the other, as records are numbered; without the cache, which would hold a second copy of a
            # set that is read only once.
            options = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
            with self._reading():
                examples = self._builder.as_dataset(split=self._split_info(split).name, read_config=options)
                examples = examples.map(self._image_and_label, num_parallel_calls=tf.data.AUTOTUNE).batch(1000)
                start = 0
                for some_images, some_labels in examples.as_numpy_iterator():
                    stop = start + len(some_labels)
                    images[start:stop] = some_images
                    labels[start:stop] = some_labels
                    start = stop
            self._loaded[split] = images, self._checked_labels(labels)
        return self._loaded[split]

    def _image_and_label(self, example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        image = example[self._image_key]
        if self.stored_shape != self.image_shape:
            image = _resize(image, self.image_shape[:2])
        return image, tf.cast(example[self._label_key], tf.int32)

    def _records(self, split: Split) -> "_Records":
        """Returns the records of a split, whose positions are found when they are first asked for."""
        if split not in self._opened:
            info = self._split_info(split)
            with self._reading():
                paths = [os.fspath(path) for path in info.filepaths]
                self._opened[split] = _Records(self.name, paths, list(info.shard_lengths))
        return self._opened[split]

    @functools.cached_property
    def _decoded(self) -> tf.types.experimental.PolymorphicFunction:
        """The function from serialised examples, text [n], and places of windows, [n, 2], to images and labels."""
        # The image stays encoded at first, so that only the window of a JPEG is decoded.
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
        """Context manager: an error of TensorFlow on damaged files becomes a UserError."""
        try:
            yield
        except (tf.errors.OpError, OSError) as error:
            message = getattr(error, "strerror", None) or getattr(error, "message", "damaged")
            # TensorFlow's messages also name the graph node and the operation, which do not help a reader.
            reason = re.sub(r"\{\{.*?\}\} *| *\[Op:.*", "", message.splitlines()[0])
            raise UserError(f"cannot read {self.name} in {self._builder.data_dir}: {reason[:200]}") from error


class _Records:
    """The records of the files of one split, found by their positions.

    Attributes:
      checksums: bytes [4 · count]. The CRC-32C of each record, as the files hold it.

    Raises:
      UserError: a file ends inside a record, or holds another number of records than the set says.
    """

    def __init__(self, name: str, paths: list[str], lengths: list[int]) -> None:
        self.paths = paths
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            scans = list(pool.map(_scan, [name] * len(paths), paths, lengths))
        self._spans = np.concatenate([spans for spans, _ in scans])
        self.checksums = b"".join(checksums for _, checksums in scans)
        self._file_of = np.repeat(np.arange(len(paths)), lengths)
        self._sizes = np.array([os.path.getsize(path) for path in paths])

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the files, text [n], and the bytes before, in and behind each record, int64 [n, 3]."""
        files = self._file_of[indices]
        start, length = self._spans[indices].T
        # read_located passes this as the footer, which makes a single record of each file.
        behind = self._sizes[files] - start - length
        return np.array(self.paths, object)[files], np.stack([start, length, behind], axis=1)

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Returns serialised examples, an object array of bytes [n]."""
        result = np.empty(len(indices), object)
        order = np.argsort(indices, kind="stable")  # each file is opened once, and read forwards
        groups = np.split(order, np.flatnonzero(np.diff(self._file_of[indices[order]])) + 1)

        def fill(group: np.ndarray) -> None:
            with open(self.paths[self._file_of[indices[group[0]]]], "rb") as file:
                for i in group:
                    start, length = self._spans[indices[i]]
                    result[i] = os.pread(file.fileno(), length, start)

        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fill, groups))  # list raises the errors of the threads
        return result


def _scan(set_name: str, path: str, count: int) -> tuple[np.ndarray, bytes]:
    """Returns the start and the length of each record of a file, int64 [count, 2], and their checksums."""
    spans = []
    checksums = []
    position = 0
    with open(path, "rb") as file:
        size = os.path.getsize(path)
        header = os.pread(file.fileno(), 8, 0)
        # One record more than expected is enough to see that the file does not fit.
        while position < size and len(spans) <= count:
            length = int.from_bytes(header, "little")
            end = position + _FRAME + length
            spans.append((position + _FRAME, length))
            tail = os.pread(file.fileno(), 12, end)  # the checksum of this record, and the length of the next one
            checksums.append(tail[:4])
            header = tail[4:]
            position = end + 4
    if position != size or len(spans) != count:
        raise UserError(f"cannot read {set_name}: {path} does not hold {count} whole records; prepare the set again")
    return np.array(spans, np.int64).reshape(-1, 2), b"".join(checksums)


def _window(encoded: tf.Tensor, image_shape: tuple[int, int, int], is_jpeg: bool, place: tf.Tensor) -> tf.Tensor:
    """Returns a square window of an encoded image, resized to image_shape: uint8 [h, w, c].

    It lies at `place`, [2] in [0, 1), down and across.
    """
    if is_jpeg:  # no more than the window is decoded
        shape = tf.image.extract_jpeg_shape(encoded)
    else:
        # Without animations, because they would give the image an unknown number of axes.
        image = tf.io.decode_image(encoded, channels=image_shape[2], expand_animations=False)
        shape = tf.shape(image)
    side = tf.cast(CROP_FRACTION * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
    # + 1, because place < 1 and the cast truncates: every position is equally likely, the last one included.
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
