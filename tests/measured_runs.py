"""The tables of docs/appendix/tables.md, made from the runs in docs/runs.

    python -m tests.measured_runs > docs/appendix/tables.md

tests/test_measured_runs.py compares the page with docs/runs, and the numbers of other pages with the page.
"""

import functools
import json
import pathlib
import re

import numpy as np

from identity_matters.runs.config_json import flat
from identity_matters.runs.tables import ablation_table, read_metrics, read_rows

RUNS = pathlib.Path(__file__).parents[1] / "docs" / "runs"
HEAD = """# Tables of the measured runs

Generated from docs/runs by `python -m tests.measured_runs > docs/appendix/tables.md`. [Runs](runs.md) explains the runs
and has those whose files were not kept. A folder of docs/runs holds config.json and the run's table, which `python -m
launch.plot --run_dir=docs/runs/paper` draws. Commands have the flags and presets of this version, and train the network
of config.json. All CIFAR-10 images are from a [JPEG copy](runs.md#the-jpeg-copy-of-cifar-10).

## Training runs

Errors are those of the last evaluation. *Training error*: the mean over the steps in brackets, the last ones, on
augmented images and while the weights change.
"""
SEEDS = """
## Means over seeds

Mean ± standard deviation.
"""
EXPERIMENTS = """
## Experiments

Each variant has a learning rate of its own, found on held-out images in shorter runs. Training figures are means over
the last quarter of a run; ± is the standard deviation over the seeds that did not diverge.
"""


def records() -> list[tuple[str, dict]]:
    """Returns name and config.json of every run in docs/runs."""
    return [(path.parent.name, json.loads(path.read_text())) for path in sorted(RUNS.glob("*/config.json"))]


@functools.cache
def rows(name: str) -> list[dict]:
    """Returns the rows of a run's table."""
    table = next(path for path in (RUNS / name / "metrics.csv", RUNS / name / "results.csv") if path.exists())
    return read_metrics(str(table))


def training_line(name: str, record: dict) -> str:
    """Returns the line of a training run in the table."""
    last, config = rows(name)[-1], flat(record["config"])
    images = "held out" if config["validation_examples"] else f"first {config['eval_examples']:,} test images"
    images = images if config["validation_examples"] or config["eval_examples"] else "test images"
    since = last["step"] - (rows(name)[-2]["step"] if len(rows(name)) > 1 else 0)
    cells = [f"`{name}`", f"{last['test_top1_error']:.2%}", images, f"{last['train_top1_error']:.2%} ({since:,})"]
    cells += [f"{last['test_cross_entropy']:.3f}", f"{last['step']:,}", f"{last['train_flops']:.1e}".replace("+", "")]
    return "|" + "|".join(cell.replace("%", " %") for cell in cells) + "|"


def seed_groups() -> dict[str, list[str]]:
    """Returns the names of the training runs that differ in their seed alone, by what they have in common."""
    groups = {}
    for name, record in records():
        if record["kind"] == "train" and re.search(r"_seed\d$", name):
            groups.setdefault(name[:-6], []).append(name)
    return {group: names for group, names in groups.items() if len(names) > 1}


def mean_error(names: list[str]) -> str:
    """Returns the mean ± standard deviation of the test error of runs, or that of one, as the pages print it."""
    errors = [100 * rows(name)[-1]["test_top1_error"] for name in names]
    # Errors have four digits, so a mean of two may lie half-way between two numbers of two decimals: up.
    spread = f" ± {np.std(errors, ddof=1):.2f}" if len(errors) > 1 else ""
    return f"{np.mean(errors) + 1e-9:.2f}{spread} %"


def last_blocks(name: str) -> list[dict]:
    """Returns what a near_identity.BlockCallback measured at the end of a run, a row a block."""
    table = read_rows(str(RUNS / name / "blocks_along.csv"))
    return [row for row in table if row["epoch"] == table[-1]["epoch"]]


def blocks_cells(names: list[str]) -> str:
    """Returns dead channels, blocks within 1 % of the identity and test error of runs, as the page on blocks does."""
    dead, near = [], []
    for name in names:
        last = last_blocks(name)
        widths = json.loads((RUNS / name / "config.json").read_text())["config"]["model"]["widths"]
        channels = [widths[int(row["block"][len("stage")]) - 1] for row in last]
        dead.append(100 * np.average([row["dead"] for row in last], weights=channels))
        near.append(sum(row["ratio"] < 0.01 for row in last))
    shares = [f"{x:.0f}" if x >= 1 or not x else f"{x:.1g}" for x in (min(dead), max(dead))]
    spans = ["–".join(dict.fromkeys(ends)) for ends in (shares, (str(min(near)), str(max(near))))]
    return f"|{spans[0]} %|{spans[1]}|{mean_error(names)}|"


def document() -> str:
    """Returns docs/appendix/tables.md."""
    columns = "run|test error|on|training error (steps)|test cross-entropy|steps|operations"
    lines = [f"|{columns}|", "|---" * (columns.count("|") + 1) + "|"]
    trained = [(name, record) for name, record in records() if record["kind"] == "train"]
    lines += [training_line(name, record) for name, record in trained]
    lines += ["\nTheir commands:\n", *(f"    {record['command']}" for _, record in trained)]
    seeds = ["|runs|n|test error|", "|---|---|---|"]
    seeds += [f"|`{group}_seed…`|{len(names)}|{mean_error(names)}|" for group, names in seed_groups().items()]
    experiments = [
        f"\n### {name}\n\n    {record['command']}\n\n{ablation_table(rows(name))}"
        for name, record in records()
        if record["kind"] == "ablations"
    ]
    return "\n".join([HEAD, *lines, SEEDS, *seeds, EXPERIMENTS.rstrip(), *experiments]) + "\n"


if __name__ == "__main__":
    print(document(), end="")
