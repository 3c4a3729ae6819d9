"""How wide the first layer must be: the bounds behind k = O(log n/ρ²) of Hardt & Ma's Theorem 3.2.

    paper                                   code
    ρ ≤ |x(i) − x(j)|² (Assumption 3.1)     rho; separation(x) measures it
    k = c (log n)/ρ², "c = 10 works"        row_bias_width: O(log(n)/ρ); common_bias_width: O(log(n)/ρ²)
    z(i) = A_0 x(i), A_0 ~ N(0, 1/k)        width = k

c = 10 does not work: for 200 unit vectors of R¹⁹⁹ at squared distances of ρ = 1 or more it gives k = 53; some distance
is then off by more than ρ/3 and no common bias exists (`claims_first_layer.paper_width`). Not in the paper: the two
widths below, which are proved. Peeling has no such condition: any distinct points, any k.
"""

import math
import numbers

import numpy as np
from scipy import optimize, special, stats

from theory.arrays import finite, real
from theory.parallel import in_parallel

MAX_WIDTH = 20_000  # the largest width that default_width returns: one block has 800 million parameters
_PANEL = 1024


def pair_failure_probability(cosine: float | np.ndarray, width: int) -> np.ndarray:
    """Returns P(<z_i, z_j> ≥ |z_i|²) for unit x_i, x_j of inner product c: then one bias per row fails.

    z_j = c z_i + √(1 − c²) w with w independent of z_i, so this is
    P(t_k ≥ √(k (1 − c)/(1 + c))) ≤ ½ ((1 + c)/2)^{k/2}, t_k Student's with k degrees of freedom.

    For c = 1 the points coincide, and it is 1. ValueError unless −1 ≤ c ≤ 1 and k ≥ 1 is a whole number.
    """
    cosine = real("cosine", cosine)
    if not (np.abs(cosine) <= 1).all():
        raise ValueError(f"cosine must lie in [−1, 1], got {cosine[~(np.abs(cosine) <= 1)].flat[0]}")
    if not isinstance(width, numbers.Integral) or width < 1:
        raise ValueError(f"width must be a whole number of at least 1, got {width!r}")
    with np.errstate(divide="ignore"):
        law = stats.t.sf(np.sqrt(width * (1 - cosine) / (1 + cosine)), width)
    return np.where(cosine == 1, 1.0, law)


def draw_projection(rng: np.random.Generator, width: int, dim: int) -> np.ndarray:
    """Returns A_0 [k, d] with entries N(0, 1/k), so that E|A_0 x|² = |x|² (Hardt & Ma, proof of Theorem 3.2).

    The paper says standard normal, with which E|A_0 x|² = k|x|².
    """
    return rng.standard_normal((width, dim)) / width**0.5


def largest_distortion(rho: float, bias: str) -> float:
    """Returns the largest distortion ε of squared norms and distances under which Lemma B.1 still separates the points.

    Unit vectors at squared distances of at least ρ then have |z|² in [1 − ε, 1 + ε] and squared distances of at least
    ρ(1 − ε). With ρ′ = ε the printed bias −(1 − 2ρ′) needs 6ρ′, some common bias 4ρ′, one per row 2ρ′,
    so ε = ρ/(6 + ρ), ρ/(4 + ρ), ρ/(2 + ρ). The paper's ε = ρ/3 is more than each of them for ρ > 1.
    The bias is printed, common or row.
    """
    return rho / ({"printed": 6, "common": 4, "row": 2}[bias] + rho)


def correlated_pairs(num_surrogates: int, width: int, cosine: float = 0.5) -> float:
    """Returns how many pairs of r random unit vectors in R^k have an inner product of at least c on average, 0 ≤ c ≤ 1.

    (r(r − 1)/2) · ½ I_{1 − c²}((k − 1)/2, ½), I the regularised incomplete beta function: the share of the sphere in a
    cap. Hardt & Ma §3 say that k > 4 log r leaves none; for r = 1,000, k = 28 it is 1,435.
    """
    pairs = num_surrogates * (num_surrogates - 1) / 2
    return float(pairs * special.betainc((width - 1) / 2, 0.5, 1 - cosine**2) / 2)


def row_bias_width(num_points: int, rho: float, failure: float = 0.01) -> int:
    """Returns a width at which one bias per row works with probability 1 − δ: k ≥ 2 ln(n²/2δ)/ln(4/(4 − ρ)).

    A union bound over `pair_failure_probability` with c = 1 − ρ/2. At most 8 ln(n²/2δ)/ρ.

    Args:
      num_points: int. n.
      rho: float. min |x_i − x_j|² of unit vectors, 0 < ρ ≤ 4, or `separation`.
      failure: float. δ, 0 < δ < 1.
    """
    _check(num_points, rho, failure)
    if rho == 4:
        return 2
    return max(2, math.ceil(2 * math.log(max(1, num_points**2 / (2 * failure))) / -math.log1p(-rho / 4)))


def common_bias_width(num_points: int, rho: float, failure: float = 0.01) -> int:
    """Returns a width at which one common bias works with probability 1 − δ, for unit vectors.

    The smallest k for which some threshold t has, by a union bound, probability at most δ that a
    |z_i|² is below t (χ²_k), or an inner product <z_i, z_j> is at least t: Chernoff's bound
    exp(−k·max_a [a t + ½ log((1 − c a)² − a²)]), c = 1 − ρ/2. No |z_i|² may exceed 2t either, for
    the surrogates have <z_i, q> ≤ ½|z_i|². Arguments as in `row_bias_width`.
    """
    _check(num_points, rho, failure)
    low, high = 1, 2
    while _common_bias_failure(high, num_points, rho) > failure:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _common_bias_failure(middle, num_points, rho) > failure else (low, middle)
    return high


def _common_bias_failure(width: int, num_points: int, rho: float) -> float:
    """Returns the union bound at its best threshold."""
    cosine = 1 - rho / 2

    def union_bound(t: float) -> float:
        norms = num_points * (stats.chi2.cdf(width * t, width) + stats.chi2.sf(2 * width * t, width))
        if num_points == 1 or cosine == -1:  # no pairs, or z_j = −z_i, below any threshold
            return norms
        a = _chernoff_exponent_argument(t, cosine)
        rate = a * t + 0.5 * (math.log1p(-(1 + cosine) * a) + math.log1p((1 - cosine) * a))
        return norms + num_points**2 * 0.5 * math.exp(-width * rate)

    return optimize.minimize_scalar(union_bound, bounds=(max(cosine, 0), 1), method="bounded").fun


def _chernoff_exponent_argument(t: float, c: float) -> float:
    """Returns the a ≥ 0 at which a t + ½ log((1 − c a)² − a²) is largest, for c ≤ t: a root of a quadratic."""
    # t ((1 − c a)² − a²) = c (1 − c a) + a, so p a² + q a + r = 0 with p < 0 ≤ r: one root is not negative.
    p, q, r = t * (c * c - 1), -2 * c * t + c * c - 1, t - c
    square_root = math.sqrt(q * q - 4 * p * r)
    return 2 * r / (square_root - q) if q < 0 else (q + square_root) / (-2 * p)


def separation(x: np.ndarray) -> float:
    """Returns ρ for `row_bias_width`: min |x_i − x_j|² for unit vectors, and its equivalent for others.

    A row's bias separates i from j if <z_i, z_j − z_i> < 0, which has the probability of unit vectors
    at ρ = 4 a², a = (|x_i|² − <x_i, x_j>)/(|x_i| |x_i − x_j|) > 0. Not positive: no width helps.
    Costs n² d multiplications. For distinct x [n, d] the smallest 4 a·|a| over all pairs; 4 for a single point.
    """
    x = finite("x", x)
    x = x / (np.abs(x).max() or 1.0)  # squares might leave the range of float64
    squared_norms = np.square(x).sum(axis=1)

    def smallest_in_panel(start: int) -> float:
        products = x[start : start + _PANEL] @ x.T
        norms = squared_norms[start : start + _PANEL, None]
        distances = np.sqrt(np.maximum(norms + squared_norms - 2 * products, 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            cosines = (norms - products) / (np.sqrt(norms) * distances)
        rows = np.arange(len(products))
        cosines[rows, start + rows] = 1.0
        cosines[norms[:, 0] == 0] = 1.0  # a point at the origin is not moved
        return float(np.nan_to_num(cosines, nan=-1.0, posinf=1.0, neginf=-1.0).min())

    smallest = min(1.0, *in_parallel(smallest_in_panel, range(0, len(x), _PANEL)))
    return 4 * smallest * abs(smallest)


def lifted(x: np.ndarray) -> np.ndarray:
    """Returns (x, 1)/|(x, 1)| [n, d + 1]: unit vectors, distinct if the x are (Hardt & Ma §3, repaired).

    "Without loss of generality … ‖x‖ = 1" fails for division by ‖x‖, which makes x and 2x one point. With a constant
    coordinate added first no two points are parallel, and x is the quotient of the coordinates.
    """
    x = finite("x", x)
    constant = np.column_stack([x, np.ones(len(x))])
    return constant / np.linalg.norm(constant, axis=1, keepdims=True)


def default_width(x: np.ndarray, method: str = "peeling") -> int:
    """Returns the width of a network on these points if none is given.

    peeling: max(8, 2 ln n), at which real images had gaps that suit float32 (docs/papers/theorems.md); half of
    it costs little more than half the parameters, but gaps shrink like n^{−4/(k+1)}. row_bias and paper: the
    widths that are proved to suffice with probability 0.99, with ρ measured on all pairs.

    Args:
      x: [n, d]. Distinct; for paper, of norms that agree to a thousandth.
      method: str. One of `memorization.METHODS`.
    """
    if method == "peeling":
        return max(8, math.ceil(2 * math.log(len(x))))
    if method == "paper":
        x = finite("x", x)
        scale = float(np.abs(x).max()) or 1.0  # squares might leave the range of float64
        x = x / scale
        norms = np.linalg.norm(x, axis=1)
        if norms.min() == 0:
            raise ValueError(
                f"method 'paper' without a width needs points of one norm (Assumption 3.1), got point "
                f"{int(norms.argmin())} at the origin; leave it out or give a width"
            )
        if norms.min() < 0.999 * norms.max():
            raise ValueError(
                f"method 'paper' without a width needs points of one norm (Assumption 3.1), got norms from "
                f"{float(norms.min()) * scale:.4g} to {float(norms.max()) * scale:.4g}; normalise them or give a width"
            )
        x = x / norms[:, None]
    rho = separation(x)
    if rho <= 0:
        raise ValueError(f"method {method!r}: <x_i, x_j> ≥ |x_i|² for a pair, so no width suffices; use 'peeling'")
    width = (row_bias_width if method == "row_bias" else common_bias_width)(len(x), rho)
    if width > MAX_WIDTH:
        raise ValueError(
            f"method {method!r} needs width {width:,} for {len(x)} points at ρ = {rho:.3g}, above {MAX_WIDTH:,}; "
            f"use 'peeling', or give a width"
        )
    return width


def _check(num_points: int, rho: float, failure: float) -> None:
    if num_points < 1:
        raise ValueError(f"num_points must be at least 1, got {num_points}")
    if not 0 < rho <= 4:
        raise ValueError(f"rho must be above 0 and at most 4, got {rho}")
    if not 0 < failure < 1:
        raise ValueError(f"failure must be between 0 and 1, got {failure}")


def separate(x: np.ndarray, radius: float, seed: int = 0) -> np.ndarray:
    """Returns points moved by at most ε each, all distances at least ε n^{−1/d} (Hardt & Ma §3, on Assumption 3.1).

    The paper says that images can be perturbed imperceptibly to satisfy the assumption. One point after the other goes
    to a random place in its ball that no earlier one is near: n − 1 balls of radius ε n^{−1/d} have less volume than
    one of radius ε, so there is one. So ρ = ε² n^{−2/d}, a constant if d grows as log n.

    Args:
      x: [n, d], also with equal points.
      radius: ε > 0.

    Returns:
      [n, d].

    Raises:
      ValueError: ε is not positive.
    """
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    rng = np.random.default_rng(seed)
    count, d = x.shape
    least = radius * count ** (-1 / d)
    moved = np.array(x, dtype=np.float64)
    for i in range(count):
        is_near = True
        while is_near:
            step = rng.standard_normal(d)
            place = x[i] + radius * rng.uniform() ** (1 / d) * step / np.linalg.norm(step)
            is_near = bool((np.linalg.norm(moved[:i] - place, axis=1) < least).any())
        moved[i] = place
    return moved
