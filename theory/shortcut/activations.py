"""Activation functions with the derivatives that Theorem 1 of Li et al. needs: at the data and at zero."""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import special


class Activation(NamedTuple):
    """An activation function: itself, its derivative, and its value and first two derivatives at 0.

    A derivative at 0 that does not exist is NaN.
    """

    function: Callable
    derivative: Callable
    at_zero: tuple[float, float, float]


ActivationLike: TypeAlias = str | Activation | tuple[float, float]
"""A name of ACTIVATIONS, an Activation, or, at mid and post, (σ′(0), σ″(0)) of a function with σ(0) = 0."""

ACTIVATIONS = {
    "linear": Activation(lambda z: z, np.ones_like, (0.0, 1.0, 0.0)),
    "tanh": Activation(np.tanh, lambda z: 1 - np.tanh(z) ** 2, (0.0, 1.0, 0.0)),
    "relu": Activation(lambda z: np.maximum(z, 0), lambda z: np.where(z > 0, 1.0, 0.0), (0.0, math.nan, math.nan)),
    "elu": Activation(
        lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0))),
        lambda z: np.where(z > 0, 1.0, np.exp(np.minimum(z, 0))),
        (0.0, 1.0, math.nan),
    ),
    "softsign": Activation(lambda z: z / (1 + _size(z)), lambda z: (1 + _size(z)) ** -2.0, (0.0, 1.0, math.nan)),
    "softplus": Activation(lambda z: _softplus(z), special.expit, (math.log(2), 0.5, 0.25)),
    "sigmoid": Activation(
        lambda z: (1 + np.tanh(z / 2)) / 2, lambda z: special.expit(z) * special.expit(-z), (0.5, 0.25, 0.0)
    ),
}


MAX_GROWTH = 1.05
"""How much larger |σ(z)/z| may be at |z| = 1e-12 than at 1e-9 to count as bounded; |z|^0.99 has 1.07, z log|z| 1.33."""


def _size(z: np.ndarray) -> np.ndarray:
    """Returns |z| for real z; for complex z, z with the sign of Re z, as complex-step derivatives need."""
    return np.where(np.real(z) < 0, -z, z)


def _softplus(z: np.ndarray) -> np.ndarray:
    """Returns log(1 + e^z) without overflow, for complex z too."""
    positive = np.real(z) > 0
    return np.log1p(np.exp(np.where(positive, -z, z))) + np.where(positive, z, 0)


def activation_named(activation: ActivationLike) -> Activation:
    """Returns the Activation of a name, or an Activation as it is.

    Raises:
      ValueError: an unknown name, or no activation.
    """
    if isinstance(activation, Activation):
        return activation
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)} or an Activation, got {activation!r}")
    return ACTIVATIONS[activation]


def values_at_data(activation: ActivationLike, x: np.ndarray) -> np.ndarray:
    """Returns σ_pre(x); raises ValueError if it is infinite or NaN, such as log of negative numbers."""
    with np.errstate(all="ignore"):
        values = np.asarray(activation_named(activation).function(x))
    if not np.isfinite(values).all():
        point = x[~np.isfinite(values)].flat[0]
        raise ValueError(f"pre must be finite at the data, but {activation!r} is not at {point:.6g}")
    return values


def derivatives_at_zero(position: str, activation: ActivationLike) -> tuple[float, float, float]:
    """Returns (0, σ′(0), σ″(0)) of the activation at mid or post (Li et al.; Theorem 1 needs σ(0) = 0).

    Args:
      position: str. For the message.
      activation: str, Activation, or (σ′(0), σ″(0)).

    Raises:
      ValueError: σ(0) is not 0, or the argument is not an activation.
    """
    if isinstance(activation, tuple) and not isinstance(activation, Activation):
        if len(activation) != 2:
            raise ValueError(f"{position} must be a name, an Activation or (σ′(0), σ″(0)), got {activation!r}")
        return (0.0, *map(float, activation))
    at_zero = activation_named(activation).at_zero
    if at_zero[0] != 0:
        raise ValueError(
            f"{position} must be 0 at 0, so that zero weights give the identity; {activation!r} is {at_zero[0]:.3g}"
        )
    return at_zero


def first_derivative(position: str, activation: ActivationLike) -> float:
    """Returns σ′(0) of the activation at mid or post; ValueError if there is none, or σ(0) ≠ 0."""
    first = derivatives_at_zero(position, activation)[1]
    if not math.isfinite(first):
        raise ValueError(
            f"in general no Hessian exists at zero with {activation!r} at {position}, which lacks a first derivative "
            "at 0; put it at pre, or use a smooth activation"
        )
    return first


class Activations(NamedTuple):
    """The activations of a unit h ← h + σ_post(W^n σ_mid(··· W^1 σ_pre(h)))."""

    pre: ActivationLike = "linear"
    mid: ActivationLike = "linear"
    post: ActivationLike = "linear"

    def check(self, shortcut_depth: int) -> None:
        """Raises ValueError for an unknown name, even if σ has no effect, as σ_mid for n = 1; n ≥ 3: a steep σ."""
        for activation in self:
            if not isinstance(activation, tuple):
                activation_named(activation)
        if shortcut_depth >= 3:
            self.check_slopes_bounded()

    def slope_at_zero(self, shortcut_depth: int) -> float:
        """Returns c = σ′_post(0) σ′_mid(0)^{n−1}, the slope at zero of the activations of a unit.

        Raises:
          ValueError: σ(0) ≠ 0 or no σ′(0), as for ReLU, at post or, for n ≥ 2, at mid.
        """
        slope = first_derivative("post", self.post)
        if shortcut_depth > 1:
            slope *= first_derivative("mid", self.mid) ** (shortcut_depth - 1)
        return slope

    def check_slopes_bounded(self) -> None:
        """Raises ValueError unless |σ(z)| ≤ C|z| near 0 at mid and post; then L − L(0) = O(‖w‖ⁿ), also for ReLU."""
        for position, activation in (("mid", self.mid), ("post", self.post)):
            if math.isfinite(derivatives_at_zero(position, activation)[1]):
                continue
            steep = True  # (σ′(0), σ″(0)) does not describe the function near 0
            if isinstance(activation, str | Activation):
                steps = np.array([[-1e-9, 1e-9], [-1e-12, 1e-12]])
                beside, nearer = np.abs(activation_named(activation).function(steps) / steps).max(1)
                steep = not nearer <= MAX_GROWTH * beside
            if steep:
                message = f"in general no Hessian exists at zero with {activation!r} at {position}"
                raise ValueError(f"{message}: its slope at 0 has no bound")
