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
