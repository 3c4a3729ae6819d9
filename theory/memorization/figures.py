"""The figure of memorising networks in docs/papers/theorems.md: its data, and the drawing from their CSV file alone."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from theory.arrays import column
from theory.memorization.construction import memorize

WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def memorizing_networks(
    x: np.ndarray, labels: np.ndarray, num_classes: int, seed: int = 0, widths: Sequence[int] = WIDTHS
) -> list[dict]:
    """Parameters per sample, smallest gap, and errors in float64 and float32 of the peeling network at each width.

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
    """Returns curves of parameters a sample, smallest gap and float32 error by width (Theorem 3.2, peeling)."""
    figure = Figure(figsize=(13, 3.8), dpi=110, layout="constrained")
    count, gap, error = figure.subplots(1, 3)
    for whitened, colour, name in ((0, "tab:blue", "raw"), (1, "tab:orange", "whitened")):
        chosen = [row for row in rows if int(row["whitened"]) == whitened]
        widths = column(chosen, "width")
        if not whitened:
            count.plot(widths, column(chosen, "parameters_per_point"), "o-", color=colour)
        gap.plot(widths, column(chosen, "smallest_gap"), "o-", color=colour, label=name)
        error.plot(widths, column(chosen, "float32_error"), "o-", color=colour, label=f"{name}: float32")
        error.plot(widths, column(chosen, "float32_error_expected"), ":", color=colour, label="expected at most")
        error.plot(widths, column(chosen, "float64_error"), "x-", color=colour, lw=0.8, label="float64")
    error.axhline(0.5, color="k", lw=0.8)
    count.set(title="parameters per sample", xlabel="width k")
    gap.set(title="smallest relative gap", xlabel="width k", yscale="log")
    error.set(title="largest |ŷ − one-hot|", xlabel="width k", yscale="log")
    for axes in (count, gap, error):
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
    gap.legend(fontsize=8)
    error.legend(fontsize=7, ncols=2)
    return figure


FIGURES = {"memorization": (memorizing_networks, memorization_figure)}
