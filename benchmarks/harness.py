"""What every benchmark shares: measurements that take turns, peers in processes of their own, the table.

A benchmark is a module that states its flags, a subclass of `Benchmark`; its cases, functions that return one
measurement each, by row and column of the table; and the ratios to print. `interleaved` takes the cases in turns,
as a machine's speed varies from minute to minute, and a ratio is taken within each round; `report` prints the table.
PyTorch and TensorFlow in one process can crash it: a peer of another framework is a `Peer`.
"""

import contextlib
import dataclasses
import functools
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
from identity_matters.fields import Checked, option
from identity_matters.runs.machine import machine

OTHERS = "other processes, CPU cores"


@dataclasses.dataclass(frozen=True)
class Benchmark(Checked):
    """The flags of every benchmark.

    Attributes:
      repeats: Rounds in which each case is measured once; medians and ranges are over the rounds.
    """

    repeats: int = option(5, at_least=1)


def interleaved(
    measurements: dict[Any, Callable[[], float]], repeats: int, uncounted: int = 1
) -> dict[Any, list[float]]:
    """Returns what each measurement gives, by name: taken as a, b, c, a, b, c, …, after rounds that do not count.

    Under OTHERS, the CPU cores that the rest of the machine kept busy: if that is not near 0, the numbers are not the
    machine's. NaN without a /proc (macOS).
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
    ticks = user + nice + system + irq + softirq + steal
    for process in multiprocessing.active_children():
        with open(f"/proc/{process.pid}/stat") as file:
            ticks -= sum(map(int, file.read().rpartition(")")[2].split()[11:13]))  # in user code and in the kernel
    return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def seconds(function: Callable, *arguments: Any) -> float:
    """Returns the seconds that one call takes."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def rate(call: Callable[[], Any], times: int, amount: float) -> float:
    """Returns the amount per second if each of `times` calls does `amount`."""
    return times * amount / seconds(lambda: [call() for _ in range(times)])


def ratios(numerators: Iterable[float], denominators: Iterable[float]) -> list[float]:
    """Returns the ratio of each round."""
    return [a / b for a, b in zip(numerators, denominators)]


def check_same(what: str, ours: Any, theirs: Any, limit: float) -> None:
    """Prints how much two arrays differ, over the largest number of ours; raises ArithmeticError above the limit."""
    difference = abs(ours - theirs).max() / abs(ours).max()
    print(f"{what}: ours and theirs differ by {difference:.1e} of the largest\n", flush=True)
    if not difference <= limit:
        raise ArithmeticError(
            f"{what}: theirs differ from ours by {difference:.1e} of the largest, not the same function"
        )


class Peer:
    """Functions in a process of their own: those of another framework, without TensorFlow, or those of a worker.

    Args:
      make: A module's function that returns the functions by name.
      arguments: The arguments of the call.

    Attributes:
      functions: By name, functions that call those of the process.

    Raises:
      ModuleNotFoundError: what `make` imports is not installed. Any other exception of `make` is raised too.
    """

    def __init__(self, make: Callable[..., dict[str, Callable]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, make, arguments), daemon=True)
        self._process.start()
        other.close()
        self.functions = {name: functools.partial(self.call, name) for name in self.receive()}

    def call(self, name: str, *arguments: Any) -> Any:
        """Returns what the function of that name returns, or raises what it raises, which ends the process."""
        self.send(name, *arguments)
        return self.receive()

    def send(self, name: str, *arguments: Any) -> None:
        """Calls the function of that name; `receive` waits for its result. Meanwhile other peers can be called."""
        self._connection.send((name, arguments))

    def receive(self) -> Any:
        """Returns or raises what the function that was sent does."""
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
        self._process.kill()  # TensorFlow, which a worker of benchmarks.scaling runs, catches a softer signal
        self._process.join()


def functions_of_peer(stack: contextlib.ExitStack, name: str, make: Callable, *arguments: Any) -> dict[str, Callable]:
    """Returns the functions of a Peer that the stack ends; none, with a note, if it is not installed."""
    try:
        return stack.enter_context(Peer(make, *arguments)).functions
    except ModuleNotFoundError as error:
        print(f"{name} is left out: {error}\n")
        return {}


def _serve(connection: Connection, make: Callable[..., dict[str, Callable]], arguments: tuple) -> None:
    """Runs in the peer's process: makes the functions, then calls those that the connection names."""
    try:
        functions = make(*arguments)
        connection.send(list(functions))
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
    """Returns a description of the machine and the versions."""
    parts = [machine()]
    for package in ("tensorflow", "jax", "keras", "numpy", "torch"):
        try:
            parts.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            parts.append(f"no {package}")
    return ", ".join(parts)


def with_range(values: Iterable[float]) -> str:
    """Returns "median (min – max)", with three digits."""
    values = list(values)
    numbers = (statistics.median(values), min(values), max(values))
    return "{} ({} – {})".format(*(f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in numbers))


def report(
    title: str, rows: dict[str, dict[str, list[float]]], pairs: dict[str, tuple[str, str]], repeats: int
) -> None:
    """Prints the environment, the title and a table of what `interleaved` returned.

    A cell is "median (min – max)". The columns of a single row stand below each other.

    Args:
      title: The quantity measured.
      rows: Name of the row to name of the column to the values of each round; OTHERS is printed below the title.
      pairs: Name of a ratio to (column, column), taken if a row has both.
      repeats: The number of rounds.
    """
    others = [cores for columns in rows.values() for cores in columns.get(OTHERS, ())]
    cells = {name: _cells(columns, pairs) for name, columns in rows.items()}
    print(f"{environment()}\n\n{title}, {repeats} rounds; {OTHERS}: {statistics.median(others):.3g}\n")
    if len(rows) == 1:
        [(name, row)] = cells.items()
        print(table((name, "median (min – max)"), list(row.items())))
    else:
        columns = list(dict.fromkeys(name for row in cells.values() for name in row))
        print(table(("", *columns), [(name, *(row.get(c, "–") for c in columns)) for name, row in cells.items()]))


def _cells(columns: dict[str, list[float]], pairs: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Returns the cells of a row by column, those of the ratios last."""
    both = {name: ratios(columns[a], columns[b]) for name, (a, b) in pairs.items() if {a, b} <= columns.keys()}
    return {name: with_range(values) for name, values in (columns | both).items() if name != OTHERS}


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
