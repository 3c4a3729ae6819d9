"""Claims on linear networks between two fixed maps: Zou, Long & Gu 2020, and a related one of this project."""

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
NARROW = widened.Widened(np.ones((1, 2)), np.ones((1, 1)), np.ones((1, 2)), np.eye(2))  # m = 1 < d = 2


def _shrinks(problem: widened.Widened, num_layers: int, learning_rate: float) -> bool:
    """Returns whether each of 20 steps from zero multiplies f by at most 1 − 2ηℓμ_A²μ_B²/e; Σ = I."""
    risks = widened.descend(problem, num_layers, learning_rate, 20)[1]
    gain = 2 * learning_rate * num_layers * problem.spread()[0] ** 2 / math.e
    return bool((risks[1:] <= (1 - gain) * risks[:-1]).all())


def _too_long_a_step() -> bool:
    problem = widened.identity_maps(-np.eye(2), math.sqrt(4 * math.exp(1.5) * math.sqrt(2)))
    return _shrinks(problem, 4, 8 * widened.guarantee(problem, 4).learning_rate)


def _too_large_a_start() -> bool:
    problem = widened.Widened(np.eye(2), np.eye(2), -np.eye(2), np.eye(2))  # descent stops at zero, as without A and B
    return _shrinks(problem, 8, widened.guarantee(problem, 8).learning_rate)


def _bound_beyond_one() -> bool:
    """Returns whether ‖∇f‖² = 0 is at least the bound without its τ < 1, 3,888: A = B = 1, R = 2, W = (−4, −1, −1)."""
    problem = widened.Widened(np.ones((1, 1)), np.ones((1, 1)), np.full((1, 1), 2.0), np.ones((1, 1)))
    risk, gradient = widened.risk_and_gradient(problem, np.array([-4.0, -1.0, -1.0])[:, None, None])
    return bool(np.square(gradient).sum() >= 4 * 3 * (1 - 4) ** 4 * risk)


@restated(
    id="zlg.theorem_3.1",
    source="Zou, Long & Gu 2020, Theorem 3.1",
    statement=(
        "fixed maps A [m, d], B [k, m], m ≥ d, k, √f(0) ≤ σ_min(Σ)μ_A²μ_B²/(4e^{3/2}‖A‖‖B‖‖Σ‖^½): each step η ≤ 1/L "
        "from zero multiplies f by at most 1 − 2ηℓσ_min(Σ)μ_A²μ_B²/e"
    ),
    hypotheses={
        "m ≥ d, k": lambda: widened.guarantee(NARROW, 2).applies,
        "√f(0) ≤ σ_min(Σ)μ_A²μ_B²/(4e^{3/2}‖A‖‖B‖‖Σ‖^½)": _too_large_a_start,
        "η ≤ 1/L": _too_long_a_step,
    },
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
    """Descent from zero reaches targets of any sign at the guaranteed rate, inside max ‖W_i‖ ≤ 1/(2ℓ); its constants.

    Every second problem has any A, B and Σ, and the largest f(0) that is allowed.
    """
    for trial in range(max(2, trials // 10)):
        if trial % 2:
            problem, num_layers = _general(rng), int(rng.integers(1, 9))
            said = widened.guarantee(problem, num_layers)
            require(said.applies, "the guarantee does not apply where it should")
            layers, risks = widened.descend(problem, num_layers, said.learning_rate, 20)
            yield abs(math.sqrt(risks[0]) / said.allowed - 1), 1e-8  # a root near 0 of numbers near 1
            yield float((risks[1:] / np.maximum(risks[:-1], 1e-25 * risks[0])).max()), said.rate
            yield landscape.max_spectral_norm(layers), 1 / (2 * num_layers)
            continue
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
    source="this project, related to (2.3)",
    statement=(
        "‖∇f‖² ≥ 4ℓ μ_A² μ_B² (1−τ)^{2ℓ−2} σ_min(Σ) f with fixed maps A [m, d], B [k, m] around the network, m ≥ d, k, "
        "max ‖W_i‖ ≤ τ < 1"
    ),
    hypotheses={
        "m ≥ d, k": lambda: widened.gradient_lower_bound(NARROW, np.zeros((2, 1, 1))) > 0,
        "max ‖W_i‖ ≤ τ < 1": _bound_beyond_one,
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


def _general(rng: np.random.Generator) -> widened.Widened:
    """Random A, B, Σ and an R near BA, at which √f(0) is what the guarantee allows, less 1e-9 of it."""
    k, d = (int(size) for size in rng.integers(1, 4, 2))
    m, root = max(k, d) + int(rng.integers(0, 3)), rng.standard_normal((d, d))
    inward, outward, Sigma = rng.standard_normal((m, d)), rng.standard_normal((k, m)), root @ root.T + 0.1 * np.eye(d)
    (high_a, *_, low_a), (high_b, *_, low_b), (low, *_, high) = (
        [*values, values[-1]]
        for values in (
            np.linalg.svd(inward, compute_uv=False), np.linalg.svd(outward, compute_uv=False), np.linalg.eigvalsh(Sigma)
        )
    )  # fmt: skip
    allowed = low * (low_a * low_b) ** 2 / (4 * math.exp(1.5) * high_a * high_b * math.sqrt(high))
    off = rng.standard_normal((k, d))
    off *= allowed * (1 - 1e-9) / np.linalg.norm(off @ np.linalg.cholesky(Sigma))
    return widened.Widened(inward, outward, outward @ inward + off, Sigma)


def _widened_risk(problem: widened.Widened, layers: np.ndarray) -> complex:
    """‖E Σ^½‖²_F, summed by columns of a root of Σ, for complex layers."""
    hidden = problem.inward @ np.linalg.cholesky(problem.Sigma)
    for layer in layers:
        hidden = hidden + layer @ hidden
    E = problem.outward @ hidden - problem.R @ np.linalg.cholesky(problem.Sigma)
    return (E * E).sum()
