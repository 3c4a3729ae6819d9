"""The figure of relu_search, drawn from its two tables alone; numbers may be text, as a CSV file gives them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from theory.figures import column
from theory.relu_search import CATEGORIES, Setting

_STYLES = {  # category: colour, marker
    "global_minimum": ("tab:green", "o"),
    "bad_local_minimum": ("tab:red", "o"),
    "saddle": ("tab:blue", "^"),
    "degenerate": ("tab:purple", "s"),
    "zero_unit": ("0.5", "_"),
}
_SHOWN = (
    ("risk", "global_minimum"),
    ("risk", "bad_local_minimum"),
    ("gradient_norm", "saddle"),
    ("gradient_norm", "zero_unit"),
)
_MEANING = {"risk": "minimising f", "gradient_norm": "minimising ‖∇f‖"}
_SMALLEST_CURVATURE = 1e-8  # below it the axis is linear: undecided


def relu_search_figure(rows: list[dict], found: list[dict]) -> Figure:
    """Returns three panels: critical points by risk and curvature, their shares by radius, how bad the bad minima are.

    Args:
      rows, found: of `relu_search.search`.
    """
    figure = Figure(figsize=(13, 4.4), dpi=120, layout="constrained")
    points, shares, risks = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    _draw_points(points, found)
    rows = _only_radius_differs(rows)
    for i, (method, category) in enumerate(_SHOWN):
        _draw_shares(shares, [row for row in rows if row["method"] == method], method, category, 0.06 * (i - 1.5))
    shares.set(xlabel="radius τ of the ball", ylabel="share of starts, 95% intervals", ylim=(0, 1))
    _draw_risks(risks, [row for row in rows if row["method"] == "risk" and int(row["bad_local_minimum"])])
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    drawn = sum(point["category"] in _STYLES for point in found)
    points.set_title(
        f"ends of {drawn:,} of {len(found):,} starts, without kinks and what is outside", fontsize="medium"
    )
    shares.set_title("two blocks of two units, d = 2, m = 100")
    risks.set_title("how bad the bad local minima are")
    return figure


def _only_radius_differs(rows: list[dict]) -> list[dict]:
    """The rows of the setting that was measured at the most radii, by radius."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(float(row[name]) for name in ("d", "num_layers", "width", "samples")), []).append(row)
    largest = max(groups.values(), key=lambda group: len({float(row["radius"]) for row in group}), default=[])
    return sorted(largest, key=lambda row: float(row["radius"]))


def _draw_points(axes: Axes, found: list[dict]) -> None:
    for category, (colour, marker) in _STYLES.items():
        chosen = [point for point in found if point["category"] == category]
        label = f"{category.replace('_', ' ')} ({len(chosen)})"
        x, y, where = column(chosen, "curvature"), np.maximum(column(chosen, "risk"), 1e-34), axes.transData
        if category == "zero_unit":  # has no Hessian: ticks at the edge
            x, where = np.full(len(chosen), 0.02), axes.get_yaxis_transform()
        axes.plot(x, y, marker, color=colour, markersize=3, alpha=0.4, label=label, transform=where)
    axes.set_xscale("symlog", linthresh=_SMALLEST_CURVATURE)
    axes.set(
        xlabel="least / largest eigenvalue of the Hessian, free directions left out",
        yscale="log",
        ylabel="risk f / f(0)",
    )
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
        radius, median, spread, fmt="o", color="tab:red", capsize=3, label="bad local minima: least, median, largest"
    )
    if len(rows):
        axes.plot(radius, median[0] * (radius / radius[0]) ** 4, ":", color="0.4", label="∝ τ⁴")
    axes.set(xlabel="radius τ of the ball", ylabel="risk f / f(0)", xscale="log", yscale="log")


def table(rows: list[dict]) -> str:
    """Returns the rows of `search` as a Markdown table; shares with their 95% intervals."""
    head = ["minimised", "d, ℓ, width, m, τ", "trials", *(name.replace("_", " ") for name in CATEGORIES)]
    lines = [[*head, "median (largest) risk / f(0) of the bad", "still bad with 10 m", "still bad in the population"]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        shares = [f"{row[n] / row['trials']:.1%} ({row[n + '_low']:.1%}–{row[n + '_high']:.1%})" for n in CATEGORIES]
        setting = ", ".join(f"{row[name]:g}" for name in Setting._fields)
        risks = f"{row['bad_risk_median']:.1e} ({row['bad_risk_largest']:.1e})" if row["bad_local_minimum"] else "–"
        checks = [f"{row[n + '_bad']} of {row[n + '_tried']}" for n in ("tenfold", "population")]
        lines.append([row["method"].replace("_", " "), setting, str(row["trials"]), *shares, risks, *checks])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
