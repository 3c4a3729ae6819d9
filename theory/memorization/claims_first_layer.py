"""Claims on the first layer of Hardt & Ma's Theorem 3.2: its scale, its width, and the distances after it."""

import math

import numpy as np
from scipy import stats
from scipy.spatial import distance

from theory.claim import claim
from theory.evidence import ROUNDING, Pairs, require
from theory.memorization import construction, first_layer
from theory.mutations import changed, larger, scaled


@claim(
    id="hm.theorem_3.2_width",
    source="Hardt & Ma, proof of Theorem 3.2",
    statement=(
        "0 < ρ ≤ 4, 0 < δ < 1: one bias per row and k ≥ 2 ln(n²/2δ)/ln(4/(4−ρ)) are enough; k = 10 ln n/ρ² does not "
        "keep all distances, even with d < n"
    ),
    verdict=(
        "false: with c = 10 some distance changes by more than a factor 1 ± ρ/3; then no common bias exists, and "
        "often no bias per row"
    ),
    hypotheses={
        "0 < ρ ≤ 4": (
            lambda: first_layer.row_bias_width(10, 0.0) > 0,
            lambda: first_layer.row_bias_width(10, 4.1) > 0,
        ),
        "0 < δ < 1": (
            lambda: first_layer.row_bias_width(10, 1.0, 0.0) > 0,
            lambda: first_layer.row_bias_width(10, 1.0, 1.0) > 0,
        ),
    },
    proof="wrong: Johnson–Lindenstrauss at distortion ρ/3 needs a larger c, and Lemma B.2 needs more than it gives",
    function=first_layer.row_bias_width,
    mutation=(changed(lambda width: width // 2), scaled(2)),
)
def paper_width(rng: np.random.Generator, trials: int) -> Pairs:
    """`row_bias_width` against its union bound, and how often it fails; the paper's k = 10 ln n/ρ² at ρ = 1.

    The paper says that this width keeps all distances of {0, x_1, …, x_n} to a factor of 1 ± ρ/3, and takes d < n.
    Here d is 199 and n 200: 0 and 199 of the x_i are the corners of a simplex whose sides are 1, and the last point is
    farther from all. If squares of distances were preserved to such a factor, the distances would be too.
    """
    for _ in range(trials):
        n = int(rng.integers(2, 10**6))
        rho = rng.uniform(0.05, 3.5)
        failure = 10 ** rng.uniform(-6, -0.5)
        width = first_layer.row_bias_width(n, rho, failure)
        bounds = [n * n / 2 * (1 - rho / 4) ** (k / 2) for k in (width, width - 1)]
        yield bounds[0], failure * (1 + ROUNDING)
        if width > 2:
            yield failure, bounds[1] * (1 + ROUNDING)  # no smaller width keeps it
    n = 200
    builds = max(10, trials // 5)
    failures = 0
    printed = math.ceil(10 * math.log(n))
    printed_failures = {"distance": 0, "paper": 0, "row_bias": 0}
    points = _simplex_and_one_more(n - 1)
    distances = distance.pdist(np.vstack([0 * points[0], points]))
    yield np.abs(np.linalg.norm(points, axis=1) - 1).max(), ROUNDING
    yield 1, distances.min() + ROUNDING  # ρ = 1
    for trial in range(builds):
        x = rng.standard_normal((60, 200))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        rho = first_layer.separation(x)
        failures += _fails(x, rng, first_layer.row_bias_width(60, rho), "row_bias", trial)
        z = points @ first_layer.draw_projection(rng, printed, n - 1).T
        kept = distance.pdist(np.vstack([0 * z[0], z])) / distances
        printed_failures["distance"] += np.abs(kept - 1).max() > 1 / 3
        for method in ("paper", "row_bias"):
            printed_failures[method] += _fails(points, rng, printed, method, trial)
    require(printed_failures["distance"] > builds / 2, "k = 10 ln n/ρ² keeps distances to 1 ± ρ/3")
    require(printed_failures["paper"] > builds / 2, "k = 10 ln n/ρ² has a common bias")
    yield failures, 1 + stats.binom.isf(1e-9, builds, 0.01)
    return (
        f"ρ = 1, n = {n}, d = {n - 1}, k = ⌈10 ln n⌉ = {printed}, {builds} draws: a distance is off by more than ρ/3 "
        f"in {printed_failures['distance']}, no common bias exists in {printed_failures['paper']}, no bias per "
        f"row in {printed_failures['row_bias']}"
    )


@claim(
    id="hm.projection_scale",
    source="Hardt & Ma, proof of Theorem 3.2, A₀",
    statement="entries N(0, 1/k) keep E|A₀x|² = |x|²",
    verdict="misprint: standard normal entries give E|A₀x|² = k|x|²",
    proof="wrong: Johnson–Lindenstrauss needs the variance 1/k",
    function=first_layer.draw_projection,
    mutation=scaled(2),
)
def projection_scale(rng: np.random.Generator, trials: int) -> Pairs:
    """Mean |A_0 x|² over unit x against 1, within exact quantiles; with standard normal entries it is near k."""
    standard = []
    for _ in range(trials):
        width = int(rng.integers(2, 200))
        draws = 200
        x = rng.standard_normal(5)
        x /= np.linalg.norm(x)
        squares = [np.square(first_layer.draw_projection(rng, width, 5) @ x).sum() for _ in range(draws)]
        # The mean of χ²_k/k over the draws: exact quantiles, passed by chance once in 10⁹.
        low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], width * draws) / (width * draws)
        yield from ((np.mean(squares), high), (low, np.mean(squares)))
        standard.append(np.square(rng.standard_normal((width, 5)) @ x).sum() / width)
    require(np.mean(standard) > 0.5, "standard normal entries keep norms")
    return f"with standard normal entries |A_0 x|² is {np.mean(standard):.1f} k, not 1"


@claim(
    id="hm.distortion",
    source="Hardt & Ma, proof of Theorem 3.2, ρ(1 − ρ/3) ≥ 2ρ/3",
    statement="true for ρ ≤ 1; Lemma B.1's printed bias needs a distortion ≤ ρ/(6 + ρ), one bias per row ≤ ρ/(2 + ρ)",
    verdict="depends on the reading: for ρ ≤ 1, which one may assume, holds; for ρ up to its largest value 4, false",
    proof="repaired: Lemma B.2 has 2ρ′, where Lemma B.1 needs 3ρ′",
    hypotheses={"ρ ≤ 1": lambda: 1.1 * (1 - 1.1 / 3) >= 2 * 1.1 / 3},
    function=first_layer.largest_distortion,
    mutation=larger,
)
def distortion(rng: np.random.Generator, trials: int) -> Pairs:
    """ρ(1 − ε) against 6ε, 4ε and 2ε at `largest_distortion`; ρ(1 − ρ/3) ≥ 2ρ/3 for ρ ≤ 1 and not beyond."""
    for _ in range(trials):
        rho = rng.uniform(0.01, 4)
        for bias, needed in (("printed", 6), ("common", 4), ("row", 2)):
            epsilon = first_layer.largest_distortion(rho, bias)
            yield abs(rho * (1 - epsilon) - needed * epsilon), ROUNDING
        below = rng.uniform(0, 1)
        yield 2 * below / 3, below * (1 - below / 3) * (1 + ROUNDING)
    rho = 1.64  # of random unit vectors in R²⁰⁰
    require(rho * (1 - rho / 3) < 2 * rho / 3, "the printed inequality holds beyond ρ = 1")
    return f"ρ = {rho}, of random unit vectors: ρ(1 − ρ/3) = {rho * (1 - rho / 3):.2f} < 2ρ/3 = {2 * rho / 3:.2f}"


@claim(
    id="hm.surrogates",
    source="Hardt & Ma §3, “if k > 4 log r”",
    statement="r random unit vectors in R^k have (r(r−1)/4) I_{3/4}((k−1)/2, ½) pairs with ⟨q, q′⟩ ≥ ½ on average",
    verdict="false: r = 1,000 has 1,435 such pairs at k = 28, 218 at k = 40",
    proof="none given",
    function=first_layer.correlated_pairs,
    mutation=scaled(2),
)
def close_surrogates(rng: np.random.Generator, trials: int) -> Pairs:
    """Pairs of r random unit vectors in R^k with an inner product of at least ½: expected and drawn; k = 4 log r."""
    for _ in range(max(1, trials // 10)):
        count, width = int(rng.integers(100, 300)), int(rng.integers(4, 16))
        draws = [_close_pairs(rng, count, width) for _ in range(10)]
        law = first_layer.correlated_pairs(count, width)
        # The pairs are independent two by two, so the variance is that of independent ones.
        yield abs(np.mean(draws) - law), 6 * math.sqrt(law / len(draws)) + 1
    r = 1000
    close_pairs = {k: (_close_pairs(rng, r, k), first_layer.correlated_pairs(r, k)) for k in (28, 40)}
    require(min(count for count, _ in close_pairs.values()) > 0, "k = 4 log r leaves no close pair")
    counted = ", ".join(f"k = {k}: {count} pairs ({law:.0f} expected)" for k, (count, law) in close_pairs.items())
    return f"r = 1,000, 4 ln r = 27.6 and 4 log₂ r = 39.9: {counted}"


@claim(
    id="ours.pair_law",
    source="not in the papers",
    statement="P(⟨z_i, z_j⟩ ≥ |z_i|²) = P(Student-t_k ≥ √(k(1−c)/(1+c))) for unit x of inner product c",
    hypotheses={"unit x": lambda: bool(first_layer.pair_failure_probability(1.1, 3) > 0)},
    after="ours.one_shortcut_growth",
    function=first_layer.pair_failure_probability,
    mutation=larger,
)
def pair_law(rng: np.random.Generator, trials: int) -> Pairs:
    """P(⟨z_i, z_j⟩ ≥ |z_i|²) against draws, in standard deviations of the draws."""
    yield abs(float(first_layer.pair_failure_probability(1.0, 3)) - 1), 0.0  # one point, taken twice
    for _ in range(max(1, trials // 10)):
        cosine = rng.uniform(-0.5, 0.95)
        width = int(rng.integers(2, 12))
        draws = 100_000
        first = rng.standard_normal((draws, width))
        second = cosine * first + math.sqrt(1 - cosine**2) * rng.standard_normal((draws, width))
        share = ((first * second).sum(1) >= np.square(first).sum(1)).mean()
        law = float(first_layer.pair_failure_probability(cosine, width))
        # 5σ is passed by chance once in two million; one draw more or less is no evidence.
        yield abs(share - law), 5 * math.sqrt(law * (1 - law) / draws) + 1 / draws


def _simplex_and_one_more(dimension: int) -> np.ndarray:
    """Returns unit vectors [d + 1, d]: d at distance 1 from each other, and one opposite to their mean."""
    corners = np.linalg.cholesky((np.eye(dimension) + 1) / 2)  # inner products of ½
    mean = corners.mean(0)
    return np.vstack([corners, -mean / np.linalg.norm(mean)])


def _close_pairs(rng: np.random.Generator, count: int, width: int) -> int:
    q = rng.standard_normal((count, width))
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    return int((np.triu(q @ q.T, 1) >= 0.5).sum())


def _fails(x: np.ndarray, rng: np.random.Generator, width: int, method: str, seed: int) -> bool:
    try:
        construction.memorize(x, rng.integers(0, 2, len(x)), 2, width=width, method=method, seed=seed)
    except ValueError:
        return True
    return False


@claim(
    id="hm.perturbed_images",
    source="Hardt & Ma §3, “Images … can always be imperceptibly perturbed … to satisfy this assumption”",
    statement=(
        "ε > 0: any n points of R^d can be moved by at most ε each to squared distances of at least ρ = ε² n^{−2/d}, "
        "which is a constant for d ≥ log n"
    ),
    hypotheses={"ε > 0": lambda: bool(first_layer.separate(np.zeros((2, 1)), 0.0).any())},
    verdict=(
        "depends on the reading: for d ≥ log n, as of images, holds with ρ ~ ε²; for a fixed d and every n, false"
    ),
    proof="none given",
    is_remark=True,
    function=first_layer.separate,
    mutation=(scaled(1.01), lambda function: lambda x, radius, seed=0: x),
)
def perturbed_images(rng: np.random.Generator, trials: int) -> Pairs:
    """How far points are moved against ε; ε n^{−1/d} against their least distance, of equal and of random points."""
    for trial in range(max(2, trials // 5)):  # of equal points at first
        d = int(rng.integers(1, 40))
        n = int(rng.integers(2, 60))
        radius = 10 ** rng.uniform(-3, 0)
        x = rng.standard_normal((n if trial % 2 else 1, d)) * np.ones((n, 1))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        moved = first_layer.separate(x, radius, seed=trial)
        yield np.linalg.norm(moved - x, axis=1).max(), radius * (1 + ROUNDING)
        yield radius * n ** (-1 / d) * (1 - ROUNDING), distance.pdist(moved).min()
    n, radius = 1000, 0.01
    widest = (1 + 2 * radius) / (n - 1)
    moved = np.sort(first_layer.separate(rng.uniform(0, 1, (n, 1)), radius)[:, 0])
    require(np.diff(moved).min() <= widest, "points of an interval are farther apart than it is long")
    return (
        f"d = 1: {n} points of [0, 1] moved by {radius} at most lie in [−{radius}, {1 + radius}]: ρ ≤ {widest**2:.1e}"
    )
