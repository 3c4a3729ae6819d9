"""launch.report concludes from what is done and of the paper's size; no order of the runs hides a failed check."""

import dataclasses

import pytest
from begun import begin, edit
from study_rows import of_figure, paper_rows

from identity_matters.experiments.ablations import AblationConfig
from identity_matters.runs.tables import write_metrics
from launch import check_theory
from launch.reporting import figures, page, runs
from launch.reporting.runs import read_run
from shortcut_study.config import PRESETS

FIGURE_2 = "Li et al., Figure 2"


@pytest.fixture(autouse=True)
def pictures_without_content(monkeypatch):
    """No figure is rendered, which takes most of the time; test_report.py has pages with pictures."""
    monkeypatch.setattr(runs, "picture", lambda figure: runs.Picture("data:", False))


def norms_run(path, norms, status="done"):
    """A run of --experiment=norms whose networks end with these norms, as a report reads it."""
    row = {"phase": "test", "chosen_rate": 0.1, "seed": 0, "status": "done", "epoch": 1.0, "loss": 1.0}
    row |= {"train_cross_entropy": 1.0, "test_top1_error": 0.25, "learning_rate": 0.1, "train_top1_error": 0.5}
    rows = [
        row | {"variant": name, "step": step, "kernel_norm": norm and norm * step / 2}
        for name, norm in norms.items()
        for step in (1, 2)
    ]
    begin(path, AblationConfig(experiment="norms"), "ablations", status, rows)
    return read_run(str(path), str(path))


NORMS = {"pre-activation ResNet-8": 6.0, "pre-activation ResNet-32": 4.0, "BN-free of 8 layers": 1.0}


@pytest.mark.parametrize("deepest, answer", [(4.0, "holds"), (8.0, "does not hold"), ("", "open")])
def test_the_norms_of_resnets_are_figure_2(tmp_path, deepest, answer):
    run = norms_run(tmp_path, NORMS | {"pre-activation ResNet-32": deepest})
    (figure,) = figures.paper_figures([run])
    (statement,) = figure.statements
    assert (figure.title, statement.result, statement.num_runs) == (FIGURE_2, answer, "1")
    last, diverged = (f"{deepest:.3g}", "") if deepest else ("–", "; 1 of 3 runs diverged")
    assert statement.numbers == f"pre-activation ResNet-N: 6, {last}; BN-free of N layers: 1{diverged}"
    assert figure.shown.endswith("training on cifar10, by depth, in 1 epochs instead of the paper's 200")
    assert FIGURE_2 not in [line.what for line in figures.missing([run], [figure])]
    assert FIGURE_2 in [line.what for line in figures.missing([], [])]


def test_norms_of_a_run_that_is_not_done_are_drawn_and_say_nothing(tmp_path):
    run = norms_run(tmp_path, NORMS, "failed")
    drawn = figures.paper_figures([run])
    assert "kernel_norms" in run.pictures and not drawn
    missing = [(line.what, line.why) for line in figures.missing([run], drawn) if line.what == FIGURE_2]
    assert missing == [(FIGURE_2, "its run is failed, not done")]
    assert not [line for line in page._summary([run], drawn) if "statements hold" in line[1]]


def study(path, config, **details):
    """A finished study of one figure of rows made by hand, as a report reads it."""
    begin(path, config, "shortcut_study", "done", of_figure(paper_rows(), config.figure), **details)
    return read_run(str(path), str(path))


@pytest.mark.parametrize(
    "changes, num_examples, answer, why",
    [
        ({}, 60_000, "holds", None),
        ({"depths": (2, 3, 6), "num_runs": 1}, 60_000, "holds", "drawn above, with other depths, fewer runs"),
        ({"num_epochs": 100, "relu_examples": 1000}, 60_000, "holds", None),  # Figure 5 reads neither
        ({}, 300, "not evaluated", "drawn above at toy size only"),
    ],
)
def test_a_figure_is_of_the_size_of_the_paper_by_what_it_reads(tmp_path, changes, num_examples, answer, why):
    run = study(tmp_path, dataclasses.replace(PRESETS["paper"], figure="5", **changes), num_examples=num_examples)
    (figure,) = figures.paper_figures([run])
    assert {statement.result for statement in figure.statements} == {answer}
    missing = {line.what: line.why for line in figures.missing([run], [figure])}
    found = missing.get("Li et al., Figure 5, at the paper's size")
    assert found is None if why is None else found.startswith(why)
    assert missing["Li et al., Figure 6, at the paper's size"] == "not among the runs of this report"


def test_a_failed_check_is_shown_in_whatever_order_the_runs_come(tmp_path):
    for name in ("failed", "passed"):
        assert check_theory.main(check_theory.CheckConfig(claim="review.eq_6", trials=2), str(tmp_path / name)) == 0
    rows = read_run(str(tmp_path / "failed"), str(tmp_path)).rows
    write_metrics(str(tmp_path / "failed" / "results.csv"), [row | {"verdict": page.FAILED} for row in rows])
    edit(tmp_path / "failed", status="failed")
    both = [read_run(str(tmp_path / name), str(tmp_path)) for name in ("failed", "passed")]
    for order in (both, both[::-1]):
        (row,) = [row for row in page.claim_rows(order) if row.claim.id == "review.eq_6"]
        assert (row.verdict, row.word) == (page.FAILED, "failed")
        answer = dict(page._summary(order, []))
        assert answer[f"Claims, {tmp_path}/failed"].startswith("0 of 1 checks pass")
        assert answer[f"Claims, {tmp_path}/passed"].startswith("1 of 1 checks pass")
    (row,) = [row for row in page.claim_rows(both[1:]) if row.claim.id == "review.eq_6"]
    assert row.word != "failed"
