"""Arrays of numbers in .npz files, which may come from others.

An array is read from the one member of the zip archive whose header was checked. numpy.load takes `x` for x.npy where a
file has both, allocates what a header declares, and raises anything at all on a damaged one.
"""

import io
import math
import os
import zipfile
from types import TracebackType

import numpy as np

from identity_matters.errors import UserError, first_line, truncated_repr
from identity_matters.fields import require
from identity_matters.runs.files import open_file

_MAX_HEADER = 2**14  # bytes; NumPy refuses one of more than 10,000 characters, but reads it first


class NpzFile:
    """An open .npz file; `names` has its arrays. Nothing but the headers that are asked for is read of it.

    Raises:
      UserError: it is no regular file, or two members have one name, or one is no array.
      OSError, zipfile.BadZipFile or almost any other exception: it cannot be read, or is no .npz file.
    """

    def __init__(self, path: str) -> None:
        self._file = open_file(path)
        try:
            self.size, self._archive = os.fstat(self._file.fileno()).st_size, zipfile.ZipFile(self._file)
            members = self._archive.infolist()
            self._members = {member.filename.removesuffix(".npy"): member for member in members}
            require(len(self._members) == len(members), "two of its members have one name")
            for name, member in self._members.items():
                require(member.filename == f"{name}.npy", f"its member {truncated_repr(name)} is no array, NAME.npy")
                is_known = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                require(is_known, f"{name} is compressed in a way that NumPy does not use")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "NpzFile":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()

    @property
    def names(self) -> list[str]:
        """Returns the names of the arrays."""
        return list(self._members)

    def num_bytes(self, name: str) -> int:
        """Returns the size of an array with its header, uncompressed, as the archive declares it; no more is read."""
        return self._members[name].file_size

    def checksum(self, name: str) -> str:
        """Returns a text that other contents of an array would not have; `read` verifies it."""
        return f"{self._members[name].CRC} {self.num_bytes(name)} "

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Returns the shape and the type that the header of an array declares; raises UserError where it is damaged."""
        return self._header(name)[:2]

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype, str, int]:
        """Returns shape, type, order, and the number of bytes before the values."""
        with self._archive.open(self._members[name]) as member:
            start = io.BytesIO(member.read(_MAX_HEADER))
        try:
            version = np.lib.format.read_magic(start)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(start)
            require(min(shape, default=0) >= 0, f"a side is {min(shape, default=0)}")
        except Exception as error:  # of Python's parser too, of which it makes use
            raise UserError(f"the header of {name} cannot be read: {first_line(error)[:100]}") from error
        return shape, dtype, "F" if is_fortran else "C", start.tell()

    def read(self, name: str) -> np.ndarray:
        """Returns an array of numbers, which cannot be written to.

        Raises UserError where its header is damaged, or declares no numbers, or another size than the archive does; any
        exception where its values are damaged.
        """
        shape, dtype, order, start = self._header(name)
        require(dtype.kind in "buif", f"{name} must be numbers, got {dtype}")
        size, held = math.prod(shape) * dtype.itemsize, self.num_bytes(name) - start
        require(size == held, f"{name} declares {truncated_repr(shape)} values of {dtype}, but holds {held:,} bytes")
        with self._archive.open(self._members[name]) as member:
            content = member.read(start + size)  # no more, whatever it unpacks to
        return np.frombuffer(content, dtype, offset=start).reshape(shape, order=order)


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Returns all arrays of an uncompressed .npz file; raises almost any exception where it is damaged."""
    with NpzFile(path) as file:
        require(sum(map(file.num_bytes, file.names)) <= file.size, "it declares more than the file holds")
        return {name: file.read(name) for name in file.names}
