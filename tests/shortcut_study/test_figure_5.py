"""Figure 5 has one meaning of 0, whatever way a spectrum was computed, and claims no growth that is not seen."""

import dataclasses

import numpy as np
import pytest
from study_rows import change, of_figure, paper_rows

from shortcut_study.architectures import XAVIER
from shortcut_study.config import PRESETS
from shortcut_study.dataset import StudyData
from shortcut_study.figures import figure_5
from shortcut_study.figures.finding import grows

DEPTH, WIDTH = 18, 3
GROWS = "Xavier, no shortcuts: the condition number grows with depth"


def rows_of_xavier(num_seeds=6):
    """The rows of Xavier's networks of 162 weights."""
    rng = np.random.default_rng(0)
    data = StudyData(rng.standard_normal((50, WIDTH)), rng.standard_normal((50, WIDTH)))
    config = dataclasses.replace(PRESETS["smoke"], figure="5", depths=(DEPTH,), num_runs=num_seeds)
    jobs = [job for job in figure_5.jobs(config, data) if job.key["initialisation"] == XAVIER.initialisation]
    return [row for job in jobs for row in job.compute(lambda share: None)]


@pytest.mark.slow
def test_what_counting_does_not_resolve_is_what_all_eigenvalues_say(monkeypatch):
    exact = rows_of_xavier()
    numbers = [row["condition_number"] for row in exact]
    assert any(1e9 < number < np.inf for number in numbers) and any(number < 1e9 for number in numbers)
    monkeypatch.setattr(figure_5, "LARGEST_MATRIX", 100)
    counted = rows_of_xavier()
    np.testing.assert_allclose([row["condition_number"] for row in counted], numbers, rtol=1e-3)
    for row, whole in zip(counted, exact):
        assert row["index"] in ("", whole["index"])
    monkeypatch.setattr(figure_5, "LARGEST_RESOLVED", 100)
    for row, number in zip(rows_of_xavier(), numbers):
        is_resolved = number < 1e9
        assert (row["condition_number"] < np.inf) == is_resolved and (row["p10_abs"] > 0) == is_resolved


def unresolved(depths, number=np.inf):
    return change(
        of_figure(paper_rows(), "5"),
        "initial_spectrum",
        lambda r: {"condition_number": number, "p10_abs": 0.0} if r["depth"] in depths else {},
        kind=XAVIER,
    )


def judged(rows):
    return {finding.claim: finding for finding in figure_5.findings(rows)}[GROWS]


def test_an_unresolved_condition_number_is_called_so_in_words_and_picture():
    rows = unresolved((12,))
    assert judged(rows).numbers.endswith("(depth 6); above 1e+09 and not resolved in some or all runs at depth 12")
    (mark,) = [line for line in figure_5.draw(rows).axes[0].get_lines() if "not resolved" in line.get_label()]
    assert mark.get_xdata().tolist() == [12] and mark.get_markerfacecolor() == mark.get_color()


@pytest.mark.parametrize(
    "depths, holds", [((12,), True), ((6, 12), True), ((2, 6, 12), None), ((2,), False), ((6,), False)]
)
def test_growth_from_one_infinite_depth_to_the_next_cannot_be_told(depths, holds):
    assert judged(unresolved(depths)).holds is holds
    beyond = [row | {"p10_abs": 1e-18} if row["p10_abs"] == 0 else row for row in unresolved(depths)]
    assert judged(beyond).holds is holds


def test_what_is_above_a_bound_is_more_only_than_what_is_below_it():
    assert grows(np.array([3.0, np.inf]), np.array([3.0, 9.0])) is True
    assert grows(np.array([11.0, np.inf]), np.array([11.0, 9.0])) is None
    assert grows(np.array([3.0, 11.0, np.inf]), np.array([3.0, 11.0, 9.0])) is True
    assert grows(np.array([3.0, 2.0, np.inf]), np.array([3.0, 2.0, 9.0])) is False
    assert grows(np.array([3.0]), np.array([3.0])) is None
