"""launch.plot of a report: the figures of all its runs, by names that tell them apart."""

import shutil

import pytest

from identity_matters.errors import UserError
from launch import report


def written(runs, run_dir):
    report.main(report.ReportConfig(runs=",".join(map(str, runs))), str(run_dir))


def test_plot_draws_the_figures_of_all_its_runs(tiny_run, tmp_path, launch):
    written([tiny_run], tmp_path / "report")
    code, out, err = launch("plot", f"--run_dir={tmp_path}/report", "--format=svg")
    assert code == 0 and out.endswith(f"\n{tmp_path}/report/{tiny_run.name}_convergence.svg\n"), err


def test_plot_draws_the_runs_of_the_last_report_and_both_of_one_name(tiny_run, tmp_path):
    for folder in ("a", "b"):
        shutil.copytree(tiny_run, tmp_path / folder / "run")
    written([tiny_run], tmp_path / "report")
    written([tmp_path / "a" / "run", f" {tmp_path / 'b' / 'run'}"], tmp_path / "report")
    assert list(report.figures(str(tmp_path / "report"))) == ["a_run_convergence", "b_run_convergence"]


def test_plot_draws_a_report_from_another_folder_and_names_a_run_that_is_gone(tiny_run, tmp_path, monkeypatch):
    names = ["a/b_c", "d/b_c", "a_b/c"]
    for name in names:
        shutil.copytree(tiny_run, tmp_path / "there" / name)
    monkeypatch.chdir(tmp_path / "there")
    written(names, tmp_path / "report")
    monkeypatch.chdir(tmp_path)
    assert list(report.figures("report")) == ["1_a_b_c_convergence", "2_d_b_c_convergence", "3_a_b_c_convergence"]
    shutil.rmtree(tmp_path / "there" / "a_b")
    with pytest.raises(UserError, match="report is a report on runs that are no longer there: .*there/a_b/c"):
        report.figures("report")
