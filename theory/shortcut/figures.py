"""Figures of the Hessian at zero in docs/papers/theorems.md.

Of each figure the data, rows of plain numbers and words that go to a CSV file, and the drawing, from that file alone.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from theory.arrays import column
from theory.shortcut import hessians
from theory.shortcut.measured import numeric_hessian


def spectra_at_zero(seed: int = 0, dimension: int = 3, num_units: int = 4) -> list[dict]:
    """Sorted eigenvalues of the Hessian at zero for n = 1, 2, 3: of differences of the loss, and as predicted."""
    x, y = _regression(seed, dimension)
    rows = []
    for depth in (1, 2, 3):
        measured = np.linalg.eigvalsh(numeric_hessian(x, y, num_units, depth))
        predicted = np.sort(np.repeat(*hessians.spectrum_at_zero(x, y, num_units, depth)))
        for index, pair in enumerate(zip(measured, predicted)):
            row = {"shortcut_depth": depth, "share": (index + 0.5) / len(measured)}
            rows.append(row | {"measured": float(pair[0]), "predicted": float(pair[1])})
    return rows


def spectra_figure(rows: list[dict]) -> Figure:
    """Returns the staircase of eigenvalues of the Hessian at zero for n = 1, 2, 3 (Li et al., Theorem 1)."""
    figure = Figure(figsize=(12, 3.6), dpi=110, layout="constrained")
    for axes, depth in zip(figure.subplots(1, 3), (1, 2, 3)):
        chosen = [row for row in rows if int(row["shortcut_depth"]) == depth]
        share, measured = column(chosen, "share"), column(chosen, "measured")
        axes.plot(share, measured, ".", ms=5, color="tab:blue", label="measured: differences of the loss")
        axes.plot(share, column(chosen, "predicted"), "-", lw=0.8, color="tab:red", label="Theorem 1")
        axes.axhline(0, color="k", lw=0.5)
        axes.set(title=f"n = {depth}", xlabel="share of the eigenvalues")
        if depth == 3:
            axes.set_ylim(-1, 1)
    figure.axes[0].set_yscale("symlog", linthresh=0.1)
    figure.axes[0].set_ylabel("eigenvalue")
    figure.axes[1].legend(fontsize=8)
    return figure


def condition_numbers_at_zero(
    seed: int = 0, dimension: int = 6, units: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
) -> list[dict]:
    """The condition number at zero against the number of units, n = 1 and n = 2, and the lower bound for n = 1."""
    x, y = _regression(seed, dimension)
    return [
        {
            "num_units": num_units,
            "one_shortcut": hessians.condition_number_at_zero(x, y, num_units, 1),
            "two_shortcut": hessians.condition_number_at_zero(x, y, num_units, 2),
            "lower_bound": hessians.condition_number_lower_bound(x, y, num_units) if num_units > 1 else np.nan,
        }
        for num_units in units
    ]


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


def _regression(seed: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Whitened x and noisy linear y [m, d], m = 20 d, as Li et al. use."""
    rng = np.random.default_rng(seed)
    x = np.linalg.qr(rng.standard_normal((20 * dimension, dimension)))[0] * np.sqrt(20 * dimension)
    return x, x @ rng.standard_normal((dimension, dimension)).T / 2 + 0.1 * rng.standard_normal(x.shape)


FIGURES = {
    "spectra": (spectra_at_zero, spectra_figure),
    "condition_numbers": (condition_numbers_at_zero, condition_numbers_figure),
}
