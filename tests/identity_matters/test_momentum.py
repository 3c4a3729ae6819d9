"""identity_matters.momentum: momentum SGD that multiplies the accumulated gradients by the present learning rate."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from refusals import refused

from identity_matters import optimization
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.errors import UserError
from identity_matters.model import all_conv_resnet
from identity_matters.momentum import Momentum
from identity_matters.runs import checkpoint

DROP = keras.optimizers.schedules.PiecewiseConstantDecay([29], [0.05, 0.005])  # from update 30 on
ON_JAX = keras.backend.backend() == "jax"


def updates(optimizer, num_updates: int) -> np.ndarray:
    """The decrease of a weight in each of num_updates updates with gradient 1; it is reset to 0 before each."""
    weight = keras.Variable(0.0)
    optimizer.build([weight])
    decreases = []
    for _ in range(num_updates):
        weight.assign(0.0)
        optimizer.apply([keras.ops.convert_to_tensor(1.0)], [weight])
        decreases.append(-float(keras.ops.convert_to_numpy(weight)))
    return np.array(decreases)


def test_after_a_tenfold_drop_the_step_is_a_ninth_of_that_of_keras():
    rates = [0.05] * 30 + [0.005] * 16
    accumulated = np.zeros(47)
    velocity = np.zeros(47)
    for i, rate in enumerate(rates):
        accumulated[i + 1] = 0.9 * accumulated[i] + 1
        velocity[i + 1] = 0.9 * velocity[i] + rate
    ours, of_keras = rates * accumulated[1:], velocity[1:]
    np.testing.assert_allclose(updates(Momentum(DROP, 0.9), 46), ours, rtol=1e-4)
    np.testing.assert_allclose(updates(keras.optimizers.SGD(DROP, 0.9), 46), of_keras, rtol=1e-4)
    assert (round(ours[30], 3), round(of_keras[30], 3)) == (0.048, 0.436)
    assert round(of_keras[45] / ours[45], 1) == 2.6  # 15 steps later


def trained(optimizer, gradients: list[list[np.ndarray]], dtype: str = "float32") -> list[np.ndarray]:
    """Variables [4, 3] and [3], after an update with each pair of gradients; only the first one decays."""
    weights = [keras.Variable(np.linspace(-1, 1, 12).reshape(4, 3), dtype), keras.Variable([1.0, 0.5, 2.0], dtype)]
    optimizer.exclude_from_weight_decay([weights[1]])
    optimizer.build(weights)
    for pair in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient, dtype) for gradient in pair], weights)
    return [keras.ops.convert_to_numpy(keras.ops.cast(weight, "float64")) for weight in weights]


@pytest.fixture
def gradients():
    rng = np.random.default_rng(0)
    return [[rng.standard_normal((4, 3)), rng.standard_normal(3)] for _ in range(12)]


# The spacing of numbers between 2 and 4, which bounds the weights; each of 12 updates rounds three times.
SPACINGS = {"float64": 2.0**-51, "float32": 2.0**-22, "bfloat16": 2.0**-6}


@pytest.mark.parametrize("dtype", list(SPACINGS)[ON_JAX:])  # which has no float64
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"global_clipnorm": 1.0}, {"momentum": 0.0}])
def test_at_a_constant_rate_it_equals_keras_up_to_rounding(options, dtype, gradients):
    options = {"momentum": 0.9} | options
    expected = trained(keras.optimizers.SGD(2.0**-6, **options), gradients, dtype)
    found = trained(Momentum(2.0**-6, **options), gradients, dtype)
    for pair in zip(found, expected):
        np.testing.assert_allclose(*pair, rtol=0, atol=36 * SPACINGS[dtype])


@pytest.mark.parametrize("optimizer", [Momentum, keras.optimizers.SGD])
@pytest.mark.skipif(ON_JAX, reason="tf.compat.v1 is TensorFlow's")
def test_with_a_schedule_it_equals_tensorflow_1_and_keras_does_not(optimizer, gradients):
    import tensorflow as tf

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.1, staircase=True)
    found = trained(optimizer(schedule, momentum=0.9), gradients)
    weights = [tf.Variable(np.linspace(-1, 1, 12).reshape(4, 3), dtype=tf.float32), tf.Variable([1.0, 0.5, 2.0])]
    rate = tf.Variable(0.0)
    reference = tf.compat.v1.train.MomentumOptimizer(rate, 0.9)
    for step, pair in enumerate(gradients):
        rate.assign(schedule(step))
        reference.apply_gradients([(tf.constant(g, tf.float32), w) for g, w in zip(pair, weights)])
    differences = [np.abs(a - b.numpy()).max() for a, b in zip(found, weights)]
    if optimizer is Momentum:
        assert max(differences) <= 36 * SPACINGS["float32"]
    else:
        assert min(differences) > 0.05  # the test can fail


def test_the_config_makes_the_same_optimizer_with_the_limits_of_the_flag():
    optimizer = Momentum(0.1, momentum=0.8, weight_decay=0.1, global_clipnorm=0.5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(again) is Momentum and again.get_config() == optimizer.get_config()
    assert "momentum must lie in [0, 1), got 1.0" in refused(Momentum, momentum=1.0)


def test_the_flags_make_this_optimizer_and_that_of_keras():
    options = {"momentum": 0.8, "decoupled_weight_decay": 0.1, "clip_norm": 0.5}
    ours, of_keras, nesterov = (
        optimization.optimizer(TrainConfig(optimizer=name, **options))
        for name in ("momentum", "keras_momentum", "nesterov")
    )
    assert type(ours) is Momentum
    assert isinstance(of_keras, keras.optimizers.SGD) and not of_keras.nesterov and nesterov.nesterov
    for optimizer in (ours, of_keras, nesterov):
        assert (optimizer.momentum, optimizer.weight_decay, optimizer.global_clipnorm) == (0.8, 0.1, 0.5)


def test_a_checkpoint_of_one_rule_is_rejected_by_the_other(tmp_path):
    """A velocity holds the learning rate, an accumulator does not."""
    network = all_conv_resnet(ModelConfig((8, 8, 1), stem_width=2, widths=(2, 4), blocks_per_stage=(1, 1)))
    states = []
    for name in ("keras_momentum", "momentum"):
        optimizer = optimization.optimizer(TrainConfig(optimizer=name))
        optimizer.build(network.trainable_variables)
        states.append(checkpoint.TrainingState(network, optimizer, num_steps=10))
    for i, saved in enumerate(states):
        saved.advance(3, {})
        saved.pop_means()
        checkpoint.save(str(tmp_path / str(i)), saved.arrays())
        saved.restore(str(tmp_path / str(i)))
        with pytest.warns(UserWarning, match="skipping"), pytest.raises(UserError, match="can be used"):
            states[1 - i].restore(str(tmp_path / str(i)))


@pytest.mark.slow
@pytest.mark.skipif(ON_JAX, reason="this is the test that starts them under JAX")
def test_the_other_tests_of_this_file_pass_under_jax():
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", __file__]
    done = subprocess.run(command, env=os.environ | {"KERAS_BACKEND": "jax"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
