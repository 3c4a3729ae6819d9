"""Claims on linear networks between two fixed maps: Zou, Long & Gu 2020, and ours beside."""

import functools
import math

import numpy as np

from theory.claim import claim, restated
from theory.derivatives import complex_step_gradient
from theory.descent import widened
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.linear import landscape
from theory.mutations import changed, larger, vanishing

hasty = changed(lambda said: said._replace(rate=0.4 * said.rate))


@restated(
    id="zlg.theorem_3.1",
    source="Zou, Long & Gu 2020, Theorem 3.1",
    statement=(
        "Σ = I, fixed maps A, B, √f(0) ≤ μ_A²μ_B²/(4e^{3/2}‖A‖‖B‖): f shrinks by 1 − 2ηℓμ_A²μ_B²/e (our constants)"
    ),
    after="bhl.asymmetric",
    function=widened.guarantee,
    mutation=(
        hasty,
        changed(lambda said: said._replace(allowed=1e6 * said.allowed, applies=True)),
        changed(lambda said: said._replace(applies=True)),
        changed(lambda said: said._replace(rate=1.0)),
    ),
)
def widened_rate(rng: np.random.Generator, trials: int) -> Pairs:
    """From zero, targets of any sign are reached at the guaranteed rate, inside max ‖W_i‖ ≤ 1/(2ℓ); its constants."""
    for trial in range(max(2, trials // 10)):
        R = -np.eye(2) if trial == 0 else rng.standard_normal(rng.integers(1, 4, 2))
        scale = math.sqrt(4 * math.exp(1.5) * np.linalg.norm(R) * (1 + 1e-9))
        problem, num_layers = widened.identity_maps(R, scale), int(rng.integers(1, 33))
        said = widened.guarantee(problem, num_layers)
        require(said.applies, "the guarantee does not apply where it should")
        beyond = widened.identity_maps(R, scale * (1 - 1e-6))
        require(not widened.guarantee(beyond, num_layers).applies, "the guarantee applies beyond its bound")
        yield abs(said.allowed / (scale**2 / (4 * math.exp(1.5))) - 1), ROUNDING
        gain = 2 * said.learning_rate * num_layers * scale**4 / math.e
        yield abs((1 - said.rate) / gain - 1), ROUNDING
        layers, risks = widened.descend(problem, num_layers, said.learning_rate, 20)
        yield float((risks[1:] / np.maximum(risks[:-1], 1e-25 * risks[0])).max()), said.rate
        yield landscape.max_spectral_norm(layers), 1 / (2 * num_layers)


@claim(
    id="ours.widened_gradient_bound",
    source="ours, beside (2.3)",
    statement="‖∇f‖² ≥ 4ℓ μ_A² μ_B² (1−τ)^{2ℓ−2} σ_min(Σ) f with fixed maps A and B around the network",
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
        m, num_layers = max(k, d) + int(rng.integers(0, 3)), int(rng.integers(1, 6))
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
        scaled, eye = rng.uniform(0.5, 2) * np.eye(d), np.eye(d)
        problem = widened.Widened(scaled, scaled, rng.standard_normal((d, d)), eye)
        layers = -rng.uniform(0.02, 0.9) * np.repeat(eye[None], num_layers, axis=0)
        square = np.square(widened.risk_and_gradient(problem, layers)[1]).sum()
        bound = widened.gradient_lower_bound(problem, layers)
        yield from ((square * (1 + ROUNDING), bound), (bound * (1 + ROUNDING), square))
    require(max(errors) < ROUNDING, f"the gradient of the widened network is off by {max(errors):.1e}")


def _widened_risk(problem: widened.Widened, layers: np.ndarray) -> complex:
    """‖E Σ^½‖²_F, summed by columns of a root of Σ, for complex layers."""
    hidden = problem.inward @ np.linalg.cholesky(problem.Sigma)
    for layer in layers:
        hidden = hidden + layer @ hidden
    E = problem.outward @ hidden - problem.R @ np.linalg.cholesky(problem.Sigma)
    return (E * E).sum()
