"""report.html: the results of the runs, put into templates. Every value is escaped; the page loads no other file."""

import base64
import datetime
import hashlib
from collections import Counter
from typing import NamedTuple

import jinja2
from markupsafe import Markup

from identity_matters.runs.config_json import RUN_TYPES
from identity_matters.runs.directory import versions
from launch.reporting import figures
from launch.reporting.runs import Run, comparison, evaluations, number, percent
from shortcut_study.figures.all_figures import FIGURES
from theory.claim import VERDICTS, Claim, kind
from theory.claims import CLAIMS
from theory.claims import summary as count_claims

FAILED = "CHECK FAILED"
# Captions of figures, by name.
CAPTIONS = {
    "ablations": "Errors of the compared networks: one dot per seed, a bar at the mean",
    "blocks": "Spectra of the blocks of the Hessian that belong to single residual blocks",
    "condition_numbers": "Condition number of the Hessian at zero, by the number of units (Li et al., Theorem 1)",
    "depths": "Errors by depth at equal operations, with the small and the standard initialiser",
    "descent": "Excess risk of projected gradient descent and its guarantee (Hardt & Ma, (2.3))",
    "eigenvalues": "Excess risk and norm of the layers during descent, for eigenvalues from −1 to 2",
    "excess_by_radius": "Risk at the swapped minimum and at zero, by the radius",
    "gradient_ratios": "Squared gradient norm over its lower bounds (Hardt & Ma, (2.3), and the product form)",
    "kernel_norms": "Average Frobenius norm of the kernels during training, by depth (Li et al., Figure 2)",
    "layers": "Spectra of the blocks of the Hessian that belong to single layers",
    "linear_output": "Risk of bad local minima against that of the best linear predictor",
    "map": "Steps to the target by depth and step size",
    "memorization": "Weights per sample, smallest gap and error in float32 of memorising networks, by width",
    "norms": "ℓ times the largest norm of a layer, by the number of layers ℓ, between its bounds (Theorem 2.1)",
    "printed_construction": "Where the printed construction of Theorem 2.1 exceeds its bound",
    "rates": "Excess risk of descent and three guarantees; drift of the imbalances and its bound",
    "relu_search": "Critical points of ReLU networks near zero, by risk and curvature",
    "rotations": "Paths of w in the complex plane for rotations",
    "saddle": "Steps to leave zero, by the size of the start",
    "spectra": "Eigenvalues of the Hessian at zero for shortcuts of 1, 2 and 3 matrices (Li et al., Theorem 1)",
    "spectrum": "Density of the eigenvalues of a trained network's Hessian",
} | {f"figure_{name}": figure.CAPTION for name, figure in FIGURES.items()}
COLUMNS = {"claim", "verdict", "counterexample", "instances", "measured", "relation", "bound"}
# Classes of the style sheet, in the order of VERDICTS.
CLASSES = "holds", "caveat", "degenerate", "reading", "misprint", "false"
VERDICT_CLASSES = dict(zip(VERDICTS, CLASSES, strict=True)) | {FAILED: "failed"}


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
    drawn, table = figures.paper_figures(runs), claim_rows(runs)
    verdicts = Counter(row.word for row in table)
    used = {(figure.run.name, figure.picture.address) for figure in drawn}
    return environment.get_template("report.html").render(
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%d %B %Y, %H:%M UTC"),  # whatever TZ says
        summary=_summary(runs, drawn),
        figures=drawn,
        claims=table,
        counted=count_claims(),
        verdicts={verdict: verdicts[word] for verdict, word in VERDICT_CLASSES.items() if verdicts[word]},
        words=VERDICT_CLASSES,
        runs=runs,
        run_types=RUN_TYPES,
        other_pictures=lambda run: [
            (name, picture) for name, picture in run.pictures.items() if (run.name, picture.address) not in used
        ],
        evaluations=evaluations,
        comparison=comparison(runs),
        missing=figures.missing(runs, drawn),
        versions=versions(),
        captions=CAPTIONS,
        words_of_answers={"holds": "holds", "does not hold": "false"},
    )


def _summary(runs: list[Run], drawn: list[figures.PaperFigure]) -> list[tuple[str, str]]:
    """Returns the name and the result of each part of the report."""
    lines = []
    for run in checks(runs):
        passing = sum(row["verdict"] != FAILED for row in run.rows)
        lines.append((f"Claims, {run.name}", f"{passing} of {len(run.rows)} checks pass. {count_claims()}."))
    for run in runs:
        if run.kind == "train":
            result = "" if run.contents["status"] == "done" else f" Its status is {run.contents['status']}."
            if run.rows:
                last = run.rows[-1]
                reached = f"{percent(last['test_top1_error'])} {run.error} on {run.data}"
                result = f"{reached} after {last['step']:,} steps.{result}"
            lines.append((f"Training, {run.name}", result or "No results."))
    large_figures = [figure for figure in drawn if figure.title.startswith("Li") and not figure.note]
    if answers := [statement.result for figure in large_figures for statement in figure.statements]:
        text = f"{answers.count('holds')} of {len(answers)} statements hold in these runs."
        lines.append(("Figures of Li et al.", text))
    if small := sum(bool(figure.note) for figure in drawn):
        text = f"{small} figures at toy size, too small for conclusions."
        lines.append(("Figures of Li et al., small", text))
    return lines


class ClaimRow(NamedTuple):
    """A row of the table of claims; `word` is one of VERDICT_CLASSES' values."""

    claim: Claim
    verdict: str
    word: str
    measured: str
    evidence: str


def claim_rows(runs: list[Run]) -> list[ClaimRow]:
    """Returns every claim, in the table's order, with its verdicts and what the runs of launch.check_theory measured.

    If several runs checked a claim, the last one counts; a failed check takes precedence.
    """
    rows = [row for run in checks(runs) for row in run.rows]
    checked = {row["claim"]: row for row in sorted(rows, key=lambda row: row["verdict"] == FAILED)}
    table = []
    for claim_id, claim in CLAIMS.items():
        row = checked.get(claim_id, {"verdict": claim.verdict, "counterexample": "", "instances": 0})
        verdict, measured = str(row["verdict"]), "not checked in this report"
        if row["instances"]:
            bound = f"{number(row['measured'])} {row['relation']} {number(row['bound'])}"
            measured = f"{bound}, n = {number(row['instances'])}"
        word = VERDICT_CLASSES.get(kind(verdict), "failed")
        table.append(ClaimRow(claim, verdict, word, measured, str(row["counterexample"])))
    return table


def checks(runs: list[Run]) -> list[Run]:
    """Returns the runs that checked claims."""
    return [run for run in runs if run.kind == "check_theory" and run.rows and COLUMNS <= run.rows[0].keys()]
