"""Products that outlive an interruption: each is in a folder as soon as it is finished, and is not computed again.

    products/problem.json                 digests of the weights, the examples, the loss and the matrix
    products/VECTOR-PRODUCT.npy           a product; the digests of its vector and of itself

The methods here are the same at every call. So a call that goes on asks for the same vectors, bit by bit, and finds
their products by a digest; where an iteration rounds otherwise, as on another machine, the rest is computed anew.

Digests say little of what a model and a loss compute with weights and examples, so the first product that a call finds
is computed again, and must be the same but for rounding.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from identity_matters.errors import explaining, unnamed_file

PROBLEM = "problem.json"
ROUNDING = {"float32": 1e-5, "float64": 1e-12}  # of a product's norm, on other devices or threads


class KeptProducts:
    """A folder of finished products; without a path they are not kept.

    Args:
      path: str, path or None. The folder, which the first product makes.
      problem: dict. What the products depend on besides the vector: lists of arrays and text, by what they are.
      rounding: float. Of a product, as a share of it, where that is known.

    Raises:
      ValueError: the folder holds products of something else, or is no such folder. Where only a product shows it, the
        function that `of` returned raises it.
    """

    def __init__(self, path: str | os.PathLike | None, problem: dict[str, list], rounding: float = 0.0) -> None:
        self._path = None if path is None else os.fspath(path)
        self._rounding = 10 * rounding if math.isfinite(rounding) else 0.0
        self._files: dict[str, str] = {}
        self._digests = {name: digest(parts) for name, parts in problem.items()}
        if self._path is None:
            return
        if not os.path.isdir(folder := os.path.dirname(os.path.abspath(self._path))):
            raise ValueError(f"path {self._path} cannot be written: there is no folder {folder}")
        if os.path.lexists(self._path):
            self._find()
        self._is_checked = not self._files

    def __len__(self) -> int:
        """The number of products in the folder."""
        return len(self._files)

    def of(self, mvp_fn: Callable, name: str = "", on_found: Callable = lambda: None) -> Callable:
        """Returns mvp_fn(v [dim]) -> Hv [dim], which computes of the products in the folder only the first.

        Args:
          name: str. Of the matrix, where a problem has several.
          on_found: callable. Called without arguments where a product is in the folder and is not computed.
        """
        if self._path is None:
            return mvp_fn

        def product(vector: np.ndarray) -> np.ndarray:
            key = digest([name, np.asarray(vector)])
            found = self._read(key, np.asarray(vector))
            if found is None:
                found = np.ascontiguousarray(mvp_fn(vector))
                self._write(key, found)
            elif self._is_checked:
                on_found()
            else:
                difference, size = np.linalg.norm(found - mvp_fn(vector)), np.linalg.norm(found)
                if not difference <= max(ROUNDING[found.dtype.name], self._rounding) * size:
                    raise self._of_another("loss, or of another model or type")
                self._is_checked = True
            return found

        return product

    def _find(self) -> None:
        """Finds the products in the folder; raises ValueError where they are of another problem."""
        try:
            names = os.listdir(self._path)
            with open(os.path.join(self._path, PROBLEM), encoding="utf-8") as file:
                digests = json.load(file)
            if not isinstance(digests, dict):
                raise ValueError("no object")
        except (OSError, ValueError) as error:
            if os.path.isdir(self._path) and not os.listdir(self._path):
                return
            raise ValueError(
                f"{self._path} is not a folder of Hessian products: remove it, or give another path"
            ) from error
        for name in self._digests | digests:
            if digests.get(name) != self._digests.get(name):
                raise self._of_another(name)
        self._files = dict(name.removesuffix(".npy").split("-") for name in names if name.endswith(".npy"))

    def _of_another(self, what: str) -> ValueError:
        advice = " (a data set that shuffles: reshuffle_each_iteration=False)" if what == "examples" else ""
        return ValueError(f"{self._path} holds products of other {what}{advice}; remove it, or give another path")

    def _read(self, key: str, like: np.ndarray) -> np.ndarray | None:
        if key not in self._files:
            return None
        try:
            found = np.load(self._file(key, self._files[key]), allow_pickle=False)
        except (OSError, ValueError):
            return None
        is_whole = found.shape == like.shape and digest([found]) == self._files[key]
        return found if is_whole else None

    def _write(self, key: str, product: np.ndarray) -> None:
        self._files[key] = digest([product])
        if not os.path.exists(os.path.join(self._path, PROBLEM)):
            os.makedirs(self._path, exist_ok=True)
            self._replace(
                os.path.join(self._path, PROBLEM), lambda file: file.write(json.dumps(self._digests).encode())
            )

        def save(file: BinaryIO) -> None:
            """As np.save does, whose error on a full disk does not say that it is full."""
            header = np.lib.format.header_data_from_array_1_0(product)
            np.lib.format.write_array_header_1_0(file, header)
            file.write(product.data)

        self._replace(self._file(key, self._files[key]), save)

    @staticmethod
    def _replace(path: str, write: Callable) -> None:
        """Writes a file under another name first, so that a kill leaves the whole of it or nothing."""
        with explaining(unnamed_file(path)):  # a full disk
            with open(f"{path}.part", "wb") as file:
                write(file)
            os.replace(f"{path}.part", path)

    def _file(self, key: str, content: str) -> str:
        return os.path.join(self._path, f"{key}-{content}.npy")


def digest(parts: list[np.ndarray | str]) -> str:
    """Returns a digest of arrays, with their shapes and types, and of text, in their order."""
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.shape} {part.dtype}\n".encode())
            part = np.ascontiguousarray(part).tobytes()
        found.update(part if isinstance(part, bytes) else part.encode())
        found.update(b"\0")
    return found.hexdigest()
