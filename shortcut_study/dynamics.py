"""Full-batch gradient descent of many runs at once: one compiled program for a network shape (Li et al. §5).

    paper                                   code
    epoch                                   one step of full-batch gradient descent
    learning rate α                         learning_rates [B]: each run has its own
    loss − opt loss                         Descent.excess_losses

Runs differ in weights and learning rate and share the data. Their weights are stacked on a
leading axis, so an operation on [d, d] matrices is one batched operation for all. A linear
network needs no pass over the data: with W the map of the network, W* the best linear map and
E = W − W*, L − L_min = ½ tr(E Sxx Eᵀ), which does not cancel near the optimum, and
∂L/∂W = E Sxx is carried back through the product by (7).
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from shortcut_study.network import ShortcutNetwork
from shortcut_study.tape import tensor_forward
from theory.shortcut_networks import least_squares_map, minimum_loss, moments

DIVERGED = 1e6  # times the first loss, or the loss of ŷ = 0 where that is larger
_BLOCK_BYTES = 2**24  # of hidden vectors of one layer, all runs, that are held at a time


class Descent(NamedTuple):
    """What gradient descent did, for B runs and K snapshots.

    Attributes:
      losses: [num_epochs + 1, B]. L before each epoch, and after the last; NaN from divergence on.
      excess_losses: of the same shape. L − L_min over linear maps, exact for linear networks.
      norms: of the same shape. Average Frobenius norm of the weight matrices.
      diverged_at: [B] int. The epoch before which the weights overflowed or the loss passed DIVERGED times the first;
        −1: none.
      weights: [B, num_units, shortcut_depth, d, d]. After the last epoch; of a diverged run, the last finite ones.
      snapshots: [K, B, num_units, shortcut_depth, d, d]. At the first epoch with a loss of at most that asked for;
        NaN where it was not reached.
    """

    losses: np.ndarray
    excess_losses: np.ndarray
    norms: np.ndarray
    diverged_at: np.ndarray
    weights: np.ndarray
    snapshots: np.ndarray


def descend(network: ShortcutNetwork, weights, x, y, learning_rates, num_epochs: int, snapshot_losses=()) -> Descent:
    """Gradient descent, W ← W − α ∂L/∂W, on L = 1/(2m) Σ‖y − ŷ‖² (Li et al., (7)).

    A run that diverges is marked and stands still; the others go on, with the same numbers as
    alone to 1e-12.

    Args:
      network: ShortcutNetwork.
      weights: [B, num_units, shortcut_depth, d, d]. Where the runs start.
      x, y: [m, d].
      learning_rates: [B].
      num_epochs: int ≥ 0.
      snapshot_losses: K numbers. Losses at which the weights are kept; for a linear network excess losses.

    Raises:
      ValueError: shapes that do not belong together.
    """
    weights, learning_rates = np.asarray(weights, np.float64), np.asarray(learning_rates, np.float64)
    if weights.shape[1:] != network.shape or learning_rates.shape != weights.shape[:1]:
        raise ValueError(
            f"weights and learning_rates must have shapes [B, {', '.join(map(str, network.shape))}] and [B], "
            f"got {weights.shape} and {learning_rates.shape}"
        )
    least = minimum_loss(x, y)
    if network.is_linear:
        objective = _linear_objective(network, x, y)
    else:
        objective = _data_objective(network, x, y, len(weights))
    limit = DIVERGED * np.square(y).sum() / (2 * len(y))
    found = _loop(objective, network, weights, learning_rates, num_epochs, snapshot_losses, limit)
    losses, norms, diverged_at, final, snapshots = (tensor.numpy() for tensor in found)
    excess = losses if network.is_linear else losses - least
    return Descent(excess + least, excess, norms, diverged_at, final, snapshots)


def _loop(objective, network: ShortcutNetwork, weights, learning_rates, num_epochs: int, snapshot_losses, limit: float):
    """Compiles and runs the descent; objective(weights) -> (loss [B], gradient as weights); limit, a loss too large."""
    thresholds = tf.constant(np.asarray(snapshot_losses, np.float64))
    count = len(weights)
    alike = (1,) * len(network.shape)

    def by_run(values):
        return tf.reshape(values, (-1, *alike))

    def epoch(index, state):
        weights, first, diverged_at, snapshots, history = state
        loss, gradient = objective(weights)
        first = tf.where(index == 0, loss, first)
        # Not ~(loss <= …): TensorFlow's graph optimiser makes that loss > …, which a NaN passes.
        is_lost = (loss > tf.maximum(DIVERGED * first, limit)) | ~tf.math.is_finite(loss)
        diverged_at = tf.where((diverged_at < 0) & is_lost, index, diverged_at)
        runs = diverged_at < 0
        loss = tf.where(runs, loss, np.nan)
        norm = tf.reduce_mean(tf.norm(weights, axis=(-2, -1)), axis=(1, 2))
        history = (history[0].write(index, loss), history[1].write(index, tf.where(runs, norm, np.nan)))
        reached = (loss <= thresholds[:, None]) & tf.math.is_nan(snapshots[:, :, 0, 0, 0, 0])
        if len(snapshot_losses):
            taken = tf.reshape(reached, (len(snapshot_losses), count, *alike))
            snapshots = tf.cond(tf.reduce_any(reached), lambda: tf.where(taken, weights, snapshots), lambda: snapshots)
        moved = weights - by_run(tf.constant(learning_rates)) * gradient
        overflows = runs & ~tf.reduce_all(tf.math.is_finite(moved), axis=(1, 2, 3, 4))
        diverged_at = tf.where(overflows, index + 1, diverged_at)
        goes_on = runs & ~overflows & (index < num_epochs)
        return index + 1, (tf.where(by_run(goes_on), moved, weights), first, diverged_at, snapshots, history)

    @tf.function
    def program(weights):
        empty = tf.fill((len(snapshot_losses), count, *network.shape), tf.constant(np.nan, tf.float64))
        history = tuple(tf.TensorArray(tf.float64, num_epochs + 1, element_shape=(count,)) for _ in range(2))
        state = (weights, tf.zeros((count,), tf.float64), tf.fill((count,), -1), empty, history)
        _, state = tf.while_loop(lambda index, _: index <= num_epochs, epoch, (tf.constant(0), state))
        weights, _, diverged_at, snapshots, history = state
        return history[0].stack(), history[1].stack(), diverged_at, weights, snapshots

    return program(tf.constant(weights))


def _linear_objective(network: ShortcutNetwork, x, y):
    """L − L_min and its gradient from moments alone: O(depth·d³) a run."""
    input_moment = tf.constant(moments(x, y)[0])
    best = tf.constant(least_squares_map(x, y))
    eye, num_units, shortcut_depth = tf.eye(network.width, dtype=tf.float64), network.num_units, network.shortcut_depth

    def objective(weights):
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


def _data_objective(network: ShortcutNetwork, x, y, num_runs: int):
    """L and its gradient for any activations, over the data in blocks that stay in the cache."""
    rows = max(64, _BLOCK_BYTES // (8 * network.width * num_runs * network.depth))
    starts = tf.range(0, len(x), rows)
    x, y = tf.constant(np.asarray(x, np.float64)), tf.constant(np.asarray(y, np.float64))

    def block(weights, start):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            error = y[start : start + rows] - tensor_forward(network, weights, x[start : start + rows])
            loss = tf.reduce_sum(error * error, axis=(1, 2)) / (2 * len(x))
        return loss, tape.gradient(loss, weights)

    def objective(weights):
        nothing = tf.zeros_like(weights[:, 0, 0, 0, 0]), tf.zeros_like(weights)

        def add(index, total):
            return index + 1, tuple(a + b for a, b in zip(total, block(weights, starts[index])))

        return tf.while_loop(lambda index, _: index < len(starts), add, (tf.constant(0), nothing))[1]

    return objective
