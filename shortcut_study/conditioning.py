"""Condition number and index of a Hessian (Li et al., footnote 1 and §5.2), of all eigenvalues or estimated.

    paper                                   code
    |λ|_max, |λ|_(0.1)                      Spectrum.max_abs, p10_abs
    index                                   Spectrum.index, the share of negative eigenvalues; index_range

`summarize` takes all eigenvalues; `summary` takes what a few random vectors tell of them.
"""

from typing import NamedTuple

import numpy as np

from shortcut_study.curvature.quadrature import Quadrature

STANDARD_ERRORS = 2  # of the sampling, by which ranges are widened


class Spectrum(NamedTuple):
    """The summary of a Hessian's eigenvalues that the figures show, or its estimate by `summary`."""

    max_abs: float  # largest |λ|, or |θ|, which is never above it, except by rounding
    p10_abs: float  # 10th percentile of |λ|, which the paper takes in place of the least, as more stable
    condition_number: float  # max_abs / p10_abs; inf if p10_abs is 0 within rounding
    index: float  # share of negative eigenvalues; one that is 0 within rounding is not negative
    index_range: tuple[float, float]  # the share without and with zeros within rounding; of an estimate, its range
    p10_range: tuple[float, float] | None = None  # of an estimate

    def columns(self) -> dict[str, float]:
        """Returns the four numbers by name, as results.csv has them."""
        return dict(zip(self._fields, self[:4]))


def summarize(eigenvalues: np.ndarray, rounding: float) -> Spectrum:
    """Returns the summary of all eigenvalues [P] of a Hessian, of which sizes up to `rounding` count as 0."""
    sizes = np.abs(eigenvalues)
    max_abs = float(sizes.max())
    p10_abs = float(np.percentile(sizes, 10))
    condition_number = max_abs / p10_abs if p10_abs > rounding else np.inf
    low, high = float((eigenvalues < -rounding).mean()), float((eigenvalues <= rounding).mean())
    return Spectrum(max_abs, p10_abs, condition_number, low, (low, high))


def summary(quadrature: Quadrature, dim: int | None = None) -> Spectrum:
    """Returns condition number and index (Li et al., footnote 1 and §5.2), estimated, with their possible range.

    A quadrature gives the share of a measure in an interval up to the weights of the nodes at its ends (inequalities of
    Chebyshev, Markov and Stieltjes). A wide range means that the order does not resolve the question: Lanczos finds the
    ends of a spectrum first, and the eigenvalues crowded around 0 last. Besides, a share p of the n eigenvalues has a
    share p ± √(2p(1 − p)/((n + 2) num_vectors)) of the measure, as the (uᵢᵀv)² of a random v are distributed after
    Dirichlet. With n = dim the ranges are widened by two such errors, and fail to hold the share of the eigenvalues in
    1 of 20 cases.
    """
    whole = quadrature.whole()
    nodes, weights, bounds, zero, *_ = whole
    max_abs = float(np.abs(nodes).max())
    sizes = np.unique(np.abs(nodes))
    tenth = _sampling(0.1, dim, quadrature)
    least, most = _shares(quadrature, -sizes, sizes)
    low, high = 0.1 - tenth, 0.1 + tenth
    p10_low = sizes[np.argmax(most >= low)] if _shares(quadrature, 0, 0)[1] < low else 0.0
    is_exact = bounds.max() <= 2 * zero  # no eigenvalue is beyond
    if least[-1] >= high:
        p10_high = sizes[np.argmax(least >= high)]
    else:
        p10_high = max_abs if is_exact else np.inf
    order = np.argsort(np.abs(nodes), None)
    flat_weights = weights.ravel() / len(nodes)
    # Where a tenth of the weight is passed, half of each node's weight on either side of it.
    passed = np.cumsum(flat_weights[order]) - flat_weights[order] / 2
    p10_abs = float(np.interp(0.1, passed, np.abs(nodes).ravel()[order]))
    below_zero = np.nextafter(-zero, -np.inf)  # as H = 0 has nodes at 0, and a rounding of 0
    lowest, highest = _widened(quadrature, dim, *(_shares(quadrature, -np.inf, end) for end in (below_zero, zero)))
    return Spectrum(
        max_abs,
        p10_abs,
        condition_number=max_abs / p10_abs if p10_abs > zero else np.inf,
        index=float(np.where(nodes < -zero, weights, 0).sum(1).mean()),
        index_range=(lowest, highest),
        p10_range=(float(p10_low), float(p10_high)),
    )


def share_within(quadrature: Quadrature, size: float, dim: int) -> tuple[float, float]:
    """Returns between what bounds the share of the eigenvalues with |λ| ≤ size lies, two standard errors included."""
    shares = _shares(quadrature, -size, size)
    return _widened(quadrature, dim, shares, shares)


def _widened(quadrature: Quadrature, dim: int | None, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """Returns the least of one share and the most of another, with two standard errors of each."""
    least, most = float(low[0]), float(high[1])
    return max(least - _sampling(least, dim, quadrature), 0.0), min(most + _sampling(most, dim, quadrature), 1.0)


def _sampling(share: float, dim: int | None, quadrature: Quadrature) -> float:
    """Two standard errors of a share of the measure; 0 without a dimension, or if all eigenvalues are known."""
    if not dim or not quadrature.nodes.size:
        return 0.0
    return STANDARD_ERRORS * (2 * max(share * (1 - share), 0) / ((dim + 2) * len(quadrature.nodes))) ** 0.5


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
