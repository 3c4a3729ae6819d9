"""What the functions of theory take for an array of real numbers."""

import numpy as np


def real(name: str, value: np.ndarray) -> np.ndarray:
    """Returns value as float64.

    Args:
      name: Of the argument, for the message.
      value: An array of any shape, or what NumPy makes one of.

    Raises:
      ValueError: complex numbers, of which the imaginary part would be lost, or no numbers at all.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be real numbers, got {array.dtype}")
    return array.astype(np.float64, copy=False)


def finite(name: str, value: np.ndarray) -> np.ndarray:
    """Returns value as float64; ValueError as `real`, or if a number is infinite or NaN.

    What LAPACK takes must pass here first: its singular value decomposition does not end on some infinite entries.
    """
    array = real(name, value)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got an infinite or NaN entry")
    return array


def second_moment(name: str, value: np.ndarray) -> np.ndarray:
    """Returns value [d, d] as float64; ValueError as `finite`, or where no random vector x has it as E[x xᵀ]."""
    array = finite(name, value)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise ValueError(f"{name} must have the shape [d, d], got {array.shape}")
    if not np.allclose(array, array.T, rtol=1e-10, atol=1e-12 * np.abs(array).max()):
        raise ValueError(f"{name} must be symmetric: it is the second moment E[x xᵀ]")
    eigenvalues = np.linalg.eigvalsh(array)
    if eigenvalues[0] < -1e-10 * abs(eigenvalues[-1]):
        raise ValueError(f"{name} must be positive semidefinite, as E[x xᵀ] is, got an eigenvalue {eigenvalues[0]:.3g}")
    return array
