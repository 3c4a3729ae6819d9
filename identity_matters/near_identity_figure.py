"""The figure of how near to the identity the blocks of one or several networks are."""

import itertools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from identity_matters.runs.figure_style import PAGE
from identity_matters.runs.figures import PERCENT

SMALLEST_RATIO = 1e-6  # smaller values and exact zeros are drawn at this height


def blocks_figure(networks: list[tuple[str, list[dict], list[dict]]]) -> Figure:
    """Draws a column per network: branch over stream, hidden values above 0, the errors without one and many blocks.

    Args:
      networks: For each, its title and the rows of results.csv and of removed.csv as launch.near_identity writes them.
    """
    figure = Figure(figsize=(PAGE if len(networks) > 1 else 5.5, 8), layout="constrained")
    grid = figure.subplots(4, len(networks), sharey="row", squeeze=False)
    for (title, rows, removed), (ratios, hidden, errors, left) in zip(networks, grid.T):
        ratios.set_title(title, parse_math=False)
        _ratios(ratios, rows)
        _hidden(hidden, rows)
        _errors(errors, rows, removed)
        _left(left, removed)
        for axes in (ratios, hidden, errors):
            _mark_stages(axes, rows, named=axes is ratios)
        numbered = np.arange(0, len(rows), 1 + len(rows) // 10)
        errors.set_xticks(numbered, labels=map(str, 1 + numbered))
        errors.set(xlabel="residual block")
        left.set(xlabel="blocks left out,\nthe smallest branch first")
    grid[0, 0].set(ylim=(None, grid[0, 0].get_ylim()[1] * 100))  # room for the stages' names
    for axes, label in zip(grid[:, 0], ("‖branch‖ / ‖stream‖", "share of hidden units", "error without one", "error")):
        axes.set(ylabel=label)
    legends = [axes.get_legend_handles_labels() for axes in grid[:2, 0]]
    handles, labels = (sum(parts, []) for parts in zip(*legends))
    figure.legend(handles, labels, loc="outside lower center", ncols=2)  # within the panels it would hide points
    return figure


def _column(rows: list[dict], name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


def _ratios(axes: Axes, rows: list[dict]) -> None:
    low, ratio, high = (np.maximum(_column(rows, f"ratio{end}"), SMALLEST_RATIO) for end in ("_low", "", "_high"))
    positions = np.arange(len(rows))
    axes.vlines(positions, low, high, color="C0", linewidth=2, alpha=0.5)
    axes.plot(positions, ratio, "o", ms=4, color="C0", label="on images: median, quartiles")
    axes.plot(
        positions,
        np.maximum(_column(rows, "lipschitz"), SMALLEST_RATIO),
        "_",
        color="0.4",
        label="bound for all inputs",
    )
    axes.axhline(1, color="0.6", linewidth=1, linestyle=":")
    axes.set(yscale="log")


def _hidden(axes: Axes, rows: list[dict]) -> None:
    positions = np.arange(len(rows))
    axes.bar(positions, _column(rows, "dead"), color="0.75", label="channels that are 0 on all images")
    axes.plot(positions, _column(rows, "active"), "o", ms=4, color="C1", label="values above 0")
    axes.set(ylim=(0, 1))
    axes.yaxis.set_major_formatter(PERCENT)


def _errors(axes: Axes, rows: list[dict], removed: list[dict]) -> None:
    axes.plot(np.arange(len(rows)), _column(rows, "error_without"), "o", ms=4, color="C3")
    if removed:
        axes.axhline(float(removed[0]["error"]), color="0.4", linewidth=1, linestyle=":")  # of all blocks
    _as_error(axes)


def _left(axes: Axes, removed: list[dict]) -> None:
    if removed:
        axes.plot(_column(removed, "num_removed"), _column(removed, "error"), "o-", ms=3, color="C3")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _as_error(axes)


def _as_error(axes: Axes) -> None:
    axes.set(ylim=(0, 1))
    axes.yaxis.set_major_formatter(PERCENT)


def _mark_stages(axes: Axes, rows: list[dict], named: bool) -> None:
    """Draws a line between the stages, and writes their names above where `named`."""
    start = 0
    for stage, blocks in itertools.groupby(rows, key=lambda row: row["block"].split("_")[0]):
        end = start + len(list(blocks))
        if start:
            axes.axvline(start - 0.5, color="0.4", linewidth=1)
        if named:
            axes.text(
                (start + end - 1) / 2,
                0.98,
                stage.replace("stage", "stage "),
                ha="center",
                va="top",
                transform=axes.get_xaxis_transform(),
            )
        start = end
    axes.set(xticks=[], xlim=(-0.5, len(rows) - 0.5))
