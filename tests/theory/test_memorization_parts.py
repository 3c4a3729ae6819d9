"""The parts of a memorising network: its estimate of rounding, thresholds, surrogates, whitening, by loops."""

import math

import numpy as np
import pytest
from refusals import refused
from unit_points import unit_points

from theory.memorization import blocks, construction, memorize, network
from theory.memorization.first_layer import correlated_pairs, default_width, pair_failure_probability

U_ROUND = 2.0**-24


def block_error(U, V, s, input_error):
    """|error of h + T(h)| at the rows of U, one unit and one point at a time: see `network.rounding_error`."""
    found = []
    for j, point in enumerate(U):
        variance = (U_ROUND * np.linalg.norm(point)) ** 2
        for i, row in enumerate(U):
            rounding = np.linalg.norm(row) * (U_ROUND * np.linalg.norm(point) + input_error[j])
            activation = row @ point + s[i]
            if activation > -5 * rounding:
                variance += np.square(V[:, i]).sum() * (rounding**2 + (U_ROUND * activation) ** 2)
        found.append(math.sqrt(variance))
    return np.array(found)


def estimate(net, x):
    """The docstring's five standard deviations of a score, and by how much a moved point stays below a threshold."""
    d, k = x.shape[1], net.width
    size = {}
    for row in x:
        z = net.projection @ row
        size[tuple(np.round(z, 9))] = math.sqrt(np.square(net.projection * row).sum())
    errors, wake = [], []
    for U, V, s in zip(net.U, net.V, net.s):
        used = np.linalg.norm(U, axis=1) > 0
        delta = np.array([(1 + math.sqrt(d) / 3) * U_ROUND * size.get(tuple(np.round(z, 9)), 0.0) for z in U])
        errors.extend(np.hypot(delta, block_error(U, V, s, delta / math.sqrt(k)))[used])
        for row, bias in zip(U[used], s[used]):
            wake.append((-bias - max(row @ q for q in net.head_U)) / np.linalg.norm(row))
    output = block_error(net.head_U, net.head_V, net.head_s, np.full(len(net.head_U), max(errors)))
    return 5 * output.max(), 5 * max(errors), min(wake)


@pytest.mark.parametrize("n, d, width, seed", [(40, 6, 5, 0), (30, 3, 8, 1), (12, 20, 12, 2)])
def test_the_estimate_of_rounding_is_its_formula_by_loops(n, d, width, seed):
    x, labels = unit_points(n, d)
    x = x * np.random.default_rng(seed).uniform(0.5, 2, (n, 1))
    net = memorize(x, labels, 5, width, seed=seed)
    said, moved, wake = estimate(net, x)
    assert net.float32_error == pytest.approx(said, rel=1e-9) and moved < wake


def test_an_estimate_of_a_half_or_of_points_that_may_wake_units_is_infinite():
    x, labels = unit_points(12, 3)
    net = memorize(x, labels, 5, 4)
    weights = [net.projection, net.U, net.V, net.s, net.head_U, net.head_V, net.head_s]
    sizes = np.ones(net.s.shape)
    once = network.rounding_error(weights, sizes)
    for size, expected in ((0.49 / once, True), (0.6 / once, False)):  # the head's part is linear in its columns
        larger = [*weights[:5], size * weights[5], weights[6]]
        assert math.isfinite(network.rounding_error(larger, sizes)) is expected
    distance = network._distance_to_waking(net.U, net.s, net.head_U)
    used = np.linalg.norm(net.U, axis=-1) > 0
    assert distance == pytest.approx(
        min((-b - (net.head_U @ u).max()) / np.linalg.norm(u) for u, b in zip(net.U[used], net.s[used]))
    )
    assert network.rounding_error(weights, sizes * distance / once * 1e3) == math.inf
    for scale, fits in ((1e29, True), (1e31, False), (1e-29, True), (1e-31, False)):
        for first in (weights[0], -np.abs(weights[0])):
            large = [scale * first / np.abs(first).max(), *weights[1:]]
            assert math.isfinite(network.rounding_error(large, 0 * sizes)) is fits
        assert network.in_float32_range(-scale) is False and network.in_float32_range(scale) is fits


@pytest.mark.parametrize("bias, share", [("common", 0.5), ("row", 0.5), ("peeling", 0.125)])
def test_thresholds_lie_between_what_they_must_separate(bias, share):
    points = np.array([[2.0, 0.0, 0.0], [0.3, 1.5, 0.0], [0.1, 0.2, 1.2]])
    others = np.array([[0.2, 0.1, -0.3], [0.5, 0.4, 0.3]])
    norms, wake = np.square(points).sum(1), []
    for i, point in enumerate(points):
        below = [point @ other for other in others]
        below += [point @ other for j, other in enumerate(points) if j > i or bias != "peeling" and j != i]
        wake.append(max(below))
    lower, upper = np.array(wake), norms
    if bias == "common":
        lower, upper = np.full(3, lower.max()), np.full(3, upper.min())
    U, V, s = blocks.transform_block(points, points[::-1], others, bias)
    np.testing.assert_allclose(-s, lower + share * (upper - lower))
    np.testing.assert_allclose(points + blocks.apply_block(U, V, s, points), points[::-1], atol=1e-12)
    assert not blocks.apply_block(U, V, s, others).any()
    assert blocks.relative_gap(U, s, bias) == pytest.approx(((norms + s) / norms / (1 - share)).min())
    padded = np.concatenate([U, np.zeros((2, 3))]), np.append(s, [-1.0, -1.0])
    assert blocks.relative_gap(*padded, bias) == blocks.relative_gap(U, s, bias)
    assert blocks.relative_gap(0 * U, s, bias) == 2


@pytest.mark.parametrize("scores, off", [([[1, 0], [0.51, 1]], "0.51"), ([[1, 0], [0.1, 0.48]], "0.52")])
def test_scores_that_are_off_by_a_half_are_rejected(scores, off):
    assert f"off by {off}" in refused(construction._check_scores, np.array(scores), np.array([0, 1]))
    construction._check_scores(np.array([[1.0, 0.0], [0.49, 1.0]]), np.array([0, 1]))


def test_without_other_points_any_threshold_below_the_norm_will_do():
    alone = np.array([[3.0, 0.0]])
    for bias, share in (("common", 0.5), ("row", 0.5), ("peeling", 0.125)):
        _, _, s = blocks.transform_block(alone, 2 * alone, alone[:0], bias)
        assert -s[0] == pytest.approx(-9 + share * 18)  # between −|α|² and |α|²


@pytest.mark.parametrize("count, dim", [(3, 4), (8, 4), (6, 2), (30, 3)])
def test_surrogates_are_of_one_length_the_longest_that_takes_no_point_for_itself(count, dim):
    rng = np.random.default_rng(count)
    z = rng.standard_normal((50, dim)) * rng.uniform(0.5, 2, (50, 1))
    q = blocks.surrogates(np.concatenate([z, np.zeros((1, dim))]), count, np.random.default_rng(0))
    lengths, longest = np.linalg.norm(q, axis=1), np.linalg.norm(z, axis=1).max()
    assert q.shape == (count, dim)
    np.testing.assert_allclose(lengths, lengths[0])
    share = (z @ q.T / np.square(z).sum(1)[:, None]).max()
    assert share == pytest.approx(0.5) if lengths[0] < longest * (1 - 1e-12) else share <= 0.5
    assert lengths[0] <= longest * (1 + 1e-12)
    directions = q / lengths[:, None]
    cosines = directions @ directions.T - 2 * np.eye(count)
    if count <= 2 * dim:  # ± the axes, those that can be longest
        np.testing.assert_array_equal(np.sort(np.abs(directions))[:, -1], 1)
        axes = np.concatenate([np.eye(dim), -np.eye(dim)])
        steepest = np.sort((z @ axes.T / np.square(z).sum(1)[:, None]).max(0))[count - 1]
        assert lengths[0] == pytest.approx(min(0.5 / steepest, longest))
    elif dim == 2:
        assert cosines.max() == pytest.approx(math.cos(2 * math.pi / count))
    else:
        assert cosines.max() < 0.9  # 30 random directions in space have a pair at 0.98


def test_whitening_makes_the_second_moment_the_identity_and_keeps_small_directions():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    x = rng.standard_normal((1500, 3)) @ (basis * [3.0, 1.0, 0.5]) @ basis.T + [0.3, 0, 0]
    W = construction._whitener(x)
    moment = x.T @ x / len(x)
    scale = np.abs(x).max()  # A_0 is rid of it
    np.testing.assert_allclose(W @ moment @ W.T / scale**2, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(W, W.T, atol=1e-12)
    flat = x * [1.0, 1.0, 0.0]
    values = np.linalg.eigvalsh(construction._whitener(flat))
    largest = np.linalg.eigvalsh(flat.T @ flat / len(x))[-1] / np.abs(flat).max() ** 2
    assert values[-1] == pytest.approx((1e-4 * largest) ** -0.5)
    np.testing.assert_allclose(construction._whitener(np.zeros((4, 2))), np.eye(2))


@pytest.mark.parametrize("n, width", [(8, 8), (54, 8), (55, 9), (2980, 16), (2981, 17)])
def test_the_default_width_of_peeling_is_two_logarithms(n, width):
    assert default_width(np.zeros((n, 2))) == width == max(8, math.ceil(2 * math.log(n)))


@pytest.mark.parametrize("length", [0.3, 3.0])
def test_surrogates_are_no_longer_than_the_longest_point(length):
    q = blocks.surrogates(np.array([[length, 0.0], [-length / 2, 0.0]]), 2, np.random.default_rng(0))
    np.testing.assert_allclose(np.abs(q), [[0, length]] * 2, atol=1e-12)  # ± the second axis, which no point opposes


def test_a_block_names_the_point_that_has_no_threshold():
    points = np.array([[2.0, 0.0], [0.0, 1.5], [0.9, 1.2]])
    others = np.array([[0.0, 1.6], [0.0, 1.51]])
    for bias, row in (("row", 1), ("peeling", 1), ("common", 1)):
        with pytest.raises(blocks.NoThreshold, match="is not above") as raised:
            blocks.transform_block(points, points, others, bias)
        assert raised.value.row == row
    shorter = np.array([[2.0, 0.0], [1.2, 1.2], [0.5, 0.1]])  # the last is short, and wakes on the first
    with pytest.raises(blocks.NoThreshold) as raised:
        blocks.transform_block(shorter, shorter, others[:0], "common")
    assert raised.value.row == 2
    assert blocks._plane(np.array([1.0001]), np.array([[1.0], [-1.0]])) is not None
    worst = np.array([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(blocks.NoThreshold) as raised:  # 1 − 1.1 and 1 − 1.7: the second is worse
        blocks.transform_block(worst, worst, np.array([[1.1, 0.0], [0.0, 1.7]]), "row")
    assert raised.value.row == 1


@pytest.mark.parametrize("seed", range(12))
def test_first_layer_scales_the_largest_entry_to_half_to_one_and_spare_units_sleep(seed):
    x, labels = unit_points(7, 3)
    net = memorize(x, labels, 5, 4, seed=seed)
    assert 0.5 <= np.abs(x @ net.projection.T).max() < 1
    left_over = np.linalg.norm(net.U, axis=-1) == 0
    assert left_over.sum() == 1 and (net.s[left_over] == -1).all() and not net.V[:, :, -1][left_over.any(1)].any()
    assert (net.num_layers, net.width) == (2, 4)
    alone = memorize(x[:1], labels[:1], 5, 2, seed=seed)  # whose two entries may both be negative
    assert 0.5 <= np.abs(x[:1] @ alone.projection.T).max() < 1


def test_points_that_are_too_small_are_rejected_and_whitening_knows_no_scale():
    x, labels = unit_points(6, 3)
    assert "as small as 9e-292" in refused(memorize, 1e-291 * x / np.abs(x).max() * 0.9, labels, 5, 3)
    memorize(1e-288 * x / np.abs(x).max(), labels, 5, 3)
    for shifted in (x + 2, -x - 2, x - x.min()):  # the largest entry is of either sign, the least may be 0
        plain, large = (construction._whitener(scale * shifted) for scale in (1.0, 1e200))
        np.testing.assert_allclose(large, plain, rtol=1e-9)


def test_half_of_all_pairs_are_obtuse_and_one_unit_fails_in_proportion_to_the_angle():
    assert correlated_pairs(5, 3, 0.0) == pytest.approx(5) and round(correlated_pairs(1000, 28)) == 1435
    assert pair_failure_probability(0.0, 1) == pytest.approx(0.25)  # of a width of 1: P(t ≥ 1) of Cauchy's law
