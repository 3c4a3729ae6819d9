"""One planted mutation a row of the table of claims: its check must notice that the function it lists is broken.

MUTATIONS maps a claim's id to a function that takes the listed function and returns a broken one; it takes the
function's place in its module while the check runs. A row without an entry here fails the tests.
"""

import importlib

import numpy as np
import pytest

from theory import claims


def scaled(factor):
    """The mutation that multiplies what the function returns."""
    return lambda function: lambda *a, **k: factor * function(*a, **k)


def transposed(function):
    """The mutation that exchanges the last two axes of what the function returns."""
    return lambda *a, **k: np.swapaxes(function(*a, **k), -1, -2)


def turned(function):
    """The mutation that turns the matrix that the function returns by half a turn."""
    return lambda *a, **k: function(*a, **k)[::-1, ::-1]


def backwards(function):
    """The mutation that returns the layers in reverse order."""
    return lambda *a, **k: function(*a, **k)[::-1]


def forgetful(memorize):
    """The mutation that gives the first point a wrong label."""

    def broken(x, labels, num_classes, *a, **k):
        return memorize(
            x, np.where(np.arange(len(labels)) == 0, (labels + 1) % num_classes, labels), num_classes, *a, **k
        )

    return broken


def hasty(guarantee):
    """The mutation that promises a rate 0.4 times the proved one."""

    def broken(*a, **k):
        said = guarantee(*a, **k)
        return said._replace(rate=0.4 * said.rate)

    return broken


MUTATIONS = {
    "hm.claim_2.3": scaled(0.5),
    "hm.lemma_2.4": transposed,
    "hm.eq_2.5": transposed,
    "hm.theorem_2.1": backwards,
    "hm.lemma_3.3": forgetful,
    "hm.theorem_3.2": forgetful,
    "blog.theorem_2": forgetful,
    "li.theorem_1.3": turned,
    "li.eq_7": transposed,
    "li.eq_16": scaled(1.01),
    "ours.norm_lower_bound": scaled(1.1),
    "ours.one_shortcut_growth": scaled(20),
    "bhl.recursion": scaled(1.01),
    "bhl.positive_definite": scaled(0.6),
    "bhl.negative_eigenvalue": scaled(1.01),
    "bhl.asymmetric": transposed,
    "zlg.theorem_3.1": hasty,
    "ours.widened_gradient_bound": scaled(1.1),
    "ours.monotone_descent": scaled(0.5),
    "ours.singular_target": scaled(0.9),
    "ours.straight_line": scaled(1.1),
    "ach.theorem_1": scaled(1.1),
    "ach.claim_1": scaled(1.1),
    "acgh.margin": scaled(1.2),
    "ours.margin_bound": scaled(1.1),
    "ours.imbalance_drift": scaled(2),
    "ours.drift_bound": scaled(0.9),
    "ours.saddle_order": scaled(5),
    "sh.local_minima": scaled(0.99),
    "kb.chain": scaled(1.1),
    "ours.ball_risk": scaled(0.9),
    "ours.reordering_risk": scaled(0.005),
    "ours.saddle_time": scaled(1.4),
}


def check_when_broken(monkeypatch, claim_id):
    """The check of a claim while the function that it lists is broken by its mutation."""
    module, name = claims.CLAIMS[claim_id].function.split(".")
    module = importlib.import_module(f"theory.{module}")
    monkeypatch.setattr(module, name, MUTATIONS[claim_id](getattr(module, name)))
    return claims.check(claim_id, seed=3, trials=20)


FEW = ["hm.eq_2.5", "hm.theorem_2.1", "hm.theorem_3.2", "li.theorem_1.3", "li.eq_7", "ours.norm_lower_bound"]


@pytest.mark.parametrize(
    "claim", [claim if claim in FEW else pytest.param(claim, marks=pytest.mark.slow) for claim in MUTATIONS]
)
def test_a_check_fails_when_the_function_it_lists_is_broken(monkeypatch, claim):
    check = check_when_broken(monkeypatch, claim)
    assert not check.holds and check.verdict == "CHECK FAILED"
