"""shortcut_study.hessian: closed form = piecewise = tape = differences; spectra."""

import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from shortcut_study.hessian import hessian, spectrum
from shortcut_study.network import ShortcutNetwork
from theory.derivatives import difference_hessian
from theory.shortcut.activations import ACTIVATIONS

D, M = 3, 8
LINEAR = [(1, 1), (4, 1), (1, 2), (3, 2), (2, 3)]
RELU = [("linear", "relu", "linear"), ("relu", "linear", "linear"), ("relu", "relu", "relu")]


def problem(num_units=2, shortcut_depth=2, activations=("linear",) * 3, shortcut=True, seed=0):
    rng = np.random.default_rng(seed)
    network = ShortcutNetwork(D, num_units, shortcut_depth, *activations, shortcut)
    x, y = rng.standard_normal((2, M, D))
    return network, network.initialize("xavier", seed), x, y


def differences(network, weights, x, y, step=1e-4):
    """Central second differences of the loss, parameters by unit, layer, column, row."""
    flat = np.swapaxes(weights, -1, -2).ravel()

    def loss(moved):
        return network.loss(np.swapaxes((flat + moved).reshape(network.shape), -1, -2), x, y)

    return difference_hessian(loss, flat.size, step)


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("num_units, shortcut_depth", LINEAR)
def test_the_closed_form_is_the_second_difference_of_the_loss(num_units, shortcut_depth, shortcut):
    network, weights, x, y = problem(num_units, shortcut_depth, shortcut=shortcut)
    closed = hessian(network, weights, x, y, "closed_form")
    np.testing.assert_allclose(closed, differences(network, weights, x, y), atol=1e-6 * np.abs(closed).max())


QUICK = {(3, 2, False), (2, 3, True)}


@pytest.mark.parametrize(
    "num_units, shortcut_depth, shortcut",
    [
        pytest.param(*case, shortcut, marks=[pytest.mark.slow] * ((*case, shortcut) not in QUICK))
        for case in LINEAR
        for shortcut in (True, False)
    ],
)
def test_closed_form_piecewise_and_tape_agree_to_rounding(num_units, shortcut_depth, shortcut):
    network, weights, x, y = problem(num_units, shortcut_depth, shortcut=shortcut)
    closed, piecewise, tape = (hessian(network, weights, x, y, m) for m in ("closed_form", "piecewise", "tape"))
    np.testing.assert_allclose(piecewise, closed, atol=1e-12 * np.abs(closed).max())
    np.testing.assert_allclose(tape, closed, atol=1e-12 * np.abs(closed).max())


QUICK_RELU = {(RELU[0], 2, False), (RELU[1], 1, True), (RELU[2], 2, True)}


@pytest.mark.parametrize(
    "activations, shortcut_depth, shortcut",
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case not in QUICK_RELU))
        for case in itertools.product(RELU, (1, 2, 3), (True, False))
    ],
)
def test_with_relu_piecewise_is_the_tape_and_the_second_difference(activations, shortcut_depth, shortcut):
    network, weights, x, y = problem(2, shortcut_depth, activations, shortcut)
    piecewise = hessian(network, weights, x, y, "piecewise")
    scale = max(np.abs(piecewise).max(), 1e-3)
    np.testing.assert_allclose(piecewise, hessian(network, weights, x, y, "tape"), atol=1e-12 * scale)
    np.testing.assert_allclose(piecewise, differences(network, weights, x, y, 1e-5), atol=1e-5 * scale)


def own(z):
    return z + 0.3 * z * z


@pytest.mark.parametrize(
    "activations",
    [("relu", "softplus", "tanh"), ("elu", "sigmoid", "softsign"), (own, "tanh", "linear"), ("softsign", own, "relu")],
)
def test_the_tape_takes_any_activation(activations):
    network, weights, x, y = problem(2, 2, activations)
    tape = hessian(network, weights, x, y, "tape")
    np.testing.assert_allclose(tape, differences(network, weights, x, y), atol=1e-5 * np.abs(tape).max())


@pytest.mark.parametrize("position", ["pre", "mid", "post"])
def test_activation_of_tensors_enters_loss_and_hessian_and_one_of_arrays_is_named(position):
    from shortcut_study.tape import data_objective

    of_tensors, of_arrays = (ShortcutNetwork(D, 2, 2, **{position: function}) for function in (keras.ops.sin, np.sin))
    _, weights, x, y = problem()
    assert of_tensors.loss(weights, x, y) == pytest.approx(of_arrays.loss(weights, x, y), rel=1e-12)
    found = hessian(of_tensors, weights, x, y)
    np.testing.assert_allclose(found, differences(of_arrays, weights, x, y), atol=1e-5 * np.abs(found).max())
    for function, arguments in ((hessian, (of_arrays, weights, x, y)), (data_objective, (of_arrays,))):
        assert "activation <ufunc 'sin'> must take TensorFlow tensors too" in refused(function, *arguments)


def test_activation_without_second_derivative_is_named_and_one_of_slope_0_is_not():
    network, weights, x, y = problem(1, 2, ("linear", "linear", tf.nn.softsign))
    assert "no derivative of SoftsignGrad" in refused(hessian, network, weights, x, y)
    network, weights, x, y = problem(1, 2, ("linear", "linear", tf.round))
    assert not hessian(network, weights, x, y).any()


def test_the_data_may_come_in_blocks_of_any_size(monkeypatch):
    from shortcut_study import piecewise, tape

    network, weights, x, y = problem(2, 2, ("linear", "relu", "linear"))
    whole = hessian(network, weights, x, y, "piecewise"), hessian(network, weights, x, y, "tape")
    monkeypatch.setattr(piecewise, "_BLOCK_BYTES", 8 * D * network.num_parameters * 3)
    monkeypatch.setattr(tape, "_BLOCK_BYTES", 5 * 4 * M * D * network.depth * 8)
    np.testing.assert_allclose(hessian(network, weights, x, y, "piecewise"), whole[0], atol=1e-13)
    np.testing.assert_allclose(hessian(network, weights, x, y, "tape"), whole[1], atol=1e-13)


def test_every_activation_was_taken_by_the_tape():
    (taken,) = [mark.args[1] for mark in test_the_tape_takes_any_activation.pytestmark]
    assert {*ACTIVATIONS} <= {*itertools.chain(*taken)}


def test_the_spectrum_is_that_of_the_eigenvalues():
    eigenvalues = np.array([-4.0, -1.0, 0.5, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((11, 11)))[0]
    found = spectrum((basis * eigenvalues) @ basis.T)
    assert found.max_abs == pytest.approx(9) and found.p10_abs == pytest.approx(1)
    assert found.condition_number == pytest.approx(9) and found.index == pytest.approx(2 / 11)


def test_zeros_made_negative_by_rounding_are_not_counted_and_the_range_has_them():
    jacobian = np.random.default_rng(0).standard_normal((10, 160))
    semidefinite = jacobian.T @ jacobian
    assert (np.linalg.eigvalsh(semidefinite) < 0).mean() > 0.2  # what it was
    found = spectrum(semidefinite)
    assert found.index == 0 and found.index_range == (0, 150 / 160)
    indefinite = spectrum(semidefinite - np.diag([1e3] * 3 + [0] * 157))
    assert indefinite.index == indefinite.index_range[0] == 3 / 160 and indefinite.index_range[1] > 0.9
    assert list(found.columns()) == ["max_abs", "p10_abs", "condition_number", "index"]


def test_what_counts_as_zero_follows_the_type_in_which_a_hessian_was_computed():
    jacobian = np.random.default_rng(0).standard_normal((20, 27)).astype(np.float32)
    single = jacobian.T @ jacobian
    assert (np.linalg.eigvalsh(single) < 0).any()  # what it was
    found = spectrum(single)
    assert found.condition_number == np.inf and found.index == 0 and found.index_range == (0, 7 / 27)
    assert spectrum(single.astype(np.float64)).condition_number < np.inf  # negative control: the type is lost


NO_HESSIANS = {
    "above the diagonal alone": ([[0, 5, 0], [0, 0, 0], [0, 0, 1]], r"not symmetric: .* reaches 5, H itself 5$"),
    "not symmetric": ([[1, 2], [0, 1]], "not symmetric: .* reaches 2, H itself 2$"),
    "NaN": ([[np.nan, 1], [1, 2]], "must be finite"),
    "one row": ([1, 2], r"P at least 1, got shape \(2,\)$"),
    "not square": ([[1, 2]], r"got shape \(1, 2\)$"),
    "empty": (np.zeros((0, 0)), r"got shape \(0, 0\)$"),
    "complex": ([[1j]], "must be real numbers, got complex128"),
}


@pytest.mark.parametrize("matrix, named", NO_HESSIANS.values(), ids=NO_HESSIANS)
def test_an_asymmetric_matrix_has_no_spectrum(matrix, named):
    assert re.search(f"^hessian .*{named}", refused(spectrum, np.array(matrix)))
    assert spectrum([[1, 2], [2 + 1e-6, 1]]).index == 0.5  # asymmetric by the rounding of float32
    for share, up_to_zero in ((0.99, 0.4), (1.01, 0.2)):  # of P · ε · max |λ|
        assert spectrum(np.diag([-8, 1, 2, 3, share * 5 * 2.0**-52 * 8])).index_range == (0.2, up_to_zero)
    for size in (1e-3, 1e3):  # of which a thousandth is let pass
        assert spectrum(size * np.array([[1, 2], [2 - 1.9e-3, 1]])).index == 0.5
        with pytest.raises(ValueError, match="is not symmetric"):
            spectrum(size * np.array([[1, 2], [2 - 2.1e-3, 1]]))


MISTAKES = {
    "an unknown method": (dict(method="magic"), "'magic'"),
    "weights of another shape": (dict(weights=np.zeros((1, 2, D, D))), r"\(2, 2, 3, 3\)"),
    "targets of another width": (dict(y=np.zeros((M, D + 1))), r"\(8, 4\)"),
    "more inputs than targets": (dict(x=np.ones((M + 1, D))), r"\(9, 3\) and \(8, 3\)"),
    "inputs that are not finite": (dict(x=np.full((M, D), np.nan)), "x must be finite"),
    "complex weights": (dict(weights=np.full((2, 2, D, D), 1j)), "weights must be real numbers, got complex128"),
    "weights that are not finite": (dict(weights=np.full((2, 2, D, D), np.inf)), "weights must be finite"),
}


@pytest.mark.parametrize("change, named", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_clear_line(change, named):
    network, weights, x, y = problem()
    assert re.search(named, refused(hessian, network, **({"weights": weights, "x": x, "y": y} | change)))


@pytest.mark.parametrize("method, activation", [("closed_form", "relu"), ("piecewise", "tanh")])
def test_a_method_that_does_not_apply_raises(method, activation):
    network, weights, x, y = problem(activations=("linear", activation, "linear"))
    assert f"{method} needs" in refused(hessian, network, weights, x, y, method)
