"""launch.check_theory: its output, files, exit code and figures."""

import csv
import subprocess
import sys

import numpy as np
import pytest
from begun import read_config_json
from launching import launched
from legible import assert_legible

from identity_matters.data.digits import mnist_sample
from identity_matters.runs.figure_style import styled
from identity_matters.runs.tables import write_metrics
from launch import check_theory
from theory import claims, figures
from theory.linear import figures as linear
from theory.memorization import figures as memorization
from theory.shortcut import figures as shortcut

# Those that are false as printed, and others that are quick; tests/theory and the README's command check all.
FEW = {
    name: claim
    for name, claim in claims.CLAIMS.items()
    if claim.verdict.startswith("false") or name.startswith(("hm.lemma", "review.eq"))
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of few claims on few instances, without the figures: its directory and its output."""
    path = tmp_path_factory.mktemp("runs") / "theory"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "CLAIMS", FEW)
        code, out, err = launched("check_theory", f"--run_dir={path}", "--trials=1", "--nofigures")
    assert code == 0, err + out
    return path, out


@pytest.fixture
def run(finished, monkeypatch):
    """The result of `finished`, without other claims."""
    monkeypatch.setattr(claims, "CLAIMS", FEW)
    return finished


def test_it_prints_false_claims_and_a_summary(run):
    _, printed = run
    lines = printed.splitlines()
    false = [claim for claim in claims.CLAIMS.values() if claim.verdict.startswith("false")]
    assert [line.split()[0] for line in lines[: len(false)]] == [claim.id for claim in false]
    assert all(claim.verdict in line for claim, line in zip(false, lines))
    assert lines[len(false) + 1] == claims.summary() and lines[-1] == "all checks pass"
    assert len(lines) == len(false) + 4


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
    assert "Σ = 2, R = 2" in out and "hm." not in out and out.count("printed proof:") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
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
    "memorized_plane": lambda: memorization.memorized_plane(num_points=8, grid=11),
    "identity_ball": lambda: linear.identity_ball(num_points=9),
    "spectra": lambda: shortcut.spectra_at_zero(dimension=2, num_units=2, other_units=(3,)),
    "condition_numbers": lambda: shortcut.condition_numbers_at_zero(dimension=3, units=(1, 2, 4), num_instances=2),
}


def test_every_experiment_has_a_figure_and_is_drawn_here():
    assert set(figures.EXPERIMENTS) == set(figures.FIGURES) == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_a_figure_is_drawn_only_from_its_csv(name, tmp_path):
    write_metrics(str(tmp_path / f"{name}.csv"), SMALL[name]())
    with styled():
        drawn = check_theory.figures(str(tmp_path))
        assert drawn.keys() == {name}
        assert_legible(drawn[name])


def test_figures_are_drawn_without_checks(launch, tmp_path):
    code, out, err = launch("check_theory", "--draw=memorized_plane", f"--run_dir={tmp_path}/run")
    assert (code, out) == (0, f"{tmp_path}/run/memorized_plane.png\n"), err
    assert not (tmp_path / "run" / "results.csv").exists()


def test_a_finished_check_is_computed_again(launch, tmp_path, monkeypatch):
    arguments = ("check_theory", f"--run_dir={tmp_path}/run", "--claim=hm.theorem_2.1", "--trials=1")
    assert launch(*arguments)[0] == 0
    failing = claims.check("hm.theorem_2.1", 0, 1)._replace(holds=False)
    monkeypatch.setattr(claims, "check", lambda *_: failing)  # as after a change of the code
    code, out, _ = launch(*arguments)
    assert code == 1 and "checks failed: hm.theorem_2.1" in out and "CHECK FAILED" in out
    assert read_config_json(f"{tmp_path}/run")["status"] == "failed"
    assert not list((tmp_path / "run").glob("*.png"))  # the figures are of all claims


def test_one_claim_says_what_is_compared_with_what_and_what_slack_is(launch):
    code, out, _ = launch("check_theory", "--claim=hm.theorem_2.1", "--trials=3")
    check = claims.check("hm.theorem_2.1", trials=3)
    assert code == 0 and claims.CLAIMS["hm.theorem_2.1"].compared in out
    numbers = (f"{check.measured:.4g}", f"{check.bound:.4g}", str(check.instances), f"{check.slack:.2g}")
    assert all(number in out for number in numbers)


def test_memorising_networks_use_the_first_500_digits_and_every_figure_the_seed():
    digits, experiments = mnist_sample(), check_theory._experiments(7)
    assert experiments.keys() == figures.EXPERIMENTS.keys()
    assert {experiment.keywords["seed"] for experiment in experiments.values()} == {7}
    images, labels, num_classes = experiments["memorization"].args
    np.testing.assert_allclose(255 * images, digits.train_images[:500].reshape(500, 784))
    assert labels.tolist() == digits.train_labels[:500].tolist() and num_classes == 10
