"""Figure 8 of Li et al.: share of negative eigenvalues along the loss; gradient norm and index along one run."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from identity_matters.runs.figure_style import PAGE
from identity_matters.runs.job_table import Job, Progress
from identity_matters.runs.tables import percent
from shortcut_study.aggregation import (
    along_loss,
    architectures_in,
    column,
    depths_in,
    done_rows,
    rows_of_architecture,
    select,
)
from shortcut_study.architectures import LABELS, LINEAR, TWO
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import DIVERGED, loss_and_gradient
from shortcut_study.figures import drawing, figure_6
from shortcut_study.figures.figure_3 import spaced_epochs
from shortcut_study.figures.finding import DRAMATIC, Finding, diverged_runs
from shortcut_study.hessian import hessian, spectrum
from shortcut_study.jobs import job_key, study_job
from theory.shortcut.networks import minimum_loss

EXPERIMENTS = (("spectrum_at_losses", LINEAR), ("spectrum_at_zero", LINEAR), ("single_run", LINEAR))
CAPTION = "Share of negative eigenvalues along the loss; gradient and index along one run"
READS = figure_6.READS
SIZE = figure_6.SIZE
SHORTCUT_DEPTHS = figure_6.SHORTCUT_DEPTHS


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns the jobs of Figure 6, and one for gradient norm and index along one of its descents."""
    return figure_6.jobs(config, data) + [_single_run(config, data)]


def _single_run(config: StudyConfig, data: StudyData) -> Job:
    rate = config.learning_rate
    recorded = spaced_epochs(config.descent_epochs)

    def compute(progress: Progress) -> list[dict]:
        network = TWO.network(data.x.shape[1], config.depth, LINEAR)
        weights = network.initialize(TWO.initialisation, config.seed)
        least = minimum_loss(data.x, data.y)
        # Not by descend, which does not keep gradients.
        excess_loss_and_gradient = loss_and_gradient(network, data.x, data.y)
        rows = []
        for epoch in range(config.descent_epochs + 1):
            (excess,), (step,) = excess_loss_and_gradient(weights[None])
            if not excess <= DIVERGED * (rows[0]["loss"] if rows else np.inf):  # also if it is NaN
                rows.append({"learning_rate": rate, "epoch": epoch, "status": "diverged"})
                break
            if epoch in recorded:
                reached = {"epoch": epoch, "loss": excess + least, "excess_loss": excess}
                reached |= {"gradient_norm": float(np.linalg.norm(step)), "learning_rate": rate, "status": "done"}
                matrix = hessian(network, weights, data.x, data.y, config.hessian)
                rows.append(reached | spectrum(matrix).columns())
                progress(1 / len(recorded))
            weights = weights - rate * step
        return rows

    return study_job(job_key("single_run", TWO, LINEAR, config.depth, config.seed), compute)


def draw(rows: list[dict]) -> Figure:
    """Returns the index against the excess loss, and with the gradient norm along one run."""
    figure = Figure(figsize=(PAGE, 3.8), layout="constrained")
    by_loss, by_epoch = figure.subplots(1, 2)
    _draw_by_loss(by_loss, rows)
    run = done_rows(select(rows, experiment="single_run"))
    epochs = column(run, "epoch") + 1
    gradient_axes = by_epoch.twinx()
    by_epoch.plot(epochs, column(run, "index"), ".-", ms=3, color="C0", label="index")
    gradient_axes.plot(epochs, column(run, "gradient_norm"), ".-", ms=3, color="C3", label="gradient norm")
    by_epoch.set(title="one run, 2-shortcut, linear", xlabel="epoch + 1", xscale="log")
    by_epoch.set_ylabel("index", color="C0")
    gradient_axes.set_ylabel(r"$\|\partial L/\partial W\|$", color="C3")
    # The style hides the right spine, but here it carries the second axis; its grid would cross the first.
    gradient_axes.spines.right.set_visible(True)
    gradient_axes.grid(False)
    return figure


def _draw_by_loss(axes: Axes, rows: list[dict]) -> None:
    at_zero = select(rows, experiment="spectrum_at_zero", shortcut_depth=2)
    rows = select(rows, experiment="spectrum_at_losses", activations=LINEAR)
    for arch in architectures_in(rows):
        measured = [row for row in rows_of_architecture(rows, arch) if row["index"] != ""]
        band = along_loss(measured, "excess_loss", "index", log=False)
        drawing.draw_band(axes, band, drawing.COLOURS[arch], LABELS[arch])
        axes.plot([row["excess_loss"] for row in measured], [row["index"] for row in measured], ".", ms=4, alpha=0.5,
                  color=drawing.COLOURS[arch])  # fmt: skip
    start = [row["excess_loss"] for row in select(rows, shortcut_depth=2) if row["epoch"] == 0]
    if at_zero and start:
        axes.plot(start[0], at_zero[0]["index"], "k*", ms=9, label="Theorem 1 at zero for 2-shortcut")
    depth = ", ".join(map(str, depths_in(rows)))
    axes.set(title=f"linear, depth {depth}, {drawing.runs_each(rows)}", xlabel=drawing.LOSSES[LINEAR][1])
    axes.set(ylabel=r"index, the share of $\lambda < 0$")
    drawing.loss_axis(axes)
    drawing.legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §5.2: the index of 2-shortcut networks is smaller, falls at the start, when the gradient is largest.

    One run decides the last, as in the paper, and all runs the others.
    """
    at_losses = select(rows, experiment="spectrum_at_losses", activations=LINEAR)
    statements = figure_6.smaller_findings(rows, "8", LINEAR, "index", log=False)
    statements.append(_drop(rows_of_architecture(at_losses, TWO)))
    return statements + [_steepest(done_rows(select(rows, experiment="single_run")))]


def _drop(rows: list[dict]) -> Finding:
    claim = "the index drops dramatically at the beginning"
    means = []
    for seed in sorted({row["seed"] for row in rows}):
        taken = [row for row in select(rows, seed=seed) if row["index"] != ""]
        index, loss = column(taken, "index"), column(taken, "excess_loss")
        if (loss[:-1] <= loss[0] / 2).any():  # at the last one the whole fall has happened, at the beginning or not
            half = int(np.argmax(loss <= loss[0] / 2))
            means.append((index[0], index[: half + 1].min(), index.min()))
    lost = diverged_runs(rows, TWO)
    if not means:
        return Finding("8", claim, None, f"no run has two Hessians at half its first loss or less{lost}", 0)
    start, by_half, least = np.mean(means, axis=0)
    numbers = f"means: {percent(start, 1)} at the start, {percent(by_half, 1)} by the first Hessian at half the excess "
    numbers += f"loss or less, {percent(least, 1)} at the least{lost}"
    holds = bool(start - least >= DRAMATIC and start - by_half > (start - least) / 2)
    return Finding("8", claim, holds, numbers, len(means))


def _steepest(run: list[dict]) -> Finding:
    claim = "the gradient is largest while the index drops"
    if len(run) < 2:
        return Finding("8", claim, None, "the run diverged", 1)
    epochs, index, gradient = (column(run, name) for name in ("epoch", "index", "gradient_norm"))
    largest = int(gradient.argmax())
    fall = index[0] - index.min()
    if fall < DRAMATIC:
        return Finding("8", claim, None, f"the index falls by {percent(fall)} of the eigenvalues in all", 1)
    first, last = (int(np.argmax(index <= index[0] - share * fall)) for share in (0.1, 0.9))
    numbers = f"largest gradient at epoch {epochs[largest]:.0f}; 10 % of the fall by epoch {epochs[first]:.0f}, "
    numbers += f"90 % by {epochs[last]:.0f}"
    return Finding("8", claim, first - 1 <= largest <= last, numbers, 1)  # from the last record before the drop on
