"""n-shortcut networks: the forward pass against loops, the order of stationarity, the way out of the saddle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repeatable import REPEATABLE

from theory import shortcut_hessians
from theory.shortcut import networks as sn
from theory.shortcut import stationarity
from theory.shortcut.activations import ACTIVATIONS

REPEATABLE = settings(REPEATABLE, max_examples=30)
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
def test_the_network_equals_the_definitions_one_example_at_a_time(num_units, shortcut_depth, d, seed, names):
    weights, x, y = problem(num_units, shortcut_depth, d, seed)
    activations = dict(zip(("pre", "mid", "post"), names))
    expected = np.array([predict(weights, row, **activations) for row in x])
    np.testing.assert_allclose(sn.forward(weights, x, **activations), expected, rtol=1e-10, atol=1e-12)
    assert sn.loss(weights, x, y, **activations) == pytest.approx(naive_loss(weights, x, y, **activations), rel=1e-10)


def test_the_linear_map_is_that_of_the_linear_network():
    weights, x, _ = problem(3, 2, 4, 5)
    np.testing.assert_allclose(sn.forward(weights, x), x @ sn.linear_map(weights).T)


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "tanh", "relu"])
def test_activations_do_not_overflow(name):
    with np.errstate(all="raise", under="ignore"):
        values = ACTIVATIONS[name].function(np.array([-800.0, 800.0]))
        slopes = ACTIVATIONS[name].derivative(np.array([-800.0, 800.0]))
    assert np.isfinite(values).all() and slopes[0] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("shortcut_depth", [1, 2, 3])
def test_leading_term_has_a_slope_per_matrix_and_the_order_is_exact_unless_it_is_0(shortcut_depth):
    weights, x, y = problem(2, shortcut_depth, 3, 7)
    names = {"pre": "tanh", "mid": (0.5, 0.0), "post": (3.0, 0.0)}
    term = stationarity.leading_term(weights, x, y, **names)
    M = (x - y).T @ np.tanh(x) / len(x)
    traces = sum(np.trace(np.linalg.multi_dot([*unit[::-1], M.T])) for unit in weights)
    assert term == pytest.approx(3 * 0.5 ** (shortcut_depth - 1) * traces)
    assert stationarity.order_of_stationarity(x, y, shortcut_depth, **names) == (shortcut_depth - 1, True)
    flat = stationarity.order_of_stationarity(x, y, shortcut_depth, mid=(0.0, 1.0))
    assert flat == (shortcut_depth - 1, shortcut_depth == 1)
    assert not stationarity.order_of_stationarity(x, y, shortcut_depth, post=(0.0, 1.0)).exact
    assert not stationarity.order_of_stationarity(x, x, shortcut_depth).exact
    assert stationarity.order_of_stationarity(x, y, shortcut_depth, mid="relu").exact is (shortcut_depth == 1)


@pytest.mark.parametrize("mid, sign", [((2.0, 0.0), 1), ((-2.0, 0.0), -1)])
def test_the_escape_from_the_saddle_is_the_eigenvector_of_the_least_eigenvalue(mid, sign):
    _, x, y = problem(2, 2, 3, 9)
    direction, curvature = stationarity.escape_from_saddle(x, y, 2, mid=mid)
    H = shortcut_hessians.hessian_at_zero(x, y, 2, 2, mid=mid)
    flat = direction.swapaxes(-1, -2).ravel()  # column, then row
    np.testing.assert_allclose(H @ flat, curvature * flat, atol=1e-12)
    assert np.linalg.norm(flat) == pytest.approx(1) and curvature == pytest.approx(np.linalg.eigvalsh(H)[0])
    assert stationarity.escape_from_saddle(x, y, 1, mid=mid).curvature == curvature
    small = stationarity.escape_from_saddle(1e-3 * x, 1e-3 * y, 1, mid=mid).curvature
    assert small == pytest.approx(1e-6 * curvature)
    flat = stationarity.escape_from_saddle(x, x * [0.5, 1.0, 1.0], 1)  # M is of rank 1
    assert flat.curvature == pytest.approx(-np.linalg.norm(0.5 * x[:, 0] @ x / len(x)))
