"""Figure 7 of Li et al.: Figure 6 with ReLUs at mid."""

import numpy as np
from matplotlib.figure import Figure

from identity_matters.runs.job_table import Job
from shortcut_study.aggregation import select
from shortcut_study.architectures import RELU_MID
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.figures import drawing, figure_6
from shortcut_study.figures.finding import Finding

EXPERIMENTS = (("spectrum_at_losses", RELU_MID),)
CAPTION = "Largest and 10th percentile of |eigenvalue| along the loss; networks with ReLUs"
READS = ("depth", "relu_runs", "relu_examples", "num_levels", "learning_rate", "descent_epochs", "hessian")
SIZE = ("depth", "relu_runs", "descent_epochs")
_LEVELS = 1.0, 0.18  # highest and lowest loss at which a Hessian is taken


def jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns a job for every descent of a network with ReLUs."""
    data = data.first(config.relu_examples)
    return figure_6.jobs_along_loss(config, data, RELU_MID, config.relu_runs, _LEVELS)


def draw(rows: list[dict]) -> Figure:
    """Returns the three quantities against the loss, up to the highest at which all networks have Hessians.

    The 2-shortcut networks start far above it; there the other curves would be a clump.
    """
    figure = figure_6.draw_spectra(rows, RELU_MID)
    figure.set_figheight(5)
    taken = select(rows, experiment="spectrum_at_losses", activations=RELU_MID, shortcut_depth=2)
    beyond = [row["loss"] for row in taken if row["loss"] != "" and row["loss"] > 1.1 * _LEVELS[0]]
    for axes in figure.axes:
        axes.set_xlim(right=1.1 * _LEVELS[0])
        # Once more, because the labels that draw_spectra chose are for the whole range.
        drawing.plain_labels(axes.xaxis, axes.get_xlim())
    if beyond:
        text = f"2-shortcut starts at loss {np.mean(beyond):.2f}, not shown"
        figure.axes[0].plot([], [], " ", label=text)
    drawing.shared_legend(figure, ncols=2)
    return figure


def findings(rows: list[dict]) -> list[Finding]:
    """Returns §5.2: the condition number of 2-shortcut networks is always smaller."""
    return figure_6.smaller_findings(rows, "7", RELU_MID)
