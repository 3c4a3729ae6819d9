"""How the figures of Li et al. are drawn: bands over seeds, logarithmic axes, colours of the architectures."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

from shortcut_study.aggregation import Band, depths_in, num_seeds
from shortcut_study.architectures import LABELS, LINEAR, RELU_MID

COLOURS = dict(zip(LABELS, ("C3", "C1", "C2", "C0", "C4")))
MARKERS = dict(zip(LABELS, ("o-", "s-", "x--", "o-", "^-")))
TITLES = {LINEAR: "linear", RELU_MID: "ReLU at mid"}
NORM = r"average $\|W\|_F$"
LARGEST = r"$|\lambda|_{\max}$"
CONDITION_NUMBER = r"condition number $|\lambda|_{\max}/|\lambda|_{0.1}$"
LOSSES = {LINEAR: ("excess_loss", "loss − lowest loss of a linear map"), RELU_MID: ("loss", "loss")}
THEOREM = {1: (0, (1, 1)), 2: (0, (5, 3))}  # dashes of the predictions of Theorem 1 for 1- and 2-shortcuts
DOTTED = "fewer runs"
SMOKE = "toy size: it shows that the study runs but is too small for conclusions"


def draw_band(axes: Axes, band: Band, colour: object, label: str, log: bool = False) -> None:
    """Draws mean and standard deviation (of log₁₀ if log) along log₁₀ of the loss; dotted after runs have dropped out.

    How many runs there are at least and at most is added to the label; `shared_legend` draws the legend.
    """
    if not len(band.x):
        return
    band = _broken(band)
    low, mean, high = (10**v if log else v for v in (band.mean - band.std, band.mean, band.mean + band.std))
    least, most = int(np.nanmin(band.count)), int(np.nanmax(band.count))
    runs = f", n = {least} – {most}" if least < most else f", n = {most}"
    axes.plot(10**band.x, np.where(band.count == most, mean, np.nan), color=colour, label=label + runs)
    axes.plot(10**band.x, np.where(band.count < most, mean, np.nan), color=colour, ls=":")
    if least < most and DOTTED not in axes.get_legend_handles_labels()[1]:
        # An empty line: one grey legend entry explains the dots of all bands.
        axes.plot([], [], color="0.4", ls=":", label=DOTTED)
    axes.fill_between(10**band.x, low, high, color=colour, alpha=0.2, lw=0)


def _broken(band: Band) -> Band:
    """Returns the band with NaN in gaps of its evenly spaced places, so that no line crosses them."""
    steps = np.diff(band.x)
    # Steps are whole multiples of the smallest, up to rounding; 1.5 separates one from two.
    gaps = np.flatnonzero(steps > 1.5 * steps.min()) + 1 if len(steps) else []
    return Band(*(np.insert(column.astype(float), gaps, np.nan) for column in band))


def draw_log_band(axes: Axes, band: Band, colour: str, label: str, style: str) -> None:
    """Draws mean and standard deviation of log₁₀ y as error bars, and n if fewer runs count than elsewhere."""
    if not len(band.x):
        return
    mean = 10**band.mean
    spread = mean - 10 ** (band.mean - band.std), 10 ** (band.mean + band.std) - mean
    axes.errorbar(band.x, mean, spread, fmt=style, ms=5, mfc="none", capsize=3, color=colour, label=label)
    for x, y, count in zip(band.x, mean, band.count):
        if count < band.count.max():
            axes.annotate(
                f"n = {count:.0f}", (x, y), (4, 4), textcoords="offset points", fontsize="small", color=colour
            )


def mark_infinite(axes: Axes, places: list, colour: str, label: str | None = None, is_filled: bool = False) -> None:
    """Draws triangles at the top edge if some run's condition number is too large to be known."""
    if places:
        # The transform has y in fractions of the axes, so the triangles stay at the edge if the limits change.
        axes.plot(places, [0.97] * len(places), "^", color=colour, mfc=colour if is_filled else "none", clip_on=False,
                  transform=axes.get_xaxis_transform(), label=label)  # fmt: skip


def mark_zero(axes: Axes, places: list, colour: str, label: str) -> None:
    """Draws triangles at the bottom edge for a quantity that is 0 within rounding."""
    if places:
        axes.plot(places, [0.03] * len(places), "v", color=colour, mfc="none", clip_on=False,
                  transform=axes.get_xaxis_transform(), label=label)  # fmt: skip


def loss_axis(axes: Axes, lowest: float = 0.0) -> None:
    """Makes the x axis logarithmic from the lowest loss, but not below `lowest`, up to the highest, as in the paper."""
    axes.set_xscale("log")
    # The empty array is for axes without lines: concatenate needs at least one array.
    places = np.concatenate([np.empty(0), *(np.asarray(line.get_xdata(), float) for line in axes.lines)])
    places = places[np.isfinite(places)]  # a band with gaps has NaN there
    if len(places):
        axes.set_xlim(max(places.min() / 1.2, lowest), 1.2 * places.max())
    plain_labels(axes.xaxis, axes.get_xlim())


def depth_axis(axes: Axes, rows: list[dict]) -> None:
    """Makes the x axis logarithmic, with the depths that there are."""
    axes.set(xlabel="depth", xscale="log")
    axes.set_xticks(depths_in(rows), labels=map(str, depths_in(rows)))
    axes.minorticks_off()


def plain_labels(axis: Axis, limits: tuple[float, float]) -> None:
    """Labels 1, 2, 3, 5 … if a logarithmic axis is too short for powers of ten."""
    low, high = sorted(limits)
    if low > 0 and high / low < 50:
        ticks = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 3, 5)]
        axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        # On a short logarithmic axis Matplotlib may label the minor ticks too, which would overlap the major ones.
        axis.set_minor_locator(NullLocator())


def legend(axes: Axes, **style: object) -> None:
    """Draws a legend if there are labels."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**style)


def shared_legend(figure: Figure, panels: Sequence[Axes] = (), loc: str = "outside lower center", **style: Any) -> None:
    """Draws one legend for several panels, all by default, below them; bands of one name count their runs together."""
    handles: dict[str, object] = {}
    counts: dict[str, list[int]] = {}
    for axes in panels or figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            # draw_band adds the number of runs to its labels; without that number, a band has one name in all panels.
            name, *numbers = re.split(", n = | – ", label) if re.search(r", n = \d+( – \d+)?$", label) else [label]
            handles.setdefault(name, handle)
            counts.setdefault(name, []).extend(map(int, numbers))
    if handles:
        labels = [f"{name}{_range(counts[name])}" for name in handles]
        figure.legend(handles.values(), labels, loc=loc, **style)


def _range(counts: list[int]) -> str:
    if not counts:
        return ""
    return f", n = {min(counts)} – {max(counts)}" if min(counts) < max(counts) else f", n = {counts[0]}"


def runs_each(rows: list[dict]) -> str:
    """Returns how many runs there are, in words."""
    return f"{num_seeds(rows)} run{'s' if num_seeds(rows) != 1 else ''} each"
