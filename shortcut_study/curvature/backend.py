"""The interface of a backend: loss, gradient and products over examples, as functions of flat weights w [dim].

    equations                                    code
    Hv = d/dt ∇L(w + tv) at t = 0                second_derivative of the loss
    Gv = Jᵀ ∇²ℓ J v, J of the outputs            Backend._gauss_newton_product

Each of the files *_backend.py has a subclass of this name, with grad, jvp and vjp that do what jax's do.
"""

import copy
import operator
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from identity_matters.errors import translate_errors
from shortcut_study.curvature.examples import Examples
from shortcut_study.curvature.objective import Objective, parts_of, step_along, to_vector


class Backend:
    """The mean loss over examples, its gradient and products, compiled once for all weights.

    Args:
      objective, gauss_newton: The loss of a batch, and whether the Gauss–Newton matrix replaces the Hessian.
      precision: str. "highest" does not let a GPU round factors to TensorFloat-32; "default" does as the backend does.
      examples: Over which the mean is.

    Attributes:
      loss, gradient, products: Functions of (w, others, batch, scales), or of (w, others, vectors, batch, scales), with
        all arguments on the device: the part of a batch.
      product: As `products`, of one vector.
      scales: np.ndarray [outputs], or [batches, outputs]. Scales of each output's loss; the checks find them.
      values: tuple. The trained weights, flat, or None if in parts; and a list of the model's other variables.
    """

    grad: Callable
    jvp: Callable
    vjp: Callable
    context: Callable  # a context in which all is computed
    compiled: Callable  # of a function of (w, others, batch, scales), or of (w, others, v, batch, scales)
    in_parts = False  # whether weights and gradients are lists, a part for each variable, and no flat vectors
    num_devices = 1  # among which a batch is divided
    fixed_size: int | None = None  # of each batch, if the model takes no other
    compiles_by_shape = False  # anew for each number of examples
    scales: np.ndarray

    def __init__(
        self, objective: Objective, gauss_newton: bool, precision: str, examples: Examples, in_parts: bool = False
    ) -> None:
        self.objective = objective
        self.in_parts = in_parts
        self.dtype = objective.dtype
        self.examples = examples
        self.precision = precision
        self.gauss_newton = gauss_newton
        self.on_batch: Callable = lambda: None
        product = self._gauss_newton_product if gauss_newton else self._hessian_product
        self.move_to(objective.model)
        self.loss = self.compiled(objective.total)
        self.gradient = self.compiled(self.grad(objective.total))
        self.product = self.compiled(product, has_vector=True)

    def exact(self) -> "Backend":
        """Returns the same in float64, in parts, as flat vectors beside these would double the memory."""
        if self.dtype == "float64":
            return self
        objective = self.objective._replace(dtype="float64")
        return type(self)(objective, self.gauss_newton, self.precision, self.examples, in_parts=True)

    def with_examples(self, examples: Examples, scales: np.ndarray) -> "Backend":
        """Returns the same over other examples."""
        other = copy.copy(self)
        other.examples = examples
        other.scales = scales
        other.on_batch = lambda: None
        return other

    def num_checked(self, least: int) -> int:
        """Returns how many examples, at least so many if there are, fit into batches that are compiled already."""
        return least if self.fixed_size is None else self.fixed_size * -(-least // self.fixed_size)

    def move_to(self, model: keras.Model) -> None:
        """Takes copies of a model's present values."""
        others = [(v, self.dtype if "float" in v.dtype else v.dtype) for v in model.non_trainable_variables]
        copies = [self.place(keras.ops.convert_to_numpy(variable), dtype) for variable, dtype in others]
        weights = None if self.in_parts else self.place(to_vector(model.trainable_variables, self.dtype))
        self.values = weights, copies

    def trace_products(self) -> None:
        """Traces the product if the backend can do so; ValueError names an operation without a second derivative."""

    def keras_gradient(self, batch: tuple, scale: float) -> list[np.ndarray] | None:
        """Returns the gradient of Keras's own loss over a batch on the device, times a scale, in the model's variables.

        None if Keras takes it as this backend does.
        """

    def weights(self, point: Any, step: float = 0.0, direction: Any = None) -> Any:
        """Returns weights on the device: those of a point, a step along a direction away."""
        if not self.in_parts:
            return self.place(point if direction is None else step_along(point, step, direction, self.dtype))
        parts = parts_of(point, self.objective.model.trainable_variables)
        if direction is None:
            return [self.place(part) for part in parts]
        along = parts_of(direction, self.objective.model.trainable_variables)
        return [self.place(step_along(part, step, other, self.dtype)) for part, other in zip(parts, along)]

    def place(self, array: Any, dtype: str | None = None) -> Any:
        """Returns an array on the device."""
        dtype = dtype or self.dtype
        return keras.ops.convert_to_tensor(np.asarray(array, dtype), dtype)

    def on_device(self, batch: tuple) -> tuple:
        """Returns a batch on the device."""
        return keras.tree.map_structure(lambda array: self.place(array, str(array.dtype)), batch)

    def evaluate(self, function: Callable, *arguments: Any) -> Any:
        """Returns the value of a function that is not compiled."""
        with self.context():
            return function(*arguments)

    def translate_error(self, error: Exception) -> Exception | None:
        """The rule that turns what operations raise for examples that they do not take into a ValueError."""
        return None

    def total(self, function: Callable, w: Any, *vectors: Any) -> Any:
        """Returns the sum over all batches of `loss`, `gradient` or `products` at weights on the device, in NumPy."""
        batches = self.examples.batches
        total = None
        for batch, scales in zip(batches, np.broadcast_to(self.scales, (len(batches), np.shape(self.scales)[-1]))):
            with translate_errors(self.translate_error), self.context():
                part = function(w, self.values[1], *vectors, self.on_device(batch), self.place(scales))
                total = part if total is None else keras.tree.map_structure(operator.add, total, part)
            self.on_batch()
        return keras.tree.map_structure(keras.ops.convert_to_numpy, total)

    def products(self, w: Any, others: list, vectors: Any, *batch: Any) -> Any:
        """Returns the products [k, dim] with vectors [k, dim] over one batch."""
        return keras.ops.stack([self.product(w, others, vector, *batch) for vector in vectors])

    def second_derivative(self, function: Callable, point: Any, v: Any) -> Any:
        """Returns the product of a function's second derivative with a vector: forward mode over reverse mode."""
        try:
            return self.jvp(self.grad(function), (point,), (v,))[1]
        except (TypeError, NotImplementedError):  # a gradient function of the user's own, which has no forward mode
            return self.vjp(self.grad(function), point)[1](v)[0]

    def _hessian_product(self, w: Any, others: list, v: Any, batch: tuple, scales: Any) -> Any:
        return self.second_derivative(lambda w: self.objective.total(w, others, batch, scales), w, v)

    def loss_of_outputs(self, w: Any, others: list, batch: tuple, scales: Any, like: Any) -> Callable:
        """Returns the loss of a batch as a function of flat outputs, in the structure and with the masks of `like`."""
        objective = self.objective
        (x, y, *sample_weight) = batch

        def loss(outputs: list) -> Any:
            with objective.bind(w, others):
                sums = objective.sums(x, y, objective.with_masks(outputs, like), *sample_weight)
            return sum(scales[i] * part.total for i, part in enumerate(sums))

        return loss

    def outputs(self, w: Any, others: list, batch: tuple) -> tuple[list, Any]:
        """Returns the flat outputs of a batch in the objective's type, and the outputs as the model gives them."""
        with self.objective.bind(w, others):
            like = self.objective.outputs(batch[0])
            # New tensors: Keras's losses would go back from a softmax's outputs to its inputs, past these.
            return [keras.ops.cast(z, self.dtype) + 0 for z in keras.tree.flatten(like)], like

    def _gauss_newton_product(self, w: Any, others: list, v: Any, batch: tuple, scales: Any) -> Any:
        _, like = self.outputs(w, others, batch)

        def outputs_of(w: Any) -> list:
            return self.outputs(w, others, batch)[0]

        outputs, pushed = self.jvp(outputs_of, (w,), (v,))
        loss = self.loss_of_outputs(w, others, batch, scales, like)
        return self.vjp(outputs_of, w)[1](self.second_derivative(loss, outputs, pushed))[0]
