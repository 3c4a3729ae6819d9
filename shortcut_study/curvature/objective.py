"""The mean loss of a Keras model as Keras computes it, as a function of weights that are given.

    equations                                     code
    L(w) = Σ_o c_o / n_o Σ_batches Σ ℓ_o          Objective.total: a batch's part, scales = c_o / n_o; ℓ a value each
    n_o                                           how many values count in all: not those that a mask leaves out
    L(w) = Σ_batches m_b / m · compute_loss       if the model's class overrides compute_loss: m_b of m examples

Wherever a Keras variable is read inside of a keras.StatelessScope, in a layer, a Lambda, a closure or the loss, it is
the given tensor; no variable changes. Random numbers that Keras's seed generators draw are the same at each call.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.backend.common.dtypes import BIT64_TO_BIT32_DTYPE
from keras.src.trainers.compile_utils import CompileLoss, get_loss

from identity_matters.errors import UserError

MEANS = "sum_over_batch_size", "mean", "mean_with_sample_weight"
COMPUTE_LOSS = "compute_loss"  # in place of a loss: the model's own method


class LossSum(NamedTuple):
    """The loss of an output over a batch."""

    total: Any  # sum of its values, each times its sample weight
    count: Any  # how many values count
    factor: float  # the loss's weight among those of other outputs


class Objective(NamedTuple):
    """The loss of a model over a batch: for each output a Keras loss, as compile understands it."""

    model: keras.Model  # built
    loss: Any  # as compile takes it; its mean over values is taken, whatever its reduction; or COMPUTE_LOSS
    loss_weights: Any  # as compile takes them
    training: bool  # as the model is called
    dtype: str  # in which all is computed

    @contextlib.contextmanager
    def bind(self, w: Any, others: Sequence) -> Iterator[keras.StatelessScope]:
        """Context manager: the model's trained variables, flat or as a list in w, and its others have given values."""
        trained = self.model.trainable_variables
        values = [*zip(trained, parts_of(w, trained, ops)), *zip(self.model.non_trainable_variables, others)]
        with dtype_override(self.model, self.dtype), keras.StatelessScope(values, collect_losses=True) as scope:
            yield scope

    @property
    def draws(self) -> bool:
        """Whether the loss uses random numbers, which differ between types."""
        return self.training and any("seed_generator" in variable.path for variable in self.model.variables)

    def outputs(self, x: Any) -> Any:
        """Returns the model's outputs, in the structure in which it gives them."""
        return self.model(x, training=self.training)

    def with_masks(self, outputs: Sequence, like: Any) -> Any:
        """Returns flat outputs in the structure, and with the masks, of others."""
        for new, old in zip(outputs, keras.tree.flatten(like)):
            if get_keras_mask(old) is not None:
                set_keras_mask(new, get_keras_mask(old))
        return keras.tree.pack_sequence_as(like, outputs)

    def parts(self, w: Any, others: Sequence, batch: tuple) -> list[LossSum]:
        """Returns the loss over a batch of each output that has one."""
        x, y, *sample_weight = batch
        with self.bind(w, others):
            return self.sums(x, y, self.outputs(x), *sample_weight)

    def total(self, w: Any, others: Sequence, batch: tuple, scales: Any) -> Any:
        """Returns the sum of a batch's losses, those of each output times its scale."""
        return sum(scales[i] * part.total for i, part in enumerate(self.parts(w, others, batch)))

    def sums(self, x: Any, y: Any, outputs: Any, sample_weight: Any = None) -> list[LossSum]:
        """Returns the loss of each output that has one, or one loss if it is the model's compute_loss."""
        if self.loss is COMPUTE_LOSS:
            count = ops.cast(ops.shape(keras.tree.flatten(x)[0])[0], self.dtype)
            value = ops.cast(self.keras_loss(x, y, outputs, sample_weight), self.dtype)
            return [LossSum(value * count, count, 1.0)]
        names = list(outputs) if isinstance(outputs, dict) else getattr(self.model, "output_names", None)
        flat = _by_name(outputs, names, 1)
        names = names or list(map(str, range(len(flat))))
        parts = (_by_name(tree, names, len(flat)) for tree in (y, self.loss, self.loss_weights, sample_weight))
        rows = [*zip(names, flat, *parts)]
        for name, _, labels, loss, *_ in rows:
            has_labels = labels is not None and labels.shape[1:] != (0,)  # which `gathered` writes for None
            if loss is not None and not has_labels:
                raise UserError(f"output {name} has a loss and no labels")
        return [self._sum(get_loss(loss, y, z), y, z, *rest) for _, z, y, loss, *rest in rows if loss is not None]

    def _sum(self, loss: keras.losses.Loss, labels: Any, outputs: Any, factor: Any, weight: Any) -> LossSum:
        """Returns the loss of an output: Loss.__call__ in the objective's type, without its division."""
        mask = get_keras_mask(outputs)
        y = ops.cast(labels, self.dtype)
        z = ops.cast(outputs, self.dtype)
        policy = keras.dtype_policies.DTypePolicy(self.dtype)
        try:
            values = _changed(loss, _dtype_policy=policy, _dtype=self.dtype).call(y, z)
        except Exception as error:  # whatever a loss, which may be a user's function, says of shapes
            shapes = " and outputs ".join(f"[{', '.join(map(str, ('m', *x.shape[1:])))}]" for x in (y, z))
            raise ValueError(f"the loss does not take labels {shapes} together: {first_reason(error)}") from error
        if len(values.shape) == 0:
            raise UserError("the loss must give one value per example, without a mean over them; it gave one number")
        if values.shape[0] not in (None, z.shape[0]):
            raise UserError(f"the loss must give one value per example, it gave {values.shape} for {z.shape}")
        given_masks = (mask, get_keras_mask(values))
        masks = [ops.cast(given, self.dtype) for given in given_masks if given is not None]
        values = ops.cast(values, self.dtype)
        counted = math.prod(masks)
        count = ops.cast(ops.size(values), self.dtype)
        if masks:
            count = count * ops.mean(counted)
            values = ops.where(_like(counted, values) > 0, values, 0)  # also if a value that does not count is NaN
        if weight is not None and weight.shape[1:] != (0,):
            fits = len(weight.shape) <= len(values.shape) or tuple(weight.shape[len(values.shape) :]) == (1,)
            if not fits:
                taken, got = (f"[{', '.join(['m', *map(str, a.shape[1:])])}]" for a in (values, weight))
                raise UserError(f"sample_weight must be {taken} or [m, 1] for one loss per example, got {got}")
            weight = _like(ops.cast(weight, self.dtype), values)
            values = values * weight
            if loss.reduction == "mean_with_sample_weight":
                count = ops.sum(weight * _like(counted, values) if masks else weight)
        return LossSum(ops.sum(values), count, 1.0 if factor is None else float(factor))

    def keras_loss(self, x: Any, y: Any, outputs: Any, sample_weight: Any = None) -> Any:
        """Returns the loss of a batch as Keras's own code computes it, in its own type: compile's, or compute_loss.

        The mean is taken for every loss, and weight penalties are omitted.
        """
        if self.loss is COMPUTE_LOSS:
            with _without_weight_penalties(self.model):
                return self.model._compute_loss(x, y, outputs, sample_weight, training=self.training)

        def mean_of(loss: Any) -> Any:
            is_mean = not isinstance(loss, keras.losses.Loss) or loss.reduction in MEANS
            return loss if is_mean else _changed(loss, reduction="sum_over_batch_size")

        def without_nothing(tree: Any) -> Any:
            is_nothing = lambda array: array.shape[1:] == (0,)
            return keras.tree.map_structure(lambda array: None if is_nothing(array) else array, tree)

        loss = keras.tree.map_structure(mean_of, self.loss)
        names = getattr(self.model, "output_names", None)
        y = without_nothing(y)
        if sample_weight is not None:
            sample_weight = without_nothing(sample_weight)
        if isinstance(sample_weight, dict) and isinstance(outputs, dict):
            sample_weight = dict.fromkeys(outputs) | sample_weight  # Keras's own code asks for each
        return CompileLoss(loss, self.loss_weights, output_names=names)(y, outputs, sample_weight)


@contextlib.contextmanager
def _without_weight_penalties(model: keras.Model) -> Iterator[None]:
    """Context manager: no variable of a model has a regulariser."""
    before = [(variable, variable.regularizer) for variable in model.trainable_variables]
    try:
        for variable, _ in before:
            variable.regularizer = None
        yield
    finally:
        for variable, regularizer in before:
            variable.regularizer = regularizer


@contextlib.contextmanager
def dtype_override(model: keras.Model, dtype: str) -> Iterator[None]:
    """Context manager: a model's layers, inputs, losses and floating variables say that they are of a type.

    Values of that type that a StatelessScope maps to the variables then pass through the model without a cast, as those
    of a model that was made in that type. The variables' own values stay as they are.
    """
    changes: list[tuple[Any, str, Any]] = []
    for layer in model._flatten_layers():
        # What Keras computes again to save memory fails in a tf.function, and is the same function.
        changes.append((layer, "_remat_mode", None))
        if layer.dtype_policy.quantization_mode is None:
            changes.append((layer, "_dtype_policy", keras.dtype_policies.DTypePolicy(dtype)))
        graph = getattr(layer, "_functional", layer)  # that of a sequential model
        inputs = [layer] if isinstance(layer, keras.layers.InputLayer) else getattr(graph, "_inputs", None) or []
        changes += [(x, "_dtype", dtype) for x in inputs if "float" in x.dtype]  # to which they are cast
    changes += [(variable, "_dtype", dtype) for variable in model.variables if "float" in variable.dtype]
    for loss in _compiled_losses(model):  # in which compute_loss may compute
        changes += [(loss, "_dtype", dtype), (loss, "_dtype_policy", keras.dtype_policies.DTypePolicy(dtype))]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    narrowed = BIT64_TO_BIT32_DTYPE["float64"]
    try:
        # But on TensorFlow, tanh and other operations of Keras would compute float64 in float32.
        BIT64_TO_BIT32_DTYPE["float64"] = "float64" if dtype == "float64" else narrowed
        for owner, name, value in changes:
            object.__setattr__(owner, name, value)  # not Keras's __setattr__, which tracks its values
        yield
    finally:
        BIT64_TO_BIT32_DTYPE["float64"] = narrowed
        for owner, name, value in before:
            object.__setattr__(owner, name, value)


def _compiled_losses(model: keras.Model) -> list[keras.losses.Loss]:
    """Returns the losses that Keras's compute_loss calls."""
    compiled = getattr(model, "_compile_loss", None)
    found = keras.tree.flatten(getattr(model, "loss", None)) if compiled else []
    found += [compiled, *(part.loss for part in compiled._flat_losses or ())] if compiled else []
    distinct = {id(loss): loss for loss in found if isinstance(loss, keras.losses.Loss)}
    return [*distinct.values()]


def _changed(loss: keras.losses.Loss, **attributes: Any) -> keras.losses.Loss:
    """Returns a loss with other attributes, which shares all else with the loss; copy.copy would serialise it."""
    other = object.__new__(type(loss))
    other.__dict__.update(loss.__dict__ | attributes)
    return other


def _by_name(tree: Any, names: list | None, num: int) -> list:
    """Returns a tree's parts in the order of the outputs; one that is no list or dict belongs to each of them."""
    if isinstance(tree, dict):
        names = names or list(tree)
        unknown = ", ".join(str(name) for name in tree if name not in names)
        if unknown:
            raise UserError(f"there is no output named {unknown}, only {', '.join(names)}")
        return [tree.get(name) for name in names]
    if isinstance(tree, list | tuple):
        fits = not names or len(tree) == len(names)
        if not fits:
            raise UserError(f"the model has {len(names or [])} outputs, got {len(tree)} losses, labels or weights")
        return list(tree)
    return [tree] * num


def _like(factors: Any, values: Any) -> Any:
    """Returns factors with as many axes as the values: a number an example, and [m, 1] for [m]."""
    while len(factors.shape) < len(values.shape):
        factors = ops.expand_dims(factors, -1)
    return ops.squeeze(factors, -1) if len(factors.shape) > len(values.shape) else factors


def loss_of(model: keras.Model, loss: Any = None, loss_weights: Any = None) -> tuple[Any, Any]:
    """Returns a loss and its weights as given, else what `fit` minimises, else the cross-entropy of logits.

    Raises ValueError if the model's class overrides train_step, because its loss is then unknown.
    """
    if loss is not None:
        return loss, loss_weights
    name = type(model).__name__
    if _overrides(model, "train_step"):
        raise ValueError(f"{name} overrides train_step, so its loss is unknown; pass loss=…")
    if _overrides(model, "compute_loss"):
        if loss_weights is not None:
            raise UserError(f"loss_weights have no effect on {name}.compute_loss; pass loss=… with them")
        return COMPUTE_LOSS, None
    if getattr(model, "loss", None) is not None:
        compiled = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
        return model.loss, compiled if loss_weights is None else loss_weights
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True), loss_weights


def _overrides(model: keras.Model, name: str) -> bool:
    return getattr(type(model), name) is not getattr(keras.Model, name)


def weights_dtype(model: keras.Model) -> str:
    """Returns the type of a model's trained weights: float64 if any of them is, else float32."""
    return "float64" if "float64" in {variable.dtype for variable in model.trainable_variables} else "float32"


def loss_name(loss: Any, model: keras.Model) -> str:
    """Returns the name of a loss: its class, its name, or that of the function or the method."""
    if loss is COMPUTE_LOSS:
        return f"{type(model).__name__}.compute_loss"
    if isinstance(loss, list | tuple | dict):
        return ", ".join(loss_name(part, model) for part in keras.tree.flatten(loss))
    if isinstance(loss, str):
        return loss
    return type(loss).__name__ if isinstance(loss, keras.losses.Loss) else getattr(loss, "__name__", repr(loss))


def first_reason(error: Exception) -> str:
    """Returns the first line of an error's message, without node names; for Keras's errors, the part in bold."""
    text = re.search("\x1b\\[1m(.*)", str(error)) or re.search("(.*)", str(error))
    return re.sub(r"\x1b\[0m|\{\{.*?\}\} ?| ?\[Op:.*", "", text[1]).strip()


def unfit_examples(error: Exception) -> ValueError:
    """Returns the error for examples that an operation of the model or the loss does not take."""
    return ValueError(f"the model or the loss does not take these examples: {first_reason(error)}")


def to_vector(arrays: Sequence, dtype: str) -> np.ndarray:
    """Returns arrays of a backend one after the other, each row by row, in one vector of NumPy."""
    return np.concatenate([np.ravel(np.asarray(ops.convert_to_numpy(array), dtype)) for array in arrays])


def parts_of(vector: Any, variables: Sequence, numpy: Any = np) -> list:
    """Returns a flat vector, of NumPy or of `numpy`, in the shapes of variables; a list, in these already, as it is."""
    if isinstance(vector, list):
        return vector
    ends = [int(end) for end in np.cumsum([math.prod(variable.shape) for variable in variables])[:-1]]
    parts = numpy.split(vector, ends) if ends else [vector]  # as TensorFlow takes an empty list for floats
    return [numpy.reshape(part, tuple(variable.shape)) for part, variable in zip(parts, variables)]


def step_along(point: np.ndarray, step: float, direction: np.ndarray, dtype: str) -> np.ndarray:
    """Returns a point, a step along a direction away from another one, in a type."""
    result = np.multiply(direction, step, dtype=dtype)
    result += point
    return result
