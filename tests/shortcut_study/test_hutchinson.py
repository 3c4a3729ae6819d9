"""Hutchinson's estimates of trace and diagonal: their errors, and where they stop."""

import numpy as np
import pytest

from shortcut_study.curvature.estimators import confidence, hutchinson


def random_matrix(dim=30):
    normal = np.random.default_rng(1).standard_normal((dim, dim))
    return normal + normal.T + dim * np.eye(dim)


def test_hutchinson_estimates_trace_and_diagonal_within_its_error_bars():
    h = random_matrix()
    found = [hutchinson(lambda v: h @ v, 30, 50, seed=seed) for seed in range(40)]
    deviations = confidence(50) * np.array([(f.trace - np.trace(h)) / f.trace_error for f in found])
    assert np.abs(deviations).max() < 4.5 and 0.6 < deviations.std() < 1.6
    of_diagonal = confidence(50) * np.array([(f.diagonal - np.diag(h)) / f.diagonal_error for f in found])
    assert 0.85 < of_diagonal.std() < 1.2 and np.abs(of_diagonal.mean()) < 0.1
    variance = 2 * (np.sum(h**2) - np.sum(np.diag(h) ** 2))
    assert np.mean([f.trace_error**2 for f in found]) == pytest.approx(confidence(50) ** 2 * variance / 50, rel=0.2)


def test_hutchinson_is_exact_on_a_diagonal_matrix_and_stops_at_its_tolerance():
    values = np.arange(1.0, 8)
    found = hutchinson(lambda v: values * v, 7, 1)
    assert found.trace == values.sum() and np.isnan(found.trace_error) and np.array_equal(found.diagonal, values)
    h = random_matrix()
    loose, strict = (
        hutchinson(lambda v: h @ v, 30, 500, tolerance=tolerance) for tolerance in (0.06, 0.008)
    )  # twice the standard errors
    assert 5 <= loose.num_vectors < strict.num_vectors < 500
    assert strict.trace_error <= 0.008 * strict.trace
    assert hutchinson(lambda v: h @ v, 30, 20).num_vectors == 20
    matrix = np.array([[2.0, 1.0], [1.0, 3.0]])  # vectors that agree by chance do not end it without a tolerance
    found = [hutchinson(lambda v: matrix @ v, 2, 400, seed) for seed in (25, 39, 76)]
    assert all(each.num_vectors == 400 and each.trace_error > 0 for each in found)
