"""A folder of results of long computations: arrays that are found again by a digest of the request.

PATH/problem.json                 digests of what all results depend on
PATH/VECTOR-PRODUCT.npy           a result; the digests of the requested vector, and of the result itself
"""

import hashlib
import json
import math
import os
from collections.abc import Callable

import numpy as np

from identity_matters.fields import require
from identity_matters.runs.files import replacing

PROBLEM = "problem.json"
ROUNDING = {"float32": 1e-5, "float64": 1e-12}  # of a product's norm, on other devices or threads


class ProductCache:
    """A folder that stores each product as soon as it is finished, so that it is not computed again.

    `problem` has everything that the products depend on besides the vector: lists of arrays and text, by name.
    `rounding` is the relative rounding error of a product, or 0 if it is not known.
    """

    def __init__(self, path: str | os.PathLike, problem: dict[str, list], rounding: float = 0.0) -> None:
        self._path = os.fspath(path)
        self._problem = {name: digest(parts) for name, parts in problem.items()}
        self._rounding = 10 * rounding if math.isfinite(rounding) else 0.0
        self._files = {}
        folder = os.path.dirname(os.path.abspath(path))
        require(os.path.isdir(folder), f"path {path} cannot be written: there is no folder {folder}")
        if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
            self._files = self._find()
        self._is_checked = not self._files

    def wrap(self, mvp_fn: Callable, name: str = "", on_found: Callable = lambda: None) -> Callable:
        """Returns mvp_fn(v [dim]) -> Hv [dim] of a named matrix, which reads the products that are in the folder.

        The first one is computed anyway, because digests cannot identify a model's and a loss's code. Raises
        ValueError if it differs.
        """

        def product(vector: np.ndarray) -> np.ndarray:
            key = digest([name, np.asarray(vector)])
            result = self._read(key, np.shape(vector))
            if result is None:
                result = np.ascontiguousarray(mvp_fn(vector))
                self._write(key, result)
            elif self._is_checked:
                on_found()
            else:
                difference = np.linalg.norm(result - mvp_fn(vector))
                size = np.linalg.norm(result)
                is_same = difference <= max(ROUNDING[result.dtype.name], self._rounding) * size
                self._require_same(is_same, "loss, or of another model or type")
                self._is_checked = True
            return result

        return product

    def _find(self) -> dict[str, str]:
        try:
            names = os.listdir(self._path)
            with open(os.path.join(self._path, PROBLEM), encoding="utf-8") as file:
                digests = dict(json.load(file))
        except (OSError, ValueError, TypeError) as error:
            advice = "remove it, or give another path"
            raise ValueError(f"{self._path} is not a folder of Hessian products: {advice}") from error
        for name in self._problem | digests:
            self._require_same(digests.get(name) == self._problem.get(name), name)
        return dict(name.removesuffix(".npy").split("-") for name in names if name.endswith(".npy"))

    def _require_same(self, is_same: bool, name: str) -> None:
        advice = " (a data set that shuffles: reshuffle_each_iteration=False)" if name == "examples" else ""
        require(is_same, f"{self._path} holds products of other {name}{advice}; remove it, or give another path")

    def _read(self, key: str, shape: tuple) -> np.ndarray | None:
        try:
            content = self._files[key]
            result = np.load(os.path.join(self._path, f"{key}-{content}.npy"), allow_pickle=False)
        except (KeyError, OSError, ValueError):
            return None
        return result if result.shape == shape and digest([result]) == content else None

    def _write(self, key: str, product: np.ndarray) -> None:
        os.makedirs(self._path, exist_ok=True)
        problem = os.path.join(self._path, PROBLEM)
        if not os.path.exists(problem):
            with replacing(problem) as temporary, open(temporary, "w", encoding="utf-8") as file:
                json.dump(self._problem, file)
        self._files[key] = digest([product])
        name = os.path.join(self._path, f"{key}-{self._files[key]}.npy")
        with replacing(name) as temporary, open(temporary, "wb") as binary:
            # As np.save does, whose error on a full disk does not say that it is full.
            np.lib.format.write_array_header_1_0(binary, np.lib.format.header_data_from_array_1_0(product))
            binary.write(product.data)


def digest(parts: list[np.ndarray | str]) -> str:
    """Returns a digest of arrays, with their shapes and types, and of text, in their order."""
    hasher = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, np.ndarray):
            hasher.update(f"{part.shape} {part.dtype}\n".encode())
        hasher.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).tobytes())
        hasher.update(b"\0")
    return hasher.hexdigest()
