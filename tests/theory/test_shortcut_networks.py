"""n-shortcut networks: forward pass, gradient and least loss against loops, differences and scipy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repeatable import REPEATABLE
from scipy import linalg

from theory.shortcut import networks as sn
from theory.shortcut.activations import ACTIVATIONS

REPEATABLE = settings(REPEATABLE, max_examples=60)
SHAPES = {
    "num_units": st.integers(1, 4),
    "shortcut_depth": st.integers(1, 4),
    "d": st.integers(1, 4),
    "seed": st.integers(0, 10**6),
}
BY_HAND = {
    "linear": lambda z: z,
    "tanh": lambda z: (np.exp(z) - np.exp(-z)) / (np.exp(z) + np.exp(-z)),
    "relu": lambda z: z * (z > 0),
    "softplus": lambda z: np.log(1 + np.exp(z)),
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "elu": lambda z: np.where(z > 0, z, np.exp(z) - 1),
    "softsign": lambda z: z / (1 + np.abs(z)),
}


def problem(num_units, shortcut_depth, d, seed, size=0.5, num_examples=None):
    rng = np.random.default_rng(seed)
    m = num_examples or 2 * d + 1
    x, noise = rng.standard_normal((m, d)) + 0.5, rng.standard_normal((m, d))
    return size * rng.standard_normal((num_units, shortcut_depth, d, d)), x, x @ rng.standard_normal((d, d)) + noise


def predict(weights, column, pre="linear", mid="linear", post="linear"):
    """Definitions 2 and 3 for one example, a column, as they are printed."""
    h = column
    for unit in weights:
        z = BY_HAND[pre](h)
        for layer, matrix in enumerate(unit):
            z = matrix @ (BY_HAND[mid](z) if layer else z)
        h = h + BY_HAND[post](z)
    return h


def naive_loss(weights, x, y, **activations):
    return sum(((b - predict(weights, a, **activations)) ** 2).sum() for a, b in zip(x, y)) / (2 * len(x))


@given(**SHAPES, names=st.tuples(*[st.sampled_from(list(BY_HAND))] * 3))
@REPEATABLE
def test_the_network_is_what_the_definitions_say_one_example_at_a_time(num_units, shortcut_depth, d, seed, names):
    weights, x, y = problem(num_units, shortcut_depth, d, seed)
    activations = dict(zip(("pre", "mid", "post"), names))
    expected = np.array([predict(weights, row, **activations) for row in x])
    np.testing.assert_allclose(sn.forward(weights, x, **activations), expected, rtol=1e-10, atol=1e-12)
    assert sn.loss(weights, x, y, **activations) == pytest.approx(naive_loss(weights, x, y, **activations), rel=1e-10)


def test_moments_are_means_of_outer_products_and_not_covariances():
    _, x, y = problem(1, 1, 3, seed=2)
    input_moment, cross_moment = sn.moments(x, y)
    np.testing.assert_allclose(input_moment, sum(np.outer(a, a) for a in x) / len(x), rtol=1e-13)
    np.testing.assert_allclose(cross_moment, sum(np.outer(b, a) for a, b in zip(x, y)) / len(x), atol=1e-13)
    assert np.abs(cross_moment - cross_moment.T).max() > 0.1
    assert np.abs(input_moment - np.cov(x.T, bias=True)).max() > 0.1


@pytest.mark.parametrize("num_examples, d", [(12, 4), (4, 4), (3, 5)], ids=["many", "as many as d", "fewer than d"])
def test_equations_15_and_16_are_the_least_squares_of_scipy(num_examples, d):
    _, x, y = problem(1, 1, d, seed=d, num_examples=num_examples)
    expected = linalg.lstsq(x, y)[0].T  # of least norm where x has not full rank
    np.testing.assert_allclose(sn.least_squares_map(x, y), expected, atol=1e-9)
    least = sum(((b - expected @ a) ** 2).sum() for a, b in zip(x, y)) / (2 * num_examples)
    assert sn.minimum_loss(x, y) == pytest.approx(least, abs=1e-12)
    assert (least > 0.1) == (num_examples > d)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_their_definitions_with_the_derivatives_they_claim(name):
    activation, z = ACTIVATIONS[name], np.linspace(-3, 3, 62)  # 0 is not among them
    np.testing.assert_allclose(activation.function(z), BY_HAND[name](z), rtol=1e-12)
    slopes = (BY_HAND[name](z + 1e-6) - BY_HAND[name](z - 1e-6)) / 2e-6
    np.testing.assert_allclose(activation.derivative(z), slopes, atol=1e-8)
    h, f = 1e-4, BY_HAND[name]
    assert activation.at_zero[0] == pytest.approx(float(f(0.0)), abs=1e-15)
    right, left = (f(h) - f(0.0)) / h, (f(0.0) - f(-h)) / h
    if abs(right - left) > 0.5:
        assert name == "relu" and math.isnan(activation.at_zero[1]) and math.isnan(activation.at_zero[2])
    elif name in ("elu", "softsign"):  # smooth once, but not twice
        assert activation.at_zero[1] == pytest.approx((right + left) / 2, abs=1e-4)
        assert math.isnan(activation.at_zero[2])
    else:
        assert activation.at_zero[1:] == pytest.approx(((right + left) / 2, (right - left) / h), abs=1e-6)


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "tanh", "relu"])
def test_activations_do_not_overflow(name):
    with np.errstate(all="raise", under="ignore"):
        values = ACTIVATIONS[name].function(np.array([-800.0, 800.0]))
        slopes = ACTIVATIONS[name].derivative(np.array([-800.0, 800.0]))
    assert np.isfinite(values).all() and slopes[0] == pytest.approx(0, abs=1e-12)


# The docstring of forward promises complex-step derivatives; np.abs, np.logaddexp and scipy's expit have none.
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_complex_weights_give_complex_step_derivatives(name):
    weights, x, y = problem(2, 2, 2, seed=8)
    step = np.zeros_like(weights)
    step[1, 0, 1, 0] = 1e-6
    below, above = (sn.loss(weights + sign * step, x, y, mid=name) for sign in (-1, 1))
    derivative = sn.loss(weights + 1e-20j * step, x, y, mid=name).imag / 1e-20 / 1e-6
    assert derivative == pytest.approx((above - below) / 2e-6, rel=1e-6) and abs(derivative) > 1e-3
