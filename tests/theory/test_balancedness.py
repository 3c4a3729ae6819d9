"""Balanced layers: conservation, the velocity of the product, the rate by the deficiency margin."""

import numpy as np
import pytest
from scipy import linalg

from theory.descent import balancedness


def problem(seed=0, d=3, num_layers=4):
    rng = np.random.default_rng(seed)
    return 0.3 * rng.standard_normal((num_layers, d, d)), rng.standard_normal((d, d))


def test_the_deficiency_margin_is_the_least_singular_value_less_the_distance():
    R, W = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 0.7]]), np.eye(3)
    expected = np.linalg.svd(R)[1][2] - np.sqrt(1 + 1 + 0.25 + 0.09)
    assert balancedness.deficiency_margin(W, R) == pytest.approx(expected)


def test_the_velocity_and_imbalances_of_layers_that_do_not_commute_are_those_written_out():
    A, R = problem(5, 2, 3)
    first, second, third = np.eye(2) + A
    G = 2 * (third @ second @ first - R)
    slopes = second.T @ third.T @ G, third.T @ G @ first.T, G @ first.T @ second.T
    expected = -(third @ second @ slopes[0] + third @ slopes[1] @ first + slopes[2] @ second @ first)
    np.testing.assert_allclose(balancedness.first_order_velocity(A, R, np.eye(2)), expected)
    differences = second.T @ second - first @ first.T, third.T @ third - second @ second.T
    np.testing.assert_allclose(balancedness.imbalances(A), differences)
    np.testing.assert_allclose(balancedness.first_order_velocity(A[:1], R, np.eye(2)), -2 * (first - R))
    W, matrix = np.array([[2.0, 1.0], [0.0, 0.5]]), np.zeros((4, 4))
    left, right = linalg.sqrtm(W @ W.T), linalg.sqrtm(W.T @ W)
    for j in range(3):
        powers = [linalg.fractional_matrix_power(root, 2 * k / 3) for root, k in ((right, j), (left, 2 - j))]
        matrix = matrix + np.kron(*powers)
    np.testing.assert_allclose(balancedness.preconditioner(W, 3), matrix, atol=1e-12)


def test_the_drift_is_bounded_by_twice_the_rate_times_the_gain():
    assert balancedness.drift_bound(0.1, 3.0, 1.0) == pytest.approx(0.4)
    assert balancedness.drift_bound(0.1, 3.0, 3.0) == 0
