"""A claim, and the decorator that registers a function as its check, so that statement and check stand together.

    @claim(
        id="hm.eq_2.3",
        source="Hardt & Ma, (2.3)",
        statement="‖∇f‖² ≥ 4ℓ(1−τ)^{2ℓ−2} σ_min(Σ)(f − C) for |||A||| ≤ τ < 1",
        proof="repaired: its line 3 does not follow from line 2",
        function=linear_residual.gradient_lower_bound,
        mutation=(vanishing, larger),
        relation="≥",
    )
    def eq_2_3(rng: np.random.Generator, trials: int) -> Pairs:
        ...
            yield squared_gradient, bound
        return "an instance for which the printed form fails"

The verdict is on the statement as the paper prints it; `proof` is on the printed proof or construction.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from theory.evidence import Pairs
from theory.mutations import Mutation

HOLDS, CAVEAT, DEGENERATE, READING, MISPRINT, FALSE = VERDICTS = (
    "holds",
    "holds under the paper's own caveat",
    "holds but for degenerate cases",
    "depends on the reading",
    "misprint",
    "false",
)
COMPLETE, REPAIRED, WRONG, NOT_GIVEN = PROOFS = ("complete", "repaired", "wrong", "none given")
CheckFunction: TypeAlias = Callable[[np.random.Generator, int], Pairs]
# Violates one hypothesis of a claim and returns whether the claim holds there, or calls a function that raises.
Outside: TypeAlias = Callable[[], bool]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of a paper or of this project.

    Attributes:
      id: What `check` and `launch.check_theory --claim` take: source, kind and number.
      source: The paper, and the number or section.
      statement: The claim in one sentence, in its true form.
      function: The function that computes it, as module.function below theory. The check calls it.
      check: check(rng, trials) yields (measured, bound) of each instance, claimed to be measured ≤ bound, or ≥ if that
        is the relation. Unless the claim holds with a complete proof it returns a counterexample to what does not hold.
        Its docstring begins with the two numbers that it compares.
      mutations: Ways to break the function, each of which the check must notice.
      relation: ≤ or ≥.
      verdict: On the printed statement: one of VERDICTS, or one of them, a colon and the details, such as the
        verdict of each reading.
      proof: On the printed proof or construction: one of PROOFS, or one of them, a colon and how or where.
      hypotheses: Phrases of the statement, each with one or several ways to violate it: there the statement is
        false, or its function raises ValueError (tests/theory/test_hypotheses.py tries them all).
      restates: id of the claim that this one repeats, so that no claim is counted twice; empty if none.
      is_remark: Whether it makes precise a remark that its authors leave vague; such are counted apart.
      after: id of the claim that it follows in the table; empty: it follows the claims of its source that are defined
        before it.
    """

    id: str
    source: str
    statement: str
    function: str
    check: CheckFunction
    mutations: tuple[Mutation, ...]
    relation: Literal["≤", "≥"] = "≤"
    verdict: str = HOLDS
    proof: str = COMPLETE
    hypotheses: Mapping[str, tuple[Outside, ...]] = dataclasses.field(default_factory=dict)
    restates: str = ""
    is_remark: bool = False
    after: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown verdict, or for a hypothesis that the statement does not name."""
        for name, value, words in (("verdict", self.verdict, VERDICTS), ("proof", self.proof, PROOFS)):
            if kind(value) not in words:
                raise ValueError(f"{self.id}: {name} must begin with one of {', '.join(words)}, got {value!r}")
        for phrase in self.hypotheses:
            if phrase not in self.statement:
                raise ValueError(f"{self.id}: the statement must name the hypothesis {phrase!r}")

    @property
    def compared(self) -> str:
        """Returns the two numbers that the check compares: the first paragraph of its docstring, joined."""
        return " ".join((self.check.__doc__ or "").partition("\n\n")[0].split())

    @property
    def needs_counterexample(self) -> bool:
        """Returns whether something printed does not hold as printed, which the check must then show on numbers."""
        return kind(self.verdict) != HOLDS or kind(self.proof) in (REPAIRED, WRONG)


_CLAIMS: dict[CheckFunction, list[Claim]] = {}  # by check, in the order in which the checks are defined


def claim(
    *,
    function: Callable | None = None,
    mutation: Mutation | tuple[Mutation, ...] = (),
    hypotheses: Mapping[str, Outside | tuple[Outside, ...]] | None = None,
    **fields: Any,
) -> Callable[[CheckFunction], CheckFunction]:
    """Returns the decorator that registers a Claim with the function below it as its check.

    Several may stand above one check, and appear in the table in their order; the lowest names the function.

    Args:
      function: The function of theory that the claim is about; the check calls it through its module.
      mutation: One mutation, or several, that the check must detect.
      hypotheses: As in Claim; a single way to violate one need not be in a tuple.
      fields: The other fields of Claim.
    """
    ways = {phrase: _several(outside) for phrase, outside in (hypotheses or {}).items()}

    def register(check: CheckFunction) -> CheckFunction:
        claims = _CLAIMS.setdefault(check, [])
        if function:
            path = f"{function.__module__}.{function.__qualname__}".removeprefix("theory.")
            mutations = _several(mutation)
        else:
            path, mutations = claims[0].function, claims[0].mutations
        claims.insert(0, Claim(function=path, check=check, mutations=mutations, hypotheses=ways, **fields))  # lowest up
        return check

    return register


def _several(one_or_several: Any) -> tuple:
    return one_or_several if isinstance(one_or_several, tuple) else (one_or_several,)


# Claims of later papers, restated from their abstracts: their printed constants and proofs were not checked.
restated = functools.partial(
    claim,
    verdict="holds: as restated here",
    proof="complete: in docs/appendix/proofs.md",
)


def claims_of(module: str) -> list[Claim]:
    """Returns the claims whose checks a module defines, in the order in which they are written."""
    return [made for check, claims in _CLAIMS.items() if check.__module__ == module for made in claims]


def kind(verdict: str) -> str:
    """Returns the one of VERDICTS or PROOFS with which a verdict, on statement or proof, begins."""
    return verdict.partition(":")[0]
