"""Write report.html, one page with the figures and tables of runs of any launcher.

    python -m launch.report --runs=runs/first,runs/theory,runs/study --run_dir=runs/report

computes nothing: it shows the runs as they are now, in seconds, on a page that loads no other file. A run
of launch.check_theory adds the table of its claims. Training runs are compared by the settings in which
they differ.
"""

import base64
import dataclasses
import datetime
import importlib
import io
import math
import os
import pathlib
import re
import urllib.parse
from typing import NamedTuple, TypeAlias

from identity_matters.errors import UserError, table_error, translate_errors
from identity_matters.fields import Checked, option, split_names
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.files import name_one_twice, write_text
from identity_matters.runs.record import Record, differing, read_record
from identity_matters.runs.tables import ablation_table, read_rows
from launch import launcher
from launch.experiment import Figures

Table: TypeAlias = list[list[str]]  # rows of cells, the header first


@dataclasses.dataclass(frozen=True)
class ReportConfig(Checked):
    """The runs to report on.

    Attributes:
      runs: Run directories, with commas between them. Required.
    """

    runs: str = option("", path=True, compared=False)


class Run(NamedTuple):
    """A run directory: its path as the user gave it, config.json, and the rows of metrics.csv or results.csv."""

    path: str
    record: Record
    rows: list[dict]


def main(config: ReportConfig, run_dir: str) -> None:
    """Writes report.html in run_dir."""
    paths = split_names(config.runs)
    if not paths:
        raise UserError(f"--runs must name run directories, with commas between them, got {config.runs!r}")
    if name_one_twice(paths):
        raise UserError(f"--runs names a directory twice, got {config.runs!r}")
    page = render([read_run(path) for path in paths], run_dir)
    with RunDirectory(run_dir, config, "report") as directory:
        directory.set_status("running")
        write_text(directory.file("report.html"), page)
        directory.set_status("done")
    print(f"report: {directory.file('report.html')}")


def read_run(path: str) -> Run:
    """Reads a run directory; raises UserError if it holds no run."""
    record = read_record(path)
    if record is None or record.kind == "report":
        raise UserError(f"--runs: {path!r} is not the directory of a run, or is that of a report")
    table = os.path.join(path, "metrics.csv" if record.kind == "train" else "results.csv")
    return Run(path, record, read_rows(table))


def render(runs: list[Run], run_dir: str) -> str:
    """Returns the page of several runs; links in it are relative to run_dir."""
    import jinja2

    sections = []
    for run in runs:
        address = urllib.parse.quote(os.path.relpath(run.path, run_dir)) + "/"
        with translate_errors(table_error(os.path.join(run.path, "*.csv"))):
            sections.append({"run": run, "address": address, "pictures": pictures(run), "tables": tables(run)})
    loader = jinja2.PackageLoader("launch")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%d %B %Y, %H:%M UTC")
    return environment.get_template("report.html").render(sections=sections, compared=comparison(runs), date=date)


def pictures(run: Run) -> dict[str, str]:
    """Returns the figures that the run's launcher draws, by name, each as the data address of a PNG."""
    from identity_matters.runs.figure_style import styled
    from identity_matters.runs.figures import write_picture

    if not run.rows:
        return {}
    draw = importlib.import_module(f"launch.{run.record.kind}").figures
    drawn = {}
    with styled():
        for name, figure in draw(run.path).items():
            image = io.BytesIO()
            write_picture(figure, image, "png")
            drawn[name] = f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
    return drawn


def tables(run: Run) -> list[Table]:
    """Returns the tables of a run: its evaluations, or those in Markdown that its launcher has written."""
    kind = run.record.kind
    if kind == "train" and run.rows:
        return [evaluations(run)]
    if kind == "ablations":
        return markdown_tables(ablation_table(run.rows))
    return markdown_tables("\n".join(path.read_text("utf-8") for path in pathlib.Path(run.path).glob("*.md")))


def markdown_tables(text: str) -> list[Table]:
    r"""Returns the tables of a text in Markdown.

    >>> markdown_tables("a | b\n\n| n | \\|x\\| |\n|---|---:|\n| 1 | 2 % |\n\nend")
    [[['n', '|x|'], ['1', '2 %']]]
    """
    found: list[Table] = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.M):
        lines = [line for line in block.splitlines() if line.strip("|-: ")]
        rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines]
        found.append([[cell.strip().replace(r"\|", "|") for cell in row] for row in rows])
    return found


def evaluations(run: Run) -> Table:
    """Returns the evaluations of a training run."""
    split = run.record.split.capitalize()
    table = [["Step", "Loss", "Train error", f"{split} error", "Top-5", "Learning rate"]]
    for row in run.rows:
        errors = [row["train_top1_error"], row["test_top1_error"], row.get("test_top5_error")]
        table.append([number(row["step"]), number(row["loss"]), *map(percent, errors), number(row["learning_rate"])])
    return table


def comparison(runs: list[Run]) -> Table:
    """Returns the last errors of the training runs and the settings in which they differ."""
    trained = [run for run in runs if run.record.kind == "train" and run.rows]
    settings = differing([run.record.settings for run in trained])
    splits = sorted({run.record.split for run in trained}, reverse=True)
    errors = " or ".join(f"{split} error" for split in splits).capitalize()
    table = [["Run", "Status", "Steps", errors, "Train error", *settings]]
    for run in trained:
        last = run.rows[-1]
        cells = [number(last["step"]), percent(last["test_top1_error"]), percent(last["train_top1_error"])]
        table.append(
            [run.path, run.record.status, *cells, *(number(run.record.settings.get(name)) for name in settings)]
        )
    return table


def percent(value: object) -> str:
    """Returns a fraction as percent; a dash for anything but a finite number."""
    return f"{100 * value:.2f} %" if isinstance(value, (int, float)) and math.isfinite(value) else "–"


def number(value: object) -> str:
    """Returns a number with four digits, other values as they are, and a dash for an empty one."""
    if value in ("", None):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else str(value)


def figures(run_dir: str) -> Figures:
    """Returns no figures: launch.plot draws those of the runs themselves."""
    return {}


cli = launcher.command(main, {"": ReportConfig()}, manual=__doc__)

if __name__ == "__main__":
    cli()
