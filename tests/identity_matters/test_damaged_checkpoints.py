"""Checkpoints, tables and records that are damaged, swapped or no files at all: skipped or refused, never believed."""

import errno
import json
import os
import shutil
import warnings

import numpy as np
import pytest
from begun import begin, newest_checkpoint, read_config_json
from refusals import refused

from identity_matters import training
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.errors import Unreadable
from identity_matters.fields import from_json
from identity_matters.model import all_conv_resnet
from identity_matters.optimization import optimizer
from identity_matters.runs import checkpoint, tables
from identity_matters.runs.directory import RunDirectory

ARRAYS = {"a": np.arange(3.0), "b": np.int64(7)}


@pytest.fixture(scope="module")
def half(tiny_run):
    """The arrays of a checkpoint by name, as after 2 of the 4 steps of tiny_config."""
    arrays = newest_checkpoint(tiny_run / "checkpoints")[1]
    return arrays | {"step": np.int64(2), "steps_summed": np.int64(2), "end_of": np.int64(0)}


class Restoring:
    """A TrainingState of the network of tiny_config that restores from a folder and reports the checkpoint."""

    def __init__(self, tiny_config):
        network, rule = all_conv_resnet(tiny_config.model), optimizer(tiny_config)
        rule.build(network.trainable_variables)
        self.state = checkpoint.TrainingState(network, rule, 4)

    def __call__(self, folder) -> int:
        self.state.step = 0
        self.state.restore(str(folder))
        return self.state.step


def save(folder, step, arrays, named=None):
    path = checkpoint.save(str(folder), arrays | {"step": np.int64(step)})
    return os.rename(path, folder / f"step_{named:08d}.npz") if named is not None else path


def changed(arrays, name):
    """The arrays of a checkpoint with one mistake."""
    kernel = next(key for key in arrays if key.endswith("kernel"))
    return {
        "shape": arrays | {kernel: arrays[kernel][..., :1]},
        "missing": {key: array for key, array in arrays.items() if key != kernel},
        "objects": arrays | {kernel: np.full(arrays[kernel].shape, None)},
        "no steps": {key: array for key, array in arrays.items() if key != "steps_summed"},
    }[name]


@pytest.mark.parametrize("mistake", ["shape", "missing", "objects", "no steps"])
def test_a_checkpoint_that_does_not_fit_is_skipped_and_the_one_before_taken(half, tiny_config, tmp_path, mistake):
    restoring = Restoring(tiny_config)
    save(tmp_path, 2, half)
    save(tmp_path, 3, changed(half, mistake))
    with pytest.warns(UserWarning, match="skipping the damaged checkpoint .*step_00000003"):
        assert restoring(tmp_path) == 2
    os.remove(tmp_path / "step_00000002.npz")
    with pytest.warns(UserWarning, match="step_00000003"):
        assert f"none of the 1 checkpoint(s) in {tmp_path} can be used" in refused(restoring, tmp_path)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda path: np.savez(path, a=np.zeros(2), num_arrays=2), "step"),
        (lambda path: path.symlink_to("gone"), "No such file"),
    ],
)
def test_a_checkpoint_that_is_none_is_skipped(tmp_path, make, words):
    save(tmp_path, 2, ARRAYS)
    make(tmp_path / "step_00000003.npz")
    with pytest.warns(UserWarning, match=f"step_00000003.npz: .*{words}"):
        assert newest_checkpoint(tmp_path)[0] == 2


def test_renamed_and_swapped_checkpoints_are_noticed(half, tiny_config, tmp_path):
    restoring = Restoring(tiny_config)
    save(tmp_path, 1, half | {"steps_summed": np.int64(1)})
    save(tmp_path, 2, half, named=3)
    with pytest.warns(UserWarning, match="step_00000003.npz: it is of step 2, not of the step in its name"):
        assert restoring(tmp_path) == 1
    save(tmp_path, 2, half)
    os.rename(tmp_path / "step_00000001.npz", tmp_path / "kept")
    os.rename(tmp_path / "step_00000002.npz", tmp_path / "step_00000001.npz")
    os.rename(tmp_path / "kept", tmp_path / "step_00000002.npz")
    with pytest.warns(UserWarning) as caught:
        assert "none of the 3 checkpoint(s)" in refused(restoring, tmp_path)
    assert len([w for w in caught if "not of the step" in str(w.message)]) == 3


def test_a_checkpoint_of_a_step_after_the_last_is_not_the_end(half, tiny_config, tmp_path):
    save(tmp_path, 50, half)
    with pytest.warns(UserWarning, match="it is at step 50 of 4"):
        assert "none of the 1 checkpoint(s)" in refused(Restoring(tiny_config), tmp_path)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError("Unable to allocate 9 GiB")])
def test_a_checkpoint_that_cannot_be_read_now_is_not_damaged(half, tiny_config, tmp_path, monkeypatch, error):
    """An older one, or none, would cost the rows of metrics.csv since then."""
    restoring = Restoring(tiny_config)
    for step in (2, 3):
        save(tmp_path, step, half)

    def read_or_fail(path, step, read=checkpoint._read):
        if "step_00000003" in path:
            raise error
        return read(path, step)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_read", read_or_fail)
        with pytest.raises(Unreadable, match="cannot read the checkpoint .*step_00000003.npz now: ") as raised:
            restoring(tmp_path)
    assert (error.strerror if isinstance(error, OSError) else str(error)) in str(raised.value)
    assert restoring(tmp_path) == 3


def test_checkpoints_of_later_steps_and_folders_so_named_do_not_cost_the_new_ones(tmp_path):
    (tmp_path / "step_00000001.npz").mkdir()
    for step in range(50, 54):
        save(tmp_path, step, ARRAYS, named=step + 100)
    for step in range(2, 7):
        save(tmp_path, step, ARRAYS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert newest_checkpoint(tmp_path)[0] == 6
    assert (tmp_path / "step_00000001.npz").is_dir() and (tmp_path / "step_00000150.npz").exists()


METRICS = {
    "header alone": [],
    "a huge step": ["1e300", "0.1", "0.1", "0.1", "0.1"],
    "a step below 0": ["-1", "0.1", "0.1", "0.1", "0.1"],
    "an infinite loss": ["1", "-inf", "0.1", "0.1", "0.1"],
    "an error above 1": ["1", "0.1", "0.1", "1e308", "0.1"],
}


@pytest.mark.parametrize("row", METRICS.values(), ids=METRICS)
def test_metrics_that_no_run_writes_raise_a_short_error(tmp_path, row):
    header, row = ",".join(tables._READ_COLUMNS), ",".join(row)
    (tmp_path / "metrics.csv").write_text(f"{header}\n{row}\n" if row else f"{header}\n")
    assert "as a run's metrics" in refused(tables.read_metrics, str(tmp_path / "metrics.csv"))


def test_a_table_that_is_too_large_is_not_read(tmp_path):
    with open(tmp_path / "metrics.csv", "w") as file:
        file.truncate(10**10)  # of holes
    assert "10,000,000,000 bytes" in refused(tables.read_metrics, str(tmp_path / "metrics.csv"))


FITTING = [("seed", 5), ("decay_steps", [])]


@pytest.mark.parametrize("field", ["model", "seed", pytest.param("decay_steps", marks=pytest.mark.slow), "x\ny"])
@pytest.mark.parametrize("value", [None, 5, "x" * 200_000, "\x1b[2J\n", [], {"a": {}}, True, -1e300])
def test_a_config_of_other_types_is_another_config_in_one_short_line(tmp_path, field, value):
    begin(tmp_path, TrainConfig())
    record = json.loads((tmp_path / "config.json").read_text())
    record["config"][field] = value
    (tmp_path / "config.json").write_text(json.dumps(record))
    if (field, value) != ("x\ny", None):  # as good as absent
        message = refused(RunDirectory, str(tmp_path), TrainConfig())
        assert message.isprintable() and len(message) < 5000
    if (field, value) not in FITTING:
        message = refused(from_json, TrainConfig(), record["config"])
        assert message.isprintable() and len(message) < 500


def test_a_config_comes_back_from_json_as_it_was(tiny_config, tmp_path):
    begin(tmp_path, tiny_config)
    assert from_json(TrainConfig(model=ModelConfig()), read_config_json(str(tmp_path))["config"]) == tiny_config


def test_a_run_with_a_damaged_table_is_not_trained_on(tiny_run, tiny_config, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_text("step,loss\n")
    assert "metrics.csv" in refused(training.train, tiny_config, str(tmp_path / "run"))
