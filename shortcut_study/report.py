"""What a study makes of the rows of results.csv: jobs of several figures, pictures, findings, seconds, HParams."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from identity_matters.runs.job_table import Job
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.drawing import TOY
from shortcut_study.figures.finding import findings_table

_NETWORK = ("activations", "shortcut_depth", "initialisation", "depth", "learning_rate")


def study_jobs(config: StudyConfig, data: StudyData) -> list[Job]:
    """Returns the jobs of the figures that the config asks for; what two figures share is there once."""
    asked = FIGURES.values() if config.figure == "all" else [FIGURES[config.figure]]
    return list({job.label: job for figure in asked for job in figure.jobs(config, data)}.values())


def figures_with_data(rows: list[dict]) -> list[str]:
    """Returns the names of the figures whose experiments the rows hold; none for rows of another kind of run."""
    present = {(row.get("experiment"), row.get("activations")) for row in rows}
    return [name for name, figure in FIGURES.items() if present.issuperset(figure.EXPERIMENTS)]


def draw_figure(name: str, rows: list[dict], is_toy_size: bool = False) -> Figure:
    """Returns a figure of the rows; at toy size it says so on top."""
    figure = FIGURES[name].draw(rows)
    if is_toy_size:
        title = figure.get_suptitle()
        figure.suptitle(f"{TOY}\n{title}" if title else TOY)
    return figure


def report(rows: list[dict], toys: Collection[str] = ()) -> str:
    """Returns results.md: each claim of the paper on the rows, and the seconds of each experiment.

    Args:
      rows: Of results.csv.
      toys: Names of the figures that are of toy size.
    """
    names = figures_with_data(rows)
    found = [finding for name in names for finding in FIGURES[name].findings(rows)]
    small = [name for name in names if name in toys]
    which = f"Figure {', '.join(small)}" if len(small) < len(names) else "This"
    lines = [f"{which} is a {TOY}.", ""] if small else []
    lines += [findings_table(found, toys), "", "| experiment | activations | seconds |", "|---|---|--:|"]
    lines += [f"| {' | '.join(names)} | {seconds:,.0f} |" for names, seconds in seconds_by_experiment(rows).items()]
    return "\n".join(lines) + "\n"


def seconds_by_experiment(rows: list[dict]) -> dict[tuple[str, str], float]:
    """Returns the seconds that each (experiment, activations) took; all rows of a job hold those of the job."""
    seconds = {row["job"]: (row["experiment"], row["activations"], row["seconds"]) for row in rows}
    totals = {}
    for experiment, activations, of_job in seconds.values():
        totals[experiment, activations] = totals.get((experiment, activations), 0.0) + of_job
    return totals


class Session(NamedTuple):
    """A line of TensorBoard's HParams table: a network and a learning rate.

    Attributes:
      name: str.
      hparams: Of the network, and the learning rate.
      metrics: Means over the seeds; the losses are NaN where one diverged.
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
    losses = {
        f"final/{name}": np.mean([row[name] for row in rows]) if are_done else np.nan
        for name in ("loss", "excess_loss")
    }
    return losses | {"final/share_diverged": np.mean([row["status"] == "diverged" for row in rows])}
