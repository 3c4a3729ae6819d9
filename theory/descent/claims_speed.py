"""Claims on how fast descent moves: how long zero holds n-shortcut networks, and balanced layers (Arora et al.)."""

import math

import numpy as np

from theory import factorization, linear_residual, shortcut_hessians
from theory.claim import claim, restated
from theory.descent import balancedness, saddle_escape, update_rules
from theory.descent.saddle_escape import HALVING_SHARE
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.mutations import changed, larger, scaled, vanishing

RATES = {"descent": 0.02, "momentum": 0.0005, "orthogonalised": 0.01}


@claim(
    id="ours.saddle_order",
    source="this project, related to Li et al., Theorem 1",
    statement=(
        "linear, Σxx = I: to halve the loss, descent needs at least ∫dN/Nⁿ⁻¹/(ηg) steps, momentum (1 − μ) times as "
        "many, orthogonalised updates ΔN/η"
    ),
    function=saddle_escape.least_steps,
    mutation=(scaled(5), vanishing, scaled(0.7), larger),
    relation="≥",
)
def order(rng: np.random.Generator, trials: int) -> Pairs:
    """Steps measured from random starts against the proved least number, and their growth as the start shrinks.

    On aligned starts with gap = σ·(orthogonal) the least number is also bounded from above: orthogonalised updates
    take less than a step more. Descent moves w by ηwⁿ⁻¹(σ − wⁿ), h = 1 − √½ of σ less at most, against ηwⁿ⁻¹(1 + h)σ
    for the least number; and a step multiplies w by 1 + z, log(1 + z) ≥ z/(1 + z), z ≤ ησ for n ≥ 2.
    """
    for depth in (1, 2, 3):
        for method in update_rules.METHODS:
            for _ in range(max(1, trials // 50)):
                gap = rng.standard_normal((3, 3))
                size = 0.03 if depth < 3 else 0.15
                start = size * rng.standard_normal((int(rng.integers(1, 4)), depth, 3, 3))
                steps = saddle_escape.steps_to_leave(method, start, gap, RATES[method], 40_000)
                yield steps, saddle_escape.least_steps(method, start, gap, RATES[method])
        sigma = rng.uniform(0.5, 2)
        gap = sigma * np.linalg.qr(rng.standard_normal((3, 3)))[0]
        start = saddle_escape.aligned_start(0.1, depth, gap)
        slowest = (1 + HALVING_SHARE) / (1 - HALVING_SHARE) * (1 + RATES["descent"] * sigma)
        for method, factor in (("descent", slowest), ("orthogonalised", 1)):
            steps = saddle_escape.steps_to_leave(method, start, gap, RATES[method], 40_000)
            least = saddle_escape.least_steps(method, start, gap, RATES[method])
            yield from ((steps, least), (factor * least + 1, steps))
        momentum, descent = (saddle_escape.least_steps(name, start, gap, 0.01) for name in ("momentum", "descent"))
        share = 1 - update_rules.MOMENTUM
        require(abs(momentum - share * descent) <= ROUNDING * descent, "momentum's least is not 1 − μ of descent's")
    gap = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    start = rng.standard_normal((2, 3, 3, 3))
    slow, fast = (
        [saddle_escape.steps_to_leave(method, size * start, gap, 0.02, 40_000) for size in (0.04, 0.02)]
        for method in ("descent", "orthogonalised")
    )
    require(slow[1] > 1.6 * slow[0], f"halving the start, n = 3, took descent from {slow[0]} to {slow[1]} steps only")
    require(fast[1] < 1.2 * fast[0], f"halving the start took orthogonalised updates from {fast[0]} to {fast[1]} steps")
    return (
        f"n = 3, start halved: descent {slow[0]:.0f} → {slow[1]:.0f} steps, "
        f"orthogonalised {fast[0]:.0f} → {fast[1]:.0f}"
    )


@claim(
    id="ours.saddle_time",
    source="this project, related to Li et al., Theorem 1",
    statement=(
        "linear, Σxx = I, one unit, small steps: aligned starts of size w leave zero in a time of order 1, log(1/w), "
        "1/w for n = 1, 2, 3; orthogonalised updates take (w₁ − w)/η steps"
    ),
    function=saddle_escape.predicted_steps,
    mutation=(scaled(1.4), scaled(0.7), scaled(1.01)),
)
def prediction(rng: np.random.Generator, trials: int) -> Pairs:
    """Steps from aligned starts against the predicted ones: off by at most 10 % and the first 1/(1 − μ) steps."""
    for depth in (1, 2, 3):
        for method in update_rules.METHODS:
            for _ in range(max(1, trials // 50)):
                gap = rng.uniform(0.5, 2) * np.linalg.qr(rng.standard_normal((3, 3)))[0]
                size = rng.uniform(0.02, 0.3) if depth < 3 else rng.uniform(0.1, 0.3)
                start = saddle_escape.aligned_start(size, depth, gap)
                rate = RATES[method]
                sigma = float(np.linalg.norm(gap, 2))
                predicted = saddle_escape.predicted_steps(method, depth, sigma, size, rate)
                steps = saddle_escape.steps_to_leave(method, start, gap, rate, 20_000)
                if method == "descent" and depth < 3:
                    exact = _integral(depth, sigma, size) / rate
                    yield abs(predicted - exact), ROUNDING * exact
                yield abs(steps - predicted), 0.1 * predicted + (10 if method == "momentum" else 2)


@claim(
    id="li.no_more_difficult",
    source="Li et al., abstract, “makes training very deep models no more difficult than shallow ones”",
    statement=(
        "n = 2, linear, small starts: cond(H) at zero is the same at every depth; descent to a target near I takes no "
        "more steps with 16 units than with one, to −I₂ several times as many"
    ),
    verdict=(
        "depends on the reading: for the condition number at zero, holds; for the number of training steps, "
        "false for targets far from I, such as −I₂, where the condition number is 1 at every depth"
    ),
    proof="wrong: the condition number at zero does not determine the steps: for n = 1 it grows, they do not",
    after="li.one_shortcut_growth",
    function=saddle_escape.steps_to_leave,
    mutation=(scaled(0), changed(lambda steps: 100 - steps)),
)
def depth_makes_no_difference(rng: np.random.Generator, trials: int) -> Pairs:
    """Steps of descent to a hundredth of the loss with 1 and 16 units, targets near I and −I₂; condition numbers."""

    def steps(units: int, depth: int, gap: np.ndarray, rate: float) -> float:
        start = (0.05 if depth == 2 else 0) * rng.standard_normal((units, depth, 2, 2))
        return saddle_escape.steps_to_leave("descent", start, gap, rate, 600, share=0.01)

    def condition(gap: np.ndarray, units: int, depth: int) -> float:
        return shortcut_hessians.condition_number_at_zero(np.eye(2), np.eye(2) + gap.T, units, depth)

    for _ in range(max(1, trials // 25)):
        basis = np.linalg.qr(rng.standard_normal((2, 2)))[0]
        gap = (basis * (rng.choice([-1, 1], 2) * rng.uniform(0.25, 0.5, 2))) @ basis.T
        yield steps(16, 2, gap, 0.2), steps(1, 2, gap, 0.2)
        yield abs(condition(gap, 16, 2) / condition(gap, 1, 2) - 1), ROUNDING
        require(condition(gap, 16, 1) > 31, "for n = 1 the condition number does not grow")  # R/(2σ_min(gap)) ≥ 32
        yield steps(16, 1, gap, 0.3 / 16), 2 * steps(2, 1, gap, 0.3 / 2)
    far = -2 * np.eye(2)
    shallow, deep = (float(np.median([steps(units, 2, far, 0.2) for _ in range(5)])) for units in (1, 16))
    require(1 < shallow < deep / 1.5, f"to −I₂ one unit takes {shallow} steps, 16 take {deep}")
    return (
        f"target −I₂, cond(H) = {condition(far, 16, 2):.0f} at every depth: one unit takes {shallow:.0f} steps to a "
        f"hundredth of the loss, 16 units take {deep:.0f} (median of 5 starts)"
    )


# Layers of product I whose imbalance makes the gradient at R = I + 0.05 e₂e₁ᵀ small: N₁ = diag(s, 1/s), N₂ = N₁⁻¹.
UNBALANCED = np.stack([np.diag([0.2, 5.0]), np.diag([5.0, 0.2])]) - np.eye(2)
NEAR_IDENTITY = np.array([[1.0, 0.0], [0.05, 1.0]])


def _bound_holds(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> bool:
    """Returns whether ‖∇f‖² ≥ 4ℓσ_min(W)^{2−2/ℓ}(f − C)."""
    smallest = np.linalg.svd(linear_residual.end_to_end(A), compute_uv=False)[-1]
    bound = 4 * len(A) * smallest ** (2 - 2 / len(A)) * linear_residual.risk(A, R, Sigma)
    return bool(np.square(linear_residual.gradient(A, R, Sigma)).sum() >= bound)


def _keeps_rate(A: np.ndarray, R: np.ndarray, factor: float = 1.0) -> bool:
    """Returns whether 30 steps of factor/L shrink the excess risk at the rate of the margin; Σ = I."""
    norm = linear_residual.max_spectral_norm(A)
    excess = linear_residual.risk(A, R, np.eye(len(R)))
    rate = factor / linear_residual.smoothness_bound(np.eye(len(R)), len(A), norm, excess)
    c = balancedness.deficiency_margin(linear_residual.end_to_end(A), R)
    measured_rate = linear_residual.gradient_descent(A, R, np.eye(len(R)), rate, 30).rate
    return bool(1 - measured_rate >= 0.98 * 2 * rate * len(A) * c ** (2 - 2 / len(A)))


def _velocity_is_predicted(A: np.ndarray) -> bool:
    """Returns whether the powers of W give the velocity of the product of these layers at R = 0, Σ = I."""
    W = linear_residual.end_to_end(A)
    zero = np.zeros((2, 2))
    identity = np.eye(2)
    predicted = balancedness.product_velocity(W, 2 * W, len(A))
    return bool(np.allclose(balancedness.first_order_velocity(A, zero, identity), predicted))


def _margin_without_identity() -> bool:
    """Returns whether σ_min(W) ≥ c once f has fallen from 0.04 to 0.01: Σ = diag(1, 0.01), W now diag(1, 0)."""
    R = np.eye(2)
    Sigma = np.diag([1.0, 0.01])
    start = np.diag([0.8, 1.0])
    later = np.diag([1.0, 0.0])
    falls = linear_residual.risk(later[None] - R, R, Sigma) <= linear_residual.risk(start[None] - R, R, Sigma)
    return not falls or bool(np.linalg.svd(later)[1][-1] >= balancedness.deficiency_margin(start, R))


def _drifts_with_a_long_step() -> bool:
    """Returns whether the drift stays within 2η(f(0) − f(T)) although a step of 1 makes f rise."""
    A = np.zeros((2, 2, 2))
    R = np.array([[1.0, 2.0], [0.0, 1.0]])
    path = linear_residual.gradient_descent(A, R, np.eye(2), 1.0, 1)
    moved = np.linalg.norm(balancedness.imbalances(path.A)[0], "nuc")
    return bool(moved <= balancedness.drift_bound(1.0, path.risks[0], path.risks[-1]))


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
        predicted = balancedness.product_velocity(W, 2 * (W - R) @ Sigma, len(A))
        yield relative_error(balancedness.first_order_velocity(A, R, Sigma), predicted), ROUNDING
        step = 1e-6
        moved = linear_residual.end_to_end(A - step * linear_residual.gradient(A, R, Sigma)) - W
        yield relative_error(moved / step, predicted), 1e-2


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
        layers = np.eye(len(W)) + A
        direct = 0
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
            least = np.linalg.svd(W, compute_uv=False)[-1]
            margin = balancedness.deficiency_margin(W, R)
            yield least + ROUNDING, margin
            yield margin + ROUNDING, least
        c = balancedness.deficiency_margin(np.eye(d), R)
        start = np.zeros((num_layers, d, d))
        excess = linear_residual.risk(start, R, np.eye(d))
        rate = 1 / linear_residual.smoothness_bound(np.eye(d), num_layers, 0.6 / num_layers, excess)
        path = linear_residual.gradient_descent(start, R, np.eye(d), rate, 30)
        W = linear_residual.end_to_end(path.A)
        yield np.linalg.svd(W, compute_uv=False)[-1] + ROUNDING, c
        shrinks = 2 * rate * num_layers * c ** (2 - 2 / num_layers)
        require(abs(1 - balancedness.margin_rate(num_layers, c, rate) - shrinks) < ROUNDING, "margin_rate is wrong")
        yield 1 - path.rate, 0.98 * shrinks  # 2 % for the imbalance that steps of finite size cause


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
        excess = linear_residual.risk(A, R, np.eye(len(R)))
        smallest = np.linalg.svd(W, compute_uv=False)[-1]
        bound = balancedness.margin_bound(len(A), smallest, excess)
        yield np.square(linear_residual.gradient(A, R, np.eye(len(R)))).sum() * (1 + ROUNDING), bound
        yield bound * (1 + ROUNDING), linear_residual.gradient_lower_bound(A, R, np.eye(len(R)))


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
        gradient = linear_residual.gradient(A, R, Sigma)
        rate = 0.3 / np.linalg.norm(gradient)
        drift = balancedness.imbalances(A - rate * gradient) - balancedness.imbalances(A)
        yield relative_error(drift, balancedness.imbalance_drift(gradient, rate)), ROUNDING
    A, R, _ = _problem(rng)
    drifts = []
    for rate in (2e-4, 1e-4):
        path = linear_residual.gradient_descent(A, R, np.eye(len(R)), rate, round(0.02 / rate))
        drifts.append(np.abs(balancedness.imbalances(path.A) - balancedness.imbalances(A)).max())
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
            A = np.zeros((2, 2, 2))
            R = np.eye(2) + rng.uniform(0.1, 2) * np.eye(2)[::-1] * [[0, 1], [0, 1]]
            # f(0) − f(1) = (8η − 16η²)‖R − I‖², and ‖∇f‖² = 8‖R − I‖²: the gain is η/2·‖∇f‖².
            rate = 0.25
            num_steps = 1
        else:
            A, R, _ = _problem(rng)
            rate = 0.05 / np.linalg.norm(R) ** 2 / len(A)
            num_steps = 30
            while not _gains(A, R, rate, num_steps):  # the bound is about steps that gain η/2·‖∇f‖² each
                rate /= 2
        path = linear_residual.gradient_descent(A, R, np.eye(len(R)), rate, num_steps)
        moved = balancedness.imbalances(path.A) - balancedness.imbalances(A)
        largest = np.linalg.svd(moved, compute_uv=False).sum(1).max()
        bound = balancedness.drift_bound(rate, path.risks[0], path.risks[-1])
        yield largest, bound * (1 + ROUNDING)
        if trial % 4 == 0:
            yield bound, largest * (1 + ROUNDING)


def _integral(shortcut_depth: int, gap: float, start: float) -> float:
    """Returns T of `predicted_steps` in closed form, for n = 1 and 2; 0 for a start beyond w₁."""
    end = max((HALVING_SHARE * gap) ** (1 / shortcut_depth), start)
    if shortcut_depth == 1:
        return math.log((gap - start) / (gap - end))
    return math.log((end / start) ** 2 * (gap - start**2) / (gap - end**2)) / (2 * gap)


def _gains(A: np.ndarray, R: np.ndarray, rate: float, num_steps: int) -> bool:
    for _ in range(num_steps):
        gradient = linear_residual.gradient(A, R, np.eye(len(R)))
        after = A - rate * gradient
        gain = linear_residual.risk(A, R, np.eye(len(R))) - linear_residual.risk(after, R, np.eye(len(R)))
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
    """Returns balanced layers A [ℓ, d, d] by the polar construction, and their product W."""
    d = int(rng.integers(2, 5))
    W = np.eye(d) + 0.5 * rng.standard_normal((d, d))
    if np.linalg.det(W) < 0:
        W[0] *= -1
    return factorization.factorize(W, int(rng.integers(1, 9))), W
