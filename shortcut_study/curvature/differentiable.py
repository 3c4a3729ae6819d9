"""Keras models that TensorFlow differentiates twice, and one clear line for those that it does not.

tf.nn.moments stops the gradient of the variance at the mean. The first derivative does not change, but the second lacks
a term; it stays symmetric, so no check of symmetry tells. So Keras's normalisation layers are replaced by ones that
compute the same from moments without that stop.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from shortcut_study.curvature.model_copies import check_copy, copy_model, layers_of, named


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


def check_twice_differentiable(graph: tf.Graph, outputs: tf.Tensor, takes_logits: bool = True) -> None:
    """Checks the graph of a gradient, in which a term of the Hessian could be missing with nothing to show it.

    Args:
      graph: Of the gradient of the loss, or of the loss alone where a Hessian of the outputs does not count.
      outputs: What the model gives, in that graph.
      takes_logits: bool. Whether the loss is that of logits.

    Raises:
      ValueError: the graph stops a gradient, draws random numbers or loops, or the logits come out of a softmax.
    """
    _refuse(graph, _REFUSED)
    operation = outputs.op
    while operation.type in ("Identity", "Cast", "Reshape"):
        operation = operation.inputs[0].op
    if takes_logits and operation.type == "Softmax":
        raise ValueError(
            f"the model must give logits, but {operation.name} makes probabilities of them; take the layer before it"
        )


def check_product(product: tf.types.experimental.PolymorphicFunction) -> None:
    """Traces a product with second derivatives, and checks that TensorFlow has all of them.

    Raises:
      ValueError: it has none of an operation, or takes them as 0.
    """
    _refuse(traced_function(product).graph, _CONSTANT)


def traced_function(
    function: tf.types.experimental.PolymorphicFunction, *specs: Any
) -> tf.types.experimental.ConcreteFunction:
    """Returns a function that takes derivatives, traced.

    Raises:
      ValueError: TensorFlow has none of an operation.
    """
    try:
        return function.get_concrete_function(*specs)
    except Exception as error:  # a LookupError, as AutoGraph's own error, whose class is not public
        lacking = re.search(r"gradient registry has no entry for: (\w+)", str(error))
        if lacking is None:
            raise
        reason = f"it knows no derivative of {lacking[1]}"
        raise ValueError(f"the model is not twice differentiable for TensorFlow: {reason}") from error


def _refuse(graph: tf.Graph, refused: dict[tuple[str, ...], str]) -> None:
    """Raises ValueError for an operation of the graph, or of the functions that it calls, with such a type."""
    functions = [node for function in graph.as_graph_def().library.function for node in function.node_def]
    found = [(operation.type, operation.name) for operation in graph.get_operations()]
    for kind, name in [*found, *((node.op, node.name) for node in functions)]:
        for words, reason in refused.items():
            if any(word in kind for word in words):
                raise ValueError(f"the model is not twice differentiable for TensorFlow: {reason} {name}")


# What Keras raises for a class that takes other arguments than its configuration has, or has none; and for a Lambda.
_NOT_COPIED = (TypeError, NotImplementedError, ValueError)
_REFUSED = {
    ("StopGradient",): "it stops the gradient at",
    ("Random", "Multinomial"): "in training it is another function at every call, by the random numbers of",
    ("While", "TensorList", "CudnnRNN"): "second derivatives of loops, such as recurrent layers have, are not known at",
}
# Gradients that TensorFlow holds to be constant.
_CONSTANT = {("ResizeBilinearGrad",): "it takes as constant the gradient of the resized image at"}


def _moments(inputs: tf.Tensor, axes: list[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """The inputs less their mean over the axes, and their variance, which is 1 long there."""
    centred = inputs - tf.reduce_mean(inputs, axes, keepdims=True)
    return centred, tf.reduce_mean(tf.square(centred), axes, keepdims=True)


class _BatchNormalization(keras.layers.BatchNormalization):
    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        # Keras's own moments stop a gradient, which is then refused.
        if not (training and self.trainable) or getattr(self, "renorm", False) or mask is not None:
            return super().call(inputs, training=training, mask=mask)
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        centred, variance = _moments(inputs, [axis for axis, size in enumerate(shape) if size == 1])
        outputs = centred * tf.math.rsqrt(variance + self.epsilon)
        outputs = outputs * tf.reshape(self.gamma, shape) if self.scale else outputs
        return outputs + tf.reshape(self.beta, shape) if self.center else outputs


class _LayerNormalization(keras.layers.LayerNormalization):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        if self.rms_scaling:  # Keras's own stops no gradient
            return super().call(inputs)
        rank = len(inputs.shape)
        axes = sorted(axis % rank for axis in ([self.axis] if isinstance(self.axis, int) else self.axis))
        shape = [inputs.shape[axis] if axis in axes else 1 for axis in range(rank)]
        centred, variance = _moments(inputs, axes)
        outputs = centred * tf.math.rsqrt(variance + self.epsilon)
        outputs = outputs * tf.reshape(self.gamma, shape) if self.scale else outputs
        return outputs + tf.reshape(self.beta, shape) if self.center else outputs


class _GroupNormalization(keras.layers.GroupNormalization):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        rank = len(inputs.shape)
        axis = self.axis % rank
        shape = tf.shape(inputs)
        grouped = tf.concat([shape[:axis], [self.groups, shape[axis] // self.groups], shape[axis + 1 :]], axis=0)
        split = tf.reshape(inputs, grouped)
        centred, variance = _moments(split, [a for a in range(1, rank + 1) if a != axis])
        outputs = tf.reshape(centred * tf.math.rsqrt(variance + self.epsilon), shape)
        per_channel = [-1 if a == axis else 1 for a in range(rank)]
        outputs = outputs * tf.reshape(self.gamma, per_channel) if self.scale else outputs
        return outputs + tf.reshape(self.beta, per_channel) if self.center else outputs


_REPLACEMENTS = {
    keras.layers.BatchNormalization: _BatchNormalization,
    keras.layers.LayerNormalization: _LayerNormalization,
    keras.layers.GroupNormalization: _GroupNormalization,
}
