"""The .keras files of strangers: no layer takes more than the file holds, and Keras reads what was looked at."""

import shutil

import damage
import keras
import numpy as np
import pytest
from refusals import refused

from identity_matters.classifier import load_classifier
from identity_matters.config import ModelConfig
from identity_matters.model import all_conv_resnet
from identity_matters.safe_loading import load_network


@pytest.fixture
def path(tiny_run, tmp_path):
    """A copy of a model.keras of a few kilobytes."""
    shutil.copy(tiny_run / "model.keras", tmp_path / "model.keras")
    return tmp_path / "model.keras"


def test_keras_reads_what_was_looked_at_though_the_file_is_exchanged(path, monkeypatch):
    load, expected = keras.models.load_model, load_network(str(path)).get_weights()

    def exchange_and_load(*arguments, **options):
        damage.KERAS["a huge dense layer"][0](path)
        return load(*arguments, **options)

    monkeypatch.setattr(keras.models, "load_model", exchange_and_load)
    for found, array in zip(load_network(str(path)).get_weights(), expected, strict=True):
        np.testing.assert_array_equal(found, array)
    assert "needs weights (8, 400000000), and it holds none" in refused(load_network, str(path))


def test_large_layers_are_evaluated_on_fewer_images_at_once(tmp_path):
    config = ModelConfig(image_shape=(1024, 1024, 1), stem_width=16, widths=(16,), blocks_per_stage=(1,))
    all_conv_resnet(config).save(tmp_path / "model.keras")
    assert load_classifier(tmp_path / "model.keras").max_batch == 2**28 // 2**24
