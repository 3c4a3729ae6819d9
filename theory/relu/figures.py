"""Figures of ReLU networks: the search in docs/papers/theorems.md and two of descent.md, drawn from their tables."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from theory.arrays import column
from theory.relu import linear_output as bounds
from theory.relu import search
from theory.relu.search import CATEGORIES, Setting

_STYLES = {  # category: colour, marker
    "global_minimum": ("C2", "o"),
    "bad_local_minimum": ("C3", "o"),
    "saddle": ("C0", "^"),
    "degenerate": ("C4", "s"),
    "zero_unit": ("0.5", "_"),
}
_SHOWN = (
    ("risk", "global_minimum"),
    ("risk", "bad_local_minimum"),
    ("gradient_norm", "saddle"),
    ("gradient_norm", "zero_unit"),
)
_MEANING = {"risk": "minimising $f$", "gradient_norm": r"minimising $\|\nabla f\|$"}
_SMALLEST_CURVATURE = 1e-8  # below it the axis is linear: undecided


def relu_search_figure(rows: list[dict], ends: list[dict]) -> Figure:
    """Returns three panels: critical points by risk and curvature, their shares by radius, the bad minima's risks."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    top, below = figure.subfigures(2, 1, height_ratios=(1.2, 1))
    points = top.subplots()
    (shares, risks) = below.subplots(1, 2)
    _draw_points(points, ends)
    rows = _only_radius_differs(rows)
    for i, (method, category) in enumerate(_SHOWN):
        _draw_shares(shares, [row for row in rows if row["method"] == method], method, category, 0.06 * (i - 1.5))
    shares.set(xlabel=r"radius $\tau$ of the ball", ylabel="share of starts, 95 % intervals", ylim=(0, 1))
    _draw_risks(risks, [row for row in rows if row["method"] == "risk" and int(row["bad_local_minimum"])])
    for axes in figure.axes:
        axes.legend()
    drawn = sum(point["category"] in _STYLES for point in ends)
    points.set_title(f"ends of {drawn:,} of {len(ends):,} starts, without kinks and those outside")
    shares.set_title("two blocks of two units, $d = 2$, $m = 100$")
    risks.set_title("how bad the bad local minima are")
    return figure


def _only_radius_differs(rows: list[dict]) -> list[dict]:
    """Returns the rows of the setting that was measured at the most radii, by radius."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(float(row[name]) for name in ("d", "num_layers", "width", "samples")), []).append(row)
    largest = max(groups.values(), key=lambda group: len({float(row["radius"]) for row in group}), default=[])
    return sorted(largest, key=lambda row: float(row["radius"]))


def _draw_points(axes: Axes, ends: list[dict]) -> None:
    for category, (colour, marker) in _STYLES.items():
        chosen = [point for point in ends if point["category"] == category]
        label = f"{category.replace('_', ' ')} ({len(chosen)})"
        x = column(chosen, "curvature")
        y = np.maximum(column(chosen, "risk"), 1e-34)
        where = axes.transData
        if category == "zero_unit":  # has no Hessian: ticks at the edge
            x = np.full(len(chosen), 0.02)
            where = axes.get_yaxis_transform()
        axes.plot(x, y, marker, color=colour, markersize=3, alpha=0.4, label=label, transform=where)
    axes.set_xscale("symlog", linthresh=_SMALLEST_CURVATURE)
    axes.set(yscale="log", ylabel="risk $f / f(0)$")
    axes.set_xlabel("least / largest eigenvalue of the Hessian, free directions left out")
    axes.set_xticks([-1, -1e-4, 0, 1e-4, 1])


def _draw_shares(axes: Axes, rows: list[dict], method: str, category: str, shift: float) -> None:
    share = column(rows, category) / column(rows, "trials")
    low, high = (column(rows, f"{category}_{side}") for side in ("low", "high"))
    colour, marker = _STYLES[category]
    label = f"{category.replace('_', ' ')}, {_MEANING[method]}"
    position = np.arange(len(rows)) + shift
    axes.errorbar(
        position, share, np.maximum([share - low, high - share], 0), fmt=marker, color=colour, capsize=3, label=label
    )
    axes.set_xticks(np.arange(len(rows)), [f"{radius:g}" for radius in column(rows, "radius")])


def _draw_risks(axes: Axes, rows: list[dict]) -> None:
    radius, median = column(rows, "radius"), column(rows, "bad_risk_median")
    spread = np.stack([median - column(rows, "bad_risk_least"), column(rows, "bad_risk_largest") - median])
    axes.errorbar(
        radius, median, spread, fmt="o", color="C3", capsize=3, label="bad local minima: least, median, largest"
    )
    if len(rows):
        axes.plot(radius, median[0] * (radius / radius[0]) ** 4, ":", color="0.4", label=r"$\propto \tau^4$")
    axes.set(xlabel=r"radius $\tau$ of the ball", ylabel="risk $f / f(0)$", xscale="log", yscale="log")


def table(rows: list[dict]) -> str:
    """Returns the rows of `search` as a Markdown table; shares with their 95 % intervals."""
    head = ["minimised", "d, ℓ, width, m, τ", "trials", *(name.replace("_", " ") for name in CATEGORIES)]
    lines = [[*head, "median (largest) risk / f(0) of the bad", "still bad with 10 m", "still bad in the population"]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        shares = []
        for name in CATEGORIES:
            share, low, high = 100 * row[name] / row["trials"], 100 * row[f"{name}_low"], 100 * row[f"{name}_high"]
            shares.append(f"{share:.1f} % ({low:.1f} %–{high:.1f} %)")
        setting = ", ".join(f"{row[name]:g}" for name in Setting._fields)
        risks = f"{row['bad_risk_median']:.1e} ({row['bad_risk_largest']:.1e})" if row["bad_local_minimum"] else "–"
        checks = [f"{row[n + '_bad']} of {row[n + '_tried']}" for n in ("tenfold", "population")]
        lines.append([row["method"].replace("_", " "), setting, str(row["trials"]), *shares, risks, *checks])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def linear_output(seed: int = 0, trials: int = 100) -> list[dict]:
    """Returns the minima of `search`, the risks of linear predictors, and those with a trained W, for all settings."""
    return [row for setting in search.SETTINGS for row in bounds.compare(setting, trials, seed)]


def linear_output_figure(rows: list[dict]) -> Figure:
    """Returns risks of bad local minima against the best linear predictor's: as found, and with a trained output W."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    bad = [row for row in rows if row["category"] == "bad_local_minimum"]
    depths = sorted({int(row["num_layers"]) for row in bad})
    titles = {"risk": "as found, no $W$", "with_output": "with a trained $W$, descended again"}
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), titles.items()):
        for k, depth in enumerate(depths):
            chosen = [row for row in bad if int(row["num_layers"]) == depth]
            label = f"{depth} block{'s' * (depth > 1)}"
            risk = np.maximum(column(chosen, name), 1e-16)
            axes.plot(column(chosen, "linear"), risk, "o", ms=4, alpha=0.5, color=f"C{k}", label=label)
        axes.plot([3e-2, 1], [3e-2, 1], "k-", lw=0.8, label="no better than linear")
        axes.set(title=title, xlabel="best linear predictor, risk / $f(0)$", xscale="log", yscale="log")
    figure.axes[0].set_ylabel("bad local minimum, risk / $f(0)$")
    figure.axes[0].legend()
    return figure


def excess_by_radius(seed: int = 0) -> list[dict]:
    """Returns f and f(0) at the local minimum near the teacher with swapped blocks, and both bounds; without a seed."""
    rows = []
    for radius in np.geomspace(0.02, 0.9, 12):
        point = search.swapped_blocks(radius)
        zero = point["risk_at_zero"]
        row = {"radius": float(radius), "at_zero": zero, "swapped": point["risk"] * zero}
        row["ball_bound"] = bounds.ball_risk_bound(2, 0.8 * radius, 2.0)
        rows.append(row | {"swapped_bound": bounds.reordering_risk_bound(2, 0.8 * radius, 2.0)})
    return rows


def excess_by_radius_figure(rows: list[dict]) -> Figure:
    """Returns the risk at the swapped minimum and at zero against the radius, with both bounds."""
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    radius = column(rows, "radius")
    axes.plot(radius, column(rows, "at_zero"), "o", color="C0", label="$f$ at zero")
    axes.plot(radius, column(rows, "ball_bound"), "--", color="C0", label=r"bound, of order $\tau^4$")
    axes.plot(
        radius, column(rows, "swapped"), "o", color="C1", label="$f$ at the bad minimum beside the swapped teacher"
    )
    axes.plot(radius, column(rows, "swapped_bound"), "--", color="C1", label=r"bound, of order $\tau^8$")
    axes.set(
        xlabel=r"radius $\tau$", ylabel="risk", xscale="log", yscale="log", title="two blocks of one unit, population"
    )
    axes.legend(loc="lower right")
    return figure


FIGURES = {
    "linear_output": (linear_output, linear_output_figure),
    "excess_by_radius": (excess_by_radius, excess_by_radius_figure),
}
