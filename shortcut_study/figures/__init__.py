"""The figures of Li et al., *Demystifying ResNet*, one a module: its jobs, its drawing, its findings.

Each module has EXPERIMENTS, what results.csv must hold for it: (experiment, activations), and

    jobs(config, data) -> the jobs that compute its rows
    draw(rows) -> Matplotlib figure, a pure function of the rows of results.csv
    findings(rows) -> what the paper says of it, judged on the rows
"""

from shortcut_study.figures import (
    convolutional,
    figure_3,
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    figure_9,
    figure_10,
)

FIGURES = {
    "3": figure_3,
    "5": figure_5,
    "6": figure_6,
    "7": figure_7,
    "8": figure_8,
    "9": figure_9,
    "10": figure_10,
    "convolutional": convolutional,
}
