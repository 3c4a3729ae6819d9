"""Figure 3 of Li et al.: average Frobenius norm of the weights of 2-shortcut networks as the loss falls, by depth."""

import functools

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from identity_matters.runs.figure_style import PAGE
from identity_matters.runs.job_table import Job, Progress
from identity_matters.runs.tables import percent
from shortcut_study.aggregation import along_loss, depths_in, done_rows, over_seeds, select
from shortcut_study.architectures import LINEAR, RELU_MID, TWO
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import descend
from shortcut_study.figures import drawing
from shortcut_study.figures.finding import NOTHING_SHARED, Finding, depth_note, falls, power, series
from shortcut_study.jobs import job_key, study_job

EXPERIMENTS = (("norms", LINEAR), ("norms", RELU_MID))
CAPTION = "Average Frobenius norm of the weights, during training and at its end, by depth"
READS = ("depths", "sweep_runs", "relu_runs", "relu_examples", "learning_rate", "descent_epochs")
SIZE = ("depths", "sweep_runs", "relu_runs", "descent_epochs")
SHORTCUT_DEPTHS = (2,)
_NUM_EPOCHS_IN_TABLE = 120


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every descent: norm and loss at some of its epochs."""
    return [
        _descent(config, taken, activations, depth, seed)
        for activations, num_runs, taken in (
            (LINEAR, config.sweep_runs, data),
            (RELU_MID, config.relu_runs, data.first(config.relu_examples)),
        )
        for depth in config.depths
        if TWO.has_depth(depth, activations)
        for seed in config.seeds(num_runs)
    ]


def _descent(config: StudyConfig, data: StudyData, activations: str, depth: int, seed: int) -> Job:
    rate, num_epochs = config.learning_rate, config.descent_epochs

    def compute(progress: Progress) -> list[dict]:
        network = TWO.network(data.x.shape[1], depth, activations)
        start = network.initialize(TWO.initialisation, seed)[None]
        # + 1, because descend also evaluates the weights after the last epoch.
        on_epoch = functools.partial(progress, 1 / (num_epochs + 1))
        descent = descend(network, start, data.x, data.y, [rate], num_epochs, on_epoch=on_epoch)
        return [
            {"learning_rate": rate, "epoch": epoch, "loss": descent.losses[epoch, 0],
             "excess_loss": descent.excess_losses[epoch, 0], "norm": descent.norms[epoch, 0],
             "status": "diverged" if 0 <= descent.diverged_at[0] <= epoch else "done"}
            for epoch in spaced_epochs(num_epochs)
        ]  # fmt: skip

    return study_job(job_key("norms", TWO, activations, depth, seed), compute)


def spaced_epochs(num_epochs: int) -> list[int]:
    """Returns epochs in 0 … num_epochs: all of the first ones, then ever sparser ones, and the last."""
    # Shifted by 1, because a geometric series cannot start at epoch 0.
    spaced = np.geomspace(1, num_epochs + 1, _NUM_EPOCHS_IN_TABLE).astype(int) - 1
    return [int(epoch) for epoch in np.unique(spaced)]


def draw(rows: list[dict]) -> Figure:
    """Returns the norms against the loss, linear and with ReLUs, and at the end of the descent against the depth."""
    figure = Figure(figsize=(PAGE, 3.4), layout="constrained")
    every_depth = depths_in(select(rows, experiment="norms"))
    *panels, final = figure.subplots(1, 3)
    ends = []
    for axes, activations, colour in zip(panels, (LINEAR, RELU_MID), ("C0", "C3")):
        norms = select(rows, experiment="norms", activations=activations)
        _draw_descents(axes, norms, activations, every_depth)
        band = over_seeds(_last(norms), "depth", "norm")
        ends += [band] if len(band.x) else []
        drawing.draw_log_band(final, band, colour, drawing.TITLES[activations], "o-")
        drawing.mark_infinite(final, _lost(norms), colour, f"{drawing.TITLES[activations]}: diverged")
    if ends:
        x, mean = ends[0].x, ends[0].mean
        final.plot(x, 10 ** mean[0] * (x[0] / x) ** 0.5, "k:", lw=1, label=r"$\propto 1/\sqrt{\mathrm{depth}}$")
    final.set(title="at the end of the descent", ylabel=drawing.NORM, yscale="log")
    drawing.depth_axis(final, select(rows, experiment="norms"))
    drawing.plain_labels(final.yaxis, final.get_ylim())
    drawing.legend(final)
    drawing.shared_legend(figure, panels, "outside lower left", title="depth", ncols=6)
    return figure


def _draw_descents(axes: Axes, rows: list[dict], activations: str, every_depth: list[int]) -> None:
    loss, label = drawing.LOSSES[activations]
    for depth in depths_in(rows):
        # By the index among all depths, so that a depth has one colour in both panels.
        colour = colormaps["viridis"](every_depth.index(depth) / len(every_depth))
        drawing.draw_band(axes, along_loss(select(rows, depth=depth), loss, "norm", log=False), colour, f"{depth}")
    axes.set(title=drawing.TITLES[activations], xlabel=label, ylabel=drawing.NORM, ylim=(0, None))
    drawing.loss_axis(axes, lowest=1e-4)


def _last(rows: list[dict]) -> list[dict]:
    end = max((row["epoch"] for row in rows), default=None)
    return done_rows([row for row in rows if row["epoch"] == end])


def _lost(rows: list[dict]) -> list[int]:
    """The depths at which every run diverged."""
    finished = depths_in(_last(rows))
    return [depth for depth in depths_in(rows) if depth not in finished]


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §4.1: the deeper a residual network, the smaller its average Frobenius norm, in training and after.

    If every run of a depth diverged, the others can refute the claim but not confirm it. n is the least of any depth.
    """
    statements = []
    for activations in (LINEAR, RELU_MID):
        norms = select(rows, experiment="norms", activations=activations)
        end = over_seeds(_last(norms), "depth", "norm", log=False)
        numbers = f"{series(end.x, end.mean)}{power(end.x, np.log10(end.mean))}"
        claims = {
            "the deeper, the smaller the norm when training ends": (falls(end.mean), numbers),
            "the same at equal losses during training": _during_training(norms, activations),
        }
        lost = _lost(norms)
        count = int(end.count.min()) if len(end.count) else 0
        for claim, (holds, numbers) in claims.items():
            holds = None if holds and lost else holds
            numbers += depth_note("all runs diverged", lost)
            statements.append(Finding("3", f"{activations}: {claim}", holds, numbers, count))
    return statements


def _during_training(rows: list[dict], activations: str) -> tuple[bool | None, str]:
    loss, _ = drawing.LOSSES[activations]
    bands = [along_loss(select(rows, depth=depth), loss, "norm", log=False) for depth in depths_in(rows)]
    low = max((band.x[0] for band in bands if len(band.x)), default=0.0)
    high = min((band.x[-1] for band in bands if len(band.x)), default=0.0)
    if len(bands) < 2 or low >= high:
        return None, NOTHING_SHARED
    grid = np.linspace(low, high, 20)[1:-1]  # at the first loss all networks are at their small random start
    values = np.array([np.interp(grid, band.x, band.mean) for band in bands if len(band.x)])
    share = float((np.diff(values, axis=0) < 0).all(0).mean())
    return share == 1, f"at {percent(share, 0)} of the losses from {10**high:.2g} to {10**low:.2g}"
