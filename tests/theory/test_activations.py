"""Activations: values that can be looked up, derivatives by differences, at the data and at zero."""

import math

import numpy as np
import pytest
from refusals import refused

from theory.shortcut import activations
from theory.shortcut.activations import ACTIVATIONS, Activation, Activations

AT_MINUS_1_AND_2 = {
    "linear": (-1, 2), "tanh": (-math.tanh(1), math.tanh(2)), "relu": (0, 2), "elu": (1 / math.e - 1, 2),
    "softsign": (-1 / 2, 2 / 3), "softplus": (math.log(1 + 1 / math.e), math.log(1 + math.e**2)),
    "sigmoid": (1 / (1 + math.e), 1 / (1 + math.e**-2)),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_has_its_values_and_its_derivative_is_that_of_differences(name):
    function, derivative, at_zero = ACTIVATIONS[name]
    np.testing.assert_allclose(function(np.array([-1.0, 2.0])), AT_MINUS_1_AND_2[name])
    z, step = np.array([-30.0, -2.0, -0.3, 0.4, 1.7, 30.0]), 1e-6
    np.testing.assert_allclose(derivative(z), (function(z + step) - function(z - step)) / (2 * step), atol=1e-8)
    np.testing.assert_allclose(function(z + 1e-30j).imag / 1e-30, derivative(z), rtol=1e-12, atol=1e-14)
    right, left = (
        (function(np.array([sign * h])) - function(np.zeros(1)))[0] / (sign * h) for sign, h in ((1, 1e-6), (-1, 1e-6))
    )
    assert function(np.zeros(1))[0] == pytest.approx(at_zero[0])
    assert name != "relu" or derivative(np.zeros(1)) == 0
    if math.isnan(at_zero[1]):
        assert abs(right - left) > 0.5
        return
    assert (right + left) / 2 == pytest.approx(at_zero[1], abs=1e-5)
    slopes = [(derivative(np.array([sign * 1e-4])) - derivative(np.zeros(1)))[0] / (sign * 1e-4) for sign in (1, -1)]
    if math.isnan(at_zero[2]):
        assert abs(slopes[0] - slopes[1]) > 0.5
    else:
        assert slopes == pytest.approx([at_zero[2]] * 2, abs=1e-3)


def test_the_slope_of_a_unit_at_zero_counts_mid_once_for_each_matrix_but_the_last():
    assert Activations(mid="relu", post="tanh").slope_at_zero(1) == 1  # one layer has no mid
    for n, expected in ((1, 3.0), (2, 6.0), (3, 12.0), (4, 24.0)):
        assert Activations(mid=(2.0, 0.0), post=(3.0, 0.0)).slope_at_zero(n) == expected


def one_sided(function, side):
    """An activation that is a function of |z| on one side of 0 and the identity on the other."""
    return Activation(lambda z: np.where(side * z > 0, function(np.abs(z)), z), None, (0.0, math.nan, math.nan))


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(
    "function, bounded",
    [(lambda z: z**0.995, True), (lambda z: 10 * z, True), (lambda z: z**0.99, False), (np.cbrt, False)],
)
def test_a_function_steeper_than_any_line_on_one_side_is_told_from_one_that_is_not(function, bounded, side):
    steep = one_sided(function, side)
    for place, check in (
        ("mid", Activations(mid=steep, post="relu").check_slopes_bounded),
        ("post", Activations(mid="relu", post=steep).check_slopes_bounded),
    ):
        if bounded:
            check()
        else:
            assert f"at {place}: its slope at 0 has no bound" in refused(check)


def test_unbounded_slope_is_an_error_from_three_layers_on():
    steep = Activations(mid=one_sided(np.cbrt, 1))
    steep.check(2)  # where slope_at_zero refuses it
    assert "at mid: its slope at 0 has no bound" in refused(steep.check, 3)
    assert "at post: its slope at 0" in refused(Activations(mid="relu", post=(math.nan, 0.0)).check_slopes_bounded)


def test_an_activation_need_only_be_finite_at_the_data():
    log = Activation(np.log, np.reciprocal, (0.0, 1.0, 0.0))
    np.testing.assert_array_equal(activations.values_at_data(log, np.array([1.0, 1.0])), 0)
    assert refused(activations.values_at_data, log, np.array([1.0, -1.0])).endswith("is not at -1")
    assert activations.derivatives_at_zero("mid", (2, 3)) == (0, 2, 3)


@pytest.mark.parametrize("place", ["pre", "mid", "post"])
def test_an_unknown_name_is_rejected_even_if_the_activation_has_no_effect(place):
    assert "'cosine'" in refused(Activations(**{place: "cosine"}).check, 1)
    Activations(**{place: (0.0, 1.0)}).check(1)  # a slope and a value need no name
