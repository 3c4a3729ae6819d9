"""Figures of launch.ablations, drawn from results.csv: errors by variant and depth, norms (Li et al., Figure 2)."""

import re
import textwrap
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from identity_matters.experiments.variants import EXPERIMENTS
from identity_matters.runs.figure_style import PAGE
from identity_matters.runs.figures import PERCENT, learning_rate_drops, mean_over_runs
from identity_matters.runs.tables import final_rows

# The panels of the figures of errors at the end of runs: column and label.
_ERRORS = {"test_top1_error": "test error", "train_top1_error": "training error"}
_MUON, _OTHER = "Muon", "momentum SGD"  # by the optimizer of a variant
_COLOURS = {_MUON: "C0", _OTHER: "C3"}
_NORM = r"average $\|W\|_F$"


def ablation_figure(rows: list[dict], title: str = "") -> Figure:
    """Returns a figure of the error of every variant, test (left) and training (right), at the end of each run.

    The lowest mean test error comes first. A dot is a seed, a bar the mean of those that did not diverge; the
    number that diverged follows the variant's name. The colour is the optimiser's. A dotted line goes through the mean
    of the variant with which the others are compared, whose name is bold. Training errors are means over the last part
    of a run.
    """
    final = final_rows(rows)
    names = _sorted_by_mean(final)
    lines = [_name_in_lines(name, final) for name in names]
    figure = Figure(figsize=(PAGE, 1.2 + 0.32 * len(names)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    compared = next((row["variant"] for row in final), None)
    for axes, (column, label) in zip(panels, _ERRORS.items()):
        for i, name in enumerate(names):
            values = [row[column] for row in final if row["variant"] == name and row["status"] != "diverged"]
            colour = _COLOURS[_optimizer(name)]
            axes.plot(values, [i] * len(values), "o", color=colour, alpha=0.5, markersize=5)
            if values:
                mean = np.mean(values)
                axes.plot([mean] * 2, [i - 0.3, i + 0.3], color=colour, linewidth=2)
                if name == compared:
                    axes.axvline(mean, color="0.4", linewidth=1, linestyle=":", zorder=1)
        axes.set(xlabel=f"top-1 {label}")
        axes.set_yticks(range(len(names)), lines)
        axes.xaxis.set_major_formatter(PERCENT)
        axes.locator_params(axis="x", nbins=5)
    for text, name in zip(panels[0].get_yticklabels(), names):
        text.set_fontweight("bold" if name == compared else "normal")
    panels[0].set_ylim(max(len(names), 1) - 0.5, -0.5)  # of those without a dot too
    optimizers = {_optimizer(name) for name in names}
    if len(optimizers) > 1:
        handles = [Line2D([], [], color=_COLOURS[name], marker="o", label=name) for name in sorted(optimizers)]
        figure.legend(handles=handles, loc="outside lower right", ncols=2)
    figure.suptitle(title, parse_math=False)
    return figure


def _sorted_by_mean(final: list[dict]) -> list[str]:
    """The variants, the lowest mean test error first, those of which every run diverged last."""
    errors: dict[str, list[float]] = {}
    for row in final:
        own_errors = errors.setdefault(row["variant"], [])
        if row["status"] != "diverged":  # its row may lack the column
            own_errors.append(row["test_top1_error"])
    return sorted(errors, key=lambda name: np.mean(errors[name]) if errors[name] else np.inf)


def _name_in_lines(name: str, final: list[dict]) -> str:
    statuses = [row["status"] for row in final if row["variant"] == name]
    lost = statuses.count("diverged")
    words = name.replace("initializer", "initialiser")  # tables have the spelling of the flag
    return textwrap.fill(f"{words} ({lost} of {len(statuses)} diverged)" if lost else words, 38)


def _optimizer(name: str) -> str:
    """The optimiser of a variant, by its name."""
    changes = [variant.train for variants in EXPERIMENTS.values() for variant in variants if variant.name == name]
    return _OTHER if changes and changes[0].get("optimizer", "muon") != "muon" else _MUON


def depth_figure(rows: list[dict], depths: dict[str, dict[str, int]], title: str = "") -> Figure:
    """Returns a figure of the error against depth, test (left) and training (right), a curve for each initialiser.

    A dot is a seed at the end of its run, a curve goes through the means; diverged runs are omitted. depths: the number
    of convolutions by variant, by initialiser.
    """
    ended = [row for row in final_rows(rows) if row["status"] != "diverged"]
    ticks = sorted({depth for of_initializer in depths.values() for depth in of_initializer.values()})
    figure = Figure(figsize=(PAGE, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (column, label) in zip(panels, _ERRORS.items()):
        for initializer, marker, colour in zip(depths, "os", ("C0", "C1")):
            means = []
            for name, depth in sorted(depths[initializer].items(), key=lambda item: item[1]):
                values = [row[column] for row in ended if row["variant"] == name]
                axes.plot([depth] * len(values), values, marker, color=colour, alpha=0.5, markersize=5)
                if values:
                    means.append((depth, np.mean(values)))
            axes.plot(*zip(*means or [(np.nan, np.nan)]), color=colour, label=f"{initializer} initialiser")
        axes.set(xlabel="convolutions", ylabel=f"top-1 {label}", xscale="log")
        axes.set_xticks(ticks, ticks)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_tick_params(labelleft=True)
    panels[0].legend()
    figure.suptitle(title, parse_math=False)
    return figure


def norms_figure(rows: list[dict], title: str = "") -> Figure:
    """Returns a figure of the average Frobenius norm of the kernels during training, as Figure 2 of Li et al.

    Above against steps; below against the training cross-entropy, as theirs, with a circle at the learning rate's first
    drop and a triangle at the second. A curve is the mean over the seeds, above with a band of a standard deviation; a
    column of panels holds the variants that differ only in the number in their names.
    """
    tested = [row for row in rows if row["phase"] == "test" and np.isfinite(row.get("kernel_norm", np.nan))]
    families = depth_families(row["variant"] for row in tested)
    figure = Figure(figsize=(PAGE / 2 * max(len(families), 1), 6.4), layout="constrained")
    panels = figure.subplots(2, len(families) or 1, squeeze=False, sharey="col")
    for i, (family, names) in enumerate(families.items()):
        by_step, by_loss = panels[:, i]
        for j, name in enumerate(names):
            runs: dict[int, list[dict]] = {}
            for row in (row for row in tested if row["variant"] == name):
                runs.setdefault(row["seed"], []).append(row)
            number = re.search(r"\d+", name)
            colour = colormaps["viridis"](j / max(len(names), 1))
            label = number[0] if number else name
            _draw_norms(by_step, by_loss, list(runs.values()), colour, label)
        by_step.set(title=family, xlabel="steps", ylabel=_NORM, xlim=(0, None))
        by_step.set_ylim(0, 1.05 * by_step.dataLim.y1)
        by_step.legend(title="$N$" if len(names) > 1 else None, ncols=2)
        by_loss.set(xlabel="training cross-entropy", ylabel=_NORM, xscale="log")
        # The losses span less than a decade, whose labels would be 1.2 × 10⁰ and overlap.
        by_loss.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        by_loss.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        by_loss.xaxis.set_minor_formatter(NullFormatter())
    figure.suptitle(title, parse_math=False)
    return figure


def depth_families(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the names of each family, which differ only in a number, from the lowest number on.

    >>> depth_families(["ResNet-32", "ResNet-8", "BN-free of 8 layers", "ResNet-8"])
    {'ResNet-N': ['ResNet-8', 'ResNet-32'], 'BN-free of N layers': ['BN-free of 8 layers']}
    """
    families = {}
    for name in dict.fromkeys(names):
        families.setdefault(re.sub(r"\d+", "N", name), []).append(name)
    return {
        family: sorted(members, key=lambda name: int(re.search(r"\d+|$", name)[0] or 0))
        for family, members in families.items()
    }


def _draw_norms(by_step: Axes, by_loss: Axes, runs: list[list[dict]], colour: Any, label: str) -> None:
    """Draws the mean norm of the runs of a variant against steps and loss, and marks the drops of the learning rate."""
    steps, mean, spread = mean_over_runs(runs, "kernel_norm")
    _, loss, _ = mean_over_runs(runs, "train_cross_entropy")
    by_step.plot(steps, mean, color=colour, label=label)
    if len(runs) > 1:
        by_step.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.25, lw=0)
    by_loss.plot(loss, mean, color=colour)
    for marker, step in zip("o^", learning_rate_drops(runs[0])):
        matching = np.flatnonzero(steps == step)
        by_loss.plot(loss[matching], mean[matching], marker, color=colour)
