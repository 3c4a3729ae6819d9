"""Losses and gradients of many networks of one shape at once, compiled by TensorFlow; dynamics.py descends by them."""

import functools
from collections.abc import Callable

import tensorflow as tf

from shortcut_study.network import ShortcutNetwork
from shortcut_study.tape import check_takes_tensors, tensor_forward

_BLOCK_BYTES = 2**24  # of hidden vectors, all layers and runs, that are held at a time
# Without sizes: another number of runs or of examples must not be traced anew, which takes a second.
_ROWS = tf.TensorSpec([None, None], tf.float64)


@functools.lru_cache(maxsize=32)
def linear_objective(network: ShortcutNetwork) -> Callable:
    """Returns a function that gives L − L_min and its gradient from second moments alone: O(depth·d³) a run.

    Returns:
      objective(weights [B, *network.shape], Sxx [d, d], W* [d, d]) -> losses [B], gradients as weights; W* is the best
      linear map.
    """
    eye, num_units, shortcut_depth = tf.eye(network.width, dtype=tf.float64), network.num_units, network.shortcut_depth

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
        rows = tf.maximum(64, _BLOCK_BYTES // (8 * network.width * network.depth * num_runs))
        total = tf.zeros_like(weights[:, 0, 0, 0, 0]), tf.zeros_like(weights)

        def add(start: tf.Tensor, total: tuple) -> tuple:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                error = y[start : start + rows] - tensor_forward(network, weights, x[start : start + rows])
                loss = tf.reduce_sum(error * error, axis=(1, 2)) / (2 * tf.cast(count, tf.float64))
            return start + rows, (total[0] + loss, total[1] + tape.gradient(loss, weights))

        return tf.while_loop(lambda start, _: start < count, add, (tf.constant(0), total))[1]

    return objective
