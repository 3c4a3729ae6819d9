"""TFDS sets that are damaged, or that want to run code: one line, and nothing is run."""

import dataclasses
import shutil
import sys

import damage
import pytest
import tensorflow_datasets as tfds
from gradient_sets import IdentityTinyJpeg
from loaded import load
from refusals import refused

from identity_matters import training
from identity_matters.config import DataConfig, ModelConfig, TrainConfig


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds") / "data"
    IdentityTinyJpeg(data_dir=str(path)).download_and_prepare()
    return path


@pytest.fixture
def copied(prepared, tmp_path):
    """A copy of the set of varying size, to be damaged: its folder, and the config that reads it."""
    shutil.copytree(prepared, tmp_path / "data")
    config = DataConfig("identity_tiny_jpeg", str(tmp_path / "data"), image_size=8)
    return tmp_path / "data" / "identity_tiny_jpeg" / "1.0.0", config


def train_on(data, run_dir):
    """Trains four steps."""
    model = ModelConfig(image_shape=(8, 8, 3), stem_width=2, widths=(2,), blocks_per_stage=(1,))
    steps = {"train_steps": 4, "eval_every": 4, "checkpoint_every": 4, "decay_steps": ()}
    return training.train(TrainConfig(model, data, batch_size=5, **steps), str(run_dir))


SLOW = pytest.mark.slow


@pytest.mark.parametrize("split", ["train", pytest.param("test", marks=SLOW)])
@pytest.mark.parametrize("damage", ["flipped", *(pytest.param(name, marks=SLOW) for name in ("truncated", "missing"))])
def test_a_damaged_streamed_set_ends_training_in_one_line(copied, tmp_path, split, damage):
    folder, config = copied
    path = min(folder.glob(f"*-{split}.tfrecord*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.unlink()
    if damage != "missing":
        path.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    message = refused(train_on, config, tmp_path / "run")
    assert message.startswith(f"cannot read identity_tiny_jpeg in {folder}: ") and "{{" not in message


@pytest.mark.parametrize("version", ["", pytest.param(":1.0.0", marks=SLOW)])
@pytest.mark.parametrize("content", [b"{", *(pytest.param(text, marks=SLOW) for text in (b"", b"[" * 100_000, b"{}"))])
def test_a_damaged_description_of_a_set_is_refused_in_one_line(copied, version, content):
    folder, config = copied
    (folder / "dataset_info.json").write_bytes(content)
    assert "TFDS cannot make" in refused(load, dataclasses.replace(config, dataset=config.dataset + version))


@pytest.mark.parametrize(
    "features",
    [
        '{"pythonClassName": "evil.Feature", "featuresDict": {}}',
        '{"type": "evil.Feature", "content": {}}',
        '{"type": "tensorflow_datasets_evil.Feature", "content": {}}',
    ],
)
def test_the_module_that_a_features_json_names_is_not_imported(copied, tmp_path, monkeypatch, features):
    """TFDS alone would import it from the current folder."""
    folder, config = copied
    (folder / "features.json").write_text(features)
    for name in ("evil", "tensorflow_datasets_evil"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with pytest.raises(ValueError):
        tfds.builder("identity_tiny_jpeg:1.0.0", data_dir=config.data_dir)
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    for name in ("evil", "tensorflow_datasets_evil"):
        sys.modules.pop(name, None)
    for dataset in ("identity_tiny_jpeg:1.0.0", "of_no_code:1.0.0", "of_no_code"):
        if dataset.startswith("of") and not (folder.parents[1] / "of_no_code").exists():
            shutil.copytree(folder.parent, folder.parents[1] / "of_no_code")
        assert "not TFDS's own" in refused(load, dataclasses.replace(config, dataset=dataset))
    assert not (tmp_path / "ran").exists()


def test_a_set_at_an_address_is_not_fetched(copied):
    _, config = copied
    assert "is a URL" in refused(load, dataclasses.replace(config, data_dir="gs://tfds-data/datasets"))


def test_a_label_of_no_class_in_a_streamed_set_ends_training_in_one_line(copied, tmp_path):
    folder, config = copied
    damage.num_classes(3)(folder)
    config = dataclasses.replace(config, dataset=f"{config.dataset}:1.0.0")
    message = refused(train_on, config, tmp_path / "run")
    assert message.startswith(f"cannot read identity_tiny_jpeg in {folder}: labels ") and "of 3 classes" in message
