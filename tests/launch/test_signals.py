"""SIGTERM and Ctrl-C at any moment from the start of a process on.

NUM_SIGNALS=100 python -m pytest -n 0 -m slow tests/launch/test_signals.py tries 100 moments of each.
"""

import os
import random
import signal
import subprocess

import processes
import pytest
from processes import FLAGS, last_step, log_of, until

from identity_matters.errors import EXIT_CONTINUE
from launch.local_cluster import free_ports

pytestmark = pytest.mark.slow
NUM_SIGNALS = int(os.environ.get("NUM_SIGNALS", 0))  # of each test, where it has fewer
LATEST = 10  # seconds after the start
ENDLESS = ["--train_steps=1000000", "--eval_every=20"]


def start_one(run_dir, *flags):
    def answer_ctrl_c():  # which a shell's background job ignores, and so do its children
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return [processes.start(run_dir, "train", *FLAGS, *flags, preexec_fn=answer_ctrl_c)]


def start_launcher(run_dir, *flags):
    return [processes.start(run_dir, "cluster", "--num_workers=2", *FLAGS, *flags)]


def start_two(run_dir, *flags):
    """Two workers by hand; their order is that of the signal, which only the first gets."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    workers = [processes.start_worker(run_dir, addresses, rank, *flags) for rank in range(2)]
    return workers if random.random() < 0.5 else workers[::-1]


def send_after(seconds, process, number=signal.SIGTERM):
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
            send_after(3, worker, number)
            codes.append(worker.wait(90))
        return codes
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("start, least", [(start_one, 2), (start_launcher, 1), (start_two, 1)])
def test_after_sigterm_at_any_moment_a_run_is_done_or_to_be_continued(tmp_path, start, least):
    """The first run and every second one after it go on for hours, so that a lost signal shows."""
    moments, held = random.Random(start.__name__), []
    for trial in range(max(least, NUM_SIGNALS)):
        is_endless, run_dir, seconds = trial % 2 == 0, tmp_path / str(trial), moments.uniform(0, LATEST)
        codes = codes_after(seconds, run_dir, start(run_dir, *(ENDLESS if is_endless else ())))
        # Before it trains SIGTERM ends a process at once, as it ends any program.
        allowed = {EXIT_CONTINUE, -signal.SIGTERM} if is_endless else {EXIT_CONTINUE, -signal.SIGTERM, 0}
        is_held = set(codes) <= allowed and "Traceback" not in log_of(run_dir)
        held.append(is_held)
        if not is_held:
            print(f"SIGTERM after {seconds:.3f} s: exit codes {codes}\n{log_of(run_dir)}")
    assert all(held), f"{held.count(False)} of {len(held)}"
    print(f"{len(held)} of {len(held)} held")


def test_ctrl_c_ends_training_with_a_short_error(tmp_path):
    (process,) = start_one(tmp_path, *ENDLESS)
    until(lambda: last_step(tmp_path), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 130, log_of(tmp_path)
    lines = [line for line in log_of(tmp_path).splitlines() if "%|" not in line]
    assert lines[-1].startswith("interrupted") and "Traceback" not in str(lines), lines
