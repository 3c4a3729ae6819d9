"""Time a sweep of learning rates and seeds as one descent against a loop of single runs.

    python -m benchmarks.sweep                        40 seconds on 2 cores

The runs are those of Figure 9 (linear) and 10 (ReLU at mid) of launch.shortcut_study: 2-shortcut networks of
width 10 on 60,000 samples. The loop is the same descent, one run at a time. The peer is the usual training
loop: a compiled step of GradientTape over all the data, one run at a time; its losses are checked to be the same.
Loops are timed on a few runs, and the time is scaled to all of them.

Measured on 2 cores of an Intel Xeon (AVX-512), TensorFlow 2.21, NumPy 2.4, medians of 3:

| sweep                     | sweep, s/epoch | loop, s/epoch | GradientTape, s/epoch |       loop / sweep |  GradientTape / sweep |
| ------------------------- | -------------: | ------------: | --------------------: | -----------------: | --------------------: |
| linear, depth 16, 85 runs |        0.00518 |        0.0844 |                  5.23 |   16.2 (15 – 19.8) |   1,034 (979 – 1,140) |
| linear, depth 96, 85 runs |          0.026 |         0.171 |                  34.7 | 6.25 (5.15 – 7.08) | 1,135 (1,097 – 2,170) |
| relu, depth 16, 9 runs    |          0.127 |         0.211 |                 0.625 |  1.7 (1.64 – 1.77) |    5.07 (4.82 – 5.16) |

| Figure 10's rates, 2-shortcut | given up | all rates, s | all rates / pruned |
| ----------------------------- | -------: | -----------: | -----------------: |
| relu, depth 16                |   4 of 9 |         1.54 |  2.22 (2.03 – 2.3) |

Seconds are of the epochs alone: the time of a descent of no epochs, with the same set-up, is subtracted. The first table
is of a version that counted them, which favours the sweep, as the loop sets up every run: on one busy core of an AMD
EPYC the ratio at depth 16 was 42 so and 38 without, with ReLUs 1.8 and 1.6.

A loop spends its time in starting operations on [d, d] matrices, which the sweep starts once for all runs: so
the gain is large until the arithmetic of the sweep takes over, as at depth 96. With ReLUs every run is a pass
over all samples, alone or among others.
"""  # noqa: E501, a table as it is printed

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import OTHERS, environment, interleaved, ratios, seconds, table, with_range
from identity_matters.errors import UserError
from identity_matters.fields import check_fields, option
from launch import launcher

if TYPE_CHECKING:
    from shortcut_study.network import ShortcutNetwork

WIDTH, NUM_SAMPLES = 10, 60_000
NUM_PRUNED_SAMPLES = 6_000  # as networks with ReLUs have them in launch.shortcut_study
TARGET = 20  # times as fast as the loop
TIMED_RUNS = 2  # of a loop
UNRESOLVED = "not resolved"


@dataclasses.dataclass(frozen=True)
class SweepBenchmark:
    """Which sweeps, and how often they are timed.

    Attributes:
      depths: Numbers of weight matrices of linear networks; even.
      relu_depths: Numbers of weight matrices of networks with ReLUs; even.
      runs: Number of runs (learning rates × seeds) in a sweep of linear networks.
      relu_runs: Number of runs (learning rates × seeds) in a sweep of networks with ReLUs.
      epochs: Number of timed epochs of linear networks.
      relu_epochs: Number of timed epochs of networks with ReLUs, and of the peer.
      pruned_epochs: Number of epochs at Figure 10's learning rates, with all of them and with pruning.
      repeats: Rounds in which each is timed once; medians and ranges are over the rounds.
    """

    depths: tuple[int, ...] = (16, 96)
    relu_depths: tuple[int, ...] = (16,)
    runs: int = option(85, at_least=1)
    relu_runs: int = option(9, at_least=1)
    epochs: int = option(100, at_least=1)
    relu_epochs: int = option(5, at_least=1)
    pruned_epochs: int = option(200, at_least=1)
    repeats: int = option(3, at_least=1)

    def __post_init__(self) -> None:
        check_fields(self)
        if any(depth < 2 or depth % 2 for depth in self.depths + self.relu_depths):
            raise UserError(f"depths must be even and at least 2, got {self.depths} and {self.relu_depths}")


def main(benchmark: SweepBenchmark) -> None:
    """Times sweep, loop and peer in turns for every network, and prints the table."""
    from shortcut_study.network import ShortcutNetwork

    print(environment())
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((NUM_SAMPLES, WIDTH)), np.eye(WIDTH)[rng.integers(WIDTH, size=NUM_SAMPLES)]
    sweeps = [(depth, "linear", benchmark.runs, benchmark.epochs) for depth in benchmark.depths]
    sweeps += [(depth, "relu", benchmark.relu_runs, benchmark.relu_epochs) for depth in benchmark.relu_depths]
    rows, others = [], []
    for depth, mid, runs, epochs in sweeps:
        network = ShortcutNetwork.with_depth(WIDTH, depth, 2, mid=mid)
        found = interleaved(_measurements(network, x, y, runs, epochs, benchmark.relu_epochs), benchmark.repeats)
        others += found[OTHERS]
        rows.append((f"{mid}, depth {depth}, {runs} runs", *_cells(found)))
        print(f"{rows[-1][0]}: done", flush=True)
    header = ["sweep", *(f"{name}, s/epoch" for name in ("sweep", "loop", "GradientTape"))]
    header += ["loop / sweep", "GradientTape / sweep"]
    pruned = []
    for depth in benchmark.relu_depths:
        network = ShortcutNetwork.with_depth(WIDTH, depth, 2, mid="relu")
        count, measurements = _pruning(network, x[:NUM_PRUNED_SAMPLES], y[:NUM_PRUNED_SAMPLES], benchmark.pruned_epochs)
        found = interleaved(measurements, benchmark.repeats)
        others += found[OTHERS]
        ratio = with_range(ratios(found["all"], found["pruned"]))
        pruned.append((f"relu, depth {depth}", count, f"{np.median(found['all']):.3g}", ratio))
    print(f"\ntarget: {TARGET} × the loop; other processes kept {np.median(others):.2f} cores busy\n")
    print(table(header, rows))
    if any(UNRESOLVED in row for row in rows):
        print(f"{UNRESOLVED}: the epochs took no longer than setting up varies; raise --epochs or --relu_epochs")
    print()
    print(table(("Figure 10's rates, 2-shortcut", "given up", "all rates, s", "all rates / pruned"), pruned))


def _cells(found: dict[str, list[float]]) -> list[str]:
    """Returns seconds, and ratios to the sweep, of what took a time above 0 in every round."""
    measured = {name for name in ("sweep", "loop", "peer") if min(found[name]) > 0}
    cells = [f"{np.median(found[name]):.3g}" if name in measured else UNRESOLVED for name in ("sweep", "loop", "peer")]
    for name in ("loop", "peer"):
        are_both = {name, "sweep"} <= measured
        cells.append(with_range(ratios(found[name], found["sweep"])) if are_both else "–")
    return cells


def _measurements(
    network: "ShortcutNetwork", x: np.ndarray, y: np.ndarray, runs: int, epochs: int, peer_epochs: int
) -> dict[str, Callable[[], float]]:
    """Returns, by name, functions that return the seconds per epoch of all runs."""
    from shortcut_study.dynamics import descend

    starts = np.stack([network.initialize("zero", seed) for seed in range(runs)])
    rates = np.geomspace(1e-3, 1e-1, runs)

    def per_epoch(runs: slice) -> float:
        """Returns seconds per epoch: those of all epochs less those of none, which set up and compute the loss too."""
        whole, none = (seconds(descend, network, starts[runs], x, y, rates[runs], count) for count in (epochs, 0))
        return (whole - none) / epochs

    def sweep() -> float:
        return per_epoch(slice(None))

    def loop() -> float:
        timed = min(TIMED_RUNS, runs)
        return sum(per_epoch(slice(run, run + 1)) for run in range(timed)) / timed * runs

    train = _gradient_tape_training(network, x, y)
    ours = descend(network, starts[:1], x, y, rates[:1], peer_epochs).losses[:-1, 0]
    np.testing.assert_allclose(train(starts[0], rates[0], peer_epochs), ours, rtol=1e-9)

    def peer() -> float:
        return seconds(train, starts[0], rates[0], peer_epochs) / peer_epochs * runs

    return {"sweep": sweep, "loop": loop, "peer": peer}


def _pruning(
    network: "ShortcutNetwork", x: np.ndarray, y: np.ndarray, epochs: int
) -> tuple[str, dict[str, Callable[[], float]]]:
    """Returns how many of Figure 10's learning rates are given up, and functions that return seconds of a descent."""
    from shortcut_study.config import PRESETS, learning_rates
    from shortcut_study.dataset import StudyData
    from shortcut_study.dynamics import descend
    from shortcut_study.figures.figure_10 import descend_pruned

    rates = learning_rates(PRESETS["paper"].relu_rates_per_decade)
    start = network.initialize("zero", seed=0)
    whole = descend(network, np.stack([start] * len(rates)), x, y, rates, epochs)
    found, bounded_by = descend_pruned(network, start, StudyData(x, y), rates, epochs)
    kept = [i for i in range(len(rates)) if i not in bounded_by]
    np.testing.assert_array_equal(found.losses[-1, kept], whole.losses[-1, kept])
    assert all(whole.losses[-1, i] >= found.losses[-1, rates == rate] for i, rate in bounded_by.items())
    return f"{len(bounded_by)} of {len(rates)}", {
        "all": lambda: seconds(descend, network, np.stack([start] * len(rates)), x, y, rates, epochs),
        "pruned": lambda: seconds(descend_pruned, network, start, StudyData(x, y), rates, epochs),
    }


def _gradient_tape_training(network: "ShortcutNetwork", x: np.ndarray, y: np.ndarray) -> Callable[..., list[float]]:
    """Returns a function of weights, rate and epochs that returns the losses of one run, trained as usual."""
    import tensorflow as tf

    from shortcut_study.tape import tensor_forward

    x, y = tf.constant(x), tf.constant(y)

    @tf.function
    def step(weights: Any, rate: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_sum((y - tensor_forward(network, weights, x)) ** 2) / (2 * len(x))
        return weights - rate * tape.gradient(loss, weights), loss

    def train(weights: np.ndarray, rate: float, epochs: int) -> list[float]:
        weights, losses = tf.constant(weights), []
        for _ in range(epochs):
            weights, loss = step(weights, tf.constant(rate))
            losses.append(loss.numpy())
        return losses

    return train


cli = launcher.command(main, {"": SweepBenchmark()}, manual=__doc__)

if __name__ == "__main__":
    cli()
