"""Time Hessian products and Lanczos of a residual network against PyHessian, and check both against the exact Hessian.

    python -m benchmarks.lanczos                      1.5 minutes on 2 cores

The network, 2 blocks a stage with widths 16, 32, 64, its kernels, images and labels are the
same in both frameworks, and the products are checked to agree. Gradient and product are over all
examples, a batch at a time. Lanczos is --order steps with their reorthogonalisation: PyHessian's
is hessian.density, whose torch.eig, which PyTorch has dropped, is replaced by torch.linalg.eigh.
Then the largest eigenvalue of a small network by Lanczos of that order, and by PyHessian's power
iteration with its defaults, and its trace by as many products of Hutchinson's method on both sides, against
the exact ones in float64.
PyHessian runs in a process of its own; without it (`pip install pyhessian torch`) its columns are left out.

Measured on 2 cores of an Intel Xeon (AVX-512), TensorFlow 2.21, Keras 3.15, PyTorch 2.14, PyHessian 0.1, 170,928
weights, 128 examples, order 10, medians of 5, no other process busy:

    | measured            |  ours | PyHessian | PyHessian / ours |
    | ------------------- | ----: | --------: | ---------------: |
    | gradient, s         | 0.104 |     0.117 |            0.972 |
    | Hessian product, s  | 0.259 |     0.447 |             1.82 |
    | Lanczos, s          |  2.97 |      5.19 |             1.73 |
    | product / gradient  |  2.36 |      4.27 |              1.8 |

    | estimate                               |     value |   error | error bound or bar |
    | -------------------------------------- | --------: | ------: | -----------------: |
    | largest eigenvalue, exact, 342 weights | 1.7321910 |         |                    |
    | largest eigenvalue, ours               | 1.7321909 | 5.9e-08 |            9.0e-05 |
    | largest eigenvalue, PyHessian          | 1.7292286 | 3.0e-03 |               none |
    | trace, exact, 342 weights              | 5.3445286 |         |                    |
    | trace, ours                            | 5.2949542 | 5.0e-02 |            2.9e-01 |
    | trace, PyHessian                       | 4.9512565 | 3.9e-01 |               none |
"""

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import peers
from benchmarks.harness import OTHERS, Peer, environment, interleaved, ratios, seconds, spread, table
from benchmarks.peers import EIGENVALUE, GRADIENT, LANCZOS, PRODUCT, TRACE, TRACE_VECTORS
from benchmarks.train_step import kernels_of
from identity_matters.config import ModelConfig
from identity_matters.fields import check_fields
from launch import launcher

if TYPE_CHECKING:
    import keras

TIMED = ModelConfig(widths=(16, 32, 64), blocks_per_stage=(2, 2, 2), residual_initializer="standard")
EXACT = ModelConfig(
    image_shape=(8, 8, 3), stem_width=2, widths=(2, 4), blocks_per_stage=(1, 1), residual_initializer="standard"
)
MAX_DIFFERENCE = 1e-3  # of two products, over their norm
NAMES = (GRADIENT, PRODUCT, LANCZOS)


@dataclasses.dataclass(frozen=True)
class LanczosBenchmark:
    """What is timed, and how often.

    Attributes:
      repeats: Rounds in which each is timed once; medians and ranges are over the rounds.
      examples: Number of examples in the loss.
      batch_size: Examples at a time.
      order: Number of Lanczos steps.
      seed: Seed of the kernels, the images, the labels and the vectors.
    """

    repeats: int = 5
    examples: int = 128
    batch_size: int = 64
    order: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, at_least_1=("repeats", "examples", "batch_size", "order"), at_least_0=("seed",))


def main(benchmark: LanczosBenchmark) -> None:
    """Times both sides in turns, finds the largest eigenvalue of a small network, and prints the tables."""
    side = ours(TIMED, benchmark)
    timed = {("ours", name): functools.partial(seconds, side[name]) for name in NAMES}
    sides, found = ["ours"], None
    with contextlib.ExitStack() as stack:
        try:
            peer = stack.enter_context(pyhessian(TIMED, benchmark))
            check_same_products(side, peer)
            small = stack.enter_context(pyhessian(EXACT, benchmark))
            found = {name: small.call(name) for name in (EIGENVALUE, TRACE)}
            timed |= {("PyHessian", name): functools.partial(peer.call, name) for name in NAMES}
            sides.append("PyHessian")
        except ModuleNotFoundError as error:
            print(f"PyHessian is left out: {error}\n")
        turns = {(side, name): timed[side, name] for name in NAMES for side in sides}
        times = interleaved(turns, benchmark.repeats)
    print(environment())
    print(f"\n{side['dim']:,} weights, {benchmark.examples} examples, {benchmark.repeats} rounds\n")
    print(table(("measured", *_columns(sides)), _rows(times, sides)))
    print(f"\n{table(('estimate', 'value', 'error', 'error bound or bar'), _exact_rows(benchmark, found))}")


def _columns(sides: list[str]) -> list[str]:
    return [f"{side}{end}" for side in sides for end in ("", ", min – max")] + ["PyHessian / ours"] * (len(sides) > 1)


def _rows(times: dict, sides: list[str]) -> list[tuple[str, ...]]:
    """Returns the lines of the table: seconds of each side, and ratios taken within each round."""
    by_name = {name: {side: times[side, name] for side in sides} for name in NAMES}
    by_name["product / gradient"] = {side: ratios(times[side, PRODUCT], times[side, GRADIENT]) for side in sides}
    rows = []
    for name, values in by_name.items():
        cells = [cell for side in sides for cell in spread(values[side])]
        if len(sides) > 1:
            cells.append(spread(ratios(values["PyHessian"], values["ours"]))[0])
        rows.append((name, *cells))
    return rows + [(OTHERS, *spread(times[OTHERS]), *[""] * (len(_columns(sides)) - 2))]


def problem(config: ModelConfig, benchmark: LanczosBenchmark) -> tuple["keras.Model", np.ndarray, np.ndarray]:
    """Returns the network, and random images and labels."""
    from identity_matters.model import all_conv_resnet

    random = np.random.default_rng(benchmark.seed)
    images = random.standard_normal((benchmark.examples, *config.image_shape), np.float32)
    return all_conv_resnet(config, benchmark.seed), images, random.integers(0, config.num_classes, benchmark.examples)


def ours(config: ModelConfig, benchmark: LanczosBenchmark) -> dict[str, Any]:
    """Returns functions by what they compute, and the number of weights, their shapes and a vector."""
    import tensorflow as tf

    from shortcut_study.curvature.lanczos import lanczos
    from shortcut_study.curvature.products import model_mvp

    network, images, labels = problem(config, benchmark)
    mvp_fn, dim = model_mvp(network, images, labels, benchmark.batch_size)
    slices = [slice(at, at + benchmark.batch_size) for at in range(0, benchmark.examples, benchmark.batch_size)]
    batches = [(tf.constant(images[batch]), tf.constant(labels[batch])) for batch in slices]
    variables = [variable.value for variable in network.trainable_variables]

    @tf.function(reduce_retracing=True)
    def batch_gradient(images: Any, labels: Any) -> list:
        with tf.GradientTape() as tape:
            logits = network(images, training=False)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return tape.gradient(loss, variables)

    vector = np.random.default_rng(benchmark.seed).standard_normal(dim, np.float32)
    return {
        "dim": dim,
        "shapes": [variable.shape for variable in variables],
        "vector": vector,
        "apply": mvp_fn,
        GRADIENT: lambda: [[part.numpy() for part in batch_gradient(*batch)] for batch in batches],
        PRODUCT: lambda: mvp_fn(vector),
        LANCZOS: lambda: lanczos(mvp_fn, dim, benchmark.order, benchmark.seed, np.float32),
    }


def pyhessian(config: ModelConfig, benchmark: LanczosBenchmark) -> Peer:
    """Returns PyHessian on the same problem. Raises ModuleNotFoundError where it or PyTorch is not installed."""
    network, images, labels = problem(config, benchmark)
    numbers = (benchmark.batch_size, benchmark.order, benchmark.seed)
    return Peer(peers.pyhessian, config, kernels_of(network), images, labels, *numbers)


def check_same_products(ours: dict, theirs: Peer) -> None:
    """Raises ArithmeticError if the products with one vector differ by more than MAX_DIFFERENCE."""
    sizes = [int(np.prod(shape)) for shape in ours["shapes"]]
    parts = np.split(ours["vector"], np.cumsum(sizes)[:-1])
    kernels = [np.moveaxis(part.reshape(shape), (-1, -2), (0, 1)) for part, shape in zip(parts, ours["shapes"])]
    found = [np.moveaxis(part, (0, 1), (-1, -2)).ravel() for part in theirs.call("apply", kernels)]
    exact = ours["apply"](ours["vector"])
    difference = np.linalg.norm(np.concatenate(found) - exact) / np.linalg.norm(exact)
    print(f"difference of the Hessian products, ours and PyHessian's: {difference:.1e} of their norm\n")
    if not difference <= MAX_DIFFERENCE:
        raise ArithmeticError(f"PyHessian's product differs from ours by {difference:.1e}: not the same Hessian")


def _exact_rows(benchmark: LanczosBenchmark, peer: dict[str, float] | None) -> list[tuple[str, ...]]:
    """Returns the lines of the second table: the largest eigenvalue by |λ| and the trace of EXACT; the peer's given."""
    from shortcut_study.curvature.copies import with_dtype
    from shortcut_study.curvature.lanczos import lanczos, ritz
    from shortcut_study.curvature.products import model_mvp
    from shortcut_study.curvature.quadrature import hutchinson

    network, images, labels = problem(EXACT, benchmark)
    mvp_fn, dim = model_mvp(with_dtype(network, "float64"), images, labels, benchmark.batch_size)
    eigenvalues = np.linalg.eigvalsh(np.stack([mvp_fn(row) for row in np.eye(dim)]))
    exact, trace = eigenvalues[np.abs(eigenvalues).argmax()], eigenvalues.sum()
    apply = ours(EXACT, benchmark)["apply"]
    found = ritz(lanczos(apply, dim, min(benchmark.order, dim), benchmark.seed, np.float32))
    best = np.abs(found.values).argmax()
    by_hutchinson = hutchinson(apply, dim, TRACE_VECTORS, benchmark.seed, dtype=np.float32)
    rows = []
    for name, true, value, bound in (
        (EIGENVALUE, exact, found.values[best], found.error_bounds[best]),
        (TRACE, trace, by_hutchinson.trace, by_hutchinson.trace_error),
    ):
        rows.append((f"{name}, exact, {dim} weights", f"{true:.7f}", "", ""))
        rows.append((f"{name}, ours", f"{value:.7f}", f"{abs(value - true):.1e}", f"{bound:.1e}"))
        if peer:
            rows.append((f"{name}, PyHessian", f"{peer[name]:.7f}", f"{abs(peer[name] - true):.1e}", "none"))
    return rows


cli = launcher.command(main, {"": LanczosBenchmark()}, manual=__doc__, has_run_dir=False)

if __name__ == "__main__":
    cli()
