"""Time one training step against PyTorch and against the machine's own matrix product.

    python -m benchmarks.train_step                   Table 1's network: 3 minutes on 2 cores
    python -m benchmarks.train_step --preset=small    widths 16, 32, 64, 2 blocks a stage: 1 minute
    python -m benchmarks.train_step --preset=mnist    the mnist preset: 1 minute

Our step is the one that training.train runs, on synthetic uint8 images: look-up,
augmentation, standardisation, forward, backward, momentum update, weight decay, metrics.
PyTorch's is eager and channels_last, with the same kernels, shortcuts, weight decay, momentum
and clipping, and is checked to give the same logits; its one batch is prepared in advance.
Without PyTorch (`pip install torch`) its lines are left out.

"Our convolutions" divides the operations that the convolutions of a step need (step_flops) by
the time of the whole step, so "ours / matrix product" counts everything else as loss. The
measurements take turns, and a ratio is of the same minute. Distrust a table whose last line is
not near 0: PyTorch's threads wait for each other, so a second busy process costs it more than us.

Measured on 2 cores of an AMD EPYC (Zen 3, AVX2), TensorFlow 2.21, Keras 3.15, PyTorch 2.13, medians of 5:

    | preset, batch                | cifar10, 128 | small, 128 | mnist, 32 |
    | ---------------------------- | -----------: | ---------: | --------: |
    | our step, images/s           |         14.5 |        960 |     1,049 |
    | PyTorch's step, images/s     |         12.8 |        565 |       656 |
    | ours / PyTorch               |         1.13 |       1.69 |       1.6 |
    | matrix product, GFLOP/s      |          190 |        193 |       195 |
    | ours / matrix product        |        0.916 |      0.786 |     0.646 |

With TF_ENABLE_ONEDNN_OPTS=0, TensorFlow's own default on this CPU, cifar10 falls to 7.7 images/s.
"""

import dataclasses
import functools
import itertools
import time

import numpy as np

from benchmarks.input_stream import OTHERS, environment, interleaved, spread, table
from identity_matters.config import TRAIN_PRESETS, ModelConfig, TrainConfig, check_fields
from launch import launcher

NUM_IMAGES = 10_000  # in the synthetic data set; a step's time does not depend on it
GEMM_SIZE, GEMM_PRODUCTS = 4096, 4  # per round
MAX_RELATIVE_DIFFERENCE = 1e-3  # of the logits of the two frameworks

OURS, PYTORCH = "our training step, images/s", "PyTorch's training step, images/s"
GEMM = f"float32 matrix product {GEMM_SIZE}³, GFLOP/s"

_SMALL = ModelConfig(widths=(16, 32, 64), blocks_per_stage=(2, 2, 2))
RUNS = {"cifar10": TrainConfig(), "small": TrainConfig(model=_SMALL), "mnist": TRAIN_PRESETS["mnist"]}


@dataclasses.dataclass(frozen=True)
class StepBenchmark:
    """What is timed, and how often.

    Attributes:
      run: Key of RUNS. Set by the preset.
      repeats: Rounds of (matrix product, our steps, PyTorch's); medians and ranges are over the rounds.
      steps: Updates per round.
      batch_size: Images per update (0: what the preset trains with).
    """

    run: str = dataclasses.field(default="cifar10", metadata={"flag": False})
    repeats: int = 5
    steps: int = 1
    batch_size: int = 0

    def __post_init__(self):
        check_fields(self, at_least_1=("repeats", "steps"), at_least_0=("batch_size",))


_STEPS = {"cifar10": 1, "small": 10, "mnist": 50}
PRESETS = {name: StepBenchmark(name, steps=steps) for name, steps in _STEPS.items()}


def main(benchmark: StepBenchmark) -> None:
    run = RUNS[benchmark.run]
    run = dataclasses.replace(run, batch_size=benchmark.batch_size or run.batch_size)
    network, our_update = our_training(run)
    timed = {
        GEMM: (matrix_product(), GEMM_PRODUCTS, 2 * GEMM_SIZE**3 / 1e9),
        OURS: (our_update, benchmark.steps, run.batch_size),
    }
    try:
        timed[PYTORCH] = (torch_training(run, network), benchmark.steps, run.batch_size)
    except ModuleNotFoundError as error:
        print(f"PyTorch is left out: {error}\n")
    rates = interleaved({name: functools.partial(rate, *what) for name, what in timed.items()}, benchmark.repeats)
    print(environment())
    print(f"\n{network.count_params():,} weights, batch {run.batch_size}, {benchmark.repeats} rounds\n")
    print(table(("measured", "median", "min – max"), _rows(rates, step_flops(network))))


def rate(call, times: int, amount: float) -> float:
    """Amount per second, where every call does so much."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return times * amount / (time.perf_counter() - start)


def _rows(rates: dict[str, list[float]], flops_per_image: float) -> list[tuple[str, ...]]:
    """The lines of the table; a ratio is taken within each round, then summarised."""
    convolutions = [images * flops_per_image / 1e9 for images in rates[OURS]]
    values = {name: rates[name] for name in rates if name != OTHERS}
    if PYTORCH in rates:
        values["ours / PyTorch"] = [a / b for a, b in zip(rates[OURS], rates[PYTORCH])]
    values["our convolutions over the whole step, GFLOP/s"] = convolutions
    values["ours / matrix product"] = [a / b for a, b in zip(convolutions, rates[GEMM])]
    values[OTHERS] = rates[OTHERS]
    return [(name, *spread(v)) for name, v in values.items()]


def matrix_product():
    """A function that computes one float32 product of square matrices in TensorFlow."""
    import tensorflow as tf

    a, b = (tf.random.stateless_normal((GEMM_SIZE, GEMM_SIZE), (0, i)) for i in range(2))
    return lambda: float(tf.matmul(a, b)[0, 0])  # read, so that it has been computed


def our_training(run: TrainConfig):
    """The network, and a function that makes one update as training.train does."""
    from identity_matters import training
    from identity_matters.data.arrays import ArrayData
    from identity_matters.data.batches import ArrayBatches
    from identity_matters.model import all_conv_resnet

    training.make_deterministic(run.seed)
    random = np.random.default_rng(run.seed)
    images = random.integers(0, 256, (NUM_IMAGES, *run.model.image_shape), np.uint8)
    labels = random.integers(0, run.model.num_classes, NUM_IMAGES, np.int32)
    data = ArrayData("synthetic", images, labels, images[:1], labels[:1], run.model.num_classes)
    network = all_conv_resnet(run.model, run.seed)
    batches = ArrayBatches(data, run)
    model = batches.attach(network)
    training.compile_model(model, run)
    stream = batches.train_batches(0)
    model.fit(training.feed(itertools.islice(stream, 1)), steps_per_epoch=1, shuffle=False, verbose=0)
    iterator = iter(training.feed(stream))

    # Read, as training reads every loss to stop a run where it is not finite.
    return network, lambda: float(model.train_function(iterator)["loss"])


def step_flops(network) -> float:
    """Floating-point operations per image that the convolutions of one update need.

    A k×k convolution from a to b channels on h×w output pixels is 2·k²·a·b·h·w operations,
    those with padding zeros included as is usual. The gradients for its kernel and for its
    input are one such product each; the first convolution needs no gradient for the images.
    """
    convolutions = [layer for layer in network.layers if layer.weights and layer.kernel.ndim == 4]
    forward = [2.0 * np.prod((*layer.kernel.shape, *layer.output.shape[1:3])) for layer in convolutions]
    return 3 * sum(forward) - forward[0]


def torch_training(run: TrainConfig, network):
    """A function that makes one update of the same network in PyTorch.

    Its kernels start as copies of the network's. Look-up, augmentation, standardisation and
    metrics are spared. Raises ModuleNotFoundError without PyTorch, and see check_same_function.
    """
    import torch
    from torch.nn import functional as F

    check_same_function(run)
    kernels = _torch_kernels(network)
    trained = [kernel.requires_grad_() for name, kernel in kernels.items() if name != "projection"]
    decay = run.model.weight_decay
    optimizer = torch.optim.SGD(trained, run.learning_rate, run.momentum, weight_decay=decay, fused=True)
    random = torch.Generator().manual_seed(run.seed)
    images = torch.randn(run.batch_size, *run.model.image_shape, generator=random).permute(0, 3, 1, 2)
    labels = torch.randint(run.model.num_classes, (run.batch_size,), generator=random)

    def update() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(torch_logits(kernels, images, run.model), labels)
        loss.backward()
        if run.clip_norm:
            torch.nn.utils.clip_grad_norm_(trained, run.clip_norm)
        optimizer.step()
        loss.item()

    return update


def torch_logits(kernels: dict, x, config: ModelConfig):
    """all_conv_resnet of these kernels in PyTorch; x [n, channels, height, width]."""
    from torch.nn import functional as F

    x = F.conv2d(x, kernels["stem_conv"], padding="same")
    for stage, (width, blocks) in enumerate(zip(config.widths, config.blocks_per_stage), start=1):
        for block in range(1, blocks + 1):
            name = f"stage{stage}_block{block}"
            if stage > 1 and block == 1:
                # TensorFlow's "same" at stride 2 pads after the last pixel only.
                y = F.conv2d(F.pad(x, (0, 1, 0, 1)), kernels[f"{name}_conv1"], stride=2)
                x = F.avg_pool2d(x, 2)
            else:
                y = F.conv2d(x, kernels[f"{name}_conv1"], padding=1)
            y = F.conv2d(F.relu(y, inplace=True), kernels[f"{name}_conv2"], padding=1)
            new_channels = width - x.shape[1]
            if new_channels:
                x = F.pad(x, (0, 0, 0, 0, new_channels // 2, new_channels - new_channels // 2))
            x = x + y
    return F.linear(x.mean((2, 3)), kernels["projection"])


def _torch_kernels(network) -> dict:
    """Copies of a network's kernels by layer name: [b, a, k, k] in channels_last, the projection [b, a]."""
    import torch

    kernels = {}
    for layer in network.layers:
        if layer.weights:
            kernel = torch.tensor(np.moveaxis(layer.kernel.numpy(), (-1, -2), (0, 1)))
            kernels[layer.name] = kernel.to(memory_format=torch.channels_last) if kernel.ndim == 4 else kernel
    return kernels


def check_same_function(run: TrainConfig) -> None:
    """Raises ArithmeticError if PyTorch's logits of one batch are not ours, up to MAX_RELATIVE_DIFFERENCE.

    The kernels are drawn by the standard initialiser: under the paper's small one the
    residual branches add a thousandth, and an error in them would pass unseen.
    """
    import torch

    from identity_matters.model import all_conv_resnet

    config = dataclasses.replace(run.model, residual_initializer="standard")
    network = all_conv_resnet(config, run.seed)
    images = np.random.default_rng(run.seed).standard_normal((run.batch_size, *config.image_shape), np.float32)
    ours = network.predict_on_batch(images)
    with torch.no_grad():
        x = torch.from_numpy(images).permute(0, 3, 1, 2)
        theirs = torch_logits(_torch_kernels(network), x, config).numpy()
    difference = np.abs(ours - theirs).max() / np.abs(ours).max()
    print(f"largest difference of the logits, ours and PyTorch's: {difference:.1e} of the largest logit\n")
    if not difference <= MAX_RELATIVE_DIFFERENCE:
        raise ArithmeticError(f"PyTorch's logits differ from ours by {difference:.1e}: not the same function")


def cli() -> None:
    launcher.run(main, PRESETS, manual=__doc__, has_run_dir=False)


if __name__ == "__main__":
    cli()
