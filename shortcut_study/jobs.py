"""A study as a list of jobs that can be interrupted: each gives rows of results.csv, saved one job at a time.

A row is a dict with the columns of COLUMNS; results.csv holds the rows of all jobs in the order of the list,
whatever the order in which they were computed.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from shortcut_study.architectures import Kind

COLUMNS = (
    "experiment", "shortcut_depth", "initialisation", "activations", "batch_norm", "depth", "seed", "learning_rate",
    "epoch", "loss", "excess_loss", "condition_number", "max_abs", "p10_abs", "index",
    "gradient_norm", "norm", "perturbed_loss", "status", "job", "seconds",
)  # fmt: skip
Progress = Callable[[float], Any]  # is called with the share of the job that was done since the last call


class Job(NamedTuple):
    """A piece of a study that is computed, and kept, as a whole.

    Attributes:
      key: The columns by which its rows are known from those of other jobs.
      compute: Takes a Progress; returns the rows.
    """

    key: dict
    compute: Callable[[Progress], list[dict]]

    @property
    def name(self) -> str:
        """What the job computes, in words: the column `job` of its rows."""
        key = self.key
        n = key.get("shortcut_depth", 0)
        words = [f"{n}-shortcut" if n else "no shortcuts", key.get("initialisation"), key.get("activations")]
        if "batch_norm" in key:
            words.append("batch normalisation" if key["batch_norm"] else "no batch normalisation")
        words += [f"{name} {key[name]}" for name in ("depth", "seed") if name in key]
        text = ", ".join(str(word) for word in words if word is not None)
        return f"{key['experiment']}: {text}".replace("_", " ")


def job_key(experiment: str, kind: Kind, activations: str, depth: int, seed: int | None = None) -> dict:
    """Returns the key of a job; without a seed for a job that has rows of several seeds."""
    key = {"experiment": experiment, **kind._asdict(), "activations": activations, "depth": depth}
    return key if seed is None else key | {"seed": seed}


def progress_stepper(progress: Progress, num_parts: int) -> Callable[[], Any]:
    """Returns a function without arguments to be called after each of `num_parts` equal parts of a job."""
    return lambda: progress(1 / num_parts)


def run_jobs(jobs: list[Job], rows: list[dict], save: Callable[[list[dict]], None], bar: Any) -> list[dict]:
    """Computes the jobs of which there are no rows yet, saving after each, and returns the rows of all in their order.

    Args:
      jobs: In the order of the table.
      rows: Those of an earlier run, also of one whose rows lack columns that came later; rows of jobs that are not
        asked for are dropped.
      save: Called with all rows so far.
      bar: A tqdm bar; it counts jobs and says in words which one runs.
    """
    found = [[_completed(row, job) for row in rows if _is_of(row, job.key)] for job in jobs]
    if any("job" not in row for row in rows):  # an earlier version's
        save([row for kept in found for row in kept])
    bar.n = bar.initial = sum(map(bool, found))
    bar.refresh()
    for i, job in enumerate(jobs):
        if found[i]:
            continue
        bar.set_description(job.name)
        done, start = bar.n, time.perf_counter()
        computed = job.compute(bar.update)
        seconds = time.perf_counter() - start
        found[i] = [_completed(job.key | row | {"seconds": seconds}, job) for row in computed]
        bar.update(done + 1 - bar.n)
        save([row for kept in found for row in kept])
    return [row for kept in found for row in kept]


def _is_of(row: dict, key: dict) -> bool:
    return all(row.get(column) == value for column, value in key.items())


def _completed(row: dict, job: Job) -> dict:
    return {column: "" for column in COLUMNS} | row | {"job": job.name}
