"""SIGTERM and Ctrl-C at any moment from the start of a process on, and terminals that are gone.

NUM_SIGNALS=100 python -m pytest -n 0 -m slow tests/launch/test_signals.py tries more moments than the suite's dozen.
"""

import os
import random
import signal
import subprocess

import processes
import pytest
from processes import FLAGS, log_of, until

from identity_matters.runs.errors import EXIT_CONTINUE
from launch.jobs.local import free_ports, tf_config

pytestmark = pytest.mark.slow
NUM_SIGNALS = int(os.environ.get("NUM_SIGNALS", 12))
LATEST = 15  # seconds after the start
ENDLESS = ["--train_steps=1000000", "--eval_every=20"]


def start_one(run_dir, *flags):
    return [processes.start(run_dir, "train", *FLAGS, *flags)]


def start_launcher(run_dir, *flags):
    return [processes.start(run_dir, "cluster", "--num_workers=2", *FLAGS, *flags)]


def start_two(run_dir, *flags):
    """Two workers by hand; their order is that of the signal, which only the first gets."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    workers = [
        processes.start(
            run_dir, "train", *FLAGS, *flags, env=os.environ | {"TF_CONFIG": tf_config(cluster, index=rank)}
        )
        for rank in range(2)
    ]
    return workers if random.random() < 0.5 else workers[::-1]


def send_after(seconds, process, number):
    """Sends the signal, unless the process has ended before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(number)


def codes_after(seconds, run_dir, workers, number=signal.SIGTERM):
    """The exit codes of processes of which the first gets a signal.

    One that still waits for the first, which left before they met, gets it too.
    """
    send_after(seconds, workers[0], number)
    try:
        codes = [workers[0].wait(90)]
        for worker in workers[1:]:
            until(lambda: worker.poll() is not None or "waits for" in log_of(run_dir), seconds=90)
            send_after(30, worker, number)
            codes.append(worker.wait(90))
        return codes
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("start", [start_one, start_launcher, start_two])
def test_after_sigterm_at_any_moment_a_run_is_done_or_to_be_continued(tmp_path, start):
    """Every second run would go on for hours, so that a lost signal shows."""
    moments, held = random.Random(start.__name__), []
    for trial in range(NUM_SIGNALS // 3):
        run_dir, seconds = tmp_path / str(trial), moments.uniform(0, LATEST)
        codes = codes_after(seconds, run_dir, start(run_dir, *(ENDLESS if trial % 2 else ())))
        # Before launch/__init__.py runs, the interpreter itself is ended by the signal.
        is_early = seconds < 0.1 and codes[0] == -signal.SIGTERM and not log_of(run_dir)
        allowed = {EXIT_CONTINUE} if trial % 2 else {EXIT_CONTINUE, 0}
        is_held = (is_early or set(codes) <= allowed) and "Traceback" not in log_of(run_dir)
        held.append(is_held)
        if not is_held:
            print(f"SIGTERM after {seconds:.3f} s: exit codes {codes}\n{log_of(run_dir)}")
    assert all(held), f"{held.count(False)} of {len(held)}"
    print(f"{len(held)} of {len(held)} held")
