"""The table of claims: every check passes, and fails when the code that it checks is broken."""

import ast
import dataclasses
import functools
import math
import pathlib
import re

import pytest
from refusals import refused

from theory import claims, linear_residual

ROOT = pathlib.Path(__file__).parents[2]


@functools.cache
def checked_once(check, relation):
    """Returns the result of a check for the first of the claims that stand above it."""
    claim = next(c for c in claims.CLAIMS.values() if (c.check, c.relation) == (check, relation))
    return claims.check(claim.id, seed=1, trials=3)


@pytest.mark.parametrize("claim", claims.CLAIMS)
def test_every_claim_holds_as_the_table_says(claim):
    check = checked_once(claims.CLAIMS[claim].check, claims.CLAIMS[claim].relation)._replace(claim=claim)
    assert check.holds, check
    assert check.verdict == claims.CLAIMS[claim].verdict
    assert check.instances >= 1 and math.isfinite(check.slack)
    assert check.counterexample or not claims.CLAIMS[claim].needs_counterexample


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("claim", claims.CLAIMS)
def test_every_claim_holds_for_other_seeds(claim, seed):
    check = claims.check(claim, seed=100 + seed, trials=100)
    assert check.holds, check


@pytest.mark.parametrize("judgement", [{"verdict": "true"}, {"proof": "fine"}])
def test_a_judgement_begins_with_a_word_of_the_table(judgement):
    with pytest.raises(ValueError, match="must begin with one of holds, |must begin with one of complete, "):
        dataclasses.replace(claims.CLAIMS["hm.eq_2.3"], **judgement)


def test_no_module_of_theory_but_the_keras_network_imports_a_framework():
    frameworks, importing = {"tensorflow", "keras", "jax", "torch"}, set()
    for path in (ROOT / "theory").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:  # to_keras() imports keras_network when it is called
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            if frameworks & {name.partition(".")[0] for name in names} or "theory.memorization.keras_network" in names:
                importing.add(path.stem)
    assert importing == {"keras_network"}


def test_statements_are_counted_once_and_ours_apart():
    sources = ("hm.", "li.", "review.", "blog.")
    numbered = [claim for claim in claims.CLAIMS.values() if not claim.restates and not claim.is_remark]
    printed = [claim for claim in numbered if claim.id.startswith(sources)]
    assert claims.summary().startswith(f"{len(printed)} printed statements: ")
    assert {claim.restates for claim in claims.CLAIMS.values() if claim.restates} <= {claim.id for claim in printed}


def test_a_claim_stands_behind_the_one_that_it_names_and_behind_none_it_cannot():
    first, second, third = (dataclasses.replace(claims.CLAIMS["hm.eq_2.3"], id=f"hm.{name}") for name in "abc")
    second = dataclasses.replace(second, after="hm.c")
    assert [claim.id for claim in claims.in_order([first, second, third])] == ["hm.a", "hm.c", "hm.b"]
    with pytest.raises(ValueError, match="hm.b: there is no claim 'hm.c' that it could follow"):
        claims.in_order([first, second])


def test_a_claim_said_to_be_false_fails_without_a_counterexample(monkeypatch):
    monkeypatch.setattr(linear_residual, "smallest_counterexample", lambda power: None)
    check = claims.check("review.eq_6", trials=5)
    assert not check.holds and "no small numbers" in check.counterexample


def test_the_same_seed_gives_the_same_check_and_another_another():
    first, again, other = (claims.check("hm.eq_2.3", seed, trials=5) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("arguments, named", [(("hm.theorem_9",), "'hm.theorem_9'"), (("hm.eq_2.3", 0, 0), "got 0")])
def test_a_wrong_claim_or_count_is_one_clear_line(arguments, named):
    assert named in refused(claims.check, *arguments)


def test_the_readme_and_the_page_of_theorems_count_the_statements_as_the_table_does():
    page, readme = ((ROOT / path).read_text() for path in ("docs/papers/theorems.md", "README.md"))
    counted = re.search(r"(\d+) printed statements.*?: (\d+) hold, and (\d+) are false", page, re.S)
    total, holding, false = counted.groups()
    counts = claims.summary()
    assert counts.startswith(f"{total} printed statements: {holding} hold,") and f" {false} are false" in counts
    assert f"{false} of [{total} printed statements]" in readme


def test_the_docs_hold_the_table_as_the_code_has_it():
    page = ROOT / "docs" / "reference" / "claims.md"
    assert claims.document() == page.read_text(), "python -m theory.claims > docs/reference/claims.md"


def test_the_report_has_a_row_a_check_and_no_stray_column():
    checks = [claims.check(claim, trials=2) for claim in ("hm.eq_2.3", "review.eq_6")]
    header, _, *rows = claims.markdown(checks).splitlines()
    columns = [line.replace("\\|", "").count("|") for line in (header, *rows)]
    assert len(rows) == 2 and len(set(columns)) == 1
