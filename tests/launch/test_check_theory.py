"""launch.check_theory: what it prints, writes and returns, and its figures."""

import csv
import functools
import itertools
import shutil
import subprocess
import sys

import numpy as np
import pytest
from begun import edit
from launching import launched
from legible import assert_legible

from identity_matters.data.digits import mnist_sample
from identity_matters.runs.config_json import read_config_json
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
    """A finished run of few claims on few instances, without the figures: its directory and what it printed."""
    path = tmp_path_factory.mktemp("runs") / "theory"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "CLAIMS", FEW)
        code, out, err = launched("check_theory", f"--run_dir={path}", "--trials=1", "--nofigures")
    assert code == 0, err + out
    return path, out


@pytest.fixture
def run(finished, monkeypatch):
    """What `finished` returns, where there are no other claims."""
    monkeypatch.setattr(claims, "CLAIMS", FEW)
    return finished


def test_it_prints_what_is_false_and_a_summary(run):
    _, printed = run
    lines = printed.splitlines()
    false = [claim for claim in claims.CLAIMS.values() if claim.verdict.startswith("false")]
    assert [line.split()[0] for line in lines[: len(false)]] == [claim.id for claim in false]
    assert all(claim.verdict in line for claim, line in zip(false, lines))
    assert lines[len(false) + 1] == claims.summary() and lines[-1] == "all checks pass"
    assert len(lines) == len(false) + 4


def test_verbose_prints_a_line_a_claim(run, launch, tmp_path):
    path, _ = run
    shutil.copytree(path, tmp_path / "run")
    edit(tmp_path / "run", status="running")  # so that its table is read
    code, out, err = launch("check_theory", f"--run_dir={tmp_path}/run", "--trials=1", "--nofigures", "--verbose")
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


def test_a_row_has_the_verdict_on_the_printed_proof_and_where_it_is_printed():
    (row,) = check_theory._row("review.eq_6", check_theory.CheckConfig(trials=2))
    claim = claims.CLAIMS["review.eq_6"]
    assert (row["proof"], row["source"]) == (claim.proof, claim.source) != ("", "")


def test_five_hundred_digits_are_memorised_and_each_figure_has_the_seed():
    experiments = check_theory._experiments(3)
    images, labels, num_classes = experiments["memorization"].args
    assert images.shape == (500, 28 * 28) and images.max() == 1 and num_classes == 10
    np.testing.assert_array_equal(labels, mnist_sample().train_labels[:500])
    assert all(experiment.keywords == {"seed": 3} for experiment in experiments.values())


@pytest.mark.parametrize(
    "changes, drawn",
    [({}, "ab"), ({"figures": False}, ""), ({"claim": "hm.lemma_2.4"}, ""), ({"draw": "b", "figures": False}, "b")],
)
def test_figures_are_drawn_where_all_claims_are_checked_or_where_they_are_named(changes, drawn, monkeypatch):
    monkeypatch.setattr(check_theory, "_experiments", lambda seed: {"a": seed, "b": seed})
    monkeypatch.setattr(check_theory, "run", lambda experiment, *_: experiment.figure_data)
    assert check_theory.main(check_theory.CheckConfig(seed=5, **changes), "runs/theory") == dict.fromkeys(drawn, 5)


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


@functools.cache
def small(name):
    """The data of a small figure. Read only."""
    return SMALL[name]()


def test_every_experiment_has_a_figure_and_is_drawn_here():
    assert set(figures.EXPERIMENTS) == set(figures.FIGURES) == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_a_figure_is_drawn_from_its_csv_alone(name, tmp_path):
    write_metrics(str(tmp_path / f"{name}.csv"), small(name))
    with styled():
        drawn = check_theory.figures(str(tmp_path))
        assert drawn.keys() == {name}
        assert_legible(drawn[name])


def curves(name, rows):
    """The values of a figure's curves, one after the other, by their labels."""
    shown = {}
    for axes in figures.FIGURES[name](rows).axes:
        for line in axes.get_lines():
            shown.setdefault(line.get_label(), []).extend(line.get_ydata())
    return shown


def test_the_spectra_show_what_theorem_1_predicts_and_what_is_measured():
    rows = small("spectra")
    shown = curves("spectra", rows)
    for units in (2, 3):
        chosen = [row for row in rows if row["num_units"] == units]
        assert shown[f"Theorem 1, $R = {units}$"] == [row["predicted"] for row in chosen]
    measured = [row for row in rows if row["num_units"] == 2]
    assert shown["measured, $R = 2$"] == [row["measured"] for row in measured]
    np.testing.assert_allclose(*([row[name] for row in measured] for name in ("measured", "predicted")), atol=1e-4)


def test_the_condition_numbers_are_geometric_means_over_the_instances():
    rows = small("condition_numbers")
    shown = curves("condition_numbers", rows)
    for label, column in {"$n = 1$": "one_shortcut", r"$n = 2$: $\mathrm{cond}(M)$": "two_shortcut"}.items():
        by_units = [[row[column] for row in rows if row["num_units"] == units] for units in (1, 2, 4)]
        np.testing.assert_allclose(shown[label], [np.sqrt(np.prod(pair)) for pair in by_units])


def test_near_the_identity_the_gradient_meets_the_bound_and_outside_of_the_ball_a_path_ends_at_the_saddle():
    rows = small("identity_ball")
    edges = [row for row in rows if row["kind"] == "edge"]
    np.testing.assert_allclose([row["least_ratio"] for row in edges], [row["bound"] for row in edges], atol=1e-9)
    assert edges[0]["bound"] == 8 and edges[-1]["bound"] == 0
    *inside, outside = {row["path"]: row for row in rows if row["kind"] == "path"}.values()  # the last row of each
    assert len(inside) == 8 and all(row["risk"] < 1e-6 for row in inside)
    np.testing.assert_allclose([outside["a"], outside["b"]], [-1, -1], atol=1e-3)
    assert outside["risk"] == pytest.approx(0.4**2, rel=1e-3)


def test_the_memorising_network_ends_on_one_place_a_label_and_is_right_on_its_points():
    rows = [row for row in small("memorized_plane") if row["kind"] == "hidden"]
    last = max(row["block"] for row in rows)
    ends = {row["label"]: set() for row in rows}
    for row in rows:
        if row["block"] == last:
            ends[row["label"]].add((round(row["first"], 9), round(row["second"], 9)))
    places = set().union(*ends.values())
    assert all(len(found) == 1 for found in ends.values()) and len(places) == len(ends)
    moved = [
        sum(a["first"] != b["first"] for a, b in zip(before, after))
        for before, after in itertools.pairwise([row for row in rows if row["block"] == k] for k in range(last + 1))
    ]
    assert moved == [2] * last


def test_figures_are_drawn_alone(launch, tmp_path):
    code, out, err = launch("check_theory", "--draw=memorized_plane", f"--run_dir={tmp_path}/run")
    assert (code, out) == (0, f"{tmp_path}/run/memorized_plane.png\n"), err
    assert not (tmp_path / "run" / "results.csv").exists()


def test_the_measured_norms_lie_between_the_bounds_and_times_depth_settle():
    norms = linear.norms_against_layers(layers=(1, 8, 64, 128))
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
    first, *_, last = shortcut.condition_numbers_at_zero(units=(2, 4, 8), num_instances=1)
    assert last["one_shortcut"] > 3 * first["one_shortcut"]
    assert last["two_shortcut"] == pytest.approx(first["two_shortcut"])
    assert last["lower_bound"] <= last["one_shortcut"]


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
    assert code == 0 and "compared:          |||A||| of the polar method against (4π + 3γ)/ℓ for ℓ ≥ 3γ" in out
    assert f"{check.measured:.4g}, which must be ≤ {check.bound:.4g}; of {check.instances} pairs of numbers" in out
    assert f"slack:             {check.slack:.2g}, their distance over the larger; below 0 it fails" in out


def test_every_check_says_what_it_compares():
    assert not [claim.id for claim in claims.CLAIMS.values() if len(claim.compared.split()) < 4]


def test_a_figure_that_is_named_is_drawn_whatever_nofigures_says(launch, tmp_path):
    code, out, _ = launch("check_theory", f"--run_dir={tmp_path}/run", "--draw=printed_construction", "--nofigures")
    assert code == 0 and out.strip().endswith("printed_construction.png")
    assert (tmp_path / "run" / "printed_construction.png").stat().st_size


def test_the_memorising_networks_have_the_first_500_digits_and_every_figure_the_seed():
    digits, experiments = mnist_sample(), check_theory._experiments(7)
    assert experiments.keys() == figures.EXPERIMENTS.keys()
    assert {experiment.keywords["seed"] for experiment in experiments.values()} == {7}
    images, labels, num_classes = experiments["memorization"].args
    np.testing.assert_allclose(255 * images, digits.train_images[:500].reshape(500, 784))
    assert labels.tolist() == digits.train_labels[:500].tolist() and num_classes == 10
