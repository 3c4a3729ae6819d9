"""Claims on Theorem 2.1 of Hardt & Ma, the remarks after it, and the bounds of this project."""

import math

import numpy as np

from theory import factorization, linear_residual
from theory.claim import claim
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.linear import paper_construction
from theory.mutations import changed, larger, reversed_layers, scaled, vanishing

POSITIVE_DETERMINANT = (
    lambda: factorization.factorize(np.diag([-1.0, 1.0]), 8).any(),
    lambda: factorization.factorize(np.diag([0.0, 1.0]), 8).any(),
)

BOUND_WITHOUT = (
    lambda: factorization.norm_lower_bound(np.diag([-1.0, 1.0]), 8) > 0,
    lambda: factorization.norm_lower_bound(np.diag([0.0, 1.0]), 8) > 0,
)


def _shallow_norm(gamma: float, bound: float) -> bool:
    """Returns whether the one layer of R = e^γ, of norm e^γ − 1, is within the bound."""
    return linear_residual.max_spectral_norm(factorization.factorize(np.array([[math.exp(gamma)]]), 1)) <= bound


@claim(
    id="hm.theorem_2.1",
    source="Hardt & Ma, Theorem 2.1",
    statement="det R > 0, ℓ ≥ 3γ: some A has product R and |||A||| ≤ (4π+3γ)/ℓ",
    hypotheses={"det R > 0": POSITIVE_DETERMINANT, "ℓ ≥ 3γ": lambda: _shallow_norm(4, 4 * math.pi + 12)},
    proof=(
        "repaired: with integer p and q the construction can miss the bound, as footnote 6 concedes (“rounding them "
        "to closest integer will change final bound of the norm by small constant factor”); the polar "
        "construction satisfies it"
    ),
)
@claim(
    id="review.theorem_2",
    source="review, Theorem 2",
    statement="Theorem 2.1 as Hardt & Ma state it",
    proof="none given",
    restates="hm.theorem_2.1",
    after="review.theorem_1",
    function=factorization.factorize,
    mutation=reversed_layers,
)
def theorem_2_1(rng: np.random.Generator, trials: int) -> Pairs:
    """|||A||| of the polar method against (4π + 3γ)/ℓ for ℓ ≥ 3γ, which the printed construction can exceed."""
    yield from _polar_beside_printed_bound(rng, trials)
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
    return (
        f"the printed construction at ℓ = {num_layers}, R = diag(−e^{gamma:.2f}, −1, 1) has {printed:.3f} > {bound:.3f}"
    )


@claim(
    id="hm.theorem_2.1_psd",
    source="Hardt & Ma, §1.1 and A.1, semidefinite R",
    statement="for positive definite R and ℓ ≥ γ, |||A||| ≤ 3γ/ℓ",
    verdict=(
        "holds but for degenerate cases: §1.1's “any symmetric positive semidefinite matrix O” includes "
        "singular ones, such as diag(1, 0); A.1 has the theorem's det R > 0"
    ),
    hypotheses={"positive definite R": POSITIVE_DETERMINANT, "ℓ ≥ γ": lambda: _shallow_norm(3, 9)},
    function=factorization.factorize,
    mutation=scaled(1.01),
)
def positive_definite(rng: np.random.Generator, trials: int) -> Pairs:
    """|||A|||, and that it is ≤ 3γ/ℓ, for positive definite R, ℓ ≥ γ; the distance of roots of diag(1, 0) from I."""
    for _ in range(trials):
        orthogonal = np.linalg.qr(rng.standard_normal((5, 5)))[0]
        logs = rng.uniform(-3, 3, 5)
        R = (orthogonal * np.exp(logs)) @ orthogonal.T
        gamma = np.abs(logs).max()
        num_layers = int(rng.integers(math.ceil(gamma), math.ceil(gamma) + 20))
        A = factorization.factorize(R, num_layers)
        norm = linear_residual.max_spectral_norm(A)
        yield relative_error(linear_residual.end_to_end(A), R), ROUNDING
        yield abs(norm / np.abs(np.expm1(logs / num_layers)).max() - 1), ROUNDING
        yield norm, 3 * gamma / num_layers
    # A singular product has a singular factor, and a singular I + A has ‖A‖ ≥ 1.
    roots = [np.diag([1.0, 0.0 ** (1 / num_layers)]) for num_layers in (1, 10, 1000)]
    distance = min(np.linalg.norm(root - np.eye(2), 2) for root in roots)
    require(distance == 1, "a root of diag(1, 0) is near the identity")
    return (
        f"O = diag(1, 0) is semidefinite: ‖O^(1/ℓ) − I‖ = {distance:.0f} for ℓ = 1, 10, 1000, and no "
        "product of nonsingular factors is singular"
    )


@claim(
    id="hm.negative_determinant",
    source="Hardt & Ma, after Theorem 2.1",
    statement="det R < 0: x′ = [x, b], y′ = [y, −b] makes it positive and keeps γ",
    function=factorization.augment,
    mutation=scaled(-1),
)
def negative_determinant(rng: np.random.Generator, trials: int) -> Pairs:
    """det R < 0: y′ = R′x′ for x′ = [x, b], y′ = [y, −b], det R′ = −det R, γ the same, and R′ has small factors."""
    for _ in range(trials):
        R = rng.standard_normal((4, 4))
        R[0] *= -np.sign(np.linalg.det(R))
        augmented = factorization.augment(R)
        x = rng.standard_normal(4)
        b = rng.standard_normal()
        errors = (
            relative_error(augmented @ [*x, b], np.array([*R @ x, -b])),
            abs(np.linalg.det(augmented) / -np.linalg.det(R) - 1),
        )
        yield from ((error, ROUNDING) for error in errors)
        gamma = np.abs(np.log(np.linalg.svd(R, compute_uv=False))).max()
        require(max(errors) < ROUNDING, "R′ is not the target of x′ and y′")
        for positive in (augmented, factorization.flip_label(R)):
            A = factorization.factorize(positive, 8 + math.ceil(gamma))
            yield relative_error(linear_residual.end_to_end(A), positive), ROUNDING
            yield abs(factorization.log_condition(positive) - gamma), ROUNDING * max(gamma, 1)


@claim(
    id="hm.odd_dimension",
    source="Hardt & Ma, footnote 2",
    statement="d odd, det R < 0: y → −y turns R into −R, of positive determinant and the same γ",
    hypotheses={"d odd": POSITIVE_DETERMINANT[0], "det R < 0": POSITIVE_DETERMINANT[1]},
    function=factorization.factorize,
    mutation=reversed_layers,
)
def odd_dimension(rng: np.random.Generator, trials: int) -> Pairs:
    """d odd, det R < 0: −R, the target of −y, has det > 0 and the same γ, and is factorised."""
    for trial in range(trials):
        d = (1, 3, 5)[trial % 3]
        R = rng.standard_normal((d, d))
        R *= -np.sign(np.linalg.det(R))
        gamma = np.abs(np.log(np.linalg.svd(R, compute_uv=False))).max()
        A = factorization.factorize(-R, 8 + math.ceil(gamma))
        yield relative_error(-linear_residual.end_to_end(A), R), ROUNDING
        yield abs(factorization.log_condition(-R) - gamma), ROUNDING * max(gamma, 1)


@claim(
    id="hm.rescaling",
    source="Hardt & Ma, after Theorem 2.1",
    statement="every R that is not singular can be scaled to γ = ½ log κ",
    hypotheses={"not singular": lambda: factorization.rescale(np.diag([0.0, 1.0]))[1] > 0},
    function=factorization.rescale,
    mutation=changed(lambda rescaled: (2 * rescaled[0], 2 * rescaled[1])),
)
def rescaling(rng: np.random.Generator, trials: int) -> Pairs:
    """γ of the rescaled R against ½ log κ, and its singular values against 1/√κ and √κ."""
    for _ in range(trials):
        R = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal((4, 4))
        kappa = np.linalg.cond(R)
        scaled, factor = factorization.rescale(R)
        sigma = np.linalg.svd(scaled, compute_uv=False)
        yield relative_error(sigma[[0, -1]], np.array([kappa**0.5, kappa**-0.5])), ROUNDING * kappa
        yield relative_error(factor * R, scaled), ROUNDING
        yield abs(factorization.log_condition(scaled) - np.log(kappa) / 2), ROUNDING * kappa


@claim(
    id="blog.note_4",
    source="blog, note 4, on Theorem 2.1",
    statement="det R > 0, ℓ ≥ 3γ: some global minimum has |||A||| ≤ (4π+3γ)/ℓ; for det R < 0 all have |||A||| > 1",
    hypotheses={"det R > 0": POSITIVE_DETERMINANT, "ℓ ≥ 3γ": lambda: _shallow_norm(4, 4 * math.pi + 12)},
    verdict=(
        "depends on the reading: as a paraphrase (“Essentially, the theorem states”) of Theorem 2.1, holds; as "
        "printed, without det R > 0, false: with det R < 0 it fails from ℓ = 4π + 3γ on, for every γ"
    ),
    proof="none given",
    after="blog.theorem_2",
    function=factorization.factorize,
    mutation=reversed_layers,
)
def blog_note_4(rng: np.random.Generator, trials: int) -> Pairs:
    """Theorem 2.1 with det R > 0; without it: layers within the bound have a product with det > 0."""
    yield from _polar_beside_printed_bound(rng, trials)
    num_layers = 13  # more than 4π, and γ = 0 for R = diag(−1, 1)
    bound = 4 * math.pi / num_layers
    for _ in range(10 * trials):
        A = linear_residual.project(rng.standard_normal((num_layers, 2, 2)), bound)
        require(np.linalg.det(linear_residual.end_to_end(A)) > 0, "small layers have a product with det < 0")
    return (
        f"R = diag(−1, 1), γ = 0, ℓ = {num_layers} ≥ 3γ: the bound is {bound:.3f} < 1, so each "
        "det(I + A_i) > 0, and det R = −1; for any γ the same holds from ℓ = 4π + 3γ on"
    )


@claim(
    id="ours.polar",
    source="not in the papers",
    statement="det R > 0: |||A||| ≤ 2 sin(π/2ℓ) + e^{γ/ℓ} − 1 for every ℓ ≥ 1, all layers of the same norm",
    hypotheses={"det R > 0": POSITIVE_DETERMINANT},
    function=factorization.factorize,
    mutation=(reversed_layers, scaled(1.01)),
)
def polar_bound(rng: np.random.Generator, trials: int) -> Pairs:
    """|||A||| of the polar method against 2 sin(π/2ℓ) + e^{γ/ℓ} − 1, equal norms of all layers; equality at R = −I₂."""
    for trial in range(2 * trials):
        R, _ = _target(rng, trial)
        num_layers = int(rng.integers(1, 65))
        A = factorization.factorize(R, num_layers)
        norms = np.linalg.norm(A, 2, axis=(1, 2))
        if num_layers >= factorization.log_condition(R):
            yield relative_error(linear_residual.end_to_end(A), R), ROUNDING
        yield np.ptp(norms), ROUNDING * norms.max()
        yield norms.max(), factorization.norm_bound(R, num_layers) * (1 + ROUNDING)
    for num_layers in range(1, 20):
        A = factorization.factorize(-np.eye(2), num_layers)
        bound = factorization.norm_bound(-np.eye(2), num_layers)
        yield abs(linear_residual.max_spectral_norm(A) / bound - 1), ROUNDING


@claim(
    id="ours.norm_lower_bound",
    source="not in the papers",
    statement=(
        "det R > 0: |||A||| ≥ |exp((log(|Rx|/|x|) + i·angle(x, Rx))/ℓ) − 1| for every factorisation, every x ≠ 0"
    ),
    hypotheses={"det R > 0": BOUND_WITHOUT},
    function=factorization.norm_lower_bound,
    mutation=(vanishing, larger),
    relation="≥",
)
def norm_lower_bound(rng: np.random.Generator, trials: int) -> Pairs:
    """Every method's |||A||| against the lower bound for all factorisations; equality if it is proved."""
    for trial in range(max(1, trials // 2)):
        R, num_layers = _target(rng, trial)
        lower = factorization.norm_lower_bound(R, num_layers) * (1 - ROUNDING)
        yield linear_residual.max_spectral_norm(factorization.factorize(R, num_layers)), lower
        if num_layers >= 5:
            yield linear_residual.max_spectral_norm(factorization.factorize(R, num_layers, "paper")), lower
        u, sigma, vt = np.linalg.svd(R)
        polar_parts = (u @ vt, (vt.T * sigma) @ vt)  # for which polar is optimal
        for part in polar_parts:
            norm = linear_residual.max_spectral_norm(factorization.factorize(part, num_layers))
            yield factorization.norm_lower_bound(part, num_layers), norm * (1 - 1e-6)
            yield norm * (1 + ROUNDING), factorization.norm_lower_bound(part, num_layers)


@claim(
    id="ours.polar_ratio",
    source="not in the papers",
    statement=(
        "det R > 0: polar's norm over the lower bound is at most (φ + γ)/max(γ, min(φ, π/2)) ≤ 3 as ℓ → ∞, φ the "
        "largest angle of Q"
    ),
    hypotheses={"det R > 0": BOUND_WITHOUT},
    function=factorization.norm_lower_bound,
    mutation=scaled(0.1),
)
def polar_ratio(rng: np.random.Generator, trials: int) -> Pairs:
    """Polar's norm over the lower bound, for 10,000 layers, against (φ + γ)/max(γ, min(φ, π/2)), which is at most 3."""
    for trial in range(max(1, trials // 2)):
        R = _target(rng, trial)[0]
        num_layers = 10_000
        u, _, vt = np.linalg.svd(R)
        angle = np.abs(np.angle(np.linalg.eigvals(u @ vt))).max()
        gamma = factorization.log_condition(R)
        bound = (angle + gamma) / max(gamma, min(angle, math.pi / 2))
        lower = factorization.norm_lower_bound(R, num_layers)
        norm = 2 * math.sin(angle / 2 / num_layers) + math.expm1(gamma / num_layers)
        layer = factorization.factorize(R, num_layers)[0]
        yield np.linalg.norm(layer, 2), norm * (1 + ROUNDING)
        yield norm / lower, bound * 1.001
        yield bound, 3 * (1 + ROUNDING)


def _polar_beside_printed_bound(rng: np.random.Generator, trials: int) -> Pairs:
    """Yields the error of the polar method's product, and its |||A||| against (4π + 3γ)/ℓ, det R > 0, ℓ ≥ 3γ."""
    for trial in range(2 * trials):
        R, num_layers = _target(rng, trial)
        A = factorization.factorize(R, num_layers)
        yield relative_error(linear_residual.end_to_end(A), R), ROUNDING
        yield linear_residual.max_spectral_norm(A), factorization.norm_bound(R, num_layers, "paper")


def _target(rng: np.random.Generator, trial: int) -> tuple[np.ndarray, int]:
    """Returns R with det R > 0, the rotation of every third with two eigenvalues −1; and an ℓ ≥ max(1, 3γ)."""
    d = int(rng.integers(2, 9))
    u, vt = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    if trial % 3 == 0:
        u = vt.T @ np.diag([-1.0, -1.0] + [1.0] * (d - 2))
    gamma = rng.uniform(0.01, 4)
    R = (u * np.exp(rng.uniform(-gamma, gamma, d))) @ vt
    if np.linalg.det(R) < 0:
        R = factorization.flip_label(R)
    return R, max(1, math.ceil(3 * factorization.log_condition(R))) + int(rng.integers(0, 30))
