"""Products with an operator or its diagonal blocks, counted by a progress bar and cached in a folder.

A resumed call asks for the same vectors, bit by bit, and finds their products in the folder. If an iteration rounds
differently, as on another machine, the remaining products are computed anew.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from identity_matters.runs.product_cache import ProductCache

LONG_SECONDS = 600  # of all products, at most, without a note


class MeasurementContext:
    """Context manager: one measurement of a Hessian, whose products it counts in num_products.

    `path` is a folder that caches each product; `description` names the items that the progress bar counts.
    """

    def __init__(
        self, operator: Any, path: str | os.PathLike | None, progress: bool, description: str = "Hessian products"
    ) -> None:
        from tqdm import tqdm

        self._operator = operator
        self.num_products = 0
        self._description = description
        # Beside the products, so that a file for a basis lies on the same disk.
        self.folder = None if path is None else os.path.dirname(os.path.abspath(path))
        self._plans: dict[str, tuple[int, bool]] = {}
        self._kept = None if path is None else ProductCache(path, operator.problem(), operator.rounding)
        # The total is the most that it can be until the iteration knows better: it shrinks, and the bar ends at 100 %.
        # It shows from the first product on, as compiling is no product's time.
        self._bar = tqdm(desc=description, unit="batch", dynamic_ncols=True, disable=not progress, delay=0.01)

    def __enter__(self) -> "MeasurementContext":
        self._before = self._operator.on_batch
        self._operator.on_batch = self._count
        return self

    def __exit__(self, *_: Any) -> None:
        self._operator.on_batch = self._before
        self._bar.close()

    def product(self, name: str = "", entries: np.ndarray | None = None) -> Callable:
        """Returns v -> Hv of the whole matrix, or of its block at some entries, kept under a name."""

        def of_matrix(vector: np.ndarray) -> np.ndarray:
            if entries is None:
                return self._operator @ vector
            whole = np.zeros(self._operator.shape[0], vector.dtype)
            whole[entries] = vector
            return (self._operator @ whole)[entries]

        kept = self.kept(of_matrix, name)

        def product(vector: np.ndarray) -> np.ndarray:
            self.num_products += 1
            start = time.monotonic()
            result = kept(vector)
            seconds = time.monotonic() - start
            total = self._bar.total / self._operator.num_batches * seconds
            # The first one's time is that of optimising the graph too.
            if self.num_products == 2 and total > LONG_SECONDS and not self._bar.disable:
                note = f"note: a product takes {seconds:.2g} s, all of them at most {total / 60:,.0f} minutes, without "
                note += "the work between them; with half of the examples a product takes half as long"
                less = "num_vectors=8 and order=30, say, take fewer products and give larger errors"
                self._bar.write(f"{note}; {less}", file=sys.stderr)
            return result

        return product

    def kept(self, function: Callable, name: str, num_passes: int = 1) -> Callable:
        """Returns a function, cached by name, that passes num_passes times over the examples."""
        steps = num_passes * self._operator.num_batches
        return function if self._kept is None else self._kept.wrap(function, name, lambda: self._bar.update(steps))

    def plan(self, name: str, num_products: int, is_final: bool = False) -> None:
        """Shows how many products a measurement takes, or losses; an upper limit unless final."""
        self._plans[name] = num_products, is_final
        totals, are_final = zip(*self._plans.values())
        self._bar.total = sum(totals) * self._operator.num_batches
        self._bar.set_description(f"{self._description}, by batch" + ", at most" * (not all(are_final)))

    def _count(self) -> None:
        self._bar.update()
        if self._before:
            self._before()
