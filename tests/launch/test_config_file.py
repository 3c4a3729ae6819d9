"""--config=FILE: a run's config.json, or a JSON of flags, as the start of another run."""

import dataclasses
import json

import pytest
from launching import config_of

from identity_matters.fields import all_fields
from identity_matters.presets import TRAIN_PRESETS


def written(path, contents):
    path.write_text(json.dumps(contents))
    return f"--config={path}"


def test_a_run_is_begun_with_the_config_of_another_and_flags_override(tiny_run, tiny_config):
    flags = "--learning_rate=0.25", "--stem_width=3"
    config = config_of("train", f"--config={tiny_run}/config.json", *flags)
    assert config == config_of("train", f"--config={tiny_run}", *flags)
    model = dataclasses.replace(tiny_config.model, stem_width=3)
    assert config == dataclasses.replace(tiny_config, learning_rate=0.25, model=model)


def test_a_json_of_flags_changes_a_preset(tmp_path):
    flag = written(tmp_path / "flags.json", {"train_steps": 7, "widths": [16, 32, 128], "decay_steps": []})
    config = config_of("train", "--preset=mnist", flag, "--seed=3")
    preset = TRAIN_PRESETS["mnist"]
    model = dataclasses.replace(preset.model, widths=(16, 32, 128))
    assert config == dataclasses.replace(preset, train_steps=7, decay_steps=(), seed=3, model=model)


@pytest.mark.parametrize(
    "contents, flags, expected",
    [
        ({"test_share": 0.2}, ["--images=photos"], {"images": "photos", "test_share": 0.2}),
        ({"widths": [4, 8, 16]}, ["--stem_width=2"], {"widths": (4, 8, 16), "stem_width": 2}),
        ({"model": {"widths": [4, 8, 16]}}, ["--stem_width=2"], {"widths": (4, 8, 16), "stem_width": 2}),
        ({"data": {"npz": "a.npz"}}, ["--npz=", "--images=photos"], {"npz": "", "images": "photos"}),
        ({"warmup_steps": 60_000}, ["--train_steps=90000"], {"warmup_steps": 60_000, "train_steps": 90_000}),
        ({"train_steps": 7, "decay_steps": []}, ["--train_steps=9"], {"train_steps": 9, "decay_steps": ()}),
    ],
)
@pytest.mark.parametrize("launcher", ["train", "cluster"])
def test_flags_complete_what_a_file_begins(tmp_path, contents, flags, expected, launcher):
    config = config_of(launcher, written(tmp_path / "flags.json", contents), *flags)
    values = {field.name: getattr(holder, field.name) for field, holder in all_fields(config)}
    assert {name: values[name] for name in expected} == expected


def test_workers_take_the_config_of_a_run(tiny_run, tiny_config):
    config = config_of("cluster", f"--config={tiny_run}", "--num_workers=4", "--seed=5")
    assert config.train == dataclasses.replace(tiny_config, seed=5) and config.num_workers == 4


@pytest.mark.parametrize(
    "contents, words",
    [
        ({"lerning_rate": 0.1}, ["'lerning_rate'"]),
        ({"train_steps": "many"}, ["train_steps", "'many'"]),
        ({"widths": [4, 8, 16]}, ["widths", "(4, 8, 16)"]),
        ([1], ["[1]"]),
        ({"kind": "hessian_spectrum", "config": {"saved_run": "x"}}, ["'saved_run'"]),
        ({"kind": "train", "config": {"seed": 5}}, ["--preset"]),  # the config of a run, and a preset
    ],
)
def test_a_file_that_holds_no_config_is_named(launch, tmp_path, contents, words):
    flags = [written(tmp_path / "flags.json", contents), f"--run_dir={tmp_path}/run"]
    code, _, err = launch("train", *flags, *(["--preset=mnist"] if words == ["--preset"] else []))
    assert code == 1 and err.count("\n") == 1 and not (tmp_path / "run").exists()
    assert not [word for word in [flags[0], *words] if word not in err], err
