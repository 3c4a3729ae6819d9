"""Products of an operator that a bar counts and a folder keeps, of the whole matrix or of blocks of it.

    PATH/problem.json                 digests of the weights, the examples, the loss and the matrix
    PATH/VECTOR-PRODUCT.npy           a product; the digests of its vector and of itself

A call that goes on asks for the same vectors, bit by bit, and finds their products by a digest; where an iteration
rounds otherwise, as on another machine, the rest is computed anew.
"""

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from identity_matters.fields import require
from identity_matters.runs.files import replacing

PROBLEM = "problem.json"
ROUNDING = {"float32": 1e-5, "float64": 1e-12}  # of a product's norm, on other devices or threads
LONG_SECONDS = 600


class KeptProducts:
    """A folder in which each product is as soon as it is finished, so that it is not computed again.

    The problem is what the products depend on besides the vector: lists of arrays and text, by what they are. Rounding
    is that of a product, as a share of it, where that is known.
    """

    def __init__(self, path: str | os.PathLike, problem: dict[str, list], rounding: float = 0.0) -> None:
        self._path, self._problem = os.fspath(path), {name: digest(parts) for name, parts in problem.items()}
        self._rounding, self._files = 10 * rounding if math.isfinite(rounding) else 0.0, {}
        folder = os.path.dirname(os.path.abspath(path))
        require(os.path.isdir(folder), f"path {path} cannot be written: there is no folder {folder}")
        if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
            self._files = self._find()
        self._is_checked = not self._files

    def of(self, mvp_fn: Callable, name: str = "", on_found: Callable = lambda: None) -> Callable:
        """Returns mvp_fn(v [dim]) -> Hv [dim] of a named matrix, which computes no product that is in the folder.

        But the first, as digests say little of what a model and a loss compute: ValueError where it is another.
        """

        def product(vector: np.ndarray) -> np.ndarray:
            key = digest([name, np.asarray(vector)])
            found = self._read(key, np.shape(vector))
            if found is None:
                self._write(key, found := np.ascontiguousarray(mvp_fn(vector)))
            elif self._is_checked:
                on_found()
            else:
                difference, size = np.linalg.norm(found - mvp_fn(vector)), np.linalg.norm(found)
                is_same = difference <= max(ROUNDING[found.dtype.name], self._rounding) * size
                self._require_same(is_same, "loss, or of another model or type")
                self._is_checked = True
            return found

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

    def _require_same(self, is_same: bool, what: str) -> None:
        advice = " (a data set that shuffles: reshuffle_each_iteration=False)" if what == "examples" else ""
        require(is_same, f"{self._path} holds products of other {what}{advice}; remove it, or give another path")

    def _read(self, key: str, shape: tuple) -> np.ndarray | None:
        try:
            content = self._files[key]
            found = np.load(os.path.join(self._path, f"{key}-{content}.npy"), allow_pickle=False)
        except (KeyError, OSError, ValueError):
            return None
        return found if found.shape == shape and digest([found]) == content else None

    def _write(self, key: str, product: np.ndarray) -> None:
        os.makedirs(self._path, exist_ok=True)
        if not os.path.exists(problem := os.path.join(self._path, PROBLEM)):
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
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.shape} {part.dtype}\n".encode())
        found.update(part.encode() if isinstance(part, str) else np.ascontiguousarray(part).tobytes())
        found.update(b"\0")
    return found.hexdigest()


class Watched:
    """A context with the products of one measurement of a Hessian, which it counts in num_products.

    A path is that of a folder that keeps each product; `what` is what the bar, if it shows progress, says it counts.
    """

    def __init__(
        self, operator: Any, path: str | os.PathLike | None, progress: bool, what: str = "Hessian products"
    ) -> None:
        from tqdm import tqdm

        self._operator, self.num_products, self._what = operator, 0, what
        self._plans: dict[str, tuple[int, bool]] = {}
        self._kept = None if path is None else KeptProducts(path, operator.problem(), operator.rounding)
        # The total is the most that it can be until the iteration knows better: it shrinks, and the bar ends at 100 %.
        # It shows from the first product on, as compiling is no product's time.
        self._bar = tqdm(desc=what, unit="batch", dynamic_ncols=True, disable=not progress, delay=0.01)

    def __enter__(self) -> "Watched":
        self._before, self._operator.on_batch = self._operator.on_batch, self._count
        return self

    def __exit__(self, *_: Any) -> None:
        self._operator.on_batch = self._before
        self._bar.close()

    def product(self, name: str = "", entries: np.ndarray | slice = np.s_[:]) -> Callable:
        """Returns v -> Hv of the whole matrix, or of its block at some entries, kept under a name."""

        def of_block(vector: np.ndarray) -> np.ndarray:
            whole = np.zeros(self._operator.shape[0], vector.dtype)
            whole[entries] = vector
            return (self._operator @ whole)[entries]

        kept = self.kept(of_block, name)

        def product(vector: np.ndarray) -> np.ndarray:
            self.num_products += 1
            start = time.monotonic()
            found = kept(vector)
            seconds = time.monotonic() - start
            total = self._bar.total / self._operator.num_batches * seconds
            # The first one's time is that of optimising the graph too.
            if self.num_products == 2 and total > LONG_SECONDS and not self._bar.disable:
                note = f"note: a product takes {seconds:.2g} s, all of them at most {total / 60:,.0f} minutes; half of"
                less = "num_vectors=8 and order=30, say, take fewer products and give larger errors"
                self._bar.write(f"{note} the examples take half of it; {less}", file=sys.stderr)
            return found

        return product

    def kept(self, function: Callable, name: str, num_passes: int = 1) -> Callable:
        """Returns a function from a vector to one of its size, kept by name; it passes over the examples as often."""
        steps = num_passes * self._operator.num_batches
        return function if self._kept is None else self._kept.of(function, name, lambda: self._bar.update(steps))

    def plan(self, name: str, num_products: int, is_final: bool = False) -> None:
        """Shows how many products a measurement takes, or losses; an upper limit unless final."""
        self._plans[name] = num_products, is_final
        totals, are_final = zip(*self._plans.values())
        self._bar.total = sum(totals) * self._operator.num_batches
        self._bar.set_description(f"{self._what}, by batch" + ", at most" * (not all(are_final)))

    def _count(self) -> None:
        self._bar.update()
        if self._before:
            self._before()
