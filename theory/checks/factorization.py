"""Checks of Theorem 2.1 of Hardt & Ma, of its proof (Claims A.1, C.1) and of what is said after it, and of our bounds.

As in linear.py: random instances, the worst of them as Evidence.
"""

import math

import numpy as np

from theory import factorization, linear_residual, paper_construction, rotations
from theory.checks.evidence import ROUNDING, Evidence, at_least, at_most, relative_error, require


def theorem_2_1(rng, trials: int) -> Evidence:
    """|||A||| of the polar method against (4π + 3γ)/ℓ for ℓ ≥ 3γ; where the printed construction misses it."""

    def pairs():
        for trial in range(2 * trials):
            R, num_layers = _target(rng, trial)
            A = factorization.factorize(R, num_layers)
            yield relative_error(linear_residual.end_to_end(A), R), ROUNDING
            yield linear_residual.max_spectral_norm(A), factorization.norm_bound(R, num_layers, "paper")

    misses = (
        (num_layers, gamma)
        for num_layers in range(5, 12)
        for gamma in np.linspace(0, num_layers / 3, 51)[1:]
        if not paper_construction.meets_printed_bound(gamma, num_layers)
    )
    num_layers, gamma = next(misses)
    R = np.diag([-math.exp(gamma), -1.0, 1.0])
    printed = linear_residual.max_spectral_norm(factorization.factorize(R, num_layers, "paper"))
    bound = factorization.norm_bound(R, num_layers, "paper")
    require(printed > bound, "the printed construction meets its bound")
    return at_most(pairs())._replace(
        counterexample=f"the printed construction at ℓ = {num_layers}, R = diag(−e^{gamma:.2f}, −1, 1) "
        f"has {printed:.3f} > {bound:.3f}"
    )


def polar_bound(rng, trials: int) -> Evidence:
    """|||A||| of the polar method against 2 sin(π/2ℓ) + e^{γ/ℓ} − 1, all ℓ, all layers alike."""

    def pairs():
        for trial in range(2 * trials):
            R, _ = _target(rng, trial)
            num_layers = int(rng.integers(1, 65))
            A = factorization.factorize(R, num_layers)
            norms = np.linalg.norm(A, 2, axis=(1, 2))
            yield np.ptp(norms), ROUNDING * norms.max()
            yield norms.max(), factorization.norm_bound(R, num_layers) * (1 + ROUNDING)

    return at_most(pairs())


def norm_lower_bound(rng, trials: int) -> Evidence:
    """Every method's |||A||| against the bound that no factorisation can beat; equality where it is proved."""

    def pairs():
        for trial in range(max(1, trials // 2)):
            R, num_layers = _target(rng, trial)
            lower = factorization.norm_lower_bound(R, num_layers) * (1 - ROUNDING)
            yield linear_residual.max_spectral_norm(factorization.factorize(R, num_layers)), lower
            if num_layers >= 5:
                yield linear_residual.max_spectral_norm(factorization.factorize(R, num_layers, "paper")), lower

    return at_least(pairs())


def positive_definite(rng, trials: int) -> Evidence:
    """|||A||| ≤ 3γ/ℓ for positive definite R, ℓ ≥ γ."""

    def pairs():
        for _ in range(trials):
            orthogonal = np.linalg.qr(rng.standard_normal((5, 5)))[0]
            logs = rng.uniform(-3, 3, 5)
            R = (orthogonal * np.exp(logs)) @ orthogonal.T
            gamma = np.abs(logs).max()
            num_layers = int(rng.integers(math.ceil(gamma), math.ceil(gamma) + 20))
            A = factorization.factorize(R, num_layers)
            yield linear_residual.max_spectral_norm(A), 3 * gamma / num_layers

    singular = np.diag([1.0, 0.0])
    distances = [np.linalg.norm(np.diag([1.0, 0.0 ** (1 / num_layers)]) - np.eye(2), 2) for num_layers in (1, 10, 1000)]
    require(min(distances) == 1, "a root of diag(1, 0) is near the identity")
    return at_most(pairs())._replace(
        counterexample=f"‖O^(1/ℓ) − I‖ = {distances[-1]:.0f} for O = {singular.tolist()}, ℓ = 1, 10, 1000"
    )


def claim_a_1(rng, trials: int) -> Evidence:
    """‖W − I‖ for the q-th root of a rotation or reflection, and W^q Λ = Q."""

    def pairs():
        for _ in range(trials):
            Q = np.linalg.qr(rng.standard_normal((2, 2)))[0]
            num_roots = int(rng.integers(1, 20))
            W, reflection = rotations.rotation_roots(Q, num_roots)
            yield relative_error(np.linalg.matrix_power(W, num_roots) @ reflection, Q), ROUNDING
            yield np.linalg.norm(W - np.eye(2), 2), math.pi / num_roots

    return at_most(pairs())


def claim_c_1(rng, trials: int) -> Evidence:
    """S D Sᵀ = U with D of blocks of size at most 2, for random normal U with repeated eigenvalues."""

    def pairs():
        for trial in range(trials):
            blocks = [rng.uniform(0.1, 2) * rotations.rotation(rng.uniform(-math.pi, math.pi)) for _ in range(2)]
            middle = np.zeros((7, 7))
            for i, block in enumerate(blocks + [blocks[0]] if trial % 2 else blocks):
                middle[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
            middle[6, 6] = rng.standard_normal()
            basis = np.linalg.qr(rng.standard_normal((7, 7)))[0]
            U = basis @ middle @ basis.T
            S, D = rotations.block_diagonalize(U)
            below = np.abs(np.diag(D, -1)) > 0
            in_blocks = not ((below[1:] & below[:-1]).any() or np.tril(D, -2).any() or np.triu(D, 2).any())
            require(in_blocks, "D has a block larger than 2")
            yield max(relative_error(S @ D @ S.T, U), relative_error(S @ S.T, np.eye(7))), ROUNDING

    return at_most(pairs())


def negative_determinant(rng, trials: int) -> Evidence:
    """det R < 0: after `augment` or `flip_label` the determinant is positive and γ the same."""

    def pairs():
        for _ in range(trials):
            R = rng.standard_normal((4, 4))
            R[0] *= -np.sign(np.linalg.det(R))
            gamma = factorization.log_condition(R)
            for positive in (factorization.augment(R), factorization.flip_label(R)):
                A = factorization.factorize(positive, 8)
                yield relative_error(linear_residual.end_to_end(A), positive), ROUNDING
                yield abs(factorization.log_condition(positive) - gamma), ROUNDING * max(gamma, 1)

    printed = np.linalg.det(np.block([[-np.eye(1), np.zeros((1, 1))], [np.zeros((1, 1)), np.eye(1)]]))
    return at_most(pairs())._replace(
        counterexample=f"with +1 in the corner, as the text has it, det R′ = {printed:.0f} for R = −1"
    )


def rescaling(rng, trials: int) -> Evidence:
    """γ of the rescaled R against ½ log κ."""
    ratios = []

    def pairs():
        for _ in range(trials):
            R = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal((4, 4))
            kappa = np.linalg.cond(R)
            scaled, _ = factorization.rescale(R)
            ratios.append(np.log(kappa) / factorization.log_condition(scaled))
            yield abs(factorization.log_condition(scaled) - np.log(kappa) / 2), ROUNDING * np.log(kappa)

    return at_most(pairs())._replace(counterexample=f"the printed γ = log κ is {np.mean(ratios):.2f} times γ")


def _target(rng, trial: int) -> tuple[np.ndarray, int]:
    """R with det R > 0, every third with two eigenvalues −1 in its rotation; and an ℓ ≥ max(1, 3γ)."""
    d = int(rng.integers(2, 9))
    u, vt = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    if trial % 3 == 0:
        u = vt.T @ np.diag([-1.0, -1.0] + [1.0] * (d - 2))
    gamma = rng.uniform(0.01, 4)
    R = (u * np.exp(rng.uniform(-gamma, gamma, d))) @ vt
    if np.linalg.det(R) < 0:
        R = factorization.flip_label(R)
    return R, max(1, math.ceil(3 * factorization.log_condition(R))) + int(rng.integers(0, 30))
