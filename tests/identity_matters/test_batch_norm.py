"""The fused layer is Keras's batch normalisation: outputs, gradients, moving averages, and what training leaves."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from identity_matters import batch_norm
from identity_matters.batch_norm import fuse
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.model import all_conv_resnet
from identity_matters.safe_loading import load_network
from identity_matters.training import train

SHAPE = (6, 5, 4, 3)
SMALL = ModelConfig(
    image_shape=(8, 8, 3), stem_width=2, widths=(2, 4), blocks_per_stage=(1, 1), num_classes=3, use_batch_norm=True
)


@pytest.fixture
def images():
    """Of mean 3 and standard deviation 2, so that moments matter."""
    return np.random.default_rng(0).normal(3, 2, SHAPE).astype(np.float32)


def keras_layer(shape=SHAPE, **options):
    layer = keras.layers.BatchNormalization(momentum=0.7, epsilon=1e-2, **options)
    layer.build(shape)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.uniform(0.5, 2, weights.shape).astype(np.float32) for weights in layer.get_weights()])
    return layer


def fused_layer(shape=SHAPE, **options):
    """The same layer of the same weights, as `fuse` leaves it."""
    layer = keras_layer(shape, **options)
    fuse(keras.Sequential([layer]))
    return layer


def derivatives(layer, images, training=True):
    """Outputs, and the gradients of a weighted sum of them for the inputs, the scale and the offset."""
    x = tf.constant(images)
    coefficients = tf.random.stateless_normal(images.shape, (1, 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, training=training)
        total = tf.reduce_sum(tf.cast(outputs, tf.float32) * coefficients)
    return [outputs, *tape.gradient(total, [x, *(variable.value for variable in layer.trainable_variables)])]


def operations(layer, training=True, shape=SHAPE):
    function = tf.function(lambda x: layer(x, training=training))
    graph = function.get_concrete_function(tf.TensorSpec(shape, tf.float32)).graph
    return {operation.type for operation in graph.get_operations()}


def normalisations(network):
    return [layer for layer in network.layers if type(layer) is keras.layers.BatchNormalization]


@pytest.mark.parametrize("training", [True, False])
def test_outputs_gradients_and_moving_averages_are_those_of_keras(images, training):
    layers = [fused_layer(), keras_layer()]
    ours, keras_own = (derivatives(layer, images, training) for layer in layers)
    for found, expected in zip(ours, keras_own, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)
    for found, expected in zip(*(layer.get_weights() for layer in layers), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_training_is_one_operation_and_prediction_is_keras_own():
    layer = fused_layer(axis=3)
    vars(layer).pop("renorm", None)  # which an earlier Keras has not
    assert "FusedBatchNormV3" in operations(layer)
    assert "FusedBatchNormV3" not in operations(layer, training=False)


@pytest.mark.parametrize(
    "options",
    [{"center": False}, {"scale": False}, {"axis": 1}, {"dtype": "float64"}, {"synchronized": True}, {"renorm": True}],
)
def test_what_the_operation_does_not_compute_is_keras_own(options):
    assert "FusedBatchNormV3" not in operations(fused_layer(**options))


def test_vectors_masked_and_frozen_layers_are_keras_own(images):
    shape = (6, 3)
    assert "FusedBatchNormV3" not in operations(fused_layer(shape), shape=shape)
    frozen = fused_layer(trainable=False)
    assert "FusedBatchNormV3" not in operations(frozen)
    mask = np.arange(120).reshape(6, 5, 4) % 7 > 0
    layers = [fused_layer(), keras_layer()]
    for layer in layers:
        layer(images, training=True, mask=mask)
    np.testing.assert_allclose(layers[0].get_weights(), layers[1].get_weights())


def test_a_network_keeps_its_layers_and_weights_and_is_saved_as_keras_own(tmp_path):
    network = all_conv_resnet(SMALL, seed=1)
    before = network.get_weights()
    assert fuse(network) is network and len(normalisations(network)) == 5
    for found, expected in zip(network.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert "FusedBatchNormV3" in operations(network, shape=(4, 8, 8, 3))
    network.save(tmp_path / "network.keras")
    saved = keras.saving.load_model(tmp_path / "network.keras")
    assert {(layer.momentum, layer.epsilon) for layer in normalisations(saved)} == {(0.9, 1e-5)}
    assert len(normalisations(saved)) == 5 and "FusedBatchNormV3" not in operations(saved, shape=(4, 8, 8, 3))
    images = np.random.default_rng(0).standard_normal((4, 8, 8, 3)).astype(np.float32)
    np.testing.assert_array_equal(saved(images), network(images))


def test_a_mixed_network_is_normalised_in_float32():
    network = fuse(all_conv_resnet(dataclasses.replace(SMALL, mixed_precision=True)))
    assert {layer.compute_dtype for layer in normalisations(network)} == {"float32"}
    assert "FusedBatchNormV3" in operations(network, shape=(4, 8, 8, 3))


@pytest.mark.slow
def test_training_is_fused_and_files_of_its_network_need_nothing_of_ours(tmp_path, monkeypatch):
    called = []
    is_fused = batch_norm._is_fused
    monkeypatch.setattr(batch_norm, "_is_fused", lambda *args: called.append(is_fused(*args)) or called[-1])
    random = np.random.default_rng(0)
    arrays = random.integers(0, 256, (20, 8, 8, 3), np.uint8), random.integers(0, 3, 20)
    config = TrainConfig(SMALL, batch_size=5, train_steps=4, eval_every=4)
    saving = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"))
    train(config, str(tmp_path / "run"), data=(*arrays, *arrays), callbacks=[saving])
    assert called and all(called)
    for path in (tmp_path / "run" / "model.keras", tmp_path / "best.keras"):
        layers = normalisations(load_network(str(path)))
        assert len(layers) == 5 and all(np.abs(layer.moving_mean).max() > 0 for layer in layers)
