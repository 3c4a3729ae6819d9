"""Figures of docs/appendix/descent.md: descent by eigenvalue, of rotations, from the saddle at zero, rates, the map.

For each figure: its data, rows of numbers and words that are written to a CSV file, and the drawing from that file.
"""

import itertools

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from theory import linear_residual
from theory.arrays import column
from theory.descent import balancedness, from_zero, saddle_escape
from theory.descent.target_map import MAX_STEPS, METHODS, SPEEDS, STARTS, TARGETS
from theory.linear.rotations import rotation

EIGENVALUES = (-1.0, -0.5, 0.0, 0.25, 0.5, 1.5, 2.0)
ANGLES = (60, 120, 150, 170, 180)
_NORM = LogNorm(10, MAX_STEPS)
_RESOLVED = 1e-6  # |w − φ| that the digits of a CSV file resolve


def eigenvalues(seed: int = 0, num_layers: int = 8, num_steps: int = 3_000) -> list[dict]:
    """Returns |w − φ|² and |λ − 1| of gradient descent from zero by eigenvalue φ, at the largest common learning rate.

    Later steps are listed more sparsely. The figure has nothing random: the seed is not used.
    """
    learning_rate = from_zero.largest_learning_rate(np.array(EIGENVALUES), num_layers)
    values = from_zero.eigenvalue_recursion(np.array(EIGENVALUES), num_layers, learning_rate, num_steps)
    steps = np.unique(np.append(0, np.geomspace(1, num_steps, 120).astype(int)))
    return [
        {"num_layers": num_layers, "learning_rate": learning_rate, "eigenvalue": eigenvalue, "step": int(step)}
        | {"excess": float((values[step, k] ** num_layers - eigenvalue) ** 2), "norm": float(abs(values[step, k] - 1))}
        for k, eigenvalue in enumerate(EIGENVALUES)
        for step in steps
    ]


def eigenvalues_figure(rows: list[dict]) -> Figure:
    """Returns excess risk and distance of the layers from I against steps, one curve per eigenvalue of the target."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    excess, norm = figure.subplots(1, 2)
    values = list(dict.fromkeys(float(row["eigenvalue"]) for row in rows))
    num_layers = int(rows[0]["num_layers"])
    for k, value in enumerate(values):
        chosen = [row for row in rows if float(row["eigenvalue"]) == value]
        steps = column(chosen, "step")
        colour = colormaps["coolwarm"](k / (len(values) - 1))
        excess.plot(steps, np.maximum(column(chosen, "excess"), 1e-16), color=colour, label=f"$\\varphi = {value:g}$")
        norm.plot(steps, column(chosen, "norm"), color=colour)
        if value < 0:
            excess.axhline(value**2, color=colour, lw=0.8, ls=":")
    radius = 2 * np.sin(np.pi / (2 * num_layers)) + np.expm1(max(abs(np.log(abs(v))) for v in values if v) / num_layers)
    norm.axhline(radius, color="k", ls="--", lw=1, label=r"a solution for all $\varphi \neq 0$ lies below")
    norm.axhline(1, color="0.5", lw=0.8, label=r"$\tau = 1$: (2.3) ends")
    title = rf"$\ell = {num_layers}$; dotted: the floor $\varphi^2$ of a negative $\varphi$"
    excess.set(yscale="log", ylabel=r"excess $|w - \varphi|^2$", title=title)
    norm.set(ylabel=r"$|\lambda - 1|$, the norm of every layer", title=r"negative $\varphi$ leave the ball")
    for axes in (excess, norm):
        axes.set_xscale("symlog", linthresh=1)
        axes.set(xlabel="step", xlim=(0, None))
    figure.legend(*excess.get_legend_handles_labels(), loc="outside lower center", ncols=len(values))
    norm.legend(loc="upper left", bbox_to_anchor=(0, 0.95))
    return figure


def rotations(seed: int = 0, num_layers: int = 8, learning_rate: float = 0.01, num_steps: int = 3_000) -> list[dict]:
    """Returns w of gradient descent from zero for rotations by 60 … 180 degrees; no seed is used."""
    phi = np.exp(1j * np.radians(np.array(ANGLES)))
    phi[-1] = -1  # exactly: rounding off the axis would let descent escape in the end
    w = from_zero.eigenvalue_recursion(phi, num_layers, learning_rate, num_steps) ** num_layers
    return [
        {"angle": angle, "step": step, "real": float(w[step, k].real), "imaginary": float(w[step, k].imag)}
        for k, angle in enumerate(ANGLES)
        for step in [*range(400), *range(400, num_steps + 1, 50)]
    ]


def rotations_figure(rows: list[dict]) -> Figure:
    """Returns the paths of w from 1 to a rotation's eigenvalue in the complex plane, a dot per step, and |w − φ|."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    plane, distance = figure.subplots(1, 2, width_ratios=(1.9, 1))
    for k, angle in enumerate(dict.fromkeys(int(row["angle"]) for row in rows)):
        chosen = [row for row in rows if int(row["angle"]) == angle]
        w = column(chosen, "real") + 1j * column(chosen, "imaginary")
        phi = np.exp(1j * np.radians(angle))
        plane.plot([1, phi.real], [0, phi.imag], color="0.7", lw=0.8, zorder=0)
        plane.plot(w.real, w.imag, ".", ms=4, color=f"C{k}")
        plane.plot(phi.real, phi.imag, "*", ms=9, color=f"C{k}")
        plane.annotate(f"{angle}°", (phi.real, phi.imag), (5, 4), textcoords="offset points", color=f"C{k}")
        distance.plot(column(chosen, "step"), np.abs(w - phi), color=f"C{k}")
    plane.plot(0, 0, "k+", ms=12)
    plane.set(xlabel=r"Re $w$", ylabel=r"Im $w$", title=r"$w$ goes straight from 1 to $\varphi$; at 0 it would stop")
    plane.set(aspect="equal", adjustable="datalim")
    distance.set(xlabel="step", ylabel=r"$|w - \varphi|$", yscale="log", title=r"$\ell = 8$, colours as left")
    distance.set(xlim=(0, 400), ylim=(_RESOLVED, 3))  # further down it is the rounding of the table
    return figure


def saddle(seed: int = 0) -> list[dict]:
    """Returns steps to leave zero by shortcut depth, method and size of the start: measured, predicted, lower bound.

    aligned: one unit that starts along the target. random: the median of three starts of three units with Gaussian
    entries. The gap is orthogonal, d = 4. The sizes w₀ are those of the aligned weights; random ones have norms near.
    """
    gap = np.linalg.qr(np.random.default_rng(seed).standard_normal((4, 4)))[0]
    rates = {"descent": 0.05, "momentum": 0.005, "orthogonalised": 0.01}
    rows = []
    for n, (method, rate), size in itertools.product((1, 2, 3), rates.items(), np.geomspace(0.002, 0.2, 7)):
        aligned = saddle_escape.aligned_start(size, n, gap)
        random = [size / 2 * np.random.default_rng([seed, k]).standard_normal((3, n, 4, 4)) for k in range(3)]
        steps, *others = (saddle_escape.steps_to_leave(method, s, gap, rate, 60_000) for s in (aligned, *random))
        rows.append({"shortcut_depth": n, "method": method, "learning_rate": rate, "size": float(size)})
        rows[-1] |= {"aligned": steps, "random": float(np.median(others))}
        rows[-1]["predicted"] = saddle_escape.predicted_steps(method, n, 1.0, size, rate)
        rows[-1]["least"] = float(np.median([saddle_escape.least_steps(method, s, gap, rate) for s in random]))
    return rows


def saddle_figure(rows: list[dict]) -> Figure:
    """Returns steps to leave zero against the size of the start: a panel per method, a colour per shortcut depth."""
    figure = Figure(figsize=(8, 3.9), layout="constrained")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for axes, method in zip(figure.subplots(1, len(methods), sharey=True), methods):
        for n in (1, 2, 3):
            chosen = [row for row in rows if row["method"] == method and int(row["shortcut_depth"]) == n]
            size = column(chosen, "size")
            least = np.maximum(column(chosen, "least"), 1)
            colour = f"C{n}"
            axes.plot(size, column(chosen, "predicted"), "-", color=colour, lw=1, label=f"$n = {n}$: predicted")
            axes.plot(size, column(chosen, "aligned"), "o", color=colour, ms=5, label="measured, aligned start")
            axes.plot(size, column(chosen, "random"), f"{colour}^", ms=5, mfc="none", label="random start, 3 units")
            axes.plot(size, least, ":", color=colour, label="proved least, random start")
        rate = float(chosen[0]["learning_rate"])
        axes.set(title=rf"{method}, $\eta = {rate:g}$", xlabel="size of the start $w_0$", xscale="log", yscale="log")
        axes.set_ylim(0.8, 2e5)
    figure.axes[0].set_ylabel("steps until the loss has halved")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def rates(seed: int = 0) -> list[dict]:
    """Returns the risk of descent from zero, η = 1/L, and three bounds: (2.3), the observed margin, the initial margin
    c.

    Targets: I + a Gaussian matrix of Frobenius norm ½, d = 5, and the rotation of the plane by 100 degrees, for which
    no margin c is positive. (2.3) uses the largest norm so far, the margin bound the least σ_min(W) so far.
    """
    noise = np.random.default_rng(seed).standard_normal((5, 5))
    angle = np.radians(100)
    near = np.eye(5) + 0.5 * noise / np.linalg.norm(noise)
    turn = ("rotation by 100°", rotation(angle), 32, 600, angle)
    cases = (("near I", near, 2, 80, 0.5), ("near I", near, 32, 80, 0.5), turn)
    return [row for case in cases for row in _rates(*case)]


def _rates(target: str, R: np.ndarray, depth: int, num_steps: int, reach: float) -> list[dict]:
    """Returns the rows of one target and depth; |||A||| stays below reach/ℓ."""
    identity = np.eye(len(R))
    rows = []
    A = np.zeros((depth, *R.shape))
    c = balancedness.deficiency_margin(identity, R)
    start = linear_residual.risk(A, R, identity)
    rate = 1 / linear_residual.smoothness_bound(identity, depth, reach / depth, start)
    promised = {"by_norm": start, "by_seen_margin": start, "by_margin": start if c > 0 else np.nan}
    norm, least = 0.0, 1.0
    for step in range(num_steps + 1):
        excess = linear_residual.risk(A, R, identity)
        drift = np.linalg.svd(balancedness.imbalances(A), compute_uv=False).sum(1).max()
        row = {"target": target, "num_layers": depth, "step": step, "excess": excess, "drift": float(drift)}
        rows.append(row | promised | {"drift_bound": balancedness.drift_bound(rate, start, excess)})
        norm = max(norm, linear_residual.max_spectral_norm(A))
        least = min(least, float(np.linalg.svd(linear_residual.end_to_end(A), compute_uv=False)[-1]))
        promised["by_norm"] *= linear_residual.convergence_rate_bound(identity, depth, norm, rate)
        promised["by_seen_margin"] *= balancedness.margin_rate(depth, least, rate)
        promised["by_margin"] *= balancedness.margin_rate(depth, max(c, 0.0), rate)
        A = A - rate * linear_residual.gradient(A, R, identity)
    return rows


def rates_figure(rows: list[dict]) -> Figure:
    """Returns the excess risk of descent with three guarantees, and the drift of the imbalances with its bound."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    *panels, drift = figure.subplots(2, 2).flat
    labels = {
        "excess": ("seen", "-"),
        "by_seen_margin": (r"margin bound, $\sigma_{\min}(W)$ seen", "--"),
        "by_norm": ("(2.3), norm seen", "-."),
        "by_margin": ("margin $c$ at the start", ":"),
    }
    cases = dict.fromkeys((row["target"], int(row["num_layers"])) for row in rows)
    for k, (axes, (target, depth)) in enumerate(zip(panels, cases)):
        chosen = [row for row in rows if (row["target"], int(row["num_layers"])) == (target, depth)]
        for i, (name, (label, style)) in enumerate(labels.items()):
            if np.isfinite(column(chosen, name)).all():
                axes.plot(column(chosen, "step"), column(chosen, name), style, color=f"C{i}", label=label)
        title = rf"$R$ {target.replace('near I', 'near $I$')}, $\ell = {depth}$, $\eta = 1/L$"
        axes.set(title=title, xlabel="step", ylabel="excess risk", yscale="log", ylim=(1e-13, 10))
        steps = column(chosen, "step") / column(chosen, "step").max()
        if target == "near I":
            drift.plot(steps, column(chosen, "drift"), color=f"C{k}", label=rf"$\ell = {depth}$: drift")
            drift.plot(steps, column(chosen, "drift_bound"), ":", color=f"C{k}", label=r"$2\eta(f(0) - f(T))$")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    title = "imbalance of the layers, nuclear norm, $R$ near $I$"
    drift.set(title=title, xlabel="share of the steps", yscale="log", ylim=(1e-5, 1))
    drift.legend(ncols=2, loc="upper right")
    return figure


def map_figures(rows: list[dict]) -> dict[str, Figure]:
    """Returns steps to the target by depth and step size, d = 6, as figures map (descent) and map_METHOD (the others).

    Each row of panels is a target, each column a start. Cells are coloured by the steps, grey if 500 do not suffice,
    black if descent diverges. The red line is the largest step size without crossing,
    `from_zero.largest_learning_rate`, if the theory of descent from zero gives one.
    """
    rows = [row for row in rows if int(row["dimension"]) == 6]
    by_method = {name: [row for row in rows if row["method"] == name] for name in METHODS}
    return {f"map_{name}" if name != "descent" else "map": _map_figure(by_method[name], name) for name in METHODS}


def _map_figure(rows: list[dict], method: str) -> Figure:
    """Returns the map of one method."""
    figure = Figure(figsize=(8, 7.6), layout="constrained")
    panels = figure.subplots(len(TARGETS), len(STARTS), sharex=True, sharey=True)
    for i, target in enumerate(TARGETS):
        for j, start in enumerate(STARTS):
            mesh = _draw_panel(panels[i, j], [r for r in rows if (r["target"], r["start"]) == (target, start)])
            if i == 0:
                panels[i, j].set_title(f"from {start}")
        panels[i, 0].set_ylabel(f"{target}\n$\\eta\\ell$")
    figure.supxlabel(r"depth $\ell$", fontsize="medium")
    figure.colorbar(mesh, ax=panels, shrink=0.5, pad=0.01, label="steps to 0.1 % of $f(0)$")
    line = "; red line: largest step size without crossing" if method == "descent" else ""
    words = {"descent": "gradient descent", "orthogonalised": "orthogonalised updates"}.get(method, method)
    figure.suptitle(f"{words}; grey: not within {MAX_STEPS} steps; black: diverged{line}")
    panels[0, 0].invert_yaxis()
    return figure


def _draw_panel(axes: Axes, rows: list[dict]) -> object:
    depths = sorted({int(row["num_layers"]) for row in rows})
    steps = np.full((len(SPEEDS), len(depths)), np.nan)
    for row in rows:
        cell = SPEEDS.index(float(row["speed"])), depths.index(int(row["num_layers"]))
        steps[cell] = {"reached": max(float(row["steps"]), 1), "diverged": -1}.get(row["status"], np.nan)
    axes.set_facecolor("0.8")
    edges = np.arange(len(depths) + 1) - 0.5, np.arange(len(SPEEDS) + 1) - 0.5
    mesh = axes.pcolormesh(*edges, np.where(steps > 0, steps, np.nan), norm=_NORM, cmap="viridis_r")
    axes.pcolormesh(*edges, np.where(steps < 0, 1.0, np.nan), cmap="gray", vmin=1, vmax=2)
    if np.isfinite([float(row["largest_rate"]) for row in rows]).all():
        by_depth = {int(row["num_layers"]): float(row["largest_rate"]) for row in rows}
        largest = [by_depth[depth] for depth in depths]
        axes.plot(range(len(depths)), -np.log2(np.multiply(largest, depths)), ".-", color="C3", lw=1.5, ms=5)
    axes.grid(False)
    axes.set_xticks(range(len(depths)), depths)
    axes.set_yticks(range(0, len(SPEEDS), 2), [f"1/{1 / speed:g}" for speed in SPEEDS[::2]])
    return mesh


FIGURES = {
    "eigenvalues": (eigenvalues, eigenvalues_figure),
    "rotations": (rotations, rotations_figure),
    "saddle": (saddle, saddle_figure),
    "rates": (rates, rates_figure),
}
