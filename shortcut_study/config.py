"""What a shortcut study computes, and at what size."""

import dataclasses
import math
from numbers import Integral, Real
from typing import Literal, get_args

import numpy as np


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """Which figures, on what data, at what size; the defaults are the paper's, where it says.

    Attributes:
      figure: The paper's number, or convolutional, or all; 8 brings 6, which has its rows.
      dataset: mnist_sample (4,000 embedded digits), or any TFDS image-classification set.
      data_dir: Where TFDS keeps prepared data sets (empty: TFDS's default).
      download: Let TFDS download and prepare a data set that is not under data_dir.
      examples: Use the first N training images (0: all).
      input_scale: Standard deviation of each whitened input; the paper does not say it.
      centred: Subtract the mean image before whitening.
      mean_over_outputs: Average the squared error over the outputs too, where the paper's (6) has a half of their sum.
      depths: Numbers of weight matrices of linear networks, and of Figure 3; an n-shortcut network takes those that n
        divides. Some are even, and for Figures 5 and 9 some are multiples of 3.
      relu_depths: The same for Figure 10.
      depth: Number of weight matrices in Figures 6, 7 and 8; even.
      conv_depths: Numbers of residual convolutions of convolutional networks, multiples of 6.
      num_runs: Seeds of linear networks in Figures 5, 6 and 8.
      sweep_runs: Seeds of each learning rate in Figure 9, and of the norms of linear networks in Figure 3.
      relu_runs: Seeds of networks with ReLUs, which go over the data: Figures 3, 7 and 10.
      relu_examples: Networks with ReLUs go over the first N of the examples (0: all).
      conv_runs: Seeds of convolutional networks.
      num_epochs: Of Figures 9 and 10.
      rates_per_decade: Learning rates from 0.001 to 10 in Figure 9.
      relu_rates_per_decade: The same for Figure 10.
      learning_rate: Of the descents of Figures 3, 6, 7 and 8, of which the paper does not say it.
      xavier_learning_rate: The same for Xavier's linear networks in Figures 6 and 8, some of which diverge at 0.03
        (0: learning_rate).
      descent_epochs: Their length.
      num_levels: Losses at which a Hessian is taken in Figures 6, 7 and 8.
      seed: The first seed.
      hparams: Write a TensorBoard run for every network and learning rate of Figures 9 and 10, for the HParams page.
        They are hundreds, and TensorBoard ticks no run where there are more than 40.

    Raises:
      ValueError: a field out of range.
    """

    figure: Literal["all", "3", "5", "6", "7", "8", "9", "10", "convolutional"] = "all"
    dataset: str = "mnist_sample"
    data_dir: str = ""
    download: bool = False
    examples: int = 0
    input_scale: float = 1.0
    centred: bool = True
    mean_over_outputs: bool = False
    depths: tuple[int, ...] = (2, 3, 6, 12, 24, 48, 96)
    relu_depths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    conv_depths: tuple[int, ...] = (6, 12, 24)
    depth: int = 16
    num_runs: int = 10
    sweep_runs: int = 5
    relu_runs: int = 5
    relu_examples: int = 0
    conv_runs: int = 5
    num_epochs: int = 1000
    rates_per_decade: int = 4
    relu_rates_per_decade: int = 2
    learning_rate: float = 0.03
    xavier_learning_rate: float = 0.0
    descent_epochs: int = 3000
    num_levels: int = 12
    seed: int = 0
    hparams: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name), list):
                object.__setattr__(self, field.name, value := tuple(value))
            if field.type in _WORDS:
                is_many = field.type == tuple[int, ...]
                values = value if is_many and isinstance(value, tuple) else (value,)
                kind = Real if field.type is float else Integral
                are_numbers = all(isinstance(each, kind) and not isinstance(each, bool) for each in values)
                is_right = are_numbers and isinstance(value, tuple) == is_many
                _require(is_right, f"{field.name} must be {_WORDS[field.type]}, got {value!r}")
        for name, least in _LEAST.items():
            _require(getattr(self, name) >= least, f"{name} must be at least {least}, got {getattr(self, name)}")
        _require(self.learning_rate > 0, f"learning_rate must be positive, got {self.learning_rate}")
        for name in ("learning_rate", "input_scale", "xavier_learning_rate"):
            _require(math.isfinite(getattr(self, name)), f"{name} must be finite, got {getattr(self, name)}")
        for name, most in _MOST.items():
            values = getattr(self, name)
            values = values if isinstance(values, tuple) else (values,)
            _require(max(values, default=0) <= most, f"{name} must be at most {most}, got {max(values, default=0)}")
        figures = get_args(type(self).__dataclass_fields__["figure"].type)
        _require(self.figure in figures, f"figure must be one of {', '.join(figures)}, got {self.figure!r}")
        for name in ("depths", "relu_depths", "conv_depths"):
            depths = getattr(self, name)
            _require(depths and min(depths) >= 1, f"{name} must be numbers of at least 1, got {depths}")
        for n in _SHORTCUT_DEPTHS.get(self.figure, ()):
            some = any(depth % n == 0 for depth in self.depths)
            _require(some, f"depths {self.depths} hold no multiple of shortcut_depth {n}, for figure {self.figure}")
        _require(
            all(depth % 6 == 0 for depth in self.conv_depths),
            f"conv_depths must be multiples of 6, for shortcuts of 1, 2 and 3, got {self.conv_depths}",
        )
        _require(
            all(depth % 2 == 0 for depth in (self.depth, *self.relu_depths)),
            f"depth and relu_depths must be multiples of shortcut_depth 2, got {self.depth} and {self.relu_depths}",
        )

    def is_toy_size(self, figure: str, num_examples: int) -> bool:
        """Returns whether a figure only shows that it runs: too few examples or epochs to judge the paper's statements.

        Args:
          figure: The paper's number, or convolutional.
          num_examples: int. Of the data; networks with ReLUs may go over fewer.
        """
        read = READ_BY[figure]
        counts = [num_examples, self.relu_examples or num_examples] if "relu_examples" in read else [num_examples]
        is_short = any(name in read and getattr(self, name) < least for name, least in _JUDGED.items())
        return min(counts) < 2000 or is_short

    def is_paper_size(self, figure: str) -> bool:
        """Returns whether a figure has the depths of the paper preset, and as many runs and epochs at least."""
        pairs = [(getattr(self, name), getattr(PRESETS["paper"], name)) for name in _SIZES[figure]]
        return all(set(paper) <= set(ours) if isinstance(ours, tuple) else ours >= paper for ours, paper in pairs)

    def ignored_fields(self) -> dict[str, str]:
        """Returns the fields that the chosen figure does not read, and why."""
        of_some = set().union(*READ_BY.values())
        read = of_some if self.figure == "all" else READ_BY[self.figure]
        return dict.fromkeys(sorted(of_some.difference(read)), f"figure {self.figure} does not read it")

    def seeds(self, count: int) -> range:
        """Returns the first `count` seeds."""
        return range(self.seed, self.seed + count)


_WORDS = {int: "a whole number", float: "a number", tuple[int, ...]: "a list of whole numbers"}
_LEAST = dict.fromkeys(
    ("num_runs", "sweep_runs", "relu_runs", "conv_runs", "num_epochs", "rates_per_decade", "relu_rates_per_decade",
     "depth", "descent_epochs", "num_levels"), 1)  # fmt: skip
_LEAST |= {"examples": 0, "relu_examples": 0, "seed": 0, "xavier_learning_rate": 0, "input_scale": 1e-6}

_MOST = dict.fromkeys(
    ("depths", "relu_depths", "conv_depths", "depth", "rates_per_decade", "relu_rates_per_decade"), 10_000
)
_MOST |= dict.fromkeys(("num_runs", "sweep_runs", "relu_runs", "conv_runs", "num_epochs", "descent_epochs"), 10**6)
_MOST |= {"num_levels": 10_000, "examples": 2**31, "relu_examples": 2**31, "seed": 2**31}
_MOST |= {"input_scale": 1e6}
# The shortcuts of the networks of `depths` that a figure compares.
_SHORTCUT_DEPTHS = {"3": (2,), "5": (2, 3), "9": (2, 3), "all": (2, 3)}


_DESCENTS = ("learning_rate", "descent_epochs")
_LINEAR_DESCENTS = ("depths", "depth", "num_runs", "xavier_learning_rate", "num_levels", *_DESCENTS)
# What each figure reads, but for the fields that name the figure, its data, its first seed and its events.
READ_BY = {
    "3": ("depths", "sweep_runs", "relu_runs", "relu_examples", *_DESCENTS),
    "5": ("depths", "num_runs"),
    "6": _LINEAR_DESCENTS,
    "7": ("depth", "relu_runs", "relu_examples", "num_levels", *_DESCENTS),
    "8": _LINEAR_DESCENTS,
    "9": ("depths", "sweep_runs", "num_epochs", "rates_per_decade"),
    "10": ("relu_depths", "relu_runs", "relu_examples", "num_epochs", "relu_rates_per_decade"),
    "convolutional": ("conv_depths", "conv_runs"),
}
_JUDGED = {"num_epochs": 500, "descent_epochs": 1000}  # below, a figure that reads them is a toy
_SIZES = {  # what makes a figure as large as the paper's
    "3": ("depths", "sweep_runs", "relu_runs", "descent_epochs"),
    "5": ("depths", "num_runs"),
    "6": ("depth", "num_runs", "descent_epochs"),
    "7": ("depth", "relu_runs", "descent_epochs"),
    "8": ("depth", "num_runs", "descent_epochs"),
    "9": ("depths", "sweep_runs", "num_epochs"),
    "10": ("relu_depths", "relu_runs", "num_epochs"),
    "convolutional": ("conv_depths", "conv_runs"),
}


def _require(holds: object, message: str) -> None:
    if not holds:
        raise ValueError(message)


def learning_rates(per_decade: int) -> np.ndarray:
    """Returns the learning rates of a sweep, from 0.001 to 10, `per_decade` a decade."""
    return 10.0 ** (np.arange(4 * per_decade + 1) / per_decade - 3)


PRESETS = {
    "paper": StudyConfig(xavier_learning_rate=0.01, relu_examples=6_000),  # linear networks take moments, so all
    "smoke": StudyConfig(
        examples=500,
        depths=(2, 3, 6, 12),
        relu_depths=(2, 8),
        conv_depths=(6,),
        depth=4,
        num_runs=2,
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
