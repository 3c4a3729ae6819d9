"""A start that reaches every target at the same width (Wu, Wang & Ma 2019).

paper                                          code
W_L ··· W_1, W_L = 0 and the others I          I + A_i, A = start(ℓ, d): A_ℓ = −I, the others 0
Φ, any target                                  R [d, d]

Source: Lei Wu, Qingcan Wang and Chao Ma, *Global convergence of gradient descent for deep linear residual networks*,
NeurIPS 2019, arXiv 1911.00645. Its abstract: with this start, for an arbitrary target, descent reaches an ε-optimal
point in O(L³ log(1/ε)) iterations. Only the abstract was read; the rate below is not in it and is proved in
docs/appendix/proofs.md.
"""

import math

import numpy as np

from theory.arrays import require_at_least, second_moment


def start(num_layers: int, dimension: int) -> np.ndarray:
    """Returns A [ℓ, d, d] with I + A_ℓ = 0 and I + A_i = I else: a network that is 0, with one layer that is not I.

    Raises:
      ValueError: fewer than one layer or dimension.
    """
    require_at_least(1, num_layers=num_layers, dimension=dimension)
    A = np.zeros((num_layers, dimension, dimension))
    A[-1] = -np.eye(dimension)
    return A


def flow_bound(Sigma: np.ndarray, time: float) -> float:
    """Returns e^{−4σ_min(Σ)t}: gradient flow from `start` multiplies the excess risk by at most this. Not in the paper.

    For every R and every depth: gradient flow conserves N_{i+1}ᵀN_{i+1} − N_iN_iᵀ, so N_{ℓ−1}N_{ℓ−1}ᵀ = I + N_ℓᵀN_ℓ and
    the other layers have the singular values of N_{ℓ−1}, 1 or more; then ‖∂f/∂A_ℓ‖² ≥ 4σ_min(Σ)(f − C). Equality: ℓ =
    1, Σ = sI. A step of descent is a time η, the learning rate of `landscape.gradient_descent`.

    Args:
      Sigma: [d, d]. time: t ≥ 0.

    Raises:
      ValueError: a Sigma that is no second moment, a negative time.
    """
    require_at_least(0, time=time)
    return math.exp(-4 * max(float(np.linalg.eigvalsh(second_moment("Sigma", Sigma))[0]), 0.0) * time)
