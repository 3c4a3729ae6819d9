"""Claims on linear networks without restriction to a ball: which maps they express, convexity, local minima."""

import functools

import numpy as np

from theory import linear_residual
from theory.claim import claim, restated
from theory.derivatives import difference_hessian
from theory.evidence import ROUNDING, Pairs, require
from theory.linear import local_minima
from theory.linear.claims_risk import draw_problem, risk_by_hand
from theory.mutations import scaled, vanishing


@claim(
    id="hm.any_linear_map",
    source="Hardt & Ma §2, “this model can express any linear transformation R”",
    statement="every R, of any determinant, is the product for A_1 = R − I and all other A_i = 0",
    proof="none given",
    after="hm.square_root",
    function=linear_residual.end_to_end,
    mutation=scaled(1.01),
)
def any_linear_map(rng: np.random.Generator, trials: int) -> Pairs:
    """The product for A_1 = R − I, all other A_i = 0, against R, with det R of either sign and 0."""
    for trial in range(trials):
        d, num_layers = int(rng.integers(1, 6)), int(rng.integers(1, 9))
        R = rng.standard_normal((d, d))
        R[0] *= (1, -1, 0)[trial % 3]
        A = np.zeros((num_layers, d, d))
        A[0] = R - np.eye(d)
        yield np.abs(linear_residual.end_to_end(A) - R).max(), ROUNDING * (1 + np.abs(R).max())


@claim(
    id="hm.no_spurious_optima",
    source="Hardt & Ma, abstract, “have no spurious local optima”",
    statement="every local minimum of f, inside a ball or not, is a global one, for every R and Σ",
    proof="repaired: Theorem 2.2 covers a ball with τ < 1; the rest is Kawaguchi's theorem, which the paper cites",
    after="hm.no_critical_points",
)
@restated(
    id="kaw.local_minima",
    source="Kawaguchi 2016, linear networks",
    statement=(
        "every local minimum of f is a global one; other critical points are saddles, with ∇²f = 0 at some for ℓ ≥ 3 "
        "and negative curvature at all for ℓ = 2"
    ),
    after="bhl.asymmetric",
    proof="complete: after Laurent & von Brecht 2018, in docs/appendix/proofs.md",
    function=local_minima.escape,
    mutation=lambda escape: lambda A, *a, **k: A,
)
def no_local_minima(rng: np.random.Generator, trials: int) -> Pairs:
    """Bad critical points, near which f falls; curvature of at most −2σ for two layers, zero at W = 0 for three."""
    for trial in range(max(2, trials // 5)):
        d, num_layers = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        R = rng.standard_normal((d, d))
        kept = rng.random(d) < 0.5
        kept[rng.integers(d)] = False
        A = local_minima.bad_critical_point(R, num_layers, kept)
        before = linear_residual.risk(A, R, np.eye(d))
        lost = np.square(np.linalg.svd(R, compute_uv=False)[~kept]).sum()
        require(abs(before / lost - 1) < ROUNDING, "the excess risk is not the sum of the squared missing σ")
        require(
            np.abs(linear_residual.gradient(A, R, np.eye(d))).max() < ROUNDING * lost**0.5, "it is not a critical point"
        )
        product = linear_residual.end_to_end(local_minima.moved_freely(A, 0.3, rng))
        require(
            np.abs(product - linear_residual.end_to_end(A)).max() < ROUNDING * (1 + np.abs(R).max()), "the output moves"
        )
        lower = local_minima.escape(A, R, np.eye(d), 0.3, rng)
        yield np.linalg.norm(lower - A, 2, axis=(1, 2)).max(), 2 * 0.3
        yield linear_residual.risk(lower, R, np.eye(d)), (1 - 1e-5) * before
        if trial < 5:
            two = local_minima.bad_critical_point(R, 2, kept)
            hessian = difference_hessian(functools.partial(_risk_beside, two, R), two.size)
            largest = np.linalg.svd(R, compute_uv=False)[~kept].max()
            yield np.linalg.eigvalsh(hessian)[0], -2 * largest * (1 - 1e-5)
    minus = -np.eye(2)[None].repeat(3, axis=0)
    hessian = difference_hessian(functools.partial(_risk_beside, minus, np.eye(2)), minus.size)
    yield np.abs(np.linalg.eigvalsh(hessian)).max(), 1e-5
    lower = local_minima.escape(minus[:2], np.eye(2), np.eye(2), 0.1, rng)
    fall = [linear_residual.risk(A, np.eye(2), np.eye(2)) for A in (minus[:2], lower)]
    return (
        f"outside the ball Theorem 2.2 does not apply: A_1 = A_2 = −I, R = I₂ has ∇f = 0; f falls from {fall[0]:.0f} "
        f"to {fall[1]:.3f} within 0.2"
    )


@claim(
    id="review.nonconvexity",
    source="review, “Simply by adding depth … induces nonconvexity!”",
    statement="for ℓ ≥ 2, Σ ≠ 0 and every R, f is not convex; for ℓ = 1, with the same maps, it is",
    proof="none given",
    function=linear_residual.risk,
    mutation=vanishing,
    relation="≥",
    hypotheses={"ℓ ≥ 2": lambda: _one_layer_bends(), "Σ ≠ 0": lambda: _bends(np.eye(2), np.zeros((2, 2)))},
)
def depth_bends(rng: np.random.Generator, trials: int) -> Pairs:
    """f between two minima: N_1 = cI, N_2 = R/c for c = ½ and 2, with product (25/16)R in the middle; and R = 0."""
    for _ in range(trials):
        A, R, Sigma = draw_problem(rng, num_layers=int(rng.integers(2, 6)))
        require(_bends(R, Sigma), "f is convex between two minima")
        layers = _ends(R, len(A)).mean(0) - np.eye(len(R))
        yield linear_residual.risk(layers, R, Sigma) * (1 + ROUNDING), (9 / 16) ** 2 * np.trace(R @ Sigma @ R.T)
        none = _ends(0 * R, len(A)).mean(0) - np.eye(len(R))
        yield linear_residual.risk(none, 0 * R, Sigma) * (1 + ROUNDING), np.trace(Sigma) / 16


def _ends(R: np.ndarray, num_layers: int) -> np.ndarray:
    """Returns two minima [2, ℓ, d, d] as layers N_i."""
    identity = np.eye(len(R))
    first = ((identity / 2, 2 * R), (2 * identity, R / 2)) if R.any() else ((identity, R), (R, identity))
    return np.stack([np.stack([*pair, *[identity] * (num_layers - 2)]) for pair in first])


def _bends(R: np.ndarray, Sigma: np.ndarray) -> bool:
    """Returns whether f, ℓ = 2, is larger midway between two points than the mean of its values at them."""
    ends = _ends(R, 2) - np.eye(len(R))
    mean = np.mean([linear_residual.risk(A, R, Sigma) for A in ends])
    return linear_residual.risk(ends.mean(0), R, Sigma) > mean


def _one_layer_bends() -> bool:
    ends = np.array([[[[1.0]]], [[[-3.0]]]])
    mean = np.mean([linear_residual.risk(A, np.ones((1, 1)), np.ones((1, 1))) for A in ends])
    return linear_residual.risk(ends.mean(0), np.ones((1, 1)), np.ones((1, 1))) > mean


def _risk_beside(A: np.ndarray, R: np.ndarray, vector: np.ndarray) -> np.longdouble:
    """Returns f at A + vector, Σ = I, in extended precision."""
    return risk_by_hand(A + vector.reshape(A.shape), R, np.eye(len(R)))
