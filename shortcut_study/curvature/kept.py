"""Products that outlive an interruption: each is in a file as soon as it is finished, and is not computed again.

    file    MAGIC, the problem's digest, then for each product: the digest of its vector, bytes, CRC-32, the product

The methods here are the same at every call. So a call that goes on asks for the same vectors, bit by bit, and finds
their products by a digest; where an iteration rounds otherwise, as on another machine, the rest is computed anew.

A digest of weights, examples and names says little of what a model and a loss compute with them, so the first product
that a call finds is computed again and compared.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Callable

import numpy as np

MAGIC = b"Hessian products 1\n"
TOLERANCE = 1e-3  # of a product's norm: far above rounding, far below the difference of another model
_ENTRY = struct.Struct("<32sQI")


class KeptProducts:
    """A file of finished products; without a path they are not kept.

    Args:
      path: str, path or None. The file, which the first product makes.
      problem: What the products depend on besides the vector: arrays and text.

    Raises:
      ValueError: the file holds products of something else, or is no such file. Where only a product shows it, the
        function that `of` returned raises it.
    """

    def __init__(self, path: str | os.PathLike | None, problem: list[np.ndarray | str]) -> None:
        self._path = None if path is None else os.fspath(path)
        self._head = MAGIC
        self._places: dict[bytes, tuple[int, int, int]] = {}
        self._is_checked = True
        if self._path is None:
            return
        self._head += _digest(problem)
        if not os.path.isdir(folder := os.path.dirname(os.path.abspath(self._path))):
            raise ValueError(f"path {self._path} cannot be written: there is no folder {folder}")
        if os.path.lexists(self._path):
            if not os.path.isfile(self._path):
                raise ValueError(f"{self._path} is not a file of Hessian products")
            self._find()
            self._is_checked = not self._places

    def __len__(self) -> int:
        """The number of products in the file."""
        return len(self._places)

    def of(self, mvp_fn: Callable, name: str = "", on_found: Callable = lambda: None) -> Callable:
        """Returns mvp_fn(v [dim]) -> Hv [dim], which computes of the products in the file only the first.

        Args:
          name: str. Of the matrix, where a problem has several.
          on_found: callable. Called without arguments where a product is in the file and is not computed.
        """
        if self._path is None:
            return mvp_fn

        def product(vector: np.ndarray) -> np.ndarray:
            key = _digest([name, np.asarray(vector)])
            found = self._read(key, np.asarray(vector))
            if found is not None:
                if self._is_checked:
                    on_found()
                else:
                    self._check(found, mvp_fn(vector))
                return found
            found = np.ascontiguousarray(mvp_fn(vector))
            self._append(key, found)
            return found

        return product

    def _find(self) -> None:
        """Finds where the products are; cuts off one that a killed process has not written completely."""
        with open(self._path, "r+b") as file:
            head = file.read(len(self._head))
            if head[: len(MAGIC)] != MAGIC[: len(head)]:
                raise ValueError(f"{self._path} is not a file of Hessian products")
            if len(head) < len(self._head):
                file.truncate(0)
                return
            if head != self._head:
                raise self._of_another()
            size, end = os.fstat(file.fileno()).st_size, len(head)
            while len(entry := file.read(_ENTRY.size)) == _ENTRY.size:
                key, length, check = _ENTRY.unpack(entry)
                if file.tell() + length > size:
                    break
                self._places[key] = (file.tell(), length, check)
                end = file.seek(length, os.SEEK_CUR)
            file.truncate(end)

    def _check(self, found: np.ndarray, computed: np.ndarray) -> None:
        if not np.linalg.norm(found - computed) <= TOLERANCE * np.linalg.norm(found):
            raise self._of_another()
        self._is_checked = True

    def _of_another(self) -> ValueError:
        return ValueError(
            f"{self._path} holds products of another model, another loss or other examples; remove it, or give another "
            "path"
        )

    def _read(self, key: bytes, like: np.ndarray) -> np.ndarray | None:
        if key not in self._places:
            return None
        start, length, check = self._places[key]
        with open(self._path, "rb") as file:
            file.seek(start)
            data = file.read(length)
        is_whole = length == like.nbytes and zlib.crc32(data) == check
        return np.frombuffer(data, like.dtype) if is_whole else None

    def _append(self, key: bytes, product: np.ndarray) -> None:
        data = product.tobytes()
        with open(self._path, "ab") as file:
            start = file.tell()
            # In one write, so that a signal leaves a product or none of it.
            file.write((b"" if start else self._head) + _ENTRY.pack(key, len(data), zlib.crc32(data)) + data)
            self._places[key] = (file.tell() - len(data), len(data), zlib.crc32(data))


def _digest(parts: list[np.ndarray | str]) -> bytes:
    """A digest of arrays, with their shapes and types, and of text, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.shape} {part.dtype}\n".encode())
            part = np.ascontiguousarray(part).tobytes()
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    return digest.digest()
