"""Full-batch gradient descent of many runs at once (Li et al. §5).

    paper                                   code
    epoch                                   one step of full-batch gradient descent
    learning rate α                         learning_rates [B]: each run has its own
    loss − opt loss                         Descent.excess_losses

Runs differ in weights and learning rate and share the data. Their weights are stacked on a
leading axis, so an operation on [d, d] matrices is one batched operation for all. A linear
network needs no pass over the data: with W the map of the network, W* the best linear map and
E = W − W*, L − L_min = ½ tr(E Sxx Eᵀ), which does not cancel near the optimum, and
∂L/∂W = E Sxx is carried back through the product by (7) (tape.py). Networks with ReLUs
go over the data (piecewise_gradient.py), others too, by automatic differentiation.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shortcut_study.network import ShortcutNetwork
from shortcut_study.piecewise import is_piecewise_linear
from theory.arrays import finite
from theory.shortcut.networks import least_squares_map, minimum_loss, moments

DIVERGED = 1e6  # times the first loss, or the loss of ŷ = 0 if that is larger


class Descent(NamedTuple):
    """The result of gradient descent for B runs and K snapshots.

    Attributes:
      losses: [num_epochs + 1, B]. L before each epoch, and after the last; NaN from divergence on.
      excess_losses: of the same shape. L − L_min over linear maps, exact for linear networks.
      norms: of the same shape. Average Frobenius norm of the weight matrices.
      diverged_at: [B] int. The epoch before which the weights overflowed or the loss passed DIVERGED times the first;
        −1: none.
      weights: [B, num_units, shortcut_depth, d, d]. After the last epoch; of a diverged run, the last finite ones.
      snapshots: [K, B, num_units, shortcut_depth, d, d]. Weights at the first epoch with at most the requested loss;
        NaN if it was not reached.
    """

    losses: np.ndarray
    excess_losses: np.ndarray
    norms: np.ndarray
    diverged_at: np.ndarray
    weights: np.ndarray
    snapshots: np.ndarray


def descend(
    network: ShortcutNetwork,
    weights: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    learning_rates: np.ndarray | Sequence[float],
    num_epochs: int,
    snapshot_losses: np.ndarray | Sequence[float] = (),
    on_epoch: Callable | None = None,
) -> Descent:
    """Returns the result of gradient descent, W ← W − α ∂L/∂W, on L = 1/(2m) Σ‖y − ŷ‖² (Li et al., (7)).

    A run that diverges is marked and dropped; the others continue, with the numbers of a separate run to 1e-12, and to
    the bit with ReLUs.

    Args:
      weights: [B, num_units, shortcut_depth, d, d]. The initial weights of the runs.
      x, y: [m, d].
      learning_rates: [B].
      num_epochs: int ≥ 0.
      snapshot_losses: K numbers. Losses at which the weights are kept; for a linear network excess losses.
      on_epoch: callable. Called without arguments after each epoch, e.g. to move a progress bar.

    Raises:
      ValueError: shapes that do not belong together, numbers that are not real and finite.
    """
    # copied, as the descent writes into them
    weights = finite("weights", weights).copy()
    learning_rates = finite("learning_rates", learning_rates)
    if weights.shape[1:] != network.shape or learning_rates.shape != weights.shape[:1]:
        raise ValueError(
            f"weights and learning_rates must have shapes [B, {', '.join(map(str, network.shape))}] and [B], "
            f"got {weights.shape} and {learning_rates.shape}"
        )
    x, y = network.examples(x, y)
    least = minimum_loss(x, y)
    objective = loss_and_gradient(network, x, y)
    limit = DIVERGED * np.square(y).sum() / (2 * len(y))
    descent = _loop(objective, weights, learning_rates, num_epochs, np.asarray(snapshot_losses), limit, on_epoch)
    excess = descent.losses if network.is_linear else descent.losses - least
    return descent._replace(losses=excess + least, excess_losses=excess)


def loss_and_gradient(network: ShortcutNetwork, x: np.ndarray, y: np.ndarray) -> Callable:
    """Returns a function: weights [B, num_units, shortcut_depth, d, d] -> losses [B], gradients as weights.

    For linear networks the loss is the excess, L − L_min. TensorFlow or Numba is imported only on this call.

    Raises:
      ValueError: shapes that do not belong together, non-finite numbers.
    """
    x, y = network.examples(x, y)
    if is_piecewise_linear(network) and not network.is_linear:
        from shortcut_study.piecewise_gradient import piecewise_objective

        return piecewise_objective(network, x, y)
    import tensorflow as tf

    from shortcut_study.tape import data_objective, linear_objective

    if network.is_linear:
        compiled = linear_objective(network)
        arrays = (moments(x, y)[0], least_squares_map(x, y))
    else:
        compiled = data_objective(network)
        arrays = (x, y)
    constants = [tf.constant(array) for array in arrays]
    return lambda weights: tuple(tensor.numpy() for tensor in compiled(tf.constant(weights), *constants))


def _loop(
    objective: Callable,
    weights: np.ndarray,
    learning_rates: np.ndarray,
    num_epochs: int,
    snapshot_losses: np.ndarray,
    limit: float,
    on_epoch: Callable | None,
) -> Descent:
    """The descent, weights changed in place; limit, a loss too large; excess_losses are left to the caller."""
    count = len(weights)
    weight_axes = (1, 2, 3, 4)
    losses, norms = np.full((2, num_epochs + 1, count), np.nan)
    diverged_at = np.full(count, -1)
    snapshots = np.full((len(snapshot_losses), *weights.shape), np.nan)
    runs = np.arange(count)  # those that have not diverged
    current = weights
    for epoch in range(num_epochs + 1):
        if not len(runs):
            break
        loss, gradient = objective(current)
        if epoch == 0:
            highest = np.maximum(DIVERGED * loss, limit)
        is_lost = ~(loss <= highest[runs]) | np.isinf(loss)  # also if it is NaN
        if is_lost.any():
            diverged_at[runs[is_lost]] = epoch
            weights[runs[is_lost]] = current[is_lost]
            runs, current, loss, gradient = (array[~is_lost] for array in (runs, current, loss, gradient))
        losses[epoch, runs] = loss
        norms[epoch, runs] = np.sqrt(np.einsum("bulij,bulij->bul", current, current)).mean((1, 2))
        for snapshot, threshold in zip(snapshots, snapshot_losses):
            reached = (loss <= threshold) & np.isnan(snapshot[runs, 0, 0, 0, 0])
            snapshot[runs[reached]] = current[reached]
        if epoch < num_epochs:
            with np.errstate(over="ignore", invalid="ignore"):
                moved = current - learning_rates[runs].reshape(-1, 1, 1, 1, 1) * gradient
            overflows = ~np.isfinite(moved).all(weight_axes)
            if overflows.any():
                diverged_at[runs[overflows]] = epoch + 1
                weights[runs[overflows]] = current[overflows]
                runs, moved = runs[~overflows], moved[~overflows]
            current = moved
        if on_epoch:
            on_epoch()
    weights[runs] = current
    return Descent(losses, losses, norms, diverged_at, weights, snapshots)
