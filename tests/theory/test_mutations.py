"""The mutations that stand with the claims: each check must notice that the function of its claim is broken."""

import importlib

import numpy as np
import pytest

from theory import claims, evidence
from theory.memorization import first_layer

# Claims that stand above one check share its mutations: each is planted once.
BY_CHECK = {(claim.check, claim.relation): claim for claim in reversed(claims.CLAIMS.values())}
MUTATIONS = [
    pytest.param(claim, mutation, id=f"{claim.id}-{number}")
    for claim in BY_CHECK.values()
    for number, mutation in enumerate(claim.mutations)
]


def test_every_claim_has_a_mutation():
    assert all(claim.mutations for claim in claims.CLAIMS.values())


def until_bad(pairs, relation):
    """Yields the instances of a check up to the first that violates its relation: the others change no verdict."""
    while True:
        try:
            measured, bound = next(pairs)
        except StopIteration as end:
            return end.value
        yield measured, bound
        if not evidence.Evidence(1, measured, relation, bound).holds:
            return None


@pytest.mark.parametrize("claim, mutation", MUTATIONS)
def test_a_check_fails_when_the_function_of_its_claim_is_broken(monkeypatch, claim, mutation):
    path, name = claim.function.rsplit(".", 1)
    module = importlib.import_module(f"theory.{path}")
    monkeypatch.setattr(module, name, mutation(getattr(module, name)))
    worst = evidence.worst
    monkeypatch.setattr(claims, "worst", lambda pairs, relation: worst(until_bad(pairs, relation), relation))
    check = claims.check(claim.id, seed=3, trials=8)
    assert not check.holds and check.verdict == "CHECK FAILED"


def test_the_check_of_the_width_fails_if_the_paper_s_width_keeps_all_distances(monkeypatch):
    monkeypatch.setattr(first_layer, "draw_projection", lambda rng, width, dim: np.eye(dim))
    check = claims.check("hm.theorem_3.2_width", seed=3, trials=8)
    assert not check.holds and check.counterexample == "k = 10 ln n/ρ² keeps distances to 1 ± ρ/3"
