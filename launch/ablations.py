r"""Compare variants of the network, or other networks, at equal operations, with several seeds each.

    python -m launch.ablations --dataset=cifar10 --data_dir=DIR --run_dir=runs/statements

takes every variant of --experiment (statements or rivals) and finds its learning rate on 5,000
held-out training images, in half of a run's steps; if the best rate is the lowest or the highest of
those tried, it tries up to two more. Then it trains with 3 seeds at that rate on all images, seed after
seed: 3 to 6 minutes for a run of 3e13 operations on one core, 5 to 10 hours in all. It prints a table of
the test errors and writes results.csv, ablations.png, depths.png (errors by depth, for statements) and
one directory for each run; all are up to date after every run. The same command continues an interrupted
comparison, and adds seeds. --only="BN-free,zero initializer" runs some of the variants. Runs in
results.csv are not repeated: with config.json beside it, a comparison continues on another machine.

--experiment=initializers compares the small initialiser with later ones, such as Fixup's and ReZero's,
in networks of 55 convolutions; ten minutes on the embedded digits are enough:

    python -m launch.ablations --experiment=initializers --operations=6e11 --dataset=mnist_sample \
      --image_size=16 --norandom_flip --crop_padding=1 --validation_examples=1000 --run_dir=runs/initializers

--experiment=norms redraws Figure 2 of Li et al.: the norms of networks of several depths after the same
steps, in kernel_norms.png. The default is 1,950 steps, 5 epochs, in 50 minutes on two cores; the
paper's 200 epochs are --norms_steps=78000, 26 hours at that speed.

An experiment sets some flags of launch.train itself. --help lists the others; after
--experiment=rivals, norms or initializers it lists those that this experiment leaves free.
"""

import os

from identity_matters.experiments.config import PRESETS, AblationConfig
from identity_matters.runs.tables import ablation_table, read_metrics
from launch import launcher, terminal
from launch.experiment import Figures


def main(config: AblationConfig, run_dir: str) -> None:
    """Trains all variants and prints the table of their errors."""
    with terminal.silenced_stderr():
        from identity_matters.experiments import ablations

    print(ablation_table(ablations.run_ablations(config, run_dir)))


def figures(run_dir: str, title: str = "") -> Figures:
    """Returns the figures of the variants, drawn from results.csv, by name."""
    from identity_matters.experiments.ablations import draw

    return draw(read_metrics(os.path.join(run_dir, "results.csv")), title)


cli = launcher.command(main, PRESETS, manual=__doc__, unused_fields=AblationConfig.unused_fields)

if __name__ == "__main__":
    cli()
