"""Trace and diagonal of a symmetric matrix from products with random vectors, and the errors of such means.

    equations                                     code
    E[vᵀ H v] = tr H,  E[v ∘ Hv] = diag H         hutchinson; the entries of v are ±1, each with probability ½
    mean ± t_(0.975, k − 1) s/√k                  confidence: Student's t, as s is estimated from the same k vectors

Sources: Hutchinson (1990) for the trace, where the variance of vᵀHv is 2 Σ_{i≠j} H_ij², so that a diagonal matrix needs
one vector; Bekas, Kokiopoulou & Saad (2007) for the diagonal, without their division, as (±1)² = 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from theory.arrays import finite

FEWEST = 5  # vectors before the tolerance of a trace is checked; fewer give a poor estimate of their spread


def confidence(num_samples: int) -> float:
    """Returns how many standard errors of a mean, estimated from as many samples, hold it 95 times in 100; Student's t.

    >>> [round(confidence(count), 2) for count in (2, 5, 100)]
    [12.71, 2.78, 1.98]
    """
    return float(scipy.stats.t.ppf(0.975, num_samples - 1)) if num_samples > 1 else float("nan")


def standard_error(samples: ArrayLike) -> np.ndarray:
    """Returns the standard error of the mean over axis 0; NaN for one row."""
    samples = np.asarray(samples)
    if len(samples) == 1:
        return np.full(samples.shape[1:], np.nan)
    return samples.std(0, ddof=1) / np.sqrt(len(samples))


class Hutchinson(NamedTuple):
    """Means over the random vectors; 95 times in 100 within the errors, by Student's t (NaN for one vector).

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

    def __str__(self) -> str:
        """Returns the trace with its error, and between which numbers the entries of the diagonal lie, in a line."""
        low, high = self.diagonal.min(), self.diagonal.max()
        entries = f"{len(self.diagonal):,} diagonal entries from {low:.4g} to {high:.4g}"
        return (
            f"trace {self.trace:.4g} ± {self.trace_error:.2g} (95 % interval), {entries}, {self.num_vectors} products"
        )


def hutchinson(
    mvp_fn: Callable, dim: int, num_vectors: int, seed: int = 0, tolerance: float = 0.0, dtype: type = np.float64
) -> Hutchinson:
    """Returns the trace and the diagonal of a symmetric matrix, estimated from products with random vectors.

    >>> matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> found = hutchinson(lambda v: matrix @ v, dim=2, num_vectors=400)
    >>> abs(found.trace - 5) < found.trace_error
    True

    Args:
      mvp_fn: callable. mvp_fn(v [dim]) -> Hv [dim], as of `operator.Hessian`.
      num_vectors: int. Products with H, at most.
      tolerance: float. Stop earlier, from 5 vectors on, once the error of the trace is at most that share of it. 0
        takes all vectors, as a few may agree by chance.
      seed, dtype: Of the vectors that mvp_fn is given.

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
        error = confidence(count) * float(standard_error(traces))
        if tolerance and count >= FEWEST and error <= tolerance * abs(np.mean(traces)):
            break
    diagonal_error = confidence(count) * np.sqrt(squares / max(count - 1, 1) / count)
    return Hutchinson(float(np.mean(traces)), error, mean, diagonal_error, count)
