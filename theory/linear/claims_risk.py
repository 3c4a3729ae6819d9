"""Claims on the risk and the gradient of linear networks: Hardt & Ma §2, and the review on (2.3).

The reference computations share no code with the functions that they check, and so none of their mistakes.
"""

import math

import numpy as np

from theory import linear_residual
from theory.claim import claim
from theory.derivatives import complex_step_gradient, difference_gradient
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.mutations import changed, larger, scaled, transposed, vanishing

# A critical point beyond the ball, ‖A_1‖ = 4: d = 1, ℓ = 3, two factors I + A_i are 0; R = 2, Σ = 1.
BEYOND = np.array([-4.0, -1.0, -1.0])[:, None, None], np.full((1, 1), 2.0), np.ones((1, 1))


def bound_holds(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> bool:
    """Returns whether ‖∇f‖² ≥ 4ℓ(1−τ)^{2ℓ−2} σ_min(Σ)(f − C), for τ = |||A||| of any size."""
    decay = (1 - linear_residual.max_spectral_norm(A)) ** (2 * len(A) - 2)
    bound = 4 * len(A) * decay * np.linalg.eigvalsh(Sigma)[0] * linear_residual.risk(A, R, Sigma)
    return bool(np.square(linear_residual.gradient(A, R, Sigma)).sum() >= bound)


@claim(
    id="hm.claim_2.3",
    source="Hardt & Ma, Claim 2.3",
    statement="f(A) = ‖EΣ^½‖²_F + C for each of the several symmetric roots Σ^½; on a sample W* takes the place of R",
)
@claim(
    id="hm.square_root",
    source="Hardt & Ma, Claim 2.3, “the unique symmetric matrix B”",
    statement="Σ^½ is the unique symmetric positive semidefinite B with B² = Σ; f is the same for every symmetric B",
    verdict="misprint: “positive semidefinite” is missing; there are several symmetric roots",
    proof="none given",
    function=linear_residual.risk,
    mutation=scaled(0.5),
)
def claim_2_3(rng: np.random.Generator, trials: int) -> Pairs:
    """A sample's mean squared error, summed by hand, against risk + noise; and a population's."""
    for _ in range(trials):
        A, R, _ = draw_problem(rng)
        d = len(R)
        x = rng.standard_normal((4 * d, d)) + rng.standard_normal(d)
        noise = math.sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])  # E ξ = 0, E ξξᵀ = I exactly
        outputs = forward_by_hand(A, x)
        population = np.square((x @ R.T - outputs)[:, None] + noise).sum(2).mean()
        excess = linear_residual.risk(A, R, x.T @ x / len(x))
        yield abs(population - excess - d) / population, ROUNDING
        y = x @ R.T + rng.standard_normal(x.shape)
        sample = np.square(y - outputs).sum(1).mean()
        problem = linear_residual.sample_problem(x, y)
        computed = linear_residual.risk(A, problem.R, problem.Sigma) + problem.noise
        yield abs(sample - computed) / sample, ROUNDING
    E = rng.standard_normal((2, 2))
    root = np.diag([1.0, -1.0])
    require(np.array_equal(root @ root, np.eye(2)), "diag(1, −1) is not a root of I")
    require(abs(np.linalg.norm(E @ root) / np.linalg.norm(E) - 1) < ROUNDING, "another root gives another risk")
    return "diag(1, −1) is a second symmetric root of I, of the same risk: ‖EB‖²_F = tr(E B² Eᵀ) for every symmetric B"


@claim(
    id="hm.lemma_2.4",
    source="Hardt & Ma, Lemma 2.4",
    statement="∇f has a closed form, with two dense products around EΣ for each layer",
    proof="repaired: the last line of A.2 has its factors in reverse order; the line above it is right",
    restates="hm.eq_2.5",
)
@claim(
    id="hm.eq_2.5",
    source="Hardt & Ma, (2.5), and the last line of A.2",
    statement="∂f/∂A_i = 2 (I+A_{i+1})ᵀ···(I+A_ℓ)ᵀ EΣ (I+A_1)ᵀ···(I+A_{i−1})ᵀ",
    proof="repaired: the last line of A.2 has its factors in reverse order; the line above it is right",
    function=linear_residual.gradient,
    mutation=transposed,
)
def eq_2_5(rng: np.random.Generator, trials: int) -> Pairs:
    """The gradient against complex-step derivatives and central differences; A.2's last line in its printed order."""
    printed_errors = []
    for _ in range(trials):
        A, R, Sigma = draw_problem(rng)
        reference = complex_step_gradient(risk_by_hand, A, R, Sigma)
        yield relative_error(linear_residual.gradient(A, R, Sigma), reference), ROUNDING
        A, R, Sigma = draw_problem(rng, dimension=3, num_layers=4)
        difference = difference_gradient(risk_by_hand, A, R, Sigma)
        yield relative_error(linear_residual.gradient(A, R, Sigma), difference), 1e-6
        printed_errors.append(relative_error(_last_line_of_a_2(A, R, Sigma), difference))
    require(min(printed_errors) > 1e-3, "the last line of A.2 is right")
    least = 100 * min(printed_errors)
    return f"with the factors in the order of A.2's last line the gradient is off by {least:.0f} % or more"


@claim(
    id="hm.eq_2.3",
    source="Hardt & Ma, (2.3)",
    statement="‖∇f‖² ≥ 4ℓ(1−τ)^{2ℓ−2} σ_min(Σ)(f − C) for |||A||| ≤ τ < 1; a product form lies between both sides",
    hypotheses={"|||A||| ≤ τ < 1": lambda: bound_holds(*BEYOND)},
    proof="repaired: its third line follows from ‖EΣ‖_F ≥ σ_min(Σ^½)‖EΣ^½‖_F, not from its second line",
    function=linear_residual.gradient_lower_bound,
    mutation=(vanishing, larger),
    relation="≥",
)
def eq_2_3(rng: np.random.Generator, trials: int) -> Pairs:
    """‖∇f‖² against the bound inside the ball, any R; and equality at A_i = −τI, Σ = sI."""
    for _ in range(10 * trials):
        A, R, Sigma = draw_problem(rng, radius=rng.uniform(0.05, 0.95))
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        by_layer = linear_residual.gradient_lower_bound_by_layer(A, R, Sigma)
        yield squared * (1 + ROUNDING), by_layer
        yield by_layer * (1 + ROUNDING), linear_residual.gradient_lower_bound(A, R, Sigma)
    for _ in range(trials):
        A, R, _ = draw_problem(rng)
        A = np.repeat(-rng.uniform(0, 0.9) * np.eye(len(R))[None], len(A), axis=0)
        Sigma = rng.uniform(0.1, 5) * np.eye(len(R))
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        yield linear_residual.gradient_lower_bound(A, R, Sigma), squared * (1 - ROUNDING)
    E, Sigma = np.diag([0.0, 1.0]), np.diag([1.0, 9.0])
    second_line = np.linalg.eigvalsh(Sigma)[0] * np.linalg.norm(E)
    third_line = math.sqrt(np.linalg.eigvalsh(Sigma)[0]) * np.linalg.norm(E @ np.sqrt(Sigma))
    require(second_line < third_line, "the gap in the proof of (2.3) was not found")
    return (
        "line 3 of the proof does not follow from line 2: E = diag(0, 1), Σ = diag(1, 9) "
        f"has {second_line:.0f} < {third_line:.0f}"
    )


@claim(
    id="review.eq_6",
    source="review, (6)",
    statement="‖∇f‖² ≥ 4ℓ(1−τ)^{2ℓ−2} (σ_min²/σ_max)(f − C) for |||A||| ≤ τ < 1; not with σ_min² alone",
    hypotheses={"|||A||| ≤ τ < 1": lambda: bound_holds(*BEYOND)},
    verdict="false: σ_min(Σ)² in place of the σ_min(Σ) of (2.3)",
    proof="none given",
    after="review.theorem_2",
    function=linear_residual.smallest_counterexample,
    mutation=changed(lambda _: None),
    relation="≥",
)
def review_eq_6(rng: np.random.Generator, trials: int) -> Pairs:
    """The true form of (6), σ_min²/σ_max in place of σ_min²; and the smallest numbers that violate (6) as printed."""
    for _ in range(10 * trials):
        A, R, Sigma = draw_problem(rng, radius=rng.uniform(0.05, 0.95))
        eigenvalues = np.linalg.eigvalsh(Sigma)
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        true_form = linear_residual.gradient_lower_bound(A, R, Sigma) * eigenvalues[0] / eigenvalues[-1]
        yield squared * (1 + ROUNDING), true_form
    least = linear_residual.smallest_counterexample(power=2)
    require(least is not None, "no small numbers violate (6)")
    require(linear_residual.smallest_counterexample(power=1) is None, "small numbers violate (2.3)")
    squared = (2 * (1 - least.R) * least.Sigma) ** 2
    claimed = 4 * least.Sigma**2 * (1 - least.R) ** 2 * least.Sigma
    require(squared == least.gradient_squared < least.claimed == claimed, "the numbers do not violate (6)")
    return f"d = ℓ = 1, A = 0, Σ = {least.Sigma}, R = {least.R}: ‖∇f‖² = {least.gradient_squared:g} < {least.claimed:g}"


def draw_layers(rng: np.random.Generator, num_layers: int, dimension: int, radius: float) -> np.ndarray:
    """Returns random A [ℓ, d, d] with norms between half the radius and the radius."""
    A = rng.standard_normal((num_layers, dimension, dimension))
    return A * (radius * rng.uniform(0.5, 1, (num_layers, 1, 1)) / np.linalg.norm(A, 2, axis=(1, 2), keepdims=True))


def draw_problem(
    rng: np.random.Generator, dimension: int | None = None, num_layers: int | None = None, radius: float = 0.8
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns A [ℓ, d, d] in the ball, R [d, d] of either sign of determinant, Σ [d, d] positive definite."""
    d = dimension or int(rng.integers(1, 6))
    num_layers = num_layers or int(rng.integers(1, 7))
    root = rng.standard_normal((d, d)) + 0.3 * np.eye(d)
    return draw_layers(rng, num_layers, d, radius), rng.standard_normal((d, d)), root @ root.T


def forward_by_hand(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns ŷ [m, d] for x [m, d], layer by layer."""
    for layer in A:
        x = x + x @ layer.T
    return x


def risk_by_hand(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> complex:
    """Returns tr(E Σ Eᵀ), complex for complex A, as complex-step derivatives need."""
    E = forward_by_hand(A, np.eye(len(R))).T - R
    return (E @ Sigma * E).sum()


def _last_line_of_a_2(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> np.ndarray:
    """Returns 2 (I+A_ℓ)ᵀ···(I+A_{j+1})ᵀ E Σ (I+A_{j−1})ᵀ···(I+A_1)ᵀ, as A.2 ends: with the factors in reverse."""
    E = forward_by_hand(A, np.eye(len(R))).T - R
    transposed = (np.eye(len(R)) + A).transpose(0, 2, 1)
    return np.stack([
        2 * _product(transposed[j + 1 :][::-1]) @ E @ Sigma @ _product(transposed[:j][::-1]) for j in range(len(A))
    ])  # fmt: skip


def _product(matrices: np.ndarray) -> np.ndarray:
    """Returns the product of matrices in the order in which they are listed."""
    product = np.eye(matrices.shape[-1])
    for matrix in matrices:
        product = product @ matrix
    return product
