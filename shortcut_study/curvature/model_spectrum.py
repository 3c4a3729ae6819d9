"""The spectrum of a Hessian, and those of a model's layers, as users get them: numbers with errors, tables, figures."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure

from identity_matters.errors import UserError
from shortcut_study.curvature import report
from shortcut_study.curvature.quadrature import Quadrature, density, extreme_eigenvalues, mean_eigenvalue
from shortcut_study.figures import spectrum as figures

RESIDUAL_BLOCK = re.compile(r"^stage\d+_block\d+")
NUM_PRINTED = 3  # eigenvalues at either end
Groups = Mapping[str, Sequence[keras.Variable]] | str


class ModelSpectrum(NamedTuple):
    """The spectrum of a Hessian: print it, or draw it with .plot().

    An eigenvector is off by an angle of its known_bounds over the distance to the next eigenvalue, at most.
    """

    quadrature: Quadrature  # known eigenvalues, and Ritz values, weights and error bounds for the others
    dim: int  # number of eigenvalues
    eigenvectors: np.ndarray  # [k, dim], of quadrature.known, in the order of model.trainable_variables
    heading: str = ""  # whose spectrum it is

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
        """The trace, and the error that it is within 95 times in 100 (NaN for one random vector)."""
        mean, error = mean_eigenvalue(self.quadrature, self.dim)
        return mean * self.dim, error * self.dim

    def _end(self, largest: bool) -> tuple[float, float]:
        values, bounds = extreme_eigenvalues(self.quadrature, 1, largest)
        return float(values[0]), float(bounds[0])

    def __str__(self) -> str:
        text = report.report(self.quadrature, NUM_PRINTED, self.dim)
        return f"{self.heading}\n{text}" if self.heading else text

    def plot(self, title: str = "") -> Figure:
        """Returns a Matplotlib figure of the density of the eigenvalues, the extreme ones marked."""
        rows = figures.quadrature_rows(self.quadrature)
        return figures.spectrum_figure(rows, figures.density_rows(density(self.quadrature)), title)


class PartSpectra(NamedTuple):
    """The spectra of diagonal blocks of a Hessian: print them as a table, or draw them with .plot()."""

    rows: list[dict]  # of each part: part, num_weights; largest, smallest, each with _error_bound; trace, trace_error

    def __str__(self) -> str:
        return report.parts_table(self.rows)

    def plot(self) -> Figure:
        """Returns a Matplotlib figure of the extreme eigenvalues and the traces."""
        return figures.parts_figure(self.rows)


def parts(model: keras.Model, groups: Groups = "layer") -> dict[str, np.ndarray]:
    """Returns the indices of each layer's, block's or group's weights in the flat weights, by its name.

    If two layers have the same name, as two models in a model can have, the second is "name (2)".
    """
    if isinstance(groups, Mapping):
        return {name: positions(model, variables) for name, variables in groups.items()}
    if groups not in ("layer", "block"):
        raise UserError(f'groups must be "layer", "block", or variables by name, got {groups!r}')
    # Layers in layers come last.
    owners = {id(weight): layer for layer in model._flatten_layers() for weight in layer.weights}
    by_name: dict[str, list] = {}  # the layers of each name
    by_part: dict[str, list] = {}
    trained = {id(variable) for variable in model.trainable_variables}
    for weight in model.weights:
        layer = weight.path.rsplit("/", 1)[0].removeprefix(f"{model.name}/")
        residual = RESIDUAL_BLOCK.match(layer) if groups == "block" else None
        name = residual.group() if residual else layer
        owner = owners.get(id(weight))
        namesakes = by_name.setdefault(layer, [])
        if owner not in namesakes:
            namesakes.append(owner)
        number = namesakes.index(owner) + 1
        if id(weight) in trained:
            by_part.setdefault(f"{name} ({number})" if number > 1 else name, []).append(weight)
    return {name: positions(model, variables) for name, variables in by_part.items()}


def positions(model: keras.Model, variables: Sequence[keras.Variable]) -> np.ndarray:
    """Returns the indices of some trainable variables, in any order, in the flat weights, int [size]."""
    sizes = [math.prod(variable.shape) for variable in model.trainable_variables]
    entries = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    by_variable = {id(variable): part for variable, part in zip(model.trainable_variables, entries)}
    chosen = {id(variable): by_variable.get(id(variable)) for variable in variables}
    fits = 0 < len(chosen) == len(variables) and all(part is not None for part in chosen.values())
    if not fits:
        raise UserError("variables must be some of model.trainable_variables, each once")
    return np.concatenate([*chosen.values()])


def part_row(name: str, spectrum: ModelSpectrum) -> dict:
    """Returns the columns of a part in `PartSpectra`."""
    columns = "largest", "largest_error_bound", "smallest", "smallest_error_bound", "trace", "trace_error"
    numbers = *spectrum.largest, *spectrum.smallest, *spectrum.trace
    return {"part": name, "num_weights": spectrum.dim} | dict(zip(columns, numbers))
