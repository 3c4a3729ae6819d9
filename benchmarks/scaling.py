"""Time two workers of one core each against one of two cores, and what the workers tell each other.

    python -m benchmarks.scaling                      widths 16, 32, 64, 2 blocks a stage: 3 minutes on 2 cores
    python -m benchmarks.scaling --preset=mnist       the mnist preset

Each line is the training step of benchmarks.train_step, the same global batch, in processes that
are pinned to their cores: one without a strategy; one under MirroredStrategy, on one device,
whose loss against the first is what the strategy costs; and two under MultiWorkerMirroredStrategy.
The all-reduce is timed alone, of one vector as long as all gradients. The setups take turns.

Measured on 2 cores of an Intel Xeon (AVX-512), TensorFlow 2.21, Keras 3.15, 3 rounds:

    | measured                                         | median |       min – max |
    | ------------------------------------------------ | -----: | --------------: |
    | one process, 2 cores, images/s                   |  1,302 |   1,086 – 1,311 |
    | one process, 2 cores, under a strategy, images/s |  1,080 |     978 – 1,112 |
    | two workers, 1 core each, images/s               |  1,123 |   1,031 – 1,128 |
    | two workers / one process                        |  0.863 |     0.86 – 0.95 |
    | a strategy / none                                |  0.854 |   0.824 – 0.901 |
    | all-reduced by each worker, MB a step            |  0.684 |   0.684 – 0.684 |
    | all-reduce alone, ms                             |   3.68 |     3.09 – 3.97 |
    | all-reduce / step                                |  0.032 | 0.0273 – 0.0323 |

So what two workers lose is what the strategy costs on one device, not the sum of the gradients.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks.input_stream import environment, spread, table
from identity_matters.config import check_fields
from launch import launcher
from launch.supervisor import free_ports, tf_config

BARE, STRATEGY, PAIR = "one process, 2 cores", "one process, 2 cores, under a strategy", "two workers, 1 core each"


@dataclasses.dataclass(frozen=True)
class ScalingBenchmark:
    """What is timed, and how often.

    Attributes:
      run: Key of benchmarks.train_step.RUNS. Set by the preset.
      repeats: Rounds of the three setups; medians and ranges are over the rounds.
      steps: Updates per round.
      batch_size: Images per update (0: what the preset trains with).
    """

    run: str = dataclasses.field(default="small", metadata={"flag": False})
    repeats: int = 3
    steps: int = 30
    batch_size: int = 0

    def __post_init__(self):
        check_fields(self, at_least_1=("repeats", "steps"), at_least_0=("batch_size",))


PRESETS = {name: ScalingBenchmark(name, steps=steps) for name, steps in {"small": 30, "mnist": 200, "cifar10": 1}.items()}


def main(benchmark: ScalingBenchmark) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise ValueError("two cores are needed")
    setups = {BARE: ([cores], False), STRATEGY: ([cores], True), PAIR: ([[core] for core in cores], True)}
    found = {name: [] for name in setups}
    for _ in range(benchmark.repeats):
        for name, (pinned, under_strategy) in setups.items():
            found[name].append(_run(benchmark, pinned, under_strategy))
    rates = {name: [one["images_per_second"] for one in rounds] for name, rounds in found.items()}
    pair = found[PAIR]
    print(environment())
    print(f"\n{pair[0]['num_weights']:,} weights, batch {pair[0]['batch_size']}, {benchmark.repeats} rounds\n")
    values = {f"{name}, images/s": rate for name, rate in rates.items()}
    values["two workers / one process"] = [a / b for a, b in zip(rates[PAIR], rates[BARE])]
    values["a strategy / none"] = [a / b for a, b in zip(rates[STRATEGY], rates[BARE])]
    values["all-reduced by each worker, MB a step"] = [one["bytes"] / 1e6 for one in pair]
    values["all-reduce alone, ms"] = [1e3 * one["all_reduce_seconds"] for one in pair]
    values["all-reduce / step"] = [one["all_reduce_seconds"] / one["step_seconds"] for one in pair]
    print(table(("measured", "median", "min – max"), [(name, *spread(value)) for name, value in values.items()]))


def _run(benchmark: ScalingBenchmark, pinned: list[list[int]], under_strategy: bool) -> dict:
    """What the first of the processes, one for each list of cores, measures."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(pinned))]
    processes = []
    for rank, cores in enumerate(pinned):
        arguments = json.dumps([dataclasses.asdict(benchmark), cores, under_strategy])
        environment = os.environ | ({"TF_CONFIG": tf_config(addresses, rank)} if len(pinned) > 1 else {})
        command = [sys.executable, "-c", "from benchmarks import scaling; scaling.measure()", arguments]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError("a process of the benchmark failed")
    return json.loads(outputs[0].splitlines()[-1])


def measure() -> None:
    """In a process of its own: prints rates as JSON. Pins itself before TensorFlow counts the cores."""
    values, cores, under_strategy = json.loads(sys.argv[1])
    os.sched_setaffinity(0, cores)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np
    import tensorflow as tf

    from benchmarks.train_step import NUM_IMAGES, RUNS
    from identity_matters import distribution, training
    from identity_matters.batches import ArrayBatches
    from identity_matters.data import ArrayData

    benchmark = ScalingBenchmark(**values)
    run = RUNS[benchmark.run]
    run = dataclasses.replace(run, batch_size=benchmark.batch_size or run.batch_size)
    workers = distribution.join()
    if under_strategy and not workers.strategy:
        workers = distribution.Workers(tf.distribute.MirroredStrategy(["CPU:0"]))
    training.make_deterministic(run.seed)
    random = np.random.default_rng(run.seed)
    images = random.integers(0, 256, (NUM_IMAGES, *run.model.image_shape), np.uint8)
    labels = random.integers(0, run.model.num_classes, NUM_IMAGES, np.int32)
    data = ArrayData("synthetic", images, labels, images[:1], labels[:1], run.model.num_classes)
    batches = ArrayBatches(data, run, workers.rows(run.batch_size))
    network, model = training._model(run, batches, workers)
    model.make_train_function()
    iterator = iter(workers.distribute(batches.train_batches(0), training.feed))
    float(model.train_function(iterator)["loss"])  # compiles
    start = time.perf_counter()
    for _ in range(benchmark.steps):
        float(model.train_function(iterator)["loss"])
    seconds = (time.perf_counter() - start) / benchmark.steps
    count = sum(int(np.prod(v.shape)) for v in network.trainable_variables)
    result = {
        "images_per_second": run.batch_size / seconds,
        "step_seconds": seconds,
        "num_weights": network.count_params(),
        "batch_size": run.batch_size,
        "bytes": 4 * count,
        "all_reduce_seconds": _all_reduce_seconds(workers, count) if workers.count > 1 else 0.0,
    }
    print(json.dumps(result), flush=True)
    workers.wait()
    os._exit(0)


def _all_reduce_seconds(workers, count: int) -> float:
    """Median of 20, of a float32 vector of so many numbers."""
    import tensorflow as tf

    vector = tf.ones(count)

    @tf.function
    def reduce():
        def of_replica():
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, vector)[0]

        return workers.strategy.run(of_replica)

    reduce()
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        float(reduce())
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def cli() -> None:
    launcher.run(main, PRESETS, manual=__doc__, has_run_dir=False)


if __name__ == "__main__":
    cli()
