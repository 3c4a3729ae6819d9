"""A run is one fit: a user's Keras callbacks are called as Keras calls them, and a run may be stopped anywhere."""

import dataclasses
import os
import shutil
import signal

import keras
import numpy as np
import processes
import pytest
from begun import read_config_json

from identity_matters import training
from identity_matters.callbacks import Progress, StopOnNaN, checked_callbacks
from identity_matters.cluster import Cluster
from identity_matters.errors import Preempted, UserError
from identity_matters.runs import checkpoint
from identity_matters.runs.checkpoint import TrainingState
from identity_matters.runs.metrics_log import MEANS
from identity_matters.runs.tables import read_metrics

FIGURES = ("loss", "cross_entropy", "top1", "top5")


class Log(keras.callbacks.Callback):
    """Notes every hook that is called."""

    def __init__(self):
        super().__init__()
        self.calls, self.logs = [], []

    def on_train_begin(self, logs=None):
        self.calls.append("train")

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(f"epoch {epoch}")

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(f"batch {batch}")

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(f"{batch} done")
        assert np.isfinite(float(logs["loss"]))

    def on_test_begin(self, logs=None):
        self.calls.append("test")

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(f"epoch {epoch} done")
        self.logs.append(logs)

    def on_train_end(self, logs=None):
        self.calls.append("train done")


class At(keras.callbacks.Callback):
    """Calls a function in a hook of an epoch, at a batch of it."""

    def __init__(self, act, hook, epoch, batch=0):
        super().__init__()
        self.epoch = None
        self.hook = hook

        def on_hook(*arguments, logs=None):
            if self.epoch == epoch and (hook == "on_test_begin" or arguments[0] == batch):
                act()

        setattr(self, hook, on_hook)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


def fail():
    raise KeyError("a callback")


def sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def batches(first, stop):
    return [call for step in range(first, stop) for call in (f"batch {step}", f"{step} done")]


def assert_same_rows(run_dir, expected):
    """All columns but the time, to the digits of a sum of float32."""
    for row, other in zip(read_metrics(run_dir / "metrics.csv"), read_metrics(expected / "metrics.csv"), strict=True):
        assert row | {"images_per_second": 0} == pytest.approx(other | {"images_per_second": 0}, rel=2e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_hooks_come_as_in_keras_and_change_nothing(short, short_run, tmp_path, capsys):
    log = Log()
    training.train(short, tmp_path / "run", callbacks=[log])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:11] for line in lines] == ["step      6", " " * 11, "step     12"] and lines[1] == MEANS
    epochs = [[f"epoch {i}", *batches(0, 6), "test", f"epoch {i} done"] for i in range(2)]
    assert log.calls == ["train", *epochs[0], *epochs[1], "train done", "test"][: len(log.calls)]
    assert log.params["steps"] == 6 and log.params["epochs"] == 2
    assert log.model.input_shape == (None, 28, 28, 1)
    for logs, row in zip(log.logs, read_metrics(tmp_path / "run" / "metrics.csv"), strict=True):
        assert set(logs) == {*FIGURES, *(f"val_{name}" for name in FIGURES)}
        assert logs["loss"] == pytest.approx(row["loss"], rel=1e-6)
        assert logs["val_cross_entropy"] == pytest.approx(row["test_cross_entropy"], rel=1e-6)
        assert 1 - logs["val_top1"] == pytest.approx(row["test_top1_error"])
        # Keras's own, with the penalty.
        penalty = logs["loss"] - logs["cross_entropy"]
        assert logs["val_loss"] == pytest.approx(logs["val_cross_entropy"] + penalty, abs=1e-4)
    processes.assert_same_variables(tmp_path / "run", short_run, 12)


# (what happens, hook, epoch, batch), and the step from which the run continues
STOPS = {
    "an error inside an epoch": (fail, "on_train_batch_end", 1, 3, 9),
    "an error at an evaluation": (fail, "on_test_begin", 0, 0, 6),
    "an error at the last evaluation": (fail, "on_test_begin", 1, 0, 12),
    "SIGTERM inside an epoch": (sigterm, "on_train_batch_end", 0, 3, 5),
    "SIGTERM at an evaluation": (sigterm, "on_test_begin", 0, 0, 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STOPS)
def test_a_run_that_is_stopped_continues_with_the_same_bits_and_rows(short, short_run, tmp_path, name):
    act, hook, epoch, batch, step = STOPS[name]
    with pytest.raises(KeyError if act is fail else Preempted):
        training.train(short, tmp_path / "run", callbacks=[At(act, hook, epoch, batch)])
    assert processes.last_step(tmp_path / "run") == step
    log = Log()
    row = training.train(short, tmp_path / "run", callbacks=[log])
    assert log.calls.count("train") == {9: 1, 12: 0, 5: 2, 6: 1}[step]
    processes.assert_same_variables(tmp_path / "run", short_run, 12)
    assert_same_rows(tmp_path / "run", short_run)
    assert row["step"] == 12
    again = Log()
    training.train(short, tmp_path / "run", callbacks=[again])
    assert not again.calls


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_sigterm_at_an_evaluation_that_has_no_checkpoint_saves_one(short, short_run, tmp_path, monkeypatch):
    config = dataclasses.replace(short, checkpoint_every=12)
    check = StopOnNaN.on_test_end
    with monkeypatch.context() as patched:  # no callback is given, with which each evaluation has a checkpoint
        patched.setattr(StopOnNaN, "on_test_end", lambda self, logs: (check(self, logs), sigterm()))
        with pytest.raises(Preempted):
            training.train(config, tmp_path / "run")
    assert processes.last_step(tmp_path / "run") == 6
    training.train(config, tmp_path / "run")
    processes.assert_same_variables(tmp_path / "run", short_run, 12)
    assert_same_rows(tmp_path / "run", short_run)


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_steps_per_execution_groups_updates_in_one_hook_and_keeps_the_weights(short, short_run, tmp_path):
    log = Log()
    several = dataclasses.replace(short, steps_per_execution=2, checkpoint_every=6)
    training.train(several, tmp_path / "run", callbacks=[log])
    steps = [call for call in log.calls if call.startswith("batch") or call[0].isdigit()]
    assert steps == 2 * [call for step in range(0, 6, 2) for call in (f"batch {step}", f"{step + 1} done")]
    processes.assert_same_variables(tmp_path / "run", short_run, 12)


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_the_last_epoch_may_be_shorter(short, short_run, tmp_path):
    log = Log()
    row = training.train(dataclasses.replace(short, eval_every=9), tmp_path / "run", callbacks=[log])
    assert log.calls.count("test") == 2 and log.calls.count("2 done") == 2 and log.calls.count("3 done") == 1
    assert row["step"] == 12
    processes.assert_same_variables(tmp_path / "run", short_run, 12)


class Schedule(keras.callbacks.Callback):
    """Sets the weights that an epoch ends with to a multiple of its number."""

    def on_epoch_begin(self, epoch, logs=None):
        for variable in self.model.trainable_variables:
            variable.assign(variable * (1 + 0.5 * epoch))


@pytest.mark.slow
def test_early_stopping_decides_what_is_exported_and_returned(short, tmp_path, monkeypatch):
    config = dataclasses.replace(short, eval_every=3, train_steps=20)
    stopping = keras.callbacks.EarlyStopping("val_top1", patience=2, restore_best_weights=True)
    saving = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), monitor="val_top1", save_best_only=True)
    row = training.train(config, tmp_path / "run", callbacks=[Schedule(), stopping, saving])
    best = keras.saving.load_model(tmp_path / "best.keras")
    exported = keras.saving.load_model(tmp_path / "run" / "model.keras")
    for variable, other in zip(best.trainable_variables, exported.trainable_variables, strict=True):
        np.testing.assert_array_equal(variable, other)
    assert 1 - row["test_top1_error"] == pytest.approx(stopping.best) and row["step"] < 20
    assert read_metrics(tmp_path / "run" / "metrics.csv")[-1] == row
    # The data set, a weight of the model that fit trains, is not in the file.
    assert os.path.getsize(tmp_path / "best.keras") < 200 * 28 * 28
    shutil.rmtree(tmp_path / "run" / "saved_model")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(
            "identity_matters.run.write_results", lambda *_: exec("raise OSError('No space left on device')")
        )
        with pytest.raises(OSError, match="No space"):
            training.train(config, tmp_path / "run")
    assert training.train(config, tmp_path / "run") == row  # no update is added
    assert (tmp_path / "run" / "saved_model").is_dir()


def test_no_hook_is_called_when_a_done_run_restores_its_lost_files(short, short_run, tmp_path):
    run_dir, log = shutil.copytree(short_run, tmp_path / "run"), Log()
    shutil.rmtree(run_dir / "saved_model")
    (run_dir / "model.keras").unlink()
    training.train(short, run_dir, callbacks=[log])
    assert (run_dir / "saved_model").exists() and (run_dir / "model.keras").exists()
    assert "train" not in log.calls


def test_callbacks_that_would_restore_the_run_again_are_rejected(short, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="^BackupAndRestore cannot be a callback of a run"):
        training.train(short, tmp_path / "run", callbacks=[Log(), keras.callbacks.BackupAndRestore("backup")])
    assert not list(tmp_path.iterdir())


def test_checkpoints_divide_the_steps_between_evaluations(tiny_config, tmp_path):
    for saved, evaluated, nearest in ((4, 6, 3), (1000, 90, 990), (7, 4, 8), (5, 6, 6)):
        config = dataclasses.replace(tiny_config, checkpoint_every=saved, eval_every=evaluated)
        with pytest.raises(UserError, match=f"the nearest that does is {nearest}$"):
            training.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_callback_and_none_and_lists_of_keras_are_taken_as_keras_takes_them():
    log, alone = Log(), Cluster()
    lists = keras.callbacks.CallbackList([keras.callbacks.CallbackList([log])])
    for given in (log, [log], keras.callbacks.CallbackList([log]), [lists], (callback for callback in [log])):
        assert checked_callbacks(given, alone) == [log]
    assert checked_callbacks(None, alone) == checked_callbacks([], alone) == []
    for given, shown in ((["EarlyStopping"], "'EarlyStopping'"), (5, "5")):
        with pytest.raises(TypeError, match=f"keras.callbacks.Callback objects, got {shown}"):
            checked_callbacks(given, alone)


def test_of_several_workers_only_the_chief_writes():
    given = [Log(), keras.callbacks.CSVLogger("log.csv"), keras.callbacks.ModelCheckpoint("best.keras")]
    assert checked_callbacks(given, Cluster(num_processes=2)) == given
    assert checked_callbacks(given, Cluster(rank=1, num_processes=2)) == given[:1]


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_the_callbacks_of_keras_work_together_and_change_nothing(short, short_run, tmp_path):
    callbacks, rows = keras.callbacks, []
    given = [
        callbacks.CSVLogger(str(tmp_path / "log.csv")),
        callbacks.EarlyStopping("val_top1", patience=9),
        callbacks.History(),
        callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rows.append(logs)),
        callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True),
        callbacks.ModelCheckpoint(str(tmp_path / "newest.keras"), save_freq=5),
        callbacks.ProgbarLogger(),
        callbacks.TensorBoard(str(tmp_path / "logs"), histogram_freq=1),
        callbacks.TerminateOnNaN(),
    ]
    training.train(short, tmp_path / "run", callbacks=given)
    losses = [row["test_cross_entropy"] for row in read_metrics(tmp_path / "run" / "metrics.csv")]
    assert given[2].history["val_cross_entropy"] == pytest.approx(losses, rel=1e-6)
    assert len(rows) == 2 and len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert {"1.weights.h5", "2.weights.h5", "newest.keras", "logs"} <= {path.name for path in tmp_path.iterdir()}
    processes.assert_same_variables(tmp_path / "run", short_run, 12)


class StopAtOnce(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.stop_training = True


@pytest.mark.usefixtures("without_results")
def test_callback_that_stops_at_the_beginning_gets_one_update_as_in_keras(tiny_config, tmp_path, monkeypatch):
    """sys.stdout and sys.stderr are None under pythonw and in some daemons; run_dir may be bytes."""
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    assert training.train(tiny_config, bytes(tmp_path / "run"), callbacks=[StopAtOnce()])["step"] == 1
    assert read_config_json(tmp_path / "run")["status"] == "done"


@pytest.fixture
def state():
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    return TrainingState(network, keras.optimizers.SGD(), 100)


@pytest.mark.parametrize("is_visible", [False, True])
def test_a_worker_that_is_not_the_chief_draws_no_bar(state, is_visible):
    with Progress(state, is_visible) as progress:
        assert progress._bar.disable != is_visible


def test_the_first_call_of_a_run_is_timed_only_if_it_is_the_only_one(state, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def call(seconds, num_steps):
        clock[0] += seconds
        state.step += num_steps
        progress.on_train_batch_end(0, {"loss": 1.0})

    with Progress(state, False) as progress:
        progress.on_epoch_begin(0)
        call(100, 5)
        assert progress.pop_steps_per_second() == pytest.approx(5 / 100)
        call(2, 5)
        call(3, 5)
        assert progress.pop_steps_per_second() == pytest.approx(10 / 5)
        assert np.isnan(progress.pop_steps_per_second())
        clock[0] += 50  # an evaluation
        progress.on_epoch_begin(1)
        call(4, 2)
        assert progress.pop_steps_per_second() == pytest.approx(2 / 4)


def test_the_last_finite_weights_are_written_if_no_checkpoint_is_as_new(state, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("identity_matters.callbacks.SNAPSHOT_SECONDS", 0)
    callback = StopOnNaN(state, 1, keeps_weights=True)
    callback.set_model(state.network)
    callback.write_snapshot(str(tmp_path))
    for step, saved in ((1, [1]), (5, [1, 5]), (5, [1, 5]), (3, [1, 5])):
        state.step = step
        callback.on_train_batch_end(0, {"loss": 1.0})
        callback.write_snapshot(str(tmp_path))
        assert [step for step, _ in checkpoint.list_checkpoints(str(tmp_path))] == saved
    assert len(capsys.readouterr().err.splitlines()) == 2
    state.network.layers[0].kernel.assign([[np.nan], [0]])
    state.step = 7
    callback.on_train_batch_end(0, {"loss": 1.0})
    assert callback._snapshot["step"] == 3
