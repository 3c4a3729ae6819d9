"""Checks of gradient descent from zero: Bartlett, Helmbold & Long 2018, Zou, Long & Gu 2020, and what we prove beside.

Each function tries random instances and returns the worst as Evidence. References are written here, apart from the
code they check: descent on the matrices themselves, with the gradient of `linear_residual`, which has its own checks.
"""

import functools
import math
from collections.abc import Iterator

import numpy as np
from scipy import linalg

from theory import descent, factorization, linear_residual, widened_descent
from theory.checks.evidence import ROUNDING, Evidence, at_least, at_most, relative_error, require
from theory.checks.numeric import complex_step_gradient
from theory.rotations import rotation

Pairs = Iterator[tuple[float, float]]  # (measured, bound)


def recursion(rng: np.random.Generator, trials: int) -> Evidence:
    """The risks of the recursion against those of gradient descent on all layers, for random normal R."""

    def pairs() -> Pairs:
        for _ in range(max(1, trials // 2)):
            R = _normal(rng, symmetric=rng.random() < 0.5)
            num_layers, phi = int(rng.integers(1, 12)), np.linalg.eigvals(R)
            learning_rate = 0.5 / num_layers / max(1, np.abs(phi).max()) ** 2
            seen = _descend(R, num_layers, learning_rate, 40).risks
            said = descent.recursion_risks(phi, num_layers, learning_rate, 40)
            yield float(np.abs(seen - said).max() / seen[0]), ROUNDING

    return at_most(pairs())


def monotone(rng: np.random.Generator, trials: int) -> Evidence:
    """No λ crosses λ* at the largest learning rate; 1 % above it a step from 1 (φ < 1) or from near λ* (φ > 1) does."""

    def pairs() -> Pairs:
        for _ in range(trials):
            num_layers, phi = int(rng.integers(2, 40)), np.exp(rng.uniform(-3, 2, 1)) * rng.choice([-1, 1, 1], 1)
            root = np.maximum(phi, 0) ** (1 / num_layers)
            largest = descent.largest_learning_rate(phi, num_layers)
            side = np.sign(1 - root)
            gap = side * (descent.eigenvalue_recursion(phi, num_layers, largest, 400) - root)
            yield -gap.min(), 1e-12
            yield np.diff(gap, axis=0).max(), 1e-12
            start = np.where(phi > 1, root * (1 - 1e-6), 1)
            moved = start - 2.02 * largest * start ** (num_layers - 1) * (start**num_layers - phi)
            yield float((side * (moved - root))[0]), 0

    return at_most(pairs())


def steps(rng: np.random.Generator, trials: int) -> Evidence:
    """Steps that descent on random positive definite R takes to excess 1e-8 against the bound, and that against κ."""

    def pairs() -> Pairs:
        for _ in range(trials):
            num_layers, size = int(rng.integers(1, 65)), int(rng.integers(1, 6))
            phi = np.exp(rng.uniform(-1, 1, size))
            learning_rate = rng.uniform(0.3, 1) * descent.largest_learning_rate(phi, num_layers)
            bound = descent.step_bound(phi, num_layers, learning_rate, 1e-8)
            risks = descent.recursion_risks(phi, num_layers, learning_rate, int(bound))
            yield float(np.argmax(risks <= 1e-8)) if risks[-1] <= 1e-8 else math.inf, bound
            yield bound, _condition_bound(phi, num_layers, learning_rate)
            rate = rng.uniform(0.01, 0.3)  # one layer: |w − φ| shrinks by 1 − η exactly, so the bound is met
            bound = descent.step_bound(phi[:1], 1, rate, 1e-8)
            seen = float(np.argmax(descent.recursion_risks(phi[:1], 1, rate, int(bound) + 1) <= 1e-8))
            yield from ((seen, bound), (bound, seen))

    return at_most(pairs())


def _condition_bound(phi: np.ndarray, num_layers: int, learning_rate: float) -> float:
    """κ^{2−2/ℓ} log(…) + 1 at the largest learning rate, and in proportion below it."""
    high, low = max(phi.max(), 1), min(phi.min(), 1)
    growth = num_layers * high ** (1 - 1 / num_layers) / np.sum(high ** (np.arange(num_layers) / num_layers))
    ratio = max(1.0, growth * np.abs(1 - phi).max() * math.sqrt(len(phi) / 1e-8))
    share = learning_rate / descent.largest_learning_rate(phi, num_layers)
    return (high / low) ** (2 - 2 / num_layers) / share * math.log(ratio) + 1


def floor(rng: np.random.Generator, trials: int) -> Evidence:
    """The least excess on symmetric R with negative eigenvalues against the floor, and how near descent comes to it."""

    def pairs() -> Pairs:
        for _ in range(max(1, trials // 2)):
            phi = rng.uniform(0.3, 1.6, 4) * [-1, *rng.choice([-1, 1], 3)]
            num_layers = int(rng.integers(2, 12))
            learning_rate = descent.largest_learning_rate(phi, num_layers)
            risks = descent.recursion_risks(phi, num_layers, learning_rate, 2_000)
            yield risks.min() * (1 + ROUNDING), descent.excess_floor(phi)
            even = 2 * int(rng.integers(1, 6))
            wild = descent.recursion_risks(phi, even, 0.4, 30)  # far above the largest rate, until it diverges
            yield wild[np.isfinite(wild)].min() * (1 + ROUNDING), descent.excess_floor(phi)

    evidence = at_least(pairs())
    R, small = -np.eye(2), factorization.factorize(-np.eye(2), 8)
    last = _descend(R, 8, 0.25, 2_000).risks[-1]
    require(abs(last - descent.excess_floor(np.diag(R))) < 1e-6, f"descent on −I₂ ends at {last}, not at the floor")
    return evidence._replace(
        counterexample=f"R = −I₂, ℓ = 8: descent from zero ends at excess {last:.4f}, "
        f"though a solution of norm {linear_residual.max_spectral_norm(small):.2f} exists"
    )


def singular(rng: np.random.Generator, trials: int) -> Evidence:
    """An eigenvalue 0: the excess against its bound, and the bound against the excess where steps are small.

    A step takes x = λ^{−p}, p = 2ℓ − 2, to x (1 − u)^{−p}, u ≤ η, which is at most x (1 + pu (1 − u)^{−p−1}), the
    function being convex. So x grows by pη(1 − η)^{−p−1} at most, and the bound is at most that power ℓ/(ℓ − 1) off.
    """

    def pairs() -> Pairs:
        for _ in range(trials):
            num_layers, num_steps = int(rng.integers(2, 65)), int(rng.integers(0, 2_000))
            for rate in (rng.uniform(0.01, 0.5), rng.uniform(0.5, 1) * 1e-3 / num_layers):
                risk = descent.recursion_risks(np.zeros(1), num_layers, rate, num_steps)[-1]
                bound = descent.singular_risk_bound(num_layers, rate, num_steps)
                yield risk, bound * (1 + ROUNDING)
            power = (2 * num_layers - 1) * num_layers / (num_layers - 1)
            yield bound, risk * (1 - 2 * rate) ** -power * (1 + ROUNDING)  # η is 2·rate

    return at_most(pairs())


def straight_line(rng: np.random.Generator, trials: int) -> Evidence:
    """Small steps for rotations: w stays on the line from 1 to φ, and the risk below exp(−4ℓm^{2−2/ℓ}t)."""

    def pairs() -> Pairs:
        for _ in range(max(1, trials // 10)):
            phi = np.atleast_1d(rng.uniform(0.5, 1.5) * np.exp(1j * rng.uniform(0.1, 2.6)))
            num_layers, rate, num_steps = int(rng.integers(2, 9)), 1e-4, 5_000
            w = descent.eigenvalue_recursion(phi, num_layers, rate, num_steps)[:, 0] ** num_layers
            off = np.abs(((w - 1) * np.conj(phi - 1)).imag).max() / np.abs(phi - 1)[0]
            yield off, 20 * rate * num_layers
            exponent = -4 * num_layers * descent.distance_to_zero(phi)[0] ** (2 - 2 / num_layers) * rate * num_steps
            risk = np.square(np.abs(w[-1] - phi[0]) / np.abs(1 - phi[0]))
            yield risk, math.exp(exponent) * 1.05 + 1e-12  # 5 % for the steps' size
            line = 1 + np.linspace(0, 1, 10_001) * (phi[0] - 1)
            yield abs(np.abs(line).min() - descent.distance_to_zero(phi)[0]), 1e-4

    return at_most(pairs())


def projected(rng: np.random.Generator, trials: int) -> Evidence:
    """Balanced projected descent reaches positive asymmetric R; the projection is the nearest positive matrix."""

    def pairs() -> Pairs:
        for _ in range(max(1, trials // 25)):
            random = rng.standard_normal((3, 3))
            R = (random @ random.T) / 6 + 0.3 * np.eye(3) + 0.6 * (random - random.T)
            R /= max(1.0, np.linalg.norm(R, 2) / 2)  # within the stable range of the learning rate
            margin = 0.9 * np.linalg.eigvalsh((R + R.T) / 2)[0]
            found = descent.balanced_projected_descent(R, 6, 0.02, 400, margin)
            yield found.risks[-1] / found.risks[0], 1e-3
            W = rng.standard_normal((3, 3))
            nearest = descent.project_positive(W, margin)
            yield margin, np.linalg.eigvalsh((nearest + nearest.T) / 2)[0] + ROUNDING
            other = rng.standard_normal((3, 3))
            other += (margin - np.linalg.eigvalsh((other + other.T) / 2)[0]) * np.eye(3)
            # the projection on a convex set: the angle at it is obtuse for every other point of the set
            yield np.vdot(W - nearest, other - nearest), ROUNDING

    return at_most(pairs())


def widened_bound(rng: np.random.Generator, trials: int) -> Evidence:
    """‖∇f‖² of widened networks against the bound, equal for A = B = sI, W_i = −τI, Σ = I; the gradient itself."""
    errors = []

    def pairs() -> Pairs:
        for trial in range(trials):
            k, d = (int(size) for size in rng.integers(1, 4, 2))
            m, num_layers = max(k, d) + int(rng.integers(0, 3)), int(rng.integers(1, 6))
            root = rng.standard_normal((d, d))
            problem = widened_descent.Widened(
                rng.standard_normal((m, d)), rng.standard_normal((k, m)), rng.standard_normal((k, d)),
                root @ root.T + 0.1 * np.eye(d),
            )  # fmt: skip
            layers = rng.standard_normal((num_layers, m, m))
            layers *= rng.uniform(0.02, 0.9) / np.linalg.norm(layers, 2, axis=(1, 2), keepdims=True)
            gradient = widened_descent.risk_and_gradient(problem, layers)[1]
            if trial < 5:
                reference = complex_step_gradient(functools.partial(_widened_risk, problem), layers)
                errors.append(relative_error(gradient, reference))
            yield np.square(gradient).sum() * (1 + ROUNDING), widened_descent.gradient_lower_bound(problem, layers)
            scaled, eye = rng.uniform(0.5, 2) * np.eye(d), np.eye(d)
            problem = widened_descent.Widened(scaled, scaled, rng.standard_normal((d, d)), eye)
            layers = -rng.uniform(0.02, 0.9) * np.repeat(eye[None], num_layers, axis=0)
            square = np.square(widened_descent.risk_and_gradient(problem, layers)[1]).sum()
            bound = widened_descent.gradient_lower_bound(problem, layers)
            yield from ((square * (1 + ROUNDING), bound), (bound * (1 + ROUNDING), square))

    evidence = at_least(pairs())
    require(max(errors) < ROUNDING, f"the gradient of the widened network is off by {max(errors):.1e}")
    return evidence


def widened_rate(rng: np.random.Generator, trials: int) -> Evidence:
    """From zero, targets of any sign are reached at the guaranteed rate, inside max ‖W_i‖ ≤ 1/(2ℓ); its constants."""

    def pairs() -> Pairs:
        for trial in range(max(2, trials // 10)):
            R = -np.eye(2) if trial == 0 else rng.standard_normal(rng.integers(1, 4, 2))
            scale = math.sqrt(4 * math.exp(1.5) * np.linalg.norm(R) * (1 + 1e-9))
            problem, num_layers = widened_descent.identity_maps(R, scale), int(rng.integers(1, 33))
            said = widened_descent.guarantee(problem, num_layers)
            require(said.applies, "the guarantee does not apply where it should")
            beyond = widened_descent.identity_maps(R, scale * (1 - 1e-6))
            require(not widened_descent.guarantee(beyond, num_layers).applies, "the guarantee applies beyond its bound")
            yield abs(said.allowed / (scale**2 / (4 * math.exp(1.5))) - 1), ROUNDING
            gain = 2 * said.learning_rate * num_layers * scale**4 / math.e
            yield abs((1 - said.rate) / gain - 1), ROUNDING
            layers, risks = widened_descent.descend(problem, num_layers, said.learning_rate, 20)
            yield float((risks[1:] / np.maximum(risks[:-1], 1e-25 * risks[0])).max()), said.rate
            yield linear_residual.max_spectral_norm(layers), 1 / (2 * num_layers)

    return at_most(pairs())


def _widened_risk(problem: widened_descent.Widened, layers: np.ndarray) -> complex:
    """‖E Σ^½‖²_F, summed by columns of a root of Σ, for complex layers."""
    hidden = problem.inward @ np.linalg.cholesky(problem.Sigma)
    for layer in layers:
        hidden = hidden + layer @ hidden
    E = problem.outward @ hidden - problem.R @ np.linalg.cholesky(problem.Sigma)
    return (E * E).sum()


def _normal(rng: np.random.Generator, symmetric: bool) -> np.ndarray:
    """A random normal R [4, 4] with eigenvalues of size 0.3 … 1.6: symmetric of any signs, or two turned planes."""
    basis = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    sizes = rng.uniform(0.3, 1.6, 4)
    if symmetric:
        return (basis * (sizes * rng.choice([-1, 1], 4))) @ basis.T
    planes = [size * rotation(angle) for size, angle in zip(sizes, rng.uniform(0, math.pi, 2))]
    return basis @ linalg.block_diag(*planes) @ basis.T


def _descend(R: np.ndarray, num_layers: int, learning_rate: float, num_steps: int) -> linear_residual.Descent:
    start = np.zeros((num_layers, *R.shape))
    return linear_residual.gradient_descent(start, R, np.eye(len(R)), learning_rate, num_steps)
