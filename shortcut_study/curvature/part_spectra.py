"""Spectra of the diagonal blocks of a Hessian that belong to single layers or to residual blocks of a network."""

import re
from collections.abc import Callable

import keras
import numpy as np
from matplotlib.figure import Figure

from shortcut_study.curvature.model_copies import layers_of
from shortcut_study.curvature.model_hessian import block, positions
from shortcut_study.curvature.quadrature import extreme_eigenvalues, lanczos_quadrature, trace_mean

RESIDUAL_BLOCK = re.compile(r"^stage\d+_block\d+")


def parts(model: keras.Model, by_block: bool = False) -> dict[str, np.ndarray]:
    """Returns where the weights of each layer stand in the flat weights, by the layer's name.

    By block, the layers of a residual block count as one, which has the block's name. Of layers of one name, as two
    models in a model can have, the second is "name (2)".

    Args:
      model: keras.Model.
      by_block: bool.
    """
    owners = {id(weight): layer for layer in layers_of(model) for weight in layer.weights}  # layers in layers come last
    of_name: dict[str, list] = {}  # the layers of each name
    found: dict[str, list] = {}
    trained = {id(variable) for variable in model.trainable_variables}
    for weight in model.weights:
        layer = weight.path.rsplit("/", 1)[0].removeprefix(f"{model.name}/")
        residual = RESIDUAL_BLOCK.match(layer) if by_block else None
        name, owner = residual.group() if residual else layer, owners.get(id(weight))
        namesakes = of_name.setdefault(layer, [])
        if owner not in namesakes:
            namesakes.append(owner)
        number = namesakes.index(owner) + 1
        if id(weight) in trained:
            found.setdefault(f"{name} ({number})" if number > 1 else name, []).append(weight)
    return {name: positions(model, variables) for name, variables in found.items()}


def part_row(
    product: tuple[Callable, int], chosen: np.ndarray, name: str, order: int, num_vectors: int, seed: int = 0
) -> dict:
    """Returns the extreme eigenvalues and the trace of one diagonal block of a matrix, by Lanczos.

    Args:
      product: mvp_fn, dim of the whole matrix.
      chosen: int [size]. The coordinates of the block, as from `model_hessian.positions`.
      name: str. Of the part.
      order, num_vectors, seed: Of Lanczos; the order is at most the block's size.

    Returns:
      part, num_weights, largest, largest_error_bound, smallest, smallest_error_bound, trace, trace_standard_error.
    """
    mvp_fn, dim = block(*product, chosen)
    quadrature = lanczos_quadrature(mvp_fn, dim, min(order, dim), num_vectors, seed, np.float32)
    row = {"part": name, "num_weights": dim}
    for end in ("largest", "smallest"):
        values, bounds = extreme_eigenvalues(quadrature, 1, end == "largest")
        row |= {end: float(values[0]), f"{end}_error_bound": float(bounds[0])}
    mean, error = trace_mean(quadrature, lambda values: values)
    return row | {"trace": mean * dim, "trace_standard_error": error * dim}


def table(rows: list[dict]) -> str:
    """Returns rows as from `part_row` as an aligned table."""
    width = max(len(row["part"]) for row in rows)
    heads = ("weights", 9), ("largest", 11), ("± at most", 9), ("smallest", 11), ("trace", 10), ("±", 7)
    lines = [f"{'part':{width}}" + "".join(f"  {name:>{length}}" for name, length in heads)]
    lines += [
        f"{row['part']:{width}}  {int(row['num_weights']):>9,}  {row['largest']:11.4g}  "
        f"{row['largest_error_bound']:9.1g}  {row['smallest']:11.4g}  {row['trace']:10.4g}  "
        + (f"{row['trace_standard_error']:7.1g}" if np.isfinite(row["trace_standard_error"]) else f"{'–':>7}")
        for row in rows
    ]
    return "\n".join(lines)


def parts_figure(rows: list[dict]) -> Figure:
    """Draws the extreme eigenvalues and the trace of each part, with their errors, in the network's order.

    Args:
      rows: As from `part_row`, or read from their CSV file.
    """
    names, at = [row["part"] for row in rows], np.arange(len(rows))
    column = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name != "part"}
    figure = Figure(figsize=(9, max(2.5, 1 + 0.22 * len(rows))), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for end, colour in (("largest", "tab:red"), ("smallest", "tab:green")):
        left.errorbar(
            column[end], at, xerr=column[f"{end}_error_bound"], fmt="o", ms=4, capsize=2, color=colour, label=end
        )
    left.axvline(0, color="0.6", linewidth=1, linestyle=":")
    left.set(yticks=at, yticklabels=names, xlabel="eigenvalue of the part's block of the Hessian")
    left.invert_yaxis()
    left.legend()
    error = np.nan_to_num(column["trace_standard_error"])
    right.errorbar(column["trace"], at, xerr=error, fmt="s", ms=4, capsize=2, color="tab:blue")
    right.set(xlabel="trace of the block")
    for axes in (left, right):
        axes.tick_params(axis="y", labelsize=7)
        axes.locator_params(axis="x", nbins=6)
        axes.grid(alpha=0.3)
    return figure
