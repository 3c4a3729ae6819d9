"""Your own images and labels, from one .npz file, whose headers are looked at before anything is read.

It holds train_images, train_labels, test_images and test_labels, or x_train, y_train, x_test and y_test, each as
identity_matters.data.user_arrays takes it. To evaluate on, the test arrays suffice.
"""

import hashlib
import math
import os
import zipfile
import zlib

import numpy as np

from identity_matters.data.arrays import MAX_BYTES_IN_MEMORY, ArrayData
from identity_matters.data.user_arrays import as_array_data, as_test_examples
from identity_matters.errors import UserError
from identity_matters.runs.files import array_header

_ARRAYS = {"train_images": "x_train", "train_labels": "y_train", "test_images": "x_test", "test_labels": "y_test"}
_ADVICE = "numpy.savez(path, train_images=…, train_labels=…, test_images=…, test_labels=…) writes one"


def load_npz(path: str, num_classes: int = 0) -> ArrayData:
    """Returns the data of an .npz file; see the text above.

    Args:
      path: str.
      num_classes: int. See as_array_data.

    Raises:
      UserError: the file is missing, is no .npz or too large, or lacks an array, or an array is unfit.
    """
    return as_array_data(os.path.basename(path), _read(path), num_classes)


def load_test_examples(path: str, num_classes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns the test images, uint8 [n, h, w, c], and labels, int32 [n], of an .npz file.

    They are those of `load_npz`, so that an error of the training run is found again; where the training arrays are
    missing, floats are stretched by the range of the test images.

    Args:
      path: str.
      num_classes: int. See as_array_data; not read where the training arrays are missing.

    Raises:
      UserError: as `load_npz`.
    """
    name, arrays = os.path.basename(path), _read(path, needs_training=False)
    if len(arrays) < len(_ARRAYS):
        return as_test_examples(name, arrays["test_images"], arrays["test_labels"])
    data = as_array_data(name, arrays, num_classes)
    return data.test_images, data.test_labels


def npz_digest(path: str) -> str:
    """Returns a digest of the four arrays of an .npz file, of whatever name; empty where it cannot be read.

    It is made of the checksums that the archive holds and that reading the arrays verifies, so it costs nothing.

    Args:
      path: str.
    """
    digest = hashlib.blake2b(digest_size=4)
    try:
        with zipfile.ZipFile(_regular_file(path)) as archive:
            for names in _ARRAYS.items():
                member = archive.getinfo(_member(archive, names) or "")
                digest.update(f"{member.CRC} {member.file_size} ".encode())
    except (UserError, zipfile.BadZipFile, OSError, ValueError, KeyError, NotImplementedError):
        return ""
    return digest.hexdigest()


def has_changed(path: str, known: str) -> bool:
    """Returns whether an .npz file is another than the one whose digest is known.

    Not where none is known, as in an earlier version's record, or where there is no file, which reading it will say.
    """
    digest = npz_digest(path) if path and known else ""
    return bool(digest) and digest != known


def _read(path: str, needs_training: bool = True) -> dict[str, np.ndarray]:
    """Returns the four arrays, or the test arrays alone, under our names, once their headers say they can be held."""
    try:
        with zipfile.ZipFile(_regular_file(path)) as archive:
            members = {ours: _member(archive, (ours, keras)) for ours, keras in _ARRAYS.items()}
            missing = [name for name, member in members.items() if member is None]
            if missing == ["train_images", "train_labels"] and not needs_training:
                members = {name: member for name, member in members.items() if member}
            elif missing:
                raise UserError(f"{path} lacks {', '.join(missing)}; it holds {_contents(archive)}; {_ADVICE}")
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
    shape, dtype = array_header(archive, member)
    if dtype.kind not in "buif":
        raise UserError(f"{what} must be numbers, got {dtype}")
    if math.prod(shape) > MAX_BYTES_IN_MEMORY:
        raise UserError(
            f"{what} declares {math.prod(shape):.3g} values, {shape}; at most {MAX_BYTES_IN_MEMORY:.3g} fit in memory, "
            f"larger sets come through TFDS"
        )


def _contents(archive: zipfile.ZipFile) -> str:
    """Returns the names of the first members, with shape and type where they are arrays."""

    def describe(member: str) -> str:
        try:
            shape, dtype = array_header(archive, member)
            return f"{member.removesuffix('.npy')} {dtype} {list(shape)}"
        except (ValueError, EOFError, RuntimeError, zlib.error, NotImplementedError):
            return member

    return ", ".join(describe(member) for member in sorted(archive.namelist())[:8]) or "nothing"
