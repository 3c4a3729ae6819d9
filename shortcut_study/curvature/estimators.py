"""Trace and diagonal of a symmetric matrix from products with random vectors, and the errors of such means.

    equations                                     code
    E[vᵀ H v] = tr H,  E[v ∘ Hv] = diag H         hutchinson; the entries of v are ±1, each with probability ½
    mean ± c s/√k                                 confidence: c by Student's t, more where the vᵀHv are skewed

    equations, Ω [n, k] random, Q R = HΩ                                 code: xtrace, xdiag
    tᵢ = tr QᵢᵀHQᵢ + (n − k + 1) vᵀHv / vᵀv,  v = (I − QᵢQᵢᵀ) ωᵢ         the estimates; Qᵢ spans HΩ without column i
    dᵢ = diag QᵢQᵢᵀH + ωᵢ ∘ (I − QᵢQᵢᵀ)Hωᵢ                               those of the diagonal; entries of ωᵢ ±1
    QᵢQᵢᵀ = Q (I − sᵢsᵢᵀ) Qᵀ,  sᵢ ∝ column i of R⁻ᵀ                      so that no column costs a product of its own
    QᵀHΩ = R,  (I − QᵢQᵢᵀ)Hωᵢ = Q sᵢ sᵢᵀ Rᵢ                              by symmetry: neither HΩ nor Ω is kept
    Var(mean of t) = E[s²/k + mean of Dᵢⱼ Dⱼᵢ over i ≠ j],  Dᵢⱼ = tᵢ − tᵢ without vector j       _variance

The estimates tᵢ share most of Q, so that s²/k by itself is too small by up to a factor of four. Given all vectors but
i, the mean of tᵢ is tr H, which makes Cov(tᵢ, tⱼ) = E[Dᵢⱼ Dⱼᵢ] exact. `_variance` has the mean of (Dᵢⱼ + Dⱼᵢ)²/4 for
it, which is no smaller and never negative. docs/appendix/coverage.md has how often the intervals hold the truth.

Sources: Hutchinson (1990) for the trace: the variance of vᵀHv is 2 Σ_{i≠j} H_ij², so that a diagonal matrix needs one
vector; Bekas, Kokiopoulou & Saad (2007) for the diagonal, without their division, as (±1)² = 1; Epperly, Tropp & Webber
(2024) for XTrace and XDiag, exact on a low-rank part. With equally many products their error is smaller than that of
Hutch++. It is far smaller than that of Hutchinson's estimators if few eigenvalues dominate the matrix, and 1.5 to 2
times as large if all are alike. The variance is not in their paper.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.stats
from numpy.typing import ArrayLike

from identity_matters.errors import UserError
from identity_matters.fields import require_counts
from shortcut_study.curvature.lanczos import multiplied, vector_norm
from shortcut_study.curvature.memory import check_memory
from theory.parallel import single_threaded_products

FEWEST = 5  # vectors before the tolerance of a trace is checked; fewer give a poor estimate of their spread
SKEWNESS_FACTOR = 8.7  # of `confidence`, so that a mean of k samples of χ² with any degrees of freedom is held
BLOCK = 2**14  # entries of all vectors at a time, which a processor's cache holds
# Vectors of the matrix's type beside those that are kept: the products' own, and in float64 means and their errors.
SPARE_OF_TRACE, SPARE_OF_DIAGONAL, SPARE_OF_HUTCHINSON = 4, 8, 14


def confidence(num_samples: int, rank: float = np.inf) -> float:
    """Returns how many standard errors of a mean of so many samples hold it 95 times in 100.

    Normal samples need Student's t. Those of vᵀHv are skewed, the more so the fewer eigenvalues hold H: as a χ² with
    `rank` degrees of freedom, (Σλ²)³/(Σλ³)², is. The factor was fitted to simulated ones: for 2 to 100 samples and all
    ranks 95 to 97 % of means are held; Student's t holds only 82 % of those of 4 samples of rank 1.
    """
    return float(scipy.stats.t.ppf(0.975, num_samples - 1)) * (1 + SKEWNESS_FACTOR / (num_samples * rank))


def standard_error(samples: ArrayLike) -> np.ndarray:
    """Returns the standard error of the mean over axis 0; NaN for one row."""
    samples = np.asarray(samples)
    is_one = len(samples) == 1
    return np.full(samples.shape[1:], np.nan) if is_one else samples.std(0, ddof=1) / np.sqrt(len(samples))


class Diagonal(NamedTuple):
    """Trace, and diagonal [dim] in float64, with errors that hold 95 times in 100 (NaN for one vector)."""

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
    if not tolerance >= 0:
        raise UserError(f"tolerance must be at least 0, got {tolerance}")
    check_memory("num_vectors", 0, dim, dtype, SPARE_OF_HUTCHINSON)
    vectors = _signs(dim, num_vectors, seed, dtype)
    return _mean((v * multiplied(mvp_fn, v).astype(np.float64) for v in vectors), dim, tolerance)


def xdiag(mvp_fn: Callable, dim: int, num_products: int, seed: int = 0, dtype: type = np.float64) -> Diagonal:
    """Returns the same as `hutchinson`, by XDiag: from at least 4 products, from as many as dimensions exactly.

    >>> estimate = xdiag(lambda v: np.array([3.0, 1.0, 0.5, 0.5]) * v, 4, 8)
    >>> estimate.diagonal.round(12).tolist(), estimate.num_vectors
    ([3.0, 1.0, 0.5, 0.5], 4)

    Memory is num_products · dim numbers of the type. mvp_fn, dim, seed and dtype are as for `lanczos`.
    """
    require_counts(4, num_vectors=num_products)
    check_memory("num_vectors", num_products, dim, dtype, SPARE_OF_DIAGONAL)
    if dim <= num_products:
        return _exact(mvp_fn, dim, dtype)
    k = num_products // 2
    q, r, along, w = _range(mvp_fn, lambda: _signs(dim, k, seed, dtype), k)
    of_q = np.empty_like(q)
    for vector, image in zip(q, of_q):
        image[:] = multiplied(mvp_fn, vector)
    small = Small(r, w, of_q @ q.T, along, dim)
    estimates, differences = _estimates(small, _diagonal_sum)
    # For the variance of each entry a pair of neighbours, in a circle, stands for all pairs.
    left_out = _left_out(r)
    after = np.zeros((k, k))
    before = np.zeros((k, k))
    for i, others, pairs in _pairs(r):
        after[:, i], before[:, i] = (pairs[:, others.index((i + step) % k)] for step in (1, -1))
    diagonal, variance = np.empty(dim), np.empty(dim)
    for start in range(0, dim, BLOCK):
        part = np.s_[start : start + BLOCK]
        q_part, of_q_part = q[:, part].astype(np.float64), of_q[:, part].astype(np.float64)
        omega = np.stack([_some_signs(dim, vector, part, seed) for vector in range(k)])
        removed, with_next, with_last = (
            (combination.T @ q_part) * (combination.T @ of_q_part - omega * np.sum(combination * r, 0)[:, None])
            for combination in (left_out, after, before)
        )
        of_part = np.sum(q_part * of_q_part, 0) - removed  # dᵢ, and by next and last its change without a neighbour
        mixed = (with_next + np.roll(with_last, -1, axis=0)) / 2
        diagonal[part] = of_part.mean(0)
        variance[part] = of_part.var(0, ddof=1) / k + np.mean(mixed**2, 0)
    error = confidence(k) * np.sqrt(_variance(estimates, differences))
    return Diagonal(float(diagonal.sum()), float(error), diagonal, confidence(k) * np.sqrt(variance), 2 * k)


def _exact(mvp_fn: Callable, dim: int, dtype: type) -> Diagonal:
    """Returns the diagonal by a product with each unit vector."""
    exact = np.array([multiplied(mvp_fn, v)[i] for i, v in enumerate(np.eye(dim, dtype=dtype))], np.float64)
    return Diagonal(float(exact.sum()), 0.0, exact, np.zeros(dim), dim)


def _signs(dim: int, count: int, seed: int, dtype: type) -> Iterator[np.ndarray]:
    """Yields vectors [dim] of entries ±1."""
    for index in range(count):
        vector = np.empty(dim, dtype)
        for start in range(0, dim, BLOCK):
            vector[start : start + BLOCK] = _some_signs(dim, index, np.s_[start : start + BLOCK], seed)
        yield vector


def _some_signs(dim: int, index: int, part: slice, seed: int) -> np.ndarray:
    """Returns some entries of the vector of `_signs` at an index, without those before them: a number for each."""
    random = np.random.Generator(np.random.PCG64(seed).advance(index * dim + part.start))
    return np.where(random.random(min(part.stop, dim) - part.start) < 0.5, -1, 1)


def _gaussians(dim: int, count: int, seed: int, dtype: type) -> Iterator[np.ndarray]:
    """Yields vectors [dim] of length √dim, uniform on their sphere."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        vector = random.standard_normal(dim, dtype)
        vector *= vector.dtype.type(np.sqrt(dim) / vector_norm(vector))
        yield vector


def _mean(estimates: Iterable[np.ndarray], dim: int, tolerance: float = 0.0) -> Diagonal:
    """Returns the mean of estimates [dim] of a diagonal, ended by a tolerance of the trace."""
    mean = np.zeros(dim)  # mean and squares follow Welford's recurrence
    squares = np.zeros(dim)
    traces = []
    for count, estimate in enumerate(estimates, 1):
        traces.append(estimate.sum(dtype=np.float64))
        change = estimate - mean
        mean += change / count
        squares += change * (estimate - mean)
        error = confidence(count, rank=1) * float(standard_error(traces))  # as one eigenvalue may hold all
        if tolerance and count >= FEWEST and error <= tolerance * abs(np.mean(traces)):
            break
    diagonal_error = confidence(count) * np.sqrt(squares / max(count - 1, 1) / count)
    return Diagonal(float(np.mean(traces)), error, mean, diagonal_error, count)


class Trace(NamedTuple):
    """A trace with the error that it is within 95 times in 100 or more."""

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

    mvp_fn, dim, seed and dtype are as for `lanczos`. Memory is ½ · num_products · dim numbers of the type.
    """
    require_counts(4, num_products=num_products)
    check_memory("num_products", num_products, dim, dtype, SPARE_OF_TRACE, share=0.5)
    if dim <= num_products:
        return Trace(_exact(mvp_fn, dim, dtype).trace, 0.0, dim)
    k = num_products // 2
    q, r, along, w = _range(mvp_fn, lambda: _gaussians(dim, k, seed, dtype), k)
    h = np.stack([q @ multiplied(mvp_fn, vector).astype(dtype, copy=False) for vector in q])
    estimates, differences = _estimates(Small(r, w, h, along, dim), _trace)
    error = confidence(k) * np.sqrt(_variance(estimates, differences))
    return Trace(float(estimates.mean()), float(error), 2 * k)


class Small(NamedTuple):
    """What XTrace and XDiag take of a matrix, in the basis Q of k columns."""

    r: np.ndarray  # [k, k], R = QᵀHΩ
    w: np.ndarray  # [k, k], QᵀΩ
    h: np.ndarray  # [k, k], QᵀHQ
    along: np.ndarray  # [k], ωᵢᵀHωᵢ
    dim: int


def _range(mvp_fn: Callable, vectors: Callable, k: int) -> tuple[np.ndarray, ...]:
    """Returns Qᵀ [k, dim] of HΩ, in whose memory HΩ was; R, ωᵢᵀHωᵢ [k] and QᵀΩ, float64. `vectors` yields Ω anew."""
    images = None
    along = np.zeros(k)
    for i, omega in enumerate(vectors()):
        if images is None:
            images = np.empty((k, len(omega)), omega.dtype)
        images[i] = multiplied(mvp_fn, omega)
        along[i] = np.einsum("i,i", omega, images[i], dtype=np.float64)
    q, r = scipy.linalg.qr(images.T, overwrite_a=True, mode="economic", check_finite=False)  # in its memory
    w = np.stack([q.T @ omega for omega in vectors()], axis=1)
    return q.T, r.astype(np.float64), along, w.astype(np.float64)


def _estimates(small: Small, estimate: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Returns the estimates [k], and how much each changes without another vector [k, k], 0 on the diagonal."""
    k = len(small.r)
    estimates = np.zeros(k)
    differences = np.zeros((k, k))
    left_out = _left_out(small.r)
    for i, others, pairs in _pairs(small.r):
        alone = left_out[:, [i]]
        estimates[i] = estimate(small, i, alone)[0]
        differences[i, others] = estimates[i] - estimate(small, i, alone, pairs)
    return estimates, differences


def _trace(small: Small, i: int, *left_out: np.ndarray) -> np.ndarray:
    """Returns XTrace's estimates [p] by vector i, for a Q without an orthonormal column of each array [k, p or 1]."""
    r, w, h, along, dim = small
    of_w = [w[:, i] @ columns for columns in left_out]
    # The components of ωᵢ along Qᵢ, in the basis Q.
    rest = w[:, i, None] - sum(columns * factors for columns, factors in zip(left_out, of_w))
    curved = along[i] - 2 * r[:, i] @ rest + np.sum(rest * (h @ rest), 0)
    size = dim - np.sum(w[:, i] ** 2) + sum(entries**2 for entries in of_w)
    return _within(small, left_out) + (dim - len(r) + len(left_out)) * curved / size


def _diagonal_sum(small: Small, i: int, *left_out: np.ndarray) -> np.ndarray:
    """Returns the sums [p] of XDiag's estimates by vector i, as `_trace`."""
    by_vector = sum((small.w[:, i] @ columns) * (small.r[:, i] @ columns) for columns in left_out)
    return _within(small, left_out) + by_vector


def _within(small: Small, left_out: tuple[np.ndarray, ...]) -> np.ndarray:
    """Returns the traces [p] of the matrix within the range of Q without these columns."""
    return np.trace(small.h) - sum(np.sum(columns * (small.h @ columns), 0) for columns in left_out)


def _variance(estimates: np.ndarray, differences: np.ndarray) -> float:
    """Returns the variance of the mean of estimates that depend on each other's vectors, no smaller in expectation."""
    k = len(estimates)
    return estimates.var(ddof=1) / k + np.sum((differences + differences.T) ** 2) / (4 * k * (k - 1))


def _pairs(r: np.ndarray) -> Iterator[tuple[int, list[int], np.ndarray]]:
    """Yields each i, the others, and for each of these a unit vector [k, k − 1] orthogonal to all columns but both.

    They are orthogonal to column i of `_left_out` too.
    """
    for i in range(len(r)):
        others = [j for j in range(len(r)) if j != i]
        with single_threaded_products():  # on busy cores threads make small matrices 10 times slower
            q, of_others = np.linalg.qr(r[:, others])
            pairs = q @ _left_out(of_others)
        yield i, others, pairs


def _left_out(r: np.ndarray) -> np.ndarray:
    """Returns for each column of R [k, k] a unit vector that is orthogonal to all others, in columns."""
    r = r / (np.abs(np.diag(r)).max() or 1.0)
    diagonal = np.diag(r)
    least = np.finfo(np.float64).eps
    # Of a matrix of lower rank any such vector will do.
    np.fill_diagonal(r, np.where(np.abs(diagonal) < least, least, diagonal))
    s = scipy.linalg.solve_triangular(r, np.eye(len(r)), trans="T")
    return s / np.linalg.norm(s, axis=0)
