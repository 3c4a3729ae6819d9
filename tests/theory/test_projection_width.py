"""How wide the first layer must be: the widths that are proved, the separation, the default."""

import numpy as np
import pytest
from refusals import refused
from scipy import linalg, stats
from unit_points import unit_points

from theory.memorization import first_layer, memorize
from theory.memorization.first_layer import (
    _common_bias_failure,
    common_bias_width,
    default_width,
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
    assert f"got point {len(x) // 2} at the origin" in refused(memorize, x, np.arange(len(x)), 3, method="paper")


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


@pytest.mark.parametrize(
    "num_points, rho, failure", [(100, 1.0, 0.01), (3, 0.2, 0.3), (2, 3.9, 0.5), (7, 4, 0.01), (1, 0.1, 0.9)]
)
def test_the_width_for_a_bias_per_row_is_its_formula_and_at_least_2(num_points, rho, failure):
    width = 2.0 if rho == 4 else 2 * np.log(max(1, num_points**2 / 2 / failure)) / np.log(4 / (4 - rho))
    assert row_bias_width(num_points, rho, failure) == max(2, np.ceil(width))


def test_separation_is_the_squared_distance_that_unit_vectors_would_need():
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
        assert f"needs width {width:,} for 30 points" in refused(default_width, x, "row_bias")


@pytest.mark.parametrize("norm, accepted", [(0.9995, True), (0.9985, False), (1.0015, False)])
def test_norms_count_as_one_within_a_thousandth(norm, accepted):
    x = linalg.hadamard(4) * np.array([[1.0], [1], [1], [norm]])
    if accepted:
        assert default_width(x, "paper") == common_bias_width(4, 2.0)
    else:
        assert "got norms from" in refused(default_width, x, "paper")
