"""Hessian products on PyTorch, by torch.func, on one device; nothing is compiled.

Attention is computed as the matrix products that define it: the fused kernels have no second derivative.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from shortcut_study.curvature.examples import Examples, mapped
from shortcut_study.curvature.functional import gauss_newton_product, hessian_product
from shortcut_study.curvature.objective import Objective

CHECKED_EXAMPLES = 4  # of the first batch: enough to see a term that is missing


def num_devices() -> int:
    """Returns among how many devices a batch is divided."""
    return 1


class Backend:
    """Products of one model.

    Args:
      objective, gauss_newton, examples: As for tensorflow_backend.Backend.
      precision: str. "highest" does not let a GPU round factors to TensorFloat-32; "default" does as PyTorch does.
    """

    refusals = (IndexError,)  # of labels out of range, on a CPU

    def __init__(self, objective: Objective, gauss_newton: bool, precision: str, examples: Examples) -> None:
        self.objective, self._is_exact = objective, precision == "highest"
        self._arguments = gauss_newton, precision, examples
        self.num_checked = CHECKED_EXAMPLES
        self._derivative = gauss_newton_product if gauss_newton else hessian_product
        self._shapes = [tuple(variable.shape) for variable in objective.model.trainable_variables]
        self._device = keras.src.backend.torch.core.get_device()

    def compile(self) -> None:
        """Does nothing: PyTorch computes as it goes."""

    def values(self, model: keras.Model, dtype: str) -> tuple[list, list]:
        """Returns copies of a model's trained and other variables, the floating ones in a type."""

        def copied(variable: keras.Variable) -> torch.Tensor:
            value = variable.value.detach().clone()
            return value.to(getattr(torch, dtype)) if "float" in variable.dtype else value

        return tuple([copied(v) for v in of] for of in (model.trainable_variables, model.non_trainable_variables))

    def product(self, weights: list, others: list, vectors: torch.Tensor, batch: tuple, scales: np.ndarray) -> Any:
        """Returns the products [k, dim] of a batch with vectors [k, dim], as from `tensors`."""
        placed, sizes = self._placed(batch, scales), [int(np.prod(shape)) for shape in self._shapes]
        rows = []
        with self._context():
            for vector in vectors:
                parts = [part.reshape(shape) for part, shape in zip(vector.split(sizes), self._shapes)]
                rows.append(_joined(self._derivative(torch.func, self.objective, weights, others, parts, *placed)))
        return torch.stack(rows)

    def loss(self, weights: list, others: list, batch: tuple, scales: np.ndarray) -> torch.Tensor:
        """Returns the part of a batch in the loss."""
        return self.evaluate(self.objective.total, weights, others, *self._placed(batch, scales))

    def gradient(self, weights: list, others: list, batch: tuple, scales: np.ndarray) -> torch.Tensor:
        """Returns the part of a batch in the gradient, [dim]."""
        with self._context():
            return _joined(torch.func.grad(self.objective.total)(weights, others, *self._placed(batch, scales)))

    def _placed(self, batch: tuple, scales: np.ndarray) -> tuple:
        return self.on_device(batch), *self.tensors([scales], self.objective.dtype)

    def sum(self, total: torch.Tensor | None, part: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the parts of batches, on the device."""
        return part.detach() if total is None else total + part.detach()

    def in_type_float64(self) -> "Backend":
        """Returns products of the same objective in float64."""
        return Backend(self.objective.in_dtype("float64"), *self._arguments)

    def in_float64(self, values: list) -> list:
        """Returns tensors, the floating ones in float64."""
        return [value.double() if value.is_floating_point() else value for value in values]

    def tensors(self, arrays: list, dtype: str) -> list:
        """Returns arrays as tensors of a type."""
        return [torch.tensor(np.asarray(array), dtype=getattr(torch, dtype), device=self._device) for array in arrays]

    def on_device(self, batch: tuple) -> tuple:
        """Returns a batch as tensors."""
        return mapped(lambda array: torch.tensor(array, device=self._device), batch)

    def evaluate(self, function: Callable, *arguments: Any) -> Any:
        """Returns the value of a function of tensors."""
        with self._context(), torch.no_grad():
            return function(*arguments)

    def gradient_of(self, function: Callable) -> tuple[Callable, Callable]:
        """Returns functions of the weights to the value of `function` there, and to its gradient."""

        def gradient(weights: list) -> list:
            with self._context():
                return list(torch.func.grad(function)(weights))

        return lambda weights: self.evaluate(function, weights), gradient

    def own_gradient(self, batch: tuple, scales: np.ndarray) -> None:
        """Returns None: a weight read around its Keras variable shows in the differences."""

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        if self._is_exact:
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def _joined(parts: list) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])
