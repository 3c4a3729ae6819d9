"""A keras optimiser, or a schedule, in place of the flags': recorded, resumed, visible to callbacks, or rejected."""

import dataclasses
import json

import keras
import numpy as np
import processes
import pytest
from begun import read_config_json

from identity_matters import given_optimizer, training
from identity_matters.config import TrainConfig
from identity_matters.errors import UserError
from identity_matters.momentum import Momentum
from identity_matters.muon import Muon
from identity_matters.optimization import learning_rate, optimizer
from identity_matters.runs.tables import read_metrics

optimizers, schedules = keras.optimizers, keras.optimizers.schedules


@keras.saving.register_keras_serializable("of the user")
class Registered(optimizers.SGD):
    pass


class Unregistered(optimizers.SGD):
    pass


GIVEN = {
    "Adam": lambda: optimizers.Adam(1e-3, beta_1=0.8),
    "AdamW with a schedule": lambda: optimizers.AdamW(schedules.CosineDecay(1e-3, 100), weight_decay=0.1),
    "a schedule": lambda: schedules.PiecewiseConstantDecay([3], [0.1, 0.01]),
    "Muon": lambda: Muon(0.02, orthogonalize_dense=True),
    "a registered class": lambda: Registered(0.1, momentum=0.5),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_text_in_the_config_makes_the_same_object_again(name):
    text = given_optimizer.as_text(GIVEN[name]())
    again = given_optimizer.from_text(text)
    named = {"name": given_optimizer.NAME} if isinstance(again, optimizers.Optimizer) else {}
    assert type(again) is type(GIVEN[name]()) and again.get_config() == GIVEN[name]().get_config() | named
    assert given_optimizer.as_text(again) == text


@pytest.mark.slow
def test_a_run_records_its_optimizer_and_resumes_with_it_bit_by_bit(short, tmp_path, without_results):
    whole, run = tmp_path / "whole", tmp_path / "run"
    training.train(short, whole, optimizer=optimizers.Adam(1e-3))
    recorded = read_config_json(whole)["config"]["keras_optimizer"]
    assert json.loads(recorded)["class_name"] == "Adam"
    with pytest.raises(OSError, match="full"):
        training.train(short, run, optimizer=optimizers.Adam(1e-3), callbacks=FailsAt(10))
    with pytest.raises(UserError, match=r"another config \(old, new\): keras_optimizer .*: 0.9, .*: 0.8, "):
        training.train(short, run, optimizer=optimizers.Adam(1e-3, beta_1=0.8))
    training.train(dataclasses.replace(short, keras_optimizer=recorded), run)  # as launch.train --config does
    processes.assert_same_variables(run, whole, 12)
    assert any("velocity" in name for name in processes.final_variables(run, 12))
    assert [row["learning_rate"] for row in read_metrics(run / "metrics.csv")] == pytest.approx([1e-3, 1e-3])


class FailsAt(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.steps_left = step

    def on_train_batch_end(self, batch, logs=None):
        self.steps_left -= 1
        if not self.steps_left:
            raise OSError("the disk is full")


@pytest.mark.slow
def test_a_schedule_and_an_optimizer_equal_to_the_flags_give_the_bits_of_the_flags(
    short, short_run, tmp_path, without_results
):
    schedule = training.learning_rate_schedule(short)
    training.train(short, tmp_path / "schedule", optimizer=schedule, callbacks=(seen := Sees()))
    training.train(short, tmp_path / "momentum", optimizer=Momentum(schedule, momentum=short.momentum))
    for name in ("schedule", "momentum"):
        found, expected = (processes.final_variables(path, 12) for path in (tmp_path / name, short_run))
        for path, array in found.items():
            np.testing.assert_array_equal(
                array, expected[path.replace(given_optimizer.NAME, "momentum", 1)], err_msg=path
            )
        rates = [row["learning_rate"] for row in read_metrics(tmp_path / name / "metrics.csv")]
        assert rates == [row["learning_rate"] for row in read_metrics(short_run / "metrics.csv")] == [0.05, 0.005]
    assert seen.iterations == [6, 12]


class Sees(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.iterations = []

    def on_epoch_end(self, epoch, logs=None):
        self.iterations.append(int(self.model.optimizer.iterations))


@pytest.mark.slow
def test_callbacks_of_keras_may_set_a_rate_that_no_schedule_sets(short, tmp_path, without_results):
    config = dataclasses.replace(short, eval_every=4, checkpoint_every=4)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 / 2**epoch)
    plateau = keras.callbacks.ReduceLROnPlateau(patience=5)
    training.train(config, tmp_path / "run", callbacks=[scheduler, plateau], optimizer=optimizers.SGD(1.0))
    rates = [row["learning_rate"] for row in read_metrics(tmp_path / "run" / "metrics.csv")]
    assert rates == pytest.approx([0.1, 0.05, 0.025])


def test_what_decays_is_what_keras_decays_where_the_optimizer_is_given(tiny_config):
    """The flags' decay applies only to convolution kernels; a given optimiser is used unchanged."""
    from identity_matters import networks
    from identity_matters.optimization import compile_model

    text = given_optimizer.as_text(optimizers.SGD(0.1, weight_decay=0.1))
    model = dataclasses.replace(tiny_config.model, train_projection=True)
    for config, decays in ((TrainConfig(keras_optimizer=text), True), (TrainConfig(decoupled_weight_decay=0.1), False)):
        network = networks.build(model)
        compile_model(network, config)
        assert network.optimizer._use_weight_decay(network.layers[-1].kernel) == decays


@pytest.mark.parametrize("given", ["adam", 0.1, lambda step: 0.1, optimizers.Adam])
def test_an_invalid_optimizer_is_rejected(given, tiny_config, tmp_path):
    with pytest.raises(UserError, match="optimizer must be a keras.optimizers.Optimizer or a Learning"):
        training.train(tiny_config, tmp_path / "run", optimizer=given)
    assert not (tmp_path / "run").exists()


def selective():
    made = optimizers.AdamW(1e-3)
    made.exclude_from_weight_decay(var_names=["bias"])
    return made


REFUSED = {
    "a class that is not registered": (lambda: Unregistered(0.1), "put @keras.saving.register_keras_serializable"),
    "a decay of some weights": (selective, "optimizer has exclude_from_weight_decay"),
    "averages": (lambda: optimizers.SGD(0.1, use_ema=True), "optimizer has use_ema"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_optimizer_that_a_run_cannot_take_is_rejected_before_anything_is_written(name, tiny_config, tmp_path):
    make, message = REFUSED[name]
    with pytest.raises(UserError, match=message):
        training.train(tiny_config, tmp_path / "run", optimizer=make())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["{", json.dumps({"module": "this", "class_name": "Adam", "config": {}})])
def test_a_text_that_makes_no_optimizer_is_rejected_before_anything_is_written(text, launch, tmp_path):
    (tmp_path / "flags.json").write_text(json.dumps({"keras_optimizer": text}))
    code, _, error = launch("train", f"--config={tmp_path}/flags.json", f"--run_dir={tmp_path}/run")
    assert code == 1 and error.splitlines()[-1].startswith("error: optimizer ") and "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_parameter_servers_and_launched_workers_refuse_it(tiny_config, tmp_path, launch):
    text = given_optimizer.as_text(optimizers.Adam(1e-3))
    with pytest.raises(UserError, match="Keras optimisers cannot be used with it"):
        dataclasses.replace(tiny_config, keras_optimizer=text, strategy="parameter_server")
    (tmp_path / "flags.json").write_text(json.dumps({"train": {"keras_optimizer": text}}))
    flags = (f"--config={tmp_path}/flags.json", f"--run_dir={tmp_path}/run")
    code, _, error = launch("cluster", *flags)
    assert code == 1 and "workers cannot be given a Keras optimiser" in error and not (tmp_path / "run").exists()


def test_the_rate_of_a_row_is_that_of_the_update_before_it():
    decay = optimizer(TrainConfig(decay_steps=(5,), train_steps=10))
    assert [learning_rate(decay, update) for update in (4, 5)] == pytest.approx([0.05, 0.005])
    fixed = optimizers.Adam(0.25)
    fixed.learning_rate = np.float32(0.5)
    assert learning_rate(fixed, 7) == 0.5
