"""Time the exact Hessian of linear 2-shortcut networks against its eigenvalues and automatic differentiation.

    python -m benchmarks.hessian                      3 minutes on 2 cores

"Ours" is shortcut_study.hessian.hessian_from_moments at width 10, from Sxx and Syx; depth 96 has 9,600 weights and
a Hessian of 737 MB. "Eigenvalues" is numpy.linalg.eigvalsh of the result, which every figure needs; the
goal is at most 15 % of its time. Peers: torch.func.hessian (in a separate process; skipped without torch) and
tf.GradientTape.jacobian, compiled, both of the loss as a function of the two moments, so that
no peer passes over data. All results are checked to agree. First calls, which compile, do not count; the others take
turns.
"""

import contextlib
import dataclasses
import functools
import resource
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.harness import Benchmark, check_same, functions_of_peer, interleaved, ratios, report, seconds
from identity_matters.fields import option, require
from launch import launcher

WIDTH = 10
TARGET = 0.15  # of the time of the eigenvalues
MAX_DIFFERENCE = 1e-9  # of the Hessians, over the largest number of ours
OURS, EIGENVALUES, TORCH, TAPE = "ours, s", "eigenvalues, s", "torch, s", "tape, s"
PAIRS = {"torch / ours": (TORCH, OURS), "tape / ours": (TAPE, OURS)}


@dataclasses.dataclass(frozen=True)
class HessianBenchmark(Benchmark):
    """Which depths are timed, and how often.

    Attributes:
      depths: Numbers of weight matrices; even.
      peer_depth: Depth of the deepest network that the peers are given; for deeper ones they need tens of GB.
      eigenvalue_repeats: Rounds in which our Hessian and its eigenvalues are timed once each.
    """

    depths: tuple[int, ...] = (16, 32, 64, 96)
    peer_depth: int = option(64, at_least=1)
    eigenvalue_repeats: int = option(1, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        are_even = self.depths and all(depth >= 2 and depth % 2 == 0 for depth in self.depths)
        require(are_even, f"depths must be even numbers of at least 2, got {self.depths}")


def main(benchmark: HessianBenchmark) -> None:
    """Times the Hessian of each depth, its eigenvalues and the peers, and prints the table."""
    from shortcut_study.hessian import hessian_from_moments
    from shortcut_study.network import ShortcutNetwork
    from theory.shortcut.networks import moments

    pair = moments(*np.random.default_rng(0).standard_normal((2, 1000, WIDTH)))
    rows = {}
    for depth in benchmark.depths:
        weights = ShortcutNetwork(WIDTH, depth // 2, 2).initialize("xavier", 0) / 2
        hessian = functools.partial(hessian_from_moments, weights, *pair)
        rows[f"{depth}"] = _row(benchmark, depth, hessian, (weights, *pair))
        print(f"depth {depth}: done", flush=True)
    report(f"target: at most {TARGET:.0%} of the eigenvalues", rows, PAIRS, benchmark.repeats)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\npeak memory of this process, peers and eigenvalues included: {peak / 2**30:.1f} GiB")


def _row(
    benchmark: HessianBenchmark, depth: int, hessian: Callable[[], np.ndarray], problem: tuple
) -> dict[str, list[float]]:
    """Returns the seconds of a depth by column."""
    result = hessian()
    ours = {OURS: lambda: seconds(hessian)}
    with contextlib.ExitStack() as stack:
        peers_here = _peers(stack, result, problem) if depth <= benchmark.peer_depth else {}
        rounds = interleaved(ours | peers_here, benchmark.repeats, uncounted=0)
    turns = ours | {EIGENVALUES: lambda: seconds(np.linalg.eigvalsh, result)}
    fewer = interleaved(turns, benchmark.eigenvalue_repeats, uncounted=0)
    share = ratios(fewer[OURS], fewer[EIGENVALUES])
    return rounds | {EIGENVALUES: fewer[EIGENVALUES], "ours / eigenvalues": share}


def _peers(stack: contextlib.ExitStack, result: np.ndarray, problem: tuple) -> dict[str, Callable[[], float]]:
    """Returns by name functions that return the seconds of a peer's call, after a first one, which is checked."""
    tape = _tape_hessian(*problem)
    check_same("the tape's Hessian", result, tape(), MAX_DIFFERENCE)
    cases = {TAPE: lambda: seconds(tape)}
    if torch := functions_of_peer(stack, "torch", peers.dense_hessian, *problem):
        check_same("torch's Hessian", result, torch["hessian"](), MAX_DIFFERENCE)
        cases[TORCH] = torch["seconds"]
    return cases


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
