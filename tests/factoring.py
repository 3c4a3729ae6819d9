"""Targets R of every kind, and references for factorisations: products multiplied out, norms by SciPy."""

import math

import numpy as np
from scipy import linalg


def multiply(A) -> np.ndarray:
    product = np.eye(A.shape[-1])
    for layer in A:
        product = product + layer @ product
    return product


def norms(A) -> np.ndarray:
    return np.array([linalg.svdvals(layer)[0] for layer in A])


def gamma_of(R) -> float:
    return max(abs(math.log(value)) for value in linalg.svdvals(R))


def relative(a, b) -> float:
    return float(np.linalg.norm((a - b) / np.abs(b).max()) / np.linalg.norm(b / np.abs(b).max()))


def random_rotation(d, rng) -> np.ndarray:
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    q *= np.sign(np.diag(r))
    q[:, 0] *= np.sign(np.linalg.det(q))
    return q


def planes(angles, d) -> np.ndarray:
    turns = [[[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]] for a in angles]
    return linalg.block_diag(*turns, np.eye(d - 2 * len(turns)))[-d:, :d]


ANGLES = {
    "any": lambda k, rng: rng.uniform(-math.pi, math.pi, k),
    "near 0": lambda k, rng: 10.0 ** rng.uniform(-17, -0.5, k),
    "near a half turn": lambda k, rng: math.pi - 10.0 ** rng.uniform(-17, -0.5, k),
    "half turns": lambda k, rng: rng.choice([0, math.pi], k),
    "a cluster": lambda k, rng: 1 + 10.0 ** rng.uniform(-17, -1, k) * rng.choice([-1, 0, 1], k),
}
STRETCHES = {
    "generic": lambda d, log_kappa, rng: rng.uniform(-0.5, 0.5, d) * log_kappa,
    "repeated": lambda d, log_kappa, rng: rng.choice([-0.5, 0, 0.5], d) * log_kappa,
    "none": lambda d, log_kappa, rng: np.zeros(d),
}
KINDS = ["Q P", "positive definite", "normal", "Jordan", "Jordan in a basis"]


def target(kind, d, log_kappa, angles, stretches, rng) -> np.ndarray:
    """R with det R > 0 of the kind asked for; its condition number is e^log_kappa or, for Jordan, what comes."""
    S, V = random_rotation(d, rng), random_rotation(d, rng)
    stretch, turn = np.exp(STRETCHES[stretches](d, log_kappa, rng)), planes(ANGLES[angles](d // 2, rng), d)
    if kind == "Jordan":
        return np.exp(rng.uniform(-1, 1)) * (np.eye(d) + np.eye(d, k=1))
    if kind == "Jordan in a basis":  # pairs of blocks of eigenvalue −1
        return S @ linalg.block_diag(-np.eye(d - d % 2) - np.eye(d - d % 2, k=1), np.eye(d % 2))[-d:, :d] @ S.T
    if kind == "positive definite":
        return S @ np.diag(stretch) @ S.T
    if kind == "normal":
        stretch[1 : d - d % 2 : 2] = stretch[0 : d - d % 2 : 2]
        return S @ (turn * stretch) @ S.T
    return S @ turn @ S.T @ V @ np.diag(stretch) @ V.T
