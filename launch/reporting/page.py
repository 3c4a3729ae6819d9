"""report.html: what the runs show, put into the templates. Every value is escaped; nothing on the page leaves it."""

import base64
import datetime
import hashlib

import jinja2
from markupsafe import Markup

from identity_matters.runs.config_json import RUN_TYPES
from identity_matters.runs.directory import versions
from launch.reporting import claims, figures
from launch.reporting.captions import CAPTIONS
from launch.reporting.runs import Run, comparison, evaluations, percent
from theory.claims import summary as count_claims


def render(runs: list[Run]) -> str:
    """Returns the page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("launch.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = environment.get_template("filter.js").render()
    drawn, table = figures.paper_figures(runs), claims.rows(runs)
    used = {(figure.run.name, figure.picture.address) for figure in drawn}
    return environment.get_template("report.html").render(
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        date=datetime.datetime.now().astimezone().strftime("%d %B %Y, %H:%M %Z"),
        summary=_summary(runs, drawn),
        figures=drawn,
        claims=table,
        counted=count_claims(),
        verdicts=claims.counts(table),
        words=claims.WORDS,
        runs=runs,
        run_types=RUN_TYPES,
        other_pictures=lambda run: [
            (name, found) for name, found in run.pictures.items() if (run.name, found.address) not in used
        ],
        evaluations=evaluations,
        comparison=comparison(runs),
        missing=figures.missing(runs, drawn),
        versions=versions(),
        captions=CAPTIONS,
        words_of_answers={"holds": "holds", "does not hold": "false"},
    )


def _summary(runs: list[Run], drawn: list[figures.PaperFigure]) -> list[tuple[str, str]]:
    """Returns (what, its result) of each part of the report."""
    lines = []
    for run in claims.checks(runs):
        holding = sum(row["verdict"] != claims.FAILED for row in run.rows)
        lines.append((f"Claims, {run.name}", f"{holding} of {len(run.rows)} checks hold. {count_claims()}."))
    for run in runs:
        if run.kind == "train":
            told = "" if run.record["status"] == "done" else f" Its status is {run.record['status']}."
            if run.rows:
                last = run.rows[-1]
                reached = f"{percent(last['test_top1_error'])} {run.error} on {run.data}"
                told = f"{reached} after {last['step']:,} steps.{told}"
            lines.append((f"Training, {run.name}", told or "No results."))
    judged = [
        s.ours for figure in drawn for s in figure.statements if figure.title.startswith("Li") and not figure.note
    ]
    if judged:
        lines.append(("Figures of Li et al.", f"{judged.count('holds')} of {len(judged)} statements hold on our data."))
    small = sum(bool(figure.note) for figure in drawn)
    if small:
        lines.append(
            ("Figures of Li et al., small", f"{small} figures at a size that shows that they run and judges nothing.")
        )
    return lines
