"""The spine of a command that computes jobs: it opens and continues the run, draws it, and prints its results.

    def main(config: SizeConfig, run_dir: str | None = None) -> int:
        jobs = [Job({"seed": seed}, lambda _, seed=seed: [{"size": size(seed)}]) for seed in range(config.seeds)]
        return run(Experiment("sizes", {"results.csv": jobs}, figures, report), config, run_dir)

A command is its manual, its config, its jobs, its figures and its report; all else is here.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tqdm import tqdm

from identity_matters.errors import EXIT_ERROR, table_error, translate_errors
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import remove, write_text
from identity_matters.runs.job_table import Job, JobTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures: TypeAlias = "dict[str, Figure]"  # by their names, as `figures(run_dir)` of a launcher returns them
_BAR = "{desc} {percentage:3.0f}% |{bar}| {n:.0f} of {total} jobs, {elapsed}"


class Report(NamedTuple):
    """What the rows of an experiment say.

    Attributes:
      text: Is printed when all is done.
      verdict: Is printed last, after the line that names the run directory.
      files: The texts to write into the run directory, by the names of their files.
      details: What config.json says beside the status "done".
      failed: Whether a check failed: then the status is "failed" and the exit code 1.
      print_run_dir: Whether the run directory is printed after the text.
    """

    text: str = ""
    verdict: str = ""
    files: Mapping[str, str] = {}
    details: Mapping[str, Any] = {}
    failed: bool = False
    print_run_dir: bool = True


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What a command computes, draws and prints.

    Attributes:
      name: The command without `launch.`, one of record.RUN_TYPES.
      tables: The jobs of each table, by the name of its file, in the order in which they are computed. The run begins
        when a job says how far it is, or is done; a job that writes files of its own calls progress(0) before.
      figures: Takes the run directory, whose tables are there; returns the figures by their names.
      report: Takes the locked run directory, or None without one, and the rows of each of the tables. The
        seconds of the directory's record are those of the last call that computed something; None: not known.
      line: Takes a job and its rows; returns what is printed once these are there, "" for nothing.
      figure_data: The functions that compute the rows of further tables, NAME.csv, which only figures read. Without a
        run directory they are not called.
      data_digest: Digest of the data, or a text that tells them from others: data may be moved, but not changed.
      details: What config.json says beside the status, from the first job on.
      check: Takes the run directory before it is made or locked; raises UserError if it cannot begin or continue.
      rerun_when_done: Whether a finished run is computed again, because the code that it checks may have changed.
      always_show_progress: Whether the progress bar is also shown if stderr is no terminal.
    """

    name: str
    tables: Mapping[str, Sequence[Job]]
    figures: Callable[[str], Figures]
    report: Callable[..., Report] = lambda *_: Report()
    line: Callable[[Job, list[dict]], str] = lambda job, rows: ""
    figure_data: Mapping[str, Callable[[], list[dict]]] = dataclasses.field(default_factory=dict)
    data_digest: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    check: Callable[[RunDirectory], Any] = lambda directory: None
    rerun_when_done: bool = False
    always_show_progress: bool = False


def run(experiment: Experiment, config: Any, run_dir: str | None) -> int:
    """Computes the jobs that are missing, draws the figures and prints the report; returns the exit code.

    Each job is saved when it is done, so the same command continues a killed run behind its last whole job, and prints
    the results of a finished one. Without a run directory the rows are held in memory, and nothing is drawn.

    Raises:
      UserError: the run directory belongs to another config or to other data, or a table in it cannot be read.
      RuntimeError: the rows of a table that an earlier call has written cannot be used.
    """
    opened = RunDirectory(run_dir, config, experiment.name, experiment.data_digest) if run_dir is not None else None
    if opened:
        experiment.check(opened)
    with opened or contextlib.nullcontext():
        report = _report(experiment, opened)
        if opened:
            for name, text in report.files.items():
                write_text(opened.file(name), text)
            opened.set_status("failed" if report.failed else "done", **{**experiment.details, **report.details})
    files = f"files: {run_dir}" if opened and report.print_run_dir else ""
    for text in filter(None, (report.text, files, report.verdict)):
        print(text)
    return EXIT_ERROR if report.failed else 0


def _report(experiment: Experiment, directory: RunDirectory | None) -> Report:
    """Computes the missing jobs of all tables, draws the figures, and returns what the rows say."""
    jobs = dict(experiment.tables)
    start = time.monotonic()
    has_computed = False
    if directory:
        for name, compute in experiment.figure_data.items():
            jobs[f"{name}.csv"] = [Job({}, lambda _, compute=compute: compute(), name)]
        if experiment.rerun_when_done and directory.status != "running":
            for name in jobs:
                remove(directory.file(name))
    tables = {name: JobTable(directory and directory.file(name)) for name in jobs}
    named = [(name, job) for name in jobs for job in jobs[name]]
    read = [name for name, table in tables.items() if table.rows]  # not computed by this call
    # All tables are looked through first: a damaged one is said before hours of work, and their order is set.
    is_whole = all([bool(tables[name].find(job)) for name, job in named])
    if directory and is_whole and directory.status == "done":
        print(f"{directory.path} is already finished; its results:")
    disable = False if experiment.always_show_progress else None  # None: hidden if stderr is no terminal
    with tqdm(total=len(named) + 1, bar_format=_BAR, dynamic_ncols=True, disable=disable) as bar:

        @functools.cache
        def begin() -> None:
            if directory:
                directory.set_status("running", seconds=None, **experiment.details)

        def advance(share: float) -> None:
            begin()  # not before the first job has: what a job refuses at once leaves no run
            bar.update(share)

        for name, job in named:
            table = tables[name]
            before = bar.n
            rows = table.find(job)
            if not rows:
                bar.set_description(job.label)
                rows = table.run(job, advance)
                has_computed = True
            bar.update(before + 1 - bar.n)
            with _naming_tables(directory, {name}.intersection(read)):
                line = experiment.line(job, rows) if name in experiment.tables else ""
                if line:
                    tqdm.write(line)
        bar.set_description("figures, results")
        if directory:
            from identity_matters.runs.figures import save_figures

            with _naming_tables(directory, read):
                save_figures(lambda: experiment.figures(directory.path), directory.path)
            if has_computed:
                directory.record.seconds = round(time.monotonic() - start, 1)
        with _naming_tables(directory, read):
            report = experiment.report(directory, *(tables[name].saved_rows() for name in experiment.tables))
        bar.update()
    return report


def _naming_tables(directory: RunDirectory | None, read: Collection[str]) -> contextlib.AbstractContextManager:
    """Returns the context in which an error names the tables that an earlier call has written, if there are any."""
    if directory is None or not read:
        return contextlib.nullcontext()
    return translate_errors(table_error(" or ".join(map(directory.file, read))))
