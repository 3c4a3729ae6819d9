"""The figures' findings on rows made by hand: known answers, claims that hold and that do not."""

import functools

import numpy as np
import pytest
import scipy.stats
from study_rows import LAST, LEAST, PAPER, at, change, excess_scaled, judged, of_figure, paper_rows, scale

from shortcut_study.architectures import LABELS, ONE, ORTHOGONAL, THREE, TWO, XAVIER
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.finding import (
    CONSTANT,
    DRAMATIC,
    NEAR_OPTIMAL,
    SAME,
    Finding,
    findings_table,
    paired,
)  # fmt: skip


@functools.cache
def claims(figure):
    return judged(figure, of_figure(paper_rows(), figure))


@pytest.mark.parametrize("figure", PAPER)
def test_every_claim_holds_on_rows_of_which_it_is_true(figure):
    assert claims(figure) and all(finding.holds and finding.figure == figure for finding in claims(figure).values())
    assert all("nan" not in finding.numbers for finding in claims(figure).values())


def slow_fall(r):
    return {"index": r["index"] + 0.5} if r["epoch"] != "" and 0 < r["epoch"] < 50 else {}


def low_index(r):
    return scale("index", 0.01)(r) if r["epoch"] in (28, 35) else {}


def in_between(r):
    return {"norm": 10 * r["norm"]} if 10 <= r["epoch"] <= 30 else {}


def larger_ends(r):
    return at("epoch", LAST, lambda r: scale("norm", r["depth"])(r))(r)


def cubic(r):
    return scale("condition_number", float(r["depth"]) ** 3)(r)


def solved_at_1(r):
    """At the rate 1 no seed diverges and the loss is lower than at any other."""
    return {"status": "done", "excess_loss": 9e-5, "loss": LEAST + 9e-5, "norm": 0.5}


def as_low(r):
    return {"loss": 0.35} if r["status"] == "done" else {}


def other_block(r):
    return {"block": "other"}


def control(figure, name, experiment, change, **columns):
    return figure, name, experiment, columns | {"change": change}


LINEAR, RELU, RATES = {"activations": "linear"}, {"activations": "relu_mid"}, "learning_rates"
HIGHER = "… take higher learning rates than"
# Figure, how a claim begins (or ends, after …), and what to change so that it, and no other, is false.
CONTROLS = [
    control("3", "linear: the deeper", "norms", larger_ends, **LINEAR),
    control("3", "linear: the same at", "norms", in_between, depth=12, **LINEAR),
    control("3", "relu_mid: the deeper", "norms", larger_ends, **RELU),
    control("3", "relu_mid: the same at", "norms", in_between, depth=12, **RELU),
    control("4", "1-shortcut linear networks", "equivalent_start", scale("loss", 1 + 2e-6), shortcut_depth=0),
    control("4", "one shortcut over all", "equivalent_outputs", scale("loss", 1 - 2e-6), shortcut_depth=0, epoch=20),
    control("11", "only the off-diagonal", "blocks_at_zero", other_block, row_layer=1, column_layer=3),
    control("11", "the blocks of one colour", "blocks_at_zero", other_block, row_layer=4, column_layer=3),
    control("5", "2-shortcut networks have", "initial_spectrum", scale("condition_number", 1.2), kind=TWO, depth=12),
    control("5", "Xavier, no shortcuts", "initial_spectrum", scale("condition_number", 0.1), kind=XAVIER, depth=12),
    control("5", "orthogonal, no", "initial_spectrum", scale("condition_number", 0.4), kind=ORTHOGONAL, depth=12),
    control("5", "it grows more slowly", "initial_spectrum", cubic, kind=ORTHOGONAL),
    *(
        control(figure, f"… than that of {LABELS[kind]}", "spectrum_at_losses", scale("condition_number", factor),
                kind=kind, epoch=35, **activations)
        for figure, activations in (("6", LINEAR), ("7", RELU))
        for kind, factor in ((ORTHOGONAL, 0.1), (XAVIER, 0.001))
    ),
    control("6", "2-shortcut and orthogonal evolve", "spectrum_at_losses", scale("condition_number", 2),
            kind=ORTHOGONAL, epoch=77, **LINEAR),
    control("6", "2-shortcut condition numbers", "spectrum_at_losses", scale("condition_number", 1 / 4),
            kind=ORTHOGONAL, epoch=0, **LINEAR),
    *(control("8", f"… smaller than that of {LABELS[kind]}", "spectrum_at_losses", low_index, kind=kind)
      for kind in (ORTHOGONAL, XAVIER)),
    control("8", "the index drops dramatically", "spectrum_at_losses", slow_fall),
    control("8", "the gradient is largest", "single_run", scale("gradient_norm", 1e3), epoch=30),
    control("9", "the final losses", RATES, excess_scaled(1e4), **LINEAR),
    control("9", "… end lower than Xavier, no shortcuts", RATES, excess_scaled(1e-5), kind=XAVIER, **LINEAR),
    control("9", "… end lower than 3-shortcut", RATES, excess_scaled(0.01), kind=THREE, depth=12, **LINEAR),
    *(control("9", f"{HIGHER} {LABELS[kind]}", RATES, solved_at_1, kind=kind, depth=12, learning_rate=1.0, **LINEAR)
      for kind in (XAVIER, ORTHOGONAL)),
    control("9", "1-shortcut learns like orthogonal", RATES, excess_scaled(10), kind=ONE, depth=2, **LINEAR),
    control("10", "2-shortcut: the deepest", RATES, scale("loss", 1.2), kind=TWO, depth=12, **RELU),
    *(control("10", f"… end lower than {LABELS[kind]}", RATES, scale("loss", factor), kind=kind, **RELU)
      for kind, factor in ((ORTHOGONAL, 0.5), (XAVIER, 0.3))),
    *(control("10", f"{LABELS[kind]}: the deepest", RATES, as_low, kind=kind, **RELU) for kind in (ORTHOGONAL, XAVIER)),
]  # fmt: skip


def is_named(claim, name):
    return claim.endswith(name[2:]) if name.startswith("… ") else claim.startswith(name)


@pytest.mark.parametrize("figure, name, experiment, changes", CONTROLS, ids=[f"{c[0]}: {c[1]}" for c in CONTROLS])
def test_a_claim_is_denied_on_rows_of_which_it_is_false_and_no_other_is(figure, name, experiment, changes):
    rows = change(of_figure(paper_rows(), figure), experiment, **changes)
    found = FIGURES[figure].findings(rows)
    assert [finding.claim for finding in found if not finding.holds] == [c for c in claims(figure) if is_named(c, name)]
    assert sum(not finding.holds for finding in found) == 1


def test_plain_and_1_shortcut_networks_that_end_lower_deny_what_is_said_of_both():
    """Only these two are bound together by a third claim."""
    for kind in (ORTHOGONAL, ONE):
        rows = change(
            of_figure(paper_rows(), "9"), "learning_rates", excess_scaled(1e-3), kind=kind, activations="linear"
        )
        denied = [finding.claim for finding in FIGURES["9"].findings(rows) if not finding.holds]
        assert denied == [
            f"deep 2-shortcut networks end lower than {LABELS[kind]}",
            "1-shortcut learns like orthogonal",
        ]


def test_every_claim_has_its_control():
    of_both = [("9", f"… end lower than {LABELS[kind]}") for kind in (ORTHOGONAL, ONE)]
    for figure in PAPER:
        for claim in claims(figure):
            named = [*((where, name) for where, name, *_ in CONTROLS), *of_both]
            assert any(where == figure and is_named(claim, name) for where, name in named), claim


def test_shallow_networks_and_what_learned_nothing_are_not_what_the_paper_speaks_of():
    rows = of_figure(paper_rows(), "9")
    shallow = change(rows, "learning_rates", excess_scaled(1e-5), kind=XAVIER, depth=6, activations="linear")
    assert all(finding.holds for finding in FIGURES["9"].findings(shallow))
    nothing = {"status": "done", "loss": 0.5, "excess_loss": 0.2}
    lost = change(rows, "learning_rates", lambda r: nothing, kind=XAVIER, depth=12, activations="linear")
    found = judged("9", lost)
    assert found["deep 2-shortcut networks take higher learning rates than Xavier, no shortcuts"].holds is None
    assert found["deep 2-shortcut networks end lower than Xavier, no shortcuts"].holds


def test_losses_close_to_optimal_are_alike_however_far_apart_their_logarithms():
    solved = excess_scaled(1e-9)
    for both in ((ONE, ORTHOGONAL), (ORTHOGONAL,)):
        rows = of_figure(paper_rows(), "9")
        for kind in both:
            factor = solved if kind == ONE else excess_scaled(1e-14)
            rows = change(rows, "learning_rates", factor, kind=kind, depth=2, activations="linear")
        assert judged("9", rows)["1-shortcut learns like orthogonal"].holds == (ONE in both)


def test_an_infinite_condition_number_counts_as_larger_than_any():
    rows, beyond = of_figure(paper_rows(), "6"), {"condition_number": np.inf, "p10_abs": 0.0}
    for kind, holds in ((XAVIER, True), (TWO, False)):
        late = change(rows, "spectrum_at_losses", lambda r: beyond if r["epoch"] == 77 else {}, kind=kind)
        claim = "the condition number of 2-shortcut is always smaller than that of Xavier, no shortcuts"
        assert judged("6", late)[claim].holds == holds


@pytest.mark.parametrize("share, holds", [(0.9 * DRAMATIC, False), (1.1 * DRAMATIC, True)])
def test_a_dramatic_drop_is_more_than_an_eigenvalue(share, holds):
    assert drop_of_index(lambda i, index: 0.5 - 2 * share * (0.5 - index)).holds == holds  # it falls from 0.5 to 0


@pytest.mark.parametrize("share, holds", [(0.49, False), (0.51, True)])
def test_a_drop_at_the_beginning_is_more_than_half_of_it_by_half_of_the_loss(share, holds):
    assert drop_of_index(lambda i, index: 0.5 - 0.2 * (share if i < 3 else 1) if i else 0.5).holds == holds


def test_the_drop_is_judged_by_all_runs_and_not_by_the_single_one():
    found = drop_of_index(lambda i, index: index, seeds=(0, 1, 2))
    assert (found.holds, found.num_runs) == (True, 3) and "50.0 % at the start, 23.3 %" in found.numbers
    rows = change(of_figure(paper_rows(), "8"), "single_run", lambda r: {"index": 0.5})
    assert judged("8", rows)["the index drops dramatically at the beginning"].holds


def drop_of_index(change_index, seeds=(0, 1)):
    """The finding about the drop if the i-th Hessian of a 2-shortcut network has index change_index(i, index)."""
    rows = change(
        of_figure(paper_rows(seeds=seeds), "8"),
        "spectrum_at_losses",
        lambda r: {} if r["index"] == "" else {"index": change_index(r["epoch"] // 7, r["index"])},
        kind=TWO,
    )
    return judged("8", rows)["the index drops dramatically at the beginning"]


def test_runs_of_the_same_seeds_are_compared_in_pairs():
    rows = change(
        of_figure(paper_rows(seeds=(0, 1, 2)), "6"),
        "spectrum_at_losses",
        lambda r: {"condition_number": r["condition_number"] * (1 + r["seed"])} if r["condition_number"] != "" else {},
        kind=TWO,
    )
    told = judged("6", rows)
    claim = "the condition number of 2-shortcut is always smaller than that of orthogonal, no shortcuts"
    assert "; paired over 3 seeds p = 0." in told[claim].numbers
    assert told[claim].num_runs == 3
    differences = np.array([0.1, 0.2, 0.4, 0.3])
    expected = scipy.stats.ttest_1samp(differences, 0).pvalue
    assert paired(differences) == f"; paired over 4 seeds p = {expected:.2g}" and paired(differences[:1]) == ""


# Figure, claim, experiment, column that changes, the factor of its threshold, which rows.
THRESHOLDS = [
    ("5", "2-shortcut networks have", "initial_spectrum", "condition_number", CONSTANT, {"kind": TWO, "depth": 12}),
    ("6", "2-shortcut and orthogonal evolve", "spectrum_at_losses", "condition_number", SAME / 2,
     {"kind": ORTHOGONAL, "epoch": 77}),
    ("9", "the final losses", RATES, "excess_loss", NEAR_OPTIMAL * LEAST / 1e-6, LINEAR),
    ("9", "1-shortcut learns like", RATES, "excess_loss", SAME / 1.2, {"kind": ONE} | LINEAR),
    ("10", "2-shortcut: the deepest", RATES, "loss", CONSTANT, {"kind": TWO, "depth": 12} | RELU),
]  # fmt: skip


@pytest.mark.parametrize("figure, claim, experiment, value, factor, columns", THRESHOLDS)
def test_the_words_of_the_paper_end_where_their_constants_say(figure, claim, experiment, value, factor, columns):
    for margin, holds in ((0.98, True), (1.02, False)):
        changed = excess_scaled(margin * factor) if value == "excess_loss" else scale(value, margin * factor)
        found = FIGURES[figure].findings(change(of_figure(paper_rows(), figure), experiment, changed, **columns))
        assert [bool(finding.holds) for finding in found if is_named(finding.claim, claim)] == [holds]


def test_one_depth_shows_no_growth():
    one_depth = paper_rows(depths=(6,))
    for figure, word in (("3", "the deeper"), ("5", "grows"), ("10", "ends higher")):
        found = [finding for finding in FIGURES[figure].findings(of_figure(one_depth, figure)) if word in finding.claim]
        assert found and not any(finding.holds for finding in found), figure


def test_the_table_has_a_line_a_claim_and_judges_nothing_at_toy_size():
    told = [Finding("5", "of |λ|", holds, "1, 2", 10) for holds in (True, False, None)]
    lines = findings_table(told).splitlines()
    assert len(lines) == 5 and lines[1] == "|---|---|---|---|--:|"
    assert lines[2] == "| 5 | of \\|λ\\| | holds | 1, 2 | 10 |"
    assert "does not hold" in lines[3] and "open" in lines[4]
    assert all("| not evaluated |" in line for line in findings_table(told, smoke_size=["5"]).splitlines()[2:])


def test_the_lowest_loss_is_that_of_the_best_linear_map_though_no_run_comes_near():
    rows = change(of_figure(paper_rows(), "9"), "learning_rates", excess_scaled(1e6), activations="linear")
    finding = next(iter(judged("9", rows).values()))
    assert min(row["loss"] for row in rows if row["experiment"] == "learning_rates") > 1.1 * LEAST
    assert f"the lowest loss is {LEAST:.4g}" in finding.numbers
