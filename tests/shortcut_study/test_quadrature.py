"""Standard errors and ranges of quadrature, each against its formula or the sample that it summarises."""

import numpy as np
import pytest

from shortcut_study.curvature import quadrature as quad

NODES = np.array([[-2.0, -0.1, 0.5, 3.0], [-1.0, 0.2, 0.4, 2.0], [-1.5, -0.2, 0.3, 2.5]])
WEIGHTS = np.array([[0.2, 0.3, 0.4, 0.1], [0.3, 0.3, 0.2, 0.2], [0.1, 0.3, 0.3, 0.3]])
SEEN = quad.Quadrature(NODES, WEIGHTS, np.zeros_like(NODES), 1e-12)


def test_the_standard_error_is_that_of_a_sample_not_of_a_population():
    assert quad.standard_error([1.0, 3.0]) == pytest.approx(1.0)  # s = √2
    samples = np.random.default_rng(0).standard_normal((7, 3))
    expected = np.sqrt(np.square(samples - samples.mean(0)).sum(0) / 6 / 7)
    np.testing.assert_allclose(quad.standard_error(samples), expected)
    assert np.isnan(quad.standard_error([4.0]))


@pytest.mark.parametrize("num_vectors", [2, 5])
def test_the_errors_of_hutchinson_are_those_of_its_vectors(num_vectors):
    matrix, products = np.array([[2.0, 1.0, 0.5], [1.0, 3.0, -0.7], [0.5, -0.7, 1.0]]), []

    def product(vector):
        products.append(vector * (matrix @ vector))
        return matrix @ vector

    found, samples = quad.hutchinson(product, 3, num_vectors, seed=1), np.array(products)
    np.testing.assert_allclose(found.diagonal, samples.mean(0))
    np.testing.assert_allclose(found.diagonal_error, samples.std(0, ddof=1) / np.sqrt(num_vectors))
    assert found.trace == pytest.approx(samples.sum(1).mean())
    assert found.trace_error == pytest.approx(samples.sum(1).std(ddof=1) / np.sqrt(num_vectors))
    assert found.num_vectors == num_vectors


def test_hutchinson_stops_at_its_tolerance_but_not_before_five_vectors():
    matrix = np.diag([1.0, 2.0]) + 1e-3
    assert quad.hutchinson(lambda v: matrix @ v, 2, 50, tolerance=0.1).num_vectors == 5
    assert quad.hutchinson(lambda v: matrix @ v, 2, 50).num_vectors == 50
    samples = []
    matrix = np.array([[1.0, 2.0], [2.0, 1.0]])
    found = quad.hutchinson(lambda v: samples.append(v @ matrix @ v) or matrix @ v, 2, 500, tolerance=0.2)
    errors = [np.std(samples[:n], ddof=1) / n**0.5 / abs(np.mean(samples[:n])) for n in range(5, len(samples) + 1)]
    assert errors[-1] <= 0.2 < min(errors[:-1]) and found.num_vectors == len(samples) < 500


@pytest.mark.parametrize("dim", [50, 1_000])
def test_the_index_range_is_wider_by_two_standard_errors_of_a_share_of_the_measure(dim):
    """√(2p(1 − p)/((n + 2)k)): the (uᵢᵀv)² of a v on the sphere are Dirichlet(½, …, ½)."""
    narrow, wide = quad.summary(SEEN), quad.summary(SEEN, dim)
    for low, (inner, outer) in enumerate(zip(narrow.index_range, wide.index_range)):
        error = np.sqrt(2 * inner * (1 - inner) / ((dim + 2) * 3))
        assert abs(outer - inner) == pytest.approx(2 * error) and (outer < inner) is (low == 0)


def test_the_standard_error_of_a_share_is_that_of_random_vectors():
    n, p, k = 40, 0.25, 3
    vectors = np.random.default_rng(0).standard_normal((20_000, k, n))
    shares = (np.square(vectors[..., :10]).sum(-1) / np.square(vectors).sum(-1)).mean(1)
    assert shares.std() == pytest.approx(np.sqrt(2 * p * (1 - p) / ((n + 2) * k)), rel=0.02)


def test_without_the_dimension_the_ranges_leave_out_or_take_in_the_nodes_at_their_ends():
    """Of the nodes below 0 the last one's weight may lie above, and that of the first above 0 below."""
    found = quad.summary(SEEN)
    assert found.index_range == pytest.approx((np.mean([0.2, 0.0, 0.1]), np.mean([0.9, 0.6, 0.7])))
    assert found.index == pytest.approx(np.mean([0.5, 0.3, 0.4])) and found.max_abs == 3
