"""The experiments: what is compared, at which rates and steps, and that a diverged run is a result, not an accident."""

import dataclasses
import json

import numpy as np
import pytest

from identity_matters import ablations, training
from identity_matters.ablations import AblationConfig
from identity_matters.presets import TRAIN_PRESETS
from identity_matters.runs import figures, tables
from identity_matters.runs.errors import UserError
from identity_matters.variants import EXPERIMENTS, Variant

OPERATIONS = 4e8  # 10 steps of the tiny network


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_variant_is_a_config_of_its_own_with_a_directory_of_its_own(experiment):
    config = AblationConfig(experiment=experiment)
    configs = [variant.config(config.train, variant.rates[0]) for variant in config.variants]
    assert len({dataclasses.replace(c, learning_rate=1.0) for c in configs}) == len(configs)
    assert not [variant.name for variant in config.variants if "," in variant.name]
    names = [variant.directory for variant in config.variants]
    assert len(set(names)) == len(names) and all(name.replace("_", "").isalnum() for name in names)


def test_the_first_variant_is_the_base():
    for experiment in ("statements", "rivals"):
        config = AblationConfig(experiment=experiment)
        assert config.variants[0].config(config.train, config.train.learning_rate) == config.train


@pytest.fixture
def small(monkeypatch, tiny_config):
    """Two variants of a tiny run, trained by a stand-in: its error falls with the rate, 0.2 diverges."""
    variants = (Variant("paper", (0.1, 0.2)), Variant("zero initializer", (0.05,), {"residual_initializer": "zero"}))
    monkeypatch.setitem(EXPERIMENTS, "statements", variants)
    calls = []

    def train(config, run_dir):
        from begun import begin

        calls.append(config)
        diverges = config.learning_rate == 0.2 or config.seed == 1
        details = {"status": "diverged", "diverged_at_step": 3} if diverges else {"status": "done"}
        begin(run_dir, config, **details)
        if diverges:
            raise training.Diverged(3)
        row = {"step": config.train_steps, "loss": 2.0, "learning_rate": 0.0, "train_top1_error": 0.5}
        tables.write_metrics(f"{run_dir}/metrics.csv", [row | {"test_top1_error": 0.6 - config.learning_rate}])

    monkeypatch.setattr(training, "train", train)
    base = dataclasses.replace(tiny_config, validation_examples=20, seed=0)
    return AblationConfig(train=base, operations=OPERATIONS, search_operations=OPERATIONS / 4, num_seeds=3), calls


def test_the_rate_is_chosen_on_held_out_images_and_the_seeds_are_tested_on_the_others(small, tmp_path):
    config, calls = small
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    searched, tested = calls[:2], calls[2:]
    assert [c.learning_rate for c in searched] == [0.1, 0.2] and {c.validation_examples for c in searched} == {20}
    assert [c.learning_rate for c in tested] == [0.1, 0.05] * 3  # not 0.2, which diverged
    assert [c.seed for c in tested] == [0, 0, 1, 1, 2, 2] and {c.validation_examples for c in tested} == {0}
    assert {row["phase"] for row in rows} == {"search", "test"}
    lines = ablations.table(rows).splitlines()
    assert lines[2].startswith("| paper | 0.1 (0.1, 0.2) |") and "| 1 of 3 | 50.00 ± 0.00 % |" in lines[2]
    assert lines[3].startswith("| zero initializer | 0.05 |") and "| 1 of 3 | 55.00 ± 0.00 % |" in lines[3]


def test_steps_make_equal_operations(small, tmp_path):
    from identity_matters.comparators import build_network
    from identity_matters.model import training_flops

    config, calls = small
    ablations.run_ablations(config, str(tmp_path / "run"))
    for run in calls:
        of_step = training_flops(build_network(run.model)) * run.batch_size
        operations = config.search_operations if run.validation_examples else config.operations
        assert abs(run.train_steps * of_step - operations) <= of_step / 2


def test_the_figure_redraws_from_results_csv_with_diverged_runs(small, tmp_path):
    config, _ = small
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    again = tables.read_metrics(str(tmp_path / "run" / "results.csv"))
    assert ablations.table(again) == ablations.table(rows)
    axes = figures.ablation_figure(again).axes[0]
    assert [text.get_text() for text in axes.texts] == ["1 diverged"] * 2
    assert sorted(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o") == [2, 2]


def test_rates_are_not_chosen_on_the_test_images():
    with pytest.raises(UserError, match="validation_examples must be at least 1"):
        AblationConfig(train=TRAIN_PRESETS["cifar10_fast"])


def test_some_variants_alone(small, tmp_path):
    config, calls = small
    rows = ablations.run_ablations(dataclasses.replace(config, only="zero initializer"), str(tmp_path / "run"))
    assert {row["variant"] for row in rows} == {"zero initializer"} and len(calls) == 3
    with pytest.raises(UserError, match="only names one; the variants are paper, zero initializer"):
        dataclasses.replace(config, only="paper,one")


def test_what_an_interrupted_experiment_leaves_is_drawn(small, tmp_path, monkeypatch, capsys):
    config, calls = small
    whole = training.train

    def stops(config, run_dir):
        if len(calls) == 5:
            raise KeyboardInterrupt
        whole(config, run_dir)

    monkeypatch.setattr(training, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        ablations.run_ablations(config, str(tmp_path / "run"))
    assert "[6/8] zero initializer, seed1: 10 steps" in capsys.readouterr().out
    rows = tables.read_metrics(str(tmp_path / "run" / "results.csv"))
    assert len(ablations.table(rows).splitlines()) == 4 and figures.ablation_figure(rows).axes


def test_the_norms_of_networks_that_differ_in_depth_share_a_panel():
    variants = AblationConfig(experiment="norms").variants
    rows = [
        {"variant": v.name, "phase": "test", "seed": seed, "step": step, "kernel_norm": 1.0 + i + step / 100}
        for i, v in enumerate(variants)
        for seed in range(2)
        for step in range(30)
    ]
    fields = {"status": "done", "test_top1_error": 0.5, "train_top1_error": 0.5}
    drawn = figures.ablation_figures([row | fields for row in rows])["kernel_norms"]
    assert [axes.get_title() for axes in drawn.axes] == ["pre-activation ResNet-N", "paper of N layers"]
    for axes, names in zip(drawn.axes, (variants[:4], variants[4:])):
        assert len(axes.lines) == 8 and [text.get_text() for text in axes.get_legend().texts] == [v.name for v in names]
        assert axes.lines[2].get_ydata()[-1] == axes.lines[0].get_ydata()[-1] + 1


def test_networks_whose_norms_are_compared_take_the_same_steps():
    config = AblationConfig(experiment="norms", num_seeds=1)
    plans = [ablations._plan(variant, config.train, config) for variant in config.variants]
    (steps,) = {run.train_steps for plan in plans for run in plan.tests}
    assert steps == 780 and not [plan.searches for plan in plans if plan.searches]
    assert {run.decay_steps for plan in plans for run in plan.tests} == {(315, 475)}


def test_unprepared_data_leave_no_run_directory(tmp_path):
    config = AblationConfig(
        train=dataclasses.replace(AblationConfig().train, dataset="cifar10", data_dir=str(tmp_path))
    )
    with pytest.raises(ValueError, match="--download"):
        ablations.run_ablations(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_small_experiment_runs_and_is_finished_from_what_is_there(tmp_path, tiny_config, monkeypatch):
    variants = (Variant("paper", (0.02, 0.05)), Variant("batch norm", (0.05,), {"use_batch_norm": True}))
    monkeypatch.setitem(EXPERIMENTS, "statements", variants)
    base = dataclasses.replace(tiny_config, validation_examples=20)
    config = AblationConfig(train=base, operations=OPERATIONS, search_operations=OPERATIONS / 2, num_seeds=1)
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    assert {row["variant"] for row in rows} == {"paper", "batch norm"}
    assert json.loads((tmp_path / "run" / "config.json").read_text())["status"] == "done"
    before = (tmp_path / "run" / "paper_seed0" / "metrics.csv").stat().st_mtime_ns
    again = ablations.run_ablations(config, str(tmp_path / "run"))
    np.testing.assert_equal(again, rows)
    assert (tmp_path / "run" / "paper_seed0" / "metrics.csv").stat().st_mtime_ns == before
