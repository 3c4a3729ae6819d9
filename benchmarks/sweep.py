"""Time a sweep of learning rates and seeds as one descent against a loop of single runs.

    python -m benchmarks.sweep                        under a minute on 2 cores

The runs are those of Figure 9 (linear) and 10 (ReLU at mid) of launch.shortcut_study: 2-shortcut networks of
width 10 on 60,000 samples. The loop is the same descent, one run at a time. The peer is the usual training
loop: a compiled step of GradientTape over all the data, one run at a time; its losses are checked to be the same.
Loops are timed on a few runs, and the time is scaled to all of them.

Measured on 2 cores of an Intel Xeon (AVX-512), TensorFlow 2.21, NumPy 2.4, medians of 3: the loop takes 16.2 times as
long as the sweep at depth 16 and 6.25 times at depth 96 (85 linear runs), 1.7 times with ReLUs (9 runs), GradientTape
1,034, 1,135 and 5.07 times. Seconds are of the epochs alone: the time of a descent of no epochs, with the same set-up,
is subtracted. These are of a version that counted it, which favours the sweep, as the loop sets up every run: on one
busy core of an AMD EPYC the ratio at depth 16 was 42 so and 38 without, with ReLUs 1.8 and 1.6.

A loop spends its time in starting operations on [d, d] matrices, which the sweep starts once for all runs: so
the gain is large until the arithmetic of the sweep takes over, as at depth 96. With ReLUs every run is a pass
over all samples, alone or among others.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Benchmark, interleaved, report, seconds
from identity_matters.fields import option, require
from launch import launcher

if TYPE_CHECKING:
    from shortcut_study.network import ShortcutNetwork

WIDTH, NUM_SAMPLES = 10, 60_000
TARGET = 20  # times as fast as the loop
TIMED_RUNS = 2  # of a loop
SWEEP, LOOP, PEER = "sweep", "loop", "GradientTape"
PAIRS = {f"{slower} / {SWEEP}": (slower, SWEEP) for slower in (LOOP, PEER)}


@dataclasses.dataclass(frozen=True)
class SweepBenchmark(Benchmark):
    """Which sweeps, and how often they are timed.

    Attributes:
      depths: Numbers of weight matrices of linear networks; even.
      relu_depths: Numbers of weight matrices of networks with ReLUs; even.
      runs: Number of runs (learning rates × seeds) in a sweep of linear networks.
      relu_runs: Number of runs (learning rates × seeds) in a sweep of networks with ReLUs.
      epochs: Number of timed epochs of linear networks.
      relu_epochs: Number of timed epochs of networks with ReLUs, and of the peer.
      repeats: Rounds in which each is timed once; medians and ranges are over the rounds.
    """

    depths: tuple[int, ...] = (16, 96)
    relu_depths: tuple[int, ...] = (16,)
    runs: int = option(85, at_least=1)
    relu_runs: int = option(9, at_least=1)
    epochs: int = option(100, at_least=1)
    relu_epochs: int = option(5, at_least=1)
    repeats: int = option(3, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        depths = self.depths + self.relu_depths
        are_even = depths and all(depth >= 2 and depth % 2 == 0 for depth in depths)
        require(are_even, f"depths must be even and at least 2, got {self.depths} and {self.relu_depths}")


def main(benchmark: SweepBenchmark) -> None:
    """Times sweep, loop and peer in turns for every network, and prints the table."""
    from shortcut_study.network import ShortcutNetwork

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((NUM_SAMPLES, WIDTH)), np.eye(WIDTH)[rng.integers(WIDTH, size=NUM_SAMPLES)]
    sweeps = [(depth, "linear", benchmark.runs, benchmark.epochs) for depth in benchmark.depths]
    sweeps += [(depth, "relu", benchmark.relu_runs, benchmark.relu_epochs) for depth in benchmark.relu_depths]
    rows = {}
    for depth, mid, runs, epochs in sweeps:
        network = ShortcutNetwork.with_depth(WIDTH, depth, 2, mid=mid)
        cases = _measurements(network, x, y, runs, epochs, benchmark.relu_epochs)
        rows[f"{mid}, depth {depth}, {runs} runs"] = interleaved(cases, benchmark.repeats)
        print(f"{mid}, depth {depth}: done", flush=True)
    report(f"seconds per epoch; target: {TARGET} × the loop", rows, PAIRS, benchmark.repeats)


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

    return {SWEEP: sweep, LOOP: loop, PEER: peer}


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
