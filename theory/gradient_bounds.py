"""How sharp Hardt & Ma's (2.3) is: a larger lower bound of the gradient, and what breaks the review's version of it.

Notation is that of linear_residual.py, where the bound of (2.3) itself is.
"""

import itertools
from typing import NamedTuple

import numpy as np

from theory.arrays import finite
from theory.linear_residual import above_rounding, checked_problem, gradient, risk


def gradient_lower_bound_by_layer(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> float:
    """Returns 4 σ_min(Σ) (f(A) − C) Σ_i Π_{j≠i} σ_min(I + A_j)²: between (2.3) and ‖∇f(A)‖²_F. Not in the paper.

    It is what the proof of (2.3) shows before σ_min(I + A_j) ≥ 1 − τ, and needs no τ < 1.

    Args and errors as `risk`.
    """
    A, R, Sigma = checked_problem(A, R, Sigma)
    seen, least = above_rounding(Sigma)
    smallest = np.linalg.svd(np.eye(A.shape[-1]) + A, compute_uv=False)[:, -1] ** 2
    others = [np.prod(np.delete(smallest, i)) for i in range(len(A))]
    return 4 * least * risk(A, R, seen) * float(np.sum(others))


def product_lower_bound(X: np.ndarray, Y: np.ndarray) -> float:
    """Returns σ_min(X)‖Y‖_F ≤ ‖XY‖_F (Hardt & Ma, Claim C.2), with equality for Y of X's last singular vector.

    Args:
      X: [m, d], m ≥ d: for a wide X, which has a kernel, no such bound exists.
      Y: [d, c].

    Raises:
      ValueError: a wide or empty X, numbers that are not real and finite.
    """
    X, Y = finite("X", X), finite("Y", Y)
    if X.ndim != 2 or X.size == 0 or X.shape[0] < X.shape[1]:
        raise ValueError(f"X must be square or tall, got shape {X.shape}")
    return float(np.linalg.svd(X, compute_uv=False)[-1] * np.linalg.norm(Y))


class Counterexample(NamedTuple):
    """A scalar problem with one layer: whole numbers R and Sigma, A = 0."""

    R: int
    Sigma: int
    gradient_squared: float
    claimed: float


def smallest_counterexample(power: int, largest: int = 5) -> Counterexample | None:
    """Returns the least whole Σ, R ≥ 1 that break ‖∇f‖² ≥ 4ℓ(1 − τ)^{2ℓ−2} σ_min(Σ)^power (f − C), d = ℓ = 1, A = 0.

    power = 1 is Hardt & Ma's (2.3), which nothing breaks: None. power = 2 is the review's (6).
    """
    zero = np.zeros((1, 1, 1))
    for R, Sigma in sorted(itertools.product(range(1, largest + 1), repeat=2), key=sum):
        problem = np.full((1, 1), R), np.full((1, 1), Sigma)
        squared = float(np.square(gradient(zero, *problem)).sum())
        claimed = 4 * Sigma**power * risk(zero, *problem)
        if squared < claimed * (1 - 1e-12):
            return Counterexample(R, Sigma, squared, claimed)
    return None
