"""Density, trace and outer eigenvalues of a spectrum, estimated from a few random vectors.

    equations                                     code
    tr f(H)/n ≈ mean over v of Σ s_1² f(θ)        Quadrature: nodes θ, weights s_1², a row per starting vector v
    tr f(H) = Σ_known f(λ) + tr f((I − P)H(I − P))  known, known_weight 1/n; P their projection
    tr H = tr T + tr (I − QQᵀ)H(I − QQᵀ)            deflated_quadrature: Q the basis that found them, T = QᵀHQ

For v uniform on the sphere E[vᵀ f(H) v] = tr f(H)/n, the integral of f over masses (uᵢᵀv)² at the eigenvalues λᵢ of uᵢ.
Ritz values and weights are its Gauss quadrature: exact for polynomials of degree < 2 · order. Sources: Golub & Meurant
(2010); Ubaru, Chen & Saad (2017); Ghorbani, Krishnan & Xiao (2019) for the density of a network.

In a trained network a few eigenvalues hold nearly all of the range and of Σλ², half the variance of vᵀHv. Once these
are known, few steps resolve the density of the rest, and few vectors the trace. The second equation holds up to the
square of the eigenvectors' errors, the last for any Q. Source: Chen & Hallman, Krylov-aware trace estimation (2023).
"""

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from identity_matters.errors import UserError
from identity_matters.fields import require_counts
from shortcut_study.curvature.estimators import confidence, standard_error
from shortcut_study.curvature.lanczos import STEPS_BETWEEN_CHECKS, Ritz, converged, lanczos, ritz
from shortcut_study.curvature.memory import basis

DENSITY_WIDTH = 0.01  # σ of the Gaussians, of the distance between the extreme nodes
DENSITY_POINTS = 1024  # of its grid, at least
DENSITY_MARGIN = 6  # σ that the grid reaches beyond the extreme nodes, so that its integral is 1 to 1e-8
ONE_POINT = 1e-9  # of the largest |node|: nodes that lie no further apart are one point
DENSITY_VECTORS = 4  # of the random ones: those of a large matrix agree, and Student's t needs some
ORDER = 60
NUM_VECTORS = 24
TOLERANCE = 1e-3
NUM_SPARE_VECTORS = 12  # beside the basis: eigenvectors, products
NONE = np.zeros(0)


class Quadrature(NamedTuple):
    """Known eigenvalues, and Ritz values and weights of several random starting vectors for the others, a row each."""

    nodes: np.ndarray  # [num_vectors, order]
    weights: np.ndarray  # of each node; a row sums to the share of the eigenvalues that are not known
    error_bounds: np.ndarray  # of each node
    rounding: float  # the largest of the decompositions': a node no larger counts as 0
    known: np.ndarray = NONE  # [k], eigenvalues that the starting vectors were made orthogonal to, ascending
    known_bounds: np.ndarray = NONE  # [k], their error bounds
    probes: np.ndarray = NONE  # [p], estimates of the mean eigenvalue by further vectors, of which no more is known

    @property
    def known_weight(self) -> float:
        """The share of a single eigenvalue, 1/n; 0 if none is known."""
        return float(1 - self.weights.sum(1).mean()) / len(self.known) if len(self.known) else 0.0

    def whole(self) -> "Quadrature":
        """Returns it with the known eigenvalues among the nodes of each vector, ascending; each row sums to 1."""
        size = (len(self.nodes), len(self.known))
        of_known = (self.known, np.full(size, self.known_weight), self.known_bounds)
        columns = [np.concatenate([a, np.broadcast_to(b, size)], 1) for a, b in zip(self[:3], of_known)]
        order = np.argsort(columns[0], axis=1)
        return Quadrature(*(np.take_along_axis(column, order, 1) for column in columns), self.rounding)


class Density(NamedTuple):
    """The density of eigenvalues [g] on a grid [g]; its integral is 1. Its standard errors are NaN for one vector."""

    grid: np.ndarray
    values: np.ndarray
    standard_errors: np.ndarray


def lanczos_quadrature(
    mvp_fn: Callable, dim: int, order: int, num_vectors: int, seed: int = 0, dtype: type = np.float64
) -> Quadrature:
    """Returns Ritz values and weights of `num_vectors` random starting vectors; the other arguments are those of
    `lanczos`.

    The variance of a mean over vectors is at most 2 ‖f(H)‖²_F / (n² · num_vectors), so large matrices need few.
    """
    require_counts(1, num_vectors=num_vectors)
    memory = None  # the memory of one basis serves all iterations
    rows = []
    for vector in range(num_vectors):
        decomposition = lanczos(mvp_fn, dim, order, [seed, vector], dtype, memory)
        memory = decomposition.basis
        rows.append(ritz(decomposition))
    nodes, weights, bounds = (np.stack([row[column] for row in rows]) for column in range(3))
    return Quadrature(nodes, weights, bounds, max(row.rounding for row in rows))


def deflated_quadrature(
    mvp_fn: Callable,
    dim: int,
    order: int = ORDER,
    num_vectors: int = NUM_VECTORS,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    dtype: type = np.float64,
    on_plan: Callable = lambda total, is_final: None,
    folder: str | os.PathLike | None = None,
) -> tuple[Quadrature, np.ndarray]:
    """Returns a quadrature with the outer eigenvalues resolved individually, and their eigenvectors [k, dim].

    >>> values = np.append(np.linspace(-1, 1, 998), [50.0, 100.0])
    >>> outer, vectors = deflated_quadrature(lambda v: values * v, 1000)
    >>> [round(float(value), 2) for value in outer.known[-2:]], vectors.shape[1]
    ([50.0, 100.0], 1000)

    Args:
      mvp_fn, dim, dtype, seed: As for `lanczos`.
      order: int. Most steps of an iteration. If that many products suffice for all eigenvalues, all are found.
      num_vectors: int. Random vectors for the rest. Four of them, or all if there are fewer than six, take as many
        steps as Gauss quadrature needs to integrate a Gaussian of `density`'s width over the rest's range; others one.
      tolerance: float. Largest error bound of the two extreme eigenvalues, if order allows it, and of every known one,
        as a share of the largest |eigenvalue|.
      on_plan: callable. Given the number of products in all, at first the most that it can be, and whether it is final.
      folder: The folder for a basis that does not fit in memory, as in `memory.basis`.
    """
    require_counts(1, order=order, num_vectors=num_vectors)
    if not tolerance >= 0:
        raise UserError(f"tolerance must be at least 0, got {tolerance}")
    is_whole = dim <= order
    long = num_vectors if num_vectors < DENSITY_VECTORS + 2 else DENSITY_VECTORS
    short = num_vectors - long
    on_plan(dim if is_whole else order * (1 + max(long, 2)) + short, is_whole)
    memory = basis(min(order, dim), dim, np.dtype(dtype), NUM_SPARE_VECTORS, folder)  # one serves all vectors
    first = lanczos(mvp_fn, dim, len(memory), [seed, 0], dtype, memory, None if is_whole else converged(1, tolerance))
    outer = ritz(first)
    taken = len(first.diagonal)
    largest = np.abs(outer.values).max()
    vectors = outer.coefficients.T.astype(dtype)
    if taken == dim:
        return Quadrature(*np.zeros((3, 1, 0)), outer.rounding, outer.values, outer.error_bounds), vectors @ first.basis
    is_outer = outer.error_bounds <= tolerance * largest
    num_for_rest = _expected_steps(outer, is_outer, order) * long + short
    if dim <= max(order + is_outer.sum(), num_for_rest):  # as many products find all eigenvalues
        planned = lambda total, final: on_plan(taken + total, final)  # noqa: E731
        return deflated_quadrature(mvp_fn, dim, dim, num_vectors, tolerance, seed, dtype, planned, folder)
    found = basis(int(is_outer.sum()), dim, np.dtype(dtype), 0, folder)  # in a file if they are many
    vectors = np.matmul(vectors[is_outer], first.basis, out=found)
    on_plan(taken + num_for_rest, False)
    # One step from a random vector v orthogonal to the basis: its diagonal is vᵀHv.
    seeds = ([seed, vector] for vector in range(long + 1, num_vectors + 1))
    rest = [lanczos(mvp_fn, dim, 1, starts, dtype, orthogonal_to=first.basis).diagonal[0] for starts in seeds]
    probes = (first.diagonal.sum() + (dim - taken) * np.array(rest)) / dim
    # Gauss quadrature then integrates Gaussians of that σ to some 0.1 % of their height: the Chebyshev coefficients of
    # exp(−x²/2σ²) on an interval of length L fall below 0.1 % at degree 1.9 L/σ, and k nodes are exact up to 2k − 1.
    width = DENSITY_WIDTH * float(np.ptp(outer.values))
    steps = order
    rows = []
    stop: Callable | None = lambda pairs: len(pairs.values) * width >= np.ptp(pairs.values)
    for vector in range(1, long + 1):
        # Products round by a share of H, not of the rest.
        done = lanczos(mvp_fn, dim, steps, [seed, vector], dtype, memory, stop, vectors, largest)
        stop = None
        steps = len(done.diagonal)
        on_plan(taken + steps * long + short, True)
        rows.append(ritz(done))
    nodes, weights, bounds = (np.stack([row[column] for row in rows]) for column in range(3))
    # What H has between a known Ritz vector and the rest, which the residuals of the rest's own iteration lack.
    bounds += first.residual * float(np.linalg.norm(outer.coefficients[-1, is_outer]))
    weights *= 1 - is_outer.sum() / dim
    rounding = max(row.rounding for row in (outer, *rows))
    return Quadrature(
        nodes, weights, bounds, rounding, outer.values[is_outer], outer.error_bounds[is_outer], probes
    ), vectors


def _expected_steps(outer: Ritz, is_outer: np.ndarray, order: int) -> int:
    """Returns how many steps the rest takes at most, by the range of the Ritz values that are not known."""
    if is_outer.all():
        return 0
    values = outer.values[~is_outer]
    bounds = outer.error_bounds[~is_outer]
    width = DENSITY_WIDTH * np.ptp(outer.values)
    span = (values + bounds).max() - (values - bounds).min()
    steps = int(np.ceil(min(span / width, order))) if width else order
    return min(order, steps + -steps % STEPS_BETWEEN_CHECKS)


def mean_eigenvalue(quadrature: Quadrature, dim: int | None = None) -> tuple[float, float]:
    """Returns tr H/n, estimated, and its 95 % error: NaN for one vector, 0 if all are known.

    n = dim may be omitted if known eigenvalues determine it; without either, the samples are treated as maximally
    skewed.
    """
    if not quadrature.nodes.size:
        return float(quadrature.known.mean()), 0.0
    whole = quadrature.whole()
    samples = (whole.weights * whole.nodes).sum(1)
    samples = quadrature.probes if len(quadrature.probes) else samples  # then only these count
    dim = dim or round(1 / (quadrature.known_weight or np.inf))
    return float(samples.mean()), confidence(len(samples), _rank(quadrature, samples, dim)) * float(
        standard_error(samples)
    )


def _rank(quadrature: Quadrature, samples: np.ndarray, dim: int) -> float:
    """Returns how many eigenvalues hold the spread of the samples, at least, and at least 1, for `confidence`.

    For eigenvalues no further than μ from their mean, with Σλ² = n² Var/2, (Σλ²)³/(Σλ³)² is no less than Σλ²/μ².
    """
    if len(samples) < 2:
        return 1.0
    nodes, weights, bounds = quadrature[:3]
    reach = float((np.abs(nodes - np.average(nodes, weights=weights)) + bounds).max())
    return max((dim / (reach or 1.0)) ** 2 * float(np.var(samples, ddof=1)) / 2, 1.0)


def density(quadrature: Quadrature, width: float | None = None) -> Density:
    """Returns the density of the eigenvalues: mean over vectors of Σ weights · Gaussian(λ; node, width).

    Estimates the spectrum convolved with that Gaussian of σ = width, each eigenvalue counted 1/n. None: 1 % of the
    distance between the extreme nodes, or the largest |node| if they are one point.
    """
    if width is not None and not width > 0:
        raise UserError(f"width must be positive, got {width}")
    quadrature = quadrature.whole()
    low, high = quadrature.nodes.min(), quadrature.nodes.max()
    if width is None:
        largest = max(-low, high)
        is_point = high - low <= ONE_POINT * largest  # of which 1 % is what float64 does not resolve
        width = (largest or 1.0) if is_point else DENSITY_WIDTH * (high - low)
    low, high = low - DENSITY_MARGIN * width, high + DENSITY_MARGIN * width
    grid = np.linspace(low, high, max(DENSITY_POINTS, int(np.ceil(4 * (high - low) / width))))
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
    quadrature = quadrature.whole()
    nodes, bounds = quadrature.nodes[chosen], quadrature.error_bounds[chosen]
    outermost = nodes.argmax(0) if largest else nodes.argmin(0), np.arange(nodes.shape[1])
    return nodes[outermost], bounds[outermost]
