"""Update directions on NumPy matrices: descent, momentum, orthogonalised (Jordan et al. 2024).

    W ← W − η u:   descent          u = g
                   momentum         m ← μm + g, u = m
                   orthogonalised   m ← μm + g, u = polar(g + μm), the orthogonal polar factor of Nesterov's look-ahead

The polar factor is exact here, by the singular value decomposition; identity_matters/muon.py, the optimiser of the
convolutional network, approximates it by five Newton–Schulz steps, whose singular values end between 0.7 and 1.2 unless
they start below 1 % of ‖u‖_F, and scales it by the sides of the matrix.
"""

from typing import Literal

import numpy as np

from theory.arrays import finite

Method = Literal["descent", "momentum", "orthogonalised"]
METHODS = ("descent", "momentum", "orthogonalised")
MOMENTUM = 0.9


def polar_factor(G: np.ndarray) -> np.ndarray:
    """Returns U Vᵀ for G = U diag(s) Vᵀ [..., d, d], the nearest orthogonal matrix; 0 if s is within rounding of 0.

    It does not change when G is multiplied by a positive number: a step has the spectral norm η, however small the
    gradient.
    """
    u, s, vt = np.linalg.svd(finite("G", G))
    # Along a singular value that is rounding, u vᵀ is noise of full length.
    kept = s > 1e-12 * np.maximum(s[..., :1], 1e-300)
    return (u * kept[..., None, :]) @ vt


def direction(method: Method, gradient: np.ndarray, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the direction u of a method for the gradient g [..., d, d], and its new momentum buffer m.

    The buffer has the shape of the gradient and is zeros at the start; descent leaves it as it is. ValueError if there
    is no such method.
    """
    check_method(method)
    if method == "descent":
        return gradient, buffer
    buffer = MOMENTUM * buffer + gradient
    if method == "momentum":
        return buffer, buffer
    return polar_factor(gradient + MOMENTUM * buffer), buffer


def check_method(method: Method) -> None:
    """Raises ValueError unless method is one of METHODS."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
