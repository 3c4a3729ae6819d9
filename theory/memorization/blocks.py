"""One residual block that moves k points and no others (Hardt & Ma, Lemma B.1).

    paper                          code
    α(i), i ∈ S                    points [p, k], p ≤ k
    β(i), i ∈ S                    targets [p, k]
    α(i), i ∉ S                    others [m, k]
    T(h) = V ReLU(U h + s)         apply_block(U, V, s, h)
    s = −(1 − 2ρ')·1               s = −thresholds, taken from the points themselves
    q_1, …, q_r                    surrogates(z, r, rng)
    S any subset, (3.6)            separating_block(points, targets, others)

Unit i has the row U_i = α(i), so it is active where <α(i), h> exceeds its threshold t_i. The printed
threshold 1 − 2ρ' is wrong under the printed hypotheses: from |α(i) − α(j)|² ≥ 3ρ' follows only
<α(i), α(j)> ≤ 1 + ρ' − 3ρ'/2, which may exceed it. The comment on POSITIONS says which t_i work.
"""

import numpy as np
from scipy import linalg, optimize

# How the thresholds of a block are chosen, and which points must stay below t_i < |α(i)|²:
#   common   one t for the whole block; all other points (Lemma B.1, with the threshold corrected)
#   row      one t_i per unit; all other points
#   peeling  one t_i per unit; the others, and of the block's own points those after the i-th
# The number is its position between the largest inner product to stay below and |α(i)|². In peeling
# long points activate many units of their block. The midpoint then makes V alternate and grow,
# a low threshold does not: 32 times smaller weights on CIFAR-10 at width 64.
POSITIONS = {"common": 1 / 2, "row": 1 / 2, "peeling": 1 / 8}
BIASES = tuple(POSITIONS)
_PANEL = 2048  # points whose inner products with a block's are held at a time, to stay in the cache


class NoThreshold(ValueError):
    """Raised if no bias makes each unit of a block active on only its point.

    Attributes:
      row: int. A point of the block that cannot be separated from another.
      reason: str. The unsatisfied condition, with the numbers.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"point {row} of the block: {reason}")
        self.row = row
        self.reason = reason


def transform_block(
    points: np.ndarray, targets: np.ndarray, others: np.ndarray, bias: str = "row"
) -> tuple[np.ndarray, ...]:
    """Returns U, V, s with T(α) = β − α for the block's points and T(α) = 0 for the others (Lemma B.1).

    With T(h) = V ReLU(U h + s), U_i = α(i) and s = −t. Where |α|² lies in [1 − ρ', 1 + ρ'] and the
    squared distances are at least D², a threshold exists for certain if

        common: D² > 4ρ'     row: D² > 2ρ'     peeling: the points differ, the longest comes first.

    Each t lies between what it must separate, at POSITIONS[bias]. A_ij = ReLU(<α(i), α(j)> − t_i) is then diagonal
    for common and row, and lower triangular for peeling (Cauchy–Schwarz: later points are no longer
    than α(i)), and V A = (β − α) is solved by substitution.

    Args:
      points: [p, k] float32 or float64. For peeling, in the order of decreasing norm.
      targets: [p, k]. β, the images of the points.
      others: [m, k], m ≥ 0. For peeling, no longer than any of the points.
      bias: str. One of BIASES.

    Returns:
      U [p, k], V [k, p], s [p] in the dtype of points.

    Raises:
      NoThreshold: a ValueError. No bias of that kind separates the points.
    """
    return interpolating_block(points, np.asarray(targets, np.float64) - points, others, bias)


def interpolating_block(
    points: np.ndarray, values: np.ndarray, others: np.ndarray, bias: str
) -> tuple[np.ndarray, ...]:
    """Returns U [p, k], V [c, p], s [p] with V ReLU(U α + s) = the row of values [p, c] of a point, 0 for the others.

    Other arguments and errors as in `transform_block`.
    """
    if bias not in BIASES:
        raise ValueError(f"bias must be one of {', '.join(BIASES)}, got {bias!r}")
    exact = points.astype(np.float64)
    products = exact @ exact.T
    largest = np.maximum(_largest_within(products, bias), _largest_products(points, others))
    # What the sample sees are the rounded biases, so V is computed from them.
    s = -_thresholds(np.diagonal(products), largest, bias).astype(points.dtype)
    activations = np.maximum(products + s[:, None], 0)
    asleep = np.flatnonzero(np.diagonal(activations) <= 0)
    if len(asleep):
        raise NoThreshold(int(asleep[0]), f"its gap is lost in the rounding of a {points.dtype} bias")
    V = linalg.solve_triangular(activations, values, trans="T", lower=True, check_finite=False).T
    return points, V.astype(points.dtype), s


def separating_block(points: np.ndarray, targets: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns U, V, s of a block that moves the points and no other, wherever there is one (Hardt & Ma, (3.6)).

    Not in the paper, which has one for any points. ReLU(u·h + s) is convex in h: if it is 0 on the others, it is 0 in
    their hull. So a point there stays, if the moves of the points are linearly independent, for V is then invertible.
    If none lies there, one of the points is a corner of the hull of all, which a plane cuts off; then one is of those
    that are left, and so on. These planes are the units, and V is solved for by substitution.

    Args:
      points: [p, k], distinct. targets: [p, k]. others: [m, k], m ≥ 1.

    Returns:
      U [p, k], V [k, p], s [p].

    Raises:
      NoThreshold: a ValueError. A point lies in the hull of the others.
    """
    U = np.empty(points.shape)
    s = np.empty(len(points))
    order = []
    left = list(range(len(points)))
    while left:
        for row in left:
            plane = _plane(points[row], np.concatenate([others, points[[i for i in left if i != row]]]))
            if plane is not None:
                break
        else:
            raise NoThreshold(left[0], "it lies in the hull of the others")
        U[row] = plane[:-1]
        s[row] = plane[-1]
        order.append(row)
        left.remove(row)
    activations = np.maximum(points @ U.T + s, 0)[np.ix_(order, order)]  # points after it do not activate a unit
    V = np.empty(points.shape)
    V[order] = linalg.solve_triangular(activations, (targets - points)[order])
    return U, V.T, s


def _plane(point: np.ndarray, others: np.ndarray) -> np.ndarray | None:
    """Returns (u, s), |u_i| ≤ 1, with the largest u·h + s at the point and at most 0 at the others; None if it is 0."""
    rows = np.column_stack([others, np.ones(len(others))])
    bounds = [(-1.0, 1.0)] * len(point) + [(None, None)]
    solution = optimize.linprog(-np.append(point, 1.0), A_ub=rows, b_ub=np.zeros(len(others)), bounds=bounds)
    return solution.x if -solution.fun > 1e-9 * np.abs(others).max() else None


def apply_block(U: np.ndarray, V: np.ndarray, s: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Returns T(h) = V ReLU(U h + s) for every row of h [n, k]: [n, c] (Hardt & Ma (3.1))."""
    return np.maximum(h @ U.T + s, 0) @ V.T


def relative_gap(U: np.ndarray, s: np.ndarray, bias: str) -> float:
    """Returns min_i (|z_i|² − m_i)/|z_i|², m_i the largest inner product below threshold i (for common, of the block).

    Follows from the weights, since t_i = m_i + POSITIONS[bias]·(|z_i|² − m_i). Rounding errors grow
    with its inverse. Rows of zeros in U [..., k, k], s [..., k] are not counted; 2 if there is no other.
    """
    squared_norms = np.square(U, dtype=np.float64).sum(axis=-1)
    used = squared_norms > 0
    return float(np.min((1 + s[used] / squared_norms[used]) / (1 - POSITIONS[bias]), initial=2.0))


def _thresholds(squared_norms: np.ndarray, largest: np.ndarray, bias: str) -> np.ndarray:
    """Returns thresholds [p] between |α(i)|² and the largest inner product that must stay below.

    A point at the origin, which only peeling can have, gets a negative threshold: its unit is
    active everywhere, and comes last.
    """
    lower, upper = largest, squared_norms
    if bias == "common":
        lower, upper = np.full_like(lower, lower.max()), np.full_like(upper, upper.min())
    thresholds = lower + POSITIONS[bias] * (upper - lower)
    bad = np.flatnonzero(~((lower <= thresholds) & (thresholds < upper)))
    if not len(bad):
        return thresholds
    row = int(np.argmin(squared_norms)) if bias == "common" else int(bad[np.argmin((upper - lower)[bad])])
    whose = "the block's" if bias == "common" else "its"
    numbers = f"|z|² = {upper[row]:.9g} is not above {lower[row]:.9g}"
    raise NoThreshold(row, f"{numbers}, {whose} largest inner product with another point")


def _largest_within(products: np.ndarray, bias: str) -> np.ndarray:
    """Returns [p]: for each point of the block, the largest inner product with a point on which it must be inactive."""
    below = np.triu(np.ones_like(products, bool), 1) if bias == "peeling" else ~np.eye(len(products), dtype=bool)
    # Where there is no such point, any threshold below |α|² will do.
    return np.max(products, axis=1, where=below, initial=-(np.diagonal(products).max() or 1.0))


def _largest_products(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns [p] float64: for each point, the largest inner product with one of the others; −∞ if there are none."""
    largest = np.full(len(points), -np.inf, points.dtype)
    for start in range(0, len(others), _PANEL):
        np.maximum(largest, (points @ others[start : start + _PANEL].T).max(axis=1), out=largest)
    return largest.astype(np.float64)


def surrogates(z: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns vectors q_1, …, q_r that stand for the labels, far apart, with <z_i, q_j> ≤ ½|z_i|² for every z_i.

    So no unit is active on a surrogate. The paper draws unit vectors at random, and needs
    k ≳ 13 ln r for them to differ enough. Not in the paper: all have one length, the largest that allows
    this but at most that of the longest z; ½ min |z_i| would always suffice, but is short if norms vary, and rounding
    errors grow with its inverse. Up to 2k of them are chosen from ± the axes, the ones that can be longest. A_0 is
    rotation invariant, so axes are as good as any frame.

    For z [n, k], not counting the origin, [r, k] float64; the generator is read for r > 2k only.
    """
    squared_norms = np.square(z, dtype=np.float64).sum(axis=1)
    directions = _directions(count, z.shape[1], rng)
    # Per direction u, the largest multiple with <z_i, q> ≤ ½|z_i|².
    steepest = np.zeros(len(directions))
    for start in range(0, len(z), _PANEL):
        panel = slice(start, start + _PANEL)
        slopes = z[panel] @ directions.T / np.maximum(squared_norms[panel, None], np.finfo(np.float64).tiny)
        np.maximum(steepest, slopes.max(axis=0), out=steepest)
    chosen = np.argsort(steepest, kind="stable")[:count]
    longest = np.sqrt(squared_norms.max()) or 1.0
    return directions[chosen] / max(2 * steepest[chosen].max(), 1 / longest)


def _directions(count: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Returns at least `count` unit vectors far apart.

    They are ± the axes, even steps on the circle, or, of random ones, each the farthest from those before.
    """
    if count <= 2 * dim:
        return np.concatenate([np.eye(dim), -np.eye(dim)])
    if dim == 2:
        angle = 2 * np.pi * np.arange(count) / count
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    num_candidates = max(count, min(16 * count, 10**8 // (count * dim)))
    candidates = rng.standard_normal((num_candidates, dim))
    candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)
    chosen = [0]
    nearest = candidates @ candidates[0]
    while len(chosen) < count:
        chosen.append(int(np.argmin(nearest)))
        np.maximum(nearest, candidates @ candidates[chosen[-1]], out=nearest)
    return candidates[chosen]
