"""The figures of docs/descent.md: pure functions of the rows of descent_experiments.py, also from a CSV file."""

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from theory.figures import column


def eigenvalues_figure(rows: list[dict]) -> Figure:
    """Returns excess and distance of the layers from I against steps, a line an eigenvalue of the target."""
    figure = Figure(figsize=(11, 4), dpi=110, layout="constrained")
    excess, norm = figure.subplots(1, 2)
    values = list(dict.fromkeys(float(row["eigenvalue"]) for row in rows))
    num_layers = int(rows[0]["num_layers"])
    for k, value in enumerate(values):
        chosen = [row for row in rows if float(row["eigenvalue"]) == value]
        steps, colour = column(chosen, "step"), colormaps["coolwarm"](k / (len(values) - 1))
        excess.plot(steps, np.maximum(column(chosen, "excess"), 1e-16), color=colour, label=f"φ = {value:g}")
        norm.plot(steps, column(chosen, "norm"), color=colour)
        if value < 0:
            excess.axhline(value**2, color=colour, lw=0.8, ls=":")
    radius = 2 * np.sin(np.pi / (2 * num_layers)) + np.expm1(max(abs(np.log(abs(v))) for v in values if v) / num_layers)
    norm.axhline(radius, color="k", ls="--", lw=1, label="a solution for all φ ≠ 0 lies below")
    norm.axhline(1, color="0.5", lw=0.8, label="τ = 1: (2.3) ends")
    excess.set(yscale="log", ylabel="excess |w − φ|²", title=f"ℓ = {num_layers}: dotted, the floor φ² of a negative φ")
    norm.set(ylabel="|λ − 1|, the norm of every layer", title="negative φ leave the ball of the small solution")
    for axes in (excess, norm):
        axes.set_xscale("symlog", linthresh=1)
        axes.set(xlabel="step", xlim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def rotations_figure(rows: list[dict]) -> Figure:
    """Returns the paths of w from 1 to the eigenvalue of a rotation in the complex plane, a dot a step, and |w − φ|."""
    figure = Figure(figsize=(9, 4), dpi=110, layout="constrained")
    plane, distance = figure.subplots(1, 2, width_ratios=(1.3, 1))
    for k, angle in enumerate(dict.fromkeys(int(row["angle"]) for row in rows)):
        chosen = [row for row in rows if int(row["angle"]) == angle]
        w = column(chosen, "real") + 1j * column(chosen, "imaginary")
        phi = np.exp(1j * np.radians(angle))
        plane.plot([1, phi.real], [0, phi.imag], color="0.7", lw=0.8, zorder=0)
        plane.plot(w.real, w.imag, ".", ms=4, color=f"C{k}")
        plane.plot(phi.real, phi.imag, "*", ms=9, color=f"C{k}")
        distance.plot(
            column(chosen, "step"), np.maximum(np.abs(w - phi), 1e-12), color=f"C{k}", label=f"rotation by {angle}°"
        )
    plane.plot(0, 0, "k+", ms=12)
    plane.set(aspect="equal", xlabel="Re w", ylabel="Im w", title="w goes straight from 1 to φ; at 0 it would stop")
    distance.set(xlabel="step", ylabel="|w − φ|", yscale="log", xscale="log", title="ℓ = 8, small steps")
    distance.grid(alpha=0.3)
    distance.legend(fontsize=8)
    return figure


def saddle_figure(rows: list[dict]) -> Figure:
    """Returns steps to leave zero against the size of the start: a panel a method, a colour a shortcut depth."""
    figure = Figure(figsize=(12, 4.2), dpi=110, layout="constrained")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for axes, method in zip(figure.subplots(1, len(methods), sharey=True), methods):
        for n in (1, 2, 3):
            chosen = [row for row in rows if row["method"] == method and int(row["shortcut_depth"]) == n]
            size = column(chosen, "size")
            axes.plot(size, column(chosen, "predicted"), "-", color=f"C{n}", lw=1, label=f"n = {n}: predicted")
            axes.plot(size, column(chosen, "aligned"), "o", color=f"C{n}", ms=5, label="measured, aligned start")
            axes.plot(
                size, column(chosen, "random"), "^", color=f"C{n}", ms=5, mfc="none", label="random start, 3 units"
            )
            axes.plot(
                size, np.maximum(column(chosen, "least"), 1), ":", color=f"C{n}", label="proved least, random start"
            )
        rate = float(chosen[0]["learning_rate"])
        axes.set(title=f"{method}, η = {rate:g}", xlabel="size of the start w₀", xscale="log", yscale="log")
        axes.set_ylim(0.8, 2e5)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("steps until the loss has halved")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    return figure


def rates_figure(rows: list[dict]) -> Figure:
    """Returns the excess of descent beside three promises by case, and the drift of the imbalances beside its bound."""
    figure = Figure(figsize=(14, 3.8), dpi=110, layout="constrained")
    *panels, drift = figure.subplots(1, 4)
    labels = {
        "excess": ("seen", "-"),
        "by_seen_margin": ("margin bound, σ_min(W) seen", "--"),
        "by_norm": ("(2.3), norm seen", "-."),
        "by_margin": ("margin c at the start", ":"),
    }
    cases = dict.fromkeys((row["target"], int(row["num_layers"])) for row in rows)
    for k, (axes, (target, depth)) in enumerate(zip(panels, cases)):
        chosen = [row for row in rows if (row["target"], int(row["num_layers"])) == (target, depth)]
        for i, (name, (label, style)) in enumerate(labels.items()):
            if np.isfinite(column(chosen, name)).all():
                axes.plot(column(chosen, "step"), column(chosen, name), style, color=f"C{i}", label=label)
        axes.set(title=f"R {target}, ℓ = {depth}, η = 1/L", xlabel="step", yscale="log", ylim=(1e-13, 10))
        axes.grid(alpha=0.3)
        steps = column(chosen, "step") / column(chosen, "step").max()
        if target == "near I":
            drift.plot(steps, column(chosen, "drift"), color=f"C{k}", label=f"ℓ = {depth}: drift")
            drift.plot(steps, column(chosen, "drift_bound"), ":", color=f"C{k}", label="2η(f(0) − f(T))")
    panels[0].set_ylabel("excess risk")
    panels[1].legend(fontsize=8)
    drift.set(title="imbalance, nuclear norm, R near I", xlabel="share of the steps", yscale="log", ylim=(1e-5, 1))
    drift.grid(alpha=0.3)
    drift.legend(fontsize=7, ncols=2, loc="upper right")
    return figure


def linear_output_figure(rows: list[dict]) -> Figure:
    """Returns risks of bad local minima against the best linear predictor's: as found, and with a trained output W."""
    figure = Figure(figsize=(9, 4.2), dpi=110, layout="constrained")
    bad = [row for row in rows if row["category"] == "bad_local_minimum"]
    depths = sorted({int(row["num_layers"]) for row in bad})
    for axes, name, title in zip(
        figure.subplots(1, 2, sharey=True),
        ("risk", "with_output"),
        ("as found, no W", "with a trained W, descended again"),
    ):
        for k, depth in enumerate(depths):
            chosen = [row for row in bad if int(row["num_layers"]) == depth]
            label = f"{depth} block{'s' * (depth > 1)}: {len(chosen)}"
            risk = np.maximum(column(chosen, name), 1e-16)
            axes.plot(column(chosen, "linear"), risk, "o", ms=4, alpha=0.5, color=f"C{k}", label=label)
        axes.plot([3e-2, 1], [3e-2, 1], "k-", lw=0.8, label="no better than linear")
        axes.set(title=title, xlabel="best linear predictor, risk / f(0)", xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("bad local minimum, risk / f(0)")
    figure.axes[0].legend(fontsize=8)
    return figure


def excess_by_radius_figure(rows: list[dict]) -> Figure:
    """Returns the risk at the swapped minimum and at zero against the radius, with both bounds."""
    figure = Figure(figsize=(5.5, 4.2), dpi=110, layout="constrained")
    axes, radius = figure.add_subplot(), column(rows, "radius")
    for k, (name, bound, order) in enumerate((("at_zero", "ball_bound", 4), ("swapped", "swapped_bound", 8))):
        where = "zero" if name == "at_zero" else "the bad minimum beside the swapped teacher"
        axes.plot(radius, column(rows, name), "o", color=f"C{k}", label=f"f at {where}")
        axes.plot(
            radius, column(rows, bound), "--", color=f"C{k}", label=f"bound, of order τ{'⁴' if order == 4 else '⁸'}"
        )
    axes.set(xlabel="radius τ", ylabel="risk", xscale="log", yscale="log", title="two blocks of one unit, population")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


FIGURES = {
    "eigenvalues": eigenvalues_figure,
    "rotations": rotations_figure,
    "saddle": saddle_figure,
    "rates": rates_figure,
    "linear_output": linear_output_figure,
    "excess_by_radius": excess_by_radius_figure,
}
