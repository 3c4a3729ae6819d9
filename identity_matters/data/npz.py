"""Your own images and labels, from one .npz file, whose headers are looked at before anything is read.

    array                          what is taken
    train_images or x_train        [n, h, w] or [n, h, w, c]: integers in 0–255, booleans, or floats of any range
    train_labels or y_train        [n] or [n, 1]: 0 … r − 1, whole numbers; or one-hot rows [n, r]
    test_images, test_labels       the same; or x_test, y_test

Images are held as bytes. Each is standardised before the network sees it, so floats lose nothing but precision when
their range is stretched to 0–255; a line on stderr says what was seen and done.
"""

import math
import os
import sys
import zipfile
import zlib

import numpy as np

from identity_matters.data.arrays import MAX_BYTES_IN_MEMORY, ArrayData
from identity_matters.runs.errors import UserError

MAX_CLASSES = 100_000  # a label above is taken for a mistake: the last layer has a row for each class
_ARRAYS = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
_ADVICE = "numpy.savez(path, train_images=…, train_labels=…, test_images=…, test_labels=…) writes one"


def load_npz(path: str) -> ArrayData:
    """Returns the data of an .npz file; see the table above.

    Args:
      path: str. The number of classes is the largest training label + 1, or the length of one-hot rows.

    Raises:
      UserError: the file is missing, is no .npz or too large, or lacks an array, or an array is unfit.
    """
    arrays, name = _read(path), os.path.basename(path)
    images = _as_bytes(name, {split: arrays[f"{split}_images"] for split in ("train", "test")})
    labels, num_classes = {}, 0
    for split in ("train", "test"):
        labels[split], classes = _as_integers(f"{name}: {split}_labels", arrays[f"{split}_labels"])
        num_classes = num_classes or classes
    return ArrayData(name, images["train"], labels["train"], images["test"], labels["test"], num_classes)


def _read(path: str) -> dict[str, np.ndarray]:
    """Returns the four arrays under our names, once their headers say that they can be held."""
    try:
        with zipfile.ZipFile(_regular_file(path)) as archive:
            members = {ours: _member(archive, (ours, keras)) for ours, keras in _ARRAYS.items()}
            missing = [name for name, member in members.items() if member is None]
            if missing:
                found = ", ".join(sorted(member.removesuffix(".npy") for member in archive.namelist())[:8])
                raise UserError(f"{path} lacks {', '.join(missing)}; it holds {found or 'nothing'}; {_ADVICE}")
            for name, member in members.items():
                _check_header(archive, member, f"{path}: {name}")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[member.removesuffix(".npy")] for name, member in members.items()}
    except UserError:
        raise
    except zipfile.BadZipFile as error:
        raise UserError(f"cannot read {path} as an .npz file: {error}; {_ADVICE}") from error
    except (OSError, EOFError, ValueError, RuntimeError, zlib.error, NotImplementedError) as error:
        raise UserError(f"cannot read {path} as an .npz file: {error}") from error


def _regular_file(path: str) -> str:
    """Returns the path of a file; of a pipe, reading would wait for ever."""
    if not os.path.isfile(path):
        raise UserError(
            f"cannot read {path} as an .npz file: {'it is no file' if os.path.exists(path) else 'no such file'}"
        )
    return path


def _member(archive: zipfile.ZipFile, names: tuple[str, ...]) -> str | None:
    return next((f"{name}.npy" for name in names if f"{name}.npy" in archive.namelist()), None)


def _check_header(archive: zipfile.ZipFile, member: str, what: str) -> None:
    """Raises UserError where an array is no numbers, or more of them than fit in memory."""
    if archive.getinfo(member).flag_bits & 1:
        raise UserError(f"{what} is encrypted")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    if dtype.kind not in "buif":
        raise UserError(f"{what} must be numbers, got {dtype}")
    if math.prod(shape) > MAX_BYTES_IN_MEMORY:
        raise UserError(
            f"{what} declares {math.prod(shape):.3g} values, {shape}; at most {MAX_BYTES_IN_MEMORY:.3g} fit in memory, "
            f"larger sets come through TFDS"
        )


def _as_bytes(name: str, images: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the images of both splits as uint8 [n, h, w, c]."""
    for split, array in images.items():
        if array.dtype.kind != images["train"].dtype.kind and "f" in array.dtype.kind + images["train"].dtype.kind:
            kinds = ", ".join(f"{split}_images {array.dtype}" for split, array in images.items())
            raise UserError(f"{name}: give both splits of images as one type, got {kinds}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UserError(f"{name}: {split}_images hold values that are not finite")
    if images["train"].dtype.kind == "f" and images["train"].size:
        images = _stretched(name, images)
    for split, array in images.items():
        low, high = (array.min(), array.max()) if array.size else (0, 0)
        if array.dtype.kind == "b":
            array = 255 * array.astype(np.uint8)
        elif not 0 <= low <= high <= 255:
            advice = "save floats" if low < 0 else f"divide them by {high / 255:.4g}, or save floats"
            raise UserError(f"{name}: {split}_images must lie in 0–255, got {low}–{high}; {advice}")
        images[split] = (array[..., None] if array.ndim == 3 else array).astype(np.uint8)
    return images


def _stretched(name: str, images: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns float images with the training images' range stretched to 0–255, and rounded."""
    low, high = float(images["train"].min()), float(images["train"].max())
    seen = f"{images['train'].dtype} in {low:.4g} … {high:.4g}"
    if 0 <= low and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    high = high if high > low else low + 1
    _note(f"{name}: images are {seen}; {low:.4g} … {high:.4g} becomes 0 … 255, in whole numbers")
    return {
        split: np.clip(np.rint((array - low) * (255 / (high - low))), 0, 255).astype(np.uint8)
        for split, array in images.items()
    }


def _as_integers(what: str, labels: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns labels int32 [n], and how many classes they speak of."""
    classes = 0
    if labels.ndim == 2 and labels.shape[1] == 1:
        _note(f"{what} [n, 1] are taken as [n]")
        labels = labels[:, 0]
    elif labels.ndim == 2 and labels.size and np.isin(labels, (0, 1)).all() and np.all(labels.sum(axis=1) == 1):
        _note(f"{what} are one-hot rows of {labels.shape[1]} classes")
        labels, classes = labels.argmax(axis=1), labels.shape[1]
    if labels.dtype.kind == "f" and not np.all(labels == np.rint(labels)):
        raise UserError(f"{what} must be whole numbers, got {labels[labels != np.rint(labels)].flat[0]}")
    low, high = (labels.min(), labels.max()) if labels.size else (0, 0)
    if not 0 <= low <= high < MAX_CLASSES:
        raise UserError(f"{what} must lie in 0–{MAX_CLASSES - 1}, got {low:.10g}–{high:.10g}")
    return labels.astype(np.int32), classes or int(high) + 1


def _note(line: str) -> None:
    print(f"note: {line}", file=sys.stderr, flush=True)
