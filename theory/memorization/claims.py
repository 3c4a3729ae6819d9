"""Claims on Hardt & Ma §3 and appendix B, and of the review and the blog on them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from theory.claim import claim
from theory.evidence import ROUNDING, CheckFailed, Pairs, relative_error, require
from theory.memorization import blocks, construction
from theory.mutations import changed


def forgetful(memorize: Callable) -> Callable:
    """The mutation that gives the first point a wrong label."""

    def broken(x: np.ndarray, labels: np.ndarray, num_classes: int, *a: Any, **k: Any) -> Any:
        labels = np.where(np.arange(len(labels)) == 0, (labels + 1) % num_classes, labels)
        return memorize(x, labels, num_classes, *a, **k)

    return broken


misshapen = changed(lambda network: dataclasses.replace(network, head_U=network.head_U.T))
overshooting = changed(lambda block: (block[0], 1.01 * block[1], block[2]))  # U, V, s
waking = changed(lambda block: (block[0], block[1], block[2] + 0.5))


@claim(
    id="hm.lemma_3.3",
    source="Hardt & Ma, Lemma 3.3",
    statement="blocks map any distinct points to the surrogates of their labels",
    proof="repaired: as for Lemma B.2",
    restates="hm.lemma_B.2",
)
@claim(
    id="hm.lemma_B.2",
    source="Hardt & Ma, Lemma B.2",
    statement="blocks map any distinct points to surrogates q with ⟨q, z⟩ < |z|²",
    verdict="holds under the paper's own caveat: with high probability over the q",
    proof=(
        "repaired: its hypothesis is weaker than Lemma B.1's; in the order of decreasing norm, with one bias per row, "
        "no hypothesis is needed"
    ),
    after="hm.eq_B.1",
    function=blocks.transform_block,
    mutation=overshooting,
)
def lemma_b_2(rng: np.random.Generator, trials: int) -> Pairs:
    """In the order of decreasing norm, under B.2's hypothesis, blocks map every z to the unit vector of its label.

    The z have squared norms in [1 − ρ′, 1 + ρ′] and some squared distances just above ρ′; the unit vectors q are drawn
    until ⟨q, z⟩ ≤ 1 − ρ′, which the paper has with high probability.
    """
    k, rho = 24, 0.1
    for _ in range(max(1, trials // 5)):
        z = _close_pairs(rng, 50, k, rho)
        labels = rng.integers(0, 5, 50)
        for _ in range(1000):
            q = rng.standard_normal((5, k))
            q /= np.linalg.norm(q, axis=1, keepdims=True)
            if (q @ z.T).max() <= 1 - rho:
                break
        order = np.argsort(-np.linalg.norm(z, axis=1))
        hidden = z.copy()
        waiting = list(order)
        while waiting:
            now, waiting = waiting[:k], waiting[k:]
            others = np.concatenate([z[waiting], q])
            block = blocks.transform_block(z[now], q[labels[now]], others, "peeling")
            hidden = hidden + blocks.apply_block(*block, hidden)
        yield relative_error(hidden, q[labels]), 1e-7  # gaps of about 0.05 and 24 units a block
    error = _printed_block_error(rho=0.1, squared_distance=0.2)
    require(error > 0.1, "Lemma B.2's hypothesis is enough for Lemma B.1's bias")
    return (
        "its hypothesis gives at most |z_i − z_j|² ≥ 2ρ′, and Lemma B.1 needs 3ρ′: at ρ′ = 0.1 the printed "
        f"bias misses the target by {error:.2f}"
    )


@claim(
    id="hm.lemma_B.1",
    source="Hardt & Ma, Lemma B.1",
    statement="a block moves k points and no other if D² > 2ρ′ with one bias per row, > 4ρ′ with one for all rows",
    verdict="depends on the reading: for squared distances of at least 3ρ′, holds; for unsquared, false if k ≥ 2",
    proof="repaired: the bias −(1 − 2ρ′) fails at squared distance 3ρ′; one bias per row needs only more than 2ρ′",
    function=blocks.transform_block,
    mutation=overshooting,
)
def lemma_b_1(rng: np.random.Generator, trials: int) -> Pairs:
    """A block moves its points to their targets and no other, for D² > 2ρ′ (row), D² > 4ρ′ (common bias)."""
    for trial in range(trials):
        bias, factor = (("row", 2.1), ("common", 4.1))[trial % 2]
        points = _points(rng, 30, 8, factor)
        targets = rng.standard_normal((8, 8))
        block = blocks.transform_block(points[:8], targets, points[8:], bias)
        moved = points + blocks.apply_block(*block, points)
        yield relative_error(moved, np.concatenate([targets, points[8:]])), ROUNDING
    error = _printed_block_error(rho=0.1, squared_distance=0.3)
    require(error > 0.1, "the printed bias works at |α₁ − α₂|² = 3ρ′")
    for dimension in (2, 3, 8):
        _require_hull_example(dimension)
    return (
        f"ρ′ = 0.1, |α₁ − α₂|² = 3ρ′: the printed bias −(1 − 2ρ′) misses its target by {error:.2f}; "
        "with |α₁ − α₂| ≥ 3ρ′, unsquared, no block exists for k points that each lie in the hull of k others, k ≥ 2"
    )


@claim(
    id="hm.eq_B.1",
    source="Hardt & Ma, (B.1)",
    statement="⟨α_i, α_j⟩ ≤ 1 + ρ′ − D²/2",
    verdict="false: the factor ½ applies to the distance too",
    proof="wrong: ⟨α_i, α_j⟩ = ½(|α_i|² + |α_j|² − |α_i − α_j|²)",
    function=blocks.transform_block,
    mutation=waking,
)
def eq_b_1(rng: np.random.Generator, trials: int) -> Pairs:
    """⟨α_i, α_j⟩ against 1 + ρ′ − D²/2, norms² in [1 − ρ′, 1 + ρ′]; and against the thresholds of a block."""
    for _ in range(2 * trials):
        points = rng.standard_normal((2, 3))
        points *= np.sqrt(rng.uniform(0.9, 1.1, (2, 1))) / np.linalg.norm(points, axis=1, keepdims=True)
        squared_distance = np.square(points[0] - points[1]).sum()
        product = points[0] @ points[1]
        yield 2 + product, 2 + 1.1 - squared_distance / 2 + ROUNDING  # both shifted above 0, for the slack
        if squared_distance > 0.21:
            _, _, s = blocks.transform_block(points, -points, points[:0], "row")
            yield from ((product, -bias) for bias in s)
            yield from ((-bias, norm) for bias, norm in zip(s, np.square(points).sum(1), strict=True))
    first, second = _unit_pair(squared_distance=0.3)
    printed = (first @ first + second @ second) / 2 - np.square(first - second).sum()
    require(first @ second > printed + 0.1, "(B.1) holds as printed")
    return (
        f"unit vectors with |α₁ − α₂|² = 0.3: ⟨α₁, α₂⟩ = {first @ second:.2f}, "
        f"as printed, without the ½ before the distance, {printed:.2f}"
    )


@claim(
    id="hm.theorem_3.2",
    source="Hardt & Ma, Theorem 3.2",
    statement="k ≥ 2: a network with kd + ⌈n/k⌉(2k²+k) + rk + r² + r parameters fits any labels of distinct points",
    hypotheses={
        "k ≥ 2": lambda: construction.memorize(np.eye(3), np.arange(3), 3, width=1).width == 1,
        "distinct points": lambda: construction.memorize(np.ones((2, 3)), np.arange(2), 2).width > 0,
    },
    proof="repaired: Lemma B.1's bias, Lemma B.2's hypothesis and the width fail; peeling needs none of them",
)
@claim(
    id="blog.theorem_2",
    source="blog, Theorem 2",
    statement="Theorem 3.2 as Hardt & Ma state it",
    proof="none given",
    restates="hm.theorem_3.2",
    after="blog.theorem_1",
    function=construction.memorize,
    mutation=forgetful,
)
def theorem_3_2(rng: np.random.Generator, trials: int) -> Pairs:
    """|ŷ − e_y| over all points, for random labels, any n, r and width, near and parallel points; and the counts."""
    for trial in range(max(2, trials // 5)):
        n, r = int(rng.integers(4, 200)), int(rng.integers(1, 20))
        x, labels = _labelled(rng, n, 10, r)
        width = int(rng.integers(8, 40)) if trial % 2 else None
        if trial % 4 == 3:
            x[1] = x[0] * (1 + 1e-4)
            x[3] = x[2] + 1e-4 * rng.standard_normal(10)
        network = construction.memorize(x, labels, r, width=width, seed=trial)
        tolerance = 1e-6 if trial % 4 == 3 else ROUNDING  # gaps of 1e-4 cost four digits and some
        yield np.abs(network(x) - np.eye(r)[labels]).max(), tolerance
        k = width or max(8, math.ceil(2 * math.log(n)))  # O(log n), as the theorem has it
        require(network.width == k, f"the width is {network.width}, not {k}")
        count = k * 10 + math.ceil(n / k) * (2 * k * k + k) + r * k + r * r + r
        require(network.num_parameters == count, f"{network.num_parameters} parameters, not {count}")
    error = _printed_block_error(rho=0.1, squared_distance=0.3)
    require(error > 0.1, "the printed bias works at |α₁ − α₂|² = 3ρ′")
    return f"Lemma B.1's bias at |α₁ − α₂|² = 3ρ′ = 0.3 misses its target by {error:.2f}"


@claim(
    id="hm.last_layer",
    source="Hardt & Ma §3, A_{ℓ+1} ∈ R^{k×r}, ŷ ∈ R^k, and B, ŷ = h + T(h)",
    statement="the last block has U [r, k], V [r, r], s [r] and no shortcut; its count kr + r² omits the r biases",
    verdict="misprint: A_{ℓ+1} is [r, k] and ŷ = T(h) ∈ R^r, as in the text before it",
    proof="wrong: Lemma B.1, with k × k matrices, does not apply to r ≠ k",
    after="hm.surrogates",
)
@claim(
    id="review.last_layer",
    source="review, last layer",
    statement="the last block has U [r, k], V [r, r], s [r]: not V [k, k]",
    verdict="misprint: V is [r, r], as in its count kr + r² + r",
    proof="none given",
    after="review.convergence",
    function=construction.memorize,
    mutation=misshapen,
)
def last_layer(rng: np.random.Generator, trials: int) -> Pairs:
    """The last block with U [r, k], V [r, r], s [r] fits r = 12 labels at width 6; the printed shapes do not fit."""
    for trial in range(max(1, trials // 10)):
        x, labels = _labelled(rng, 50, 10, 12)
        network = construction.memorize(x, labels, 12, width=6, seed=trial)
        shapes = network.head_U.shape, network.head_V.shape, network.head_s.shape
        require(shapes == ((12, 6), (12, 12), (12,)), f"the last block has the shapes {shapes}")
        yield np.abs(network(x) - np.eye(12)[labels]).max(), 1e-6  # width 6 has gaps of down to 1e-4
    refused = []
    for U_shape, V_shape in (((6, 12), (12, 12)), ((12, 6), (6, 6))):  # Hardt & Ma's, the review's
        try:
            blocks.apply_block(np.ones(U_shape), np.ones(V_shape), np.zeros(U_shape[0]), np.ones((1, 6)))
        except ValueError:
            refused.append(f"U {list(U_shape)}, V {list(V_shape)}")
    require(len(refused) == 2, "a printed shape fits")
    return f"r = 12, k = 6: {' and '.join(refused)} cannot be applied to R⁶"


@claim(
    id="review.theorem_3",
    source="review, Theorem 3",
    statement="the points must be distinct (ρ > 0, not ρ ≥ 0), and that is enough",
    verdict="misprint: at ρ = 0 one point may have two labels; the paper has ρ > 0",
    proof="none given",
    function=construction.memorize,
    mutation=forgetful,
)
def review_theorem_3(rng: np.random.Generator, trials: int) -> Pairs:
    """ρ > 0 is needed: a point with two labels has no network; any ρ > 0 is enough, here 1e-6."""
    for trial in range(max(1, trials // 10)):
        x, labels = _labelled(rng, 20, 5, 2)
        x[1] = x[0] + 1e-6 * rng.standard_normal(5)
        labels[:2] = 0, 1
        network = construction.memorize(x, labels, 2, width=8, seed=trial)
        yield np.abs(network(x) - np.eye(2)[labels]).max(), 1e-2  # 1e-6 apart: gaps of 1e-12 cost most digits

    try:
        construction.memorize(np.ones((2, 3)), np.array([0, 1]), 2)
    except ValueError as error:
        return f"ρ = 0: {error}"


def _labelled(
    rng: np.random.Generator, num_points: int, dimension: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns gaussian x [n, d]; random labels [n], of which the first r are all different if n ≥ r."""
    labels = rng.integers(0, num_classes, num_points)
    labels[:num_classes] = np.arange(num_classes)[:num_points]
    return rng.standard_normal((num_points, dimension)), labels


def _points(rng: np.random.Generator, count: int, dimension: int, factor: float) -> np.ndarray:
    """Returns points with |α|² spread over [1 − ρ′, 1 + ρ′], ρ′ = D²/factor, D² their least squared distance."""
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


def _unit_pair(squared_distance: float) -> tuple[np.ndarray, np.ndarray]:
    angle = 2 * math.asin(math.sqrt(squared_distance) / 2)
    return np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])


def _printed_block_error(rho: float, squared_distance: float) -> float:
    """Returns largest distance from the targets of two unit vectors moved by Lemma B.1 as printed."""
    points = np.stack(_unit_pair(squared_distance))
    targets = -points
    bias = -(1 - 2 * rho)
    V = ((targets - points) / (np.square(points).sum(1, keepdims=True) + bias)).T
    moved = points + blocks.apply_block(points, V, np.full(2, bias), points)
    return float(np.linalg.norm(moved - targets, axis=1).max())


def _require_hull_example(dimension: int) -> None:
    """Raises CheckFailed if a block moves k points in the hull of k² others, with unsquared distances ≥ 3ρ′, k ≥ 2.

    ReLU(u·h + s) is convex in h: if it is zero at the k² points, it is zero in their hull. For k linearly independent
    displacements V must be invertible, so T = 0 at the k² points implies T = 0 at the k. Point i lies on axis i
    and is the mean of k points around the axis, whose distance from it is √(2ρ′) ≥ 3ρ′ for ρ′ ≤ 2/9.
    """
    rho = 0.05
    inner = math.sqrt(1 - 0.05) * np.eye(dimension)
    outer = []
    for axis in range(dimension):
        simplex = np.eye(dimension) - 1 / dimension  # k vertices of rank k − 1, turned to be orthogonal to the axis
        basis = np.linalg.svd(simplex)[0][:, : dimension - 1]
        rest = np.delete(np.eye(dimension), axis, axis=0)
        around = simplex @ basis @ rest
        around *= math.sqrt(2 * rho) / np.linalg.norm(around, axis=1, keepdims=True)
        require(np.allclose(around.sum(0), 0), "the mean of the outer points is not the inner one")
        outer.append(inner[axis] + around)
    outer = np.concatenate(outer)
    norms = np.square(np.concatenate([inner, outer])).sum(1)
    require(norms.min() > 1 - rho - ROUNDING and norms.max() < 1 + rho + ROUNDING, "the norms violate a condition")
    distances = np.linalg.norm(inner[:, None] - np.concatenate([inner, outer]), axis=2)
    require(np.sort(distances.ravel())[dimension] >= 3 * rho, "the distances violate a condition")
    try:
        blocks.transform_block(inner, -inner, outer, "row")
    except blocks.NoThreshold:
        return
    require(False, "the hull example has a block")


def _close_pairs(rng: np.random.Generator, count: int, dimension: int, rho: float) -> np.ndarray:
    """Returns points [count, k] in pairs with |z|² = 1 − ρ′ and 1 + ρ′/2 at squared distance 1.01ρ′, others farther."""
    short, long = 1 - rho, 1 + rho / 2
    cosine = (short + long - 1.01 * rho) / (2 * math.sqrt(short * long))
    for _ in range(1000):
        directions, aside = rng.standard_normal((2, count // 2, dimension))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        aside -= (aside * directions).sum(1, keepdims=True) * directions
        aside /= np.linalg.norm(aside, axis=1, keepdims=True)
        turned = cosine * directions + math.sqrt(1 - cosine**2) * aside
        points = np.concatenate([math.sqrt(short) * directions, math.sqrt(long) * turned])
        squared = np.square(points[:, None] - points).sum(2) + 10 * np.eye(count)
        if squared.min() > rho:
            return points
    raise CheckFailed("no points with the hypothesis of Lemma B.2 were found")
