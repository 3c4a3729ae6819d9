"""identity_matters.cluster: who the workers are, what each takes of a batch; replicas train as one device."""

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from refusals import refused
from tensorflow.python.eager import context as tf_context

from identity_matters import cluster
from identity_matters.cluster import Cluster, from_environment, worker_addresses
from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArraySource
from identity_matters.data.batches import ArrayBatches
from identity_matters.errors import UserError, WorkerLost, translate_errors
from identity_matters.replicated import all_reduce_before_clipping
from identity_matters.runs.tables import read_metrics
from launch.local_cluster import free_ports, tf_config


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", ([], 0)),
        (tf_config({"worker": ["a:1", "b:2"]}, index=1), (["a:1", "b:2"], 1)),
        (tf_config({"worker": ["a:1"], "chief": ["c:3"]}, "chief"), (["c:3", "a:1"], 0)),
        (tf_config({"worker": ["a:1", "b:2"], "chief": ["c:3"]}, index=1), (["c:3", "a:1", "b:2"], 2)),
        (tf_config({"worker": ["[::1]:80", "b:2"]}, index="1"), (["[::1]:80", "b:2"], 1)),
    ],
)
def test_the_workers_of_tf_config_the_chief_first(text, expected):
    assert worker_addresses(text) == expected


@pytest.mark.parametrize(
    "text, named",
    [
        ("{", "property name"),
        ('{"cluster": {"worker": ["a:1"]}}', "'task' is missing"),
        (tf_config({"chief": ["a:1"]}), "it has no worker"),
        (tf_config({"worker": ["a:1", "b:2"]}, index=2), "no worker 2"),
        (tf_config({"worker": ["a:0"]}), "a:0 has no host or no port"),
        (tf_config({"worker": ["a:65535", "b:65536"]}), "b:65536 has no host or no port"),
        (tf_config({"worker": [":1"]}), ":1 has no host"),
        (tf_config({"worker": ["a:1", "b:2", "a:1"]}), "a:1 is given twice"),
        (tf_config({"worker": ["a:1"]}, kind="evaluator"), "evaluator"),
        (tf_config({"worker": ["a:1"], "ps": ["b:1"]}), "ps"),
        (tf_config({"worker": ["a:1"]}, index=math.inf), "infinity"),
    ],
)
def test_a_tf_config_that_cannot_be_used_is_named(text, named):
    with pytest.raises(ValueError, match="TF_CONFIG cannot be used") as error:
        worker_addresses(text)
    assert named in str(error.value) and text in str(error.value) and "\n" not in str(error.value)


def test_a_tf_config_nested_100_000_deep_is_a_short_error():
    message = refused(worker_addresses, '{"cluster": ' * 100_000)
    assert message.startswith("TF_CONFIG cannot be used: maximum recursion depth") and len(message) < 600


def test_several_workers_are_rejected_under_pytorch(monkeypatch):
    """Each worker would train the whole batch by itself, and write to the same run directory."""
    monkeypatch.setenv("TF_CONFIG", tf_config({"worker": ["a:1", "b:2"]}, index=1))
    monkeypatch.setattr(cluster.keras.backend, "backend", lambda: "torch")
    with pytest.raises(UserError, match="several workers need KERAS_BACKEND=tensorflow, got torch"):
        from_environment()
    monkeypatch.setenv("TF_CONFIG", tf_config({"worker": ["a:1"]}, index=0))
    assert not from_environment().has_peers


@pytest.mark.parametrize("num_gpus, has_strategy", [(0, False), (1, False), (2, True)])
def test_a_worker_alone_mirrors_its_variables_from_two_gpus_on(monkeypatch, num_gpus, has_strategy):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU"] * num_gpus)
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda: Replicas(2))
    assert (from_environment().num_replicas == 2) == has_strategy


@pytest.mark.parametrize("num_devices", [1, 2])
def test_under_jax_a_process_shares_its_batches_among_its_devices(monkeypatch, num_devices):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(cluster.keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(cluster.keras.distribution, "list_devices", lambda: range(num_devices))
    parallel = lambda devices, auto_shard_dataset: not auto_shard_dataset and Devices(len(devices))  # noqa: E731
    monkeypatch.setattr(cluster.keras.distribution, "DataParallel", parallel)
    joined = from_environment()
    assert (joined.num_replicas, joined.distribution is None, joined.has_peers) == (num_devices, num_devices < 2, False)


@pytest.mark.parametrize("gpus, way", [([], "RING"), (["GPU:0", "GPU:1"], "NCCL")])
def test_two_processes_use_all_devices_and_the_chief_waits_half_a_minute(monkeypatch, gpus, way):
    context, waited = tf_context.context(), []

    def strategy(communication_options):
        context.configure_coordination_service()
        assert communication_options.implementation.name == way
        return Replicas(4)

    monkeypatch.setenv("TF_CONFIG", tf_config({"worker": ["a:1", "b:2"]}, index=1))
    monkeypatch.setattr(cluster, "bypass_proxy", waited.append)
    monkeypatch.setattr(cluster, "listener_on", lambda *task: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "await_listeners", lambda *who: waited.append(who))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(context, "configure_coordination_service", lambda **options: waited.append(options))
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", strategy)
    joined = from_environment()
    assert waited == [["a:1", "b:2"], (["a:1"], "worker 1 (b:2)"), {"cluster_register_timeout_in_ms": 30_000}]
    assert (joined.rank, joined.num_processes, joined.num_replicas) == (1, 2, 4)


class Replicas:
    """What Cluster asks of a strategy."""

    def __init__(self, count):
        self.num_replicas_in_sync = count


class Devices:
    """What Cluster asks of a keras.distribution.DataParallel."""

    def __init__(self, count):
        self.device_mesh = SimpleNamespace(devices=np.arange(count))


def test_the_rows_of_the_workers_make_up_the_batch():
    everything = range(24)
    parts = [everything[Cluster(Replicas(6), rank, 3).rows(24)] for rank in range(3)]
    assert [list(part) for part in parts] == [list(range(8)), list(range(8, 16)), list(range(16, 24))]
    assert everything[Cluster().rows(24)] == everything
    for unfit, nearest in ((3, "6"), (25, "24 and 30")):
        message = refused(Cluster(Replicas(6), 0, 3).rows, unfit)
        assert message.endswith(f"number of devices, 6 on 3 worker(s), got {unfit}; the nearest are {nearest}")


def test_gradients_are_summed_only_by_replicas():
    class Clipping:
        def _clip_gradients(self, grads):
            return grads

    with tf.distribute.OneDeviceStrategy("CPU:0").scope():  # outside of its replicas
        assert all_reduce_before_clipping(Clipping)()._clip_gradients([1.5, -2]) == [1.5, -2]


def test_one_worker_hears_itself():
    group = Cluster()
    text = '{"a": "ℓ ≤ π"}\n'
    assert group.is_chief and group.broadcast_text(text) == text
    np.testing.assert_array_equal(group.all_reduce([1.5, -2]), [1.5, -2])


def test_a_worker_of_two_devices_gives_its_vector_by_the_first_of_them():
    class FourDevices:
        num_replicas_in_sync = 4

        def experimental_distribute_values_from_function(self, value):  # on those of the second worker
            return [value(SimpleNamespace(replica_id_in_sync_group=device)) for device in (2, 3)]

    group = Cluster(FourDevices(), rank=1, num_processes=2)
    group._total = tf.add_n
    np.testing.assert_array_equal(group.all_reduce([1.5, -2]), [1.5, -2])


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_a_port_that_is_taken_is_named(address):
    with socket.socket() as taken:
        taken.bind((address, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"worker 2 cannot listen on host:{port}: Address already in use"):
            cluster.listener_on(f"host:{port}", "worker 2")
    cluster.listener_on(f"host:{port}", "worker 2").close()


def test_a_worker_that_comes_late_is_named(monkeypatch, capsys):
    (port,) = free_ports(1)
    monkeypatch.setattr(cluster, "NOTICE_AFTER", 0)
    with contextlib.ExitStack() as stack:
        late = ("127.0.0.1", port)
        monkeypatch.setattr(cluster.time, "sleep", lambda _: stack.enter_context(socket.create_server(late)))
        cluster.await_listeners([f"127.0.0.1:{port}"], "worker 0")
    assert capsys.readouterr().err == f"worker 0 waits for 127.0.0.1:{port}\n"


def test_a_worker_that_never_comes_is_named_after_5_seconds_and_given_up_after_600(monkeypatch, capsys):
    clock, said = [0], []
    tick = lambda seconds: said.append(capsys.readouterr().err) or clock.append(clock[-1] + 1)  # noqa: E731
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: 50 + clock[-1], sleep=tick))
    monkeypatch.setattr(cluster, "is_listening", lambda address: address == "b:1")
    with pytest.raises(WorkerLost, match="worker 1 .*a:1, c:1 could not be reached within 600 seconds"):
        cluster.await_listeners(["a:1", "b:1", "c:1"], "worker 1")
    assert clock[-1] == 601 and [*filter(None, said)] == [said[6]] == ["worker 1 waits for a:1, c:1\n"]


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, "a,::1,10.0.0.2"),
        ({"no_grpc_proxy": "c,a"}, "c,a,::1,10.0.0.2"),
        ({"no_proxy": "c"}, "c,a,::1,10.0.0.2"),  # else gRPC would not read it any more
    ],
)
def test_no_proxy_is_asked_for_the_hosts_of_the_cluster(monkeypatch, given, expected):
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.setenv(name, given.get(name, ""))
    cluster.bypass_proxy(["a:1", "a:2", "[::1]:1", "10.0.0.2:1"])
    assert os.environ["no_grpc_proxy"] == expected


# As with CUDA_VISIBLE_DEVICES of another length, on a machine without GPUs.
MEET_WITH_ONE_DEVICE_MORE = """
import json, os
import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from identity_matters.cluster import from_environment
count = 1 + json.loads(os.environ["TF_CONFIG"])["task"]["index"]
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
local = lambda self, resolver, worker_device: ([f"{worker_device}/device:CPU:{i}" for i in range(count)], "CPU")
CollectiveAllReduceExtended._initialize_local_devices = local
try:
    from_environment().all_reduce([1.0])
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_workers_connect_past_a_proxy_and_report_different_numbers_of_devices():
    """gRPC would take the proxy of the environment for 127.0.0.1 too; nobody listens on its port."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environments = [{"TF_CONFIG": tf_config({"worker": addresses}, index=rank)} | proxies for rank in (0, 1)]
    command = [sys.executable, "-c", MEET_WITH_ONE_DEVICE_MORE]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
        for environment in environments
    ]
    try:
        for rank, process in enumerate(started):
            output = process.communicate(timeout=300)[0]
            assert output.startswith(f"worker {rank} has {rank + 1} device(s), another worker has another number")
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize("difference", ["size4, but that group has size 2", "type GPU, but that group has type CPU"])
def test_other_devices_than_another_workers_are_no_lost_worker(difference):
    error = tf.errors.InternalError(None, None, f"Device /device:GPU:0 is joining a group with {difference}\n[[node]]")
    with pytest.raises(UserError, match="worker 1 has 2 device.s., another worker has .*CUDA_VISIBLE_DEVICES"):
        with translate_errors(Cluster(Replicas(4), 1, 2).translate_error):
            raise error
    with pytest.raises(WorkerLost, match="^worker 1 "), translate_errors(Cluster(Replicas(4), 1, 2).translate_error):
        raise tf.errors.InternalError(None, None, "the group has gone")


def test_workers_together_see_the_batches_of_one_worker_and_every_test_image_once():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 4, 4, 1), np.uint8)
    labels = {"train": np.arange(30, dtype=np.int32), "test": np.arange(11, dtype=np.int32)}
    data = ArraySource("random", {"train": images, "test": images[:11]}, labels, 30)
    config = TrainConfig(batch_size=12, crop_padding=1)
    one = ArrayBatches(data, config)
    parts = [ArrayBatches(data, config, Cluster(Replicas(3), rank, 3).rows(12)) for rank in range(3)]
    for streams in (lambda b: (next(b.train_batches(4)),), lambda b: list(b.weighted_test_batches())):
        for whole, *shares in zip(streams(one), *map(streams, parts), strict=True):
            for expected, *pieces in zip(whole, *shares, strict=True):
                np.testing.assert_array_equal(expected, np.concatenate(pieces))


@pytest.fixture(scope="module")
def on_two_devices():
    """The results of replicas.py: two replicas in a separate process, whose TensorFlow has two logical CPUs."""
    script = os.path.join(os.path.dirname(__file__), "replicas.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# How far two replicas may end from one device, and how far the run moves the weights at least. Muon: orthogonalising
# enlarges the rounding of small singular values, 3.4 times a step, 5 steps.
APART = dict.fromkeys(("clipped", "keras_momentum", "unclipped"), (1e-6, 1e-3))
APART |= dict.fromkeys(("muon", "muon and Keras's fit"), (1e-4, 1e-2))


@pytest.mark.slow
@pytest.mark.parametrize("name", APART)
def test_two_replicas_train_as_one_device(on_two_devices, name):
    moved, apart = on_two_devices["moved_and_apart"][name]
    assert apart < APART[name][0] < APART[name][1] < moved
    assert on_two_devices["logs"] == pytest.approx(on_two_devices["logs_of_one"], rel=1e-5)


@pytest.mark.slow
def test_kerass_own_sgd_does_not_because_it_clips_before_it_sums(on_two_devices):
    """Why replicated.all_reduce_before_clipping is there."""
    assert on_two_devices["moved_and_apart"]["Keras's SGD"][1] > 1e-3


@pytest.mark.slow
def test_replicas_agree_on_the_mean_of_their_moments_of_batch_normalisation(on_two_devices):
    before, trained, after = (on_two_devices[f"moments{name}"] for name in ("_before", "_trained", ""))
    assert len(after) == len(trained) >= 6 and all(first == second for first, second in after)
    assert all(old != new for old, new in zip(before, after))
    assert all(first != second for first, second in trained)
    assert [first for first, _ in after] == pytest.approx([np.mean(pair) for pair in trained], rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_replicas_drop_each_its_own_entries_and_the_first_those_of_one_device(on_two_devices):
    first, second = (np.array(draw) for draw in zip(*on_two_devices["dropped"]))
    np.testing.assert_array_equal(first, [mask for (mask,) in on_two_devices["dropped_by_one"]])
    masks = np.concatenate([first, second]) == 0  # [replicas · draws, 1000], half of it true
    assert np.abs(np.corrcoef(masks) - np.eye(4)).max() < 0.15  # 5 standard deviations of independent masks
    assert np.abs(masks.mean(axis=1) - 0.5).max() < 0.1


@pytest.mark.slow
def test_two_replicas_count_every_test_image_once(on_two_devices):
    found = on_two_devices
    assert found["test"] == pytest.approx(found["test_of_one"], rel=1e-5)
    num_right = found["test"]["top1"] * found["num_test"]
    assert num_right == pytest.approx(round(num_right))


CALLBACKS = """
import dataclasses, json, sys
import keras
from identity_matters import training

run_dir, logs = sys.argv[1:]
config = training.with_fields(
    training.PRESETS["mnist"], widths=(16,), blocks_per_stage=(1,), train_examples=200, eval_examples=100,
    train_steps=22, decay_steps=(), batch_size=20, eval_every=8, checkpoint_every=4, steps_per_execution=2,
    learning_rate=0.01)

class Log(keras.callbacks.Callback):
    rows = []
    def on_epoch_end(self, epoch, logs):
        self.rows.append(logs)

stopping = keras.callbacks.EarlyStopping("val_cross_entropy", min_delta=1, patience=1, restore_best_weights=True)
saving = keras.callbacks.ModelCheckpoint(logs + ".keras")
training.train(config, run_dir, callbacks=[Log(), stopping, saving])
open(logs, "w").write(json.dumps([Log.rows, stopping.best]))
"""


@pytest.mark.slow
def test_two_workers_have_callbacks_as_one_process_has(tmp_path):
    """Both stop after the second evaluation, and export the weights of the first."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    started = []
    for name, run_dir, rank in (("alone", "alone", None), ("first", "pair", 0), ("second", "pair", 1)):
        command = [sys.executable, "-c", CALLBACKS, str(tmp_path / run_dir), str(tmp_path / f"{name}.json")]
        job = {} if rank is None else {"TF_CONFIG": tf_config({"worker": addresses}, index=rank)}
        started.append(subprocess.Popen(command, env=os.environ | job))
    assert [process.wait(timeout=200) for process in started] == [0, 0, 0]
    alone, first, second = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("alone", "first", "second")
    )
    assert first == second and len(first[0]) == 2
    for logs, expected in zip(first[0], alone[0], strict=True):
        assert logs == pytest.approx(expected, rel=1e-5)
    assert (tmp_path / "first.json.keras").exists() and not (tmp_path / "second.json.keras").exists()
    row = read_metrics(tmp_path / "pair" / "metrics.csv")[-1]
    assert row["step"] == 16 and row["test_cross_entropy"] == pytest.approx(first[1], rel=1e-6)


PLAIN_FIT = """
import keras, numpy as np, tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
data = tf.data.Dataset.from_tensors((np.ones((4, 2)), np.ones((4, 1)))).repeat(4)
try:
    model.fit(data, epochs=1, steps_per_epoch=2, verbose=0)
except Exception as error:
    print("Keras failed", flush=True)
    import os; os._exit(3)
"""


@pytest.mark.slow
def test_fit_of_keras_fails_on_several_workers():
    """Once Keras mends issue 20585 and this test fails, `replicated.ReplicatedModel` can go."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PLAIN_FIT],
            env=os.environ | {"TF_CONFIG": tf_config({"worker": addresses}, index=rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=120)[0] for process in started]
    assert any("Keras failed" in text for text in printed)
