"""Networks with a linear output, and the risk of ReLU networks in the ball."""

import math

import numpy as np
import pytest
from scipy import optimize

from theory.derivatives import difference_gradient
from theory.relu import claims as checks
from theory.relu import figures, linear_output, networks, search


def problem(seed=0, d=3, r=1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((60, d))
    features = np.maximum(x @ rng.standard_normal((d, 4)), 0)
    return x, features, features[:, :r] ** 2 + x[:, :r]


def test_the_gradient_equals_central_differences():
    data, rng = problem(), np.random.default_rng(0)
    layers = rng.standard_normal((1, 3)), rng.standard_normal((3, 4))
    found = linear_output.gradient(*layers, *data)
    by_W = difference_gradient(lambda W: linear_output.risk(W, layers[1], *data), layers[0])
    by_V = difference_gradient(lambda V: linear_output.risk(layers[0], V, *data), layers[1])
    assert max(np.abs(found[0] - by_W).max(), np.abs(found[1] - by_V).max()) < 1e-7


def test_a_gain_below_rounding_is_said_and_small_units_are_none():
    rng = np.random.default_rng(8)
    x = rng.standard_normal((30, 3))
    features = np.maximum(x @ rng.standard_normal((3, 4)), 0)
    y = rng.standard_normal((30, 2))
    y -= x @ np.linalg.lstsq(x, y, rcond=None)[0]
    W, V = np.zeros((2, 3)), np.zeros((3, 4))
    with pytest.raises(ValueError, match="below rounding"):
        linear_output.escape(W, V, x, features, y, 1e-8)
    x, features, y = 1e-7 * x, 1e-7 * features, 1e-7 * y
    start = linear_output.risk(W, V, x, features, y)
    assert linear_output.risk(*linear_output.escape(W, V, x, features, y, 0.1), x, features, y) < start


@pytest.mark.parametrize("least, has_kernel", [(0.05, False), (1e-6, False), (1e-11, True), (0.0, True)])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_small_singular_value_is_no_kernel_to_escape_along(least, has_kernel, scale):
    x, features, y = problem(r=3)
    W, V, y = scale * np.diag([1.0, 1.0, least]), np.zeros((3, 4)), scale * y
    if not has_kernel:
        with pytest.raises(ValueError, match="no such direction"):
            linear_output.escape(W, V, x, features, y, 0.1)
        return
    W_after, V_after = linear_output.escape(W, V, x, features, y, 0.1)
    assert linear_output.risk(W_after, V_after, x, features, y) < linear_output.risk(W, V, x, features, y)
    assert np.linalg.norm(V_after) == pytest.approx(0.05) and not V_after[:2].any()


@pytest.mark.parametrize("scale, reaches_the_bottom", [(1.0, True), (3.0, False)])
def test_the_escape_goes_to_the_bottom_of_its_parabola_or_half_its_size(scale, reaches_the_bottom):
    x, features, y = problem()
    y, size = scale * y, 0.01
    W, V = checks._saddle(x, features, y)
    W_after, V_after = linear_output.escape(W, V, x, features, y, size)
    assert np.linalg.norm(V_after - V) == pytest.approx(size / 2)
    moved = np.linalg.norm(W_after - W)
    slopes = (
        linear_output.gradient(W_after, V_after, x, features, y)[0],
        linear_output.gradient(W, V_after, x, features, y)[0],
    )
    along = [np.vdot(slope, W_after - W) / np.linalg.norm(slopes[1]) / moved for slope in slopes]
    assert along[1] == pytest.approx(-1)
    if reaches_the_bottom:
        assert abs(along[0]) < 1e-9 and moved < size / 2
    else:
        assert moved == pytest.approx(size / 2) and along[0] < -0.1


def test_the_rounding_of_the_risk_is_that_of_the_sizes_of_its_terms():
    x, features, y = problem(r=2)
    features, rng = features - 1, np.random.default_rng(3)
    W, V = rng.standard_normal((2, 3)), rng.standard_normal((3, 4))
    sizes, errors = np.zeros((60, 2)), np.zeros((60, 2))
    for m, k in np.ndindex(60, 2):
        hidden = [x[m, i] + sum(V[i, p] * features[m, p] for p in range(4)) for i in range(3)]
        large = [abs(x[m, i]) + sum(abs(V[i, p] * features[m, p]) for p in range(4)) for i in range(3)]
        errors[m, k] = sum(W[k, i] * hidden[i] for i in range(3)) - y[m, k]
        sizes[m, k] = sum(abs(W[k, i]) * large[i] for i in range(3)) + abs(y[m, k])
    terms = 3 + 4 + 60 * 2
    expected = 2 * terms * 2.0**-52 * np.linalg.norm(errors) * np.linalg.norm(sizes) / 60
    assert linear_output._rounding_of_risk(W, V, x, features, y) == pytest.approx(expected, rel=1e-9, abs=0)
    exact = np.square(errors).sum() / 60
    assert abs(linear_output.risk(W, V, x, features, y) - exact) <= expected


def test_the_slope_at_the_end_of_a_descent_is_a_share_of_the_risk_of_the_identity():
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((20, 2)), 0.3 * rng.standard_normal((3, 2, 3, 2))
    y = x + rng.standard_normal((20, 2))
    w_end, W_end, slope = linear_output.descend(w, np.eye(2), x, y)
    h, features = linear_output.last_block(w_end, x)
    by_W, by_V = linear_output.gradient(W_end, w_end[-1, 1].T, h, features, y)
    zero_risk = np.square(x - y).sum() / 20
    assert slope == pytest.approx(math.hypot(np.linalg.norm(by_W), np.linalg.norm(by_V)) / zero_risk)
    end = linear_output.risk(W_end, w_end[-1, 1].T, h, features, y)
    assert linear_output.local_minimum_risk(h, features, y) <= end < 0.9 * zero_risk


def test_a_descent_that_meets_no_kink_ends_where_the_slope_is_0():
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((20, 2)), 0.3 * rng.standard_normal((1, 2, 2, 2))
    assert linear_output.descend(w, np.eye(2), x, x + rng.standard_normal((20, 2)))[2] < 1e-7


def share_left(predictors, y):
    return np.square(y - predictors @ np.linalg.pinv(predictors) @ y).sum()


@pytest.mark.parametrize("slope, critical", [(0.9e-5, 1), (1.1e-5, 0)])
def test_the_comparison_s_risks_are_shares_of_the_identity_s(monkeypatch, slope, critical):
    seen = []

    def stay(w, W, x, y):
        seen.append((w, x, y))
        return w, 1.5 * W, slope

    monkeypatch.setattr(linear_output, "descend", stay)
    rows = linear_output.compare(search.Setting(2, 2, 1, 40), 6, 0)
    assert len(rows) == len(seen) >= 4 and max(row["last_block"] for row in rows) > 1e-4
    for row, (w, x, y) in zip(rows, seen):
        assert row["category"] in ("bad_local_minimum", "global_minimum")
        zero = np.square(x - y).sum()
        before = networks.forward(w[None, :-1], x[None])[0]  # what enters the last block
        predicted = networks.forward(w[None], x[None])[0]
        both = np.hstack([before, np.maximum(before @ w[-1, 0].T, 0)])
        assert row["risk"] == pytest.approx(np.square(y - predicted).sum() / zero, abs=1e-12)
        assert row["with_output"] == pytest.approx(np.square(y - 1.5 * predicted).sum() / zero)
        assert row["linear"] == pytest.approx(share_left(x, y) / zero)
        assert row["last_block"] == pytest.approx(share_left(both, y) / zero, rel=1e-6, abs=1e-20)
        assert row["critical"] == critical and (row["d"], row["width"], row["samples"]) == (2, 1, 40)
    again = linear_output.compare(search.Setting(2, 2, 1, 40), 6, 0)
    assert [row["risk"] for row in again] == [row["risk"] for row in rows]


def test_the_descent_with_an_output_has_the_gradient_of_the_risk_that_it_lowers(monkeypatch):
    rng = np.random.default_rng(6)
    x, w, W = rng.standard_normal((15, 2)), rng.standard_normal((2, 2, 2, 2)), rng.standard_normal((2, 2))
    y, kept = rng.standard_normal((15, 2)), []

    def minimize(function, start, **options):
        kept.append((function, start))
        return optimize.OptimizeResult(x=start)

    monkeypatch.setattr(linear_output.optimize, "minimize", minimize)
    linear_output.descend(w, W, x, y)
    function, start = kept[0]
    predicted = networks.forward(w[None], x[None])[0] @ W.T
    assert function(start)[0] == pytest.approx(np.square(y - predicted).sum() / np.square(y - x).sum())
    by_differences = difference_gradient(lambda flat: function(flat)[0], start)
    np.testing.assert_allclose(function(start)[1], by_differences, atol=1e-8)


def test_the_bounds_in_the_ball_are_proportional_to_the_second_moment():
    for bound in (linear_output.ball_risk_bound, linear_output.reordering_risk_bound):
        assert bound(3, 0.4, 5.0) == pytest.approx(5 * bound(3, 0.4, 1.0))
    growth = (1 + 0.4**2) ** 3 - 1 - 3 * 0.4**2
    assert linear_output.reordering_risk_bound(3, 0.4, 5.0) == pytest.approx(4 * growth**2 * 5.0)


def test_the_bounds_by_radius_are_those_of_two_blocks_of_0_8_times_the_radius(monkeypatch):
    monkeypatch.setattr(search, "swapped_blocks", lambda radius: {"risk_at_zero": 3.0, "risk": 0.5})
    for row in figures.excess_by_radius():
        product = (0.8 * row["radius"]) ** 2  # of a block's two weights; E‖x‖² = 2 in the plane
        growth = (1 + product) ** 2 - 1
        assert row["ball_bound"] == pytest.approx(4 * growth**2 * 2)
        assert row["swapped_bound"] == pytest.approx(4 * (growth - 2 * product) ** 2 * 2)
