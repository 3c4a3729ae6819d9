"""launch.ablations --sweep: one field at several values."""

import dataclasses

import pytest
from launching import config_of
from legible import assert_legible

from identity_matters.errors import UserError
from identity_matters.experiments import ablations, sweep
from identity_matters.experiments.config import PRESETS, AblationConfig
from identity_matters.experiments.figures import sweep_figure, swept_values

pytestmark = pytest.mark.usefixtures("screen_style")


def test_the_command_of_the_docs_sweeps_the_preset_s_run():
    config = config_of("ablations", "--preset=mnist", "--sweep", "learning_rate=0.01,0.03,0.1", "--seeds=3")
    assert config.num_seeds == 3 and config.train.train_steps == 1_200
    plans = [ablations._plan(variant, config.train, config) for variant in config.variants]
    assert [plan.variant.name for plan in plans] == ["learning_rate=0.01", "learning_rate=0.03", "learning_rate=0.1"]
    runs = [run for plan in plans for run in plan.tests]
    assert [(run.learning_rate, run.seed) for run in runs] == [(r, s) for r in (0.01, 0.03, 0.1) for s in range(3)]
    preset = PRESETS["mnist"].train
    same = {"learning_rate": 0.1, "seed": 0, "data": preset.data}
    assert all(dataclasses.replace(preset, **vars(run) | same) == preset for run in runs)
    assert sweep.variants("train_steps=10,300", preset)[0].evaluations == 1  # of which a sweep has every hundred steps
    assert not any(plan.searches for plan in plans) and {run.data.validation_examples for run in runs} == {0}


@pytest.mark.parametrize(
    "text, values",
    [
        ("widths=16,32,64;32,64,128", [(16, 32, 64), (32, 64, 128)]),
        ("use_batch_norm=true,false", [True, False]),
        ("use_batch_norm=Yes,no", [True, False]),
        ("use_batch_norm=0,1", [False, True]),
        ("residual_initializer=small,zero", ["small", "zero"]),
        ("train_steps=100,200", [100, 200]),
        ("clip_norm=0, 1e-1", [0.0, 0.1]),
    ],
)
def test_a_field_of_the_run_or_of_the_network_has_each_value_once(text, values):
    base, field = PRESETS["mnist"].train, text.partition("=")[0]
    configs = [variant.config(base, variant.rates[0]) for variant in sweep.variants(text, base)]
    found = [getattr(config.model if hasattr(config.model, field) else config, field) for config in configs]
    assert found == values and [type(value) for value in found] == [type(value) for value in values]
    names = [variant.directory for variant in sweep.variants(text, base)]
    assert len(set(names)) == len(names) and not any("," in v.name for v in sweep.variants(text, base))


REFUSED = {
    "learning_rate": "must name a field and its values",
    "learning_rate=0.01": "two or more different values",
    "learning_rate=0.1,0.10": "two or more different values",
    "foo=1,2": "there is no field 'foo'",
    "keras_optimizer=1,2": "there is no field 'keras_optimizer'",
    "image_shape=1,2": "there is no field 'image_shape'",
    "widths=16;32,x": "values of widths must be whole numbers, got '32,x'",
    "batch_size=16.5,2": "values of batch_size must be whole numbers, got '16.5'",
    "shortcut=maybe,true": "values of shortcut must be true or false, got 'maybe'",
    "momentum=0.5,1.5": r"momentum must lie in \[0, 1\), got 1.5",
    "learning_rate=0.1,nan": "learning_rate must be a finite number",
    "seed=1,2": "sweep cannot be over seed: give --seeds=3",
    "dataset=mnist,cifar10": "sweep cannot be over dataset: the data are the same",
    "test_split=test,dev": "sweep cannot be over test_split: the data are the same",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_sweep_that_cannot_be_is_one_line(text):
    with pytest.raises(UserError, match=REFUSED[text]):
        AblationConfig(train=PRESETS["mnist"].train, sweep=text)


@pytest.mark.parametrize(
    "flag", ["--learning_rate=0.5", "--operations=1e9", "--only=BN-free", "--validation_examples=9"]
)
def test_flags_that_a_sweep_does_not_read_are_refused(flag):
    with pytest.raises(UserError, match=f"^{flag.partition('=')[0]} is "):
        config_of("ablations", "--sweep=learning_rate=0.1,0.2", flag)
    assert config_of("ablations", "--sweep=momentum=0.8,0.9", "--learning_rate=0.5").train.learning_rate == 0.5


def row(value, seed, error, status="done"):
    name = f"learning_rate={value}"
    return {"variant": name, "phase": "test", "seed": seed, "status": status, "test_top1_error": error} | {
        "train_top1_error": error / 2, "step": 9, "kernel_norm": 1.0,
    }  # fmt: skip


def test_the_figure_has_the_mean_of_each_value_and_marks_those_that_diverged():
    rows = [row(0.1, 0, 0.3), row(0.1, 1, 0.5), row(0.01, 0, 0.6), row(1.0, 0, float("nan"), "diverged")]
    field, values = swept_values({row["variant"] for row in rows})
    figure = sweep_figure(rows, field, values)
    assert_legible(figure)
    axes = figure.axes[0]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines if line.get_label()[0] != "_"}
    assert lines["test error"][:2] == [[0.01, 0.6], [0.1, 0.4]] and lines["all diverged"] == [[1.0, 0.97]]
    assert (axes.get_xlabel(), axes.get_xscale()) == ("learning rate", "log")
    assert "sweep" in ablations.draw(rows) and swept_values(["learning_rate=1", "momentum=0.5"]) is None
