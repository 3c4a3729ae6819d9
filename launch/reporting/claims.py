"""The table of claims as a report shows it: the three judgements, and what a run of the checks measured."""

from collections import Counter
from typing import NamedTuple

from launch.reporting.runs import Run, number
from theory.claim import VERDICTS, kind
from theory.claims import CLAIMS

FAILED = "CHECK FAILED"
COLUMNS = {"claim", "verdict", "counterexample", "instances", "measured", "relation", "bound"}
WORDS = dict(zip(VERDICTS, ("holds", "caveat", "reading", "false"))) | {FAILED: "failed"}  # classes of the style sheet


class Row(NamedTuple):
    """A row of the table; `word` is one of WORDS' values."""

    id: str
    source: str
    statement: str
    verdict: str
    word: str
    proof: str
    our_text: str
    measured: str
    shown: str
    function: str


def rows(runs: list[Run]) -> list[Row]:
    """Returns every claim, in the order of the table, with what the runs of launch.check_theory measured of it.

    Of several runs that checked a claim the last one counts, but for one whose check failed: it counts before all.
    """
    found = [row for run in checks(runs) for row in run.rows]
    checked = {row["claim"]: row for row in sorted(found, key=lambda row: row["verdict"] == FAILED)}
    return [_row(claim_id, checked.get(claim_id)) for claim_id in CLAIMS]


def checks(runs: list[Run]) -> list[Run]:
    """Returns the runs that checked claims."""
    return [run for run in runs if run.kind == "check_theory" and run.rows and COLUMNS <= run.rows[0].keys()]


def _row(claim_id: str, found: dict | None) -> Row:
    claim = CLAIMS[claim_id]
    measured, shown, verdict = "not checked in this report", "", claim.verdict
    if found:
        verdict, shown = str(found["verdict"]), str(found["counterexample"])
        if found["instances"]:
            bound = f"{number(found['measured'])} {found['relation']} {number(found['bound'])}"
            measured = f"{bound}, n = {number(found['instances'])}"
    word = WORDS.get(kind(verdict), "failed")
    return Row(
        claim_id, claim.source, claim.statement, verdict, word, claim.proof, claim.our_text, measured, shown,
        claim.function,
    )  # fmt: skip


def counts(table: list[Row]) -> dict[str, int]:
    """Returns how many rows there are of each verdict, in the order of WORDS; none that has none."""
    found = Counter(row.word for row in table)
    return {verdict: found[word] for verdict, word in WORDS.items() if found[word]}
