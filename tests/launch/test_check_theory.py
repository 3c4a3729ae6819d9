"""launch.check_theory: what it prints, writes and returns, and its figures."""

import csv
import shutil
import subprocess
import sys

import numpy as np
import pytest
from begun import edit
from launching import launched

from launch import check_theory
from theory import claims, figures
from theory.linear import figures as linear
from theory.memorization import figures as memorization
from theory.shortcut import figures as shortcut


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of all claims on few instances, without the figures: its directory and what it printed."""
    path = tmp_path_factory.mktemp("runs") / "theory"
    code, out, err = launched("check_theory", f"--run_dir={path}", "--trials=3", "--nofigures")
    assert code == 0, err + out
    return path, out


def test_it_prints_what_is_false_and_a_summary(run):
    _, printed = run
    lines = printed.splitlines()
    false = [claim for claim in claims.CLAIMS.values() if claim.verdict.startswith("false")]
    assert [line.split()[0] for line in lines[: len(false)]] == [claim.id for claim in false]
    assert all(claim.verdict in line for claim, line in zip(false, lines))
    assert lines[len(false) + 1] == claims.summary() and lines[-1] == "every check holds"
    assert len(lines) == len(false) + 4


def test_verbose_prints_a_line_a_claim(run, launch, tmp_path):
    path, _ = run
    shutil.copytree(path, tmp_path / "run")
    edit(tmp_path / "run", status="running")  # so that its table is read
    code, out, err = launch("check_theory", f"--run_dir={tmp_path}/run", "--trials=3", "--nofigures", "--verbose")
    assert code == 0, err
    for line, claim in zip(out.splitlines(), claims.CLAIMS.values()):
        assert line.split()[0] == claim.id and line.endswith(claim.verdict)


def test_it_leaves_the_table_as_csv_and_as_markdown(run):
    path, _ = run
    with open(path / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["claim"] for row in rows] == list(claims.CLAIMS)
    assert all(row["holds"] == "True" and int(row["instances"]) >= 1 for row in rows)
    table = (path / "claims.md").read_text().splitlines()
    assert len(table) == len(rows) + 2


def test_one_claim_is_checked_alone_and_nothing_is_written_without_a_run_directory(tmp_path, launch, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = launch("check_theory", "--claim=review.eq_6", "--trials=3")
    assert code == 0, err
    assert "Σ = 2, R = 2" in out and "hm." not in out
    assert not list(tmp_path.iterdir())


def test_a_failing_check_is_exit_code_1_and_status_failed(monkeypatch, tmp_path, capsys):
    from identity_matters.runs.directory import read_config_json
    from theory.linear import landscape

    gradient = landscape.gradient
    monkeypatch.setattr(landscape, "gradient", lambda *a: 0.1 * gradient(*a))
    code = check_theory.main(check_theory.CheckConfig(claim="hm.eq_2.3", trials=3), str(tmp_path / "run"))
    assert code == 1
    assert "CHECK FAILED" in capsys.readouterr().out
    assert read_config_json(str(tmp_path / "run"))["status"] == "failed"


def test_checking_needs_no_tensorflow(tmp_path):
    script = (
        "import sys\nfrom launch import check_theory\n"
        f"check_theory.main(check_theory.CheckConfig(claim='hm.lemma_2.4', trials=2), {str(tmp_path / 'run')!r})\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SMALL = {
    "norms": lambda: linear.norms_against_layers(layers=(1, 5, 8)),
    "printed_construction": lambda: linear.printed_construction(num_gammas=10),
    "gradient_ratios": lambda: linear.gradient_ratios(instances=80),
    "descent": lambda: linear.descent_rates(num_steps=10),
    "memorization": lambda: memorization.memorizing_networks(
        np.random.default_rng(0).standard_normal((30, 6)), np.arange(30) % 3, 3, widths=(4, 8)
    ),
    "spectra": lambda: shortcut.spectra_at_zero(dimension=2, num_units=2),
    "condition_numbers": lambda: shortcut.condition_numbers_at_zero(dimension=3, units=(1, 2, 4)),
}


def test_every_experiment_has_a_figure_and_is_drawn_here():
    assert set(figures.EXPERIMENTS) == set(figures.FIGURES) == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_a_figure_is_drawn_from_its_csv_alone_and_redrawn_by_plot(name, tmp_path):
    from identity_matters.runs.tables import write_metrics
    from launch import plot

    write_metrics(str(tmp_path / f"{name}.csv"), SMALL[name]())
    plot.main(plot.PlotConfig(), str(tmp_path))
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


SHOWN = {  # a figure's curves, by their labels, and the columns that they show
    "condition_numbers": {"n = 1": "one_shortcut", "n = 2: cond(M)": "two_shortcut"},
    "spectra": {"measured: differences of the loss": "measured", "Theorem 1": "predicted"},
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_curve_shows_the_column_that_its_label_names(name):
    rows = SMALL[name]()
    lines = [line for axes in figures.FIGURES[name](rows).axes for line in axes.get_lines()]
    for label, column in SHOWN[name].items():
        shown = [value for line in lines if line.get_label() == label for value in line.get_ydata()]
        assert shown == [float(row[column]) for row in rows]


def test_the_measured_norms_lie_between_the_bounds_and_times_depth_settle():
    norms = linear.norms_against_layers()
    for row in norms:
        assert row["lower_bound"] * (1 - 1e-9) <= row["polar"] <= row["polar_bound"] * (1 + 1e-9)
    rows = [row for row in norms if row["target"] == "diag(−e, −1/e)"]
    scaled = [row["num_layers"] * row["polar"] for row in rows]
    assert abs(scaled[-1] / scaled[-2] - 1) < 0.01


def test_the_guaranteed_rate_is_kept_and_is_no_identity():
    rows = linear.descent_rates(num_steps=30)
    assert all(row["excess_risk"] <= row["guaranteed"] * (1 + 1e-12) for row in rows)
    assert min(row["guaranteed"] for row in rows) < 1e-3


def test_only_the_one_shortcuts_condition_number_grows_with_depth():
    first, *_, last = shortcut.condition_numbers_at_zero(units=(2, 4, 8))
    assert last["one_shortcut"] > 3 * first["one_shortcut"]
    assert last["two_shortcut"] == pytest.approx(first["two_shortcut"])
    assert last["lower_bound"] <= last["one_shortcut"]
