"""A run directory as a report shows it: config, rows, figures and files, for every type of run."""

import base64
import importlib
import io
import math
import os
import urllib.parse
from typing import TYPE_CHECKING, Any, NamedTuple

from identity_matters.errors import UserError
from identity_matters.runs.config_json import differing, evaluated_split, flat, read_config_json
from identity_matters.runs.tables import ablation_table, read_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SVG = 1_000_000  # bytes; a larger picture, of many points, is embedded as pixels
BROAD = 7  # inches
MAX_ROWS = 12  # of a table of evaluations
NOT_RECORDED = "not recorded"
# How config.json describes the file that launch.export_npz writes. Its labels identify it: the pixels may be a copy's.
EXPORTED = {"50000 training and 10000 test images, 32x32x3, labels 79887683": "cifar10"}


class Picture(NamedTuple):
    """The data address of a figure, and whether it is too broad for a phone to show it whole."""

    address: str
    is_broad: bool


class Run(NamedTuple):
    """A run directory."""

    name: str  # as the user gave it
    contents: dict  # what config.json holds
    files: list[tuple[str, str]]  # (name, address relative to the report) of what lies in the directory
    rows: list[dict] = []  # of metrics.csv or results.csv
    pictures: dict[str, Picture] = {}  # by the figure's name
    findings: dict[str, list] = {}  # of a study that is done: its answers to the paper's statements, by figure
    minutes: dict[str, str] = {}  # of a study: how long the experiments of a figure took, by figure
    smoke_size: list[str] = []  # of a study: the figures that are too small for conclusions
    smaller: list[str] = []  # of a study: the figures of other depths than the paper's, or of fewer runs or epochs
    table: str = ""  # of a comparison: its results
    problem: str = ""  # why nothing but files is shown

    @property
    def kind(self) -> str:
        """Returns the launcher that made it, without `launch.`."""
        return self.contents["kind"]

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the config without nesting."""
        return flat(self.contents["config"])

    @property
    def dataset(self) -> str:
        """Returns the name of the data set, also where launch.export_npz wrote it to a file; "" for a user's own."""
        if self.settings.get("images"):
            return ""
        if self.settings.get("npz"):
            return EXPORTED.get(str(self.contents.get("data")), "")
        return str(self.settings.get("dataset", ""))

    @property
    def data(self) -> str:
        """Returns the name of the data set, or of the .npz file or folder, of a training run or several on the same."""
        return self.dataset or str(self.settings.get("npz") or self.settings.get("images", ""))

    @property
    def error(self) -> str:
        """Returns "test error" or "held-out error", whichever the tables of a training run call test error."""
        return f"{evaluated_split(self.settings)} error"

    @property
    def machine(self) -> str:
        """Returns the hardware."""
        return str(self._versions.get("machine", NOT_RECORDED))

    @property
    def time(self) -> str:
        """Returns how long the run took, as far as the directory shows."""
        try:
            if "seconds" in self.contents:
                return _minutes(self.contents["seconds"])
            if "minutes" in self.contents:
                return _minutes(60 * self.contents["minutes"])
            if self.kind != "train":
                return NOT_RECORDED
            steps = [0, *(row["step"] for row in self.rows)]
            rates = [row["images_per_second"] / self.settings["batch_size"] for row in self.rows]
            seconds = sum((after - before) / rate for before, after, rate in zip(steps, steps[1:], rates))
            return f"{_minutes(seconds)} (training steps only)" if seconds > 0 else NOT_RECORDED
        except (ArithmeticError, KeyError, TypeError):
            return NOT_RECORDED

    @property
    def versions(self) -> str:
        """Returns the versions that it was computed with."""
        named = [f"{name} {value}" for name, value in self._versions.items() if name != "machine"]
        return ", ".join(named) or NOT_RECORDED

    @property
    def _versions(self) -> dict:
        versions = self.contents.get("versions")
        return versions if isinstance(versions, dict) else {}


def read_run(path: str, report_dir: str) -> Run:
    """Returns what a run directory holds, with its figures drawn.

    Raises:
      UserError: there is no run.
    """
    contents = read_config_json(path)
    if contents is None or contents["kind"] == "report":
        reason = "it has no config.json" if contents is None else "it is a report"
        raise UserError(f"runs: {path!r} is not the directory of a run: {reason}")
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    address = os.path.relpath(path, report_dir)
    files = [(name, urllib.parse.quote(os.path.join(address, name), errors="surrogateescape")) for name in names]
    run = Run(path, contents, files)
    from identity_matters.runs.figure_style import styled

    # A damaged or hostile table can raise any error when it is drawn; the other runs must still be reported.
    try:
        rows = read_rows(os.path.join(path, "metrics.csv" if run.kind == "train" else "results.csv"))
        if not rows:
            return run._replace(problem=f"the run has no results; its status is {contents['status']}")
        with styled():
            pictures = {name: picture(figure) for name, figure in figures_of(path).items()}
        return run._replace(rows=rows, pictures=pictures, **_details(run, rows))
    except Exception as error:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return run._replace(problem=f"the tables of the run cannot be used: {kind}{error}")


def figures_of(path: str) -> "dict[str, Figure]":
    """Returns the figures of a run directory by name, drawn by the launcher that made it."""
    return importlib.import_module(f"launch.{read_config_json(path)['kind']}").figures(path)


def _details(run: Run, rows: list[dict]) -> dict[str, Any]:
    """Returns the fields of Run that the rows of a study or of a comparison give."""
    if run.kind == "ablations":
        return {"table": ablation_table(rows)}
    if run.kind == "shortcut_study":
        from launch.shortcut_study import config_of, smoke_size
        from shortcut_study.figures.all_figures import FIGURES
        from shortcut_study.report import figures_with_data, is_paper_size, seconds_by_experiment

        shown = figures_with_data(rows) if run.contents["status"] == "done" else []  # else a part of the networks alone
        findings = {name: FIGURES[name].findings(rows) for name in shown}
        taken = seconds_by_experiment(rows)
        minutes = {
            name: _minutes(sum(taken[pair] for pair in FIGURES[name].EXPERIMENTS))
            for name in findings
            if taken.keys() >= set(FIGURES[name].EXPERIMENTS)
        }
        smaller = [name for name in findings if not is_paper_size(config_of(run.name), name)]
        return {"findings": findings, "minutes": minutes, "smoke_size": smoke_size(run.name), "smaller": smaller}
    return {}


def picture(figure: "Figure") -> Picture:
    """Returns a figure as SVG on a transparent background, or as PNG where that is much smaller."""
    from identity_matters.runs.figures import write_picture

    image, kind = io.BytesIO(), "svg+xml"
    write_picture(figure, image, "svg", transparent=True)
    if len(image.getvalue()) > MAX_SVG:
        image, kind = io.BytesIO(), "png"
        write_picture(figure, image, "png", transparent=True)
    address = f"data:image/{kind};base64,{base64.b64encode(image.getvalue()).decode()}"
    return Picture(address, figure.get_figwidth() > BROAD)


def evaluations(run: Run) -> list[list[str]]:
    """Returns the rows of a table of evaluations of a training run: the last, and at most MAX_ROWS evenly spaced."""
    stride = -(-len(run.rows) // MAX_ROWS)
    return [
        [
            f"{row['step']:,}", number(row["loss"]), percent(row["train_top1_error"]), percent(row["test_top1_error"]),
            percent(row.get("test_top5_error")), number(row["learning_rate"]),
        ]
        for row in run.rows[::-1][::stride][::-1]
    ]  # fmt: skip


def comparison(runs: list[Run]) -> list[list[str]]:
    """Returns a table, its header first, of the training runs by their last errors and the settings that differ."""
    trained = [run for run in runs if run.kind == "train" and run.rows]
    settings = differing([run.settings for run in trained])
    errors = " or ".join(sorted({run.error for run in trained}, reverse=True)).capitalize()
    header = ["Run", "Status", "Steps", errors, "Train error", *settings]
    return [header] + [
        [
            run.name, run.contents["status"], number(run.rows[-1]["step"]), percent(run.rows[-1]["test_top1_error"]),
            percent(run.rows[-1]["train_top1_error"]), *(number(run.settings.get(name)) for name in settings),
        ]
        for run in trained
    ]  # fmt: skip


def percent(value: object) -> str:
    """Returns a fraction as percent; a dash for anything but a finite number."""
    return f"{value:.2%}" if isinstance(value, (int, float)) and math.isfinite(value) else "–"


def number(value: object) -> str:
    """Returns a number with four digits, other values as they are, and a dash for an empty one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value) if value not in ("", None) else "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _minutes(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds" if seconds >= 1.5 else "less than 2 seconds"
    return f"{seconds / 60:.1f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"
