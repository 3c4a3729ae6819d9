"""Workers on this machine as one job: started together, one log, ended together, started again from the last checkpoint."""

import contextlib
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from launch.launcher import EXIT_CONTINUE, EXIT_DIVERGED, EXIT_ERROR

GRACE = 30  # seconds to save a checkpoint after SIGTERM
FAREWELL = 15  # seconds in which the others notice by themselves that a worker has ended, and say what they know
BEREAVED = 2  # the same after a kill, of which they know nothing; TensorFlow's heartbeats would take 10
FINAL = (0, EXIT_ERROR, EXIT_DIVERGED)  # starting again would end the same way
_POLL = 0.1


def tf_config(cluster: dict[str, list[str]], kind: str = "worker", index: int = 0) -> str:
    """What a task's variable TF_CONFIG holds."""
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def run_job(command: list[str], tasks: dict[str, int], max_restarts: int, log_path: str) -> int:
    """Runs the command once a task, all at once, with TF_CONFIG; again, all of it, when one ends before its end.

    What they print goes to stdout and is appended to log_path, a line at a time, with the task
    before it. SIGTERM and Ctrl-C end all of them, after a checkpoint.

    Args:
      tasks: TF_CONFIG's types and how many there are of each; the job is done when the first of the first is.

    Returns:
      0; or the exit code of the first task that ended otherwise, 128 + its number for a signal.
    """
    job = _Job(command, tasks, log_path)
    before = {number: signal.signal(number, job.stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for attempt in range(max_restarts + 1):
            if attempt:
                job.say(f"starting all workers again, {attempt} of at most {max_restarts} times")
            code = job.run()
            if code in FINAL or job.is_stopped:
                return code
        job.say(f"giving up after {max_restarts} restarts")
        return code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        job.close()


class _Job:
    """One job's processes.

    Attributes:
      is_stopped: bool. Whether a signal said to stop.
    """

    def __init__(self, command: list[str], tasks: dict[str, int], log_path: str):
        self._command, self._counts = command, tasks
        self._tasks = [(kind, index) for kind, count in tasks.items() for index in range(count)]
        # Of workers alone the number is enough.
        self._names = [str(index) if len(tasks) == 1 else f"{kind} {index}" for kind, index in self._tasks]
        self._log, self._lock = open(log_path, "a"), threading.RLock()
        self._workers, self.is_stopped = [], False

    def run(self) -> int:
        """Starts all workers and waits for their end; returns 0 or the first other exit code."""
        ports = iter(free_ports(len(self._tasks)))
        cluster = {kind: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for kind, count in self._counts.items()}
        self._workers = []  # one by one: a signal may come between
        for kind, index in self._tasks:
            if self.is_stopped:
                break
            self._workers.append(self._start(tf_config(cluster, kind, index), *self._devices(kind, index)))
        if self.is_stopped:
            self._signal(signal.SIGTERM)  # to the one that was being started
        pumps = [threading.Thread(target=self._pump, args=pair) for pair in zip(self._names, self._workers)]
        for pump in pumps:
            pump.start()
        try:
            return self._wait()
        finally:
            self._signal(signal.SIGKILL)
            for worker, pump in zip(self._workers, pumps):
                worker.wait()
                pump.join()

    def stop(self, number: int, _frame) -> None:
        """Handler: lets the workers save and leave; called again, kills them."""
        if self.is_stopped:
            self._signal(signal.SIGKILL)
        else:
            self.say(f"{signal.Signals(number).name}: the workers save and leave; once more kills them")
            self._signal(signal.SIGTERM)
        self.is_stopped = True

    def say(self, line: str) -> None:
        """A line to the terminal and to the log."""
        with self._lock:
            for file in (sys.stdout, self._log):
                print(line, file=file, flush=True)

    def close(self) -> None:
        self._log.close()

    def _devices(self, kind: str, index: int) -> tuple[list, dict[str, str]]:
        """A task's cores, and the variable that shows it its GPUs: workers share both, others use any core and no GPU."""
        if kind != "worker":
            return [], {"CUDA_VISIBLE_DEVICES": ""}
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        gpus, count = visible_gpus(), self._counts["worker"]
        if gpus and len(gpus) < count and index == 0:
            self.say(f"{count} workers cannot share {len(gpus)} GPU(s): they train on CPUs")
        return share(cores, index, count), {"CUDA_VISIBLE_DEVICES": ",".join(share(gpus, index, count))} if gpus else {}

    def _start(self, config: str, cores: list, gpus: dict[str, str]) -> subprocess.Popen:
        def in_the_child():
            _die_with_parent()
            if cores:
                os.sched_setaffinity(0, cores)

        return subprocess.Popen(
            self._command,
            env=os.environ | gpus | {"TF_CONFIG": config, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone
            preexec_fn=in_the_child,
        )

    def _pump(self, name: str, worker: subprocess.Popen) -> None:
        rest = b""
        while block := os.read(worker.stdout.fileno(), 65536):
            # A progress bar redraws itself after carriage returns.
            *lines, rest = re.split(rb"[\r\n]+", rest + block)
            self._say_lines(name, lines)
        self._say_lines(name, [rest])

    def _say_lines(self, name: str, lines: list[bytes]) -> None:
        for line in lines:
            if text := line.decode(errors="replace").rstrip():
                self.say(f"[{name}] {text}")

    def _wait(self) -> int:
        code, deadline = None, None
        while any(worker.poll() is None for worker in self._workers):
            if code is None:
                code = self._outcome()
                if code is not None and not self.is_stopped:
                    deadline = time.monotonic() + (BEREAVED if code > 128 else FAREWELL)
            if self.is_stopped and deadline is None:
                deadline = time.monotonic() + GRACE
            if deadline and time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
            time.sleep(_POLL)
        code = self._outcome() if code is None else code
        if code == EXIT_CONTINUE:  # said by a worker that lost one which had ended for good, perhaps
            return next((final for final in (EXIT_ERROR, EXIT_DIVERGED) if final in self._codes()), code)
        # SIGTERM ends a worker that has nothing to save yet, and SIGKILL one that took too long.
        return EXIT_CONTINUE if self.is_stopped and (code is None or code > 128) else code

    def _codes(self) -> list[int | None]:
        return [worker.poll() for worker in self._workers]

    def _outcome(self) -> int | None:
        """0 when the first task is done, the code of one that failed before; None: neither."""
        codes = self._codes()
        if codes and codes[0] == 0:
            return 0
        for name, code in zip(self._names, codes):
            if code:
                self.say(f"{'worker ' if name.isdigit() else ''}{name} {_ending(code)}")
                return code if code > 0 else 128 - code
        return None

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, number)


def share(devices: list, index: int, count: int) -> list:
    """Those of one of count workers; none where there are fewer than workers."""
    return devices[index * len(devices) // count : (index + 1) * len(devices) // count] if len(devices) >= count else []


def visible_gpus() -> list[str]:
    """Names of NVIDIA's GPUs that a process started here would see, as CUDA_VISIBLE_DEVICES has them; none where they are unknown."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    with contextlib.suppress(OSError):
        return [str(number) for number in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    return []


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on, below those that it gives to outgoing connections (on Linux from 32,768 on)."""
    found, candidates = [], range(10_000, 32_000)
    while len(found) < count:
        port = random.choice(candidates)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            found += [port] if port not in found else []
    return found


def _die_with_parent() -> None:
    """In a worker before it starts: when the launcher is killed, so is it (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return "stopped before the end" if code == EXIT_CONTINUE else f"ended with exit code {code}"
