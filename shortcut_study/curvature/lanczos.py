"""Lanczos iteration: eigenvalues of a symmetric matrix from its products with vectors.

    equations                      code
    H, symmetric, n × n            mvp_fn(v) = Hv, dim
    H Q = Q T + β q eᵀ             Decomposition: basis = Qᵀ [k, dim], diagonal and off_diagonal of T, residual = β
    T s = θ s                      Ritz: values θ, error_bounds β|s_k|, weights s_1²

Full reorthogonalisation, so no eigenvalue appears twice that is not double. Source: Parlett, The Symmetric Eigenvalue
Problem (1980), for the bounds and for "twice is enough"; quadrature.py uses the weights.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg

from identity_matters.errors import UserError
from identity_matters.fields import require_counts

STEPS_BETWEEN_CHECKS = 5  # of stop
# Of a basis, that are read twice before the next ones: those of a file then come from the disk once, not twice.
BYTES_AT_A_TIME = 2**31
SYMMETRY_TOLERANCE = 1e-3  # of |uᵀHv − vᵀHu| over T's largest |entry| so far; float32 networks stay below 1e-5


class Decomposition(NamedTuple):
    """The result of k steps of Lanczos."""

    diagonal: np.ndarray  # of T, float64 [k]
    off_diagonal: np.ndarray  # of T, float64 [k − 1]
    residual: float  # β, 0 if the basis spans everything
    basis: np.ndarray  # Qᵀ [k, dim], rows orthonormal
    asymmetry: float  # largest |uᵀHv − vᵀHu| seen, over the largest |entry| of T
    # What finite precision may move a Ritz value by, (k ε + √k asymmetry) · largest |entry| of T, ε of the basis's type
    # or the products', the coarser. The first term bounds the rounding of the iteration; the second estimates that of
    # the products, as k × k random entries of the size of the asymmetry have a norm of √k of it.
    rounding: float


class Ritz(NamedTuple):
    """Eigenvalues of T, ascending, as approximations of H's."""

    values: np.ndarray  # θ [k]
    weights: np.ndarray  # [k], squared first components of T's eigenvectors; their sum is 1
    # ‖H z − θ z‖ [k], z the Ritz vector: some eigenvalue of H is as near to θ as that. It may be another than the
    # largest, which a starting vector almost orthogonal to its eigenvector does not see.
    error_bounds: np.ndarray
    coefficients: np.ndarray  # [k, k], T's eigenvectors in columns; z = coefficients[:, i] @ basis
    rounding: float  # the decomposition's


def lanczos(
    mvp_fn: Callable,
    dim: int,
    order: int,
    seed: int | Sequence[int] = 0,
    dtype: type = np.float64,
    out: np.ndarray | None = None,
    stop: Callable | None = None,
    orthogonal_to: np.ndarray | None = None,
    scale: float = 0.0,
) -> Decomposition:
    """Returns `order` steps of symmetric Lanczos from a random vector, fully reorthogonalised.

    >>> [round(float(value), 12) for value in ritz(lanczos(lambda v: np.array([1.0, 2.0, 4.0]) * v, 3, 3)).values]
    [1.0, 2.0, 4.0]

    Every product is made orthogonal to all vectors before it; for a symmetric H the coefficients are T's entries and
    zeros, so asymmetry is seen at no cost. When the Krylov space is exhausted, the iteration continues with a random
    vector orthogonal to the basis and a 0 in off_diagonal: at order = dim the Ritz values are all eigenvalues.

    Args:
      mvp_fn: callable. mvp_fn(v [dim]) -> Hv [dim], linear and the same at every call; must not write to v.
      dim, order: int. n, and the number of steps, at most n.
      seed: int or sequence of int. Seed of the starting vector, uniform on the sphere.
      dtype, out: float64, or float32; memory [≥ order, dim] of that type for the basis, None allocates it.
      stop: callable. Given the Ritz values so far after every fifth step; true ends it early. See `converged`.
      orthogonal_to: [k, dim] of dtype, orthonormal rows, P the projection on them: (I − P)H(I − P) is decomposed.
      scale: float. The scale of H, to which rounding and asymmetry are compared; T's largest |entry| may be far
        smaller.

    Raises:
      ValueError: an impossible order, or products that are not finite, not real, not [dim] or not symmetric.
    """
    outside = np.empty((0, dim), dtype) if orthogonal_to is None else orthogonal_to
    most = dim - len(outside)
    require_counts(1, order=order)
    if order > most:
        raise UserError(f"order must lie in 1–{most}, the dimension, got {order}")
    basis = np.empty((order, dim), dtype) if out is None else out[:order]
    random = np.random.default_rng(seed)
    epsilon = np.finfo(dtype).eps
    diagonal, off_diagonal = np.zeros(order), np.zeros(order)
    vector = _random_vector(random, outside)
    norm = vector_norm(vector)
    asymmetry = 0.0
    for step in range(order):
        k = step + 1
        np.divide(vector, basis.dtype.type(norm), out=basis[step])  # in its memory, as a copy of many weights is slow
        product = multiplied(mvp_fn, basis[step])
        epsilon = max(epsilon, np.finfo(product.dtype).eps) if product.dtype.kind == "f" else epsilon
        vector = np.array(product, dtype)
        coefficients = _orthogonalize(vector, outside, basis[:k])
        norm = vector_norm(vector)
        diagonal[step] = coefficients[-1]
        off_diagonal[step] = norm
        scale = max(scale, abs(diagonal[step]), norm)
        coefficients[-2:-1] -= off_diagonal[step - 1 : step]
        asymmetry = max(asymmetry, np.abs(coefficients[:-1]).max(initial=0))
        if not asymmetry <= SYMMETRY_TOLERANCE * scale:
            raise UserError(
                f"mvp_fn is not symmetric: |uᵀHv − vᵀHu| = {asymmetry:.3g}, H itself about {scale:.3g}; if rounding "
                "makes it so, as at a loss near 0, compute the products in float64"
            )
        if norm <= k / 2 * epsilon * scale or k == most:  # `ritz` adds twice the first
            off_diagonal[step] = 0
        rounding = float(k * epsilon * scale + k**0.5 * asymmetry)
        so_far = Decomposition(
            diagonal[:k],
            off_diagonal[:step],
            float(off_diagonal[step]),
            basis[:k],
            asymmetry / (scale or 1.0),
            rounding,
        )
        if stop and k % STEPS_BETWEEN_CHECKS == 0 and stop(ritz(so_far)):
            break
        if off_diagonal[step] == 0 and k < order:
            vector = _random_vector(random, outside, basis[:k])
            norm = vector_norm(vector)
    return so_far


def converged(count: int, tolerance: float) -> Callable:
    """Returns a `stop` for `lanczos`: the bounds of `count` values at each end are at most that share of the largest.

    Each is then an eigenvalue to the tolerance. That no other lies beyond them is very likely, not certain.
    """

    def stop(so_far: Ritz) -> bool:
        ends = np.append(so_far.error_bounds[:count], so_far.error_bounds[-count:])
        return len(so_far.values) >= 2 * count and ends.max() <= tolerance * np.abs(so_far.values).max()

    return stop


def multiplied(mvp_fn: Callable, vector: np.ndarray) -> np.ndarray:
    """Returns Hv in the type in which it comes; raises ValueError unless it is [dim], real and finite."""
    product = np.asarray(mvp_fn(vector))
    if product.dtype.kind not in "biuf":  # nor does NumPy know bfloat16
        raise UserError(
            f"mvp_fn must return real numbers, got {product.dtype}; for bfloat16 take float32, for a complex "
            "H = S + iK, K = −Kᵀ, [S −K; K S]"
        )
    if product.shape != vector.shape:
        raise UserError(f"mvp_fn must return shape {vector.shape}, got {product.shape}")
    if not np.isfinite(product).all():
        raise UserError("mvp_fn returned an infinite or NaN entry")
    return product


def _orthogonalize(vector: np.ndarray, *bases: np.ndarray) -> np.ndarray:
    """Takes from a vector, in place, its part in the span of bases; returns the coefficients of the last."""
    # In float64 even if the basis is float32, as those of T, whose eigenvalues they become: the rounding of each
    # product stays, that of their sum does not come on top.
    coefficients = np.zeros(len(bases[-1]))
    # Twice, as one pass leaves a part of ε‖Hq‖/β; through all bases, as what the first pass of the last one brings back
    # along the others would grow. The first pass ends with the oldest rows and the second begins with them, as the
    # system still has in memory what was read last of a file.
    for direction in (-1, 1):
        for basis in bases:
            count = max(1, BYTES_AT_A_TIME // (vector.nbytes or 1))
            parts = [np.s_[start : start + count] for start in range(0, len(basis), count)]
            for part in parts[::direction]:
                along = basis[part] @ vector
                vector -= along @ basis[part]
                if basis is bases[-1]:
                    coefficients[part] += along
    return coefficients


def _random_vector(random: np.random.Generator, *bases: np.ndarray) -> np.ndarray:
    """Returns a random vector that is orthogonal to the rows of bases, which are so to each other."""
    vector = random.standard_normal(bases[0].shape[1], dtype=bases[0].dtype)
    _orthogonalize(vector, *bases)
    return vector


def vector_norm(vector: np.ndarray) -> float:
    """The Euclidean norm, summed in float64; without a copy if the squares stay in the range of float64."""
    norm = float(np.sqrt(np.einsum("i,i", vector, vector, dtype=np.float64)))
    largest = float(np.abs(vector).max()) if not 1e-140 < norm < np.inf else 0.0
    return largest * float(np.linalg.norm(vector / largest)) if largest else norm


def ritz(decomposition: Decomposition) -> Ritz:
    """Returns Ritz values with weights, and error bounds ‖Hz − θz‖ = β|s_k| (Parlett, §13.2) with rounding added."""
    values, coefficients = scipy.linalg.eigh_tridiagonal(decomposition.diagonal, decomposition.off_diagonal)
    bounds = decomposition.residual * np.abs(coefficients[-1]) + decomposition.rounding
    return Ritz(values, coefficients[0] ** 2, bounds, coefficients, decomposition.rounding)
