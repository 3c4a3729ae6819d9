"""TFDS sets that are damaged, or that want to run code: one line, and nothing is run."""

import dataclasses
import json
import os
import shutil
import struct
import sys

import pytest
import tensorflow_datasets as tfds
from gradient_sets import IdentityTinyJpeg
from loaded import load
from refusals import refused
from tensorboardX.crc32c import crc32c

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


def edited(path, change) -> None:
    """Changes a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def each_split(key, value):
    return lambda info: [split.update({key: value}) for split in info["splits"]]


TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
HOSTILE_INFOS = {
    "shards": each_split("shardLengths", ["1"] * 200_000),
    "negative": each_split("shardLengths", ["-7"]),
    "huge": each_split("shardLengths", [str(2**62)]),
    "outside": each_split("filepathTemplate", f"../../{TEMPLATE}"),
    "attribute": each_split("filepathTemplate", "{0.__class__}"),
    "wide": each_split("filepathTemplate", "{SHARD_INDEX:>9999999999}"),
    "name": lambda info: info.update(name="../../identity_tiny_jpeg"),
    "split": each_split("name", "../x"),
    "format": lambda info: info.update(fileFormat="array_record"),
}


@pytest.mark.parametrize("damage", HOSTILE_INFOS)
def test_a_description_of_files_or_numbers_that_no_set_has_is_refused(copied, damage):
    folder, config = copied
    edited(folder / "dataset_info.json", HOSTILE_INFOS[damage])
    message = refused(load, config)
    assert "its split is not as TFDS makes them" in message or "fileFormat" in message
    assert len(message) < 1000


@pytest.mark.parametrize("classes", [2**62, 100_001, 0])
def test_a_number_of_classes_that_no_set_has_is_refused(copied, classes):
    folder, config = copied
    edited(
        folder / "features.json",
        lambda features: features["featuresDict"]["features"]["label"]["classLabel"].update(numClasses=str(classes)),
    )
    (folder / "label.labels.txt").unlink(missing_ok=True)
    from_files = dataclasses.replace(config, dataset=f"{config.dataset}:1.0.0")  # else the class above describes it
    assert f"{classes} classes, which no set has" in refused(load, from_files)


FILES = [
    "dataset_info.json",
    "features.json",
    "label.labels.txt",
    "x",
    "identity_tiny_jpeg-train.tfrecord-00000-of-00001",
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device", "link", "folder link"])
def test_what_is_no_regular_file_of_a_set_is_not_opened(copied, tmp_path, kind, name):
    """TFDS would wait for the pipe, take all memory for the device, and read what the links lead to."""
    folder, config = copied
    path = folder / name if kind != "folder link" else folder.parent / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "file").write_text("{}")
        path.symlink_to({"device": "/dev/zero", "link": tmp_path / "outside" / "file"}.get(kind, tmp_path / "outside"))
    assert f"{path} is a link, a pipe or a device" in refused(load, config)


def test_a_file_of_names_that_is_too_large_is_not_read(copied):
    folder, config = copied
    with open(folder / "label.labels.txt", "w") as file:
        file.truncate(2**40)
    assert "the 1,099,511,627,776 bytes of" in refused(load, config)


@pytest.mark.parametrize("length", [2**33, 2**40, 2**64 - 1])
def test_a_record_longer_than_its_file_is_refused(copied, length):
    """TensorFlow would first make room for it, and die of that."""
    folder, config = copied
    (path,) = folder.glob("*-train.tfrecord*")
    size = struct.pack("<Q", length)
    checksum = crc32c(size)
    masked = (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    path.write_bytes(path.read_bytes() + size + struct.pack("<I", masked) + bytes(100))
    assert f"{path.name} ends inside a record" in refused(load, config)


def test_a_set_at_an_address_is_not_fetched(copied):
    _, config = copied
    assert "is a URL" in refused(load, dataclasses.replace(config, data_dir="gs://tfds-data/datasets"))


@pytest.mark.parametrize("lengths", [[], ["0"]])
def test_a_set_without_examples_is_refused(copied, lengths):
    folder, config = copied
    edited(folder / "dataset_info.json", each_split("shardLengths", lengths))
    assert "identity_tiny_jpeg has 0 training and 0 test images" in refused(load, config)


def test_keys_that_a_set_does_not_have_are_refused(copied):
    folder, config = copied
    config = dataclasses.replace(config, dataset=f"{config.dataset}:1.0.0")
    edited(folder / "dataset_info.json", lambda info: info["supervisedKeys"]["tuple"]["items"].reverse())
    assert "not an image-classification set" in refused(load, config)
    edited(
        folder / "dataset_info.json", lambda info: info["supervisedKeys"]["tuple"]["items"][0].update(featureKey="x")
    )
    assert "not an image-classification set" in refused(load, config)


def test_a_label_of_no_class_in_a_streamed_set_ends_training_in_one_line(copied, tmp_path):
    folder, config = copied
    edited(
        folder / "features.json",
        lambda features: features["featuresDict"]["features"]["label"]["classLabel"].update(numClasses="3"),
    )
    (folder / "label.labels.txt").unlink(missing_ok=True)
    config = dataclasses.replace(config, dataset=f"{config.dataset}:1.0.0")
    message = refused(train_on, config, tmp_path / "run")
    assert message.startswith(f"cannot read identity_tiny_jpeg in {folder}: labels ") and "of 3 classes" in message
