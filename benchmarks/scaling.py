"""Time two workers of one core each against one of two cores, and their all-reduce.

    python -m benchmarks.scaling                      widths 16, 32, 64, 2 blocks a stage: 3 minutes on 2 cores
    python -m benchmarks.scaling --preset=mnist       the mnist preset

Each line is the training step of benchmarks.train_step with the same global batch, in processes that
are pinned to their cores: one without a strategy; one under MirroredStrategy, on one device, whose
slowdown against the first is the cost of the strategy; and two under MultiWorkerMirroredStrategy.
The all-reduce is timed separately, on one vector as long as all gradients. All processes stay alive and take turns.
"""

import contextlib
import dataclasses
import functools
import math
import os
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Peer, interleaved, report, seconds
from benchmarks.train_step import RUNS, StepBenchmark, our_training
from identity_matters.fields import require
from launch import launcher
from launch.local_cluster import free_ports, tf_config

if TYPE_CHECKING:
    from identity_matters.cluster import Cluster

BARE, STRATEGY, PAIR = "one process, ms a step", "one process under a strategy, ms a step", "two workers, ms a step"
ALL_REDUCE = "all-reduce alone, ms"
PAIRS = {
    "two workers / one process": (BARE, PAIR),  # of speeds, which is the inverse of times
    "a strategy / none": (BARE, STRATEGY),
    "all-reduce / step": (ALL_REDUCE, PAIR),
}
_STEPS = {"small": 20, "mnist": 100, "cifar10": 1}
PRESETS = {name: StepBenchmark(run=name, repeats=20, steps=steps) for name, steps in _STEPS.items()}


def main(benchmark: StepBenchmark) -> None:
    """Times the three setups in turns and prints the table."""
    require(hasattr(os, "sched_getaffinity"), "this benchmark pins processes to cores, which macOS cannot")
    cores = sorted(os.sched_getaffinity(0))[:2]
    require(len(cores) >= 2, "two cores are needed")
    with contextlib.ExitStack() as stack:

        def setup(pinned: list[list[int]], under_strategy: bool) -> list[Peer]:
            """Returns processes that train one network together, one for each list of cores."""
            addresses = [f"127.0.0.1:{port}" for port in free_ports(len(pinned))]
            clusters = [tf_config({"worker": addresses}, index=rank) for rank in range(len(pinned))]
            arguments = [
                (benchmark, cores, under_strategy, cluster if len(pinned) > 1 else "")
                for cores, cluster in zip(pinned, clusters)
            ]
            return [stack.enter_context(Peer(worker, *values)) for values in arguments]

        pair = setup([[core] for core in cores], True)
        setups = {BARE: setup([cores], False), STRATEGY: setup([cores], True), PAIR: pair}
        cases = {name: functools.partial(_together, setup, "step") for name, setup in setups.items()}
        cases[ALL_REDUCE] = functools.partial(_together, pair, "all_reduce")
        facts = [_together(setup, "facts") for setup in setups.values()][0]  # all have compiled
        report(facts, {"measured": interleaved(cases, benchmark.repeats, uncounted=0)}, PAIRS, benchmark.repeats)


def _together(processes: list[Peer], name: str) -> Any:
    """Lets all processes call a function at once; returns the first one's result."""
    for process in processes:
        process.send(name)
    return [process.receive() for process in processes][0]


def worker(benchmark: StepBenchmark, cores: list[int], under_strategy: bool, cluster: str) -> dict[str, Callable]:
    """Returns functions for a separate process, each of which all workers call together; the first call compiles.

    "step" and "all_reduce" return milliseconds, "facts" the size of the network.
    """
    os.sched_setaffinity(0, cores)  # before TensorFlow counts them
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if cluster:
        os.environ["TF_CONFIG"] = cluster
    run = RUNS[benchmark.run]
    run = dataclasses.replace(run, batch_size=benchmark.batch_size or run.batch_size)

    @functools.cache
    def made() -> tuple[str, Callable[[int], None], Callable[[], float]]:
        import tensorflow as tf

        from identity_matters.cluster import Cluster, from_environment

        cluster = from_environment()
        if under_strategy and not cluster.strategy:
            cluster = Cluster(tf.distribute.MirroredStrategy(["CPU:0"]))
        network, train = our_training(run, cluster)
        count = sum(math.prod(v.shape) for v in network.trainable_variables)
        all_reduce = _all_reduce(cluster, count) if cluster.num_processes > 1 else lambda: 0.0
        for _ in range(2):  # compiles, and has the next batches wait
            train(1)
            all_reduce()
        facts = f"{network.count_params():,} weights, batch {run.batch_size}, {4 * count / 1e6:.3g} MB all-reduced"
        return facts, train, all_reduce

    return {
        "facts": lambda: made()[0],
        "step": lambda: 1e3 * seconds(made()[1], benchmark.steps) / benchmark.steps,
        "all_reduce": lambda: 1e3 * statistics.median(made()[2]() for _ in range(20)),
    }


def _all_reduce(cluster: "Cluster", count: int) -> Callable[[], float]:
    """Returns a function that makes one all-reduce of `count` float32 and returns its seconds."""
    import tensorflow as tf

    vector = tf.ones(count)

    @tf.function
    def reduce() -> Any:
        def replica_sum() -> Any:
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, vector)[0]

        return cluster.strategy.run(replica_sum)

    return lambda: seconds(lambda: float(reduce()))


cli = launcher.command(main, PRESETS, manual=__doc__)

if __name__ == "__main__":
    cli()
