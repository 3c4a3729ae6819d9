"""The mean loss of a Keras model as Keras computes it, as a function of weights that are given.

    equations                                     code
    L(w) = Σ_o c_o / n_o Σ_batches Σ ℓ_o          Objective.total: a batch's part, scales = c_o / n_o; ℓ a value each
    n_o                                           how many values count in all: not those that a mask leaves out

keras.StatelessScope gives the values: wherever a Keras variable is read inside of it, in a layer, a Lambda, a closure
or the loss, it is the given tensor. Nothing is copied and no variable changes. Random numbers that Keras's seed
generators draw are the same at each call, as their states are values of the scope too.
"""

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.trainers.compile_utils import CompileLoss, get_loss

from shortcut_study.curvature.dtypes import computing_in

Loss = keras.losses.Loss | Callable | str | dict | list | None  # as compile takes it
MEANS = "sum_over_batch_size", "mean", "mean_with_sample_weight"


class Sum(NamedTuple):
    """The loss of an output over a batch.

    Attributes:
      total: Sum of its values, each times its sample weight.
      count: How many values count.
      factor: float. The loss's weight among those of other outputs.
      by_shape: bool. Whether the count follows from the number of examples.
    """

    total: Any
    count: Any
    factor: float
    by_shape: bool


class Objective:
    """The loss of a model over a batch: for each output a Keras loss, as compile understands it.

    Args:
      model: keras.Model, built.
      loss, loss_weights: As compile takes them. A loss's mean over values is taken, whatever its reduction.
      training: bool. As the model is called.
      dtype: str. In which all is computed.
    """

    def __init__(self, model: keras.Model, loss: Any, loss_weights: Any, training: bool, dtype: str) -> None:
        self.model, self.loss, self.loss_weights = model, loss, loss_weights
        self.training, self.dtype = training, dtype

    def in_dtype(self, dtype: str) -> "Objective":
        """Returns the same objective, computed in another type."""
        return Objective(self.model, self.loss, self.loss_weights, self.training, dtype)

    @contextlib.contextmanager
    def at(self, weights: Sequence, others: Sequence) -> Iterator[keras.StatelessScope]:
        """Opens a context in which the model's trained and other variables have given values."""
        variables = [*self.model.trainable_variables, *self.model.non_trainable_variables]
        with computing_in(self.model, self.dtype):
            with keras.StatelessScope([*zip(variables, [*weights, *others])], collect_losses=True) as scope:
                yield scope

    def outputs(self, x: Any) -> Any:
        """Returns the model's outputs, in the structure in which it gives them."""
        return self.model(x, training=self.training)

    def with_masks(self, outputs: Sequence, like: Any) -> Any:
        """Returns flat outputs in the structure, and with the masks, of others."""
        for new, old in zip(outputs, keras.tree.flatten(like)):
            if get_keras_mask(old) is not None:
                set_keras_mask(new, get_keras_mask(old))
        return keras.tree.pack_sequence_as(like, outputs)

    def total(self, weights: Sequence, others: Sequence, batch: tuple, scales: Any) -> Any:
        """Returns the sum of a batch's losses, those of each output times its scale."""
        x, y, sample_weight = batch
        with self.at(weights, others):
            sums = self.sums(y, self.outputs(x), sample_weight)
        return sum(scales[i] * found.total for i, found in enumerate(sums))

    def sums(self, y: Any, outputs: Any, sample_weight: Any = None) -> list[Sum]:
        """Returns the loss of each output that has one.

        Raises:
          ValueError: a loss does not give one value, or row of values, an example; names or numbers that do not fit.
        """
        names = list(outputs) if isinstance(outputs, dict) else getattr(self.model, "output_names", None)
        flat = _by_name(outputs, names, 1)
        names = names or list(map(str, range(len(flat))))
        parts = (_by_name(tree, names, len(flat)) for tree in (y, self.loss, self.loss_weights, sample_weight))
        found = []
        for name, z, labels, loss, factor, weight in zip(names, flat, *parts):
            if loss is not None and labels is None:
                raise ValueError(f"output {name} has a loss and no labels")
            if loss is not None:
                found.append(self._sum(get_loss(loss, labels, z), labels, z, factor, weight))
        return found

    def _sum(self, loss: keras.losses.Loss, labels: Any, outputs: Any, factor: Any, weight: Any) -> Sum:
        """Returns the loss of an output: Loss.__call__ in the objective's type, without its division."""
        ops, masks = keras.ops, [get_keras_mask(outputs)]
        labels, outputs = (ops.cast(x, self.dtype) for x in (labels, outputs))
        policy = keras.dtype_policies.DTypePolicy(self.dtype)
        try:
            values = _changed(loss, _dtype_policy=policy, _dtype=self.dtype).call(labels, outputs)
        except Exception as error:  # whatever a loss, which may be a user's function, says of shapes
            shapes = " and outputs ".join(f"[{', '.join(map(str, ('m', *x.shape[1:])))}]" for x in (labels, outputs))
            raise ValueError(f"the loss does not take labels {shapes} together: {first_reason(error)}") from error
        if not len(values.shape):
            raise ValueError("the loss must give one value per example, without a mean over them; it gave one number")
        if values.shape[0] not in (None, outputs.shape[0]):
            raise ValueError(f"the loss must give one value per example, it gave {values.shape} for {outputs.shape}")
        masks = [ops.cast(mask, self.dtype) for mask in (*masks, get_keras_mask(values)) if mask is not None]
        values, counted = ops.cast(values, self.dtype), functools.reduce(operator.mul, masks) if masks else None
        count, by_shape = ops.cast(ops.size(values), self.dtype), not masks
        if masks:
            count = count * ops.mean(counted)
            values = ops.where(_like(counted, values) > 0, values, 0)  # where a value that does not count is NaN too
        if weight is not None:
            weight = _like(ops.cast(weight, self.dtype), values)
            values = values * weight
            if loss.reduction == "mean_with_sample_weight":
                by_shape, count = False, ops.sum(weight * _like(counted, values) if masks else weight)
        return Sum(ops.sum(values), count, 1.0 if factor is None else float(factor), by_shape)

    def by_keras(self, y: Any, outputs: Any, sample_weight: Any = None) -> Any:
        """Returns the loss of a batch as compile's own code computes it, in its own type."""
        loss = keras.tree.map_structure(lambda of: None if of is None else _mean_of(of), self.loss)
        names = getattr(self.model, "output_names", None)
        return CompileLoss(loss, self.loss_weights, output_names=names)(y, outputs, sample_weight)


def _changed(loss: keras.losses.Loss, **attributes: Any) -> keras.losses.Loss:
    """Returns a loss with other attributes, which shares all else with the loss; copy.copy would serialise it."""
    other = object.__new__(type(loss))
    other.__dict__.update(loss.__dict__ | attributes)
    return other


def _mean_of(loss: Any) -> Any:
    """Returns a loss that takes the mean over values, where it takes a sum or leaves them."""
    is_mean = not isinstance(loss, keras.losses.Loss) or loss.reduction in MEANS
    return loss if is_mean else _changed(loss, reduction="sum_over_batch_size")


def _by_name(tree: Any, names: list | None, num: int) -> list:
    """Returns a tree's parts in the order of the outputs; one that is no list or dict belongs to each of them."""
    if isinstance(tree, dict):
        if unknown := set(tree) - set(names or tree):
            raise ValueError(f"there is no output named {', '.join(map(str, unknown))}, only {', '.join(names)}")
        return [tree.get(name) for name in names or tree]
    if isinstance(tree, list | tuple):
        if names and len(tree) != len(names):
            raise ValueError(f"the model has {len(names)} outputs, got {len(tree)} losses, labels or weights")
        return list(tree)
    return [tree] * num


def _like(factors: Any, values: Any) -> Any:
    """Returns factors with as many axes as the values: a number an example, and [m, 1] for [m]."""
    while len(factors.shape) < len(values.shape):
        factors = keras.ops.expand_dims(factors, -1)
    return keras.ops.squeeze(factors, -1) if len(factors.shape) > len(values.shape) else factors


def loss_of(model: keras.Model, loss: Any = None, loss_weights: Any = None) -> tuple[Any, Any]:
    """Returns a loss and its weights as given, else those of compile, else the cross-entropy of logits."""
    if loss is not None:
        return loss, loss_weights
    if getattr(model, "loss", None) is not None:
        weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
        return model.loss, weights if loss_weights is None else loss_weights
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True), loss_weights


def loss_name(loss: Any) -> str:
    """Returns the name of a loss: its class, its name, or that of the function."""
    if isinstance(loss, str):
        return loss
    if isinstance(loss, list | tuple | dict):
        return ", ".join(loss_name(of) for of in keras.tree.flatten(loss))
    return type(loss).__name__ if isinstance(loss, keras.losses.Loss) else getattr(loss, "__name__", repr(loss))


def first_reason(error: Exception) -> str:
    """Returns what an error says, in one line: of Keras's, the part in bold; without the names of nodes."""
    text = re.search("\x1b\\[1m(.*)", str(error)) or re.search("(.*)", str(error))
    return re.sub(r"\x1b\[0m|\{\{.*?\}\} ?| ?\[Op:.*", "", text[1]).strip()


def flat(arrays: Sequence) -> np.ndarray:
    """Returns arrays one after the other, each row by row, in one vector."""
    return np.concatenate([np.ravel(keras.ops.convert_to_numpy(array)) for array in arrays])
