"""n-shortcut networks in TensorFlow: the exact Hessian of any of them, losses and gradients of many at once.

The Hessian, for hessian.py, is the gradient of the gradient by two GradientTapes on the Keras network of `to_keras`.
dynamics.py descends by the objectives, which take a batch of weights. Only code that needs TensorFlow imports this
module, because that takes seconds.
"""

import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from identity_matters.errors import UserError
from shortcut_study.curvature.tensorflow_backend import naming_operations
from shortcut_study.keras_network import half_squared_error
from shortcut_study.network import ShortcutNetwork

_FUNCTIONS = {
    "linear": tf.identity,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "elu": tf.nn.elu,
    "softsign": lambda z: z / (1 + tf.abs(z)),  # tf.nn.softsign has no second derivative
    "softplus": tf.math.softplus,
    "sigmoid": tf.sigmoid,
}
_BLOCK_BYTES = 2**28  # of intermediate values that one block of the Hessian's rows may hold
_OBJECTIVE_BYTES = 2**24  # of hidden vectors, all layers and runs, that are held at a time
# Without sizes: another number of runs or of examples must not be traced anew, which takes a second.
_ROWS = tf.TensorSpec([None, None], tf.float64)


def tape_hessian(network: ShortcutNetwork, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns `hessian.hessian` by GradientTape on the Keras network, a block of rows at a time.

    Compiled once for a network shape and a number of examples. At a kink of ReLU the second
    derivative is taken as 0.

    Args:
      weights: [num_units, shortcut_depth, d, d].
      x, y: [m, d].

    Returns:
      [P, P] float64, parameters in the order of Definition 5.

    Raises:
      ValueError: an activation of one's own that does not take tensors, or lacks a second derivative; Keras runs on
        another backend than TensorFlow.
    """
    check_backend()
    per_row = 4 * len(x) * network.width * network.depth * 8  # bytes; each layer keeps a few arrays [m, width]
    rows = int(np.clip(_BLOCK_BYTES // per_row, 1, network.num_parameters))
    # The weights as Definition 5 orders them: column, then row.
    columns = tf.constant(np.swapaxes(weights, -1, -2).ravel())
    x, y = tf.constant(x), tf.constant(y)
    with naming_operations():
        block_of_rows = _compiled(network, rows).get_concrete_function(columns, x, y, tf.constant(0))
    # The last block overlaps the one before, so that all have one shape and the function is traced once.
    starts = [*range(0, network.num_parameters - rows, rows), network.num_parameters - rows]
    hessian = np.empty((network.num_parameters, network.num_parameters))
    for start in starts:
        hessian[start : start + rows] = block_of_rows(columns, x, y, tf.constant(start))
    return hessian


# Tracing takes seconds. A network is frozen, so it can be the key.
@functools.lru_cache(maxsize=32)
def _compiled(network: ShortcutNetwork, rows: int) -> Callable:
    check_takes_tensors(network)
    model = network.to_keras(np.zeros(network.shape))  # its weights are given at each call
    # An axis for each kernel, [column, row] as Dense has it, which is also the order of Definition 5.
    kernels_shape = (network.depth, network.width, network.width)

    @tf.function(reduce_retracing=True)
    def block_of_rows(columns: tf.Tensor, x: tf.Tensor, y: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as outer:
            outer.watch(columns)
            with tf.GradientTape() as inner:
                inner.watch(columns)
                kernels = tf.unstack(tf.reshape(columns, kernels_shape))
                outputs, _ = model.stateless_call(kernels, [], x)
                # Not model.compute_loss, which Keras computes in float32.
                loss = tf.reduce_mean(half_squared_error(y, outputs))
            gradient = inner.gradient(loss, columns, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            block = tf.slice(gradient, [start], [rows])
        return outer.jacobian(block, columns, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return block_of_rows


def check_backend() -> None:
    """Raises UserError unless Keras runs on TensorFlow, whose GradientTape differentiates the Keras network."""
    if keras.backend.backend() != "tensorflow":
        raise UserError(f"Hessians by GradientTape need KERAS_BACKEND=tensorflow, got {keras.backend.backend()}")


def check_takes_tensors(network: ShortcutNetwork) -> None:
    """Raises ValueError for an activation of one's own that TensorFlow cannot trace, as NumPy's functions."""
    for activation in filter(callable, network.activations):
        try:
            tf.function(lambda z, function=activation: function(z)).get_concrete_function(
                tf.TensorSpec([None, network.width], tf.float64)
            )
        except Exception as error:  # of any class: it is the user's function
            raise ValueError(
                f"activation {activation!r} must take TensorFlow tensors too, as keras.ops.sin does and np.sin does not"
            ) from error


def tensor_forward(network: ShortcutNetwork, weights: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns ŷ [..., m, d] as `ShortcutNetwork.forward`, for tensors: weights [..., *network.shape], x [m, d]."""
    pre, mid, post = (a if callable(a) else _FUNCTIONS[a] for a in network.activations)
    hidden = x
    for unit in range(network.num_units):
        inside = pre(hidden)
        for layer in range(network.shortcut_depth):
            inside = tf.matmul(mid(inside) if layer else inside, weights[..., unit, layer, :, :], transpose_b=True)
        hidden = hidden + post(inside) if network.shortcut else post(inside)
    return hidden


@functools.lru_cache(maxsize=32)
def linear_objective(network: ShortcutNetwork) -> Callable:
    """Returns a function that gives L − L_min and its gradient from second moments: O(depth·d³) a run.

    Returns:
      objective(weights [B, *network.shape], Sxx [d, d], W* [d, d]) -> losses [B], gradients as weights; W* is the best
      linear map.
    """
    eye = tf.eye(network.width, dtype=tf.float64)
    num_units = network.num_units
    shortcut_depth = network.shortcut_depth

    @tf.function(input_signature=[tf.TensorSpec([None, *network.shape], tf.float64), _ROWS, _ROWS])
    def objective(weights: tf.Tensor, input_moment: tf.Tensor, best: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        one = tf.broadcast_to(eye, tf.shape(weights[:, :, 0]))
        inside_before, inside_after = [one], [one]
        for layer in range(shortcut_depth):
            inside_before.append(weights[:, :, layer] @ inside_before[-1])
            inside_after.append(inside_after[-1] @ weights[:, :, shortcut_depth - 1 - layer])
        units = inside_before[-1] + eye if network.shortcut else inside_before[-1]
        before = [one[:, 0]]
        for unit in range(num_units):
            before.append(units[:, unit] @ before[-1])
        error = before[-1] - best
        behind = error @ input_moment  # ∂L/∂W, then what comes after each unit, transposed, times it
        loss = tf.reduce_sum(behind * error, axis=(1, 2)) / 2
        at_unit = []
        for unit in reversed(range(num_units)):
            at_unit.append(behind)
            behind = tf.matmul(units[:, unit], behind, transpose_a=True)
        by_unit = tf.matmul(tf.stack(at_unit[::-1], 1), tf.stack(before[:-1], 1), transpose_b=True)
        gradients = [
            tf.matmul(tf.matmul(inside_after[shortcut_depth - 1 - layer], by_unit, transpose_a=True),
                      inside_before[layer], transpose_b=True)
            for layer in range(shortcut_depth)
        ]  # fmt: skip
        return loss, tf.stack(gradients, 2)

    return objective


@functools.lru_cache(maxsize=32)
def data_objective(network: ShortcutNetwork) -> Callable:
    """Returns a function that gives L and its gradient for any activations, by automatic differentiation.

    Returns:
      objective(weights [B, *network.shape], x [m, d], y [m, d]) -> losses [B], gradients as weights; it goes over the
      data in blocks.

    Raises:
      ValueError: an activation of one's own that does not take tensors.
    """
    check_takes_tensors(network)

    @tf.function(input_signature=[tf.TensorSpec([None, *network.shape], tf.float64), _ROWS, _ROWS])
    def objective(weights: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        num_runs, count = tf.shape(weights)[0], tf.shape(x)[0]
        rows = tf.maximum(64, _OBJECTIVE_BYTES // (8 * network.width * network.depth * num_runs))
        total = tf.zeros_like(weights[:, 0, 0, 0, 0]), tf.zeros_like(weights)

        def add(start: tf.Tensor, total: tuple) -> tuple:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                error = y[start : start + rows] - tensor_forward(network, weights, x[start : start + rows])
                loss = tf.reduce_sum(error * error, axis=(1, 2)) / (2 * tf.cast(count, tf.float64))
            return start + rows, (total[0] + loss, total[1] + tape.gradient(loss, weights))

        return tf.while_loop(lambda start, _: start < count, add, (tf.constant(0), total))[1]

    return objective
