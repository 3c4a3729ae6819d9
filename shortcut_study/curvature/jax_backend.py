"""Hessian products on JAX, compiled once, on one device or on all of them; several vectors at once by vmap.

Weights and examples are arguments of the compiled function, not constants. With several devices, of one process or of
several (jax.distributed), each batch is divided among them; the sum over it is XLA's all-reduce.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from identity_matters.errors import UserError
from shortcut_study.curvature import backend
from shortcut_study.curvature.examples import Examples
from shortcut_study.curvature.objective import Objective

AT_ONCE = 8  # vectors of a matrix that a batch is multiplied with at a time


class Backend(backend.Backend):
    """Products of one model; the arguments are those of the base class.

    The precision is jax_default_matmul_precision: "highest" multiplies in full float32 on a GPU too, "default" in
    TensorFloat-32, which is about five times as fast and 0.2 % off. XLA reads an index out of range as NaN.
    """

    grad, jvp, vjp = staticmethod(jax.grad), staticmethod(jax.jvp), staticmethod(jax.vjp)
    num_devices = jax.device_count()
    compiles_by_shape = True

    def __init__(
        self, objective: Objective, gauss_newton: bool, precision: str, examples: Examples, in_parts: bool = False
    ) -> None:
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("examples",))
        self._shared = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("examples"))
        self._everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        self._batch_size = examples.batch_size
        self._has_forward_mode = True
        super().__init__(objective, gauss_newton, precision, examples, in_parts)

    def num_checked(self, least: int) -> int:
        """Returns how many examples, at least so many, fill whole batches, once or several times."""
        size = self._batch_size
        if size <= least or self.objective.training:
            return size * -(-least // size)
        return next(number for number in range(least, size + 1) if size % number == 0)

    def compiled(self, function: Callable, has_vector: bool = False) -> Callable:
        """Returns the compiled function, of several vectors if it takes one; it waits for its result."""

        def along(w: jax.Array, others: list, vectors: jax.Array, *batch: Any) -> jax.Array:
            if isinstance(vectors, list):  # the parts of one
                return function(w, others, vectors, *batch)
            if len(vectors) == 1:
                return function(w, others, vectors[0], *batch)[None]
            return jax.vmap(lambda vector: function(w, others, vector, *batch))(vectors)

        compiled = along if has_vector else function

        def call(*arguments: Any) -> Any:
            jitted = jax.jit(compiled, out_shardings=self._everywhere)  # JAX caches compiled code by function
            return jax.block_until_ready(jitted(*arguments))

        return lambda *arguments: self._with_reverse_mode(call, *arguments)

    def second_derivative(self, function: Callable, point: Any, v: Any) -> Any:
        """Returns the product of a function's second derivative with a vector."""
        if self._has_forward_mode:
            return super().second_derivative(function, point, v)
        return self.vjp(self.grad(function), point)[1](v)[0]

    def _with_reverse_mode(self, call: Callable, *arguments: Any) -> Any:
        """Returns a function's result, with reverse over reverse mode if jax.custom_vjp forbids the forward mode.

        JAX raises this only when it compiles.
        """
        try:
            return call(*arguments)
        except TypeError as error:
            if "custom_vjp" not in str(error) or not self._has_forward_mode:
                raise
            if self.gauss_newton:
                raise UserError(
                    "a Gauss–Newton product needs the forward mode, which jax.custom_vjp does not have"
                ) from error
        self._has_forward_mode = False
        jax.clear_caches()
        return call(*arguments)

    def products(self, w: Any, others: list, vectors: Any, *batch: Any) -> jax.Array:
        """Returns the products over one batch, all of it on the device."""
        data, scales = batch
        size = len(keras.tree.flatten(data)[0])
        if size < self._batch_size and self._batch_size % size == 0:  # XLA would compile anew for another shape
            repeats = self._batch_size // size
            repeated = keras.tree.map_structure(lambda array: np.concatenate([np.asarray(array)] * repeats), data)
            data = self.on_device(repeated)
            scales = scales / repeats
        parts = [vectors[start : start + AT_ONCE] for start in range(0, len(vectors), AT_ONCE)]
        return jax.numpy.concatenate([self.product(w, others, part, data, scales) for part in parts])

    def evaluate(self, function: Callable, *arguments: Any) -> Any:
        """Returns the value of a function, compiled once for each function and shape."""

        def call(*arguments: Any) -> Any:
            return super(Backend, self).evaluate(jax.jit(function), *arguments)

        return self._with_reverse_mode(call, *arguments)

    def place(self, array: Any, dtype: str | None = None) -> jax.Array:
        """Returns an array on each device."""
        return self._put(np.asarray(array, dtype or self.dtype), self._everywhere)

    def on_device(self, batch: tuple) -> tuple:
        """Returns a batch on the devices, divided among them if its size allows it."""
        is_divisible = len(keras.tree.flatten(batch)[0]) % self.num_devices == 0
        sharding = self._shared if is_divisible else self._everywhere
        return keras.tree.map_structure(lambda array: self._put(array, sharding), batch)

    def _put(self, array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
        with self.context():
            return jax.make_array_from_callback(np.shape(array), sharding, lambda index: np.asarray(array)[index])

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """Context manager: the precision asked for, and 64-bit numbers if the objective has them."""
        with jax.default_matmul_precision(self.precision), jax.enable_x64(self.dtype == "float64"):
            yield
