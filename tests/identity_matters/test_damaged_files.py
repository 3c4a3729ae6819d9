"""One table of damaged files: how to make one, which reader, and what must happen."""

import json
import os
import pathlib
import shutil
import warnings

import keras
import numpy as np
import pytest
from begun import newest_checkpoint
from gradient_sets import IdentityTinyJpeg
from loaded import load
from refusals import refused

from identity_matters import training
from identity_matters.config import DataConfig, TrainConfig
from identity_matters.evaluation import evaluate
from identity_matters.runs import checkpoint, tables
from identity_matters.runs.record import read_record
from identity_matters.untrusted import load_network

IMAGES = np.zeros((4, 8, 4, 3), np.uint8)


def cut(path: pathlib.Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def replace(text: str):
    return lambda path: path.write_text(text)


def remove(path: pathlib.Path) -> None:
    path.unlink()


def pipe(path: pathlib.Path) -> None:
    path.unlink()
    os.mkfifo(path)


def another_network(path: pathlib.Path) -> None:
    x = keras.Input((3,))
    keras.Model(x, keras.layers.Dense(2)(x)).save(path)


def without_test_labels(path: pathlib.Path) -> None:
    np.savez(path, train_images=IMAGES, train_labels=np.arange(4), test_images=IMAGES)


def write_npz(path: pathlib.Path) -> pathlib.Path:
    np.savez(path / "own.npz", x_train=IMAGES, y_train=np.arange(4), x_test=IMAGES, y_test=np.arange(4))
    return path / "own.npz"


def read_npz(path):
    return load(DataConfig(npz=str(path)))


# reader, and for each damage the words of its one-line error.
TABLE = [
    ("npz", cut, "as an .npz file"),
    ("npz", replace("text"), "as an .npz file"),
    ("npz", pipe, "not a regular file"),
    ("npz", remove, "No such file"),
    ("npz", without_test_labels, "lacks test_labels; it holds train_images"),
    ("network", cut, "it is damaged, or not a network of this project"),
    ("network", flip, "cannot load"),
    ("network", remove, "No such file"),
    ("network", another_network, "GlorotUniform"),
    ("config", replace("{"), "config.json is not a run's config.json"),
    ("config", replace("[]"), "config.json is not a run's config.json"),
    ("config", replace('{"config": {}}'), "kind"),
    ("metrics", replace("step,loss\n"), "metrics.csv"),
    ("metrics", replace("step,loss\n1\n"), "line 2 has 1 cells"),
    ("metrics", replace("step,loss\n1,x\n"), "metrics.csv"),
]


@pytest.mark.parametrize("reader, damage, words", TABLE)
def test_a_damaged_file_is_a_short_error_with_its_path(tiny_run, tmp_path, reader, damage, words):
    name = {"network": "model.keras", "config": "config.json", "metrics": "metrics.csv"}.get(reader)
    path = tmp_path / name if name else write_npz(tmp_path)
    if name:
        shutil.copy(tiny_run / name, path)
    damage(path)
    if reader == "npz":
        message = refused(read_npz, path)
    elif reader == "network":
        message = refused(evaluate, path, "mnist_sample")
    elif reader == "config":
        message = refused(read_record, str(tmp_path))
    else:
        message = refused(tables.read_metrics, str(path))
    assert words in message and (str(path) in message) and len(message) < 600


def test_a_whole_network_is_loaded(tiny_run):
    assert load_network(str(tiny_run / "model.keras")).output_shape == (None, 10)


@pytest.mark.parametrize("damage", [cut, flip, replace("text"), remove, pipe])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, damage):
    for step in (1, 2):
        checkpoint.save(str(tmp_path), {"a": np.arange(100.0), "step": np.int64(step)})
    damage(tmp_path / "step_00000002.npz")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert newest_checkpoint(str(tmp_path))[0] == 1
    assert ["step_00000002" in str(warning.message) for warning in caught] == [True] * (damage is not remove)


def test_a_run_with_a_damaged_table_is_not_trained_on(tiny_run, tiny_config, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_text("step,loss\n")
    assert "metrics.csv" in refused(training.train, tiny_config, str(tmp_path / "run"))


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again(tiny_run, tiny_config, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(record | {"status": "running"}))
    paths = list((run / "checkpoints").iterdir())
    for path in paths:
        cut(path)
    with pytest.warns(UserWarning, match="skipping the damaged checkpoint"):
        message = refused(training.train, tiny_config, str(run))
    assert f"none of the {len(paths)} checkpoint(s)" in message


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds") / "data"
    IdentityTinyJpeg(data_dir=str(path)).download_and_prepare()
    return path


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("damage", [cut, remove])
def test_a_damaged_tfds_set_ends_training_with_a_short_error(prepared, tiny_config, tmp_path, split, damage):
    shutil.copytree(prepared, tmp_path / "data")
    folder = tmp_path / "data" / "identity_tiny_jpeg" / "1.0.0"
    damage(min(folder.glob(f"*-{split}.tfrecord*")))
    config = TrainConfig(tiny_config.model, DataConfig("identity_tiny_jpeg", str(tmp_path / "data"), image_size=28))
    message = refused(training.train, config, str(tmp_path / "run"))
    assert message.startswith("cannot read identity_tiny_jpeg") and "{{" not in message
