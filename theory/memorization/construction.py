"""Residual networks that fit any labelling of any distinct points (Hardt & Ma, Theorem 3.2).

    paper                                     code
    x(i) ∈ R^d, i = 1, …, n                   x [n, d], rows
    y(i) ∈ {e_1, …, e_r}                      labels [n] in 0 … r − 1, num_classes = r
    k, ℓ = ⌈n/k⌉                              width, num_layers
    h_0 = A_0 x, z(i) = A_0 x(i)              projection: Gaussian, variance 1/k (not 1, a misprint)
    T_{U,V,s}, Lemma B.1                      blocks.transform_block
    Lemma B.2: h_ℓ(i) = q_{y(i)}              _all_blocks: block j moves its k points to their surrogates
    q_1, …, q_r ∈ R^k                         surrogates
    last block, q_j ↦ e_j                     _head
    n ≥ number of distinct points             equal points with equal labels are merged first

Theorem 3.2 holds, with O(n log n/ρ² + kd + r²) parameters; its proof needs the repairs that
blocks.py and first_layer.py name. Not in the paper: `peeling`, O(n + d + r²)
parameters for any distinct points at any width ≥ 2. Sort the z by decreasing norm; then <z_i, z_j> < |z_i|² for
every later z_j (Cauchy–Schwarz). Choose surrogates with <z_i, q> ≤ ½|z_i|² for all i. A threshold in
between makes unit i active only on z_i and on points before it. Inside a block the units are solved for
together; points of earlier blocks lie on surrogates, and activate no unit again.
"""

import numbers

import numpy as np

from theory.memorization.blocks import NoThreshold, interpolating_block, relative_gap, surrogates, transform_block
from theory.memorization.first_layer import default_width, draw_projection
from theory.memorization.network import (
    MemorizingNetwork,
    in_float32_range,
    project,
    projected_term_size,
    rounding_error,
    working_dtype,
)
from theory.parallel import in_parallel, single_threaded_products

_BIAS = {"peeling": "peeling", "row_bias": "row", "paper": "common"}  # of blocks.BIASES
METHODS = tuple(_BIAS)
"""How the biases are chosen; only the last is in the paper.

peeling: Any distinct points, any width. Default width: see `default_width`.
row_bias: Lemma B.1 with one bias per unit. Needs |z_i|² > <z_i, z_j> for all pairs that meet in a block or later;
    likely from `row_bias_width` on, the default, with ρ from `separation`.
paper: Lemma B.1 with one bias for all units of a block, as printed, but at a threshold taken from the points. Needs
    min |z_i|² > max <z_i, z_j>; likely from `common_bias_width` on, the default, for points of one norm.
"""
_EIGENVALUE_FLOOR = 1e-4  # of the largest, in whitening
_SMALLEST_SCALE = 1e-290  # of the z: subnormal numbers have fewer digits


def memorize(
    x: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    width: int | None = None,
    method: str = "peeling",
    seed: int = 0,
    whiten: bool = False,
) -> MemorizingNetwork:
    """Returns a residual network that maps every x_i to the one-hot vector of its label (Hardt & Ma, Theorem 3.2).

    It has `parameter_count(n, d, r, k)` parameters, n being the number of distinct points.
    All arithmetic is in float32 if x has that type or up to 16 bits (uint8 images), else in float64;
    points too close for float32 are done in float64 whatever their type, which then `MemorizingNetwork.fits_float32`
    says. A_0 is scaled by a power of two that brings the largest entry of the z into [½, 1). The origin is a point like
    any other: it activates no unit, stays, and is the surrogate of its own label.

    Args:
      x: [n, d] real. Two equal points must have equal labels.
      labels: [n] integers in 0 … num_classes − 1.
      num_classes: int. r ≥ 1.
      width: int or None. k ≥ 2.
      method: str. One of METHODS.
      seed: int ≥ 0. The seed of A_0, and of the surrogates if r > 2k.
      whiten: bool. A_0 = G Sxx^{−½}, Sxx = Σ x xᵀ/n, with eigenvalues below 10⁻⁴ of the largest raised to
        that: gaps grow, several times for images, at nd² + d³ multiplications.

    >>> x = np.random.default_rng(0).standard_normal((20, 3))
    >>> labels = np.arange(20) % 4
    >>> network = memorize(x, labels, num_classes=4)
    >>> bool((network(x).argmax(axis=1) == labels).all())
    True

    Raises:
      ValueError: a wrong shape or type, no points, a number that is not finite, a label out of range, a point with two
        labels, width < 2, an unknown method; points that the method cannot separate (the message says why).
    """
    x, labels = _checked_sample(x, labels, num_classes)
    _check_options(width, method)
    kept = _distinct(x, labels)
    x, labels = (x, labels) if len(kept) == len(x) else (x[kept], labels[kept])
    whitener = _whitener(x) if whiten else None
    width = width or default_width(x if whitener is None else project(x, whitener), method)
    rng = np.random.default_rng(seed)
    projection = draw_projection(rng, width, x.shape[1])
    if whitener is not None:
        projection = project(projection, whitener)
    # First in float32 if x has no more digits; again in float64 if rounding loses gaps.
    for dtype in (np.float32, np.float64) if working_dtype(x) == np.float32 else (np.float64,):
        try:
            network = _build(x, labels, num_classes, projection.astype(dtype), _BIAS[method], rng)
        except NoThreshold as error:
            if dtype == np.float64:
                point = f"method {method!r}, width {width}, point {kept[error.row]}"
                raise ValueError(f"{point}: {error.reason}; {_REMEDY[method]}") from None
        else:
            if network.fits_float32:
                return network
    _check_scores(network(x), labels)  # nothing else checks float64
    return network


def parameter_count(num_points: int, dim: int, num_classes: int, width: int) -> int:
    """Returns kd + ⌈n/k⌉(2k² + k) + rk + r² + r: the paper's count in Theorem 3.2, with the biases."""
    blocks = -(-num_points // width)
    return width * dim + blocks * (2 * width**2 + width) + num_classes * (width + num_classes + 1)


def _build(
    x: np.ndarray, labels: np.ndarray, num_classes: int, projection: np.ndarray, bias: str, rng: np.random.Generator
) -> MemorizingNetwork:
    """Returns the network for a first layer A_0 [k, d], in the type of A_0."""
    z, term_size = project(x, projection), projected_term_size(x, projection)
    largest = np.abs(z).max()
    if not (largest < np.inf if z.dtype == np.float64 else in_float32_range(largest)):
        raise NoThreshold(int(np.argmax(np.abs(z).max(axis=1))), f"A_0 x leaves the range of {z.dtype}")
    if 0 < largest < _SMALLEST_SCALE:
        raise ValueError(f"x must not be as small as {np.abs(x).max():.2g}, where float64 loses digits: multiply it")
    exponent = -int(np.frexp(largest)[1])
    z, term_size, projection = (np.ldexp(array, exponent) for array in (z, term_size, projection))
    q = surrogates(z, num_classes, rng).astype(z.dtype)
    squared_norms = np.square(z, dtype=np.float64).sum(axis=1)
    is_origin = squared_norms == 0
    q[labels[is_origin]] = 0
    # The origin goes last: it is never moved, and leaves its place in the last block empty.
    order = np.argsort(-squared_norms if bias == "peeling" else is_origin, kind="stable")
    num_moved = len(z) - np.count_nonzero(is_origin)
    U, V, s = _all_blocks(z, labels, q, order, num_moved, bias)
    head_U, head_V, head_s = _head(q)
    weights = (projection, U, V, s, head_U, head_V, head_s)
    sizes = np.zeros(s.shape)
    sizes.flat[:num_moved] = term_size[order[:num_moved]]
    return MemorizingNetwork(*weights, relative_gap(U, s, bias), rounding_error(weights, sizes))


def _all_blocks(
    z: np.ndarray, labels: np.ndarray, q: np.ndarray, order: np.ndarray, num_moved: int, bias: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns U, V [ℓ, k, k], s [ℓ, k]: block j moves the j-th k points of the order to their surrogates (Lemma B.2).

    Units left over have zero weights and the bias −1. The blocks can be made in parallel: the
    j-th must be inactive on the points after it and on the surrogates, for any other blocks.
    """
    width = z.shape[1]
    U, V = np.zeros((2, -(-len(z) // width), width, width), z.dtype)
    s = np.full(U.shape[:2], -1, z.dtype)
    points = np.concatenate([z[order], q])
    targets = q[labels[order]]

    def build_block(j: int) -> None:
        rows = slice(j * width, min((j + 1) * width, num_moved))
        unit = slice(0, rows.stop - rows.start)
        try:
            block = transform_block(points[rows], targets[rows], points[rows.stop :], bias)
        except NoThreshold as error:
            raise NoThreshold(int(order[rows][error.row]), error.reason) from None
        U[j, unit], V[j, :, unit], s[j, unit] = block

    in_parallel(build_block, range(-(-num_moved // width)))
    return U, V, s


def _head(q: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns U [r, k], V [r, r], s [r] of the last block, which maps q_j to e_j and has no shortcut (paper (3.4)).

    Built by peeling, so that one surrogate may be 0: its unit comes last and is always active.
    """
    order = np.argsort(-np.linalg.norm(q, axis=1), kind="stable")
    with single_threaded_products():
        return interpolating_block(q[order], np.eye(len(q))[order], q[:0], "peeling")


def _whitener(x: np.ndarray) -> np.ndarray:
    """Returns Sxx^{−½} [d, d] float64, Sxx = Σ x xᵀ/n with small eigenvalues raised to the floor."""
    moment = np.zeros((x.shape[1], x.shape[1]))
    scale = max(float(x.max()), -float(x.min())) or 1.0  # which A_0 is rid of in any case
    with single_threaded_products():
        for start in range(0, len(x), 1024):
            rows = x[start : start + 1024].astype(working_dtype(x), copy=False) / scale
            moment += rows.T @ rows / len(x)
        values, vectors = np.linalg.eigh(moment)
        values = np.maximum(values, _EIGENVALUE_FLOOR * values[-1] or 1.0)
        return vectors * values**-0.5 @ vectors.T


_REMEDY = {
    "peeling": "try another seed, a larger width or whiten=True",
    "row_bias": "try a larger width, whiten=True, or method 'peeling', which takes any distinct points",
    "paper": "a common bias is certain for min |z_i − z_j|² > 4ρ', |z|² in [1 − ρ', 1 + ρ']: try a larger width, "
    "or 'peeling', which takes any distinct points",
}


def _check_scores(scores: np.ndarray, labels: np.ndarray) -> None:
    """Raises ValueError if the scores are not one-hot; overwrites them."""
    scores[np.arange(len(labels)), labels] -= 1
    error = np.abs(scores).max()
    if not error < 0.5:
        raise ValueError(
            f"points too close, or of too different sizes, for float64: the scores are off by {error:.2g}; "
            f"{_REMEDY['peeling']}, or bring them to one scale"
        )


def _check_options(width: int | None, method: str) -> None:
    if width is not None and (not isinstance(width, numbers.Integral) or width < 2):
        raise ValueError(f"width must be an integer of at least 2, got {width!r}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")


def _checked_sample(x: np.ndarray, labels: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns x [n, d] and labels [n] as arrays, or raises ValueError for invalid ones."""
    x, labels = np.asarray(x), np.asarray(labels)
    if x.ndim != 2 or not x.size:
        raise ValueError(f"x must be [n, d] with n ≥ 1 and d ≥ 1, got shape {x.shape}")
    if x.dtype.kind not in "biuf" or x.dtype.itemsize > 8:
        raise ValueError(f"x must be real numbers of up to 64 bits, got {x.dtype}")
    if labels.shape != x.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be {len(x)} integers, as x has rows, got {labels.dtype} of shape {labels.shape}")
    if not isinstance(num_classes, numbers.Integral) or num_classes < 1:
        raise ValueError(f"num_classes must be an integer of at least 1, got {num_classes!r}")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"labels must lie in 0–{num_classes - 1}, got {labels.min()}–{labels.max()}")
    for start in range(0, len(x), 1024):
        finite = np.isfinite(x[start : start + 1024])
        if not finite.all():
            row, column = np.argwhere(~finite)[0] + (start, 0)
            raise ValueError(f"x must be finite, got {x[row, column]} in row {row}, column {column}")
    return x, labels


def _distinct(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns rows of x [n, d] of which no two are equal, the first of each kind: int64, ascending."""
    first: dict[object, int] = {}
    zero = x.dtype.type(0)
    for i, row in enumerate(x):
        key: object = hash((row + zero).tobytes())  # −0 + 0 is 0
        j = first.setdefault(key, i)
        if not np.array_equal(x[j], row):  # two points of one hash
            first[key, i] = i
        elif labels[i] != labels[j]:
            raise ValueError(f"points {j} and {i} are equal but have the labels {labels[j]} and {labels[i]}")
    return np.fromiter(first.values(), np.int64)
