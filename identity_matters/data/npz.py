"""A .npz file of your own as a data set.

It holds train_images, train_labels, test_images and test_labels, or x_train, y_train, x_test and y_test. To evaluate
on, the test arrays suffice. Its headers are checked before anything is read.
"""

import hashlib
import math
import os

import numpy as np

from identity_matters.config import DataConfig
from identity_matters.data.arrays import ARRAYS, NAMES_ADVICE, ArraySource, checked_arrays
from identity_matters.data.source import MAX_BYTES_IN_MEMORY, Split
from identity_matters.errors import UserError, note, reason_of, truncated_repr
from identity_matters.fields import require
from identity_matters.runs.npz import Member, open_npz

_ADVICE = "numpy.savez(path, train_images=…, train_labels=…, test_images=…, test_labels=…) writes one"


class NpzSource(ArraySource):
    """The arrays of the .npz file that config.npz names.

    Raises:
      UserError: the file is missing, is no .npz or too large, or lacks an array that is asked for, or one is unfit.
    """

    def __init__(self, config: DataConfig) -> None:
        arrays, file_digest, self._lacks = _read(config.npz)
        images, labels, num_classes = checked_arrays(os.path.basename(config.npz), arrays, config.num_classes)
        super().__init__(os.path.basename(config.npz), images, labels, num_classes, config.image_size, file_digest)

    def num(self, split: Split) -> int:
        """Returns the number of examples of a split; raises UserError where the file has test arrays alone."""
        require(split in self._labels, self._lacks)
        return super().num(split)


def _read(path: str) -> tuple[dict[str, np.ndarray], str, str]:
    """Returns the arrays by name, their digest, empty where the training arrays are missing, and what it lacks then."""
    try:
        with open_npz(path) as members:
            stored = {name: members.get(name) or members.get(other) for name, other in ARRAYS.items()}
            missing = [name for name, member in stored.items() if member is None]
            lacks = f"it lacks {', '.join(missing)}; it holds {_contents(members)}"
            require(not [name for name in missing if name.startswith("test")], lacks)
            names = [name for name in ARRAYS if not missing or name.startswith("test")]
            for name in names:
                shape, dtype, *_ = stored[name].header()
                is_numbers = "labels" not in name or dtype.kind not in "SUO"
                require(is_numbers, f"{name} must be whole numbers, got {dtype}; {NAMES_ADVICE}")
                advice = f"at most {MAX_BYTES_IN_MEMORY:.3g} fit in memory, larger sets come through TFDS"
                too_many = f"{name} declares {truncated_repr(shape)} values; {advice}"
                require(math.prod(shape) <= MAX_BYTES_IN_MEMORY, too_many)
            _say_what_is_not_read(path, members)
            arrays = {name: stored[name].read() for name in names}
            return arrays, "" if missing else _digest(stored), f"cannot read {path} as an .npz file: {lacks}; {_ADVICE}"
    except MemoryError:
        raise
    except Exception as error:  # zipfile and NumPy raise almost any on a damaged file
        reason = error if isinstance(error, UserError) else reason_of(error)
        raise UserError(f"cannot read {path} as an .npz file: {reason}; {_ADVICE}") from error


def _say_what_is_not_read(path: str, members: dict[str, Member]) -> None:
    """Prints a line that names the arrays of a file that nothing reads, e.g. val_images."""
    read = {name if name in members else other for name, other in ARRAYS.items()}
    if unread := sorted(members.keys() - read):
        note(f"{os.path.basename(path)}: {', '.join(unread)[:200]} are not read; the errors are those of test_images, "
             "or of what validation_examples holds out of train_images")  # fmt: skip


def _digest(stored: dict[str, Member]) -> str:
    """Returns a digest of the four arrays of a file: of the checksums, which reading the arrays verifies."""
    checksums = "".join(f"{member.info.CRC} {member.info.file_size} " for member in stored.values())
    return hashlib.blake2b(checksums.encode(), digest_size=4).hexdigest()


def _contents(members: dict[str, Member]) -> str:
    """Returns the names of the first arrays, with type and shape."""
    headers = {name: members[name].header() for name in sorted(members)[:8]}
    return ", ".join(f"{name} {dtype} {list(shape)}"[:80] for name, (shape, dtype, *_) in headers.items()) or "nothing"
