"""The loss of an n-shortcut network near zero: saddles and orders (Li et al., Theorem 1, Definition 4).

    paper                                code
    k-th order stationary point          order_of_stationarity(…).order
    strict saddle point, n = 2           escape_from_saddle(…): the steepest direction down
    L(tW) − L(0) = C tⁿ + o(tⁿ)          leading_term(weights, …) = C

Notation and arguments are those of shortcut_hessians.py.
"""

import math
from typing import NamedTuple

import numpy as np

from theory.shortcut.activations import ActivationLike, Activations, derivatives_at_zero
from theory.shortcut.networks import checked_counts, checked_data, checked_weights
from theory.shortcut_hessians import moment_gap


class Escape(NamedTuple):
    """A unit vector of weights, direction [num_units, shortcut_depth, d, d], and its curvature wᵀHw = λ_min < 0."""

    direction: np.ndarray
    curvature: float


def escape_from_saddle(
    x: np.ndarray,
    y: np.ndarray,
    num_units: int,
    pre: ActivationLike = "linear",
    mid: ActivationLike = "linear",
    post: ActivationLike = "linear",
) -> Escape:
    """Returns a certificate that zero is a strict saddle for n = 2: λ_min = −|c| σ_max(M) (Li et al., Theorem 1.2).

    The direction moves one unit: W^{1,1} = e vᵀ/√2, W^{1,2} = ∓u eᵀ/√2, u, v M's first singular pair, e = (1, 0, …).

    Args and errors as `hessian_at_zero`.
    ValueError: c M = 0, so that zero is not a strict saddle (for a linear network it is a global minimum).
    """
    x, y = checked_data(x, y)
    checked_counts(num_units, 2)
    slope = Activations(pre, mid, post).slope_at_zero(2)
    u, sigma, vt = np.linalg.svd(moment_gap(x, y, pre))
    if slope * sigma[0] == 0:
        raise ValueError("zero is not a strict saddle: σ′_mid(0) σ′_post(0) M is 0")
    d = len(sigma)
    direction = np.zeros((num_units, 2, d, d))
    direction[0, 0, 0] = vt[0] / math.sqrt(2)
    direction[0, 1, :, 0] = -math.copysign(1, slope) * u[:, 0] / math.sqrt(2)
    return Escape(direction, -abs(slope) * float(sigma[0]))


class Stationarity(NamedTuple):
    """Order k of a stationary point (Li et al., Definition 4), and whether this order is exact, i.e. not higher."""

    order: int
    exact: bool


def order_of_stationarity(
    x: np.ndarray,
    y: np.ndarray,
    shortcut_depth: int,
    pre: ActivationLike = "linear",
    mid: ActivationLike = "linear",
    post: ActivationLike = "linear",
) -> Stationarity:
    """Returns n − 1, and exactly that unless c M = 0 (Li et al., Theorem 1.1): L − L(0) = `leading_term`·tⁿ + o(tⁿ).

    Holds also for ReLU at mid or post, but exact is False: its leading term is different.
    For n = 1 the order is 0: zero is not a stationary point, the gradient in each W_r is σ′_post(0) M.
    ValueError: |σ(z)| ≤ C|z| near 0 does not hold at mid or post; data as in `moment_gap`.
    """
    x, y = checked_data(x, y)
    checked_counts(1, shortcut_depth)
    Activations(pre, mid, post).check(1)
    Activations(pre, mid if shortcut_depth > 1 else "linear", post).check_slopes_bounded()
    slope = derivatives_at_zero("post", post)[1]
    if shortcut_depth > 1:
        slope *= derivatives_at_zero("mid", mid)[1] ** (shortcut_depth - 1)
    exact = bool(np.isfinite(slope) and slope != 0 and moment_gap(x, y, pre).any())
    return Stationarity(shortcut_depth - 1, exact)


def leading_term(
    weights: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    pre: ActivationLike = "linear",
    mid: ActivationLike = "linear",
    post: ActivationLike = "linear",
) -> float:
    """Returns c Σ_r tr(W^{r,n}···W^{r,1} Mᵀ), c = σ′_post(0) σ′_mid(0)^{n−1}: L(tW) − L(0) is that times tⁿ + o(tⁿ).

    Not in the paper. For n = 1 it is the directional derivative.

    Args:
      weights: [num_units, shortcut_depth, d, d]. Others and errors as `hessian_at_zero`.
    """
    x, y = checked_data(x, y)
    weights = checked_weights(weights)
    activations = Activations(pre, mid, post)
    activations.check(1)
    M = moment_gap(x, y, pre)
    traces = [np.trace(np.linalg.multi_dot([*unit[::-1], M.T])) for unit in weights]
    return float(activations.slope_at_zero(weights.shape[1]) * sum(traces))
