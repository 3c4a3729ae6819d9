"""THE TABLE: every numbered claim of both papers, of the review and of the blog, and ours; each with its check.

    from theory.claims import CLAIMS, check
    check("hm.theorem_2.1")

A verdict is about the claim as printed: "holds"; "holds as corrected", where the statement here
is true and the printed one or its proof is not; "false as printed", where what is printed is false
and the statement here is what is true instead. For these two the check shows a counterexample.
"""

import dataclasses
import numbers
import zlib
from typing import Callable, NamedTuple

import numpy as np

from theory.checks.evidence import CheckFailed, Evidence
from theory.claim_rows import HOLDS, ROWS, VERDICTS

__all__ = ["CLAIMS", "VERDICTS", "Check", "Claim", "check", "claim_named", "markdown", "report"]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of a paper, or of ours.

    Attributes:
      id: What `check` and `launch.check_theory --claim` take: source, kind and number.
      source: Where it is printed.
      statement: One line, as it is true.
      verdict: One of VERDICTS, about what is printed.
      function: module.function of theory that computes it.
      test: file::test in tests that shows it.
      gather: gather(rng, trials) -> Evidence.
    """

    id: str
    source: str
    statement: str
    verdict: str
    function: str
    test: str
    gather: Callable[[np.random.Generator, int], Evidence]


class Check(NamedTuple):
    """What a check found: the worst of its instances, measured against its bound.

    Attributes:
      claim: id of the claim.
      statement: of the claim.
      measured, relation, bound: e.g. 0.38 ≤ 1.41 for the instance nearest to breaking it.
      holds: Whether our statement held in every instance and, where the printed one does not hold, that was shown.
      instances: How many were tried.
      slack: |bound − measured| as a share of the larger; negative where the statement was broken.
      counterexample: Where the printed claim fails, as found; the reason, where the check failed.
    """

    claim: str
    statement: str
    measured: float
    relation: str
    bound: float
    holds: bool
    instances: int
    slack: float
    counterexample: str

    @property
    def verdict(self) -> str:
        return CLAIMS[self.claim].verdict if self.holds else "CHECK FAILED"


CLAIMS = {
    id: Claim(id, source, statement, verdict, function, test, gather)
    for id, source, verdict, statement, function, gather, test in ROWS
}


def claim_named(claim_id: str) -> Claim:
    """The claim of an id; ValueError if there is none."""
    if claim_id not in CLAIMS:
        raise ValueError(f"claim must be one of {', '.join(CLAIMS)}, got {claim_id!r}")
    return CLAIMS[claim_id]


def check(claim_id: str, seed: int = 0, trials: int = 100) -> Check:
    """Tries a claim on random instances.

    Args:
      claim_id: str. A key of CLAIMS.
      seed: int. Same seed, same instances.
      trials: int. How many instances, to within a factor that depends on what one costs.

    Raises:
      ValueError: no such claim, or fewer than 1 trial.
    """
    claim = claim_named(claim_id)
    if not isinstance(trials, numbers.Integral) or trials < 1:
        raise ValueError(f"trials must be a whole number of at least 1, got {trials!r}")
    rng = np.random.default_rng([seed, zlib.crc32(claim_id.encode())])
    try:
        evidence = claim.gather(rng, trials)
        if claim.verdict != HOLDS and not evidence.counterexample:
            raise CheckFailed("no counterexample to the printed form was found")
    except CheckFailed as failed:
        return Check(claim_id, claim.statement, np.nan, "", np.nan, False, 0, np.nan, str(failed))
    return Check(
        claim_id, claim.statement, evidence.measured, evidence.relation, evidence.bound,
        evidence.holds, evidence.instances, evidence.slack, evidence.counterexample,
    )  # fmt: skip


def markdown() -> str:
    """The table of claims, as it stands in the README: number, one line, verdict, function, test."""
    rows = ["| claim | as it is true | printed | function | test |", "|---|---|---|---|---|"]
    for claim in CLAIMS.values():
        statement = claim.statement.replace("|", "\\|")
        rows.append(f"| {claim.source} | {statement} | {claim.verdict} | `{claim.function}` | `{claim.test}` |")
    return "\n".join(rows)


def report(checks) -> str:
    """Checks as a Markdown table: what was tried, the worst instance, the verdict and the counterexample."""
    rows = [
        "| claim | as it is true | instances | measured | slack | as printed | counterexample, or what was found beside |",
        "|---|---|--:|---|--:|---|---|",
    ]
    for check in checks:
        measured = f"{check.measured:.4g} {check.relation} {check.bound:.4g}"
        cells = (CLAIMS[check.claim].source, check.statement, check.instances, measured, f"{check.slack:.2g}")
        cells += (check.verdict, check.counterexample)
        rows.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"
