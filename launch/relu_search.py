"""Search for bad critical points of ReLU residual networks near zero, the conjecture of Hardt & Ma §5.

    python -m launch.relu_search --run_dir=runs/relu

takes about 1 minute; --trials=1000 as in the docs takes 4. Prints the counts with their confidence
bounds as they come, and writes them to results.csv, every point to points.csv, a table to search.md,
and a figure. The same command continues an interrupted search.
"""

import dataclasses
import functools
import os

from identity_matters.fields import Checked, option
from identity_matters.runs.job_table import Job, JobTable, Progress
from identity_matters.runs.tables import percent, read_rows
from launch import launcher
from launch.experiment import Experiment, Figures, Report, run
from theory.relu import search


@dataclasses.dataclass(frozen=True)
class SearchConfig(Checked):
    """The number of starts, and their seed.

    Attributes:
      trials: Number of random starts for each setting.
      seed: Seed of the teachers, samples and starts.
    """

    trials: int = option(100, at_least=1)
    seed: int = option(0, at_least=0)


def main(config: SearchConfig, run_dir: str | None = None) -> int:
    """Searches every setting by both methods."""
    keys = [setting._asdict() | {"method": method} for setting in search.SETTINGS for method in search.METHODS]

    @functools.cache
    def points() -> JobTable:
        table = JobTable(os.path.join(run_dir, "points.csv") if run_dir else None)
        for key in keys:
            table.find(Job(key, lambda _: [], num_rows=config.trials))  # this sets the order of the rows
        return table

    def compute(key: dict, progress: Progress) -> list[dict]:
        table = points()  # before the search, which a damaged table would waste
        *setting, method = key.values()
        seed = [config.seed, search.SETTINGS.index(search.Setting(*setting))]  # both methods see the same draws
        row, ends = search.measure(search.Setting(*setting), method, config.trials, max(5, config.trials // 40), seed)
        progress(0)
        # The points are saved first: results.csv then holds only rows that are done.
        table.run(Job(key, lambda _: ends, num_rows=config.trials))
        return [row]

    jobs = [Job(key, functools.partial(compute, key), _setting(key), num_rows=1) for key in keys]

    def report(_: object, rows: list[dict]) -> Report:
        from theory.relu.figures import table

        return Report(files={"search.md": table(rows) + "\n"})

    return run(Experiment("relu_search", {"results.csv": jobs}, figures, report, _line), config, run_dir)


def figures(run_dir: str) -> Figures:
    """Returns the figure of the points that a run directory holds, by name."""
    from theory.relu.figures import relu_search_figure

    rows, points = (read_rows(os.path.join(run_dir, f"{name}.csv")) for name in ("results", "points"))
    return {"relu_search": relu_search_figure(rows, points)} if points else {}


def _setting(row: dict) -> str:
    setting = f"d {row['d']}, blocks {row['num_layers']}, width {row['width']}, m {row['samples']}, τ {row['radius']:g}"
    return f"{setting}, minimising {'f' if row['method'] == 'risk' else '‖∇f‖'}"


def _line(_: Job, rows: list[dict]) -> str:
    (row,) = rows
    count, low, high = (row[f"bad_local_minimum{end}"] for end in ("", "_low", "_high"))
    counts = [f"{row[name]} {name.replace('_', ' ')}" for name in search.CATEGORIES if row[name]]
    bad = f"bad local minima {percent(count / row['trials'], 1)} (95 %: {percent(low, 1)} – {percent(high, 1)})"
    return f"{_setting(row)}: {row['trials']} starts led to\n    {', '.join(counts)}\n    {bad}"


cli = launcher.command(main, {"": SearchConfig()}, manual=__doc__, run_dir="optional")

if __name__ == "__main__":
    cli()
