"""Checks of Hardt & Ma §2, of Claim C.2, and of the review and the blog on them.

Each function tries random instances and returns the worst as Evidence; claims.py says which
claim it belongs to. References are written here, apart from the code they check.
"""

import math

import numpy as np
from scipy import optimize

from theory import gradient_bounds, linear_residual
from theory.checks.evidence import ROUNDING, Evidence, at_least, at_most, relative_error, require
from theory.checks.numeric import complex_step_gradient, difference_gradient


def claim_2_3(rng: np.random.Generator, trials: int) -> Evidence:
    """A sample's mean squared error, summed by hand, against risk + noise; and a population's."""
    covariance_errors = []

    pairs = []
    for _ in range(trials):
        A, R, _ = _problem(rng)
        d = len(R)
        x = rng.standard_normal((4 * d, d)) + rng.standard_normal(d)
        noise = math.sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])  # E ξ = 0, E ξξᵀ = I exactly
        outputs = _forward(A, x)
        errors = (x @ R.T - outputs)[:, None] + noise
        moment = x.T @ x / len(x)
        excess = linear_residual.risk(A, R, moment)
        population = np.square(errors).sum(2).mean()
        pairs.append((abs(population - excess - d) / population, ROUNDING))
        covariance_errors.append(
            abs(population - linear_residual.risk(A, R, np.cov(x.T, bias=True).reshape(d, d)) - d) / population
        )
        y = x @ R.T + rng.standard_normal(x.shape)
        sample = np.square(y - outputs).sum(1).mean()
        problem = linear_residual.sample_problem(x, y)
        ours = linear_residual.risk(A, problem.R, problem.Sigma) + problem.noise
        pairs.append((abs(sample - ours) / sample, ROUNDING))

    evidence = at_most(pairs)
    flipped = np.diag([1.0, -1.0])
    require(np.array_equal(flipped @ flipped, np.eye(2)), "diag(1, −1) is no root of I")
    return evidence._replace(
        counterexample=f"where E x ≠ 0 the covariance puts the risk off by up to {max(covariance_errors):.0%}; "
        "diag(1, −1) is a second symmetric root of I"
    )


def lemma_2_4(rng: np.random.Generator, trials: int) -> Evidence:
    """The gradient against complex-step derivatives of ‖E Σ^½‖²_F."""
    pairs = []
    for _ in range(trials):
        A, R, Sigma = _problem(rng)
        reference = complex_step_gradient(_risk, A, R, Sigma)
        pairs.append((relative_error(linear_residual.gradient(A, R, Sigma), reference), ROUNDING))

    return at_most(pairs)


def eq_2_5(rng: np.random.Generator, trials: int) -> Evidence:
    """The gradient against central differences; and the printed forms, without transposes and in A.2's last order."""
    without, reversed_order = [], []

    pairs = []
    for _ in range(trials):
        A, R, Sigma = _problem(rng, dimension=3, num_layers=4)
        difference = difference_gradient(_risk, A, R, Sigma)
        printed, backwards = _printed_gradients(A, R, Sigma)
        without.append(relative_error(printed, difference))
        reversed_order.append(relative_error(backwards, difference))
        pairs.append((relative_error(linear_residual.gradient(A, R, Sigma), difference), 1e-6))

    evidence = at_most(pairs)
    return evidence._replace(
        counterexample=f"without the transposes the error is {min(without):.0%} or more, "
        f"in the order of A.2's last line {min(reversed_order):.0%} or more"
    )


def eq_2_3(rng: np.random.Generator, trials: int) -> Evidence:
    """‖∇f‖² against the bound inside the ball, any R; a tenth of the instances are the equality case."""
    pairs = []
    for trial in range(20 * trials):
        A, R, Sigma = _problem(rng, radius=rng.uniform(0.05, 0.95))
        if trial % 10 == 0:
            A = np.repeat(-linear_residual.max_spectral_norm(A) * np.eye(len(R))[None], len(A), axis=0)
            Sigma = rng.uniform(0.1, 5) * np.eye(len(R))
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        by_layer = gradient_bounds.gradient_lower_bound_by_layer(A, R, Sigma)
        pairs.append((squared * (1 + ROUNDING), by_layer))
        pairs.append((by_layer * (1 + ROUNDING), linear_residual.gradient_lower_bound(A, R, Sigma)))

    E, Sigma = np.diag([0.0, 1.0]), np.diag([1.0, 9.0])
    second_line, third_line = np.linalg.norm(E), np.linalg.norm(E @ np.sqrt(Sigma))
    require(second_line < third_line, "the gap in the proof of (2.3) was not found")
    return at_least(pairs)._replace(
        counterexample="the proof's line 2 does not give line 3: E = diag(0, 1), Σ = diag(1, 9) "
        f"has {second_line:.0f} < {third_line:.0f}"
    )


def theorem_2_2(rng: np.random.Generator, trials: int) -> Evidence:
    """Critical points found by solving ∇f = 0 from random starts: the excess risk of those with |||A||| ≤ 0.9.

    Nearer to 1, where (2.3) is next to nothing, a gradient of 1e-9 does not tell a critical point from a bad one
    of norm 1 beside it.
    """
    outside = []

    pairs = []
    for trial in range(max(20, trials)):
        _, R, Sigma = _problem(rng, dimension=2, num_layers=3)
        if trial % 2:  # a minimum lies inside the ball
            R = linear_residual.end_to_end(_layers(rng, 3, 2, 0.3))
        start = _layers(rng, 3, 2, 0.5 if trial % 2 else 2.0)
        found = optimize.root(
            _flat_gradient, start.ravel(), (start.shape, R, Sigma), method="lm", options={"maxiter": 2000}
        )
        A = found.x.reshape(start.shape)
        scale = linear_residual.risk(np.zeros_like(A), R, Sigma)
        if np.linalg.norm(linear_residual.gradient(A, R, Sigma)) > 1e-9 * scale:
            continue
        norm, excess = linear_residual.max_spectral_norm(A), linear_residual.risk(A, R, Sigma)
        if norm <= 0.9:
            pairs.append((excess / scale, ROUNDING))
        elif excess > 1e-3 * scale:
            outside.append(norm)

    evidence = at_most(pairs)
    minus_identity = -np.eye(2)[None].repeat(2, axis=0)
    R = np.array([[2.0, 1.0], [0.0, 1.0]])
    excess = linear_residual.risk(minus_identity, R, np.eye(2))
    require(not linear_residual.gradient(minus_identity, R, np.eye(2)).any(), "A_i = −I is no critical point")
    return evidence._replace(
        counterexample=f"τ < 1 is needed: at A_i = −I the gradient is 0 and the excess risk {excess:.0f}; "
        f"{len(outside)} starts ended at bad critical points, all of |||A||| ≥ {min(outside, default=math.nan):.2f}"
    )


def review_theorem_1(rng: np.random.Generator, trials: int) -> Evidence:
    """Projected descent inside the ball reaches the minimum when R can be reached there; a bad KKT point when not."""
    pairs = []
    for _ in range(max(1, trials // 10)):
        R, Sigma = linear_residual.end_to_end(_layers(rng, 4, 3, 0.15)), np.eye(3)
        A = _layers(rng, 4, 3, 0.3)
        risk = linear_residual.risk(A, R, Sigma)
        rate = 1 / linear_residual.smoothness_bound(R, Sigma, 4, 0.3, risk)
        end = linear_residual.gradient_descent(A, R, Sigma, rate, 300, radius=0.3)
        pairs.append((end.rate, linear_residual.convergence_rate_bound(Sigma, 4, 0.3, rate)))

    boundary = np.repeat(-np.eye(2)[None] / 2, 3, axis=0)
    residual = linear_residual.stationarity_in_ball(boundary, -np.eye(2), np.eye(2), 0.5)
    excess = linear_residual.risk(boundary, -np.eye(2), np.eye(2))
    angles = np.linspace(np.pi / 2, np.pi, 91)
    turned = np.array([[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]]).transpose(2, 0, 1) / 2
    better = min(linear_residual.risk(np.stack([A] * 3), -np.eye(2), np.eye(2)) for A in turned)
    require(residual < 1e-12 and better < excess, "A_i = −I/2 is no bad KKT point")
    return at_most(pairs)._replace(
        counterexample=f"R = −I₂, ℓ = 3, τ = ½: A_i = −I/2 is a KKT point (residual {residual:.0e}) "
        f"of excess risk {excess:.3f}, another point of the ball has {better:.3f}"
    )


def review_eq_6(rng: np.random.Generator, trials: int) -> Evidence:
    """The true form of (6), σ_min²/σ_max in place of σ_min²; and the smallest numbers that break (6) as printed."""
    pairs = []
    for _ in range(10 * trials):
        A, R, Sigma = _problem(rng, radius=rng.uniform(0.05, 0.95))
        eigenvalues = np.linalg.eigvalsh(Sigma)
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        true_form = linear_residual.gradient_lower_bound(A, R, Sigma) * eigenvalues[0] / eigenvalues[-1]
        pairs.append((squared * (1 + ROUNDING), true_form))

    found = gradient_bounds.smallest_counterexample(power=2)
    require(found is not None, "no small numbers break (6)")
    require(gradient_bounds.smallest_counterexample(power=1) is None, "small numbers break (2.3)")
    return at_least(pairs)._replace(
        counterexample=f"d = ℓ = 1, A = 0, Σ = {found.Sigma}, R = {found.R}: "
        f"‖∇f‖² = {found.gradient_squared:g} < {found.claimed:g}"
    )


def standard_critical_point(rng: np.random.Generator, trials: int) -> Evidence:
    """In the standard parametrisation the gradient at 0 vanishes for ℓ ≥ 2, and the risk there does not."""
    pairs = []
    for _ in range(trials):
        A, R, Sigma = _problem(rng, num_layers=int(rng.integers(2, 7)))
        zero = np.zeros_like(A)
        require(linear_residual.risk(zero - np.eye(len(R)), R, Sigma) > 0, "the risk at W = 0 is 0")
        pairs.append((np.abs(linear_residual.standard_gradient(zero, R, Sigma)).max(), 0.0))

    return at_most(pairs)


def claim_c_2(rng: np.random.Generator, trials: int) -> Evidence:
    """‖AB‖_F ≥ σ_min(A) ‖B‖_F, A square or tall."""
    pairs = []
    for _ in range(20 * trials):
        columns = int(rng.integers(1, 6))
        A, B = rng.standard_normal((columns + int(rng.integers(0, 3)), columns)), rng.standard_normal((columns, 4))
        pairs.append(
            (np.linalg.norm(A @ B) * (1 + ROUNDING), np.linalg.svd(A, compute_uv=False)[-1] * np.linalg.norm(B))
        )

    wide, orthogonal = np.array([[1.0, 0.0]]), np.array([[0.0], [1.0]])
    return at_least(pairs)._replace(
        counterexample=f"not for wide A: A = [1 0], B = [0 1]ᵀ has ‖AB‖ = {np.linalg.norm(wide @ orthogonal):.0f} < 1"
    )


def _flat_gradient(a: np.ndarray, shape: tuple[int, ...], R: np.ndarray, Sigma: np.ndarray) -> np.ndarray:
    return linear_residual.gradient(a.reshape(shape), R, Sigma).ravel()


def _layers(rng: np.random.Generator, num_layers: int, dimension: int, radius: float) -> np.ndarray:
    A = rng.standard_normal((num_layers, dimension, dimension))
    return A * (radius * rng.uniform(0.5, 1, (num_layers, 1, 1)) / np.linalg.norm(A, 2, axis=(1, 2), keepdims=True))


def _problem(
    rng: np.random.Generator, dimension: int | None = None, num_layers: int | None = None, radius: float = 0.8
):
    """A [ℓ, d, d] in the ball, R [d, d] of either sign of determinant, Σ [d, d] positive definite."""
    d, num_layers = dimension or int(rng.integers(1, 6)), num_layers or int(rng.integers(1, 7))
    root = rng.standard_normal((d, d)) + 0.3 * np.eye(d)
    return _layers(rng, num_layers, d, radius), rng.standard_normal((d, d)), root @ root.T


def _forward(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    for layer in A:
        x = x + x @ layer.T
    return x


def _risk(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray):
    E = _forward(A, np.eye(len(R))).T - R
    return (E @ Sigma * E).sum()


def _printed_gradients(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """2 (I+A_{i+1})···(I+A_ℓ) E Σ (I+A_1)···(I+A_{i−1}) without transposes, and A.2's last line with them."""
    E, layers = _forward(A, np.eye(len(R))).T - R, np.eye(len(R)) + A
    transposed = layers.transpose(0, 2, 1)
    printed = [2 * _product(layers[i + 1 :]) @ E @ Sigma @ _product(layers[:i]) for i in range(len(A))]
    backwards = [
        2 * _product(transposed[i + 1 :][::-1]) @ E @ Sigma @ _product(transposed[:i][::-1]) for i in range(len(A))
    ]
    return np.stack(printed), np.stack(backwards)


def _product(matrices: np.ndarray) -> np.ndarray:
    """In the order in which they are written."""
    product = np.eye(matrices.shape[-1])
    for matrix in matrices:
        product = product @ matrix
    return product
