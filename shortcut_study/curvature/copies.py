"""Copies of Keras models: in another type, or with second derivatives; each is checked to be the same network.

tf.nn.moments stops the gradient of the variance at the mean. The first derivative does not change, but the second lacks
a term; it stays symmetric, so no check of symmetry notices. So Keras's normalisation layers are replaced by ones that
compute the same from moments without that stop.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

TOLERANCE = 1e-3  # of the largest |output|: far above rounding, far below the difference of another network
ROUNDING = 1e-6  # of the largest |input|: what float32 makes of a sum of numbers of that size that cancel
UNKNOWN_SIZE = 32  # of an axis that a model leaves open
_COPIED_WHOLE = (
    "its get_config must return all arguments of __init__; what is set later, except weights, must be an argument too"
)
# What Keras raises for a class that takes other arguments than its configuration has, or has none; and for a Lambda.
_NOT_COPIED = (TypeError, NotImplementedError, ValueError)


def with_dtype(model: keras.Model, dtype: str) -> keras.Model:
    """Returns a copy of a model whose layers all compute and keep their weights in one type.

    A model trained in mixed precision needs it: products in bfloat16 are right to two digits only.

    Args:
      model: A functional or sequential model.
      dtype: str. float32 or float64.

    Raises:
      ValueError: the model is of a class of its own; a layer of another type is of a class that Keras cannot copy; or a
        copy computes something else, as of a layer whose configuration leaves out an argument.
    """

    def clone(layer: keras.Layer) -> keras.Layer:
        try:
            with _making_layers_of(dtype):
                return type(layer).from_config(_in_dtype(layer.get_config(), dtype))
        except _NOT_COPIED as error:
            if not layer.variables and layer.compute_dtype == dtype:
                return layer
            raise ValueError(
                f"{named(layer)} cannot be copied: it needs an __init__ with **kwargs "
                f"and a get_config of the other arguments; a Lambda must be made with dtype={dtype!r}"
            ) from error

    copy = copy_model(model, clone, dtype)
    for layer in layers_of(copy):
        types = {layer.compute_dtype, *(weight.dtype for weight in layer.weights)}
        if any("float" in other and other != dtype for other in types if other):
            raise ValueError(
                f"{named(layer)} stays {layer.compute_dtype}: it must take a dtype and give it to its layers"
            )
    # Against half precision the copy differs by rounding; a copy in the model's own types does not.
    check_copy(model, copy_model(model, _clone_or_keep) if computes_in_half(model) else copy)
    return copy


@contextlib.contextmanager
def _making_layers_of(dtype: Any) -> Iterator[None]:
    """Opens a context in which a layer's __init__ makes layers of a type, or a policy, of Keras by default."""
    # A layer that makes layers in its __init__ may not hand them its dtype; they take the global policy.
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def _in_dtype(config: Any, dtype: str) -> Any:
    """Returns a layer's configuration, and those of layers in it, with another dtype where there is one."""
    if isinstance(config, list | tuple):
        return type(config)(_in_dtype(value, dtype) for value in config)
    if not isinstance(config, dict):
        return config
    return {name: dtype if name == "dtype" else _in_dtype(value, dtype) for name, value in config.items()}


def computes_in_half(model: keras.Model) -> bool:
    """Returns whether a layer of the model computes in float16 or bfloat16, as in mixed precision."""
    return any(layer.compute_dtype in ("float16", "bfloat16") for layer in layers_of(model))


def twice_differentiable(model: keras.Model) -> keras.Model:
    """Returns a copy of a model in which Keras's normalisation layers have second derivatives.

    A layer that Keras cannot copy, such as a Lambda, is the model's own, with its weights.

    Raises:
      ValueError: the model is of a class of its own, or a copy computes something else, as for `with_dtype`.
    """
    copy = copy_model(model, lambda layer: _clone_or_keep(layer, _REPLACEMENTS.get(type(layer))))
    check_copy(model, copy)
    return copy


def _clone_or_keep(layer: keras.Layer, replacement: type | None = None) -> keras.Layer:
    """Returns a copy of a layer, of a class that replaces its own if one is given, or the layer itself."""
    policy = getattr(layer, "dtype_policy", keras.config.dtype_policy())  # the + of tensors has none
    try:
        with _making_layers_of(policy):
            return (replacement or type(layer)).from_config(layer.get_config())
    except _NOT_COPIED:
        return layer


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

    def input_like(x: keras.KerasTensor) -> keras.KerasTensor:
        """The clone's inputs would be float32 in any case, and round what a float64 model is given."""
        kept = dtype if dtype and "float" in x.dtype else x.dtype
        return keras.Input(batch_shape=(None, *x.shape[1:]), dtype=kept, name=x.name)  # any number of examples

    is_sequential = isinstance(model, keras.Sequential)  # whose copy takes its input in a list
    inputs = keras.tree.map_structure(input_like, model.inputs if is_sequential else model.input)

    def clone(layer: keras.Layer) -> keras.Layer:
        """Copies models in the model in the same way; Keras's own recursion would make their inputs float32."""
        return copy_model(layer, clone_function, dtype) if getattr(layer, "inputs", None) else clone_function(layer)

    with _uncompiled(model):
        copy = keras.models.clone_model(model, input_tensors=inputs, clone_function=clone)
    copy.loss, copy._compile_loss = model.loss, model._compile_loss  # what `loss_of` reads
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


@contextlib.contextmanager
def _uncompiled(model: keras.Model) -> Iterator[None]:
    """Opens a context in which Keras does not copy a model's loss, as it cannot where that is a user's function."""
    compiled = model.compiled
    model.compiled = False
    try:
        yield
    finally:
        model.compiled = compiled


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers of a model, of models in it and of layers in them, each before those in it."""
    others = keras.Model | keras.layers.InputLayer
    return [layer for layer in model._flatten_layers() if not isinstance(layer, others)]


def check_copy(model: keras.Model, copy: keras.Model) -> None:
    """Checks on a few random numbers that a copy computes what its model does.

    Layers that are called once are compared one by one: the outputs alone would not suffice, as a last layer of zeros
    hides the others. Models in the model are checked by themselves.

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
        # Keras's layers of augmentation draw from the model's own generators unless training=False is passed.
        found, again = (graphs[0](batch, training=False) for _ in range(2))
    except (TypeError, ValueError, tf.errors.OpError):
        return  # a model that takes other numbers than these
    others = graphs[1](batch, training=False)
    for number, layer in enumerate([*(layer for layer, _ in compared), None]):
        first, second, other = (of[str(number)] for of in (found, again, others))
        # Layers that draw random numbers are rejected by check_twice_differentiable.
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
    """Returns whether a layer is called once, so that it has one output; models have theirs in another graph."""
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


def _differ(ends: dict, other_ends: dict) -> bool:
    """Returns whether the outputs of a layer differ from other ones by more than the rounding of float32 explains."""
    outputs, others = _arrays(ends["outputs"]), _arrays(other_ends["outputs"])
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
    """Returns the places of a model's trained weights among its weights."""
    weights = [id(weight) for weight in model.weights]
    return [weights.index(id(weight)) for weight in model.trainable_variables]


def _standardized(layer: keras.Layer, inputs: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """The inputs, of mean 0 and variance 1 over the axes but for the layer's ε."""
    centred = inputs - tf.reduce_mean(inputs, axes, keepdims=True)
    return centred * tf.math.rsqrt(tf.reduce_mean(tf.square(centred), axes, keepdims=True) + layer.epsilon)


def _scaled(layer: keras.Layer, outputs: tf.Tensor, shape: list[int]) -> tf.Tensor:
    """The outputs times γ and plus β, as far as the layer has them, in a shape."""
    outputs = outputs * tf.reshape(layer.gamma, shape) if layer.scale else outputs
    return outputs + tf.reshape(layer.beta, shape) if layer.center else outputs


class _BatchNormalization(keras.layers.BatchNormalization):
    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        # Keras's own moments stop a gradient, which is then refused.
        if not (training and self.trainable) or getattr(self, "renorm", False) or mask is not None:
            return super().call(inputs, training=training, mask=mask)
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        return _scaled(self, _standardized(self, inputs, [a for a, size in enumerate(shape) if size == 1]), shape)


class _LayerNormalization(keras.layers.LayerNormalization):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        if self.rms_scaling:  # Keras's own stops no gradient
            return super().call(inputs)
        rank = len(inputs.shape)
        axes = sorted(axis % rank for axis in ([self.axis] if isinstance(self.axis, int) else self.axis))
        shape = [inputs.shape[axis] if axis in axes else 1 for axis in range(rank)]
        return _scaled(self, _standardized(self, inputs, axes), shape)


class _GroupNormalization(keras.layers.GroupNormalization):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        rank = len(inputs.shape)
        axis = self.axis % rank
        shape = tf.shape(inputs)
        grouped = tf.concat([shape[:axis], [self.groups, shape[axis] // self.groups], shape[axis + 1 :]], axis=0)
        outputs = _standardized(self, tf.reshape(inputs, grouped), [a for a in range(1, rank + 1) if a != axis])
        return _scaled(self, tf.reshape(outputs, shape), [-1 if a == axis else 1 for a in range(rank)])


_REPLACEMENTS = {
    keras.layers.BatchNormalization: _BatchNormalization,
    keras.layers.LayerNormalization: _LayerNormalization,
    keras.layers.GroupNormalization: _GroupNormalization,
}
