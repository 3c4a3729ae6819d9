"""Figures of a Hessian: its spectrum and those of its parts, from rows of `curvature.report` alone; a landscape."""

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from shortcut_study.curvature.estimators import confidence
from shortcut_study.curvature.quadrature import extreme_eigenvalues
from shortcut_study.curvature.report import quadrature_from_rows

NUM_MARKED = 3  # eigenvalues at either end
NUM_LEVELS, WIDE = 12, 30  # of contours; on a logarithmic scale where the largest loss is so many times the least
_ENDS = {"largest": ("C3", "v"), "smallest": ("C2", "D")}  # colours and markers


def spectrum_figure(rows: list[dict], density: list[dict], title: str = "") -> Figure:
    """Draws rows of `quadrature_rows` and `density_rows`: the density, and extreme eigenvalues with errors."""
    grid, heights, errors = (
        np.array([float(row[name]) for row in density]) for name in ("eigenvalue", "density", "standard_error")
    )
    quadrature = quadrature_from_rows(rows)
    errors *= confidence(len(quadrature.nodes))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.fill_between(grid, heights - errors, heights + errors, color="C0", alpha=0.3, linewidth=0)
    axes.plot(grid, heights, color="C0", linewidth=1.2, label="density, and its 95 % range")
    lowest = heights.max()
    for name, (colour, marker) in _ENDS.items():
        values, bounds = extreme_eigenvalues(quadrature, NUM_MARKED, name == "largest")
        at = np.interp(values, grid, heights)
        count = f"{len(values)} {name}" if len(values) > 1 else name
        label = f"{count}, the outermost {values[0]:.4g} ± {bounds[0]:.1g}"
        axes.errorbar(values, at, xerr=bounds, fmt=marker, ms=6, capsize=3, color=colour, label=label)
        lowest = min(lowest, at.min())
    axes.axvline(0, color="0.5", linewidth=1, linestyle=":")
    axes.set(xlabel=r"eigenvalue $\lambda$ of the Hessian", ylabel="density of the eigenvalues", yscale="log")
    axes.set_title(title, parse_math=False)
    axes.set_ylim(0.1 * lowest, 3 * heights.max())
    axes.legend()
    return figure


def parts_figure(rows: list[dict]) -> Figure:
    """Draws the extreme eigenvalues and the trace of rows as `per_layer` makes them, with their errors."""
    names, at = [row["part"].replace("_", " ") for row in rows], np.arange(len(rows))
    column = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name != "part"}
    figure = Figure(figsize=(8, max(2.5, 1 + 0.22 * len(rows))), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    style = {"ms": 4, "capsize": 2}
    for end, (colour, marker) in _ENDS.items():
        errors = column[f"{end}_error_bound"]
        left.errorbar(column[end], at, xerr=errors, fmt=marker, color=colour, label=end, **style)
    left.axvline(0, color="0.6", linewidth=1, linestyle=":")
    left.set(yticks=at, yticklabels=names, xlabel="eigenvalue of the part's block of the Hessian")
    left.invert_yaxis()
    left.legend()
    right.errorbar(column["trace"], at, xerr=np.nan_to_num(column["trace_error"]), fmt="s", color="C0", **style)
    right.set(xlabel="trace of the block, and its 95 % range")
    for axes in (left, right):
        axes.tick_params(axis="y", labelsize="x-small")
        axes.locator_params(axis="x", nbins=6)
    return figure


def landscape_figure(
    positions: np.ndarray, losses: np.ndarray, quadratic: np.ndarray, names: tuple[str, ...], title: str = ""
) -> Figure:
    """Draws losses [p] or [p, p] at positions [p] along one or two named directions, dashed their quadratic model."""
    figure = Figure(figsize=(5.5, 4.5), layout="constrained")
    axes, low, high = figure.add_subplot(), float(losses.min()), float(losses.max())
    if losses.ndim == 1:
        axes.plot(positions, losses, color="C0", label="loss")
        axes.plot(positions, quadratic, "--", color="0.5", label="quadratic model")
        axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))  # which the model may leave
        axes.set(xlabel=names[0], ylabel="loss")
        axes.legend()
    else:
        is_wide = high > WIDE * low > 0  # then a linear scale shows the corners alone
        levels, norm = (np.geomspace, LogNorm(low, high)) if is_wide else (np.linspace, None)
        levels = levels(low, high, NUM_LEVELS)
        b, a = np.meshgrid(positions, positions)
        drawn = axes.contourf(b, a, np.clip(losses, low, high), levels, cmap="viridis", norm=norm)
        axes.contour(b, a, quadratic, levels, colors="white", linestyles="dashed", linewidths=0.7)
        axes.plot(0, 0, "+", color="C3", ms=10)
        axes.set(xlabel=names[1], ylabel=names[0])
        figure.colorbar(drawn, label="loss (dashed: its quadratic model)", format="%.3g")
    axes.locator_params(axis="x", nbins=5)
    axes.set_title(title, parse_math=False)
    return figure
