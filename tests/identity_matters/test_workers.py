"""What workers agree on before they train, and what they wait for: seen from one of them, the other being played."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from begun import begin
from refusals import refused

from identity_matters import networks, training
from identity_matters.config import DataConfig, TrainConfig
from identity_matters.distributed import rendezvous, shared_run
from identity_matters.distributed.shared_run import open_run, recording_failure
from identity_matters.distributed.workers import Workers
from identity_matters.errors import Diverged, WorkerLost
from identity_matters.model import all_conv_resnet
from identity_matters.runs.config_json import read_config_json
from identity_matters.runs.directory import RunDirectory


class Chief(Workers):
    """A chief whose words are kept."""

    def broadcast_text(self, text):
        self.said = text
        return text


class Second(Workers):
    """Worker 1 of two, which hears the words of a chief."""

    def __init__(self, said):
        super().__init__(rank=1, num_processes=2)
        self._said = said

    def all_reduce(self, vector):
        return np.asarray(vector, float)

    def broadcast_text(self, text):
        return self._said


def images(count):
    """The digest and the summary of a data set of so many images."""
    return f"{count:x}", f"{count} images"


@pytest.fixture
def said(tmp_path):
    chief = Chief()
    with open_run(TrainConfig(data=DataConfig(npz="one.npz")), str(tmp_path / "run"), chief, *images(200)):
        return chief.said


@pytest.mark.parametrize("config", [{"train_steps": 5}, "mnist", None])
def test_what_is_no_config_is_refused_with_where_to_find_one(tmp_path, config):
    message = refused(training.train, config, tmp_path / "run")
    assert message == f"config must be a TrainConfig, e.g. training.PRESETS['mnist'], got {config!r}"


def test_parameter_servers_need_tensorflow_and_the_processes_of_a_job(tmp_path, monkeypatch):
    config = TrainConfig(strategy="parameter_server")
    assert "launch.cluster --strategy=parameter_server starts them" in refused(training.train, config, tmp_path / "run")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    message = "strategy parameter_server needs KERAS_BACKEND=tensorflow, got jax"
    assert refused(training.train, config, tmp_path / "run") == message


@pytest.mark.parametrize("name, other", [("image_data_format", "channels_first"), ("floatx", "float64")])
def test_other_settings_of_keras_are_refused_with_how_to_change_them(tmp_path, tiny_config, name, other):
    usual = getattr(keras.config, name)()
    getattr(keras.config, f"set_{name}")(other)
    try:
        for function, *arguments in (
            (training.train, tiny_config, tmp_path / "run"),
            (all_conv_resnet, tiny_config.model),
            (networks.build, dataclasses.replace(tiny_config.model, network="resnet_20")),
        ):
            message = refused(function, *arguments)
            assert message.startswith(f"Keras's {name} is {other!r} and must be {usual!r}: keras.config.set_{name}(")
            assert message.count("keras.json") == 1
    finally:
        getattr(keras.config, f"set_{name}")(usual)
    assert not (tmp_path / "run").exists()


def test_a_worker_on_other_data_is_refused(said):
    def join(digest, summary):
        # The same digest says that it is the same file, wherever it is and was looked for.
        config = TrainConfig(data=DataConfig(npz="elsewhere.npz", download=True))
        with open_run(config, "", Second(said), digest, summary) as (directory, contents):
            return directory, contents["config"]["examples"]

    message = "other data than worker 0 (worker 0's, its own): examples (200 images, c8, 150 images, 96)"
    assert message in refused(join, *images(150))
    directory, agreed = join(*images(200))
    assert directory is None and agreed == "200 images, c8"


def test_nobody_downloads_where_the_chief_could_not():
    class Alone(Second):
        def broadcast(self, vector):
            return [True]

        def all_reduce(self, vector):
            raise WorkerLost("worker 1", RuntimeError("gone"))

    with pytest.raises(WorkerLost), Alone("").in_turn(True):
        pytest.fail("it must not load")


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_where_the_order_counts_the_others_wait_for_the_chief(rank, is_ordered):
    waited = []

    class Waiting(Workers):
        def broadcast(self, vector):
            return np.array([float(is_ordered)])  # as the chief has it, whatever this one has

        def all_reduce(self, vector):
            waited.append("before")

        def barrier(self):
            waited.append("after")

    with Waiting(rank=rank, num_processes=2).in_turn(not is_ordered):
        waited.append("in turn")
    assert waited == (["before"] if is_ordered and rank else []) + ["in turn"] + ["after"] * (is_ordered and not rank)


def test_each_device_of_a_worker_gets_its_share_of_a_batch():
    class SixDevices:
        num_replicas_in_sync = 6

        def distribute_datasets_from_function(self, make, options):
            return make(None)

    batches = lambda: ((np.arange(4 * i, 4 * i + 4), -np.arange(4.0)) for i in range(2))  # noqa: E731
    dataset = Workers(SixDevices(), rank=1, num_processes=3).distribute(batches)
    shares = [[array.tolist() for array in share] for share in dataset.take(4).as_numpy_iterator()]
    assert shares == [[[0, 1], [0, -1]], [[2, 3], [-2, -3]], [[4, 5], [0, -1]], [[6, 7], [-2, -3]]]


def test_the_chief_says_how_many_others_have_another_config():
    waited = []

    class Chief(Workers):
        def all_reduce(self, vector):
            return np.asarray(vector, float) + 1

        def barrier(self):
            waited.append(True)

    message = "1 of 3 workers were started with another config or other data than worker 0"
    assert refused(shared_run._require_agreement, {}, [], Chief(num_processes=3)) == message
    assert waited  # until all have heard it


@pytest.mark.parametrize("rank, own", [(0, "é"), (1, "another text")])
def test_a_text_is_broadcast_by_its_length_and_its_bytes(rank, own):
    said = []

    class Hearing(Workers):
        def all_reduce(self, vector):
            said.append([int(number) for number in vector])
            return np.array([[2.0], [0xC3, 0xA9]][len(said) - 1])

    assert Hearing(rank=rank, num_processes=2).broadcast_text(own) == "é"
    assert said == ([[0], [0, 0]] if rank else [[2], [0xC3, 0xA9]])


def test_a_worker_is_lost_where_tensorflow_and_not_our_own_code_has_failed():
    gone, ours = (
        tf.errors.UnavailableError(None, None, text) for text in ("gone", "Traceback (most recent call last)")
    )
    assert isinstance(Second("").lost(gone), WorkerLost) and Workers().lost(gone) is None
    assert Second("").lost(ours) is Second("").lost(ValueError("gone")) is None


def test_a_process_takes_its_rows_and_under_pytorch_one_step_at_a_time(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert Second("").check(TrainConfig(batch_size=6), []) == slice(3, 6)
    assert "must be 1 with PyTorch, got 2" in refused(Workers().check, TrainConfig(steps_per_execution=2), [])


def test_a_job_of_one_worker_waits_for_no_others(monkeypatch):
    monkeypatch.setattr(rendezvous, "worker_addresses", lambda text: (["localhost:1"], 0))
    monkeypatch.setattr(rendezvous, "_await_workers", lambda *_: pytest.fail("there are none"))
    assert rendezvous.join().num_processes == 1


@pytest.mark.parametrize(
    "status, error, recorded",
    [
        ("running", OSError("the disk is full"), "failed"),
        ("running", WorkerLost("worker 0", RuntimeError("gone")), "running"),  # the same command continues
        ("done", OSError("the disk is full"), "done"),
        (None, OSError("the disk is full"), None),  # the run has not begun
    ],
)
def test_how_a_run_failed_is_recorded_where_it_was_under_way(tmp_path, status, error, recorded):
    with RunDirectory(str(tmp_path), TrainConfig()) as directory:
        if status:
            directory.set_status(status)
        with pytest.raises(type(error)), recording_failure(directory, Workers()):
            raise error
    contents = read_config_json(str(tmp_path))
    assert (contents and contents["status"]) == recorded
    assert recorded != "failed" or contents["error"] == "the disk is full"


@pytest.mark.parametrize("status, is_locked", [("running", True), ("failed", True), ("diverged", False)])
def test_a_run_that_diverged_is_not_locked(tmp_path, monkeypatch, status, is_locked):
    locked, waited = [], []
    monkeypatch.setattr(shared_run, "lock", lambda *_: locked.append(1))
    monkeypatch.setattr(Workers, "barrier", lambda _: waited.append(1))
    begin(tmp_path, TrainConfig(), status=status, diverged_at_step=3)
    with open_run(TrainConfig(), str(tmp_path), Workers(), "") as (_, contents):
        assert contents["status"] == status and bool(locked) == is_locked and contents["final_row"] is None
        assert bool(waited) != is_locked  # until the others have heard that nothing is left to do


def test_divergence_is_recorded_before_any_worker_may_leave(tmp_path):
    """A scheduler ends the whole job with its first process."""
    seen = []

    class Waiting(Workers):
        def barrier(self):
            seen.append(read_config_json(str(tmp_path / "run"))["status"])

    with open_run(TrainConfig(), str(tmp_path / "run"), Waiting(), "") as (directory, _):
        directory.set_status("running")
        with pytest.raises(Diverged), recording_failure(directory, Waiting()):
            raise Diverged(7)
    assert seen == ["diverged"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["diverged_at_step"] == 7
