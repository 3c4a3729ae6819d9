"""One block: what it moves and what it leaves alone, at which separations, and its surrogates."""

import numpy as np
import pytest

from theory.memorization.blocks import NoThreshold, apply_block, transform_block


@pytest.mark.parametrize("bias, factor", [("row", 2.05), ("common", 4.05)])
def test_a_block_moves_its_points_and_no_other_at_the_corrected_separations(bias, factor):
    rng, rho = np.random.default_rng(0), 0.04
    points = adversarial_points(rng, rho, factor * rho)
    targets = rng.standard_normal((4, points.shape[1]))
    moved = points + apply_block(*transform_block(points[:4], targets, points[4:], bias), points)
    np.testing.assert_allclose(moved, np.concatenate([targets, points[4:]]), atol=1e-10)


def adversarial_points(rng, rho: float, squared_distance: float, pairs: int = 6):
    """Pairs at one squared distance, of norms √(1 − ρ') and √(1 + ρ'); different pairs are orthogonal."""
    points = np.zeros((2 * pairs, 2 * pairs))
    lengths = np.sqrt(1 - rho), np.sqrt(1 + rho)
    cosine = (2 - squared_distance) / 2 / lengths[0] / lengths[1]
    for i in range(pairs):
        points[i, 2 * i] = lengths[0]
        points[pairs + i, 2 * i : 2 * i + 2] = lengths[1] * cosine, lengths[1] * np.sqrt(1 - cosine**2)
    return points @ np.linalg.qr(rng.standard_normal((2 * pairs, 2 * pairs)))[0]


def test_one_common_bias_needs_four_rho_and_one_per_row_two():
    rng, rho = np.random.default_rng(0), 0.04
    for bias, factor in (("row", 1.95), ("common", 3.95)):
        points = adversarial_points(rng, rho, factor * rho)
        if bias == "common":  # the worst case: the short point of one pair, both long ones of another
            points = worst_for_a_common_bias(rho, factor * rho)
        with pytest.raises(NoThreshold, match=r"\|z\|² = .* is not above .*"):
            transform_block(points, points, points[:0], bias)


def worst_for_a_common_bias(rho: float, squared_distance: float):
    """Two long points at that squared distance, and a short one orthogonal to both."""
    cosine = 1 - squared_distance / 2 / (1 + rho)
    long = np.array([[1, 0, 0], [cosine, np.sqrt(1 - cosine**2), 0]]) * np.sqrt(1 + rho)
    return np.concatenate([long, [[0, 0, np.sqrt(1 - rho)]]])


def test_a_peeling_block_solves_for_points_that_wake_each_other():
    points = np.outer([4.0, 3.0, 2.0, 1.5], [1.0, 0.5])
    targets = np.random.default_rng(0).standard_normal((4, 2))
    others = np.array([[1.0, 0.5], [0.1, -3.0]])
    U, V, s = transform_block(points, targets, others, "peeling")
    assert np.count_nonzero(U @ points.T + s[:, None] > 0) == 10  # all of the lower triangle
    np.testing.assert_allclose(points + apply_block(U, V, s, points), targets, atol=1e-12)
    np.testing.assert_array_equal(apply_block(U, V, s, others), 0)
    for bias in ("row", "common"):
        with pytest.raises(NoThreshold):
            transform_block(points, targets, others, bias)
    with pytest.raises(ValueError, match="bias must be one of common, row, peeling, got 'none'"):
        transform_block(points, targets, others, "none")
