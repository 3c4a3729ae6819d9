"""Figures of memorising networks (Theorem 3.2): their data, and the drawings from their CSV files."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.figure import Figure

from theory.arrays import column
from theory.memorization.construction import memorize

_COLOURS = ("C0", "C1", "C2")  # by label
_MARKERS = "os^"  # by label
WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def memorizing_networks(
    x: np.ndarray, labels: np.ndarray, num_classes: int, seed: int = 0, widths: Sequence[int] = WIDTHS
) -> list[dict]:
    """Returns parameters per sample, smallest gap, and errors in float64 and float32 of the peeling network by width.

    Args:
      x: [n, d]. labels: [n] int.
    """
    one_hot = np.eye(num_classes)[labels]
    rows = []
    for width in widths:
        for whiten in (False, True):
            row = {"width": width, "whitened": int(whiten), "num_points": len(x)}
            for dtype in (np.float64, np.float32):
                points = np.asarray(x, dtype)
                network = memorize(points, labels, num_classes, width, seed=seed, whiten=whiten)
                scores = network.forward(points, dtype)
                row[f"{dtype.__name__}_error"] = float(np.abs(scores - one_hot).max())
                row[f"{dtype.__name__}_accuracy"] = float((scores.argmax(1) == labels).mean())
            row |= {"smallest_gap": network.smallest_gap, "float32_error_expected": network.float32_error}
            row["parameters_per_point"] = network.num_parameters / len(x)
            rows.append(row)
    return rows


def memorization_figure(rows: list[dict]) -> Figure:
    """Returns curves of parameters per sample, smallest gap and float32 error by width (Theorem 3.2, peeling)."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    count, gap, error = figure.subplots(1, 3)
    for whitened, colour, name in ((0, "C0", "raw"), (1, "C1", "whitened")):
        chosen = [row for row in rows if int(row["whitened"]) == whitened]
        widths = column(chosen, "width")
        if not whitened:
            count.plot(widths, column(chosen, "parameters_per_point"), "o-", color=colour)
        gap.plot(widths, column(chosen, "smallest_gap"), "o-", color=colour, label=name)
        error.plot(widths, column(chosen, "float32_error"), "o-", color=colour, label=f"{name}: float32")
        error.plot(
            widths, column(chosen, "float32_error_expected"), ":", color=colour, label=f"{name}: expected at most"
        )
        error.plot(widths, column(chosen, "float64_error"), "x-", color=colour, lw=0.8, label=f"{name}: float64")
    error.axhline(0.5, color="k", lw=0.8)
    count.set(title="parameters per sample", xlabel="width $k$")
    gap.set(title="smallest relative gap", xlabel="width $k$", yscale="log")
    error.set(title=r"largest $|\hat{y} - $one-hot$|$", xlabel="width $k$", yscale="log")
    for axes in (count, gap, error):
        axes.set_xscale("log", base=2)
    gap.legend()
    figure.legend(*error.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return figure


def memorized_plane(seed: int = 0, num_points: int = 36, num_classes: int = 3, grid: int = 141) -> list[dict]:
    """Returns a network of width 2 that memorises points of the plane with random labels (Theorem 3.2, peeling).

    Rows are of the kinds hidden (block, label, first, second: the position of a point after that many blocks, −1 being
    the input) and region (the label of the largest score on a grid).
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (num_points, 2))
    labels = rng.integers(0, num_classes, num_points)
    network = memorize(x, labels, num_classes, width=2, seed=seed)
    states = [x, *network.hidden(x)]
    rows = [
        {"kind": "hidden", "block": block - 1, "label": int(label), "first": float(h[0]), "second": float(h[1])}
        for block, state in enumerate(states)
        for h, label in zip(state, labels)
    ]
    places = np.stack(np.meshgrid(*[np.linspace(-1.1, 1.1, grid)] * 2, indexing="ij"), -1).reshape(-1, 2)
    for place, label in zip(places, network(places).argmax(1)):
        row = {"kind": "region", "block": network.num_layers, "label": int(label)}
        rows.append(row | {"first": float(place[0]), "second": float(place[1])})
    return rows


def memorized_plane_figure(rows: list[dict]) -> Figure:
    """Returns the memorising network at work: the points, their positions after some blocks, and its label everywhere.

    Each block moves two points to the place that stands for their label, a star; the others stay.
    """
    hidden, region = ([row for row in rows if row["kind"] == kind] for kind in ("hidden", "region"))
    last = max(int(row["block"]) for row in hidden)
    count = sum(int(row["block"]) == 0 for row in hidden)
    titles = {-1: f"input: {count} points, random labels", 0: "$h_0 = A_0 x$"}
    titles |= {block: f"after {block} of {last} blocks" for block in (last // 3, 2 * last // 3, last)}
    figure = Figure(figsize=(8, 5.4), layout="constrained")
    *panels, answer = figure.subplots(2, 3).flat
    for axes, (block, title) in zip(panels, titles.items()):
        _draw_points(axes, [row for row in hidden if int(row["block"]) == block])
        if block >= 0:
            _draw_stars(axes, [row for row in hidden if int(row["block"]) == last])
            axes.set(xlim=_limits(hidden, "first"), ylim=_limits(hidden, "second"))
        axes.set_title(title)
    _draw_regions(answer, region)
    _draw_points(answer, [row for row in hidden if int(row["block"]) == -1])
    answer.set_title("predicted label everywhere")
    figure.suptitle("each block moves two points, the farthest first, to the star of their label")
    for axes in (*panels, answer):
        axes.set(xticks=[], yticks=[])
        axes.grid(False)
    return figure


def _limits(hidden: list[dict], name: str) -> tuple[float, float]:
    """Returns the range of a hidden coordinate before the first block, with a margin."""
    values = column([row for row in hidden if int(row["block"]) == 0], name)
    margin = 0.08 * np.ptp(values)
    return values.min() - margin, values.max() + margin


def _labels(rows: list[dict]) -> list[int]:
    return sorted({int(row["label"]) for row in rows})


def _coordinates(rows: list[dict], label: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = [row for row in rows if int(row["label"]) == label]
    return column(chosen, "first"), column(chosen, "second")


def _draw_points(axes: Axes, rows: list[dict]) -> None:
    """Draws the points, with a colour and a marker per label."""
    for label in _labels(rows):
        axes.plot(*_coordinates(rows, label), _MARKERS[label % 3], color=_COLOURS[label % 3], ms=6, mec="w", mew=0.6)


def _draw_stars(axes: Axes, rows: list[dict]) -> None:
    """Draws the places that stand for the labels, at which all points end."""
    for label in _labels(rows):
        first, second = _coordinates(rows, label)
        axes.plot(first[0], second[0], "*", color=_COLOURS[label % 3], ms=17, mec="k", mew=0.8, zorder=5)


def _draw_regions(axes: Axes, rows: list[dict]) -> None:
    """Colours the plane by the label of the largest score."""
    first = np.unique(column(rows, "first"))
    label = column(rows, "label").reshape(len(first), len(first)).T
    ends = (first[0], first[-1])
    colours = ListedColormap([to_rgba(colour, 0.35) for colour in _COLOURS])
    axes.imshow(label % 3, cmap=colours, vmin=0, vmax=2, origin="lower", extent=(*ends, *ends), aspect="auto")


FIGURES = {
    "memorization": (memorizing_networks, memorization_figure),
    "memorized_plane": (memorized_plane, memorized_plane_figure),
}
