"""The fused layer is Keras's batch normalisation: outputs, gradients, moving averages, and what training leaves."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from identity_matters import networks
from identity_matters.comparators import BatchNormalization
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.training import train
from identity_matters.untrusted import load_network

SHAPE = (6, 5, 4, 3)
SMALL = ModelConfig(
    image_shape=(8, 8, 3), stem_width=2, widths=(2, 4), blocks_per_stage=(1, 1), num_classes=3, use_batch_norm=True
)


@pytest.fixture
def images():
    """Images of mean 3 and standard deviation 2, so that batch statistics matter."""
    return np.random.default_rng(0).normal(3, 2, SHAPE).astype(np.float32)


def layer_of(kind, shape=SHAPE, **options):
    layer = kind(momentum=0.7, epsilon=1e-2, **options)
    layer.build(shape)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.uniform(0.5, 2, weights.shape).astype(np.float32) for weights in layer.get_weights()])
    return layer


def both(**options):
    """Our layer and Keras's, of the same weights."""
    return [layer_of(kind, **options) for kind in (BatchNormalization, keras.layers.BatchNormalization)]


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
    return [layer for layer in network.layers if isinstance(layer, keras.layers.BatchNormalization)]


@pytest.mark.parametrize("training", [True, False])
def test_outputs_gradients_and_moving_averages_are_keras_own(images, training):
    layers = both()
    ours, keras_own = (derivatives(layer, images, training) for layer in layers)
    for found, expected in zip(ours, keras_own, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)
    for found, expected in zip(*(layer.get_weights() for layer in layers), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_only_training_is_fused():
    assert "FusedBatchNormV3" in operations(layer_of(BatchNormalization))
    assert "FusedBatchNormV3" not in operations(layer_of(BatchNormalization), training=False)
    assert "FusedBatchNormV3" not in operations(layer_of(BatchNormalization, trainable=False))
    assert "FusedBatchNormV3" not in operations(layer_of(BatchNormalization, dtype="float64"))
    assert "FusedBatchNormV3" not in operations(layer_of(BatchNormalization, (6, 3)), shape=(6, 3))


def test_a_mask_counts_as_in_keras(images):
    mask = np.arange(120).reshape(6, 5, 4) % 7 > 0
    layers = both()
    for layer in layers:
        layer(images, training=True, mask=mask)
    np.testing.assert_allclose(layers[0].get_weights(), layers[1].get_weights())


@pytest.mark.parametrize("changes", [{}, {"mixed_precision": True}, {"network": "resnet_20"}])
def test_networks_train_fused_and_their_files_name_keras_own_layer(tmp_path, changes):
    config = dataclasses.replace(SMALL, image_shape=(12, 12, 3), **changes)
    network = networks.build(config, seed=1)
    shape = (4, 12, 12, 3)
    assert "FusedBatchNormV3" in operations(network, shape=shape)
    network.save(tmp_path / "network.keras")
    saved = keras.saving.load_model(tmp_path / "network.keras")
    assert {type(layer) for layer in normalisations(saved)} == {keras.layers.BatchNormalization}
    assert {(layer.momentum, layer.epsilon) for layer in normalisations(saved)} == {(0.9, 1e-5)}
    assert len(normalisations(saved)) == len(normalisations(network)) > 0
    images = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(saved(images), network(images))


@pytest.mark.slow
def test_files_of_a_trained_network_hold_its_moving_averages(tmp_path):
    random = np.random.default_rng(0)
    arrays = random.integers(0, 256, (20, 8, 8, 3), np.uint8), random.integers(0, 3, 20)
    config = TrainConfig(SMALL, batch_size=5, train_steps=4, eval_every=4)
    saving = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"))
    train(config, str(tmp_path / "run"), data=(*arrays, *arrays), callbacks=[saving])
    for path in (tmp_path / "run" / "model.keras", tmp_path / "best.keras"):
        layers = normalisations(load_network(str(path)))
        assert len(layers) == 5 and all(np.abs(layer.moving_mean).max() > 0 for layer in layers)
