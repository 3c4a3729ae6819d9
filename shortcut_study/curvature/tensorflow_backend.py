"""Hessian products on TensorFlow: reverse mode over reverse mode, with the second derivatives that TensorFlow lacks.

    equations                                    code
    Hv = ∂/∂w ⟨∇L(w), v⟩                         Backend.product
    Gv = Jᵀ ∇²ℓ J v, J of the outputs            gauss_newton; Jv = ∂/∂u ⟨Jᵀu, v⟩, as loops have no forward mode

At a kink of ReLU the second derivative is taken as 0.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops as registry_owner
from tensorflow.python.ops import nn_impl

from shortcut_study.curvature.examples import Examples, mapped
from shortcut_study.curvature.objective import Objective

ZERO = tf.UnconnectedGradients.ZERO
CHECKED_EXAMPLES = 4  # of the first batch: enough to see a term that is missing


def num_devices() -> int:
    """Returns among how many devices a batch is divided."""
    return 1


class Backend:
    """Products of one model, compiled once for all weights.

    Args:
      objective: The loss of a batch.
      gauss_newton: bool. The Gauss–Newton matrix in place of the Hessian.
      precision: str. "highest" does not let a GPU round factors to TensorFloat-32; "default" does as TensorFlow does.
      examples: As they will be given, for their shapes and types.
    """

    refusals = (tf.errors.InvalidArgumentError,)  # by operations, of examples that they do not take

    def __init__(self, objective: Objective, gauss_newton: bool, precision: str, examples: Examples) -> None:
        self.objective, self.examples, self.is_exact = objective, examples, precision == "highest"
        self._arguments = gauss_newton, precision, examples
        is_fixed = any(x.shape[0] is not None for x in (getattr(objective.model, "inputs", None) or []))
        self.num_checked = examples.batch_size if is_fixed else CHECKED_EXAMPLES
        size = examples.batch_size if is_fixed else None
        batch = mapped(lambda array: tf.TensorSpec([size, *array.shape[1:]], array.dtype), _without_none(examples[:3]))
        shapes = [tuple(variable.shape) for variable in objective.model.trainable_variables]
        weights = [tf.TensorSpec(shape, objective.dtype) for shape in shapes]
        others = [tf.TensorSpec(v.shape, self._type(v)) for v in objective.model.non_trainable_variables]
        derivative = _gauss_newton_product if gauss_newton else _hessian_product
        flat = tf.TensorSpec([sum(map(int, map(np.prod, shapes)))], objective.dtype)

        signature = [weights, others, flat, batch, tf.TensorSpec([None], objective.dtype)]

        @tf.function(input_signature=signature, autograph=False)  # as Keras's fit
        def product(weights: list, others: list, vector: tf.Tensor, batch: tuple, scales: tf.Tensor) -> tf.Tensor:
            parts = tf.split(vector, [int(np.prod(shape)) for shape in shapes])
            parts = [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]
            found = derivative(objective, weights, others, parts, (*batch, None)[:3], scales)
            return _joined(found)

        self._product = product

        @tf.function(autograph=False, reduce_retracing=True)
        def gradient(weights: list, others: list, batch: tuple, scales: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                total = objective.total(weights, others, (*batch, None)[:3], scales)
            return _joined(tape.gradient(total, weights, unconnected_gradients=ZERO))

        @tf.function(autograph=False, reduce_retracing=True)
        def loss(weights: list, others: list, batch: tuple, scales: tf.Tensor) -> tf.Tensor:
            return objective.total(weights, others, (*batch, None)[:3], scales)

        self._gradient, self._loss = gradient, loss

    def compile(self) -> None:
        """Traces the product; raises ValueError where an operation has no second derivative."""
        with naming_operations(), second_derivatives():
            self._product.get_concrete_function()

    def _type(self, variable: keras.Variable) -> str:
        return self.objective.dtype if "float" in variable.dtype else variable.dtype

    def values(self, model: keras.Model, dtype: str) -> tuple[list, list]:
        """Returns copies of a model's trained and other variables, the floating ones in a type."""

        def copied(variable: keras.Variable) -> tf.Tensor:
            value = tf.identity(variable.value)
            return tf.cast(value, dtype) if "float" in variable.dtype else value

        return tuple([copied(v) for v in of] for of in (model.trainable_variables, model.non_trainable_variables))

    def product(self, weights: list, others: list, vectors: tf.Tensor, batch: tuple, scales: np.ndarray) -> tf.Tensor:
        """Returns the products [k, dim] of a batch with vectors [k, dim], as from `tensors`."""
        placed = self._placed(batch, scales)  # once for all vectors
        with self._full_precision():
            rows = [self._product(weights, others, row, *placed) for row in tf.unstack(vectors)]
        return tf.stack(rows) if len(rows) > 1 else rows[0][None]

    def loss(self, weights: list, others: list, batch: tuple, scales: np.ndarray) -> tf.Tensor:
        """Returns the part of a batch in the loss."""
        return self.evaluate(self._loss, weights, others, *self._placed(batch, scales))

    def gradient(self, weights: list, others: list, batch: tuple, scales: np.ndarray) -> tf.Tensor:
        """Returns the part of a batch in the gradient, [dim]."""
        with second_derivatives():  # some first ones are right only there too
            return self.evaluate(self._gradient, weights, others, *self._placed(batch, scales))

    def _placed(self, batch: tuple, scales: np.ndarray) -> tuple:
        return _without_none(self.on_device(batch)), *self.tensors([scales], self.objective.dtype)

    def sum(self, total: tf.Tensor | None, part: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the parts of batches, on the device."""
        return part if total is None else total + part

    def in_type_float64(self) -> "Backend":
        """Returns products of the same objective in float64."""
        return Backend(self.objective.in_dtype("float64"), *self._arguments)

    def in_float64(self, values: list) -> list:
        """Returns tensors, the floating ones in float64."""
        return [tf.cast(value, tf.float64) if value.dtype.is_floating else value for value in values]

    def tensors(self, arrays: list, dtype: str) -> list:
        """Returns arrays as tensors of a type."""
        return [tf.constant(array, dtype) for array in arrays]

    def on_device(self, batch: tuple) -> tuple:
        """Returns a batch as tensors."""
        return mapped(tf.constant, batch)

    def evaluate(self, function: Callable, *arguments: Any) -> Any:
        """Returns the value of a function of tensors; nothing is compiled."""
        with self._full_precision():
            return function(*arguments)

    def gradient_of(self, function: Callable) -> tuple[Callable, Callable]:
        """Returns functions of the weights to the value of `function` there, and to its gradient."""

        def gradient(weights: list) -> list:
            with self._full_precision(), second_derivatives():  # some first ones are right only there too
                with tf.GradientTape() as tape:
                    tape.watch(weights)
                    value = function(weights)
                return tape.gradient(value, weights, unconnected_gradients=ZERO)

        return lambda weights: self.evaluate(function, weights), gradient

    def own_gradient(self, batch: tuple, scales: np.ndarray) -> list:
        """Returns the gradient as Keras takes it: of the model's own variables, called as they are."""
        objective, variables = self.objective, [v.value for v in self.objective.model.trainable_variables]
        x, y, sample_weight = self.on_device(batch)
        with second_derivatives():
            with tf.GradientTape() as tape, keras.StatelessScope():  # which keeps averages and generators as they are
                found = objective.sums(y, objective.outputs(x), sample_weight)
                loss = sum(scale * part.total for scale, part in zip(scales, found))
            gradient = tape.gradient(loss, variables, unconnected_gradients=ZERO)
        return [tf.convert_to_tensor(part) for part in gradient]

    @contextlib.contextmanager
    def _full_precision(self) -> Iterator[None]:
        before = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(before and not self.is_exact)
        try:
            yield
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(before)


def _joined(parts: list) -> tf.Tensor:
    return tf.concat([tf.reshape(tf.convert_to_tensor(part), [-1]) for part in parts], 0)


def _without_none(parts: Any) -> tuple:
    return tuple(part for part in parts if part is not None)


def _hessian_product(
    objective: Objective, weights: list, others: list, vectors: list, batch: tuple, scales: tf.Tensor
) -> list:
    with tf.GradientTape() as outer:
        outer.watch(weights)
        with tf.GradientTape() as inner:
            inner.watch(weights)
            loss = objective.total(weights, others, batch, scales)
        gradient = inner.gradient(loss, weights, unconnected_gradients=ZERO)
        gradient = [tf.convert_to_tensor(part) for part in gradient]  # of an embedding it is in slices
    return outer.gradient(gradient, weights, output_gradients=vectors, unconnected_gradients=ZERO)


def _gauss_newton_product(
    objective: Objective, weights: list, others: list, vectors: list, batch: tuple, scales: tf.Tensor
) -> list:
    x, y, sample_weight = batch
    with objective.at(weights, others):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(weights)
            given = objective.outputs(x)
            # Keras's losses would go back from a softmax's outputs to its inputs, past these.
            outputs = [tf.identity(z) for z in keras.tree.flatten(given)]
            with tf.GradientTape() as of_rows:
                rows = [tf.zeros_like(z) for z in outputs]
                of_rows.watch(rows)
                pulled = tape.gradient(outputs, weights, output_gradients=rows, unconnected_gradients=ZERO)
                pulled = [tf.convert_to_tensor(part) for part in pulled]
        pushed = of_rows.gradient(pulled, rows, output_gradients=vectors, unconnected_gradients=ZERO)
        with tf.GradientTape() as outer:
            outer.watch(outputs)
            with tf.GradientTape() as inner:
                inner.watch(outputs)
                found = objective.sums(y, objective.with_masks(outputs, given), sample_weight)
                loss = sum(scales[i] * part.total for i, part in enumerate(found))
            slopes = inner.gradient(loss, outputs, unconnected_gradients=ZERO)
        curved = outer.gradient(slopes, outputs, output_gradients=pushed, unconnected_gradients=ZERO)
    return tape.gradient(outputs, weights, output_gradients=curved, unconnected_gradients=ZERO)


@contextlib.contextmanager
def naming_operations() -> Iterator[None]:
    """Opens a context in which an operation without a second derivative is named in one line."""
    try:
        yield
    except Exception as error:  # in code that AutoGraph converts, a LookupError is an error of AutoGraph's own class
        lacking = re.search(r"no entry for: (\w+)", str(error))
        if lacking is None and isinstance(error, (LookupError, NotImplementedError)):
            lacking = re.search(r"(\w+)", str(error))
        if lacking is None:
            raise
        raise ValueError(
            f"the model is not twice differentiable for TensorFlow: it knows no derivative of {lacking[1]}; replace "
            "that operation, or take KERAS_BACKEND=jax"
        ) from error


@contextlib.contextmanager
def second_derivatives() -> Iterator[None]:
    """Opens a context in which derivatives that TensorFlow lacks, or gets wrong, are right.

    It replaces entries of the registry of gradients, which tapes read while they trace, and tf.nn.moments. Wrong are:
    moments, which stop the gradient of the variance at the mean; products with zeros, whose gradients divide; bilinear
    resizing, whose gradient counts as constant. Without an entry are the gradients of softsign and other resizing.
    """
    entries = registry_owner.gradient_registry._registry
    before, moments = dict(entries), nn_impl.moments
    entries.update({name: {"type": function, "location": None} for name, function in _GRADIENTS.items()})
    nn_impl.moments = _moments
    try:
        yield
    finally:
        nn_impl.moments = moments
        entries.clear()
        entries.update(before)


def _moments(
    x: Any, axes: Any, shift: Any = None, name: Any = None, keep_dims: Any = None, keepdims: Any = None
) -> tuple:
    x = tf.convert_to_tensor(x)
    y = tf.cast(x, tf.float32) if x.dtype == tf.float16 else x
    mean = tf.reduce_mean(y, axes, keepdims=True)
    variance = tf.reduce_mean(tf.square(y - mean), axes, keepdims=True)
    if not (keep_dims or keepdims):
        mean, variance = (tf.squeeze(of, axes) for of in (mean, variance))
    return tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)


def _through(function: Callable, own: Callable) -> Callable:
    """Returns the gradient of an operation, taken through others that compute the same; its own for unknown sizes."""

    def gradient(operation: Any, upstream: tf.Tensor) -> list:
        x = operation.inputs[0]
        axes = tf.get_static_value(operation.inputs[1])
        if axes is None or None in [x.shape[int(axis)] for axis in np.ravel(axes)]:
            return own(operation, upstream)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(operation, [int(axis) % x.shape.rank for axis in np.ravel(axes)])
            y = tf.reshape(y, tf.shape(upstream))
        return [tape.gradient(y, x, upstream), None]

    return gradient


def _product(operation: Any, axes: list[int]) -> tf.Tensor:
    x = operation.inputs[0]
    others = [axis for axis in range(x.shape.rank) if axis not in axes]
    y = tf.reshape(tf.transpose(x, axes + others), [int(np.prod([x.shape[axis] for axis in axes])), -1])
    return _running_products(y)[-1]


def _cumulative_product(operation: Any, axes: list[int]) -> tf.Tensor:
    x, step = operation.inputs[0], -1 if operation.get_attr("reverse") else 1
    order = axes + [axis for axis in range(x.shape.rank) if axis not in axes]
    y = tf.transpose(x, order)[::step]
    y = tf.concat([tf.ones_like(y[:1]), y[:-1]], 0) if operation.get_attr("exclusive") else y
    return tf.transpose(_running_products(y)[::step], np.argsort(order))


def _running_products(y: tf.Tensor) -> tf.Tensor:
    """Returns cumulative products along axis 0 by doubling, without a division."""
    step = 1
    while step < y.shape[0]:
        y = tf.concat([y[:step], y[step:] * y[:-step]], 0)
        step *= 2
    return y


def _softsign_gradient(operation: Any, upstream: tf.Tensor) -> list:
    g, x = operation.inputs
    size = 1 + tf.abs(x)
    return [upstream / size**2, -2 * upstream * g * tf.sign(x) / size**3]


def _resizing(forward: Callable, backward: Callable, names: tuple[str, ...], inputs: tuple[str, ...] = ()) -> Callable:
    """Returns the gradient of a resizing, whose own gradient resizes, as it is linear; both are of float32."""

    def gradient(operation: Any, upstream: tf.Tensor) -> list:
        image, size = operation.inputs[0], tf.shape(upstream)[1:3]
        options = {name: operation.get_attr(name) for name in names} | dict(zip(inputs, operation.inputs[2:]))

        @tf.custom_gradient
        def pulled(upstream: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            found = backward(grads=upstream, original_image=tf.cast(image, tf.float32), **options)
            return found, lambda above: forward(images=above, size=size, **options)

        found = tf.cast(pulled(tf.cast(upstream, tf.float32)), image.dtype)
        return [found, *[None] * (len(operation.inputs) - 1)]

    return gradient


_raw, _own = tf.raw_ops, registry_owner.gradient_registry.lookup
_CORNERS = "align_corners", "half_pixel_centers"
_KERNEL = ("kernel_type", "antialias"), ("scale", "translation")
_GRADIENTS = {
    "SoftsignGrad": _softsign_gradient,
    "ResizeBilinear": _resizing(_raw.ResizeBilinear, _raw.ResizeBilinearGrad, _CORNERS),
    "ResizeBicubic": _resizing(_raw.ResizeBicubic, _raw.ResizeBicubicGrad, _CORNERS),
    "ScaleAndTranslate": _resizing(_raw.ScaleAndTranslate, _raw.ScaleAndTranslateGrad, *_KERNEL),
    "Prod": _through(_product, _own("Prod")),
    "Cumprod": _through(_cumulative_product, _own("Cumprod")),
}
