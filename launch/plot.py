"""Draw a run's figures again from its CSV files; nothing is computed. Takes a second.

    python -m launch.plot --run_dir=runs/first

writes runs/first/convergence.png, Figure 1 of Hardt & Ma, from metrics.csv; for a directory of
launch.ablations, ablations.png from results.csv; for one of launch.check_theory or of
launch.shortcut_study, all its figures; for one of launch.hessian_spectrum, spectrum.png.
"""

import dataclasses
import importlib
import os

from identity_matters.runs.directory import read_record
from identity_matters.runs.errors import UserError
from identity_matters.runs.tables import made_of, read_rows
from launch import launcher

TITLED = ("train", "ablations")  # kinds of runs whose figures have no title of their own


@dataclasses.dataclass(frozen=True)
class PlotConfig:
    """What to draw.

    Attributes:
      title: Title of the figure (empty: none). Figures of launch.check_theory and launch.shortcut_study have their own.
    """

    title: str = ""


def main(config: PlotConfig, run_dir: str) -> None:
    """Draws the figures of a run and prints their paths."""
    record = read_record(run_dir)
    kind = record["kind"] if record else _kind_of_tables(run_dir)
    options = {"title": config.title} if kind in TITLED else {}
    with made_of(run_dir):
        paths = importlib.import_module(f"launch.{kind}").draw_figures(run_dir, **options)
    if not paths:
        raise UserError(f"{run_dir} holds results without the data of figures; let launch.{kind} end, with its figures")
    print("\n".join(paths))


def _kind_of_tables(run_dir: str) -> str:
    """The kind of run that CSV files without their config.json come from."""
    tables = {name for name in (os.listdir(run_dir) if os.path.isdir(run_dir) else ()) if name.endswith(".csv")}
    if not tables:
        raise UserError(f"{run_dir} holds no config.json, metrics.csv or other table of a run")
    for name, kind in (("metrics.csv", "train"), ("density.csv", "hessian_spectrum")):
        if name in tables:
            return kind
    rows = read_rows(os.path.join(run_dir, "results.csv"))
    kinds = {"variant": "ablations", "experiment": "shortcut_study"}
    return next((kinds[column] for row in rows[:1] for column in row if column in kinds), "check_theory")


def cli() -> None:
    """Runs the launcher with the command line's flags."""
    launcher.run(main, {"": PlotConfig()}, manual=__doc__)


if __name__ == "__main__":
    cli()
