"""Measure how near to the identity the residual blocks of a trained network are, and its error without them.

    python -m launch.near_identity --saved_run=runs/first --run_dir=runs/first_blocks

takes the network that launch.train left in runs/first and its first 1,000 test images: half a minute
for the mnist preset, 10 minutes for the paper's network on 2 cores; after the first block it says how
long all will take. A block adds the output b of its branch to its input x. Prints a line for each block:

    ‖b‖/‖x‖      median over images of the branch's norm divided by the stream's; 0 is the identity
    bound        bound of ‖b‖/‖x‖ over all inputs: the product of the norms that follow
    ‖C1‖, ‖C2‖   spectral norm of each convolution of the branch
    cosine       median over images of the cosine of the angle between b and x
    above 0      share of the branch's hidden values that its ReLU lets through
    dead         share of the branch's hidden channels that are 0 on all images
    error        test error without this branch
    exchanged    test error if the block and the next one change places (–: their shapes differ)

Then prints how many blocks can be removed together, smallest branch first, before the error grows by a
percentage point. Writes results.csv, removed.csv and blocks.png. The same command continues an
interrupted run after the last finished block.

--at_step=0 measures the initial weights of the run, --pretrained=digits a network of the package.
"""

import dataclasses
import itertools
import os
import time

import numpy as np

from identity_matters.errors import note, table_error, translate_errors
from identity_matters.fields import option
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.job_table import Job, Progress
from identity_matters.runs.tables import percent, read_rows
from launch import launcher, terminal, trained_run
from launch.experiment import Experiment, Figures, Report, run

BLOCKS, REMOVED = "results.csv", "removed.csv"
MAX_RISE = 0.01  # of the error


@dataclasses.dataclass(frozen=True)
class NearIdentityConfig(trained_run.SavedRunFlags):
    """Which network to measure, and on which images.

    Attributes:
      examples: Measure on the first N test images (all, if there are fewer).
      ablate: Also measure the errors without blocks, which takes most of the time.
    """

    examples: int = option(1_000, at_least=1)
    ablate: bool = True


def main(config: NearIdentityConfig, run_dir: str) -> int:
    """Measures, draws and prints."""
    run_config = trained_run.read_config(config, run_dir)
    with terminal.silenced_stderr():
        from identity_matters import near_identity

    images, labels, _ = trained_run.first_examples(run_config, config.examples, "test")
    network, _ = trained_run.load_model(run_config, config)
    digest = trained_run.weights_digest(network)
    measurement = near_identity.Measurement(network, images, labels, config.ablate)
    names = [block.name for block in measurement.blocks]

    def measure(number: int) -> list[dict]:
        before = time.monotonic()
        rows = [measurement.row(number)]
        if number == 0:
            # The errors of block k take the n − k blocks behind it, those of all sets of blocks half as many for each.
            share = 0.75 * len(names) if config.ablate else len(names)
            duration = _duration(share * (time.monotonic() - before))
            note(f"all {len(names)} blocks will take about {duration}, by the first of them")
        return rows

    def remove(progress: Progress) -> list[dict]:
        order = smallest_first(os.path.join(run_dir, BLOCKS), names)
        return near_identity.removed_rows(network, images, labels, order[:-1], progress)

    def report(directory: RunDirectory, rows: list[dict], *removed: list[dict]) -> Report:
        lines = [table(rows), *map(removable, removed)]
        seconds = directory.record.seconds
        if seconds is not None:  # None: a call computed all and was killed
            lines.append(f"measured in {_duration(seconds)}")
        return Report("\n".join(lines), details={"num_examples": len(images)})

    jobs = [Job({"block": name}, lambda _, k=k: measure(k), name, 1) for k, name in enumerate(names)]
    tables = {BLOCKS: jobs}
    if config.ablate:
        tables[REMOVED] = [Job({}, remove, "several blocks left out", len(names))]
    experiment = Experiment(
        "near_identity",
        tables,
        figures,
        report,
        data_digest=f"{len(images)} test images",
        details={"weights_digest": digest},
        check=lambda run: trained_run.require_same_weights(run, digest, config.saved_run),
    )
    return run(experiment, config, run_dir)


def smallest_first(path: str, names: list[str]) -> list[str]:
    """Returns the names of blocks by their ratios in a results.csv, NaN last."""
    with translate_errors(table_error(path)):
        ratios = {row["block"]: float(row["ratio"]) for row in read_rows(path)}
        return sorted(names, key=lambda name: (np.isnan(ratios[name]), ratios[name]))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def removable(removed: list[dict]) -> str:
    """Returns in words how many blocks can be removed before the error grows by MAX_RISE, from removed.csv."""
    limit = removed[0]["error"] + MAX_RISE
    last = [*itertools.takewhile(lambda row: row["error"] <= limit, removed)][-1]
    count = last["num_removed"]
    error = f"error {percent(removed[0]['error'])}"
    if count > 0:
        smallest = f"{count} smallest" if count > 1 else "smallest"
        return (
            f"{error}; {percent(last['error'])} without the {smallest} of {len(removed)} branches, with "
            f"{percent(last['operations'], 0)} of their operations"
        )
    if len(removed) > 1:
        return f"{error}; {percent(removed[1]['error'])} without the smallest branch, so none can be removed"
    return error


def table(rows: list[dict]) -> str:
    """Returns the rows of results.csv as an aligned table."""
    norms = sorted(column for column in rows[0] if column.startswith("norm_"))
    bounds = ["bound", *(norm.replace("norm_", "‖C") + "‖" for norm in norms)]
    heads = ["block", "‖b‖/‖x‖", *bounds, "cosine", "above 0", "dead", "error", "exchanged"]
    lines = [f"{heads[0]:16}" + "".join(f"{head:>10}" for head in heads[1:])]
    for row in rows:
        numbers = [row["ratio"], row["lipschitz"], *(row[norm] for norm in norms), row["cosine"]]
        shares = [row[name] for name in ("active", "dead", "error_without", "error_swapped")]
        cells = [f"{number:.2g}" for number in numbers]
        cells += ["–" if np.isnan(share) else percent(share) for share in shares]
        lines.append(f"{row['block']:16}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)


def figures(run_dir: str, title: str = "") -> Figures:
    """Returns the figure of the blocks, drawn from results.csv and removed.csv, by name."""
    drawn = comparison({title: run_dir})
    return {"blocks": drawn["comparison"]} if drawn else {}


def comparison(run_dirs: dict[str, str]) -> Figures:
    """Returns the figure of the blocks of several networks, a column each, by name; run_dirs are by their titles."""
    from identity_matters.near_identity_figure import blocks_figure

    tables = [
        (title, *(read_rows(os.path.join(run_dir, name)) for name in (BLOCKS, REMOVED)))
        for title, run_dir in run_dirs.items()
    ]
    return {"comparison": blocks_figure(tables)} if all(rows for _, rows, _ in tables) else {}


cli = launcher.command(main, {"": NearIdentityConfig()}, manual=__doc__)

if __name__ == "__main__":
    cli()
