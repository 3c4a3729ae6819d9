"""The inputs of a Hessian as users have them: examples in arrays or batches, and the loss of a compiled model."""

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from identity_matters.data.arrays import as_numbers, batches_of
from shortcut_study.curvature.checks import Loss

# Of a batch by default: numbers in the inputs, as of 128 CIFAR images, and examples. Larger ones were slower.
BATCH_NUMBERS, BATCH_EXAMPLES = 128 * 32 * 32 * 3, 256


class Examples(NamedTuple):
    """All examples of a loss, and the number taken at a time."""

    x: np.ndarray
    y: np.ndarray
    batch_size: int


def gathered(x: Any, y: Any = None, batch_size: int | None = None) -> Examples:
    """Returns the examples in arrays, which are read once: products ask for the same ones again and again.

    Args:
      x: [m, …]; or, without y, batches: a tf.data.Dataset, a PyDataset, or an iterable, of pairs (x, y).
      y: [m] or [m, …].
      batch_size: int. None: of batches the size of the first; else at most 256 examples, or as many as have 400,000
        numbers, in batches of one size.

    Raises:
      ValueError: no batches, batches that are no pairs or of several shapes, or more of them than half of the memory;
        what is no numbers.
    """
    if y is None:
        pairs = list(_within_memory(batches_of("x", _with_an_end(x))))
        if not pairs:
            raise ValueError("need y, or batches of pairs (x, y) as x; got no batch")
        try:
            x, y = (np.concatenate(arrays) for arrays in zip(*pairs))
        except ValueError as error:
            raise ValueError(f"the batches differ in more than their number of examples: {error}") from error
        return Examples(x, y, len(pairs[0][0]) if batch_size is None else batch_size)
    x, y = as_numbers("x, given with y,", x), as_numbers("labels", y)
    if batch_size is None:
        most = max(1, min(BATCH_EXAMPLES, BATCH_NUMBERS // max(1, math.prod(x.shape[1:]))))
        num_examples = len(x) if x.ndim else 0
        batch_size = -(-num_examples // max(1, -(-num_examples // most))) or 1
    return Examples(x, y, batch_size)


def _with_an_end(x: Any) -> Iterable:
    """Returns batches as they are; rejects what has no end, and arrays."""
    if isinstance(x, tf.data.Dataset) and x.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError("the data set repeats without end; take some batches of it, e.g. x.take(10)")
    if isinstance(x, np.ndarray | tf.Tensor) or not isinstance(x, Iterable):
        raise ValueError(f"need y, or batches of pairs (x, y) as x; got a {type(x).__name__} without y")
    return x


def _within_memory(pairs: Iterable) -> Iterator:
    """Yields pairs of arrays; raises before they fill the memory, as batches without end would."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    size = 0
    for x, y in pairs:
        size += x.nbytes + y.nbytes
        if size > most:
            raise ValueError(f"the batches have more than {most / 1e9:.1f} GB, half of the memory; take some of them")
        yield x, y


def loss_of(model: keras.Model, loss: Loss = None) -> Loss:
    """Returns a loss as given, else that with which a model is compiled, else None: the cross-entropy of logits.

    Raises:
      ValueError: the model is compiled with several losses, or with a weight of its loss.
    """
    if loss is not None or getattr(model, "loss", None) is None:
        return loss
    losses = keras.tree.flatten(model.loss)
    weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
    if len(losses) != 1 or any(weight != 1 for weight in keras.tree.flatten(weights) if weight is not None):
        raise ValueError(
            "the model is compiled with several losses, or with loss_weights; pass the one of interest: loss=…"
        )
    return losses[0]


def loss_name(loss: Loss) -> str:
    """Returns what a loss is called: its class, its name, or that of the function."""
    if loss is None:
        return "cross-entropy of logits"
    if isinstance(loss, str):
        return loss
    return type(loss).__name__ if isinstance(loss, keras.losses.Loss) else getattr(loss, "__name__", repr(loss))
