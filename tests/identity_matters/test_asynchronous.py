"""--strategy=parameter_server: with one worker it is plain SGD; with more nothing is lost but the order."""

import contextlib
import dataclasses
import os
import signal
import socket
from types import SimpleNamespace

import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
from processes import children, final_variables, last_step, log_of, until

from identity_matters import asynchronous, training
from identity_matters.cluster import Cluster
from identity_matters.config import TrainConfig
from identity_matters.data.batches import ArrayBatches
from identity_matters.data.source import open_source
from identity_matters.errors import EXIT_CONTINUE, WorkerLost
from identity_matters.runs.signals import StopRequest
from identity_matters.runs.tables import read_metrics
from launch.local_cluster import tf_config

FLAGS = [
    "--train_examples=200", "--eval_examples=43", "--stem_width=4", "--widths=4,8", "--blocks_per_stage=1,1",
    "--batch_size=16", "--train_steps=40", "--decay_steps=20", "--eval_every=20", "--checkpoint_every=10",
    "--clip_norm=0.5", "--learning_rate=0.02",
]  # fmt: skip


def in_the_night(value, name=None):
    return pytest.param(value, id=name, marks=pytest.mark.nightly)


def start(run_dir, *flags, num_workers, cores=None):
    launcher = "cluster" if num_workers else "train"
    job_flags = ["--strategy=parameter_server", f"--num_workers={num_workers}"] if num_workers else []
    binding = {"preexec_fn": lambda: os.sched_setaffinity(0, cores)} if cores else {}
    return processes.start(run_dir, launcher, *job_flags, *FLAGS, *flags, **binding)


def last_row(run_dir):
    return read_metrics(str(run_dir / "metrics.csv"))[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "flag", ["--optimizer=nesterov", in_the_night("--optimizer=momentum"), in_the_night("--momentum=0")]
)
def test_with_one_worker_it_is_plain_sgd(tmp_path, flag, launch):
    alone, server = tmp_path / "alone", tmp_path / "server"
    process = start(server, flag, num_workers=1)
    assert launch("train", *FLAGS, flag, f"--run_dir={alone}")[0] == 0
    assert process.wait() == 0, log_of(server)
    expected, found = final_variables(alone, 40), final_variables(server, 40)
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5, err_msg=name)
    row, other_row = last_row(alone), last_row(server)
    assert other_row.pop("staleness") == 0
    for name in row.keys() - {"images_per_second"}:
        assert other_row[name] == pytest.approx(row[name], rel=1e-3, abs=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("task", [in_the_night(0, "chief"), pytest.param(1, id="worker"), in_the_night(3, "server")])
def test_two_workers_apply_every_update(tmp_path, task):
    """With a task killed the launcher starts all again; SIGTERM saves, and the same command continues."""
    run_dir, flag = tmp_path / "run", "--train_steps=200"
    process = start(run_dir, flag, num_workers=2)
    until(lambda: last_step(run_dir), process)
    os.kill(children(process)[task], signal.SIGKILL)
    until(lambda: "starting all workers again" in log_of(run_dir), process)
    seen = last_step(run_dir)
    until(lambda: last_step(run_dir) > seen, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == EXIT_CONTINUE, log_of(run_dir)
    step = last_step(run_dir)
    assert 0 < step < 200 and f"saved at step {step}" in log_of(run_dir)
    assert final_variables(run_dir, step)["variable/momentum/iteration"] == step
    assert start(run_dir, flag, num_workers=2).wait() == 0, log_of(run_dir)
    assert final_variables(run_dir, 200)["variable/momentum/iteration"] == 200
    rows = read_metrics(str(run_dir / "metrics.csv"))
    assert 0 < max(row["staleness"] for row in rows) < 4  # at most AHEAD batches of each worker are on their way
    assert rows[-1]["loss"] < rows[0]["loss"]


@pytest.mark.nightly
def test_on_a_single_core_it_does_not_wait_for_ever(tmp_path):
    """As TensorFlow's servers do there with threads of their own choice."""
    one = set(sorted(os.sched_getaffinity(0))[:1])
    assert start(tmp_path / "run", num_workers=2, cores=one).wait(timeout=300) == 0, log_of(tmp_path / "run")


@pytest.mark.parametrize("cluster, named", [({}, "chief"), ({"chief": ["a:1"], "worker": ["b:1"]}, "ps")])
def test_a_cluster_without_one_of_the_kinds_is_named(monkeypatch, cluster, named):
    kind = next(iter(cluster), "worker")
    cluster = cluster or {"worker": ["b:1"]}
    monkeypatch.setenv("TF_CONFIG", tf_config(cluster, kind))
    with pytest.raises(ValueError, match=f"there is no {named}"):
        asynchronous.from_environment()


def test_a_server_leaves_only_when_many_looks_in_a_row_find_no_chief(monkeypatch):
    few, looks = asynchronous.MAX_FAILED_PINGS - 1, []
    found = iter([*[False] * few, True, *[False] * few, True, *[False] * (few + 1)])
    monkeypatch.setattr(asynchronous, "is_listening", lambda address: looks.append(address) or next(found))
    monkeypatch.setattr(asynchronous.time, "sleep", lambda seconds: None)
    asynchronous._await_end("chief:1")
    assert looks == ["chief:1"] * (3 * few + 3) and not list(found)


def fake_model(handed_out, begun=1):
    """A model of two workers that begin each batch so often and answer a loss of 10, 20, …

    handed_out gets the number of batches on their way, with each new one.
    """
    model, waiting = object.__new__(asynchronous.AsynchronousModel), []

    def schedule(update, args):
        waiting.append(1)
        handed_out.append(len(waiting))
        model._begun.assign_add(begun)
        value = len(handed_out)
        return SimpleNamespace(fetch=lambda: waiting.pop() and {"loss": 10.0 * value, "staleness": args[0]})

    model._chief = SimpleNamespace(num_workers=2, coordinator=SimpleNamespace(schedule=schedule))
    model._update = None
    model._begun = tf.Variable(7)  # of the call before
    model._stop = StopRequest()
    model._config = TrainConfig()
    model.optimizer = SimpleNamespace(iterations=0)
    model.stop_training = False
    return model


@pytest.mark.parametrize("stops_at, num_read", [(None, 9), (2, 6)])
def test_two_batches_per_worker_are_in_flight_and_none_is_handed_out_after_a_stop(stops_at, num_read):
    """Two workers: the first answer is read with four on their way, and after a stop the four that are."""
    most, seen = [], []

    class Seen(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs):
            seen.append((batch, logs["loss"]))
            model.stop_training = batch == stops_at

    model = fake_model(most)
    found = model._train(((k, k) for k in range(20)), 9, keras.callbacks.CallbackList([Seen()]))
    assert most == [1, 2, 3, 4, 4, 4, 4, 4, 4][:num_read]
    assert seen == [(k, 5.0 * (k + 2)) for k in range(num_read)]  # means of 10, 20, …
    assert found == {"loss": 5.0 * (num_read + 1), "staleness": (num_read - 1) / 2}


def test_updates_that_a_worker_began_and_another_repeats_are_not_saved():
    """TensorFlow gives the batch of a worker that is lost to another: its update can be in the weights twice."""
    with pytest.raises(WorkerLost, match="3 updates were read, 6 begun"):
        fake_model([], begun=2)._train(((k, k) for k in range(20)), 3, keras.callbacks.CallbackList([]))


OF_TASKS = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"]}


@pytest.mark.parametrize("kind, index", [("chief", 0), ("worker", 1), ("ps", 0)])
def test_a_chief_awaits_the_others_and_these_serve_until_it_is_gone(kind, index, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", tf_config(OF_TASKS, kind, index))
    seen, cluster = [], lambda resolver: resolver.cluster_spec().as_dict()

    def served(spec, config, **task):
        seen.append((spec.as_dict(), config.inter_op_parallelism_threads, task))

    monkeypatch.setattr(tf.distribute, "Server", served)
    monkeypatch.setattr(tf.distribute, "ParameterServerStrategy", cluster)
    monkeypatch.setattr(tf.distribute.coordinator, "ClusterCoordinator", lambda strategy: ["of", strategy])
    monkeypatch.setattr(asynchronous, "bypass_proxy", seen.append)
    monkeypatch.setattr(asynchronous, "listener_on", lambda *task: socket.socket())
    monkeypatch.setattr(asynchronous, "await_listeners", lambda addresses, who: seen.append((addresses, who)))
    monkeypatch.setattr(asynchronous, "_await_end", seen.append)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    chief, addresses = asynchronous.from_environment(), ["c:1", "a:1", "b:1", "p:1"]
    if kind == "chief":
        assert seen == [addresses, (["a:1", "b:1", "p:1"], "the chief")]
        assert (chief.num_workers, chief.has_peers, chief.rank) == (2, True, 0)
        assert (chief.parameter_servers, chief.coordinator) == (OF_TASKS, ["of", OF_TASKS])
        return
    task = {"job_name": kind, "task_index": index, "protocol": "grpc", "start": True}
    assert chief is None and seen == [addresses, (OF_TASKS, 5, task), (["c:1"], "this task"), "c:1"]


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "nesterov", "clip_norm": 0.05},
        {"optimizer": "momentum", "decay_steps": (2, 6)},
        pytest.param({"momentum": 0.0}, marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_alone_takes_the_steps_of_keras(changes, tiny_config, monkeypatch):
    """As in test_with_one_worker_it_is_plain_sgd, in this process: the chief calls what it would hand out."""
    model = dataclasses.replace(tiny_config.model, residual_initializer="standard")
    config = dataclasses.replace(tiny_config, model=model, **changes)
    batches = ArrayBatches(open_source(config.data), config)

    def schedule(update, args):
        answer = update(*args)
        return SimpleNamespace(fetch=lambda: answer)

    coordinator = SimpleNamespace(schedule=schedule, create_per_worker_dataset=lambda make: make())
    chief = SimpleNamespace(num_workers=1, coordinator=coordinator, scope=contextlib.nullcontext)
    are_locked = []
    for name in ("ResourceApplyGradientDescent", "ResourceApplyKerasMomentum", "ResourceApplyMomentum"):
        apply = getattr(tf.raw_ops, name)
        locked = lambda apply=apply, **options: are_locked.append(options["use_locking"]) or apply(**options)  # noqa: E731
        monkeypatch.setattr(tf.raw_ops, name, locked)
    network, model = training.build(config, batches, Cluster())
    same = training.build(config, batches, Cluster())[0]
    ours = asynchronous.AsynchronousModel(same, batches, config, chief, StopRequest())
    ours.stop_training = False
    for start in (0, 4):
        stream = lambda: batches.train_batches(start)  # noqa: B023, E731
        options = {"steps_per_epoch": 4, "shuffle": False, "verbose": 0}
        expected = model.fit(Cluster().distribute(stream), **options).history | {"staleness": [0]}
        found = ours._train(ours._input.located_batches(start), 4, keras.callbacks.CallbackList([]))
        assert found.keys() == expected.keys()
        assert list(found.values()) == pytest.approx([expected[name][0] for name in found], rel=1e-4)
    assert are_locked == [True] * len(network.trainable_variables)
    for pair in zip(same.get_weights(), network.get_weights(), strict=True):
        np.testing.assert_allclose(*pair, rtol=0, atol=1e-5)
    options = {"steps": batches.test_steps, "verbose": 0, "return_dict": True}
    tested = [m.evaluate(x=Cluster().distribute(batches.weighted_test_batches), **options) for m in (ours, model)]
    assert tested[0] == pytest.approx(tested[1], rel=1e-4)
