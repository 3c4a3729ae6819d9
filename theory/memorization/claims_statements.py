"""Claims of Hardt & Ma, the review and the blog on §3 that have no number: assumptions, counts and promises."""

import math

import numpy as np
from scipy.spatial import distance

from theory.claim import claim
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.memorization import blocks, construction, first_layer
from theory.mutations import changed, scaled


@claim(
    id="hm.unit_norm",
    source="Hardt & Ma §3, “Without loss of generality we assume … ‖x‖ = 1”",
    statement="x → (x, 1)/|(x, 1)| takes distinct points to distinct unit vectors; x → x/|x| does not",
    verdict="false: x and 2x become one point, which may have two labels; appending a constant coordinate avoids this",
    proof="none given",
    after="hm.claim_C.2",
    function=first_layer.lifted,
    mutation=(
        changed(lambda x: x * np.append(np.ones(x.shape[1] - 1), 1.01)),
        changed(lambda x: x / np.linalg.norm(x[:, :-1], axis=1, keepdims=True)),
    ),
)
def unit_norm(rng: np.random.Generator, trials: int) -> Pairs:
    """Points x, 2x and others: lifted they have norm 1, determine x and are memorised; x/|x| does not determine x."""
    for _ in range(max(1, trials // 5)):
        x = rng.standard_normal((20, 3))
        x[1] = 2 * x[0]
        unit = first_layer.lifted(x)
        yield np.abs(np.linalg.norm(unit, axis=1) - 1).max(), ROUNDING
        yield relative_error(unit[:, :-1] / unit[:, -1:], x), ROUNDING
        labels = np.arange(20) % 2
        yield np.abs(construction.memorize(unit, labels, 2)(unit) - np.eye(2)[labels]).max(), 1e-6
    divided = x / np.linalg.norm(x, axis=1, keepdims=True)
    x[1] += 1e-6
    near = x[:2] / np.linalg.norm(x[:2], axis=1, keepdims=True)
    require(np.linalg.norm(divided[0] - divided[1]) < 1e-15, "x and 2x differ in direction")
    before, after = distance.pdist(x[:2])[0], distance.pdist(near)[0]
    require(after < 1e-5 * before, "near x and 2x the distances are kept")
    return f"x and 2x + 1e-6, at distance {before:.2f}, are at {after:.0e} once they have norm 1"


@claim(
    id="hm.any_subset",
    source="Hardt & Ma, (3.5)–(3.6), “for any subset S of size k”",
    statement=(
        "one block moves k points to arbitrary places, and no other point, if and only if none of the k lies in the "
        "convex hull of the points that stay; the k points of largest norm qualify"
    ),
    verdict="false: no block moves k points by independent vectors if one lies in the hull of the points that stay",
    proof="wrong: it relies on Lemma B.1, which has conditions on norms and distances",
    after="hm.distortion",
)
@claim(
    id="blog.any_subset",
    source="blog, “transforms k [of them] to an arbitrary set of other k vectors”",
    statement="true for some k of them, those of largest norm, not for any k",
    verdict="depends on the reading: for some k of them, holds; for any k, as in the paper, false",
    proof="none given",
    restates="hm.any_subset",
    after="blog.theorem_2",
    function=blocks.separating_block,
    mutation=(
        changed(lambda block: (block[0], 1.01 * block[1], block[2])),
        changed(lambda block: (block[0], block[1], block[2] + 0.5)),
    ),
)
def any_subset(rng: np.random.Generator, trials: int) -> Pairs:
    """Blocks for random points outside the hull of the others, and for those of largest norm; none for one inside."""
    for _ in range(max(2, trials // 12)):
        k = int(rng.integers(2, 5))
        points = rng.standard_normal((4 * k, k))
        points = points[np.argsort(-np.linalg.norm(points, axis=1))]
        targets = rng.standard_normal((k, k))
        longest = blocks.transform_block(points[:k], targets, points[k:], "peeling")
        moved = points + blocks.apply_block(*longest, points)
        yield relative_error(moved, np.concatenate([targets, points[k:]])), 1e-6
        directions = rng.standard_normal((k, k))  # farther out than all others
        outside = 5 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
        outside[0] = 0.9 * outside[1] + 0.1 * points[0]  # between these two, so no plane cuts it off first
        block = blocks.separating_block(outside, targets, points)
        moved = blocks.apply_block(*block, np.concatenate([outside, points]))
        yield relative_error(moved[:k], targets - outside), 1e-6
        yield np.abs(moved[k:]).max(), 1e-6
        weights = rng.dirichlet(np.ones(len(points)))
        require(not _moves(np.stack([weights @ points, *outside[1:]]), targets, points), "a block moves a point inside")
    stuck = 0
    for _ in range(5):
        points = rng.standard_normal((128, 4))
        stuck += not _moves(points[:4], points[:4] + rng.standard_normal((4, 4)), points[4:])
    require(stuck > 2, "most subsets of four can be moved")
    return f"k = 4, n = 128 Gaussian points: in {stuck} of 5 draws no block moves the first four and no other"


@claim(
    id="hm.more_parameters",
    source="Hardt & Ma, abstract, “any function … provided that the model has more parameters than the sample size”",
    statement=(
        "k ≥ 2: kd + (2k + 1)(n + k − 1) + r(k + r + 1) parameters are enough; n + 1 are not: without blocks a network "
        "of any width has r units for the whole sample"
    ),
    verdict="false: Theorem 3.2 has O(n log n + r²), and width without depth does not help; a multiple of n is enough",
    proof="none given",
    after="hm.theorem_3.2",
    hypotheses={"k ≥ 2": lambda: construction.memorize(np.eye(3), np.arange(3), 3, width=1).width == 1},
    function=construction.memorize,
    mutation=lambda memorize: lambda x, labels, *a, **k: memorize(x, np.roll(labels, 1), *a, **k),
)
def more_parameters(rng: np.random.Generator, trials: int) -> Pairs:
    """Random labels are fitted, and the number of parameters; sign changes of networks without blocks along a line."""
    for _ in range(max(1, trials // 5)):
        n, d, r, k = (int(size) for size in rng.integers((5, 2, 2, 4), (100, 8, 6, 16)))
        x = rng.standard_normal((n, d))
        labels = rng.integers(0, r, n)
        labels[:2] = 0, 1
        network = construction.memorize(x, labels, r, width=k)
        yield np.abs(network(x) - np.eye(r)[labels]).max(), 1e-6
        yield network.num_parameters, k * d + (2 * k + 1) * (n + k - 1) + r * (k + r + 1)
    n, d, r, k = 20, 2, 2, 10
    count = k * d + r * (k + r + 1)
    require(count == construction.parameter_count(n, d, r, k) - math.ceil(n / k) * (2 * k * k + k) > n, "too few")
    line = np.column_stack([np.ones(1000), np.linspace(-5, 5, 1000)])
    changes = []
    for _ in range(200):
        A, U, V = rng.standard_normal((k, d)), rng.standard_normal((r, k)), rng.standard_normal((r, r))
        scores = blocks.apply_block(U, V, rng.standard_normal(r), line @ A.T)
        changes.append(np.count_nonzero(np.diff(np.sign(scores[:, 0] - scores[:, 1]))))
    require(max(changes) <= 2 * 3, "two units have more than three sign changes")  # a crossing may pass through 0
    return (
        f"n = {n} points on a line, alternating labels, ℓ = 0, k = {k}: {count} parameters, but two ReLUs are linear "
        "on three pieces, so their scores change order three times at most, not 19"
    )


@claim(
    id="review.parameters",
    source="review, “We can count up the number of parameters”",
    statement="kd in the first layer, 2k² + k a block, kr + r² + r in the last: O(n log n + r²), k ~ log n, d, r ≪ n",
    proof="none given",
    after="review.last_layer",
    function=construction.parameter_count,
    mutation=(changed(lambda count: count + 1), scaled(2)),
)
def counted_parameters(rng: np.random.Generator, trials: int) -> Pairs:
    """The count against the sizes of the arrays of networks that memorise; and against n log n + r²."""
    for _ in range(max(1, trials // 5)):
        n, d, r, k = (int(size) for size in rng.integers((5, 2, 2, 8), (100, 8, 6, 20)))
        x = rng.standard_normal((n, d))
        labels = np.arange(n) % r
        network = construction.memorize(x, labels, r, width=k)
        arrays = network.projection, network.U, network.V, network.s, network.head_U, network.head_V, network.head_s
        yield abs(construction.parameter_count(n, d, r, k) - sum(array.size for array in arrays)), 0.0
        n = int(rng.integers(10**3, 10**7))
        k = math.ceil(math.log(n))
        yield construction.parameter_count(n, 10, 10, k), 3 * (n * math.log(n) + 100)


@claim(
    id="review.layers",
    source="review, “we need at least l = ⌈n/k⌉”",
    statement=(
        "⌈n/k⌉ blocks are needed if each moves k points; two blocks of one unit map any n points of two separated "
        "classes on a line to 0 and c"
    ),
    verdict=(
        "depends on the reading: for the construction, whose blocks move k points each, holds; for blocks in "
        "general, false: one block can move any number of points"
    ),
    proof="none given",
    after="review.parameters",
    function=blocks.apply_block,
    mutation=scaled(1.1),
)
def fewer_layers(rng: np.random.Generator, trials: int) -> Pairs:
    """h → ReLU(h) → min(h, c) by two blocks of one unit: n points below 0 and n above c go to 0 and c."""
    one = np.ones((1, 1))
    for _ in range(trials):
        n = int(rng.integers(2, 200))
        c = rng.uniform(0.5, 2)
        h = np.concatenate([-rng.uniform(0, 5, n), c + rng.uniform(0, 5, n)])[:, None]
        h = h + blocks.apply_block(-one, one, np.zeros(1), h)
        h = h + blocks.apply_block(one, -one, np.array([-c]), h)
        yield np.abs(h[:, 0] - np.repeat([0, c], n)).max(), ROUNDING
    return f"k = 1, {2 * n} points of two classes on a line: two blocks suffice, and ⌈n/k⌉ is {2 * n}"


def _moves(points: np.ndarray, targets: np.ndarray, others: np.ndarray) -> bool:
    """Returns whether a block moves the points to the targets and no other."""
    try:
        blocks.separating_block(points, targets, others)
    except blocks.NoThreshold:
        return False
    return True
