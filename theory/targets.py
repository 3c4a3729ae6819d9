"""The target R of a linear residual network: singular values, scale, sign of the determinant (Hardt & Ma §2)."""

import math

import numpy as np
from scipy import linalg

from theory.arrays import finite

_EPSILON = np.finfo(np.float64).eps
_LARGEST_EXPONENT = 700  # e^709 is the largest float64


def singular_parts(R: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns R [d, d] in float64 and its U, σ, Vᵀ.

    Raises:
      ValueError: R is no square matrix of finite real numbers, or singular to rounding.
    """
    R = _checked(R)
    u, sigma, vt = np.linalg.svd(R)
    if not sigma[-1] > len(R) * _EPSILON * sigma[0]:
        raise ValueError(f"R must not be singular, got singular values from {sigma[0]:.3g} down to {sigma[-1]:.3g}")
    return R, (u, sigma, vt)


def log_condition(R: np.ndarray) -> float:
    """Returns γ = max(|log σ_max(R)|, |log σ_min(R)|) (Hardt & Ma §2), for det R of either sign."""
    _, (_, sigma, _) = singular_parts(R)
    return float(np.abs(np.log(sigma)).max())


def augment(R: np.ndarray) -> np.ndarray:
    """Returns [[R, 0], [0, −1]]: the target after appending b to x and −b to y (Hardt & Ma §2); its γ is that of R."""
    return linalg.block_diag(_checked(R), -1.0)


def flip_label(R: np.ndarray, coordinate: int = 0) -> np.ndarray:
    """Returns R after the sign of one coordinate of y is changed: det R changes sign, γ does not. Not in the paper.

    Works in every dimension and adds none; the paper's y → −y works in odd dimensions alone.
    """
    flipped = _checked(R).copy()
    flipped[coordinate] *= -1
    return flipped


def rescale(R: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns (sR, s) with σ_min(sR) = 1/√κ, σ_max(sR) = √κ, so that γ = ½ log κ, the least there is (Hardt & Ma §2).

    The paper's text has lost the roots.
    """
    R, (_, sigma, _) = singular_parts(R)
    exponent = -(math.log(sigma[0]) + math.log(sigma[-1])) / 2
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f"R must not need a factor of e^{exponent:.0f}, which float64 does not hold: scale it first")
    scale = math.exp(exponent)
    return scale * R, scale


def _checked(R: np.ndarray) -> np.ndarray:
    """R in float64; ValueError where it is no square matrix of finite real numbers."""
    R = finite("R", R)
    if R.ndim != 2 or R.shape[0] != R.shape[1] or R.size == 0:
        raise ValueError(f"R must be a square matrix, got shape {R.shape}")
    return R
