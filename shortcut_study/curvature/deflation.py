"""A spectrum whose outer eigenvalues are found one by one, and whose rest is estimated with random vectors.

    tr f(H) = Σ_known f(λ) + tr f((I − P)H(I − P)), P the projection on the known eigenvectors
    tr H = tr T + tr (I − QQᵀ)H(I − QQᵀ), Q the whole basis of the iteration that found them, T = QᵀHQ

In a trained network a few eigenvalues hold nearly all of the range and of Σλ², which is half the variance of vᵀHv. With
these known and out of the way few steps resolve the density of the rest, and few vectors the trace. The first equation
holds but for the square of the eigenvectors' errors, the second for any Q. Source: Chen & Hallman,
Krylov-aware stochastic trace estimation (2023).
"""

import functools
import os
from collections.abc import Callable

import numpy as np

from shortcut_study.curvature.lanczos import STEPS_BETWEEN_CHECKS, Decomposition, Ritz, converged, lanczos, ritz
from shortcut_study.curvature.quadrature import DENSITY_WIDTH, Quadrature

DENSITY_VECTORS = 4  # of the random ones: those of a large matrix agree, and Student's t needs some
ORDER, NUM_VECTORS, TOLERANCE = 60, 24, 1e-3
NUM_SPARE_VECTORS = 12  # beside the basis: weights, gradients, products


def deflated_quadrature(
    mvp_fn: Callable,
    dim: int,
    order: int = ORDER,
    num_vectors: int = NUM_VECTORS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    dtype: type = np.float64,
    on_plan: Callable | None = None,
) -> tuple[Quadrature, np.ndarray]:
    """Returns a quadrature that knows the outer eigenvalues one by one, and their eigenvectors [k, dim].

    >>> values = np.append(np.linspace(-1, 1, 998), [50.0, 100.0])
    >>> found, vectors = deflated_quadrature(lambda v: values * v, 1000)
    >>> [round(float(value), 2) for value in found.known[-2:]], vectors.shape[1]
    ([50.0, 100.0], 1000)

    Args:
      mvp_fn, dim, dtype, seed: As for `lanczos`.
      order: int. Most steps of an iteration. Where all eigenvalues take no more products, all are found.
      num_vectors: int. Random vectors for the rest. Four of them, or all where they are fewer than six, take as many
        steps as Gauss quadrature needs to integrate a Gaussian of `density`'s width over the rest's range; the others
        one, for the trace.
      tolerance: float. Largest error bound of the extreme two eigenvalues, where order allows it, and of every known
        one, as a share of the largest |eigenvalue|.
      on_plan: callable. Given the number of products in all, at first the most that it can be, whenever it is known
        better, and whether it is final.

    Raises:
      ValueError: no vectors, no steps, no memory for them, a negative tolerance, or as `lanczos`.
    """
    if min(order, num_vectors) < 1:
        raise ValueError(f"order and num_vectors must be at least 1, got {order} and {num_vectors}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}")
    is_whole, long = dim <= order, num_vectors if num_vectors < DENSITY_VECTORS + 2 else DENSITY_VECTORS
    short, on_plan = num_vectors - long, on_plan or (lambda total, is_final: None)
    on_plan(dim if is_whole else order * (1 + max(long, 2)) + short, is_whole)
    memory = _memory(min(order, dim), dim, np.dtype(dtype))  # one basis serves all vectors
    first = lanczos(mvp_fn, dim, len(memory), [seed, 0], dtype, memory, None if is_whole else converged(1, tolerance))
    found, taken = ritz(first), len(first.diagonal)
    if taken == dim:
        quadrature = Quadrature(*np.zeros((3, 1, 0)), found.rounding, found.values, found.error_bounds)
        return quadrature, _vectors(found, first)
    chosen = found.error_bounds <= tolerance * np.abs(found.values).max()
    num_for_rest = _expected_steps(found, chosen, order) * long + short
    if dim <= max(order + chosen.sum(), num_for_rest):  # as many products find all eigenvalues
        plan = functools.partial(_plan_after, taken, on_plan)
        return deflated_quadrature(mvp_fn, dim, dim, num_vectors, tolerance, seed, dtype, plan)
    vectors = _vectors(found, first, chosen)
    on_plan(taken + num_for_rest, False)
    means = _mean_eigenvalues(mvp_fn, first, [[seed, vector] for vector in range(long + 1, num_vectors + 1)])
    stop, steps, rows = _integrates(DENSITY_WIDTH * float(np.ptp(found.values))), order, []
    for vector in range(1, long + 1):
        # Products round by a share of H, not of the rest.
        done = lanczos(mvp_fn, dim, steps, [seed, vector], dtype, memory, stop, vectors, np.abs(found.values).max())
        stop, steps = None, len(done.diagonal)
        on_plan(taken + steps * long + short, True)
        rows.append(ritz(done))
    return _quadrature(found, chosen, first.residual, dim, rows)._replace(probes=means), vectors


def _memory(order: int, dim: int, dtype: np.dtype) -> np.ndarray:
    """Returns an array for the vectors of an iteration; raises ValueError where the machine lacks the memory for it."""
    size, memory = dtype.itemsize, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size * dim * (order + NUM_SPARE_VECTORS) > memory:
        raise ValueError(
            f"order {order} needs {size * dim * order / 1e9:.1f} GB for vectors of {dim:,} weights, and this machine "
            f"has {memory / 1e9:.1f} GB in all; choose at most {max(memory // (size * dim) - NUM_SPARE_VECTORS, 1)}"
        )
    return np.empty((order, dim), dtype)


def _plan_after(taken: int, on_plan: Callable, total: int, is_final: bool) -> None:
    on_plan(taken + total, is_final)


def _mean_eigenvalues(mvp_fn: Callable, first: Decomposition, seeds: list) -> np.ndarray:
    """Returns an estimate of the mean eigenvalue for each seed, of which the part in the span of a basis is exact."""
    (taken, dim), dtype = first.basis.shape, first.basis.dtype
    # One step from a random vector v orthogonal to the basis: its diagonal is vᵀHv.
    rest = [lanczos(mvp_fn, dim, 1, seed, dtype, deflated=first.basis).diagonal[0] for seed in seeds]
    return (first.diagonal.sum() + (dim - taken) * np.array(rest)) / dim


def _vectors(found: Ritz, first: Decomposition, chosen: np.ndarray | slice = np.s_[:]) -> np.ndarray:
    """Returns Ritz vectors in rows."""
    return found.coefficients.T[chosen].astype(first.basis.dtype) @ first.basis


def _quadrature(found: Ritz, chosen: np.ndarray, residual: float, dim: int, rows: list[Ritz]) -> Quadrature:
    """Returns the known eigenvalues and the rows of the rest, whose weights sum to its share."""
    share = 1 - chosen.sum() / dim
    # What H has between a known Ritz vector and the rest, which the residuals of the rest's own iteration lack.
    coupling = residual * float(np.linalg.norm(found.coefficients[-1, chosen]))
    nodes, weights, bounds = (np.stack([row[column] for row in rows]) for column in range(3))
    rounding = max(row.rounding for row in (found, *rows))
    return Quadrature(
        nodes, share * weights, bounds + coupling, rounding, found.values[chosen], found.error_bounds[chosen]
    )


def _expected_steps(found: Ritz, chosen: np.ndarray, order: int) -> int:
    """Returns how many steps the rest takes at most, by the range of the Ritz values that are not known."""
    if chosen.all():
        return 0
    values, bounds, width = found.values[~chosen], found.error_bounds[~chosen], DENSITY_WIDTH * np.ptp(found.values)
    span = (values + bounds).max() - (values - bounds).min()
    steps = int(np.ceil(min(span / width, order))) if width else order
    return min(order, steps + -steps % STEPS_BETWEEN_CHECKS)


def _integrates(width: float) -> Callable:
    """Returns a `stop` for `lanczos`: the quadrature integrates Gaussians of that σ to some 0.1 % of their height.

    The Chebyshev coefficients of exp(−x²/2σ²) on an interval of length L fall below 0.1 % at degree 1.9 L/σ, and the
    quadrature of k nodes is exact up to degree 2k − 1.
    """

    def stop(decomposition: Decomposition) -> bool:
        values = ritz(decomposition).values
        return bool(len(values) * width >= values[-1] - values[0])

    return stop
