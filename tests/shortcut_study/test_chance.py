"""Findings of the figures if a difference between two types of networks may be chance."""

import numpy as np
import pytest
from study_rows import change, excess_scaled, of_figure, paper_rows, scale

from shortcut_study.architectures import ORTHOGONAL, TWO
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.finding import p_value

SEEDS = (0, 1, 2)


def verdict(figure, rows, claim):
    (found,) = [finding for finding in FIGURES[figure].findings(rows) if claim in finding.claim]
    return found


@pytest.mark.parametrize("factors, holds", [((0.1, 0.1, 0.11), False), ((0.01, 1.0, 1.0), None), ((1, 1, 1), True)])
@pytest.mark.parametrize("figure, activations", [("6", "linear"), ("7", "relu_mid")])
def test_a_condition_number_that_is_larger_at_some_losses_by_chance_is_not_told(figure, activations, factors, holds):
    rows, by_seed = (
        of_figure(paper_rows(seeds=SEEDS), figure),
        lambda r: scale("condition_number", factors[r["seed"]])(r),
    )
    rows = change(rows, "spectrum_at_losses", by_seed, kind=ORTHOGONAL, epoch=35)
    found = verdict(figure, rows, "smaller than that of orthogonal")
    assert found.holds is holds and ("where it is not, p = " in found.numbers) == (holds is not True)


@pytest.mark.parametrize("indices, holds", [((-0.1, -0.1, -0.11), False), ((-0.3, 0.05, 0.05), None)])
def test_an_index_that_is_larger_at_some_losses_by_chance_is_not_told(indices, holds):
    rows, by_seed = of_figure(paper_rows(seeds=SEEDS), "8"), lambda r: {"index": r["index"] + indices[r["seed"]]}
    rows = change(rows, "spectrum_at_losses", by_seed, kind=ORTHOGONAL, epoch=35)
    assert verdict("8", rows, "smaller than that of orthogonal").holds is holds


@pytest.mark.parametrize("depth", [6, 12])
@pytest.mark.parametrize(
    "factors, holds",
    [
        ((1, 1.1, 1.2), True),
        ((1e-3, 1.1, 1.2), None),  # a mean that is higher, of logarithms that differ by chance
        ((1e-4, 1e-4, 1.1e-4), False),
        ((0.1, 1e-3, 1e-3), None),  # a mean that is lower, by chance
    ],
)
def test_a_final_loss_that_is_lower_by_chance_is_not_told(depth, factors, holds):
    by_seed = lambda r: excess_scaled(factors[r["seed"]])(r) if r["status"] == "done" else {}
    rows = change(of_figure(paper_rows(seeds=SEEDS), "9"), "learning_rates", by_seed, kind=ORTHOGONAL, depth=depth)
    found = verdict("9", rows, "end lower than orthogonal")
    assert found.holds is (holds if depth == 12 else True)  # 6 matrices are not deep


def test_one_seed_tells_no_lower_loss():
    rows = of_figure(paper_rows(seeds=(0,)), "9")
    assert verdict("9", rows, "end lower than orthogonal").holds is None


def test_differences_that_are_all_alike_are_no_chance():
    assert p_value(np.array([0.3])) == p_value(np.zeros(4)) == p_value(np.empty(0)) == 1
    assert p_value(np.full(4, 0.5)) == 0


@pytest.mark.parametrize(
    "index_at, holds",
    [
        (lambda epoch: 0.5 - 5e-4 * epoch / 40, None),  # one eigenvalue of 1,600, evenly
        (lambda epoch: 0.5 if epoch <= 3 else 0.46, True),  # the gradient is largest at epoch 3
        (lambda epoch: 0.5 if epoch <= 4 else 0.46, False),
        (lambda epoch: 0.5 if epoch < 2 else 0.46, False),
    ],
)
def test_the_gradient_is_largest_where_a_dramatic_drop_begins_or_continues(index_at, holds):
    rows = change(of_figure(paper_rows(), "8"), "single_run", lambda r: {"index": index_at(r["epoch"])})
    assert verdict("8", rows, "the gradient is largest").holds is holds


def test_run_whose_only_hessian_at_half_the_loss_is_its_last_has_no_early_drop():
    rows = [
        r
        for r in of_figure(paper_rows(), "8")
        if r["experiment"] != "spectrum_at_losses" or r["shortcut_depth"] != TWO.shortcut_depth or r["epoch"] in (0, 77)
    ]
    assert verdict("8", rows, "drops dramatically").holds is None
