"""The figure of convolutional.py: condition number and largest eigenvalue at the initial weights against depth."""

import math

import numpy as np
from matplotlib.figure import Figure

_COLOURS = {1: "tab:red", 2: "tab:blue", 3: "tab:green"}  # by shortcut_depth
_STYLES = {"small": ("-", "o"), "standard": ("--", "s"), "zero": (":", "^")}  # by initialisation
_PANELS = {0: "without batch normalisation", 1: "with batch normalisation"}
_QUANTITIES = {"condition_number": "condition number", "max_abs": "largest |λ|"}
VISIBLE_RANGE = 1.1  # p10_high / p10_low from which on the range is drawn


def convolutional_figure(rows: list[dict]) -> Figure:
    """Condition number (top) and largest |λ| (bottom) against depth, without and with batch normalisation.

    Lines and bands are means ± standard deviations of log₁₀ over the seeds. Where a seed's condition number is
    infinite, a triangle at the top edge takes the place of the point. Thin bars span the condition numbers that the
    range of the 10th percentile allows, where that is more than rounding.

    Args:
      rows: with shortcut_depth, initialisation, batch_norm (0 or 1), depth, seed, condition_number, max_abs, p10_low
        and p10_high, as they come or read from a CSV file. Where a number is missing or NaN the row does not count.
    """
    figure = Figure(figsize=(10, 7), dpi=120, layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, sharey="row")
    depths = sorted({row["depth"] for row in rows})
    for column, (batch_norm, title) in enumerate(_PANELS.items()):
        panel = [row for row in rows if row["batch_norm"] == batch_norm]
        for axes, (quantity, label) in zip(grid[:, column], _QUANTITIES.items()):
            axes.set(xscale="log", yscale="log")
            for (shortcut_depth, initialisation), curve in _curves(panel).items():
                _draw(axes, curve, quantity, shortcut_depth, initialisation)
            axes.set_xticks(depths, [str(depth) for depth in depths])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            if column == 0:
                axes.set_ylabel(label)
        grid[0, column].set_title(title)
        grid[1, column].set_xlabel("depth, convolutions after the stem")
    figure.suptitle("Hessian in the residual kernels at the initial weights")
    handles = {label: handle for axes in grid[0] for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _curves(rows: list[dict]) -> dict[tuple, list[dict]]:
    """(shortcut_depth, initialisation) -> its rows."""
    curves = {}
    for row in sorted(rows, key=lambda row: (row["initialisation"], row["shortcut_depth"])):
        curves.setdefault((row["shortcut_depth"], row["initialisation"]), []).append(row)
    return curves


def _draw(axes, rows: list[dict], quantity: str, shortcut_depth: int, initialisation: str) -> None:
    colour = _COLOURS.get(shortcut_depth, "tab:gray")
    line, marker = _STYLES.get(initialisation, ("-.", "d"))
    finite = {"depth": [], "mean": [], "spread": []}
    for depth in sorted({row["depth"] for row in rows}):
        of_depth = [row for row in rows if row["depth"] == depth and not math.isnan(_number(row[quantity]))]
        values = [_number(row[quantity]) for row in of_depth]
        if any(map(math.isinf, values)):
            axes.plot(depth, 0.97, "^", color=colour, ms=9, mfc="none", transform=axes.get_xaxis_transform())
        elif values:
            logs = np.log10(values)
            for name, value in zip(finite, (depth, logs.mean(), logs.std(ddof=1) if len(logs) > 1 else 0.0)):
                finite[name].append(value)
            if quantity == "condition_number":
                _draw_range(axes, of_depth, depth, colour)
    mean, spread = np.array(finite["mean"]), np.array(finite["spread"])
    count = "convolution" if shortcut_depth == 1 else "convolutions"
    label = f"shortcut over {shortcut_depth} {count}, {initialisation}"
    axes.plot(finite["depth"], 10**mean, line, marker=marker, ms=5, color=colour, label=label)
    axes.fill_between(finite["depth"], 10 ** (mean - spread), 10 ** (mean + spread), color=colour, alpha=0.12, lw=0)


def _draw_range(axes, rows: list[dict], depth: int, colour: str) -> None:
    """A bar over the condition numbers that p10_low and p10_high of these seeds allow, up to the top edge for p10_low = 0."""
    sizes = np.array([[_number(row[name]) for name in ("max_abs", "p10_low", "p10_high")] for row in rows])
    if np.isnan(sizes).any() or not sizes[:, 2].all() or (sizes[:, 2] <= VISIBLE_RANGE * sizes[:, 1]).all():
        return
    least = (sizes[:, 0] / sizes[:, 2]).min()
    if sizes[:, 1].all():
        axes.plot([depth, depth], [least, (sizes[:, 0] / sizes[:, 1]).max()], color=colour, lw=1, alpha=0.6)
    else:
        axes.annotate(
            "", (depth, 1), (depth, least), xycoords=("data", "axes fraction"), textcoords="data",
            arrowprops={"arrowstyle": "->", "color": colour, "alpha": 0.6},
        )  # fmt: skip


def _number(value) -> float:
    """NaN for an empty field of a CSV file."""
    return math.nan if value == "" else float(value)
