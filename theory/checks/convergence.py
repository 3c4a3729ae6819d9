"""Checks of what Hardt & Ma, the review and the blog say about gradient descent and about a ball as a constraint.

As in linear.py: random instances, the worst of them as Evidence.
"""

import numpy as np

from theory import gradient_bounds, linear_residual
from theory.checks.evidence import ROUNDING, Evidence, at_least, at_most, require
from theory.checks.linear import draw_layers, draw_problem
from theory.rotations import rotation


def descent(rng: np.random.Generator, trials: int) -> Evidence:
    """The rate of projected descent with steps of at most 1/L against (2.3)'s; and a step too long."""
    pairs = _rates(rng, trials)
    for _ in range(trials):  # one layer in one dimension: a step multiplies f − C by (1 − 2ησ)², which can be small
        Sigma = np.array([[rng.uniform(0.5, 2)]])
        rate = rng.uniform(0.001, 0.3) / Sigma[0, 0]
        end = linear_residual.gradient_descent(np.zeros((1, 1, 1)), np.array([[1.5]]), Sigma, rate, 30)
        pairs.append((end.rate, linear_residual.convergence_rate_bound(Sigma, 1, 0.5, rate)))
    for _ in range(trials):  # the step at which (2.3) and a gain of η/2·‖∇f‖² promise a tenth
        A, R, Sigma = draw_problem(rng)
        step = 0.2 * linear_residual.risk(A, R, Sigma) / linear_residual.gradient_lower_bound(A, R, Sigma)
        said = linear_residual.convergence_rate_bound(Sigma, len(A), linear_residual.max_spectral_norm(A), step)
        pairs.append((abs(said - 0.9), ROUNDING))
    one = np.ones((1, 1))
    end = linear_residual.gradient_descent(np.full((1, 1, 1), 0.5), one, one, 1.0, 1000, radius=0.5)
    require(end.risks.min() == end.risks.max() > 0, "a step of 2/L converges")
    return at_most(pairs)._replace(
        counterexample="a step of 2/L: d = ℓ = 1, R = Σ = 1, A = ½, η = 1: the iterates stay in the ball of radius ½, "
        f"the excess risk at {end.risks[-1]:.2f} for ever"
    )


def review_theorem_1(rng: np.random.Generator, trials: int) -> Evidence:
    """KKT residuals in the ball, which are ‖∇f‖ and 0 at minima only; and a bad KKT point on the boundary."""
    pairs = _rates(rng, trials)
    for _ in range(trials):  # inside the ball the KKT residual is ‖∇f‖ for small steps, and 0 only at minima
        A = draw_layers(rng, 3, 3, 0.2)
        reached = linear_residual.end_to_end(A)
        pairs.append((linear_residual.stationarity_in_ball(A, reached, np.eye(3), 0.5), ROUNDING))
        squared = np.square(linear_residual.gradient(A, reached + 0.01, np.eye(3))).sum()
        error = abs(linear_residual.stationarity_in_ball(A, reached + 0.01, np.eye(3), 0.9) / np.sqrt(squared) - 1)
        pairs.append((error, 1e-6))
    boundary = np.repeat(-np.eye(2)[None] / 2, 3, axis=0)
    residual = linear_residual.stationarity_in_ball(boundary, -np.eye(2), np.eye(2), 0.5)
    excess = linear_residual.risk(boundary, -np.eye(2), np.eye(2))
    angles = np.linspace(np.pi / 2, np.pi, 91)
    turned = [np.stack([rotation(angle) / 2] * 3) for angle in angles]
    better = min(linear_residual.risk(A, -np.eye(2), np.eye(2)) for A in turned)
    require(residual < 1e-12 and better < excess, "A_i = −I/2 is no bad KKT point")
    return at_most(pairs)._replace(
        counterexample=f"R = −I₂, ℓ = 3, τ = ½: A_i = −I/2 is a KKT point (residual {residual:.0e}) "
        f"of excess risk {excess:.3f}, another point of the ball has {better:.3f}"
    )


def review_eq_6(rng: np.random.Generator, trials: int) -> Evidence:
    """The true form of (6), σ_min²/σ_max in place of σ_min²; and the smallest numbers that break (6) as printed."""
    pairs = []
    for _ in range(10 * trials):
        A, R, Sigma = draw_problem(rng, radius=rng.uniform(0.05, 0.95))
        eigenvalues = np.linalg.eigvalsh(Sigma)
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        true_form = linear_residual.gradient_lower_bound(A, R, Sigma) * eigenvalues[0] / eigenvalues[-1]
        pairs.append((squared * (1 + ROUNDING), true_form))
    found = gradient_bounds.smallest_counterexample(power=2)
    require(found is not None, "no small numbers break (6)")
    require(gradient_bounds.smallest_counterexample(power=1) is None, "small numbers break (2.3)")
    squared, claimed = (2 * (1 - found.R) * found.Sigma) ** 2, 4 * found.Sigma**2 * (1 - found.R) ** 2 * found.Sigma
    require(squared == found.gradient_squared < found.claimed == claimed, "the numbers do not break (6)")
    return at_least(pairs)._replace(
        counterexample=f"d = ℓ = 1, A = 0, Σ = {found.Sigma}, R = {found.R}: "
        f"‖∇f‖² = {found.gradient_squared:g} < {found.claimed:g}"
    )


def _rates(rng: np.random.Generator, trials: int) -> list[tuple[float, float]]:
    """The largest ratio of one excess risk to the one before, and the bound on it, for projected descents at 1/L."""
    pairs = []
    for _ in range(max(1, trials // 10)):
        R, Sigma = linear_residual.end_to_end(draw_layers(rng, 4, 3, 0.15)), np.eye(3)
        A = draw_layers(rng, 4, 3, 0.3)
        rate = 1 / linear_residual.smoothness_bound(Sigma, 4, 0.3, linear_residual.risk(A, R, Sigma))
        end = linear_residual.gradient_descent(A, R, Sigma, rate, 300, radius=0.3)
        pairs.append((end.rate, linear_residual.convergence_rate_bound(Sigma, 4, 0.3, rate)))
    return pairs
