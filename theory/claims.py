"""The table of claims: every numbered claim of both papers, of a review and a blog, and of later work, with checks.

    from theory.claims import CLAIMS, check
    check("hm.theorem_2.1")

The claims are in the files claims*.py of the subjects, each above its check; theory/claim.py says what their fields
mean. docs/reference/claims.md is this table:

    python -m theory.claims > docs/reference/claims.md
"""

import difflib
import numbers
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from theory.claim import FALSE, PROOFS, VERDICTS, Claim, claims_of, kind
from theory.descent import claims_from_zero, claims_speed
from theory.evidence import CheckFailed, Evidence, worst
from theory.linear import claims_appendix as claims_linear_appendix
from theory.linear import claims_critical_points, claims_everywhere, claims_factorization, claims_remarks, claims_risk
from theory.memorization import claims as claims_memorization
from theory.memorization import claims_first_layer, claims_statements
from theory.relu import claims as claims_relu
from theory.shortcut import claims_appendix, claims_hessian, claims_networks, claims_order

__all__ = ["CLAIMS", "PROOFS", "VERDICTS", "Check", "Claim", "check", "claim_named", "document", "markdown", "summary"]

MODULES = (
    claims_risk, claims_critical_points, claims_factorization, claims_linear_appendix, claims_remarks,
    claims_everywhere, claims_memorization, claims_first_layer, claims_statements,
    claims_order, claims_hessian, claims_networks, claims_appendix,
    claims_from_zero, claims_speed, claims_relu,
)  # fmt: skip
SOURCES = ("hm.", "li.", "review.", "blog.")  # the two papers, and two texts on them


def in_order(unordered: Sequence[Claim]) -> list[Claim]:
    """Returns the claims by source, then as given, except those that name another that they follow."""
    waiting = [claim for claim in unordered if claim.after]
    rows = [claim for source in (*SOURCES, "") for claim in unordered if not claim.after and _source(claim) == source]
    while waiting:
        places = {claim.id: place for place, claim in enumerate(rows)}
        ready = next((claim for claim in waiting if claim.after in places), None)
        if ready is None:
            raise ValueError(f"{waiting[0].id}: there is no claim {waiting[0].after!r} that it could follow")
        waiting.remove(ready)
        rows.insert(places[ready.after] + 1, ready)
    return rows


def _source(claim: Claim) -> str:
    """Returns the one of SOURCES that prints the claim, or an empty text."""
    return next((source for source in SOURCES if claim.id.startswith(source)), "")


CLAIMS = {claim.id: claim for claim in in_order([claim for m in MODULES for claim in claims_of(m.__name__)])}


class Check(NamedTuple):
    """The result of a check: the worst of its instances, measured against its bound.

    Attributes:
      claim: id of the claim.
      statement: The claim in one sentence, in its true form.
      measured, relation, bound: e.g. 0.38 ≤ 1.41 for the instance nearest to violating it.
      holds: Whether the statement held in every instance and, if something printed fails, a counterexample was found.
      instances: How many were tried.
      slack: |bound − measured| as a fraction of the larger; negative if the statement was violated.
      counterexample: An instance for which the printed form fails, or another finding; the reason, if the check failed.
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
        """The claim's verdict on the printed statement, or CHECK FAILED."""
        return CLAIMS[self.claim].verdict if self.holds else "CHECK FAILED"


def claim_named(claim_id: str) -> Claim:
    """Returns the claim of an id.

    Raises:
      ValueError: there is none.
    """
    if claim_id not in CLAIMS:
        near = difflib.get_close_matches(claim_id, CLAIMS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"they are {', '.join(CLAIMS)}"
        raise ValueError(f"there is no claim {claim_id!r}; {hint}")
    return CLAIMS[claim_id]


def check(claim_id: str, seed: int = 0, trials: int = 100) -> Check:
    """Returns the result of checking a claim on random instances.

    >>> result = check("review.eq_6", trials=5)
    >>> result.holds, result.verdict
    (True, 'false: σ_min(Σ)² in place of the σ_min(Σ) of (2.3)')
    >>> result.counterexample
    'd = ℓ = 1, A = 0, Σ = 2, R = 2: ‖∇f‖² = 16 < 32'

    Args:
      claim_id: A key of CLAIMS.
      seed: Same seed, same instances.
      trials: How many instances, to within a factor that depends on what one costs.

    Raises:
      ValueError: no such claim, or fewer than 1 trial.
    """
    claim = claim_named(claim_id)
    if not isinstance(trials, numbers.Integral) or trials < 1:
        raise ValueError(f"trials must be a whole number of at least 1, got {trials!r}")
    # One stream per claim, independent of the other claims; hash() would differ from process to process.
    rng = np.random.default_rng([seed, zlib.crc32(claim_id.encode())])
    try:
        evidence = worst(claim.check(rng, trials), claim.relation)
        if claim.needs_counterexample and not evidence.counterexample:
            raise CheckFailed("no counterexample to the printed form was found")
    except CheckFailed as failed:
        evidence = Evidence(0, np.nan, "", np.nan, str(failed))
    return Check(
        claim_id, claim.statement, evidence.measured, evidence.relation, evidence.bound,
        evidence.holds, evidence.instances, evidence.slack, evidence.counterexample,
    )  # fmt: skip


def is_false(claim_id: str) -> bool:
    """Returns whether the printed statement of a claim is false."""
    return kind(CLAIMS[claim_id].verdict) == FALSE


def summary() -> str:
    """Returns the number of statements that the two papers, the review and the blog print, in all and by verdict.

    Restatements are not counted; remarks, statements of later papers and of this project are counted separately.
    """
    counted = [claim for claim in CLAIMS.values() if not claim.restates and not claim.is_remark]
    sources = Counter(claim.id.partition(".")[0] for claim in counted)
    printed = [claim for claim in counted if claim.id.startswith(SOURCES)]
    num_remarks = sum(claim.is_remark for claim in CLAIMS.values())
    counts = Counter(kind(claim.verdict) for claim in printed)
    plural = (
        "hold", "hold under the paper's own caveat", "hold but for degenerate cases", "depend on the reading",
        "are misprints", "are false, Theorem 1 of Li et al. with its printed hypotheses among them",
    )  # fmt: skip
    verdicts = ", ".join(f"{counts[verdict]} {words}" for verdict, words in zip(VERDICTS, plural, strict=True))
    later = sources.total() - len(printed) - sources["ours"]
    others = f"{num_remarks} of their remarks made precise, {later} restated from later papers, "
    others += f"{sources['ours']} of this project"
    return f"{len(printed)} printed statements: {verdicts}; {others}"


def markdown(checks: Sequence[Check] | None = None) -> str:
    """Returns the table of all claims in Markdown, or of the claims of some checks with their results."""
    columns = ["claim", "true form", "printed statement", "printed proof"]
    columns += ["function"] if checks is None else ["instances", "measured", "slack", "evidence"]
    if checks is None:
        body = [[*_verdicts(claim, claim.verdict), f"`{claim.function}`"] for claim in CLAIMS.values()]
    else:
        body = [
            [*_verdicts(CLAIMS[check.claim], check.verdict), str(check.instances),
             f"{check.measured:.4g} {check.relation} {check.bound:.4g}", f"{check.slack:.2g}", check.counterexample]
            for check in checks
        ]  # fmt: skip
    rows = [columns, ["---"] * len(columns), *body]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def document() -> str:
    """Returns docs/reference/claims.md: the meaning of the columns, the count of statements and the table."""
    restated = sum(bool(claim.restates) for claim in CLAIMS.values() if claim.id.startswith(SOURCES))
    return f"""# Claims

Every numbered claim of Hardt & Ma and of Li et al., of a review and a blog on the first paper, and of later work.
Generated by `python -m theory.claims > docs/reference/claims.md`; `python -m launch.check_theory --run_dir=runs/theory`
checks each on random instances and writes this table with what it measured.

- *True form*: the statement that the check confirms.
- *Printed statement*: whether the statement is true as printed, with its quantifiers and under the hypotheses in
  force. *Holds but for degenerate cases*: it fails only at the smallest sizes or on a set of measure zero.
  *Misprint*: the text around it has the right symbol. *Depends on the reading*: its words allow two readings, one
  of which is false.
- *Printed proof*: whether the printed proof or construction shows it.

Claims of later papers are restated from their abstracts; their printed constants and proofs were not checked. Proofs
are in [proofs](../appendix/proofs.md), figures in [theorems](../papers/theorems.md). *Review*: a literature review for
ELE538B (spring 2018). *Blog*: "Identity matters in Deep Learning", PaperWhy.

{summary()}.
{restated} printed rows restate a counted statement and are not counted. Theorem 1 of Li et al. counts once as false,
for its printed hypotheses; its three parts are evaluated under sufficient hypotheses.

{markdown()}"""


def _verdicts(claim: Claim, verdict: str) -> tuple[str, ...]:
    return claim.source, claim.statement, verdict, claim.proof


if __name__ == "__main__":
    print(document(), end="")
