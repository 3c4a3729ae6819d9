"""Mixed derivatives of a function whose derivatives are known; and evidence of a claim."""

import math

import numpy as np
import pytest

from theory import derivatives, evidence


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_mixed_derivative_is_the_coefficient_of_the_product(size):
    indices = [(0, 0), (1, 1), (0, 1)][:size]

    def function(w, c):
        x = [w[index] for index in indices]
        return c * np.prod(x) + np.prod(x) * x[0] + 2 * x[-1] ** 2 + 5 * x[0] + 7

    assert derivatives.mixed_derivative(function, indices, (2, 2), 3.0) == pytest.approx(3 + 5 * (size == 1))


def test_slack_is_relative_to_the_larger_size_and_equal_numbers_satisfy_a_relation():
    for measured, relation, bound, slack in (
        (3, "≤", 4, 0.25),
        (4, "≥", 3, 0.25),
        (-4, "≤", -3, 0.25),
        (-3, "≥", -4, 0.25),
        (5, "≤", 4, -0.2),
    ):
        found = evidence.Evidence(1, measured, relation, bound)
        assert found.slack == pytest.approx(slack) and found.holds is (slack > 0)
    for relation in ("≤", "≥"):
        assert evidence.Evidence(1, 2.0, relation, 2.0).holds and evidence.Evidence(1, 0, relation, 0).slack == 0
        assert not evidence.Evidence(1, math.inf, relation, 1.0).holds
        assert (
            not evidence.Evidence(1, 1.0, relation, -math.inf).holds
            and not evidence.Evidence(1, math.nan, relation, 1).holds
        )


def test_the_worst_instance_comes_with_the_counterexample_and_the_count():
    def pairs(last):
        yield 1, 4
        yield 3, 4
        yield 2, 4
        return last

    found = evidence.worst(pairs("R = 2"), "≤")
    assert found == evidence.Evidence(3, 3, "≤", 4, "R = 2") and evidence.worst(pairs(None), "≤").counterexample == ""
    assert math.isnan(evidence.worst([(1, 4), (math.nan, 4), (9, 4)], "≤").measured)
    evidence.require(True, "")
    with pytest.raises(evidence.CheckFailed, match="^wrong$"):
        evidence.require(False, "wrong")


def test_a_relative_error_is_the_largest_difference_over_the_largest_reference():
    assert evidence.relative_error([1.0, -13.0, 3.0], np.array([1.0, -10.0, 2.0])) == pytest.approx(0.3)
    assert evidence.relative_error([1e-290], np.array([0.0])) == pytest.approx(1e10)
