"""Figure 4 of Li et al.: the two extremes of n-shortcut linear networks and the plain networks they are equivalent to.

    a shortcut over each matrix, W          no shortcuts, I + W (14)
    one shortcut over all matrices          no shortcuts, outputs Y − X

The paper draws both as diagrams. Here each network and its equivalent descend from the same start, by their own
gradients, and their losses are compared.
"""

import functools
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from identity_matters.runs.figure_style import PAGE
from identity_matters.runs.job_table import Job, Progress
from shortcut_study.aggregation import column, depths_in, done_rows, select
from shortcut_study.architectures import LINEAR, ONE, ORTHOGONAL, Architecture
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import descend
from shortcut_study.figures import drawing
from shortcut_study.figures.figure_3 import spaced_epochs
from shortcut_study.figures.finding import Finding
from shortcut_study.jobs import job_key, study_job
from shortcut_study.network import ShortcutNetwork

EXPERIMENTS = (("equivalent_start", LINEAR), ("equivalent_outputs", LINEAR))
CAPTION = "Losses of two extremes of n-shortcut linear networks and of the plain networks they are equivalent to"
READS = ("depth", "learning_rate", "descent_epochs")
SIZE = ("depth", "descent_epochs")
IDENTITY = Architecture(0, "identity")  # the plain network that starts at I + W
EQUAL = 1e-6  # "equivalent": relative difference of losses below this, the last digit of results.csv
_CLAIMS = {
    "equivalent_start": "1-shortcut linear networks are equivalent to linear networks with identity initialisation",
    "equivalent_outputs": "one shortcut over all layers only changes the outputs to Y − X",
}
_TITLES = {"equivalent_start": "a shortcut over each matrix", "equivalent_outputs": "one shortcut over all matrices"}
_LABELS = {
    "equivalent_start": ("1-shortcut, from $W$", "no shortcuts, from $I + W$"),
    "equivalent_outputs": ("one shortcut, outputs $Y$", "no shortcuts, outputs $Y - X$"),
}
_NUM_MARKERS = 16


class Descending(NamedTuple):
    """A network with its start [num_units, shortcut_depth, d, d] and its targets [m, d]."""

    network: ShortcutNetwork
    start: np.ndarray
    y: np.ndarray


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for the descent of each of the four networks."""
    width = data.x.shape[1]
    depth = config.depth
    each = ONE.network(width, depth, LINEAR)
    small = each.initialize(ONE.initialisation, config.seed)
    over_all = ShortcutNetwork.with_depth(width, depth, depth)
    orthogonal = over_all.initialize(ORTHOGONAL.initialisation, config.seed)
    without = ShortcutNetwork.with_depth(width, depth, 1, shortcut=False)
    plain_unit = ShortcutNetwork.with_depth(width, depth, depth, shortcut=False)
    pairs = {
        ("equivalent_start", ONE): Descending(each, small, data.y),
        ("equivalent_start", IDENTITY): Descending(without, np.eye(width) + small, data.y),
        ("equivalent_outputs", Architecture(depth, ORTHOGONAL.initialisation)): Descending(
            over_all, orthogonal, data.y
        ),
        ("equivalent_outputs", ORTHOGONAL): Descending(plain_unit, orthogonal, data.y - data.x),
    }
    return [_descent(config, data, experiment, arch, run) for (experiment, arch), run in pairs.items()]


def _descent(config: StudyConfig, data: StudyData, experiment: str, arch: Architecture, run: Descending) -> Job:
    rate, num_epochs = config.learning_rate, config.descent_epochs

    def compute(progress: Progress) -> list[dict]:
        on_epoch = functools.partial(progress, 1 / (num_epochs + 1))
        descent = descend(run.network, run.start[None], data.x, run.y, [rate], num_epochs, on_epoch=on_epoch)
        return [
            {"learning_rate": rate, "epoch": epoch, "loss": descent.losses[epoch, 0],
             "excess_loss": descent.excess_losses[epoch, 0],
             "status": "diverged" if 0 <= descent.diverged_at[0] <= epoch else "done"}
            for epoch in spaced_epochs(num_epochs)
        ]  # fmt: skip

    return study_job(job_key(experiment, arch, LINEAR, config.depth, config.seed), compute)


def draw(rows: list[dict]) -> Figure:
    """Returns the loss by epoch of each extreme, as a curve, and of its equivalent, as circles on it."""
    figure = Figure(figsize=(PAGE, 3.8), layout="constrained")
    for axes, (experiment, colour) in zip(
        figure.subplots(1, 2), (("equivalent_start", "C2"), ("equivalent_outputs", "C0"))
    ):
        _draw_pair(axes, rows, experiment, colour)
    depth = ", ".join(map(str, depths_in(select(rows, experiment="equivalent_start"))))
    figure.suptitle(f"Two extremes of linear networks of depth {depth} and their equivalents, one run each")
    return figure


def _draw_pair(axes: Axes, rows: list[dict], experiment: str, colour: str) -> None:
    shortcut, plain = (done_rows(run) for run in _runs(rows, experiment))
    line, circles = _LABELS[experiment]
    axes.plot(column(shortcut, "epoch") + 1, column(shortcut, "loss"), color=colour, label=line)
    axes.plot(column(plain, "epoch") + 1, column(plain, "loss"), "o", ms=6, mfc="none", color="k", label=circles,
              markevery=max(1, len(plain) // _NUM_MARKERS))  # fmt: skip
    # The label of networks with ReLUs, because the loss itself is drawn here, not the excess loss.
    # + 1, because a logarithmic axis has no place for epoch 0.
    axes.set(title=_TITLES[experiment], xlabel="epoch + 1", ylabel=drawing.LOSSES["relu_mid"][1])
    axes.set(xscale="log", yscale="log")
    drawing.plain_labels(axes.yaxis, axes.get_ylim())
    drawing.legend(axes)


def _runs(rows: list[dict], experiment: str) -> tuple[list[dict], list[dict]]:
    """The rows of the network with shortcuts, and of its equivalent without, by epoch."""
    of_pair = sorted(select(rows, experiment=experiment), key=lambda row: row["epoch"])
    with_shortcuts = [row for row in of_pair if row["shortcut_depth"]]
    return with_shortcuts, select(of_pair, shortcut_depth=0)


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §4.2: the losses of each extreme are those of its equivalent, at every epoch of the table."""
    statements = []
    for experiment, claim in _CLAIMS.items():
        shortcut, plain = ({row["epoch"]: row["loss"] for row in done_rows(run)} for run in _runs(rows, experiment))
        shared = sorted(shortcut.keys() & plain.keys())
        if not shared:
            statements.append(Finding("4", claim, None, "the runs diverged", 0))
            continue
        largest = max(abs(plain[epoch] / shortcut[epoch] - 1) for epoch in shared)
        words = (
            f"differ by {largest:.2g} of themselves at most" if largest else "are equal in all 7 digits of the table"
        )
        numbers = f"the losses {words}, over {shared[-1]} epochs"
        # If only one of the two diverged, their rows differ in number, and they are not equivalent.
        statements.append(Finding("4", claim, bool(largest < EQUAL) and len(shortcut) == len(plain), numbers, 1))
    return statements
