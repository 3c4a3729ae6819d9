"""Trace and diagonal of a symmetric matrix that is known by its products alone, with error bars.

    equations                                   code
    E[vᵀ H v] = tr H,  E[v ∘ Hv] = diag H       hutchinson; the entries of v are ±1, each with probability ½

The variance of vᵀHv is 2 Σ_{i≠j} H_ij², so a diagonal matrix needs one vector. Sources: Hutchinson (1990); Bekas,
Kokiopoulou & Saad (2007) for the diagonal, where (±1)² = 1 makes their division needless.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shortcut_study.curvature.quadrature import standard_error
from theory.arrays import finite

FEWEST = 5  # vectors before the tolerance is looked at; fewer say too little of their own spread


class Hutchinson(NamedTuple):
    """Means over the random vectors, and their standard errors (NaN for one vector).

    Attributes:
      trace, trace_error: float.
      diagonal, diagonal_error: [dim] float64.
      num_vectors: int. How many were used.
    """

    trace: float
    trace_error: float
    diagonal: np.ndarray
    diagonal_error: np.ndarray
    num_vectors: int


def hutchinson(
    mvp_fn: Callable, dim: int, num_vectors: int, seed: int = 0, tolerance: float = 0.0, dtype: type = np.float64
) -> Hutchinson:
    """Returns the trace and the diagonal of a symmetric matrix, estimated from products with random vectors.

    >>> matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> found = hutchinson(lambda v: matrix @ v, dim=2, num_vectors=400)
    >>> abs(found.trace - 5) < 3 * found.trace_error
    True

    Args:
      mvp_fn: callable. mvp_fn(v [dim]) -> Hv [dim], as from `model_hessian.model_mvp`.
      dim: int.
      num_vectors: int. Products with H, at most.
      seed: int. Of the vectors.
      tolerance: float. Stop earlier, from 5 vectors on, once the standard error of the trace is at most so much of it.
        0 takes all vectors, as a few may agree by chance.
      dtype: Of the vectors that mvp_fn is given.

    Raises:
      ValueError: no vectors, no dimension, a negative tolerance, or products that are not real and finite [dim].
    """
    if min(num_vectors, dim) < 1:
        raise ValueError(f"num_vectors and dim must be at least 1, got {num_vectors}, {dim}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}")
    random = np.random.default_rng(seed)
    mean, squares = np.zeros(dim), np.zeros(dim)  # of the estimates of the diagonal; Welford's recurrence
    traces = []
    for count in range(1, num_vectors + 1):
        vector = np.where(random.random(dim) < 0.5, -1, 1).astype(dtype)
        product = finite("products", mvp_fn(vector))
        if product.shape != (dim,):
            raise ValueError(f"mvp_fn must return shape ({dim},), got {product.shape}")
        estimate = vector * product
        traces.append(estimate.sum())
        change = estimate - mean
        mean += change / count
        squares += change * (estimate - mean)
        if tolerance and count >= FEWEST and standard_error(traces) <= tolerance * abs(np.mean(traces)):
            break
    diagonal_error = np.sqrt(squares / (count - 1) / count) if count > 1 else np.full(dim, np.nan)
    return Hutchinson(float(np.mean(traces)), float(standard_error(traces)), mean, diagonal_error, count)
