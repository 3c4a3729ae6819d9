"""Copies of Keras models whose layers are changed on the way, and a check that they are the same network."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

TOLERANCE = 1e-3  # of the largest |output|: far above rounding, far below the difference of another network
UNKNOWN_SIZE = 32  # of an axis that a model leaves open
_COPIED_WHOLE = "its get_config must say all that its __init__ takes, and all that was set since but for weights"


def copy_model(model: keras.Model, clone_function: Callable, dtype: str = "") -> keras.Model:
    """Returns a copy of a model, with its weights, that takes any number of examples.

    Args:
      model: A functional or sequential model.
      clone_function: callable. A layer -> its copy; the layers of models in the model are given it one by one.
      dtype: str. Of the copy's inputs; empty: as the model's.

    Raises:
      ValueError: the model is of a class of its own, or a layer's copy has weights of other shapes.
    """
    if getattr(model, "inputs", None) is None:
        raise ValueError(f"the model must be functional or sequential, and built; got a {type(model).__name__}")

    def of_type(x: keras.KerasTensor) -> keras.KerasTensor:
        """The clone's inputs would be float32 in any case, and round what a float64 model is given."""
        kept = dtype if dtype and "float" in x.dtype else x.dtype
        return keras.Input(batch_shape=(None, *x.shape[1:]), dtype=kept, name=x.name)  # any number of examples

    is_sequential = isinstance(model, keras.Sequential)  # whose copy takes its input in a list
    inputs = keras.tree.map_structure(of_type, model.inputs if is_sequential else model.input)

    def clone(layer: keras.Layer) -> keras.Layer:
        """Copies models in the model in the same way; Keras's own recursion would make their inputs float32."""
        return copy_model(layer, clone_function, dtype) if getattr(layer, "inputs", None) else clone_function(layer)

    copy = keras.models.clone_model(model, input_tensors=inputs, clone_function=clone)
    for layer, cloned in zip(model.layers, copy.layers):
        if [weight.shape for weight in layer.weights] != [weight.shape for weight in cloned.weights]:
            raise ValueError(f"{named(layer)} has other weights as a copy: {_COPIED_WHOLE}")
    copy.set_weights(model.get_weights())
    for weight, copied in zip(model.weights, copy.weights):
        copied.trainable = weight.trainable  # frozen one by one, which no layer's configuration says
    for layer in copy.layers:
        if hasattr(layer, "finalize_state"):  # Normalization computes by constants that it makes of its weights here
            layer.finalize_state()
    return copy


def layers_of(model: keras.Model) -> Iterator[keras.Layer]:
    """Yields the layers of a model, in place of the models in it theirs."""
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from layers_of(layer)
        else:
            yield layer


def check_copy(model: keras.Model, copy: keras.Model) -> None:
    """Checks on a few random numbers that a copy computes what its model does, layer by layer.

    The outputs alone would not tell: a last layer of zeros hides what the others do. Models in the model are checked by
    themselves.

    Raises:
      ValueError: a layer's copy gives another output, or the copy trains other weights.
    """
    pairs = list(zip(model.layers, copy.layers))
    for layer, copied in pairs:
        if getattr(layer, "inputs", None):
            check_copy(layer, copied)
    compared = [pair for pair in pairs if pair[0] is not pair[1] and all(map(_has_output, pair))]
    layers, copies = ([pair[i] for pair in compared] for i in range(2))
    if not (_is_within(model, layers) and _is_within(copy, copies)):
        layers, copies = [], []
    batch = keras.tree.map_structure(_random_batch, _inputs(model))
    try:
        outputs, again = (_outputs(model, layers)(batch) for _ in range(2))
    except (TypeError, ValueError, tf.errors.OpError):
        return  # a model that takes other numbers than these
    others = _outputs(copy, copies)(batch)
    for layer, first, second, other in zip([*layers, None], outputs, again, others):
        # What draws random numbers is check_twice_differentiable's to refuse.
        if not _differ(first, second) and _differ(first, other):
            subject = named(layer) if layer else "a layer"
            raise ValueError(f"{subject} computes something else as a copy: {_COPIED_WHOLE}")
    if _trained(model) != _trained(copy):
        raise ValueError("the copy of the model trains other weights than the model, or in another order")


def named(layer: keras.Layer) -> str:
    """Returns a layer's name and class, as the subject of a sentence."""
    return f"layer {layer.name}, a {type(layer).__name__},"


def _inputs(model: keras.Model) -> Any:
    """A model's inputs in the structure in which it takes them; a Sequential says it in a list of one."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def _has_output(layer: keras.Layer) -> bool:
    """Whether a layer has an output; those of models in the model are in a graph of their own."""
    try:
        return layer.output is not None and not getattr(layer, "inputs", isinstance(layer, keras.layers.InputLayer))
    except (AttributeError, ValueError):
        return False


def _is_within(model: keras.Model, layers: list[keras.Layer]) -> bool:
    """Whether the layers' outputs are in the model's graph; a layer has that of its first call, perhaps elsewhere."""
    try:
        return bool(_outputs(model, layers))
    except ValueError:
        return False


def _random_batch(x: keras.KerasTensor) -> np.ndarray:
    """Returns numbers of an input's shape and type, the same at every call."""
    shape, random = (x.shape[0] or 2, *(size or UNKNOWN_SIZE for size in x.shape[1:])), np.random.default_rng(0)
    return random.standard_normal(shape).astype(x.dtype) if "float" in x.dtype else random.integers(0, 2, shape)


def _outputs(model: keras.Model, layers: list[keras.Layer]) -> keras.Model:
    """Returns a model of the outputs of layers, and last those of the model."""
    return keras.Model(_inputs(model), [*(layer.output for layer in layers), model.outputs])


def _differ(outputs: Any, others: Any) -> bool:
    """Whether two structures of tensors differ by more than the rounding of float32 explains."""
    for first, second in zip(keras.tree.flatten(outputs), keras.tree.flatten(others)):
        first, second = (keras.ops.convert_to_numpy(keras.ops.cast(x, "float64")) for x in (first, second))
        scale = np.abs(first[np.isfinite(first)]).max(initial=0)
        if first.shape != second.shape or not np.allclose(first, second, 0, TOLERANCE * scale, equal_nan=True):
            return True
    return False


def _trained(model: keras.Model) -> list[int]:
    """Where the trained weights of a model stand among its weights."""
    weights = [id(weight) for weight in model.weights]
    return [weights.index(id(weight)) for weight in model.trainable_variables]
