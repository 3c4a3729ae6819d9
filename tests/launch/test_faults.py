"""Killed, stopped, preempted, out of disk: faults that a job survives to the bit, and its errors otherwise.

A run has several accidents one after the other, because a start takes longer than the training. Moments are drawn at
random, from the duration of an undisturbed run on the same machine or from its checkpoints.
NUM_KILLS=20 python -m pytest -n 0 -m slow tests/launch/test_faults.py kills one process more often than CI does.
"""

import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time

import keras
import numpy as np
import processes
import pytest
from begun import read_config_json
from processes import FLAGS, STEPS, assert_same_variables, children, final_variables, last_step, log_of, until

from identity_matters import training
from identity_matters.errors import EXIT_CONTINUE, EXIT_ERROR
from identity_matters.runs.tables import read_metrics
from launch.local_cluster import free_ports

pytestmark = pytest.mark.slow
NUM_KILLS = int(os.environ.get("NUM_KILLS", 2))
PAIR = ["--num_workers=2", "--max_restarts=5"]
AGAIN = "starting all workers again"
SLOW_RATE = "--learning_rate=0.01"  # at 0.1 rounding grows


def start(run_dir, launcher="train", *flags, **arguments):
    return processes.start(run_dir, launcher, *FLAGS, SLOW_RATE, *flags, **arguments)


def assert_same_end(run_dir, other):
    assert_same_variables(run_dir, other)
    assert read_config_json(str(run_dir))["status"] == "done"


def undisturbed(folder, launcher, *flags):
    """A run to the end: its directory, and seconds until its first checkpoint and its end."""
    run_dir = folder / launcher
    began = time.monotonic()
    process = start(run_dir, launcher, *flags)
    until(lambda: last_step(run_dir), process)
    first = time.monotonic() - began
    assert process.wait() == 0, log_of(run_dir)
    return run_dir, first, time.monotonic() - began


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("alone"), "train")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("pair"), "cluster", *PAIR)


def test_run_stopped_out_of_disk_and_killed_repeatedly_ends_bit_identical(tmp_path, alone):
    reference, first, whole = alone
    run_dir, flags = tmp_path / "run", ["--checkpoint_every=20"]
    save_on_sigterm(run_dir, flags)
    meet_a_full_disk(run_dir, flags)
    moments, killed, finished = random.Random(3), 0, 0
    while killed < NUM_KILLS:
        process = start(run_dir, "train", *flags)
        try:
            process.wait(moments.uniform(0.5 * first, whole))
            finished += 1  # it got to the end: from the beginning again
            run_dir.rename(tmp_path / f"finished{finished}")
            assert_same_end(tmp_path / f"finished{finished}", reference)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    assert start(run_dir, "train", *flags).wait() == 0
    assert_same_end(run_dir, reference)
    rows = (read_metrics(path / "metrics.csv") for path in (run_dir, reference))
    for row, expected in zip(*rows, strict=True):
        for name in row.keys() - {"images_per_second"}:
            is_mean = name == "loss" or name.startswith("train_")  # of training: the last of six decimals may differ
            assert row[name] == (pytest.approx(expected[name], abs=1.5e-6) if is_mean else expected[name]), name


def save_on_sigterm(run_dir, flags):
    """SIGTERM soon after the first step, and before a step at which a checkpoint is due."""
    process = start(run_dir, "train", *flags)
    until(lambda: "step/s" in log_of(run_dir) and f"0/{STEPS}" in log_of(run_dir), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == EXIT_CONTINUE
    step = last_step(run_dir)
    assert 0 < step < STEPS
    assert f"received SIGTERM, saved at step {step}; the same command continues" in log_of(run_dir)
    assert read_config_json(str(run_dir))["status"] == "running"


def meet_a_full_disk(run_dir, flags):
    """The next checkpoint does not fit: a short error, and the older checkpoints are kept."""
    before = last_step(run_dir)
    size = (run_dir / "checkpoints" / f"step_{before:08d}.npz").stat().st_size

    def limit():  # on the size of a file
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

    process = start(run_dir, "train", *flags, preexec_fn=limit)
    assert process.wait() == EXIT_ERROR
    errors = [line for line in log_of(run_dir).splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and "cannot write the checkpoint" in errors[0] and "File too large" in errors[0]
    assert "Traceback" not in log_of(run_dir) and last_step(run_dir) == before


@pytest.mark.nightly
def test_two_workers_are_one_for_eight_steps_of_the_mnist_preset(tmp_path):
    """Later training amplifies rounding at this rate: after 20 steps the difference was 7e-4."""
    flags = ["--preset=mnist", "--train_steps=8", "--eval_every=8", "--checkpoint_every=8", "--decay_steps="]
    for launcher, more in (("train", []), ("cluster", PAIR)):
        assert processes.start(tmp_path / launcher, launcher, *flags, *more).wait() == 0
    one, two = (final_variables(tmp_path / launcher, 8) for launcher in ("train", "cluster"))
    assert 0 < max(np.abs(one[name] - two[name]).max() for name in one) < 1e-5


def test_two_workers_end_as_one(alone, pair):
    one, two = final_variables(alone[0]), final_variables(pair[0])
    differences = [np.abs(one[name] - two[name]).max() for name in one]
    assert 0 < max(differences) < 1e-5
    files, files_of_two = ({name for name in os.listdir(d) if "tfevents" not in name} for d in (alone[0], pair[0]))
    assert files_of_two == files | {"workers.log"}
    assert sum("tfevents" in name for name in os.listdir(pair[0])) == 1  # the chief's


def test_workers_that_are_killed_and_one_that_leaves_do_not_change_the_end(tmp_path, pair):
    """One is killed while they join, one after a checkpoint; on SIGTERM to one both save and leave at one step."""
    reference, first, _ = pair
    run_dir = tmp_path / "run"
    process = start(run_dir, "cluster", *PAIR)
    until(lambda: len(children(process)) == 2, process)
    time.sleep(random.Random(0).uniform(0, 0.8 * first))
    os.kill(children(process)[1], signal.SIGKILL)
    for restarts, number in enumerate([signal.SIGKILL, signal.SIGTERM], 1):
        until(lambda: log_of(run_dir).count(AGAIN) == restarts, process)
        before = last_step(run_dir)
        until(lambda: last_step(run_dir) > before, process)
        os.kill(children(process)[0], number)
    assert process.wait() == 0, log_of(run_dir)
    saved = [line.split("saved at step ")[1] for line in log_of(run_dir).splitlines() if "saved at step" in line]
    assert (len(saved), len(set(saved)), log_of(run_dir).count(AGAIN)) == (2, 1, 3)
    assert_same_end(run_dir, reference)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "number, flags", [(signal.SIGKILL, ["--optimizer=muon", "--schedule=linear"]), (signal.SIGSTOP, [])]
)
def test_a_worker_that_is_killed_or_stopped_does_not_change_the_end(tmp_path, pair, number, flags):
    """The chief notices a worker that SIGSTOP has stopped."""
    reference, run_dir = undisturbed(tmp_path, "cluster", *PAIR, *flags)[0] if flags else pair[0], tmp_path / "run"
    step = random.Random(1).randrange(5, STEPS * 3 // 4, 5)
    process = start(run_dir, "cluster", *PAIR, *flags)
    until(lambda: last_step(run_dir) >= step, process)
    os.kill(children(process)[1], number)
    assert process.wait() == 0, log_of(run_dir)
    assert AGAIN in log_of(run_dir) and "saved at step" not in log_of(run_dir)
    assert_same_end(run_dir, reference)


def exit_codes(tmp_path, flags_of_each, addresses=None):
    """How workers that are started by hand end."""
    addresses = addresses or [f"127.0.0.1:{port}" for port in free_ports(2)]
    workers = [
        processes.start_worker(tmp_path / f"run{rank}", addresses, rank, SLOW_RATE, *flags)
        for rank, flags in enumerate(flags_of_each)
    ]
    return [worker.wait() for worker in workers]


def test_a_worker_with_another_config_refuses_to_join_and_names_the_difference(tmp_path):
    assert exit_codes(tmp_path, [[], ["--learning_rate=0.2", "--noshortcut"]]) == [EXIT_ERROR, EXIT_ERROR]
    assert "another config" in log_of(tmp_path / "run0")
    last = log_of(tmp_path / "run1").splitlines()[-1]
    assert all(words in last for words in ("worker 1", "learning_rate (0.01, 0.2)", "model.shortcut (True, False)"))
    assert not (tmp_path / "run1").exists()  # only the chief writes


def test_a_mistake_of_the_chief_reaches_all_workers(tmp_path, alone):
    (tmp_path / "run0").symlink_to(alone[0])
    assert exit_codes(tmp_path, [["--seed=5"]] * 2) == [EXIT_ERROR, EXIT_ERROR]
    for rank in (0, 1):
        assert "seed (0, 5)" in log_of(tmp_path / f"run{rank}")


def test_a_port_that_is_taken_is_a_short_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        addresses = [f"127.0.0.1:{taken.getsockname()[1]}", f"127.0.0.1:{free_ports(1)[0]}"]
        assert exit_codes(tmp_path, [[]], addresses) == [EXIT_ERROR]
    assert addresses[0] in log_of(tmp_path / "run0") and log_of(tmp_path / "run0").count("\n") == 1


def test_run_that_a_callback_ended_is_completed_by_workers_without_more_training(tmp_path, launch, monkeypatch):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    train, run_dir = training.train, tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(training, "train", lambda *arguments: train(*arguments, callbacks=[Stop()]))
        assert launch("train", f"--run_dir={run_dir}", *FLAGS, SLOW_RATE)[0] == 0
    step = last_step(run_dir)
    shutil.rmtree(run_dir / "saved_model")
    for _ in range(2):  # the chief writes what it lacks while the other waits; then there is nothing to do
        assert start(run_dir, "cluster", "--num_workers=2", "--max_restarts=0").wait() == 0, log_of(run_dir)
        assert (run_dir / "saved_model").exists() and last_step(run_dir) == step < STEPS
    assert log_of(run_dir).count("this run was already finished") >= 2
