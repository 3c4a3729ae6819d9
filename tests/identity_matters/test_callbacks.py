"""A user's Keras callbacks: the hooks in their order, after a resumption too, and that looking on changes nothing."""

import dataclasses
import shutil
from types import SimpleNamespace

import keras
import numpy as np
import processes
import pytest

from identity_matters import training
from identity_matters.config import TrainConfig
from identity_matters.errors import Diverged, UserError
from identity_matters.runs import callbacks as of_runs
from identity_matters.runs.callbacks import checked_callbacks
from identity_matters.runs.config_json import read_config_json
from identity_matters.runs.metrics_log import MEANS
from identity_matters.runs.signals import StopRequest
from identity_matters.runs.tables import read_metrics


class Log(keras.callbacks.Callback):
    """Notes every hook that is called, and ends the process's run at a step as an error would."""

    def __init__(self, fails_at=None):
        super().__init__()
        self.calls, self.logs, self.fails_at = [], [], fails_at

    def on_train_begin(self, logs=None):
        self.calls.append("train")

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(f"epoch {epoch}")

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(f"batch {batch}")

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(f"{batch} done")
        assert np.isfinite(logs["loss"])
        if batch == self.fails_at:
            raise OSError("the disk is full")

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(f"epoch {epoch} done")
        self.logs.append(logs)

    def on_train_end(self, logs=None):
        self.calls.append("train done")


def batches(first, stop):
    return [call for step in range(first, stop) for call in (f"batch {step}", f"{step} done")]


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_hooks_come_in_order_with_the_rows_and_change_nothing(short, short_run, tmp_path, capsys):
    log = Log()
    training.train(short, tmp_path / "run", callbacks=[log])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:11] for line in lines] == ["step      6", " " * 11, "step     12"] and lines[1] == MEANS
    halves = [["epoch 0", *batches(0, 6), "epoch 0 done"], ["epoch 1", *batches(6, 12), "epoch 1 done"]]
    assert log.calls == ["train", *halves[0], *halves[1], "train done"]
    assert log.params["steps"] == 12 and log.params["epochs"] == 2
    assert log.model.input_shape == (None, 28, 28, 1)
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    assert [logs["val_loss"] for logs in log.logs] == pytest.approx([row["test_cross_entropy"] for row in rows])
    processes.assert_same_variables(tmp_path / "run", short_run, 12)


@pytest.mark.slow
def test_after_an_interruption_they_go_on_at_the_checkpoint_and_the_weights_are_the_same(short, short_run, tmp_path):
    with pytest.raises(OSError, match="disk is full"):
        training.train(short, tmp_path / "run", callbacks=[Log(fails_at=9)])
    log = Log()
    training.train(short, tmp_path / "run", callbacks=[log])
    assert log.calls == ["train", "epoch 1", *batches(8, 12), "epoch 1 done", "train done"]
    processes.assert_same_variables(tmp_path / "run", short_run, 12)
    again = Log()
    training.train(short, tmp_path / "run", callbacks=[again])
    assert not again.calls


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_steps_per_execution_makes_a_hook_of_several_updates_and_gives_the_same_weights(short, short_run, tmp_path):
    log = Log()
    training.train(dataclasses.replace(short, steps_per_execution=2), tmp_path / "run", callbacks=[log])
    steps = [call for call in log.calls if call.startswith("batch") or call[0].isdigit()]
    assert steps == [call for step in range(0, 12, 2) for call in (f"batch {step}", f"{step + 1} done")]
    processes.assert_same_variables(tmp_path / "run", short_run, 12)


@pytest.mark.slow
def test_a_run_that_early_stopping_ended_stays_at_its_step_when_results_are_written_again(short, tmp_path, monkeypatch):
    config = dataclasses.replace(short, eval_every=3, train_steps=20)
    stopping = keras.callbacks.EarlyStopping(min_delta=10, patience=2)  # a test loss that falls by 10 there is not
    training.train(config, tmp_path / "run", callbacks=[stopping])
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    ended = processes.final_variables(tmp_path / "run", 9)
    shutil.rmtree(tmp_path / "run" / "saved_model")
    with monkeypatch.context() as full_disk:
        full_disk.setattr(training, "write_results", lambda *_: exec("raise OSError('No space left on device')"))
        with pytest.raises(OSError, match="No space"):
            training.train(config, tmp_path / "run")
    assert training.train(config, tmp_path / "run") == rows[-1] and rows[-1]["step"] == 9
    assert (tmp_path / "run" / "saved_model").is_dir()
    for name, value in processes.final_variables(tmp_path / "run", 9).items():
        np.testing.assert_array_equal(value, ended[name])


def test_no_hook_is_called_where_a_done_run_gets_again_what_it_has_lost(short, short_run, tmp_path):
    run_dir, log = shutil.copytree(short_run, tmp_path / "run"), Log()
    shutil.rmtree(run_dir / "saved_model")
    (run_dir / "model.keras").unlink()
    training.train(short, run_dir, callbacks=[log])
    assert (run_dir / "saved_model").exists() and (run_dir / "model.keras").exists() and not log.calls


class OwnTensorBoard(keras.callbacks.TensorBoard):
    pass


NEED_THE_OPTIMIZER = {
    "LearningRateScheduler": (keras.callbacks.LearningRateScheduler, (float,), {}),
    "OwnTensorBoard, which is a TensorBoard": (OwnTensorBoard, ("logs",), {}),
    "BackupAndRestore": (keras.callbacks.BackupAndRestore, ("backup",), {}),
    "SwapEMAWeights": (keras.callbacks.SwapEMAWeights, (), {}),
}


@pytest.mark.parametrize("name", NEED_THE_OPTIMIZER)
def test_callbacks_that_a_run_cannot_serve_are_refused_before_anything_is_written(short, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    kind, arguments, options = NEED_THE_OPTIMIZER[name]
    with pytest.raises(UserError, match=f"^{name} cannot be a callback of a run: (the run|its schedule)") as error:
        training.train(short, tmp_path / "run", callbacks=[Log(), kind(*arguments, **options)])
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_one_callback_and_none_and_lists_of_keras_are_taken_as_keras_takes_them():
    log, backup = Log(), keras.callbacks.BackupAndRestore("backup")
    assert checked_callbacks(log) == checked_callbacks(keras.callbacks.CallbackList([log])) == (log,)
    assert checked_callbacks(None) == checked_callbacks([]) == ()
    lists = keras.callbacks.CallbackList([keras.callbacks.CallbackList([log])])
    assert checked_callbacks([lists]) == (log,)
    lists.callbacks.append(backup)
    with pytest.raises(UserError, match="BackupAndRestore cannot be a callback of a run"):
        checked_callbacks([lists])


def test_a_monitor_of_which_keras_cannot_tell_what_is_better_is_refused_at_once(short, tmp_path):
    for kind, first in ((keras.callbacks.EarlyStopping, ()), (keras.callbacks.ModelCheckpoint, ("best.keras",))):
        with pytest.raises(UserError, match="what is better, mode='min' or 'max' for monitor='test_top1_error'"):
            training.train(short, tmp_path / "run", callbacks=[kind(*first, monitor="test_top1_error")])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("without_results")
def test_the_other_callbacks_of_keras_work_together_and_change_nothing(short, short_run, tmp_path):
    callbacks, rows = keras.callbacks, []
    given = [
        callbacks.CSVLogger(str(tmp_path / "log.csv")),
        callbacks.EarlyStopping("test_top1_error", mode="min", patience=9),
        callbacks.History(),
        callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rows.append(logs)),
        callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True),
        callbacks.ModelCheckpoint(str(tmp_path / "newest.keras"), save_freq=5),
        callbacks.ProgbarLogger(),
        callbacks.TerminateOnNaN(),
    ]
    # As a generator, which can be read once.
    training.train(short, tmp_path / "run", callbacks=(callback for callback in given))
    losses = [row["test_cross_entropy"] for row in read_metrics(tmp_path / "run" / "metrics.csv")]
    assert given[2].history["val_loss"] == pytest.approx(losses) == [row["val_loss"] for row in rows]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert {"1.weights.h5", "2.weights.h5", "newest.keras"} <= {path.name for path in tmp_path.iterdir()}
    processes.assert_same_variables(tmp_path / "run", short_run, 12)


def test_what_is_no_callback_and_callbacks_of_several_workers_are_refused(short, tmp_path):
    for callbacks, shown in ((["EarlyStopping"], "'EarlyStopping'"), (5, "5")):
        with pytest.raises(TypeError, match=f"keras.callbacks.Callback objects, got {shown}"):
            training.train(short, tmp_path / "run", callbacks=callbacks)
    assert not list(tmp_path.iterdir())
    from identity_matters.distributed.workers import Workers

    with pytest.raises(UserError, match="one process alone"):
        Workers(num_processes=2).check(short, [Log()])


class Stops(keras.callbacks.Callback):
    """Raises what fit takes for the end of its data."""

    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, self.stop)

    def stop(self, *_, **__):
        raise StopIteration


@pytest.mark.parametrize("hook", ["on_epoch_begin", pytest.param("on_train_batch_end", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("without_results")
def test_a_stop_iteration_of_a_callback_is_an_error_and_no_end_of_the_data(tiny_config, tmp_path, hook):
    with pytest.raises((RuntimeError, StopIteration)):
        training.train(tiny_config, tmp_path / "run", callbacks=Stops(hook))
    assert read_config_json(tmp_path / "run")["status"] == "failed"


class StopAtOnce(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.stop_training = True


@pytest.mark.usefixtures("without_results")
def test_a_callback_that_stops_as_the_run_begins_gets_one_update_as_in_keras_in_a_process_without_streams(
    tiny_config, tmp_path, monkeypatch
):
    """sys.stdout and sys.stderr are None under pythonw and in some daemons; run_dir may be bytes."""
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    assert training.train(tiny_config, bytes(tmp_path / "run"), callbacks=[StopAtOnce()])["step"] == 1
    assert read_config_json(tmp_path / "run")["status"] == "done"


@pytest.mark.parametrize("has_bar", [False, True])
def test_a_worker_that_is_not_the_chief_draws_no_bar(has_bar):
    with of_runs.RunCallback([], SimpleNamespace(), TrainConfig(), 10, StopRequest(), has_bar) as callback:
        assert callback._bar.disable != has_bar


def test_the_first_call_of_a_fit_is_timed_only_where_it_is_alone_and_weights_are_kept_every_ten_seconds(
    monkeypatch, capsys
):
    """Two fits of a run of 100 steps that goes on after 10: four calls, the third of two steps, then one of five."""
    clock, kept = iter([1000, 1000, 1003, 1005, 1009, 1010, 1011, 1012, 1022, 1023, 1024, 1025]), []
    monkeypatch.setattr(of_runs, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    network, config = SimpleNamespace(), TrainConfig(train_steps=100, eval_every=30, decay_steps=())
    followed = of_runs.RunCallback([], network, config, 10, StopRequest(), True, kept.append)
    followed.set_model(network)
    with followed:
        assert followed._list.params == {"verbose": 0, "epochs": 4, "steps": 100}
        for batches, step, rate in (([0, 1, 3, 4], 15, 4 / 7), ([4], 20, 5 / 10)):
            followed.on_train_begin()
            for batch in batches:
                followed.on_train_batch_end(batch, {"loss": 1.0})
            followed.on_train_end()
            assert followed.step == step and followed.take_rate() == pytest.approx(rate)
        assert np.isnan(followed.take_rate()) and kept == [15, 20]
        followed.on_train_begin()
        with pytest.raises(Diverged, match="in the 3 steps up to step 23") as diverged:
            followed.on_train_batch_end(2, {"loss": np.inf})
        assert diverged.value.step == 23
    assert "20/100" in capsys.readouterr().err.split("\r")[-1]
