"""launch.report judges what is done and of the paper's size, and no order of the runs hides a failed check."""

import dataclasses

import pytest
from begun import begin, edit
from study_rows import of_figure, paper_rows

from identity_matters.experiments.ablations import AblationConfig
from identity_matters.runs.tables import write_metrics
from launch import check_theory
from launch.reporting import claims, figures, page
from launch.reporting.runs import read_run
from shortcut_study.config import PRESETS

FIGURE_2 = "Li et al., Figure 2"


@pytest.mark.parametrize("status", ["running", "failed", "done"])
def test_norms_are_judged_once_their_run_is_done(tmp_path, status):
    row = {"phase": "test", "chosen_rate": 0.1, "seed": 0, "status": "done", "epoch": 1.0, "loss": 1.0, "step": 1}
    row |= {"train_cross_entropy": 1.0, "test_top1_error": 0.25, "learning_rate": 0.1, "train_top1_error": 0.5}
    begin(tmp_path, AblationConfig(experiment="norms"), "ablations", status)
    norms = {"pre-activation ResNet-8": 3.0, "pre-activation ResNet-32": 2.0}
    rows = [row | {"variant": name, "kernel_norm": norm} for name, norm in norms.items()]
    write_metrics(str(tmp_path / "results.csv"), rows)
    runs = [read_run(str(tmp_path), str(tmp_path))]
    drawn = figures.paper_figures(runs)
    missing = [(line.what, line.why) for line in figures.missing(runs, drawn) if line.what == FIGURE_2]
    assert "kernel_norms" in runs[0].pictures
    if status == "done":
        assert [figure.title for figure in drawn] == [FIGURE_2] and not missing
    else:
        assert not drawn and missing == [(FIGURE_2, f"its run is {status}, not done")]
        assert not [line for line in page._summary(runs, drawn) if "statements hold" in line[1]]


def study(path, config, **details):
    """A finished study of one figure of rows made by hand, as a report reads it."""
    begin(path, config, "shortcut_study", "done", **details)
    rows = [row | {"job": "any"} for row in of_figure(paper_rows(), config.figure)]
    write_metrics(str(path / "results.csv"), rows)
    return read_run(str(path), str(path))


@pytest.mark.parametrize(
    "changes, num_examples, told, why",
    [
        ({}, 60_000, "holds", None),
        ({"depths": (2, 3, 6), "num_runs": 1}, 60_000, "holds", "drawn above, of other depths or of fewer runs"),
        ({"num_epochs": 100, "relu_examples": 1000}, 60_000, "holds", None),  # Figure 5 reads neither
        ({}, 300, "not judged", "drawn above at toy size only"),
    ],
)
def test_a_figure_is_of_the_size_of_the_paper_by_what_it_reads(tmp_path, changes, num_examples, told, why):
    run = study(tmp_path, dataclasses.replace(PRESETS["paper"], figure="5", **changes), num_examples=num_examples)
    (figure,) = figures.paper_figures([run])
    assert {statement.ours for statement in figure.statements} == {told}
    missing = {line.what: line.why for line in figures.missing([run], [figure])}
    found = missing.get("Li et al., Figure 5, at the paper's size")
    assert found is None if why is None else found.startswith(why)
    assert missing["Li et al., Figure 6, at the paper's size"] == "not among the runs of this report"


def test_a_failed_check_is_shown_in_whatever_order_the_runs_come(tmp_path):
    for name in ("failed", "passed"):
        assert check_theory.main(check_theory.CheckConfig(claim="review.eq_6", trials=2), str(tmp_path / name)) == 0
    rows = read_run(str(tmp_path / "failed"), str(tmp_path)).rows
    write_metrics(str(tmp_path / "failed" / "results.csv"), [row | {"verdict": claims.FAILED} for row in rows])
    edit(tmp_path / "failed", status="failed")
    runs = [read_run(str(tmp_path / name), str(tmp_path)) for name in ("failed", "passed")]
    for order in (runs, runs[::-1]):
        (row,) = [row for row in claims.rows(order) if row.id == "review.eq_6"]
        assert (row.verdict, row.word) == (claims.FAILED, "failed")
        told = dict(page._summary(order, []))
        assert told[f"Claims, {tmp_path}/failed"].startswith("0 of 1 checks hold")
        assert told[f"Claims, {tmp_path}/passed"].startswith("1 of 1 checks hold")
    (row,) = [row for row in claims.rows(runs[1:]) if row.id == "review.eq_6"]
    assert row.word != "failed"
