"""How wide the first layer must be: the law of a pair, the widths that are proved, the separation."""

import numpy as np
import pytest
from scipy import linalg, stats
from unit_points import unit_points

from theory.memorization import first_layer, memorize
from theory.memorization.first_layer import (
    _chernoff_exponent_argument,
    _common_bias_failure,
    common_bias_width,
    correlated_pairs,
    default_width,
    pair_failure_probability,
    row_bias_width,
    separation,
)


@pytest.mark.parametrize("scale", [1e-310, 1e-170, 1e160])
def test_the_default_width_does_not_depend_on_the_scale(scale):
    x, _ = unit_points(20, 100)
    assert default_width(scale * x, "paper") == default_width(x, "paper") == common_bias_width(20, separation(x))


def test_small_points_of_one_norm_are_memorised_with_a_common_bias():
    network = memorize(1e-200 * np.eye(3), np.arange(3), 3, method="paper")
    assert network(1e-200 * np.eye(3)).argmax(1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("x", [np.zeros((1, 3)), np.eye(3)[[0, 1, 2]] * [[1], [0], [1]]])
def test_a_common_bias_without_a_width_names_a_point_at_the_origin(x):
    with pytest.raises(ValueError, match=f"got point {len(x) // 2} at the origin; leave it out or give a width$"):
        memorize(x, np.arange(len(x)), 3, method="paper")


@pytest.mark.parametrize("method, enough", [("row_bias", row_bias_width), ("paper", common_bias_width)])
def test_the_proved_width_is_enough_and_a_quarter_of_it_is_not(method, enough):
    x, labels = unit_points(100, 300)
    width = enough(100, separation(x))
    assert default_width(x, method) == width
    for seed in range(3):
        memorize(x, labels, 5, width, method, seed)
    with pytest.raises(ValueError, match=method):
        for seed in range(10):
            memorize(x, labels, 5, width // 4, method, seed)


@pytest.mark.parametrize("width", [6, 12])
def test_a_common_bias_fails_a_point_as_often_as_its_norm_is_below_the_threshold_or_above_twice_it(width):
    squares = np.square(np.random.default_rng(0).standard_normal((40_000, width))).mean(1)
    shares = [np.mean((squares < t) | (squares > 2 * t)) for t in np.linspace(0.3, 1, 141)]
    assert _common_bias_failure(width, 1, 1.4) == pytest.approx(min(shares), rel=0.04)
    assert _common_bias_failure(width, 5, 4) == pytest.approx(5 * min(shares), rel=0.04)  # no pairs at ρ = 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 1.0), "num_points"),
        ((5, 0.0), "rho"),
        ((5, 4.1), "rho"),
        ((5, 1.0, 1.0), "failure"),
        ((5, 1.0, 0.0), "failure"),
    ],
)
def test_widths_refuse_numbers_out_of_range(arguments, message):
    for width in (row_bias_width, common_bias_width):
        with pytest.raises(ValueError, match=message):
            width(*arguments)


def union_bound(width, num_points, rho):
    """What `common_bias_width` brings below δ, on a grid of thresholds t and of Chernoff's arguments a."""
    c, a = 1 - rho / 2, np.linspace(0, 1 / (2 - rho / 2), 40_001)[:-1]  # (1 − ca)² > a² for a < 1/(1 + c)
    with np.errstate(divide="ignore"):
        law = 0.5 * np.log((1 - c * a) ** 2 - a**2)
    found = []
    for t in np.linspace(max(c, 0), 1, 201):
        pairs = num_points**2 / 2 * np.exp(-width * (a * t + law).max())
        norms = num_points * (stats.chi2.cdf(width * t, width) + stats.chi2.sf(2 * width * t, width))
        found.append(pairs + norms)
    return min(found)


@pytest.mark.parametrize("num_points, rho, failure", [(50, 1.0, 0.01), (200, 0.5, 0.1), (30, 2.6, 0.01)])
def test_the_width_for_a_common_bias_is_the_least_at_which_the_union_bound_is_met(num_points, rho, failure):
    width = common_bias_width(num_points, rho, failure)
    assert union_bound(width, num_points, rho) <= 1.01 * failure
    assert union_bound(width - 1, num_points, rho) > failure
    assert _common_bias_failure(width, num_points, rho) == pytest.approx(union_bound(width, num_points, rho), rel=0.01)


@pytest.mark.parametrize("c, t", [(0.0, 0.5), (0.5, 0.7), (-0.8, 0.1), (-0.8, 0.5), (-0.5, 0.9), (0.9, 0.95)])
def test_chernoffs_argument_is_where_the_exponent_is_largest(c, t):
    a = np.linspace(0, 1 / (1 + c), 1_000_001)[:-1]
    best = a[np.argmax(a * t + 0.5 * np.log((1 - c * a) ** 2 - a**2))]
    assert _chernoff_exponent_argument(t, c) == pytest.approx(best, abs=3e-6)


@pytest.mark.parametrize(
    "num_points, rho, failure", [(100, 1.0, 0.01), (3, 0.2, 0.3), (2, 3.9, 0.5), (7, 4, 0.01), (1, 0.1, 0.9)]
)
def test_the_width_for_a_bias_per_row_is_its_formula_and_at_least_2(num_points, rho, failure):
    width = 2.0 if rho == 4 else 2 * np.log(max(1, num_points**2 / 2 / failure)) / np.log(4 / (4 - rho))
    assert row_bias_width(num_points, rho, failure) == max(2, np.ceil(width))


@pytest.mark.parametrize("width, cosine", [(3, 0.5), (5, 0.3)])
def test_the_number_of_close_pairs_is_that_of_random_unit_vectors(width, cosine):
    q = np.random.default_rng(0).standard_normal((1500, width))
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    seen = (np.triu(q @ q.T, 1) >= cosine).sum()
    assert correlated_pairs(1500, width, cosine) == pytest.approx(seen, rel=0.03)
    assert correlated_pairs(2, 2) == pytest.approx(1 / 3)  # within 60° of each other on the circle


def test_the_separation_of_any_points_is_the_squared_distance_that_unit_vectors_would_need():
    x = np.random.default_rng(0).standard_normal((1100, 3)) * [1.0, 1.0, 0.2] + [1.5, 0, 0]  # more than a panel
    norms = np.linalg.norm(x, axis=1)
    products = x @ x.T
    with np.errstate(invalid="ignore"):
        a = (norms[:, None] ** 2 - products) / (norms[:, None] * np.sqrt(norms[:, None] ** 2 + norms**2 - 2 * products))
    np.fill_diagonal(a, np.inf)
    smallest = a.min()
    assert separation(x) == pytest.approx(4 * smallest * abs(smallest), rel=1e-6)
    for scale in (1e-200, 1e200):
        assert separation(scale * x[:9]) == pytest.approx(separation(x[:9]))
        assert separation(-scale * np.abs(x[:9])) == pytest.approx(separation(np.abs(x[:9])))
    assert separation(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])) < 0  # two are one point
    assert separation(x[:1]) == 4 and separation(np.array([[0.0, 0.0], [1.0, 2.0]])) == pytest.approx(4)


def test_the_default_width_takes_the_separation_of_points_that_are_close():
    x, _ = unit_points(30, 6)
    assert 0 < separation(x) < 1 and default_width(x, "row_bias") == row_bias_width(30, separation(x))
    assert common_bias_width(1, 4.0, 0.99) == 2


@pytest.mark.parametrize("below, accepted", [(0, True), (1, False)])
def test_a_default_width_may_be_as_large_as_the_largest_and_no_larger(monkeypatch, below, accepted):
    x, _ = unit_points(30, 6)
    width = row_bias_width(30, separation(x))
    monkeypatch.setattr(first_layer, "MAX_WIDTH", width - below)
    if accepted:
        assert default_width(x, "row_bias") == width
    else:
        with pytest.raises(ValueError, match=f"needs width {width:,} for 30 points"):
            default_width(x, "row_bias")


@pytest.mark.parametrize("norm, accepted", [(0.9995, True), (0.9985, False), (1.0015, False)])
def test_norms_count_as_one_within_a_thousandth(norm, accepted):
    x = linalg.hadamard(4) * np.array([[1.0], [1], [1], [norm]])
    if accepted:
        assert default_width(x, "paper") == common_bias_width(4, 2.0)
    else:
        with pytest.raises(ValueError, match="got norms from"):
            default_width(x, "paper")


@pytest.mark.parametrize("cosine", [-1.5, 1.5, np.nan])
def test_a_cosine_beyond_1_or_a_width_below_1_is_refused(cosine):
    with pytest.raises(ValueError, match=f"cosine must lie in .*, got {cosine}"):
        pair_failure_probability(np.array([0.0, cosine]), 3)
    for width in (0, 1.5):
        with pytest.raises(ValueError, match=f"width must be a whole number of at least 1, got {width}"):
            pair_failure_probability(0.5, width)
