"""Workers on this machine as one job: one log, one start and end, restarts of all from the last checkpoint."""

import contextlib
import ctypes
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time

from identity_matters.errors import EXIT_CONTINUE, EXIT_DIVERGED, EXIT_ERROR
from identity_matters.runs.files import open_log
from identity_matters.runs.signals import StopRequest, deferring_signals

GRACE_PERIOD = 30  # seconds to save a checkpoint after SIGTERM
FAILURE_TIMEOUT = 15  # seconds in which the others notice by themselves that a worker has ended, and log it
KILL_TIMEOUT = 2  # the same after a kill, which they cannot notice; TensorFlow's heartbeats would take 10
REPEAT_INTERVAL = 0.5  # seconds in which a second signal (to the process group, say) counts as the first
PERMANENT = (0, EXIT_ERROR, EXIT_DIVERGED)  # exit codes after which a restart would end the same way
POLL_INTERVAL = 0.1  # seconds


def tf_config(cluster: dict[str, list[str]], kind: str = "worker", index: int = 0) -> str:
    """Returns the text of a task's environment variable TF_CONFIG."""
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def run_job(command: list[str], tasks: dict[str, int], max_restarts: int, log_path: str) -> int:
    """Runs the command once for each task, with TF_CONFIG; when a task fails, restarts all of them.

    Their output goes to stdout and is appended to log_path, each line after the name of its task. The job is done when
    task 0 of the first type is. SIGTERM and Ctrl-C end all tasks after a checkpoint.

    Args:
      command: list[str]. The command of every task.
      tasks: dict[str, int]. The number of tasks of each of TF_CONFIG's types.
      max_restarts: int. How often the job may be restarted.
      log_path: str. The file for the output of all tasks.

    Returns:
      0, or the exit code of the first task that failed; 128 + its number for a signal.
    """
    with deferring_signals() as stop, contextlib.closing(_Job(command, tasks, log_path, stop)) as job:
        for attempt in range(max_restarts + 1):
            if attempt:
                job.log(f"starting all workers again, restart {attempt} of at most {max_restarts}")
            code = job.run()
            if code in PERMANENT or stop.received:
                return code
        job.log(f"giving up after {max_restarts} restarts")
        return code


class _Job:
    """One job's processes."""

    def __init__(self, command: list[str], tasks: dict[str, int], log_path: str, stop: StopRequest) -> None:
        self._command = command
        self._counts = tasks
        self._tasks = [(kind, index) for kind, count in tasks.items() for index in range(count)]
        # The number is enough if all tasks are workers.
        self._names = [str(index) if len(tasks) == 1 else f"{kind} {index}" for kind, index in self._tasks]
        self._log_file = open_log(log_path)
        self._lock = threading.RLock()
        self._workers: list[subprocess.Popen] = []
        self._stop = stop
        self._passed_on_at: float | None = None

    def run(self) -> int:
        """Starts all workers and waits for their end; returns 0 or the exit code of the first that failed."""
        ports = iter(free_ports(len(self._tasks)))
        cluster = {kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for kind, count in self._counts.items()}
        self._workers = []
        for kind, index in self._tasks:
            if self._stop.received:  # between two starts
                break
            cores, gpus = self._devices(kind, index)
            self._workers.append(self._start(tf_config(cluster, kind, index), cores, gpus))
        readers = [threading.Thread(target=self._forward_output, args=pair) for pair in zip(self._names, self._workers)]
        for reader in readers:
            reader.start()
        try:
            return self._wait()
        finally:
            self._signal(signal.SIGKILL)
            for worker, reader in zip(self._workers, readers):
                worker.wait()
                reader.join()

    def _pass_on_signals(self) -> None:
        """Lets the workers save and leave after a signal, within the grace period; a later signal kills them."""
        if self._stop.received and self._passed_on_at is None:
            self._passed_on_at = self._stop.latest_at
            name = signal.Signals(self._stop.number).name
            self.log(f"{name}: the workers save a checkpoint and exit; a second signal kills them")
            self._signal(signal.SIGTERM)
        elif self._stop.received and self._stop.latest_at > self._passed_on_at + REPEAT_INTERVAL:
            self._signal(signal.SIGKILL)

    def log(self, line: str) -> None:
        """Writes a message to the terminal and to the log."""
        with self._lock:
            print(line, flush=True)
            with contextlib.suppress(OSError):  # a full disk, which the workers report
                print(line, file=self._log_file, flush=True)

    def close(self) -> None:
        """Closes the log."""
        with contextlib.suppress(OSError):
            self._log_file.close()

    def _devices(self, kind: str, index: int) -> tuple[list[int], dict[str, str]]:
        """Returns a task's cores and the environment variable with its GPUs; only workers have their own."""
        if kind != "worker":
            return [], {"CUDA_VISIBLE_DEVICES": ""}
        count = self._counts["worker"]
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        own_cores = share(cores, index, count)
        gpus = visible_gpus()
        if not gpus:
            return own_cores, {}
        each = len(gpus) // count  # TensorFlow joins only workers with equally many GPUs
        if index == 0 and each == 0:
            self.log(f"{count} workers cannot share {len(gpus)} GPU(s): they train on CPUs")
        elif index == 0 and len(gpus) > each * count:
            self.log(f"{count} workers take {each} GPU(s) each, left idle: {', '.join(gpus[each * count :])}")
        own_gpus = gpus[index * each : (index + 1) * each]
        return own_cores, {"CUDA_VISIBLE_DEVICES": ",".join(own_gpus)}

    def _start(self, config: str, cores: list[int], gpus: dict[str, str]) -> subprocess.Popen:
        def in_the_child() -> None:
            die_with_parent()
            if cores:
                os.sched_setaffinity(0, cores)

        return subprocess.Popen(
            self._command,
            env=os.environ | gpus | {"TF_CONFIG": config, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches only this process
            preexec_fn=in_the_child,
        )

    def _forward_output(self, name: str, worker: subprocess.Popen) -> None:
        for line in worker.stdout:  # universal newlines: a progress bar redraws itself after carriage returns
            text = line.rstrip()
            if text:
                self.log(f"[{name}] {text}")

    def _wait(self) -> int:
        """Waits until all workers have ended, killing those that outlast the timeout; returns the job's exit code."""
        code = None
        deadline = None
        while any(worker.poll() is None for worker in self._workers):
            self._pass_on_signals()
            if code is None:
                code = self._first_exit()
            if deadline is None and (code is not None or self._stop.received):
                deadline = time.monotonic() + self._timeout(code)
            if deadline is not None and time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
            time.sleep(POLL_INTERVAL)
        if code is None:
            code = self._first_exit()
        if code == EXIT_CONTINUE:  # a worker lost another one, which may have failed for good
            codes = {worker.poll() for worker in self._workers}
            return next((final for final in (EXIT_ERROR, EXIT_DIVERGED) if final in codes), code)
        # SIGTERM ends a worker that has nothing to save yet, and SIGKILL one that outlasts the grace period.
        if self._stop.received and (code is None or code > 128):
            return EXIT_CONTINUE
        return code

    def _timeout(self, code: int | None) -> float:
        """Returns the seconds that the other workers have after a signal, or after one ended with an exit code."""
        if self._stop.received:
            return GRACE_PERIOD
        return KILL_TIMEOUT if code is not None and code > 128 else FAILURE_TIMEOUT

    def _first_exit(self) -> int | None:
        """Returns 0 if task 0 is done, the exit code of a task that failed before that, None if neither has ended."""
        codes = [worker.poll() for worker in self._workers]
        if codes and codes[0] == 0:
            return 0
        for name, code in zip(self._names, codes):
            if code:
                self.log(f"{'worker ' if name.isdigit() else ''}{name} {_describe_exit(code)}")
                return code if code > 0 else 128 - code
        return None

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, number)


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "stopped before the end" if code == EXIT_CONTINUE else f"ended with exit code {code}"


def share(cores: list[int], index: int, count: int) -> list[int]:
    """Returns the cores of worker `index` of `count`, none if there are fewer cores than workers."""
    if len(cores) < count:
        return []
    return cores[index * len(cores) // count : (index + 1) * len(cores) // count]


def visible_gpus() -> list[str]:
    """Returns the NVIDIA GPUs that a child process sees, as in CUDA_VISIBLE_DEVICES; [] if unknown."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = (name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(","))
        return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))  # as CUDA reads them
    with contextlib.suppress(OSError):
        return [str(number) for number in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    return []


def free_ports(count: int) -> list[int]:
    """Returns free ports, below those of outgoing connections (on Linux from 32,768 on)."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.choice(range(10_000, 32_000))
        if port in ports:
            continue
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            ports.append(port)
    return ports


def die_with_parent() -> None:
    """Makes Linux kill this new process when the launcher is killed; call it before the process starts its program."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
