"""The experiments: their variants, learning rates and steps; a diverged run is a result, not an accident."""

import dataclasses
import json
import pathlib
import re
import shlex
import shutil

import keras
import numpy as np
import pytest
from begun import read_config_json
from refusals import refused

from identity_matters import training
from identity_matters.config import DataConfig
from identity_matters.errors import UserError
from identity_matters.experiments import ablations
from identity_matters.experiments import figures as experiment_figures
from identity_matters.experiments.ablations import AblationConfig
from identity_matters.experiments.variants import EXPERIMENTS, Variant, depths
from identity_matters.runs import figures, tables
from identity_matters.runs.directory import RunDirectory
from launch import config_flags

OPERATIONS = 4e8  # 10 steps of the tiny network


def held_out(config):
    """The data of a config, with 20 examples held out."""
    return dataclasses.replace(config.data, validation_examples=20)


@pytest.fixture
def small(monkeypatch, tiny_config):
    """Two variants of a tiny run, trained by a stand-in: its error falls with the rate, 0.2 diverges."""
    variants = (
        Variant("BN-free", (0.05, 0.1, 0.2)),
        Variant("wide", (0.05,), {"widths": (4, 8), "blocks_per_stage": (1, 1)}, {"batch_size": 10}),
    )
    monkeypatch.setitem(EXPERIMENTS, "statements", variants)
    calls = []

    def train(config, run_dir):
        from begun import begin

        calls.append(config)
        diverges = config.learning_rate >= 0.2 or config.seed == 1
        details = {"status": "diverged", "diverged_at_step": 3} if diverges else {"status": "done"}
        begin(run_dir, config, **details)
        if diverges:
            raise training.Diverged(3)
        row = {"step": config.train_steps, "epoch": 2.0, "loss": 2.5, "train_cross_entropy": 2.0, "learning_rate": 0.0}
        row |= {"train_top1_error": 0.5, "test_top1_error": 0.6 - config.learning_rate, "kernel_norm": 1.0}
        tables.write_metrics(f"{run_dir}/metrics.csv", [row])

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(figures, "save_figures", lambda *_: [])  # a second for each run
    monkeypatch.setattr(keras.backend, "clear_session", lambda: None)  # among other tests half a second
    base = dataclasses.replace(tiny_config, data=held_out(tiny_config), seed=0)
    return AblationConfig(train=base, operations=OPERATIONS, num_seeds=3), calls


def test_the_optimiser_of_a_variant_is_that_of_its_name_whatever_the_preset():
    for preset in ("cifar10_fast", "cifar10", "mnist"):
        for experiment in ("statements", "rivals"):
            for variant in EXPERIMENTS[experiment]:
                optimizer = variant.config(training.PRESETS[preset], 0.1).optimizer
                assert optimizer == ("keras_momentum" if "SGD" in variant.name else "muon"), (preset, variant.name)


def test_learning_rate_is_chosen_on_held_out_images_and_seeds_use_the_test_images(small, tmp_path):
    config, calls = small
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    searched, tested = calls[:3], calls[3:]
    assert [c.learning_rate for c in searched] == [0.05, 0.1, 0.2]
    assert {c.data.validation_examples for c in searched} == {20} and len(rows) == len(calls)  # a row of each
    assert all(c.eval_every == c.train_steps for c in searched) and (tmp_path / "run/wide_seed2/config.json").exists()
    assert [c.learning_rate for c in tested] == [0.1, 0.05] * 3  # not 0.2, which diverged
    assert [c.seed for c in tested] == [0, 0, 1, 1, 2, 2] and {c.data.validation_examples for c in tested} == {0}
    assert {row["phase"] for row in rows} == {"search", "test"}
    ours, wide = tables.ablation_table(rows).splitlines()[2:]
    errors = "50.00 ± 0.00 % | 50.00 ± 0.00 % | 2.00 ± 0.00"
    assert ours == f"| BN-free | 0.1 (0.05, 0.1, 0.2) | 10 | 2.0 | 1 of 3 | {errors} |"
    assert wide.startswith("| wide | 0.05 | ") and "| 1 of 3 | 55.00 ± 0.00 % |" in wide


@pytest.mark.parametrize(
    "rates, chosen",
    [
        ((0.05, 0.1), "0.1 (0.05, 0.1, 0.2)"),
        ((0.01, 0.02), "0.08 (0.01, 0.02, 0.04, 0.08, at the edge)"),
        ((0.4, 0.5), "0.1 (0.1, 0.2, 0.4, 0.5, at the edge)"),
        ((1.0, 2.0), "0.25 (0.25, 0.5, 1, 2, all diverged)"),
    ],
)
def test_search_extends_two_rates_beyond_its_grid_and_marks_a_doubtful_best_rate(
    small, tmp_path, monkeypatch, capsys, rates, chosen
):
    config, calls = small
    ours = dataclasses.replace(EXPERIMENTS["statements"][0], rates=rates)
    monkeypatch.setitem(EXPERIMENTS, "statements", (ours,))
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    assert f"| BN-free | {chosen} |" in tables.ablation_table(rows)
    trained = len(calls)
    counted = re.findall(r"^\[(\d+)/(\d+)\]", capsys.readouterr().out, re.M)  # the whole grows with the search
    assert [int(number) for number, _ in counted] == [*range(1, trained + 1)]
    assert [int(total) for _, total in counted] == sorted(int(total) for _, total in counted)
    assert int(counted[0][1]) == len(rates) + 3 and int(counted[-1][1]) == trained
    np.testing.assert_equal(ablations.run_ablations(config, str(tmp_path / "run")), rows)
    assert len(calls) == trained  # what was found beyond the grid is found again


def test_of_rates_with_the_same_error_the_one_of_lower_cross_entropy_is_chosen(small, tmp_path, monkeypatch):
    config, calls = small
    monkeypatch.setitem(EXPERIMENTS, "statements", (EXPERIMENTS["statements"][0],))
    train = training.train

    def tied(run, run_dir):
        train(run, run_dir)
        (row,) = tables.read_metrics(f"{run_dir}/metrics.csv")
        row |= {"test_top1_error": 0.5, "test_cross_entropy": {0.05: 2.0, 0.1: 1.0}.get(run.learning_rate, 3.0)}
        tables.write_metrics(f"{run_dir}/metrics.csv", [row])

    monkeypatch.setattr(training, "train", tied)
    ablations.run_ablations(config, str(tmp_path / "run"))
    assert {run.learning_rate for run in calls if not run.data.validation_examples} == {0.1}


@pytest.mark.parametrize(("search_operations", "share_of_search"), [(0.0, 0.5), (0.2 * OPERATIONS, 0.2)])
def test_steps_make_equal_operations(small, tmp_path, search_operations, share_of_search):
    from identity_matters import networks
    from identity_matters.convolutions import training_flops

    config, calls = small
    config = dataclasses.replace(config, search_operations=search_operations)
    ablations.run_ablations(config, str(tmp_path / "run"))
    shares = {}
    for run in calls:
        of_step = training_flops(networks.build(run.model)) * run.batch_size
        share = share_of_search if run.data.validation_examples else 1
        assert abs(run.train_steps * of_step - share * OPERATIONS) <= of_step / 2
        shares.setdefault(share, set()).add(run.train_steps)
    assert len(shares[1]) == 2  # the wide network takes fewer steps


def test_steps_are_whole_calls_into_the_compiled_program():
    base = dataclasses.replace(AblationConfig().train, steps_per_execution=100)
    config = AblationConfig(train=base, num_seeds=1)
    (run,) = ablations._plan(config.variants[0], base, config).tests
    assert run.train_steps == 1300 and run.eval_every == 400
    for steps, whole in ((1251, 1300), (40, 100)):
        variant = Variant("of its own steps", (0.1,), {}, {"train_steps": steps})
        assert ablations._plan(variant, base, config).tests[0].train_steps == whole


def test_strides_that_do_not_fit_the_images_leave_no_run_directory(tmp_path, digits_npz):
    stem = dataclasses.replace(AblationConfig().train.model, stem_stride=3)
    data = DataConfig(npz=str(digits_npz), validation_examples=20)
    base = dataclasses.replace(AblationConfig().train, model=stem, data=data)
    config = AblationConfig(base, "norms", only="BN-free of 8 layers")
    message = refused(ablations.run_ablations, config, str(tmp_path / "run"))
    assert "does not divide 28x28 pixels; try --image_size=" in message and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name, images",
    [("statements", (50_000, "32x32x3")), ("rivals", (50_000, "32x32x3")), ("initializers", (4_000, "16x16x1"))],
)
def test_the_runs_of_docs_resume_by_their_own_commands(tmp_path, name, images):
    path = pathlib.Path(__file__).parents[2] / "docs" / "runs" / name / "config.json"
    shutil.copy(path, tmp_path)
    stored = json.loads(path.read_text())
    data = stored["config"]["train"]["data"]
    num_images = images[0] - data["validation_examples"]
    shape = images[1]
    of = "labels" if data["image_size"] else "images and labels"  # resizing differs by machine
    assert stored["data"].startswith(f"{num_images} training images, {shape}, {of} ")
    values = config_flags.define({"": AblationConfig()}, has_run_dir=True)
    assert config_flags.parse(values, shlex.split(stored["command"])[2:]) == []
    config, _ = config_flags.config_from(values, {"": AblationConfig()})
    with RunDirectory(str(tmp_path), config, "ablations") as run:
        assert run.status == "done"
    with pytest.raises(UserError, match="search_operations"):
        RunDirectory(str(tmp_path), dataclasses.replace(config, search_operations=1e3), "ablations").__enter__()


def test_the_figure_redraws_from_results_csv_with_diverged_runs(small, tmp_path):
    config, _ = small
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    again = tables.read_metrics(str(tmp_path / "run" / "results.csv"))
    assert tables.ablation_table(again) == tables.ablation_table(rows)
    axes = experiment_figures.ablation_figure(again).axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert sorted(names) == ["BN-free (1 of 3 diverged)", "wide (1 of 3 diverged)"]
    assert sorted(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o") == [2, 2]
    lost = [row | {"status": "diverged", "test_top1_error": np.nan} for row in again if row["variant"] == "wide"]
    bottom, top = experiment_figures.ablation_figure([*again, *lost]).axes[0].get_ylim()
    assert bottom > 1 and top < 0  # the line of a variant without a dot is inside


def test_the_lowest_mean_error_comes_first_and_colours_are_of_optimisers():
    errors = {"BN-free": 0.2, "momentum SGD": 0.3, "standard initializer": 0.1, "9 blocks a stage": np.nan}
    rows = [
        {"variant": name, "phase": "test", "seed": 0, "status": "diverged" if np.isnan(error) else "done", "step": 5}
        | {"test_top1_error": error, "train_top1_error": error}
        for name, error in errors.items()
    ]
    axes = experiment_figures.ablation_figure(rows).axes[0]
    labels = axes.get_yticklabels()
    assert [label.get_text().split(" (")[0] for label in labels] == [
        "standard initialiser", "BN-free", "momentum SGD", "9 blocks a stage"
    ]  # fmt: skip
    assert [label.get_fontweight() for label in labels] == ["normal", "bold", "normal", "normal"]
    dots = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_ydata())]
    assert {line.get_ydata()[0]: line.get_color() for line in dots} == {0: "C0", 1: "C0", 2: "C3"}


def test_errors_by_depth_are_of_networks_that_differ_in_depth_and_initializer_only():
    names = [f"{blocks} block{'s' * (blocks > 1)} a stage" for blocks in (1, 4, 9)]
    small = dict(zip(("BN-free", *names), (13, 7, 25, 55)))
    standard_names = ("standard initializer", *(f"{name} with standard initializer" for name in names))
    standard = dict(zip(standard_names, small.values()))
    assert depths() == {"small": small, "standard": standard}
    rows = [
        {"variant": name, "phase": "test", "seed": seed, "status": "done", "step": 5, "train_top1_error": 0.1}
        | {"test_top1_error": depth / 100 + seed / 1000}
        for name, depth in (small | {"9 blocks a stage with standard initializer": 60}).items()
        for seed in range(2)
    ]
    rows.append(rows[-1] | {"seed": 2, "status": "diverged", "test_top1_error": np.nan, "train_top1_error": np.nan})
    axes = ablations.draw(rows)["depths"].axes[0]
    lines = [line for line in axes.lines if line.get_marker() == "None"]
    np.testing.assert_array_equal(lines[0].get_xdata(), [7, 13, 25, 55])
    np.testing.assert_allclose(lines[0].get_ydata(), np.array([7, 13, 25, 55]) / 100 + 0.0005)
    np.testing.assert_allclose(lines[1].get_xydata(), [[55, 0.6005]])
    of_one_depth = [row for row in rows if row["variant"] in ("BN-free", "standard initializer")]
    assert "depths" not in ablations.draw(of_one_depth)
    assert "depths" in ablations.draw([row for row in rows if row["variant"] in ("BN-free", "4 blocks a stage")])


def test_a_finished_run_does_not_stand_for_a_variant_that_has_changed_since(small, tmp_path, monkeypatch):
    config, calls = small
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    ours, wide = EXPERIMENTS["statements"]
    for changed, differing in (
        ({"model": {"widths": (4, 12), "blocks_per_stage": (1, 1)}}, r"model.widths \(\[4, 8\], \[4, 12\]\)"),
        ({"rates": (0.07,)}, r"learning_rate \(0.05, 0.07\)"),
    ):
        monkeypatch.setitem(EXPERIMENTS, "statements", (ours, dataclasses.replace(wide, **changed)))
        message = refused(ablations.run_ablations, config, str(tmp_path / "run"))
        assert message.startswith("the variant 'wide' has changed since it was run, choose another run_dir: ")
        assert re.search(f"wide_seed0 holds a run of another config .*{differing}", message), message
    assert len(calls) == 9 and read_config_json(str(tmp_path / "run"))["status"] == "done"
    for seed in range(3):
        shutil.rmtree(tmp_path / "run" / f"wide_seed{seed}")
    np.testing.assert_equal(ablations.run_ablations(config, str(tmp_path / "run")), rows)  # rows alone are taken


def test_an_experiment_does_not_resume_on_other_images(small, tmp_path):
    config, calls = small
    ablations.run_ablations(dataclasses.replace(config, num_seeds=1), str(tmp_path / "run"))
    path, count = tmp_path / "run" / "config.json", len(calls)
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"data_digest": record["data_digest"][:-1] + "x"}))
    assert "holds a run on other data" in refused(ablations.run_ablations, config, str(tmp_path / "run"))
    assert len(calls) == count


def test_some_variants_alone_and_then_the_others_in_the_same_directory(small, tmp_path):
    config, calls = small
    rows = ablations.run_ablations(dataclasses.replace(config, only="wide"), str(tmp_path / "run"))
    assert {row["variant"] for row in rows} == {"wide"} and len(calls) == 3
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    assert {row["variant"] for row in rows} == {"BN-free", "wide"} and len(calls) == 9
    again = ablations.run_ablations(dataclasses.replace(config, only="BN-free"), str(tmp_path / "run"))
    np.testing.assert_equal(again, rows)  # those of the others stay
    assert [v.name for v in dataclasses.replace(config, only="wide, BN-free,").variants] == ["BN-free", "wide"]
    for only, message in (
        ("BN-free,one", "only names 'one'; the variants of statements are BN-free, wide"),
        ("BN-fre, wired", "only names 'BN-fre', 'wired'; did you mean 'BN-free' or 'wide'?"),
        (" ,", "only names no variant, got ' ,'; leave it empty for all of them"),
    ):
        assert message in refused(dataclasses.replace, config, only=only)


def test_config_json_and_results_csv_are_enough_to_resume(small, tmp_path):
    config, calls = small
    first = dataclasses.replace(config, num_seeds=2)
    rows = ablations.run_ablations(first, str(tmp_path / "here"))
    (tmp_path / "there").mkdir()
    for name in ("config.json", "results.csv"):
        shutil.copy(tmp_path / "here" / name, tmp_path / "there")
    there = str(tmp_path / "there")
    trained = len(calls)
    np.testing.assert_equal(ablations.run_ablations(first, there), rows)
    assert len(calls) == trained
    ablations.run_ablations(config, there)
    assert [c.seed for c in calls[trained:]] == [2, 2]
    assert [c.learning_rate for c in calls[trained:]] == [0.1, 0.05]  # chosen from the rows
    here = ablations.run_ablations(config, str(tmp_path / "here"))
    np.testing.assert_equal(here, ablations.run_ablations(config, there))


def test_a_damaged_results_csv_is_one_clear_line_and_trains_nothing(small, tmp_path):
    config, calls = small
    ablations.run_ablations(config, str(tmp_path / "run"))
    calls.clear()
    for text in ("", "variant\nours\n", "variant,phase,chosen_rate,seed\nnobody,test,1,0\n"):
        (tmp_path / "run" / "results.csv").write_text(text)
        with pytest.raises((ValueError, RuntimeError), match=r"results\.csv"):
            ablations.run_ablations(config, str(tmp_path / "run"))
        assert not calls and (tmp_path / "run" / "results.csv").read_text() == text


def test_rows_of_an_unknown_variant_are_rejected(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("variant,phase,chosen_rate,seed\nnobody,test,1,0\nBN-free of 8 layers,test,1,0\n")
    for fields, words in (
        ({}, "BN-free of 8 layers, nobody: no variant of statements"),
        ({"experiment": "norms"}, "rows of nobody: no variant of norms"),
    ):
        assert refused(ablations._open_table, str(path), AblationConfig(**fields)).endswith(words)


def test_interrupted_experiment_draws_its_finished_runs_and_resumes_with_them(small, tmp_path, monkeypatch, capsys):
    config, calls = small
    path, whole = str(tmp_path / "run" / "results.csv"), training.train

    def stops(config, run_dir):
        if len(calls) in (6, 7):
            calls.append(None)
            raise KeyboardInterrupt
        whole(config, run_dir)

    monkeypatch.setattr(training, "train", stops)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            ablations.run_ablations(config, str(tmp_path / "run"))
        rows = tables.read_metrics(path)
        assert len(tables.ablation_table(rows).splitlines()) == 4 and experiment_figures.ablation_figure(rows).axes
    assert "[7/9] wide, seed1" in capsys.readouterr().out
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    expected = ablations.run_ablations(config, str(tmp_path / "whole"))
    np.testing.assert_equal(rows, expected)


def test_the_norms_of_networks_that_differ_in_depth_share_a_panel():
    variants = AblationConfig(experiment="norms").variants
    rows = [
        {"variant": v.name, "phase": "test", "seed": seed, "step": step, "kernel_norm": 1.0 + i + step / 100}
        | {"train_cross_entropy": 2 / (1 + step), "learning_rate": 0.1 ** (1 + (step > 12) + (step > 18))}
        for i, v in enumerate(variants)
        for seed in range(2)
        for step in range(30)
    ]
    fields = {"status": "done", "test_top1_error": 0.5, "train_top1_error": 0.5}
    diverged = {"variant": variants[0].name, "phase": "test", "seed": 2, "step": 3, "status": "diverged"}
    drawn = ablations.draw([row | fields for row in rows] + [diverged])["kernel_norms"]
    assert [axes.get_title() for axes in drawn.axes[:2]] == ["pre-activation ResNet-N", "BN-free of N layers"]
    for axes, names in zip(drawn.axes, (variants[:4], variants[4:])):
        numbers = [re.search(r"\d+", variant.name)[0] for variant in names]
        assert len(axes.lines) == 4 and [text.get_text() for text in axes.get_legend().texts] == numbers
        assert axes.lines[1].get_ydata()[-1] == axes.lines[0].get_ydata()[-1] + 1
    for axes in drawn.axes[2:]:  # of each of 4 variants a line, a circle and a triangle
        line, circle, triangle = axes.lines[:3]
        assert len(axes.lines) == 12 and (circle.get_marker(), triangle.get_marker()) == ("o", "^")
        np.testing.assert_allclose(line.get_xdata(), [2 / (1 + step) for step in range(30)])
        np.testing.assert_allclose([*circle.get_xdata(), *circle.get_ydata()], [2 / 13, line.get_ydata()[12]])
        np.testing.assert_allclose([*triangle.get_xdata(), *triangle.get_ydata()], [2 / 19, line.get_ydata()[18]])


def test_networks_whose_norms_are_compared_take_the_same_steps():
    config = AblationConfig(experiment="norms", num_seeds=1)
    plans = [ablations._plan(variant, config.train, config) for variant in config.variants]
    (steps,) = {run.train_steps for plan in plans for run in plan.tests}
    assert steps == 1950 and not [plan.searches for plan in plans if plan.searches]
    assert {run.decay_steps for plan in plans for run in plan.tests} == {(789, 1189)}
    together = dataclasses.replace(config.train, steps_per_execution=100)
    (plan, *_) = (ablations._plan(variant, together, config) for variant in config.variants)
    assert (plan.tests[0].train_steps, plan.tests[0].eval_every, plan.tests[0].steps_per_execution) == (2000, 100, 100)


def test_the_steps_of_the_norms_are_a_flag_and_the_drops_are_those_of_the_paper():
    config = AblationConfig(experiment="norms", num_seeds=1, norms_steps=78_000)
    runs = [ablations._plan(variant, config.train, config).tests[0] for variant in config.variants]
    assert len(runs) == 8
    assert {(run.train_steps, run.decay_steps) for run in runs} == {(78_000, (81 * 390, 122 * 390))}
    assert {run.eval_every for run in runs} == {2_600}
    shortest = AblationConfig(experiment="norms", norms_steps=5).variants[0]
    assert shortest.config(config.train, 0.1).decay_steps == (2, 3)


def test_the_steps_of_the_norms_are_rejected_for_other_experiments():
    with pytest.raises(UserError, match="norms_steps is for --experiment=norms; --operations sets the steps of rivals"):
        AblationConfig(experiment="rivals", norms_steps=100)
    with pytest.raises(UserError, match="norms_steps must be at least 5, got 4"):
        AblationConfig(experiment="norms", norms_steps=4)


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_a_small_experiment_runs_and_is_finished_from_what_is_there(tmp_path, tiny_config, monkeypatch):
    variants = (Variant("BN-free", (0.02,)), Variant("batch norm", (0.05,), {"use_batch_norm": True}))
    monkeypatch.setitem(EXPERIMENTS, "statements", variants)
    monkeypatch.setattr(figures, "save_figures", lambda *_: [])
    run, train = tmp_path / "run", dataclasses.replace(tiny_config, data=held_out(tiny_config))
    config = AblationConfig(train=train, operations=OPERATIONS, num_seeds=1)
    rows = ablations.run_ablations(config, str(run))
    assert {row["variant"] for row in rows} == {"BN-free", "batch norm"}
    assert json.loads((run / "config.json").read_text())["status"] == "done"
    before = (metrics := run / "BN_free_seed0" / "metrics.csv").stat().st_mtime_ns
    np.testing.assert_equal(ablations.run_ablations(config, str(run)), rows)
    assert metrics.stat().st_mtime_ns == before
