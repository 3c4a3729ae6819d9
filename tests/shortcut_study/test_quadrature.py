"""Standard errors and ranges of quadrature, each against its formula or the sample that it summarises."""

import math
import warnings

import numpy as np
import pytest

from shortcut_study import conditioning
from shortcut_study.curvature import estimators as hutch
from shortcut_study.curvature import lanczos as lz
from shortcut_study.curvature import quadrature as quad
from shortcut_study.hessian import spectrum

NODES = np.array([[-2.0, -0.1, 0.5, 3.0], [-1.0, 0.2, 0.4, 2.0], [-1.5, -0.2, 0.3, 2.5]])
WEIGHTS = np.array([[0.2, 0.3, 0.4, 0.1], [0.3, 0.3, 0.2, 0.2], [0.1, 0.3, 0.3, 0.3]])
SEEN = quad.Quadrature(NODES, WEIGHTS, np.zeros_like(NODES), 1e-12)


def test_the_standard_error_is_that_of_a_sample_not_of_a_population():
    assert hutch.standard_error([1.0, 3.0]) == pytest.approx(1.0)  # s = √2
    samples = np.random.default_rng(0).standard_normal((7, 3))
    expected = np.sqrt(np.square(samples - samples.mean(0)).sum(0) / 6 / 7)
    np.testing.assert_allclose(hutch.standard_error(samples), expected)
    with warnings.catch_warnings():  # NumPy's, of too few
        warnings.simplefilter("error")
        assert np.isnan(hutch.standard_error([4.0])) and hutch.standard_error([[4.0, 5.0]]).shape == (2,)


@pytest.mark.parametrize("num_vectors", [2, 5])
def test_the_errors_of_hutchinson_are_those_of_its_vectors(num_vectors):
    matrix, products = np.array([[2.0, 1.0, 0.5], [1.0, 3.0, -0.7], [0.5, -0.7, 1.0]]), []

    def product(vector):
        products.append(vector * (matrix @ vector))
        return matrix @ vector

    found, samples = hutch.hutchinson(product, 3, num_vectors, seed=1), np.array(products)
    np.testing.assert_allclose(found.diagonal, samples.mean(0))
    t = {2: 12.7062047, 5: 2.7764451}[num_vectors]  # Student's, 0.975
    np.testing.assert_allclose(found.diagonal_error, t * samples.std(0, ddof=1) / np.sqrt(num_vectors))
    assert found.trace == pytest.approx(samples.sum(1).mean())
    skewed = 1 + 8.7 / num_vectors  # as one eigenvalue may hold the matrix
    assert found.trace_error == pytest.approx(skewed * t * samples.sum(1).std(ddof=1) / np.sqrt(num_vectors))
    assert found.num_vectors == num_vectors


def test_without_the_dimension_ranges_exclude_or_include_the_nodes_at_their_ends():
    values = np.arange(1.0, 8)
    found = hutch.hutchinson(lambda v: values * v, 7, 1)
    assert found.trace == values.sum() and np.isnan(found.trace_error) and np.array_equal(found.diagonal, values)
    matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    found = [hutch.hutchinson(lambda v: matrix @ v, 2, 400, seed) for seed in (25, 39, 76)]
    assert all(each.num_vectors == 400 and each.trace_error > 0 for each in found)


def test_hutchinson_stops_at_its_tolerance_but_not_before_five_vectors():
    matrix = np.diag([1.0, 2.0]) + 1e-3
    assert hutch.hutchinson(lambda v: matrix @ v, 2, 50, tolerance=0.1).num_vectors == 5
    assert hutch.hutchinson(lambda v: matrix @ v, 2, 50).num_vectors == 50
    samples = []
    matrix = np.array([[1.0, 2.0], [2.0, 1.0]])
    found = hutch.hutchinson(lambda v: samples.append(v @ matrix @ v) or matrix @ v, 2, 5000, tolerance=0.2)
    by_size = [
        (n, np.std(samples[:n], ddof=1) / n**0.5 / abs(np.mean(samples[:n]))) for n in range(5, len(samples) + 1)
    ]
    errors = [hutch.confidence(n, rank=1) * error for n, error in by_size]
    assert errors[-1] <= 0.2 < min(errors[:-1]) and found.num_vectors == len(samples) < 5000
    assert hutch.hutchinson(lambda v: -(matrix @ v), 2, 5000, tolerance=0.2).num_vectors == len(samples)


@pytest.mark.parametrize("dim", [50, 1_000])
def test_the_index_range_is_wider_by_two_standard_errors_of_a_share_of_the_measure(dim):
    """√(2p(1 − p)/((n + 2)k)): the (uᵢᵀv)² of a v on the sphere are Dirichlet(½, …, ½)."""
    narrow, wide = conditioning.summary(SEEN), conditioning.summary(SEEN, dim)
    for low, (inner, outer) in enumerate(zip(narrow.index_range, wide.index_range)):
        error = np.sqrt(2 * inner * (1 - inner) / ((dim + 2) * 3))
        assert abs(outer - inner) == pytest.approx(2 * error) and (outer < inner) is (low == 0)


def test_density_is_the_mean_of_gaussians_at_the_nodes_on_a_grid_six_widths_wider():
    """Of the nodes below 0 the last one's weight may lie above, and that of the first above 0 below."""
    found = conditioning.summary(SEEN)
    assert found.index_range == pytest.approx((np.mean([0.2, 0.0, 0.1]), np.mean([0.9, 0.6, 0.7])))
    assert found.index == pytest.approx(np.mean([0.5, 0.3, 0.4])) and found.max_abs == 3
    # Sizes 0.1 and 0.2 twice have a third of 0.3 each: halfway through the first at 0.05, through the next at 0.15.
    assert found.p10_abs == pytest.approx(0.15) and found.condition_number == pytest.approx(20)


@pytest.mark.parametrize("width, sigma, count", [(None, 0.05, 1024), (0.4, 0.4, 1024), (0.01, 0.01, 2048)])
def test_asymmetry_is_the_largest_difference_of_two_forms_and_rounding_includes_it(width, sigma, count):
    found = quad.density(SEEN, width)
    assert found.grid[[0, -1]] == pytest.approx([-2 - 6 * sigma, 3 + 6 * sigma]) and len(found.grid) == count
    at = found.grid[:: count // 64]
    rows = [
        sum(w * np.exp(-np.square((at - node) / sigma) / 2) / math.sqrt(2 * math.pi) / sigma for node, w in zip(*row))
        for row in zip(NODES, WEIGHTS)
    ]
    np.testing.assert_allclose(found.values[:: count // 64], np.mean(rows, 0), atol=1e-14)
    np.testing.assert_allclose(found.standard_errors[:: count // 64], np.std(rows, 0, ddof=1) / 3**0.5, atol=1e-14)


@pytest.mark.parametrize(
    "nodes, sigma", [([[-3.0, -3.0]], 3), ([[2.0, 2.0 + 1e-9]], 2), ([[2.0, 2.0 + 1e-8]], 9.3e-10)]
)
def test_nodes_closer_than_rounding_are_one_point_as_wide_as_it_is_large(nodes, sigma):
    found = quad.density(quad.Quadrature(np.array(nodes), np.full((1, 2), 0.5), np.zeros((1, 2)), 0.0))
    assert (found.grid[-1] - found.grid[0]) / 12 == pytest.approx(sigma, rel=0.1)
    assert quad.density(quad.Quadrature(*np.zeros((3, 1, 2)), 0.0)).grid[-1] == 6


def test_the_extreme_eigenvalues_are_the_outermost_nodes():
    assert quad.extreme_eigenvalues(SEEN, 2)[0].tolist() == [3, 0.5]
    assert quad.extreme_eigenvalues(SEEN, 2, largest=False)[0].tolist() == [-2, -0.2]


def test_a_tenth_of_the_weight_is_passed_halfway_through_a_node():
    nodes, weights = np.array([[-4.0, 1.0, -2.0, 8.0]]), np.array([[0.3, 0.06, 0.14, 0.5]])
    # Half of 1's weight at 0.03, of 2's at 0.13: a tenth lies 0.7 of the way.
    assert conditioning.summary(quad.Quadrature(nodes, weights, 0 * nodes, 0.0)).p10_abs == pytest.approx(1.7)


def test_the_percentile_s_range_is_where_a_tenth_may_and_must_have_been_passed():
    nodes, weights = np.array([[-4.0, -0.5, 0.25, 1.0, 2.0]]), np.array([[0.3, 0.05, 0.04, 0.2, 0.41]])
    seen = quad.Quadrature(nodes, weights, np.full((1, 5), 0.3), 1e-9)
    sizes, low, high = [0.25, 0.5, 1.0, 2.0, 4.0], None, None
    for size in sizes:
        inside = np.abs(nodes[0]) <= size
        ends = np.flatnonzero(inside)[[0, -1]]
        most = weights[0][max(ends[0] - 1, 0) : ends[1] + 2].sum()
        least = weights[0][ends[0] + 1 : ends[1]].sum()
        low = size if low is None and most >= 0.1 else low
        high = size if high is None and least >= 0.1 else high
    found = conditioning.summary(seen)
    assert found.p10_range[0] in (0.0, low) and found.p10_range[1] == (math.inf if high is None else high)
    for bound, most in ((2e-9, 2.0), (2.1e-9, math.inf)):  # of two nodes no weight surely lies between
        two = quad.Quadrature(np.array([[-1.0, 2.0]]), np.full((1, 2), 0.5), np.array([[2e-9, bound]]), 1e-9)
        assert conditioning.summary(two).p10_range == (0.0, most)
    tenth = quad.Quadrature(np.array([[-2.0, 1.0, 3.0]]), np.array([[0.0, 0.1, 0.9]]), np.ones((1, 3)), 1e-9)
    assert conditioning.summary(tenth).p10_range == (0.0, 3.0)  # a tenth of it may be 0, and surely lies below 3


@pytest.mark.parametrize("dim", [50, 1_000])
def test_the_percentile_s_range_is_wider_by_two_standard_errors_of_a_tenth(dim):
    rng = np.random.default_rng(0)
    nodes, weights = np.sort(rng.standard_normal((3, 40))), rng.dirichlet(np.ones(40), 3)
    seen, error = quad.Quadrature(nodes, weights, 0 * nodes, 1e-12), np.sqrt(2 * 0.1 * 0.9 / ((dim + 2) * 3))
    sizes = np.append(0.0, np.sort(np.abs(nodes), None))
    least, most = np.array([conditioning._shares(seen, -size, size) for size in sizes]).T
    expected = sizes[np.argmax(most >= 0.1 - 2 * error)], sizes[np.argmax(least >= 0.1 + 2 * error)]
    assert conditioning.summary(seen, dim).p10_range == pytest.approx(expected)


@pytest.mark.parametrize("skew", [0.0, 1e-6, 1e-4])
def test_second_product_gives_the_total_time_and_the_bar_counts_cached_products(skew):
    rng = np.random.default_rng(0)
    H, K = rng.standard_normal((2, 30, 30))
    H = H + H.T + skew * (K - K.T)
    for order in (1, 2, 7):
        d = lz.lanczos(lambda v: H @ v, 30, order)
        T = np.diag(d.diagonal) + np.diag(d.off_diagonal, 1) + np.diag(d.off_diagonal, -1)
        scale = max(np.abs(T).max(), d.residual)
        largest = np.abs(np.triu(d.basis @ H @ d.basis.T - T, 1)).max()
        assert d.asymmetry == pytest.approx(largest / scale, rel=1e-3, abs=2e-15)
        expected = order * 2.0**-52 * scale + order**0.5 * d.asymmetry * scale
        assert d.rounding == pytest.approx(expected, rel=1e-9, abs=0)


def test_ritz_bounds_are_the_residual_times_the_last_component_and_the_rounding():
    d = lz.lanczos(lambda v: np.arange(1.0, 21) * v, 20, 6)
    T = np.diag(d.diagonal) + np.diag(d.off_diagonal, 1) + np.diag(d.off_diagonal, -1)
    values, vectors = np.linalg.eigh(T)
    found = lz.ritz(d._replace(rounding=0.01))
    np.testing.assert_allclose(found.values, values)
    np.testing.assert_allclose(found.weights, vectors[0] ** 2)
    np.testing.assert_allclose(found.error_bounds, d.residual * np.abs(vectors[-1]) + 0.01)


def test_all_eigenvalues_are_summarised_by_their_sizes_signs_and_rounding():
    values = np.array([-5.0, -0.2, -0.01, 0.0, 0.01, 0.1, 3.0, 4.0, 6.0, 8.0, 9.0])
    found = conditioning.summarize(values, 0.02)
    assert found[:3] == pytest.approx((9, 0.01, math.inf)) and found.index == pytest.approx(2 / 11)
    assert found.index_range == pytest.approx((2 / 11, 5 / 11))
    assert conditioning.summarize(values, 0.009).condition_number == pytest.approx(900)
    assert conditioning.summarize(values, 0.01).condition_number == math.inf
    assert list(found.columns()) == ["max_abs", "p10_abs", "condition_number", "index"]


@pytest.mark.parametrize("count, tolerance", [(1, 1e-3), (2, 0.05)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_stop_asks_for_the_bounds_of_so_many_values_at_each_end(count, tolerance, sign):
    h, seen = sign * np.append(np.linspace(-1, 1, 60), [-5.0, 7.0, 9.0]), []

    def stop(found):
        bounds = [*found.error_bounds[:count], *found.error_bounds[-count:]]
        seen.append((len(found.values), max(bounds) <= tolerance * np.abs(found.values).max()))
        return lz.converged(count, tolerance)(found)

    d = lz.lanczos(lambda v: h * v, 63, 60, stop=stop)
    assert [steps for steps, _ in seen] == list(range(5, len(d.diagonal) + 1, 5))
    assert [ends for _, ends in seen] == [False] * (len(seen) - 1) + [True]


def test_the_norm_of_numbers_whose_squares_leave_the_range_is_right():
    for size in (1e-300, 1e-150, 1e-100, 1.0, 1e150, 1e300):
        for vector in ([3.0, 4.0], [-4.0, -3.0], [0.0, 5.0]):
            assert lz.vector_norm(size * np.array(vector)) == pytest.approx(5 * size, rel=1e-15, abs=0)
    assert lz.vector_norm(np.zeros(3)) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_single_entry_that_is_not_finite_is_rejected(bad):
    with pytest.raises(ValueError, match="infinite or NaN entry"):
        lz.lanczos(lambda v: np.append(v[:-1], bad), 4, 1)


def test_the_stop_waits_for_as_many_values_as_both_ends_have():
    h = np.linspace(1, 2, 20)
    for order, expected in ((5, False), (6, True)):
        assert bool(lz.converged(3, 1e9)(lz.ritz(lz.lanczos(lambda v: h * v, 20, order)))) is expected


def test_the_largest_size_may_be_that_of_a_negative_node():
    found = conditioning.summary(SEEN._replace(nodes=-NODES[:, ::-1], weights=WEIGHTS[:, ::-1]))
    assert found.max_abs == 3 and found.p10_abs == conditioning.summary(SEEN).p10_abs
    assert spectrum(-np.ones((2, 2))).max_abs == pytest.approx(2)
    skewed = 1e6 * np.array([[1.0, 1e-4], [0.0, 1.0]])  # asymmetric by less than a thousandth of its entries
    assert spectrum(skewed).max_abs == pytest.approx(1e6, rel=1e-3)


@pytest.mark.parametrize(
    "low, high", [(-1.2, 0.45), (-0.15, 0.3), (-5.0, 5.0), (-np.inf, 0.2), (0.31, 0.39), (0.85, 1.15), (1.05, 1.2)]
)
def test_the_share_of_an_interval_is_known_but_for_the_nodes_at_its_ends(low, high):
    least, most = [], []
    for nodes, weights in zip(NODES, WEIGHTS):
        inside = np.flatnonzero((nodes >= low) & (nodes <= high))
        first, last = np.searchsorted(nodes, low), np.searchsorted(nodes, high, "right") - 1
        kept = inside[:-1] if np.isneginf(low) else inside[1:-1]
        least.append(weights[kept].sum())
        most.append(weights[max(first - 1, 0) : last + 2].sum())
    found = conditioning._shares(SEEN, low, high)
    np.testing.assert_allclose(found, [np.mean(least), np.mean(most)], atol=1e-12)
    half = SEEN._replace(weights=WEIGHTS / 2, known=np.ones(1), known_bounds=np.full(1, 0.1))  # 1 is the other half
    surely, possibly = low <= 0.9 and 1.1 <= high, low <= 1.1 and 0.9 <= high
    np.testing.assert_allclose(conditioning._shares(half, low, high), (found + [surely, possibly]) / 2, atol=1e-12)


def test_values_that_count_as_0_are_not_surely_negative():
    nodes, weights = np.array([[-1.0, -1e-13, 1.0]]), np.array([[0.2, 0.5, 0.3]])
    found = conditioning.summary(quad.Quadrature(nodes, weights, np.zeros((1, 3)), 1e-12))
    assert found.index == pytest.approx(0.2) and found.index_range == pytest.approx((0, 1))
    below = conditioning.summary(quad.Quadrature(np.array([[-1.0, -1.5e-12, 1.0]]), weights, 0 * nodes, 1e-12))
    assert below.index_range[0] == pytest.approx(0.2)
    skewed = np.array([[-5.0, -1.0], [-1.003, -5.0]])  # by less than a thousandth of 5
    assert spectrum(skewed).max_abs == pytest.approx(6, rel=1e-3)


def test_a_density_has_no_fewer_than_four_points_a_width_and_no_share_is_above_1():
    assert len(quad.density(SEEN, 0.0123).grid) == math.ceil(4 * (5 + 12 * 0.0123) / 0.0123)
    nodes, weights = np.array([[-2.0, -1.0, -0.5, 1.0, 2.0]]), np.array([[0.3, 0.3, 0.3, 0.05, 0.05]])
    seen = quad.Quadrature(nodes, weights, 0 * nodes, 1e-12)
    assert conditioning.summary(seen).index_range[1] == pytest.approx(0.95) and seen.known_weight == 0
    assert conditioning.summary(seen, 5).index_range[1] == 1
