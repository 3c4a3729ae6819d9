"""Time Hessian products and Lanczos of a residual network against PyHessian and curvlinops, on the same network.

    python -m benchmarks.lanczos                      1.5 minutes on 2 cores
    KERAS_BACKEND=jax python -m benchmarks.lanczos --preset=gpu     the paper's network on a GPU, without TensorFlow

The network (2 blocks a stage with widths 16, 32, 64, or the paper's), its kernels, images and labels are the same in
all frameworks, and the products are checked to agree. Gradient and product are over all examples, a batch at a time.
Lanczos is --order steps with reorthogonalisation. PyHessian's is hessian.density, with torch.linalg.eigh in place of
torch.eig, which PyTorch has removed; curvlinops' is its fast_lanczos, without reorthogonalisation. A second table,
not of --preset=gpu, has the largest eigenvalue and the trace of a small network, all from the same number of
products: ours by Lanczos and by XTrace, with their bounds; PyHessian's by power iteration and Hutchinson's method;
curvlinops' by Lanczos and Hutch++; and the exact ones in float64. On a GPU convolutions are in
TensorFloat-32, PyTorch's and JAX's default, with --precision=default, and torch.backends.cudnn.benchmark is on. Peers
run in separate processes; without them (`pip install torch pyhessian curvlinops-for-pytorch`) their rows are omitted.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks import peers
from benchmarks.harness import Benchmark, check_same, functions_of_peer, interleaved, report, seconds, table
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
MAX_DIFFERENCE = 1e-3  # of two products, over the largest number of ours
PAPER = MODEL_PRESETS["cifar10"]
NAMES = (GRADIENT, PRODUCT, LANCZOS)
NUM_PRODUCTS = 99  # of each estimate, a multiple of three for Hutch++
OURS, PEERS = "ours", {"PyHessian": peers.pyhessian, "curvlinops": peers.curvlinops}


@dataclasses.dataclass(frozen=True)
class LanczosBenchmark(Benchmark):
    """The cases to time, and how often.

    Attributes:
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
    rows = {}
    with contextlib.ExitStack() as stack:
        dim, sides = sides_of(stack, benchmark.network, benchmark)
        for name in NAMES:  # curvlinops has no gradient
            cases = {side: functions[name] for side, functions in sides.items() if name in functions}
            rows[name] = interleaved(cases, benchmark.repeats)
    ratios = {f"{name} / {OURS}": (name, OURS) for name in PEERS}
    report(f"{dim:,} weights, {benchmark.examples} examples, checked", rows, ratios, benchmark.repeats)
    if not benchmark.paper_network:
        print(f"\nby {NUM_PRODUCTS} products each:\n")
        print(table(("estimate", "value", "error", "its bound"), estimates(benchmark)))


def sides_of(
    stack: contextlib.ExitStack, config: ModelConfig, benchmark: LanczosBenchmark
) -> tuple[int, dict[str, dict[str, Callable]]]:
    """Returns the number of weights and, by side, functions by what they compute of the same problem, as in peers.py.

    Raises:
      ArithmeticError: a peer's product with a vector differs from ours by more than MAX_DIFFERENCE.
    """
    from identity_matters.model import all_conv_resnet

    random = np.random.default_rng(benchmark.seed)
    images = random.standard_normal((benchmark.examples, *config.image_shape), np.float32)
    labels = random.integers(0, config.num_classes, benchmark.examples)
    start = time.perf_counter()
    network = all_conv_resnet(config, benchmark.seed)
    settings = (benchmark.batch_size, benchmark.order, benchmark.seed, benchmark.precision == "highest")
    problem = peers.Problem(config, kernels_of(network), images, labels, *settings)
    dim, ours = our_side(network, problem)
    print(f"{time.perf_counter() - start:.1f} s before our first product\n")
    vector = np.random.default_rng(benchmark.seed).standard_normal(dim, np.float32)
    sides = {name: functions_of_peer(stack, name, make, problem) for name, make in PEERS.items()}
    for name, functions in sides.items():
        if functions:
            check_same(
                f"the Hessian product of {name}", ours["apply"](vector), functions["apply"](vector), MAX_DIFFERENCE
            )
    return dim, {OURS: ours} | {name: functions for name, functions in sides.items() if functions}


def our_side(network: "keras.Model", problem: peers.Problem) -> tuple[int, dict[str, Callable]]:
    """Returns the number of weights, and functions as those of a peer; "eigenvalues" returns all in float64."""
    from shortcut_study.curvature import Hessian
    from shortcut_study.curvature.lanczos import lanczos, ritz

    _, _, images, labels, batch_size, order, seed, is_exact = problem
    h = Hessian(network, images, labels, batch_size=batch_size, precision="highest" if is_exact else "default")
    vector = np.random.default_rng(seed).standard_normal(h.shape[0], np.float32)

    def our_lanczos(order: int) -> Any:
        return lanczos(h.__matmul__, h.shape[0], order, seed, np.float32)

    def largest_eigenvalue(products: int) -> tuple[float, float]:
        pairs = ritz(our_lanczos(products))
        return pairs.values[-1], pairs.error_bounds[-1]

    def trace(products: int) -> tuple[float, float]:
        estimate = h.trace(num_products=products, seed=seed, progress=False)
        return estimate.value, estimate.error

    def eigenvalues() -> np.ndarray:
        exact = Hessian(network, images, labels, batch_size=batch_size, dtype="float64")
        return np.linalg.eigvalsh(exact @ np.eye(h.shape[0]))

    return h.shape[0], {
        GRADIENT: lambda: seconds(h.gradient_at),
        PRODUCT: lambda: seconds(h.__matmul__, vector),
        LANCZOS: lambda: seconds(our_lanczos, order),
        "apply": h.__matmul__,
        EIGENVALUE: largest_eigenvalue,
        TRACE: trace,
        "eigenvalues": eigenvalues,
    }


def estimates(benchmark: LanczosBenchmark) -> list[tuple[str, ...]]:
    """Returns the rows of the second table, on EXACT: the numbers by all products in float64, then each side's."""
    rows = []
    with contextlib.ExitStack() as stack:
        dim, sides = sides_of(stack, EXACT, benchmark)
        eigenvalues = sides[OURS]["eigenvalues"]()
        for name, exact in ((EIGENVALUE, eigenvalues[-1]), (TRACE, eigenvalues.sum())):
            rows.append((f"{name}, exact, {dim} weights", f"{exact:.6f}", "", ""))
            for side, functions in sides.items():
                value, bound = functions[name](NUM_PRODUCTS)
                said = "none" if bound is None else f"{bound:.1e}"
                rows.append((f"{name}, {side}", f"{value:.6f}", f"{abs(value - exact):.1e}", said))
    return rows


GPU = LanczosBenchmark(repeats=3, examples=1000, batch_size=500, order=5, paper_network=True, precision="default")
cli = launcher.command(main, {"": LanczosBenchmark(), "gpu": GPU}, manual=__doc__)

if __name__ == "__main__":
    cli()
