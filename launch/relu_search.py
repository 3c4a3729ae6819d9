"""Search for bad critical points of ReLU residual networks near zero, the conjecture of Hardt & Ma §5.

    python -m launch.relu_search --run_dir=runs/relu

takes about 1 minute; --trials=1000 as in the docs takes 4. Prints the counts with their confidence
bounds as they come, and writes them to results.csv, every point to points.csv, a table to search.md,
and a figure. The same command continues an interrupted search.
"""

import dataclasses
import itertools
import os
from typing import TYPE_CHECKING

from identity_matters.errors import damaged_table, explaining
from identity_matters.fields import check_fields, option
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import write_text
from identity_matters.runs.job_table import Job, JobTable
from identity_matters.runs.tables import read_rows
from launch import launcher
from theory.relu import search

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """The number of starts, and their seed.

    Attributes:
      trials: Number of random starts for each setting.
      seed: Seed of the teachers, samples and starts.
    """

    trials: int = option(100, at_least=1)
    seed: int = option(0, at_least=0)

    def __post_init__(self) -> None:
        check_fields(self)


def main(config: SearchConfig, run_dir: str | None) -> None:
    """Searches every setting by both methods."""
    if run_dir is None:
        return _search(config, None, None)
    with RunDirectory(run_dir, config, "relu_search") as run:
        run.set_status("running")
        _search(config, run.file("results.csv"), run.file("points.csv"))
        with explaining(damaged_table(run.file("results.csv"))):
            _draw(run_dir)
        run.set_status("done")
    print(f"files: {run_dir}")


def _search(config: SearchConfig, results: str | None, points_path: str | None) -> None:
    """Prints a row as it is computed or read from the table."""
    table, points = JobTable(results), JobTable(points_path)
    checks = max(5, config.trials // 40)
    for (number, setting), method in itertools.product(enumerate(search.SETTINGS), search.METHODS):
        key, seed = setting._asdict() | {"method": method}, [config.seed, number]  # both methods see the same draws

        def compute(_: object) -> list[dict]:
            row, ends = search.measure(setting, method, config.trials, checks, seed)  # noqa: B023
            # The points are saved first: results.csv then holds only rows that are done.
            points.run(Job(key, lambda _: ends, num_rows=config.trials))  # noqa: B023
            return [row]

        (row,) = table.run(Job(key, compute, num_rows=1))
        with explaining(damaged_table(results or "")):  # a row of an earlier call may lack columns
            print(_line(row), flush=True)


def _draw(run_dir: str) -> None:
    from identity_matters.runs.figures import save_figures
    from theory.relu import figures as relu_figures

    table = relu_figures.table(read_rows(os.path.join(run_dir, "results.csv")))
    write_text(os.path.join(run_dir, "search.md"), table + "\n")
    save_figures(lambda: figures(run_dir), run_dir)


def figures(run_dir: str) -> "dict[str, Figure]":
    """Returns the figure of the points that a run directory holds, by name."""
    from theory.relu.figures import relu_search_figure

    rows, points = (read_rows(os.path.join(run_dir, f"{name}.csv")) for name in ("results", "points"))
    return {"relu_search": relu_search_figure(rows, points)} if points else {}


def _line(row: dict) -> str:
    count, low, high = (row[f"bad_local_minimum{end}"] for end in ("", "_low", "_high"))
    counts = [f"{row[name]} {name.replace('_', ' ')}" for name in search.CATEGORIES if row[name]]
    setting = f"d {row['d']}, blocks {row['num_layers']}, width {row['width']}, m {row['samples']}, τ {row['radius']:g}"
    lines = f"{setting}, minimising {'f' if row['method'] == 'risk' else '‖∇f‖'}: {row['trials']} starts led to"
    bad = f"bad local minima {count / row['trials']:.1%} (95 %: {low:.1%} – {high:.1%})"
    return f"{lines}\n    {', '.join(counts)}\n    {bad}"


cli = launcher.command(main, {"": SearchConfig()}, manual=__doc__, needs_run_dir=False)

if __name__ == "__main__":
    cli()
