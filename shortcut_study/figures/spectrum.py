"""Figures of spectra, of a Hessian and its parts, drawn from rows of CSV files; these rows; a landscape."""

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from shortcut_study.curvature.quadrature import Density, Quadrature, extreme_eigenvalues

NUM_MARKED = 3  # eigenvalues at either end
NUM_LEVELS = 12  # of contours
WIDE = 30  # ratio of the largest to the least loss from which on the contours have a logarithmic scale
_COLUMNS = ("eigenvalue", "weight", "error_bound")
_ENDS = {"largest": ("C3", "v"), "smallest": ("C2", "D")}  # colours and markers


def quadrature_rows(quadrature: Quadrature) -> list[dict]:
    """Returns a row for each known eigenvalue, vector −1, for each Ritz value of a vector, and for each probe."""
    nodes, weights, bounds, rounding, outer, known_bounds, probes = quadrature
    columns = [[-1, outer, np.full(len(outer), quadrature.known_weight), known_bounds]]
    columns += [[vector, *row] for vector, row in enumerate(zip(nodes, weights, bounds))]
    columns += [[len(nodes) + i, [mean], [1.0], [np.nan]] for i, mean in enumerate(probes)]
    return [
        {"vector": vector} | dict(zip(_COLUMNS, map(float, row))) | {"rounding": rounding}
        for vector, *rows in columns
        for row in zip(*rows)
    ]


def density_rows(density: Density) -> list[dict]:
    """Returns one row a point of the grid: eigenvalue, density, standard_error."""
    return [dict(zip(("eigenvalue", "density", "standard_error"), map(float, row))) for row in zip(*density)]


def quadrature_from_rows(rows: list[dict]) -> Quadrature:
    """Returns the quadrature that `quadrature_rows` made rows of; a probe is a vector without an error bound."""
    numbers = np.array([[float(row[name]) for name in ("vector", *_COLUMNS)] for row in rows])
    vectors = [numbers[numbers[:, 0] == vector, 1:].T for vector in np.unique(numbers[:, 0]) if vector >= 0]
    outer = numbers[numbers[:, 0] < 0, 1:].T
    whole = [vector for vector in vectors if not np.isnan(vector[2]).any()]
    probes = np.array([vector[0, 0] for vector in vectors[len(whole) :]])
    nodes = np.stack(whole, axis=1) if whole else np.zeros((3, 1, 0))
    # A table has seven digits, fewer than the share of one eigenvalue in millions needs: the known ones keep theirs.
    if nodes.size:
        nodes[1] *= (1 - outer[1].sum()) / nodes[1].sum(axis=1, keepdims=True)
    return Quadrature(*nodes, max(float(row["rounding"]) for row in rows), outer[0], outer[2], probes)


def spectrum_figure(rows: list[dict], density: list[dict], title: str = "") -> Figure:
    """Draws rows of `quadrature_rows` and `density_rows`: the density, and extreme eigenvalues with errors."""
    grid, heights, errors = (
        np.array([float(row[name]) for row in density]) for name in ("eigenvalue", "density", "standard_error")
    )
    quadrature = quadrature_from_rows(rows)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(grid, heights - errors, heights + errors, color="C0", alpha=0.3, linewidth=0)
    axes.plot(grid, heights, color="C0", linewidth=1.2, label="density ± standard error")
    lowest = heights.max()
    for name, (colour, marker) in _ENDS.items():
        values, bounds = extreme_eigenvalues(quadrature, NUM_MARKED, name == "largest")
        heights_there = np.interp(values, grid, heights)
        count = f"{len(values)} {name}" if len(values) > 1 else name
        label = f"{count}, the outermost {values[0]:.4g} ± {bounds[0]:.1g}"
        axes.errorbar(values, heights_there, xerr=bounds, fmt=marker, ms=6, capsize=3, color=colour, label=label)
        lowest = min(lowest, heights_there.min())
    axes.axvline(0, color="0.5", linewidth=1, linestyle=":")
    axes.set(xlabel=r"eigenvalue $\lambda$ of the Hessian", ylabel="density of the eigenvalues", yscale="log")
    axes.set_title(title, parse_math=False)
    # The tails of the Gaussians fall to 0, which on a logarithmic axis would take up most of the figure.
    axes.set_ylim(0.1 * lowest, 3 * heights.max())
    axes.legend()
    return figure


def parts_figure(rows: list[dict]) -> Figure:
    """Draws the extreme eigenvalues and the trace of rows as `per_layer` makes them, with their errors."""
    names = [row["part"].replace("_", " ") for row in rows]
    places = np.arange(len(rows))
    column = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name != "part"}
    figure = Figure(figsize=(8, max(2.5, 1 + 0.22 * len(rows))), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    style = {"ms": 4, "capsize": 2}
    for end, (colour, marker) in _ENDS.items():
        errors = column[f"{end}_error_bound"]
        left.errorbar(column[end], places, xerr=errors, fmt=marker, color=colour, label=end, **style)
    left.axvline(0, color="0.6", linewidth=1, linestyle=":")
    left.set(yticks=places, yticklabels=names, xlabel="eigenvalue of the part's block of the Hessian")
    left.invert_yaxis()
    left.legend()
    right.errorbar(column["trace"], places, xerr=np.nan_to_num(column["trace_error"]), fmt="s", color="C0", **style)
    right.set(xlabel="trace of the block, and its 95 % interval")
    for axes in (left, right):
        axes.tick_params(axis="y", labelsize="x-small")
        axes.locator_params(axis="x", nbins=6)
    return figure


def landscape_figure(
    positions: np.ndarray, losses: np.ndarray, quadratic: np.ndarray, names: tuple[str, ...], title: str = ""
) -> Figure:
    """Draws losses [p] or [p, p] at positions [p] along one or two named directions, dashed their quadratic model."""
    figure = Figure(figsize=(5.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    low = float(losses.min())
    high = float(losses.max())
    if losses.ndim == 1:
        axes.plot(positions, losses, color="C0", label="loss")
        axes.plot(positions, quadratic, "--", color="0.5", label="quadratic model")
        axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))  # which the model may leave
        axes.set(xlabel=names[0], ylabel="loss")
        axes.legend()
    else:
        is_wide = high > WIDE * low > 0  # then a linear scale would show only the corners
        levels, norm = (np.geomspace, LogNorm(low, high)) if is_wide else (np.linspace, None)
        levels = levels(low, high, NUM_LEVELS)
        # meshgrid varies its first result along the columns, which are the second direction of the losses.
        b, a = np.meshgrid(positions, positions)
        drawn = axes.contourf(b, a, np.clip(losses, low, high), levels, cmap="viridis", norm=norm)
        axes.contour(b, a, quadratic, levels, colors="white", linestyles="dashed", linewidths=0.7)
        axes.plot(0, 0, "+", color="C3", ms=10)
        axes.set(xlabel=names[1], ylabel=names[0])
        figure.colorbar(drawn, label="loss (dashed: its quadratic model)", format="%.3g")
    axes.locator_params(axis="x", nbins=5)
    axes.set_title(title, parse_math=False)
    return figure
