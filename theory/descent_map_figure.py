"""The picture of the map (descent_map.py): which step size at which depth reaches which target, and how soon."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from theory.descent_map import MAX_STEPS, METHODS, SPEEDS, STARTS, TARGETS

_NORM = LogNorm(10, MAX_STEPS)


def map_figure(rows: list[dict]) -> Figure:
    """Returns steps to the target by depth and step size: a row a target, a column a start and method, d = 6.

    A cell is coloured by the steps, grey where 500 do not suffice, black where it diverges. The red line is the largest
    step size without crossing, `descent.largest_learning_rate`, where the theory of descent from zero has one.

    Args:
      rows: of `descent_map.run`, perhaps from a CSV file.
    """
    rows = [row for row in rows if int(row["dimension"]) == 6]
    figure = Figure(figsize=(15, 8.5), dpi=110, layout="constrained")
    panels = figure.subplots(len(TARGETS), len(STARTS) * len(METHODS), sharex=True, sharey=True)
    for i, target in enumerate(TARGETS):
        for j, (start, method) in enumerate((start, method) for start in STARTS for method in METHODS):
            chosen = [r for r in rows if (r["target"], r["start"], r["method"]) == (target, start, method)]
            mesh = _draw_panel(panels[i, j], chosen)
            if i == 0:
                panels[i, j].set_title(f"{start}\n{method}", fontsize=9)
        panels[i, 0].set_ylabel(f"{target}\nη·ℓ", fontsize=9)
    figure.supxlabel("depth ℓ", fontsize=10)
    bar = figure.colorbar(mesh, ax=panels, shrink=0.5, pad=0.01)
    bar.set_label("steps to 0.1 % of f(0)")
    figure.suptitle(
        "grey: not within 500 steps; black: diverged; red line: largest step size without crossing", fontsize=10
    )
    panels[0, 0].invert_yaxis()
    return figure


def _draw_panel(axes: Axes, rows: list[dict]) -> object:
    depths = sorted({int(row["num_layers"]) for row in rows})
    steps = np.full((len(SPEEDS), len(depths)), np.nan)
    for row in rows:
        cell = SPEEDS.index(float(row["speed"])), depths.index(int(row["num_layers"]))
        steps[cell] = {"reached": max(float(row["steps"]), 1), "diverged": -1}.get(row["status"], np.nan)
    axes.set_facecolor("0.8")
    edges = np.arange(len(depths) + 1) - 0.5, np.arange(len(SPEEDS) + 1) - 0.5
    mesh = axes.pcolormesh(*edges, np.where(steps > 0, steps, np.nan), norm=_NORM, cmap="viridis_r")
    axes.pcolormesh(*edges, np.where(steps < 0, 1.0, np.nan), cmap="gray", vmin=1, vmax=2)
    if np.isfinite([float(row["largest_rate"]) for row in rows]).all():
        largest = [
            next(float(row["largest_rate"]) for row in rows if int(row["num_layers"]) == depth) for depth in depths
        ]
        axes.plot(range(len(depths)), -np.log2(np.multiply(largest, depths)), ".-", color="tab:red", lw=1, ms=4)
    axes.set_xticks(range(len(depths)), depths, fontsize=7)
    axes.set_yticks(range(0, len(SPEEDS), 2), [f"1/{1 / speed:g}" for speed in SPEEDS[::2]], fontsize=7)
    return mesh
