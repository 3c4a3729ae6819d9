"""Products of an operator that a bar counts and a folder keeps, of the whole matrix or of blocks of it."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shortcut_study.curvature.kept import KeptProducts

LONG_SECONDS = 600


class Watched:
    """A context with the products of one measurement.

    Args:
      operator: A Hessian.
      path: str or path. Of a folder that keeps each product; None: none does.
      progress: bool. Shows a bar.
      what: str. What it counts.

    Attributes:
      num_products: int. How many were asked for.
    """

    def __init__(
        self, operator: Any, path: str | os.PathLike | None, progress: bool, what: str = "Hessian products"
    ) -> None:
        from tqdm import tqdm

        self.operator, self.num_products, self._what = operator, 0, what
        self._plans: dict[str, tuple[int, bool]] = {}
        self._kept = KeptProducts(path, operator.problem() if path is not None else {}, operator.rounding)
        # The total is the most that it can be until the iteration knows better: it shrinks, and the bar ends at 100 %.
        # It shows from the first product on, as compiling is no product's time.
        self._bar = tqdm(desc=what, unit="batch", dynamic_ncols=True, disable=not progress, delay=0.01)

    def __enter__(self) -> "Watched":
        self._before, self.operator.on_batch = self.operator.on_batch, self._count
        return self

    def __exit__(self, *_: Any) -> None:
        self.operator.on_batch = self._before
        self._bar.close()

    def product(self, name: str = "", entries: np.ndarray | None = None) -> Callable:
        """Returns v -> Hv of the whole matrix, or of its block at some entries, kept under a name."""
        operator, num_batches = self.operator, self.operator.num_batches

        def of_block(vector: np.ndarray) -> np.ndarray:
            if entries is None:
                return operator @ vector
            whole = np.zeros(operator.shape[0], vector.dtype)
            whole[entries] = vector
            return (operator @ whole)[entries]

        kept = self._kept.of(of_block, name, lambda: self._bar.update(num_batches))

        def product(vector: np.ndarray) -> np.ndarray:
            self.num_products += 1
            start = time.monotonic()
            found = kept(vector)
            if self.num_products == 2:  # the first one's time is that of optimising the graph too
                self._say_if_long(time.monotonic() - start)
            return found

        return product

    def kept(self, function: Callable, name: str, num_passes: int) -> Callable:
        """Returns a function from a vector to one of its size, kept by name; it passes over the examples as often."""
        return self._kept.of(function, name, lambda: self._bar.update(num_passes * self.operator.num_batches))

    def plan(self, name: str, num_products: int, is_final: bool = False) -> None:
        """Shows how many products a measurement takes, or losses; an upper limit unless final."""
        self._plans[name] = num_products, is_final
        totals, are_final = zip(*self._plans.values())
        self._bar.total = sum(totals) * self.operator.num_batches
        self._bar.set_description(f"{self._what}, by batch" + ", at most" * (not all(are_final)))

    def _count(self) -> None:
        self._bar.update()
        if self._before:
            self._before()

    def _say_if_long(self, seconds: float) -> None:
        """Says how long all products take, by the seconds of one, and what takes less, where that is long."""
        total = self._bar.total / self.operator.num_batches * seconds
        if total > LONG_SECONDS and not self._bar.disable:
            self._bar.write(
                f"note: a product takes {seconds:.2g} s, all of them at most {total / 60:,.0f} minutes; half of the "
                "examples take half of it; num_vectors=8 and order=30, say, take fewer products and give larger errors",
                file=sys.stderr,
            )
