"""Configs: every field is read somewhere."""

import ast
import dataclasses
import functools
import json
import pathlib
import re

import numpy as np
import pytest
from refusals import refused

import identity_matters
from identity_matters import config, fields
from identity_matters.experiments import ablations
from identity_matters.presets import TRAIN_PRESETS

PROJECT = pathlib.Path(identity_matters.__file__).parents[1]


class _Reads(ast.NodeVisitor):
    """The attributes read off a config, by its own methods too, but not by the checks of __post_init__."""

    def __init__(self):
        self.found, self._owner = set(), ""

    def visit_ClassDef(self, node):
        self._owner = "|self" if node.name.endswith("Config") else ""
        self.generic_visit(node)
        self._owner = ""

    def visit_FunctionDef(self, node):
        if node.name != "__post_init__":
            self.generic_visit(node)

    def visit_Attribute(self, node):
        if re.fullmatch(rf"((self\.)?\w*config{self._owner})(\.train)?(\.model)?", ast.unparse(node.value)):
            self.found.add(node.attr)
        self.generic_visit(node)


@functools.cache
def fields_read() -> set[str]:
    reads = _Reads()
    for path in (PROJECT / "identity_matters").rglob("*.py"):
        reads.visit(ast.parse(path.read_text()))
    return reads.found


@pytest.mark.parametrize("kind", [config.ModelConfig, config.TrainConfig, ablations.AblationConfig])
def test_every_field_of_a_config_is_read_somewhere(kind):
    read = fields_read()
    assert {field.name for field in dataclasses.fields(kind)} - read == set()
    assert not {"trainable_variables", "shape"} & read  # attributes of other things do not count


@pytest.mark.parametrize(
    "name, given, taken",
    [
        ("train_steps", 1e3, 1000),
        ("batch_size", np.int64(64), 64),
        ("learning_rate", 1, 1.0),
        ("decay_steps", [10, 20], (10, 20)),
        ("decay_steps", np.array([10, 20]), (10, 20)),
        ("random_flip", np.bool_(False), False),
        ("init_from", pathlib.Path("data"), "data"),
    ],
)
def test_values_made_in_python_become_those_of_their_field(name, given, taken):
    value = getattr(config.TrainConfig(**{name: given}), name)
    assert value == taken and type(value) is type(taken)
    json.dumps(value)


SERVED = {"strategy": "parameter_server"}
REFUSED = [
    # What cannot be, before memory or hours are spent on it.
    (config.TrainConfig, {"learning_rate": float("inf")}, "learning_rate must be a finite number, got inf"),
    (config.TrainConfig, {"batch_size": 2**32}, "batch_size must be at most 1048576, got 4294967296"),
    (config.TrainConfig, {"warmup_steps": 60_000}, "warmup_steps must be below train_steps = 50,000, got 60,000"),
    (config.TrainConfig, {"decay_steps": (1, 10**20)}, "decay_steps must be at most 4294967295, got 1"),
    (config.ModelConfig, {"blocks_per_stage": (1, 1, 10**5)}, "blocks_per_stage must be at most 10000, got 100002"),
    *(
        (config.ModelConfig, {"shortcut": False, "residual_initializer": name}, f"'{name}' makes every gradient 0")
        for name in ("zero", "fixup", "rezero")
    ),
    (config.ModelConfig, {"widths": (64, 128)}, "need one number per stage, got (64, 128) and (9, 9, 9)"),
    (
        config.ModelConfig,
        {"widths": (64, 256, 128)},
        "widths must not decrease or begin below stem_width, got (64, 256",
    ),
    (config.ModelConfig, {"stem_width": 65}, "and stem_width 65"),
    (config.ModelConfig, {"image_shape": (32, 32)}, "image_shape must be (height, width, channels), got (32, 32)"),
    (config.TrainConfig, {"decay_steps": (0, 5)}, "decay_steps must be positive and increase, got (0, 5)"),
    (config.TrainConfig, {"decay_steps": (5, 9, 9)}, "decay_steps must be positive and increase, got (5, 9, 9)"),
    (config.TrainConfig, {"schedule": "exponential", "decay_steps": (5, 9)}, "takes one number of decay_steps"),
    (config.TrainConfig, {"momentum": 1.0}, "momentum must lie in [0, 1), got 1.0"),
    (config.TrainConfig, {"strategy": "none"}, "strategy must be one of synchronous, parameter_server, got 'none'"),
    (config.TrainConfig, {"steps_per_execution": 3}, "train_steps must be a multiple of steps_per_execution = 3"),
    # Values of another type.
    (config.TrainConfig, {"batch_size": "32"}, "batch_size must be a whole number, got '32'"),
    (config.TrainConfig, {"batch_size": 1.5}, "batch_size must be a whole number, got 1.5"),
    (config.TrainConfig, {"batch_size": True}, "batch_size must be a whole number, got True"),
    (config.TrainConfig, {"train_steps": float("nan")}, "train_steps must be a whole number, got nan"),
    (config.TrainConfig, {"learning_rate": "0.1"}, "learning_rate must be a number, got '0.1'"),
    (config.TrainConfig, {"decay_steps": 10}, "decay_steps must be whole numbers, got 10"),
    (config.TrainConfig, {"decay_steps": [10, "20"]}, "decay_steps must be a whole number, got '20'"),
    (config.TrainConfig, {"random_flip": "no"}, "random_flip must be True or False, got 'no'"),
    (config.DataConfig, {"dataset": 5}, "dataset must be text, got 5"),
    (config.TrainConfig, {"schedule": ["linear"]}, "schedule must be one of piecewise"),
    (config.TrainConfig, {"model": "mnist"}, "model must be a ModelConfig, got 'mnist'"),
    # Parameter servers take SGD alone, a step at a time.
    (config.TrainConfig, SERVED | {"optimizer": "muon"}, "optimizer muon"),
    (config.TrainConfig, SERVED | {"decoupled_weight_decay": 0.1}, "decoupled_weight_decay"),
    (config.TrainConfig, SERVED | {"steps_per_execution": 2}, "steps_per_execution must be 1"),
]


@pytest.mark.parametrize("kind, changes, message", REFUSED)
def test_an_invalid_field_raises_a_short_error(kind, changes, message):
    assert message in refused(kind, **changes)


def test_what_is_just_possible_is_taken():
    config.ModelConfig(stem_width=64)
    config.ModelConfig(stem_width=65, network="resnet_20")
    config.ModelConfig(widths=(3, 2, 1), shortcut=False, residual_initializer="standard")
    config.TrainConfig(decay_steps=(1, 2), momentum=0.0, **SERVED)
    config.TrainConfig(decay_steps=(5,), schedule="exponential", warmup_steps=49_999)


@dataclasses.dataclass(frozen=True)
class Limited(fields.Checked):
    number: int = fields.option(5, at_least=1)
    several: tuple[int, ...] = fields.option((2, 3), at_least=2)
    share: float = fields.option(0.5, at_least=0, at_most=1)
    rate: float = fields.option(1.0, above=0)


@pytest.mark.parametrize(
    "name, taken, left, words",
    [
        ("number", 1, 0, "number must be at least 1, got 0"),
        ("number", 2**32 - 1, 2**32, "number must be at most 4294967295, got 4294967296"),
        ("several", (2,), (), "several must be numbers of at least 2, got ()"),
        ("several", (5, 2), (5, 1), "several must be numbers of at least 2, got (5, 1)"),
        ("several", (2**31, 2**31 - 1), (2**31, 2**31), "several must be at most 4294967295, got 4294967296"),
        ("share", 0, -1e-9, "share must be at least 0, got -1e-09"),
        ("share", 1, 1.001, "share must be at most 1, got 1.001"),
        ("rate", 1e-300, 0, "rate must be positive, got 0.0"),
        ("rate", 1e300, np.inf, "rate must be a finite number, got inf"),
    ],
)
def test_a_number_at_its_limit_is_taken_and_the_next_one_rejected(name, taken, left, words):
    assert getattr(Limited(**{name: taken}), name) == taken
    assert refused(Limited, **{name: left}) == words


OF_NPZ, OF_DIGITS = {"dataset", "data_dir", "download"}, {"train_split", "test_split", "download"}
FIXUP = config.ModelConfig(residual_initializer="fixup")
OF_RESNET = {
    "stem_width", "stem_kernel_size", "stem_stride", "stem_pool", "widths", "blocks_per_stage", "convs_per_block",
    "residual_initializer", "train_projection", "projection_scale", "shortcut", "use_batch_norm",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes, names, why",
    [
        ({}, set(), ""),
        ({"schedule": "linear", "decay_steps": ()}, {"decay_steps", "decay_factor"}, "schedule is linear"),
        ({"schedule": "exponential", "decay_steps": (5,)}, set(), ""),
        ({"data": config.DataConfig(npz="x.npz")}, OF_NPZ, "npz has the data"),
        ({"data": config.DataConfig(images="x")}, OF_NPZ, "images has the data"),
        ({"data": config.DataConfig("mnist_sample")}, OF_DIGITS, "dataset is mnist_sample, which"),
        ({"model": FIXUP}, set(), ""),
        ({"model": dataclasses.replace(FIXUP, train_projection=True)}, {"projection_scale"}, "starts a trained"),
        ({"model": config.ModelConfig(train_projection=True)}, set(), ""),
        ({"model": config.ModelConfig(network="resnet_20")}, OF_RESNET, "network is resnet_20"),
    ],
)
def test_the_fields_that_a_run_does_not_read_are_known(changes, names, why):
    found = config.TrainConfig(**changes, optimizer="muon", init_from="digits").unused_fields()
    assert found.keys() == names and all(why in reason for reason in found.values())
    others = {"newton_schulz_steps": "optimizer is nesterov", "fresh": "without init_from all weights are new"}
    assert config.TrainConfig(**changes, optimizer="nesterov").unused_fields() == found | others


def test_the_cifar10_preset_is_the_run_of_hardt_and_ma():
    """§4.1 and Table 1, which do not say how many steps, nor how it crops: docs/appendix/choices.md does."""
    preset, larger = TRAIN_PRESETS["cifar10"], TRAIN_PRESETS["cifar100"]
    assert larger == dataclasses.replace(preset, model=larger.model, data=config.DataConfig("cifar100"))
    assert larger.model == dataclasses.replace(preset.model, num_classes=100)
    network = {
        "network": "all_conv_resnet", "stem_width": 16, "stem_kernel_size": 3, "stem_stride": 1, "stem_pool": 1,
        "widths": (64, 128, 256), "blocks_per_stage": (9, 9, 9), "convs_per_block": 2, "residual_initializer": "small",
        "train_projection": False, "projection_scale": 1.0, "shortcut": True, "use_batch_norm": False,
        "weight_decay": 1e-4,
    }  # fmt: skip
    run = {
        "data": config.DataConfig(), "crop_padding": 2, "train_steps": 50_000, "batch_size": 128,
        "optimizer": "momentum",
        "momentum": 0.9, "learning_rate": 0.05, "schedule": "piecewise", "decay_steps": (30_000,), "decay_factor": 0.1,
        "warmup_steps": 0, "clip_norm": 0.0, "decoupled_weight_decay": 0.0,
    }  # fmt: skip
    assert {name: getattr(preset, name) for name in run} == run
    assert {name: getattr(preset.model, name) for name in network} == network


def flat(fields, prefix=""):
    """The fields of a config in one dict, those of configs in it with the name before them; tuples are lists."""
    found = {}
    for name, value in (fields if isinstance(fields, dict) else dataclasses.asdict(fields)).items():
        found |= flat(value, f"{name}.") if isinstance(value, dict) else {prefix + name: value}
    return {name: [*value] if isinstance(value, tuple) else value for name, value in found.items()}


@pytest.mark.parametrize("preset, run, differing", [("cifar10_fast", "fast", {}), ("cifar10_wide", "wide", {True})])
def test_the_smaller_presets_are_the_runs_that_are_kept(preset, run, differing):
    kept = json.loads((PROJECT / "docs" / "runs" / f"{run}_seed0" / "config.json").read_text())["config"]
    kept, own = flat(kept), flat(TRAIN_PRESETS[preset])
    common = own.keys() & kept.keys() - {"model.mixed_precision", "data.data_dir"}
    assert {name: own[name] for name in common} == {name: kept[name] for name in common} and len(common) > 35
    assert {kept["model.mixed_precision"]} - {False} == set(differing)  # on a GPU


IMAGENET = {
    "model.image_shape": [224, 224, 3], "model.num_classes": 1000, "model.stem_width": 64, "model.stem_kernel_size": 7,
    "model.stem_stride": 2, "model.stem_pool": 2, "model.widths": [64, 128, 256, 512],
    "model.blocks_per_stage": [3, 4, 6, 3], "data.dataset": "imagenet2012", "data.image_size": 224,
    "train_steps": 700_000, "batch_size": 256, "learning_rate": 0.1, "schedule": "exponential",
    "decay_steps": [2 * 1_281_167 // 256], "decay_factor": 0.94, "eval_every": 10_000, "checkpoint_every": 2_000,
}  # fmt: skip
OTHER_PRESETS = {
    "mnist": {
        "model.image_shape": [28, 28, 1], "model.widths": [16, 32, 64], "model.blocks_per_stage": [2, 2, 2],
        "model.residual_initializer": "standard", "data.dataset": "mnist_sample", "random_flip": False,
        "train_steps": 1_200, "batch_size": 32, "learning_rate": 0.1, "decay_steps": [700, 1_000], "clip_norm": 0.5,
        "eval_every": 100, "checkpoint_every": 100,
    },
    "imagenet": IMAGENET | {"model.stem_width": 83, "model.widths": [83, 166, 333, 666]},
    "imagenet_narrow": IMAGENET,
}  # fmt: skip


@pytest.mark.parametrize("preset", OTHER_PRESETS)
def test_other_presets_differ_from_the_paper_s_cifar10_run_by(preset):
    """ImageNet: §4.2's ResNet-34, and its rate of 0.1 that falls by 0.94 every two epochs of 1,281,167 images."""
    own, paper = flat(TRAIN_PRESETS[preset]), flat(TRAIN_PRESETS["cifar10"])
    assert {name: value for name, value in own.items() if value != paper[name]} == OTHER_PRESETS[preset]
