"""Trace and diagonal of a symmetric matrix from products with random vectors, and the errors of such means.

    equations                                     code
    E[vᵀ H v] = tr H,  E[v ∘ Hv] = diag H         hutchinson; the entries of v are ±1, each with probability ½
    mean ± t_(0.975, k − 1) s/√k                  confidence: Student's t, as s is estimated from the same k vectors

    equations, Ω [n, k] random, Q R = HΩ                                 code: xtrace, xdiag
    tᵢ = tr QᵢᵀHQᵢ + (n − k + 1) vᵀHv / vᵀv,  v = (I − QᵢQᵢᵀ) ωᵢ         the estimates; Qᵢ spans HΩ without column i
    dᵢ = diag QᵢQᵢᵀH + ωᵢ ∘ (I − QᵢQᵢᵀ)Hωᵢ                               those of the diagonal; entries of ωᵢ ±1
    QᵢQᵢᵀ = Q (I − sᵢsᵢᵀ) Qᵀ,  sᵢ ∝ column i of R⁻ᵀ                      so that no column costs a product of its own

Sources: Hutchinson (1990) for the trace, where the variance of vᵀHv is 2 Σ_{i≠j} H_ij², so that a diagonal matrix needs
one vector; Bekas, Kokiopoulou & Saad (2007) for the diagonal, without their division, as (±1)² = 1; Epperly, Tropp &
Webber (2024) for XTrace and XDiag, exact on a low-rank part. By as many products they err less than Hutch++, and far
less than Hutchinson's estimators where few eigenvalues hold the matrix; where all are alike, 1.5 to 2 times as much.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.stats
from numpy.typing import ArrayLike

from identity_matters.fields import require, require_counts
from shortcut_study.curvature.lanczos import multiplied

FEWEST = 5  # vectors before the tolerance of a trace is checked; fewer give a poor estimate of their spread


def confidence(num_samples: int) -> float:
    """Returns how many standard errors of a mean of so many samples hold it 95 times in 100, by Student's t."""
    return float(scipy.stats.t.ppf(0.975, num_samples - 1))


def standard_error(samples: ArrayLike) -> np.ndarray:
    """Returns the standard error of the mean over axis 0; NaN for one row."""
    samples = np.asarray(samples)
    is_one = len(samples) == 1
    return np.full(samples.shape[1:], np.nan) if is_one else samples.std(0, ddof=1) / np.sqrt(len(samples))


class Diagonal(NamedTuple):
    """Trace, and diagonal [dim] in float64, with 95 % errors by Student's t (NaN for one estimate)."""

    trace: float
    trace_error: float
    diagonal: np.ndarray
    diagonal_error: np.ndarray
    num_vectors: int  # that the matrix was multiplied with

    def __str__(self) -> str:
        trace = f"trace {self.trace:.4g} ± {self.trace_error:.2g} (95 % interval)"
        ends = f"from {self.diagonal.min():.4g} to {self.diagonal.max():.4g}"
        return f"{trace}, {len(self.diagonal):,} diagonal entries {ends}, {self.num_vectors} products"


def hutchinson(
    mvp_fn: Callable, dim: int, num_vectors: int, seed: int = 0, tolerance: float = 0.0, dtype: type = np.float64
) -> Diagonal:
    """Returns the trace and the diagonal of a symmetric matrix, estimated from at most num_vectors products.

    >>> matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> estimate = hutchinson(lambda v: matrix @ v, dim=2, num_vectors=400)
    >>> abs(estimate.trace - 5) < estimate.trace_error
    True

    With a tolerance it stops earlier, from 5 vectors on, once the error of the trace is at most that share of it; 0
    takes all vectors, as a few may agree by chance. mvp_fn, dim, seed and dtype are as for `lanczos`.
    """
    require_counts(1, num_vectors=num_vectors, dim=dim)
    require(tolerance >= 0, f"tolerance must be at least 0, got {tolerance}")
    vectors = _signs(dim, num_vectors, seed, dtype)
    return _mean((v * multiplied(mvp_fn, v).astype(np.float64) for v in vectors), dim, tolerance)


def xdiag(mvp_fn: Callable, dim: int, num_products: int, seed: int = 0, dtype: type = np.float64) -> Diagonal:
    """Returns the same as `hutchinson`, by XDiag: from at least 4 products, from as many as dimensions exactly.

    >>> estimate = xdiag(lambda v: np.array([3.0, 1.0, 0.5, 0.5]) * v, 4, 8)
    >>> estimate.diagonal.round(12).tolist(), estimate.num_vectors
    ([3.0, 1.0, 0.5, 0.5], 4)

    Memory is 2 · num_products · dim numbers. As the estimates share most of Q, the errors hold some 9 in 10 entries.
    mvp_fn, dim, seed and dtype are as for `lanczos`.
    """
    require_counts(4, num_vectors=num_products)
    if dim <= num_products:
        exact = np.array([multiplied(mvp_fn, v)[i] for i, v in enumerate(np.eye(dim, dtype=dtype))], np.float64)
        return Diagonal(float(exact.sum()), 0.0, exact, np.zeros(dim), dim)
    omega, images, q, of_q, *small = _sketch(mvp_fn, np.stack([*_signs(dim, num_products // 2, seed, dtype)]))
    s, t = (of.astype(dtype) for of in small)  # else each product below would copy Q in float64
    ranges = np.einsum("nj,jn->n", q, of_q, dtype=np.float64)  # diag QQᵀH
    without = ((v, hv, q @ of, of @ of_q, q @ along, of @ along) for v, hv, of, along in zip(omega, images, s.T, t.T))
    estimates = (ranges - u * hu + v * (hv - qt + u * st) for v, hv, u, hu, qt, st in without)
    return _mean(estimates, dim)._replace(num_vectors=2 * len(omega))


def _signs(dim: int, count: int, seed: int, dtype: type) -> Iterator[np.ndarray]:
    """Yields vectors [dim] of entries ±1."""
    random = np.random.default_rng(seed)
    return (np.where(random.random(dim) < 0.5, -1, 1).astype(dtype) for _ in range(count))


def _mean(estimates: Iterable[np.ndarray], dim: int, tolerance: float = 0.0) -> Diagonal:
    """Returns the mean of estimates [dim] of a diagonal, ended by a tolerance of the trace."""
    mean, squares, traces = np.zeros(dim), np.zeros(dim), []  # Welford's recurrence
    for count, estimate in enumerate(estimates, 1):
        traces.append(estimate.sum(dtype=np.float64))
        change = estimate - mean
        mean += change / count
        squares += change * (estimate - mean)
        error = confidence(count) * float(standard_error(traces))
        if tolerance and count >= FEWEST and error <= tolerance * abs(np.mean(traces)):
            break
    diagonal_error = confidence(count) * np.sqrt(squares / max(count - 1, 1) / count)
    return Diagonal(float(np.mean(traces)), error, mean, diagonal_error, count)


class Trace(NamedTuple):
    """A trace with the error that it is within about 95 times in 100, by Student's t over the estimates."""

    value: float
    error: float
    num_products: int

    def __str__(self) -> str:
        return f"trace {self.value:.4g} ± {self.error:.2g} (95 % interval), {self.num_products} products"


def xtrace(mvp_fn: Callable, dim: int, num_products: int = 60, seed: int = 0, dtype: type = np.float64) -> Trace:
    """Returns the trace of a symmetric matrix from at least 4 products; from as many as dimensions it is exact.

    >>> estimate = xtrace(lambda v: np.array([3.0, 1.0, 0.5, 0.5]) * v, 4, 8)
    >>> round(estimate.value, 12), estimate.num_products
    (5.0, 4)

    mvp_fn, dim, seed and dtype are as for `lanczos`. Memory is num_products · dim numbers of the type.
    """
    require_counts(4, num_products=num_products)
    if dim <= num_products:
        return Trace(xdiag(mvp_fn, dim, num_products, dtype=dtype).trace, 0.0, dim)
    k = num_products // 2
    omega = np.random.default_rng(seed).standard_normal((k, dim), dtype)  # vectors in rows: each is contiguous
    omega *= (np.sqrt(dim) / np.linalg.norm(omega, axis=1)).astype(dtype)[:, None]
    omega, images, q, of_q, s, t = _sketch(mvp_fn, omega)
    w, h = (np.asarray(of, np.float64) for of in (q.T @ omega.T, of_q @ q))
    sigma = np.sum(s * w, 0)
    rest = w - s * sigma  # what ωᵢ has along Qᵢ, in the basis Q
    along = np.array([np.dot(vector, image) for vector, image in zip(omega, images)], np.float64)
    curved = along - 2 * np.sum(t * rest, 0) + np.sum(rest * (h @ rest), 0)
    sizes = dim - np.sum(w**2, 0) + sigma**2
    estimates = np.trace(h) - np.sum(s * (h @ s), 0) + (dim - k + 1) * curved / sizes
    return Trace(float(estimates.mean()), float(confidence(k) * standard_error(estimates)), 2 * k)


def _sketch(mvp_fn: Callable, omega: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns Ω and HΩ [k, dim], Q [dim, k] and HQ [k, dim], vectors in rows but for Q; S and T = QᵀHΩ, float64."""
    images = np.stack([multiplied(mvp_fn, vector) for vector in omega]).astype(omega.dtype)
    q, r = np.linalg.qr(images.T)
    of_q = np.stack([multiplied(mvp_fn, vector) for vector in np.ascontiguousarray(q.T)]).astype(omega.dtype)
    return omega, images, q, of_q, _left_out(np.asarray(r, np.float64)), np.asarray(of_q @ omega.T, np.float64)


def _left_out(r: np.ndarray) -> np.ndarray:
    """Returns for each column of R [k, k] a unit vector that is orthogonal to all others, in columns."""
    r = r / (np.abs(np.diag(r)).max() or 1.0)
    diagonal, least = np.diag(r), np.finfo(np.float64).eps
    # Of a matrix of lower rank any such vector will do.
    np.fill_diagonal(r, np.where(np.abs(diagonal) < least, least, diagonal))
    s = scipy.linalg.solve_triangular(r, np.eye(len(r)), trans="T")
    return s / np.linalg.norm(s, axis=0)
