"""How wide the first layer must be: the law of a pair, the widths that are proved, the separation."""

import numpy as np
import pytest
from scipy import stats
from scipy.spatial import distance
from unit_points import unit_points

from theory.memorization import memorize
from theory.memorization.first_layer import (
    _common_bias_failure,
    common_bias_width,
    correlated_pairs,
    default_width,
    draw_projection,
    largest_distortion,
    pair_failure_probability,
    row_bias_width,
    separation,
)


@pytest.mark.parametrize("cosine, width", [(0.0, 3), (0.5, 8), (-0.3, 5), (0.9, 30)])
def test_a_pair_fails_as_often_as_students_law_says(cosine, width):
    rng, draws = np.random.default_rng(0), 100_000
    x = np.array([[1, 0], [cosine, np.sqrt(1 - cosine**2)]])
    z = np.einsum("tkd,id->itk", rng.standard_normal((draws, width, 2)), x)
    share = np.mean((z[0] * z[1]).sum(-1) >= np.square(z[0]).sum(-1))
    law = pair_failure_probability(cosine, width)
    assert abs(share - law) < 4 * np.sqrt(law / draws)
    assert law <= 0.5 * ((1 + cosine) / 2) ** (width / 2)
    assert abs(share - pair_failure_probability(cosine, width + 3)) > 4 * np.sqrt(law / draws)


def test_row_bias_width_is_the_formula():
    n, rho, failure = 1000, 1.2, 0.05
    exact = 2 * np.log(n**2 / (2 * failure)) / np.log(4 / (4 - rho))
    assert exact <= row_bias_width(n, rho, failure) < exact + 1
    assert row_bias_width(n, rho, failure) <= np.ceil(8 * np.log(n**2 / (2 * failure)) / rho)
    assert row_bias_width(1, 4) == 2


def test_separation_is_the_squared_distance_of_unit_vectors():
    x, _ = unit_points(30, 6)
    squared = np.square(x[:, None] - x).sum(-1) + 5 * np.eye(30)
    assert separation(x) == pytest.approx(squared.min(), rel=1e-9)
    assert separation(np.array([[1.0, 0], [2, 0]])) < 0  # <x_1, x_2> > |x_1|²: no width helps


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
    for seed in range(10):
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
    "arguments, message", [((0, 1.0), "num_points"), ((5, 0.0), "rho"), ((5, 4.1), "rho"), ((5, 1.0, 1.0), "failure")]
)
def test_widths_refuse_numbers_out_of_range(arguments, message):
    for width in (row_bias_width, common_bias_width):
        with pytest.raises(ValueError, match=message):
            width(*arguments)


def test_as_many_random_unit_vectors_are_close_as_the_law_says():
    rng, found = np.random.default_rng(0), []
    for _ in range(20):
        q = rng.standard_normal((200, 6))
        q /= np.linalg.norm(q, axis=1, keepdims=True)
        found.append((np.triu(q @ q.T, 1) >= 0.5).sum())
    assert np.mean(found) == pytest.approx(correlated_pairs(200, 6), rel=0.03)
    assert correlated_pairs(2, 2) == pytest.approx(1 / 3)  # within 60° of each other on the circle
    assert correlated_pairs(1000, 28) > 1000 and correlated_pairs(1000, 100) < 1


def distances_off(num_points, width, share):
    """How many of the n(n + 1)/2 distances of {0, x_1, …, x_n} are off by more than a share, on average."""
    ends = width * np.square([1 - share, 1 + share])
    return num_points * (num_points + 1) / 2 * (stats.chi2.cdf(ends[0], width) + stats.chi2.sf(ends[1], width))


def test_the_papers_width_keeps_no_distances_to_a_third_at_rho_1_and_a_width_four_times_as_large_does():
    n, printed = 200, int(np.ceil(10 * np.log(200)))
    x = np.hstack([np.ones((n, 1)), np.eye(n)]) / np.sqrt(2)
    assert separation(x) == pytest.approx(1)
    off = {}
    for width in (printed, 4 * printed):
        z = np.stack([x @ draw_projection(np.random.default_rng(seed), width, n + 1).T for seed in range(40)])
        z = np.concatenate([np.zeros((40, 1, width)), z], axis=1)
        off[width] = [(np.abs(distance.pdist(points) - 1) > 1 / 3).sum() for points in z]
    assert min(off[printed]) > 0 and max(off[4 * printed]) == 0
    assert np.mean(off[printed]) == pytest.approx(distances_off(n, printed, 1 / 3), rel=0.2)


def test_with_a_logarithm_to_the_base_2_the_papers_width_breaks_ever_more_distances():
    counts = [distances_off(n, int(np.ceil(10 * np.log2(n))), 1 / 3) for n in (200, 10**4, 10**6)]
    assert counts == pytest.approx([0.76, 4.48, 40.6], rel=0.01)
    assert distances_off(200, 53, 1 / 3) == pytest.approx(11.6, rel=0.01)


@pytest.mark.parametrize("bias, needed", [("printed", 6), ("common", 4), ("row", 2)])
def test_the_largest_distortion_leaves_just_the_separation_that_a_bias_needs(bias, needed):
    for rho in (0.1, 1.0, 4.0):
        epsilon = largest_distortion(rho, bias)
        assert rho * (1 - epsilon) == pytest.approx(needed * epsilon)
        assert epsilon <= rho / 3 * (1 + 1e-12) or rho < 1


def test_the_projection_keeps_squared_norms_on_average():
    rng = np.random.default_rng(0)
    squares = [np.square(draw_projection(rng, 5, 3) @ [0.6, 0.0, 0.8]).sum() for _ in range(20_000)]
    assert np.mean(squares) == pytest.approx(1, abs=0.03)
