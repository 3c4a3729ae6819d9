"""How long a linear n-shortcut network stays at zero: descent, momentum and orthogonalised updates (not in the papers).

paper                                    code
R, n                                     num_units, shortcut_depth
W^{r,l}                                  weights [num_units, shortcut_depth, d, d]
the best map, I − M in Li et al.         I + gap; gap [d, d], Σ_XX = I, so that L = ½‖W − I − gap‖²_F
stationary of order n − 1 (Theorem 1)    ‖∂L/∂W^{r,l}‖ ≤ g Nⁿ⁻¹, N the largest norm of a weight matrix

Leaving zero means L ≤ ½ L(0). By Theorem 1's order of stationarity, N grows by at most η g Nⁿ⁻¹ per step of descent:
constant speed for n = 1, exponential growth for n = 2, and 1/N falls by at most ηg for n = 3. So the time is at least
of order 1, log(1/N₀) and 1/N₀^{n−2}. Momentum shortens it by at most the factor 1 − μ. An orthogonalised update ignores
the size of the gradient: for every n, N grows by η per step, and the time is (N₁ − N₀)/η. At exactly zero, n ≥ 2,
nothing moves.
"""

import math

import numpy as np
from scipy import integrate

from theory.arrays import real
from theory.descent import update_rules
from theory.shortcut import networks

HALVING_SHARE = 1 - math.sqrt(0.5)  # of gap: L halves when ‖W − I − gap‖ is √½ ‖gap‖


def risk_and_gradient(weights: np.ndarray, gap: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns L = ½‖W − I − gap‖²_F and ∂L/∂W^{r,l}, W = Π (I + W^{r,n}···W^{r,1}) (Li et al., (5), (7) for Σ_XX = I).

    Weights and gradient are [num_units, shortcut_depth, d, d]; gap is [d, d].
    """
    weights, gap = real("weights", weights), real("gap", gap)
    best = np.eye(len(gap)) + gap
    W, gradient = networks.map_and_gradient(weights, np.eye(len(gap)), best)
    return float(np.square(W - best).sum() / 2), gradient


def steps_to_leave(
    method: update_rules.Method,
    weights: np.ndarray,
    gap: np.ndarray,
    learning_rate: float,
    max_steps: int,
    share: float = 0.5,
) -> float:
    """Returns the measured steps after which L ≤ share·L(0), L(0) = ½‖gap‖²_F; infinite if max_steps do not suffice.

    Args:
      weights: The start, [num_units, shortcut_depth, d, d]. gap: [d, d]. learning_rate: η.
    """
    weights = real("weights", weights).copy()
    buffer = np.zeros(weights.shape)
    end = share * np.square(gap).sum() / 2
    for step in range(max_steps + 1):
        risk, gradient = risk_and_gradient(weights, gap)
        if risk <= end:
            return step
        move, buffer = update_rules.direction(method, gradient, buffer)
        weights -= learning_rate * move
    return math.inf


def aligned_start(size: float, shortcut_depth: int, gap: np.ndarray) -> np.ndarray:
    """Returns weights [1, n, d, d] of singular values `size` whose product is sizeⁿ·U Vᵀ, gap = U diag(s) Vᵀ.

    W¹ = size·Vᵀ, W² … Wⁿ⁻¹ = size·I, Wⁿ = size·U: then each singular value w evolves independently.
    """
    u, _, vt = np.linalg.svd(gap)
    between = [np.eye(len(gap))] * (shortcut_depth - 2)
    return size * np.stack([u @ vt] if shortcut_depth == 1 else [vt, *between, u])[None]


def predicted_steps(
    method: update_rules.Method, shortcut_depth: int, gap: float, start: float, learning_rate: float
) -> float:
    """Returns the steps from an aligned start w₀, gap = σ·(orthogonal), one unit, by ẇ = wⁿ⁻¹(σ − wⁿ) or speed η.

    Descent: T/η, T = ∫ dw / (wⁿ⁻¹(σ − wⁿ)) from w₀ to w₁ = (0.293σ)^{1/n}: −log(1 − 0.293) for n = 1 and w₀ = 0, near
    log(w₁/w₀)/σ for n = 2, near 1/(σw₀) for n = 3. Momentum: T(1 − μ)/η. Orthogonalised: (w₁ − w₀)/η. These are
    limits for small steps; inf for w₀ = 0 and n ≥ 2, since nothing moves.

    Args:
      shortcut_depth: n. gap: σ > 0. start: w₀. learning_rate: η.

    Raises:
      ValueError: no such method.
    """
    update_rules.check_method(method)
    end = (HALVING_SHARE * gap) ** (1 / shortcut_depth)
    if start >= end:
        return 0.0
    if start == 0 and shortcut_depth > 1:
        return math.inf  # the gradient is 0
    if method == "orthogonalised":
        return (end - start) / learning_rate
    n = shortcut_depth
    ends = math.log(start) if start else -math.inf, math.log(end)
    time = integrate.quad(lambda log_w: math.exp((2 - n) * log_w) / (gap - math.exp(n * log_w)), *ends)
    return time[0] / learning_rate * (1 - update_rules.MOMENTUM if method == "momentum" else 1)


def reach(num_units: int, shortcut_depth: int, gap: np.ndarray) -> tuple[float, float]:
    """Returns the least N₁ at which L can be half, and g such that ‖∂L/∂W^{r,l}‖ ≤ g Nⁿ⁻¹ for N ≤ N₁.

    (1 + N₁ⁿ)^R − 1 = 0.293‖gap‖_F/√d, and g = ((1 + N₁ⁿ)^R − 1 + ‖gap‖)(1 + N₁ⁿ)^{R−1}.

    L ≤ ½ L(0) needs ‖W − I‖_F ≥ (1 − √½)‖gap‖_F; and ‖W − I‖ ≤ (1 + Nⁿ)^R − 1.
    """
    target = HALVING_SHARE * np.linalg.norm(gap) / math.sqrt(len(gap))
    unit = (1 + target) ** (1 / num_units)
    slope = (target + np.linalg.norm(gap, 2)) * unit ** (num_units - 1)
    return float((unit - 1) ** (1 / shortcut_depth)), float(slope)


def least_steps(method: update_rules.Method, weights: np.ndarray, gap: np.ndarray, learning_rate: float) -> float:
    """Returns a lower bound on the steps from every start with the same N₀, from the order of stationarity.

    Descent: ∫_{N₀}^{N₁} dN/Nⁿ⁻¹ / (ηg): (N₁ − N₀)/(ηg), log(N₁/N₀)/(ηg), (1/N₀ − 1/N₁)/(ηg) for n = 1, 2, 3; momentum
    (1 − μ) times that; orthogonalised (N₁ − N₀)/η. N₁, g of `reach`, N₀ the largest norm at the start.

    Args and units as `steps_to_leave`; infinite for a start at zero, n ≥ 2; ValueError if there is no such method.
    """
    update_rules.check_method(method)
    num_units, n = weights.shape[:2]
    start = float(np.linalg.norm(weights, 2, axis=(2, 3)).max())
    end, slope = reach(num_units, n, gap)
    if start >= end:
        return 0.0
    if start == 0 and n > 1:
        return math.inf
    if method == "orthogonalised":
        return (end - start) / learning_rate
    time = math.log(end / start) if n == 2 else (end ** (2 - n) - start ** (2 - n)) / (2 - n)
    return time / (learning_rate * slope) * (1 - update_rules.MOMENTUM if method == "momentum" else 1)
