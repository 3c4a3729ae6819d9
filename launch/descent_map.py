"""Map which targets gradient descent reaches on linear residual networks of up to 64 layers, by start.

    python -m launch.descent_map --run_dir=runs/descent

trains them by descent, momentum and orthogonalised updates at 11 step sizes, in about 3 minutes on
2 cores, and writes results.csv, and the data (CSV) and the figures (PNG) of docs/appendix/descent.md.
The same command continues an interrupted run.
"""

import dataclasses
import functools
import os
from typing import TYPE_CHECKING

from tqdm import tqdm

from identity_matters.errors import damaged_table, explaining
from identity_matters.fields import check_fields, option
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.job_table import Job, JobTable
from identity_matters.runs.tables import read_rows, write_metrics
from launch import launcher
from theory.descent import target_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class MapConfig:
    """The seed of the random numbers.

    Attributes:
      seed: Seed of the targets and starts.
    """

    seed: int = option(0, at_least=0)

    def __post_init__(self) -> None:
        check_fields(self)


def main(config: MapConfig, run_dir: str | None) -> None:
    """Computes the map and, where there is a run directory, the data of the other figures; draws them."""
    if run_dir is None:
        return _map(config.seed, None)
    with RunDirectory(run_dir, config, "descent_map") as run:
        run.set_status("running")
        _figure_data(run, config.seed)
        _map(config.seed, run.file("results.csv"))
        with explaining(damaged_table(run.path)):
            from identity_matters.runs.figures import save_figures

            save_figures(lambda: figures(run.path), run.path)
        run.set_status("done")
    print(f"files: {run_dir}")


def _figure_data(run: RunDirectory, seed: int) -> None:
    from theory.figures import DESCENT_EXPERIMENTS  # which loads matplotlib

    for name, experiment in tqdm(DESCENT_EXPERIMENTS.items(), desc="figures", disable=None):
        if not os.path.exists(run.file(f"{name}.csv")):
            write_metrics(run.file(f"{name}.csv"), experiment(seed))


def _map(seed: int, path: str | None) -> None:
    """Prints one line per job."""

    def compute(cell: target_map.Job, progress: object) -> list[dict]:
        return target_map.run_job(cell, seed)

    def write_line(job: Job, rows: list[dict]) -> None:
        with explaining(damaged_table(path or "")):  # rows of an earlier call may lack columns
            tqdm.write(_line(job.key, rows))

    jobs = [
        Job(cell._asdict(), functools.partial(compute, cell), ", ".join(map(str, cell)), len(target_map.SPEEDS))
        for cell in target_map.jobs()
    ]
    with tqdm(total=len(jobs), disable=None) as bar:
        JobTable(path).run_all(jobs, bar, write_line)


def figures(run_dir: str) -> "dict[str, Figure]":
    """Returns the figures whose data a run directory holds, by name."""
    from theory.descent.figures import map_figures
    from theory.figures import DESCENT_FIGURES

    drawn = {}
    for name, figure in DESCENT_FIGURES.items():
        if rows := read_rows(os.path.join(run_dir, f"{name}.csv")):
            drawn[name] = figure(rows)
    rows = read_rows(os.path.join(run_dir, "results.csv"))
    return drawn | (map_figures(rows) if rows else {})


def _line(cell: dict, rows: list[dict]) -> str:
    """Returns one line: the cell of the map, and the step size that reached the target first."""
    setting = f"{cell['target']}, {cell['start']}, {cell['method']}, ℓ = {cell['num_layers']}, d = {cell['dimension']}"
    reached = [row for row in rows if row["status"] == "reached"]
    if not reached:
        least = min(row["excess"] for row in rows)
        return f"{setting}: not reached; lowest excess risk {least:.1%} of f(0)"
    best = min(reached, key=lambda row: row["steps"])
    sizes = f"{len(reached)} of {len(rows)} step sizes"
    return f"{setting}: {best['steps']} steps at η = {best['speed']:g}/ℓ; reached with {sizes}"


cli = launcher.command(main, {"": MapConfig()}, manual=__doc__, needs_run_dir=False)

if __name__ == "__main__":
    cli()
