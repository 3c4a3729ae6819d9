"""Time the exact Hessian of linear 2-shortcut networks against its eigenvalues and automatic differentiation.

    python -m benchmarks.hessian                      3 minutes on 2 cores

"Ours" is shortcut_study.hessian.hessian_from_moments at width 10, from Sxx and Syx; depth 96 has 9,600 weights and
a Hessian of 737 MB. "Eigenvalues" is numpy.linalg.eigvalsh of the result, which every figure needs; the
goal is at most 15 % of its time. Peers: torch.func.hessian (in a separate process; left out without torch) and
tf.GradientTape.jacobian, compiled, both of the loss as a function of the two moments, so that
no peer passes over data. All results are checked to agree. First calls, which compile, are timed separately; those of
the peers are left out below. The others take turns.

Measured on 2 cores of an Intel Xeon, NumPy 2.4, TensorFlow 2.21, torch 2.13, medians of 5 (eigenvalues: one), one
after the other; peak memory of the process 4.7 GiB with the peers, 3.4 without:

| depth | weights | first call, s | ours, s |        min – max | eigenvalues, s | ours / eigenvalues | torch / ours | tape / ours |
| ----- | ------: | ------------: | ------: | ---------------: | -------------: | -----------------: | -----------: | ----------: |
| 16    |   1,600 |        0.0149 | 0.00866 | 0.00854 – 0.0197 |          0.185 |               4.7% |         4.83 |        7.56 |
| 32    |   3,200 |        0.0714 |  0.0563 |    0.0548 – 0.13 |           1.46 |               3.8% |         3.72 |        5.45 |
| 64    |   6,400 |         0.279 |   0.198 |    0.196 – 0.465 |           14.2 |               1.4% |         5.72 |        6.34 |
| 96    |   9,600 |         0.579 |   0.616 |    0.598 – 0.694 |           62.7 |               1.0% |            – |           – |
"""  # noqa: E501, a table as it is printed

import contextlib
import dataclasses
import functools
import resource
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.harness import OTHERS, Peer, environment, interleaved, ratios, seconds, spread, table, timed
from identity_matters.errors import UserError
from identity_matters.fields import check_fields, option
from launch import launcher

WIDTH = 10
TARGET = 0.15  # of the time of the eigenvalues


@dataclasses.dataclass(frozen=True)
class HessianBenchmark:
    """Which depths are timed, and how often.

    Attributes:
      depths: Numbers of weight matrices; even.
      peer_depth: Depth of the deepest network that the peers are given; for deeper ones they need tens of GB.
      repeats: Rounds in which our Hessian and the peers' are timed once each; medians and ranges are over the rounds.
      eigenvalue_repeats: The same for our Hessian and its eigenvalues.
    """

    depths: tuple[int, ...] = (16, 32, 64, 96)
    peer_depth: int = option(64, at_least=1)
    repeats: int = option(5, at_least=1)
    eigenvalue_repeats: int = option(1, at_least=1)

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.depths or any(depth < 2 or depth % 2 for depth in self.depths):
            raise UserError(f"depths must be even numbers of at least 2, got {self.depths}")


def main(benchmark: HessianBenchmark) -> None:
    """Times the Hessian of each depth, its eigenvalues and the peers, and prints the table."""
    from shortcut_study.hessian import hessian_from_moments
    from shortcut_study.network import ShortcutNetwork
    from theory.shortcut.networks import moments

    print(environment())
    x, y = np.random.default_rng(0).standard_normal((2, 1000, WIDTH))
    pair = moments(x, y)
    rows, others = [], []
    for depth in benchmark.depths:
        weights = ShortcutNetwork(WIDTH, depth // 2, 2).initialize("xavier", 0) / 2
        row, busy = _row(benchmark, depth, functools.partial(hessian_from_moments, weights, *pair), (weights, *pair))
        rows.append(row)
        others += busy
        print(f"depth {depth}: done", flush=True)
    header = ("depth", "weights", "first call, s", "ours, s", "min – max", "eigenvalues, s", "ours / eigenvalues")
    header += ("torch: first, s", "torch / ours", "tape: first, s", "tape / ours")
    busy = f"other processes kept {np.median(others):.2f} cores busy"
    print(f"\ntarget: at most {TARGET:.0%} of the eigenvalues; {busy}\n")
    print(table(header, rows))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\npeak memory of this process, peers and eigenvalues included: {peak / 2**30:.1f} GiB")


def _row(
    benchmark: HessianBenchmark, depth: int, hessian: Callable[[], np.ndarray], problem: tuple
) -> tuple[tuple[str, ...], list[float]]:
    """Returns the row of a depth, and the cores that other processes kept busy in each round."""
    first, result = timed(hessian)
    ours = {"ours": lambda: seconds(hessian)}
    with contextlib.ExitStack() as stack:
        peers_here = _peers(stack, result, problem) if depth <= benchmark.peer_depth else {}
        turns = ours | {name: measure for name, (_, measure) in peers_here.items()}
        found = interleaved(turns, benchmark.repeats, uncounted=0)
    turns = ours | {"eigenvalues": lambda: seconds(np.linalg.eigvalsh, result)}
    floor = interleaved(turns, benchmark.eigenvalue_repeats, uncounted=0)
    row = [f"{depth}", f"{depth * WIDTH**2:,}", f"{first:.3g}", *spread(found["ours"])]
    row += [f"{np.median(floor['eigenvalues']):.3g}", f"{np.median(ratios(floor['ours'], floor['eigenvalues'])):.1%}"]
    for name in ("torch", "tape"):
        ratio = f"{np.median(ratios(found[name], found['ours'])):.3g}" if name in found else "–"
        row += [f"{peers_here[name][0]:.3g}" if name in found else "–", ratio]
    return tuple(row), found[OTHERS] + floor[OTHERS]


def _peers(
    stack: contextlib.ExitStack, result: np.ndarray, problem: tuple
) -> dict[str, tuple[float, Callable[[], float]]]:
    """Returns, by name, the seconds of a peer's first call, and a function that returns those of another.

    torch runs in a process of its own, which the stack ends; where it is not installed it is left out.
    """
    found = {}
    try:
        peer = stack.enter_context(Peer(peers.dense_hessian, *problem))
        found["torch"] = peer.call("seconds"), lambda: peer.call("seconds")
        _check_same(peer.call("hessian"), result)
    except ModuleNotFoundError as error:
        print(f"torch is left out: {error}")
    tape = _tape_hessian(*problem)
    first, other = timed(tape)
    _check_same(other, result)
    return found | {"tape": (first, lambda: seconds(tape))}


def _check_same(other: np.ndarray, result: np.ndarray) -> None:
    difference = np.abs(other - result).max() / np.abs(result).max()
    if not difference <= 1e-9:
        raise ArithmeticError(f"a peer's Hessian differs from ours by {difference:.1e}")


def _tape_hessian(weights: np.ndarray, input_moment: np.ndarray, cross_moment: np.ndarray) -> Callable[[], np.ndarray]:
    """Returns a function that computes GradientTape.jacobian of a gradient, inside one tf.function."""
    import tensorflow as tf

    shape, eye = weights.shape, tf.eye(weights.shape[-1], dtype=tf.float64)

    @tf.function
    def hessian(columns: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(columns)
            with tf.GradientTape() as inner:
                inner.watch(columns)
                W = eye
                for unit in tf.unstack(tf.linalg.matrix_transpose(tf.reshape(columns, shape))):
                    W = W + unit[1] @ unit[0] @ W
                loss = tf.reduce_sum(W @ input_moment * W) / 2 - tf.reduce_sum(W * cross_moment)
            gradient = inner.gradient(loss, columns)
        return outer.jacobian(gradient, columns)

    columns = tf.constant(np.swapaxes(weights, -1, -2).reshape(-1))
    return lambda: hessian(columns).numpy()


cli = launcher.command(main, {"": HessianBenchmark()}, manual=__doc__)

if __name__ == "__main__":
    cli()
