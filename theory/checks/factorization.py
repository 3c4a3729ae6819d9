"""Checks of Theorem 2.1 of Hardt & Ma, of its proof (Claims A.1, C.1) and of what is said after it, and of our bounds.

As in linear.py: random instances, the worst of them as Evidence.
"""

import math

import numpy as np

from theory import factorization, linear_residual, paper_construction, rotations
from theory.checks.evidence import ROUNDING, Evidence, at_least, at_most, relative_error, require


def theorem_2_1(rng: np.random.Generator, trials: int) -> Evidence:
    """|||A||| of the polar method against (4π + 3γ)/ℓ for ℓ ≥ 3γ; where the printed construction misses it."""
    pairs = _polar_beside_printed_bound(rng, trials)
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
    return at_most(pairs)._replace(
        counterexample=f"the printed construction at ℓ = {num_layers}, R = diag(−e^{gamma:.2f}, −1, 1) "
        f"has {printed:.3f} > {bound:.3f}"
    )


def blog_note_4(rng: np.random.Generator, trials: int) -> Evidence:
    """Theorem 2.1 with its det R > 0; without it, layers that meet the bound, whose product has det > 0."""
    pairs = _polar_beside_printed_bound(rng, trials)
    num_layers = 13  # more than 4π, and γ = 0 for R = diag(−1, 1)
    bound = 4 * math.pi / num_layers
    for _ in range(10 * trials):
        A = linear_residual.project(rng.standard_normal((num_layers, 2, 2)), bound)
        require(np.linalg.det(linear_residual.end_to_end(A)) > 0, "small layers have a product with det < 0")
    return at_most(pairs)._replace(
        counterexample=f"R = diag(−1, 1), γ = 0, ℓ = {num_layers} ≥ 3γ: the bound is {bound:.3f} < 1, so each "
        "det(I + A_i) > 0, and det R = −1; with another γ the same from ℓ = 4π + 3γ on"
    )


def _polar_beside_printed_bound(rng: np.random.Generator, trials: int) -> list[tuple[float, float]]:
    """The error of the polar method's product, and its |||A||| against (4π + 3γ)/ℓ, for det R > 0 and ℓ ≥ 3γ."""
    pairs = []
    for trial in range(2 * trials):
        R, num_layers = _target(rng, trial)
        A = factorization.factorize(R, num_layers)
        pairs.append((relative_error(linear_residual.end_to_end(A), R), ROUNDING))
        pairs.append((linear_residual.max_spectral_norm(A), factorization.norm_bound(R, num_layers, "paper")))
    return pairs


def polar_bound(rng: np.random.Generator, trials: int) -> Evidence:
    """|||A||| of the polar method against 2 sin(π/2ℓ) + e^{γ/ℓ} − 1, all layers alike; equality at R = −I₂."""
    pairs = []
    for trial in range(2 * trials):
        R, _ = _target(rng, trial)
        num_layers = int(rng.integers(1, 65))
        A = factorization.factorize(R, num_layers)
        norms = np.linalg.norm(A, 2, axis=(1, 2))
        if num_layers >= factorization.log_condition(R):
            pairs.append((relative_error(linear_residual.end_to_end(A), R), ROUNDING))
        pairs.append((np.ptp(norms), ROUNDING * norms.max()))
        pairs.append((norms.max(), factorization.norm_bound(R, num_layers) * (1 + ROUNDING)))
    for num_layers in range(1, 20):
        A = factorization.factorize(-np.eye(2), num_layers)
        bound = factorization.norm_bound(-np.eye(2), num_layers)
        pairs.append((abs(linear_residual.max_spectral_norm(A) / bound - 1), ROUNDING))
    return at_most(pairs)


def norm_lower_bound(rng: np.random.Generator, trials: int) -> Evidence:
    """Every method's |||A||| against the bound that no factorisation can beat; equality where it is proved."""
    pairs = []
    for trial in range(max(1, trials // 2)):
        R, num_layers = _target(rng, trial)
        lower = factorization.norm_lower_bound(R, num_layers) * (1 - ROUNDING)
        pairs.append((linear_residual.max_spectral_norm(factorization.factorize(R, num_layers)), lower))
        if num_layers >= 5:
            pairs.append((linear_residual.max_spectral_norm(factorization.factorize(R, num_layers, "paper")), lower))
        u, sigma, vt = np.linalg.svd(R)
        polar_parts = (u @ vt, (vt.T * sigma) @ vt)  # where polar is optimal
        for part in polar_parts:
            norm = linear_residual.max_spectral_norm(factorization.factorize(part, num_layers))
            pairs.append((factorization.norm_lower_bound(part, num_layers), norm * (1 - 1e-6)))
            pairs.append((norm * (1 + ROUNDING), factorization.norm_lower_bound(part, num_layers)))
    return at_least(pairs)


def polar_ratio(rng: np.random.Generator, trials: int) -> Evidence:
    """Polar's norm over the lower bound, for 10,000 layers, against (φ + γ)/max(γ, min(φ, π/2)), which is at most 3."""
    pairs = []
    for trial in range(max(1, trials // 2)):
        R, num_layers = _target(rng, trial)[0], 10_000
        u, _, vt = np.linalg.svd(R)
        angle, gamma = np.abs(np.angle(np.linalg.eigvals(u @ vt))).max(), factorization.log_condition(R)
        bound = (angle + gamma) / max(gamma, min(angle, math.pi / 2))
        lower = factorization.norm_lower_bound(R, num_layers)
        norm = 2 * math.sin(angle / 2 / num_layers) + math.expm1(gamma / num_layers)
        layer = factorization.factorize(R, num_layers)[0]
        pairs.append((np.linalg.norm(layer, 2), norm * (1 + ROUNDING)))
        pairs.append((norm / lower, bound * 1.001))
        pairs.append((bound, 3 * (1 + ROUNDING)))
    return at_most(pairs)


def positive_definite(rng: np.random.Generator, trials: int) -> Evidence:
    """|||A||| ≤ 3γ/ℓ for positive definite R, ℓ ≥ γ, and what it is; and the distance of roots of diag(1, 0) from I."""
    pairs = []
    for _ in range(trials):
        orthogonal = np.linalg.qr(rng.standard_normal((5, 5)))[0]
        logs = rng.uniform(-3, 3, 5)
        R = (orthogonal * np.exp(logs)) @ orthogonal.T
        gamma = np.abs(logs).max()
        num_layers = int(rng.integers(math.ceil(gamma), math.ceil(gamma) + 20))
        A = factorization.factorize(R, num_layers)
        norm = linear_residual.max_spectral_norm(A)
        pairs.append((relative_error(linear_residual.end_to_end(A), R), ROUNDING))
        pairs.append((abs(norm / np.abs(np.expm1(logs / num_layers)).max() - 1), ROUNDING))
        pairs.append((norm, 3 * gamma / num_layers))
    # A singular product has a singular factor, and a singular I + A has ‖A‖ ≥ 1.
    roots = [np.diag([1.0, 0.0 ** (1 / num_layers)]) for num_layers in (1, 10, 1000)]
    distance = min(np.linalg.norm(root - np.eye(2), 2) for root in roots)
    require(distance == 1, "a root of diag(1, 0) is near the identity")
    return at_most(pairs)._replace(
        counterexample=f"O = diag(1, 0) is semidefinite: ‖O^(1/ℓ) − I‖ = {distance:.0f} for ℓ = 1, 10, 1000, and no "
        "product of nonsingular factors is singular"
    )


def claim_a_1(rng: np.random.Generator, trials: int) -> Evidence:
    """W^q Λ = Q for rotations and reflections, ‖W − I‖ = 2 sin(|θ|/2q) ≤ π/q and Λ = I for a rotation."""
    pairs = []
    for trial in range(2 * trials):
        angle, num_roots = rng.uniform(-math.pi, math.pi), int(rng.integers(1, 20))
        Q = rotations.rotation(angle) @ np.diag([1.0, (-1.0) ** trial])
        W, reflection = rotations.rotation_roots(Q, num_roots)
        require(np.array_equal(reflection, np.diag([1.0, (-1.0) ** trial])), "Λ is not what it should be")
        pairs.append((relative_error(np.linalg.matrix_power(W, num_roots) @ reflection, Q), ROUNDING))
        norm = np.linalg.norm(W - np.eye(2), 2)
        pairs.append((abs(norm - 2 * math.sin(abs(angle) / 2 / num_roots)), ROUNDING))
        pairs.append((norm, math.pi / num_roots))
    return at_most(pairs)


def claim_c_1(rng: np.random.Generator, trials: int) -> Evidence:
    """S D Sᵀ = U with D of blocks of size at most 2, for random normal U with repeated eigenvalues."""
    pairs = []
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
        pairs.append((max(relative_error(S @ D @ S.T, U), relative_error(S @ S.T, np.eye(7))), ROUNDING))

    return at_most(pairs)


def negative_determinant(rng: np.random.Generator, trials: int) -> Evidence:
    """det R < 0: y′ = R′x′ for x′ = [x, b], y′ = [y, −b], det R′ = −det R, γ the same, and R′ has small factors."""
    pairs = []
    for _ in range(trials):
        R = rng.standard_normal((4, 4))
        R[0] *= -np.sign(np.linalg.det(R))
        augmented = factorization.augment(R)
        x, b = rng.standard_normal(4), rng.standard_normal()
        pairs.append((relative_error(augmented @ [*x, b], np.array([*R @ x, -b])), ROUNDING))
        pairs.append((abs(np.linalg.det(augmented) / -np.linalg.det(R) - 1), ROUNDING))
        gamma = np.abs(np.log(np.linalg.svd(R, compute_uv=False))).max()
        require(max(error for error, _ in pairs) < ROUNDING, "R′ is not the target of x′ and y′")
        for positive in (augmented, factorization.flip_label(R)):
            A = factorization.factorize(positive, 8 + math.ceil(gamma))
            pairs.append((relative_error(linear_residual.end_to_end(A), positive), ROUNDING))
            pairs.append((abs(factorization.log_condition(positive) - gamma), ROUNDING * max(gamma, 1)))
    return at_most(pairs)


def odd_dimension(rng: np.random.Generator, trials: int) -> Evidence:
    """d odd, det R < 0: −R, the target of −y, has det > 0 and the same γ, and is factorised."""
    pairs = []
    for trial in range(trials):
        d = (1, 3, 5)[trial % 3]
        R = rng.standard_normal((d, d))
        R *= -np.sign(np.linalg.det(R))
        gamma = np.abs(np.log(np.linalg.svd(R, compute_uv=False))).max()
        A = factorization.factorize(-R, 8 + math.ceil(gamma))
        pairs.append((relative_error(-linear_residual.end_to_end(A), R), ROUNDING))
        pairs.append((abs(factorization.log_condition(-R) - gamma), ROUNDING * max(gamma, 1)))
    return at_most(pairs)


def rescaling(rng: np.random.Generator, trials: int) -> Evidence:
    """γ of the rescaled R against ½ log κ, and its singular values against 1/√κ and √κ."""
    pairs = []
    for _ in range(trials):
        R = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal((4, 4))
        kappa = np.linalg.cond(R)
        scaled, factor = factorization.rescale(R)
        sigma = np.linalg.svd(scaled, compute_uv=False)
        pairs.append((relative_error(sigma[[0, -1]], np.array([kappa**0.5, kappa**-0.5])), ROUNDING * kappa))
        pairs.append((relative_error(factor * R, scaled), ROUNDING))
        pairs.append((abs(factorization.log_condition(scaled) - np.log(kappa) / 2), ROUNDING * kappa))
    return at_most(pairs)


def _target(rng: np.random.Generator, trial: int) -> tuple[np.ndarray, int]:
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
