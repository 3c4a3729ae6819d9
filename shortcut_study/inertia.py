"""The spectrum of a linear network's Hessian by counting eigenvalues: time grows as the depth, not as its cube.

    equations                               code
    x_r, u_r                                variation of the map up to unit r [d²]; of the unit's weights [n·d²]
    F_r, G_r, S_r, Q_r                      Stage
    V_r                                     value [d², d²]

Not in the paper. With B_r the map up to unit r, Λ_r = (what comes after unit r)ᵀ (W Sxx − Syx) and the
variations vectorised by columns, the second variation of the loss is a problem of optimal control:

    ½ δᵀHδ = ½ x_{R+1}ᵀ (Sxx ⊗ I) x_{R+1} + Σ_r (u_rᵀ S_r x_r + ½ u_rᵀ Q_r u_r),    x_{r+1} = F_r x_r + G_r u_r,    x_1 = 0.

Eliminating u_R, then u_{R−1}, … is Riccati's recursion. It is a block elimination of H − tI, so by
Sylvester's law the negative eigenvalues of its pivots K_r are as many as the eigenvalues of H below t:

    K_r = Q_r − tI + G_rᵀ V G_r,    X_r = S_r + G_rᵀ V F_r,    V ← F_rᵀ V F_r − X_rᵀ K_r⁻¹ X_r.

Bisection over t then finds any eigenvalue, here the largest size and the 10th percentile of sizes.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dsytrf, dsytrs
from threadpoolctl import threadpool_limits

from shortcut_study.hessian import Spectrum
from theory.shortcut_hessians import commutation_matrix

TOLERANCE = 1e-8  # of an eigenvalue, relative
# Relative to the largest. No pivoting beyond a unit: of sizes below 1e-11 counts were seen to be wrong.
SMALLEST = 1e-9


class Stage(NamedTuple):
    """A unit: F [d², d²], G [d², n·d²], S [n·d², d²], Q [n·d², n·d²]."""

    F: np.ndarray
    G: np.ndarray
    S: np.ndarray
    Q: np.ndarray


def spectrum_by_counting(weights, input_moment, cross_moment, shortcut: bool = True) -> Spectrum:
    """`hessian.spectrum` of `hessian.hessian_from_moments`, to about 1e-6, without the matrix.

    Some 150 counts of R·(n·d²)³ operations each. Sizes below SMALLEST·|λ|_max are not resolved: where the
    10th percentile is, p10_abs is 0 and the condition number inf.

    Args:
      weights: [num_units, shortcut_depth, d, d].
      input_moment, cross_moment: [d, d].
    """
    with threadpool_limits(1):  # matrices this small are faster on one thread
        stages, end = _stages(np.asarray(weights, np.float64), input_moment, cross_moment, shortcut)
        total = weights.size

        def num_smaller(size):
            return eigenvalues_below(stages, end, size) - eigenvalues_below(stages, end, -size)

        known, high = {0.0: 0}, 1.0  # sizes, and how many are smaller
        while known.setdefault(high, num_smaller(high)) < total:
            high *= 2
        max_abs = _ordered(num_smaller, total - 1, known)
        floor = SMALLEST * max_abs
        known[floor] = num_smaller(floor)
        place = 0.1 * (total - 1)
        below = int(place)
        index = eigenvalues_below(stages, end, 0.0) / total
        if known[floor] > below:
            return Spectrum(max_abs, 0.0, np.inf, index)
        low, next_one = (_ordered(num_smaller, rank, known) for rank in (below, below + 1))
    p10_abs = low + (place - below) * (next_one - low)  # as numpy.percentile
    return Spectrum(max_abs, p10_abs, max_abs / p10_abs, index)


def eigenvalues_below(stages: list[Stage], end: np.ndarray, shift: float) -> int:
    """How many eigenvalues of the Hessian are less than the shift."""
    value, count = end, 0
    for F, G, S, Q in reversed(stages):
        backed = G.T @ value
        pivot, X = Q + backed @ G, S + backed @ F
        np.fill_diagonal(pivot, pivot.diagonal() - shift)
        factor, interchanges, _ = dsytrf(pivot, lower=1)
        # Blocks of two rows, marked by negative interchanges, have one eigenvalue of each sign.
        is_single = interchanges > 0
        count += int((factor.diagonal()[is_single] < 0).sum()) + int((~is_single).sum()) // 2
        solved, _ = dsytrs(factor, interchanges, X, lower=1)
        value = F.T @ value @ F - X.T @ solved
        value = (value + value.T) / 2
    return count


def _ordered(num_smaller, rank: int, known: dict[float, int]) -> float:
    """The size that has `rank` smaller ones, by bisection: of logarithms, once the lower end is not 0.

    Args:
      known: Sizes and how many are smaller, some on either side; what is found out is added.
    """
    low = max(size for size, count in known.items() if count <= rank)
    high = min(size for size, count in known.items() if count > rank)
    while high - low > TOLERANCE * high:
        middle = np.sqrt(low * high) if low > 0 else high / 2
        if not low < middle < high:
            break
        known[middle] = num_smaller(middle)
        if known[middle] > rank:
            high = middle
        else:
            low = middle
    return float((low + high) / 2)


def _stages(weights, input_moment, cross_moment, shortcut: bool) -> tuple[list[Stage], np.ndarray]:
    """The stages of all units, and V after the last."""
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


def _stage(unit, before, costate, firsts, lasts, between) -> Stage:
    """A unit's stage from products of its layers: before each, after each, between two."""
    d, n = len(unit), len(firsts)
    swap = commutation_matrix(d)
    Q = np.zeros((n, d * d, n, d * d))
    for (j, i), product in between.items():
        Q[j, :, i] = np.kron(product, lasts[j].T @ costate @ (firsts[i] @ before).T) @ swap
        Q[i, :, j] = Q[j, :, i].T
    return Stage(
        F=np.kron(np.eye(d), unit),
        G=np.hstack([np.kron((first @ before).T, last) for first, last in zip(firsts, lasts)]),
        S=np.vstack([np.kron(first, last.T @ costate) @ swap for first, last in zip(firsts, lasts)]),
        Q=Q.reshape(n * d * d, n * d * d),
    )


def _product(layers) -> np.ndarray:
    """The last times … times the first layer of [units, layers, d, d]: [units, d, d]."""
    product = np.broadcast_to(np.eye(layers.shape[-1]), (len(layers), *layers.shape[2:]))
    for layer in range(layers.shape[1]):
        product = layers[:, layer] @ product
    return product
