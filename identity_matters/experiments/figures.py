"""Figures of launch.ablations, drawn from results.csv: errors by variant and depth, norms (Li et al., Figure 2)."""

import re
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from identity_matters.runs.figures import learning_rate_drops
from identity_matters.runs.tables import final_rows

# The panels of the figures of errors at the end of runs: column and label.
_ERRORS = {"test_top1_error": "test error", "train_top1_error": "training error"}
_COLOURS = {"test_top1_error": "tab:blue", "train_top1_error": "tab:orange"}


def ablation_figure(rows: list[dict], title: str = "") -> Figure:
    """Returns a figure of the error of every variant, test (left) and training (right), at the end of each run.

    A dot is a seed, a bar the mean of those that did not diverge; how many diverged is written beside. A dotted line
    goes through the first variant's mean, with which the others are compared. Training errors are means over the last
    part of a run.
    """
    final = final_rows(rows)
    names = list(dict.fromkeys(row["variant"] for row in final))
    figure = Figure(figsize=(10, 1.2 + 0.36 * len(names)), dpi=120, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (column, label) in zip(panels, _ERRORS.items()):
        for i, name in enumerate(names):
            values = [row[column] for row in final if row["variant"] == name and row["status"] != "diverged"]
            lost = sum(row["variant"] == name and row["status"] == "diverged" for row in final)
            axes.plot(values, [i] * len(values), "o", color="tab:blue", alpha=0.5, markersize=5)
            if values:
                mean = np.mean(values)
                axes.plot([mean] * 2, [i - 0.3, i + 0.3], color="tab:blue", linewidth=2)
                if i == 0:
                    axes.axvline(mean, color="0.4", linewidth=1, linestyle=":", zorder=1)
            if lost:
                place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom"}  # above the dots
                axes.text(0.98, i - 0.1, f"{lost} diverged", **place)
        labels = [textwrap.fill(name, 48) for name in names]
        axes.set(yticks=range(len(names)), yticklabels=labels, xlabel=f"top-1 {label}")
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.locator_params(axis="x", nbins=5)
        axes.grid(alpha=0.3)
    panels[0].set_ylim(max(len(names), 1) - 0.5, -0.5)  # of those without a dot too
    figure.suptitle(title, parse_math=False)
    return figure


def depth_figure(rows: list[dict], depths: dict[str, dict[str, int]], title: str = "") -> Figure:
    """Returns a figure of the error against depth, test (left) and training (right), a line for each initialiser.

    A dot is a seed at the end of its run, a line goes through the means; diverged runs are left out. depths: the number
    of convolutions by variant, by initialiser.
    """
    ended = [row for row in final_rows(rows) if row["status"] != "diverged"]
    ticks = sorted({depth for of_initializer in depths.values() for depth in of_initializer.values()})
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (column, label) in zip(panels, _ERRORS.items()):
        for initializer, marker, colour in zip(depths, "os", ("tab:blue", "tab:orange")):
            means = []
            for name, depth in sorted(depths[initializer].items(), key=lambda item: item[1]):
                values = [row[column] for row in ended if row["variant"] == name]
                axes.plot([depth] * len(values), values, marker, color=colour, alpha=0.5, markersize=5)
                if values:
                    means.append((depth, np.mean(values)))
            axes.plot(*zip(*means or [(np.nan, np.nan)]), color=colour, label=f"{initializer} initializer")
        axes.set(xlabel="convolutions", ylabel=f"top-1 {label}", xscale="log")
        axes.set_xticks(ticks, ticks)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axes.yaxis.set_tick_params(labelleft=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title, parse_math=False)
    return figure


def swept_values(variants: Iterable[str]) -> tuple[str, dict[str, float]] | None:
    """Returns the field of a sweep and, by variant, its values; None where the variants are no numbers of one field.

    >>> swept_values(["learning_rate=0.1", "learning_rate=0.01"])
    ('learning_rate', {'learning_rate=0.1': 0.1, 'learning_rate=0.01': 0.01})
    >>> swept_values(["BN-free"]), swept_values(["optimizer=muon"])
    (None, None)
    """
    values, fields = {}, set()
    for variant in variants:
        field, _, value = variant.partition("=")
        try:
            values[variant] = float(value)
        except ValueError:
            return None
        fields.add(field)
    return (*fields, values) if len(fields) == 1 else None


def sweep_figure(rows: list[dict], field: str, values: dict[str, float], title: str = "") -> Figure:
    """Returns a figure of the error at the end of each run against the value of a swept field.

    A dot is a seed, the line goes through the means of those that did not diverge; a cross above is a value at which
    all of them did. The axis is logarithmic where the largest value is at least 10 times the smallest.
    """
    final, ordered = final_rows(rows), sorted(values, key=values.__getitem__)
    figure = Figure(figsize=(6.4, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for (column, label), marker in zip(_ERRORS.items(), "os"):
        means = []
        for name in ordered:
            ended = [row[column] for row in final if row["variant"] == name and row["status"] != "diverged"]
            axes.plot([values[name]] * len(ended), ended, marker, color=_COLOURS[column], alpha=0.5, markersize=4)
            means.append(np.mean(ended) if ended else np.nan)
        axes.plot([values[name] for name in ordered], means, color=_COLOURS[column], label=label)
    lost = [values[name] for name, mean in zip(ordered, means) if np.isnan(mean)]
    if lost:
        axes.plot(lost, [0.97] * len(lost), "kx", transform=axes.get_xaxis_transform(), label="all diverged")
    is_wide = min(values.values()) > 0 and max(values.values()) >= 10 * min(values.values())
    axes.set(xlabel=field, ylabel="top-1 error", xscale="log" if is_wide else "linear")
    axes.set_xticks([values[name] for name in ordered], [f"{values[name]:g}" for name in ordered])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.suptitle(title, parse_math=False)
    return figure


def norms_figure(rows: list[dict], title: str = "") -> Figure:
    """Returns a figure of the average Frobenius norm of the kernels along training, as Figure 2 of Li et al.

    Above against steps; below against the training cross-entropy, as theirs, with a circle where the learning rate
    first drops and a triangle where it drops again. A line is a run, a column of panels holds the variants that differ
    in the number in their names alone.
    """
    tested = [row for row in rows if row["phase"] == "test" and np.isfinite(row.get("kernel_norm", np.nan))]
    families = by_depth(row["variant"] for row in tested)
    figure = Figure(figsize=(5 * len(families) or 5, 7.6), dpi=120, layout="constrained")
    panels = figure.subplots(2, len(families) or 1, squeeze=False, sharey="col")
    for i, (family, names) in enumerate(families.items()):
        for axes, column in zip(panels[:, i], ("step", "train_cross_entropy")):
            for j, name in enumerate(names):
                of_variant = [row for row in tested if row["variant"] == name]
                colour = colormaps["viridis"](j / max(len(names), 1))
                for k, seed in enumerate(dict.fromkeys(row["seed"] for row in of_variant)):
                    run = [row for row in of_variant if row["seed"] == seed]
                    _draw_norms(axes, run, column, color=colour, label=None if k else name)
            axes.grid(alpha=0.3, which="both")
        panels[0, i].set(title=family, xlabel="steps", ylabel="average ‖W‖_F", xlim=(0, None), ylim=(0, None))
        panels[1, i].set(xlabel="training cross-entropy", ylabel="average ‖W‖_F", xscale="log")
        # The losses span less than a decade, whose labels would be 1.2 × 10⁰ and overlap.
        panels[1, i].xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        panels[1, i].xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panels[1, i].xaxis.set_minor_formatter(NullFormatter())
        panels[0, i].legend(fontsize=8)
    figure.suptitle(title, parse_math=False)
    return figure


def by_depth(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the different names of each family, which differ in a number alone, from the lowest number on.

    >>> by_depth(["ResNet-32", "ResNet-8", "BN-free of 8 layers", "ResNet-8"])
    {'ResNet-N': ['ResNet-8', 'ResNet-32'], 'BN-free of N layers': ['BN-free of 8 layers']}
    """
    families = {}
    for name in dict.fromkeys(names):
        families.setdefault(re.sub(r"\d+", "N", name), []).append(name)
    return {
        family: sorted(of, key=lambda name: int(re.search(r"\d+|$", name)[0] or 0)) for family, of in families.items()
    }


def _draw_norms(axes: Axes, run: list[dict], column: str, **style: Any) -> None:
    """Draws the norms of a run against a column, and marks where the learning rate drops."""
    axes.plot([row[column] for row in run], [row["kernel_norm"] for row in run], **style)
    drops = learning_rate_drops(run)
    for marker, step in zip("o^", drops if column != "step" else ()):
        at = next(row for row in run if row["step"] == step)
        axes.plot(at[column], at["kernel_norm"], marker, color=style["color"])
