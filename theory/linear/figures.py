"""Figures of linear networks in docs/papers/theorems.md: norms of factorisations, (2.3), and descent with its rate.

For each figure: its data, rows of numbers and words that are written to a CSV file, and the drawing from that file.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from theory import factorization, linear_residual
from theory.arrays import column
from theory.linear import paper_construction

LAYERS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_NORM = "|||A|||"  # the largest spectral norm of a layer
_METHODS = {
    "paper": ("printed construction", "C3", "s-"),
    "principal": ("principal root", "C2", "^-"),
    "polar": ("polar", "C0", "o-"),
}

_TARGETS = {  # the R of `norms_against_layers` as formulas
    "Gaussian, d = 10, rescaled": r"$R$ Gaussian, $d = 10$, rescaled",
    "I + ½ Gaussian/√d, d = 10": r"$R = I + \frac{1}{2\sqrt{d}}$ Gaussian, $d = 10$",
    "diag(−e, −1/e)": r"$R = \mathrm{diag}(-e, -1/e)$",
}
_SQUARE = np.array([[-1, 1, 1, -1, -1], [-1, -1, 1, 1, -1]])
_BALL = 0.6  # τ of the ball that `identity_ball_figure` shows


def norms_against_layers(seed: int = 0, layers: Sequence[int] = LAYERS) -> list[dict]:
    """Returns |||A||| of every method, the proved bounds and the lower bound, for three R and ℓ = 1 … 128."""
    rng = np.random.default_rng(seed)
    gaussian = rng.standard_normal((10, 10))
    targets = {
        "Gaussian, d = 10, rescaled": factorization.rescale(_positive(gaussian))[0],
        "I + ½ Gaussian/√d, d = 10": _positive(np.eye(10) + rng.standard_normal((10, 10)) / np.sqrt(40)),
        "diag(−e, −1/e)": np.diag([-np.e, -1 / np.e]),
    }
    rows = []
    for target, R in targets.items():
        gamma = factorization.log_condition(R)
        for num_layers in layers:
            row = {"target": target, "num_layers": num_layers, "log_condition": gamma}
            for method in ("paper", "polar", "principal"):
                row[method] = _norm(R, num_layers, method)
            printed = factorization.norm_bound(R, num_layers, "paper")
            row["printed_bound"] = printed if np.isfinite(printed) else np.nan
            row["polar_bound"] = factorization.norm_bound(R, num_layers, "polar")
            row["lower_bound"] = factorization.norm_lower_bound(R, num_layers)
            rows.append(row)
    return rows


def norms_figure(rows: list[dict]) -> Figure:
    """Returns curves of ℓ·|||A||| for every method, between the lower bound and the proved bounds (Theorem 2.1)."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes, target in zip(figure.subplots(1, len(targets), sharey=True), targets):
        chosen = [row for row in rows if row["target"] == target]
        layers = column(chosen, "num_layers")
        axes.plot(
            layers,
            layers * column(chosen, "printed_bound"),
            "k--",
            label=r"$4\pi + 3\gamma$, printed, $\ell \geq 3\gamma$",
        )
        axes.plot(layers, layers * column(chosen, "polar_bound"), "--", color="C0", label="bound of polar")
        for name, (label, colour, style) in _METHODS.items():
            axes.plot(layers, layers * column(chosen, name), style, color=colour, ms=4, label=label)
        lower = layers * column(chosen, "lower_bound")
        axes.fill_between(layers, 0.1, lower, color="0.85", label="no factorisation here")
        gamma = float(chosen[0]["log_condition"])
        axes.set(title=f"{_TARGETS.get(target, target)}\n$\\gamma = {gamma:.2f}$", xlabel=r"layers $\ell$")
        axes.set(xscale="log", yscale="log", ylim=(0.3, 100))
    figure.axes[0].set_ylabel(rf"$\ell \cdot {_NORM}$")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def printed_construction(seed: int = 0, num_gammas: int = 120) -> list[dict]:
    """Returns the worst norm of the printed construction over (4π + 3γ)/ℓ, γ ≤ ℓ/3, ℓ = 5 … 32; no seed is used."""
    rows = []
    for num_layers in range(5, 33):
        for gamma in np.linspace(0, num_layers / 3, num_gammas + 1)[1:]:
            norm = paper_construction.allocation(gamma, num_layers).norm
            ratio = float(norm / paper_construction.printed_bound(gamma, num_layers))
            rows.append({"num_layers": num_layers, "log_condition": float(gamma), "norm_over_bound": ratio})
    return rows


def printed_construction_figure(rows: list[dict]) -> Figure:
    """Returns a map of the γ and ℓ for which the printed construction with integers exceeds its bound."""
    layers = np.unique(column(rows, "num_layers").astype(int))
    ratios = column(rows, "norm_over_bound").reshape(len(layers), -1)
    gammas = column(rows, "log_condition").reshape(len(layers), -1)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for count, gamma, ratio in zip(layers, gammas, ratios):
        mesh = axes.pcolormesh(
            np.append(0, gamma), [count - 0.5, count + 0.5], ratio[None],
            norm=TwoSlopeNorm(1, 0.5, 1.5), cmap="RdBu_r", rasterized=True,
        )  # fmt: skip
    figure.colorbar(mesh, ax=axes, label=rf"worst ${_NORM}$ over $(4\pi + 3\gamma)/\ell$", extend="both")
    axes.grid(False)
    title = "red: the printed construction exceeds its bound"
    axes.set(xlabel=r"$\gamma$", ylabel=r"layers $\ell$", title=title)
    return figure


def gradient_ratios(seed: int = 0, instances: int = 4_000) -> list[dict]:
    """Returns ‖∇f‖² over (2.3)'s bound and over the product form's, for random A, R and Σ, τ = 0.1 … 0.7."""
    rng = np.random.default_rng(seed)
    rows = []
    for instance in range(instances):
        radius = (0.1, 0.3, 0.5, 0.7)[instance % 4]
        A = radius * _unit_layers(rng, 5, 4)
        R, root = rng.standard_normal((2, 4, 4))
        Sigma = root @ root.T + 0.1 * np.eye(4)
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        printed = float(squared / linear_residual.gradient_lower_bound(A, R, Sigma))
        by_layer = float(squared / linear_residual.gradient_lower_bound_by_layer(A, R, Sigma))
        rows.append({"radius": radius, "printed": printed, "by_layer": by_layer})
    return rows


def gradient_ratios_figure(rows: list[dict]) -> Figure:
    """Returns histograms of ‖∇f‖² over its lower bounds: (2.3) and the product form."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    radii = np.unique(column(rows, "radius"))
    bins = np.linspace(0, 8, 81)
    titles = {"printed": "(2.3)", "by_layer": "product form"}
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), titles.items()):
        for radius in radii:
            ratios = column([row for row in rows if float(row["radius"]) == radius], name)
            axes.hist(np.log10(ratios), bins, histtype="step", lw=1.5, label=rf"$\tau = {radius:g}$")
        axes.axvline(0, color="k", lw=1)
        axes.set(title=title, xlabel=r"$\log_{10}$ of $\|\nabla f\|^2$ over the bound; 0: equality")
    figure.axes[0].set_ylabel(rf"instances, of {len(rows) // len(radii):,} for each $\tau$")
    figure.axes[0].legend()
    return figure


def descent_rates(seed: int = 0, num_steps: int = 60) -> list[dict]:
    """Returns excess risks of gradient descent projected on B_τ and the rate of (2.3), τ = 0.05, 0.15, 0.3."""
    rng = np.random.default_rng(seed)
    rows = []
    for radius in (0.05, 0.15, 0.3):
        A, target = (0.9 * radius * _unit_layers(rng, 8, 5) for _ in range(2))
        R = linear_residual.end_to_end(target)
        Sigma = np.eye(5)
        start = linear_residual.risk(A, R, Sigma)
        learning_rate = 1 / linear_residual.smoothness_bound(Sigma, 8, radius, start)
        descent = linear_residual.gradient_descent(A, R, Sigma, learning_rate, num_steps, radius)
        bound = linear_residual.convergence_rate_bound(Sigma, 8, radius, learning_rate)
        for step, risk in enumerate(descent.risks):
            guaranteed = float(start * bound**step)
            rows.append({"radius": radius, "step": step, "excess_risk": float(risk), "guaranteed": guaranteed})
    return rows


def descent_figure(rows: list[dict]) -> Figure:
    """Returns curves of the excess risk of projected gradient descent and of the rate that (2.3) guarantees."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for i, radius in enumerate(np.unique(column(rows, "radius"))):
        chosen = [row for row in rows if float(row["radius"]) == radius]
        steps = column(chosen, "step")
        colour = f"C{i}"
        axes.plot(steps, column(chosen, "excess_risk"), color=colour, label=rf"measured, $\tau = {radius:g}$")
        axes.plot(steps, column(chosen, "guaranteed"), "--", color=colour, label="guaranteed by (2.3)")
    axes.set(xlabel="step", ylabel="excess risk", yscale="log")
    axes.set_title(r"Projected gradient descent on $B_\tau$, $\ell = 8$, $d = 5$")
    axes.legend()
    return figure


def identity_ball(seed: int = 0, target: float = 0.4, num_points: int = 81) -> list[dict]:
    """Returns risk and gradient of two layers of one weight, f = ((1 + a)(1 + b) − r)², by a and b; no seed is used.

    Rows are of the kinds plane (a grid), path (gradient descent, path by path; the last starts outside of the ball
    where a + b = −2 and ends at the saddle) and edge: the least ‖∇f‖²/f on the square max(|a|, |b|) = τ and the bound
    of (2.3), 4ℓ(1 − τ)^{2ℓ−2}σ_min(Σ), ℓ = 2.
    """
    R = np.array([[target]])
    Sigma = np.eye(1)

    def row(kind: str, a: float, b: float, path: int = -1) -> dict:
        A = np.array([[[a]], [[b]]])
        row = {"kind": kind, "path": path, "a": float(a), "b": float(b), "target": target}
        return row | {
            "risk": linear_residual.risk(A, R, Sigma),
            "radius": np.nan,
            "least_ratio": np.nan,
            "bound": np.nan,
        }

    grid = np.linspace(-2, 1.3, num_points)
    rows = [row("plane", a, b) for a in grid for b in grid]
    starts = [(_BALL * x, _BALL * y) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0)] + [(-1.8, -0.2)]
    for path, start in enumerate(starts):
        A = np.array(start).reshape(2, 1, 1)
        for _ in range(450):
            rows.append(row("path", *A.ravel(), path))
            A = A - 0.02 * linear_residual.gradient(A, R, Sigma)
    return rows + [row("edge", -r, -r) | _steepness(r, R, Sigma) for r in np.linspace(0, 1, 41)]


def _steepness(radius: float, R: np.ndarray, Sigma: np.ndarray) -> dict[str, float]:
    """Returns the least ‖∇f‖²/f over 80 pairs of weights with f > 0 at a distance from 0, and (2.3)'s bound."""
    along = np.linspace(-radius, radius, 21)[:-1]
    edge = [p for t in along for p in ((t, radius), (-t, -radius), (radius, -t), (-radius, t))]
    ratios, bounds = [], []
    for A in np.array(edge)[..., None, None]:
        if (risk := linear_residual.risk(A, R, Sigma)) > 1e-9:
            ratios.append(np.square(linear_residual.gradient(A, R, Sigma)).sum() / risk)
            bounds.append(linear_residual.gradient_lower_bound(A, R, Sigma) / risk)
    return {"radius": float(radius), "least_ratio": float(min(ratios)), "bound": float(min(bounds))}


def identity_ball_figure(rows: list[dict]) -> Figure:
    """Returns the landscape around the identity: all critical points in the ball are global minima (Theorem 2.2).

    Left: the plane of both weights with the ball around the identity, the minima, the saddle at the ball's corner, the
    start of plain layers, and paths of gradient descent. Right: the least ‖∇f‖²/f at a distance from the identity,
    which equals the bound of (2.3).
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    plane, ratio = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_plane(figure, plane, [row for row in rows if row["kind"] == "plane"])
    for path in sorted({int(row["path"]) for row in rows if row["kind"] == "path"}):
        chosen = [row for row in rows if row["kind"] == "path" and int(row["path"]) == path]
        a, b = column(chosen, "a"), column(chosen, "b")
        inside = max(abs(a[0]), abs(b[0])) < 1
        plane.plot(a, b, "-" if inside else "--", color="C0" if inside else "C3", lw=1.2)
        plane.plot(a[0], b[0], "o", ms=4, color="C0" if inside else "C3")
    for radius, style in ((_BALL, "-"), (1, ":")):
        plane.plot(radius * _SQUARE[0], radius * _SQUARE[1], style, color="k", lw=1.2)
        plane.annotate(rf"$\tau = {radius:g}$", (radius, -radius), (-3, 4), textcoords="offset points", ha="right")
    plane.plot(0, 0, "k+", ms=10)
    plane.annotate("identity", (0, 0), (5, 4), textcoords="offset points")
    plane.plot(-1, -1, "X", ms=9, color="C3", mec="w")
    plane.annotate("saddle: both layers 0", (-1, -1), (0, -13), textcoords="offset points", color="C3", ha="center")
    plane.set(xlabel="$a$, of layer $1 + a$", ylabel="$b$, of layer $1 + b$")
    plane.set_title("near the identity only minima are critical")
    edges = [row for row in rows if row["kind"] == "edge"]
    radius = column(edges, "radius")
    ratio.plot(radius, column(edges, "least_ratio"), "-", color="C0", label=r"least at the distance $\tau$ from $I$")
    ratio.plot(radius, column(edges, "bound"), "--", color="C1", label=r"bound of (2.3), $\ell = 2$")
    ratio.set(xlabel=r"$\tau = \max(|a|, |b|)$", ylabel=r"$\|\nabla f\|^2 / f$", ylim=(0, None))
    ratio.set_title(r"$\|\nabla f\|^2 \geq 4\ell\,(1-\tau)^{2\ell-2}\,\sigma_{\min}(\Sigma)\,f$")
    ratio.legend()
    return figure


def _draw_plane(figure: Figure, axes: Axes, rows: list[dict]) -> None:
    """Draws the risk over the plane of both weights, and the curve of its minima."""
    a = np.unique(column(rows, "a"))
    risk = column(rows, "risk").reshape(len(a), len(a)).T
    levels = np.linspace(-3, 1, 17)
    mesh = axes.contourf(a, a, np.log10(np.maximum(risk, 1e-3)), levels, cmap="Greys_r", extend="max", alpha=0.55)
    figure.colorbar(mesh, ax=axes, ticks=[-3, -2, -1, 0, 1], shrink=0.75, label=r"$\log_{10} f$")
    axes.contour(a, a, np.multiply.outer(1 + a, 1 + a) - float(rows[0]["target"]), [0], colors="C2", linewidths=2.5)
    axes.plot([], [], color="C2", lw=2.5, label="global minima")
    axes.legend(loc="lower right")
    axes.grid(False)


def _positive(R: np.ndarray) -> np.ndarray:
    return R if np.linalg.det(R) > 0 else factorization.flip_label(R)


def _norm(R: np.ndarray, num_layers: int, method: str) -> float:
    """Returns |||A|||, NaN if the method has no factorisation."""
    try:
        return linear_residual.max_spectral_norm(factorization.factorize(R, num_layers, method))
    except ValueError:
        return np.nan


def _unit_layers(rng: np.random.Generator, num_layers: int, dimension: int) -> np.ndarray:
    layers = rng.standard_normal((num_layers, dimension, dimension))
    return layers / np.linalg.norm(layers, 2, axis=(1, 2), keepdims=True)


FIGURES = {
    "norms": (norms_against_layers, norms_figure),
    "printed_construction": (printed_construction, printed_construction_figure),
    "gradient_ratios": (gradient_ratios, gradient_ratios_figure),
    "descent": (descent_rates, descent_figure),
    "identity_ball": (identity_ball, identity_ball_figure),
}
