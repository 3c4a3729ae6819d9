"""Lanczos iteration: eigenvalues of a symmetric matrix that is known by its products alone.

    equations                      code
    H, symmetric, n × n            mvp_fn(v) = Hv, dim
    H Q = Q T + β q eᵀ             Decomposition: basis = Qᵀ [k, dim], diagonal and off_diagonal of T, residual = β
    T s = θ s                      Ritz: values θ, error_bounds β|s_k|, weights s_1²

Nothing here knows what H is of; operator.py has the products for networks. Full
reorthogonalisation, so no eigenvalue appears twice that is not double; memory is order · dim
numbers, of the type that the caller chooses. Sources: Parlett, The Symmetric Eigenvalue Problem
(1980), for the bounds and for "twice is enough"; quadrature.py says what the weights are for.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg

STEPS_BETWEEN_CHECKS = 5  # of stop
SYMMETRY_TOLERANCE = 1e-3  # of |uᵀHv − vᵀHu| over T's largest |entry| so far; float32 networks stay below 1e-5


class Decomposition(NamedTuple):
    """The result of k steps of Lanczos: H Q = Q T + β q eᵀ.

    Attributes:
      diagonal, off_diagonal: Of T, float64 [k] and [k − 1].
      residual: β, the norm of what the last product has outside the basis; 0 where the basis spans everything.
      basis: Qᵀ [k, dim], rows orthonormal.
      asymmetry: Largest |uᵀHv − vᵀHu| seen, over the largest |entry| of T.
      rounding: What finite precision may move a Ritz value by, (k ε + √k asymmetry) · largest |entry| of T, ε of the
        basis's type or the products', the coarser of the two. The first term bounds the rounding of the iteration. The
        second estimates that of the products, whose errors show in the basis as asymmetry: a k × k matrix of random
        entries of that size has a norm of about √k of it. Off-diagonal entries below half of the first term are 0.
    """

    diagonal: np.ndarray
    off_diagonal: np.ndarray
    residual: float
    basis: np.ndarray
    asymmetry: float
    rounding: float


class Ritz(NamedTuple):
    """Eigenvalues of T, ascending, as approximations of H's.

    Attributes:
      values: θ [k].
      weights: [k], squared first components of T's eigenvectors; their sum is 1.
      error_bounds: ‖H z − θ z‖ [k], z the Ritz vector: some eigenvalue of H is as near to θ as that. It may be another
        than the largest, which a starting vector almost orthogonal to its eigenvector does not see.
      coefficients: [k, k], T's eigenvectors in columns; z = coefficients[:, i] @ basis.
      rounding: The decomposition's.
    """

    values: np.ndarray
    weights: np.ndarray
    error_bounds: np.ndarray
    coefficients: np.ndarray
    rounding: float


class Spectrum(NamedTuple):
    """The summary of a Hessian's eigenvalues that the figures show.

    Attributes:
      max_abs: Largest |λ|.
      p10_abs: 10th percentile of |λ|, which the paper takes in place of the least, as more stable.
      condition_number: max_abs / p10_abs; inf where p10_abs is 0 within rounding.
      index: Share of negative eigenvalues; one that is 0 within rounding is not negative.
      index_range: (low, high), the share without and with the eigenvalues that are 0 within rounding.
    """

    max_abs: float
    p10_abs: float
    condition_number: float
    index: float
    index_range: tuple[float, float]

    def columns(self) -> dict[str, float]:
        """Returns the four numbers by name, as results.csv has them."""
        return {name: getattr(self, name) for name in ("max_abs", "p10_abs", "condition_number", "index")}


def lanczos(
    mvp_fn: Callable,
    dim: int,
    order: int,
    seed: int | Sequence[int] = 0,
    dtype: type = np.float64,
    out: np.ndarray | None = None,
    stop: Callable | None = None,
    deflated: np.ndarray | None = None,
    scale: float = 0.0,
) -> Decomposition:
    """Returns `order` steps of symmetric Lanczos from a random vector, fully reorthogonalised.

    >>> [round(float(value), 12) for value in ritz(lanczos(lambda v: np.array([1.0, 2.0, 4.0]) * v, 3, 3)).values]
    [1.0, 2.0, 4.0]

    Every product is made orthogonal to all vectors before it, twice: one pass leaves a part of ε‖Hq‖/β along them, the
    second ε. For a symmetric H the coefficients are T's entries and zeros, so asymmetry is seen at no cost.

    Where the Krylov space is exhausted (β within rounding of 0) it goes on with a random vector orthogonal to the basis
    and a 0 in off_diagonal. So at order = dim the Ritz values are all eigenvalues; the weights are of the first vector.

    Args:
      mvp_fn: callable. mvp_fn(v [dim]) -> Hv [dim], linear and the same at every call; must not write to v.
      dim, order: int. n, and the number of steps, at most n.
      seed: int or sequence of int. Of the starting vector, uniform on the sphere.
      dtype, out: float64, or float32; memory [≥ order, dim] of that type for the basis, None allocates it.
      stop: callable. Given the decomposition so far after every fifth step; true ends it early. See `converged`.
      deflated: [k, dim] of dtype, orthonormal rows. The decomposition is that of (I − P)H(I − P), P the projection on
        them, in the space orthogonal to them; order is at most dim − k.
      scale: float. Of H, where T's largest |entry| may be far smaller: what rounding and asymmetry are compared with.

    Raises:
      ValueError: an impossible order, or products that are not finite, not real, not [dim] or not symmetric.
    """
    dtype = np.dtype(dtype).type
    outside = np.empty((0, dim), dtype) if deflated is None else deflated
    basis = _memory(dim, order, dtype, out, len(outside))
    random, epsilon = np.random.default_rng(seed), float(np.finfo(dtype).eps)
    diagonal, off_diagonal = np.zeros(order), np.zeros(order)
    norm, asymmetry = _norm(vector := _random_vector(random, outside)), 0.0
    for step in range(order):
        np.divide(vector, dtype(norm), out=basis[step])  # in the basis's memory, as a copy of many weights is slow
        vector, epsilon = _product(mvp_fn, basis[step], epsilon)
        coefficients = _orthogonalize(vector, outside, basis[: step + 1])
        norm = _norm(vector)
        diagonal[step], off_diagonal[step] = coefficients[-1], norm
        scale = max(scale, abs(diagonal[step]), norm)
        coefficients[-2:-1] -= off_diagonal[step - 1 : step]
        asymmetry = max(asymmetry, np.abs(coefficients[:-1]).max(initial=0))
        _check_symmetric(asymmetry, scale)
        if norm <= (step + 1) / 2 * epsilon * scale or step + 1 == dim - len(outside):  # `ritz` adds twice the first
            off_diagonal[step] = 0
        so_far = _decomposition(diagonal, off_diagonal, basis[: step + 1], asymmetry, scale, epsilon)
        if stop and (step + 1) % STEPS_BETWEEN_CHECKS == 0 and stop(so_far):
            break
        if off_diagonal[step] == 0 and step + 1 < order:
            norm = _norm(vector := _random_vector(random, outside, basis[: step + 1]))
    return so_far


def _check_symmetric(asymmetry: float, scale: float) -> None:
    if asymmetry > SYMMETRY_TOLERANCE * scale:
        raise ValueError(
            f"mvp_fn is not symmetric: |uᵀHv − vᵀHu| = {asymmetry:.3g}, where H is about {scale:.3g}; if rounding "
            "makes it so, as at a loss near 0, compute the products in float64"
        )


def _decomposition(
    diagonal: np.ndarray, off_diagonal: np.ndarray, basis: np.ndarray, asymmetry: float, scale: float, epsilon: float
) -> Decomposition:
    """Returns what as many steps have left as there are vectors in the basis."""
    steps = len(basis)
    return Decomposition(
        diagonal[:steps],
        off_diagonal[: steps - 1],
        float(off_diagonal[steps - 1]),
        basis,
        asymmetry / scale if scale else 0.0,
        rounding=steps * epsilon * scale + steps**0.5 * asymmetry,
    )


def converged(count: int, tolerance: float) -> Callable:
    """Returns a `stop` for `lanczos`: the error bounds of `count` Ritz values at each end are within the tolerance.

    Each is then an eigenvalue to the tolerance. That no other lies beyond them is very likely, not certain.

    Args:
      tolerance: float. Largest error bound, as a share of the largest |Ritz value|.
    """

    def stop(decomposition: Decomposition) -> bool:
        found = ritz(decomposition)
        ends = np.append(found.error_bounds[:count], found.error_bounds[-count:])
        return len(found.values) >= 2 * count and ends.max() <= tolerance * np.abs(found.values).max()

    return stop


def _memory(dim: int, order: int, dtype: type, out: np.ndarray | None, num_deflated: int) -> np.ndarray:
    if not 1 <= order <= dim - num_deflated:
        raise ValueError(f"order must lie in 1–{dim - num_deflated}, the dimension, got {order}")
    if out is None:
        return np.empty((order, dim), dtype)
    if out.ndim != 2 or len(out) < order or out.shape[1] != dim or out.dtype != dtype:
        raise ValueError(f"out must be [≥ {order}, {dim}] {np.dtype(dtype)}, got {out.shape} {out.dtype}")
    return out[:order]


def _product(mvp_fn: Callable, vector: np.ndarray, epsilon: float) -> tuple[np.ndarray, float]:
    """Returns Hv as an array of its own, and the coarser of an ε and that of the type in which Hv came."""
    found = np.asarray(mvp_fn(vector))
    if found.dtype.kind == "c":
        raise ValueError(
            f"mvp_fn must return real numbers, got {found.dtype}: for H = S + iK, K = −Kᵀ, give [S −K; K S]"
        )
    if found.dtype.kind == "V":  # what NumPy knows of bfloat16 is its size
        raise ValueError(f"mvp_fn must return a type whose rounding NumPy knows, got {found.dtype}; take float32")
    product = np.array(found, vector.dtype)
    if product.shape != vector.shape:
        raise ValueError(f"mvp_fn must return shape {vector.shape}, got {product.shape}")
    if not np.isfinite(product).all():
        raise ValueError("mvp_fn returned an infinite or NaN entry")
    return product, max(epsilon, float(np.finfo(found.dtype).eps)) if found.dtype.kind == "f" else epsilon


def _orthogonalize(vector: np.ndarray, *bases: np.ndarray) -> np.ndarray:
    """Takes from a vector, in place, its part in the span of bases; returns the coefficients of the last, float64."""
    # The coefficients become T's entries, whose eigenvalues are computed in float64 also where the basis is float32:
    # the rounding of each product stays, that of their sum does not come on top.
    coefficients = np.zeros(len(bases[-1]))
    for _ in range(2):  # through all bases: what the last one's first pass brings back along the others would grow
        for basis in bases:
            along = basis @ vector
            vector -= along @ basis
        coefficients += along
    return coefficients


def _random_vector(random: np.random.Generator, *bases: np.ndarray) -> np.ndarray:
    """Returns a random vector that is orthogonal to the rows of bases, which are so to each other."""
    vector = random.standard_normal(bases[0].shape[1], dtype=bases[0].dtype)
    _orthogonalize(vector, *bases)
    return vector


def _norm(vector: np.ndarray) -> float:
    """The Euclidean norm, summed in float64; without a copy where the squares stay in the range of float64."""
    norm = float(np.sqrt(np.einsum("i,i", vector, vector, dtype=np.float64)))
    largest = float(np.abs(vector).max()) if not 1e-140 < norm < np.inf else 0.0
    return largest * float(np.linalg.norm(vector / largest)) if largest else norm


def ritz(decomposition: Decomposition) -> Ritz:
    """Returns Ritz values with weights and error bounds.

    The bound ‖Hz − θz‖ = β|s_k| (Parlett, §13.2) is of exact arithmetic. Added is the decomposition's rounding, which
    is an estimate in so far as that of the products is.
    """
    values, coefficients = scipy.linalg.eigh_tridiagonal(decomposition.diagonal, decomposition.off_diagonal)
    bounds = decomposition.residual * np.abs(coefficients[-1]) + decomposition.rounding
    return Ritz(values, coefficients[0] ** 2, bounds, coefficients, decomposition.rounding)


def summarize(eigenvalues: np.ndarray, rounding: float) -> Spectrum:
    """Returns the summary of all eigenvalues of a Hessian, of which sizes up to `rounding` count as 0.

    Args:
      eigenvalues: [P].
      rounding: float. What an eigenvalue may be off by.
    """
    sizes = np.abs(eigenvalues)
    max_abs, p10_abs = float(sizes.max()), float(np.percentile(sizes, 10))
    condition_number = max_abs / p10_abs if p10_abs > rounding else np.inf
    low, high = float((eigenvalues < -rounding).mean()), float((eigenvalues <= rounding).mean())
    return Spectrum(max_abs, p10_abs, condition_number, low, (low, high))
