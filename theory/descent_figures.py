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
