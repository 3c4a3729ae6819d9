"""TFDS sets that lie elsewhere than asked for, have no supervised keys, or other splits."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds
from gradient_sets import IdentityTinyPng, gradient
from refusals import refused

from identity_matters import training
from identity_matters.config import TrainConfig
from identity_matters.data.loading import load, raw_test_batches
from identity_matters.evaluation import evaluate


class IdentityNoKeys(IdentityTinyPng, skip_registration=True):
    """Without supervised keys, of the splits train and dev, with the features of EXTRA beside image and label."""

    EXTRA = {"note": tfds.features.Text()}

    def _info(self):
        label = tfds.features.ClassLabel(num_classes=self.NUM_TRAIN)
        features = {"picture": self.IMAGE, "kind": label, **self.EXTRA}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(self.NUM_TRAIN), "dev": self._generate_examples(self.NUM_TEST)}

    def _generate_examples(self, count):
        extra = {"note": "", "other": 0, "second": gradient(0, 12, 10)}
        for i in range(count):
            yield i, {"picture": self.image(i), "kind": i} | {name: extra[name] for name in self.EXTRA}


class IdentityTwoLabels(IdentityNoKeys, skip_registration=True):
    EXTRA = {"other": tfds.features.ClassLabel(num_classes=2)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds") / "data"
    for builder in (IdentityTinyPng, IdentityNoKeys, IdentityTwoLabels):
        builder(data_dir=str(path)).download_and_prepare()
    # A set that no code describes, as TFDS reads it from its files alone.
    shutil.copytree(path / "identity_tiny_png", path / "plain_set")
    info = path / "plain_set" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("identity_tiny_png", "plain_set"))
    for file in info.parent.glob("identity_tiny_png-*"):
        file.rename(file.with_name(file.name.replace("identity_tiny_png", "plain_set")))
    return path


@pytest.fixture
def config(prepared):
    return TrainConfig(dataset="plain_set", data_dir=str(prepared), batch_size=5)


def test_a_set_without_code_is_read(config):
    assert load(config).num_train == 24
    assert load(dataclasses.replace(config, dataset="plain_set:1.0.0")).num_test == 7


@pytest.mark.parametrize("name", ["plain_set", "identity_tiny_png"])
def test_another_version_than_there_is_gets_the_one_that_there_is(config, name):
    message = refused(load, dataclasses.replace(config, dataset=f"{name}:2.0.0"))
    assert f"holds {name} as version 1.0.0, not 2.0.0; name the dataset {name}:1.0.0" in message


@pytest.mark.parametrize("name", ["plain_set", "plain_set:1.0.0", "identity_tiny_png"])
@pytest.mark.parametrize("deep", ["{}", "{}/1.0.0", "{}/1.0.0/"])
def test_a_data_dir_that_is_too_deep_gets_the_right_one(config, prepared, name, deep):
    data_dir = f"{prepared}/{deep.format(name.split(':')[0])}"
    message = refused(load, dataclasses.replace(config, dataset=name, data_dir=data_dir))
    assert f"data_dir {data_dir} is too deep: it must be the folder that holds {name.split(':')[0]}/" in message
    assert message.endswith(f", {prepared}")


def test_a_set_of_one_image_and_one_class_label_needs_no_supervised_keys(
    config, tmp_path, tiny_config, without_results
):
    named = {"dataset": "identity_no_keys", "train_split": "train", "test_split": "dev"}
    config = dataclasses.replace(config, **named)
    data = load(config)
    assert (data.num_train, data.num_test, data.num_classes) == (24, 7, 24)
    np.testing.assert_array_equal(data.train_images[3], gradient(data.train_labels[3], 12, 10))
    assert "has no split 'validation', only" in refused(load, dataclasses.replace(config, test_split=""))
    assert "--test_split" in refused(load, dataclasses.replace(config, test_split="nix"))
    swapped = load(dataclasses.replace(config, train_split="dev", test_split="train"))
    assert (swapped.num_train, swapped.num_test) == (7, 24)
    for fields in (
        {"train_split": "", "test_split": "train"},
        {"dataset": "plain_set", "train_split": "test", "test_split": ""},
    ):
        config = dataclasses.replace(config, **named | fields)
        assert "is both the training and the test split" in refused(load, config)
        assert load(dataclasses.replace(config, validation_examples=3)).num_test == 3


def test_a_set_of_two_class_labels_is_refused(config):
    message = refused(load, dataclasses.replace(config, dataset="identity_two_labels", test_split="dev"))
    assert "has no supervised_keys, and 1 images and 2 class labels in place of one of each" in message


def test_a_run_is_evaluated_on_its_split(config, tiny_config, tmp_path):
    model = dataclasses.replace(tiny_config.model, image_shape=(8, 8, 3))
    data = {"data_dir": config.data_dir, "dataset": "identity_no_keys", "test_split": "dev", "image_size": 8}
    run = dataclasses.replace(tiny_config, model=model, **data, train_examples=0, eval_examples=0)
    row = training.train(run, tmp_path / "run")
    found = evaluate(tmp_path / "run")
    assert found["num_examples"] == 7 and found["top1_error"] == pytest.approx(row["test_top1_error"])
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["test_split"] == "dev"
    counts = []
    assert len(list(raw_test_batches(run, 3, on_count=counts.append))) == 3 and counts == [7]
