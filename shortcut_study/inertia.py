"""The spectrum of a linear network's Hessian by counting eigenvalues: time grows as the depth, not as its cube.

    equations                               code
    x_r, u_r                                variation of the map up to unit r [d²]; of the unit's weights [n·d²]
    F_r, G_r, S_r, Q_r                      Stage
    V_r                                     value [d², d²]; V_{R+1} = Sxx ⊗ I

Not in the paper. The second variation of the loss is a problem of optimal control in the depth: with B_r the map up to
unit r, Λ_r = (the map after unit r)ᵀ (W Sxx − Syx) and the variations vectorised by columns,

    ½ δᵀHδ = ½ xᵀ (Sxx ⊗ I) x + Σ_r (u_rᵀ S_r x_r + ½ u_rᵀ Q_r u_r),    x_{r+1} = F_r x_r + G_r u_r,    x_1 = 0,

with x = x_{R+1} in the first term. Eliminating u_R, then u_{R−1}, … is Riccati's recursion. It is a block elimination
of H − tI, so by Sylvester's law the negative eigenvalues of its pivots K_r are as many as the eigenvalues of H below t:

    K_r = Q_r − tI + G_rᵀ V G_r,    X_r = S_r + G_rᵀ V F_r,    V ← F_rᵀ V F_r − X_rᵀ K_r⁻¹ X_r.

Bisection over t then finds any eigenvalue, here the largest size and the 10th percentile of sizes.

The pivots are chosen within a unit only, so one may be nearly singular and V grow: for units of one layer, whose Q is
0, it does so for every small t. On random networks of 1 to 30 matrices and 89,385 shifts of 10⁻⁹ to 1 of the largest
eigenvalue, counts with max|V| < 10⁵ · max|Sxx| were those of LAPACK in 70,632 of 70,632 cases; from 10⁵ to 10⁶ 3 of
6,809 were wrong, from 10⁶ to 10⁷ 40 of 5,297 (OpenBLAS's kernels for Haswell, on Zen 5). Beyond MAX_GROWTH, a tenth of
the growth at which that begins, two units become one, then four, … until V stays small; in the end all are one, which
is LAPACK's factorisation of the matrix itself.
"""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shortcut_study import ldl
from shortcut_study.conditioning import Spectrum
from theory.arrays import finite
from theory.parallel import single_threaded_products
from theory.shortcut_hessians import commutation_matrix

TOLERANCE = 1e-4  # of an eigenvalue, relative
SMALLEST = 1e-9  # eigenvalues of smaller size, relative to the largest, count as 0
MAX_GROWTH = 1e4  # of the entries of V: it loses as many digits, and SMALLEST needs the others
_ZERO_SPECTRUM = Spectrum(0.0, 0.0, np.inf, 0.0, (0.0, 1.0))  # the spectrum of a Hessian that is 0


class Stage(NamedTuple):
    """A unit, or several in one, of N weight matrices.

    Attributes:
      unit: U [d, d], F = I ⊗ U.
      right, left: [N, d, d], G = [right_k ⊗ left_k].
      S: [N·d², d²].
      Q: [N·d², N·d²].
    """

    unit: np.ndarray
    right: np.ndarray
    left: np.ndarray
    S: np.ndarray
    Q: np.ndarray


def stages_of_units(
    weights: np.ndarray, input_moment: np.ndarray, cross_moment: np.ndarray, shortcut: bool
) -> tuple[list[Stage], np.ndarray]:
    """Returns the stages of all units, and V after the last.

    Args:
      weights: [num_units, shortcut_depth, d, d].
      input_moment, cross_moment: [d, d].
      shortcut: Whether units add their input.
    """
    num_units, shortcut_depth, d, _ = weights.shape
    eye = np.eye(d)
    inside_before, inside_after = [], []  # products of a unit's layers before and after each, of all units
    for layer in range(shortcut_depth):
        inside_before.append(_product(weights[:, :layer]))
        inside_after.append(_product(weights[:, layer + 1 :]))
    units = _product(weights) + (eye if shortcut else 0)
    before, after = [eye], [eye]
    for r in range(num_units):
        before.append(units[r] @ before[-1])
        after.append(after[-1] @ units[-1 - r])
    error = before[-1] @ input_moment - cross_moment
    stages = []
    for r in range(num_units):
        costate = after[num_units - 1 - r].T @ error
        firsts, lasts = [b[r] for b in inside_before], [a[r] for a in inside_after]
        between = {(j, i): _product(weights[r : r + 1, i + 1 : j])[0] for j in range(shortcut_depth) for i in range(j)}
        stages.append(_stage(units[r], before[r], costate, firsts, lasts, between))
    return stages, np.kron(input_moment, eye)


def _stage(
    unit: np.ndarray, before: np.ndarray, costate: np.ndarray, firsts: list, lasts: list, between: dict
) -> Stage:
    """A unit's stage from products of its layers: before each, after each, between two."""
    d, n = len(unit), len(firsts)
    swap = commutation_matrix(d)
    Q = np.zeros((n, d * d, n, d * d))
    for (j, i), product in between.items():
        Q[j, :, i] = np.kron(product, lasts[j].T @ costate @ (firsts[i] @ before).T) @ swap
        Q[i, :, j] = Q[j, :, i].T
    return Stage(
        unit=unit,
        right=np.stack([(first @ before).T for first in firsts]),
        left=np.stack(lasts),
        S=np.vstack([np.kron(first, last.T @ costate) @ swap for first, last in zip(firsts, lasts)]),
        Q=Q.reshape(n * d * d, n * d * d),
    )


def _product(layers: np.ndarray) -> np.ndarray:
    """The last times … times the first layer of [units, layers, d, d]: [units, d, d]."""
    product = np.broadcast_to(np.eye(layers.shape[-1]), (len(layers), *layers.shape[2:]))
    for layer in range(layers.shape[1]):
        product = layers[:, layer] @ product
    return product


def times_controls(stage: Stage, matrix: np.ndarray) -> np.ndarray:
    """Returns GᵀM [N·d², …] for a matrix M [d², …]: (Rᵀ ⊗ Lᵀ)M by two products of d⁵ operations, not d⁶."""
    d = len(stage.unit)
    blocks = matrix.reshape(d, d, -1)
    product = np.empty((len(stage.right), d, d, blocks.shape[-1]))
    for k, (right, left) in enumerate(zip(stage.right, stage.left)):
        product[k] = (right.T @ (left.T @ blocks).reshape(d, -1)).reshape(d, d, -1)
    return product.reshape(len(stage.right) * d * d, -1)


def times_unit(stage: Stage, matrix: np.ndarray) -> np.ndarray:
    """Returns MF = M(I ⊗ U) [k, d²] for a matrix M [k, d²]."""
    d = len(stage.unit)
    return (matrix.reshape(-1, d) @ stage.unit).reshape(-1, d * d)


def in_twos(stages: list[Stage]) -> list[Stage]:
    """Returns stages of two units each, and a last one of one unit if their number is odd, for the same Hessian."""
    pairs = [_merged(*stages[i : i + 2]) for i in range(0, len(stages) - 1, 2)]
    return pairs + stages[2 * len(pairs) :]


def _merged(first: Stage, second: Stage) -> Stage:
    """Two stages as one: its controls are those of both, and its x is that of the first."""
    coupling = times_controls(first, second.S.T).T  # S₂G₁
    return Stage(
        unit=second.unit @ first.unit,
        right=np.concatenate([first.right, second.right]),
        left=np.concatenate([second.unit @ first.left, second.left]),
        S=np.vstack([first.S, times_unit(first, second.S)]),
        Q=np.block([[first.Q, coupling.T], [coupling, second.Q]]),
    )


def spectrum_by_counting(
    weights: np.ndarray,
    input_moment: np.ndarray,
    cross_moment: np.ndarray,
    shortcut: bool = True,
    tolerance: float = TOLERANCE,
) -> Spectrum:
    """Returns `hessian.spectrum` of `hessian.hessian_from_moments`, without the matrix.

    Some 80 counts of R·(n·d²)³ operations each. Sizes below SMALLEST·|λ|_max count as 0: if the 10th percentile is,
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
        counts = {0.0: 0}
        high = 1.0  # sizes, and how many are smaller
        while counts.setdefault(high, num_smaller(high)) < total:
            high *= 2
        max_abs = _ordered(num_smaller, total - 1, counts, tolerance)
        if max_abs < np.finfo(np.float64).tiny:  # as of zero inputs
            return _ZERO_SPECTRUM
        floor = SMALLEST * max_abs
        negative = count(-floor)
        up_to_zero = count(floor)
        vanishing = up_to_zero - negative
        counts[floor] = vanishing
        place = 0.1 * (total - 1)
        below = int(place)
        low, next_one = (
            _ordered(num_smaller, rank, counts, tolerance) if rank >= vanishing else 0.0
            for rank in (below, min(below + 1, total - 1))
        )
    p10_abs = low + (place - below) * (next_one - low)  # as numpy.percentile
    condition_number = max_abs / p10_abs if p10_abs > 0 else np.inf
    return Spectrum(max_abs, p10_abs, condition_number, negative / total, (negative / total, up_to_zero / total))


class Counter:
    """Counts the eigenvalues of a Hessian below a shift, merging units if a single one is not a safe pivot.

    It takes what `stages_of_units` returns.
    """

    def __init__(self, stages: list[Stage], end: np.ndarray) -> None:
        self._merged = [stages]
        self._end = end  # units by ones, twos, fours, …
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

    The growth is 1 for a single stage, which is the matrix itself. Stages and end are as from `stages_of_units`.
    """
    value = end
    count = 0
    growth = 1.0
    scale = np.abs(end).max() or 1.0
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


def _ordered(num_smaller: Callable[[float], int], rank: int, counts: dict[float, int], tolerance: float) -> float:
    """The size that has `rank` smaller ones, by bisection: of logarithms, once the lower end is not 0.

    `counts` maps sizes to how many are smaller, some on either side; new counts are added to it.
    """
    low = max(size for size, count in counts.items() if count <= rank)
    high = min(size for size, count in counts.items() if count > rank)
    while high - low > tolerance * high:
        middle = np.sqrt(low) * np.sqrt(high) if low > 0 else high / 2
        if not low < middle < high:
            break
        counts[middle] = num_smaller(middle)
        if counts[middle] > rank:
            high = middle
        else:
            low = middle
    return float((low + high) / 2)
