"""What a row of the table of claims (claims.py) says: the claim, three judgements of it, its function, check and test.

    Claim(
        id="hm.eq_2.3",
        source="Hardt & Ma, (2.3)",
        statement="‖∇f‖² ≥ 4ℓ(1−τ)^{2ℓ−2} σ_min(Σ)(f − C) for |||A||| ≤ τ < 1",
        verdict="holds",
        proof="repaired: its line 2 does not give line 3",
        our_text="minus signs and exponents",
        function="linear_residual.gradient_lower_bound",
        check=linear.eq_2_3,
        test="theory/test_linear_residual.py::test_…",
    )

A verdict is about the statement as the paper prints it, and a judgement of a proof about its printed proof or
construction. What our copy of a text lost is no fault of the paper's and stands in a column of its own.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from theory.checks.evidence import Evidence

HOLDS, CAVEAT, READING, FALSE = VERDICTS = (
    "holds",
    "holds under the paper's own caveat",
    "depends on the reading",
    "false",
)
COMPLETE, REPAIRED, WRONG, NOT_GIVEN = PROOFS = ("complete", "repaired", "wrong", "none given")


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of a paper, or of ours.

    Attributes:
      id: What `check` and `launch.check_theory --claim` take: source, kind and number.
      source: Where it is printed.
      statement: The claim in one line, as it is true.
      verdict: On the printed statement: one of VERDICTS, or one of them, a colon and the details, such as the
        verdict of each reading.
      proof: On the printed proof or construction: one of PROOFS, or one of them, a colon and how or where.
      function: module.function of theory that computes it. The check calls it.
      check: check(rng, trials) -> Evidence, a function of theory.checks. Unless the claim holds with a complete proof
        it brings a counterexample to what does not hold.
      test: file::test in tests that shows it.
      our_text: What our copy of the printed text has lost; empty if nothing that matters.
      restates: id of the row that this one repeats, so that no claim is counted twice; empty if none.
    """

    id: str
    source: str
    statement: str
    verdict: str
    proof: str
    function: str
    check: Callable[[np.random.Generator, int], Evidence]
    test: str = "theory/test_claims.py::test_every_claim_holds_as_the_table_says"
    our_text: str = ""
    restates: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for a judgement that begins with none of VERDICTS, or of PROOFS."""
        for name, judgement, words in (("verdict", self.verdict, VERDICTS), ("proof", self.proof, PROOFS)):
            if kind(judgement) not in words:
                raise ValueError(f"{self.id}: {name} must begin with one of {', '.join(words)}, got {judgement!r}")

    @property
    def needs_counterexample(self) -> bool:
        """Whether something printed does not hold as it stands, which the check must then show on numbers."""
        return kind(self.verdict) != HOLDS or kind(self.proof) in (REPAIRED, WRONG)


def kind(judgement: str) -> str:
    """Returns the word of VERDICTS or PROOFS with which a judgement begins."""
    return judgement.partition(":")[0]
