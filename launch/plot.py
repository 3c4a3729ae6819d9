"""Draw a run's figures again from its CSV files; nothing is computed. Takes a second.

    python -m launch.plot --run_dir=runs/first

writes runs/first/convergence.png, Figure 1 of Hardt & Ma, from metrics.csv; for a directory of
launch.ablations, its figures from results.csv; for one of launch.check_theory or of
launch.shortcut_study, all its figures; for one of launch.hessian_spectrum, spectrum.png.
--format=pdf or svg draws them for a paper.
"""

import dataclasses
import importlib
import os
from typing import Literal

from identity_matters.fields import check_fields
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
      format: What kind of file to write.
    """

    title: str = ""
    format: Literal["png", "pdf", "svg"] = "png"

    def __post_init__(self) -> None:
        check_fields(self)


def main(config: PlotConfig, run_dir: str) -> None:
    """Draws the figures of a run and prints their paths."""
    from identity_matters.runs.figures import save_figures

    record = read_record(run_dir)
    kind = record["kind"] if record else _kind_of_tables(run_dir)
    options = {"title": config.title} if kind in TITLED else {}
    with made_of(run_dir):
        figures = importlib.import_module(f"launch.{kind}").figures(run_dir, **options)
        paths = save_figures(figures, run_dir, config.format)
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
