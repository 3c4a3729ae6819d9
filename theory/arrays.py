"""Checks of array arguments, and columns of tables."""

import numpy as np


def real(name: str, value: np.ndarray) -> np.ndarray:
    """Returns value as float64; `name` is the argument's name, for the message.

    Raises:
      ValueError: complex numbers, whose imaginary part would be lost, or values that are not numbers.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be real numbers, got {array.dtype}")
    return array.astype(np.float64, copy=False)


def finite(name: str, value: np.ndarray) -> np.ndarray:
    """Returns value as float64; ValueError as `real`, or if a number is infinite or NaN.

    Arrays for LAPACK are checked first: its singular value decomposition may never return for infinite entries.
    """
    array = real(name, value)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got an infinite or NaN entry")
    return array


def require_at_least(least: float, **values: float) -> None:
    """Raises a ValueError that names the value unless each value is a number of at least `least`."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def mean_products(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (1/m) Σ left rightᵀ [d, k] over examples in rows, and the rounding error of each entry.

    Args:
      left, right: [m, d] and [m, k] float64, finite.

    Raises:
      ValueError: products that are infinite in float64, or so small that they lose digits.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = left.T @ right / len(left)
        sizes = np.abs(left).T @ np.abs(right)
    # The terms of an entry may cancel: their sum is known to ε times their sizes only.
    numbers = np.finfo(np.float64)
    largest = sizes.max()
    meet = (left.any(1) & right.any(1)).any()  # or the mean is 0
    if not np.isfinite(largest) or meet and largest < numbers.tiny / numbers.eps:
        raise ValueError(
            "the data's mean products are beyond the range of float64, because numbers of up to "
            f"{np.abs(left).max():.2g} and {np.abs(right).max():.2g} are multiplied: rescale x and y"
        )
    return mean, numbers.eps * sizes


def second_moment(name: str, value: np.ndarray) -> np.ndarray:
    """Returns value [d, d] as float64; ValueError as `finite`, or if it cannot be a second moment E[x xᵀ]."""
    array = finite(name, value)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise ValueError(f"{name} must have the shape [d, d], got {array.shape}")
    if not np.allclose(array, array.T, rtol=1e-10, atol=1e-12 * np.abs(array).max()):
        raise ValueError(f"{name} must be symmetric: it is the second moment E[x xᵀ]")
    eigenvalues = np.linalg.eigvalsh(array)
    if eigenvalues[0] < -1e-10 * abs(eigenvalues[-1]):
        raise ValueError(f"{name} must be positive semidefinite, as E[x xᵀ] is, got an eigenvalue {eigenvalues[0]:.3g}")
    return array


def column(rows: list[dict], name: str) -> np.ndarray:
    """Returns one column of a table as numbers; cells may be text, as read from a CSV file."""
    return np.array([float(row[name]) for row in rows])
