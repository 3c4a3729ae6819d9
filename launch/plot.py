"""Redraw a run's figures from its CSV files, without computing anything; this takes a second.

    python -m launch.plot --run_dir=runs/first

writes runs/first/convergence.png, Figure 1 of Hardt & Ma, from metrics.csv. It also takes the directories
of the other launchers: launch.ablations, launch.check_theory and launch.shortcut_study (all their
figures), launch.hessian_spectrum (spectrum.png) and launch.near_identity (blocks.png).
--format=pdf or svg with --style=paper draws figures for a paper: in a font like Times, both columns wide.

    python -m launch.plot --run_dir=runs/first --beside=runs/second,runs/third

writes runs/first/comparison.png: the errors of several training runs, or the blocks of several runs of
launch.near_identity, in one figure. Training runs are named by the settings in which they differ;
runs that differ only in the seed are drawn as one curve, their mean, with a band of one standard deviation.
--names="BN-free,BN-free,batch norm" gives other names; runs with the same name are drawn as one.
--level="6.38 % as the paper prints it" adds a horizontal line at that error, with this text in the legend.
"""

import dataclasses
import functools
import importlib
import inspect
import os
import re
from typing import Literal

from identity_matters.errors import UserError, table_error, translate_errors
from identity_matters.fields import check_fields, option, split_names
from identity_matters.runs.files import name_one_twice, shortest_unique_suffixes
from identity_matters.runs.record import differing, read_record
from identity_matters.runs.tables import read_metrics, read_rows
from launch import launcher, near_identity, train
from launch.experiment import Figures

MAX_DIFFERENCES = 3  # settings that name a run in a legend; beyond that its directory is the better name


@dataclasses.dataclass(frozen=True)
class PlotConfig:
    """The figures to draw.

    Attributes:
      title: Title of the figure (empty: none). Figures of launch.check_theory and launch.shortcut_study keep their own
        titles.
      format: Type of the files to write.
      style: screen: 200 dpi; paper: smaller, in a font like Times, 300 dpi.
      beside: Directories of other runs of the same type, with commas between them, to compare this one with.
      names: Name of each of the runs compared, this one's first, with commas between them (empty: the settings in which
        they differ, or their directories). Runs of the same name are drawn as one, with the mean of their errors.
      level: Add a horizontal line at an error to a figure of training runs: a text that begins with the error in
        percent, and that the legend shows (empty: none).
    """

    title: str = ""
    format: Literal["png", "pdf", "svg"] = "png"
    style: Literal["screen", "paper"] = "screen"
    beside: str = option("", path=True)
    names: str = ""
    level: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.names and not self.beside:
            raise UserError("names needs runs to compare; give the others with --beside")
        if self.level and not self.levels:
            raise UserError(f"level must begin with a percentage, as in '6.38 % as printed', got {self.level!r}")

    @property
    def levels(self) -> dict[str, float]:
        """Returns the level for figures: the error, a fraction, by its text."""
        percentage = re.match(r"(\d+(?:\.\d+)?) ?%", self.level)
        return {self.level: float(percentage[1]) / 100} if percentage else {}


def main(config: PlotConfig, run_dir: str) -> None:
    """Draws the figures of a run and prints their paths."""
    from identity_matters.runs.figures import save_figures

    if config.beside:
        for name in ("beside", "names"):  # which stand in the legend
            text = getattr(config, name)
            if not text.isprintable():
                raise UserError(f"--{name} holds characters that cannot be printed: {text!r}")
        others = split_names(config.beside)
        if not others:
            raise UserError(f"beside names no directory, got {config.beside!r}")
        compare = functools.partial(_comparison, [run_dir, *others], config)
        print("\n".join(save_figures(compare, run_dir, config.format, config.style)))
        return
    record = read_record(run_dir)
    kind = _kind(run_dir)
    draw = importlib.import_module(f"launch.{kind}").figures
    takes = inspect.signature(draw).parameters
    if config.level and "levels" not in takes:
        raise UserError(f"level is for training runs; {run_dir} is a run of launch.{kind}")
    options = {name: getattr(config, name) for name in ("title", "levels") if name in takes}
    with translate_errors(table_error(os.path.join(run_dir, "*.csv"))):
        paths = save_figures(lambda: draw(run_dir, **options), run_dir, config.format, config.style)
    if not paths:
        is_done = record is not None and record.status == "done"
        advice = "the run is done and has no figures" if is_done else f"wait until launch.{kind} has ended"
        raise UserError(f"{run_dir} holds no data to draw; {advice}")
    print("\n".join(paths))


def _comparison(run_dirs: list[str], config: PlotConfig) -> Figures:
    """Returns the figure of several training runs, or of the blocks of several networks."""
    from identity_matters.runs.figures import comparison_figure

    if name_one_twice(run_dirs):
        raise UserError(f"run_dir and beside name a directory twice: {', '.join(run_dirs)}")
    names = [name.strip() for name in config.names.split(",")] if config.names else names_of_runs(run_dirs)
    if len(names) != len(run_dirs):
        raise UserError(f"names has {len(names)} names for {len(run_dirs)} runs: {config.names}")
    if _kind(run_dirs[0]) == "near_identity":
        return near_identity.comparison(dict(zip(names, run_dirs)))
    tables = [read_metrics(os.path.join(path, "metrics.csv")) for path in run_dirs]
    runs = []
    for name, path, rows in zip(names, run_dirs, tables):
        split, place = train.what_is_drawn(path, rows)
        runs.append((name, split, rows, place))
    return {"comparison": comparison_figure(runs, config.title, config.levels)}


def names_of_runs(run_dirs: list[str]) -> list[str]:
    """Returns a name for each run: the settings in which training runs differ, if these are few, or its directory.

    Runs that differ only in the seed get the same name.
    """
    records = [read_record(path) for path in run_dirs]
    if all(record and record.kind == "train" for record in records):
        settings = [record.settings for record in records if record]
        names = differing(settings)
        named = [name for name in names if name != "seed"]
        if names and not named:
            return [f"seeds {', '.join(str(values['seed']) for values in settings)}"] * len(run_dirs)
        if 0 < len(named) <= MAX_DIFFERENCES:
            return [", ".join(_setting(name, values.get(name)) for name in named) for values in settings]
    return shortest_unique_suffixes(run_dirs)


def _setting(name: str, value: object) -> str:
    """A field of a config and its value in words.

    >>> [_setting("use_batch_norm", False), _setting("init_from", ""), _setting("decay_steps", [])]
    ['no batch norm', 'no init from', 'no decay steps']
    >>> [_setting("use_batch_norm", True), _setting("train_projection", None), _setting("widths", [16, 32])]
    ['batch norm', 'no train projection', 'widths 16, 32']
    """
    words = name.removeprefix("use_").replace("_", " ")
    if isinstance(value, bool) or value in ("", [], None):
        return words if value else f"no {words}"
    return f"{words} {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def _kind(run_dir: str) -> str:
    """The kind of a run, by its config.json or, without it, by its CSV files."""
    record = read_record(run_dir)
    if record:
        return record.kind
    files = os.listdir(run_dir) if os.path.isdir(run_dir) else []
    tables = {name for name in files if name.endswith(".csv")}
    if not tables:
        raise UserError(f"{run_dir} holds no config.json, metrics.csv or other table of a run")
    for name, kind in (("metrics.csv", "train"), ("density.csv", "hessian_spectrum")):
        if name in tables:
            return kind
    rows = read_rows(os.path.join(run_dir, "results.csv"))
    kinds = {"variant": "ablations", "experiment": "shortcut_study", "speed": "descent_map", "radius": "relu_search"}
    kinds["lipschitz"] = "near_identity"
    return next((kinds[column] for row in rows[:1] for column in row if column in kinds), "check_theory")


cli = launcher.command(
    main,
    {"": PlotConfig()},
    manual=__doc__,
    run_dir_text="The run's directory; its figures are written there. Required.",
)

if __name__ == "__main__":
    cli()
