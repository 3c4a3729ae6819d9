"""The trace of a symmetric matrix by XTrace: exact on a low-rank part, random vectors for the rest, each used twice.

    equations, Ω [n, k] random, Q R = HΩ                                 code
    tᵢ = tr QᵢᵀHQᵢ + (n − k + 1) vᵀHv / vᵀv,  v = (I − QᵢQᵢᵀ) ωᵢ         the estimates; Qᵢ spans HΩ without column i
    QᵢQᵢᵀ = Q (I − sᵢsᵢᵀ) Qᵀ,  sᵢ ∝ column i of R⁻ᵀ                      so that no column costs a product of its own
    tr H ≈ mean tᵢ,  ± t_(0.975, k − 1) s/√k                             Trace

Source: Epperly, Tropp & Webber, XTrace: Making the Most of Every Sample in Stochastic Trace Estimation (2024). By as
many products it errs less than Hutch++, and far less than Hutchinson's estimator where few eigenvalues hold the trace;
where all are alike it errs about 1.5 times as much as the latter, as half of the products look for a low-rank part.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg

from shortcut_study.curvature.hutchinson import confidence, standard_error


class Trace(NamedTuple):
    """A trace with the error that it is within about 95 times in 100, by Student's t over the estimates.

    Attributes:
      value, error: float.
      num_products: int.
    """

    value: float
    error: float
    num_products: int

    def __str__(self) -> str:
        """Returns the trace with its error in a line."""
        return f"trace {self.value:.4g} ± {self.error:.2g} (95 % interval), {self.num_products} products"


def xtrace(mvp_fn: Callable, dim: int, num_products: int = 60, seed: int = 0, dtype: type = np.float64) -> Trace:
    """Returns the trace of a symmetric matrix that is known by its products.

    >>> found = xtrace(lambda v: np.array([3.0, 1.0, 0.5, 0.5]) * v, 4, 8)
    >>> round(found.value, 12), found.num_products  # as many vectors as dimensions: exact
    (5.0, 4)

    Args:
      mvp_fn: callable. mvp_fn(v [dim]) -> Hv [dim], linear and the same at every call.
      dim: int. n.
      num_products: int. At least 4; 2k of them, or dim where these are no more: then the trace is exact.
      seed: int. Of the random vectors, uniform on the sphere.
      dtype: float64, or float32. Memory is num_products · dim numbers of that type.

    Raises:
      ValueError: fewer products, or one that is not finite or not [dim].
    """
    if num_products < 4:
        raise ValueError(f"num_products must be at least 4, got {num_products}")
    if dim <= num_products:
        units = (np.eye(1, dim, i, dtype=dtype)[0] for i in range(dim))
        return Trace(float(sum(_product(mvp_fn, unit)[i] for i, unit in enumerate(units))), 0.0, dim)
    k = num_products // 2
    omega = np.random.default_rng(seed).standard_normal((k, dim), dtype)  # vectors in rows: each is contiguous
    omega *= (np.sqrt(dim) / np.linalg.norm(omega, axis=1)).astype(dtype)[:, None]
    images = np.stack([_product(mvp_fn, vector) for vector in omega])
    q, r = np.linalg.qr(images.T)
    of_q = np.stack([_product(mvp_fn, vector) for vector in np.ascontiguousarray(q.T)])
    w, t, h = (np.asarray(of, np.float64) for of in (q.T @ omega.T, of_q @ omega.T, of_q @ q))
    s = _left_out(np.asarray(r, np.float64))
    sigma = np.sum(s * w, 0)
    rest = w - s * sigma  # what ωᵢ has along Qᵢ, in the basis Q
    along = np.array([np.dot(vector, image) for vector, image in zip(omega, images)], np.float64)
    curved = along - 2 * np.sum(t * rest, 0) + np.sum(rest * (h @ rest), 0)
    sizes = dim - np.sum(w**2, 0) + sigma**2
    estimates = np.trace(h) - np.sum(s * (h @ s), 0) + (dim - k + 1) * curved / sizes
    return Trace(float(estimates.mean()), float(confidence(k) * standard_error(estimates)), 2 * k)


def _left_out(r: np.ndarray) -> np.ndarray:
    """Returns for each column of R [k, k] a unit vector that is orthogonal to all others, in columns."""
    size = np.abs(np.diag(r)).max(initial=0.0) or 1.0
    floor = np.finfo(np.float64).eps * size  # of a matrix of lower rank any such vector will do
    diagonal = np.diag(r)
    r = r - np.diag(diagonal) + np.diag(np.where(np.abs(diagonal) < floor, floor, diagonal))
    s = scipy.linalg.solve_triangular(r, np.eye(len(r)), trans="T")
    return s / np.linalg.norm(s, axis=0)


def _product(mvp_fn: Callable, vector: np.ndarray) -> np.ndarray:
    found = np.asarray(mvp_fn(vector), vector.dtype)
    if found.shape != vector.shape or not np.isfinite(found).all():
        raise ValueError(f"mvp_fn must return finite numbers of shape {vector.shape}, got shape {found.shape}")
    return found
