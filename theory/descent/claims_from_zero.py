"""Claims on which targets descent reaches, from zero or between two fixed maps: Bartlett, Zou, Wu, this project.

The reference computations share no code with the functions that they check: gradient descent on the matrices
themselves, with the gradient of `linear_residual`, which has its own checks.
"""

import functools
import math

import numpy as np
from scipy import linalg

from theory import factorization, linear_residual
from theory.claim import claim, restated
from theory.derivatives import complex_step_gradient
from theory.descent import from_zero, widened
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.linear.claims_risk import BEYOND, bound_holds
from theory.linear.rotations import rotation
from theory.mutations import changed, larger, scaled, slower, transposed, vanishing

SHEARED = np.array([[-1.0, 3.0], [0.0, -1.0]])  # neither symmetric nor normal; its eigenvalues are −1
HALF = np.eye(2) / 2  # as Σ


def _follows_recursion(R: np.ndarray, Sigma: np.ndarray | None = None) -> bool:
    """Returns whether descent from zero has the risks of the recursion."""
    return bool(
        np.allclose(_descend(R, 3, 0.01, 20, Sigma).risks, from_zero.recursion_risks(np.linalg.eigvals(R), 3, 0.01, 20))
    )


def _stays_at_floor(R: np.ndarray, Sigma: np.ndarray | None = None) -> bool:
    """Returns whether descent from zero, ℓ = 4, stays above the floor of the eigenvalues."""
    return bool(_descend(R, 4, 0.02, 150, Sigma).risks.min() >= from_zero.excess_floor(np.linalg.eigvals(R), 4, 0.02))


@restated(
    id="bhl.recursion",
    source="Bartlett, Helmbold & Long 2018, symmetric targets",
    statement="normal R, Σ = I: from zero all layers stay equal; each eigenvalue follows λ ← λ − ηλ̄^{ℓ−1}(λ^ℓ − φ)",
    hypotheses={
        "normal R": lambda: _follows_recursion(SHEARED),
        "Σ = I": lambda: _follows_recursion(-np.eye(2), HALF),
    },
    function=from_zero.recursion_risks,
    mutation=scaled(1.01),
)
def recursion(rng: np.random.Generator, trials: int) -> Pairs:
    """The risks of the recursion against those of gradient descent on all layers, for random normal R."""
    for _ in range(max(1, trials // 2)):
        R = _normal(rng, symmetric=rng.random() < 0.5)
        num_layers = int(rng.integers(1, 12))
        phi = np.linalg.eigvals(R)
        learning_rate = 0.5 / num_layers / max(1, np.abs(phi).max()) ** 2
        risks = _descend(R, num_layers, learning_rate, 40).risks
        predicted = from_zero.recursion_risks(phi, num_layers, learning_rate, 40)
        yield float(np.abs(risks - predicted).max() / risks[0]), ROUNDING


@restated(
    id="bhl.positive_definite",
    source="Bartlett, Helmbold & Long 2018, positive definite targets",
    statement=(
        "Σ = I, φ > 0, steps η > 0 that cross no root: descent from zero needs poly(ℓ, κ, log(d/ε)) steps; proved "
        "here, for the largest such η: κ^{2−2/ℓ} log(…) + 1, bounded in ℓ"
    ),
    hypotheses={
        "φ > 0": lambda: from_zero.step_bound(np.array([-1.0, 1.0]), 4, 0.01, 1e-8) > 0,
        "η > 0": lambda: from_zero.step_bound(np.ones(2), 4, 0.0, 1e-8) > 0,
        "cross no root": lambda: from_zero.step_bound(np.ones(2), 4, 0.126, 1e-8) > 0,
    },
    function=from_zero.step_bound,
    mutation=(scaled(0.6), scaled(0.9)),
)
def steps(rng: np.random.Generator, trials: int) -> Pairs:
    """Steps of descent to an excess risk of 1e-8, random positive definite R, against the bound, and that against κ."""
    for trial in range(trials):
        num_layers, size = int(rng.integers(1, 65)), int(rng.integers(1, 6))
        phi = np.exp(rng.uniform(-1, 1, size))
        share = 1 if trial % 4 == 0 else rng.uniform(0.3, 1)
        learning_rate = share * from_zero.largest_learning_rate(phi, num_layers)
        bound = from_zero.step_bound(phi, num_layers, learning_rate, 1e-8)
        risks = from_zero.recursion_risks(phi, num_layers, learning_rate, int(bound))
        yield float(np.argmax(risks <= 1e-8)) if risks[-1] <= 1e-8 else math.inf, bound
        yield bound, _condition_bound(phi, num_layers, learning_rate)
        rate = rng.uniform(0.01, 0.3)  # one layer: |w − φ| shrinks by 1 − η exactly, so the bound is met
        bound = from_zero.step_bound(phi[:1], 1, rate, 1e-8)
        num_steps = float(np.argmax(from_zero.recursion_risks(phi[:1], 1, rate, int(bound) + 1) <= 1e-8))
        yield from ((num_steps, bound), (bound, num_steps))


@restated(
    id="bhl.negative_eigenvalue",
    source="Bartlett, Helmbold & Long 2018, a negative eigenvalue",
    statement=(
        "Σ = I, symmetric R, ℓ ≥ 2, steps that cross no root: descent from zero tends to excess risk Σ_{φ<0} φ² and "
        "does not fall below it; for even ℓ with steps of any size"
    ),
    hypotheses={
        "Σ = I": lambda: _stays_at_floor(-np.eye(2), HALF),
        "symmetric R": lambda: _stays_at_floor(SHEARED),
        "ℓ ≥ 2": lambda: from_zero.excess_floor(-np.ones(2), 1, 0.1) > 0,
        "cross no root": (
            lambda: from_zero.recursion_risks(-np.ones(2), 3, 0.5, 1).min() >= 2,
            lambda: from_zero.excess_floor(-np.ones(2), 3, 0.5) > 0,
        ),
    },
    function=from_zero.excess_floor,
    mutation=scaled(1.01),
    relation="≥",
)
def floor(rng: np.random.Generator, trials: int) -> Pairs:
    """The least excess risk for symmetric R with negative eigenvalues against the floor, and the end of descent."""
    for _ in range(max(1, trials // 2)):
        phi = rng.uniform(0.3, 1.6, 4) * [-1, *rng.choice([-1, 1], 3)]
        num_layers = int(rng.integers(2, 12))
        learning_rate = rng.choice([0.1, 1]) * from_zero.largest_learning_rate(phi, num_layers)
        risks = from_zero.recursion_risks(phi, num_layers, learning_rate, 2_000)
        yield risks.min() * (1 + ROUNDING), from_zero.excess_floor(phi, num_layers, learning_rate)
        even = 2 * int(rng.integers(1, 6))
        wild = from_zero.recursion_risks(phi, even, 0.4, 30)  # far above the largest rate, until it diverges
        yield wild[np.isfinite(wild)].min() * (1 + ROUNDING), from_zero.excess_floor(phi, even, 0.4)
    R = -np.eye(2)
    small = factorization.factorize(-np.eye(2), 8)
    last = _descend(R, 8, 0.25, 2_000).risks[-1]
    end = from_zero.excess_floor(np.diag(R), 8, 0.25)
    require(abs(last - end) < 1e-6, f"descent on −I₂ ends at {last}, not at the floor")
    return (
        f"R = −I₂, ℓ = 8: descent from zero ends at excess risk {last:.4f}, though a "
        f"solution of norm {linear_residual.max_spectral_norm(small):.2f} exists; ℓ = 3, rate 0.5, across the "
        f"root 0: excess risk {', '.join(f'{risk:.0f}' for risk in _descend(R, 3, 0.5, 1).risks)}"
    )


@restated(
    id="bhl.asymmetric",
    proof="none given: only checked on numbers here",
    source="Bartlett, Helmbold & Long 2018, uᵀRu > 0",
    statement=(
        "Σ = I, uᵀRu ≥ γ|u|², γ > 0: descent with balanced layers and a product projected on uᵀWu ≥ γ|u|² reaches R; "
        "rates not checked"
    ),
    hypotheses={
        "uᵀRu ≥ γ|u|²": lambda: from_zero.balanced_projected_descent(-np.eye(2), 3, 0.02, 30, 0.5).risks[-1] < 4
    },
    function=from_zero.project_positive,
    mutation=transposed,
)
def projected(rng: np.random.Generator, trials: int) -> Pairs:
    """Balanced projected descent reaches positive asymmetric R; the projection is the nearest positive matrix."""
    for _ in range(max(1, trials // 25)):
        random = rng.standard_normal((3, 3))
        R = (random @ random.T) / 6 + 0.3 * np.eye(3) + 0.6 * (random - random.T)
        R /= max(1.0, np.linalg.norm(R, 2) / 2)  # within the stable range of the learning rate
        margin = 0.9 * np.linalg.eigvalsh((R + R.T) / 2)[0]
        path = from_zero.balanced_projected_descent(R, 6, 0.02, 400, margin)
        yield path.risks[-1] / path.risks[0], 1e-3
        W = rng.standard_normal((3, 3))
        nearest = from_zero.project_positive(W, margin)
        yield margin, np.linalg.eigvalsh((nearest + nearest.T) / 2)[0] + ROUNDING
        other = rng.standard_normal((3, 3))
        other += (margin - np.linalg.eigvalsh((other + other.T) / 2)[0]) * np.eye(3)
        # the projection on a convex set: the angle at it is obtuse for every other point of the set
        yield np.vdot(W - nearest, other - nearest), ROUNDING


@claim(
    id="ours.monotone_descent",
    source="this project, related to Bartlett, Helmbold & Long 2018",
    statement=(
        "symmetric R, Σ = I, from zero: no λ crosses its root if and only if η ≤ 1/max(Σ_k φ^{k/ℓ}, ℓφ^{2−2/ℓ}), or "
        "η ≤ 1/(1 − φ) for φ < 0, ℓ ≥ 2"
    ),
    function=from_zero.largest_learning_rate,
    mutation=(slower, larger),
)
def monotone(rng: np.random.Generator, trials: int) -> Pairs:
    """No λ crosses λ* at the largest learning rate; at a 1 % higher one some λ does, from 1 (φ < 1) or near λ*."""
    for _ in range(trials):
        num_layers = int(rng.integers(2, 40))
        phi = np.exp(rng.uniform(-3, 2, 1)) * rng.choice([-1, 1, 1], 1)
        root = np.maximum(phi, 0) ** (1 / num_layers)
        largest = from_zero.largest_learning_rate(phi, num_layers)
        side = np.sign(1 - root)
        gap = side * (from_zero.eigenvalue_recursion(phi, num_layers, largest, 400) - root)
        yield -gap.min(), 1e-12
        yield np.diff(gap, axis=0).max(), 1e-12
        start = np.where(phi > 1, root * (1 - 1e-6), 1)
        moved = start - 2.02 * largest * start ** (num_layers - 1) * (start**num_layers - phi)
        yield float((side * (moved - root))[0]), 0


@claim(
    id="ours.singular_target",
    source="this project, related to Bartlett, Helmbold & Long 2018",
    statement=(
        "symmetric R, Σ = I, from zero, ℓ ≥ 2, 0 < η ≤ 1: an eigenvalue 0 adds at most (1 + 2(ℓ−1)ηt)^{−ℓ/(ℓ−1)} to "
        "the risk after t steps"
    ),
    hypotheses={
        "ℓ ≥ 2": lambda: from_zero.singular_risk_bound(1, 0.1, 1) > 0,
        "0 < η ≤ 1": (
            lambda: from_zero.singular_risk_bound(5, 0.501, 1) > 0,
            lambda: from_zero.recursion_risks(np.zeros(1), 5, 1.2, 2)[-1] <= (1 + 2 * 4 * 2.4 * 2) ** -1.25,
        ),
    },
    function=from_zero.singular_risk_bound,
    mutation=(scaled(0.9), scaled(1.01)),
)
def singular(rng: np.random.Generator, trials: int) -> Pairs:
    """An eigenvalue 0: the excess risk against its bound, and the bound against the excess risk for small steps.

    A step takes x = λ^{−p}, p = 2ℓ − 2, to x (1 − u)^{−p}, u ≤ η, which is at most x (1 + pu (1 − u)^{−p−1}), the
    function being convex. So x grows by at most pη(1 − η)^{−p−1}; the bound is off by at most (1 − η)^{−(p+1)ℓ/(ℓ−1)}.
    """
    for _ in range(trials):
        num_layers, num_steps = int(rng.integers(2, 65)), int(rng.integers(0, 2_000))
        for rate in (0.5, rng.uniform(0.01, 0.5), rng.uniform(0.5, 1) * 1e-3 / num_layers):
            risk = from_zero.recursion_risks(np.zeros(1), num_layers, rate, num_steps)[-1]
            bound = from_zero.singular_risk_bound(num_layers, rate, num_steps)
            yield risk, bound * (1 + ROUNDING)
        power = (2 * num_layers - 1) * num_layers / (num_layers - 1)
        yield bound, risk * (1 - 2 * rate) ** -power * (1 + ROUNDING)  # η is 2·rate


@claim(
    id="ours.straight_line",
    source="this project, related to Bartlett, Helmbold & Long 2018",
    statement=(
        "normal R, Σ = I: under gradient flow from zero λ^ℓ moves on the straight line from 1 to φ; for ℓ ≥ 2 it "
        "fails to reach φ if and only if φ is negative"
    ),
    function=from_zero.distance_to_zero,
    mutation=(larger, scaled(0.9)),
)
def straight_line(rng: np.random.Generator, trials: int) -> Pairs:
    """Small steps for rotations: w stays on the line from 1 to φ, and the risk below exp(−4ℓm^{2−2/ℓ}t)."""
    for _ in range(max(1, trials // 10)):
        phi = np.atleast_1d(rng.uniform(0.5, 1.5) * np.exp(1j * rng.uniform(0.1, 2.6)))
        num_layers = int(rng.integers(2, 9))
        rate = 1e-4
        num_steps = 5_000
        w = from_zero.eigenvalue_recursion(phi, num_layers, rate, num_steps)[:, 0] ** num_layers
        off = np.abs(((w - 1) * np.conj(phi - 1)).imag).max() / np.abs(phi - 1)[0]
        yield off, 20 * rate * num_layers
        exponent = -4 * num_layers * from_zero.distance_to_zero(phi)[0] ** (2 - 2 / num_layers) * rate * num_steps
        risk = np.square(np.abs(w[-1] - phi[0]) / np.abs(1 - phi[0]))
        yield risk, math.exp(exponent) * 1.05 + 1e-12  # 5 % for the steps' size
        line = 1 + np.linspace(0, 1, 10_001) * (phi[0] - 1)
        yield abs(np.abs(line).min() - from_zero.distance_to_zero(phi)[0]), 1e-4


@restated(
    id="wwm.zero_asymmetric",
    source="Wu, Wang & Ma 2019",
    statement=(
        "any R, of the same width: from N_ℓ = 0 and the others I, descent reaches R in O(ℓ³ log(1/ε)) steps; proved "
        "here: gradient flow multiplies f − C by at most e^{−4σ_min(Σ)t}, at every depth"
    ),
    after="ours.widened_gradient_bound",
    function=from_zero.asymmetric_flow_bound,
    mutation=(scaled(0.9), scaled(1.1)),
    hypotheses={"N_ℓ = 0": lambda: _descend(-np.eye(2), 8, 0.01, 200).risks[-1] <= 8 * math.exp(-8)},
)
def zero_last_layer(rng: np.random.Generator, trials: int) -> Pairs:
    """Small steps from N_ℓ = 0 against the bound for gradient flow, equal for ℓ = 1, Σ = sI; and R = −I₂, ℓ = 8."""
    for _ in range(max(1, trials // 4)):
        num_layers, d = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        R, root = rng.standard_normal((2, d, d))
        Sigma = root @ root.T + 0.1 * np.eye(d)
        start = from_zero.asymmetric_start(num_layers, d)
        require(not (start[-1] + np.eye(d)).any() and not start[:-1].any(), "the start is not N_ℓ = 0 and the others I")
        rate = 0.01 / num_layers / np.linalg.norm(Sigma, 2) / max(1, np.linalg.norm(R, 2) ** 2)
        risks = linear_residual.gradient_descent(start, R, Sigma, rate, 50).risks
        yield risks[-1] / risks[0], from_zero.asymmetric_flow_bound(Sigma, 50 * rate)
        scale = rng.uniform(0.5, 2)  # one layer: f shrinks by (1 − 2sη)² a step exactly
        risks = linear_residual.gradient_descent(start[-1:], R, scale * np.eye(d), 1e-4, 50).risks
        bound = from_zero.asymmetric_flow_bound(scale * np.eye(d), 50e-4)
        remaining = risks[-1] / risks[0]
        yield from ((remaining, bound), (bound, remaining * (1 + 1e-3)))
    risks = linear_residual.gradient_descent(from_zero.asymmetric_start(8, 2), -np.eye(2), np.eye(2), 0.01, 200).risks
    yield risks[-1], 1e-30
    return (
        f"R = −I₂, ℓ = 8, rate 0.01: excess risk {risks[-1]:.0e} after 200 steps; descent from zero stays above "
        f"{from_zero.excess_floor(-np.ones(2), 8, 0.01):.0f}"
    )


hasty = changed(lambda promise: promise._replace(rate=0.4 * promise.rate))
NARROW = widened.Widened(np.ones((1, 2)), np.ones((1, 1)), np.ones((1, 2)), np.eye(2))  # m = 1 < d = 2


def _shrinks(problem: widened.Widened, num_layers: int, learning_rate: float) -> bool:
    """Returns whether each of 20 steps from zero multiplies f by at most 1 − 2ηℓμ_A²μ_B²/e; Σ = I."""
    risks = widened.descend(problem, num_layers, learning_rate, 20)[1]
    gain = 2 * learning_rate * num_layers * problem.spread()[0] ** 2 / math.e
    return bool((risks[1:] <= (1 - gain) * risks[:-1]).all())


TWICE_MINUS_ONE = widened.identity_maps(-np.eye(2), math.sqrt(4 * math.exp(1.5) * math.sqrt(2)))
WITHOUT_MAPS = widened.Widened(np.eye(2), np.eye(2), -np.eye(2), np.eye(2))  # descent stops at zero


@restated(
    id="zlg.theorem_3.1",
    source="Zou, Long & Gu 2020, Theorem 3.1",
    statement=(
        "fixed maps A [m, d], B [k, m], m ≥ d, k, √f(0) ≤ σ_min(Σ)μ_A²μ_B²/(4e^{3/2}‖A‖‖B‖‖Σ‖^½): each step η ≤ 1/L "
        "from zero multiplies f by at most 1 − 2ηℓσ_min(Σ)μ_A²μ_B²/e"
    ),
    hypotheses={
        "m ≥ d, k": lambda: widened.guarantee(NARROW, 2).applies,
        "√f(0) ≤ σ_min(Σ)μ_A²μ_B²/(4e^{3/2}‖A‖‖B‖‖Σ‖^½)": (
            lambda: _shrinks(WITHOUT_MAPS, 8, widened.guarantee(WITHOUT_MAPS, 8).learning_rate)
        ),
        "η ≤ 1/L": lambda: _shrinks(TWICE_MINUS_ONE, 4, 8 * widened.guarantee(TWICE_MINUS_ONE, 4).learning_rate),
    },
    after="bhl.asymmetric",
    function=widened.guarantee,
    mutation=(
        hasty,
        changed(lambda guarantee: guarantee._replace(allowed=1e6 * guarantee.allowed, applies=True)),
        changed(lambda guarantee: guarantee._replace(applies=True)),
        changed(lambda guarantee: guarantee._replace(rate=1.0)),
    ),
)
def widened_rate(rng: np.random.Generator, trials: int) -> Pairs:
    """Descent from zero reaches targets of any sign at the guaranteed rate, inside max ‖W_i‖ ≤ 1/(2ℓ); its constants.

    Every second problem has any A, B and Σ, and the largest f(0) that is allowed.
    """
    for trial in range(max(2, trials // 10)):
        if trial % 2:
            problem = _general(rng)
            num_layers = int(rng.integers(1, 9))
            guarantee = widened.guarantee(problem, num_layers)
            start = widened.descend(problem, num_layers, 0.0, 0)[1][0]
            yield abs(math.sqrt(start) / guarantee.allowed - 1), 1e-8  # a root near 0 of numbers near 1
        else:
            R = -np.eye(2) if trial == 0 else rng.standard_normal(rng.integers(1, 4, 2))
            scale = math.sqrt(4 * math.exp(1.5) * np.linalg.norm(R) * (1 + 1e-9))
            problem = widened.identity_maps(R, scale)
            num_layers = int(rng.integers(1, 33))
            guarantee = widened.guarantee(problem, num_layers)
            beyond = widened.identity_maps(R, scale * (1 - 1e-6))
            require(not widened.guarantee(beyond, num_layers).applies, "the guarantee applies beyond its bound")
            yield abs(guarantee.allowed / (scale**2 / (4 * math.exp(1.5))) - 1), ROUNDING
            gain = 2 * guarantee.learning_rate * num_layers * scale**4 / math.e
            yield abs((1 - guarantee.rate) / gain - 1), ROUNDING
        require(guarantee.applies, "the guarantee does not apply where it should")
        layers, risks = widened.descend(problem, num_layers, guarantee.learning_rate, 20)
        yield float((risks[1:] / np.maximum(risks[:-1], 1e-25 * risks[0])).max()), guarantee.rate
        yield linear_residual.max_spectral_norm(layers), 1 / (2 * num_layers)


@claim(
    id="ours.widened_gradient_bound",
    source="this project, related to (2.3)",
    statement=(
        "‖∇f‖² ≥ 4ℓ μ_A² μ_B² (1−τ)^{2ℓ−2} σ_min(Σ) f with fixed maps A [m, d], B [k, m] around the network, m ≥ d, k, "
        "max ‖W_i‖ ≤ τ < 1"
    ),
    hypotheses={
        "m ≥ d, k": lambda: widened.gradient_lower_bound(NARROW, np.zeros((2, 1, 1))) > 0,
        "max ‖W_i‖ ≤ τ < 1": lambda: bound_holds(*BEYOND),  # A = B = 1
    },
    after="zlg.theorem_3.1",
    function=widened.gradient_lower_bound,
    mutation=(larger, vanishing),
    relation="≥",
)
def widened_bound(rng: np.random.Generator, trials: int) -> Pairs:
    """‖∇f‖² of widened networks against the bound, equal for A = B = sI, W_i = −τI, Σ = I; the gradient itself."""
    errors = []
    for trial in range(trials):
        k, d = (int(size) for size in rng.integers(1, 4, 2))
        m = max(k, d) + int(rng.integers(0, 3))
        num_layers = int(rng.integers(1, 6))
        root = rng.standard_normal((d, d))
        problem = widened.Widened(
            rng.standard_normal((m, d)), rng.standard_normal((k, m)), rng.standard_normal((k, d)),
            root @ root.T + 0.1 * np.eye(d),
        )  # fmt: skip
        layers = rng.standard_normal((num_layers, m, m))
        layers *= rng.uniform(0.02, 0.9) / np.linalg.norm(layers, 2, axis=(1, 2), keepdims=True)
        gradient = widened.risk_and_gradient(problem, layers)[1]
        if trial < 5:
            reference = complex_step_gradient(functools.partial(_widened_risk, problem), layers)
            errors.append(relative_error(gradient, reference))
        yield np.square(gradient).sum() * (1 + ROUNDING), widened.gradient_lower_bound(problem, layers)
        scaled = rng.uniform(0.5, 2) * np.eye(d)
        eye = np.eye(d)
        problem = widened.Widened(scaled, scaled, rng.standard_normal((d, d)), eye)
        layers = -rng.uniform(0.02, 0.9) * np.repeat(eye[None], num_layers, axis=0)
        square = np.square(widened.risk_and_gradient(problem, layers)[1]).sum()
        bound = widened.gradient_lower_bound(problem, layers)
        yield from ((square * (1 + ROUNDING), bound), (bound * (1 + ROUNDING), square))
    require(max(errors) < ROUNDING, f"the gradient of the widened network is off by {max(errors):.1e}")


def _condition_bound(phi: np.ndarray, num_layers: int, learning_rate: float) -> float:
    """Returns κ^{2−2/ℓ} log(…) + 1 at the largest learning rate, and in proportion below it."""
    high, low = max(phi.max(), 1), min(phi.min(), 1)
    growth = num_layers * high ** (1 - 1 / num_layers) / np.sum(high ** (np.arange(num_layers) / num_layers))
    ratio = max(1.0, growth * np.abs(1 - phi).max() * math.sqrt(len(phi) / 1e-8))
    share = learning_rate / from_zero.largest_learning_rate(phi, num_layers)
    return (high / low) ** (2 - 2 / num_layers) / share * math.log(ratio) + 1


def _normal(rng: np.random.Generator, symmetric: bool) -> np.ndarray:
    """Returns a random normal R [4, 4] with eigenvalues of size 0.3 … 1.6: symmetric, or two turned planes."""
    basis = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    sizes = rng.uniform(0.3, 1.6, 4)
    if symmetric:
        return (basis * (sizes * rng.choice([-1, 1], 4))) @ basis.T
    planes = [size * rotation(angle) for size, angle in zip(sizes, rng.uniform(0, math.pi, 2))]
    return basis @ linalg.block_diag(*planes) @ basis.T


def _descend(
    R: np.ndarray, num_layers: int, learning_rate: float, num_steps: int, Sigma: np.ndarray | None = None
) -> linear_residual.Descent:
    """Returns the path of descent from zero; Σ = I if none is given."""
    start = np.zeros((num_layers, *R.shape))
    Sigma = np.eye(len(R)) if Sigma is None else Sigma
    return linear_residual.gradient_descent(start, R, Sigma, learning_rate, num_steps)


def _general(rng: np.random.Generator) -> widened.Widened:
    """Returns random A, B, Σ and an R near BA; √f(0) is what the guarantee allows, less 1e-9 of it."""
    k, d = (int(size) for size in rng.integers(1, 4, 2))
    m = max(k, d) + int(rng.integers(0, 3))
    root = rng.standard_normal((d, d))
    inward = rng.standard_normal((m, d))
    outward = rng.standard_normal((k, m))
    Sigma = root @ root.T + 0.1 * np.eye(d)
    values = (np.linalg.svd(inward)[1], np.linalg.svd(outward)[1], np.linalg.eigvalsh(Sigma))
    (high_a, high_b, high), (low_a, low_b, low) = ([f(v) for v in values] for f in (np.max, np.min))
    allowed = low * (low_a * low_b) ** 2 / (4 * math.exp(1.5) * high_a * high_b * math.sqrt(high))
    off = rng.standard_normal((k, d))
    off *= allowed * (1 - 1e-9) / np.linalg.norm(off @ np.linalg.cholesky(Sigma))
    return widened.Widened(inward, outward, outward @ inward + off, Sigma)


def _widened_risk(problem: widened.Widened, layers: np.ndarray) -> complex:
    """Returns ‖E Σ^½‖²_F, summed by columns of a root of Σ, for complex layers."""
    hidden = problem.inward @ np.linalg.cholesky(problem.Sigma)
    for layer in layers:
        hidden = hidden + layer @ hidden
    E = problem.outward @ hidden - problem.R @ np.linalg.cholesky(problem.Sigma)
    return (E * E).sum()
