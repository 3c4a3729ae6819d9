"""Figures of linear networks in docs/papers/theorems.md: norms of factorisations, (2.3) and the descent that it
promises.

Of each figure the data, rows of plain numbers and words that go to a CSV file, and the drawing, from that file alone.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from theory.arrays import column
from theory.linear import factorization, landscape, paper_construction

LAYERS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_METHODS = {
    "paper": ("printed construction", "tab:red", "s-"),
    "principal": ("principal root", "tab:green", "^-"),
    "polar": ("polar", "tab:blue", "o-"),
}


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
    figure = Figure(figsize=(4.2 * len(targets), 4.2), dpi=110, layout="constrained")
    for axes, target in zip(figure.subplots(1, len(targets), sharey=True), targets):
        chosen = [row for row in rows if row["target"] == target]
        layers = column(chosen, "num_layers")
        axes.plot(layers, layers * column(chosen, "printed_bound"), "k--", label="(4π + 3γ), printed, ℓ ≥ 3γ")
        axes.plot(layers, layers * column(chosen, "polar_bound"), "--", color="tab:blue", label="polar's bound")
        for name, (label, colour, style) in _METHODS.items():
            axes.plot(layers, layers * column(chosen, name), style, color=colour, ms=4, label=label)
        lower = layers * column(chosen, "lower_bound")
        axes.fill_between(layers, 0.1, lower, color="0.85", label="no factorisation here")
        gamma = float(chosen[0]["log_condition"])
        axes.set(title=f"R = {target}, γ = {gamma:.2f}", xlabel="layers ℓ", xscale="log", yscale="log", ylim=(0.3, 100))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("ℓ · |||A|||")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=6)
    return figure


def printed_construction(seed: int = 0, num_gammas: int = 120) -> list[dict]:
    """Worst norm of the printed construction with integers over (4π + 3γ)/ℓ, γ ≤ ℓ/3, ℓ = 5 … 32; no seed is used."""
    rows = []
    for num_layers in range(5, 33):
        for gamma in np.linspace(0, num_layers / 3, num_gammas + 1)[1:]:
            norm = paper_construction.allocation(gamma, num_layers).norm
            ratio = float(norm / paper_construction.printed_bound(gamma, num_layers))
            rows.append({"num_layers": num_layers, "log_condition": float(gamma), "norm_over_bound": ratio})
    return rows


def printed_construction_figure(rows: list[dict]) -> Figure:
    """Returns a map of where the printed construction with integers exceeds its bound, in the plane of γ and ℓ."""
    layers = np.unique(column(rows, "num_layers").astype(int))
    ratios = column(rows, "norm_over_bound").reshape(len(layers), -1)
    gammas = column(rows, "log_condition").reshape(len(layers), -1)
    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for count, gamma, ratio in zip(layers, gammas, ratios):
        mesh = axes.pcolormesh(
            np.append(0, gamma), [count - 0.5, count + 0.5], ratio[None],
            norm=TwoSlopeNorm(1, 0.5, 1.5), cmap="RdBu_r", rasterized=True,
        )  # fmt: skip
    figure.colorbar(mesh, ax=axes, label="worst |||A||| over (4π + 3γ)/ℓ", extend="both")
    axes.set(xlabel="γ", ylabel="layers ℓ", title="The printed construction misses its bound where it is red")
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
        squared = np.square(landscape.gradient(A, R, Sigma)).sum()
        printed = float(squared / landscape.gradient_lower_bound(A, R, Sigma))
        by_layer = float(squared / landscape.gradient_lower_bound_by_layer(A, R, Sigma))
        rows.append({"radius": radius, "printed": printed, "by_layer": by_layer})
    return rows


def gradient_ratios_figure(rows: list[dict]) -> Figure:
    """Returns histograms of ‖∇f‖² over its lower bounds: (2.3) and the product form."""
    figure = Figure(figsize=(9, 3.6), dpi=110, layout="constrained")
    radii = np.unique(column(rows, "radius"))
    bins = np.linspace(0, 8, 81)
    titles = {"printed": "(2.3)", "by_layer": "product form"}
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), titles.items()):
        for radius in radii:
            ratios = column([row for row in rows if float(row["radius"]) == radius], name)
            axes.hist(np.log10(ratios), bins, histtype="step", lw=1.5, label=f"τ = {radius:g}")
        axes.axvline(0, color="k", lw=1)
        axes.set(title=title, xlabel="log₁₀ of ‖∇f‖² over the bound; at 0 it is met with equality")
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel(f"instances, of {len(rows) // len(radii):,} for each τ")
    return figure


def descent_rates(seed: int = 0, num_steps: int = 60) -> list[dict]:
    """Excess risk of gradient descent, projected on B_τ, beside the rate that (2.3) guarantees, τ = 0.05, 0.15, 0.3."""
    rng = np.random.default_rng(seed)
    rows = []
    for radius in (0.05, 0.15, 0.3):
        A, target = (0.9 * radius * _unit_layers(rng, 8, 5) for _ in range(2))
        R, Sigma = landscape.end_to_end(target), np.eye(5)
        start = landscape.risk(A, R, Sigma)
        learning_rate = 1 / landscape.smoothness_bound(Sigma, 8, radius, start)
        descent = landscape.gradient_descent(A, R, Sigma, learning_rate, num_steps, radius)
        bound = landscape.convergence_rate_bound(Sigma, 8, radius, learning_rate)
        for step, risk in enumerate(descent.risks):
            guaranteed = float(start * bound**step)
            rows.append({"radius": radius, "step": step, "excess_risk": float(risk), "guaranteed": guaranteed})
    return rows


def descent_figure(rows: list[dict]) -> Figure:
    """Returns curves of the excess risk of projected gradient descent beside the rate that (2.3) guarantees."""
    figure = Figure(figsize=(6, 4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for i, radius in enumerate(np.unique(column(rows, "radius"))):
        chosen = [row for row in rows if float(row["radius"]) == radius]
        steps, colour = column(chosen, "step"), f"C{i}"
        axes.plot(steps, column(chosen, "excess_risk"), color=colour, label=f"measured, τ = {radius:g}")
        axes.plot(steps, column(chosen, "guaranteed"), "--", color=colour, label="guaranteed by (2.3)")
    axes.set(xlabel="step", ylabel="excess risk", yscale="log", title="Projected gradient descent on B_τ, ℓ = 8, d = 5")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def _positive(R: np.ndarray) -> np.ndarray:
    return R if np.linalg.det(R) > 0 else factorization.flip_label(R)


def _norm(R: np.ndarray, num_layers: int, method: str) -> float:
    """|||A|||, NaN where the method has no factorisation."""
    try:
        return landscape.max_spectral_norm(factorization.factorize(R, num_layers, method))
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
}
