"""identity_matters.classifier: a network answers raw images as it does in inference."""

import dataclasses

import numpy as np
import pytest
from begun import begin

from identity_matters import classifier, export, networks
from identity_matters.classifier import load_classifier
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.model import standardize, with_standardization
from identity_matters.saved_model_signature import CLASS_NAMES_FILE

STANDARD = {"residual_initializer": "standard", "use_batch_norm": True}
TINY = ModelConfig(image_shape=(12, 12, 3), stem_width=4, widths=(4, 8), blocks_per_stage=(1, 1), **STANDARD)


@pytest.mark.parametrize("name", ["all_conv_resnet", "all_cnn_c"])
def test_logits_are_those_of_moving_averages_and_without_dropout(name):
    rng = np.random.default_rng(0)
    network = networks.build(dataclasses.replace(TINY, network=name))
    for variable in network.non_trainable_variables:
        if "moving" in variable.path:
            variable.assign(rng.uniform(0.5, 2, variable.shape))
    images = rng.integers(0, 256, (3, *TINY.image_shape)).astype(np.float32)
    expected = network(standardize(images), training=False).numpy()
    for logits in (load_classifier(network).logits(images), classifier._call_on_raw(network, images)):
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    in_training = network(standardize(images), training=True).numpy()
    assert np.abs(in_training - expected).max() > 0.01 * np.abs(expected).max()


def test_network_file_gets_as_many_images_as_fit_in_a_gigabyte_and_prints_nothing(tmp_path, monkeypatch, capfd):
    networks.build(TINY).save(tmp_path / "model.keras")
    assert load_classifier(tmp_path).max_batch == 2**28 // (12 * 12 * 4)  # the stem's outputs
    monkeypatch.setattr(classifier, "_MAX_OUTPUTS", 100)
    assert load_classifier(tmp_path).max_batch == 1
    load_classifier(with_standardization(networks.build(TINY)))
    assert not capfd.readouterr().err
    load_classifier(networks.build(TINY))  # of this process, which may be of images that are standardised
    assert "has no layer that scales images, so they are standardised for it" in capfd.readouterr().err


def test_the_names_of_classes_are_those_of_the_run_s_config_json(tmp_path):
    begin(tmp_path, TrainConfig(), status="done", class_names=["a", "b"])
    assert classifier._class_names(str(tmp_path / "model.keras")) == ("a", "b")  # which need not hold any


def test_the_names_of_classes_without_a_run_are_those_of_the_network_s_file(tmp_path):
    networks.build(TINY).save(tmp_path / "model.keras")
    export._add_metadata(tmp_path / "model.keras", class_names=["a", "b"])
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / CLASS_NAMES_FILE).write_text('["c", "d"]')
    assert [classifier._class_names(str(tmp_path / name)) for name in ("model.keras", "")] == [("a", "b"), ("c", "d")]
