"""Claims on the order of zero as a stationary point: Li et al., Definitions 1 and 4, Theorem 1.1 and its hypotheses."""

import math

import numpy as np
from scipy import linalg

from theory import shortcut_hessians
from theory.claim import claim
from theory.evidence import ROUNDING, Pairs, require
from theory.linear.rotations import rotation
from theory.mutations import changed, larger, scaled
from theory.shortcut import networks, stationarity
from theory.shortcut.activations import Activation, ActivationLike
from theory.shortcut.measured import BENT, DIFFERENCES, numeric_hessian, random_data

higher_order = changed(lambda stationary: stationarity.Stationarity(stationary.order + 1, stationary.exact))
always_exact = changed(lambda stationary: stationary._replace(exact=True))


@claim(
    id="li.definition_1",
    source="Li et al., Definition 1, (3)",
    statement="for normal matrices the condition number is |λ|_max/|λ|_min",
    function=shortcut_hessians.condition_number_at_zero,
    mutation=larger,
)
def definition_1(rng: np.random.Generator, trials: int) -> Pairs:
    """(3), the ratio of |eigenvalues|, against (2), that of singular values: for normal matrices and for Hessians."""
    for trial in range(trials):
        basis = np.linalg.qr(rng.standard_normal((4, 4)))[0]
        angles = rng.uniform(-math.pi, math.pi, 2)
        blocks = [size * rotation(angle) for size, angle in zip(rng.uniform(0.1, 2, 2), angles)]
        normal = basis @ linalg.block_diag(*blocks) @ basis.T
        sizes = np.abs(np.linalg.eigvals(normal))
        yield abs(sizes.max() / sizes.min() / np.linalg.cond(normal) - 1), ROUNDING
        x, y = random_data(rng, dimension=2)
        H = shortcut_hessians.hessian_at_zero(x, y, 2, 1 + trial % 2)
        number = shortcut_hessians.condition_number_at_zero(x, y, 2, 1 + trial % 2)
        yield abs(number / np.linalg.cond(H) - 1), ROUNDING * number
    A = np.array([[1.0, 5.0], [0.0, 1.0]])
    return f"normal is needed: [1 5; 0 1] has the condition number {np.linalg.cond(A):.0f}, ratio 1"


@claim(
    id="li.definition_4",
    source="Li et al., Definition 4",
    statement="unless cM = 0, zero is a stationary point of order n − 1, not of order n: L(tW) − L(0) ~ tⁿ",
    proof="complete: that the order is at least n − 1; that it is not higher is shown here",
    function=stationarity.order_of_stationarity,
    mutation=(higher_order, always_exact),
)
def definition_4(rng: np.random.Generator, trials: int) -> Pairs:
    """The measured exponent of L(tW) − L(0) against n = order + 1, n = 1 … 5, on a random ray."""
    for trial in range(trials):
        depth = 1 + trial % 5
        x, y = random_data(rng)
        weights = _ray(rng, depth, x, y)
        small, large = (_increase(weights, t, x, y) for t in (1e-3, 2e-3))
        order = stationarity.order_of_stationarity(x, y, depth)
        require(order.exact, "the order is exact on generic data")
        at_identity = stationarity.order_of_stationarity(x, x, depth)  # M = 0: L(tW) − L(0) ~ t²ⁿ
        require(not at_identity.exact, "the order is exact where the identity is the best map")
        yield abs(math.log2(abs(large / small)) - (order.order + 1)), 0.05


@claim(
    id="li.theorem_1_hypotheses",
    source="Li et al., Theorem 1, its hypotheses",
    statement=(
        "n ≥ 2: |σ_mid(z)|, |σ_post(z)| ≤ C|z| near 0; (11) also needs σ′_mid(0), σ′_post(0) and σ_pre continuous "
        "at the data"
    ),
    verdict=(
        "false: it requires derivatives of σ_pre at 0, but σ_pre is evaluated at the data, where it may have a pole"
    ),
    proof="wrong: Lemma 1 differentiates σ_pre near the data",
    function=stationarity.leading_term,
    mutation=scaled(1.01),
)
def hypotheses(rng: np.random.Generator, trials: int) -> Pairs:
    """L(tW) − L(0) against its leading term, for σ_pre without derivative at 0, and for one smooth only at 0.

    σ_pre acts on the data, and on h ≈ x in later units: continuity there suffices for n ≥ 2; 0 does not matter.
    """
    rough = Activation(lambda z: np.where(z > 0, 2.0, -1.0) * np.sqrt(np.abs(z)) + np.sign(z), None, (0.0, 0.0, 0.0))
    for trial in range(trials):
        depth = 2 + trial % 3
        x, y = random_data(rng)
        x += 0.2 * np.sign(x)  # away from 0
        weights = _ray(rng, depth, x, y, rough)
        expected = stationarity.leading_term(weights, x, y, rough)
        yield abs(_increase(weights, 1e-4, x, y, rough) / 1e-4**depth / expected - 1), 1e-3
    pole = Activation(lambda z: 1 / np.where(z == 1, 1, z - 1), None, (-1.0, -1.0, -2.0))  # 1 at z = 1, smooth at 0
    x = np.ones((1, 1))
    y = np.full((1, 1), 3.0)
    ones = np.ones((2, 2, 1, 1))
    changes = [_increase(t * ones, 1.0, x, y, pole) for t in (1e-2, 1e-3, 1e-4)]
    require(abs(changes[-1] + 1.5) < 1e-6, "a pole of σ_pre at the data does no harm")
    jump = Activation(lambda z: np.where(z > 1, 2.0, 1.0), None, (1.0, 0.0, 0.0))
    one = ones[0]
    none = 0 * ones[0]

    def change(*units: np.ndarray) -> float:
        return _increase(1e-3 * np.stack(units), 1.0, x, y, jump) / 1e-6

    # Where h₁ = x + t²ab passes the jump at x, the second unit takes another value: t² times two numbers.
    ahead, behind = (
        abs(change(unit, one) - change(unit, none) - change(none, one)) for unit in (one, one * [[[-1]], [[1]]])
    )
    require(ahead - behind > 0.5, "a jump of σ_pre at the data leaves a Hessian")
    return (
        "σ_pre(z) = 1/(z − 1), 1 at z = 1, is smooth at 0; x = 1, y = 3, R = n = 2: L(tD) − L(0) = "
        f"{changes[-1]:.4f} at t = 1e-4; with a jump at the data L(tD) is not a quadratic form to order t²"
    )


@claim(
    id="li.theorem_1.1",
    source="Li et al., Theorem 1.1",
    statement="L(tW) − L(0) = c tⁿ Σ_r tr(W_n···W_1 Mᵀ) + o(tⁿ); for n ≥ 3 the Hessian at zero is 0",
    verdict="holds: under sufficient hypotheses; under the printed ones it is false, which is counted above",
    proof="complete: if σ_pre has the derivatives that Lemma 1 uses",
    function=stationarity.leading_term,
    mutation=larger,
)
def theorem_1_1(rng: np.random.Generator, trials: int) -> Pairs:
    """(L(tW) − L(0))/tⁿ against c Σ tr(W_n···W_1 Mᵀ), smooth activations; and the Hessian for n ≥ 3 against 0."""
    for trial in range(trials):
        depth = 1 + trial % 5
        x, y = random_data(rng)
        activations = [("linear",) * 3, ("tanh",) * 3, ("softplus", BENT, BENT)][trial % 3]
        weights = _ray(rng, depth, x, y, *activations)
        expected = stationarity.leading_term(weights, x, y, *activations)
        steps = np.array([1e-3, 2e-3])
        ratios = [_increase(weights, t, x, y, *activations) / t**depth for t in steps]
        yield abs(2 * ratios[0] - ratios[1] - expected) / abs(expected), 1e-3
    for depth in (3, 4):
        x, y = random_data(rng, dimension=2)
        hessian = shortcut_hessians.hessian_at_zero(x, y, 2, depth, "tanh", "tanh", "tanh")
        yield np.abs(numeric_hessian(x, y, 2, depth, "tanh", "tanh", "tanh") - hessian).max(), DIFFERENCES


@claim(
    id="li.theorem_1_relu",
    source="Li et al., after Theorem 1",
    statement=(
        "with ReLU at mid or post the order is n − 1; for n = 2, all else linear, a Hessian exists at zero only if "
        "E[(y − x)|w·x|] = 0 for every w"
    ),
    verdict=(
        "depends on the reading: for ReLU itself at mid or post, false: for n = 2 in general no Hessian exists; "
        "for a polynomial in its place, holds, but for another loss"
    ),
    proof="none given",
    function=stationarity.order_of_stationarity,
    mutation=(higher_order, always_exact),
)
def theorem_1_1_relu(rng: np.random.Generator, trials: int) -> Pairs:
    """With ReLU at mid or post the exponent of L(tW) − L(0) is still n, the order n − 1; the quadratic form for n = 2.

    A quadratic form is the same along D and −D, which fails at mid, and takes opposite values along (W₁, W₂) and
    (W₁, −W₂) once it is 0 along (W₁, 0) and (0, W₂), which fails at post. On data symmetric about 0, for which E[(y −
    x)|w·x|] = 0, it is half that of a linear network.
    """
    unequal = {"mid": [], "post": []}
    places = {"mid": ("linear", "relu", "linear"), "post": ("linear", "linear", "relu")}
    for trial in range(max(12, trials)):
        depth = 1 + (trial // 2) % 4
        place = ("mid", "post")[trial % 2]
        weights, x, y = _steep_ray(rng, depth, places[place])
        small, large = (_increase(weights, t, x, y, *places[place]) for t in (1e-4, 2e-4))
        order, exact = stationarity.order_of_stationarity(x, y, depth, *places[place])
        is_linear = (depth, place) == (1, "mid")  # n = 1 has no mid
        require(exact == is_linear, f"exact is {exact} for ReLU at {place}, n = {depth}")
        yield abs(math.log2(abs(large / small)) - (order + 1)), 0.05
        x, y = (np.concatenate([half, -half]) for half in (x, y))
        weights = _ray(rng, 2, x, y)
        half = stationarity.leading_term(weights, x, y) / 2
        # Terms of the fourth order are omitted, 1e-8 times as large for weights of size 1.
        yield abs(_increase(weights, 1e-4, x, y, *places[place]) / 1e-8 / half - 1), 1e-3
    for place, activations in places.items():
        for _ in range(20):
            weights, x, y = _steep_ray(rng, 2, activations)
            flipped = -weights if place == "mid" else weights * np.array([1, -1])[None, :, None, None]
            small, other = (_increase(w, 1e-4, x, y, *activations) for w in (weights, flipped))
            difference = abs(small - other) if place == "mid" else abs(small + other)
            unequal[place].append((difference / max(abs(small), abs(other)), small, other))
    (share, forwards, backwards), (post_share, *_) = (max(unequal[place]) for place in ("mid", "post"))
    require(min(share, post_share) > 0.1, "ReLU at mid or post seems to have a Hessian")
    return (
        f"ReLU at mid, n = 2: (L(tD) − L(0))/t² is {forwards / 1e-8:.3f} along D, "
        f"{backwards / 1e-8:.3f} along −D, so no Hessian exists"
    )


def _ray(
    rng: np.random.Generator, depth: int, x: np.ndarray, y: np.ndarray, *activations: ActivationLike
) -> np.ndarray:
    """Returns random weights whose leading term is not small."""
    shape = (2, depth, x.shape[1], x.shape[1])
    rays = rng.standard_normal((8, *shape))
    return max(rays, key=lambda weights: abs(stationarity.leading_term(weights, x, y, *activations)))


def _increase(weights: np.ndarray, t: float, x: np.ndarray, y: np.ndarray, *activations: ActivationLike) -> float:
    """Returns L(tW) − L(0) without cancellation: ⟨ŷ − x, (ŷ − x) − 2(y − x)⟩/2m, and ŷ − x from increments."""
    moved = np.longdouble(t) * weights.astype(np.longdouble)
    change = networks.forward(moved, x.astype(np.longdouble), *activations) - x
    return float((change * (change - 2 * (y - x))).sum() / (2 * len(x)))


def _steep_ray(rng: np.random.Generator, depth: int, activations: tuple) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the one of 8 random rays along which the loss changes most, whose leading term is not small; and data."""
    x, y = random_data(rng)
    rays = rng.standard_normal((8, 2, depth, 3, 3))
    return max(rays, key=lambda ray: abs(_increase(ray, 1e-4, x, y, *activations))), x, y
