"""metrics.csv and TensorBoard's events after a kill between the two, and on a full disk."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import keras
import numpy as np
import pytest

from identity_matters.config import DataConfig, TrainConfig
from identity_matters.runs import metrics_log
from identity_matters.runs.figures import learning_rate_drops
from identity_matters.runs.record import Record
from identity_matters.runs.tables import read_metrics

KEYS = ("learning_rate", "train_top1_error", "test_top1_error", "images_per_second")


@pytest.fixture
def run(tmp_path):
    return SimpleNamespace(path=str(tmp_path), file=lambda name: str(tmp_path / name), record=Record("train", {}))


@pytest.fixture
def network():
    return keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Conv2D(2, 3)])


def row(step, loss=1.0):
    return {"step": step, "loss": loss} | dict.fromkeys(KEYS, 0.5)


def test_a_step_whose_row_was_not_written_is_in_tensorboard_once(run, network, monkeypatch):
    """The process is killed between the events of step 10 and its row; a checkpoint of step 10 is there."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = metrics_log.MetricsLog(run, 0)
    first.add(row(5), network)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(metrics_log, "write_metrics", _interrupt)
        first.add(row(10, loss=2.0), network)
    second = metrics_log.MetricsLog(run, 10)
    second.add(row(10, loss=3.0), network)
    events = EventAccumulator(run.path)
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss/train")] == [(5, 1.0), (10, 3.0)]


def _interrupt(*_):
    raise KeyboardInterrupt


def test_tensorboard_drops_what_came_after_the_rows_that_are_kept(run, network, monkeypatch):
    opened = []
    monkeypatch.setattr(metrics_log, "open_events", lambda *begin: opened.append(begin) or MagicMock())
    for first_step, steps in ((0, (5, 10, 15)), (12, (20,)), (5, ())):
        log = metrics_log.MetricsLog(run, first_step)
        for step in steps:
            log.add(row(step), network)
    assert opened == [(run.path, 0), (run.path, 12), (run.path, 6)]


def test_what_the_figures_of_a_line_are_stands_below_them():
    line = metrics_log.describe(row(5, 2.5) | {"images_per_second": 12.0}, TrainConfig())
    assert line == "step      5  loss 2.5000  train error 50.00 %  test error 50.00 %  12 images/s"
    assert metrics_log.MEANS.rindex("(loss and train error: means") == line.index("loss")
    held_out = TrainConfig(data=DataConfig("mnist_sample", validation_examples=9))
    untimed = metrics_log.describe(row(123456) | {"images_per_second": np.nan}, held_out)
    assert untimed == "step 123456  loss 1.0000  train error 50.00 %  held-out error 50.00 %"


def test_a_disk_that_is_full_of_events_is_an_error_with_a_path(run, network, monkeypatch):
    recorder = metrics_log.MetricsLog(run, 0)
    records = recorder._writer.file_writer.event_writer._ev_writer._py_recordio_writer
    monkeypatch.setattr(records, "_writer", open("/dev/full", "wb"))
    with pytest.raises(OSError, match=f"cannot write {run.path}: No space left on device"):
        for step in range(100):  # as many as would fill a queue
            recorder.add(row(step), network)


def test_a_resumed_run_draws_the_picture_of_one_that_was_never_interrupted(run, network):
    """The float32 nearest to 0.01 lies below it: a rate of the run after one of the table would look like a drop."""
    rate = {"learning_rate": float(np.float32(0.01))}
    whole = metrics_log.MetricsLog(run, 0)
    for step in (5, 10):
        whole.add(row(step) | rate, network)
    resumed = metrics_log.MetricsLog(run, 5)
    resumed.add(row(10) | rate, network)
    assert resumed.rows == whole.rows == read_metrics(run.file("metrics.csv"))
    assert learning_rate_drops(resumed.rows) == []


def test_tensorboard_gets_each_number_each_kernel_s_histogram_and_the_picture(run, network, monkeypatch):
    monkeypatch.setattr(metrics_log, "figure_to_array", lambda figure: np.full((2, 2, 3), 255, np.uint8))
    log = metrics_log.MetricsLog(run, 0)
    log._writer = MagicMock()
    log.add(row(5), network)
    scalars = {call.args[0]: call.args[1:] for call in log._writer.add_scalar.call_args_list}
    assert scalars == {metrics_log.tag(name): (value, 5) for name, value in row(5).items() if name != "step"}
    kernels = [layer for layer in network.layers if isinstance(layer, keras.layers.Conv2D)]
    drawn = log._writer.add_histogram.call_args_list
    np.testing.assert_array_equal(drawn[0].args[1], kernels[0].kernel)
    assert [(call.args[0], call.kwargs["bins"]) for call in drawn] == [(f"weights/{k.name}", 64) for k in kernels]
    ((name, picture, step), _) = log._writer.add_image.call_args
    assert (name, step, picture.dtype) == ("pictures/convergence", 5, np.uint8) and (picture[0] == 255).all()


def test_the_norms_of_kernels_are_averages_over_a_stage_and_over_all():
    sizes = {"stem_conv": 2.0, "stage1_conv1": 1.0, "stage1_conv2": 3.0, "stage2_conv1": 6.0}
    kernels = {name: keras.initializers.Constant(size) for name, size in sizes.items()}
    convolutions = [keras.layers.Conv2D(1, 1, kernel_initializer=of, name=name) for name, of in kernels.items()]
    found = metrics_log.kernel_norms(keras.Sequential([keras.Input((4, 4, 1)), *convolutions]))
    assert found == {"kernel_norm": 3, "kernel_norm_stem": 2, "kernel_norm_stage1": 2, "kernel_norm_stage2": 6}
