"""Time Hessian products and Lanczos of a residual network against PyHessian and curvlinops, on the same network.

    python -m benchmarks.lanczos                      1.5 minutes on 2 cores
    KERAS_BACKEND=jax python -m benchmarks.lanczos --preset=gpu     the paper's network on a GPU, without TensorFlow

The network (2 blocks a stage with widths 16, 32, 64, or the paper's), its kernels, images and labels are the same in
all frameworks, and the products are checked to agree. Gradient and product are over all examples, a batch at a time.
Lanczos is --order steps with reorthogonalisation. PyHessian's is hessian.density, with torch.linalg.eigh in place of
torch.eig, which PyTorch has removed; curvlinops' is its fast_lanczos, without reorthogonalisation. A second table,
not of --preset=gpu, has the largest eigenvalue and the trace of a small network, all from the same number of
products: ours by Lanczos and by Hutchinson's method, with their bounds; PyHessian's by power iteration and
Hutchinson's method; curvlinops' by Lanczos and Hutch++; and the exact ones in float64. On a GPU convolutions are in
TensorFloat-32, PyTorch's and JAX's default, with --precision=default, and torch.backends.cudnn.benchmark is on. Peers
run in separate processes; without them (`pip install torch pyhessian curvlinops-for-pytorch`) their rows are left
out.

Measured on 2 cores of an AMD EPYC (AVX-512), TensorFlow 2.21, Keras 3.15, PyTorch 2.14, PyHessian 0.1, curvlinops
3.0.1, 170,928 weights, 128 examples, order 10, medians of 5 (ranges are printed), other processes 0.02 cores:

    | measured            |  ours | PyHessian | over ours | curvlinops | over ours |
    | ------------------- | ----: | --------: | --------: | ---------: | --------: |
    | gradient, s         | 0.082 |     0.067 |      0.86 |            |           |
    | Hessian product, s  | 0.185 |     0.341 |      1.84 |      0.315 |      1.70 |
    | Lanczos, s          |  2.11 |      3.45 |      1.62 |       3.06 |      1.48 |
"""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks import peers
from benchmarks.harness import OTHERS, Benchmark, Peer, interleaved, report, seconds, table
from benchmarks.peers import EIGENVALUE, GRADIENT, LANCZOS, PRODUCT, TRACE
from benchmarks.train_step import kernels_of
from identity_matters.config import ModelConfig
from identity_matters.fields import option
from identity_matters.presets import MODEL_PRESETS
from launch import launcher

if TYPE_CHECKING:
    import keras

SMALL = ModelConfig(widths=(16, 32, 64), blocks_per_stage=(2, 2, 2), residual_initializer="standard")
EXACT = ModelConfig(
    image_shape=(8, 8, 3), stem_width=2, widths=(2, 4), blocks_per_stage=(1, 1), residual_initializer="standard"
)
MAX_DIFFERENCE = 1e-3  # of two products, over their norm
PAPER = MODEL_PRESETS["cifar10"]
NAMES = (GRADIENT, PRODUCT, LANCZOS)
NUM_PRODUCTS = 99  # of each estimate, a multiple of three for Hutch++
OURS, PEERS = "ours", {"PyHessian": peers.pyhessian, "curvlinops": peers.curvlinops}


@dataclasses.dataclass(frozen=True)
class LanczosBenchmark(Benchmark):
    """What is timed, and how often.

    Attributes:
      repeats: Rounds in which each is timed once; medians and ranges are over the rounds.
      examples: Number of examples in the loss.
      batch_size: Examples per batch.
      order: Number of Lanczos steps.
      seed: Seed of the kernels, the images, the labels and the vectors.
      paper_network: Time the network of Table 1 of Hardt & Ma, of 13.5 million weights.
      precision: highest, or default, in which a GPU's convolutions are in TensorFloat-32.
    """

    examples: int = option(128, at_least=1)
    batch_size: int = option(64, at_least=1)
    order: int = option(10, at_least=1)
    seed: int = option(0, at_least=0)
    paper_network: bool = False
    precision: Literal["highest", "default"] = "highest"

    @property
    def network(self) -> ModelConfig:
        """The network that is timed."""
        return PAPER if self.paper_network else SMALL


def main(benchmark: LanczosBenchmark) -> None:
    """Times all sides in turns, finds largest eigenvalue and trace of a small network, and prints the tables."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would leave PyTorch a quarter of a GPU
    start = time.perf_counter()
    side = ours(benchmark.network, benchmark)
    took = time.perf_counter() - start
    measured = {(OURS, name): functools.partial(seconds, side[name]) for name in NAMES}
    estimates = {} if benchmark.paper_network else our_estimates(benchmark)
    with contextlib.ExitStack() as stack:
        for name, make in PEERS.items():
            try:
                peer = stack.enter_context(peer_of(make, benchmark.network, benchmark))
                check_same_products(side, peer, name)
                if estimates:
                    small = stack.enter_context(peer_of(make, EXACT, benchmark))
                    their_estimates = {estimate: small.call(estimate, NUM_PRODUCTS) for estimate in (EIGENVALUE, TRACE)}
                    estimates |= {(name, estimate): (value, "none") for estimate, value in their_estimates.items()}
                names = NAMES if make is peers.pyhessian else NAMES[1:]
                measured |= {(name, what): functools.partial(peer.call, what) for what in names}
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error}\n")
        times = interleaved({key: measured[key] for key in sorted(measured, key=by_name)}, benchmark.repeats)
    columns = [OURS, *PEERS]
    rows = {name: {of: times[of, name] for of in columns if (of, name) in times} for name in NAMES}
    rows[PRODUCT][OTHERS] = times[OTHERS]
    report(
        f"{side['dim']:,} weights, {benchmark.examples} examples, {took:.1f} s before the first product, checked",
        rows,
        {f"{name} / {OURS}": (name, OURS) for name in PEERS},
        benchmark.repeats,
    )
    if estimates:
        print(f"\nby {NUM_PRODUCTS} products each:\n")
        print(table(("estimate", "value", "error", "its bound"), _exact_rows(estimates, *exact_numbers(benchmark))))


def by_name(key: tuple[str, str]) -> int:
    """Returns where what is measured stands: each of it by all sides in turn."""
    return NAMES.index(key[1])


def problem(config: ModelConfig, benchmark: LanczosBenchmark) -> tuple["keras.Model", np.ndarray, np.ndarray]:
    """Returns the network, and random images and labels."""
    from identity_matters.model import all_conv_resnet

    random = np.random.default_rng(benchmark.seed)
    images = random.standard_normal((benchmark.examples, *config.image_shape), np.float32)
    return all_conv_resnet(config, benchmark.seed), images, random.integers(0, config.num_classes, benchmark.examples)


def ours(config: ModelConfig, benchmark: LanczosBenchmark) -> dict[str, Any]:
    """Returns functions by what they compute, and the number of weights, their shapes and a vector."""
    from shortcut_study.curvature import Hessian
    from shortcut_study.curvature.lanczos import lanczos

    network, images, labels = problem(config, benchmark)
    h = Hessian(network, images, labels, batch_size=benchmark.batch_size, precision=benchmark.precision)
    vector = np.random.default_rng(benchmark.seed).standard_normal(h.shape[0], np.float32)
    return {
        "dim": h.shape[0],
        "shapes": [variable.shape for variable in network.trainable_variables],
        "vector": vector,
        "apply": h.__matmul__,
        GRADIENT: h.gradient_at,
        PRODUCT: lambda: h @ vector,
        LANCZOS: lambda: lanczos(h.__matmul__, h.shape[0], benchmark.order, benchmark.seed, np.float32),
    }


def peer_of(make: Callable, config: ModelConfig, benchmark: LanczosBenchmark) -> Peer:
    """Returns a peer on the same problem. Raises ModuleNotFoundError where it or PyTorch is not installed."""
    network, images, labels = problem(config, benchmark)
    numbers = (benchmark.batch_size, benchmark.order, benchmark.seed, benchmark.precision == "highest")
    return Peer(make, config, kernels_of(network), images, labels, *numbers)


def check_same_products(ours: dict, theirs: Peer, name: str) -> None:
    """Raises ArithmeticError if the products with one vector differ by more than MAX_DIFFERENCE."""
    sizes = [int(np.prod(shape)) for shape in ours["shapes"]]
    parts = np.split(ours["vector"], np.cumsum(sizes)[:-1])
    kernels = [np.moveaxis(part.reshape(shape), (-1, -2), (0, 1)) for part, shape in zip(parts, ours["shapes"])]
    their_product = [np.moveaxis(part, (0, 1), (-1, -2)).ravel() for part in theirs.call("apply", kernels)]
    exact = ours["apply"](ours["vector"])
    difference = np.linalg.norm(np.concatenate(their_product) - exact) / np.linalg.norm(exact)
    print(f"difference of the Hessian products, ours and those of {name}: {difference:.1e} of their norm\n")
    if not difference <= MAX_DIFFERENCE:
        raise ArithmeticError(f"the product of {name} differs from ours by {difference:.1e}: not the same Hessian")


def exact_numbers(benchmark: LanczosBenchmark) -> tuple[dict[str, float], int]:
    """Returns the largest eigenvalue and the trace of EXACT, by all products in float64, and its number of weights."""
    from shortcut_study.curvature import Hessian

    h = Hessian(*problem(EXACT, benchmark), batch_size=benchmark.batch_size, dtype="float64")
    eigenvalues = np.linalg.eigvalsh(h @ np.eye(h.shape[0]))
    return {EIGENVALUE: eigenvalues[-1], TRACE: eigenvalues.sum()}, h.shape[0]


def our_estimates(benchmark: LanczosBenchmark) -> dict[tuple[str, str], tuple[float, str]]:
    """Returns (value, bound) by (side, estimate), each by NUM_PRODUCTS."""
    from shortcut_study.curvature import Hessian
    from shortcut_study.curvature.lanczos import lanczos, ritz

    h = Hessian(*problem(EXACT, benchmark), batch_size=benchmark.batch_size)
    ritz_pairs = ritz(lanczos(h.__matmul__, h.shape[0], NUM_PRODUCTS, benchmark.seed, np.float32))
    both = h.diagonal(num_vectors=NUM_PRODUCTS, seed=benchmark.seed, progress=False)
    numbers = {EIGENVALUE: (ritz_pairs.values[-1], ritz_pairs.error_bounds[-1]), TRACE: (both.trace, both.trace_error)}
    return {(OURS, name): (float(value), f"{bound:.1e}") for name, (value, bound) in numbers.items()}


def _exact_rows(estimates: dict, exact: dict[str, float], dim: int) -> list[tuple[str, ...]]:
    """Returns the lines of the second table."""
    rows = [(f"{name}, exact, {dim} weights", f"{value:.6f}", "", "") for name, value in exact.items()]
    for (side, name), (value, bound) in estimates.items():
        rows.append((f"{name}, {side}", f"{value:.6f}", f"{abs(value - exact[name]):.1e}", bound))
    return sorted(rows)


GPU = LanczosBenchmark(repeats=3, examples=1000, batch_size=500, order=5, paper_network=True, precision="default")
cli = launcher.command(main, {"": LanczosBenchmark(), "gpu": GPU}, manual=__doc__)

if __name__ == "__main__":
    cli()
