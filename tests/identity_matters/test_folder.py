"""A folder of images: trained and evaluated on, in memory and read as needed, resumed, moved, evaluated elsewhere."""

import dataclasses
import shutil

import numpy as np
import pytest
from begun import edit, newest_checkpoint, read_config_json
from image_folders import DIGITS, noise, write, write_digits
from loaded import load
from PIL import Image
from refusals import refused

from identity_matters import training
from identity_matters.config import DataConfig, ModelConfig
from identity_matters.data import base as base_module
from identity_matters.data.base import fits_in_memory
from identity_matters.data.digits import mnist_sample
from identity_matters.data.source import open_source
from identity_matters.evaluation import evaluate
from identity_matters.model import all_conv_resnet
from launch.trained_run import SavedRunFlags, read_config


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """200 digits to train on, 50 to test on. Read only."""
    return write_digits(tmp_path_factory.mktemp("images") / "digits", 200, 50)


@pytest.fixture(scope="module")
def config(tiny_config, digits):
    return dataclasses.replace(tiny_config, data=DataConfig(images=str(digits)))


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    """(directory, last row) of a run on the digits. Read only."""
    run_dir = tmp_path_factory.mktemp("runs") / "digits"
    return run_dir, training.train(config, run_dir)


def changed(config, **changes):
    """The data of a run, with other fields."""
    return dataclasses.replace(config.data, **changes)


def test_a_folder_gives_the_images_and_labels_of_its_files(config):
    data, sample = load(config.data), mnist_sample()
    class_names = data.source.class_names
    assert class_names == tuple(sorted(DIGITS)) and data.source.num_classes == 10
    for images, labels, expected, numbers in (
        (data.train_images, data.train_labels, sample.train_images[:200], sample.train_labels[:200]),
        (data.test_images, data.test_labels, sample.test_images[:50], sample.test_labels[:50]),
    ):
        known = {image.tobytes(): DIGITS[number] for image, number in zip(expected, numbers)}
        assert len(known) == len(images) and images.shape[1:] == (28, 28, 1)
        assert all(known[image.tobytes()] == class_names[label] for image, label in zip(images, labels))


def test_a_folder_is_shortened_held_out_and_resized(config):
    whole = load(config.data)
    data = load(changed(config, train_examples=30, eval_examples=20, validation_examples=40, image_size=14))
    assert data.train_images.shape == (30, 14, 14, 1) and len(data.test_labels) == 20
    np.testing.assert_array_equal(data.train_labels, whole.train_labels[:30])
    np.testing.assert_array_equal(data.test_labels, whole.train_labels[-40:-20])
    assert "below the 200 training examples" in refused(load, changed(config, validation_examples=200))


def test_num_classes_makes_room_for_more(config):
    assert open_source(changed(config, num_classes=12)).num_classes == 12
    assert "num_classes is 9, but" in refused(load, changed(config, num_classes=9))


@pytest.fixture
def streamed(monkeypatch):
    """No more than 20 images fit in memory."""
    monkeypatch.setattr(base_module, "MAX_BYTES_IN_MEMORY", 20 * 28 * 28)


@pytest.mark.slow
def test_a_run_on_images_read_as_needed_has_the_bits_of_one_in_memory(config, run, streamed, tmp_path, without_results):
    assert not fits_in_memory(open_source(config.data))
    training.train(config, tmp_path / "run")
    found, expected = (newest_checkpoint(str(path / "checkpoints"))[1] for path in (tmp_path / "run", run[0]))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, name)


def test_a_run_on_a_folder_knows_its_classes_and_is_evaluated_without_further_flags(config, run, capfd):
    run_dir, row = run
    contents = read_config_json(run_dir)
    assert contents["class_names"] == sorted(DIGITS) and contents["config"]["data"]["dataset"] == ""
    for path in (run_dir, run_dir / "model.keras"):
        found = evaluate(path)
        assert found["num_examples"] == 50 and found["top1_error"] == pytest.approx(row["test_top1_error"])
    assert evaluate(run_dir, images=config.data.images, test_split="test") == found
    assert "not a test error" not in capfd.readouterr().err
    assert evaluate(run_dir, images=config.data.images, test_split="train")["num_examples"] == 200
    assert "the split 'train' is one that networks are trained on: this is not a test error" in capfd.readouterr().err
    assert training.train(config, run_dir) == pytest.approx(row, rel=1e-6, nan_ok=True)  # it is done


def test_a_run_is_not_evaluated_or_measured_on_a_folder_that_has_changed_since(config, run, tmp_path):
    run_dir = shutil.copytree(run[0], tmp_path / "run")
    moved = shutil.copytree(config.data.images, tmp_path / "moved")
    write(moved / "test" / "one" / "._000.png", noise(2, 2))  # as macOS writes beside copies
    edit(run_dir, {"images": str(moved)})
    assert evaluate(run_dir)["num_examples"] == 50 and read_config(SavedRunFlags(str(run_dir))).data.images == str(
        moved
    )
    path = next((moved / "train" / "one").iterdir())
    pixels = np.asarray(Image.open(path))
    write(path, pixels[::-1])
    for found in (refused(evaluate, run_dir), refused(read_config, SavedRunFlags(str(run_dir)))):
        assert f"{moved} has changed since" in found and found.endswith("give the data as they were, or other data")
    assert evaluate(run_dir, images=moved)["num_examples"] == 50


def test_other_images_are_evaluated_by_the_names_of_their_classes(config, run, tmp_path, capfd):
    run_dir, row = run
    new = tmp_path / "new"
    shutil.copytree(f"{config.data.images}/test", new)
    for name in DIGITS[1:6]:
        shutil.rmtree(new / name)
    data = load(config.data)
    kept = [data.source.class_names.index(name) for name in (DIGITS[0], *DIGITS[6:])]
    chosen = np.isin(data.test_labels, kept)
    expected = evaluate(run_dir, (data.test_images[chosen], data.test_labels[chosen]))
    assert evaluate(run_dir, images=new) == expected
    write(new / "zero" / "large.png", noise(50, 60))
    assert evaluate(run_dir, images=new)["num_examples"] == expected["num_examples"] + 1
    copy = shutil.copytree(run_dir, tmp_path / "run")
    edit(copy, {"test_share": 0.2})  # of no use where test/ is there
    assert evaluate(copy, images=config.data.images) == evaluate(run_dir) and "test_share" not in capfd.readouterr().err
    assert evaluate(run_dir, images=new)["num_examples"] == expected["num_examples"] + 1
    write(new / "ten" / "x.png", noise(28, 28))
    assert "has the classes ten, of which the network has none" in refused(evaluate, run_dir, images=new)
    both = "a dataset and images are both given; give one of them"
    assert refused(evaluate, run_dir, (np.zeros((1, 28, 28)), [0]), images=new) == both


@pytest.mark.slow
def test_a_share_is_evaluated_on_as_it_was_in_training_unless_all_are_asked_for(config, digits, tmp_path, capfd):
    flat = config.data.images + "/train"
    data = DataConfig(images=flat, test_share=0.3)
    row = training.train(dataclasses.replace(config, data=data), tmp_path / "run")
    found = evaluate(tmp_path / "run")
    assert 30 < found["num_examples"] < 90 and found["top1_error"] == pytest.approx(row["test_top1_error"])
    assert evaluate(tmp_path / "run", images=flat) == found
    assert "the run's test_share, 0.3, is evaluated" in capfd.readouterr().err
    assert evaluate(tmp_path / "run", images=flat, test_share=1)["num_examples"] == 200
    other = shutil.copytree(flat, tmp_path / "other")
    assert evaluate(tmp_path / "run", images=other)["num_examples"] == 200
    assert "other: there is no test/; all of it is evaluated; if the run was trained on it" in capfd.readouterr().err


def test_a_network_of_unknown_classes_takes_as_many_class_folders(digits, capfd):
    network = all_conv_resnet(ModelConfig(image_shape=(28, 28, 1), widths=(16,), blocks_per_stage=(1,), num_classes=9))
    assert "10 class folders, the network 9 classes" in refused(evaluate, network, images=digits)
    network = all_conv_resnet(ModelConfig(image_shape=(32, 32, 3), widths=(16,), blocks_per_stage=(1,)))
    assert evaluate(network, images=digits, max_examples=10)["num_examples"] == 10  # in colour, and larger


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"npz": "x.npz"}, "npz and images are both given"),
        ({"images": "", "test_share": 0.2}, "test_share 0.2 needs images"),
        ({"test_share": 1.5}, "test_share must be at most 1, got 1.5"),
        ({"test_share": -0.1}, "test_share must be at least 0"),
        ({"train_split": "dev", "test_split": "dev"}, "are both 'dev'"),
        ({"train_split": "../x"}, "must be the name of a split, got '../x'"),
        ({"images": "", "npz": "x.npz", "test_split": "dev"}, "an npz has no named splits"),
    ],
)
def test_flags_that_contradict_one_another_are_rejected(config, fields, words):
    assert words in refused(changed, config, **fields)


@pytest.mark.parametrize("fields", [{"test_split": "train"}, {"train_split": "test"}])
def test_nothing_is_trained_and_tested_on(config, fields):
    assert "are in both the training and the test split; name two with --train_split" in refused(
        load, changed(config, **fields)
    )


def test_a_part_of_the_one_split_is_held_out(config):
    source = open_source(changed(config, test_split="train", validation_examples=1))
    assert (source.num("train"), source.num("test")) == (199, 1)


def test_a_folder_that_cannot_be_used_leaves_no_run(config, tmp_path):
    (tmp_path / "data").mkdir()
    for images in (tmp_path / "data", tmp_path / "none"):
        broken = dataclasses.replace(config, data=DataConfig(images=images))
        refused(training.train, broken, tmp_path / "run")
        assert not (tmp_path / "run").exists()
