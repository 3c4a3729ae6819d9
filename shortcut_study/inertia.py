"""The spectrum of a linear network's Hessian by counting eigenvalues: time grows as the depth, not as its cube.

    equations                               code
    F_r, G_r, S_r, Q_r                      control.Stage
    V_r                                     value [d², d²]

Not in the paper. Eliminating u_R, then u_{R−1}, … from the problem of optimal control in control.py is Riccati's
recursion. It is a block elimination of H − tI, so by Sylvester's law the negative eigenvalues of its pivots K_r are as
many as the eigenvalues of H below t:

    K_r = Q_r − tI + G_rᵀ V G_r,    X_r = S_r + G_rᵀ V F_r,    V ← F_rᵀ V F_r − X_rᵀ K_r⁻¹ X_r.

Bisection over t then finds any eigenvalue, here the largest size and the 10th percentile of sizes.

The pivots are chosen within a unit only, so one may be nearly singular and V grow: for units of one layer, whose Q is
0, it does so for every small t. On random networks of 1 to 30 matrices and 89,385 shifts of 10⁻⁹ to 1 of the largest
eigenvalue, counts with max|V| < 10⁵ · max|Sxx| were those of LAPACK in 70,632 of 70,632 cases; from 10⁵ to 10⁶ 3 of
6,809 were wrong, from 10⁶ to 10⁷ 40 of 5,297 (OpenBLAS's kernels for Haswell, on Zen 5). Beyond MAX_GROWTH, a tenth of
where that begins, two units become one, then four, … until V stays small; in the end all are one, which is LAPACK's
factorisation of the matrix itself.
"""

import concurrent.futures
import threading
from collections.abc import Callable

import numpy as np

from shortcut_study import ldl
from shortcut_study.control import Stage, in_twos, stages_of_units, times_controls, times_unit
from shortcut_study.curvature.lanczos import Spectrum
from theory.arrays import finite
from theory.parallel import single_threaded_products

TOLERANCE = 1e-4  # of an eigenvalue, relative
SMALLEST = 1e-9  # eigenvalues of smaller size, relative to the largest, count as 0
MAX_GROWTH = 1e4  # of the entries of V: it loses as many digits, and SMALLEST needs the others
_ZERO_SPECTRUM = Spectrum(0.0, 0.0, np.inf, 0.0, (0.0, 1.0))  # the spectrum of a Hessian that is 0


def spectrum_by_counting(
    weights: np.ndarray,
    input_moment: np.ndarray,
    cross_moment: np.ndarray,
    shortcut: bool = True,
    tolerance: float = TOLERANCE,
) -> Spectrum:
    """Returns `hessian.spectrum` of `hessian.hessian_from_moments`, without the matrix.

    Some 80 counts of R·(n·d²)³ operations each. Sizes below SMALLEST·|λ|_max count as 0: where the 10th percentile is,
    p10_abs is 0 and the condition number inf, and an eigenvalue that small is not counted as negative.

    Args:
      weights: [num_units, shortcut_depth, d, d].
      input_moment, cross_moment: [d, d].
      shortcut: Whether units add their input.
      tolerance: Relative error of max_abs and p10_abs.

    Raises:
      ValueError: numbers that are not real and finite.
    """
    weights, input_moment = finite("weights", weights), finite("input_moment", input_moment)
    cross_moment = finite("cross_moment", cross_moment)
    total = weights.size
    count = Counter(*stages_of_units(weights, input_moment, cross_moment, shortcut))
    # Matrices this small are faster on one thread of BLAS each; both signs of a shift are counted at once.
    with single_threaded_products(), concurrent.futures.ThreadPoolExecutor(2) as pool:

        def num_smaller(size: float) -> int:
            below, above = pool.map(count, (size, -size))
            return below - above

        # Where the Hessian is 0, as it is at zero for n ≥ 3. A shift this small would merge units of other weights.
        if not weights.any() and num_smaller(np.finfo(np.float64).tiny) == total:
            return _ZERO_SPECTRUM
        known, high = {0.0: 0}, 1.0  # sizes, and how many are smaller
        while known.setdefault(high, num_smaller(high)) < total:
            high *= 2
        max_abs = _ordered(num_smaller, total - 1, known, tolerance)
        if max_abs < np.finfo(np.float64).tiny:  # as of zero inputs
            return _ZERO_SPECTRUM
        floor = SMALLEST * max_abs
        negative, up_to_zero = count(-floor), count(floor)
        known[floor] = vanishing = up_to_zero - negative
        place = 0.1 * (total - 1)
        below = int(place)
        low, next_one = (
            _ordered(num_smaller, rank, known, tolerance) if rank >= vanishing else 0.0
            for rank in (below, min(below + 1, total - 1))
        )
    p10_abs = low + (place - below) * (next_one - low)  # as numpy.percentile
    condition_number = max_abs / p10_abs if p10_abs > 0 else np.inf
    return Spectrum(max_abs, p10_abs, condition_number, negative / total, (negative / total, up_to_zero / total))


class Counter:
    """Counts the eigenvalues of a Hessian that are less than a shift, merging units where one alone is no safe pivot.

    Args:
      stages: Of all units.
      end: V after the last.
    """

    def __init__(self, stages: list[Stage], end: np.ndarray) -> None:
        self._merged, self._end = [stages], end  # units by ones, twos, fours, …
        self._lock = threading.Lock()  # of the list: two shifts are counted at once

    def __call__(self, shift: float) -> int:
        """Returns how many eigenvalues are less than the shift."""
        level = 0
        while True:
            count, growth = eigenvalues_below(self._merged[level], self._end, shift)
            if growth <= MAX_GROWTH:
                return count
            level += 1
            with self._lock:
                if level == len(self._merged):
                    self._merged.append(in_twos(self._merged[-1]))


def eigenvalues_below(stages: list[Stage], end: np.ndarray, shift: float) -> tuple[int, float]:
    """Returns how many eigenvalues of the Hessian are less than the shift, and how much V grew; inf: no answer.

    The growth is 1 for a single stage, which is the matrix itself.

    Args:
      stages: Of all units. end: V after the last [d², d²].
      shift: float.
    """
    value, count, growth, scale = end, 0, 1.0, np.abs(end).max() or 1.0
    for stage in reversed(stages):
        backed = times_controls(stage, value)  # GᵀV
        pivot = stage.Q + times_controls(stage, backed.T)
        np.fill_diagonal(pivot, pivot.diagonal() - shift)
        factor, interchanges, status = ldl.ldl(pivot)
        # Blocks of two rows, marked by negative interchanges, have one eigenvalue of each sign.
        is_single = interchanges > 0
        count += int((factor.diagonal()[is_single] < 0).sum()) + int((~is_single).sum()) // 2
        if stage is stages[0]:
            break
        if status > 0:
            return count, np.inf  # a pivot of 0
        X = stage.S + times_unit(stage, backed)
        value = times_unit(stage, times_unit(stage, value).T) - X.T @ ldl.solve(factor, interchanges, X)
        value = (value + value.T) / 2
        growth = max(growth, np.abs(value).max() / scale)
        if not growth <= MAX_GROWTH:
            return count, np.inf
    return count, growth


def _ordered(num_smaller: Callable[[float], int], rank: int, known: dict[float, int], tolerance: float) -> float:
    """The size that has `rank` smaller ones, by bisection: of logarithms, once the lower end is not 0.

    Args:
      num_smaller: How many sizes are smaller than a given one.
      rank: int.
      known: Sizes and how many are smaller, some on either side; what is found out is added.
      tolerance: Relative.
    """
    low = max(size for size, count in known.items() if count <= rank)
    high = min(size for size, count in known.items() if count > rank)
    while high - low > tolerance * high:
        middle = np.sqrt(low) * np.sqrt(high) if low > 0 else high / 2
        if not low < middle < high:
            break
        known[middle] = num_smaller(middle)
        if known[middle] > rank:
            high = middle
        else:
            low = middle
    return float((low + high) / 2)
