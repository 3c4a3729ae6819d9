"""Hessian products on JAX, compiled once, on one device or on all of them; several vectors at once by vmap.

Weights and examples are arguments of the compiled function, not constants. Where there are several devices, of one
process or of several (jax.distributed), each batch is divided among them; the sum over it is XLA's all-reduce.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from shortcut_study.curvature.examples import Examples, mapped
from shortcut_study.curvature.functional import gauss_newton_product, hessian_product
from shortcut_study.curvature.objective import Objective

CHECKED_EXAMPLES = 2  # at most, where they divide a batch: on a CPU XLA's convolutions are slow in float64


def num_devices() -> int:
    """Returns among how many devices a batch is divided."""
    return jax.device_count()


class Backend:
    """Products of one model, compiled once for all weights.

    Args:
      objective, gauss_newton, examples: As for tensorflow_backend.Backend.
      precision: str. As jax_default_matmul_precision: "highest" multiplies in full float32 on a GPU too, "default" in
        TensorFloat-32, which is about five times as fast and 0.2 % off.
    """

    refusals = ()  # XLA reads an index out of range as NaN

    def __init__(self, objective: Objective, gauss_newton: bool, precision: str, examples: Examples) -> None:
        self.objective, self._precision = objective, precision
        self._arguments = gauss_newton, precision, examples
        size = examples.batch_size
        # XLA compiles for a shape, so that checks take a whole batch too: a few examples, repeated.
        self.num_checked = (
            size if objective.training else max(n for n in range(1, CHECKED_EXAMPLES + 1) if not size % n)
        )
        self._batch_size = size
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("examples",))
        self._shared = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("examples"))
        self._everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        derivative = gauss_newton_product if gauss_newton else hessian_product
        shapes = [tuple(variable.shape) for variable in objective.model.trainable_variables]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]

        @functools.partial(jax.jit, out_shardings=self._everywhere)
        def product(weights: list, others: list, vectors: jax.Array, batch: tuple, scales: jax.Array) -> jax.Array:
            def along(vector: jax.Array) -> jax.Array:
                parts = [p.reshape(shape) for p, shape in zip(jax.numpy.split(vector, ends), shapes)]
                return _joined(derivative(jax, objective, weights, others, parts, batch, scales))

            return along(vectors[0])[None] if len(vectors) == 1 else jax.vmap(along)(vectors)

        self._product = product
        self._gradient = jax.jit(lambda *at: _joined(jax.grad(objective.total)(*at)), out_shardings=self._everywhere)
        self._loss = jax.jit(objective.total, out_shardings=self._everywhere)

    def compile(self) -> None:
        """Does nothing: the first product compiles."""

    def values(self, model: keras.Model, dtype: str) -> tuple[list, list]:
        """Returns copies of a model's trained and other variables, the floating ones in a type."""

        def copied(variable: keras.Variable) -> jax.Array:
            value = np.array(variable.value)
            return self._put(value.astype(dtype) if "float" in variable.dtype else value, self._everywhere)

        with self._context(dtype):
            return tuple([copied(v) for v in of] for of in (model.trainable_variables, model.non_trainable_variables))

    def product(self, weights: list, others: list, vectors: jax.Array, batch: tuple, scales: np.ndarray) -> jax.Array:
        """Returns the products [k, dim] of a batch with vectors [k, dim], as from `tensors`."""
        if len(keras.tree.flatten(batch)[0]) == self.num_checked:
            repeats = self._batch_size // self.num_checked
            batch, scales = mapped(lambda array: np.concatenate([array] * repeats), batch), np.asarray(scales) / repeats
        return self._of_batch(functools.partial(self._product, weights, others, vectors), batch, scales)

    def loss(self, weights: list, others: list, batch: tuple, scales: np.ndarray) -> jax.Array:
        """Returns the part of a batch in the loss."""
        return self._of_batch(functools.partial(self._loss, weights, others), batch, scales)

    def gradient(self, weights: list, others: list, batch: tuple, scales: np.ndarray) -> jax.Array:
        """Returns the part of a batch in the gradient, [dim]."""
        return self._of_batch(functools.partial(self._gradient, weights, others), batch, scales)

    def _of_batch(self, function: Callable, batch: tuple, scales: np.ndarray) -> jax.Array:
        with self._context(self.objective.dtype):
            return function(self.on_device(batch), *self.tensors([scales], self.objective.dtype))

    def sum(self, total: jax.Array | None, part: jax.Array) -> jax.Array:
        """Returns the sum of the parts of batches, on the devices, when it is there."""
        with self._context(self.objective.dtype):
            return jax.block_until_ready(part if total is None else total + part)

    def in_type_float64(self) -> "Backend":
        """Returns products of the same objective in float64."""
        return Backend(self.objective.in_dtype("float64"), *self._arguments)

    def in_float64(self, values: list) -> list:
        """Returns arrays on the devices, the floating ones in float64."""
        with self._context("float64"):
            return [value.astype("float64") if "float" in str(value.dtype) else value for value in values]

    def tensors(self, arrays: list, dtype: str) -> list:
        """Returns arrays on the devices, in a type."""
        with self._context(dtype):
            return [self._put(np.asarray(array, dtype), self._everywhere) for array in arrays]

    def on_device(self, batch: tuple) -> tuple:
        """Returns a batch as arrays on the devices, divided among them where its size allows it."""
        is_divisible = len(keras.tree.flatten(batch)[0]) % jax.device_count() == 0
        sharding = self._shared if is_divisible else self._everywhere
        with self._context(self.objective.dtype):
            return mapped(lambda array: self._put(array, sharding), batch)

    @staticmethod
    def _put(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
        return jax.make_array_from_callback(np.shape(array), sharding, lambda index: np.asarray(array)[index])

    def evaluate(self, function: Callable, *arguments: Any) -> Any:
        """Returns a function of arrays, compiled, as each operation by itself would be compiled too."""
        with self._context(self.objective.dtype):
            return jax.jit(function)(*arguments)

    def gradient_of(self, function: Callable) -> tuple[Callable, Callable]:
        """Returns functions of the weights to the value of `function` there, and to its gradient, each compiled."""

        def compiled(of: Callable) -> Callable:
            jitted = jax.jit(of)

            def value(weights: list) -> Any:
                with self._context(str(weights[0].dtype)):
                    return jitted(weights)

            return value

        return compiled(function), compiled(jax.grad(function))

    def own_gradient(self, batch: tuple, scales: np.ndarray) -> None:
        """Returns None: under JAX Keras takes its gradient as this backend does, in a StatelessScope."""

    @contextlib.contextmanager
    def _context(self, dtype: str) -> Iterator[None]:
        with jax.default_matmul_precision(self._precision), jax.enable_x64(dtype == "float64"):
            yield


def _joined(parts: list) -> jax.Array:
    return jax.numpy.concatenate([part.ravel() for part in parts])
