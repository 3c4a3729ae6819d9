"""Rotations of ℝ^d in planes: T(θ), normal forms (Hardt & Ma, Claims A.1 and C.1), fractional powers.

A rotation Q (orthogonal, det Q = 1) is kept as `basis` S [d, d], orthogonal, and `angles` θ [k], 2k ≤ d:

    Q = S·diag(T(θ_1), …, T(θ_k), 1, …, 1)·Sᵀ,    Q^t = S·diag(T(tθ_1), …, T(tθ_k), 1, …, 1)·Sᵀ.
"""

import math

import numpy as np
from scipy import linalg

from theory.arrays import finite, real, require_at_least

# Eigenvalues nearer than this share of the largest stay in one block. Entries dropped between blocks are of the size of
# rounding over this share.
_CLUSTER_GAP = 3e-3


def rotation(angle: float) -> np.ndarray:
    """Returns T(θ) [2, 2], the rotation by θ radians (Hardt & Ma, Claim A.1): ‖T(θ) − I‖ = 2 |sin(θ/2)|."""
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def rotation_roots(Q: np.ndarray, num_roots: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns W and Λ [2, 2] with Q = W^q Λ, ‖W − I‖ = 2 sin(|θ|/2q) ≤ π/q, Λ diagonal of ±1 (Hardt & Ma, Claim A.1).

    Q is orthogonal, q = num_roots; if Q is a rotation, Λ = I. ValueError: Q is not orthogonal [2, 2], or q < 1.
    """
    Q = real("Q", Q)
    require_at_least(1, num_roots=num_roots)
    if Q.shape != (2, 2) or not np.abs(Q.T @ Q - np.eye(2)).max() < 1e-10:
        raise ValueError(f"Q must be orthogonal [2, 2], got {Q.tolist() if Q.size <= 4 else Q.shape}")
    reflection = np.diag([1.0, 1.0 if np.linalg.det(Q) > 0 else -1.0])
    turned = Q @ reflection
    return rotation(math.atan2(turned[1, 0], turned[0, 0]) / num_roots), reflection


def block_diagonalize(U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (S, D) with U = S D Sᵀ, S orthogonal, D of blocks of size at most 2 (Hardt & Ma, Claim C.1).

    Args:
      U: [d, d] real and normal: U Uᵀ = Uᵀ U.

    Raises:
      ValueError: U is not normal.
    """
    U = finite("U", U)
    scaled = U / (np.abs(U).max() or 1.0)
    squared = np.linalg.norm(scaled) ** 2
    defect = np.linalg.norm(scaled @ scaled.T - scaled.T @ scaled)
    if defect > 1e-10 * squared:
        raise ValueError(f"U must be normal, but ‖U Uᵀ − Uᵀ U‖ is {defect / squared:.1e} of ‖U‖²")
    D, S = linalg.schur(U, output="real")
    inside = np.abs(np.diag(D, -1)) > 0
    blocks = np.diag(np.diag(D)) + np.diag(np.diag(D, -1), -1) + np.diag(np.where(inside, np.diag(D, 1), 0), 1)
    return S, blocks


def rotation_planes(Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the basis and the angles of a rotation Q (Hardt & Ma, Claim C.1).

    Eigenvalues −1, even in number, are paired into rotations by π, so that the layers Λ of the
    paper's proof are not needed.

    For Q [d, d] orthogonal, det Q = 1: basis [d, d]; angles [k] in [−π, π], those by π last, without angle 0.
    """
    D, S = _orthogonal_schur(real("Q", Q))
    below = np.append(np.abs(np.diag(D, -1)) > 1e-13, False)
    first = np.flatnonzero(below)
    alone = np.setdiff1d(np.arange(len(D)), np.append(first, first + 1))
    reflected, fixed = alone[D[alone, alone] < 0], alone[D[alone, alone] >= 0]
    planes = np.concatenate([np.stack([first, first + 1], 1), reflected.reshape(-1, 2)])
    angles = np.append(np.arctan2(D[first + 1, first], D[first, first]), np.full(len(reflected) // 2, np.pi))
    return S[:, np.append(planes.ravel(), fixed)], angles


def turn_rows(X: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Returns diag(T(θ_1), …, T(θ_k), 1, …, 1) X for X [d, n], in O(dn)."""
    k = 2 * len(angles)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    turned = X.copy()
    turned[0:k:2] = cosine * X[0:k:2] - sine * X[1:k:2]
    turned[1:k:2] = sine * X[0:k:2] + cosine * X[1:k:2]
    return turned


def conjugate(X: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Returns D X Dᵀ for D = diag(T(θ_1), …, T(θ_k), 1, …, 1)."""
    return turn_rows(turn_rows(X, angles).T, angles).T


def turn_minus_identity(angles: np.ndarray, dimension: int) -> np.ndarray:
    """Returns diag(T(θ_1), …, T(θ_k), 1, …, 1) − I [d, d], to full relative precision at small angles."""
    difference = np.zeros((dimension, dimension))
    first = 2 * np.arange(len(angles))
    difference[first, first] = difference[first + 1, first + 1] = -2 * np.sin(np.asarray(angles) / 2) ** 2
    difference[first + 1, first] = np.sin(angles)
    difference[first, first + 1] = -np.sin(angles)
    return difference


def _orthogonal_schur(Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (D, S), the real Schur form of an orthogonal Q; for 500 generic angles in a sixth of LAPACK's time.

    The symmetric (Q + Qᵀ)/2 commutes with Q, so in its eigenvectors Q falls into blocks, one for
    each cluster of its eigenvalues cos θ; if all angles are below 60°, the squared skew part, with eigenvalues sin² θ,
    separates small ones better. A Schur form for each block remains.
    """
    eigenvalues, S = np.linalg.eigh((Q + Q.T) / 2)
    if eigenvalues[0] > 0.5:
        skew = (Q - Q.T) / 2
        eigenvalues, S = np.linalg.eigh(skew.T @ skew)
    blocks = S.T @ Q @ S
    largest = max(eigenvalues[-1], -eigenvalues[0])
    edges = [0, *np.flatnonzero(np.diff(eigenvalues) > _CLUSTER_GAP * largest) + 1, len(Q)]
    D = np.zeros_like(Q)
    for start, end in zip(edges, edges[1:]):
        block = slice(start, end)
        D[block, block], turn = linalg.schur(blocks[block, block], output="real")
        S[:, block] = S[:, block] @ turn
    return D, S
