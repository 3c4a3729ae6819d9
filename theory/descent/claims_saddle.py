"""Claims of this project on how long an n-shortcut network stays at zero, related to Li et al., Theorem 1."""

import math

import numpy as np

from theory.claim import claim
from theory.descent import saddle_escape, update_rules
from theory.descent.saddle_escape import HALVING_SHARE
from theory.evidence import ROUNDING, Pairs, require
from theory.mutations import changed, larger, scaled, vanishing
from theory.shortcut import hessians

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
    take less than a step more. Descent moves w by ηwⁿ⁻¹(σ − wⁿ), h = 1 − √½ of σ less at most, where the least number
    has ηwⁿ⁻¹(1 + h)σ; and a step multiplies w by 1 + z, log(1 + z) ≥ z/(1 + z), z ≤ ησ for n ≥ 2.
    """
    for depth in (1, 2, 3):
        for method in update_rules.METHODS:
            for _ in range(max(1, trials // 50)):
                gap = rng.standard_normal((3, 3))
                size = 0.03 if depth < 3 else 0.15
                start = size * rng.standard_normal((int(rng.integers(1, 4)), depth, 3, 3))
                seen = saddle_escape.steps_to_leave(method, start, gap, RATES[method], 40_000)
                yield seen, saddle_escape.least_steps(method, start, gap, RATES[method])
        sigma = rng.uniform(0.5, 2)
        gap = sigma * np.linalg.qr(rng.standard_normal((3, 3)))[0]
        start = saddle_escape.aligned_start(0.1, depth, gap)
        slowest = (1 + HALVING_SHARE) / (1 - HALVING_SHARE) * (1 + RATES["descent"] * sigma)
        for method, factor in (("descent", slowest), ("orthogonalised", 1)):
            seen = saddle_escape.steps_to_leave(method, start, gap, RATES[method], 40_000)
            least = saddle_escape.least_steps(method, start, gap, RATES[method])
            yield from ((seen, least), (factor * least + 1, seen))
        momentum, descent = (saddle_escape.least_steps(name, start, gap, 0.01) for name in ("momentum", "descent"))
        share = 1 - update_rules.MOMENTUM
        require(abs(momentum - share * descent) <= ROUNDING * descent, "momentum's least is not 1 − μ of descent's")
    gap, start = np.linalg.qr(rng.standard_normal((3, 3)))[0], rng.standard_normal((2, 3, 3, 3))
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
                rate, sigma = RATES[method], float(np.linalg.norm(gap, 2))
                said = saddle_escape.predicted_steps(method, depth, sigma, size, rate)
                seen = saddle_escape.steps_to_leave(method, start, gap, rate, 20_000)
                if method == "descent" and depth < 3:
                    exact = _integral(depth, sigma, size) / rate
                    yield abs(said - exact), ROUNDING * exact
                yield abs(seen - said), 0.1 * said + (10 if method == "momentum" else 2)


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
        return hessians.condition_number_at_zero(np.eye(2), np.eye(2) + gap.T, units, depth)

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


def _integral(shortcut_depth: int, gap: float, start: float) -> float:
    """T of `predicted_steps` in closed form, for n = 1 and 2; 0 for a start beyond w₁."""
    end = max((HALVING_SHARE * gap) ** (1 / shortcut_depth), start)
    if shortcut_depth == 1:
        return math.log((gap - start) / (gap - end))
    return math.log((end / start) ** 2 * (gap - start**2) / (gap - end**2)) / (2 * gap)
