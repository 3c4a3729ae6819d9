"""Residual networks of smooth units: critical points in the layers as functions, and in the parameters (BEL 2018).

paper                                       code
h_m ∘ ··· ∘ h_1, h_i near the identity      h_i(h) = h + V_iᵀ σ(U_i h), w [ℓ, 2, width, d]: U_i and V_i
h_i − Id has a Lipschitz constant ≤ ε       ‖U_i‖‖V_i‖ max σ′
Q = ½E‖h(x) − y‖²                           f = (1/m) Σ‖ŷ − y‖², x, y [m, d], without ½
Fréchet derivative with respect to h_i      functional [ℓ, m, d]: the gradient in the values of h_i at the sample

Source: Peter Bartlett, Steven Evans and Philip Long, *Representing smooth functions as compositions of near-identity
functions with implications for deep network optimization*, arXiv 1804.05012 (2018). Its abstract: with respect to the
layers as functions every critical point near the identity is a global minimum; with respect to the parameters of a
network of sigmoids of fixed size there are suboptimal ones, even if the target is such a network. Only the abstract
was read; the bound and the points below are not in it.
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize

from theory.arrays import require_at_least
from theory.relu import networks
from theory.relu.networks import Unit

UNITS = {
    "tanh": Unit(np.tanh, lambda z: 1 - np.tanh(z) ** 2, 1.0),
    "logistic": Unit(lambda z: (1 + np.tanh(z / 2)) / 2, lambda z: (1 - np.tanh(z / 2) ** 2) / 4, 0.25),
    "linear": Unit(lambda z: z, np.ones_like, 1.0),
}


class Gradients(NamedTuple):
    """f, its gradient in the parameters [ℓ, 2, width, d], and in the layers as functions [ℓ, m, d], first layer first.

    The last are 2 (∂h_ℓ ··· ∂h_{i+1})ᵀ(ŷ − y) at each example: f changes by (1/m) Σ ⟨functional, δ⟩ where h_i's value
    changes by δ.
    """

    risk: float
    parameters: np.ndarray
    functional: np.ndarray


def forward(w: np.ndarray, x: np.ndarray, unit: str) -> np.ndarray:
    """Returns ŷ [m, d] of a network w [ℓ, 2, width, d] on x [m, d]; unit is one of UNITS."""
    return networks.forward(w[None], x[None], UNITS[unit])[0]


def gradients(w: np.ndarray, x: np.ndarray, y: np.ndarray, unit: str) -> Gradients:
    """Returns f = (1/m) Σ‖ŷ − y‖² and both of its gradients, by backpropagation. Arguments as `forward`, y [m, d]."""
    risk, parameters, by_values = networks.backpropagate(w[None], x[None], y[None], UNITS[unit])
    return Gradients(float(risk[0]), parameters[0], len(x) * np.concatenate(by_values))


def functional_lower_bound(num_layers: int, lipschitz: float, risk: float) -> float:
    """Returns 4f Σ_{k<ℓ} (1 − ε)^{2k} ≤ Σ_i (1/m) Σ‖functional_i‖², ε < 1: (2.3) for layers as functions.

    Not in the papers. (∂h)ᵀ = I + B with ‖B‖ ≤ ε shortens no vector to less than 1 − ε of its length. So f = 0 if all
    functional gradients are 0. Equality: h_i = (1 − ε)·h, of linear units.

    Args:
      num_layers: int ≥ 1. lipschitz: ε, 0 ≤ ε < 1. risk: f.

    Raises:
      ValueError: an ε out of its range: from 1 on a layer may be constant, and there is no such bound.
    """
    require_at_least(1, num_layers=num_layers)
    if not 0 <= lipschitz < 1:
        raise ValueError(f"lipschitz must lie in [0, 1), got {lipschitz}")
    return 4 * risk * float(np.sum((1 - lipschitz) ** (2 * np.arange(num_layers))))


class BadPoint(NamedTuple):
    """A critical point w that is not a global minimum: a network of the same size, the teacher, gives the targets y."""

    w: np.ndarray
    teacher: np.ndarray
    x: np.ndarray
    y: np.ndarray


def doubled_unit(radius: float) -> BadPoint:
    """Returns a critical point of logistic units in the ball, |||A||| ≤ τ: the best single unit twice, at half its V.

    d = 1, one block of two units, 80 inputs between −3 and 3, a teacher of two different units with ‖U‖ = 0.93 τ,
    ‖V‖ = 0.96 τ. The best network of one unit has ∂f/∂u = ∂f/∂v = 0; so have its two halves, with half of ∂f/∂u and all
    of ∂f/∂v. Its norm is 0.3 τ, and f/f(0) from 5e-7 at τ = 0.2 to 2e-3 at τ = 0.99.

    Args:
      radius: τ, 0.2 ≤ τ < 1: below, f is within the rounding of float64.

    Raises:
      ValueError: another radius.
    """
    if not 0.2 <= radius < 1:
        raise ValueError(f"radius must lie in [0.2, 1), got {radius}")
    x = np.linspace(-3, 3, 80)[:, None]
    teacher = radius * np.array([[[[0.86], [0.36]], [[0.43], [-0.86]]]])
    y = forward(teacher, x, "logistic")

    def scaled_risk(flat: np.ndarray) -> tuple[float, np.ndarray]:
        slopes = gradients(flat.reshape(1, 2, 1, 1), x, y, "logistic")
        return 1e4 * slopes.risk / radius**4, 1e4 * slopes.parameters.ravel() / radius**4

    near = optimize.minimize(scaled_risk, radius * np.array([0.5, 0.3]), jac=True, method="BFGS").x
    single = optimize.root(lambda flat: scaled_risk(flat)[1], near, tol=1e-15).x.reshape(1, 2, 1, 1)
    w = np.concatenate([single, single], axis=2)
    w[:, 1] /= 2
    return BadPoint(w, teacher, x, y)
