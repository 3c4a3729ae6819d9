"""Checks of networks with a linear output (Shamir 2018; Kawaguchi & Bengio 2019) and of risks in the ball of H&M §5."""

from collections.abc import Iterator

import numpy as np
from scipy import optimize

from theory import linear_output, relu_linear_output, relu_networks, relu_search
from theory.checks.evidence import ROUNDING, Evidence, at_most, require

Pairs = Iterator[tuple[float, float]]  # (measured, bound)


def local_minima(rng: np.random.Generator, trials: int) -> Evidence:
    """Where descent on (W, V) ends against the value that the theorem gives; bad critical points are left downhill."""
    saddles = []

    def pairs() -> Pairs:
        for _ in range(max(1, trials // 4)):
            x, features, y = _problem(rng)
            said = linear_output.local_minimum_risk(x, features, y)
            end, stays = _descend(rng, x, features, y)
            if stays:
                yield abs(end / said - 1), 1e-6
            yield said, linear_output.best_linear_risk(x, y) * (1 + ROUNDING)
            W, V = _saddle(x, features, y)
            there = linear_output.risk(W, V, x, features, y)
            saddles.append(there / linear_output.best_linear_risk(x, y))
            moved = linear_output.escape(W, V, x, features, y, 0.01)
            yield linear_output.risk(*moved, x, features, y), there * (1 - 1e-9)

    evidence = at_most(pairs())
    return evidence._replace(
        counterexample=f"critical points with W = 0 are up to {max(saddles):.1f} times as bad as linear predictors"
    )


def ball(rng: np.random.Generator, trials: int) -> Evidence:
    """f of random students and teachers in B_τ against the bound; one in five has aligned units of opposite signs."""

    def pairs() -> Pairs:
        for trial in range(trials):
            depth, width, d = (int(size) for size in rng.integers(1, 5, 3))
            radius = rng.uniform(0.05, 0.95)
            setting, x = relu_search.Setting(d, depth, width, 200, radius), rng.standard_normal((1, 200, d))
            student, teacher = relu_search.draw_weights(rng, 2, setting)[:, None]
            if trial % 5 == 0:  # one input; each block of the teacher multiplies h by 1 + τ², of the student by 1 − τ²
                x = np.ones((1, 1, 1))
                teacher = radius * np.ones((1, depth, 2, 1, 1))
                student = teacher * np.array([1, -1])[:, None, None]
            y = relu_networks.forward(teacher, x)
            moment = np.square(x).sum() / x.shape[1]
            found = relu_networks.risk_and_gradient(student, x, y)[0][0]
            yield found, linear_output.ball_risk_bound(depth, radius, moment) * (1 + ROUNDING)
            if trial % 5 == 0 and depth == 1:
                yield linear_output.ball_risk_bound(depth, radius, moment), found * (1 + ROUNDING)

    return at_most(pairs())


def regrouped(rng: np.random.Generator, trials: int) -> Evidence:
    """f at teachers with blocks in another order against the bound; τ⁸ at the minimum; one block that does not fall.

    Regrouping is a permutation of blocks here. Two blocks x + τ²Oᵢx, Oᵢ orthogonal, O₁O₂ = −O₂O₁, on inputs that no
    ReLU changes, have just the bound; for small τ it is near ℓ²(ℓ − 1)²τ⁸. The last part is a local minimum of one
    block in the population, whose f/f(0) is the same at every radius: so f ≤ c τ⁴ f(0) does not hold for all local
    minima in the ball.
    """

    def pairs() -> Pairs:
        for _ in range(trials):
            depth, width, d = int(rng.integers(2, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
            radius = rng.uniform(0.05, 0.95)
            teacher = relu_search.draw_weights(rng, 1, relu_search.Setting(d, depth, width, 200, radius), 0.9)
            x = rng.standard_normal((1, 200, d))
            found = relu_networks.risk_and_gradient(
                teacher[:, rng.permutation(depth)], x, relu_networks.forward(teacher, x)
            )[0][0]
            moment = np.square(x).sum() / x.shape[1]
            yield found, linear_output.reordering_risk_bound(depth, radius, moment)
            teacher, x = _anticommuting_blocks(rng, radius)
            found = relu_networks.risk_and_gradient(teacher[:, ::-1], x, relu_networks.forward(teacher, x))[0][0]
            said = linear_output.reordering_risk_bound(2, radius, np.square(x).sum() / x.shape[1])
            yield from ((found, said * (1 + ROUNDING)), (said, found * (1 + ROUNDING)))
        for depth in range(2, 6):  # (1 + τ²)^ℓ − 1 − ℓτ² is ℓ(ℓ − 1)/2 τ⁴ times 1 + (ℓ − 2)/3 τ² + …
            small = linear_output.reordering_risk_bound(depth, 1e-3, 1.0) / (depth * (depth - 1) * 1e-12) ** 2
            yield abs(small - 1), depth * 1e-6
        for radius in (0.05, 0.5):
            point = relu_search.swapped_blocks(radius)
            yield point["risk"] * point["risk_at_zero"], linear_output.reordering_risk_bound(2, 0.8 * radius, 2.0)

    evidence = at_most(pairs())
    shares = one_block_minimum()
    require(abs(shares[1] / shares[0] - 1) < 1e-4 and shares[0] > 1e-6, f"f/f(0) of one block changed: {shares}")
    return evidence._replace(
        counterexample=f"one block of 4 units has a bad local minimum with f/f(0) = {shares[0]:.1e} at every radius"
    )


def _anticommuting_blocks(rng: np.random.Generator, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """A teacher [1, 2, 2, 2, 2] of blocks x + τ²O₁x and x + τ²O₂x on the positive x [1, 50, 2] that it is given too."""
    turns = np.array([[[1.0, 0], [0, -1]], [[0, 1], [1, 0]]])  # each is its own transpose
    teacher = radius * np.stack([np.broadcast_to(np.eye(2), turns.shape), turns], axis=1)[None]
    return teacher, rng.uniform(0.5, 2, (1, 50, 2))


def one_block_minimum(seed: int = 44) -> list[float]:
    """f/f(0) at a bad local minimum of one block of 4 units in the population, for τ = 0.5 and 0.05."""
    rng, setting = np.random.default_rng(seed), relu_search.Setting(2, 1, 4, 100, 0.5)
    teacher, start = relu_search.draw_weights(rng, 1, setting, 0.5), relu_search.draw_weights(rng, 1, setting)
    end = relu_search.find_critical_points(relu_networks.Population(teacher), start, "risk", 60)
    shares = []
    for scale in (1, 0.1):
        found = relu_search.classify(relu_networks.Population(scale * teacher), scale * end, 0.5 * scale)
        require(
            found["category"][0] == "bad_local_minimum", f"it is a {found['category'][0]} at {scale} times the radius"
        )
        shares.append(float(found["risk"][0]))
    return shares


def chain(rng: np.random.Generator, trials: int) -> Evidence:
    """relu_search's local minima with a trained output: their risk against the best predictor linear in (h, f).

    A critical point of (W, V) may lie above the best by the order of its gradient's square.
    """
    bad, above = [], relu_linear_output.CRITICAL**2

    def pairs() -> Pairs:
        for layers, width in ((1, 2), (2, 1)):
            setting = relu_search.Setting(2, layers, width, 60, 0.5)
            rows = relu_linear_output.compare(setting, max(8, trials // 5), int(rng.integers(2**31)))
            bad.extend(row for row in rows if row["category"] == "bad_local_minimum")
            for row in rows:
                if row["critical"]:
                    yield row["with_output"], row["last_block"] + above
                yield row["last_block"], row["with_output"] + 1e-12

    evidence = at_most(pairs())
    worse = sum(row["risk"] > row["linear"] for row in bad)
    return evidence._replace(
        counterexample=f"{len(bad)} bad local minima without W: {worse} worse than the best linear predictor"
    )


def _problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d = int(rng.integers(2, 5))
    x = rng.standard_normal((80, d))
    features = np.maximum(x @ rng.standard_normal((d, d + 1)), 0)
    r = int(rng.integers(1, d + 1))
    return x, features, features @ rng.standard_normal((d + 1, r)) + rng.standard_normal((80, r)) + x[:, :r]


def _descend(rng: np.random.Generator, x: np.ndarray, features: np.ndarray, y: np.ndarray) -> tuple[float, bool]:
    """The risk where BFGS on (W, V) ends, from a random start, and whether it is a critical point of moderate size.

    Where W would have to pass a matrix of lower rank, it may creep along a valley to infinity, V → ∞, instead.
    """
    shapes = (y.shape[1], x.shape[1]), (x.shape[1], features.shape[1])
    size = shapes[0][0] * shapes[0][1]

    def split(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return flat[:size].reshape(shapes[0]), flat[size:].reshape(shapes[1])

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        slopes = linear_output.gradient(*split(flat), x, features, y)
        return linear_output.risk(*split(flat), x, features, y), np.concatenate([slope.ravel() for slope in slopes])

    start = 0.3 * rng.standard_normal(size + shapes[1][0] * shapes[1][1])
    found = optimize.minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5_000})
    return float(found.fun), bool(np.abs(found.jac).max() < 1e-6 and np.abs(found.x).max() < 30)


def _saddle(x: np.ndarray, features: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A critical point with W = 0 and V ≠ 0: V solves ∂G/∂A + ∂G/∂B Vᵀ = 0, and ∂G/∂B ≠ 0."""
    by_x, by_features = y.T @ x, y.T @ features
    return np.zeros((y.shape[1], x.shape[1])), -(np.linalg.pinv(by_features) @ by_x).T
