"""Estimates from a few random vectors: density, condition number and index of a spectrum, trace and diagonal.

    equations                                     code
    tr f(H)/n ≈ mean over v of Σ s_1² f(θ)        Quadrature: nodes θ, weights s_1², a row per starting vector v
    E[vᵀ H v] = tr H,  E[v ∘ Hv] = diag H         hutchinson; the entries of v are ±1, each with probability ½
    |λ|_max, |λ|_(0.1), index (Li et al. §5)      Summary.max_abs, p10_abs, index

For v uniform on the sphere E[vᵀ f(H) v] = tr f(H)/n, and vᵀ f(H) v is the integral of f over a
measure with mass (uᵢᵀv)² at the eigenvalue λᵢ of the eigenvector uᵢ. Ritz values and weights are that
measure's Gauss quadrature: exact for polynomials of degree < 2 · order. Sources: Golub & Meurant,
Matrices, Moments and Quadrature (2010); Ubaru, Chen & Saad (2017); Ghorbani, Krishnan & Xiao (2019)
for the density of a network; Hutchinson (1990) for the trace, where the variance of vᵀHv is 2 Σ_{i≠j} H_ij², so that a
diagonal matrix needs one vector; Bekas, Kokiopoulou & Saad (2007) for the diagonal, whose division (±1)² = 1 spares.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shortcut_study.curvature.lanczos import lanczos, ritz
from theory.arrays import finite

STANDARD_ERRORS = 2  # of the sampling, by which ranges are widened
DENSITY_WIDTH = 0.01  # σ of the Gaussians, of the distance between the extreme nodes
ONE_POINT = 1e-9  # of the largest |node|: nodes that lie no further apart are one point
FEWEST = 5  # vectors before the tolerance of a trace is looked at; fewer say too little of their own spread
DENSITY_MARGIN = 6  # σ that the grid of a density reaches beyond the extreme nodes


class Quadrature(NamedTuple):
    """Ritz values and weights of several random starting vectors, a row each.

    Attributes:
      nodes, weights, error_bounds: [num_vectors, order]; each row of weights sums to 1.
      rounding: Largest of the decompositions': a node no larger counts as 0.
    """

    nodes: np.ndarray
    weights: np.ndarray
    error_bounds: np.ndarray
    rounding: float


class Density(NamedTuple):
    """The density of eigenvalues on a grid; its integral is 1.

    Attributes:
      grid, values: [g].
      standard_errors: [g], of the mean over starting vectors; NaN for one vector.
    """

    grid: np.ndarray
    values: np.ndarray
    standard_errors: np.ndarray


class Summary(NamedTuple):
    """Estimates of what lanczos.Spectrum holds exactly.

    Attributes:
      max_abs: Largest |θ|: never above the largest |λ|, but for rounding.
      p10_abs: 10th percentile of |λ|, by the weights.
      condition_number: max_abs / p10_abs; inf where p10_abs counts as 0.
      index: Share of negative eigenvalues, by the weights; what counts as 0 is not negative.
      p10_range: (low, high) that holds the 10th percentile of the measure which the starting vectors see; of the
        eigenvalues, but for 1 of 20 cases, where `summary` was given their number.
      index_range: (low, high), without and with what counts as 0, that holds the share of negative ones likewise.
    """

    max_abs: float
    p10_abs: float
    condition_number: float
    index: float
    p10_range: tuple[float, float]
    index_range: tuple[float, float]


def lanczos_quadrature(
    mvp_fn: Callable,
    dim: int,
    order: int,
    num_vectors: int,
    seed: int = 0,
    dtype: type = np.float64,
    stop: Callable | None = None,
) -> Quadrature:
    """Returns Ritz values and weights of `num_vectors` random starting vectors, (seed, 0), (seed, 1), …

    The variance of a mean over vectors is at most 2 ‖f(H)‖²_F / (n² · num_vectors), so large matrices need few.

    Args:
      mvp_fn, dim, order, dtype, seed: As for `lanczos`.
      stop: As for `lanczos`, for the first vector; the others take as many steps as it.

    Raises:
      ValueError: no vectors, or as `lanczos`.
    """
    if num_vectors < 1:
        raise ValueError(f"num_vectors must be at least 1, got {num_vectors}")
    memory, found = None, []  # the memory of one basis serves all of them
    for vector in range(num_vectors):
        decomposition = lanczos(mvp_fn, dim, order, [seed, vector], dtype, out=memory, stop=stop)
        memory, stop = decomposition.basis, None
        order = len(memory)
        found.append(ritz(decomposition))
    columns = (np.stack([getattr(r, name) for r in found]) for name in ("values", "weights", "error_bounds"))
    return Quadrature(*columns, rounding=max(r.rounding for r in found))


def trace_mean(quadrature: Quadrature, function: Callable) -> tuple[float, float]:
    """Returns tr f(H)/n, f elementwise, estimated, and its standard error over the starting vectors (NaN for one)."""
    by_vector = (quadrature.weights * function(quadrature.nodes)).sum(1)
    return float(by_vector.mean()), float(standard_error(by_vector))


def density(quadrature: Quadrature, width: float | None = None, num_points: int = 1024) -> Density:
    """Returns the density of the eigenvalues: mean over vectors of Σ weights · Gaussian(λ; node, width).

    Estimates the spectrum convolved with that Gaussian, each eigenvalue counted 1/n. The grid
    reaches so far beyond the nodes that the integral over it is 1 to 1e-8.

    Args:
      width: float. σ of the Gaussians, in units of λ; None: 1% of the distance between the extreme nodes,
        or the largest |node| where they are one point.
      num_points: int. Of the grid, evenly spaced; raised if less than 4 fall into one σ.

    Raises:
      ValueError: a width that is not positive.
    """
    if width is not None and not width > 0:
        raise ValueError(f"width must be positive, got {width}")
    low, high = quadrature.nodes.min(), quadrature.nodes.max()
    if width is None:
        largest = max(-low, high)
        is_point = high - low <= ONE_POINT * largest  # of which 1 % is what float64 does not resolve
        width = (largest or 1.0) if is_point else DENSITY_WIDTH * (high - low)
    margin = DENSITY_MARGIN * width
    num_points = max(num_points, int(np.ceil(4 * (high - low + 2 * margin) / width)))
    grid = np.linspace(low - margin, high + margin, num_points)
    by_vector = np.stack([
        weights @ np.exp(-0.5 * ((grid - nodes[:, None]) / width) ** 2) / (width * np.sqrt(2 * np.pi))
        for nodes, weights in zip(quadrature.nodes, quadrature.weights)
    ])  # fmt: skip
    return Density(grid, by_vector.mean(0), standard_error(by_vector))


def extreme_eigenvalues(quadrature: Quadrature, count: int, largest: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `count` largest Ritz values, descending, or the smallest, ascending, and their error bounds.

    Each is the outermost of its rank over the starting vectors, as the i-th largest Ritz value never lies above the
    i-th largest eigenvalue (Cauchy). From one vector an eigenvalue shows once, however often it is repeated.
    """
    chosen = np.s_[:, : -count - 1 : -1] if largest else np.s_[:, :count]
    nodes, bounds = quadrature.nodes[chosen], quadrature.error_bounds[chosen]
    outermost = nodes.argmax(0) if largest else nodes.argmin(0), np.arange(nodes.shape[1])
    return nodes[outermost], bounds[outermost]


def summary(quadrature: Quadrature, dim: int | None = None) -> Summary:
    """Returns condition number and index (Li et al., footnote 1 and §5.2), estimated, with their possible range.

    A quadrature knows the share of a measure in an interval but for the weights of the nodes at its ends (inequalities
    of Chebyshev, Markov and Stieltjes). A wide range says that the order does not resolve the question: Lanczos finds
    the ends of a spectrum first, and what is crowded around 0 last. Besides, a share p of the eigenvalues has a share
    p ± √(2p(1 − p)/((n + 2) num_vectors)) of the measure, as the (uᵢᵀv)² of a random v are distributed after Dirichlet.

    Args:
      dim: int. n; the ranges are widened by two such standard errors. None leaves this out.
    """
    nodes, max_abs, zero = quadrature.nodes, float(np.abs(quadrature.nodes).max()), quadrature.rounding

    def sampling(share: float) -> float:
        variance = 2 * max(share * (1 - share), 0) / ((dim + 2) * len(nodes)) if dim else 0
        return STANDARD_ERRORS * variance**0.5

    sizes = np.unique(np.abs(nodes))
    least, most = _shares(quadrature, -sizes, sizes)
    low, high = 0.1 - sampling(0.1), 0.1 + sampling(0.1)
    p10_low = sizes[np.argmax(most >= low)] if _shares(quadrature, 0, 0)[1] < low else 0.0
    is_exact = quadrature.error_bounds.max() <= 2 * quadrature.rounding  # no eigenvalue is beyond
    p10_high = sizes[np.argmax(least >= high)] if least[-1] >= high else max_abs if is_exact else np.inf
    p10_abs = _percentile_10(np.abs(nodes).ravel(), quadrature.weights.ravel() / len(nodes))
    below_zero = np.nextafter(-zero, -np.inf)  # as H = 0 has nodes at 0, and a rounding of 0
    lowest, highest = (float(_shares(quadrature, -np.inf, end)[i]) for i, end in enumerate((below_zero, zero)))
    return Summary(
        max_abs,
        p10_abs,
        condition_number=max_abs / p10_abs if p10_abs > zero else np.inf,
        index=float(np.where(nodes < -zero, quadrature.weights, 0).sum(1).mean()),
        p10_range=(float(p10_low), float(p10_high)),
        index_range=(max(lowest - sampling(lowest), 0.0), min(highest + sampling(highest), 1.0)),
    )


def _percentile_10(sizes: np.ndarray, weights: np.ndarray) -> float:
    """Where a tenth of the weight is passed, half of each node's weight lying on either side of it."""
    order = np.argsort(sizes)
    return float(np.interp(0.1, np.cumsum(weights[order]) - weights[order] / 2, sizes[order]))


def _shares(quadrature: Quadrature, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
    """The least and the most of the measure that can lie in [low, high], mean over vectors."""
    bounds = []
    for nodes, weights in zip(quadrature.nodes, quadrature.weights):
        cumulative = np.concatenate([[0, 0], np.cumsum(weights), [1]])  # up to node −2, −1, 0, …, k
        below, up_to = np.searchsorted(nodes, low, "left"), np.searchsorted(nodes, high, "right")
        least = cumulative[up_to] - np.where(np.isneginf(low), 0, cumulative[below + 2])
        bounds.append((np.maximum(least, 0), cumulative[up_to + 2] - cumulative[below]))
    return np.mean(bounds, axis=0)


def standard_error(samples: ArrayLike) -> np.ndarray:
    """Returns the standard error of the mean over axis 0; NaN for one row."""
    samples = np.asarray(samples)
    if len(samples) == 1:
        return np.full(samples.shape[1:], np.nan)
    return samples.std(0, ddof=1) / np.sqrt(len(samples))


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
      mvp_fn: callable. mvp_fn(v [dim]) -> Hv [dim], as from `products.model_mvp`.
      num_vectors: int. Products with H, at most.
      tolerance: float. Stop earlier, from 5 vectors on, once the standard error of the trace is at most that share
        of it. 0 takes all vectors, as a few may agree by chance.
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
        if tolerance and count >= FEWEST and standard_error(traces) <= tolerance * abs(np.mean(traces)):
            break
    diagonal_error = np.sqrt(squares / (count - 1) / count) if count > 1 else np.full(dim, np.nan)
    return Hutchinson(float(np.mean(traces)), float(standard_error(traces)), mean, diagonal_error, count)
