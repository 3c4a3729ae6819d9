"""The figures of docs/theory.md: pure functions of the rows of experiments.py, as they come or from a CSV file."""

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

_METHODS = {
    "paper": ("printed construction", "tab:red", "s-"),
    "principal": ("principal root", "tab:green", "^-"),
    "polar": ("polar", "tab:blue", "o-"),
}


def norms_figure(rows: list[dict]) -> Figure:
    """Returns curves of ℓ·|||A||| for every method, between the lower bound and the proved bounds (Theorem 2.1)."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    figure = Figure(figsize=(4.2 * len(targets), 4.2), dpi=110, layout="constrained")
    for axes, target in zip(figure.subplots(1, len(targets), sharey=True), targets):
        of_target = [row for row in rows if row["target"] == target]
        layers = column(of_target, "num_layers")
        axes.plot(layers, layers * column(of_target, "printed_bound"), "k--", label="(4π + 3γ), printed, ℓ ≥ 3γ")
        axes.plot(layers, layers * column(of_target, "polar_bound"), "--", color="tab:blue", label="polar's bound")
        for name, (label, colour, style) in _METHODS.items():
            axes.plot(layers, layers * column(of_target, name), style, color=colour, ms=4, label=label)
        lower = layers * column(of_target, "lower_bound")
        axes.fill_between(layers, 0.1, lower, color="0.85", label="no factorisation here")
        gamma = float(of_target[0]["log_condition"])
        axes.set(title=f"R = {target}, γ = {gamma:.2f}", xlabel="layers ℓ", xscale="log", yscale="log", ylim=(0.3, 100))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("ℓ · |||A|||")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=6)
    return figure


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


def gradient_ratios_figure(rows: list[dict]) -> Figure:
    """Returns histograms of ‖∇f‖² over its lower bounds: (2.3) and the product form."""
    figure = Figure(figsize=(9, 3.6), dpi=110, layout="constrained")
    radii = np.unique(column(rows, "radius"))
    bins = np.linspace(0, 8, 81)
    for axes, (name, title) in zip(
        figure.subplots(1, 2, sharey=True), (("printed", "(2.3)"), ("by_layer", "product form"))
    ):
        for radius in radii:
            ratios = column([row for row in rows if float(row["radius"]) == radius], name)
            axes.hist(np.log10(ratios), bins, histtype="step", lw=1.5, label=f"τ = {radius:g}")
        axes.axvline(0, color="k", lw=1)
        axes.set(title=title, xlabel="log₁₀ of ‖∇f‖² over the bound; at 0 it is met with equality")
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel(f"instances, of {len(rows) // len(radii):,} for each τ")
    return figure


def descent_figure(rows: list[dict]) -> Figure:
    """Returns curves of the excess risk of projected gradient descent beside the rate that (2.3) guarantees."""
    figure = Figure(figsize=(6, 4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for i, radius in enumerate(np.unique(column(rows, "radius"))):
        of_radius = [row for row in rows if float(row["radius"]) == radius]
        steps, colour = column(of_radius, "step"), f"C{i}"
        axes.plot(steps, column(of_radius, "excess_risk"), color=colour, label=f"measured, τ = {radius:g}")
        axes.plot(steps, column(of_radius, "guaranteed"), "--", color=colour, label="guaranteed by (2.3)")
    axes.set(xlabel="step", ylabel="excess risk", yscale="log", title="Projected gradient descent on B_τ, ℓ = 8, d = 5")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def memorization_figure(rows: list[dict]) -> Figure:
    """Returns curves of parameters a sample, smallest gap and float32 error by width (Theorem 3.2, peeling)."""
    figure = Figure(figsize=(13, 3.8), dpi=110, layout="constrained")
    count, gap, error = figure.subplots(1, 3)
    for whitened, colour, name in ((0, "tab:blue", "raw"), (1, "tab:orange", "whitened")):
        of_kind = [row for row in rows if int(row["whitened"]) == whitened]
        widths = column(of_kind, "width")
        if not whitened:
            count.plot(widths, column(of_kind, "parameters_per_point"), "o-", color=colour)
        gap.plot(widths, column(of_kind, "smallest_gap"), "o-", color=colour, label=name)
        error.plot(widths, column(of_kind, "float32_error"), "o-", color=colour, label=f"{name}: float32")
        error.plot(widths, column(of_kind, "float32_error_expected"), ":", color=colour, label="expected at most")
        error.plot(widths, column(of_kind, "float64_error"), "x-", color=colour, lw=0.8, label="float64")
    error.axhline(0.5, color="k", lw=0.8)
    count.set(title="parameters per sample", xlabel="width k")
    gap.set(title="smallest relative gap", xlabel="width k", yscale="log")
    error.set(title="largest |ŷ − one-hot|", xlabel="width k", yscale="log")
    for axes in (count, gap, error):
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
    gap.legend(fontsize=8)
    error.legend(fontsize=7, ncols=2)
    return figure


def spectra_figure(rows: list[dict]) -> Figure:
    """Returns the staircase of eigenvalues of the Hessian at zero for n = 1, 2, 3 (Li et al., Theorem 1)."""
    figure = Figure(figsize=(12, 3.6), dpi=110, layout="constrained")
    for axes, depth in zip(figure.subplots(1, 3), (1, 2, 3)):
        of_depth = [row for row in rows if int(row["shortcut_depth"]) == depth]
        share = column(of_depth, "share")
        axes.plot(
            share, column(of_depth, "measured"), ".", ms=5, color="tab:blue", label="measured: differences of the loss"
        )
        axes.plot(share, column(of_depth, "predicted"), "-", lw=0.8, color="tab:red", label="Theorem 1")
        axes.axhline(0, color="k", lw=0.5)
        axes.set(title=f"n = {depth}", xlabel="share of the eigenvalues")
        if depth == 3:
            axes.set_ylim(-1, 1)
    figure.axes[0].set_yscale("symlog", linthresh=0.1)
    figure.axes[0].set_ylabel("eigenvalue")
    figure.axes[1].legend(fontsize=8)
    return figure


def condition_numbers_figure(rows: list[dict]) -> Figure:
    """Returns the condition number at zero against the number of units: constant for n = 2, growing for n = 1."""
    figure = Figure(figsize=(5.5, 4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    units = column(rows, "num_units")
    axes.plot(units, column(rows, "one_shortcut"), "s-", color="tab:red", label="n = 1")
    axes.plot(
        units, column(rows, "lower_bound"), "--", color="tab:red", label="proved least for n = 1: R λ_max(Sxx)/σ_min(M)"
    )
    axes.plot(units, column(rows, "two_shortcut"), "o-", color="tab:blue", label="n = 2: cond(M)")
    axes.set(xlabel="units R", ylabel="condition number at zero", xscale="log", yscale="log")
    axes.set_title("Li et al., Theorem 1: depth-invariant for n = 2 alone")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def column(rows: list[dict], name: str) -> np.ndarray:
    """Returns one column of the rows as numbers."""
    return np.array([float(row[name]) for row in rows])


FIGURES = {
    "norms": norms_figure,
    "printed_construction": printed_construction_figure,
    "gradient_ratios": gradient_ratios_figure,
    "descent": descent_figure,
    "memorization": memorization_figure,
    "spectra": spectra_figure,
    "condition_numbers": condition_numbers_figure,
}
