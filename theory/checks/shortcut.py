"""Checks of Li et al. §2–4: definitions, the order of stationarity (Theorem 1.1), gradients and least losses.

As in linear.py: random instances, the worst of them as Evidence.
"""

import math

import numpy as np

from theory import shortcut_hessians, shortcut_networks, stationarity
from theory.checks.evidence import ROUNDING, Evidence, at_most, relative_error, require
from theory.checks.hessian import BENT, DIFFERENCES, numeric_hessian, random_data
from theory.checks.numeric import complex_step_gradient


def definition_1(rng: np.random.Generator, trials: int) -> Evidence:
    """(3), the ratio of |eigenvalues|, is the condition number for symmetric matrices; not for every matrix."""
    pairs = []
    for _ in range(trials):
        A = rng.standard_normal((5, 5))
        sizes = np.abs(np.linalg.eigvalsh(A + A.T))
        pairs.append((abs(sizes.max() / sizes.min() / np.linalg.cond(A + A.T) - 1), ROUNDING))

    A = np.array([[1.0, 5.0], [0.0, 1.0]])
    return at_most(pairs)._replace(
        counterexample=f"[1 5; 0 1] is not normal: condition number {np.linalg.cond(A):.0f}, ratio of eigenvalues 1"
    )


def definition_4(rng: np.random.Generator, trials: int) -> Evidence:
    """The measured exponent of L(tW) − L(0) against n = order + 1, n = 1 … 5, on a random ray."""
    pairs = []
    for trial in range(trials):
        depth = 1 + trial % 5
        x, y = random_data(rng)
        weights = _ray(rng, depth, x, y)
        small, large = (_increase(weights, t, x, y) for t in (1e-3, 2e-3))
        order = stationarity.order_of_stationarity(x, y, depth)
        require(order.exact, "the order is exact on generic data")
        pairs.append((abs(math.log2(abs(large / small)) - (order.order + 1)), 0.05))

    return at_most(pairs)


def theorem_1_1(rng: np.random.Generator, trials: int) -> Evidence:
    """(L(tW) − L(0))/tⁿ against c Σ tr(W_n···W_1 Mᵀ), smooth activations; and the Hessian for n ≥ 3 against 0."""
    pairs = []
    for trial in range(trials):
        depth = 1 + trial % 5
        x, y = random_data(rng)
        activations = [("linear",) * 3, ("tanh",) * 3, ("softplus", BENT, BENT)][trial % 3]
        weights = _ray(rng, depth, x, y, *activations)
        expected = stationarity.leading_term(weights, x, y, *activations)
        steps = np.array([1e-3, 2e-3])
        ratios = [_increase(weights, t, x, y, *activations) / t**depth for t in steps]
        pairs.append((abs(2 * ratios[0] - ratios[1] - expected) / abs(expected), 1e-3))
    for depth in (3, 4):
        x, y = random_data(rng)
        hessian = shortcut_hessians.hessian_at_zero(x, y, 2, depth, "tanh", "tanh", "tanh")
        pairs.append((np.abs(numeric_hessian(x, y, 2, depth, "tanh", "tanh", "tanh") - hessian).max(), DIFFERENCES))

    return at_most(pairs)


def theorem_1_1_relu(rng: np.random.Generator, trials: int) -> Evidence:
    """With ReLU at mid or post the order is still n − 1: the exponent of L(tW) − L(0) is n; for n = 2 no Hessian exists.

    A quadratic form is the same along D and −D, which fails at mid, and takes opposite values along (W₁, W₂) and
    (W₁, −W₂) once it is 0 along (W₁, 0) and (0, W₂), which fails at post.
    """
    unequal = {"mid": [], "post": []}

    pairs = []
    for trial in range(max(12, trials)):
        depth, place = 1 + (trial // 2) % 4, ("mid", "post")[trial % 2]
        activations = ("linear", "relu", "linear") if place == "mid" else ("linear", "linear", "relu")
        x, y = random_data(rng)
        rays = rng.standard_normal((8, 2, depth, 3, 3))
        weights = max(rays, key=lambda ray: abs(_increase(ray, 1e-3, x, y, *activations)))
        small, large = (_increase(weights, t, x, y, *activations) for t in (1e-4, 2e-4))
        pairs.append((abs(math.log2(abs(large / small)) - depth), 0.05))
        if depth == 2:
            flipped = -weights if place == "mid" else weights * np.array([1, -1])[None, :, None, None]
            other = _increase(flipped, 1e-4, x, y, *activations) * (1 if place == "mid" else -1)
            unequal[place].append((abs(small - other) / max(abs(small), abs(other)), small, other))

    evidence = at_most(pairs)
    (share, forwards, backwards), (post_share, *_) = (max(unequal[place]) for place in ("mid", "post"))
    require(min(share, post_share) > 0.1, "ReLU at mid or post looks as if it had a Hessian")
    return evidence._replace(
        counterexample=f"ReLU at mid, n = 2: (L(tD) − L(0))/t² is {forwards / 1e-8:.3f} along D, "
        f"{backwards / 1e-8:.3f} along −D, so no Hessian exists"
    )


def eq_7(rng: np.random.Generator, trials: int) -> Evidence:
    """The gradient against complex-step derivatives of the loss."""
    pairs = []
    for trial in range(trials):
        x, y = random_data(rng)
        weights = 0.5 * rng.standard_normal((1 + trial % 3, 1 + trial % 4, 3, 3))
        reference = complex_step_gradient(shortcut_networks.loss, weights, x, y)
        pairs.append((relative_error(shortcut_networks.gradient(weights, x, y), reference), ROUNDING))

    return at_most(pairs)


def eq_14(rng: np.random.Generator, trials: int) -> Evidence:
    """For n = 1 and V = W + I the gradient is that of a plain linear network: products to R, not R − 1 as printed."""
    printed_errors = []

    pairs = []
    for _ in range(trials):
        x, y = random_data(rng)
        V = np.eye(3) + 0.5 * rng.standard_normal((4, 3, 3))
        reference = complex_step_gradient(shortcut_networks.loss, V[:, None] - np.eye(3), x, y)[:, 0]
        pairs.append((relative_error(_plain_gradient(V, x, y, units=4), reference), ROUNDING))
        printed_errors.append(relative_error(_plain_gradient(V, x, y, units=3)[:3], reference[:3]))

    return at_most(pairs)._replace(
        counterexample=f"with products to R − 1 the error is {min(printed_errors):.0%} or more"
    )


def eq_15(rng: np.random.Generator, trials: int) -> Evidence:
    """At W = Σ_YX Σ_XX⁻¹ the gradient of ‖Y − WX‖² vanishes and no random W is better."""
    pairs = []
    for _ in range(trials):
        x, y = random_data(rng)
        best = shortcut_networks.least_squares_map(x, y)
        pairs.append((np.abs((x @ best.T - y).T @ x).max() / np.abs(y.T @ x).max(), ROUNDING))
        other = best + 0.1 * rng.standard_normal(best.shape)
        pairs.append((shortcut_networks.minimum_loss(x, y), np.square(y - x @ other.T).sum() / (2 * len(x))))

    return at_most(pairs)


def eq_16(rng: np.random.Generator, trials: int) -> Evidence:
    """L_min with other generalised inverses of a singular Σ_XX, and reached by n-shortcut networks of every n."""
    pairs = []
    for trial in range(trials):
        x, y = random_data(rng, examples=2 if trial % 2 else 12)
        least = shortcut_networks.minimum_loss(x, y)
        input_moment, cross_moment = shortcut_networks.moments(x, y)
        pseudo = np.linalg.pinv(input_moment, hermitian=True)
        free = rng.standard_normal(pseudo.shape)
        inverse = pseudo + free - pseudo @ input_moment @ free @ input_moment @ pseudo
        loss = np.square(y - x @ (cross_moment @ inverse).T).sum() / (2 * len(x))
        scale = np.square(y).sum() / (2 * len(x))
        pairs.append(
            (abs(loss - least), 1e-7 * scale)
        )  # the free part of the inverse is multiplied by the moment's rounding
        pairs.append((abs(_reaching(rng, x, y, units=1 + trial % 3, depth=1 + trial % 4) - least), ROUNDING * scale))

    return at_most(pairs)


def _ray(rng: np.random.Generator, depth: int, x: np.ndarray, y: np.ndarray, *activations) -> np.ndarray:
    """Weights along which the leading term does not happen to be small."""
    shape = (2, depth, x.shape[1], x.shape[1])
    rays = rng.standard_normal((8, *shape))
    return max(rays, key=lambda weights: abs(stationarity.leading_term(weights, x, y, *activations)))


def _increase(weights: np.ndarray, t: float, x: np.ndarray, y: np.ndarray, *activations) -> float:
    """L(tW) − L(0) without the cancellation: ⟨ŷ − x, (ŷ − x) − 2(y − x)⟩/2m, and ŷ − x from increments alone."""
    moved = np.longdouble(t) * weights.astype(np.longdouble)
    change = shortcut_networks.forward(moved, x.astype(np.longdouble), *activations) - x
    return float((change * (change - 2 * (y - x))).sum() / (2 * len(x)))


def _plain_gradient(V: np.ndarray, x: np.ndarray, y: np.ndarray, units: int) -> np.ndarray:
    """(Π_{r′>r} V_r′)ᵀ (Π V Σxx − Σyx) (Π_{r′<r} V_r′)ᵀ with products over so many matrices (Li et al., (14))."""
    input_moment, cross_moment = shortcut_networks.moments(x, y)
    middle = _product(V[:units]) @ input_moment - cross_moment
    return np.stack([_product(V[r + 1 : units]).T @ middle @ _product(V[:r]).T for r in range(len(V))])


def _product(matrices: np.ndarray) -> np.ndarray:
    product = np.eye(3)
    for matrix in matrices:
        product = matrix @ product
    return product


def _reaching(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, units: int, depth: int) -> float:
    """Loss of an n-shortcut linear network with random units but the last, which makes up for them."""
    weights = 0.3 * rng.standard_normal((units, depth, x.shape[1], x.shape[1]))
    hidden = shortcut_networks.forward(weights[:-1], x)
    weights[-1] = np.eye(x.shape[1])
    weights[-1, 0] = np.linalg.lstsq(hidden, y, rcond=None)[0].T - np.eye(x.shape[1])
    return shortcut_networks.loss(weights, x, y)
