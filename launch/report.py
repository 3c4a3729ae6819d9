"""Write report.html, a self-contained page about runs: figures, claims, results, and what was not run.

    python -m launch.report --run_dir=runs/report

checks the claims, trains on the embedded digits and draws the figures of Li et al. at toy size,
each in its own directory under run_dir, in about 3 minutes on 2 idle cores, and writes
runs/report/report.html. The same command continues an interrupted report.

    python -m launch.report --runs=runs/first,runs/study --run_dir=runs/report

computes nothing: it reports on existing runs, of any launcher, as they are now.
"""

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from identity_matters.errors import EXIT_CONTINUE, Preempted, UserError
from identity_matters.fields import Checked, option, require, split_names
from identity_matters.runs import signals
from identity_matters.runs.config_json import FINISHED, read_config_json, seen_from_start
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import open_log, shortest_unique_suffixes, write_text
from launch import launcher
from launch.experiment import Figures
from launch.local_cluster import die_with_parent
from launch.reporting.runs import figures_of, read_run

POLL_INTERVAL = 0.1  # seconds


class Quick(NamedTuple):
    """A run of a few minutes at most."""

    name: str  # of its directory
    module: str
    flags: tuple[str, ...]  # beside --run_dir
    duration: str  # on 2 idle cores


QUICK = (
    Quick("claims", "launch.check_theory", (), "a minute"),
    Quick("digits", "launch.train", (), "a minute"),
    Quick("study", "launch.shortcut_study", ("--preset=smoke",), "half a minute"),
)


@dataclasses.dataclass(frozen=True)
class ReportConfig(Checked):
    """The runs to report on.

    Attributes:
      runs: Run directories, with commas between them (empty: compute quick runs first).
    """

    runs: str = option("", path=True, compared=False)


def main(config: ReportConfig, run_dir: str) -> None:
    """Writes report.html in run_dir, after the quick runs where no others are given."""
    names = split_names(config.runs)
    require(names or not config.runs, f"runs names no directory, got {config.runs!r}; leave it empty for quick runs")
    require(len(set(map(os.path.realpath, names))) == len(names), f"runs names a directory twice, got {config.runs!r}")
    from launch.reporting import page  # which draws

    given = [read_run(name, run_dir) for name in names]  # a mistake in a name leaves no run directory
    with RunDirectory(run_dir, config, "report") as run:
        run.set_status("running")
        runs = given or [read_run(name, run_dir) for name in compute_quick_runs(run)]
        write_text(run.file("report.html"), page.render(runs))
        run.set_status("done")
    print(f"report: {run.file('report.html')}")


def compute_quick_runs(run: RunDirectory) -> list[str]:
    """Returns the directories of the quick runs in a report's; those that are done are kept, others are computed.

    Raises:
      UserError: a run ended before it was done.
      Preempted: SIGTERM came; the run under way got it too.
    """
    folders = [run.file(quick.name) for quick in QUICK]
    for number, (quick, folder) in enumerate(zip(QUICK, folders), 1):
        start = f"[{number}/{len(QUICK)}] {quick.name}"
        if _status(folder) in FINISHED:
            print(f"{start}: already {_status(folder)}", flush=True)
            continue
        command = [sys.executable, "-m", quick.module, f"--run_dir={folder}", *quick.flags]
        print(f"{start}: python {shlex.join(command[1:])}, {quick.duration} on 2 idle cores", flush=True)
        began, log = time.perf_counter(), f"{folder}.log"
        code = _run(command, log)
        if _status(folder) not in (*FINISHED, "failed"):  # a check that failed is a result
            raise UserError(f"{quick.module} ended with exit code {code} before it was done; its output is in {log}")
        print(f"{start}: {_status(folder)} after {(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
    return folders


def _status(folder: str) -> str:
    contents = read_config_json(folder)
    return contents["status"] if contents else ""


def _run(command: list[str], log_path: str) -> int:
    """Runs a command whose output goes to a file, and its progress bar here; returns its exit code."""
    with open_log(log_path, "w") as log:
        process = subprocess.Popen(command, stdout=log, preexec_fn=die_with_parent)
    with signals.deferring_signals() as stop:  # as an exception, Ctrl-C would come again while the run is still saving
        try:
            while process.poll() is None and not stop.received:
                time.sleep(POLL_INTERVAL)
        finally:
            if process.poll() is None:  # which saves what it has
                process.terminate()
                process.wait()
    if stop.number == signal.SIGINT:
        raise KeyboardInterrupt
    if stop.received or process.returncode == EXIT_CONTINUE:
        raise Preempted()
    return process.returncode


def figures(run_dir: str) -> Figures:
    """Returns the figures of the runs of a report, by the names of the run and of the figure.

    Raises:
      UserError: a run that the report names is gone.
    """
    contents = read_config_json(run_dir)
    given = [seen_from_start(contents, name) for name in split_names(contents["config"]["runs"])]
    gone = [path for path in given if not read_config_json(path)]
    require(not gone, f"{run_dir} is a report on runs that are no longer there: {', '.join(gone)}")
    computed = (os.path.join(run_dir, quick.name) for quick in QUICK)
    paths = given or [path for path in computed if read_config_json(path)]  # an interrupted report lacks some
    labels = [name.replace("/", "_") for name in shortest_unique_suffixes(paths)]
    if len(set(labels)) < len(labels):  # of a/b_c and a_b/c
        labels = [f"{number}_{label}" for number, label in enumerate(labels, 1)]
    drawn = zip(labels, map(figures_of, paths))
    return {f"{label}_{name}": figure for label, figures in drawn for name, figure in figures.items()}


cli = launcher.command(main, {"": ReportConfig()}, manual=__doc__)

if __name__ == "__main__":
    cli()
