"""The time that n-shortcut networks stay at zero, and the directions of the three methods."""

import math

import numpy as np
import pytest
from scipy import integrate

from theory.descent import saddle_escape, update_rules


def orthogonal(d=3, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]


def test_at_exactly_zero_nothing_moves_but_the_1_shortcut():
    for method in update_rules.METHODS:
        for n, leaves in ((1, True), (2, False), (3, False)):
            start = np.zeros((2, n, 3, 3))
            steps = saddle_escape.steps_to_leave(method, start, orthogonal(), 0.05, 200)
            assert math.isfinite(steps) == leaves
            assert math.isinf(saddle_escape.least_steps(method, start, orthogonal(), 0.05)) != leaves
            assert math.isinf(saddle_escape.predicted_steps(method, n, 1.0, 0.0, 0.05)) != leaves


def test_a_start_beyond_the_halving_norm_needs_no_steps():
    start = saddle_escape.aligned_start(0.9, 2, orthogonal())
    assert saddle_escape.predicted_steps("descent", 2, 1.0, 0.9, 0.1) == 0
    assert saddle_escape.least_steps("descent", start, orthogonal(), 0.1) == 0
    assert saddle_escape.steps_to_leave("descent", start, orthogonal(), 0.1, 5) == 0
    problem = "descent", 0.29 * orthogonal()[None, None], orthogonal(), 0.01  # 1 % of what is left goes in a step
    assert [saddle_escape.steps_to_leave(*problem, max_steps) for max_steps in (0, 1)] == [math.inf, 1]


def test_reach_of_a_rank_one_gap_is_the_frobenius_norm_over_the_root_of_d():
    gap = np.diag([3.0, 0.0, 0.0, 0.0])
    target = (1 - 0.5**0.5) * 3 / 2
    end, slope = saddle_escape.reach(3, 2, gap)
    assert (1 + end**2) ** 3 - 1 == pytest.approx(target)
    assert slope == pytest.approx((target + 3) * (1 + end**2) ** 2)


@pytest.mark.parametrize("shortcut_depth", [1, 2, 3])
def test_the_least_steps_are_the_integral_of_the_largest_slope(shortcut_depth):
    gap, start = np.diag([2.0, 0.5]), 0.05
    end, slope = saddle_escape.reach(2, shortcut_depth, gap)
    weights = (
        start * np.broadcast_to(np.eye(2), (2, shortcut_depth, 2, 2)) * [[[[1.0]], [[0.3]], [[0.1]]][:shortcut_depth]]
    )
    time = integrate.quad(lambda norm: norm ** (1 - shortcut_depth), start, end)[0] / slope
    for method, steps in (("descent", time), ("momentum", time / 10), ("orthogonalised", end - start)):
        assert saddle_escape.least_steps(method, weights, gap, 0.01) == pytest.approx(steps / 0.01, rel=1e-6)


@pytest.mark.parametrize("gap", [0.5, 1.0, 2.0])
def test_the_predicted_times_are_their_integrals_in_closed_form(gap):
    share, rate, start = 1 - 0.5**0.5, 0.01, 0.03
    times = {1: math.log((gap - start) / (gap - share * gap))}
    end = (share * gap) ** 0.5
    times[2] = math.log((end / start) ** 2 * (gap - start**2) / (gap - end**2)) / (2 * gap)
    end = (share * gap) ** (1 / 3)
    times[3] = integrate.quad(lambda w: 1 / (w**2 * (gap - w**3)), start, end)[0]
    for n, time in times.items():
        found = [saddle_escape.predicted_steps(method, n, gap, start, rate) for method in update_rules.METHODS]
        assert found == pytest.approx([time / rate, 0.1 * time / rate, ((share * gap) ** (1 / n) - start) / rate])
    assert saddle_escape.predicted_steps("descent", 1, gap, 0.0, rate) == pytest.approx(-math.log(1 - share) / rate)


def test_polar_factor_is_orthogonal_at_any_scale_and_zero_for_a_zero_matrix():
    G = np.random.default_rng(0).standard_normal((5, 4, 4))
    polar = update_rules.polar_factor(G)
    np.testing.assert_allclose(polar @ polar.swapaxes(1, 2), np.broadcast_to(np.eye(4), (5, 4, 4)), atol=1e-12)
    np.testing.assert_allclose(update_rules.polar_factor(1e-9 * G), polar, atol=1e-12)
    np.testing.assert_array_equal(update_rules.polar_factor(np.zeros((2, 2))), 0)
    np.testing.assert_allclose(update_rules.polar_factor(np.diag([3.0, 0.0])), np.diag([1.0, 0.0]))


def test_momentum_sums_gradients_and_orthogonalised_updates_look_ahead():
    g, buffer = np.diag([1.0, 2.0]), np.diag([5.0, -1.0])
    np.testing.assert_allclose(update_rules.direction("momentum", g, buffer)[0], np.diag([5.5, 1.1]))
    move, after = update_rules.direction("orthogonalised", g, buffer)
    np.testing.assert_allclose(move, np.eye(2))
    np.testing.assert_allclose(after, np.diag([5.5, 1.1]))
    assert update_rules.direction("descent", g, buffer) == (g, buffer)


def test_polar_factor_keeps_a_singular_value_a_billion_times_smaller():
    u, v = orthogonal(seed=1), orthogonal(seed=2)
    for scale in (1.0, 1e-280):
        np.testing.assert_allclose(update_rules.polar_factor(scale * (u * [1, 0.1, 1e-9]) @ v), u @ v, atol=1e-6)
        kept = update_rules.polar_factor(scale * (u * [1, 0.1, 1e-15]) @ v)
        np.testing.assert_allclose(kept, u[:, :2] @ v[:2], atol=1e-12)
