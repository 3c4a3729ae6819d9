"""The mutations that stand with the claims: each check must notice that the function of its claim is broken."""

import importlib

import numpy as np
import pytest

from theory import claims
from theory.memorization import first_layer

MUTATIONS = [
    pytest.param(claim, mutation, id=f"{claim.id}-{number}")
    for claim in claims.CLAIMS.values()
    for number, mutation in enumerate(claim.mutations)
]


def test_every_claim_has_a_mutation():
    assert all(claim.mutations for claim in claims.CLAIMS.values())


@pytest.mark.parametrize("claim, mutation", MUTATIONS)
def test_a_check_fails_when_the_function_of_its_claim_is_broken(monkeypatch, claim, mutation):
    path, name = claim.function.rsplit(".", 1)
    module = importlib.import_module(f"theory.{path}")
    monkeypatch.setattr(module, name, mutation(getattr(module, name)))
    check = claims.check(claim.id, seed=3, trials=20)
    assert not check.holds and check.verdict == "CHECK FAILED"


def test_the_check_of_the_width_fails_where_the_papers_width_keeps_all_distances(monkeypatch):
    monkeypatch.setattr(first_layer, "draw_projection", lambda rng, width, dim: np.eye(dim))
    check = claims.check("hm.theorem_3.2_width", seed=3, trials=20)
    assert not check.holds and check.counterexample == "k = 10 ln n/ρ² keeps distances to 1 ± ρ/3"
