"""The spine of a command that computes jobs: it opens and continues the run, draws it, and prints its results.

    def main(config: SizeConfig, run_dir: str | None = None) -> int:
        jobs = [Job({"seed": seed}, lambda _, seed=seed: [{"size": size(seed)}]) for seed in range(config.seeds)]
        return run(Experiment("sizes", {"results.csv": jobs}, figures, report), config, run_dir)

A command is its manual, its config, its jobs, its figures and its report; all else is here.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from identity_matters.errors import EXIT_ERROR, damaged_table, explaining
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import remove, write_text
from identity_matters.runs.job_table import Job, JobTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR = "{desc} {percentage:3.0f}% |{bar}| {n:.0f} of {total} jobs, {elapsed}"


class Report(NamedTuple):
    """What the rows of an experiment say.

    Attributes:
      text: Is printed when all is done.
      verdict: Is printed last, after the line that names the run directory.
      files: The texts to write into the run directory, by the names of their files.
      details: What config.json says beside the status "done".
      failed: Whether a check failed: then the status is "failed" and the exit code 1.
      names_files: Whether the run directory is printed after the text.
    """

    text: str = ""
    verdict: str = ""
    files: Mapping[str, str] = {}
    details: Mapping[str, Any] = {}
    failed: bool = False
    names_files: bool = True


Line = Callable[[Job, list[dict]], str]


def _no_line(job: Job, rows: list[dict]) -> str:
    return ""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What a command computes, draws and prints.

    Attributes:
      name: The command without `launch.`, a key of config_json.RUN_TYPES.
      tables: The jobs of each table, by the name of its file, in the order in which they are computed.
      figures: Takes the run directory, whose tables are there; returns the figures by their names.
      report: Takes the locked run directory, or None where there is none, and the rows of each of the tables.
      line: Takes a job and its rows; returns what is printed once these are there, "" for nothing.
      figure_data: The functions that compute the rows of further tables, NAME.csv, which only figures read. Without a
        run directory they are not called.
      data_digest: Digest of the data, or a line that tells them from others: data may be moved, but not changed.
      details: What config.json says beside the status, from the first job on; a weights_digest stays in it for good.
      check: Takes the locked run directory before anything is computed; raises UserError where it cannot continue.
      computes_again: Whether a finished run is computed again, because the code that it checks may have changed.
      shows_bar: Whether the progress bar is also shown where stderr is no terminal.
    """

    name: str
    tables: Mapping[str, Sequence[Job]]
    figures: "Callable[[str], dict[str, Figure]]"
    report: Callable[..., Report] = lambda *_: Report()
    line: Line = _no_line
    figure_data: Mapping[str, Callable[[], list[dict]]] = dataclasses.field(default_factory=dict)
    data_digest: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    check: Callable[[RunDirectory], Any] = lambda directory: None
    computes_again: bool = False
    shows_bar: bool = False


def run(experiment: Experiment, config: Any, run_dir: str | None) -> int:
    """Computes the jobs that are missing, draws the figures and prints the report; returns the exit code.

    Each job is saved when it is done, so the same command continues a killed run behind its last whole job, and prints
    the results of a finished one. Without a run directory the rows are held in memory, and nothing is drawn.

    Raises:
      UserError: the run directory belongs to another config or to other data, or a table in it is damaged.
    """
    opened = RunDirectory(run_dir, config, experiment.name, experiment.data_digest) if run_dir is not None else None
    with opened or contextlib.nullcontext():
        if opened:
            experiment.check(opened)
        report = _report(experiment, opened)
        if opened:
            for name, text in report.files.items():
                write_text(opened.file(name), text)
            opened.set_status("failed" if report.failed else "done", **{**experiment.details, **report.details})
    files = f"files: {run_dir}" if opened and report.names_files else ""
    for text in filter(None, (report.text, files, report.verdict)):
        print(text)
    return EXIT_ERROR if report.failed else 0


def _report(experiment: Experiment, directory: RunDirectory | None) -> Report:
    """Computes the missing jobs of all tables, draws the figures, and returns what the rows say."""
    jobs = dict(experiment.tables)
    if directory:
        for name, compute in experiment.figure_data.items():
            jobs[f"{name}.csv"] = [Job({}, lambda _, compute=compute: compute(), name)]
        if experiment.computes_again and directory.status != "running":
            for name in jobs:
                remove(directory.file(name))
    tables = {name: JobTable(directory and directory.file(name)) for name in jobs}
    # All tables are looked through first: a damaged one is said before hours of work, and leaves config.json alone.
    is_whole = all([bool(table.find(job)) for name, table in tables.items() for job in jobs[name]])
    if directory and not is_whole:
        directory.set_status("running", **experiment.details)
    elif directory and directory.status == "done":
        print(f"{directory.path} is already finished; its results:")
    total = sum(map(len, jobs.values())) + 1
    disable = False if experiment.shows_bar else None  # None: where stderr is no terminal
    with tqdm(total=total, bar_format=_BAR, dynamic_ncols=True, disable=disable) as bar:
        for name, table in tables.items():
            line = experiment.line if name in experiment.tables else _no_line
            table.run_all(jobs[name], bar, functools.partial(_write_line, directory, name, line))
        bar.set_description("figures, results")
        if directory:
            from identity_matters.runs.figures import save_figures

            with _explaining_tables(directory, ""):
                save_figures(lambda: experiment.figures(directory.path), directory.path)
        with _explaining_tables(directory, *experiment.tables):
            report = experiment.report(directory, *(tables[name].saved_rows() for name in experiment.tables))
        bar.update()
    return report


def _write_line(directory: RunDirectory | None, name: str, line: Line, job: Job, rows: list[dict]) -> None:
    """Prints the line of a job, whose rows are new or were in the table of this name."""
    with _explaining_tables(directory, name):
        if text := line(job, rows):
            tqdm.write(text)


def _explaining_tables(directory: RunDirectory | None, *names: str) -> contextlib.AbstractContextManager:
    """Returns the context in which errors on rows say which files are damaged; what was just computed is not."""
    paths = " or ".join(os.path.join(directory.path, name) for name in names) if directory else ""
    return explaining(damaged_table(paths)) if directory else contextlib.nullcontext()
