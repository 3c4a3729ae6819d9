"""Redraw the figures of Li et al., *Demystifying ResNet*: Hessians and learning of n-shortcut networks.

    python -m launch.shortcut_study --figure=5 --preset=smoke --run_dir=runs/fig5

computes the data of Figure 5 (3, 6, 7, 8, 9 and 10 likewise, `convolutional` is not in the paper,
`all` is all of them), draws it with the theory's predictions, and checks what the paper says of
it: results.csv (a row a point), results.md (each claim: holds or not, with the numbers), PNGs, and
the same in TensorBoard, with an HParams table of the learning rates. The smoke preset takes a
minute, the paper's size hours; the bar counts seconds of 2 cores. Interrupted, the same command
goes on: what was computed is kept.

The data are MNIST digits, whitened: by default the 4,000 of the embedded sample. With
--dataset=mnist --data_dir=DIR all 60,000, and any TFDS set of small images by name.
"""

import dataclasses
from typing import Literal

from identity_matters.config import TrainConfig, check_fields
from identity_matters.runs.errors import UserError
from launch import launcher
from launch.study_report import draw_figures  # noqa: F401, for launch.plot


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """Which figures, on what data, at what size; the defaults are the paper's, where it says.

    Attributes:
      figure: The paper's number, or convolutional, or all.
      dataset: mnist_sample (4,000 embedded digits), or any TFDS image-classification set.
      data_dir: Where TFDS keeps prepared data sets (empty: TFDS's default).
      examples: Use the first so many training images (0: all).
      depths: Numbers of weight matrices of linear networks, and of Figure 3; an n-shortcut network takes those that n divides.
      relu_depths: The same for Figure 10.
      depth: Number of weight matrices in Figures 6, 7 and 8; even.
      conv_depths: Numbers of residual convolutions of convolutional networks, multiples of 6.
      num_runs: Seeds of linear networks in Figures 5, 6 and 8.
      sweep_runs: Seeds of each learning rate in Figure 9, and of the norms of linear networks in Figure 3.
      relu_runs: Seeds of networks with ReLUs, which go over the data: Figures 3, 7 and 10.
      conv_runs: Seeds of convolutional networks.
      num_epochs: Of Figures 9 and 10.
      rates_per_decade: Learning rates from 0.001 to 10 in Figure 9.
      relu_rates_per_decade: The same for Figure 10.
      learning_rate: Of the descents of Figures 3, 6, 7 and 8, of which the paper does not say it.
      descent_epochs: Their length.
      num_levels: Losses at which a Hessian is taken in Figures 6, 7 and 8.
      seed: The first seed.
    """

    figure: Literal["all", "3", "5", "6", "7", "8", "9", "10", "convolutional"] = "all"
    dataset: str = "mnist_sample"
    data_dir: str = ""
    examples: int = 0
    depths: tuple[int, ...] = (2, 3, 6, 12, 24, 48, 96)
    relu_depths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    conv_depths: tuple[int, ...] = (6, 12, 24)
    depth: int = 16
    num_runs: int = 10
    sweep_runs: int = 5
    relu_runs: int = 1
    conv_runs: int = 5
    num_epochs: int = 1000
    rates_per_decade: int = 4
    relu_rates_per_decade: int = 2
    learning_rate: float = 0.03
    descent_epochs: int = 3000
    num_levels: int = 12
    seed: int = 0

    def __post_init__(self):
        counts = (
            "num_runs",
            "sweep_runs",
            "relu_runs",
            "conv_runs",
            "num_epochs",
            "rates_per_decade",
            "relu_rates_per_decade",
        )
        counts += ("depth", "descent_epochs", "num_levels")
        check_fields(self, at_least_1=counts, at_least_0=("examples", "seed"), above_0=("learning_rate",))
        for name in ("depths", "relu_depths", "conv_depths"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise UserError(f"{name} must be numbers of at least 1, got {getattr(self, name)}")
        for shortcut_depth in (2, 3):
            if all(depth % shortcut_depth for depth in self.depths):
                raise UserError(f"depths {self.depths} hold no multiple of shortcut_depth {shortcut_depth}")
        if any(depth % 6 for depth in self.conv_depths):
            raise UserError(f"conv_depths must be multiples of 6, for shortcuts of 1, 2 and 3, got {self.conv_depths}")
        if any(depth % 2 for depth in (self.depth, *self.relu_depths)):
            raise UserError(
                f"depth and relu_depths must be multiples of shortcut_depth 2, got {self.depth} and {self.relu_depths}"
            )


PRESETS = {
    "paper": StudyConfig(),
    "smoke": StudyConfig(
        examples=500,
        depths=(2, 3, 6, 12),
        relu_depths=(2, 8),
        conv_depths=(6,),
        depth=4,
        num_runs=2,
        sweep_runs=2,
        conv_runs=2,
        num_epochs=60,
        rates_per_decade=2,
        relu_rates_per_decade=1,
        learning_rate=0.1,
        descent_epochs=200,
        num_levels=4,
    ),
}
LINEAR_LEVELS = 10**0.5, 10**-3  # highest and lowest excess loss at which a Hessian is taken
RELU_LEVELS = 1.0, 0.18  # and loss


def main(config: StudyConfig, run_dir: str) -> None:
    with launcher.quiet_import():
        import tensorflow  # noqa: F401, all that is slow to import

        from identity_matters.runs.directory import RunDirectory
        from launch import study_report

    units, num_examples = _units(config, *_images(config))
    with RunDirectory(run_dir, config, "shortcut_study") as run:
        run.set_status("running")
        rows = _compute(run, units)
        study_report.draw_figures(run.path)
        study_report.write_tensorboard(run.path)
        report = study_report.write_findings(run.path)
        run.set_status("done", num_examples=num_examples, seconds=sum(study_report.times(rows).values()))
    print(report)
    print(f"files: {run_dir}")


def _images(config: StudyConfig):
    """Training images uint8 [m, h, w, c], labels [m], and the number of classes."""
    from identity_matters.data.arrays import ArrayData
    from identity_matters.data.loading import load

    data = load(TrainConfig(dataset=config.dataset, data_dir=config.data_dir, train_examples=config.examples))
    if not isinstance(data, ArrayData):
        raise UserError(f"dataset {config.dataset} is not held in memory; choose one of small images")
    return data.train_images, data.train_labels, data.num_classes


def _compute(run, units: list) -> list[dict]:
    """results.csv, a unit of work at a time."""
    from tqdm import tqdm

    from identity_matters.runs.tables import read_rows, write_metrics
    from shortcut_study.sweep import run_sweep

    path = run.file("results.csv")
    total = sum(unit.cost for unit in units)
    bar_format = "{desc} {percentage:3.0f}% |{bar}| {elapsed} so far, {remaining} left"
    with tqdm(total=total, bar_format=bar_format, dynamic_ncols=True, smoothing=0) as bar:
        run_sweep(units, read_rows(path), lambda rows: write_metrics(path, rows), bar)
    return read_rows(path)


def _units(config: StudyConfig, images, labels, num_classes: int) -> tuple[list, int]:
    """The units of work of the figures asked for, cheap experiments first, and the number of examples."""
    import numpy as np

    from launch.study_convolutions import convolutional_units
    from shortcut_study import experiments
    from shortcut_study.dataset import whitened_components
    from shortcut_study.figures import DATA

    with launcher.user_errors():
        x, y = whitened_components(images, labels, num_classes, num_classes)

    def seeds(count):
        return range(config.seed, config.seed + count)

    def rates(per_decade):
        return 10.0 ** (np.arange(4 * per_decade + 1) / per_decade - 3)

    descent = (config.learning_rate, config.descent_epochs)
    losses = np.append(np.inf, np.geomspace(*LINEAR_LEVELS, config.num_levels))  # inf: where it starts
    relu_losses = np.append(np.inf, np.geomspace(*RELU_LEVELS, config.num_levels))
    linear, relu = "linear", "relu_mid"
    made = {
        ("norms", linear): lambda: experiments.norms(x, y, linear, config.depths, seeds(config.sweep_runs), *descent),
        ("spectrum_at_losses", linear): lambda: experiments.spectra_at_losses(
            x, y, linear, config.depth, seeds(config.num_runs), *descent, losses
        ),
        ("single_run", linear): lambda: experiments.single_run(x, y, config.depth, config.seed, *descent),
        ("learning_rates", linear): lambda: experiments.learning_rates(
            x, y, linear, config.depths, rates(config.rates_per_decade), seeds(config.sweep_runs), config.num_epochs
        ),
        ("convolutional", "relu"): lambda: convolutional_units(
            images, labels, y.shape[1], config.conv_depths, seeds(config.conv_runs)
        ),
        ("norms", relu): lambda: experiments.norms(x, y, relu, config.depths, seeds(config.relu_runs), *descent),
        ("spectrum_at_losses", relu): lambda: experiments.spectra_at_losses(
            x, y, relu, config.depth, seeds(config.relu_runs), *descent, relu_losses
        ),
        ("spectrum_at_zero", linear): lambda: experiments.spectra_at_zero(x, y, config.depths),
        ("initial_spectrum", linear): lambda: experiments.initial_spectra(x, y, config.depths, seeds(config.num_runs)),
        ("learning_rates", relu): lambda: experiments.learning_rates(
            x,
            y,
            relu,
            config.relu_depths,
            rates(config.relu_rates_per_decade),
            seeds(config.relu_runs),
            config.num_epochs,
        ),
    }
    figures = DATA if config.figure == "all" else [config.figure]
    asked = {data for figure in figures for data in DATA[figure]}
    return [unit for data, make in made.items() if data in asked for unit in make()], len(x)


def cli() -> None:
    launcher.run(main, PRESETS, manual=__doc__)


if __name__ == "__main__":
    cli()
