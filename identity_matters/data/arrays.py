"""Data held in memory, and arrays that users give: what may be in them, and what they are turned into.

Images are [n, h, w] or [n, h, w, c]. Bytes are taken as they are, booleans as black and white, other whole numbers and
floats in 0 … 255; floats in 0 … 1 are multiplied by 255 and rounded. Labels are whole numbers [n] or [n, 1], or one-hot
rows [n, r]. Data sets of batches (tf.data.Dataset, keras.utils.PyDataset, torch's DataLoader, a list) are read once.
Many of them shuffle again whenever they are read, so their examples are sorted by their contents: the same examples are
the same data, so that a run can continue.
"""

import hashlib
import itertools
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tqdm import tqdm

from identity_matters.config import MAX_CLASSES, DataConfig
from identity_matters.data.source import MAX_BYTES_IN_MEMORY, SPLITS, Source, Split
from identity_matters.errors import UserError, note, truncated_repr
from identity_matters.fields import require

# The four arrays, and what Keras's users call them.
ARRAYS = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
# Of labels that are names; searchsorted gives wrong numbers for a name that the training set lacks, index refuses it.
NAMES_ADVICE = (
    "names = sorted(set(y_train)); y_train, y_test = ([names.index(y) for y in ys] for ys in (y_train, y_test)) "
    "converts names"
)
_PREFIX = "arrays "  # of what config.json calls them
_PIXELS_AT_ONCE = 2**20  # when images are resized, in float32
MAX_EMPTY = 10_000  # batches in a row without an example: more are taken for a data set without end
_INFINITE = -1  # of tf.data's cardinality
_LONG = 10  # seconds
_TAKE_SOME = "take some of it, e.g. data.take(100) of tf.data, or itertools.islice(data, 100)"
_LEAST_LEVELS = 16  # of 256: floats that rounding would leave fewer were divided twice, say, or are no pixels


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
        self.name, self.num_classes, self._images, self._labels = name, num_classes, images, labels
        self._image_size, self._digest = image_size, digest
        shapes = {split: array.shape[1:] for split, array in images.items()}
        for split in images:
            check_arrays(f"{name}, {split}", images[split], labels[split], num_classes)
        different = f"training and test images differ in shape, {', '.join(map(str, shapes.values()))}"
        require(len(set(shapes.values())) == 1, f"{name}: {different}; bring them to one shape")
        height, width, channels = next(iter(shapes.values()))
        self.stored_size = height, width
        self.image_shape = (image_size or height, image_size or width, channels)

    @property
    def digest(self) -> str:
        """Returns a digest of the arrays, or of the file that they are from."""
        if self._digest is None:
            arrays = [part[split] for split in self._images for part in (self._images, self._labels)]
            self._digest = digest(*arrays)
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
        return resized_images(self._images[split][indices], self._image_size), self._labels[split][indices]


def given_source(data: Sequence[Any], config: DataConfig) -> ArraySource:
    """Returns the data of four arrays, or of two data sets in batches, under a name that differs where they do.

    >>> x, y = np.zeros((3, 8, 8), np.uint8), [0, 1, 2]
    >>> given_source((x, y, x, y), DataConfig()).name
    'arrays 7063df8f'

    Raises:
      UserError: there are not four or two, or one of them is unfit, or the splits are not of one scale.
    """
    if isinstance(data, tuple | list) and len(data) == 2:
        data = (*examples_of("train", data[0]), *examples_of("test", data[1]))
    count = f"{len(data)} of them" if isinstance(data, tuple | list) else f"a {type(data).__name__}"
    expected = "(train, test), two data sets of batches (images, labels), or (x_train, y_train, x_test, y_test)"
    require(count == "4 of them", f"data must be {expected}, got {count}")
    arrays = {name: as_numbers(name, array) for name, array in zip(ARRAYS, data)}
    source = ArraySource("the data", *checked_arrays("the data", arrays, config.num_classes), config.image_size)
    source.name = f"{_PREFIX}{source.digest}"
    return source


def require_stored(dataset: str) -> None:
    """Raises UserError where the data of a run were arrays, which nothing has stored."""
    if dataset.startswith(_PREFIX):
        raise UserError("the run was trained on arrays that were given in Python; give them again, or name a dataset")


def checked_arrays(
    name: str, arrays: dict[str, np.ndarray], num_classes: int
) -> tuple[dict[Split, np.ndarray], dict[Split, np.ndarray], int]:
    """Returns the images and the labels of each split of which there are arrays, and how many classes they have.

    Without num_classes that is the largest training label + 1, or the length of one-hot rows.

    Raises:
      UserError: an array is unfit, or the splits are not of one scale; the message begins with the name.
    """
    splits = [split for split in SPLITS if f"{split}_images" in arrays]
    images = as_bytes(name, {split: arrays[f"{split}_images"] for split in splits})
    labels, counts = {}, {}
    for split in splits:
        labels[split], counts[split] = as_integers(f"{name}: {split}_labels", arrays[f"{split}_labels"])
    count = counts[splits[0]]
    if "train" in splits and 0 < num_classes < count:
        raise UserError(f"num_classes is {num_classes}, but the training labels of {name} have {count} classes")
    is_one = splits[0] == "train" and labels["train"].size and max(num_classes, count) == 1
    require(not is_one, f"{name}: train_labels have only one class, 0; at least two are needed")
    first = labels["train"].min() if "train" in labels and labels["train"].size else 0
    if not num_classes and first > 0:
        note(
            f"the training labels of {name} are {first}–{count - 1}, so that the network has {count} classes, "
            f"{first} of them without an image; for labels from 0 subtract the least"
        )
    return images, labels, num_classes or count


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
    result = hashlib.blake2b(digest_size=4)
    for array in arrays:
        result.update(f"{array.shape}".encode())
        result.update(np.ascontiguousarray(array))
    return result.hexdigest()


def examples_summary(images: np.ndarray, labels: np.ndarray, are_resized: bool = False) -> str:
    """Returns a line that other examples would not have; resized pixels, which vary between machines, are left out."""
    what, pixels = ("labels", []) if are_resized else ("images and labels", [images])
    numbers = digest(*pixels, labels.astype("<i4"))
    return f"{len(images)} training images, {'x'.join(map(str, images.shape[1:]))}, {what} {numbers}"


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
        resized[start : start + count] = np.rint(chunk)  # means of bytes
    return resized


def as_numbers(what: str, array: ArrayLike) -> np.ndarray:
    """Returns an array of numbers, or raises UserError where it is none."""
    try:
        array = np.asarray(array)
    except ValueError as error:  # rows of several lengths
        raise UserError(f"{what} must be one array: {error}") from error
    if array.dtype.kind in "SUO" and "label" in what:
        raise UserError(
            f"{what} must be whole numbers, got {truncated_repr(array.ravel()[:1].tolist())}; {NAMES_ADVICE}"
        )
    require(array.dtype.kind in "buif", f"{what} must be numbers, got {array.dtype}")
    return array


def as_bytes(name: str, images: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the images of both splits, or of the test split alone, as uint8 [n, h, w, c]; see the text above."""
    types = {split: array.dtype for split, array in images.items()}
    are_floats = {dtype.kind == "f" for dtype in types.values()}
    if len(are_floats) > 1:
        given = ", ".join(f"{split}_images {dtype}" for split, dtype in types.items())
        raise UserError(f"{name}: give both splits of images as one type, got {given}")
    if True in are_floats:
        images = _floats_to_bytes(name, images)
    converted = {}
    for split, array in images.items():
        what = f"{name}: {split}_images"
        array = _with_channels(what, array)
        converted[split] = (array if array.dtype == np.uint8 else _in_range(what, array)).astype(np.uint8)
    return converted


def _with_channels(what: str, images: np.ndarray) -> np.ndarray:
    """Returns images [n, h, w, c]."""
    are_first = images.ndim == 4 and images.shape[1] in (1, 3, 4) and min(images.shape[2:]) > 4
    advice = "which looks like channels first; give [n, h, w, c]: x.transpose(0, 2, 3, 1)"
    require(not are_first, f"{what} have the shape {images.shape}, {advice}")
    return images[..., None] if images.ndim == 3 else images


def _in_range(what: str, images: np.ndarray) -> np.ndarray:
    """Returns images in 0–255: booleans as black and white, others as they are."""
    if images.dtype.kind == "b":
        return 255 * images.astype(np.uint8)
    low, high = (images.min(), images.max()) if images.size else (0, 0)
    if low < 0 or high > 255:  # which NaN passes
        raise UserError(
            f"{what} must lie in 0–255, got {low}–{high}; {_conversion(low, high)}, for both splits, converts them"
        )
    return images


def _floats_to_bytes(name: str, images: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the float images of both splits, or of one, in whole numbers from 0 to 255."""
    first = next(iter(images.values()))
    ranges = {split: _float_range(f"{name}: {split}_images", array) for split, array in images.items() if array.size}
    if not ranges:
        return images
    low, high = min(least for least, _ in ranges.values()), max(most for _, most in ranges.values())
    advice_on_range = f"got {low:.6g} … {high:.6g}; {_conversion(low, high)} converts those of both splits"
    require(0 <= low <= high <= 255, f"{name}: images must be bytes or floats in 0 … 1 or 0 … 255, {advice_on_range}")
    for split, (_, most) in ranges.items():
        scales = f"{split}_images lie in 0 … {most:.4g}, which is read as of 0 … 1, but the others in 0 … {high:.4g}"
        advice = "of 0 … 255; bring both to one scale: images = images / 255, for the others"
        require(not 0 < most <= 1 < high, f"{name}: {scales}, {advice}")
    top = 1 if high <= 1 else 255
    wide = np.promote_types(first.dtype, np.float32)  # float16 has too few digits
    rounded = {split: np.rint(array.astype(wide, copy=False) * (255 / top)) for split, array in images.items()}
    is_exact = all(np.array_equal(rounded[split], array) for split, array in images.items())
    if not is_exact and high * 255 / top < _LEAST_LEVELS:
        raise UserError(
            f"{name}: images lie in 0 … {high:.4g}, and rounding to whole numbers in 0 … 255 would lose nearly "
            f"everything; {_conversion(low, high)} converts those of both splits"
        )
    note(f"{name}: images are {first.dtype} in {low:.4g} … {high:.4g}; 0 … {top} becomes 0 … 255, in whole numbers")
    return {split: array.astype(np.uint8) for split, array in rounded.items()}


def _float_range(what: str, images: np.ndarray) -> tuple[float, float]:
    """Returns the least and the largest value."""
    require(bool(np.isfinite(images).all()), f"{what} hold values that are not finite")
    return float(images.min()), float(images.max())


def _conversion(low: float, high: float) -> str:
    """Returns the line of Python that brings images in low … high to 0 … 1."""
    return f"images = ((images - {low:.6g}) / {max(high - low, 1e-9):.6g}).clip(0, 1)".replace("- -", "+ ")


def as_examples(images: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [n, h, w, c] in 0–255 and labels int32 [n] to evaluate on; raises UserError for unfit arrays.

    Floats in 0–255 stay as they are; NaN is passed on to the network.
    """
    images, labels = as_numbers("images", images), as_numbers("labels", labels)
    shapes = f"{images.shape} and {labels.shape}"
    require(min(images.ndim, labels.ndim) > 0, f"images and labels must be arrays, got the shapes {shapes}")
    is_float = images.dtype.kind == "f" and images.size and np.isfinite(images).all()
    if is_float and not (images.min() >= 0 and 1 < images.max() <= 255):
        images = _floats_to_bytes("data", {"test": images})["test"]
    return _with_channels("images", _in_range("images", images)), as_integers("labels", labels)[0]


def as_integers(what: str, labels: np.ndarray, say: Callable[[str], None] = note) -> tuple[np.ndarray, int]:
    """Returns labels int32 [n], and how many classes they speak of; says in a line where they were of another form."""
    classes = 0
    if labels.ndim == 2 and labels.shape[1] == 1:
        say(f"{what} [n, 1] are taken as [n]")
        labels = labels[:, 0]
    elif labels.ndim == 2 and labels.size and np.isin(labels, (0, 1)).all() and np.all(labels.sum(axis=1) == 1):
        say(f"{what} are one-hot rows of {labels.shape[1]} classes")
        labels, classes = labels.argmax(axis=1), labels.shape[1]
    elif labels.ndim == 2 and labels.size and np.isin(labels, (0, 1)).all():
        row = labels[labels.sum(axis=1) != 1][0]
        many = f"{what} have a row of {int(row.sum())} classes: multi-label is not supported"
        raise UserError(f"{many}; give each image one class")
    if not np.all(labels == np.rint(labels)):
        raise UserError(f"{what} must be whole numbers, got {labels[labels != np.rint(labels)].flat[0]}")
    low, high = (labels.min(), labels.max()) if labels.size else (0, 0)
    require(0 <= low <= high < MAX_CLASSES, f"{what} must lie in 0–{MAX_CLASSES - 1}, got {low:.10g}–{high:.10g}")
    return labels.astype(np.int32), classes or int(high) + 1


def in_turn(name: str, data: Any, is_whole: bool = True) -> Iterator[Any]:
    """Yields the batches of a data set, whatever way it has to give them.

    A line says so where they take long, and how many there are is not known: they may have no end.

    Args:
      name: str. What messages call it.
      data: A data set for which `is_batched` is true.
      is_whole: bool. Whether all of it is read.

    Raises:
      UserError: all of it is to be read, and it says itself that it has no end.
    """
    is_endless = hasattr(data, "cardinality") and int(data.cardinality()) == _INFINITE
    require(not (is_endless and is_whole), f"{name} repeats without end; {_TAKE_SOME}")
    # By number where it can: a set without __iter__ need not raise an IndexError at its end.
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    batches = (data[i] for i in range(len(data))) if by_number else data
    is_known, start = operator.length_hint(data) > 0 or not is_whole, time.monotonic()
    for count, batch in enumerate(batches, 1):
        yield batch
        if not is_known and time.monotonic() - start > _LONG:
            note(
                f"{name}: {count:,} batches so far, and it does not say how many it has; if it has no end, {_TAKE_SOME}"
            )
            is_known = True  # once


def is_batched(data: Any) -> bool:
    """Returns whether data can be read batch by batch."""
    return not isinstance(data, str | bytes | dict) and (isinstance(data, Iterable) or hasattr(data, "__getitem__"))


def batches_of(
    name: str, data: Any, is_whole: bool = True, as_part: Callable = as_numbers, with_weights: bool = False
) -> Iterator[tuple]:
    """Yields the batches (images, labels) of a data set as arrays, those without an example left out.

    Args:
      name, data, is_whole: As for `in_turn`.
      as_part: callable. as_part(name, part) -> an array, or a list or dict of arrays.
      with_weights: bool. Whether a batch may have sample weights as its third part.

    Raises:
      UserError: anything else is in it, or very many batches in a row have no example; and as `in_turn`.
    """
    what, num_empty = f"{name} must be batches of (images, labels)" + ", or with sample weights" * with_weights, 0
    require(is_batched(data), f"{what}, got a {type(data).__name__}")
    for batch in in_turn(name, data, is_whole):
        parts = batch if isinstance(batch, tuple | list) else ()
        received = f"{len(parts)} parts" if parts is batch else f"a {type(batch).__name__}"
        require(2 <= len(parts) <= 2 + with_weights, f"{what}, got {received}")
        parts = tuple(as_part(f"{name}: {of}", part) for of, part in zip(("images", "labels", "sample weights"), parts))
        of_parts = [[*_arrays_in(part)] for part in parts]
        require(all(of_parts), f"{what}, got an empty dict in place of arrays")
        arrays = [*itertools.chain.from_iterable(of_parts)]
        shapes = " and ".join(str(array.shape) for array in arrays)
        single = "for single examples, dataset.batch(100) makes batches"
        require(all(array.ndim for array in arrays), f"{what}, got arrays {shapes}; {single}")
        first, *others = map(len, arrays)
        labels = " and ".join(map(str, others))
        require(all(other == first for other in others), f"{name} gives {first} images with {labels} labels")
        num_empty = 0 if first else num_empty + 1
        require(num_empty < MAX_EMPTY, f"{name} gives {MAX_EMPTY:,} batches in a row without an example")
        if first:
            yield parts


def _arrays_in(part: Any) -> Iterable[np.ndarray]:
    """Returns the arrays of a part of a batch."""
    return part.values() if isinstance(part, dict) else part if isinstance(part, list) else [part]


def examples_of(name: str, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [n, h, w] or [n, h, w, c] and labels, [n] or one-hot, of a data set, ordered by their contents.

    Raises:
      UserError: it gives no batches, none at all, or more than fit in memory.
    """
    images, labels, num_values = [], [], 0
    for some_images, some_labels in tqdm(
        batches_of(name, data), unit=" batches", desc=f"reading {name}", disable=None, delay=1
    ):
        num_values += math.prod(some_images.shape)
        too_many = f"{name} gives more than {MAX_BYTES_IN_MEMORY:.3g} values, which do not fit in memory, or has no end"
        require(num_values <= MAX_BYTES_IN_MEMORY, too_many)
        images.append(some_images)
        labels.append(some_labels)
    require(bool(images), f"{name} gives no batch")
    for what, arrays in (("images", images), ("labels", labels)):
        shapes = sorted({array.shape[1:] for array in arrays})
        require(len(shapes) == 1, f"{name} gives {what} of several shapes: {', '.join(map(str, shapes[:4]))}")
    all_images, all_labels = np.concatenate(images), np.concatenate(labels)
    order = sorted(range(len(all_labels)), key=lambda i: _content(all_images[i], all_labels[i]))
    return all_images[order], all_labels[order]


def _content(image: np.ndarray, label: np.ndarray) -> bytes:
    """Returns a digest of an example, by which examples come in an order that has nothing to do with their classes."""
    hasher = hashlib.blake2b(digest_size=8)
    hasher.update(np.ascontiguousarray(image))
    hasher.update(np.ascontiguousarray(label))
    return hasher.digest()
