"""What a user asks of the Hessian of a Keras model: its spectrum, its trace and diagonal, the spectra of its layers."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from shortcut_study.curvature.checks import Loss
from shortcut_study.curvature.lanczos import Ritz, converged
from shortcut_study.curvature.products import block, model_mvp
from shortcut_study.curvature.quadrature import (
    Hutchinson,
    Quadrature,
    density,
    extreme_eigenvalues,
    hutchinson,
    lanczos_quadrature,
    trace_mean,
)
from shortcut_study.curvature.report import density_rows, report, ritz_rows, spectrum_figure

RESIDUAL_BLOCK = re.compile(r"^stage\d+_block\d+")
NUM_PRINTED = 3  # eigenvalues at either end


class ModelSpectrum(NamedTuple):
    """The spectrum of a Hessian, as far as a few random vectors know it; print it, or draw it with .plot().

    Attributes:
      quadrature: Ritz values, weights and error bounds, a row per starting vector.
      dim: Number of eigenvalues.
    """

    quadrature: Quadrature
    dim: int

    @property
    def largest(self) -> tuple[float, float]:
        """The largest eigenvalue found, and its error bound: some eigenvalue lies as near as that."""
        return self._end(largest=True)

    @property
    def smallest(self) -> tuple[float, float]:
        """The smallest eigenvalue found, and its error bound."""
        return self._end(largest=False)

    @property
    def trace(self) -> tuple[float, float]:
        """The trace, and its standard error over the starting vectors (NaN for one)."""
        mean, error = trace_mean(self.quadrature, lambda values: values)
        return mean * self.dim, error * self.dim

    def _end(self, largest: bool) -> tuple[float, float]:
        values, bounds = extreme_eigenvalues(self.quadrature, 1, largest)
        return float(values[0]), float(bounds[0])

    def __str__(self) -> str:
        """Returns the extreme eigenvalues, condition number, index and mean, each with its error: see `report`."""
        return report(self.quadrature, NUM_PRINTED, self.dim)

    def plot(self, title: str = "") -> Figure:
        """Returns a Matplotlib figure of the density of the eigenvalues, the extreme ones marked."""
        nodes, weights, bounds, rounding = self.quadrature
        found = [Ritz(*row, np.empty((0, 0)), rounding) for row in zip(nodes, weights, bounds)]
        rows = [row for vector, ritz in enumerate(found) for row in ritz_rows(vector, ritz)]
        return spectrum_figure(rows, density_rows(density(self.quadrature)), title)


def spectrum(
    model: keras.Model,
    x: ArrayLike,
    y: ArrayLike,
    loss: Loss = None,
    *,
    batch_size: int = 100,
    order: int = 50,
    num_vectors: int = 2,
    tolerance: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> ModelSpectrum:
    """Returns the spectrum of the Hessian of a mean loss in the trained weights of a model, by Lanczos quadrature.

    Costs order · num_vectors products, each some 3 gradients over all examples. The products are exact; what a spectrum
    of this order does not resolve is printed as a range.

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")])
    >>> found = spectrum(model, np.eye(2), np.array([0, 1]))
    >>> round(found.largest[0], 6), found.dim  # twice the eigenvalues of 1/m · Σ x xᵀ ⊗ (diag p − p pᵀ): ¼ and 0
    (0.25, 4)

    Args:
      model: keras.Model of one input and one output, functional or sequential, on TensorFlow.
      x: [m, …] as the model takes them.
      y: int [m], or what the loss takes.
      loss: A Keras loss, its name, or a function with one value an example; None: the cross-entropy of logits.
      batch_size: int. Examples at a time; sets the memory, not the result.
      order: int. Lanczos steps a starting vector, at most the number of weights; more resolve more eigenvalues.
      num_vectors: int. Random starting vectors; more make density, condition number, index and trace surer.
      tolerance: float. End with fewer steps once the extreme eigenvalues are known to that share of the largest.
      seed: int. Of the starting vectors.
      **options: training, variables, gauss_newton, on_batch, as for `model_mvp`.

    Raises:
      ValueError: as `model_mvp` and `lanczos`.
    """
    mvp_fn, dim = model_mvp(model, x, y, batch_size, loss=loss, **options)
    stop = converged(1, tolerance) if tolerance else None
    order, dtype = min(order, dim), model.trainable_variables[0].dtype
    return ModelSpectrum(lanczos_quadrature(mvp_fn, dim, order, num_vectors, seed, dtype, stop), dim)


def trace_and_diagonal(
    model: keras.Model,
    x: ArrayLike,
    y: ArrayLike,
    loss: Loss = None,
    *,
    batch_size: int = 100,
    num_vectors: int = 100,
    tolerance: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> Hutchinson:
    """Returns trace and diagonal of the Hessian of a model, each with its standard error, by Hutchinson's estimator.

    Args:
      model, x, y, loss, batch_size, **options: As for `spectrum`.
      num_vectors, tolerance, seed: As for `hutchinson`.

    Raises:
      ValueError: as `model_mvp` and `hutchinson`.
    """
    product = model_mvp(model, x, y, batch_size, loss=loss, **options)
    return hutchinson(*product, num_vectors, seed, tolerance, model.trainable_variables[0].dtype)


def per_layer(
    model: keras.Model,
    x: ArrayLike,
    y: ArrayLike,
    loss: Loss = None,
    *,
    batch_size: int = 100,
    order: int = 50,
    num_vectors: int = 2,
    seed: int = 0,
    by_block: bool = False,
    **options: Any,
) -> list[dict]:
    """Returns the spectrum of each layer's diagonal block of the Hessian: rows for parts_table and parts_figure.

    Every layer costs as many products as `spectrum` does for the whole model.

    Args:
      model, x, y, loss, batch_size, order, num_vectors, seed, **options: As for `spectrum`.
      by_block: bool. Of each residual block, of layers named stage1_block1…, in place of each layer.

    Raises:
      ValueError: as `spectrum`.
    """
    product = model_mvp(model, x, y, batch_size, loss=loss, **options)
    chosen = parts(model, by_block)
    return [part_row(product, entries, name, order, num_vectors, seed) for name, entries in chosen.items()]


def parts(model: keras.Model, by_block: bool = False) -> dict[str, np.ndarray]:
    """Returns where the weights of each layer stand in the flat weights, by the layer's name.

    By block, the layers of a residual block count as one, which has the block's name. Of layers of one name, as two
    models in a model can have, the second is "name (2)".
    """
    # Layers in layers come last.
    owners = {id(weight): layer for layer in model._flatten_layers() for weight in layer.weights}
    by_name: dict[str, list] = {}  # the layers of each name
    found: dict[str, list] = {}
    sizes = [math.prod(variable.shape) for variable in model.trainable_variables]
    ends = zip(model.trainable_variables, sizes, np.cumsum(sizes))
    trained = {id(variable): np.arange(end - size, end) for variable, size, end in ends}
    for weight in model.weights:
        layer = weight.path.rsplit("/", 1)[0].removeprefix(f"{model.name}/")
        residual = RESIDUAL_BLOCK.match(layer) if by_block else None
        name, owner = residual.group() if residual else layer, owners.get(id(weight))
        namesakes = by_name.setdefault(layer, [])
        if owner not in namesakes:
            namesakes.append(owner)
        number = namesakes.index(owner) + 1
        if id(weight) in trained:
            found.setdefault(f"{name} ({number})" if number > 1 else name, []).append(trained[id(weight)])
    return {name: np.concatenate(entries) for name, entries in found.items()}


def part_row(
    product: tuple[Callable, int], chosen: np.ndarray, name: str, order: int, num_vectors: int, seed: int = 0
) -> dict:
    """Returns the extreme eigenvalues and the trace of one diagonal block of a matrix, by Lanczos.

    Args:
      product: mvp_fn, dim of the whole matrix.
      chosen: int [size]. The coordinates of the block, as from `parts`.
      name: str. Of the part.
      order, num_vectors, seed: Of Lanczos; the order is at most the block's size.

    Returns:
      part, num_weights, largest, largest_error_bound, smallest, smallest_error_bound, trace, trace_standard_error.
    """
    mvp_fn, dim = block(*product, chosen)
    found = ModelSpectrum(lanczos_quadrature(mvp_fn, dim, min(order, dim), num_vectors, seed, np.float32), dim)
    columns = "largest", "largest_error_bound", "smallest", "smallest_error_bound", "trace", "trace_standard_error"
    numbers = *found.largest, *found.smallest, *found.trace
    return {"part": name, "num_weights": dim} | dict(zip(columns, numbers))
