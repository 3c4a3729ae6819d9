"""Claims on balanced layers: Arora, Cohen & Hazan 2018, Arora et al. 2019, and related claims of this project."""

import numpy as np
from scipy import optimize

from theory.claim import claim, restated
from theory.descent import balancedness
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.linear import factorization, landscape
from theory.mutations import larger, scaled, vanishing

# Layers of product I whose imbalance makes the gradient at R = I + 0.05 e₂e₁ᵀ small: N₁ = diag(s, 1/s), N₂ = N₁⁻¹.
UNBALANCED = np.stack([np.diag([0.2, 5.0]), np.diag([5.0, 0.2])]) - np.eye(2)
NEAR_IDENTITY = np.array([[1.0, 0.0], [0.05, 1.0]])


def _bound_holds(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> bool:
    """Returns whether ‖∇f‖² ≥ 4ℓσ_min(W)^{2−2/ℓ}(f − C)."""
    smallest = np.linalg.svd(landscape.end_to_end(A), compute_uv=False)[-1]
    bound = 4 * len(A) * smallest ** (2 - 2 / len(A)) * landscape.risk(A, R, Sigma)
    return bool(np.square(landscape.gradient(A, R, Sigma)).sum() >= bound)


def _keeps_rate(A: np.ndarray, R: np.ndarray, factor: float = 1.0) -> bool:
    """Returns whether 30 steps of factor/L shrink the excess risk at the rate of the margin; Σ = I."""
    norm, excess = landscape.max_spectral_norm(A), landscape.risk(A, R, np.eye(len(R)))
    rate = factor / landscape.smoothness_bound(np.eye(len(R)), len(A), norm, excess)
    c = balancedness.deficiency_margin(landscape.end_to_end(A), R)
    seen = landscape.gradient_descent(A, R, np.eye(len(R)), rate, 30).rate
    return bool(1 - seen >= 0.98 * 2 * rate * len(A) * c ** (2 - 2 / len(A)))


def _velocity_is_predicted(A: np.ndarray) -> bool:
    """Returns whether the powers of W give the velocity of the product of these layers at R = 0, Σ = I."""
    W, zero, identity = landscape.end_to_end(A), np.zeros((2, 2)), np.eye(2)
    said = balancedness.product_velocity(W, 2 * W, len(A))
    return bool(np.allclose(balancedness.first_order_velocity(A, zero, identity), said))


def _margin_without_identity() -> bool:
    """Returns whether σ_min(W) ≥ c once f has fallen from 0.04 to 0.01: Σ = diag(1, 0.01), W now diag(1, 0)."""
    R, Sigma, start, later = np.eye(2), np.diag([1.0, 0.01]), np.diag([0.8, 1.0]), np.diag([1.0, 0.0])
    falls = landscape.risk(later[None] - R, R, Sigma) <= landscape.risk(start[None] - R, R, Sigma)
    return not falls or bool(np.linalg.svd(later)[1][-1] >= balancedness.deficiency_margin(start, R))


def _drifts_with_a_long_step() -> bool:
    """Returns whether the drift stays within 2η(f(0) − f(T)) where a step of 1 makes f rise."""
    A, R = np.zeros((2, 2, 2)), np.array([[1.0, 2.0], [0.0, 1.0]])
    found = landscape.gradient_descent(A, R, np.eye(2), 1.0, 1)
    moved = np.linalg.norm(balancedness.imbalances(found.A)[0], "nuc")
    return bool(moved <= balancedness.drift_bound(1.0, found.risks[0], found.risks[-1]))


@restated(
    id="ach.theorem_1",
    source="Arora, Cohen & Hazan 2018, Theorem 1",
    statement="balanced layers, gradient flow: dW/dt = −Σ_j (WWᵀ)^{(ℓ−j)/ℓ} ∂f/∂W (WᵀW)^{(j−1)/ℓ}",
    hypotheses={"balanced layers": lambda: _velocity_is_predicted(UNBALANCED)},
    function=balancedness.product_velocity,
    mutation=larger,
)
def velocity(rng: np.random.Generator, trials: int) -> Pairs:
    """The velocity of the product by powers of W against the one from all layers, on balanced factorisations."""
    for _ in range(trials):
        A, W = _balanced(rng)
        _, R, Sigma = _problem(rng, len(W))
        require(np.abs(balancedness.imbalances(A)).max(initial=0) < ROUNDING, "the layers are not balanced")
        said = balancedness.product_velocity(W, 2 * (W - R) @ Sigma, len(A))
        yield relative_error(balancedness.first_order_velocity(A, R, Sigma), said), ROUNDING
        step = 1e-6
        moved = landscape.end_to_end(A - step * landscape.gradient(A, R, Sigma)) - W
        yield relative_error(moved / step, said), 1e-2


@restated(
    id="ach.claim_1",
    source="Arora, Cohen & Hazan 2018, Claim 1",
    statement=(
        "balanced layers, gradient flow: depth acts as the preconditioner P_W with eigenvalues "
        "Σ_j σ_r^{2(ℓ−j)/ℓ} σ_s^{2(j−1)/ℓ}"
    ),
    function=balancedness.preconditioner,
    mutation=larger,
)
def preconditioner(rng: np.random.Generator, trials: int) -> Pairs:
    """P_W against Σ_i (before_iᵀ before_i) ⊗ (after_i after_iᵀ) with the layers of a balanced factorisation."""
    for _ in range(trials):
        A, W = _balanced(rng)
        layers, direct = np.eye(len(W)) + A, 0
        for i in range(len(A)):
            before, after = (np.eye(len(W)) for _ in range(2))
            for layer in layers[:i]:
                before = layer @ before
            for layer in layers[i + 1 :]:
                after = layer @ after
            direct = direct + np.kron(before.T @ before, after @ after.T)
        yield relative_error(balancedness.preconditioner(W, len(A)), direct), ROUNDING


@restated(
    id="acgh.margin",
    source="Arora, Cohen, Golowich & Hu 2019, Definition 2",
    statement=(
        "Σ = I: σ_min(W) ≥ c = σ_min(R) − ‖W₀ − R‖_F while f ≤ f(0); with it, c > 0, balanced layers, steps η ≤ 1/L: "
        "rate 1 − 2ηℓc^{2−2/ℓ} (this rate proved here)"
    ),
    hypotheses={
        "Σ = I": _margin_without_identity,
        "balanced layers": lambda: _keeps_rate(UNBALANCED, NEAR_IDENTITY),
        "η ≤ 1/L": lambda: _keeps_rate(np.zeros((4, 2, 2)), NEAR_IDENTITY, factor=2.2),
    },
    function=balancedness.deficiency_margin,
    mutation=(scaled(1.2), vanishing, scaled(-5)),
    relation="≥",
)
def deficiency(rng: np.random.Generator, trials: int) -> Pairs:
    """σ_min(W) along descent from zero against the margin at the start, and the rate; with equality in one of five."""
    for trial in range(max(5, trials // 4)):
        d, num_layers = int(rng.integers(2, 5)), int(rng.integers(1, 17))
        M = rng.standard_normal((d, d))
        R = np.eye(d) + rng.uniform(0.1, 0.45) * M / np.linalg.norm(M)
        if trial % 5 == 0:
            u, sigma, vt = np.linalg.svd(R)
            W = R - rng.uniform(0.1, 0.5) * np.outer(u[:, -1], vt[-1])
            least, said = np.linalg.svd(W, compute_uv=False)[-1], balancedness.deficiency_margin(W, R)
            yield least + ROUNDING, said
            yield said + ROUNDING, least
        c = balancedness.deficiency_margin(np.eye(d), R)
        start = np.zeros((num_layers, d, d))
        excess = landscape.risk(start, R, np.eye(d))
        rate = 1 / landscape.smoothness_bound(np.eye(d), num_layers, 0.6 / num_layers, excess)
        found = landscape.gradient_descent(start, R, np.eye(d), rate, 30)
        W = landscape.end_to_end(found.A)
        yield np.linalg.svd(W, compute_uv=False)[-1] + ROUNDING, c
        shrinks = 2 * rate * num_layers * c ** (2 - 2 / num_layers)
        require(abs(1 - balancedness.margin_rate(num_layers, c, rate) - shrinks) < ROUNDING, "margin_rate is wrong")
        yield 1 - found.rate, 0.98 * shrinks  # 2 % for the imbalance that steps of finite size cause


@claim(
    id="ours.margin_bound",
    source="this project, related to (2.3) and Arora et al. 2019",
    statement="balanced layers, Σ = I: ‖∇f‖² ≥ 4ℓσ_min(W)^{2−2/ℓ}(f − C), a bound never below that of (2.3)",
    hypotheses={
        "balanced layers": lambda: _bound_holds(UNBALANCED, NEAR_IDENTITY, np.eye(2)),
        "Σ = I": lambda: _bound_holds(np.zeros((2, 2, 2)), 2 * np.eye(2), 0.5 * np.eye(2)),
    },
    function=balancedness.margin_bound,
    mutation=larger,
    relation="≥",
)
def margin(rng: np.random.Generator, trials: int) -> Pairs:
    """‖∇f‖² of balanced layers against the bound by σ_min(W), and that against (2.3); equality for multiples of I."""
    for trial in range(trials):
        A, W = _balanced(rng)
        R = rng.standard_normal(W.shape)
        if trial % 5 == 0:
            W = rng.uniform(0.3, 2) * np.eye(len(W))
            A = factorization.factorize(W, len(A))
        excess, smallest = landscape.risk(A, R, np.eye(len(R))), np.linalg.svd(W, compute_uv=False)[-1]
        bound = balancedness.margin_bound(len(A), smallest, excess)
        yield np.square(landscape.gradient(A, R, np.eye(len(R)))).sum() * (1 + ROUNDING), bound
        yield bound * (1 + ROUNDING), landscape.gradient_lower_bound(A, R, np.eye(len(R)))


@claim(
    id="ours.imbalance_drift",
    source="this project, related to Arora, Cohen & Hazan 2018",
    statement="a step of descent adds exactly η²(G_{i+1}ᵀG_{i+1} − G_iG_iᵀ) to N_{i+1}ᵀN_{i+1} − N_iN_iᵀ",
    function=balancedness.imbalance_drift,
    mutation=scaled(2),
)
def conservation(rng: np.random.Generator, trials: int) -> Pairs:
    """The change of the imbalances in a step against its formula; the drift over a fixed time when η is halved."""
    for _ in range(trials):
        A, R, Sigma = _problem(rng)
        gradient = landscape.gradient(A, R, Sigma)
        rate = 0.3 / np.linalg.norm(gradient)
        seen = balancedness.imbalances(A - rate * gradient) - balancedness.imbalances(A)
        yield relative_error(seen, balancedness.imbalance_drift(gradient, rate)), ROUNDING
    A, R, _ = _problem(rng)
    drifts = []
    for rate in (2e-4, 1e-4):
        found = landscape.gradient_descent(A, R, np.eye(len(R)), rate, round(0.02 / rate))
        drifts.append(np.abs(balancedness.imbalances(found.A) - balancedness.imbalances(A)).max())
    require(0.45 < drifts[1] / drifts[0] < 0.55, f"halving η changed the drift from {drifts[0]:.1e} to {drifts[1]:.1e}")


@claim(
    id="ours.drift_bound",
    source="this project, related to Arora, Cohen & Hazan 2018",
    statement=(
        "over any number of steps with η ≤ 1/L, N_{i+1}ᵀN_{i+1} − N_iN_iᵀ changes by at most 2η(f(0) − f(T)) in "
        "nuclear norm"
    ),
    hypotheses={"η ≤ 1/L": _drifts_with_a_long_step},
    function=balancedness.drift_bound,
    mutation=(scaled(0.9), scaled(1.01)),
)
def drift(rng: np.random.Generator, trials: int) -> Pairs:
    """The drift of descent, in the nuclear norm, against its bound; with equality in one instance of four."""
    for trial in range(max(4, trials // 2)):
        if trial % 4 == 0:
            A, R = np.zeros((2, 2, 2)), np.eye(2) + rng.uniform(0.1, 2) * np.eye(2)[::-1] * [[0, 1], [0, 1]]
            rate, num_steps = _least_gaining_rate(A, R), 1
        else:
            A, R, _ = _problem(rng)
            rate, num_steps = 0.05 / np.linalg.norm(R) ** 2 / len(A), 30
            while not _gains(A, R, rate, num_steps):  # the bound is about steps that gain η/2·‖∇f‖² each
                rate /= 2
        found = landscape.gradient_descent(A, R, np.eye(len(R)), rate, num_steps)
        moved = balancedness.imbalances(found.A) - balancedness.imbalances(A)
        seen = np.linalg.svd(moved, compute_uv=False).sum(1).max()
        bound = balancedness.drift_bound(rate, found.risks[0], found.risks[-1])
        yield seen, bound * (1 + ROUNDING)
        if trial % 4 == 0:
            yield bound, seen * (1 + ROUNDING)


def _least_gaining_rate(A: np.ndarray, R: np.ndarray) -> float:
    """The η at which a step gains exactly η/2·‖∇f‖²."""
    identity, gradient = np.eye(len(R)), landscape.gradient(A, R, np.eye(len(R)))
    square, start = np.square(gradient).sum(), landscape.risk(A, R, identity)

    def missing(rate: float) -> float:
        return (landscape.risk(A - rate * gradient, R, identity) - start) / rate + square / 2

    high = 1e-3
    while missing(high) < 0:
        high *= 2
    return optimize.brentq(missing, 1e-6, high, xtol=1e-15, rtol=1e-14)


def _gains(A: np.ndarray, R: np.ndarray, rate: float, num_steps: int) -> bool:
    for _ in range(num_steps):
        gradient = landscape.gradient(A, R, np.eye(len(R)))
        after = A - rate * gradient
        gain = landscape.risk(A, R, np.eye(len(R))) - landscape.risk(after, R, np.eye(len(R)))
        if gain < rate / 2 * np.square(gradient).sum():
            return False
        A = after
    return True


def _problem(rng: np.random.Generator, dimension: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d = dimension or int(rng.integers(2, 5))
    A = 0.3 * rng.standard_normal((int(rng.integers(2, 7)), d, d))
    R, root = rng.standard_normal((2, d, d))
    return A, R, root @ root.T + 0.1 * np.eye(d)


def _balanced(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Balanced layers A [ℓ, d, d] by the polar construction, and their product W."""
    d = int(rng.integers(2, 5))
    W = np.eye(d) + 0.5 * rng.standard_normal((d, d))
    if np.linalg.det(W) < 0:
        W[0] *= -1
    return factorization.factorize(W, int(rng.integers(1, 9))), W
