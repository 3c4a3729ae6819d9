"""Linear residual networks between two fixed maps: from zero they reach every target (Zou, Long & Gu 2020).

paper                                          code
f(x) = B (I + W_L)···(I + W_1) A x             outward [k, m], layers [ℓ, m, m], inward [m, d]
Φ, the least squares map                       R [k, d]
W_l = 0 at the start; A and B are not trained  layers = 0
μ_A, ‖A‖; μ_B, ‖B‖                             the least and the largest singular value of inward and outward

Source: Difan Zou, Philip Long and Quanquan Gu, *On the global convergence of training deep linear ResNets*, ICLR 2020.
Their Theorem 3.1 has this form, rate 1 − ηL μ_A² μ_B² σ²/e for a loss with ½, under a bound on the loss at zero; its
constants could not be verified. The constants below are for Hardt & Ma's risk ‖E Σ^½‖²_F without ½ and are proved in
docs/appendix/proofs.md.
"""

import math
from typing import NamedTuple

import numpy as np

from theory import linear_residual
from theory.products import product_gradient, products


class Widened(NamedTuple):
    """A problem: fixed maps inward [m, d], outward [k, m], d, k ≤ m; target R [k, d]; second moment Sigma [d, d]."""

    inward: np.ndarray
    outward: np.ndarray
    R: np.ndarray
    Sigma: np.ndarray

    def spread(self) -> tuple[float, float, float]:
        """Returns μ_A μ_B, ‖A‖ ‖B‖ and ‖Σ‖, on which the guarantee depends.

        Raises:
          ValueError: m < d or m < k: then A or Bᵀ has a kernel, and μ bounds nothing.
        """
        (m, d) = np.shape(self.inward)
        k = len(self.outward)
        if m < max(d, k):
            raise ValueError(f"the layers must be as wide as input and output, {d} and {k}, got m = {m}")
        inner, outer = (np.linalg.svd(matrix, compute_uv=False) for matrix in (self.inward, self.outward))
        return inner[-1] * outer[-1], inner[0] * outer[0], float(np.linalg.eigvalsh(self.Sigma)[-1])


def identity_maps(R: np.ndarray, scale: float) -> Widened:
    """Returns A = scale·(I_d; 0), B = scale·(0, I_k), m = d + k: B A = 0, so the network starts at 0 (Zou et al.).

    Σ = I. Not in the paper: for scale² ≥ 4e^{3/2}‖R‖_F ≈ 17.93‖R‖_F the guarantee holds for every R [k, d], with
    any eigenvalues and either sign of its determinant.
    """
    k, d = np.shape(R)
    inward = np.zeros((d + k, d))
    outward = np.zeros((k, d + k))
    inward[:d], outward[:, d:] = scale * np.eye(d), scale * np.eye(k)
    return Widened(inward, outward, np.asarray(R, np.float64), np.eye(d))


def risk_and_gradient(problem: Widened, layers: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns f = ‖E Σ^½‖²_F, E = B(I + W_ℓ)···(I + W_1)A − R, and ∂f/∂W_i [ℓ, m, m] (Hardt & Ma, Lemma 2.4).

    Args:
      problem: Widened. layers: [ℓ, m, m].
    """
    layers = np.eye(len(problem.inward)) + layers
    before = products(layers, problem.inward)
    E = problem.outward @ before[-1] - problem.R
    middle = 2 * E @ problem.Sigma
    return float(np.vdot(E, middle) / 2), product_gradient(layers, before, problem.outward.T @ middle)


def gradient_lower_bound(problem: Widened, layers: np.ndarray) -> float:
    """Returns 4ℓ μ_A² μ_B² (1 − τ)^{2ℓ−2} σ_min(Σ) f ≤ ‖∇f‖²_F, τ = max ‖W_i‖ < 1: Hardt & Ma's (2.3) with A and B.

    Not in the papers. If Σ is singular, the bound is 0.
    """
    num_layers = len(layers)
    tau = float(np.linalg.norm(layers, 2, axis=(1, 2)).max())
    least = problem.spread()[0]
    decay = max(0.0, 1 - tau) ** (2 * num_layers - 2)
    smallest = float(np.linalg.eigvalsh(problem.Sigma)[0])
    excess = risk_and_gradient(problem, layers)[0]
    return 4 * num_layers * least**2 * decay * smallest * excess


class Guarantee(NamedTuple):
    """The guarantee for descent from zero: whether it applies, the largest learning rate, and the rate there.

    Attributes:
      applies: √f(0) ≤ allowed.
      allowed: σ_min(Σ) μ_A² μ_B² / (4 e^{3/2} ‖A‖ ‖B‖ ‖Σ‖^½).
      learning_rate: 1/L, L the smoothness where max ‖W_i‖ ≤ 1/(2ℓ) and f ≤ f(0).
      rate: 1 − 2ηℓ σ_min(Σ) μ_A² μ_B²/e; each step multiplies f by at most this.
    """

    applies: bool
    allowed: float
    learning_rate: float
    rate: float


def guarantee(problem: Widened, num_layers: int) -> Guarantee:
    """Returns a guarantee: if f(0) is small, max ‖W_i‖ ≤ 1/(2ℓ) and f shrinks geometrically (Zou et al., Theorem 3.1).

    The constants are not the paper's. The condition does not depend on ℓ, and the rate only weakly, so the number of
    steps stays bounded.
    """
    least, largest, moment = problem.spread()
    smallest = max(float(np.linalg.eigvalsh(problem.Sigma)[0]), 0.0)
    start = math.sqrt(risk_and_gradient(problem, np.zeros((num_layers, *[len(problem.inward)] * 2)))[0])
    allowed = smallest * least**2 / (4 * math.exp(1.5) * largest * math.sqrt(moment))
    scale = np.array([[largest**2 * moment]])
    smoothness = linear_residual.smoothness_bound(scale, num_layers, 1 / (2 * num_layers), start**2)
    rate = 1 - 2 * num_layers * smallest * least**2 / (math.e * smoothness)
    return Guarantee(start <= allowed, allowed, 1 / smoothness, rate)


def descend(problem: Widened, num_layers: int, learning_rate: float, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the end [ℓ, m, m] of gradient descent from zero, and its risks [num_steps + 1]."""
    layers = np.zeros((num_layers, *[len(problem.inward)] * 2))
    risks = []
    for _ in range(num_steps):
        risk, gradient = risk_and_gradient(problem, layers)
        risks.append(risk)
        layers = layers - learning_rate * gradient
    return layers, np.array([*risks, risk_and_gradient(problem, layers)[0]])
