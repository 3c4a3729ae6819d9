"""An n-shortcut network as a keras.Model of Dense layers without biases; on TensorFlow its Hessian is tape.py's.

    paper                                   code
    W^{r,l}                                 the kernel of Dense unit{r}_layer{l}, transposed
    σ_pre, σ_mid, σ_post                    Activation layers; none for linear
    L (6)                                   half_squared_error, averaged over the examples

A kernel is [column, row] and the trainable variables come by unit, then layer: flattened and joined they have the order
of Definition 5. To load a saved file elsewhere, import this module first: it registers its functions.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops


@keras.saving.register_keras_serializable(package="shortcut_study")
def half_squared_error(y_true: Any, y_pred: Any) -> Any:
    """Returns ½‖y − ŷ‖² of each example [m], whose mean is the loss (6) of Li et al.; "mse" averages over outputs too.

    Args:
      y_true, y_pred: [m, d].
    """
    return ops.sum(ops.square(y_true - y_pred), axis=-1) / 2


@keras.saving.register_keras_serializable(package="shortcut_study")
def softsign(z: Any) -> Any:
    """Returns z / (1 + |z|), of any shape, by operations that TensorFlow differentiates twice, unlike its own."""
    return z / (1 + ops.abs(z))


def keras_model(weights: np.ndarray, activations: tuple, shortcut: bool) -> keras.Model:
    """Returns the network (Li et al., (5), Definition 3) as a functional model in float64: x [m, d] to ŷ [m, d].

    It is compiled with the loss (6).

    Args:
      weights: [num_units, shortcut_depth, d, d].
      activations: pre, mid and post, each a name of `ShortcutNetwork` or a function of tensors.
      shortcut: Whether units add their input.
    """
    pre, mid, post = (softsign if activation == "softsign" else activation for activation in activations)
    width = weights.shape[-1]
    inputs = keras.Input((width,), dtype="float64", name="x")
    hidden = inputs
    for unit in range(1, len(weights) + 1):
        inside = _activated(hidden, pre, f"unit{unit}_pre")
        for layer in range(1, weights.shape[1] + 1):
            if layer > 1:
                inside = _activated(inside, mid, f"unit{unit}_mid{layer - 1}")
            dense = layers.Dense(width, use_bias=False, dtype="float64", name=f"unit{unit}_layer{layer}")
            inside = dense(inside)
        inside = _activated(inside, post, f"unit{unit}_post")
        hidden = layers.Add(dtype="float64", name=f"unit{unit}")([hidden, inside]) if shortcut else inside
    model = keras.Model(inputs, hidden, name="shortcut_network")
    model.set_weights([matrix.T for unit_weights in weights for matrix in unit_weights])
    model.compile(optimizer="sgd", loss=half_squared_error)
    return model


def _activated(hidden: Any, activation: str | Callable, name: str) -> Any:
    """Returns the output of an activation; linear has no layer."""
    if activation == "linear":
        return hidden
    return layers.Activation(activation, dtype="float64", name=name)(hidden)
