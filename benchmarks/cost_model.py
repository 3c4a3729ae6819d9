"""Predict the time of a training step on 1 … 512 devices, and the number beyond which more do not pay off.

    python -m benchmarks.cost_model                                       Table 1's network, batch 128
    python -m benchmarks.cost_model --preset=imagenet_wide --tflops=100 --gigabytes=25

    T(n) = operations of a device / rate  +  2 (n − 1)/n · bytes / bandwidth  +  rounds(n) · latency

The operations are those of the convolutions in the forward and backward pass
(identity_matters.model.training_flops). The bytes are four for each trained weight, summed by a ring: each
device sends and receives every chunk twice. rounds(n) is 2 (n − 1) for a ring and 2 log₂ n for NCCL's trees, which
have the same bandwidth term.
The all-reduce comes after the backward pass, as in this project's training, which does not overlap them.
Strong scaling divides one batch among the devices, at most as many as it has images; weak scaling gives each device a
whole batch.

The default rate is that of the paper's K40: about 50,000 steps in about 24 hours. Bandwidth and latency are of a
10 Gbit/s network; benchmarks.scaling measures an all-reduce over this machine's loopback.
"""

import dataclasses
import math
from typing import Literal

from benchmarks.harness import table
from identity_matters.fields import check_fields, option
from identity_matters.presets import TRAIN_PRESETS
from launch import launcher, terminal

COUNTS = (1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 512)  # 48: the paper's 6 machines of 8
PAYS = 0.5  # efficiency below which another device is not worth it


@dataclasses.dataclass(frozen=True)
class CostModel:
    """A network and the machines that would train it.

    Attributes:
      network: Key of identity_matters' presets. Set by the preset.
      batch_size: Images in a step on one device (0: the preset's).
      tflops: Rate at which a device computes convolutions, in 10¹² operations per second.
      gigabytes: Rate at which a device sends, and at the same time receives, in 10⁹ bytes per second.
      microseconds: Latency of a message, in microseconds.
      algorithm: Algorithm of the all-reduce.
    """

    network: str = dataclasses.field(default="cifar10", metadata={"flag": False})
    batch_size: int = option(0, at_least=0)
    tflops: float = option(0.877, above=0)
    gigabytes: float = option(1.25, above=0)
    microseconds: float = option(50.0, at_least=0)
    algorithm: Literal["ring", "tree"] = "ring"

    def __post_init__(self) -> None:
        check_fields(self)

    def all_reduce_seconds(self, num_bytes: float, count: int) -> float:
        """Returns the seconds of one all-reduce over `count` devices."""
        rounds = 2 * (count - 1) if self.algorithm == "ring" else 2 * math.log2(count)
        return 2 * (count - 1) / count * num_bytes / (1e9 * self.gigabytes) + rounds * 1e-6 * self.microseconds

    def step_seconds(self, flops: float, num_bytes: float, count: int) -> float:
        """Returns the seconds of a step: one device's operations and of the all-reduce over `count` devices."""
        return flops / (1e12 * self.tflops) + self.all_reduce_seconds(num_bytes, count)


PRESETS = {name: CostModel(network=name) for name in ("cifar10", "mnist", "imagenet", "imagenet_wide")}


def main(model: CostModel) -> None:
    """Prints the table of a network on 1 … 512 devices."""
    with terminal.silenced_stderr():
        from identity_matters import networks
        from identity_matters.model import training_flops

    run = TRAIN_PRESETS[model.network]
    network = networks.build(run.model, 0)
    batch_size = model.batch_size or run.batch_size
    flops = batch_size * training_flops(network)
    num_bytes = 4.0 * sum(math.prod(v.shape) for v in network.trainable_variables)
    print(
        f"{model.network}, batch {batch_size}: {flops / 1e12:.3g} TFLOP and {num_bytes / 1e6:.1f} MB of gradients "
        f"a step; a device: {model.tflops:g} TFLOP/s, {model.gigabytes:g} GB/s, {model.microseconds:g} µs, "
        f"{model.algorithm}\n"
    )
    one = model.step_seconds(flops, num_bytes, 1)
    lines, last = [], {}
    for count in COUNTS:
        largest_share = math.ceil(batch_size / count) / batch_size  # of the batch, on the slowest device
        strong, weak = (model.step_seconds(work, num_bytes, count) for work in (flops * largest_share, flops))
        efficiencies = {"weak": one / weak}
        cells = ("–", "–", "–")
        if count <= batch_size:  # a device needs an image at least
            efficiencies["strong"] = one / strong / count
            cells = (f"{1e3 * strong:.1f}", f"{one / strong:.1f}", f"{efficiencies['strong']:.0%}")
        last |= {kind: count for kind, efficiency in efficiencies.items() if efficiency >= PAYS}
        reduce = f"{1e3 * model.all_reduce_seconds(num_bytes, count):.1f}"
        lines.append((str(count), reduce, *cells, f"{1e3 * weak:.1f}", f"{efficiencies['weak']:.0%}"))
    header = ("devices", "all-reduce, ms", "strong: step, ms", "speed-up", "efficiency", "weak: step, ms", "efficiency")
    print(table(header, lines))
    print(f"\nat least {PAYS:.0%} efficient up to {last['strong']} devices (strong), {last['weak']} (weak)")


cli = launcher.command(main, PRESETS, manual=__doc__)

if __name__ == "__main__":
    cli()
