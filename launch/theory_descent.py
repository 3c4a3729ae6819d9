"""The work of `launch.check_theory --experiment=descent`: the map and the figures of docs/descent.md."""

import os
from typing import TYPE_CHECKING

from identity_matters.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from identity_matters.runs.directory import RunDirectory


def run_descent(seed: int, run: "RunDirectory | None") -> None:
    """Runs what is missing, prints a line a job, and goes on where an interrupted run of this directory stopped.

    results.csv has the rows of `theory.descent.target_map`, written after each job; a figure has its data in NAME.csv.

    Args:
      seed: Seed of targets and starts.
      run: Where the files go. None: nothing is written, and only the map is run.
    """
    from tqdm import tqdm

    from identity_matters.runs.figures import save_figures
    from identity_matters.runs.tables import read_rows, reporting_damaged_table, write_metrics
    from theory.descent import target_map as descent_map
    from theory.figures import DESCENT_EXPERIMENTS as EXPERIMENTS

    for name in tqdm(EXPERIMENTS, desc="figures", disable=None) if run else ():
        if not os.path.exists(run.file(f"{name}.csv")):
            write_metrics(run.file(f"{name}.csv"), EXPERIMENTS[name](seed))
    rows = read_rows(run.file("results.csv")) if run else []
    done, jobs = len(rows) // len(descent_map.SPEEDS), descent_map.jobs()
    if [row.get("speed") for row in rows] != done * list(descent_map.SPEEDS) or done > len(jobs):
        raise UserError(f"{run.file('results.csv')} does not hold the rows of whole jobs; remove it to begin again")
    found = descent_map.run(seed, skip=done)
    for job in tqdm(jobs[done:], initial=done, total=len(jobs), desc="map", disable=None):
        rows += next(found)
        tqdm.write(_line(job, rows[-len(descent_map.SPEEDS) :]))
        if run:
            write_metrics(run.file("results.csv"), rows)
    if run:
        with reporting_damaged_table(run.path):
            save_figures(descent_figures(run.path), run.path)
        print(f"files: {run.path}")


def descent_figures(run_dir: str) -> "dict[str, Figure]":
    """Returns the figures whose data a run directory holds, by name."""
    from identity_matters.runs.tables import read_rows
    from theory.descent.figures import map_figure
    from theory.figures import DESCENT_FIGURES as FIGURES

    drawn = {}
    for name, figure in {**FIGURES, "map": map_figure}.items():
        rows = read_rows(os.path.join(run_dir, f"{'results' if name == 'map' else name}.csv"))
        if rows and (name != "map" or "speed" in rows[0]):
            drawn[name] = figure(rows)
    return drawn


def _line(job: tuple, rows: list[dict]) -> str:
    """One line: the job, and at which step sizes it reached the target soonest."""
    setting = f"{job.target}, {job.start}, {job.method}, ℓ = {job.num_layers}, d = {job.dimension}"
    reached = [row for row in rows if row["status"] == "reached"]
    if not reached:
        least = min(row["excess"] for row in rows)
        return f"{setting}: not reached, excess {least:.1%} of f(0) at best"
    best = min(reached, key=lambda row: row["steps"])
    return f"{setting}: {best['steps']} steps at η = {best['speed']:g}/ℓ; reached at {len(reached)} of {len(rows)} η"
