"""Figures 3 and 5–10 of Li et al.: pure functions of the rows of results.csv; see experiments.py for what they hold."""

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

from shortcut_study.analysis import LABELS, along_loss, best_rates, depths, kinds, of_kind, over_seeds, select
from shortcut_study.convolutional_figure import convolutional_figure
from theory.figures import column

_COLOURS = dict(zip(LABELS, ("tab:red", "tab:orange", "tab:green", "tab:blue", "tab:purple")))
_MARKERS = dict(zip(LABELS, ("o-", "s-", "x--", "o-", "^-")))
_ACTIVATIONS = {"linear": "linear", "relu_mid": "ReLU at mid"}
_LOSS_LABELS = {"linear": ("excess_loss", "loss − lowest loss of a linear map"), "relu_mid": ("loss", "loss")}


def norms_figure(rows) -> Figure:
    """Figure 3: average Frobenius norm of the weights of 2-shortcut networks as the loss falls, by depth."""
    figure = Figure(figsize=(14, 4.4), dpi=110, layout="constrained")
    *panels, final = figure.subplots(1, 3)
    for axes, (activations, title) in zip(panels, _ACTIVATIONS.items()):
        of_activations = select(rows, experiment="norms", activations=activations)
        all_depths = depths(of_activations)
        loss, label = _LOSS_LABELS[activations]
        for i, depth in enumerate(all_depths):
            colour = colormaps["viridis"](i / max(len(all_depths), 1))
            _draw_band(
                axes, along_loss(select(of_activations, depth=depth), loss, "norm", log=False), colour, f"{depth}"
            )
        axes.set(title=f"{title}, {_seeds(of_activations)}", xlabel=label, ylabel="average ‖W‖_F")
        axes.set(ylim=(0, None))
        _loss_axis(axes, lowest=1e-6)
        _legend(axes, title="depth", fontsize=8)
        last = [row for row in of_activations if row["epoch"] == max(r["epoch"] for r in of_activations)]
        band = over_seeds([row for row in last if row["status"] == "done"], "depth", "norm")
        _draw_log_band(final, band, "tab:blue" if activations == "linear" else "tab:red", title, "o-")
    if final.lines:
        x, y = final.lines[0].get_data()
        final.plot(x, y[0] * (x[0] / x) ** 0.5, "k:", lw=1, label="∝ 1/√depth")
    final.set(title="at the end of the descent", ylabel="average ‖W‖_F", yscale="log")
    _depth_axis(final, select(rows, experiment="norms"))
    _plain_labels(final.yaxis, final.get_ylim())
    _legend(final, fontsize=8)
    return _finished(figure)


def initial_condition_numbers_figure(rows) -> Figure:
    """Figure 5: condition number of the Hessian at initialisation against depth, linear networks."""
    figure = Figure(figsize=(7.5, 5), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    initial = select(rows, experiment="initial_spectrum")
    for kind in kinds(initial):
        of_this = of_kind(initial, kind)
        band = over_seeds(of_this, "depth", "condition_number")
        _draw_log_band(axes, band, _COLOURS[kind], LABELS[kind], _MARKERS[kind])
        infinite = sorted({row["depth"] for row in of_this if row["condition_number"] == np.inf})
        if infinite:
            axes.plot(infinite, [0.97] * len(infinite), "^", color=_COLOURS[kind], mfc="none", clip_on=False,
                      transform=axes.get_xaxis_transform(), label="beyond float64, in some runs or all")  # fmt: skip
    at_zero = select(rows, experiment="spectrum_at_zero")
    for shortcut_depth in (1, 2):
        predicted = select(at_zero, shortcut_depth=shortcut_depth)
        if predicted:
            x, y = column(predicted, "depth"), column(predicted, "condition_number")
            axes.plot(x, y, "--", color="k", lw=1, dashes=(4, 2 + 2 * shortcut_depth), zorder=5,
                      label=f"Theorem 1 at zero, n = {shortcut_depth}")  # fmt: skip
    axes.set(title=f"Hessian at initialisation, linear networks, {_seeds(initial)}", yscale="log")
    axes.set(ylabel="condition number, |λ|_max / |λ|_(0.1)")
    _depth_axis(axes, initial)
    _legend(axes, fontsize=8)
    return _finished(figure)


def linear_spectra_figure(rows) -> Figure:
    """Figure 6: largest and 10th percentile of |eigenvalue|, and their ratio, against the loss; linear networks."""
    figure = _spectra_figure(rows, "linear")
    at_zero = select(rows, experiment="spectrum_at_zero", shortcut_depth=2)
    start = [
        row["excess_loss"]
        for row in select(rows, experiment="spectrum_at_losses", shortcut_depth=2)
        if row["epoch"] == 0
    ]
    for axes, name in zip(figure.axes, ("max_abs", "p10_abs", "condition_number")):
        if at_zero and start:
            axes.plot(start[0], at_zero[0][name], "k*", ms=9, label="Theorem 1 at zero, n = 2")
            _legend(axes, fontsize=8)
    return figure


def relu_spectra_figure(rows) -> Figure:
    """Figure 7: as Figure 6, with ReLUs at mid."""
    return _spectra_figure(rows, "relu_mid")


def _spectra_figure(rows, activations: str) -> Figure:
    figure = Figure(figsize=(14, 4.4), dpi=110, layout="constrained")
    found = select(rows, experiment="spectrum_at_losses", activations=activations)
    loss, label = _LOSS_LABELS[activations]
    names = {"max_abs": "largest |λ|", "p10_abs": "10th percentile of |λ|", "condition_number": "condition number"}
    for axes, (name, title) in zip(figure.subplots(1, 3), names.items()):
        for kind in kinds(found):
            measured = [row for row in of_kind(found, kind) if row[name] != np.inf]
            _draw_band(axes, along_loss(measured, loss, name), _COLOURS[kind], LABELS[kind], log=True)
        axes.set(title=title, xlabel=label, yscale="log")
        _loss_axis(axes)
        _legend(axes, fontsize=8)
    figure.suptitle(f"Hessians of depth {_depth(found)}, {_ACTIVATIONS[activations]}, {_seeds(found)}")
    return _finished(figure)


def index_figure(rows) -> Figure:
    """Figure 8: share of negative eigenvalues against the loss; gradient norm and index along one run."""
    figure = Figure(figsize=(12, 4.4), dpi=110, layout="constrained")
    by_loss, by_epoch = figure.subplots(1, 2)
    found = select(rows, experiment="spectrum_at_losses", activations="linear")
    for kind in kinds(found):
        _draw_band(
            by_loss, along_loss(of_kind(found, kind), "excess_loss", "index", log=False), _COLOURS[kind], LABELS[kind]
        )
    start = [row["excess_loss"] for row in select(found, shortcut_depth=2) if row["epoch"] == 0]
    if start:
        by_loss.plot(start[0], 0.5, "k*", ms=9, label="Theorem 1 at zero, n = 2")
    by_loss.set(title=f"linear, depth {_depth(found)}, {_seeds(found)}", xlabel=_LOSS_LABELS["linear"][1])
    by_loss.set(ylabel="index, the share of negative eigenvalues")
    _loss_axis(by_loss)
    _legend(by_loss, fontsize=8)
    run = [row for row in select(rows, experiment="single_run") if row["status"] == "done"]
    epochs = column(run, "epoch") + 1
    of_gradient = by_epoch.twinx()
    by_epoch.plot(epochs, column(run, "index"), ".-", ms=3, color="tab:blue", label="index")
    of_gradient.plot(epochs, column(run, "gradient_norm"), ".-", ms=3, color="tab:red", label="gradient norm")
    by_epoch.set(title="one run, 2-shortcut, linear", xlabel="epoch + 1", xscale="log")
    by_epoch.set_ylabel("index", color="tab:blue")
    of_gradient.set_ylabel("‖∂L/∂W‖", color="tab:red")
    return _finished(figure)


def linear_rates_figure(rows) -> Figure:
    """Figure 9: lowest final loss over the learning rates, and the rate that gave it, against depth; linear networks."""
    figure = _rates_figure(rows, "linear")
    for shortcut_depth, kind in ((1, (1, "zero")), (2, (2, "zero"))):
        predicted = select(rows, experiment="spectrum_at_zero", shortcut_depth=shortcut_depth)
        if predicted:
            figure.axes[1].plot(column(predicted, "depth"), 2 / column(predicted, "max_abs"), "--", lw=1,
                                color=_COLOURS[kind], label=f"2/|λ|_max at zero, n = {shortcut_depth}")  # fmt: skip
    figure.axes[1].legend(fontsize=8)
    return figure


def relu_rates_figure(rows) -> Figure:
    """Figure 10: as Figure 9, with ReLUs at mid."""
    return _rates_figure(rows, "relu_mid")


def _rates_figure(rows, activations: str) -> Figure:
    figure = Figure(figsize=(12, 4.6), dpi=110, layout="constrained")
    final, winner = figure.subplots(1, 2)
    found = select(rows, experiment="learning_rates", activations=activations)
    loss, label = _LOSS_LABELS[activations]
    for kind in kinds(found):
        best = best_rates(of_kind(found, kind), loss)
        x, mean, std = (column([b._asdict() for b in best], name) for name in ("depth", "mean", "std"))
        final.errorbar(x, mean, np.minimum(std, 0.9 * mean), fmt=_MARKERS[kind], capsize=3, ms=5, mfc="none",
                       color=_COLOURS[kind], label=LABELS[kind])  # fmt: skip
        winner.plot(
            x, [b.rate for b in best], _MARKERS[kind], ms=5, mfc="none", color=_COLOURS[kind], label=LABELS[kind]
        )
    epochs = found[0]["epoch"] if found else ""
    final.set(title=f"after {epochs} epochs, {_ACTIVATIONS[activations]}, {_seeds(found)}", ylabel=label)
    winner.set(title="learning rate that gave it", ylabel="learning rate")
    for axes in (final, winner):
        axes.set_yscale("log")
        _depth_axis(axes, found)
        _legend(axes, fontsize=8)
    if activations != "linear":
        _plain_labels(final.yaxis, final.get_ylim())
    return _finished(figure)


def _draw_band(axes, band, colour, label: str, log: bool = False) -> None:
    """A band over log₁₀ of the loss; its y is a logarithm if log."""
    if len(band.x):
        low, mean, high = (10**v if log else v for v in (band.mean - band.std, band.mean, band.mean + band.std))
        axes.plot(10**band.x, mean, color=colour, label=label)
        axes.fill_between(10**band.x, low, high, color=colour, alpha=0.2, lw=0)


def _draw_log_band(axes, band, colour, label: str, style: str) -> None:
    """Error bars of mean and standard deviation of log₁₀ y."""
    if len(band.x):
        mean = 10**band.mean
        spread = mean - 10 ** (band.mean - band.std), 10 ** (band.mean + band.std) - mean
        axes.errorbar(band.x, mean, spread, fmt=style, ms=5, mfc="none", capsize=3, color=colour, label=label)


def _loss_axis(axes, lowest: float = 0.0) -> None:
    """Logarithmic, and falling from left to right as it does in time; not below `lowest`."""
    axes.set_xscale("log")
    drawn = [place for line in axes.lines for place in line.get_xdata()]
    if drawn:
        axes.set_xlim(1.2 * max(drawn), max(min(drawn) / 1.2, lowest))
    _plain_labels(axes.xaxis, axes.get_xlim())


def _depth_axis(axes, rows) -> None:
    """Logarithmic, with the depths that there are."""
    axes.set(xlabel="depth", xscale="log")
    axes.set_xticks(depths(rows), labels=map(str, depths(rows)))
    axes.minorticks_off()


def _plain_labels(axis, limits) -> None:
    """1, 2, 3, 5 … as labels where a logarithmic axis is too short for powers of ten."""
    low, high = sorted(limits)
    if low > 0 and high / low < 50:
        ticks = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 3, 5)]
        axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_locator(NullLocator())


def _legend(axes, **style) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**style)


def _seeds(rows) -> str:
    count = len({row["seed"] for row in rows})
    return f"{count} run{'s' if count != 1 else ''} each"


def _depth(rows) -> str:
    return ", ".join(map(str, depths(rows)))


def _finished(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    return figure


FIGURES = {
    "3": norms_figure,
    "5": initial_condition_numbers_figure,
    "6": linear_spectra_figure,
    "7": relu_spectra_figure,
    "8": index_figure,
    "9": linear_rates_figure,
    "10": relu_rates_figure,
    "convolutional": lambda rows: convolutional_figure(select(rows, experiment="convolutional")),
}

# Figure: its experiments, with the activations where an experiment serves two figures.
DATA = {
    "3": (("norms", "linear"), ("norms", "relu_mid")),
    "5": (("initial_spectrum", "linear"), ("spectrum_at_zero", "linear")),
    "6": (("spectrum_at_losses", "linear"), ("spectrum_at_zero", "linear")),
    "7": (("spectrum_at_losses", "relu_mid"),),
    "8": (("spectrum_at_losses", "linear"), ("single_run", "linear")),
    "9": (("learning_rates", "linear"), ("spectrum_at_zero", "linear")),
    "10": (("learning_rates", "relu_mid"),),
    "convolutional": (("convolutional", "relu"),),
}
