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
    pairs = []
    for _ in range(trials):
        A, R, _ = draw_problem(rng)
        d = len(R)
        x = rng.standard_normal((4 * d, d)) + rng.standard_normal(d)
        noise = math.sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])  # E ξ = 0, E ξξᵀ = I exactly
        outputs = _forward(A, x)
        population = np.square((x @ R.T - outputs)[:, None] + noise).sum(2).mean()
        excess = linear_residual.risk(A, R, x.T @ x / len(x))
        pairs.append((abs(population - excess - d) / population, ROUNDING))
        y = x @ R.T + rng.standard_normal(x.shape)
        sample = np.square(y - outputs).sum(1).mean()
        problem = linear_residual.sample_problem(x, y)
        ours = linear_residual.risk(A, problem.R, problem.Sigma) + problem.noise
        pairs.append((abs(sample - ours) / sample, ROUNDING))
    E, root = rng.standard_normal((2, 2)), np.diag([1.0, -1.0])
    require(np.array_equal(root @ root, np.eye(2)), "diag(1, −1) is no root of I")
    require(abs(np.linalg.norm(E @ root) / np.linalg.norm(E) - 1) < ROUNDING, "another root gives another risk")
    return at_most(pairs)._replace(
        counterexample="diag(1, −1) is a second symmetric root of I, of the same risk: ‖EB‖²_F = tr(E B² Eᵀ) for every "
        "symmetric B"
    )


def eq_2_5(rng: np.random.Generator, trials: int) -> Evidence:
    """The gradient against complex-step derivatives and central differences; and A.2's last line, in its order."""
    pairs, printed_errors = [], []
    for _ in range(trials):
        A, R, Sigma = draw_problem(rng)
        reference = complex_step_gradient(_risk, A, R, Sigma)
        pairs.append((relative_error(linear_residual.gradient(A, R, Sigma), reference), ROUNDING))
        A, R, Sigma = draw_problem(rng, dimension=3, num_layers=4)
        difference = difference_gradient(_risk, A, R, Sigma)
        pairs.append((relative_error(linear_residual.gradient(A, R, Sigma), difference), 1e-6))
        printed_errors.append(relative_error(_last_line_of_a_2(A, R, Sigma), difference))
    require(min(printed_errors) > 1e-3, "the last line of A.2 is right")
    return at_most(pairs)._replace(
        counterexample=f"in the order of A.2's last line the gradient is off by {min(printed_errors):.0%} or more"
    )


def eq_2_3(rng: np.random.Generator, trials: int) -> Evidence:
    """‖∇f‖² against the bound inside the ball, any R; and equality at A_i = −τI, Σ = sI."""
    pairs = []
    for _ in range(10 * trials):
        A, R, Sigma = draw_problem(rng, radius=rng.uniform(0.05, 0.95))
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        by_layer = gradient_bounds.gradient_lower_bound_by_layer(A, R, Sigma)
        pairs.append((squared * (1 + ROUNDING), by_layer))
        pairs.append((by_layer * (1 + ROUNDING), linear_residual.gradient_lower_bound(A, R, Sigma)))
    for _ in range(trials):
        A, R, _ = draw_problem(rng)
        A = np.repeat(-rng.uniform(0, 0.9) * np.eye(len(R))[None], len(A), axis=0)
        Sigma = rng.uniform(0.1, 5) * np.eye(len(R))
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        pairs.append((linear_residual.gradient_lower_bound(A, R, Sigma), squared * (1 - ROUNDING)))
    E, Sigma = np.diag([0.0, 1.0]), np.diag([1.0, 9.0])
    second_line = np.linalg.eigvalsh(Sigma)[0] * np.linalg.norm(E)
    third_line = math.sqrt(np.linalg.eigvalsh(Sigma)[0]) * np.linalg.norm(E @ np.sqrt(Sigma))
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
    for trial in range(max(12, trials)):
        _, R, Sigma = draw_problem(rng, dimension=2, num_layers=3)
        if trial % 2:  # a minimum lies inside the ball
            R = linear_residual.end_to_end(draw_layers(rng, 3, 2, 0.3))
        start = draw_layers(rng, 3, 2, 0.5 if trial % 2 else 2.0)
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

    minus_identity = -np.eye(2)[None].repeat(2, axis=0)
    R = np.array([[2.0, 1.0], [0.0, 1.0]])
    require(not linear_residual.gradient(minus_identity, R, np.eye(2)).any(), "A_i = −I is no critical point")
    require(linear_residual.risk(minus_identity, R, np.eye(2)) > 0, "A_i = −I is no bad point")
    singular, A = np.diag([1.0, 0.0]), np.full((1, 2, 2), 0.1)
    excess = linear_residual.risk(A, R, singular)
    printed = 4 * np.linalg.eigvalsh(singular)[0] * excess
    squared = np.square(linear_residual.gradient(A, R, singular)).sum()
    require(printed == 0 < min(excess, squared), "(2.3) says something for a singular Σ")
    for _ in range(trials):  # ∇f = 0 gives EΣ = 0, so the excess risk is 0, for a singular Σ too
        A, (R, Sigma) = draw_layers(rng, 3, 2, 0.5), (np.eye(2), rng.uniform(0.1, 5) * singular)
        R = linear_residual.end_to_end(A) + rng.standard_normal((2, 1)) * [0, 1]  # E Σ = 0
        pairs.append((np.abs(linear_residual.gradient(A, R, Sigma)).max(), ROUNDING))
        pairs.append((linear_residual.risk(A, R, Sigma), ROUNDING))
    return at_most(pairs)._replace(
        counterexample=f"for Σ = diag(1, 0) (2.3) promises ‖∇f‖² ≥ {printed:.0f} at an excess risk of {excess:.2f}; "
        f"τ < 1 is needed: at A_i = −I ∇f = 0, and {len(outside)} starts ended at bad critical points outside the ball"
    )


def standard_critical_point(rng: np.random.Generator, trials: int) -> Evidence:
    """In the standard parametrisation the gradient at 0 vanishes for ℓ ≥ 2, and the risk there does not."""
    pairs = []
    for _ in range(trials):
        A, R, Sigma = draw_problem(rng, num_layers=int(rng.integers(2, 7)))
        zero = np.zeros_like(A)
        require(linear_residual.risk(zero - np.eye(len(R)), R, Sigma) > 0, "the risk at W = 0 is 0")
        pairs.append((np.abs(linear_residual.standard_gradient(zero, R, Sigma)).max(), 0.0))

    return at_most(pairs)


def gradients_vanish(rng: np.random.Generator, trials: int) -> Evidence:
    """∇f = 0 in the ball exactly where the excess risk is 0: f = 0 without noise, and d with it."""
    pairs, floors = [], []
    for _ in range(trials):
        A, R, Sigma = draw_problem(rng, radius=rng.uniform(0.05, 0.7))
        reached = linear_residual.end_to_end(A)
        at_minimum = np.abs(linear_residual.gradient(A, reached, Sigma)).max()
        require(at_minimum <= ROUNDING * np.abs(Sigma).max(), "∇f does not vanish at the minimum")
        x = rng.standard_normal((5, len(R)))
        noise = math.sqrt(len(R)) * np.concatenate([np.eye(len(R)), -np.eye(len(R))])
        floors.append(np.square((x @ reached.T - _forward(A, x))[:, None] + noise).sum(2).mean() / len(R))
        bound = 4 * len(A) * (1 - linear_residual.max_spectral_norm(A)) ** (2 * len(A) - 2)
        excess = np.linalg.eigvalsh(Sigma)[0] * _risk(A, R, Sigma)
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        pairs.append((squared * (1 + ROUNDING), bound * excess))
    require(min(floors) > 0.99, "with noise f vanishes")
    return at_least(pairs)._replace(
        counterexample=f"with y = Rx + ξ of §2 ∇f = 0 where f = C, which is {np.mean(floors):.0f} times d, not 0"
    )


def no_critical_points(rng: np.random.Generator, trials: int) -> Evidence:
    """∇f ≠ 0 in the ball, by how much (2.3) says; with two layers −I it is 0 whatever the others and R are."""
    pairs, risks = [], []
    for trial in range(trials):
        A, R, Sigma = draw_problem(rng, num_layers=2 + trial % 4, radius=rng.uniform(0.05, 0.7))
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        pairs.append((squared * (1 + ROUNDING), linear_residual.gradient_lower_bound(A, R, Sigma)))
        A[rng.choice(len(A), 2, replace=False)] = -np.eye(len(R))
        require(not linear_residual.gradient(A, R, Sigma).any(), "two layers −I are no critical point")
        risks.append(linear_residual.risk(A, R, Sigma) / np.trace(R @ Sigma @ R.T))
    require(max(abs(np.array(risks) - 1)) < ROUNDING, "two layers −I are no bad point")
    return at_least(pairs)._replace(counterexample="A_1 = A_2 = −I, of norm 1: ∇f = 0 for every R, f − C = tr(RΣRᵀ)")


def claim_c_2(rng: np.random.Generator, trials: int) -> Evidence:
    """‖AB‖_F against σ_min(A)‖B‖_F, A square or tall; and equality where B's columns are A's last singular vector."""
    pairs = []
    for _ in range(10 * trials):
        columns = int(rng.integers(1, 6))
        A, B = rng.standard_normal((columns + int(rng.integers(0, 3)), columns)), rng.standard_normal((columns, 4))
        pairs.append((np.linalg.norm(A @ B) * (1 + ROUNDING), gradient_bounds.product_lower_bound(A, B)))
        last = np.outer(np.linalg.svd(A)[2][-1], B[0])
        pairs.append((gradient_bounds.product_lower_bound(A, last), np.linalg.norm(A @ last) * (1 - ROUNDING)))
    wide, orthogonal = np.array([[1.0, 0.0]]), np.array([[0.0], [1.0]])
    return at_least(pairs)._replace(
        counterexample=f"not for wide A: A = [1 0], B = [0 1]ᵀ has ‖AB‖ = {np.linalg.norm(wide @ orthogonal):.0f} < 1"
    )


def _flat_gradient(a: np.ndarray, shape: tuple[int, ...], R: np.ndarray, Sigma: np.ndarray) -> np.ndarray:
    return linear_residual.gradient(a.reshape(shape), R, Sigma).ravel()


def draw_layers(rng: np.random.Generator, num_layers: int, dimension: int, radius: float) -> np.ndarray:
    """Returns random A [ℓ, d, d] with norms between half the radius and the radius."""
    A = rng.standard_normal((num_layers, dimension, dimension))
    return A * (radius * rng.uniform(0.5, 1, (num_layers, 1, 1)) / np.linalg.norm(A, 2, axis=(1, 2), keepdims=True))


def draw_problem(
    rng: np.random.Generator, dimension: int | None = None, num_layers: int | None = None, radius: float = 0.8
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns A [ℓ, d, d] in the ball, R [d, d] of either sign of determinant, Σ [d, d] positive definite."""
    d, num_layers = dimension or int(rng.integers(1, 6)), num_layers or int(rng.integers(1, 7))
    root = rng.standard_normal((d, d)) + 0.3 * np.eye(d)
    return draw_layers(rng, num_layers, d, radius), rng.standard_normal((d, d)), root @ root.T


def _forward(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    for layer in A:
        x = x + x @ layer.T
    return x


def _risk(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> complex:
    E = _forward(A, np.eye(len(R))).T - R
    return (E @ Sigma * E).sum()


def _last_line_of_a_2(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> np.ndarray:
    """2 (I+A_ℓ)ᵀ···(I+A_{j+1})ᵀ E Σ (I+A_{j−1})ᵀ···(I+A_1)ᵀ, as A.2 ends: with the factors in reverse."""
    E, transposed = _forward(A, np.eye(len(R))).T - R, (np.eye(len(R)) + A).transpose(0, 2, 1)
    return np.stack([
        2 * _product(transposed[j + 1 :][::-1]) @ E @ Sigma @ _product(transposed[:j][::-1]) for j in range(len(A))
    ])  # fmt: skip


def _product(matrices: np.ndarray) -> np.ndarray:
    """In the order in which they are written."""
    product = np.eye(matrices.shape[-1])
    for matrix in matrices:
        product = product @ matrix
    return product
