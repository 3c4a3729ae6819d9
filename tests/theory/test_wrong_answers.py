"""What once had a wrong answer, a warning or a traceback: extreme scales and the ends of ranges."""

import math
import os

import numpy as np
import pytest

from theory import factorization, linear_residual, parallel, shortcut_hessians
from theory.descent import saddle_escape
from theory.memorization import construction, first_layer
from theory.relu import networks as relu_networks
from theory.shortcut import networks as shortcut_networks
from theory.shortcut import stationarity

pytestmark = pytest.mark.filterwarnings("error")  # a warning is a wrong answer too

X, Y = np.random.default_rng(0).standard_normal((2, 10, 3))
EYE, LAYERS = np.eye(3), np.zeros((2, 3, 3))


@pytest.mark.parametrize("scale", [1e-160, 1e160])
def test_the_lower_bound_of_a_large_target_is_that_of_its_logarithms(scale):
    M = np.random.default_rng(1).standard_normal((3, 3))
    M *= np.sign(np.linalg.det(M))
    num_layers, x = 2000, np.linalg.svd(M)[2][0 if scale > 1 else -1]
    image = M @ x
    log_gain = math.log(np.linalg.norm(image)) + math.log(scale)
    angle = math.acos(image @ x / np.linalg.norm(image))
    at_x = abs(np.exp((log_gain + 1j * angle) / num_layers) - 1)
    found = factorization.norm_lower_bound(scale * M, num_layers)
    polar = np.linalg.norm(factorization.factorize(scale * M, num_layers)[0], 2)
    assert at_x * (1 - 1e-9) <= found <= polar * (1 + 1e-9)
    assert found == pytest.approx(0.2, rel=0.2)


def test_the_common_bias_width_of_two_opposite_points_and_of_one_point():
    assert first_layer.common_bias_width(2, 4.0) <= first_layer.common_bias_width(2, 3.999)
    assert first_layer.common_bias_width(2, 4.0) == pytest.approx(first_layer.common_bias_width(2, 4 - 1e-7), abs=1)
    for x in (np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([[1.0, 0.0]])):
        labels = np.arange(len(x))
        network = construction.memorize(x, labels, 2, method="paper")
        assert (network(x).argmax(1) == labels).all()


def test_a_subnormal_target_without_a_logarithm_is_factorized_only_by_polar():
    R = 1e-310 * np.eye(2)
    # Fewer layers are too near −I for float64.
    np.testing.assert_array_equal(factorization.factorize(R, 40, "best"), factorization.factorize(R, 40))
    assert factorization.norm_bound(R, 8, "best") == factorization.norm_bound(R, 8)
    assert factorization.norm_bound(R, 1) == math.inf  # e^714 is no float64


def test_the_best_map_of_ill_conditioned_data_is_found():
    x = X * [1, 3e-8, 1]
    W = np.array([[1, 1 / 3e-8, 0], [2, -1 / 3e-8, 1], [0, 0, 1]])
    np.testing.assert_allclose(shortcut_networks.least_squares_map(x, x @ W.T), W, rtol=1e-7, atol=1e-6)
    assert shortcut_networks.minimum_loss(x, x @ W.T) < 1e-14


def test_the_gradient_bound_holds_if_sigma_is_singular_up_to_rounding():
    A, R, Sigma = np.zeros((3, 2, 2)), np.diag([1.0, 2.0]), np.diag([1, 1e-17])
    squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
    for bound in (linear_residual.gradient_lower_bound, linear_residual.gradient_lower_bound_by_layer):
        assert bound(A, R, Sigma) <= squared
        assert bound(A, np.diag([2.0, 1.0]), Sigma) == pytest.approx(12)  # ℓ = 3, a risk of 1 along the first axis


def test_a_gap_within_rounding_of_zero_is_zero():
    x = np.random.default_rng(3).standard_normal((50, 3))
    noise = np.random.default_rng(4).standard_normal((50, 3))
    y = x + noise - x @ np.linalg.lstsq(x, noise, rcond=None)[0]
    assert not shortcut_hessians.moment_gap(x, y).any()
    assert shortcut_hessians.condition_number_at_zero(x, y, 2, 2) == math.inf
    assert not stationarity.order_of_stationarity(x, y, 2).exact
    with pytest.raises(ValueError, match="zero is not a strict saddle"):
        stationarity.escape_from_saddle(x, y, 2)
    assert shortcut_hessians.moment_gap(1e-12 * x, 1e-12 * (x + noise)).any()  # not by its size


def test_whole_numbers_are_taken_as_real_ones():
    gap, whole = np.diag([1, 2, 3]), np.ones((2, 2, 3, 3), int)
    for found, expected in zip(*(saddle_escape.risk_and_gradient(w, gap) for w in (whole, whole.astype(float)))):
        np.testing.assert_array_equal(found, expected)
    x = np.random.default_rng(5).standard_normal((1, 7, 3))
    whole = np.ones((1, 1, 2, 2, 3), int)
    for found, expected in zip(*(relu_networks.risk_and_gradient(w, x, -x) for w in (whole, whole.astype(float)))):
        np.testing.assert_array_equal(found, expected)
    pixels = np.array([[3, 200], [255, 0]], np.uint8)
    weights = np.ones((1, 2, 2, 2))
    for pre in ("linear", "softplus", "softsign", "tanh"):
        found, expected = (shortcut_networks.forward(weights, x, pre) for x in (pixels, pixels.astype(float)))
        np.testing.assert_array_equal(found, expected)


def test_all_cores_count_if_the_system_does_not_report_the_process_s_cores(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert parallel.available_cores() == os.cpu_count()
    x = np.random.default_rng(0).standard_normal((300, 6))
    labels = np.arange(300) % 3
    assert (construction.memorize(x, labels, 3)(x).argmax(1) == labels).all()
    assert len(parallel.in_parallel(lambda item: item, range(5))) == 5
