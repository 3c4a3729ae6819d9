"""identity_matters.optimization: the metrics, which have evaluation's rule for ties, and what reaches the optimiser."""

import dataclasses
from unittest.mock import MagicMock

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from identity_matters import given_optimizer, optimization
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.evaluation import evaluate
from identity_matters.model import all_conv_resnet
from identity_matters.muon import orthogonalize
from identity_matters.optimization import compile_model, in_top_k

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("num_classes", [2, 10])
@pytest.mark.parametrize("count", [1, 5])
def test_ties_and_nan_count_against_the_label(num_classes, count):
    logits = RNG.integers(0, 4, (200, num_classes)).astype(np.float32)  # most rows have ties
    logits[:20, 1] = np.nan
    labels = RNG.integers(0, num_classes, 200)
    pairs = zip(labels, logits)
    expected = [sum(not other < row[label] for other in np.delete(row, label)) < count for label, row in pairs]
    for shape in ((200,), (200, 1)):
        for function in (in_top_k, tf.function(in_top_k)):  # whose graph TensorFlow rewrites
            found = function(labels.reshape(shape), keras.ops.convert_to_tensor(logits), count)
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), expected)


def test_a_network_of_equal_logits_is_wrong_everywhere_in_training_as_in_evaluate():
    config = TrainConfig(model=ModelConfig(image_shape=(8, 8, 1), widths=(16,), blocks_per_stage=(1,)))
    network, images, labels = all_conv_resnet(config.model), np.zeros((12, 8, 8, 1), np.float32), np.arange(12) % 10
    compile_model(network, config)
    found = network.evaluate(images, labels, verbose=0, return_dict=True)
    assert found["top1"] == found["top5"] == 0
    assert evaluate(network, (images, labels)) == {"top1_error": 1.0, "top5_error": 1.0, "num_examples": 12}


def test_metrics_are_the_cross_entropy_and_the_top_1_and_top_5_fractions():
    network = all_conv_resnet(SMALL)
    compile_model(network, TrainConfig(SMALL))
    images, labels = RNG.standard_normal((100, 8, 8, 1)).astype(np.float32), np.arange(100) % 10
    found, logits = network.evaluate(images, labels, verbose=0, return_dict=True), network.predict(images, verbose=0)
    higher = (logits > logits[range(100), labels][:, None]).sum(1)
    expected = (
        -np.mean(scipy.special.log_softmax(logits, 1)[range(100), labels]),
        np.mean(higher < 1),
        np.mean(higher < 5),
    )
    assert [found[name] for name in ("cross_entropy", "top1", "top5")] == pytest.approx(expected, rel=1e-5)


SMALL = ModelConfig((8, 8, 1), stem_width=2, widths=(2, 4), blocks_per_stage=(1, 1), residual_initializer="standard")
TRAINED = TrainConfig(
    model=dataclasses.replace(SMALL, train_projection=True, use_batch_norm=True),
    schedule="constant", momentum=0.8, newton_schulz_steps=3, decoupled_weight_decay=0.5,
)  # fmt: skip


def gradients(network, images, labels) -> list[np.ndarray]:
    """Gradients of the mean cross-entropy and the penalty, in training."""
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(labels, network(images, training=True), from_logits=True)
        loss = tf.reduce_mean(losses) + sum(network.losses)
    return [gradient.numpy() for gradient in tape.gradient(loss, [v.value for v in network.trainable_variables])]


def orthogonalized(step) -> np.ndarray:
    """The step of a kernel, by three steps of the iteration."""
    matrix = orthogonalize(keras.ops.convert_to_tensor(step.reshape(-1, step.shape[-1])), 3)
    return keras.ops.convert_to_numpy(matrix).reshape(step.shape)  # higher than wide, so no factor


@pytest.mark.parametrize("optimizer", ["nesterov", "muon"])  # tests/identity_matters/test_training.py: momentum
def test_updates_are_those_of_the_config_and_decay_only_convolution_kernels(optimizer):
    config = dataclasses.replace(TRAINED, optimizer=optimizer)
    network, reference = all_conv_resnet(config.model), all_conv_resnet(config.model)
    compile_model(network, config)
    images, labels = RNG.standard_normal((12, 8, 8, 1)).astype(np.float32), np.arange(12) % 10
    momenta = [np.zeros(variable.shape, np.float32) for variable in network.trainable_variables]
    for _ in range(2):
        before = [variable.numpy() for variable in network.trainable_variables]
        reference.set_weights(network.get_weights())
        expected = []
        for i, gradient in enumerate(gradients(reference, images, labels)):
            momenta[i] = 0.8 * momenta[i] + gradient
            step = gradient + 0.8 * momenta[i]
            is_kernel = gradient.ndim == 4
            decay = 0.05 * 0.5 if is_kernel else 0
            step = orthogonalized(step) if is_kernel and optimizer == "muon" else step
            expected.append((1 - decay) * before[i] - 0.05 * step)
        network.train_on_batch(images, labels)
        for variable, value in zip(network.trainable_variables, expected):
            np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=2e-6, err_msg=variable.path)


@pytest.mark.parametrize("choice, asked", [("on", True), ("off", False), ("auto", "auto")])
def test_xla_follows_the_config_except_under_tensorflow(choice, asked, monkeypatch):
    assert optimization._jit_compile(choice) is False
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    assert optimization._jit_compile(choice) == asked
    model = MagicMock(trainable_variables=[])
    config = TrainConfig(jit_compile=choice, steps_per_execution=2)
    optimization.compile_model(model, config)
    compiled = model.compile.call_args.kwargs
    assert (compiled["jit_compile"], compiled["steps_per_execution"]) == (asked, 2)


@pytest.mark.parametrize(
    "fields, rates",
    [
        ({"schedule": "cosine"}, {0: 0.05, 4: 0.5 * 0.25 * (1 + np.cos(0.04 * np.pi)), 50: 0.25, 95: 0.003078}),
        ({"schedule": "cosine", "warmup_steps": 0}, {0: 0.5, 50: 0.25, 75: 0.25 * (1 - 2**-0.5)}),
        ({"schedule": "linear"}, {0: 0.05, 4: 0.5 * 0.48, 50: 0.25, 95: 0.025, 99: 0.005, 100: 0.0}),
        ({"schedule": "constant"}, {0: 0.05, 4: 0.25, 9: 0.5, 95: 0.5}),
        ({"schedule": "piecewise", "decay_steps": (50, 90)}, {0: 0.05, 49: 0.5, 50: 0.05, 89: 0.05, 90: 0.005}),
        ({"schedule": "piecewise", "decay_steps": (50,), "decay_factor": 0.5}, {49: 0.5, 50: 0.25}),
        ({"schedule": "piecewise"}, {0: 0.05, 95: 0.5}),
        ({"schedule": "constant", "decay_steps": (50,)}, {95: 0.5}),
        ({"schedule": "exponential", "decay_steps": (20,), "decay_factor": 0.5}, {19: 0.5, 20: 0.25}),
        ({"schedule": "exponential", "decay_steps": (20,)}, {0: 0.05, 19: 0.5, 20: 0.05, 95: 0.00005}),
        ({"schedule": "exponential", "decay_steps": (20,), "warmup_steps": 0}, {0: 0.5, 19: 0.5, 20: 0.05, 40: 0.005}),
    ],
)
def test_a_warm_up_multiplies_the_rates_of_the_whole_run(fields, rates):
    """100 steps of rate 0.5, the first 10 of them to warm up: what follows is not shifted, nor shortened."""
    given = {"train_steps": 100, "warmup_steps": 10, "learning_rate": 0.5, "decay_steps": ()}
    schedule = optimization.learning_rate_schedule(TrainConfig(**given | fields))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    for of in (schedule, again):
        assert {step: float(of(step)) for step in rates} == pytest.approx(rates, rel=1e-3)


def test_an_optimizer_or_a_schedule_that_is_given_takes_the_place_of_the_config_s():
    given = keras.optimizers.schedules.CosineDecay(0.3, 10), keras.optimizers.Adam(0.7)
    of_schedule, of_adam = (TrainConfig(keras_optimizer=given_optimizer.as_text(of)) for of in given)
    assert float(optimization.learning_rate_schedule(of_schedule)(0)) == pytest.approx(0.3)
    found = optimization.optimizer(of_adam)
    assert isinstance(found, keras.optimizers.Adam) and optimization.learning_rate(found, 0) == pytest.approx(0.7)
    compile_model(network := all_conv_resnet(SMALL), of_adam)
    assert not hasattr(network.optimizer, "_exclude_from_weight_decay")  # which is the user's affair
