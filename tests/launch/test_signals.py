"""SIGTERM and Ctrl-C at any moment from the start of a process on, and terminals that are gone.

NUM_SIGNALS=100 python -m pytest -n 0 -m slow tests/launch/test_signals.py tries 100 moments of each.
"""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import processes
import pytest
from processes import FLAGS, last_step, log_of, until

from identity_matters.errors import EXIT_CONTINUE
from identity_matters.runs.config_json import read_config_json
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
    """Sends the signal, unless the process has ended before; never before the interpreter runs our first line."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        until(lambda: process.poll() is not None or is_blocking(process.pid))
        process.send_signal(number)


def is_blocking(pid):
    """Whether a process has blocked SIGTERM."""
    (mask,) = re.findall(r"SigBlk:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) & 1 << signal.SIGTERM - 1)


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
        allowed = {EXIT_CONTINUE} if is_endless else {EXIT_CONTINUE, 0}
        is_held = set(codes) <= allowed and "Traceback" not in log_of(run_dir)
        held.append(is_held)
        if not is_held:
            print(f"SIGTERM after {seconds:.3f} s: exit codes {codes}\n{log_of(run_dir)}")
    assert all(held), f"{held.count(False)} of {len(held)}"
    print(f"{len(held)} of {len(held)} held")


def test_sigterm_twice_at_once_means_what_it_means_once(tmp_path):
    moments = random.Random(1)
    for trial in range(max(1, NUM_SIGNALS)):
        (process,) = start_one(tmp_path / str(trial), *ENDLESS)
        send_after(moments.uniform(0, LATEST), process)
        time.sleep(0.05 * (trial % 2))
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == EXIT_CONTINUE, log_of(tmp_path / str(trial))


def test_ctrl_c_prints_one_line(tmp_path):
    """Every second time in the first moments, while modules are imported; no run ends by itself before its signal."""
    moments = random.Random(2)
    for trial in range(max(2, NUM_SIGNALS)):
        (process,) = start_one(tmp_path / str(trial), *ENDLESS)
        send_after(moments.uniform(0, 0.2 if trial % 2 else LATEST / 2), process, signal.SIGINT)
        assert process.wait(90) == 130, log_of(tmp_path / str(trial))
        lines = [line for line in log_of(tmp_path / str(trial)).splitlines() if "%|" not in line]
        assert lines[-1].startswith("interrupted") and "Traceback" not in str(lines), lines


def closing(*descriptors):
    """What a shell does for `>&-`, in the child."""
    return {"preexec_fn": lambda: [os.close(descriptor) for descriptor in descriptors]}


def into_a_closed_pipe():
    """What a shell does for `2>&1 | true`."""
    reading, writing = os.pipe()
    os.close(reading)
    return {"stdout": writing, "stderr": writing}


TERMINALS = {
    "2>&1 | true": into_a_closed_pipe(),
    "<&- >&- 2>&-": closing(0, 1, 2),
    ">&-": closing(1),
    "2>&-": closing(2),
}


MORE = [("cluster", "2>&1 | true"), *(("train", name) for name in ("2>&1 | true", ">&-", "2>&-"))]


@pytest.mark.parametrize(
    "launcher, terminal",
    [("train", "<&- >&- 2>&-"), *(pytest.param(*case, marks=pytest.mark.nightly) for case in MORE)],
)
def test_without_a_terminal_training_goes_on(tmp_path, launcher, terminal):
    command = [sys.executable, "-m", f"launch.{launcher}", f"--run_dir={tmp_path}/run", *FLAGS, "--train_steps=10"]
    assert subprocess.run(command, **TERMINALS[terminal]).returncode == 0
    assert read_config_json(f"{tmp_path}/run")["status"] == "done" and last_step(tmp_path / "run") == 10
    if launcher == "cluster":
        assert "[0] done: step 10" in (tmp_path / "run" / "workers.log").read_text()


@pytest.mark.parametrize("name", ["train", "cluster"])
def test_a_terminal_that_is_closed_ends_no_training(tmp_path, name):
    command = [sys.executable, "-m", f"launch.{name}", f"--run_dir={tmp_path}/run", *FLAGS, "--train_steps=80"]
    process, terminal = processes.start_in_terminal(*command)
    until(lambda: last_step(tmp_path / "run"), process)
    os.close(terminal)
    assert process.wait(200) == 0 and last_step(tmp_path / "run") == 80
