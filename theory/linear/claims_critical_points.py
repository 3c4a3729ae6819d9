"""Claims on critical points of linear networks and on descent in a ball: Hardt & Ma §1 and §2, the review, the blog."""

import math

import numpy as np
from scipy import optimize

from theory import linear_residual
from theory.claim import claim
from theory.evidence import ROUNDING, Pairs, require
from theory.linear.claims_risk import BEYOND, bound_holds, draw_layers, draw_problem, forward_by_hand, risk_by_hand
from theory.linear.rotations import rotation
from theory.mutations import changed, scaled, slower, vanishing

STEPS = "steps η ≤ 1/L inside a ball with τ < 1 multiply f − C by at most 1 − 2ηℓ(1−τ)^{2ℓ−2} σ_min(Σ)"
HALF = np.full((1, 1, 1), 0.5)
ONE = np.ones((1, 1))
MINUS_IDENTITY = -np.eye(2)[None].repeat(2, axis=0)  # two layers
steeper = changed(lambda rate: 1 - 1.01 * (1 - rate))


def _keeps_rate(
    learning_rate: float, A: np.ndarray = HALF, R: np.ndarray = ONE, Sigma: np.ndarray = ONE, steps: int = 10
) -> bool:
    """Returns whether steps in the ball of radius |||A|||, of any size, shrink the risk at the rate of (2.3)."""
    radius = linear_residual.max_spectral_norm(A)
    rate = linear_residual.gradient_descent(A, R, Sigma, learning_rate, steps, radius).rate
    return bool(rate <= 1 - 2 * learning_rate * len(A) * (1 - radius) ** (2 * len(A) - 2))


def _ends_at_minima(A: np.ndarray, R: np.ndarray) -> bool:
    """Returns whether A is not a critical point, or one of zero excess risk; Σ = I."""
    identity = np.eye(len(R))
    return bool(linear_residual.gradient(A, R, identity).any() or linear_residual.risk(A, R, identity) == 0)


@claim(
    id="hm.convergence",
    source="Hardt & Ma, after (2.3)",
    statement=STEPS,
    hypotheses={"η ≤ 1/L": lambda: _keeps_rate(1.0), "τ < 1": lambda: _keeps_rate(0.1, *BEYOND)},
    verdict="holds: for steps of at most 1/L, as in the reference it cites; not for every longer step",
    proof="complete: in its reference, Karimi et al. 2016",
)
@claim(
    id="review.convergence",
    source="review, “gradient descent is guaranteed to converge”",
    statement=STEPS,
    hypotheses={"η ≤ 1/L": lambda: _keeps_rate(1.0), "τ < 1": lambda: _keeps_rate(0.1, *BEYOND)},
    verdict="depends on the reading: for steps of at most 1/L, holds; for any step, as printed, false",
    proof="none given",
    after="review.eq_6",
)
@claim(
    id="blog.convergence",
    source="blog, note 5, “does guarantee convergence”",
    statement=STEPS,
    hypotheses={"η ≤ 1/L": lambda: _keeps_rate(1.0), "τ < 1": lambda: _keeps_rate(0.1, *BEYOND)},
    verdict="holds: for steps of at most 1/L, as in the paper's reference, which it cites",
    proof="none given",
    restates="hm.convergence",
    after="blog.note_4",
    function=linear_residual.convergence_rate_bound,
    mutation=(slower, scaled(0.9), steeper),
)
def descent(rng: np.random.Generator, trials: int) -> Pairs:
    """The rate of projected descent with steps of at most 1/L against the rate of (2.3); and a step that is longer."""
    yield from _rates(rng, trials)
    for _ in range(trials):  # one layer in one dimension: a step multiplies f − C by (1 − 2ησ)², which can be small
        Sigma = np.array([[rng.uniform(0.5, 2)]])
        rate = rng.uniform(0.001, 0.3) / Sigma[0, 0]
        end = linear_residual.gradient_descent(np.zeros((1, 1, 1)), np.array([[1.5]]), Sigma, rate, 30)
        yield end.rate, linear_residual.convergence_rate_bound(Sigma, 1, 0.5, rate)
    for _ in range(trials):  # the step at which (2.3) and a gain of η/2·‖∇f‖² promise a tenth
        A, R, Sigma = draw_problem(rng)
        step = 0.2 * linear_residual.risk(A, R, Sigma) / linear_residual.gradient_lower_bound(A, R, Sigma)
        bound = linear_residual.convergence_rate_bound(Sigma, len(A), linear_residual.max_spectral_norm(A), step)
        yield abs(bound - 0.9), ROUNDING
    end = linear_residual.gradient_descent(HALF, ONE, ONE, 1.0, 1000, radius=0.5)
    require(end.risks.min() == end.risks.max() > 0, "a step of 2/L converges")
    return (
        "a step of 2/L: d = ℓ = 1, R = Σ = 1, A = ½, η = 1: the iterates stay in the ball of radius ½ "
        f"and the excess risk stays at {end.risks[-1]:.2f}"
    )


@claim(
    id="hm.theorem_2.2",
    source="Hardt & Ma, Theorem 2.2",
    statement="for τ < 1 every critical point with |||A||| ≤ τ is a global minimum",
    hypotheses={"τ < 1": lambda: _ends_at_minima(MINUS_IDENTITY, np.diag([2.0, 1.0]))},
    proof="repaired: for a singular Σ (2.3) is vacuous; ∇f = 0 implies EΣ = 0, so EΣ^½ = 0",
)
@claim(
    id="blog.theorem_1",
    source="blog, Theorem 1",
    statement="Theorem 2.2 as Hardt & Ma state it",
    proof="none given",
    restates="hm.theorem_2.2",
    function=linear_residual.gradient,
    mutation=vanishing,
)
def theorem_2_2(rng: np.random.Generator, trials: int) -> Pairs:
    """Critical points found by solving ∇f = 0 from random starts: the excess risk of those with |||A||| ≤ 0.9.

    Nearer to 1 the bound of (2.3) is almost 0, and a gradient of 1e-9 does not distinguish a critical point from
    a nearby bad one of norm 1.
    """
    outside = []
    for trial in range(max(12, trials)):
        _, R, Sigma = draw_problem(rng, dimension=2, num_layers=3)
        if trial % 2:  # a minimum lies inside the ball
            R = linear_residual.end_to_end(draw_layers(rng, 3, 2, 0.3))
        start = draw_layers(rng, 3, 2, 0.5 if trial % 2 else 2.0)

        def flat_gradient(a: np.ndarray) -> np.ndarray:
            return linear_residual.gradient(a.reshape(3, 2, 2), R, Sigma).ravel()  # noqa: B023

        solution = optimize.root(flat_gradient, start.ravel(), method="lm", options={"maxiter": 2000})
        A = solution.x.reshape(start.shape)
        scale = linear_residual.risk(np.zeros_like(A), R, Sigma)
        if np.linalg.norm(linear_residual.gradient(A, R, Sigma)) > 1e-9 * scale:
            continue
        norm = linear_residual.max_spectral_norm(A)
        excess = linear_residual.risk(A, R, Sigma)
        if norm <= 0.9:
            yield excess / scale, ROUNDING
        elif excess > 1e-3 * scale:
            outside.append(norm)

    R = np.array([[2.0, 1.0], [0.0, 1.0]])
    require(not linear_residual.gradient(MINUS_IDENTITY, R, np.eye(2)).any(), "A_i = −I is not a critical point")
    require(linear_residual.risk(MINUS_IDENTITY, R, np.eye(2)) > 0, "A_i = −I has no excess risk")
    singular = np.diag([1.0, 0.0])
    A = np.full((1, 2, 2), 0.1)
    excess = linear_residual.risk(A, R, singular)
    printed = 4 * np.linalg.eigvalsh(singular)[0] * excess
    squared = np.square(linear_residual.gradient(A, R, singular)).sum()
    require(printed == 0 < min(excess, squared), "(2.3) is not vacuous for a singular Σ")
    for _ in range(trials):  # ∇f = 0 implies EΣ = 0, so the excess risk is 0, for a singular Σ too
        A = draw_layers(rng, 3, 2, 0.5)
        (R, Sigma) = (np.eye(2), rng.uniform(0.1, 5) * singular)
        R = linear_residual.end_to_end(A) + rng.standard_normal((2, 1)) * [0, 1]  # E Σ = 0
        yield np.abs(linear_residual.gradient(A, R, Sigma)).max(), ROUNDING
        yield linear_residual.risk(A, R, Sigma), ROUNDING
    return (
        f"for Σ = diag(1, 0) (2.3) says only ‖∇f‖² ≥ {printed:.0f} at an excess risk of {excess:.2f}; "
        f"τ < 1 is needed: at A_i = −I ∇f = 0, and {len(outside)} starts ended at bad critical points outside the ball"
    )


@claim(
    id="hm.standard_parametrization",
    source="Hardt & Ma, §1.1",
    statement="in the standard parametrisation W = 0 is a bad critical point for ℓ ≥ 2 and RΣ ≠ 0",
    verdict=(
        "holds but for degenerate cases: “always” includes ℓ = 1, where 0 is not critical, and RΣ = 0, where "
        "it is not bad"
    ),
    proof="none given",
    hypotheses={
        "ℓ ≥ 2": lambda: not linear_residual.standard_gradient(np.zeros((1, 2, 2)), np.eye(2), np.eye(2)).any(),
        "RΣ ≠ 0": lambda: linear_residual.risk(MINUS_IDENTITY, np.diag([1.0, 0.0]), np.diag([0.0, 1.0])) > 0,
    },
    function=linear_residual.standard_gradient,
    mutation=changed(lambda gradient: gradient + 1),
)
def standard_critical_point(rng: np.random.Generator, trials: int) -> Pairs:
    """In the standard parametrisation the gradient at 0 vanishes for ℓ ≥ 2, and the risk there does not."""
    for _ in range(trials):
        A, R, Sigma = draw_problem(rng, num_layers=int(rng.integers(2, 7)))
        zero = np.zeros_like(A)
        require(linear_residual.risk(zero - np.eye(len(R)), R, Sigma) > 0, "the risk at W = 0 is 0")
        yield np.abs(linear_residual.standard_gradient(zero, R, Sigma)).max(), 0.0
    slope = np.abs(linear_residual.standard_gradient(np.zeros((1, 1, 1)), 2 * ONE, ONE)).max()
    require(slope > 0, "one layer at W = 0 is a critical point")
    require(linear_residual.risk(np.stack([-ONE, -ONE]), 0 * ONE, ONE) == 0, "W = 0 is bad for R = 0")
    return f"ℓ = 1, R = 2, Σ = 1: |∂f/∂W| = {slope:.0f} at W = 0; R = 0: W = 0 is a global minimum"


@claim(
    id="hm.gradients_vanish",
    source="Hardt & Ma, §1.1, “the gradients vanish only when f(A) = 0”",
    statement="for |||A||| < 1 the gradient vanishes only at zero excess risk: f = 0 without noise, f = C = d with it",
    verdict="holds: for (1.1), where y = Rx; with the noise of §2 the gradient vanishes where f = C",
    hypotheses={"|||A||| < 1": lambda: bound_holds(*BEYOND)},
    function=linear_residual.gradient,
    mutation=vanishing,
    relation="≥",
)
def gradients_vanish(rng: np.random.Generator, trials: int) -> Pairs:
    """∇f = 0 in the ball exactly where the excess risk is 0: f = 0 without noise, and d with it."""
    floors = []
    for _ in range(trials):
        A, R, Sigma = draw_problem(rng, radius=rng.uniform(0.05, 0.7))
        reached = linear_residual.end_to_end(A)
        at_minimum = np.abs(linear_residual.gradient(A, reached, Sigma)).max()
        require(at_minimum <= ROUNDING * np.abs(Sigma).max(), "∇f does not vanish at the minimum")
        x = rng.standard_normal((5, len(R)))
        noise = math.sqrt(len(R)) * np.concatenate([np.eye(len(R)), -np.eye(len(R))])
        floors.append(np.square((x @ reached.T - forward_by_hand(A, x))[:, None] + noise).sum(2).mean() / len(R))
        bound = 4 * len(A) * (1 - linear_residual.max_spectral_norm(A)) ** (2 * len(A) - 2)
        excess = np.linalg.eigvalsh(Sigma)[0] * risk_by_hand(A, R, Sigma)
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        yield squared * (1 + ROUNDING), bound * excess
    require(min(floors) > 0.99, "with noise f vanishes")
    return f"with y = Rx + ξ of §2 ∇f = 0 where f = C, which is {np.mean(floors):.0f} times d, not 0"


@claim(
    id="li.small_norms",
    source="Li et al. §4.1, on Hardt & Ma, “if all the weight matrixes have small norms”",
    statement="for |||A||| < 1 every critical point is a global minimum; there are many",
    verdict="holds: if small means below 1; “the global optimum” is a set of minima",
    proof="none given",
    restates="hm.no_critical_points",
    relation="≥",
    after="li.variance",
)
@claim(
    id="hm.no_critical_points",
    source="Hardt & Ma, §1.1, “no critical points other than the global optimum”; §1.2, “no bad critical point”",
    statement="none with |||A||| < 1; two layers −I are a critical point for every R, and a bad one if RΣ ≠ 0",
    verdict="depends on the reading: in the ball of the sentence before, holds; everywhere, false",
    proof="complete: in the ball, by Theorem 2.2",
    hypotheses={"|||A||| < 1": lambda: bound_holds(*BEYOND)},
    function=linear_residual.gradient,
    mutation=vanishing,
    relation="≥",
)
def no_critical_points(rng: np.random.Generator, trials: int) -> Pairs:
    """∇f ≠ 0 in the ball, at least by (2.3); with two layers −I it is 0 for any other layers and any R."""
    risks = []
    for trial in range(trials):
        A, R, Sigma = draw_problem(rng, num_layers=2 + trial % 4, radius=rng.uniform(0.05, 0.7))
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        yield squared * (1 + ROUNDING), linear_residual.gradient_lower_bound(A, R, Sigma)
        A[rng.choice(len(A), 2, replace=False)] = -np.eye(len(R))
        require(not linear_residual.gradient(A, R, Sigma).any(), "two layers −I are not a critical point")
        risks.append(linear_residual.risk(A, R, Sigma) / np.trace(R @ Sigma @ R.T))
    require(max(abs(np.array(risks) - 1)) < ROUNDING, "two layers −I are not a bad point")
    return "A_1 = A_2 = −I, of norm 1: ∇f = 0 for every R, f − C = tr(RΣRᵀ)"


@claim(
    id="review.theorem_1",
    source="review, Theorem 1",
    statement="for τ < 1 critical points of f in the ball are global minima; KKT points on its boundary need not be",
    hypotheses={"τ < 1": lambda: _ends_at_minima(MINUS_IDENTITY, np.diag([2.0, 1.0]))},
    verdict="holds: for critical points of f(·), as printed; KKT points of its constrained problem need not be minima",
    proof="none given",
    function=linear_residual.stationarity_in_ball,
    mutation=changed(lambda residual: residual + 1),
)
def review_theorem_1(rng: np.random.Generator, trials: int) -> Pairs:
    """KKT residuals in the ball, which are ‖∇f‖ and 0 at minima only; and a bad KKT point on the boundary."""
    yield from _rates(rng, trials)
    for _ in range(trials):  # inside the ball the KKT residual is ‖∇f‖ for small steps, and 0 only at minima
        A = draw_layers(rng, 3, 3, 0.2)
        reached = linear_residual.end_to_end(A)
        yield linear_residual.stationarity_in_ball(A, reached, np.eye(3), 0.5), ROUNDING
        squared = np.square(linear_residual.gradient(A, reached + 0.01, np.eye(3))).sum()
        error = abs(linear_residual.stationarity_in_ball(A, reached + 0.01, np.eye(3), 0.9) / np.sqrt(squared) - 1)
        yield error, 1e-6
    boundary = np.repeat(-np.eye(2)[None] / 2, 3, axis=0)
    residual = linear_residual.stationarity_in_ball(boundary, -np.eye(2), np.eye(2), 0.5)
    excess = linear_residual.risk(boundary, -np.eye(2), np.eye(2))
    angles = np.linspace(np.pi / 2, np.pi, 91)
    turned = [np.stack([rotation(angle) / 2] * 3) for angle in angles]
    better = min(linear_residual.risk(A, -np.eye(2), np.eye(2)) for A in turned)
    require(residual < 1e-12 and better < excess, "A_i = −I/2 is not a bad KKT point")
    return (
        f"R = −I₂, ℓ = 3, τ = ½: A_i = −I/2 is a KKT point (residual {residual:.0e}) "
        f"of excess risk {excess:.3f}, another point of the ball has {better:.3f}"
    )


def _rates(rng: np.random.Generator, trials: int) -> Pairs:
    """Yields the ratios of successive excess risks, and the bound on them, for projected descent with steps 1/L."""
    for _ in range(max(1, trials // 10)):
        R = linear_residual.end_to_end(draw_layers(rng, 4, 3, 0.15))
        Sigma = np.eye(3)
        A = draw_layers(rng, 4, 3, 0.3)
        rate = 1 / linear_residual.smoothness_bound(Sigma, 4, 0.3, linear_residual.risk(A, R, Sigma))
        end = linear_residual.gradient_descent(A, R, Sigma, rate, 300, radius=0.3)
        yield end.rate, linear_residual.convergence_rate_bound(Sigma, 4, 0.3, rate)
