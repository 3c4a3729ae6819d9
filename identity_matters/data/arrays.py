"""Images and labels held in memory, and the checks of arrays that users pass.

Images are [n, h, w] or [n, h, w, c]: whole numbers in 0 … 255, or floats in 0 … 1 or in 0 … 255, which are rounded to
bytes. Both splits have one type and one scale. Labels are whole numbers [n] or [n, 1], or one-hot rows [n, r].
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.config import MAX_CLASSES, DataConfig
from identity_matters.data.base import SPLITS, Source, Split
from identity_matters.data.given import read_examples
from identity_matters.errors import UserError, note, truncated_repr

# The four arrays, and what Keras's users call them.
ARRAYS = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
_PREFIX = "arrays "  # of what config.json calls them
_PIXELS_AT_ONCE = 2**20  # when images are resized, in float32


class ArraySource(Source):
    """Images uint8 [n, h, w, c] and labels int32 [n] of one or both splits, held in memory.

    Raises:
      UserError: the arrays do not fit together; the message says which and how.
    """

    def __init__(
        self,
        name: str,
        images: dict[Split, np.ndarray],
        labels: dict[Split, np.ndarray],
        num_classes: int,
        image_size: int = 0,
        digest: str | None = None,
    ) -> None:
        self.name = name
        self.num_classes = num_classes
        self._images = images
        self._labels = labels
        self._image_size = image_size
        self._digest = digest
        for split in images:
            _check_split(f"{name}, {split}", images[split], labels[split], num_classes)
        shapes = {array.shape[1:] for array in images.values()}
        if len(shapes) > 1:
            raise UserError(f"{name}: training and test images differ in shape, {shapes}; bring them to one shape")
        height, width, channels = shapes.pop()
        self.stored_size = height, width
        self.image_shape = (image_size or height, image_size or width, channels)

    @property
    def digest(self) -> str:
        """A digest of the arrays, or of the file that they are from."""
        if self._digest is None:
            self._digest = digest(*(part[split] for split in self._images for part in (self._images, self._labels)))
        return self._digest

    def num(self, split: Split) -> int:
        """Returns the number of examples of a split."""
        return len(self._labels[split])

    def labels(self, split: Split) -> np.ndarray:
        """Returns the labels of a whole split."""
        return self._labels[split]

    def read(
        self, split: Split, indices: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns examples of a split."""
        return resize(self._images[split][indices], self._image_size), self._labels[split][indices]


def given_source(data: Sequence[Any], config: DataConfig) -> ArraySource:
    """Returns the data of four arrays, or of two data sets in batches, under a name that differs if they do.

    >>> x, y = np.zeros((3, 8, 8), np.uint8), [0, 1, 2]
    >>> given_source((x, y, x, y), DataConfig()).name
    'arrays 7063df8f'

    Raises:
      UserError: there are not four or two, or one of them is unfit.
    """
    if isinstance(data, tuple | list) and len(data) == 2:
        data = (*read_examples("train", data[0]), *read_examples("test", data[1]))
    if not isinstance(data, tuple | list) or len(data) != 4:
        count = f"{len(data)} of them" if isinstance(data, tuple | list) else f"a {type(data).__name__}"
        raise UserError(
            "data must be (train, test), two data sets of batches (images, labels), or (x_train, y_train, x_test, "
            f"y_test), got {count}"
        )
    arrays = {name: as_numbers(name, array) for name, array in zip(ARRAYS, data)}
    source = ArraySource("the data", *checked_splits("the data", arrays, config.num_classes), config.image_size)
    # The digest is of the converted arrays, so the same images as bytes or as floats have one name.
    source.name = f"{_PREFIX}{source.digest}"
    return source


def check_dataset_is_reloadable(dataset: str) -> None:
    """Raises UserError if the data of a run were arrays, which nothing has stored."""
    if dataset.startswith(_PREFIX):
        raise UserError("the run was trained on arrays that were given in Python; give them again, or name a dataset")


def checked_splits(
    name: str, arrays: dict[str, np.ndarray], num_classes: int
) -> tuple[dict[Split, np.ndarray], dict[Split, np.ndarray], int]:
    """Returns the images and the labels of each split of which there are arrays, and how many classes they have.

    Without num_classes that is the largest training label + 1, or the length of one-hot rows.
    """
    splits = [split for split in SPLITS if f"{split}_images" in arrays]
    images = _to_bytes(name, {split: as_numbers(f"{name}: images", arrays[f"{split}_images"]) for split in splits})
    labels = {}
    counts = {}
    for split in splits:
        labels[split], counts[split] = as_labels(f"{name}: {split}_labels", arrays[f"{split}_labels"])
    count = counts[splits[0]]
    if splits[0] == "train":
        if 0 < num_classes < count:
            raise UserError(f"num_classes is {num_classes}, but the training labels of {name} have {count} classes")
        if max(num_classes, count) < 2:
            raise UserError(f"{name}: train_labels have only one class, 0; at least two are needed")
        first = labels["train"].min(initial=count)
        if not num_classes and 0 < first < count:
            note(f"the training labels of {name} are {first}–{count - 1}, so that the network has {count} classes, "
                 f"{first} of them without an image; for labels from 0 subtract the least")  # fmt: skip
    return images, labels, num_classes or count


def _check_split(name: str, images: np.ndarray, labels: np.ndarray, num_classes: int) -> None:
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


def digest(*arrays: np.ndarray) -> str:
    """Returns a digest of the shapes and the bytes of arrays."""
    result = hashlib.blake2b(digest_size=4)
    for array in arrays:
        # Without the shape, a reshaped array would have the same digest.
        result.update(f"{array.shape}".encode())
        result.update(np.ascontiguousarray(array))
    return result.hexdigest()


def examples_summary(images: np.ndarray, labels: np.ndarray, are_resized: bool = False) -> str:
    """Returns a summary that identifies the examples, without resized pixels, which vary between machines."""
    content, pixels = ("labels", []) if are_resized else ("images and labels", [images])
    # Little-endian on every machine, so that the digest is the same everywhere.
    numbers = digest(*pixels, labels.astype("<i4"))
    return f"{len(images)} training images, {'x'.join(map(str, images.shape[1:]))}, {content} {numbers}"


def resize(images: np.ndarray, image_size: int) -> np.ndarray:
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
        resized[start : start + count] = np.rint(chunk)  # means of bytes
    return resized


def as_numbers(name: str, array: ArrayLike) -> np.ndarray:
    """Returns an array of whole numbers, floats or booleans; raises UserError if it is none."""
    try:
        array = np.asarray(array)
    except ValueError as error:  # rows of several lengths
        raise UserError(f"{name} must be one array: {error}") from error
    if array.dtype.kind not in "buif":
        first = truncated_repr(array.ravel()[:1].tolist())
        advice = "; names = sorted(set(y)); y = [names.index(name) for name in y] converts names"
        raise UserError(f"{name} must be numbers, got {array.dtype} {first}{advice if 'label' in name else ''}")
    return array


def _to_bytes(name: str, images: dict[Split, np.ndarray]) -> dict[Split, np.ndarray]:
    """Returns the images of both splits, or only of the test split, as uint8 [n, h, w, c]."""
    if len({array.dtype.kind == "f" for array in images.values()}) > 1:
        types = ", ".join(f"{split}_images {array.dtype}" for split, array in images.items())
        raise UserError(f"{name}: give both splits of images as one type, got {types}")
    scales = {split: _scale(f"{name}: {split}_images", array) for split, array in images.items() if array.size}
    if len(set(scales.values())) > 1:
        raise UserError(f"{name}: one split of the images lies in 0 … 1, the other in 0 … 255; bring both to one scale")
    scale = next(iter(scales.values()), 1)
    return {split: _scaled(_with_channels(name, array), scale).astype(np.uint8) for split, array in images.items()}


def _scale(name: str, images: np.ndarray) -> int:
    """Returns what brings images to 0 … 255, 1 or 255; raises UserError if they are no pixels."""
    # A NaN anywhere makes both NaN, so no mask of the size of the images is needed.
    low, high = float(images.min()), float(images.max())
    if not np.isfinite([low, high]).all():
        raise UserError(f"{name} have a value that is not a number; remove that image")
    if not 0 <= low <= high <= 255:
        raise UserError(
            f"{name} must lie in 0 … 255, or be floats in 0 … 1, got {low:.6g} … {high:.6g}; images = (images - "
            f"{low:.6g}) / {max(high - low, 1e-9):.6g}, for both splits, converts them"
        )
    return 255 if images.dtype.kind == "b" or (images.dtype.kind == "f" and high <= 1) else 1


def _scaled(images: np.ndarray, scale: int) -> np.ndarray:
    """Returns images, floats rounded to whole numbers; float16 has too few digits for the product."""
    if images.dtype.kind not in "fb":
        return images
    # Rounded because the cast to uint8 truncates: 253.99998 would become 253.
    return np.rint(images.astype(np.promote_types(images.dtype, np.float32), copy=False) * scale)


def _with_channels(name: str, images: np.ndarray) -> np.ndarray:
    """Returns images [n, h, w, c]."""
    # Images of 1, 3 or 4 rows are possible, so both other axes must also be too long to be channels.
    if images.ndim == 4 and images.shape[1] in (1, 3, 4) and min(images.shape[2:]) > 4:
        advice = "give [n, h, w, c]: x.transpose(0, 2, 3, 1)"
        raise UserError(f"{name}: images of shape {images.shape} look like channels first; {advice}")
    return images[..., None] if images.ndim == 3 else images


def as_examples(images: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [n, h, w, c] in 0–255 and labels int32 [n] to evaluate on; floats in 0 … 255 stay as they are."""
    images = _with_channels("images", as_numbers("images", images))
    if images.size:
        scale = _scale("images", images)
        images = _scaled(images, scale) if scale > 1 else images
    return images, as_labels("labels", as_numbers("labels", labels))[0]


def as_labels(name: str, labels: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns labels int32 [n], and how many classes they speak of."""
    labels = as_numbers(name, labels)
    classes = 0
    # Keras's CIFAR data sets have labels [n, 1]; one-hot rows of a single class would say nothing.
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    elif labels.ndim == 2 and labels.size:
        if not (np.isin(labels, (0, 1)).all() and np.all(labels.sum(axis=1) == 1)):
            raise UserError(f"{name} must be whole numbers [n] or one-hot rows of one class each, got {labels.shape}")
        classes = labels.shape[1]
        labels = labels.argmax(axis=1)
    # This also rejects NaN, which is unequal to itself.
    if labels.size and not np.all(labels == np.rint(labels)):
        raise UserError(f"{name} must be whole numbers, got {labels[labels != np.rint(labels)].flat[0]}")
    low, high = (labels.min(), labels.max()) if labels.size else (0, 0)
    if not 0 <= low <= high < MAX_CLASSES:
        raise UserError(f"{name} must lie in 0–{MAX_CLASSES - 1}, got {low:.10g}–{high:.10g}")
    return labels.astype(np.int32), classes or int(high) + 1
