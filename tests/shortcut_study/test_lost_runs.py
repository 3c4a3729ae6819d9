"""Runs that diverged, and Hessians that are singular, are counted and named, and deny what they must."""

import numpy as np
import pytest
from study_rows import change, infinite, judged, of_figure, paper_rows, row

from shortcut_study.architectures import LABELS, ONE, ORTHOGONAL, TWO, XAVIER
from shortcut_study.figures import convolutional, figure_10
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.finding import NOTHING_SHARED
from shortcut_study.report import sessions

LOST = {"loss": np.nan, "excess_loss": np.nan, "norm": np.nan, "status": "diverged"}


def diverged(figure, kind, depth):
    rows = of_figure(paper_rows(), figure)
    return change(rows, "learning_rates", lambda r: LOST, kind=kind, depth=depth)


def test_norms_of_a_depth_at_which_all_runs_diverged_cannot_be_told():
    rows = change(of_figure(paper_rows(), "3"), "norms", lambda r: LOST if r["epoch"] else {}, depth=12)
    for finding in judged("3", rows).values():
        assert finding.holds is None and finding.numbers.endswith("; all runs diverged at depth 12")
    rising = change(rows, "norms", lambda r: {"norm": 9.0}, depth=6, epoch=40)
    assert judged("3", rising)["linear: the deeper, the smaller the norm when training ends"].holds is False
    final = FIGURES["3"].draw(rows).axes[2]
    (mark,) = [line for line in final.get_lines() if line.get_label() == "linear: diverged"]
    assert list(mark.get_xdata()) == [12]


def test_norms_are_of_the_runs_that_finished():
    rows = change(paper_rows(seeds=(0, 1, 2)), "norms", lambda r: LOST if r["epoch"] > 20 else {}, depth=12, seed=1)
    assert {finding.num_runs for finding in judged("3", of_figure(rows, "3")).values()} == {2}
    none = change(rows, "norms", lambda r: LOST if r["epoch"] else {})
    assert {finding.num_runs for finding in judged("3", of_figure(none, "3")).values()} == {0}


@pytest.mark.parametrize("depths", [(12,), (2, 6, 12)])
def test_an_infinite_condition_number_of_2_shortcut_networks_is_not_constant(depths):
    rows = infinite(TWO, depths)(of_figure(paper_rows(), "5"))
    finding = judged("5", rows)["2-shortcut networks have constant condition numbers"]
    assert finding.holds is False
    assert f"beyond float64 in some or all runs at depth {', '.join(map(str, depths))}" in finding.numbers


def test_an_infinite_condition_number_of_convolutional_networks_is_not_constant():
    def rows(deepest):
        return [
            row("convolutional", TWO, depth, batch_norm=0, condition_number=number)
            for depth, number in ((6, 5.0), (12, 5.0), (24, deepest))
        ]

    assert [convolutional.findings(rows(number))[0].holds for number in (5.0, np.inf)] == [True, False]
    assert "at depth 24" in convolutional.findings(rows(np.inf))[0].numbers


@pytest.mark.parametrize("figure", ["9", "10"])
def test_diverged_2_shortcut_networks_contradict_all_findings_about_them(figure):
    found = judged(figure, diverged(figure, TWO, 12))
    of_two = [finding for claim, finding in found.items() if "2-shortcut" in claim]
    assert len(of_two) == {"9": 7, "10": 3}[figure] and not any(finding.holds for finding in of_two)
    for finding in of_two:
        assert "2-shortcut diverged at every learning rate at depth 12" in finding.numbers
        assert "inf" not in finding.numbers and "nan" not in finding.numbers


@pytest.mark.parametrize("figure", ["9", "10"])
def test_plain_networks_that_diverge_at_every_rate_are_named_and_end_higher(figure):
    found = judged(figure, diverged(figure, XAVIER, 12))
    of_both = [finding for claim, finding in found.items() if LABELS[XAVIER] in claim]
    assert len(of_both) == 2 and all("diverged at every learning rate at depth 12" in f.numbers for f in of_both)
    assert found[f"deep 2-shortcut networks end lower than {LABELS[XAVIER]}"].holds


@pytest.mark.parametrize("kind", [ONE, ORTHOGONAL])
def test_a_network_that_diverges_at_every_rate_learns_like_none_that_does_not(kind):
    found = judged("9", diverged("9", kind, 6))["1-shortcut learns like orthogonal"]
    assert not found.holds and f"{LABELS[kind]} diverged at every learning rate at depth 6" in found.numbers


def test_networks_that_all_diverge_neither_end_low_nor_high():
    rows = change(of_figure(paper_rows(), "10"), "learning_rates", lambda r: LOST)
    found = judged("10", rows)
    assert {finding.holds for claim, finding in found.items() if "deepest" in claim} == {None}
    assert not any(finding.holds for finding in found.values())
    assert {finding.num_runs for finding in found.values()} == {0}


@pytest.mark.parametrize("figure", ["9", "10"])
def test_figures_9_and_10_mark_where_every_rate_diverged(figure):
    final = FIGURES[figure].draw(diverged(figure, TWO, 12)).axes[0]
    (mark,) = [line for line in final.get_lines() if line.get_label() == "2-shortcut: diverged at every rate"]
    assert list(mark.get_xdata()) == [12]


def test_a_mean_with_a_run_that_was_given_up_is_called_a_lower_bound():
    rows = of_figure(paper_rows(), "10")
    given_up = {"status": "bounded by 0.1", "loss": "", "excess_loss": "", "norm": ""}
    rows = change(rows, "learning_rates", lambda r: given_up, ORTHOGONAL, depth=6, seed=0, learning_rate=0.01)
    numbers = {f.claim: f.numbers for f in figure_10.findings(rows)}
    for kind, is_named in ((ORTHOGONAL, True), (TWO, False)):
        (found,) = [text for claim, text in numbers.items() if claim.startswith(f"{LABELS[kind]}: the deepest")]
        assert ("a lower bound, as a run was given up, at depth 6" in found) == is_named


def test_a_run_that_was_given_up_has_not_diverged():
    lost = {"loss": "", "excess_loss": "", "norm": "", "status": "bounded by 0.1"}
    rows = change(of_figure(paper_rows(), "10"), "learning_rates", lambda r: lost, TWO, depth=6, learning_rate=0.01)
    shares = {
        found.hparams["learning_rate"]: found.metrics["final/share_diverged"]
        for found in sessions(rows)
        if (found.hparams["shortcut_depth"], found.hparams["depth"], found.hparams["activations"]) == (2, 6, "relu_mid")
    }
    assert shares == {0.01: 0, 0.1: 0, 1.0: 0.5}


SEEDS = tuple(range(6))


def rows_without(figure, kind, seeds, kept_levels):
    """The rows of a figure in which runs of some seeds and networks diverge after so many Hessians."""
    rows = []
    for each in of_figure(paper_rows(seeds=SEEDS), figure):
        is_lost = (each["shortcut_depth"], each["initialisation"]) == kind and each["seed"] in seeds
        if is_lost and each["experiment"] == "spectrum_at_losses":
            if each["epoch"] != "" and each["epoch"] >= 7 * kept_levels:
                continue
            each = each | {"status": "diverged"}
        rows.append(each)
    return rows


def of_xavier(figure, rows):
    (found,) = [
        f for f in FIGURES[figure].findings(rows) if f.claim.endswith("smaller than that of Xavier, no shortcuts")
    ]
    return found


@pytest.mark.parametrize("figure", ["6", "7", "8"])
@pytest.mark.parametrize("kept_levels", [0, 1])
def test_n_is_the_number_of_compared_seeds_and_diverged_ones_are_named(figure, kept_levels):
    found = of_xavier(figure, rows_without(figure, XAVIER, (3, 4), kept_levels))
    assert (found.holds, found.num_runs) == (True, 4)
    assert found.numbers.endswith("; 2 of 6 runs of Xavier, no shortcuts diverged")


@pytest.mark.parametrize("figure", ["6", "7", "8"])
def test_a_loss_that_fewer_than_half_of_all_runs_pass_does_not_count(figure):
    found = of_xavier(figure, rows_without(figure, TWO, SEEDS[1:], 1))
    assert (found.holds, found.num_runs) == (None, 0)
    assert found.numbers == f"{NOTHING_SHARED}; 5 of 6 runs of 2-shortcut diverged"


def test_the_other_claims_of_figures_6_and_8_name_them_too():
    rows = {figure: rows_without(figure, TWO, (1,), 1) for figure in ("6", "8")}
    numbers = [found.numbers for figure in rows for found in FIGURES[figure].findings(rows[figure])]
    named = [text for text in numbers if text.endswith("; 1 of 6 runs of 2-shortcut diverged")]
    assert len(numbers) == 8 and len(named) == 7  # the eighth is of the single run
    assert not any("diverged" in f.numbers for f in FIGURES["8"].findings(of_figure(paper_rows(), "8")))
