"""Time one training step against PyTorch and against the matrix product of this machine.

    python -m benchmarks.train_step                   Table 1's network: 4 minutes on 2 cores
    python -m benchmarks.train_step --preset=small    widths 16, 32, 64, 2 blocks a stage: 1 minute
    python -m benchmarks.train_step --preset=mnist    the mnist preset: 1 minute
    KERAS_BACKEND=jax python -m benchmarks.train_step --preset=gpu    Table 1's network on one GPU, under JAX

Our steps are those of training.train, on synthetic uint8 images: look-up,
augmentation, standardisation, forward, backward, momentum update, weight decay, metrics. Under other
backends than TensorFlow the start of fit is counted too, once per round.
PyTorch's are channels_last, with the same kernels, shortcuts, weight decay, momentum
and clipping, and are checked to give the same logits; their one batch is prepared in advance, and they
run in a separate process, on a GPU if there is one: eagerly, and in bfloat16 (autocast) eagerly and compiled.
Without PyTorch (`pip install torch`) its rows are omitted. Our step is also timed with convolutions in bfloat16
(--mixed_precision) and with Muon, of 5 Newton–Schulz steps and with the same weight decay.

"Our convolutions" divides the operations of the convolutions of a step, products with padding zeros included
(model.training_flops), by the time of the whole step, so "ours / matrix product" counts everything else as loss. The
measurements take turns, and ratios are taken within a round. Do not trust a table whose last line is
not near 0: PyTorch's threads wait for each other, so another busy process slows PyTorch more than TensorFlow. On a GPU
float32 is each framework's default, which may be TF32.

docs/appendix/speed.md has the results; --preset=gpu was run only on a CPU, at small size.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import peers
from benchmarks.harness import Benchmark, check_same, functions_of_peer, interleaved, rate, report, synthetic_data
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.fields import option, require
from identity_matters.presets import TRAIN_PRESETS
from launch import launcher

if TYPE_CHECKING:
    import keras

    from identity_matters.cluster import Cluster
    from identity_matters.data.batches import ArrayBatches

NUM_IMAGES = 10_000  # in the synthetic data set; a step's time does not depend on it
MAX_RELATIVE_DIFFERENCE = 1e-3  # of the logits of the two frameworks

OURS = "our training step, images/s"
BFLOAT16, MUON = "our step with convolutions in bfloat16, images/s", "our step with Muon, images/s"
GEMM, GEMM_BFLOAT16 = (f"{dtype} matrix product, GFLOP/s" for dtype in ("float32", "bfloat16"))

CONVOLUTIONS = "our convolutions over the whole step, GFLOP/s"
CONVOLUTIONS_BFLOAT16 = "the same in bfloat16, GFLOP/s"

PAIRS = {  # what is divided by what
    "ours / PyTorch": (OURS, peers.EAGER),
    "ours / PyTorch, both in bfloat16": (BFLOAT16, peers.BFLOAT16),
    "ours / PyTorch compiled, both in bfloat16": (BFLOAT16, peers.COMPILED),
    "bfloat16 / float32": (BFLOAT16, OURS),
    "Muon / momentum": (MUON, OURS),
    "ours / matrix product": (CONVOLUTIONS, GEMM),
    "ours / matrix product, both in bfloat16": (CONVOLUTIONS_BFLOAT16, GEMM_BFLOAT16),
}

_SMALL = ModelConfig(widths=(16, 32, 64), blocks_per_stage=(2, 2, 2))
RUNS = {"cifar10": TrainConfig(), "small": TrainConfig(model=_SMALL), "mnist": TRAIN_PRESETS["mnist"]}


@dataclasses.dataclass(frozen=True)
class StepBenchmark(Benchmark):
    """The cases to time, and how often.

    Attributes:
      run: Key of RUNS. Set by the preset.
      steps: Updates per round.
      batch_size: Images per update (0: the batch size of the preset).
      steps_per_execution: Updates per call of the compiled program, in our step; must divide steps.
      product_size: Number of rows of the square matrices that are multiplied.
      products: Matrix products per round.
    """

    run: str = dataclasses.field(default="cifar10", metadata={"flag": False})
    steps: int = option(1, at_least=1)
    batch_size: int = option(0, at_least=0)
    steps_per_execution: int = option(1, at_least=1)
    product_size: int = option(4096, at_least=1)
    products: int = option(4, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.steps % self.steps_per_execution == 0,
            f"steps must be a multiple of steps_per_execution = {self.steps_per_execution}, got {self.steps}",
        )


_STEPS = {"cifar10": 1, "small": 10, "mnist": 50}
PRESETS = {name: StepBenchmark(run=name, steps=steps) for name, steps in _STEPS.items()}
PRESETS["gpu"] = StepBenchmark(steps=1_000, steps_per_execution=100, product_size=8192, products=100)


def main(benchmark: StepBenchmark) -> None:
    """Times our steps, PyTorch's and the matrix products in turns, and prints the table."""
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # else TensorFlow leaves PyTorch no memory
    import keras

    from identity_matters.convolutions import training_flops

    run = RUNS[benchmark.run]
    batch_size, per_call = benchmark.batch_size or run.batch_size, benchmark.steps_per_execution
    run = dataclasses.replace(run, batch_size=batch_size, steps_per_execution=per_call)
    network, timed = _our_measurements(benchmark, run)
    with contextlib.ExitStack() as stack:
        theirs = functions_of_peer(stack, "PyTorch", peers.training, run, kernels_of(network))
        if theirs:
            check_same_function(run, theirs.pop("logits"))
        timed |= {name: functools.partial(steps, benchmark.steps) for name, steps in theirs.items()}
        rates = interleaved(timed, benchmark.repeats)
    billions = training_flops(network) / 1e9  # for one image
    for name, images_per_second in ((CONVOLUTIONS, OURS), (CONVOLUTIONS_BFLOAT16, BFLOAT16)):
        rates[name] = [images * billions for images in rates[images_per_second]]
    size = f"{network.count_params():,} weights, batch {batch_size}, products of {benchmark.product_size}³"
    report(f"Keras on {keras.backend.backend()}, {size}", {"measured": rates}, PAIRS, benchmark.repeats)


def _our_measurements(
    benchmark: StepBenchmark, run: TrainConfig
) -> tuple["keras.Model", dict[str, Callable[[], float]]]:
    """Returns the network, and functions that time the matrix products and our steps once, by name."""
    timed: dict[str, Callable[[], float]] = {}
    size, products = benchmark.product_size, benchmark.products
    for name, dtype in ((GEMM, "float32"), (GEMM_BFLOAT16, "bfloat16")):
        multiply = functools.partial(matrix_products(size, dtype), products)
        timed[name] = functools.partial(rate, multiply, 1, products * 2 * size**3 / 1e9)
    mixed = dataclasses.replace(run, model=dataclasses.replace(run.model, mixed_precision=True))
    muon = dataclasses.replace(run, optimizer="muon")
    networks = {}
    for name, config in ((OURS, run), (BFLOAT16, mixed), (MUON, muon)):
        networks[name], train = our_training(config)
        images = benchmark.steps * run.batch_size
        timed[name] = functools.partial(rate, functools.partial(train, benchmark.steps), 1, images)
    return networks[OURS], timed


def matrix_products(size: int, dtype: str) -> Callable[[int], float]:
    """Returns a function that multiplies a square matrix by another some times over, and reads a number of the result.

    Each product needs the one before, so that the number says that all have been computed.
    """
    import keras

    rng = np.random.default_rng(0)
    a, b = (keras.ops.cast(rng.standard_normal((size, size), np.float32) / size**0.5, dtype) for _ in range(2))

    def multiply(times: int) -> float:
        product = a
        for _ in range(times):
            product = keras.ops.matmul(product, b)
        return float(product[0, 0])

    return multiply


def our_training(run: TrainConfig, cluster: "Cluster | None" = None) -> tuple["keras.Model", Callable[[int], None]]:
    """Returns the network, and a function that makes some updates as training.train does; the first have been made.

    They have been made when it returns: it reads their loss.
    """
    import keras

    from identity_matters import training
    from identity_matters.cluster import Cluster
    from identity_matters.data.batches import ArrayBatches

    cluster = cluster or Cluster()
    training.make_deterministic(run.seed)
    batches = ArrayBatches(synthetic_data(run, NUM_IMAGES), run, cluster.rows(run.batch_size))
    network, model = training.build(run, batches, cluster)
    train = (_train_function if keras.backend.backend() == "tensorflow" else _fit)(model, cluster, batches)
    train(run.steps_per_execution)
    return network, train


def _train_function(model: "keras.Model", cluster: "Cluster", batches: "ArrayBatches") -> Callable[[int], None]:
    """Returns a function that makes updates as fit does, without its start, which takes as long as some small steps."""
    model.make_train_function()
    iterator = iter(cluster.distribute(lambda: batches.train_batches(0)))

    def train(steps: int) -> None:
        for _ in range(steps // model.steps_per_execution):
            float(model.train_function(iterator)["loss"])  # read, as training reads every loss

    return train


def _fit(model: "keras.Model", cluster: "Cluster", batches: "ArrayBatches") -> Callable[[int], None]:
    """Returns a function that makes updates by fit, which reads the last loss."""

    def train(steps: int) -> None:
        stream = cluster.distribute(lambda: batches.train_batches(0))
        model.fit(stream, steps_per_epoch=steps, shuffle=False, verbose=0)

    return train


def kernels_of(network: "keras.Model") -> dict[str, np.ndarray]:
    """Returns the kernels of a network by layer name, [k, k, in, out]; that of the projection is [in, out]."""
    return {layer.name: np.asarray(layer.kernel) for layer in network.layers if layer.weights}


def check_same_function(run: TrainConfig, their_logits: Callable) -> None:
    """Raises ArithmeticError if PyTorch's logits of one batch are not ours, up to MAX_RELATIVE_DIFFERENCE.

    The kernels are drawn by the standard initialiser: under the paper's small one the
    residual branches add a thousandth, and an error in them would pass unseen.
    """
    from identity_matters.model import all_conv_resnet

    config = dataclasses.replace(run.model, residual_initializer="standard")
    network = all_conv_resnet(config, run.seed)
    images = np.random.default_rng(run.seed).standard_normal((run.batch_size, *config.image_shape), np.float32)
    theirs = their_logits(kernels_of(network), images)
    check_same("PyTorch's logits", network.predict_on_batch(images), theirs, MAX_RELATIVE_DIFFERENCE)


cli = launcher.command(main, PRESETS, manual=__doc__)

if __name__ == "__main__":
    cli()
