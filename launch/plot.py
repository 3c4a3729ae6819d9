"""Draw a run's figures again from its CSV files; nothing is computed. Takes a second.

    python -m launch.plot --run_dir=runs/first

writes runs/first/convergence.png, Figure 1 of Hardt & Ma, from metrics.csv; for a directory of
launch.ablations, its figures from results.csv; for one of launch.check_theory or of
launch.shortcut_study, all its figures; for one of launch.hessian_spectrum, spectrum.png; for one
of launch.near_identity, blocks.png.
--format=pdf or svg draws them for a paper.

    python -m launch.plot --run_dir=runs/first --beside=runs/second,runs/third

writes runs/first/comparison.png: the errors of several training runs, or the blocks of several of
launch.near_identity, in one figure. With
--names="BN-free,BN-free,batch norm" the legend has these names, and runs of one name are drawn as one group.
--level="6.38% as the paper prints it" adds a horizontal line at an error, with these words in the legend.
"""

import dataclasses
import importlib
import inspect
import os
import re
from typing import TYPE_CHECKING, Literal

from identity_matters.errors import UserError
from identity_matters.fields import check_fields, require, split_names
from identity_matters.runs.config_json import read_config_json
from identity_matters.runs.files import shortest_unique_suffixes
from identity_matters.runs.tables import read_metrics, read_rows, reporting_damaged_table
from launch import launcher, near_identity, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class PlotConfig:
    """What to draw.

    Attributes:
      title: Title of the figure (empty: none). Figures of launch.check_theory and launch.shortcut_study have their own.
      format: What kind of file to write.
      beside: Directories of other runs of this kind, with commas between them, to compare this one with.
      names: A name for each of the runs compared, this one's first, with commas between them (empty: directories). Runs
        of one name share a colour and a line of the legend, which gives the mean of their errors.
      level: An error to draw as a line in a figure of training runs: text that begins with its percentage, which the
        legend shows (empty: none).
    """

    title: str = ""
    format: Literal["png", "pdf", "svg"] = "png"
    beside: str = ""
    names: str = ""
    level: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.beside or not self.names, "names are of runs that are compared; name the others with beside")
        begins = not self.level or bool(self.levels)
        require(begins, f"level must begin with a percentage, as in '6.38% as printed', got {self.level!r}")

    @property
    def levels(self) -> dict[str, float]:
        """Returns the level as figures take it: the error, a fraction, by its text."""
        found = re.match(r"(\d+(?:\.\d+)?) ?%", self.level)
        return {self.level: float(found[1]) / 100} if found else {}


def main(config: PlotConfig, run_dir: str) -> None:
    """Draws the figures of a run and prints their paths."""
    from identity_matters.runs.figures import save_figures

    if config.beside:
        for name in ("beside", "names"):  # which stand in the legend
            text = getattr(config, name)
            require(text.isprintable(), f"--{name} holds characters that cannot be printed: {text!r}")
        others = split_names(config.beside)
        require(others, f"beside names no directory, got {config.beside!r}")
        figures = _comparison([run_dir, *others], config)
        print("\n".join(save_figures(figures, run_dir, config.format)))
        return
    record, kind = read_config_json(run_dir), _kind(run_dir)
    draw = importlib.import_module(f"launch.{kind}").figures
    takes = inspect.signature(draw).parameters
    require("levels" in takes or not config.level, f"level is of training runs; {run_dir} is one of launch.{kind}")
    options = {name: getattr(config, name) for name in ("title", "levels") if name in takes}
    with reporting_damaged_table(run_dir):
        figures = draw(run_dir, **options)
        paths = save_figures(figures, run_dir, config.format)
    if not paths:
        is_done = record is not None and record["status"] == "done"
        advice = "the run is done, and has none" if is_done else f"let launch.{kind} end, with its figures"
        raise UserError(f"{run_dir} holds results without the data of figures; {advice}")
    print("\n".join(paths))


def _comparison(run_dirs: list[str], config: PlotConfig) -> "dict[str, Figure]":
    """Returns the figure of several training runs, each named by as much of its path's end as tells them apart."""
    from identity_matters.runs.figures import comparison_figure

    names = shortest_unique_suffixes(run_dirs)
    names = [name.strip() for name in config.names.split(",")] if config.names else names
    require(len(names) == len(run_dirs), f"names has {len(names)} names for {len(run_dirs)} runs: {config.names}")
    if _kind(run_dirs[0]) == "near_identity":
        return near_identity.comparison(dict(zip(names, run_dirs)))
    tables = [read_metrics(os.path.join(path, "metrics.csv")) for path in run_dirs]
    runs = []
    for name, path, rows in zip(names, run_dirs, tables):
        split, place = train.what_is_drawn(path, rows)
        runs.append((name, split, rows, place))
    return {"comparison": comparison_figure(runs, config.title, config.levels)}


def _kind(run_dir: str) -> str:
    """The kind of a run, by its config.json or, without it, by its CSV files."""
    if record := read_config_json(run_dir):
        return record["kind"]
    tables = {name for name in (os.listdir(run_dir) if os.path.isdir(run_dir) else ()) if name.endswith(".csv")}
    require(len(tables) > 0, f"{run_dir} holds no config.json, metrics.csv or other table of a run")
    for name, kind in (("metrics.csv", "train"), ("density.csv", "hessian_spectrum")):
        if name in tables:
            return kind
    rows = read_rows(os.path.join(run_dir, "results.csv"))
    kinds = {"variant": "ablations", "experiment": "shortcut_study", "speed": "descent_map", "radius": "relu_search"}
    kinds["lipschitz"] = "near_identity"
    return next((kinds[column] for row in rows[:1] for column in row if column in kinds), "check_theory")


cli = launcher.command(
    main, {"": PlotConfig()}, manual=__doc__, run_dir_text="The run's directory, where its pictures go. Required."
)

if __name__ == "__main__":
    cli()
