"""What launch.ablations compares, and which flags it takes: each variant by the rules of its optimiser."""

import dataclasses
import json
import math
import pathlib

import pytest

from identity_matters.errors import UserError
from identity_matters.experiments.ablations import EXTENSIONS
from identity_matters.experiments.config import PRESETS, AblationConfig
from identity_matters.experiments.variants import EXPERIMENTS, Variant
from identity_matters.presets import TRAIN_PRESETS
from identity_matters.runs.tables import read_rows

RUNS = pathlib.Path(__file__).parents[2] / "docs" / "runs"


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_variant_is_a_config_with_its_own_directory(experiment):
    config = AblationConfig(experiment=experiment)
    configs = [variant.config(config.train, variant.rates[0]) for variant in config.variants]
    assert len({dataclasses.replace(c, learning_rate=1.0) for c in configs}) == len(configs)
    assert not [variant.name for variant in config.variants if "," in variant.name]
    names = [variant.directory for variant in config.variants]
    assert len(set(names)) == len(names) and all(name.replace("_", "").isalnum() for name in names)


def test_the_first_variant_is_the_base():
    rivals = AblationConfig(experiment="rivals")
    assert rivals.variants[0].config(rivals.train, rivals.train.learning_rate) == rivals.train
    statements = AblationConfig()
    narrow = {"widths": (24, 48, 96), "stem_width": 24}
    changed = dataclasses.replace(statements.train, model=dataclasses.replace(statements.train.model, **narrow))
    assert statements.variants[0].config(statements.train, changed.learning_rate) == changed


def test_rates_are_not_chosen_on_the_test_images(monkeypatch):
    AblationConfig(train=TRAIN_PRESETS["cifar10_fast"], experiment="norms")  # which chooses none
    monkeypatch.setitem(EXPERIMENTS, "norms", (Variant("of two", (0.1, 0.2)), Variant("of one", (0.1,))))
    for experiment in ("statements", "norms"):
        with pytest.raises(UserError, match="validation_examples must be at least 1"):
            AblationConfig(train=TRAIN_PRESETS["cifar10_fast"], experiment=experiment)
    held_out = {name: preset.train.data.validation_examples for name, preset in PRESETS.items()}
    assert held_out == {"cifar10_fast": 5_000, "cifar10": 5_000, "mnist": 1_000}


@pytest.mark.parametrize(
    ("experiment", "flag"),
    [
        ("statements", "weight_decay=0.1"),
        ("norms", "schedule=cosine"),
        # Of some variants alone: the others would no longer be what their names say.
        ("statements", "clip_norm=0.5"),
        ("rivals", "batch_size=64"),
        ("rivals", "decoupled_weight_decay=0.2"),
    ],
)
def test_a_flag_that_the_experiment_overrides_is_named(experiment, flag, tmp_path, launch):
    flags = [f"--experiment={experiment}", f"--{flag}", f"--npz={tmp_path}/none"]
    code, _, err = launch("ablations", *flags, f"--run_dir={tmp_path}/run")
    first, last = err.splitlines()
    assert first.startswith(f"note: --{flag.split('=')[0]} has no effect: set by the experiment: see --operations")
    assert code == 1 and "none" in last
    assert not (tmp_path / "run").exists()


def test_settings_of_every_experiment_have_no_flags(launch):
    _, out, _ = launch("ablations", "--help")
    assert "\n  --learning_rate=" not in out and "\n  --warmup_steps=" in out


def test_a_flag_that_no_variant_overrides_or_at_its_own_value_is_taken(tmp_path, launch):
    flags = ["--warmup_steps=10", "--widths=48,96,96"]
    _, _, err = launch("ablations", "--experiment=rivals", *flags, f"--npz={tmp_path}/none", f"--run_dir={tmp_path}/a")
    assert "No such file" in err
    assert "\n  --widths=" in launch("ablations", "--experiment=rivals", "--help")[1]


def test_every_network_is_trained_by_the_rules_of_its_optimizer():
    for experiment in EXPERIMENTS:
        config = AblationConfig(experiment=experiment)
        for variant in config.variants:
            run = variant.config(config.train, variant.rates[0])
            penalty = 1e-3 if variant.name == "All-CNN-C with clipped SGD" else 1e-4
            unclipped = dataclasses.replace(config.train, clip_norm=0.5)
            if run.optimizer != "muon":  # what the base has must not reach it
                assert variant.config(unclipped, 0.1).clip_norm == run.clip_norm, variant.name
            expected = (0.1, 0.0, 0.0) if run.optimizer == "muon" else (0.0, penalty, run.clip_norm)
            assert (run.decoupled_weight_decay, run.model.weight_decay, run.clip_norm) == expected, variant.name
            is_clipped = "clipped" in variant.name or variant.name.endswith("layers")
            assert run.clip_norm == (1.0 if is_clipped else 0.0), variant.name


def convolution_flops(model, side, num_channels):
    """Operations of an update per image: every kernel at the pixels it is applied to, three times, the first twice."""
    kernels = [(num_channels, model.stem_width, side)]
    side //= model.stem_pool
    for stage, (width, blocks) in enumerate(zip(model.widths, model.blocks_per_stage)):
        for _ in range(2 * blocks):
            kernels.append((kernels[-1][1], width, side // 2**stage))
    forward = [2 * 9 * before * after * pixels**2 for before, after, pixels in kernels]
    return 3 * sum(forward) - forward[0]


@pytest.mark.parametrize(
    "experiment, names",
    [("statements", ["statements", "ladder"]), *((name, [name]) for name in ("rivals", "norms", "initializers"))],
)
def test_every_variant_is_what_the_kept_runs_trained(experiment, names):
    """Its learning rates, its number of steps, evaluations and operations, as results.csv has them."""
    runs, shape = {}, (16, 1) if experiment == "initializers" else (32, 3)
    for name in names:
        for row in read_rows(str(RUNS / name / "results.csv")):
            runs.setdefault(row["variant"], {}).setdefault(row["phase"], []).append(row)
    config = json.loads((RUNS / names[0] / "config.json").read_text())["config"]
    base = AblationConfig(experiment=experiment).train
    assert runs.keys() <= {variant.name for variant in EXPERIMENTS[experiment]}
    for variant in EXPERIMENTS[experiment]:
        if "test" not in runs.get(variant.name, ()):  # a rung of the ladder, which takes an H200
            model = variant.config(base, variant.rates[0]).model
            assert variant.name.startswith("9 blocks a stage with") and model.blocks_per_stage == (9, 9, 9)
            assert (model.stem_width, model.widths) == (12, (12, 24, 48))
            continue
        tried = {row["chosen_rate"] for row in runs[variant.name].get("search", ())}
        beyond = {rate for rate in tried if not min(variant.rates) <= rate <= max(variant.rates)}
        planned = [] if len(variant.rates) == 1 else list(variant.rates)
        assert sorted(tried - beyond) == planned and len(beyond) <= EXTENSIONS, variant.name
        planned = variant.config(base, variant.rates[0])
        seed = [row for row in runs[variant.name]["test"] if row["seed"] == 0]
        steps, done = seed[-1]["step"], seed[-1]["status"] == "done"
        if done:
            assert len(seed) == math.ceil(steps / math.ceil(steps / variant.evaluations)), variant.name
        if done and planned.model.network == "all_conv_resnet":
            flops = convolution_flops(planned.model, *shape) * planned.batch_size
            assert seed[-1]["train_flops"] == pytest.approx(steps * flops, rel=1e-6), variant.name
            if "train_steps" not in variant.train:
                assert steps == round(config["operations"] / flops), variant.name
        if experiment == "norms":
            falls = [row["learning_rate"] / seed[0]["learning_rate"] for row in seed]
            drops = [sum(row["step"] > step for step in planned.decay_steps) for row in seed]
            assert planned.data.eval_examples == 1_000
            assert steps == planned.train_steps and falls == pytest.approx([0.1**drop for drop in drops])


@pytest.mark.parametrize("experiment", ["statements", "rivals"])
def test_every_variant_is_what_its_name_says(experiment):
    base = AblationConfig(experiment=experiment).train
    for variant in EXPERIMENTS[experiment]:
        run, name = variant.config(base, variant.rates[0]), variant.name
        initializer = next((kind for kind in ("standard", "zero") if f"{kind} initializer" in name), "small")
        assert run.model.residual_initializer == initializer, name
        if name.startswith("9 blocks a stage"):
            assert (run.model.blocks_per_stage, run.model.widths) == ((9, 9, 9), (12, 24, 48)), name
        assert run.model.use_batch_norm == ("batch norm" in name) and run.model.shortcut == ("no shortcuts" not in name)
        assert run.model.train_projection == ("trained projection" in name)
        assert (run.optimizer, run.momentum) == ("keras_momentum" if "SGD" in name else "muon", 0.9), name
