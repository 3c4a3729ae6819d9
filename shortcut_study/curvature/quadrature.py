"""Density, trace, condition number and index of a spectrum, estimated from a few random vectors.

    equations                                     code
    tr f(H)/n ≈ mean over v of Σ s_1² f(θ)        Quadrature: nodes θ, weights s_1², a row per starting vector v
    tr f(H) = Σ_known f(λ) + tr f((I − P)H(I − P))  known, known_weight 1/n; deflation.py finds them
    |λ|_max, |λ|_(0.1), index (Li et al. §5)      Summary.max_abs, p10_abs, index

For v uniform on the sphere E[vᵀ f(H) v] = tr f(H)/n, and vᵀ f(H) v is the integral of f over a
measure with mass (uᵢᵀv)² at the eigenvalue λᵢ of the eigenvector uᵢ. Ritz values and weights are that
measure's Gauss quadrature: exact for polynomials of degree < 2 · order. Sources: Golub & Meurant,
Matrices, Moments and Quadrature (2010); Ubaru, Chen & Saad (2017); Ghorbani, Krishnan & Xiao (2019)
for the density of a network.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shortcut_study.curvature.hutchinson import confidence, standard_error
from shortcut_study.curvature.lanczos import lanczos, ritz

STANDARD_ERRORS = 2  # of the sampling, by which ranges are widened
DENSITY_WIDTH = 0.01  # σ of the Gaussians, of the distance between the extreme nodes
ONE_POINT = 1e-9  # of the largest |node|: nodes that lie no further apart are one point
DENSITY_MARGIN = 6  # σ that the grid of a density reaches beyond the extreme nodes


NONE = np.zeros(0)


class Quadrature(NamedTuple):
    """Known eigenvalues, and Ritz values and weights of several random starting vectors for the others, a row each.

    Attributes:
      nodes, weights, error_bounds: [num_vectors, order]; each row of weights sums to the share of the eigenvalues that
        are not known, 1 where none is.
      rounding: Largest of the decompositions': a node no larger counts as 0.
      known, known_bounds: [k], eigenvalues that the starting vectors were made orthogonal to, ascending, and their
        error bounds.
      probes: [p], estimates of the mean eigenvalue by further vectors, of which no more is known.
    """

    nodes: np.ndarray
    weights: np.ndarray
    error_bounds: np.ndarray
    rounding: float
    known: np.ndarray = NONE
    known_bounds: np.ndarray = NONE
    probes: np.ndarray = NONE

    @property
    def known_weight(self) -> float:
        """The share of a single eigenvalue, 1/n; 0 where none is known."""
        return float(1 - self.weights.sum(1).mean()) / len(self.known) if len(self.known) else 0.0

    def whole(self) -> "Quadrature":
        """Returns it with the known eigenvalues among the nodes of each vector, ascending; each row sums to 1."""
        size = (len(self.nodes), len(self.known))
        known = self.known, np.full(size, self.known_weight), self.known_bounds
        columns = [np.concatenate([a, np.broadcast_to(b, size)], 1) for a, b in zip(self[:3], known)]
        order = np.argsort(columns[0], axis=1)
        return Quadrature(*(np.take_along_axis(column, order, 1) for column in columns), self.rounding)


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
    quadrature = quadrature.whole()
    by_vector = (quadrature.weights * function(quadrature.nodes)).sum(1)
    return float(by_vector.mean()), float(standard_error(by_vector))


def mean_eigenvalue(quadrature: Quadrature) -> tuple[float, float]:
    """Returns tr H/n, estimated, and the error that it is within 95 times in 100 by Student's t; NaN for one vector.

    Where there are probes, they alone count. The error is 0 where all eigenvalues are known.
    """
    probes = quadrature.probes
    if len(probes):
        mean, error = float(probes.mean()), float(standard_error(probes))
    else:
        mean, error = trace_mean(quadrature, lambda values: values)
    num_samples = len(probes) or len(quadrature.nodes)
    return mean, confidence(num_samples) * error if quadrature.nodes.size else 0.0


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
    quadrature = quadrature.whole()
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
    chosen, quadrature = np.s_[:, : -count - 1 : -1] if largest else np.s_[:, :count], quadrature.whole()
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
    (nodes, weights, bounds, zero, *_), max_abs = (whole := quadrature.whole()), float(np.abs(whole.nodes).max())

    def sampling(share: float) -> float:
        return _sampling(share, dim, quadrature)

    sizes = np.unique(np.abs(nodes))
    least, most = _shares(quadrature, -sizes, sizes)
    low, high = 0.1 - sampling(0.1), 0.1 + sampling(0.1)
    p10_low = sizes[np.argmax(most >= low)] if _shares(quadrature, 0, 0)[1] < low else 0.0
    is_exact = bounds.max() <= 2 * zero  # no eigenvalue is beyond
    p10_high = sizes[np.argmax(least >= high)] if least[-1] >= high else max_abs if is_exact else np.inf
    p10_abs = _percentile_10(np.abs(nodes).ravel(), weights.ravel() / len(nodes))
    below_zero = np.nextafter(-zero, -np.inf)  # as H = 0 has nodes at 0, and a rounding of 0
    lowest, highest = (float(_shares(quadrature, -np.inf, end)[i]) for i, end in enumerate((below_zero, zero)))
    return Summary(
        max_abs,
        p10_abs,
        condition_number=max_abs / p10_abs if p10_abs > zero else np.inf,
        index=float(np.where(nodes < -zero, weights, 0).sum(1).mean()),
        p10_range=(float(p10_low), float(p10_high)),
        index_range=(max(lowest - sampling(lowest), 0.0), min(highest + sampling(highest), 1.0)),
    )


def share_within(quadrature: Quadrature, size: float, dim: int) -> tuple[float, float]:
    """Returns between what bounds the share of the eigenvalues with |λ| ≤ size lies, two standard errors included."""
    low, high = (float(share) for share in _shares(quadrature, -size, size))
    return max(low - _sampling(low, dim, quadrature), 0.0), min(high + _sampling(high, dim, quadrature), 1.0)


def _sampling(share: float, dim: int | None, quadrature: Quadrature) -> float:
    """Two standard errors of a share of the measure; 0 without a dimension, or where all eigenvalues are known."""
    if not dim or not quadrature.nodes.size:
        return 0.0
    return STANDARD_ERRORS * (2 * max(share * (1 - share), 0) / ((dim + 2) * len(quadrature.nodes))) ** 0.5


def _percentile_10(sizes: np.ndarray, weights: np.ndarray) -> float:
    """Returns the place where a tenth of the weight is passed, half of each node's weight on either side of it."""
    order = np.argsort(sizes)
    return float(np.interp(0.1, np.cumsum(weights[order]) - weights[order] / 2, sizes[order]))


def _shares(quadrature: Quadrature, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
    """The least and the most of the measure that can lie in [low, high], mean over vectors."""
    bounds = []
    for nodes, weights in zip(quadrature.nodes, quadrature.weights):
        # Up to node −2, −1, 0, …, k.
        cumulative = np.concatenate([[0, 0], np.cumsum(weights), [weights.sum()]])
        below, up_to = np.searchsorted(nodes, low, "left"), np.searchsorted(nodes, high, "right")
        least = cumulative[up_to] - np.where(np.isneginf(low), 0, cumulative[below + 2])
        bounds.append((np.maximum(least, 0), cumulative[up_to + 2] - cumulative[below]))
    lowest, highest = (quadrature.known + side * quadrature.known_bounds for side in (-1, 1))
    low, high = np.asarray(low)[..., None], np.asarray(high)[..., None]
    counts = (lowest >= low) & (highest <= high), (highest >= low) & (lowest <= high)
    return np.mean(bounds, axis=0) + quadrature.known_weight * np.array([count.sum(-1) for count in counts])
