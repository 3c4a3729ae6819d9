"""n-shortcut networks: loss, gradient and least loss (Li et al. §3.3, §4.2, §4.3).

    paper                                   code
    W^{r,l}, r = 1 … R, l = 1 … n           weights [num_units, shortcut_depth, d, d]
    x^μ, y^μ (columns)                      x, y [m, d] (rows)
    Σ_XX, Σ_YX                              input_moment, cross_moment [d, d]: second moments, not covariances
    W, the map of a linear network          linear_map(weights)

The loss is L = 1/(2m) Σ‖y − ŷ‖², half of Hardt & Ma's. shortcut_study trains these networks; the functions of this
module follow the definitions, for checks.
"""

import numbers

import numpy as np

from theory.arrays import real
from theory.products import product_gradient, products
from theory.shortcut.activations import ActivationLike, activation_named


def forward(
    weights: np.ndarray,
    x: np.ndarray,
    pre: ActivationLike = "linear",
    mid: ActivationLike = "linear",
    post: ActivationLike = "linear",
    shortcut: bool = True,
) -> np.ndarray:
    """Returns ŷ [m, d] of units h ← h + σ_post(W^{r,n} σ_mid(··· W^{r,1} σ_pre(h))) (Li et al., Definitions 2 and 3).

    Args:
      weights: [num_units, shortcut_depth, d, d]; may be complex, for complex-step derivatives.
      x: [m, d].
      pre, mid, post: str or Activation.
      shortcut: bool. Without it a unit is h ← σ_post(···).
    """
    pre, mid, post = (activation_named(name).function for name in (pre, mid, post))
    hidden = np.asarray(x)
    hidden = hidden.astype(float) if hidden.dtype.kind in "bui" else hidden  # in which 200 + 100 is 44
    for unit in checked_weights(weights):
        inside = np.asarray(pre(hidden)) @ unit[0].T  # an array, also of a function that gives tensors
        for matrix in unit[1:]:
            inside = np.asarray(mid(inside)) @ matrix.T
        outside = np.asarray(post(inside))
        hidden = hidden + outside if shortcut else outside
    return hidden


def checked_weights(weights: np.ndarray) -> np.ndarray:
    """Returns weights as an array [num_units, shortcut_depth, d, d]; ValueError for another shape."""
    weights = np.asarray(weights)
    if weights.ndim != 4 or weights.shape[1] == 0 or weights.shape[2] != weights.shape[3]:
        raise ValueError(f"weights must be [num_units, shortcut_depth, d, d], got shape {weights.shape}")
    return weights


def checked_counts(num_units: int, shortcut_depth: int) -> None:
    """Raises ValueError unless both are whole numbers of at least 1."""
    if not all(isinstance(n, numbers.Integral) and n >= 1 for n in (num_units, shortcut_depth)):
        numbers_given = f"got {num_units!r} and {shortcut_depth!r}"
        raise ValueError(f"num_units and shortcut_depth must be whole numbers of at least 1, {numbers_given}")


def checked_data(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns x and y [m, d] in float64; ValueError for other shapes and for numbers that are not real and finite."""
    x, y = real("x", x), real("y", y)
    if x.ndim != 2 or x.shape != y.shape or x.size == 0:
        raise ValueError(f"x and y must both be [m, d], got shapes {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("x and y must be finite, got an infinite or NaN entry")
    return x, y


def loss(
    weights: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    pre: ActivationLike = "linear",
    mid: ActivationLike = "linear",
    post: ActivationLike = "linear",
    shortcut: bool = True,
) -> complex:
    """Returns L = 1/(2m) Σ‖y − ŷ‖² (Li et al., (6)); complex for complex weights.

    Args as `forward`, and y [m, d]. ValueError: y and ŷ have different shapes.
    """
    output = forward(weights, x, pre, mid, post, shortcut)
    if np.shape(y) != output.shape:
        raise ValueError(f"y must have the shape of the output, {output.shape}, got {np.shape(y)}")
    error = y - output
    return (error * error).sum() / (2 * len(error))


def linear_map(weights: np.ndarray) -> np.ndarray:
    """Returns W [d, d] with ŷ = Wx for a linear network (Li et al., (5))."""
    d = np.shape(weights)[-1]
    return forward(weights, np.eye(d)).T


def output_growth(num_units: int, shortcut_depth: int, gain: float = 1.0) -> float:
    """Returns E‖ŷ‖²/‖x‖² = (1 + gⁿ)^R of a linear network with independent random weights (Li et al. §4.1).

    Entries of mean 0 and variance g/d make each matrix multiply E‖h‖² by g: Xavier's g = 1 doubles it in every unit,
    and a plain network keeps it. The gain g is d times the variance of a weight.
    """
    checked_counts(num_units, shortcut_depth)
    return (1 + gain**shortcut_depth) ** num_units


def gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns ∂L/∂W^{r,l} = (W_after^r W_after^{r,l})ᵀ (W Σ_XX − Σ_YX) (W_before^{r,l} W_before^r)ᵀ (Li et al., (7)).

    For a linear network with weights [num_units, shortcut_depth, d, d], the gradient's shape too, and x, y [m, d];
    minus the learning rate times it is the paper's update.
    """
    weights = checked_weights(real("weights", weights))
    return map_and_gradient(weights, *moments(x, y))[1]


def map_and_gradient(
    weights: np.ndarray, input_moment: np.ndarray, cross_moment: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns W [d, d] and `gradient` of a linear network, from the moments Σ_XX and Σ_YX [d, d]."""
    inner = products(weights)
    units = np.eye(weights.shape[-1]) + inner[:, -1]
    outer = products(units)
    by_unit = product_gradient(units, outer, outer[-1] @ input_moment - cross_moment)
    return outer[-1], product_gradient(weights, inner, by_unit)


def moments(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns Σ_XX = (1/m) Σ x xᵀ and Σ_YX = (1/m) Σ y xᵀ [d, d] (Li et al., (8), (9))."""
    x, y = checked_data(x, y)
    return x.T @ x / len(x), y.T @ x / len(x)


def least_squares_map(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns W = Σ_YX Σ_XX⁺ [d, d], the best linear map, of least norm if there are several (Li et al., (15)).

    It is computed from the data, because the condition number of their moments is the square of theirs.
    """
    return np.linalg.lstsq(*checked_data(x, y), rcond=None)[0].T


def minimum_loss(x: np.ndarray, y: np.ndarray) -> float:
    """Returns L_min = 1/(2m) ‖Y − Σ_YX Σ_XX⁻ X‖²_F for any generalised inverse, ΣΣ⁻Σ = Σ (Li et al., (16)).

    Every n-shortcut linear network reaches it: the last unit can compensate for all others.
    """
    error = real("y", y) - real("x", x) @ least_squares_map(x, y).T
    return float(np.square(error).sum() / (2 * len(error)))
