"""The quick runs that a report computes if none are given: claims, digits, small figures of Li et al."""

import shlex
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from identity_matters.errors import EXIT_CONTINUE, Preempted, UserError
from identity_matters.runs import signals
from identity_matters.runs.config_json import FINISHED, read_config_json
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import open_log
from launch.jobs.local import die_with_parent

POLL_INTERVAL = 0.1  # seconds


class Quick(NamedTuple):
    """A run of a few minutes at most."""

    name: str  # of its directory
    module: str
    flags: tuple[str, ...]  # beside --run_dir
    duration: str  # on 2 idle cores


QUICK = (
    Quick("claims", "launch.check_theory", (), "a minute"),
    Quick("digits", "launch.train", (), "a minute"),
    Quick("study", "launch.shortcut_study", ("--preset=smoke",), "half a minute"),
)


def compute(run: RunDirectory) -> list[str]:
    """Returns the directories of the quick runs in a report's; those that are done are kept, others are computed.

    Raises:
      UserError: a run ended before it was done.
      Preempted: SIGTERM came; the run under way got it too.
    """
    folders = [run.file(quick.name) for quick in QUICK]
    for number, (quick, folder) in enumerate(zip(QUICK, folders), 1):
        start = f"[{number}/{len(QUICK)}] {quick.name}"
        if _status(folder) in FINISHED:
            print(f"{start}: already {_status(folder)}", flush=True)
            continue
        command = [sys.executable, "-m", quick.module, f"--run_dir={folder}", *quick.flags]
        print(f"{start}: python {shlex.join(command[1:])}, {quick.duration} on 2 idle cores", flush=True)
        began, log = time.perf_counter(), f"{folder}.log"
        code = _run(command, log)
        if _status(folder) not in (*FINISHED, "failed"):  # a check that failed is a result
            raise UserError(f"{quick.module} ended with exit code {code} before it was done; its output is in {log}")
        print(f"{start}: {_status(folder)} after {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
    return folders


def _status(folder: str) -> str:
    contents = read_config_json(folder)
    return contents["status"] if contents else ""


def _run(command: list[str], log_path: str) -> int:
    """Runs a command whose output goes to a file, and its progress bar here; returns its exit code."""
    with open_log(log_path, "w") as log:
        process = subprocess.Popen(command, stdout=log, preexec_fn=die_with_parent)
    with signals.deferring_signals() as stop:  # as an exception, Ctrl-C would come again while the run is still saving
        try:
            while process.poll() is None and not stop.received:
                time.sleep(POLL_INTERVAL)
        finally:
            if process.poll() is None:  # which saves what it has
                process.terminate()
                process.wait()
    if stop.number == signal.SIGINT:
        raise KeyboardInterrupt
    if stop.received or process.returncode == EXIT_CONTINUE:
        raise Preempted()
    return process.returncode
