"""The spectrum of a Hessian, and those of a model's layers, as users get them: numbers with errors, tables, figures."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure

from shortcut_study.curvature import report
from shortcut_study.curvature.quadrature import Quadrature, density, extreme_eigenvalues, mean_eigenvalue

RESIDUAL_BLOCK = re.compile(r"^stage\d+_block\d+")
NUM_PRINTED = 3  # eigenvalues at either end


class ModelSpectrum(NamedTuple):
    """The spectrum of a Hessian: print it, or draw it with .plot().

    Attributes:
      quadrature: Known eigenvalues, and Ritz values, weights and error bounds of random vectors for the others.
      dim: Number of eigenvalues.
      eigenvectors: [k, dim], of the known eigenvalues quadrature.known, in the order of model.trainable_variables.
        Each is off by an angle of its known_bounds over the distance to the next eigenvalue, at most.
      heading: Whose spectrum it is.
    """

    quadrature: Quadrature
    dim: int
    eigenvectors: np.ndarray
    heading: str = ""

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
        """The trace, and the error that it is within 95 times in 100, by Student's t (NaN for one random vector)."""
        mean, error = mean_eigenvalue(self.quadrature)
        return mean * self.dim, error * self.dim

    def _end(self, largest: bool) -> tuple[float, float]:
        values, bounds = extreme_eigenvalues(self.quadrature, 1, largest)
        return float(values[0]), float(bounds[0])

    def __str__(self) -> str:
        """Returns the extreme eigenvalues, the trace and what else is resolved, each with its error: see `report`."""
        text = report.report(self.quadrature, NUM_PRINTED, self.dim)
        return f"{self.heading}\n{text}" if self.heading else text

    def plot(self, title: str = "") -> Figure:
        """Returns a Matplotlib figure of the density of the eigenvalues, the extreme ones marked."""
        rows = report.quadrature_rows(self.quadrature)
        return report.spectrum_figure(rows, report.density_rows(density(self.quadrature)), title)


class PartSpectra(NamedTuple):
    """The spectra of diagonal blocks of a Hessian: print them as a table, or draw them with .plot().

    Attributes:
      rows: A dict for each part: part, num_weights, largest, largest_error_bound, smallest, smallest_error_bound,
        trace, trace_error.
    """

    rows: list[dict]

    def __str__(self) -> str:
        """Returns a line for each part."""
        return report.parts_table(self.rows)

    def plot(self) -> Figure:
        """Returns a Matplotlib figure of the extreme eigenvalues and the traces."""
        return report.parts_figure(self.rows)


def parts(model: keras.Model, groups: Mapping[str, Sequence[keras.Variable]] | str = "layer") -> dict[str, np.ndarray]:
    """Returns where the weights of each layer, block or group stand in the flat weights, by its name.

    By block, the layers of a residual block count as one, which has the block's name. Of layers of one name, as two
    models in a model can have, the second is "name (2)".

    Args:
      groups: As for `per_layer`.
    """
    if isinstance(groups, Mapping):
        return {name: positions(model, variables) for name, variables in groups.items()}
    if groups not in ("layer", "block"):
        raise ValueError(f'groups must be "layer", "block", or variables by name, got {groups!r}')
    # Layers in layers come last.
    owners = {id(weight): layer for layer in model._flatten_layers() for weight in layer.weights}
    by_name: dict[str, list] = {}  # the layers of each name
    found: dict[str, list] = {}
    sizes = [math.prod(variable.shape) for variable in model.trainable_variables]
    ends = zip(model.trainable_variables, sizes, np.cumsum(sizes))
    trained = {id(variable): np.arange(end - size, end) for variable, size, end in ends}
    for weight in model.weights:
        layer = weight.path.rsplit("/", 1)[0].removeprefix(f"{model.name}/")
        residual = RESIDUAL_BLOCK.match(layer) if groups == "block" else None
        name, owner = residual.group() if residual else layer, owners.get(id(weight))
        namesakes = by_name.setdefault(layer, [])
        if owner not in namesakes:
            namesakes.append(owner)
        number = namesakes.index(owner) + 1
        if id(weight) in trained:
            found.setdefault(f"{name} ({number})" if number > 1 else name, []).append(trained[id(weight)])
    return {name: np.concatenate(entries) for name, entries in found.items()}


def positions(model: keras.Model, variables: Sequence[keras.Variable]) -> np.ndarray:
    """Returns where the entries of some trainable variables, in any order, stand in the flat weights, int [size].

    Raises:
      ValueError: none are given, or one is not among model.trainable_variables, or twice.
    """
    trained = model.trainable_variables
    ends = np.cumsum([math.prod(variable.shape) for variable in trained])
    chosen = [next((i for i, other in enumerate(trained) if other is variable), None) for variable in variables]
    if not chosen or None in chosen or len(set(chosen)) < len(chosen):
        raise ValueError("variables must be some of model.trainable_variables, each once")
    return np.concatenate([np.arange(ends[i] - math.prod(trained[i].shape), ends[i]) for i in chosen])


def part_row(name: str, found: ModelSpectrum) -> dict:
    """Returns the columns of a part in `PartSpectra`."""
    columns = "largest", "largest_error_bound", "smallest", "smallest_error_bound", "trace", "trace_error"
    numbers = *found.largest, *found.smallest, *found.trace
    return {"part": name, "num_weights": found.dim} | dict(zip(columns, numbers))
