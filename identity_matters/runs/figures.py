"""Figures, drawn from metrics.csv and results.csv alone: convergence (Hardt & Ma, Figure 1) and ablations."""

import os

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from identity_matters.runs.directory import replacing

# More drops than this (an exponential schedule) would hide the curves.
MAX_MARKED_DROPS = 5


def convergence_figure(rows: list[dict[str, float]], title: str = "") -> Figure:
    """Returns a figure of the top-1 training and test error against steps, the drops of the learning rate marked.

    Args:
      rows: The rows of a metrics.csv: step, train_top1_error, test_top1_error (fractions), learning_rate.
      title: str. What stands above the figure.
    """
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(6, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for split, colour, style in (("train", "tab:blue", "--"), ("test", "tab:red", "-")):
        errors = [row[f"{split}_top1_error"] for row in rows]
        last = f" ({errors[-1]:.2%} at the end)" if errors and np.isfinite(errors[-1]) else ""
        axes.plot(
            steps, errors, style, color=colour, marker="." if len(rows) < 40 else "", label=f"{split} error{last}"
        )
    drops = learning_rate_drops(rows)
    if len(drops) <= MAX_MARKED_DROPS:
        for i, step in enumerate(drops):
            axes.axvline(step, color="0.6", linewidth=1, linestyle=":", label="learning rate drops" if i == 0 else None)
    axes.set(xlabel="steps", ylabel="top-1 error", title=title, xlim=(0, None), ylim=(0, None))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def ablation_figure(rows: list[dict], title: str = "") -> Figure:
    """Returns a figure of the test error (left) and the training loss (right) against steps.

    A line is the mean over the seeds of a variant, the band around it reaches from its lowest to its highest seed.

    Args:
      rows: The rows of an ablation's results.csv. A run that diverged ends in a cross at that step.
      title: str. What stands above the figure.
    """
    figure = Figure(figsize=(10, 4.6), dpi=120, layout="constrained")
    for axes, column, label in zip(
        figure.subplots(1, 2), ("test_top1_error", "loss"), ("top-1 test error", "training loss, with weight decay")
    ):
        for i, variant in enumerate(dict.fromkeys(row["variant"] for row in rows)):
            _draw_variant(axes, [row for row in rows if row["variant"] == variant], column, f"C{i}", variant)
        axes.set(xlabel="steps", ylabel=label, xlim=(0, None))
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.axes[0].yaxis.set_major_formatter(PercentFormatter(1))
    figure.suptitle(title)
    return figure


def _draw_variant(axes: Axes, rows: list[dict], column: str, colour: str, variant: str) -> None:
    """Draws the line, the band and the crosses of one variant."""
    measured = [row for row in rows if np.isfinite(row[column])]
    steps = sorted({row["step"] for row in measured})
    values = [[row[column] for row in measured if row["step"] == step] for step in steps]
    if steps:
        axes.plot(steps, [np.mean(v) for v in values], ".-", color=colour, label=variant.replace("_", " "))
        axes.fill_between(steps, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.2)
    diverged = [row["step"] for row in rows if row["status"] == "diverged" and np.isnan(row["loss"])]
    if diverged:
        height = axes.get_ylim()[1]
        axes.plot(
            diverged, [height] * len(diverged), "x", color=colour, label=f"{len(diverged)} diverged", clip_on=False
        )


def learning_rate_drops(rows: list[dict[str, float]]) -> list[int]:
    """Returns the steps after which the learning rate was lower, to the resolution of the evaluations."""
    return [a["step"] for a, b in zip(rows, rows[1:]) if b["learning_rate"] < a["learning_rate"]]


def save_figure(figure: Figure, path: str) -> None:
    """Writes a figure as a PNG, PDF or SVG file, as the path ends, whole or not at all."""
    with replacing(path) as temporary:
        figure.savefig(temporary, format=os.path.splitext(path)[1][1:])


def save_figures(figures: dict[str, Figure], folder: str, extension: str = "png") -> list[str]:
    """Writes figures by name as FOLDER/NAME.png, or with another extension; returns their paths."""
    paths = {os.path.join(folder, f"{name}.{extension}"): figure for name, figure in figures.items()}
    for path, figure in paths.items():
        save_figure(figure, path)
    return list(paths)


def figure_to_array(figure: Figure) -> np.ndarray:
    """Returns the pixels of a figure, red, green and blue: uint8 [h, w, 3]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]
