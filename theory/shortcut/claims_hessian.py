"""Claims on the Hessian at zero and its condition number: Li et al., Theorem 1.2, 1.3 and (12), and this project."""

import math

import numpy as np

from theory import shortcut_hessians
from theory.claim import claim
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.mutations import changed, larger, turned, vanishing
from theory.shortcut import networks, stationarity
from theory.shortcut.activations import Activation
from theory.shortcut.measured import BENT, DIFFERENCES, by_definition_5, numeric_hessian, random_data

SQUARE = Activation(lambda z: z * z, lambda z: 2 * z, (0.0, 0.0, 2.0))  # c = 0


@claim(
    id="li.theorem_1.2",
    source="Li et al., Theorem 1.2, (11), (19)–(21)",
    statement="n = 2: H = I_R ⊗ [0 Aᵀ; A 0], A = c (I ⊗ M) P; a strict saddle exactly if cM ≠ 0",
    verdict="holds under the paper's own caveat: “except for degenerate cases”, which are cM = 0",
    function=stationarity.escape_from_saddle,
    mutation=(
        changed(lambda escape: stationarity.Escape(escape.direction[:, ::-1], escape.curvature)),
        changed(lambda escape: stationarity.Escape(escape.direction, 100 * escape.curvature)),
        changed(lambda escape: stationarity.Escape(escape.direction, -escape.curvature)),
    ),
)
def theorem_1_2(rng: np.random.Generator, trials: int) -> Pairs:
    """Measured Hessian against I_R ⊗ [0 Aᵀ; A 0]; curvature of the escape, by formula and measured, against λ_min."""
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng)
        activations = [("linear",) * 3, ("relu", "tanh", BENT)][trial % 2]
        measured = numeric_hessian(x, y, 2, 2, *activations)
        yield relative_error(shortcut_hessians.hessian_at_zero(x, y, 2, 2, *activations), measured), DIFFERENCES
        escape = stationarity.escape_from_saddle(x, y, 2, *activations)
        w = by_definition_5(escape.direction)
        least = np.linalg.eigvalsh(measured)[0]
        yield from ((abs(curvature / least - 1), DIFFERENCES) for curvature in (w @ measured @ w, escape.curvature))
    x, _ = random_data(rng)
    require(not shortcut_hessians.moment_gap(x, x).any(), "M ≠ 0 for y = x")
    around = [networks.loss(0.1 * rng.standard_normal((2, 2, 3, 3)), x, x) for _ in range(20)]
    require(min(around) > networks.loss(np.zeros((2, 2, 3, 3)), x, x) == 0, "zero is not a minimum for M = 0")
    return "y = x has M = 0, a degenerate case: zero is a global minimum, not a saddle"


@claim(
    id="li.theorem_1.3",
    source="Li et al., Theorem 1.3, (13)",
    statement="n = 1: H is block Toeplitz of B and A, also with activations; zero is not stationary there",
    function=shortcut_hessians.hessian_at_zero,
    mutation=turned,
)
def theorem_1_3(rng: np.random.Generator, trials: int) -> Pairs:
    """n = 1: the measured Hessian is the block Toeplitz matrix (13) of B and A, linear and with activations."""
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng)
        activations = [("linear",) * 3, ("tanh", "linear", BENT)][trial % 2]
        measured = numeric_hessian(x, y, 3, 1, *activations)
        yield relative_error(shortcut_hessians.hessian_at_zero(x, y, 3, 1, *activations), measured), DIFFERENCES
        blocks = measured.reshape(3, 9, 3, 9).transpose(0, 2, 1, 3)
        yield relative_error(blocks[2, 1], blocks[1, 0]), DIFFERENCES
        yield relative_error(blocks[2, 0], blocks[1, 0]), DIFFERENCES
    x, y = random_data(rng)
    gradient = networks.gradient(np.zeros((2, 1, 3, 3)), x, y)
    yield relative_error(gradient[1, 0], shortcut_hessians.moment_gap(x, y)), ROUNDING
    return f"zero is not stationary for n = 1: the gradient is M, here up to {np.abs(gradient).max():.2f}"


@claim(
    id="li.one_shortcut_growth",
    source="Li et al. §2, and after Theorem 1, citing Gray",
    statement=(
        "n = 1, linear: the condition number grows without bound in R for d ≥ 2, σ_min(M) > 0, and for d = 1, where it "
        "is |R(1 + Σxx/M) − 1|, except for M = −Σxx"
    ),
    verdict=(
        "holds but for degenerate cases: it “tends to explode” and is “growing unboundedly”, except for a singular "
        "M, where it is infinite for every R, and for d = 1, Σyx = 2Σxx, where it is 1 for every R"
    ),
    hypotheses={"except for M = −Σxx": lambda: _grows_for_scalars(2.0)},
    proof="wrong: Gray's theory needs summable blocks, which these are not; the lower bound below proves the growth",
    function=shortcut_hessians.condition_number_at_zero,
    mutation=larger,
)
def one_shortcut_of_the_paper(rng: np.random.Generator, trials: int) -> Pairs:
    """n = 1, linear, d = 3: the condition number of the measured Hessian; its growth from R = 2 to 64; d = 1."""
    for _ in range(max(1, trials // 5)):
        x, y = random_data(rng)
        sizes = np.abs(np.linalg.eigvalsh(numeric_hessian(x, y, 2, 1)))
        number = shortcut_hessians.condition_number_at_zero(x, y, 2, 1)
        yield abs(sizes.max() / sizes.min() / number - 1), DIFFERENCES * number
        least = 20 * np.linalg.eigvalsh(x.T @ x / len(x))[-1]
        least /= np.linalg.svd(shortcut_hessians.moment_gap(x, y), compute_uv=False)[-1]
        yield least, shortcut_hessians.condition_number_at_zero(x, y, 20, 1)
    for _ in range(max(1, trials // 5)):
        x = rng.standard_normal((12, 1))
        slope = 1 + rng.choice([-1, 1]) * rng.uniform(0.1, 3)
        number = shortcut_hessians.condition_number_at_zero(x, slope * x, 50, 1)  # M = (1 − slope)Σxx
        sizes = np.abs([50 * (1 + 1 / (1 - slope)) - 1, 1])
        yield abs(number / (sizes.max() / sizes.min()) - 1), ROUNDING * number
    require(not _grows_for_scalars(2.0), "for d = 1 and y = 2x it grows")
    return "d = 1, y = 2x: the condition number is 1 for R = 2, 7 and 40"


def _grows_for_scalars(slope: float) -> bool:
    """Returns whether for d = 1, y = slope·x it is larger than 1 for some R."""
    x = np.array([[1.0], [-1.0]])
    return any(shortcut_hessians.condition_number_at_zero(x, slope * x, R, 1) > 1 + ROUNDING for R in (2, 7, 40))


@claim(
    id="li.eq_12",
    source="Li et al., (1), (12)",
    statement="n = 2: cond(H) = cond(M) at every depth if c ≠ 0, infinite where M is singular",
    verdict=(
        "holds but for degenerate cases: (1), for linear networks, always holds; (12), for any activations, fails for "
        "c = 0, where H = 0 for every M; the paper's “degenerate cases” concern the strict saddle only"
    ),
    hypotheses={"c ≠ 0": lambda: bool(np.isfinite(_without_slope()))},
    proof="complete: for c ≠ 0",
    after="li.variance",
    function=shortcut_hessians.condition_number_at_zero,
    mutation=larger,
)
def eq_12(rng: np.random.Generator, trials: int) -> Pairs:
    """n = 2: the condition number of the measured Hessian against cond(M), R = 1, 2, 3; and c = 0 with M invertible."""
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng)
        M = shortcut_hessians.moment_gap(x, y)
        sizes = np.abs(np.linalg.eigvalsh(numeric_hessian(x, y, 1 + trial % 3, 2)))
        yield abs(sizes.max() / sizes.min() / np.linalg.cond(M) - 1), DIFFERENCES * np.linalg.cond(M)
        for units in (1, 10):
            number = shortcut_hessians.condition_number_at_zero(x, y, units, 2)
            yield abs(number / np.linalg.cond(M) - 1), ROUNDING * np.linalg.cond(M)
    singular = np.diag([1.0, 0.0])
    infinite = shortcut_hessians.condition_number_at_zero(np.eye(2), np.eye(2) - singular, 2, 2)
    require(infinite == math.inf, "a singular M must give an infinite condition number")
    largest = np.abs(numeric_hessian(x, y, 1, 2, "linear", SQUARE, "linear")).max()
    printed = np.linalg.cond(M)
    require(largest < DIFFERENCES and math.isfinite(printed), "H is not 0 for c = 0")
    require(_without_slope() == math.inf, "c = 0 must give an infinite condition number")
    return f"σ_mid(z) = z² has c = 0: H = 0 (measured {largest:.0e}), but (12) gives {printed:.1f}, as M is invertible"


def _without_slope() -> float:
    """Returns the condition number for c = 0, d = 2 and M = −I."""
    return shortcut_hessians.condition_number_at_zero(np.eye(2), 2 * np.eye(2), 1, 2, "linear", SQUARE)


@claim(
    id="ours.one_shortcut_growth",
    source="not in the paper",
    statement="n = 1, linear, d ≥ 2, R ≥ 2: cond(H) ≥ R λ_max(Sxx)/σ_min(M)",
    hypotheses={
        "d ≥ 2": lambda: shortcut_hessians.condition_number_lower_bound(np.ones((3, 1)), np.ones((3, 1)), 4) > 0,
        "R ≥ 2": lambda: shortcut_hessians.condition_number_lower_bound(np.eye(2), np.eye(2), 1) > 0,
    },
    function=shortcut_hessians.condition_number_lower_bound,
    mutation=(vanishing, larger),
    relation="≥",
)
def one_shortcut_growth(rng: np.random.Generator, trials: int) -> Pairs:
    """n = 1, linear: the condition number against R λ_max(Sxx)/σ_min(M), and the bound against the proof's vectors."""
    for trial in range(max(1, trials // 2)):
        x, y = random_data(rng)
        units = 2 + trial % 15
        bound = shortcut_hessians.condition_number_lower_bound(x, y, units)
        yield shortcut_hessians.condition_number_at_zero(x, y, units, 1), bound * (1 - ROUNDING)
        H = shortcut_hessians.hessian_at_zero(x, y, units, 1)
        steep = np.linalg.eigh(x.T @ x / len(x))[1][:, -1]
        across = np.linalg.svd(steep[None])[2][1]
        together = np.repeat(np.outer(across, steep)[None, None], units, axis=0)
        u, _, vt = np.linalg.svd(shortcut_hessians.moment_gap(x, y))
        apart = np.zeros_like(together)
        apart[0, 0] = np.outer(u[:, -1], vt[-1])
        apart[1, 0] = -np.outer(u[:, -1], vt[-1])
        first, second = (by_definition_5(w) / np.linalg.norm(w) for w in (together, apart))
        proof_ratio = first @ H @ first / np.linalg.norm(H @ second)
        yield from ((bound, proof_ratio * (1 - 1e-6)), (proof_ratio, bound * (1 - 1e-6)))
