"""Jobs, figures, findings, times and HParams of a study, from its config and the rows of results.csv."""

import re
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from identity_matters.errors import UserError
from identity_matters.runs.job_table import Job
from shortcut_study.config import PRESETS, StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.drawing import SMOKE
from shortcut_study.figures.finding import findings_table

_NETWORK = ("activations", "shortcut_depth", "initialisation", "depth", "learning_rate")
# A figure of fewer examples or epochs shows only that the study runs.
_LEAST_EXAMPLES = 2000
_LEAST_EPOCHS = {"num_epochs": 500, "descent_epochs": 1000}


def chosen_figures(config: StudyConfig) -> list[ModuleType]:
    """Returns the figures that the config asks for.

    Raises:
      UserError: no depth suits a network that a figure compares.
    """
    names = list(FIGURES) if config.figure == "all" else [config.figure]
    for name in (name for name in names if "depths" in FIGURES[name].READS):
        for n in FIGURES[name].SHORTCUT_DEPTHS:
            if not any(depth % n == 0 for depth in config.depths):
                raise UserError(f"depths {config.depths} hold no multiple of shortcut_depth {n}, for figure {name}")
    return [FIGURES[name] for name in names]


def unused_fields(config: StudyConfig) -> dict[str, str]:
    """Returns the fields that the chosen figure does not read, and why."""
    read_by_some = {name for figure in FIGURES.values() for name in figure.READS}
    read = read_by_some if config.figure == "all" else FIGURES[config.figure].READS
    return dict.fromkeys(sorted(read_by_some.difference(read)), f"figure {config.figure} does not read it")


def is_smoke_size(config: StudyConfig, name: str, num_examples: int) -> bool:
    """Returns whether a figure has too few examples or epochs for the paper's statements."""
    reads = FIGURES[name].READS
    if "relu_examples" in reads:
        num_examples = min(num_examples, config.relu_examples or num_examples)
    is_short = any(field in reads and getattr(config, field) < least for field, least in _LEAST_EPOCHS.items())
    return num_examples < _LEAST_EXAMPLES or is_short


def is_paper_size(config: StudyConfig, name: str) -> bool:
    """Returns whether a figure has the depths of the paper preset, and as many runs and epochs at least."""
    pairs = [(getattr(config, field), getattr(PRESETS["paper"], field)) for field in FIGURES[name].SIZE]
    return all(set(paper) <= set(actual) if isinstance(actual, tuple) else actual >= paper for actual, paper in pairs)


def study_jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns the jobs of the figures that the config asks for; what two figures share is there once."""
    return list({job.label: job for figure in chosen_figures(config) for job in figure.jobs(config, data)}.values())


def figures_with_data(rows: list[dict]) -> list[str]:
    """Returns the names of the figures whose experiments the rows hold; none for rows of another type of run."""
    present = {(row.get("experiment"), row.get("activations")) for row in rows}
    return [name for name, figure in FIGURES.items() if present.issuperset(figure.EXPERIMENTS)]


def draw_figure(name: str, rows: list[dict], smoke_size: bool = False) -> Figure:
    """Returns a figure of the rows; at smoke size it says so on top."""
    figure = FIGURES[name].draw(rows)
    if smoke_size:
        title = figure.get_suptitle()
        figure.suptitle(f"{SMOKE}\n{title}" if title else SMOKE)
    return figure


def report(rows: list[dict], smoke_size: Collection[str] = ()) -> str:
    """Returns results.md: each claim on the rows, except of figures of smoke size, and each experiment's seconds."""
    names = figures_with_data(rows)
    statements = [finding for name in names for finding in FIGURES[name].findings(rows)]
    small = [name for name in names if name in smoke_size]
    which = f"Figure {', '.join(small)}" if len(small) < len(names) else "This"
    lines = [f"{which} is a {SMOKE}.", ""] if small else []
    lines += [findings_table(statements, smoke_size), "", "| experiment | activations | seconds |", "|---|---|--:|"]
    lines += [f"| {' | '.join(names)} | {seconds:,.0f} |" for names, seconds in seconds_by_experiment(rows).items()]
    return "\n".join(lines) + "\n"


def seconds_by_experiment(rows: list[dict]) -> dict[tuple[str, str], float]:
    """Returns the seconds that each (experiment, activations) took; every row of a job has those of the whole job."""
    seconds = {row["job"]: (row["experiment"], row["activations"], row["seconds"]) for row in rows}
    totals = {}
    for experiment, activations, job_seconds in seconds.values():
        totals[experiment, activations] = totals.get((experiment, activations), 0.0) + job_seconds
    return totals


def curves(rows: list[dict]) -> Iterator[tuple[str, list[dict]]]:
    """Yields the name of each network that was trained with a row for each epoch, and these rows, by epoch."""
    groups = {}
    for row in rows:
        if row["epoch"] != "" and row["status"] == "done" and row["experiment"] != "learning_rates":
            groups.setdefault((row["job"], row["learning_rate"]), []).append(row)
    for (job, rate), group in groups.items():
        if len(group) > 1:
            label = f"{job}, rate {rate:g}" if rate != "" else job
            yield re.sub(r"[^\w.-]+", "_", label), sorted(group, key=lambda row: row["epoch"])


class Session(NamedTuple):
    """A line of TensorBoard's HParams table: a network and a learning rate.

    Attributes:
      name: str.
      hparams: Of the network, and the learning rate.
      metrics: Means over the seeds; the losses are NaN if one diverged.
      epoch: Of the metrics.
    """

    name: str
    hparams: dict
    metrics: dict
    epoch: int


def sessions(rows: list[dict]) -> Iterator[Session]:
    """Yields a session for every network and learning rate of Figures 9 and 10."""
    groups = {}
    for row in rows:
        if row["experiment"] == "learning_rates":
            groups.setdefault(tuple(row[name] for name in _NETWORK), []).append(row)
    for values, group in groups.items():
        hparams = dict(zip(_NETWORK, values))
        name = "{activations}_{shortcut_depth}_{initialisation}_depth_{depth}_rate_{learning_rate:g}"
        yield Session(name.format(**hparams), hparams, _metrics(group), group[0]["epoch"])


def _metrics(rows: list[dict]) -> dict:
    are_done = all(row["status"] == "done" for row in rows)
    metrics = {}
    for name in ("loss", "excess_loss"):
        metrics[f"final/{name}"] = np.mean([row[name] for row in rows]) if are_done else np.nan
    metrics["final/share_diverged"] = np.mean([row["status"] == "diverged" for row in rows])
    return metrics
