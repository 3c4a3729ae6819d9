"""Copies of Keras models whose layers are changed on the way, and a check that they are the same network."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

TOLERANCE = 1e-3  # of the largest |output|: far above rounding, far below the difference of another network
ROUNDING = 1e-6  # of the largest |input|: what float32 makes of a sum of numbers of that size that cancel
UNKNOWN_SIZE = 32  # of an axis that a model leaves open
_COPIED_WHOLE = (
    "its get_config must say all that its __init__ takes; what is set later, weights aside, must be an argument too"
)


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


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers of a model, of models in it and of layers in them, each before those in it."""
    others = keras.Model | keras.layers.InputLayer
    return [layer for layer in model._flatten_layers() if not isinstance(layer, others)]


def check_copy(model: keras.Model, copy: keras.Model) -> None:
    """Checks on a few random numbers that a copy computes what its model does.

    Layers that are called once are compared one by one: the outputs alone would not tell, as a last layer of zeros
    hides what the others do. Models in the model are checked by themselves.

    Raises:
      ValueError: a layer's copy gives another output, or the copy trains other weights.
    """
    pairs = list(zip(model.layers, copy.layers))
    for layer, copied in pairs:
        if getattr(layer, "inputs", None):
            check_copy(layer, copied)
    if _trained(model) != _trained(copy):
        raise ValueError("the copy of the model trains other weights than the model, or in another order")
    is_any_size = model.inputs[0].shape[0] is None  # the outputs of all layers for a large batch are too much to hold
    compared = [pair for pair in pairs if is_any_size and pair[0] is not pair[1] and all(map(_is_called_once, pair))]
    graphs = [_graph(of, [pair[i] for pair in compared]) for i, of in enumerate((model, copy))]
    random = np.random.default_rng(0)
    batch = keras.tree.map_structure(lambda x: random_batch(x, random), _inputs(model))
    try:
        found, again = graphs[0](batch), graphs[0](batch)
    except (TypeError, ValueError, tf.errors.OpError):
        return  # a model that takes other numbers than these
    others = graphs[1](batch)
    for number, layer in enumerate([*(layer for layer, _ in compared), None]):
        first, second, other = (of[str(number)] for of in (found, again, others))
        # What draws random numbers is check_twice_differentiable's to refuse.
        if not _differ(first, second) and _differ(first, other):
            subject = named(layer) if layer else "a layer"
            raise ValueError(f"{subject} computes something else as a copy: {_COPIED_WHOLE}")


def named(layer: keras.Layer) -> str:
    """Returns a layer's name and class, as the subject of a sentence."""
    return f"layer {layer.name}, a {type(layer).__name__},"


def _inputs(model: keras.Model) -> Any:
    """A model's inputs in the structure in which it takes them; a Sequential says it in a list of one."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def _is_called_once(layer: keras.Layer) -> bool:
    """Whether a layer is called once, so that its output is that of one place; models have theirs in another graph."""
    return not isinstance(layer, keras.Model | keras.layers.InputLayer) and len(layer._inbound_nodes) == 1


def random_batch(x: keras.KerasTensor, random: np.random.Generator) -> np.ndarray:
    """Returns numbers of an input's shape and type, for two examples where the shape leaves their number open."""
    shape = x.shape[0] or 2, *(size or UNKNOWN_SIZE for size in x.shape[1:])
    return random.standard_normal(shape).astype(x.dtype) if "float" in x.dtype else random.integers(0, 2, shape)


def _graph(model: keras.Model, layers: list[keras.Layer]) -> keras.Model:
    """Returns a model of the inputs and outputs of layers, by number, and last of the model."""
    ends = [*((layer.input, layer.output) for layer in layers), (_inputs(model), model.outputs)]
    return keras.Model(
        _inputs(model), {str(i): {"inputs": inputs, "outputs": outputs} for i, (inputs, outputs) in enumerate(ends)}
    )


def _differ(ends: dict, of_other: dict) -> bool:
    """Whether the outputs of a layer differ from other ones by more than the rounding of float32 explains."""
    outputs, others = _arrays(ends["outputs"]), _arrays(of_other["outputs"])
    rounding = ROUNDING * _largest(_arrays(ends["inputs"]))  # as a mean of what was normalised has nothing else
    return any(
        first.shape != second.shape
        or not np.allclose(first, second, rtol=0, atol=TOLERANCE * _largest([first]) + rounding, equal_nan=True)
        for first, second in zip(outputs, others)
    )


def _arrays(tensors: Any) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(x).astype(np.float64) for x in keras.tree.flatten(tensors)]


def _largest(arrays: list[np.ndarray]) -> float:
    return max((np.abs(array[np.isfinite(array)]).max(initial=0) for array in arrays), default=0.0)


def _trained(model: keras.Model) -> list[int]:
    """Where the trained weights of a model stand among its weights."""
    weights = [id(weight) for weight in model.weights]
    return [weights.index(id(weight)) for weight in model.trainable_variables]
