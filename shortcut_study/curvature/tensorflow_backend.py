"""Hessian products on TensorFlow: reverse mode over reverse mode, with the second derivatives that TensorFlow lacks.

    equations                                    code
    Hv = ∂/∂w ⟨∇L(w), v⟩                         second_derivative
    Jv = ∂/∂u ⟨Jᵀu, v⟩                           jvp, as loops have no forward mode

At a kink of ReLU the second derivative is taken as 0.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as registry_owner
from tensorflow.python.ops import nn_impl

from identity_matters.errors import UserError
from shortcut_study.curvature import backend
from shortcut_study.curvature.examples import Examples
from shortcut_study.curvature.objective import Objective, unfit_examples

ZERO = tf.UnconnectedGradients.ZERO
MANY = 2**24  # factors of a product whose number is not known while tracing


class Backend(backend.Backend):
    """Products of one model; the arguments are those of the base class."""

    def __init__(
        self, objective: Objective, gauss_newton: bool, precision: str, examples: Examples, in_parts: bool = False
    ) -> None:
        is_fixed = any(x.shape[0] is not None for x in getattr(objective.model, "inputs", None) or [])
        size = examples.batch_size if is_fixed else None
        self.fixed_size = size
        if size is not None and len(examples) % size != 0:
            raise UserError(
                "a model of a fixed batch size takes whole batches: give a multiple of "
                f"batch_size={size} examples, got {len(examples)}"
            )
        specs = [
            tf.TensorSpec([size, *shape[1:]], array.dtype)
            for shape, array in zip(examples.shapes(), keras.tree.flatten(examples.batches[0]))
        ]
        self._batch = keras.tree.pack_sequence_as(examples.batches[0], specs), tf.TensorSpec([None], objective.dtype)
        super().__init__(objective, gauss_newton, precision, examples, in_parts)

    def evaluate(self, function: Callable, *arguments: Any) -> Any:
        """Returns the value of a function that is not compiled."""
        with self.context(), second_derivatives():
            return function(*arguments)

    def translate_error(self, error: Exception) -> Exception | None:
        """The rule that turns what operations raise for examples that they do not take into a ValueError."""
        if "SymbolicGradient" in str(error):  # of a function without a gradient of its own, as in CTC
            return ValueError(
                "the model is not twice differentiable for TensorFlow, which has no second derivative of a function in "
                "it, as in the CTC loss; take KERAS_BACKEND=jax"
            )
        return unfit_examples(error) if isinstance(error, tf.errors.InvalidArgumentError) else None

    def grad(self, function: Callable) -> Callable:
        """Returns the gradient of a function with respect to its first argument."""

        def gradient(w: Any, *arguments: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(w)
                value = function(w, *arguments)
            return tape.gradient(value, w, unconnected_gradients=ZERO)

        return gradient

    def vjp(self, function: Callable, w: Any) -> tuple[Any, Callable]:
        """Returns the value of a function, and the function from u to (Jᵀu,)."""
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(w)
            # Keras's losses would go back from a softmax's outputs to its inputs, past these.
            value = tf.nest.map_structure(tf.identity, function(w))
        return value, lambda u: (tape.gradient(value, w, output_gradients=u, unconnected_gradients=ZERO),)

    def jvp(self, function: Callable, point: tuple, v: tuple) -> tuple[Any, Any]:
        """Returns the value of a function, and Jv."""
        value, pull = self.vjp(function, *point)
        with tf.GradientTape() as tape:
            u = tf.nest.map_structure(tf.zeros_like, value)
            tape.watch(u)
            (pulled,) = pull(u)
        return value, tape.gradient(pulled, u, output_gradients=v[0], unconnected_gradients=ZERO)

    def second_derivative(self, function: Callable, point: Any, v: Any) -> Any:
        """Returns the product of a function's second derivative with a vector."""
        return self.vjp(self.grad(function), point)[1](v)[0]

    def compiled(self, function: Callable, has_vector: bool = False) -> Callable:
        """Returns the function as a graph, traced once for batches of all sizes."""
        variables = self.objective.model.trainable_variables
        parts = [tf.TensorSpec(variable.shape, self.dtype) for variable in variables]
        w = parts if self.in_parts else tf.TensorSpec([sum(math.prod(part.shape) for part in parts)], self.dtype)
        others = [tf.TensorSpec(array.shape, array.dtype) for array in self.values[1]]
        signature = [w, others, *[w] * has_vector, *self._batch]
        traced = second_derivatives()(function)  # not while it runs: other threads share TensorFlow's registry
        return tf.function(traced, input_signature=signature, autograph=False)  # as Keras's fit

    def keras_gradient(self, batch: tuple, scale: float) -> list[np.ndarray] | None:
        """Returns the gradient of Keras's own loss over a batch, times a scale, in the model's variables."""
        model = self.objective.model
        variables = [variable.value for variable in model.trainable_variables]
        x, y, *sample_weight = batch
        with self.context(), second_derivatives():
            # The scope keeps averages and generators as they are.
            with tf.GradientTape() as tape, keras.StatelessScope(collect_losses=True):
                loss = scale * self.objective.keras_loss(x, y, self.objective.outputs(x), *sample_weight)
            gradient = tape.gradient(loss, variables, unconnected_gradients=ZERO)
        return [keras.ops.convert_to_numpy(tf.convert_to_tensor(part)) for part in gradient]  # an embedding's: slices

    def trace_products(self) -> None:
        """Traces the product, which names an operation without a second derivative."""
        with naming_operations(), self.context():
            self.product.get_concrete_function()

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Context manager: the precision asked for."""
        before = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(before and self.precision != "highest")
        try:
            yield
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(before)


@contextlib.contextmanager
def naming_operations() -> Iterator[None]:
    """Context manager: raises a ValueError that names an operation without a second derivative."""
    try:
        yield
    except Exception as error:  # in code that AutoGraph converts, a LookupError is an error of AutoGraph's own class
        pattern = r"(\w+)" if isinstance(error, LookupError | NotImplementedError) else "(?!)"  # which fits nothing
        lacking = re.search(r"no entry for: (\w+)", str(error)) or re.search(pattern, str(error))
        if lacking is None:
            raise
        raise ValueError(
            f"the model is not twice differentiable for TensorFlow: it knows no derivative of {lacking[1]}; replace "
            "that operation, or take KERAS_BACKEND=jax"
        ) from error


@contextlib.contextmanager
def second_derivatives() -> Iterator[None]:
    """Context manager: derivatives that TensorFlow lacks, or gets wrong, are right.

    It replaces entries of the registry of gradients, which tapes read while they trace, and tf.nn.moments. Wrong are:
    moments, which stop the gradient of the variance at the mean; products with zeros, whose gradients divide; bilinear
    resizing, whose gradient counts as constant. Without an entry are the gradients of softsign and other resizing.
    """
    entries = registry_owner.gradient_registry._registry
    before = dict(entries)
    moments = nn_impl.moments
    entries.update({name: {"type": function, "location": None} for name, function in _GRADIENTS.items()})
    nn_impl.moments = _moments
    try:
        yield
    finally:
        nn_impl.moments = moments
        entries.clear()
        entries.update(before)


def _moments(x: Any, axes: Any, shift: Any = None, name: Any = None, keep_dims: bool | None = None) -> tuple:
    mean = tf.reduce_mean(x, axes, keepdims=True)
    variance = tf.reduce_mean(tf.square(x - mean), axes, keepdims=True)
    return (mean, variance) if keep_dims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))


def _cumulative_product_gradient(operation: Any, upstream: tf.Tensor) -> list:
    """Returns the gradient through products by doubling, without a division; tf.reduce_prod's is made of such too."""
    x = operation.inputs[0]
    axis = tf.get_static_value(operation.inputs[1])
    if axis is None:
        return _CUMPROD(operation, upstream)
    step = slice(None, None, -1 if operation.get_attr("reverse") else 1)
    axes = [*range(x.shape.rank)]
    order = [axes.pop(int(axis)), *axes]
    width = 1
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.transpose(x, order)[step]
        y = tf.concat([tf.ones_like(y[:1]), y[:-1]], 0) if operation.get_attr("exclusive") else y
        while width < (y.shape[0] or MANY):
            y = tf.concat([y[:width], y[width:] * y[:-width]], 0)
            width = 2 * width
        y = tf.transpose(y[step], np.argsort(order))
    return [tape.gradient(y, x, upstream), None]


def _softsign_gradient(operation: Any, upstream: tf.Tensor) -> list:
    g, x = operation.inputs
    size = 1 + tf.abs(x)
    return [upstream / size**2, -2 * upstream * g * tf.sign(x) / size**3]


def _resizing(forward: Callable, backward: Callable, names: tuple[str, ...], inputs: tuple[str, ...] = ()) -> Callable:
    """Returns the gradient of a resizing, whose own gradient resizes, as it is linear; both are of float32."""

    def gradient(operation: Any, upstream: tf.Tensor) -> list:
        image = operation.inputs[0]
        size = tf.shape(upstream)[1:3]
        options = {name: operation.get_attr(name) for name in names} | dict(zip(inputs, operation.inputs[2:]))

        @tf.custom_gradient
        def pulled(upstream: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            resized = backward(grads=upstream, original_image=tf.cast(image, tf.float32), **options)
            return resized, lambda above: forward(images=above, size=size, **options)

        result = tf.cast(pulled(tf.cast(upstream, tf.float32)), image.dtype)
        return [result, *[None] * (len(operation.inputs) - 1)]

    return gradient


_raw = tf.raw_ops
_CUMPROD = registry_owner.gradient_registry.lookup("Cumprod")
_CORNERS = "align_corners", "half_pixel_centers"
_KERNEL = ("kernel_type", "antialias"), ("scale", "translation")
_GRADIENTS = {
    "SoftsignGrad": _softsign_gradient,
    "ResizeBilinear": _resizing(_raw.ResizeBilinear, _raw.ResizeBilinearGrad, _CORNERS),
    "ResizeBicubic": _resizing(_raw.ResizeBicubic, _raw.ResizeBicubicGrad, _CORNERS),
    "ScaleAndTranslate": _resizing(_raw.ScaleAndTranslate, _raw.ScaleAndTranslateGrad, *_KERNEL),
    "Cumprod": _cumulative_product_gradient,
}
