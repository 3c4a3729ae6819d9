"""Your own images and labels, from Python or from one .npz file, as `ArrayData`.

    images    [n, h, w] or [n, h, w, c]: integers in 0–255, booleans (black and white), or floats
    labels    [n] or [n, 1]: 0 … r − 1, whole numbers; or one-hot rows [n, r]

Floats are of one of two scales, the same for both splits: a split whose largest value is at most 1 is taken to lie in
0 … 1, one whose largest value is above 1 and at most 255 in 0 … 255; all zeros fit both. Images with negative
values, or values above 255, are rejected with the line of Python that converts them. Images are held as bytes; a line
on stderr reports the conversion.

A file holds train_images, train_labels, test_images and test_labels, or x_train, y_train, x_test and y_test. To
evaluate on, the test arrays suffice. Its headers are checked before anything is read.
"""

import contextlib
import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from identity_matters.config import MAX_CLASSES
from identity_matters.data.arrays import MAX_BYTES_IN_MEMORY, ArrayData, check_arrays, digest, note
from identity_matters.errors import UserError, first_line, truncated_repr
from identity_matters.fields import require
from identity_matters.runs.npz import Member, open_npz

# The four arrays, and what Keras's users call them.
_ARRAYS = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
_ADVICE = "numpy.savez(path, train_images=…, train_labels=…, test_images=…, test_labels=…) writes one"
# Of labels that are names; searchsorted gives wrong numbers for a name that the training set lacks, index refuses it.
_NAMES_ADVICE = (
    "names = sorted(set(y_train)); y_train, y_test = ([names.index(y) for y in ys] for ys in (y_train, y_test)) "
    "converts names"
)
_PREFIX = "arrays "  # of what config.json calls them
_LEAST_LEVELS = 16  # of 256: floats that rounding would leave fewer were divided twice, say, or are no pixels


def given_arrays(data: Sequence[ArrayLike], num_classes: int = 0) -> ArrayData:
    """Returns the data of four arrays, under a name that differs where one of them does.

    >>> x, y = np.zeros((3, 8, 8), np.uint8), [0, 1, 2]
    >>> given_arrays((x, y, x, y)).name
    'arrays 7063df8f'

    Raises:
      UserError: there are not four, or one of them is unfit, or the splits are not of one scale.
    """
    found = f"{len(data)} of them" if isinstance(data, tuple | list) else f"a {type(data).__name__}"
    expected = "(train, test), two data sets of batches (images, labels), or (x_train, y_train, x_test, y_test)"
    require(found == "4 of them", f"data must be {expected}, got {found}")
    arrays = {name: as_numbers(name, array) for name, array in zip(_ARRAYS, data)}
    unnamed = as_array_data("the data", arrays, num_classes)
    as_trained_on = (getattr(unnamed, name) for name in _ARRAYS)  # of whatever type they were given
    return dataclasses.replace(unnamed, name=f"{_PREFIX}{digest(*as_trained_on)}")


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
    if array.dtype.kind in "SUO" and "label" in what:
        raise UserError(
            f"{what} must be whole numbers, got {truncated_repr(array.ravel()[:1].tolist())}; {_NAMES_ADVICE}"
        )
    require(array.dtype.kind in "buif", f"{what} must be numbers, got {array.dtype}")
    return array


def load_npz(path: str, num_classes: int = 0) -> ArrayData:
    """Returns the data of an .npz file with the arrays that identity_matters.data.user_arrays names.

    Raises:
      UserError: the file is missing, is no .npz or too large, or lacks an array, or an array is unfit.
    """
    arrays, file_digest = _read(path)
    return dataclasses.replace(as_array_data(os.path.basename(path), arrays, num_classes), file_digest=file_digest)


def load_test_examples(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the test images, uint8 [n, h, w, c], and labels, int32 [n], of an .npz file; raises as `load_npz`."""
    name, (arrays, _) = os.path.basename(path), _read(path, ("test_images", "test_labels"))
    images = as_bytes(name, {"test": arrays["test_images"]})["test"]
    labels, num_classes = as_integers(f"{name}: test_labels", arrays["test_labels"])
    check_arrays(f"{name}, test", images, labels, num_classes)
    return images, labels


def npz_digest(path: str) -> str:
    """Returns a digest of the four arrays of an .npz file, of whatever name; empty where it cannot be read.

    It is made of the checksums that the archive holds and that reading the arrays verifies, so it costs nothing.
    """
    with contextlib.suppress(Exception), open_npz(path) as members:  # reading the arrays says what is wrong with it
        return _digest(_stored(members))
    return ""


def as_array_data(name: str, arrays: dict[str, np.ndarray], num_classes: int = 0) -> ArrayData:
    """Returns the data of the four arrays, under the name that messages give; raises UserError where one is unfit.

    Without num_classes it is the largest training label + 1, or the length of one-hot rows.
    """
    images = as_bytes(name, {split: arrays[f"{split}_images"] for split in ("train", "test")})
    train_labels, found = as_integers(f"{name}: train_labels", arrays["train_labels"])
    test_labels, _ = as_integers(f"{name}: test_labels", arrays["test_labels"])
    if 0 < num_classes < found:
        raise UserError(f"num_classes is {num_classes}, but the training labels of {name} have {found} classes")
    data = ArrayData(name, images["train"], train_labels, images["test"], test_labels, num_classes or found)
    require(data.num_classes > 1, f"{name}: train_labels have only one class, 0; at least two are needed")
    return data


def as_bytes(name: str, images: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the images of both splits, or of the test split alone, as uint8 [n, h, w, c]; see the text above."""
    types = {split: array.dtype for split, array in images.items()}
    are_floats = {dtype.kind == "f" for dtype in types.values()}
    if len(are_floats) > 1:
        found = ", ".join(f"{split}_images {dtype}" for split, dtype in types.items())
        raise UserError(f"{name}: give both splits of images as one type, got {found}")
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
    found = f"got {low:.6g} … {high:.6g}; {_conversion(low, high)} converts those of both splits"
    require(0 <= low <= high <= 255, f"{name}: images must be bytes or floats in 0 … 1 or 0 … 255, {found}")
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
    require(images.ndim > 0 and labels.ndim > 0, f"images and labels must be arrays, got the shapes {shapes}")
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
    if labels.dtype.kind == "f" and not np.all(labels == np.rint(labels)):
        raise UserError(f"{what} must be whole numbers, got {labels[labels != np.rint(labels)].flat[0]}")
    low, high = (labels.min(), labels.max()) if labels.size else (0, 0)
    require(0 <= low <= high < MAX_CLASSES, f"{what} must lie in 0–{MAX_CLASSES - 1}, got {low:.10g}–{high:.10g}")
    return labels.astype(np.int32), classes or int(high) + 1


def _read(path: str, names: Sequence[str] = tuple(_ARRAYS)) -> tuple[dict[str, np.ndarray], str]:
    """Returns the arrays of these names, and the digest of the file, where it has all four."""
    try:
        with open_npz(path) as members:
            stored = _stored(members)
            if missing := [name for name in names if stored[name] is None]:
                raise UserError(f"it lacks {', '.join(missing)}; it holds {_contents(members)}")
            for name in names:
                shape, dtype, *_ = stored[name].header()
                is_numbers = "labels" not in name or dtype.kind not in "SUO"
                require(is_numbers, f"{name} must be whole numbers, got {dtype}; {_NAMES_ADVICE}")
                advice = f"at most {MAX_BYTES_IN_MEMORY:.3g} fit in memory, larger sets come through TFDS"
                require(
                    math.prod(shape) <= MAX_BYTES_IN_MEMORY,
                    f"{name} declares {truncated_repr(shape)} values; {advice}",
                )
            _say_what_is_not_read(path, members)
            return {name: stored[name].read() for name in names}, _digest(stored)
    except MemoryError:
        raise
    except Exception as error:  # zipfile and NumPy raise almost any on a damaged file
        reason = error if isinstance(error, UserError) else getattr(error, "strerror", None) or first_line(error)[:200]
        raise UserError(f"cannot read {path} as an .npz file: {reason}; {_ADVICE}") from error


def _stored(members: dict[str, Member]) -> dict[str, Member | None]:
    """Returns the four arrays by their names, whichever a file has; None where it lacks one."""
    return {name: members.get(name) or members.get(other) for name, other in _ARRAYS.items()}


def _say_what_is_not_read(path: str, members: dict[str, Member]) -> None:
    """Prints a line that names the arrays of a file that nothing reads, e.g. val_images."""
    read = {name if name in members else other for name, other in _ARRAYS.items()}
    if unread := sorted(members.keys() - read):
        note(f"{os.path.basename(path)}: {', '.join(unread)[:200]} are not read; the errors are those of test_images, "
             "or of what validation_examples holds out of train_images")  # fmt: skip


def _digest(stored: dict[str, Member | None]) -> str:
    """Returns the digest of the four arrays of a file; empty where it lacks one."""
    if None in stored.values():
        return ""
    checksums = "".join(f"{member.info.CRC} {member.info.file_size} " for member in stored.values())
    return hashlib.blake2b(checksums.encode(), digest_size=4).hexdigest()


def _contents(members: dict[str, Member]) -> str:
    """Returns the names of the first arrays, with type and shape."""
    headers = {name: members[name].header() for name in sorted(members)[:8]}
    return ", ".join(f"{name} {dtype} {list(shape)}"[:80] for name, (shape, dtype, *_) in headers.items()) or "nothing"
