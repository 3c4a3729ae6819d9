"""A .npz file of your own as a data set.

It holds train_images, train_labels, test_images and test_labels, or x_train, y_train, x_test and y_test. To evaluate
on, the test arrays suffice.
"""

import hashlib
import os
import zipfile

from identity_matters.config import DataConfig
from identity_matters.data.arrays import ARRAYS, ArraySource, checked_splits
from identity_matters.data.base import Split
from identity_matters.errors import UserError, note
from identity_matters.untrusted import open_npz

_ADVICE = "numpy.savez(path, train_images=…, train_labels=…, test_images=…, test_labels=…) writes one"


class NpzSource(ArraySource):
    """The arrays of the .npz file that config.npz names.

    Raises:
      UserError: the file is missing, is no .npz, or lacks the test arrays, or an array is unfit.
    """

    def __init__(self, config: DataConfig) -> None:
        name = os.path.basename(config.npz)
        with open_npz(config.npz) as stored:
            keys = {array: array if array in stored else other for array, other in ARRAYS.items()}
            missing = [array for array, key in keys.items() if key not in stored]
            self._lacks = f"{config.npz} lacks {', '.join(missing)}; it holds {', '.join(stored)[:200]}; {_ADVICE}"
            if any(array.startswith("test") for array in missing):
                raise UserError(self._lacks)
            unread = sorted(set(stored) - set(keys.values()))
            if unread:
                note(f"{name}: {', '.join(unread)[:200]} are not read; the errors are those of test_images, "
                     "or of what validation_examples holds out of train_images")  # fmt: skip
            arrays = {array: stored[key] for array, key in keys.items() if not missing or array.startswith("test")}
            # "" skips the comparison with the data of a run, which a file of test arrays could never match.
            digest = "" if missing else _digest([stored.zip.getinfo(f"{key}.npy") for key in keys.values()])
        super().__init__(name, *checked_splits(name, arrays, config.num_classes), config.image_size, digest)

    def num(self, split: Split) -> int:
        """Returns the number of examples of a split; raises UserError if the file has only test arrays."""
        if split not in self._labels:
            raise UserError(self._lacks)
        return super().num(split)


def _digest(members: list[zipfile.ZipInfo]) -> str:
    """Returns a digest of the checksums of the arrays, which reading them verifies."""
    checksums = "".join(f"{member.CRC} {member.file_size} " for member in members)
    return hashlib.blake2b(checksums.encode(), digest_size=4).hexdigest()
