"""The hypotheses of a claim: its statement names each range that its function enforces, and is false outside."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import NamedTuple

import pytest

from theory import claims
from theory.claim import Claim

WITH_HYPOTHESES = [claim for claim in claims.CLAIMS.values() if claim.hypotheses]
# Messages about the kind of an argument, or about what float64 holds, and not about where a theorem is true.
KIND_OF_ARGUMENT = re.compile(
    r"integer|whole number|at least 1,|real numbers|one shape|float64|labels must lie|require_at_least\([01],"
)


class Range(NamedTuple):
    """Lines of a function of theory that raise ValueError for a number out of its range."""

    function: str
    first: int
    last: int
    text: str


def ranges(function: Callable, seen: set[Callable]) -> list[Range]:
    """Returns the ranges that a function enforces, and the functions of its module that it calls."""
    seen.add(function)
    found, lines = [], inspect.getsourcelines(function)
    for node in ast.walk(ast.parse(textwrap.dedent("".join(lines[0])))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = getattr(inspect.getmodule(function), node.func.id, None)
            if inspect.isfunction(called) and called not in seen and called.__module__ == function.__module__:
                found += ranges(called, seen)
        if is_range(node) and not KIND_OF_ARGUMENT.search(ast.unparse(node)):
            first = lines[1] - 1 + node.lineno
            found.append(Range(function.__name__, first, lines[1] - 1 + node.end_lineno, ast.unparse(node)))
    return found


def is_range(node: ast.AST) -> bool:
    """Whether a statement raises because of an order of numbers."""
    if isinstance(node, ast.Expr):
        return "require_at_least(" in ast.unparse(node)
    ordered = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return (
        isinstance(node, ast.If)
        and any(isinstance(line, ast.Raise) for line in node.body)
        and any(isinstance(op, ordered) for part in ast.walk(node.test) for op in getattr(part, "ops", ()))
    )


def refused(claim: Claim) -> set[tuple[str, int]]:
    """Returns the places that raise ValueError when hypotheses are violated: (function, line) of every frame."""
    places = set()
    for outside in (way for ways in claim.hypotheses.values() for way in ways):
        try:
            outside()
        except ValueError as error:
            traceback = error.__traceback__
            while traceback:
                places.add((traceback.tb_frame.f_code.co_name, traceback.tb_lineno))
                traceback = traceback.tb_next
    return places


def function_named(claim: Claim) -> Callable:
    path, name = claim.function.rsplit(".", 1)
    return getattr(importlib.import_module(f"theory.{path}"), name)


@pytest.mark.parametrize("claim", WITH_HYPOTHESES, ids=lambda claim: claim.id)
def test_a_statement_is_false_outside_its_hypotheses_or_its_function_refuses(claim):
    for phrase, ways in claim.hypotheses.items():
        for outside in ways:
            try:
                assert not outside(), f"{claim.id} holds without {phrase!r}"
            except ValueError as error:
                frames = inspect.getinnerframes(error.__traceback__)
                assert function_named(claim).__name__ in [frame.function for frame in frames], error


@pytest.mark.parametrize("claim", [c for c in claims.CLAIMS.values() if not c.restates], ids=lambda claim: claim.id)
def test_a_statement_names_every_range_that_its_function_enforces(claim):
    places = refused(claim)
    for enforced in ranges(function_named(claim), set()):
        seen = any(name == enforced.function and enforced.first <= line <= enforced.last for name, line in places)
        assert seen, f"no hypothesis of {claim.id} leaves the range of {enforced.text!r}"


def test_ranges_are_found_in_a_function_and_in_those_it_calls():
    from theory import factorization
    from theory.descent import from_zero

    found = [enforced.text for enforced in ranges(from_zero.step_bound, set())]
    assert len(found) == 3 and "not learning_rate > 0" in found[0]
    assert any("slogdet" in enforced.text for enforced in ranges(factorization.factorize, set()))


def test_a_hypothesis_that_the_statement_does_not_name_is_rejected():
    import dataclasses

    with pytest.raises(ValueError, match="hm.eq_2.3: the statement must name the hypothesis 'Σ = I'"):
        dataclasses.replace(claims.CLAIMS["hm.eq_2.3"], hypotheses={"Σ = I": ()})
