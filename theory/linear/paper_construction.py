"""The printed proof of Theorem 2.1 (Hardt & Ma, appendix A): R = U K Vᵀ in 4q rotations and p scalings.

    R = U K Vᵀ, det U = det V = 1        singular value decomposition
    U = S D Sᵀ                           2q layers: q for the blocks T(θ) of D, q for its pairs of −1 (Λ)
    K = (K^{1/p})^p                      p layers
    4q + p = ℓ                           exact norm of the worst case: max(2 sin(π/2q), e^{γ/p} − 1)

The proof treats q and p as real numbers. They are integers, and then the norm can exceed the printed
(4π + 3γ)/ℓ: for ℓ = 5 with γ in (1.48, 5/3], for every ℓ ≥ 7 with γ small, and for some ℓ ≥ 9 in a
second interval too, such as (1.005, 1.811) for ℓ = 9. These are failures of the construction, not of
the theorem, which `factorization.factorize` satisfies with room to spare.
"""

import math
from typing import NamedTuple

import numpy as np

from theory.linear.rotations import rotation_planes, turn_minus_identity


class Allocation(NamedTuple):
    """Integers q and p with 4q + p = ℓ, and the largest layer norm that they can lead to."""

    num_rotations: int
    num_scalings: int
    norm: float


def printed_bound(log_condition: float, num_layers: int) -> float:
    """Returns (4π + 3γ)/ℓ (Hardt & Ma, Theorem 2.1)."""
    return (4 * math.pi + 3 * log_condition) / num_layers


def exponential_bound(x: float) -> float:
    """Returns (e − 1)|x| ≥ |e^x − 1| for |x| ≤ 1 (Hardt & Ma A.1, which has 3|x|).

    By convexity, with equality at x = 0 and 1. ValueError: an |x| above 1, where it fails for x > 1.
    """
    if not abs(x) <= 1:
        raise ValueError(f"x must lie in [−1, 1], got {x}")
    return math.expm1(1) * abs(x)


def allocation(log_condition: float, num_layers: int) -> Allocation:
    """Returns the best integers q, p ≥ 1 for the printed construction: the least max(2 sin(π/2q), e^{γ/p} − 1).

    If its norm exceeds `printed_bound`, no integers satisfy the printed bound in the worst case.
    ValueError: ℓ < 5, which leaves no q ≥ 1 and p ≥ 1.
    """
    if num_layers < 5:
        raise ValueError(f"method paper needs at least 5 layers (4q + p with q, p ≥ 1), got {num_layers}; use polar")
    rotations = np.arange(1, (num_layers - 1) // 4 + 1)
    scalings = num_layers - 4 * rotations
    with np.errstate(over="ignore"):
        norms = np.maximum(2 * np.sin(np.pi / (2 * rotations)), np.expm1(log_condition / scalings))
    best = int(np.argmin(norms))
    return Allocation(int(rotations[best]), int(scalings[best]), float(norms[best]))


def meets_printed_bound(log_condition: float, num_layers: int) -> bool:
    """Returns whether some integers q, p keep the construction within (4π + 3γ)/ℓ for all rotations; not for ℓ < 5."""
    return num_layers >= 5 and allocation(log_condition, num_layers).norm <= printed_bound(log_condition, num_layers)


def layers(singular_parts: tuple[np.ndarray, np.ndarray, np.ndarray], num_layers: int) -> np.ndarray:
    """Returns A [ℓ, d, d] of the construction, from (U [d, d], σ [d], Vᵀ [d, d]) with det U · det V > 0."""
    u, sigma, vt = singular_parts
    if np.linalg.slogdet(u)[0] < 0:  # then det V < 0 too: turn one singular vector of each round
        u, vt = u.copy(), vt.copy()
        u[:, -1] *= -1
        vt[-1] *= -1
    best = allocation(float(np.abs(np.log(sigma)).max()), num_layers)
    scaling = np.diag(np.expm1(np.log(sigma) / best.num_scalings))
    return np.concatenate([
        _rotation_layers(vt, best.num_rotations),
        np.repeat(scaling[None], best.num_scalings, axis=0),
        _rotation_layers(u, best.num_rotations),
    ])  # fmt: skip


def _rotation_layers(Q: np.ndarray, num_rotations: int) -> np.ndarray:
    """Returns 2q layers whose product is Q: the pairs of −1 first, then the other planes, which commute."""
    basis, angles = rotation_planes(Q)
    is_reflection = angles == np.pi
    turns = [np.where(is_reflection, angles, 0), np.where(is_reflection, 0, angles)]
    once = [basis @ turn_minus_identity(angles / num_rotations, len(Q)) @ basis.T for angles in turns]
    return np.repeat(once, num_rotations, axis=0)
