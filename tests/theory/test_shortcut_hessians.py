"""Hessians at zero: against complex-step differences of a forward pass."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import refused

from theory import shortcut_hessians as sh
from theory.shortcut import figures, stationarity
from theory.shortcut.activations import ACTIVATIONS, Activation

# One with σ″(0) ≠ 0, unlike tanh; both are 0 at 0.
BENT = Activation(np.expm1, np.exp, (0.0, 1.0, 1.0))
SLANTED = Activation(lambda z: np.sin(z) / 2 + z * z, lambda z: np.cos(z) / 2 + 2 * z, (0.0, 0.5, 2.0))
SOFTPLUS = Activation(lambda z: np.log(1 + np.exp(z)), lambda z: 1 / (1 + np.exp(-z)), (math.log(2), 0.5, 0.25))


def data(m, d, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, d)) + 0.3, rng.standard_normal((m, d))


def losses(weights, x, y, pre="linear", mid="linear", post="linear") -> np.ndarray:
    """L of each of many networks at once; weights [B, R, n, d, d], real or complex."""
    pre, mid, post = ((ACTIVATIONS[a] if isinstance(a, str) else a).function for a in (pre, mid, post))
    h = np.repeat(x[None], len(weights), axis=0)
    for r in range(weights.shape[1]):
        z = pre(h)
        for layer in range(weights.shape[2]):
            z = np.einsum("bij,bmj->bmi", weights[:, r, layer], mid(z) if layer else z)
        h = h + post(z)
    return ((y - h) ** 2).sum((1, 2)) / (2 * len(x))


def differences(x, y, num_units, shortcut_depth, **activations) -> np.ndarray:
    """The Hessian at zero: complex steps in one parameter, central differences in the other. Exact to 1e-8."""
    d = x.shape[1]
    size = num_units * shortcut_depth * d * d
    step, one = 1e-4, np.eye(size)
    points = (1e-30j * one[:, None, None] + step * one[None, :, None] * np.array([1, -1])[:, None]).reshape(-1, size)
    by_column = points.reshape(-1, num_units, shortcut_depth, d, d)  # the last axes are column, row: Definition 5
    values = losses(by_column.swapaxes(-1, -2), x, y, **activations).imag.reshape(size, size, 2)
    return (values[..., 0] - values[..., 1]) / (2 * step * 1e-30)


@pytest.mark.parametrize("num_units, shortcut_depth", [(1, 1), (3, 1), (1, 2), (2, 2), (1, 3), (2, 3), (1, 4)])
@pytest.mark.parametrize(
    "pre, mid, post",
    [("linear", "linear", "linear"), ("tanh", "tanh", "tanh"), (SOFTPLUS, SLANTED, BENT), (BENT, "tanh", SLANTED)],
    ids=["linear", "tanh", "softplus and bent", "bent and slanted"],
)
def test_the_hessian_equals_differences_of_a_forward_pass(num_units, shortcut_depth, pre, mid, post):
    x, y = data(4, 2, seed=1)
    H = sh.hessian_at_zero(x, y, num_units, shortcut_depth, pre, mid, post)
    np.testing.assert_allclose(H, differences(x, y, num_units, shortcut_depth, pre=pre, mid=mid, post=post), atol=1e-6)
    np.testing.assert_array_equal(H, H.T)
    if shortcut_depth >= 3:
        assert not H.any()


def test_names_numbers_and_activations_of_your_own_say_the_same():
    x, y = data(5, 2, seed=2)
    H = sh.hessian_at_zero(x, y, 2, 1, "softplus", "linear", BENT)
    np.testing.assert_allclose(
        sh.hessian_at_zero(x, y, 2, 1, SOFTPLUS, "linear", (1.0, 1.0)), H, rtol=1e-12, atol=1e-14
    )
    assert np.abs(sh.hessian_at_zero(x, y, 2, 1, "softplus", "linear", (1.0, 0.0)) - H).max() > 0.01
    np.testing.assert_array_equal(sh.hessian_at_zero(x, y, 2, 1, "softplus", "sigmoid", BENT), H)  # n = 1 has no mid


@pytest.mark.parametrize("function", [sh.hessian_at_zero, sh.spectrum_at_zero, sh.condition_number_at_zero])
@pytest.mark.parametrize("place, shortcut_depth", [("mid", 2), ("post", 1), ("post", 2)])
def test_relu_at_mid_or_post_is_rejected_but_the_order_of_stationarity_stands(function, place, shortcut_depth):
    x, y = data(9, 3, seed=10)
    assert f"no Hessian exists at zero with 'relu' at {place}" in refused(
        function, x, y, 2, shortcut_depth, **{place: "relu"}
    )
    assert stationarity.order_of_stationarity(x, y, shortcut_depth, **{place: "relu"}) == (shortcut_depth - 1, False)
    weights = np.random.default_rng(12).standard_normal((1, 2, shortcut_depth, 3, 3))
    values = losses(np.array([0, 1e-3])[:, None, None, None, None] * weights, x, y, **{place: "relu"})
    assert 1e-3 < abs(values[1] - values[0]) / 1e-3**shortcut_depth < 1e3
    assert sh.hessian_at_zero(x, y, 1, 1, mid="relu").shape == (9, 9)  # n = 1 has no mid


@pytest.mark.parametrize("place", ["mid", "post"])
@pytest.mark.parametrize("activation", ["relu", "elu", "softsign"])
def test_from_three_layers_on_the_hessian_is_0_whatever_lacks_a_derivative_there(place, activation):
    x, y = data(9, 3, seed=10)
    assert not sh.hessian_at_zero(x, y, 2, 3, **{place: activation}).any()
    assert sh.spectrum_at_zero(x, y, 2, 3, **{place: activation}) == ([0], [54])
    weights = np.random.default_rng(12).standard_normal((1, 2, 3, 3, 3))
    values = losses(np.array([0, 1e-3, 1e-4])[:, None, None, None, None] * weights, x, y, **{place: activation})
    assert (np.abs(values[1:] - values[0]) < [1e-7, 1e-10]).all()


@pytest.mark.parametrize("activation", ["elu", "softsign"])
def test_one_derivative_at_0_is_enough_for_two_layers_and_not_for_one(activation):
    x, y = data(9, 3, seed=10)
    found = sh.hessian_at_zero(x, y, 2, 2, mid=activation, post=activation)
    np.testing.assert_allclose(found, sh.hessian_at_zero(x, y, 2, 2), atol=1e-15)
    np.testing.assert_allclose(found, differences(x, y, 2, 2, mid=activation, post=activation), atol=1e-3)
    assert f"n = 1 with '{activation}' at post" in refused(sh.hessian_at_zero, x, y, 2, 1, post=activation)


X, Y = np.array([[1.0, 0.0], [2.0, 1.0]]), np.ones((2, 2))
LOG = Activation(np.log, lambda z: np.where(z == 0, math.inf, 1.0), (0.0, 0.0, 0.0))
MISTAKES = {
    "shapes": ((X, Y[:1], 1, 2), {}, r"x and y must both be \[m, d\], got shapes \(2, 2\) and \(1, 2\)"),
    "NaN": ((X, Y * np.nan, 1, 2), {}, "x and y must be finite"),
    "no units": ((X, Y, 0, 2), {}, "num_units and shortcut_depth must be whole numbers of at least 1, got 0 and 2"),
    "sigmoid at mid": ((X, Y, 1, 2), {"mid": "sigmoid"}, "mid must be 0 at 0, .*'sigmoid' is 0.5"),
    "softplus at post": ((X, Y, 1, 1), {"post": "softplus"}, "post must be 0 at 0, .*'softplus' is 0.693"),
    "unknown at mid": ((X, Y, 1, 2), {"mid": "gelu"}, "activation must be one of linear, .* got 'gelu'"),
    "unknown at pre": ((X, Y, 1, 2), {"pre": "gelu"}, "activation must be one of linear, .* got 'gelu'"),
    "complex": ((X, Y * 1j, 1, 2), {}, "y must be real numbers, got complex128"),
    "words": ((X, np.array([["a", "b"]] * 2), 1, 2), {}, "y must be real numbers, got <U1"),
    "three numbers": ((X, Y, 1, 2), {"mid": (1, 2, 3)}, r"mid must be a name, .* got \(1, 2, 3\)"),
    "log of 0": ((X, Y, 1, 2), {"pre": LOG}, "pre must be finite at the data, but Activation.* is not at 0"),
    "a root at 0": ((X, Y, 2, 1), {"pre": LOG._replace(function=np.sqrt)}, ".* at pre has no derivative at some of"),
    "large numbers": ((1e160 * X, 1e160 * Y, 2, 2), {}, r"the data's mean products .* up to 1e\+160 and 2e\+160 are"),
    "small numbers": ((1e-170 * X, 1e-170 * Y, 2, 2), {}, "the data's mean products are beyond the range of float64"),
    "small numbers, n = 1": ((1e-170 * X, Y, 2, 1), {}, "the data's mean products are beyond the range of float64"),
    "ReLU at pre at 0": ((X, Y, 2, 1), {"pre": "relu"}, "ReLU at pre has no derivative at the zeros among the data"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("function", [sh.hessian_at_zero, sh.condition_number_at_zero, sh.spectrum_at_zero])
def test_networks_beyond_the_theorem_raise_a_short_error(function, mistake):
    arguments, activations, message = MISTAKES[mistake]
    assert re.match(message, refused(function, *arguments, **activations))


def test_data_of_any_scale_within_float64_have_one_condition_number():
    x, y = data(12, 3, seed=14)
    for shortcut_depth in (1, 2):
        number = sh.condition_number_at_zero(x, y, 2, shortcut_depth)
        for scale in (1e-140, 1e140):
            scaled = sh.condition_number_at_zero(scale * x, scale * y, 2, shortcut_depth)
            assert scaled == pytest.approx(number) and math.isfinite(number)
    assert not sh.moment_gap(np.diag([1e-200, 1e-200]), np.zeros((2, 2)) + np.diag([1e-200, 1e-200])).any()  # y = x


def test_the_order_of_one_layer_is_exact_whatever_mid_it_does_not_have():
    assert stationarity.order_of_stationarity(X, Y, 1, mid="sigmoid") == (0, True)


@pytest.mark.parametrize("apart, distinct", [(0.0, 1), (2e-16, 1), (1e-13, 2), (1e-9, 2)])
def test_eigenvalues_are_one_only_where_they_differ_by_rounding(apart, distinct):
    x, targets = 2 * np.eye(2), np.diag([1.0, 1 + apart])  # Sxx = 2I, so M = 2(I − targets)
    found = sh.spectrum_at_zero(x, x @ (np.eye(2) - targets), 3, 2)
    assert len(found.eigenvalues) == 2 * distinct and found.multiplicities.tolist() == [12 // distinct] * 2 * distinct
    np.testing.assert_allclose(found.eigenvalues[-distinct:], 2 * np.diag(targets)[-distinct:], rtol=1e-15)


def test_one_unit_needs_no_derivative_of_pre_at_the_data_and_two_do():
    x = np.array([[0.0, 1.0], [2.0, -1.0]])
    y = x @ np.array([[0.5, 1.0], [0.0, 2.0]])
    one = sh.hessian_at_zero(x, y, 1, 1, pre="relu")
    s = np.maximum(x, 0)
    np.testing.assert_allclose(one, np.kron(s.T @ s / 2, np.eye(2)))
    assert "no derivative at the zeros" in refused(sh.hessian_at_zero, x, y, 2, 1, pre="relu")
    assert sh.hessian_at_zero(np.abs(x) + 1, y, 2, 1, pre="relu").shape == (8, 8)  # no zeros, but a 1


@pytest.mark.parametrize("least, finite", [(1e-14, True), (1.2e-15, True), (8e-16, False), (4e-17, False)])
def test_the_condition_number_is_infinite_if_the_least_eigenvalue_is_rounding(least, finite):
    x = np.diag([2.0, 2 * least**0.5])  # with y = 0 M is diag(2, 2 least); 4 ε = 8.9e-16
    found = sh.condition_number_at_zero(x, 0 * x, 1, 2)
    assert (found == pytest.approx(1 / least)) if finite else found == np.inf


def test_condition_number_bound_is_its_formula_from_two_dimensions_and_units_on():
    x, y = data(20, 2, seed=2)
    largest, least = np.linalg.eigvalsh(x.T @ x / 20)[-1], np.linalg.svd((x - y).T @ x / 20)[1][-1]
    assert sh.condition_number_lower_bound(x, y, 2) == pytest.approx(2 * largest / least)
    assert sh.condition_number_lower_bound(x, x, 2) == np.inf


@pytest.mark.parametrize("share, is_singular", [(1.9, True), (2.1, False)])
def test_a_hessian_is_singular_within_the_rounding_of_its_size(share, is_singular, monkeypatch):
    least = share * np.finfo(np.float64).eps  # of two eigenvalues
    monkeypatch.setattr(sh, "spectrum_at_zero", lambda *_: SimpleNamespace(eigenvalues=np.array([-1.0, least])))
    assert sh.condition_number_at_zero(None, None, 1, 2) == (math.inf if is_singular else pytest.approx(1 / least))


def test_the_condition_numbers_of_a_seed_are_of_the_regressions_from_that_seed_on():
    first, second = (figures.condition_numbers_at_zero(seed, 3, (2,), 2) for seed in (0, 1))
    assert second[0] == first[1] | {"instance": 0} and second[1]["one_shortcut"] != first[0]["one_shortcut"]
