"""Time one training step against PyTorch and against the machine's own matrix product.

    python -m benchmarks.train_step                   Table 1's network: 4 minutes on 2 cores
    python -m benchmarks.train_step --preset=small    widths 16, 32, 64, 2 blocks a stage: 1 minute
    python -m benchmarks.train_step --preset=mnist    the mnist preset: 1 minute

Our step is the one that training.train runs, on synthetic uint8 images: look-up,
augmentation, standardisation, forward, backward, momentum update, weight decay, metrics.
PyTorch's is eager and channels_last, with the same kernels, shortcuts, weight decay, momentum
and clipping, and is checked to give the same logits; its one batch is prepared in advance, and it
runs in a process of its own.
Without PyTorch (`pip install torch`) its lines are left out. The same step is also timed with convolutions in bfloat16
(--mixed_precision) and with Muon, of 5 Newton–Schulz steps and with the same weight decay.

"Our convolutions" divides the operations of the convolutions of a step, products with padding zeros included
(model.training_flops), by the time of the whole step, so "ours / matrix product" counts everything else as loss. The
measurements take turns, and a ratio is of the same minute. Distrust a table whose last line is
not near 0: PyTorch's threads wait for each other, so a second busy process costs it more than us.

Measured with TensorFlow 2.21 and Keras 3.15, on 2 cores of an AMD EPYC (Zen 3, AVX2), PyTorch 2.13, medians of 5:

    | preset, batch                | cifar10, 128 | small, 128 | mnist, 32 |
    | ---------------------------- | -----------: | ---------: | --------: |
    | our step, images/s           |         14.5 |        960 |     1,049 |
    | PyTorch's step, images/s     |         12.8 |        565 |       656 |
    | ours / PyTorch               |         1.13 |       1.69 |       1.6 |
    | matrix product, GFLOP/s      |          190 |        193 |       195 |
    | ours / matrix product        |        0.916 |      0.786 |     0.646 |

On 2 cores of an Intel Xeon (AVX-512; avx512_bf16 without amx_bf16), PyTorch 2.14, cifar10, 128, medians of 5:

    | measured                                         | median |     min – max |
    | ------------------------------------------------ | -----: | ------------: |
    | float32 matrix product 4096³, GFLOP/s            |    291 |     270 – 319 |
    | our training step, images/s                      |   21.7 |   19.4 – 23.6 |
    | our step with convolutions in bfloat16, images/s |   12.9 |   11.7 – 13.3 |
    | our step with Muon, images/s                     |   23.8 |   21.9 – 24.9 |
    | PyTorch's training step, images/s                |   21.8 |   21.6 – 22.8 |
    | ours / PyTorch                                   |      1 |   0.889 – 1.1 |
    | bfloat16 / float32                               |  0.559 | 0.538 – 0.666 |
    | Muon / momentum                                  |   1.07 |   1.05 – 1.13 |
    | our convolutions over the whole step, GFLOP/s    |    257 |     230 – 280 |
    | ours / matrix product                            |  0.879 |  0.85 – 0.945 |

On 2 cores of an AMD EPYC (Zen 5; avx512_bf16), without PyTorch, cifar10, 128, medians of 5:

    | measured                                         | median |    min – max |
    | ------------------------------------------------ | -----: | -----------: |
    | float32 matrix product 4096³, GFLOP/s            |    436 |    411 – 444 |
    | our training step, images/s                      |   34.9 |  31.3 – 35.6 |
    | our step with convolutions in bfloat16, images/s |   54.8 |  52.5 – 57.7 |
    | our step with Muon, images/s                     |   32.7 |  32.1 – 32.9 |
    | bfloat16 / float32                               |   1.63 |  1.54 – 1.69 |
    | Muon / momentum                                  |  0.942 | 0.911 – 1.05 |
    | our convolutions over the whole step, GFLOP/s    |    413 |    371 – 422 |
    | ours / matrix product                            |  0.944 | 0.861 – 1.03 |

With TF_ENABLE_ONEDNN_OPTS=0, TensorFlow's own default on this CPU, cifar10 falls to 7.7 images/s.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import peers
from benchmarks.harness import OTHERS, Peer, environment, interleaved, rate, ratios, spread, synthetic_data, table
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.fields import check_fields
from identity_matters.presets import TRAIN_PRESETS
from launch import launcher

if TYPE_CHECKING:
    import keras

    from identity_matters.distributed.workers import Workers

NUM_IMAGES = 10_000  # in the synthetic data set; a step's time does not depend on it
GEMM_SIZE, GEMM_PRODUCTS = 4096, 4  # per round
MAX_RELATIVE_DIFFERENCE = 1e-3  # of the logits of the two frameworks

OURS, PYTORCH = "our training step, images/s", "PyTorch's training step, images/s"
BFLOAT16, MUON = "our step with convolutions in bfloat16, images/s", "our step with Muon, images/s"
GEMM = f"float32 matrix product {GEMM_SIZE}³, GFLOP/s"

_SMALL = ModelConfig(widths=(16, 32, 64), blocks_per_stage=(2, 2, 2))
RUNS = {"cifar10": TrainConfig(), "small": TrainConfig(model=_SMALL), "mnist": TRAIN_PRESETS["mnist"]}


@dataclasses.dataclass(frozen=True)
class StepBenchmark:
    """What is timed, and how often.

    Attributes:
      run: Key of RUNS. Set by the preset.
      repeats: Rounds in which each is timed once; medians and ranges are over the rounds.
      steps: Updates per round.
      batch_size: Images per update (0: what the preset trains with).
    """

    run: str = dataclasses.field(default="cifar10", metadata={"flag": False})
    repeats: int = 5
    steps: int = 1
    batch_size: int = 0

    def __post_init__(self) -> None:
        check_fields(self, at_least_1=("repeats", "steps"), at_least_0=("batch_size",))


_STEPS = {"cifar10": 1, "small": 10, "mnist": 50}
PRESETS = {name: StepBenchmark(name, steps=steps) for name, steps in _STEPS.items()}


def main(benchmark: StepBenchmark) -> None:
    """Times the step, PyTorch's and the matrix product in turns, and prints the table."""
    run = RUNS[benchmark.run]
    run = dataclasses.replace(run, batch_size=benchmark.batch_size or run.batch_size)
    network, our_update = our_training(run)
    mixed = dataclasses.replace(run, model=dataclasses.replace(run.model, mixed_precision=True))
    muon = dataclasses.replace(run, optimizer="muon")
    timed = {
        GEMM: functools.partial(rate, matrix_product(), GEMM_PRODUCTS, 2 * GEMM_SIZE**3 / 1e9),
        OURS: functools.partial(rate, our_update, benchmark.steps, run.batch_size),
        BFLOAT16: functools.partial(rate, our_training(mixed)[1], benchmark.steps, run.batch_size),
        MUON: functools.partial(rate, our_training(muon)[1], benchmark.steps, run.batch_size),
    }
    with contextlib.ExitStack() as stack:
        try:
            peer = stack.enter_context(Peer(peers.training, run, kernels_of(network)))
            check_same_function(run, peer)
            timed[PYTORCH] = functools.partial(peer.call, "rate", benchmark.steps)
        except ModuleNotFoundError as error:
            print(f"PyTorch is left out: {error}\n")
        rates = interleaved(timed, benchmark.repeats)
    from identity_matters.model import training_flops

    print(environment())
    print(f"\n{network.count_params():,} weights, batch {run.batch_size}, {benchmark.repeats} rounds\n")
    print(table(("measured", "median", "min – max"), _rows(rates, training_flops(network))))


def _rows(rates: dict[str, list[float]], flops_per_image: float) -> list[tuple[str, ...]]:
    """Returns the lines of the table; a ratio is taken within each round, then summarised."""
    convolutions = [images * flops_per_image / 1e9 for images in rates[OURS]]
    values = {name: rates[name] for name in rates if name != OTHERS}
    if PYTORCH in rates:
        values["ours / PyTorch"] = ratios(rates[OURS], rates[PYTORCH])
    values["bfloat16 / float32"] = ratios(rates[BFLOAT16], rates[OURS])
    values["Muon / momentum"] = ratios(rates[MUON], rates[OURS])
    values["our convolutions over the whole step, GFLOP/s"] = convolutions
    values["ours / matrix product"] = ratios(convolutions, rates[GEMM])
    values[OTHERS] = rates[OTHERS]
    return [(name, *spread(v)) for name, v in values.items()]


def matrix_product() -> Callable[[], float]:
    """Returns a function that computes one float32 product of square matrices in TensorFlow."""
    import tensorflow as tf

    a, b = (tf.random.stateless_normal((GEMM_SIZE, GEMM_SIZE), (0, i)) for i in range(2))
    return lambda: float(tf.matmul(a, b)[0, 0])  # read, so that it has been computed


def our_training(run: TrainConfig, workers: "Workers | None" = None) -> tuple["keras.Model", Callable[[], float]]:
    """Returns the network, and a function that makes one update as training.train does; the first has been made."""
    from identity_matters import training
    from identity_matters.data.batches import ArrayBatches
    from identity_matters.distributed.workers import Workers

    workers = workers or Workers()
    training.make_deterministic(run.seed)
    batches = ArrayBatches(synthetic_data(run, NUM_IMAGES), run, workers.rows(run.batch_size))
    network, model = training.build(run, batches, workers)
    model.make_train_function()
    iterator = iter(workers.distribute(batches.train_batches(0)))

    def update() -> float:
        return float(model.train_function(iterator)["loss"])  # read, as training reads every loss

    update()
    return network, update


def kernels_of(network: "keras.Model") -> dict[str, np.ndarray]:
    """Returns the kernels of a network by layer name, [k, k, in, out]; that of the projection is [in, out]."""
    return {layer.name: layer.kernel.numpy() for layer in network.layers if layer.weights}


def check_same_function(run: TrainConfig, peer: Peer) -> None:
    """Raises ArithmeticError if PyTorch's logits of one batch are not ours, up to MAX_RELATIVE_DIFFERENCE.

    The kernels are drawn by the standard initialiser: under the paper's small one the
    residual branches add a thousandth, and an error in them would pass unseen.
    """
    from identity_matters.model import all_conv_resnet

    config = dataclasses.replace(run.model, residual_initializer="standard")
    network = all_conv_resnet(config, run.seed)
    images = np.random.default_rng(run.seed).standard_normal((run.batch_size, *config.image_shape), np.float32)
    ours = network.predict_on_batch(images)
    difference = np.abs(ours - peer.call("logits", kernels_of(network), images)).max() / np.abs(ours).max()
    print(f"largest difference of the logits, ours and PyTorch's: {difference:.1e} of the largest logit\n")
    if not difference <= MAX_RELATIVE_DIFFERENCE:
        raise ArithmeticError(f"PyTorch's logits differ from ours by {difference:.1e}: not the same function")


cli = launcher.command(main, PRESETS, manual=__doc__, has_run_dir=False)

if __name__ == "__main__":
    cli()
