"""Claims on networks of smooth units near the identity: Bartlett, Evans & Long 2018, related to Hardt & Ma §5."""

import numpy as np

from theory.claim import restated
from theory.derivatives import complex_step_gradient
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.mutations import changed, larger, vanishing
from theory.relu import smooth_units


def _steep_layers() -> bool:
    """Returns whether the bound holds for two layers diag(0, 4)h, ε = 3, with an error along the first axis."""
    w = np.stack([np.diag([1.0, 3.0]), np.diag([-1.0, 1.0])])[None].repeat(2, axis=0)
    x = np.eye(2)[1:]
    found = smooth_units.gradients(w, x, smooth_units.forward(w, x, "linear") - np.eye(2)[:1], "linear")
    return bool(np.square(found.functional).sum() >= 4 * found.risk * (1 + (1 - 3) ** 2))


@restated(
    id="bel.functional",
    source="Bartlett, Evans & Long 2018, related to Hardt & Ma §5: layers as functions",
    statement=(
        "layers h + g(h), g of Lipschitz constant ≤ ε < 1: Σ_i E‖∂f/∂h_i‖² ≥ 4f Σ_{k<ℓ}(1 − ε)^{2k}, so "
        "f = 0 where all derivatives with respect to the layers as functions are 0"
    ),
    function=smooth_units.functional_lower_bound,
    mutation=(larger, vanishing),
    relation="≥",
    hypotheses={"ε < 1": (lambda: smooth_units.functional_lower_bound(2, 1.0, 1.0) > 0, _steep_layers)},
)
def functional(rng: np.random.Generator, trials: int) -> Pairs:
    """Functional gradients of random networks against the bound, equal for h_i = (1 − ε)h; against complex steps."""
    errors = []
    for trial in range(trials):
        unit = ("tanh", "logistic")[trial % 2]
        depth, width, d = (int(size) for size in rng.integers(1, 4, 3))
        w, x = rng.standard_normal((depth, 2, width, d)), rng.standard_normal((4, d))
        epsilon = rng.uniform(0.02, 0.95)
        w *= np.sqrt(epsilon / smooth_units.UNITS[unit].steepest) / np.linalg.norm(w, 2, axis=(-2, -1), keepdims=True)
        y = rng.standard_normal((4, d))
        found = smooth_units.gradients(w, x, y, unit)
        yield (
            np.square(found.functional).sum() / 4 * (1 + ROUNDING),
            smooth_units.functional_lower_bound(depth, epsilon, found.risk),
        )
        if trial < 4:
            reference = complex_step_gradient(_moved_risk, np.zeros((depth, 4, d)), w, x, y, unit)
            errors.append(relative_error(found.functional / 4, reference))
            reference = complex_step_gradient(_risk, w, x, y, unit)
            errors.append(relative_error(found.parameters, reference))
        root = np.sqrt(epsilon) * np.eye(d)
        found = smooth_units.gradients(np.stack([root, -root])[None].repeat(depth, axis=0), x, y, "linear")
        bound = smooth_units.functional_lower_bound(depth, epsilon, found.risk)
        seen = np.square(found.functional).sum() / 4
        yield from ((bound * (1 + ROUNDING), seen), (seen * (1 + ROUNDING), bound))
    require(max(errors) < ROUNDING, f"a gradient is off by {max(errors):.1e}")


@restated(
    id="bel.parameters",
    source="Bartlett, Evans & Long 2018, related to Hardt & Ma §5: parameters",
    statement=(
        "networks of tanh or logistic units with |||A||| ≤ τ have critical points in their parameters with f > 0, "
        "though a network of their size has f = 0: zero for any τ > 0, a doubled unit for 0.2 ≤ τ < 1"
    ),
    hypotheses={
        "0.2 ≤ τ < 1": (
            lambda: smooth_units.doubled_unit(0.1).w.size > 0,
            lambda: smooth_units.doubled_unit(1.0).w.size > 0,
        )
    },
    function=smooth_units.doubled_unit,
    mutation=(
        changed(lambda point: point._replace(w=1.01 * point.w)),
        changed(lambda point: point._replace(w=point.teacher)),
        changed(lambda point: point._replace(teacher=1.01 * point.teacher)),
    ),
)
def parameters(rng: np.random.Generator, trials: int) -> Pairs:
    """∇f at a doubled unit and at zero, where f > 0; targets of networks of the same size in the ball."""
    for radius in (0.2, 0.5, 0.9):
        point = smooth_units.doubled_unit(radius)
        found = smooth_units.gradients(point.w, point.x, point.y, "logistic")
        start = smooth_units.gradients(0 * point.w, point.x, point.y, "logistic")
        yield np.abs(found.parameters).max() / np.abs(start.parameters).max(), 1e-12
        yield max(smooth_units.spectral_norm(w) for w in (point.w, point.teacher)), radius
        reached = smooth_units.forward(point.teacher, point.x, "logistic")
        require(np.array_equal(reached, point.y), "no network in the ball has f = 0")
        require(found.risk > 1e-7 * start.risk, "the doubled unit has f = 0")
        slope = np.square(found.functional).mean(1).sum()
        require(slope >= 4 * found.risk * (1 - ROUNDING), "the functional gradient is 0 there too")
    for trial in range(max(2, trials // 5)):
        unit, d = ("tanh", "logistic")[trial % 2], int(rng.integers(1, 4))
        teacher, x = rng.uniform(0.01, 0.5) * rng.standard_normal((1, 2, 1, d)), rng.standard_normal((8, d))
        # Two units v(σ(u·h) − σ(−u·h)): odd, so that on x and −x logistic units of weight 0 have no slope either.
        teacher = np.concatenate([teacher, -teacher], axis=2)
        x = np.concatenate([x, -x])
        found = smooth_units.gradients(0 * teacher, x, smooth_units.forward(teacher, x, unit), unit)
        require(found.risk > 0, "zero has f = 0")
        yield np.abs(found.parameters).max(), 1e-15
    return f"τ = 0.9: ∇f = 0 at a doubled unit, where f = {found_share(0.9):.1e} f(0); and at zero, for every τ"


def found_share(radius: float) -> float:
    """f/f(0) at the doubled unit."""
    point = smooth_units.doubled_unit(radius)
    there, start = (smooth_units.gradients(w, point.x, point.y, "logistic").risk for w in (point.w, 0 * point.w))
    return there / start


def _moved_risk(moves: np.ndarray, w: np.ndarray, x: np.ndarray, y: np.ndarray, unit: str) -> complex:
    """f where the values of h_i are moved by moves [ℓ, m, d]."""
    for layer, move in zip(w, moves):
        x = smooth_units.forward(layer[None], x, unit) + move
    return ((x - y) ** 2).sum() / len(y)


def _risk(w: np.ndarray, x: np.ndarray, y: np.ndarray, unit: str) -> complex:
    """f of complex weights."""
    return ((smooth_units.forward(w, x, unit) - y) ** 2).sum() / len(y)
