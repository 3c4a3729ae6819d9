"""Train one small network in the paper's way and with its choices changed, several seeds each.

    python -m launch.ablations --dataset=cifar10 --data_dir=DIR --run_dir=runs/ablations

trains five variants (paper, standard_initializer, trained_projection, batch_norm with either
initialiser) of a network with 2 blocks a stage and widths 16, 32, 64 on 20,000 CIFAR-10 images
for 5 epochs, 3 seeds each: about 45 minutes on 2 cores. Leaves results.csv, ablations.png and
one run directory a run, and prints a table of the test errors. The same command again continues.
"""

import os

from identity_matters.ablations import AblationConfig
from launch import launcher, terminal


def main(config: AblationConfig, run_dir: str) -> None:
    """Trains all variants and prints the table of their errors."""
    with terminal.quiet_import():
        from identity_matters import ablations, training  # noqa: F401, training imports TensorFlow

    rows = ablations.run_ablations(config, run_dir)
    print(ablations.table(rows))


def draw_figures(run_dir: str, title: str = "") -> list[str]:
    """Draws ablations.png from results.csv; returns its path."""
    from identity_matters.runs import figures, tables

    path = os.path.join(run_dir, "ablations.png")
    figures.save_figure(figures.ablation_figure(tables.read_metrics(os.path.join(run_dir, "results.csv")), title), path)
    return [path]


def cli() -> None:
    """Runs the launcher with the command line's flags."""
    launcher.run(main, {"": AblationConfig()}, manual=__doc__)


if __name__ == "__main__":
    cli()
