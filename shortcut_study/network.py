"""n-shortcut networks (Li et al., Definitions 2 and 3): initialisation, forward pass, loss, gradient.

    paper                                   code
    W^{r,l}, r = 1 … R, l = 1 … n           weights [num_units, shortcut_depth, width, width]
    n, R, d                                 shortcut_depth, num_units, width
    x^μ, y^μ (columns), m                   x, y [m, width] (rows)
    σ_pre, σ_mid, σ_post                    pre, mid, post
    depth                                   num_units · shortcut_depth, the number of weight matrices

A unit is h ← h + σ_post(W^{r,n} σ_mid(··· W^{r,1} σ_pre(h))); without shortcut h ← σ_post(···). The
loss is L = 1/(2m) Σ‖y − ŷ‖². This module is NumPy in float64; `to_keras` builds the same network in Keras.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from theory.arrays import finite, real
from theory.shortcut import networks as shortcut_networks
from theory.shortcut.activations import Activation, activation_named

if TYPE_CHECKING:
    import keras

INITIALIZATIONS = ("xavier", "orthogonal", "zero", "exact_zero")
ZERO_SCALE = 0.01  # of the paper's "zero" initialisation: Xavier's weights times this


@dataclasses.dataclass(frozen=True)
class ShortcutNetwork:
    """An n-shortcut network's shape; weights are passed to its methods.

    Attributes:
      width: d, of every layer.
      num_units: R ≥ 1.
      shortcut_depth: n ≥ 1, matrices a unit.
      pre, mid, post: Activations: a name (linear, tanh, relu, elu, softsign, softplus, sigmoid)
        or a function of your own, elementwise, of NumPy arrays (and of TensorFlow tensors, for the Hessian).
      shortcut: Whether units add their input.

    >>> network = ShortcutNetwork(width=2, num_units=3, shortcut_depth=2, mid="relu")
    >>> weights = network.initialize("exact_zero", seed=0)
    >>> weights.shape, network.forward(weights, np.array([[1.0, -2.0]])).tolist()  # at zero it is the identity
    ((3, 2, 2, 2), [[1.0, -2.0]])
    """

    width: int
    num_units: int
    shortcut_depth: int
    pre: str | Callable = "linear"
    mid: str | Callable = "linear"
    post: str | Callable = "linear"
    shortcut: bool = True

    def __post_init__(self) -> None:
        for name in ("width", "num_units", "shortcut_depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for activation in self.activations:
            _activation(activation)

    @classmethod
    def with_depth(
        cls, width: int, depth: int, shortcut_depth: int, mid: str | Callable = "linear", shortcut: bool = True
    ) -> "ShortcutNetwork":
        """Returns the network of `depth` weight matrices; raises ValueError if shortcut_depth does not divide them."""
        if depth < 1 or shortcut_depth < 1 or depth % shortcut_depth:
            raise ValueError(f"depth must be a multiple of shortcut_depth {shortcut_depth}, got {depth}")
        return cls(width, depth // shortcut_depth, shortcut_depth, mid=mid, shortcut=shortcut)

    @property
    def activations(self) -> tuple:
        """pre, mid, post."""
        return self.pre, self.mid, self.post

    @property
    def depth(self) -> int:
        """Number of weight matrices."""
        return self.num_units * self.shortcut_depth

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the weights."""
        return self.num_units, self.shortcut_depth, self.width, self.width

    @property
    def num_parameters(self) -> int:
        """Number of entries of all weight matrices."""
        return self.depth * self.width**2

    @property
    def is_linear(self) -> bool:
        """Returns whether all three activations are linear."""
        return all(activation == "linear" for activation in self.activations)

    def initialize(self, kind: str, seed: int) -> np.ndarray:
        """Returns weights of a kind, drawn from the seed.

        xavier: Gaussian of variance 1/width (Glorot & Bengio). orthogonal: Haar, by QR with the
        signs of R's diagonal taken into Q. zero: xavier × 0.01 (Li et al. §4.1). exact_zero: 0.

        Returns:
          [num_units, shortcut_depth, width, width] float64.
        """
        if kind not in INITIALIZATIONS:
            raise ValueError(f"initialisation must be one of {', '.join(INITIALIZATIONS)}, got {kind!r}")
        normal = np.random.default_rng(seed).standard_normal(self.shape)
        if kind == "orthogonal":
            q, r = np.linalg.qr(normal)
            return q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
        scale = {"xavier": 1.0, "zero": ZERO_SCALE, "exact_zero": 0.0}[kind]
        return scale * normal / np.sqrt(self.width)

    def forward(self, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Returns ŷ [m, width] (Li et al., (5)) for weights of `shape`, else ValueError, and x [m, width]."""
        pre, mid, post = map(_activation, self.activations)
        return shortcut_networks.forward(self._checked(weights), x, pre, mid, post, self.shortcut)

    def loss(self, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> complex:
        """Returns L = 1/(2m) Σ‖y − ŷ‖² (Li et al., (6)): a float, complex only for complex weights."""
        pre, mid, post = map(_activation, self.activations)
        return shortcut_networks.loss(self._checked(weights), x, y, pre, mid, post, self.shortcut)

    def to_keras(self, weights: np.ndarray) -> "keras.Model":
        """Returns the network as a keras.Model in float64, x [m, width] to ŷ [m, width], compiled with the loss (6).

        Its trainable variables, flattened and joined, are the weights in the order of Definition 5 (Li et al.), so
        `curvature.Hessian(model, x, y)` is the matrix that `hessian.hessian` returns. Calls compute in float64;
        Keras's `fit`, `evaluate` and `predict` cast arrays and losses to `keras.config.floatx()`, float32 by default.
        JAX needs its x64 mode.

        >>> network = ShortcutNetwork(width=2, num_units=3, shortcut_depth=2, mid="relu")
        >>> model = network.to_keras(network.initialize("xavier", seed=0))
        >>> [variable.path for variable in model.trainable_variables][:2], model.count_params()
        (['unit1_layer1/kernel', 'unit1_layer2/kernel'], 24)

        Raises:
          ValueError: weights of another shape, or that are not real and finite.
        """
        from shortcut_study.keras_network import keras_model

        return keras_model(self._checked(finite("weights", weights)), self.activations, self.shortcut)

    def examples(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns x and y as float64; ValueError unless both are [m, width], m ≥ 1, and finite."""
        x, y = real("x", x), real("y", y)
        if x.ndim != 2 or x.shape != y.shape or x.shape[1] != self.width or not len(x):
            raise ValueError(f"x and y must both be [m, {self.width}], got shapes {x.shape} and {y.shape}")
        return finite("x", x), finite("y", y)

    def _checked(self, weights: np.ndarray) -> np.ndarray:
        if np.shape(weights) != self.shape:
            raise ValueError(f"weights must have shape {self.shape}, got {np.shape(weights)}")
        return weights


def _activation(activation: str | Callable) -> Activation:
    if callable(activation):
        return Activation(activation, _unknown_derivative, (math.nan,) * 3)
    return activation_named(activation)


def _unknown_derivative(z: np.ndarray) -> np.ndarray:
    raise ValueError("only activations of theory.shortcut.activations have a known derivative")
