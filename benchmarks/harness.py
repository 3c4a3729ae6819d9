"""What every benchmark shares: measurements that take turns, peers in processes of their own, the table.

A machine's speed varies from minute to minute, so `interleaved` takes the measurements in turns and a ratio is taken
within each round. PyTorch and TensorFlow in one process can crash it: a peer of another framework is a `Peer`.
"""

import importlib.metadata
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any

from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArraySource
from identity_matters.runs.machine import machine

OTHERS = "other processes, CPU cores"


def interleaved(
    measurements: dict[Any, Callable[[], float]], repeats: int, uncounted: int = 1
) -> dict[Any, list[float]]:
    """Returns what each measurement gives, by name: taken as a, b, c, a, b, c, …, after rounds that do not count.

    Under OTHERS, the CPU cores that the rest of the machine kept busy: where that is not
    near 0, the numbers are not the machine's. NaN where there is no /proc to say so (macOS).
    """
    values = {name: [] for name in (*measurements, OTHERS)}
    for _ in range(uncounted + repeats):
        start, others = time.perf_counter(), _others_cpu_seconds()
        for name, measure in measurements.items():
            values[name].append(measure())
        cores = (_others_cpu_seconds() - others) / (time.perf_counter() - start)
        # Below 0.01 the clock ticks are too coarse. In this order max keeps a NaN.
        values[OTHERS].append(max(round(cores, 2), 0.0))
    return {name: numbers[uncounted:] for name, numbers in values.items()}


def _others_cpu_seconds() -> float:
    """Returns the CPU seconds since boot of processes that are not ours, and those that the hypervisor took."""
    if not os.path.exists("/proc/stat"):
        return float("nan")
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    ticks = user + nice + system + irq + softirq + steal - sum(map(_ticks, multiprocessing.active_children()))
    return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def _ticks(process: multiprocessing.Process) -> int:
    with open(f"/proc/{process.pid}/stat") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))  # in user code and in the kernel


def seconds(function: Callable, *arguments: Any) -> float:
    """Returns the seconds that one call takes."""
    return timed(function, *arguments)[0]


def rate(call: Callable[[], Any], times: int, amount: float) -> float:
    """Returns the amount per second, where each of `times` calls does `amount`."""
    return times * amount / seconds(lambda: [call() for _ in range(times)])


def ratios(numerators: Iterable[float], denominators: Iterable[float]) -> list[float]:
    """Returns the ratio of each round."""
    return [a / b for a, b in zip(numerators, denominators)]


class Peer:
    """Functions of another framework, which run in a process that never imports TensorFlow.

    Args:
      make: A module's function that returns the functions by name.
      arguments: What it is called with.

    Raises:
      ModuleNotFoundError: what `make` imports is not installed. Any other exception of `make` is raised too.
    """

    def __init__(self, make: Callable[..., dict[str, Callable]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, make, arguments), daemon=True)
        self._process.start()
        other.close()
        self._receive()

    def call(self, name: str, *arguments: Any) -> Any:
        """Returns what the function of that name returns, or raises what it raises, which ends the process."""
        self._connection.send((name, arguments))
        return self._receive()

    def _receive(self) -> Any:
        try:
            result = self._connection.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the peer's process ended with exit code {self._process.exitcode}") from None
        if isinstance(result, Exception):
            raise result
        return result

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _serve(connection: Connection, make: Callable[..., dict[str, Callable]], arguments: tuple) -> None:
    """Runs in the peer's process: makes the functions, then calls those that the connection names."""
    try:
        functions = make(*arguments)
        connection.send(None)
        while True:
            name, arguments = connection.recv()
            connection.send(functions[name](*arguments))
    except EOFError:
        return
    except Exception as error:
        connection.send(error)


def synthetic_data(run: TrainConfig, num_images: int) -> ArraySource:
    """Returns random uint8 images of the shape that the run's network takes, with random labels."""
    import numpy as np

    random = np.random.default_rng(run.seed)
    images = random.integers(0, 256, (num_images, *run.model.image_shape), np.uint8)
    labels = random.integers(0, run.model.num_classes, num_images, np.int32)
    both = [{"train": array, "test": array[:1]} for array in (images, labels)]
    return ArraySource("synthetic", *both, run.model.num_classes)


def environment() -> str:
    """Returns one line that names the machine and the versions."""
    parts = [machine()]
    for package in ("tensorflow", "jax", "keras", "numpy", "torch"):
        try:
            parts.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            parts.append(f"no {package}")
    return ", ".join(parts)


def spread(values: Iterable[float]) -> tuple[str, str]:
    """Returns the median, and "min – max", with three digits."""
    values = list(values)
    text = [f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in (statistics.median(values), min(values), max(values))]
    return text[0], f"{text[1]} – {text[2]}"


def with_range(values: Iterable[float]) -> str:
    """Returns "median (min – max)", with three digits."""
    return "{} ({})".format(*spread(values))


def timed(function: Callable, *arguments: Any) -> tuple[float, Any]:
    """Returns the seconds that one call takes, and what it returns."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def table(header: Iterable[str], rows: list[tuple[str, ...]]) -> str:
    """Returns a Markdown table, its first column aligned left, the others right."""
    header = tuple(header)
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    rule = ("-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:]))
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        for row in (header, rule, *rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
