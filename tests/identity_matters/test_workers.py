"""The agreement of workers before training, and their barriers: tested on one of them, with a fake other."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from begun import begin, read_config_json
from refusals import refused

from identity_matters import cluster, networks, training
from identity_matters.cluster import Cluster
from identity_matters.config import DataConfig, TrainConfig
from identity_matters.errors import Diverged, WorkerLost
from identity_matters.model import all_conv_resnet
from identity_matters.run import Run
from identity_matters.runs.checkpoint import TrainingState


class Chief(Cluster):
    """A chief whose words are kept."""

    def broadcast_text(self, text):
        self.said = text
        return text


class Second(Cluster):
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
    config = TrainConfig(data=DataConfig(npz="one.npz"))
    with Run.open(str(tmp_path / "run"), config, chief, *images(200)):
        return chief.said


@pytest.mark.parametrize("config", [{"train_steps": 5}, "mnist", None])
def test_an_invalid_config_raises_an_error_with_the_place_of_a_valid_one(tmp_path, config):
    message = refused(training.train, config, tmp_path / "run")
    assert message == f"config must be a TrainConfig, e.g. training.PRESETS['mnist'], got {config!r}"


def test_parameter_servers_need_tensorflow_and_the_processes_of_a_job(tmp_path, monkeypatch):
    config = TrainConfig(strategy="parameter_server")
    assert "launch.cluster --strategy=parameter_server starts them" in refused(training.train, config, tmp_path / "run")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    message = "strategy parameter_server needs KERAS_BACKEND=tensorflow, got jax"
    assert refused(training.train, config, tmp_path / "run") == message


@pytest.mark.parametrize("name, other", [("image_data_format", "channels_first"), ("floatx", "float64")])
def test_other_settings_of_keras_are_rejected_with_how_to_change_them(tmp_path, tiny_config, name, other):
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


def test_a_worker_on_other_data_is_rejected(said):
    def join(digest, summary):
        # The same digest says that it is the same file, wherever it is and was looked for.
        config = TrainConfig(data=DataConfig(npz="elsewhere.npz", download=True))
        with Run.open("", config, Second(said), digest, summary) as run:
            return run

    message = "other data than worker 0 (worker 0's, its own): examples (200 images, c8, 150 images, 96)"
    assert message in refused(join, *images(150))
    assert join(*images(200)).directory is None


def test_no_worker_downloads_if_the_chief_could_not():
    class Alone(Second):
        def broadcast(self, vector):
            return [True]

        def all_reduce(self, vector):
            raise WorkerLost("worker 1", RuntimeError("gone"))

    with pytest.raises(WorkerLost), Alone("").chief_first(True):
        pytest.fail("it must not load")


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_chief_enters_first_if_the_order_counts(rank, is_ordered):
    events = []

    class Waiting(Cluster):
        def broadcast(self, vector):
            return np.array([float(is_ordered)])  # as the chief has it, whatever this one has

        def barrier(self):
            events.append("barrier")

    with Waiting(rank=rank, num_processes=2).chief_first(not is_ordered):
        events.append("entered")
    expected = ["entered", "barrier"] if rank == 0 else ["barrier", "entered"]
    assert events == (expected if is_ordered else ["entered"])


def test_each_device_of_a_worker_gets_its_share_of_a_batch():
    class SixDevices:
        num_replicas_in_sync = 6

        def distribute_datasets_from_function(self, make, options):
            return make(None)

    batches = lambda: ((np.arange(4 * i, 4 * i + 4), -np.arange(4.0)) for i in range(2))  # noqa: E731
    dataset = Cluster(SixDevices(), rank=1, num_processes=3).distribute(batches)
    shares = [[array.tolist() for array in share] for share in dataset.take(4).as_numpy_iterator()]
    assert shares == [[[0, 1], [0, -1]], [[2, 3], [-2, -3]], [[4, 5], [0, -1]], [[6, 7], [-2, -3]]]


def test_the_chief_says_how_many_others_have_another_config(tmp_path):
    events = []

    class Chief(Cluster):
        def all_reduce(self, vector):
            return np.asarray(vector, float) + 1

        def broadcast_text(self, text):
            return text

        def barrier(self):
            events.append("barrier")

    def open_run():
        with Run.open(str(tmp_path / "run"), TrainConfig(), Chief(num_processes=3), ""):
            pytest.fail("it must not train")

    assert refused(open_run) == "1 of 3 workers were started with another config or other data than worker 0"
    assert events == ["barrier"]  # until all have heard it


def test_all_workers_take_the_state_that_the_chief_has_restored(tiny_run, tiny_config):
    states = []
    for _ in range(2):
        network, model = networks.build(tiny_config.model, seed=len(states)), keras.optimizers.SGD(0.1, momentum=0.9)
        model.build(network.trainable_variables)
        states.append(TrainingState(network, model, 4))
    first, second = states
    first.advance(3, {"loss": 0.1, "cross_entropy": 0.2, "top1": 0.3, "top5": 0.4})
    sums = []

    class Pair(Cluster):
        """Its all-reduce adds the values of the chief, the first to call."""

        def all_reduce(self, vector):
            sums.append(np.asarray(vector, float))
            return sum(sums)

    first.assign(Pair(num_processes=2).broadcast_arrays(first.arrays()))
    second.assign(Pair(rank=1, num_processes=2).broadcast_arrays(second.arrays()))
    assert second.step == 3 and second.means() == first.means() != {}
    for (name, given), taken in zip(first.weights().items(), second.weights().values(), strict=True):
        np.testing.assert_array_equal(given, taken, name)


def test_all_workers_wait_until_each_has_heard_of_a_mistake_of_the_chief(tmp_path):
    (tmp_path / "notes.txt").write_text("of somebody else")
    events = []

    class Waiting(Chief):
        def barrier(self):
            events.append("chief")

    class WaitingSecond(Second):
        def barrier(self):
            events.append("second")

    def open_run(folder, worker):
        with Run.open(folder, TrainConfig(), worker, ""):
            pytest.fail("it must not train")

    chief = Waiting()
    message = refused(open_run, str(tmp_path), chief)
    assert "holds 'notes.txt' but no config.json of a run" in message
    assert refused(open_run, "", WaitingSecond(chief.said)) == message
    assert events == ["chief", "second"]


@pytest.mark.parametrize("rank, own", [(0, "é"), (1, "another text")])
def test_a_text_is_broadcast_by_its_length_and_its_bytes(rank, own):
    said = []

    class Hearing(Cluster):
        def all_reduce(self, vector):
            said.append([int(number) for number in vector])
            return np.array([[2.0], [0xC3, 0xA9]][len(said) - 1])

    assert Hearing(rank=rank, num_processes=2).broadcast_text(own) == "é"
    assert said == ([[0], [0, 0]] if rank else [[2], [0xC3, 0xA9]])


def test_a_worker_is_lost_where_tensorflow_and_not_our_own_code_has_failed():
    gone, ours = (
        tf.errors.UnavailableError(None, None, text) for text in ("gone", "Traceback (most recent call last)")
    )
    assert isinstance(Second("").translate_error(gone), WorkerLost) and Cluster().translate_error(gone) is None
    assert Second("").translate_error(ours) is Second("").translate_error(ValueError("gone")) is None


def test_under_pytorch_a_call_makes_one_step(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert "must be 1 with PyTorch, got 2" in refused(training.check, TrainConfig(steps_per_execution=2), [])


@pytest.mark.parametrize("strategy", ["synchronous", "parameter_server"])
def test_xla_is_rejected_under_tensorflow(monkeypatch, strategy):
    message = refused(training.check, TrainConfig(jit_compile="on", strategy=strategy), [])
    assert message.startswith("jit_compile = on needs KERAS_BACKEND=jax")
    for choice in ("auto", "off"):
        training.check(TrainConfig(jit_compile=choice, strategy=strategy), [])
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    training.check(TrainConfig(jit_compile="on"), [])


def test_a_job_of_one_worker_waits_for_no_others(monkeypatch):
    monkeypatch.setattr(cluster, "worker_addresses", lambda text: (["localhost:1"], 0))
    monkeypatch.setattr(cluster, "await_listeners", lambda *_: pytest.fail("there are none"))
    assert cluster.from_environment().num_processes == 1


@pytest.mark.parametrize(
    "status, error, recorded",
    [
        ("running", OSError("the disk is full"), "failed"),
        ("running", WorkerLost("worker 0", RuntimeError("gone")), "running"),  # the same command continues
        (None, OSError("the disk is full"), None),  # the run has not begun
    ],
)
def test_a_failure_is_recorded_in_a_run_that_has_begun(tmp_path, status, error, recorded):
    with pytest.raises(type(error)), Run.open(str(tmp_path), TrainConfig(), Cluster(), "") as run:
        if status:
            run.directory.set_status(status)
        raise error
    contents = read_config_json(str(tmp_path))
    assert (contents and contents["status"]) == recorded
    assert recorded != "failed" or contents["error"] == "the disk is full"


def test_a_run_that_diverged_says_so_to_all_workers_and_is_not_locked(tmp_path):
    begin(tmp_path, TrainConfig(), status="diverged", diverged_at_step=3)
    before = (tmp_path / "config.json").read_bytes()
    events = []

    class Waiting(Chief):
        def barrier(self):
            events.append("barrier")

    chief = Waiting()
    for worker, folder in ((chief, str(tmp_path)), (None, "")):
        with pytest.raises(Diverged) as raised:
            with Run.open(folder, TrainConfig(), worker or Second(chief.said), ""):
                pytest.fail("it must not train")
        assert raised.value.step == 3
    assert events == ["barrier"]  # until the others have heard that nothing is left to do
    assert (tmp_path / "config.json").read_bytes() == before


def test_divergence_is_recorded_before_any_worker_may_leave(tmp_path):
    """A scheduler ends the whole job with its first process."""
    seen = []

    class Waiting(Cluster):
        def barrier(self):
            seen.append(read_config_json(str(tmp_path / "run"))["status"])

    with pytest.raises(Diverged), Run.open(str(tmp_path / "run"), TrainConfig(), Waiting(), "") as run:
        run.directory.set_status("running")
        raise Diverged(7)
    assert seen == ["diverged"]
    assert read_config_json(str(tmp_path / "run"))["diverged_at_step"] == 7
