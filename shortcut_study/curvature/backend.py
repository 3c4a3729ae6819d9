"""What a backend does for a Hessian: loss, gradient and products over examples, as functions of flat weights w [dim].

    equations                                    code
    Hv = d/dt ∇L(w + tv) at t = 0                second_derivative of the loss
    Gv = Jᵀ ∇²ℓ J v, J of the outputs            Backend._gauss_newton_product

Each of the files *_backend.py has a subclass of this name, with grad, jvp and vjp that do what jax's do.
"""

import copy
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from identity_matters.errors import explaining
from shortcut_study.curvature.examples import Examples
from shortcut_study.curvature.objective import Objective, first_reason, flat


class Backend:
    """The mean loss over examples, its gradient and products, compiled once for all weights.

    Args:
      objective, gauss_newton: The loss of a batch, and whether the Gauss–Newton matrix replaces the Hessian.
      precision: str. "highest" does not let a GPU round factors to TensorFloat-32; "default" does as the backend does.
      examples: Over which the mean is; for others of the same shapes and types see `over`.
    """

    grad: Callable
    jvp: Callable
    vjp: Callable
    context: Callable  # a context in which all is computed
    compiled: Callable  # of a function of (w, others, batch, scales), or of (w, others, v, batch, scales)
    refusals: tuple[type[Exception], ...] = ()  # what operations raise for examples that they do not take
    num_devices = 1  # among which a batch is divided
    num_checked = 4  # examples of the first batch: enough to see a term that is missing
    scales: np.ndarray  # of each output, in the loss: what the checks find

    def __init__(self, objective: Objective, gauss_newton: bool, precision: str, examples: Examples) -> None:
        self.objective, self.dtype, self.examples, self.precision = objective, objective.dtype, examples, precision
        self._arguments = gauss_newton, precision, examples
        self.on_batch: Callable = lambda: None
        product = self._gauss_newton_product if gauss_newton else self._hessian_product
        self.move_to(objective.model)
        self._loss, self._gradient = self.compiled(objective.total), self.compiled(self.grad(objective.total))
        self._product = self.compiled(product, has_vector=True)

    def over(self, examples: Examples, scales: np.ndarray, dtype: str | None = None) -> "Backend":
        """Returns the same over other examples, and in another type if it is given."""
        is_same = dtype in (None, self.dtype)
        other = copy.copy(self) if is_same else type(self)(self.objective._replace(dtype=dtype), *self._arguments)
        other.examples, other.scales, other.on_batch = examples, scales, lambda: None
        return other

    def move_to(self, model: keras.Model) -> None:
        """Takes copies of a model's present values: the trained weights, flat, and a list of its other variables."""
        others = [(v, self.dtype if "float" in v.dtype else v.dtype) for v in model.non_trainable_variables]
        copies = [self.place(keras.ops.convert_to_numpy(variable), dtype) for variable, dtype in others]
        self.values = self.place(flat(model.trainable_variables, self.dtype)), copies

    def own_gradient(self) -> np.ndarray | None:
        """Returns the gradient [dim] in the model's own variables, None where Keras takes it as this backend does."""

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

    def refused(self, error: Exception) -> Exception | None:
        """Returns one line for what operations say of examples that they do not take."""
        reason = f"the model or the loss does not take these examples: {first_reason(error)}"
        return ValueError(reason) if isinstance(error, self.refusals) else None

    def counts(self) -> np.ndarray:
        """Returns for each output how many values count in the loss."""

        def of_batch(w: Any, others: list, batch: tuple) -> list:
            return [part.count for part in self.objective.parts(w, others, batch)]

        batches = (self.on_device(batch) for batch in self.examples.batches())
        counts = [[float(n) for n in self.evaluate(of_batch, *self.values, batch)] for batch in batches]
        return np.sum(counts, axis=0)

    def loss(self, w: Any) -> float:
        """Returns the loss at some weights on the device."""
        return float(self._sum(self._loss, w))

    def gradient(self, w: Any) -> np.ndarray:
        """Returns the gradient [dim] at some weights on the device."""
        return self._sum(self._gradient, w)

    def product(self, w: Any, vectors: np.ndarray) -> np.ndarray:
        """Returns the products [k, dim] with vectors [k, dim] at some weights on the device."""
        return self._sum(self.products_over, w, self.place(vectors))

    def products_over(self, w: Any, others: list, vectors: Any, *batch: Any) -> Any:
        """Returns the products over one batch, all of it on the device."""
        return keras.ops.stack([self._product(w, others, vector, *batch) for vector in vectors])

    def _sum(self, function: Callable, w: Any, *vectors: Any) -> np.ndarray:
        arguments, scales, total = (w, self.values[1], *vectors), self.place(self.scales), None
        for batch in self.examples.batches():
            with explaining(self.refused), self.context():
                part = function(*arguments, self.on_device(batch), scales)
                total = part if total is None else total + part
            self.on_batch()
        return keras.ops.convert_to_numpy(total)

    def second_derivative(self, function: Callable, at: Any, v: Any) -> Any:
        """Returns the product of a function's second derivative with a vector: forward mode over reverse mode."""
        try:
            return self.jvp(self.grad(function), (at,), (v,))[1]
        except (TypeError, NotImplementedError):  # a gradient function of the user's own, which has no forward mode
            return self.vjp(self.grad(function), at)[1](v)[0]

    def _hessian_product(self, w: Any, others: list, v: Any, batch: tuple, scales: Any) -> Any:
        return self.second_derivative(lambda w: self.objective.total(w, others, batch, scales), w, v)

    def _gauss_newton_product(self, w: Any, others: list, v: Any, batch: tuple, scales: Any) -> Any:
        objective, (x, y, *sample_weight) = self.objective, batch
        with objective.at(w, others):  # for the structure and the masks
            like = objective.outputs(x)

        def outputs_of(w: Any) -> list:
            with objective.at(w, others):
                return [keras.ops.cast(z, self.dtype) for z in keras.tree.flatten(objective.outputs(x))]

        def loss_of(outputs: list) -> Any:
            with objective.at(w, others):
                sums = objective.sums(y, objective.with_masks(outputs, like), *sample_weight)
            return sum(scales[i] * part.total for i, part in enumerate(sums))

        outputs, pushed = self.jvp(outputs_of, (w,), (v,))
        return self.vjp(outputs_of, w)[1](self.second_derivative(loss_of, outputs, pushed))[0]
