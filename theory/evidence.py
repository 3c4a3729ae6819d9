"""The result of a check: the worst of its instances, measured against the bound."""

import math
from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeAlias

import numpy as np

# Relative; float64 loses about 1e-16 times the condition of a problem, which the checks keep below 1e4.
ROUNDING = 1e-9
# Yields (measured, bound) of each instance; returns the counterexample, if any.
Pairs: TypeAlias = Generator[tuple[float, float], None, str | None]


class Evidence(NamedTuple):
    """The instance with the least slack among all that were tried.

    `counterexample` is the instance on which the printed form fails; empty if nothing printed fails.
    """

    instances: int
    measured: float
    relation: str
    bound: float
    counterexample: str = ""

    @property
    def holds(self) -> bool:
        """Returns whether measured and bound are finite and satisfy the relation."""
        if not (math.isfinite(self.measured) and math.isfinite(self.bound)):
            return False
        return self.measured <= self.bound if self.relation == "≤" else self.measured >= self.bound

    @property
    def slack(self) -> float:
        """Returns |bound − measured| as a fraction of the larger; negative if the relation is violated."""
        difference = self.bound - self.measured if self.relation == "≤" else self.measured - self.bound
        return difference / max(abs(self.bound), abs(self.measured), 1e-300)


class CheckFailed(Exception):
    """A check could not show what it must, e.g. the printed form does not fail on the counterexample."""


def require(condition: bool, failure: str) -> None:
    """Raises CheckFailed with the text `failure` unless the condition holds."""
    if not condition:
        raise CheckFailed(failure)


def worst(pairs: Iterable[tuple[float, float]], relation: str) -> Evidence:
    """Returns the worst of (measured, bound) pairs that are all claimed to be measured ≤ (or ≥) bound."""
    instances = []
    pairs = iter(pairs)
    while True:
        try:
            measured, bound = next(pairs)
        except StopIteration as end:
            counterexample = end.value or ""
            break
        instances.append(Evidence(1, float(measured), relation, float(bound)))
    if not instances:
        raise CheckFailed("no instance was tried")
    # NaN is worse than anything.
    least = min(instances, key=lambda e: e.slack if math.isfinite(e.slack) else -math.inf)
    return least._replace(instances=len(instances), counterexample=counterexample)


def relative_error(value: np.ndarray, reference: np.ndarray) -> float:
    """Returns the largest absolute difference as a share of the largest entry of the reference."""
    return float(np.abs(np.asarray(value) - reference).max() / max(np.abs(reference).max(), 1e-300))
