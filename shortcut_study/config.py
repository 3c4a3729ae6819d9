"""The config of a shortcut study: which figures it computes, and at what size."""

import dataclasses
from typing import Literal

import numpy as np

from identity_matters.errors import UserError
from identity_matters.fields import check_fields, option
from shortcut_study.figures import ELSEWHERE, MODULES


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """Which figures to compute, on what data, at what size; the defaults are the paper's if it states them.

    Attributes:
      figure: Which figure to compute: its number in the paper; convolutional, which is not in the paper; or all. 8 also
        computes 6, whose data it shares. 1 and 2 raise an error with the command that shows them.
      dataset: mnist_sample (4,000 embedded digits), or any TFDS image-classification set.
      data_dir: The folder of prepared TFDS data sets (empty: TFDS's default).
      download: Let TFDS download and prepare a data set that is not under data_dir.
      examples: Use the first N training images (0: all).
      input_scale: Standard deviation of each whitened input (not in the paper).
      centred: Subtract the mean image before whitening.
      mean_over_outputs: Average the squared error over the outputs too; the paper's (6) has half of their sum.
      depths: Depths (numbers of weight matrices) of linear networks, and of the networks in Figure 3. An n-shortcut
        network has those depths that n divides. Some must be even, and for Figures 5 and 9 some multiples of 3.
      relu_depths: Depths of the networks with ReLUs in Figure 10.
      depth: Depth of the networks in Figures 4, 6, 7, 8 and 11; even.
      conv_depths: Numbers of residual convolutions in the convolutional networks; multiples of 6.
      num_runs: Number of seeds for linear networks in Figures 5, 6 and 8.
      sweep_runs: Number of seeds for each learning rate in Figure 9, and for linear networks in Figure 3.
      relu_runs: Number of seeds for networks with ReLUs in Figures 3, 7 and 10. Their cost grows with the number of
        examples.
      relu_examples: Train networks with ReLUs on the first N examples (0: all).
      conv_runs: Number of seeds for convolutional networks.
      num_epochs: Number of training epochs in Figures 9 and 10.
      rates_per_decade: Figure 9 tries learning rates from 0.001 to 10, this many for each factor of 10.
      relu_rates_per_decade: The same for Figure 10.
      learning_rate: Learning rate in Figures 3, 4, 6, 7 and 8 (not in the paper).
      xavier_learning_rate: Learning rate of linear networks with Xavier's initialisation in Figures 6 and 8, some of
        which diverge at 0.03 (0: learning_rate).
      descent_epochs: Number of training epochs in Figures 3, 4, 6, 7 and 8.
      hessian: How to compute the Hessians of Figures 5 to 8 and 11. auto: in closed form; with ReLUs in NumPy. tape: by
        GradientTape on the Keras network, also at zero weights, for which auto uses Theorem 1's values. It is slow:
        over 4,000 examples, on 2 cores, a Hessian of depth 16 takes 5 s (auto: 0.01 s) and one of depth 48 takes 68 s
        (0.5 s). The smoke preset takes 4 minutes (a second).
      num_levels: Number of losses at which the Hessian is computed in Figures 6, 7 and 8.
      seed: The first seed.
      hparams: Write a TensorBoard run for every network and learning rate of Figures 9 and 10, for the HParams page.
        There are hundreds of them, and TensorBoard selects no run if there are more than 40.

    Raises:
      UserError: a field out of range.
    """

    figure: Literal[("all", *MODULES)] = "all"  # pyright: ignore[reportInvalidTypeForm]
    dataset: str = "mnist_sample"
    data_dir: str = option("", path=True, compared=False)
    download: bool = option(False, compared=False)
    examples: int = option(0, at_least=0, at_most=2**31)
    input_scale: float = option(1.0, at_least=1e-6, at_most=1e6)
    centred: bool = True
    mean_over_outputs: bool = False
    depths: tuple[int, ...] = option((2, 3, 6, 12, 24, 48, 96), at_least=1, at_most=10_000)
    relu_depths: tuple[int, ...] = option((2, 4, 8, 16, 32, 64), at_least=1, at_most=10_000)
    conv_depths: tuple[int, ...] = option((6, 12, 24), at_least=1, at_most=10_000)
    depth: int = option(16, at_least=1, at_most=10_000)
    num_runs: int = option(10, at_least=1, at_most=10**6)
    sweep_runs: int = option(5, at_least=1, at_most=10**6)
    relu_runs: int = option(5, at_least=1, at_most=10**6)
    relu_examples: int = option(0, at_least=0, at_most=2**31)
    conv_runs: int = option(5, at_least=1, at_most=10**6)
    num_epochs: int = option(1000, at_least=1, at_most=10**6)
    rates_per_decade: int = option(4, at_least=1, at_most=10_000)
    relu_rates_per_decade: int = option(2, at_least=1, at_most=10_000)
    learning_rate: float = option(0.03, above=0)
    xavier_learning_rate: float = option(0.0, at_least=0)
    descent_epochs: int = option(3000, at_least=1, at_most=10**6)
    hessian: Literal["auto", "tape"] = "auto"
    num_levels: int = option(12, at_least=1, at_most=10_000)
    seed: int = option(0, at_least=0, at_most=2**31)
    hparams: bool = option(False, compared=False)

    def __post_init__(self) -> None:
        if self.figure in ELSEWHERE:
            raise UserError(ELSEWHERE[self.figure])
        check_fields(self)
        if not all(depth % 6 == 0 for depth in self.conv_depths):
            raise UserError(f"conv_depths must be multiples of 6, for shortcuts of 1, 2 and 3, got {self.conv_depths}")
        if not all(depth % 2 == 0 for depth in (self.depth, *self.relu_depths)):
            raise UserError(
                f"depth and relu_depths must be multiples of shortcut_depth 2, got {self.depth} and {self.relu_depths}"
            )

    def seeds(self, count: int) -> range:
        """Returns the first `count` seeds."""
        return range(self.seed, self.seed + count)


def learning_rates(per_decade: int) -> np.ndarray:
    """Returns the learning rates of a sweep, from 0.001 to 10, `per_decade` a decade."""
    return 10.0 ** (np.arange(4 * per_decade + 1) / per_decade - 3)


PRESETS = {
    "paper": StudyConfig(xavier_learning_rate=0.01, relu_examples=6_000),  # linear networks take moments, so all
    # Only Figure 5 shows the paper's effect at this size.
    "smoke": StudyConfig(
        figure="5",
        relu_examples=500,
        depths=(2, 3, 6, 12),
        relu_depths=(2, 8),
        conv_depths=(6,),
        depth=4,
        num_runs=3,
        sweep_runs=2,
        relu_runs=1,
        conv_runs=2,
        num_epochs=60,
        rates_per_decade=2,
        relu_rates_per_decade=1,
        learning_rate=0.1,
        descent_epochs=200,
        num_levels=4,
    ),
}
