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

from identity_matters.fields import check_fields, option, require, split_names
from identity_matters.runs.config_json import read_config_json, seen_from_start
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import shortest_unique_suffixes, write_text
from launch import launcher
from launch.experiment import Figures
from launch.reporting import quick
from launch.reporting.runs import figures_of, read_run


@dataclasses.dataclass(frozen=True)
class ReportConfig:
    """The runs to report on.

    Attributes:
      runs: Run directories, with commas between them (empty: compute quick runs first).
    """

    runs: str = option("", path=True, compared=False)

    def __post_init__(self) -> None:
        check_fields(self)


def main(config: ReportConfig, run_dir: str) -> None:
    """Writes report.html in run_dir, after the quick runs where no others are given."""
    names = split_names(config.runs)
    require(names or not config.runs, f"runs names no directory, got {config.runs!r}; leave it empty for quick runs")
    require(len(set(map(os.path.realpath, names))) == len(names), f"runs names a directory twice, got {config.runs!r}")
    from launch.reporting import page  # which draws

    given = [read_run(name, run_dir) for name in names]  # a mistake in a name leaves no run directory
    with RunDirectory(run_dir, config, "report") as run:
        run.set_status("running")
        runs = given or [read_run(name, run_dir) for name in quick.compute(run)]
        write_text(run.file("report.html"), page.render(runs))
        run.set_status("done")
    print(f"report: {run.file('report.html')}")


def figures(run_dir: str) -> Figures:
    """Returns the figures of the runs of a report, by the names of the run and of the figure.

    Raises:
      UserError: a run that the report names is gone.
    """
    contents = read_config_json(run_dir)
    given = [seen_from_start(contents, name) for name in split_names(contents["config"]["runs"])]
    gone = [path for path in given if not read_config_json(path)]
    require(not gone, f"{run_dir} is a report on runs that are no longer there: {', '.join(gone)}")
    computed = (os.path.join(run_dir, run.name) for run in quick.QUICK)
    paths = given or [path for path in computed if read_config_json(path)]  # an interrupted report lacks some
    labels = [name.replace("/", "_") for name in shortest_unique_suffixes(paths)]
    if len(set(labels)) < len(labels):  # of a/b_c and a_b/c
        labels = [f"{number}_{label}" for number, label in enumerate(labels, 1)]
    drawn = zip(labels, map(figures_of, paths))
    return {f"{label}_{name}": figure for label, figures in drawn for name, figure in figures.items()}


cli = launcher.command(main, {"": ReportConfig()}, manual=__doc__)

if __name__ == "__main__":
    cli()
