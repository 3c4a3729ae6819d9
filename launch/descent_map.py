"""Map which targets gradient descent reaches on linear residual networks of up to 64 layers, by start.

    python -m launch.descent_map --run_dir=runs/descent

trains them by descent, momentum and orthogonalised updates at 11 step sizes, in about 3 minutes on
2 cores, and writes results.csv, and the data (CSV) and the figures (PNG) of docs/appendix/descent.md.
The same command continues an interrupted run.
"""

import dataclasses
import functools
import os

from identity_matters.fields import Checked, option
from identity_matters.runs.job_table import Job
from identity_matters.runs.tables import percent, read_rows
from launch import launcher
from launch.experiment import Experiment, Figures, run
from theory.descent import target_map


@dataclasses.dataclass(frozen=True)
class MapConfig(Checked):
    """The seed of the random numbers.

    Attributes:
      seed: Seed of the targets and starts.
    """

    seed: int = option(0, at_least=0)


def main(config: MapConfig, run_dir: str | None = None) -> int:
    """Computes the map and, if there is a run directory, the data of the other figures; draws them."""
    from theory.figures import DESCENT_EXPERIMENTS  # which loads matplotlib

    def job(cell: target_map.Job) -> Job:
        label = ", ".join(map(str, cell))
        return Job(cell._asdict(), lambda _: target_map.run_job(cell, config.seed), label, len(target_map.SPEEDS))

    jobs = list(map(job, target_map.jobs()))
    data = {name: functools.partial(experiment, config.seed) for name, experiment in DESCENT_EXPERIMENTS.items()}
    experiment = Experiment("descent_map", {"results.csv": jobs}, figures, line=_line, figure_data=data)
    return run(experiment, config, run_dir)


def figures(run_dir: str) -> Figures:
    """Returns the figures whose data a run directory holds, by name."""
    from theory.descent.figures import map_figures
    from theory.figures import DESCENT_FIGURES

    tables = {name: read_rows(os.path.join(run_dir, f"{name}.csv")) for name in (*DESCENT_FIGURES, "results")}
    results = tables.pop("results")
    drawn = {name: DESCENT_FIGURES[name](rows) for name, rows in tables.items() if rows}
    return drawn | map_figures(results) if results else drawn


def _line(job: Job, rows: list[dict]) -> str:
    """Describes a cell of the map: its place, and the step size that reached the target first."""
    cell = job.key
    setting = f"{cell['target']}, {cell['start']}, {cell['method']}, ℓ = {cell['num_layers']}, d = {cell['dimension']}"
    reached = [row for row in rows if row["status"] == "reached"]
    if not reached:
        least = min(row["excess"] for row in rows)
        return f"{setting}: not reached; lowest excess risk {percent(least, 1)} of f(0)"
    best = min(reached, key=lambda row: row["steps"])
    sizes = f"{len(reached)} of {len(rows)} step sizes"
    return f"{setting}: {best['steps']} steps at η = {best['speed']:g}/ℓ; reached with {sizes}"


cli = launcher.command(main, {"": MapConfig()}, manual=__doc__, run_dir="optional")

if __name__ == "__main__":
    cli()
