"""Figures of the Hessian at zero in docs/papers/theorems.md.

For each figure: its data, rows of numbers and words that are written to a CSV file, and the drawing from that file.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from theory import shortcut_hessians
from theory.arrays import column
from theory.shortcut.measured import numeric_hessian

_SHORTCUTS = {"one_shortcut": 1, "two_shortcut": 2}


def spectra_at_zero(
    seed: int = 0, dimension: int = 3, num_units: int = 4, other_units: Sequence[int] = (2, 16)
) -> list[dict]:
    """Returns sorted eigenvalues of the Hessian at zero, n = 1, 2, 3, as Theorem 1 predicts them at several depths.

    At num_units they are also measured, by differences of the loss; elsewhere measured is NaN.
    """
    x, y = _regression(seed, dimension)
    rows = []
    for depth, units in itertools.product((1, 2, 3), sorted({num_units, *other_units})):
        predicted = np.sort(np.repeat(*shortcut_hessians.spectrum_at_zero(x, y, units, depth)))
        measured = np.full(len(predicted), np.nan)
        if units == num_units:
            measured = np.linalg.eigvalsh(numeric_hessian(x, y, units, depth))
        for index, pair in enumerate(zip(measured, predicted)):
            row = {"shortcut_depth": depth, "num_units": units, "share": (index + 0.5) / len(predicted)}
            rows.append(row | {"measured": float(pair[0]), "predicted": float(pair[1])})
    return rows


def spectra_figure(rows: list[dict]) -> Figure:
    """Returns the sorted eigenvalues of the Hessian at zero for n = 1, 2, 3, side by side (Li et al., Theorem 1).

    A curve is a number of units R, dots are measured. With n = 1 the spectrum widens with depth, with n = 2 it is the
    same at every depth and its eigenvalues come in pairs ± σ, with n = 3 it is zero.
    """
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    titles = {1: "wider with depth", 2: "the same at every depth", 3: "zero"}
    units = sorted({int(row["num_units"]) for row in rows})
    for axes, (depth, title) in zip(figure.subplots(1, 3, sharey=True), titles.items()):
        for k, count in enumerate(units):
            chosen = [r for r in rows if (int(r["shortcut_depth"]), int(r["num_units"])) == (depth, count)]
            share, measured = column(chosen, "share"), column(chosen, "measured")
            style = (":", "--", "-")[k % 3]
            colour = f"C{k % 8}"
            axes.plot(share, column(chosen, "predicted"), style, color=colour, label=f"Theorem 1, $R = {count}$")
            if np.isfinite(measured).any():
                axes.plot(share, measured, ".", ms=5, color=colour, label=f"measured, $R = {count}$")
        axes.axhline(0, color="k", lw=0.5)
        axes.set(title=f"$n = {depth}$: {title}", xlabel="share of the eigenvalues")
    figure.axes[0].set_yscale("symlog", linthresh=0.3)
    figure.axes[0].set_ylabel(r"eigenvalue $\lambda$ of the Hessian at $W = 0$")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def condition_numbers_at_zero(
    seed: int = 0,
    dimension: int = 4,
    units: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    num_instances: int = 10,
) -> list[dict]:
    """Returns condition numbers at zero by the number of units, n = 1 and n = 2, and the lower bound for n = 1.

    The rows are of several random regressions, whose seeds start at seed; the column instance numbers them.
    """
    rows = []
    for instance, num_units in itertools.product(range(num_instances), units):
        x, y = _regression(seed + instance, dimension)
        row = {"instance": instance, "num_units": num_units}
        row |= {name: shortcut_hessians.condition_number_at_zero(x, y, num_units, n) for name, n in _SHORTCUTS.items()}
        bound = shortcut_hessians.condition_number_lower_bound(x, y, num_units) if num_units > 1 else np.nan
        rows.append(row | {"lower_bound": bound})
    return rows


def condition_numbers_figure(rows: list[dict]) -> Figure:
    """Returns the condition number at zero against the number of units: constant for n = 2, growing for n = 1.

    Lines are geometric means over the instances, bands a standard deviation of the logarithm to either side.
    """
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    units = np.unique(column(rows, "num_units"))
    bound = r"proved least for $n = 1$: $R\,\lambda_{\max}(S_{xx})/\sigma_{\min}(M)$"
    lines = {
        "one_shortcut": ("s-", "C3", "$n = 1$"),
        "lower_bound": ("--", "C3", bound),
        "two_shortcut": ("o-", "C0", r"$n = 2$: $\mathrm{cond}(M)$"),
    }
    for name, (style, colour, label) in lines.items():
        logarithms = [
            np.log(column([row for row in rows if float(row["num_units"]) == depth], name)) for depth in units
        ]
        mean, spread = (np.array([f(values) for values in logarithms]) for f in (np.mean, _spread))
        axes.plot(units, np.exp(mean), style, color=colour, ms=4, label=label)
        if name != "lower_bound":
            axes.fill_between(units, np.exp(mean - spread), np.exp(mean + spread), color=colour, alpha=0.2, lw=0)
    count = len({row["instance"] for row in rows})
    title = f"Li et al., Theorem 1: depth-invariant for $n = 2$ alone ({count} random regressions)"
    axes.set(xlabel="units $R$", ylabel=r"condition number at $W = 0$", xscale="log", yscale="log", title=title)
    axes.set_xticks(units, [f"{count:g}" for count in units])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    return figure


def _spread(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _regression(seed: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns whitened x and noisy linear y [m, d], m = 20 d, as Li et al. use."""
    rng = np.random.default_rng(seed)
    x = np.linalg.qr(rng.standard_normal((20 * dimension, dimension)))[0] * np.sqrt(20 * dimension)
    return x, x @ rng.standard_normal((dimension, dimension)).T / 2 + 0.1 * rng.standard_normal(x.shape)


FIGURES = {
    "spectra": (spectra_at_zero, spectra_figure),
    "condition_numbers": (condition_numbers_at_zero, condition_numbers_figure),
}
