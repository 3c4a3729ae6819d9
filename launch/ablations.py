"""Train one small network in the paper's way and with its choices changed, several seeds each.

    python -m launch.ablations --dataset=cifar10 --data_dir=DIR --run_dir=runs/ablations

trains five variants (paper, standard_initializer, trained_projection, batch_norm with either
initialiser) of a network with 2 blocks a stage and widths 16, 32, 64 on 20,000 CIFAR-10 images
for 5 epochs, 3 seeds each: about 45 minutes on 2 cores. Leaves results.csv, ablations.png and
one run directory a run, and prints a table of the test errors. The same command again continues.
"""

import os
from typing import TYPE_CHECKING

from identity_matters.ablations import AblationConfig
from launch import launcher, terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main(config: AblationConfig, run_dir: str) -> None:
    """Trains all variants and prints the table of their errors."""
    with terminal.quiet_import():
        from identity_matters import ablations, training  # noqa: F401, training imports TensorFlow

    rows = ablations.run_ablations(config, run_dir)
    print(ablations.table(rows))


def figures(run_dir: str, title: str = "") -> "dict[str, Figure]":
    """Returns the figure of the variants, drawn from results.csv, by name."""
    from identity_matters.runs.figures import ablation_figure
    from identity_matters.runs.tables import read_metrics

    return {"ablations": ablation_figure(read_metrics(os.path.join(run_dir, "results.csv")), title)}


def cli() -> None:
    """Runs the launcher with the command line's flags."""
    launcher.run(main, {"": AblationConfig()}, manual=__doc__)


if __name__ == "__main__":
    cli()
