"""Killed, stopped, preempted, out of disk: what a job survives, to the bit, and what it says otherwise.

Moments are drawn at random, from the duration of an undisturbed run on the same machine or from its checkpoints.
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
from processes import FLAGS, STEPS, assert_same_variables, children, final_variables, last_step, log_of, until

from identity_matters import training
from identity_matters.errors import EXIT_CONTINUE, EXIT_ERROR
from identity_matters.runs.config_json import read_config_json
from identity_matters.runs.tables import read_metrics
from launch.jobs.local import free_ports

pytestmark = pytest.mark.slow
NUM_KILLS = int(os.environ.get("NUM_KILLS", 3))
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


def test_killed_again_and_again_it_ends_bit_identical(tmp_path, alone):
    reference, first, whole = alone
    moments, killed, finished = random.Random(0), 0, 0
    while killed < NUM_KILLS:
        process = start(tmp_path / "run")
        try:
            process.wait(moments.uniform(0.5 * first, whole))
            finished += 1  # it got to the end: from the beginning again
            (tmp_path / "run").rename(tmp_path / f"finished{finished}")
            assert_same_end(tmp_path / f"finished{finished}", reference)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    assert start(tmp_path / "run").wait() == 0
    assert_same_end(tmp_path / "run", reference)
    rows, expected = (read_metrics(path / "metrics.csv") for path in (tmp_path / "run", reference))
    assert [row | {"images_per_second": 0} for row in rows] == [row | {"images_per_second": 0} for row in expected]


def test_two_workers_are_one_for_eight_steps_of_the_mnist_preset(tmp_path):
    """Later training amplifies rounding at this rate: after 20 steps 7e-4 were seen."""
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


def test_a_worker_killed_while_they_join_does_not_change_the_end(tmp_path, pair):
    reference, first, _ = pair
    process = start(tmp_path / "run", "cluster", *PAIR)
    until(lambda: len(children(process)) == 2, process)
    time.sleep(random.Random(0).uniform(0, 0.8 * first))
    assert_restarted_to_the_same_end(process, 1, tmp_path / "run", reference)


@pytest.mark.parametrize(
    "rank, flags", [(0, []), pytest.param(1, ["--optimizer=muon", "--schedule=linear"], marks=pytest.mark.nightly)]
)
def test_a_worker_killed_after_a_checkpoint_does_not_change_the_end(tmp_path, pair, rank, flags):
    reference = undisturbed(tmp_path, "cluster", *PAIR, *flags)[0] if flags else pair[0]
    step = random.Random(rank).randrange(5, STEPS * 3 // 4, 5)
    process = start(tmp_path / "run", "cluster", *PAIR, *flags)
    until(lambda: last_step(tmp_path / "run") >= step, process)
    assert_restarted_to_the_same_end(process, rank, tmp_path / "run", reference)


def assert_restarted_to_the_same_end(launcher, rank, run_dir, reference):
    """Kills a worker; the launcher must bring the job to the same end."""
    os.kill(children(launcher)[rank], signal.SIGKILL)
    assert launcher.wait() == 0, log_of(run_dir)
    assert AGAIN in log_of(run_dir)
    assert_same_end(run_dir, reference)


def test_sigterm_saves_at_once_and_the_same_command_continues(tmp_path, alone):
    run_dir = tmp_path / "run"
    process = start(run_dir, "train", f"--checkpoint_every={STEPS}")  # only SIGTERM saves before the end
    until(lambda: "step/s" in log_of(run_dir) and f"0/{STEPS}" in log_of(run_dir), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == EXIT_CONTINUE
    step = last_step(run_dir)
    line = f"received SIGTERM, saved at step {step}; the same command continues"
    assert 0 < step < STEPS and line in log_of(run_dir)
    assert read_config_json(str(run_dir))["status"] == "running"
    assert start(run_dir, "train", f"--checkpoint_every={STEPS}").wait() == 0
    assert_same_end(run_dir, alone[0])


@pytest.mark.parametrize(
    "rank, number", [(0, signal.SIGTERM), pytest.param(1, signal.SIGSTOP, marks=pytest.mark.nightly)]
)
def test_with_a_worker_that_leaves_or_is_stopped_the_job_ends_the_same(tmp_path, pair, rank, number):
    """On SIGTERM both save and leave at one step; a worker that SIGSTOP has stopped is noticed by the other."""
    run_dir = tmp_path / "run"
    process = start(run_dir, "cluster", *PAIR)
    until(lambda: last_step(run_dir) >= 5, process)
    os.kill(children(process)[rank], number)
    assert process.wait() == 0
    saved = [line.split("saved at step ")[1] for line in log_of(run_dir).splitlines() if "saved at step" in line]
    assert (len(saved), len(set(saved))) == ((2, 1) if number == signal.SIGTERM else (0, 0))
    assert AGAIN in log_of(run_dir)
    assert_same_end(run_dir, pair[0])


def test_a_full_disk_is_one_line_and_the_older_checkpoints_are_kept(tmp_path, alone):
    run_dir = tmp_path / "run"
    process = start(run_dir)
    until(lambda: last_step(run_dir), process)
    process.kill()
    process.wait()
    before = last_step(run_dir)
    size = (run_dir / "checkpoints" / f"step_{before:08d}.npz").stat().st_size

    def limit():  # on the size of a file: the next checkpoint does not fit
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

    process = start(run_dir, preexec_fn=limit)
    assert process.wait() == EXIT_ERROR
    errors = [line for line in log_of(run_dir).splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and "cannot write the checkpoint" in errors[0] and "File too large" in errors[0]
    assert "Traceback" not in log_of(run_dir) and last_step(run_dir) == before
    assert start(run_dir).wait() == 0
    assert_same_end(run_dir, alone[0])


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
    assert "1 of 2 workers were started with another config" in log_of(tmp_path / "run0")
    last = log_of(tmp_path / "run1").splitlines()[-1]
    assert last.startswith("error: worker 1 has another config") and "learning_rate (0.01, 0.2)" in last
    assert "model.shortcut (True, False)" in last
    assert not (tmp_path / "run1").exists()  # only the chief writes


def test_a_mistake_of_the_chief_reaches_all_workers(tmp_path, alone):
    (tmp_path / "run0").symlink_to(alone[0])
    assert exit_codes(tmp_path, [["--seed=5"]] * 2) == [EXIT_ERROR, EXIT_ERROR]
    for rank in (0, 1):
        assert "holds a run of another config (old, new): seed (0, 5)" in log_of(tmp_path / f"run{rank}")


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        addresses = [f"127.0.0.1:{taken.getsockname()[1]}", f"127.0.0.1:{free_ports(1)[0]}"]
        assert exit_codes(tmp_path, [[]], addresses) == [EXIT_ERROR]
    line = f"error: worker 0 cannot listen on {addresses[0]}: Address already in use"
    assert log_of(tmp_path / "run0").strip() == line


def test_what_a_finished_job_lacks_is_written_by_the_chief_while_the_others_wait(tmp_path, pair):
    run_dir = tmp_path / "run"
    shutil.copytree(pair[0], run_dir)
    shutil.rmtree(run_dir / "saved_model")
    for _ in range(2):
        assert start(run_dir, "cluster", *PAIR).wait() == 0, log_of(run_dir)
        assert (run_dir / "saved_model").exists() and AGAIN not in log_of(run_dir)
    assert log_of(run_dir).count("this run was already finished") >= 2
    assert_same_end(run_dir, pair[0])


def test_a_run_that_a_callback_ended_is_completed_by_several_workers_without_training_on(tmp_path, launch, monkeypatch):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    train, run_dir = training.train, tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(training, "train", lambda *arguments: train(*arguments, callbacks=[Stop()]))
        assert launch("train", f"--run_dir={run_dir}", *FLAGS, SLOW_RATE)[0] == 0
    step = last_step(run_dir)
    shutil.rmtree(run_dir / "saved_model")
    assert start(run_dir, "cluster", "--num_workers=2", "--max_restarts=0").wait() == 0, log_of(run_dir)
    assert (run_dir / "saved_model").exists() and last_step(run_dir) == step < STEPS
