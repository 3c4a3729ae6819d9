"""Activation functions with what Theorem 1 of Li et al. asks of them: derivatives at the data and at zero."""

import math
from typing import Callable, NamedTuple

import numpy as np
from scipy import special


class Activation(NamedTuple):
    """An activation function: itself, its derivative, and its value and first two derivatives at 0.

    A derivative at 0 that does not exist is NaN.
    """

    function: Callable
    derivative: Callable
    at_zero: tuple[float, float, float]


ACTIVATIONS = {
    "linear": Activation(lambda z: z, np.ones_like, (0.0, 1.0, 0.0)),
    "tanh": Activation(np.tanh, lambda z: 1 - np.tanh(z) ** 2, (0.0, 1.0, 0.0)),
    "relu": Activation(lambda z: np.maximum(z, 0), lambda z: np.where(z > 0, 1.0, 0.0), (0.0, math.nan, math.nan)),
    "softplus": Activation(lambda z: _softplus(z), special.expit, (math.log(2), 0.5, 0.25)),
    "sigmoid": Activation(
        lambda z: (1 + np.tanh(z / 2)) / 2, lambda z: special.expit(z) * special.expit(-z), (0.5, 0.25, 0.0)
    ),
}


def _softplus(z):
    """log(1 + e^z) without overflow, for complex z too."""
    positive = np.real(z) > 0
    return np.log1p(np.exp(np.where(positive, -z, z))) + np.where(positive, z, 0)


def activation_named(activation) -> Activation:
    """The Activation of a name; an Activation is returned as it is. ValueError for an unknown name."""
    if isinstance(activation, Activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)} or an Activation, got {activation!r}")
    return ACTIVATIONS[activation]


def derivatives_at_zero(position: str, activation) -> tuple[float, float, float]:
    """(0, σ′(0), σ″(0)) of what stands at position mid or post (Li et al., Theorem 1 needs σ(0) = 0).

    Args:
      position: str. For the message.
      activation: str, Activation, or (σ′(0), σ″(0)).

    Raises:
      ValueError: σ(0) is not 0, or no activation.
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
