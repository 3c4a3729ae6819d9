"""Figures 6 to 8 count the runs that are compared, and name those that diverged."""

import pytest
from study_rows import of_figure, paper_rows

from shortcut_study.aggregation import along_loss, rows_of_kind, select
from shortcut_study.architectures import TWO, XAVIER
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.finding import NOTHING_SHARED

SEEDS = tuple(range(6))


def rows_without(figure, kind, seeds, kept_levels):
    """The rows of a figure where runs of some seeds of a kind diverge after so many Hessians."""
    rows = []
    for row in of_figure(paper_rows(seeds=SEEDS), figure):
        is_lost = (row["shortcut_depth"], row["initialisation"]) == kind and row["seed"] in seeds
        if is_lost and row["experiment"] == "spectrum_at_losses":
            if row["epoch"] != "" and row["epoch"] >= 7 * kept_levels:
                continue
            row = row | {"status": "diverged"}
        rows.append(row)
    return rows


def of_xavier(figure, rows):
    (found,) = [f for f in FIGURES[figure].findings(rows) if f.claim.endswith("smaller than of Xavier, no shortcuts")]
    return found


@pytest.mark.parametrize("figure", ["6", "7", "8"])
@pytest.mark.parametrize("kept_levels", [0, 1])
def test_n_is_the_number_of_seeds_that_were_compared_and_those_that_diverged_are_named(figure, kept_levels):
    found = of_xavier(figure, rows_without(figure, XAVIER, (3, 4), kept_levels))
    assert (found.holds, found.num_runs) == (True, 4)
    assert found.numbers.endswith("; 2 of 6 runs of Xavier, no shortcuts diverged")


@pytest.mark.parametrize("figure", ["6", "7", "8"])
def test_a_loss_that_fewer_than_half_of_all_runs_pass_does_not_count(figure):
    found = of_xavier(figure, rows_without(figure, TWO, SEEDS[1:], 1))
    assert (found.holds, found.num_runs) == (None, 0)
    assert found.numbers == f"{NOTHING_SHARED}; 5 of 6 runs of 2-shortcut diverged"


def test_half_of_all_runs_is_enough():
    rows = select(rows_without("6", TWO, (3, 4, 5), 1), experiment="spectrum_at_losses")
    assert set(along_loss(rows_of_kind(rows, TWO), "excess_loss", "max_abs").count) == {3}
    rows = select(rows_without("6", TWO, (2, 3, 4, 5), 1), experiment="spectrum_at_losses")
    assert not len(along_loss(rows_of_kind(rows, TWO), "excess_loss", "max_abs").x)


def test_the_other_claims_of_figures_6_and_8_name_them_too():
    rows = {figure: rows_without(figure, TWO, (1,), 1) for figure in ("6", "8")}
    numbers = [found.numbers for figure in rows for found in FIGURES[figure].findings(rows[figure])]
    named = [text for text in numbers if text.endswith("; 1 of 6 runs of 2-shortcut diverged")]
    assert len(numbers) == 7 and len(named) == 6  # the seventh is of the single run
    assert not any("diverged" in f.numbers for f in FIGURES["8"].findings(of_figure(paper_rows(), "8")))
