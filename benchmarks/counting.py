"""Time the counting of eigenvalues (Figure 5) against LAPACK, and without each of its optimisations.

    python -m benchmarks.counting                     3 minutes on 2 cores

Counting is shortcut_study.inertia.spectrum_by_counting, from Sxx and Syx, for linear networks of width 10 at the
paper's zero. LAPACK is numpy.linalg.eigvalsh of the Hessian, without the time to compute it. Each of the other columns
leaves out one optimisation: the second thread, SciPy's wrapper in place of ldl.py, maps of a unit as full matrices (d⁶ operations in
place of d⁵), eigenvalues to 1e-8 in place of 1e-4. All find the same condition number.

Measured on 2 cores of an AMD EPYC (Zen 3); NumPy 2.4, medians of 3; other processes kept 0.00 cores busy:

| shortcut over | counting, s |  LAPACK / counting | one thread / counting | SciPy's wrapper / counting | full maps / counting | to 1e-08 / counting |
| ------------- | ----------: | -----------------: | --------------------: | -------------------------: | -------------------: | ------------------: |
| 1             |         1.6 | 3.12 (3.11 – 3.82) |     1.42 (1.41 – 1.5) |         1.39 (1.36 – 1.43) |   1.84 (1.81 – 1.96) |  1.91 (1.85 – 2.09) |
| 2             |        1.79 | 3.09 (3.02 – 3.15) |    1.75 (1.74 – 1.75) |         1.57 (1.56 – 1.64) |   1.65 (1.63 – 1.73) |  1.92 (1.88 – 1.98) |
| 3             |        2.31 | 2.12 (2.03 – 2.44) |    1.78 (1.75 – 1.78) |         1.63 (1.62 – 1.68) |   1.42 (1.41 – 1.47) |  1.93 (1.91 – 1.93) |
"""  # noqa: E501, a table as it is printed

import contextlib
import dataclasses
import unittest.mock
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import OTHERS, environment, interleaved, ratios, seconds, table, with_range
from identity_matters.errors import UserError
from identity_matters.fields import check_fields, option
from launch import launcher

if TYPE_CHECKING:
    from shortcut_study.inertia import Stage

WIDTH = 10
FINE = 1e-8  # a relative error of eigenvalues


@dataclasses.dataclass(frozen=True)
class CountingBenchmark:
    """Which networks are counted, and how often.

    Attributes:
      shortcut_depths: Numbers of weight matrices in a unit.
      depth: Number of weight matrices of each network, a multiple of every shortcut depth.
      repeats: Rounds in which each is timed once; medians and ranges are over the rounds.
    """

    shortcut_depths: tuple[int, ...] = (1, 2, 3)
    depth: int = option(48, at_least=1)
    repeats: int = option(3, at_least=1)

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.shortcut_depths or any(n < 1 or self.depth % n for n in self.shortcut_depths):
            raise UserError(f"shortcut_depths must divide depth {self.depth}, got {self.shortcut_depths}")


def main(benchmark: CountingBenchmark) -> None:
    """Times counting, LAPACK and what each saving saves, in turns, and prints the table."""
    from shortcut_study.network import ShortcutNetwork
    from theory.shortcut.networks import moments

    print(environment())
    x, y = np.random.default_rng(0).standard_normal((2, 1000, WIDTH))
    rows, others = [], []
    for n in benchmark.shortcut_depths:
        weights = ShortcutNetwork.with_depth(WIDTH, benchmark.depth, n).initialize("zero", seed=0)
        measurements = _measurements(weights, *moments(x, y))
        found = interleaved(measurements, benchmark.repeats)
        others += found[OTHERS]
        cells = [f"{np.median(found['counting']):.3g}"]
        for name in list(measurements)[1:]:
            cells.append(with_range(ratios(found[name], found["counting"])))
        rows.append((f"{n}", *cells))
        print(f"shortcuts of {n}: done", flush=True)
    print(f"\ndepth {benchmark.depth}; other processes kept {np.median(others):.2f} cores busy\n")
    print(table(("shortcut over", "counting, s", *(f"{name} / counting" for name in list(measurements)[1:])), rows))


def _measurements(
    weights: np.ndarray, input_moment: np.ndarray, cross_moment: np.ndarray
) -> dict[str, Callable[[], float]]:
    """Returns, by name, functions that return the seconds of one spectrum."""
    from shortcut_study import inertia
    from shortcut_study.hessian import hessian_from_moments

    problem = weights, input_moment, cross_moment
    expected = inertia.spectrum_by_counting(*problem).condition_number

    def counting(tolerance: float = inertia.TOLERANCE) -> float:
        found = []
        time = seconds(lambda: found.append(inertia.spectrum_by_counting(*problem, tolerance=tolerance)))
        np.testing.assert_allclose(found[0].condition_number, expected, rtol=3 * inertia.TOLERANCE)
        return time

    def without(saving: Callable) -> Callable[[], float]:
        def measure() -> float:
            with saving():
                return counting()

        return measure

    matrix = hessian_from_moments(*problem)
    return {
        "counting": counting,
        "LAPACK": lambda: seconds(np.linalg.eigvalsh, matrix),
        "one thread": without(_one_thread),
        "SciPy's wrapper": without(_scipy_wrapper),
        "full maps": without(_full_maps),
        f"to {FINE:g}": lambda: counting(FINE),
    }


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    with unittest.mock.patch("concurrent.futures.ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1)):
        yield


@contextlib.contextmanager
def _scipy_wrapper() -> Iterator[None]:
    from scipy.linalg import lapack

    from shortcut_study import ldl

    with (
        unittest.mock.patch.object(ldl, "ldl", lambda matrix: lapack.dsytrf(matrix, lwork=64 * len(matrix), lower=1)),
        unittest.mock.patch.object(ldl, "solve", lambda *problem: lapack.dsytrs(*problem, lower=1)[0]),
    ):
        yield


@contextlib.contextmanager
def _full_maps() -> Iterator[None]:
    from shortcut_study import inertia

    def times_controls(stage: "Stage", matrix: np.ndarray) -> np.ndarray:
        return np.hstack([np.kron(right, left) for right, left in zip(stage.right, stage.left)]).T @ matrix

    def times_unit(stage: "Stage", matrix: np.ndarray) -> np.ndarray:
        return matrix @ np.kron(np.eye(len(stage.unit)), stage.unit)

    with (
        unittest.mock.patch.object(inertia, "times_controls", times_controls),
        unittest.mock.patch.object(inertia, "times_unit", times_unit),
    ):
        yield


cli = launcher.command(main, {"": CountingBenchmark()}, manual=__doc__)

if __name__ == "__main__":
    cli()
