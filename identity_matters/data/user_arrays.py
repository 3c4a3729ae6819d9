"""Your own arrays, from a file or from Python, as `ArrayData`.

    images    [n, h, w] or [n, h, w, c]: integers in 0–255, booleans, or floats of any range
    labels    [n] or [n, 1]: 0 … r − 1, whole numbers; or one-hot rows [n, r]

Images are held as bytes. Each is standardised before the network sees it, so floats lose nothing but precision when
the range of both splits together is stretched to 0–255; a line on stderr says what was seen and done.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.config import MAX_CLASSES
from identity_matters.data.arrays import ArrayData, check_arrays, digest, note
from identity_matters.errors import UserError

_NAMES = ("train_images", "train_labels", "test_images", "test_labels")
_PREFIX = "arrays "  # of what config.json calls them
# How many times as wide as the other's the range of a split may be. A forgotten /255 is a factor of 255; of 127 where
# the other split is in −1 … 1, of about 54 where it is standardised. Splits of one set, small ones too, differ by a few
# at most, and a dark test set of bytes would have to be below 9 of 255.
_MAX_FACTOR = 30
# How far test images may reach beyond the training images, in ranges of the latter. Beyond 3 the training images would
# have fewer than 64 of the 256 levels that both are stretched to.
_MAX_REACH = 3
_LEAST_RANGE = 1e-35  # 255 over it is within float32
# The least maximum of images that are taken to be of the scale 0 … 1: of less than this, as of images that were divided
# by 255 twice, bytes would keep fewer than 17 levels.
_LEAST_OF_UNIT = 1 / 16


def given_arrays(data: Sequence[ArrayLike], num_classes: int = 0) -> ArrayData:
    """Returns the data of four arrays, under a name that differs where one of them does.

    >>> x, y = np.zeros((3, 8, 8), np.uint8), [0, 1, 2]
    >>> given_arrays((x, y, x, y)).name
    'arrays 7063df8f'

    Args:
      data: (x_train, y_train, x_test, y_test); see the table above.
      num_classes: int. See as_array_data.

    Raises:
      UserError: there are not four, or one of them is unfit, or the splits are not of one scale.
    """
    if not isinstance(data, tuple | list) or len(data) != 4:
        raise UserError(f"data must be (x_train, y_train, x_test, y_test), got {_described(data)}")
    arrays = {name: as_numbers(name, array) for name, array in zip(_NAMES, data)}
    found = as_array_data("the data", arrays, num_classes)
    as_trained_on = (getattr(found, name) for name in _NAMES)  # of whatever type they were given
    return dataclasses.replace(found, name=f"{_PREFIX}{digest(*as_trained_on)}")


def _described(data: object) -> str:
    return f"{len(data)} of them" if isinstance(data, tuple | list) else f"a {type(data).__name__}"


def require_stored(dataset: str) -> None:
    """Raises UserError where the data of a run were arrays, which nothing has stored."""
    if dataset.startswith(_PREFIX):
        raise UserError("the run was trained on arrays that were given in Python; give them again, or name a dataset")


def as_numbers(what: str, array: ArrayLike) -> np.ndarray:
    """Returns an array of numbers, or raises UserError where it is none."""
    try:
        array = np.asarray(array)
    except ValueError as error:  # rows of several lengths
        raise UserError(f"{what} must be one array: {error}") from error
    if array.dtype.kind not in "buif":
        raise UserError(f"{what} must be numbers, got {array.dtype}")
    return array


def as_array_data(name: str, arrays: dict[str, np.ndarray], num_classes: int = 0) -> ArrayData:
    """Returns the data of the four arrays; see the table above.

    Args:
      name: str. What messages call the data.
      arrays: train_images, train_labels, test_images, test_labels.
      num_classes: int. 0: the largest training label + 1, or the length of one-hot rows.

    Raises:
      UserError: an array is unfit.
    """
    images = as_bytes(name, {split: arrays[f"{split}_images"] for split in ("train", "test")})
    labels, found = {}, 0
    for split in ("train", "test"):
        labels[split], classes = as_integers(f"{name}: {split}_labels", arrays[f"{split}_labels"])
        found = found or classes
    if 0 < num_classes < found:
        raise UserError(f"num_classes is {num_classes}, but the training labels of {name} speak of {found} classes")
    return ArrayData(name, images["train"], labels["train"], images["test"], labels["test"], num_classes or found)


def as_test_examples(name: str, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 [n, h, w, c] and labels int32 [n] to evaluate on; see the table above.

    Args:
      name: str. What messages call the data.
      images, labels: np.ndarray.

    Raises:
      UserError: an array is unfit.
    """
    images = as_bytes(name, {"test": images})["test"]
    labels, num_classes = as_integers(f"{name}: test_labels", labels)
    check_arrays(f"{name}, test", images, labels, num_classes)
    return images, labels


def as_bytes(name: str, images: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the images of both splits, or of the test split alone, as uint8 [n, h, w, c]."""
    first = next(iter(images.values()))
    for split, array in images.items():
        if array.dtype.kind != first.dtype.kind and "f" in array.dtype.kind + first.dtype.kind:
            kinds = ", ".join(f"{split}_images {array.dtype}" for split, array in images.items())
            raise UserError(f"{name}: give both splits of images as one type, got {kinds}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UserError(f"{name}: {split}_images hold values that are not finite")
    if first.dtype.kind == "f" and first.size:
        images = _stretched(name, images)
    for split, array in images.items():
        what = f"{name}: {split}_images"
        array = _with_channels(what, array)
        images[split] = (array if array.dtype == np.uint8 else _in_range(what, array)).astype(np.uint8)
    return images


def _with_channels(what: str, images: np.ndarray) -> np.ndarray:
    """Returns images [n, h, w, c]."""
    if images.ndim == 4 and images.shape[1] in (1, 3, 4) and min(images.shape[2:]) > 4:
        raise UserError(
            f"{what} have the shape {images.shape}, which looks like channels first; give [n, h, w, c]: "
            "x.transpose(0, 2, 3, 1)"
        )
    return images[..., None] if images.ndim == 3 else images


def _in_range(what: str, images: np.ndarray) -> np.ndarray:
    """Returns images in 0–255: booleans as black and white, others as they are."""
    if images.dtype.kind == "b":
        return 255 * images.astype(np.uint8)
    low, high = (images.min(), images.max()) if images.size else (0, 0)
    if low < 0 or high > 255:  # which NaN passes
        advice = "save floats" if low < 0 else f"divide them by {high / 255:.4g}, or save floats"
        raise UserError(f"{what} must lie in 0–255, got {low}–{high}; {advice}")
    return images


def _stretched(name: str, images: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the float images of both splits, or of one, with the range of all together stretched to 0–255."""
    ranges = {split: (float(array.min()), float(array.max())) for split, array in images.items() if array.size}
    low, high = min(least for least, _ in ranges.values()), max(most for _, most in ranges.values())
    seen = f"{next(iter(images.values())).dtype} in {low:.4g} … {high:.4g}"
    usual = _usual_range(images, low, high)
    _require_one_scale(name, ranges, is_usual=usual is not None)
    low, high = usual or (low, high)
    high = high if high > low else low + max(1.0, abs(low))  # constant images become 0
    if high / 2 - low / 2 < _LEAST_RANGE:
        raise UserError(f"{name}: the images lie in {low:.4g} … {high:.4g}; multiply them by a large number")
    note(f"{name}: images are {seen}; {low:.4g} … {high:.4g} becomes 0 … 255, in whole numbers")
    return {split: _range_to_bytes(array, low, high) for split, array in images.items()}


def _usual_range(images: dict[str, np.ndarray], low: float, high: float) -> tuple[float, float] | None:
    """Returns 0 … 1 or 0 … 255 where images in low … high are of that scale, else None."""
    if low >= 0 and _LEAST_OF_UNIT <= high <= 1:
        return 0.0, 1.0
    first = next(iter(images.values()))
    # Not where rounding to whole numbers would leave few of them.
    is_of_bytes = first.max() > 64 or all(np.array_equal(array, np.rint(array)) for array in images.values())
    return (0.0, 255.0) if low >= 0 and high <= 255 and is_of_bytes else None


def _require_one_scale(name: str, ranges: dict[str, tuple[float, float]], is_usual: bool) -> None:
    """Raises UserError where one split lies in a small part of the other's range, or test images lie far outside.

    Args:
      name: str. What messages call the data.
      ranges: The least and the largest value of every split that is not empty.
      is_usual: bool. Whether 0 … 1 or 0 … 255 is stretched, which gives dark training images the levels they have as
        bytes, however bright the test images are.
    """
    if len(ranges) < 2:
        return
    (low, high), (least, most) = ranges.values()
    # Constant images, of range 0, tell nothing of their scale.
    width, test_width = high - low, most - least
    is_part = 0 < _MAX_FACTOR * test_width < width or 0 < _MAX_FACTOR * width < test_width
    reach = max(low - least, 0) + max(most - high, 0)
    if is_part or (not is_usual and reach > _MAX_REACH * width > 0):
        raise UserError(
            f"{name}: train_images lie in {low:.4g} … {high:.4g}, but test_images in {least:.4g} … {most:.4g}; "
            f"bring both to one scale"
        )


def _range_to_bytes(array: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns floats that lie in low … high, which is stretched to 0–255, rounded."""
    array = array.astype(np.promote_types(array.dtype, np.float32), copy=False)  # float16 has too few digits
    # Halves are exact, and no difference of theirs is too large for the type.
    return np.clip(np.rint((array / 2 - low / 2) * (255 / (high / 2 - low / 2))), 0, 255).astype(np.uint8)


def as_examples(images: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [n, h, w, c] in 0–255 and labels int32 [n] to evaluate on; see the table above.

    Floats in 0–255 stay as they are; NaN is the network's to answer for.

    Raises:
      UserError: an array is unfit.
    """
    images, labels = as_numbers("images", images), as_numbers("labels", labels)
    if not images.ndim or not labels.ndim:
        raise UserError(f"images and labels must be arrays, got the shapes {images.shape} and {labels.shape}")
    is_float = images.dtype.kind == "f" and images.size and np.isfinite(images).all()
    if is_float and not (images.min() >= 0 and 1 < images.max() <= 255):
        images = _stretched("data", {"test": images})["test"]
    return _with_channels("images", _in_range("images", images)), as_integers("labels", labels)[0]


def as_integers(what: str, labels: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns labels int32 [n], and how many classes they speak of."""
    classes = 0
    if labels.ndim == 2 and labels.shape[1] == 1:
        note(f"{what} [n, 1] are taken as [n]")
        labels = labels[:, 0]
    elif labels.ndim == 2 and labels.size and np.isin(labels, (0, 1)).all() and np.all(labels.sum(axis=1) == 1):
        note(f"{what} are one-hot rows of {labels.shape[1]} classes")
        labels, classes = labels.argmax(axis=1), labels.shape[1]
    if labels.dtype.kind == "f" and not np.all(labels == np.rint(labels)):
        raise UserError(f"{what} must be whole numbers, got {labels[labels != np.rint(labels)].flat[0]}")
    low, high = (labels.min(), labels.max()) if labels.size else (0, 0)
    if not 0 <= low <= high < MAX_CLASSES:
        raise UserError(f"{what} must lie in 0–{MAX_CLASSES - 1}, got {low:.10g}–{high:.10g}")
    return labels.astype(np.int32), classes or int(high) + 1
