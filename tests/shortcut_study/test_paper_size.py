"""docs/runs/study_mnist: the study at the paper's size, whose table gives docs/appendix/shortcut_study.md its numbers.

`python -m launch.shortcut_study --figure=all --dataset=mnist --data_dir=DIR --run_dir=runs/study_mnist` computes it
anew, one to three hours on two cores; its config.json and results.csv are kept.
"""

import pathlib

import pytest

from identity_matters.runs.tables import read_rows
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


@pytest.mark.slow  # tests/test_study_pages.py counts those of all figures
def test_the_statements_of_the_paper_hold_as_the_page_says(rows, figure):
    found = [finding.holds for finding in FIGURES[figure].findings(rows)]
    assert tuple(found.count(holds) for holds in (True, None, False)) == VERDICTS[figure]
