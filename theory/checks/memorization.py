"""Checks of Hardt & Ma §3 and appendix B, and of the review and the blog on them.

As in linear.py: random instances, the worst of them as Evidence.
"""

import math

import numpy as np

from theory import memorization, projection_width, residual_block
from theory.checks.evidence import ROUNDING, Evidence, at_most, relative_error, require


def lemma_b_1(rng, trials: int) -> Evidence:
    """A block moves its points to their targets and no other, for D² > 2ρ′ (row) and D² > 4ρ′ (common bias)."""

    def pairs():
        for trial in range(trials):
            bias, factor = (("row", 2.1), ("common", 4.1))[trial % 2]
            points = _points(rng, 30, 8, factor)
            targets = rng.standard_normal((8, 8))
            block = residual_block.transform_block(points[:8], targets, points[8:], bias)
            moved = points + residual_block.apply_block(*block, points)
            yield relative_error(moved, np.concatenate([targets, points[8:]])), ROUNDING

    error = _printed_block_error(rho=0.1, squared_distance=0.3)
    require(error > 0.1, "the printed bias works at |α₁ − α₂|² = 3ρ′")
    _require_hull_example()
    return at_most(pairs())._replace(
        counterexample=f"ρ′ = 0.1, |α₁ − α₂|² = 3ρ′: the printed bias −(1 − 2ρ′) misses its target by {error:.2f}; with "
        "|α₁ − α₂| ≥ 3ρ′ unsquared no block exists: ρ′ = 0.05, two points in the hull of 20 others"
    )


def eq_b_1(rng, trials: int) -> Evidence:
    """⟨α_i, α_j⟩ against 1 + ρ′ − D²/2, norms in [1 − ρ′, 1 + ρ′]."""

    def pairs():
        for _ in range(20 * trials):
            points = rng.standard_normal((2, 3))
            points *= np.sqrt(rng.uniform(0.9, 1.1, (2, 1))) / np.linalg.norm(points, axis=1, keepdims=True)
            bound = 1.1 - np.square(points[0] - points[1]).sum() / 2
            yield 2 + points[0] @ points[1], 2 + bound + ROUNDING  # both shifted above 0, for the slack

    first, second = _unit_pair(squared_distance=0.3)
    return at_most(pairs())._replace(
        counterexample=f"unit vectors with |α₁ − α₂|² = 0.3: ⟨α₁, α₂⟩ = {first @ second:.2f}, "
        f"as printed, without the ½ before the distance, {1 - 0.3:.2f}"
    )


def lemma_b_2(rng, trials: int) -> Evidence:
    """After the blocks every point sits on the surrogate of its label, with one bias per row."""

    def pairs():
        for trial in range(max(1, trials // 5)):
            x, labels = _labelled(rng, 60, 20, 3)
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            network = memorization.memorize(x, labels, 3, method="row_bias", seed=trial)
            hidden = _hidden(network, x)
            surrogates = np.stack([hidden[labels == label][0] for label in range(3)])
            yield relative_error(hidden, surrogates[labels]), ROUNDING

    error = _printed_block_error(rho=0.1, squared_distance=0.2)
    require(error > 0.1, "Lemma B.2's hypothesis is enough for Lemma B.1's bias")
    return at_most(pairs())._replace(
        counterexample=f"its hypothesis, |z_i − z_j|² ≥ 2ρ′ at most, is not Lemma B.1's: ρ′ = 0.1 misses by {error:.2f}"
    )


def lemma_3_3(rng, trials: int) -> Evidence:
    """For any distinct points, also nearly equal or parallel ones, blocks that bring them to their surrogates."""

    def pairs():
        for trial in range(max(1, trials // 5)):
            x, labels = _labelled(rng, 40, 5, 3)
            x[1] = x[0] * (1 + 1e-4)
            x[3] = x[2] + 1e-4 * rng.standard_normal(5)
            network = memorization.memorize(x, labels, 3, width=8, seed=trial)
            yield np.abs(network(x) - np.eye(3)[labels]).max(), 1e-6  # gaps of 1e-4 cost four digits and some

    return at_most(pairs())


def theorem_3_2(rng, trials: int) -> Evidence:
    """|ŷ − e_y| over all points, random labels, any n, r and width; the parameter count against its formula."""

    def pairs():
        for trial in range(max(1, trials // 5)):
            num_points, num_classes = int(rng.integers(1, 200)), int(rng.integers(1, 20))
            x, labels = _labelled(rng, num_points, 10, num_classes)
            width = int(rng.integers(8, 40))
            network = memorization.memorize(x, labels, num_classes, width=width, seed=trial)
            yield np.abs(network(x) - np.eye(num_classes)[labels]).max(), ROUNDING
            formula = memorization.parameter_count(num_points, 10, num_classes, width)
            require(network.num_parameters == formula, f"{network.num_parameters} parameters, not {formula}")

    error = _printed_block_error(rho=0.1, squared_distance=0.3)
    return at_most(pairs())._replace(counterexample=f"Lemma B.1's bias at |α₁ − α₂|² = 3ρ′ = 0.3 is off by {error:.2f}")


def paper_width(rng, trials: int) -> Evidence:
    """How often one bias per row fails at `row_bias_width`, δ = 0.01; how often one common bias fails at k = 10 ln n/ρ²."""
    builds, failures, printed_failures = max(10, trials // 5), 0, 0
    for trial in range(builds):
        x = rng.standard_normal((60, 200))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        rho = projection_width.separation(x)
        failures += _fails(x, rng, projection_width.row_bias_width(60, rho), "row_bias", trial)
        printed_failures += _fails(x, rng, math.ceil(10 * math.log(60) / rho**2), "paper", trial)
    require(printed_failures > builds / 2, "k = 10 ln n/ρ² is enough")
    evidence = at_most([(failures / builds, 0.01)])
    return evidence._replace(
        instances=builds,
        counterexample="60 random unit vectors in R²⁰⁰: at k = 10 ln n/ρ² no common bias exists "
        f"in {printed_failures} of {builds} draws",
    )


def pair_law(rng, trials: int) -> Evidence:
    """P(⟨z_i, z_j⟩ ≥ |z_i|²) against draws, in standard deviations of the draws."""

    def pairs():
        for _ in range(max(1, trials // 10)):
            cosine, width, draws = rng.uniform(-0.5, 0.95), int(rng.integers(2, 12)), 100_000
            first = rng.standard_normal((draws, width))
            second = cosine * first + math.sqrt(1 - cosine**2) * rng.standard_normal((draws, width))
            share = ((first * second).sum(1) >= np.square(first).sum(1)).mean()
            law = float(projection_width.pair_failure_probability(cosine, width))
            # 5σ is passed by chance once in two million; one draw more or less is no evidence.
            yield abs(share - law), 5 * math.sqrt(law * (1 - law) / draws) + 1 / draws

    return at_most(pairs())


def review_last_layer(rng, trials: int) -> Evidence:
    """The last block with U [r, k], V [r, r], s [r] fits r = 12 labels at width 6; its count is kr + r² + r."""

    def pairs():
        for trial in range(max(1, trials // 10)):
            x, labels = _labelled(rng, 50, 10, 12)
            network = memorization.memorize(x, labels, 12, width=6, seed=trial)
            count = network.head_U.size + network.head_V.size + network.head_s.size
            require(network.head_V.shape == (12, 12) and count == 6 * 12 + 12**2 + 12, "the last block's shape")
            yield np.abs(network(x) - np.eye(12)[labels]).max(), 1e-6  # width 6 has gaps of down to 1e-4

    return at_most(pairs())._replace(counterexample="r = 12, k = 6: a B [6, 6] gives 6 scores for 12 labels")


def review_theorem_3(rng, trials: int) -> Evidence:
    """ρ > 0 is needed: a point with two labels has no network; any ρ > 0 is enough, here 1e-6."""

    def pairs():
        for trial in range(max(1, trials // 10)):
            x, labels = _labelled(rng, 20, 5, 2)
            x[1] = x[0] + 1e-6 * rng.standard_normal(5)
            labels[:2] = 0, 1
            network = memorization.memorize(x, labels, 2, width=8, seed=trial)
            yield np.abs(network(x) - np.eye(2)[labels]).max(), 1e-2  # 1e-6 apart: gaps of 1e-12 cost most digits

    try:
        memorization.memorize(np.ones((2, 3)), np.array([0, 1]), 2)
    except ValueError as error:
        return at_most(pairs())._replace(counterexample=f"ρ = 0: {error}")
    return at_most(pairs())


def _labelled(rng, num_points: int, dimension: int, num_classes: int):
    """Gaussian x [n, d]; random labels [n], of which the first r are all different where n ≥ r."""
    labels = rng.integers(0, num_classes, num_points)
    labels[:num_classes] = np.arange(num_classes)[:num_points]
    return rng.standard_normal((num_points, dimension)), labels


def _points(rng, count: int, dimension: int, factor: float) -> np.ndarray:
    """Points with |α|² spread over [1 − ρ′, 1 + ρ′], ρ′ = D²/factor for the least squared distance D² of the result."""
    directions = rng.standard_normal((count, dimension))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    offsets = rng.uniform(-1, 1, (count, 1))
    rho = 0.5
    while True:
        points = directions * np.sqrt(1 + rho * offsets)
        squared = np.square(points[:, None] - points).sum(2) + 10 * np.eye(count)
        if squared.min() > factor * rho:
            return points
        rho *= 0.8


def _unit_pair(squared_distance: float):
    angle = 2 * math.asin(math.sqrt(squared_distance) / 2)
    return np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])


def _printed_block_error(rho: float, squared_distance: float) -> float:
    """Largest distance from the targets of two unit vectors moved by Lemma B.1 as printed."""
    points = np.stack(_unit_pair(squared_distance))
    targets = -points
    bias = -(1 - 2 * rho)
    V = ((targets - points) / (np.square(points).sum(1, keepdims=True) + bias)).T
    moved = points + residual_block.apply_block(points, V, np.full(2, bias), points)
    return float(np.linalg.norm(moved - targets, axis=1).max())


def _require_hull_example() -> None:
    """Two points inside the hull of 20 that must not move, all conditions met with unsquared distances.

    ReLU(u·h + s) is convex in h: zero at the 20, it is zero in their hull. For k = 2 and two displacements that are
    linearly independent V must be invertible, so T = 0 at the 20 means that, and no block moves the two.
    """
    rho = 0.05
    angles = math.pi / 10 * np.arange(20)
    outer = math.sqrt(1 + rho) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    inner = math.sqrt(1 - rho) * np.array([[math.cos(math.pi / 20), math.sin(math.pi / 20)]]) * [[1], [-1]]
    nearest = min(np.linalg.norm(inner[0] - other) for other in [*outer, inner[1]])
    inside = math.sqrt(1 - rho) < math.sqrt(1 + rho) * math.cos(math.pi / 20)
    require(inside and nearest >= 3 * rho, "the hull example breaks a condition")


def _hidden(network, x) -> np.ndarray:
    hidden = x @ network.projection.T
    for block in zip(network.U, network.V, network.s):
        hidden = hidden + residual_block.apply_block(*block, hidden)
    return hidden


def _fails(x, rng, width: int, method: str, seed: int) -> bool:
    try:
        memorization.memorize(x, rng.integers(0, 2, len(x)), 2, width=width, method=method, seed=seed)
    except ValueError:
        return True
    return False
