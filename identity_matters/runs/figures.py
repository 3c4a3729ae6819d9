"""Figures of training runs, drawn from metrics.csv (Hardt & Ma, Figure 1), and writing them to files."""

import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, StrMethodFormatter

from identity_matters.runs.figure_style import fit, styled
from identity_matters.runs.files import replacing
from identity_matters.runs.tables import percent

# More drops than this (an exponential schedule) would hide the curves.
MAX_MARKED_DROPS = 5
PERCENT = FuncFormatter(lambda share, _: f"{100 * share:g}%")


def convergence_figure(
    rows: list[dict[str, float]],
    title: str = "",
    split: str = "test",
    place: str = "at the end",
    levels: Mapping[str, float] = {},
) -> Figure:
    """Returns a figure of the top-1 training and test error against steps, the drops of the learning rate marked.

    Args:
      rows: The rows of a metrics.csv: step, train_top1_error, test_top1_error (fractions), learning_rate.
      title: The title of the figure.
      split, place: See `Record.split` and `Record.final_row_label`.
      levels: Errors, as fractions, drawn as horizontal lines, by their legend entries.
    """
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for column, name, colour, style in (("train", "train", "C0", "--"), ("test", split, "C3", "-")):
        errors = [row[f"{column}_top1_error"] for row in rows]
        last = f" ({percent(errors[-1])} {place})" if errors and np.isfinite(errors[-1]) else ""
        axes.plot(steps, errors, style, color=colour, marker=_marker(rows), label=f"{name} error{last}")
    _mark_drops(axes, rows, "0.6", "learning rate drops")
    _label_errors(axes, title, levels)
    return figure


def _marker(rows: list[dict[str, float]]) -> str:
    """Returns the marker of each evaluation, a dot if they are few."""
    return "." if len(rows) < 40 else ""


def _mark_drops(axes: Axes, rows: list[dict[str, float]], colour: str, label: str | None) -> None:
    """Draws a vertical line at each drop of the learning rate, the first with the label, if they are few."""
    drops = learning_rate_drops(rows)
    if len(drops) <= MAX_MARKED_DROPS:
        for i, step in enumerate(drops):
            axes.axvline(step, color=colour, linewidth=1, linestyle=":", label=None if i else label)


def _label_errors(axes: Axes, title: str, levels: Mapping[str, float]) -> None:
    """Labels axes on which errors are drawn against steps, after the levels."""
    for text, error in levels.items():
        axes.axhline(error, color="black", linewidth=1, linestyle="-.", label=text)
    axes.set(xlabel="steps", ylabel="top-1 error", xlim=(0, None), ylim=(0, None))
    axes.set_title(title, parse_math=False)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_formatter(PERCENT)
    below = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14))  # within the axes it would hide lines
    for text in below.get_texts():  # names of directories may hold the signs of formulas
        text.set_parse_math(False)


def comparison_figure(
    runs: list[tuple[str, str, list[dict], str]], title: str = "", levels: Mapping[str, float] = {}
) -> Figure:
    """Returns a figure of the top-1 errors of several runs against steps: test or held-out solid, training dashed.

    Runs of one name are drawn as one: the mean of their errors, with a band of a standard deviation to either side. The
    legend has the mean at the end, the standard deviation, and how many they are. Runs that did not finish are named
    there individually.

    Args:
      runs: For each run its name, its `Record.split`, the rows of its metrics.csv and its `Record.final_row_label`.
      title, levels: As of `convergence_figure`.
    """
    groups: dict[tuple[str, str], list[tuple[list[dict], str]]] = {}
    for name, split, rows, place in runs:
        groups.setdefault((name, split), []).append((rows, place))
    figure = Figure(figsize=(6, 4 + 0.2 * len(groups)), layout="constrained")
    axes = figure.add_subplot()
    for i, ((name, split), group) in enumerate(groups.items()):
        tables = [rows for rows, _ in group]
        colour = f"C{i}"
        for column, style, text in (("test", "-", f"{name} ({_ends(group, split)})"), ("train", "--", None)):
            steps, mean, spread = mean_over_runs(tables, f"{column}_top1_error")
            axes.plot(steps, mean, style, color=colour, marker=_marker(tables[0]), label=text)
            if len(tables) > 1:
                axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.25, lw=0)
        _mark_drops(axes, tables[0], colour, f"learning rate drops, {name}")
    axes.plot([], [], "--", color="0.4", label="training error")
    if any(len(group) > 1 for group in groups.values()):
        axes.fill_between([], [], [], color="0.4", alpha=0.25, lw=0, label="± a standard deviation over runs")
    _label_errors(axes, title, levels)
    return figure


def mean_over_runs(tables: list[list[dict]], column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns steps, the mean of a column over runs and its standard deviation (0 for one run).

    Runs that were evaluated at different steps are interpolated; a run counts between its first step and its last.
    """
    steps = np.unique([row["step"] for rows in tables for row in rows])
    values = np.array(
        [
            np.interp(steps, [row["step"] for row in rows], [row[column] for row in rows], left=np.nan, right=np.nan)
            for rows in tables
        ]
    )
    count = np.maximum(np.isfinite(values).sum(0), 1)
    mean = np.where(np.isfinite(values).any(0), np.nansum(values, 0) / count, np.nan)
    squares = np.nansum((values - mean) ** 2, 0)
    return steps, mean, np.sqrt(squares / np.maximum(count - 1, 1))


def _ends(ends: list[tuple[list[dict], str]], split: str) -> str:
    """The last errors of the runs of one name in words, those at their end first."""
    by_place: dict[str, list[float]] = {}
    for rows, place in ends:
        by_place.setdefault(place, []).append(rows[-1]["test_top1_error"])
    places = sorted(by_place, key=lambda place: (place != "at the end", place))
    return "; ".join(_last_errors(by_place[place], split, place) for place in places)


def _last_errors(errors: list[float], split: str, place: str) -> str:
    if place != "at the end" or len(errors) == 1:
        return f"{', '.join(percent(error) for error in errors)} {split} error {place}"
    return f"{percent(np.mean(errors))} ± {percent(np.std(errors, ddof=1))} {split} error {place}, n = {len(errors)}"


def learning_rate_drops(rows: list[dict[str, float]]) -> list[int]:
    """Returns the steps after which the learning rate was lower, to the resolution of the evaluations.

    None if it changes all the time, as under a linear or a cosine schedule.
    """
    pairs = list(itertools.pairwise(rows))
    stays = any(a["learning_rate"] == b["learning_rate"] for a, b in pairs)
    return [a["step"] for a, b in pairs if stays and b["learning_rate"] < a["learning_rate"]]


def save_figures(
    draw: Callable[[], dict[str, Figure]], folder: str, extension: str = "png", style: str = "screen"
) -> list[str]:
    """Draws figures in a style of `figure_style` and writes them as FOLDER/NAME.png, or with another extension.

    Args:
      draw: Returns the figures by name. They are drawn here because colours and fonts are those of the moment.

    Returns:
      The paths.
    """
    paths = []
    with styled(style):
        for name, figure in draw().items():
            fit(figure, style)
            paths.append(os.path.join(folder, f"{name}.{extension}"))
            with replacing(paths[-1]) as temporary:
                write_picture(figure, temporary, extension)
    return paths


def write_picture(figure: Figure, file: str | BinaryIO, extension: str, **options: Any) -> None:
    """Writes a figure as png, pdf or svg, without a date and random names: the same figure gives the same bytes."""
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(file, format=extension, metadata=dates.get(extension), **options)


def figure_to_array(figure: Figure) -> np.ndarray:
    """Returns the pixels of a figure, red, green and blue: uint8 [h, w, 3]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]
