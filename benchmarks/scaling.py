"""Time two workers of one core each against one of two cores, and their all-reduce.

    python -m benchmarks.scaling                      widths 16, 32, 64, 2 blocks a stage: 3 minutes on 2 cores
    python -m benchmarks.scaling --preset=mnist       the mnist preset

Each line is the training step of benchmarks.train_step with the same global batch, in processes that
are pinned to their cores: one without a strategy; one under MirroredStrategy, on one device, whose
slowdown against the first is the cost of the strategy; and two under MultiWorkerMirroredStrategy.
The all-reduce is timed alone, on one vector as long as all gradients. All processes stay alive and
take turns of two seconds, so that ratios do not depend on how the machine's speed varies.

Measured on 2 cores of an Intel Xeon (AVX-512), TensorFlow 2.21, Keras 3.15, 20 rounds:

    | measured                                         | median |       min – max |
    | ------------------------------------------------ | -----: | --------------: |
    | one process, 2 cores, images/s                   |  1,008 |     913 – 1,242 |
    | one process, 2 cores, under a strategy, images/s |    988 |     888 – 1,176 |
    | two workers, 1 core each, images/s               |  1,053 |     998 – 1,159 |
    | two workers / one process                        |   1.02 |    0.908 – 1.17 |
    | a strategy / none                                |   0.96 |    0.861 – 1.04 |
    | all-reduced by each worker, MB a step            |  0.684 |   0.684 – 0.684 |
    | all-reduce alone, ms                             |   2.85 |      2.42 – 5.8 |
    | all-reduce / step                                | 0.0245 | 0.0194 – 0.0466 |

The sum of the gradients is 2 to 3 % of a step. The mnist preset, with 16 images per worker and two sums per step, loses
more: two workers are at 0.85 (0.753 – 0.937) of one process, a strategy at 0.995 (0.923 – 1.09) of none.
"""

import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.harness import environment, ratios, spread, table
from benchmarks.train_step import RUNS, StepBenchmark, our_training
from identity_matters.fields import require
from launch import launcher
from launch.jobs.local import free_ports, tf_config

if TYPE_CHECKING:
    from identity_matters.distributed.workers import Workers

BARE, STRATEGY, PAIR = "one process, 2 cores", "one process, 2 cores, under a strategy", "two workers, 1 core each"


_STEPS = {"small": 20, "mnist": 100, "cifar10": 1}
PRESETS = {name: StepBenchmark(name, repeats=20, steps=steps) for name, steps in _STEPS.items()}


def main(benchmark: StepBenchmark) -> None:
    """Times the three setups in turns and prints the table."""
    require(hasattr(os, "sched_getaffinity"), "this benchmark pins processes to cores, which macOS cannot")
    cores = sorted(os.sched_getaffinity(0))[:2]
    require(len(cores) >= 2, "two cores are needed")
    setups = {
        BARE: _Setup(benchmark, [cores], False),
        STRATEGY: _Setup(benchmark, [cores], True),
        PAIR: _Setup(benchmark, [[core] for core in cores], True),
    }
    try:
        facts = {name: setup.read() for name, setup in setups.items()}[PAIR]  # all have compiled
        rounds = [{name: setup.turn() for name, setup in setups.items()} for _ in range(benchmark.repeats)]
    finally:
        for setup in setups.values():
            setup.end()
    batch_size = facts["batch_size"]
    print(environment())
    print(f"\n{facts['num_weights']:,} weights, batch {batch_size}, {benchmark.repeats} rounds\n")
    step_seconds = {name: [one[name]["step_seconds"] for one in rounds] for name in setups}
    values = {f"{name}, images/s": [batch_size / second for second in step_seconds[name]] for name in setups}
    for name, over in {"two workers / one process": PAIR, "a strategy / none": STRATEGY}.items():
        values[name] = ratios(step_seconds[BARE], step_seconds[over])
    pair = [one[PAIR] for one in rounds]
    values["all-reduced by each worker, MB a step"] = [facts["bytes"] / 1e6 for _ in rounds]
    values["all-reduce alone, ms"] = [1e3 * one["all_reduce_seconds"] for one in pair]
    values["all-reduce / step"] = ratios([one["all_reduce_seconds"] for one in pair], step_seconds[PAIR])
    print(table(("measured", "median", "min – max"), [(name, *spread(value)) for name, value in values.items()]))


class _Setup:
    """Processes that train one network together, one for each list of cores, and only in their turns."""

    def __init__(self, benchmark: StepBenchmark, pinned: list[list[int]], under_strategy: bool) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(pinned))]
        self._processes = []
        for rank, cores in enumerate(pinned):
            arguments = json.dumps([dataclasses.asdict(benchmark), cores, under_strategy])
            environment = os.environ | (
                {"TF_CONFIG": tf_config({"worker": addresses}, index=rank)} if len(pinned) > 1 else {}
            )
            command = [sys.executable, "-c", "from benchmarks import scaling; scaling.measure()", arguments]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._processes.append(subprocess.Popen(command, env=environment, text=True, **pipes))

    def turn(self) -> dict:
        """Lets the processes take their next steps; returns what the first one says of them."""
        for process in self._processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return self.read()

    def read(self) -> dict:
        lines = [process.stdout.readline() for process in self._processes]
        if not all(lines):
            raise RuntimeError("a process of the benchmark failed")
        return json.loads(lines[0])

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def measure() -> None:
    """Runs in a process of its own: for each line of stdin, takes steps and prints their time, as JSON."""
    values, cores, under_strategy = json.loads(sys.argv[1])
    os.sched_setaffinity(0, cores)  # before TensorFlow counts them
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    from identity_matters.distributed import rendezvous
    from identity_matters.distributed.workers import Workers

    benchmark = StepBenchmark(**values)
    run = RUNS[benchmark.run]
    run = dataclasses.replace(run, batch_size=benchmark.batch_size or run.batch_size)
    workers = rendezvous.join()
    if under_strategy and not workers.strategy:
        workers = Workers(tf.distribute.MirroredStrategy(["CPU:0"]))
    network, train = our_training(run, workers)
    count = sum(math.prod(v.shape) for v in network.trainable_variables)
    all_reduce = _all_reduce(workers, count) if workers.num_processes > 1 else lambda: 0.0
    for _ in range(2):  # compiles, and has the next batches wait
        train(1)
        all_reduce()
    facts = {"num_weights": network.count_params(), "batch_size": run.batch_size, "bytes": 4 * count}
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        train(benchmark.steps)
        seconds = (time.perf_counter() - start) / benchmark.steps
        alone = statistics.median(all_reduce() for _ in range(20))
        print(json.dumps({"step_seconds": seconds, "all_reduce_seconds": alone}), flush=True)


def _all_reduce(workers: "Workers", count: int) -> Callable[[], float]:
    """Returns a function that makes one all-reduce of `count` float32 and returns its seconds."""
    import tensorflow as tf

    vector = tf.ones(count)

    @tf.function
    def reduce() -> Any:
        def replica_sum() -> Any:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, vector)[0]

        return workers.strategy.run(replica_sum)

    def seconds() -> float:
        start = time.perf_counter()
        float(reduce())
        return time.perf_counter() - start

    return seconds


cli = launcher.command(main, PRESETS, manual=__doc__)

if __name__ == "__main__":
    cli()
