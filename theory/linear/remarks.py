"""Constructions behind remarks on linear networks: complex layers (Hardt & Ma A.1), cheap layers (blog, note 3).

paper                     code
R [d, d]                  R
ℓ                         num_layers
A_1, …, A_ℓ               A [ℓ, d, d], layer 1 first
"""

import numbers

import numpy as np
from scipy import linalg

from theory.factorization import singular_parts


def complex_layers(R: np.ndarray, num_layers: int) -> np.ndarray:
    """Returns complex layers with product R and |||A||| ≤ 2 sin(π/2ℓ) + e^{γ/ℓ} − 1 (Hardt & Ma A.1, a remark).

    R = QP is the polar decomposition, and I + A_i = Q^{i/ℓ} P^{1/ℓ} Q^{−(i−1)/ℓ}. Over the complex numbers the
    orthogonal Q is unitarily diagonal, and each of its eigenvalues has a root of angle π/ℓ at most. So no eigenvalues
    −1 need be paired, and det R may be negative.

    Args:
      R: [d, d], not singular.
      num_layers: ℓ ≥ 1.

    Returns:
      A [ℓ, d, d] complex128.

    Raises:
      ValueError: R is not a square matrix of finite real numbers, or is singular within rounding; ℓ is no such number.
    """
    if not isinstance(num_layers, numbers.Integral) or num_layers < 1:
        raise ValueError(f"num_layers must be a whole number of at least 1, got {num_layers!r}")
    R, (u, sigma, vt) = singular_parts(R)
    triangular, basis = linalg.schur(u @ vt, output="complex")  # diagonal, as Q is normal
    angles = np.angle(triangular.diagonal())
    stretch = (vt.T * sigma ** (1 / num_layers)) @ vt
    times = np.arange(num_layers + 1) / num_layers
    powers = (basis * np.exp(1j * times[:, None, None] * angles)) @ basis.conj().T
    return powers[1:] @ stretch @ powers[:-1].conj().swapaxes(-1, -2) - np.eye(len(R))


def butterfly_layers(num_layers: int) -> np.ndarray:
    """Returns layers whose product is Hadamard's matrix, each I + A_i with two entries a row (blog, note 3, a remark).

    I + A_i = I_{2^{i−1}} ⊗ [1 1; 1 −1] ⊗ I_{2^{ℓ−i}}, d = 2^ℓ. Applying the layers takes 2dℓ multiplications, the
    product, all of whose entries are ±1, takes d²: the fast Walsh–Hadamard transform.

    Args:
      num_layers: ℓ ≥ 1.

    Returns:
      A [ℓ, 2^ℓ, 2^ℓ].

    Raises:
      ValueError: ℓ is no whole number of at least 1.
    """
    if not isinstance(num_layers, numbers.Integral) or num_layers < 1:
        raise ValueError(f"num_layers must be a whole number of at least 1, got {num_layers!r}")
    pair = np.array([[1.0, 1.0], [1.0, -1.0]])
    sizes = [(2**i, 2 ** (num_layers - 1 - i)) for i in range(num_layers)]
    layers = [np.kron(np.kron(np.eye(before), pair), np.eye(after)) for before, after in sizes]
    return np.stack(layers) - np.eye(2**num_layers)
