"""Safe reading of arrays of numbers from .npz files, which may come from others.

Each array is read from the member whose header was checked. numpy.load takes x for x.npy if a file has both, allocates
what a header declares, and raises almost any error for a damaged file.
"""

import contextlib
import io
import math
import os
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from identity_matters.errors import truncated_repr
from identity_matters.fields import require
from identity_matters.runs.files import open_file

_MAX_HEADER = 2**11  # bytes; Python's parser runs out of memory on some of 9,000


class Member(NamedTuple):
    """An array in an open .npz file; info has its name, its checksum and its size with the header, uncompressed."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo

    def header(self) -> tuple[tuple[int, ...], np.dtype, str, int]:
        """Returns shape, type, order ("C" or "F"), and the bytes before the values; almost any error if damaged."""
        with self.archive.open(self.info) as file:
            start = io.BytesIO(file.read(_MAX_HEADER))
        version = np.lib.format.read_magic(start)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(start)
        return shape, dtype, "F" if is_fortran else "C", start.tell()

    def read(self) -> np.ndarray:
        """Returns the array, which is not to be written to.

        Raises UserError where it holds no numbers, or not as many as it declares; almost any error where it is damaged.
        """
        shape, dtype, order, start = self.header()
        require(dtype.kind in "buif", f"{self.info.filename} must be numbers, got {dtype}")
        size = math.prod(shape) * dtype.itemsize + start
        declared = f"{self.info.filename} declares {truncated_repr(shape)} {dtype}"
        require(size == self.info.file_size, f"{declared}, and holds {self.info.file_size} bytes")
        with self.archive.open(self.info) as file:
            content = file.read(size)  # no more, whatever it unpacks to
        return np.frombuffer(content, dtype, offset=start).reshape(shape, order=order)


@contextlib.contextmanager
def open_npz(path: str) -> Iterator[dict[str, Member]]:
    """Yields the arrays of an .npz file by name.

    Raises UserError unless it is a regular file of arrays alone, each once; almost any error if it is damaged.
    """
    with open_file(path) as file, zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        members = {info.filename.removesuffix(".npy"): Member(archive, info) for info in infos}
        methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of NumPy; others can take any memory
        are_arrays = all(info.filename.endswith(".npy") and info.compress_type in methods for info in infos)
        require(are_arrays and len(members) == len(infos), "it must hold only arrays, NAME.npy, each of them once")
        yield members


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Returns all arrays of an uncompressed .npz file; raises as `open_npz` and `Member.read`."""
    with open_npz(path) as members:
        size = sum(member.info.file_size for member in members.values())
        require(size <= os.path.getsize(path), "it declares more than the file holds")
        return {name: member.read() for name, member in members.items()}
