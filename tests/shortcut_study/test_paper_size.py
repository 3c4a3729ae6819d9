"""docs/runs/study_mnist: the study at the paper's size, whose table gives docs/appendix/shortcut_study.md its numbers.

`python -m launch.shortcut_study --figure=all --dataset=mnist --data_dir=DIR --run_dir=runs/study_mnist` computes it
anew, one to three hours on two cores; its config.json and results.csv are kept.
"""

import pathlib

import numpy as np
import pytest

from identity_matters.runs.tables import read_rows
from shortcut_study.aggregation import best_rates, over_seeds, rows_of_architecture, select
from shortcut_study.architectures import LINEAR, ORTHOGONAL, RELU_MID, TWO
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.report import figures_with_data

RUN = pathlib.Path(__file__).parents[2] / "docs" / "runs" / "study_mnist"
# Of each figure, statements that hold, that the seeds leave open, and that do not hold.
VERDICTS = {
    "3": (4, 0, 0),
    "5": (4, 0, 0),
    "6": (1, 1, 2),
    "7": (2, 0, 0),
    "8": (3, 1, 0),
    "9": (8, 0, 0),
    "10": (5, 0, 0),
    "convolutional": (0, 0, 3),
}


@pytest.fixture(scope="module")
def rows():
    return read_rows(str(RUN / "results.csv"))


@pytest.fixture(params=VERDICTS)
def figure(request):
    return request.param


def test_the_run_has_every_figure(rows):
    assert set(figures_with_data(rows)) == set(VERDICTS) == set(FIGURES)


def at_end(rows, activations):
    norms = select(rows, experiment="norms", activations=activations)
    return over_seeds([row for row in norms if row["epoch"] == 3_000], "depth", "norm", log=False).mean


def condition_numbers(rows, arch):
    return 10 ** over_seeds(rows_of_architecture(select(rows, experiment="initial_spectrum"), arch), "depth",
                            "condition_number").mean  # fmt: skip


def convolutional(rows, initialisation, batch_norm):
    found = select(rows, experiment="convolutional", initialisation=initialisation, batch_norm=batch_norm)
    bands = [over_seeds(select(found, shortcut_depth=n), "depth", "condition_number") for n in (1, 2, 3)]
    return np.concatenate([10**band.mean for band in bands])


def final_losses(rows, activations, loss):
    found = rows_of_architecture(select(rows, experiment="learning_rates", activations=activations), TWO)
    return [best.mean for best in best_rates(found, loss).values()]


HEADLINES = {
    "3": lambda rows: (
        (at_end(rows, LINEAR), [3.10, 2.09, 1.65, 1.29, 0.975, 0.710]),
        (at_end(rows, RELU_MID), [3.70, 2.81, 2.16, 1.65, 1.24, 0.903]),
    ),
    "5": lambda rows: (
        (condition_numbers(rows, TWO)[[0, -1]], [1.467, 1.489]),
        (condition_numbers(rows, ORTHOGONAL)[[0, -1]], [3.73, 263]),
    ),
    "10": lambda rows: ((final_losses(rows, RELU_MID, "loss"), [1.20, 0.245, 0.144, 0.115, 0.071, 0.063]),),
    "convolutional": lambda rows: (
        (convolutional(rows, "small", False), [824, 1760, 3800, 417, 395, 483, 765, 847, 1080]),
        (convolutional(rows, "standard", False), [1050, 3160, 5910, 923, 1590, 2920, 747, 1020, 1690]),
        (convolutional(rows, "small", True), [580, 1440, 3900, 232, 336, 662, 176, 291, 531]),
    ),
}


def test_the_numbers_of_the_page_come_from_the_table(rows, figure):
    for measured, printed in HEADLINES.get(figure, lambda rows: ())(rows):
        for number, expected in zip(measured, printed, strict=True):
            assert number == pytest.approx(expected, rel=0.01)  # three digits are printed


def test_the_statements_of_the_paper_hold_as_the_page_says(rows, figure):
    found = [finding.holds for finding in FIGURES[figure].findings(rows)]
    assert tuple(found.count(holds) for holds in (True, None, False)) == VERDICTS[figure]


def test_2_shortcut_networks_end_near_the_optimum_at_every_depth(rows):
    assert max(final_losses(rows, LINEAR, "excess_loss")) < 1.45e-5  # 1.4·10⁻⁵ is printed
