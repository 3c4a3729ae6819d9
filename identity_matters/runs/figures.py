"""Figures of training runs, drawn from metrics.csv alone (Hardt & Ma, Figure 1), and how a figure is written."""

import itertools
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from identity_matters.runs.config_json import AT_THE_END
from identity_matters.runs.files import replacing

# More drops than this (an exponential schedule) would hide the curves.
MAX_MARKED_DROPS = 5


def convergence_figure(
    rows: list[dict[str, float]],
    title: str = "",
    split: str = "test",
    place: str = AT_THE_END,
    levels: Mapping[str, float] = {},
) -> Figure:
    """Returns a figure of the top-1 training and test error against steps, the drops of the learning rate marked.

    Args:
      rows: The rows of a metrics.csv: step, train_top1_error, test_top1_error (fractions), learning_rate.
      title: What stands above the figure.
      split, place: See `config_json.evaluated_split` and `config_json.final_row_label`.
      levels: Errors that are drawn as horizontal lines, fractions, by what the legend says of each.
    """
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(6, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for column, name, colour, style in (("train", "train", "tab:blue", "--"), ("test", split, "tab:red", "-")):
        errors = [row[f"{column}_top1_error"] for row in rows]
        last = f" ({errors[-1]:.2%} {place})" if errors and np.isfinite(errors[-1]) else ""
        axes.plot(steps, errors, style, color=colour, marker="." if len(rows) < 40 else "", label=f"{name} error{last}")
    _mark_drops(axes, rows, "0.6", "learning rate drops")
    _label_errors(axes, title, levels)
    return figure


def _mark_drops(axes: Axes, rows: list[dict[str, float]], colour: str, label: str | None) -> None:
    """Draws a vertical line at each drop of the learning rate, the first with the label, where they are few."""
    drops = learning_rate_drops(rows)
    if len(drops) <= MAX_MARKED_DROPS:
        for i, step in enumerate(drops):
            axes.axvline(step, color=colour, linewidth=1, linestyle=":", label=None if i else label)


def _label_errors(axes: Axes, title: str, levels: Mapping[str, float], **legend: Any) -> None:
    """Labels axes on which errors are drawn against steps, after the levels; legend: options of its legend."""
    for text, error in levels.items():
        axes.axhline(error, color="black", linewidth=1, linestyle="-.", label=text)
    axes.set(xlabel="steps", ylabel="top-1 error", xlim=(0, None), ylim=(0, None))
    axes.set_title(title, parse_math=False)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    for text in axes.legend(**legend).get_texts():  # names of directories may hold the signs of formulas
        text.set_parse_math(False)


def comparison_figure(
    runs: list[tuple[str, str, list[dict], str]], title: str = "", levels: Mapping[str, float] = {}
) -> Figure:
    """Returns a figure of the top-1 errors of several runs against steps: test or held-out solid, training dashed.

    Runs of one name share a colour and a line of the legend, which has the mean of their errors at the end, the
    standard deviation, and how many they are. Those that did not come to their end are named there one by one.

    Args:
      runs: Of each run its name, what `config_json.evaluated_split` says, the rows of its metrics.csv and what
        `config_json.final_row_label` says.
      title, levels: As of `convergence_figure`.
    """
    ends: dict[tuple[str, str], dict[str, list[float]]] = {}
    for name, split, rows, place in runs:
        ends.setdefault((name, split), {}).setdefault(place, []).append(rows[-1]["test_top1_error"])
    figure = Figure(figsize=(6, 4 + 0.2 * len(ends)), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for i, ((name, split), by_place) in enumerate(ends.items()):
        places = sorted(by_place, key=lambda place: (place != AT_THE_END, place))
        words = "; ".join(_last_errors(by_place[place], split, place) for place in places)
        same_name = [rows for *key, rows, _ in runs if key == [name, split]]
        for k, rows in enumerate(same_name):
            label = None if k else f"{name} ({words})"
            for column, style, text in (("test", "-", label), ("train", "--", None)):
                ys, marker = [row[f"{column}_top1_error"] for row in rows], "." if len(rows) < 40 else ""
                axes.plot([row["step"] for row in rows], ys, style, color=f"C{i % 10}", marker=marker, label=text)
            _mark_drops(axes, rows, f"C{i % 10}", None if k else f"learning rate drops, {name}")
    axes.plot([], [], "--", color="0.4", label="training error")
    _label_errors(
        axes, title, levels, loc="upper center", bbox_to_anchor=(0.5, -0.14)
    )  # below: many runs would hide the lines
    return figure


def _last_errors(errors: list[float], split: str, place: str) -> str:
    if place != AT_THE_END or len(errors) == 1:
        return f"{', '.join(f'{error:.2%}' for error in errors)} {split} error {place}"
    return f"{np.mean(errors):.2%} ± {np.std(errors, ddof=1):.2%} {split} error {place}, n = {len(errors)}"


def learning_rate_drops(rows: list[dict[str, float]]) -> list[int]:
    """Returns the steps after which the learning rate was lower, to the resolution of the evaluations.

    None where it never stays as it is, as under a linear or a cosine schedule.
    """
    pairs = list(itertools.pairwise(rows))
    stays = any(a["learning_rate"] == b["learning_rate"] for a, b in pairs)
    return [a["step"] for a, b in pairs if stays and b["learning_rate"] < a["learning_rate"]]


def save_figure(figure: Figure, path: str) -> None:
    """Writes a figure as a PNG, PDF or SVG file, as the path ends, whole or not at all."""
    with replacing(path) as temporary:
        write_picture(figure, temporary, os.path.splitext(path)[1][1:])


def write_picture(figure: Figure, file: str | BinaryIO, extension: str, **options: Any) -> None:
    """Writes a figure as png, pdf or svg, without a date and random names: the same figure gives the same bytes."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context({"svg.hashsalt": "identity-matters"}):
        figure.savefig(file, format=extension, metadata=dates.get(extension), **options)


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
