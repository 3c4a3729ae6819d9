"""Claims on n-shortcut networks away from zero: their map, gradient and least loss, Li et al. §3, §4.2 and §4.3."""

import math

import numpy as np

from theory.claim import claim
from theory.derivatives import complex_step_gradient
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.mutations import larger, scaled, transposed
from theory.shortcut import networks
from theory.shortcut.measured import random_data


@claim(
    id="li.eq_7",
    source="Li et al., (7)",
    statement="∂L/∂W^{r,l} = (W_after^r W_after^{r,l})ᵀ (W Σxx − Σyx) (W_before^{r,l} W_before^r)ᵀ",
    proof="none given",
    function=networks.gradient,
    mutation=transposed,
)
def eq_7(rng: np.random.Generator, trials: int) -> Pairs:
    """The gradient against complex-step derivatives of the loss."""
    for trial in range(trials):
        x, y = random_data(rng)
        weights = 0.5 * rng.standard_normal((1 + trial % 3, 1 + trial % 4, 3, 3))
        reference = complex_step_gradient(networks.loss, weights, x, y)
        yield relative_error(networks.gradient(weights, x, y), reference), ROUNDING


@claim(
    id="li.eq_10",
    source="Li et al., (10)",
    statement="y = W_after (W_after^{r,l} W^{r,l} W_before^{r,l} + I) W_before x for every r and l",
    proof="none given",
    function=networks.forward,
    mutation=scaled(1.01),
)
def eq_10(rng: np.random.Generator, trials: int) -> Pairs:
    """y of (10), W_after (W_after^{r,l} W^{r,l} W_before^{r,l} + I) W_before x, for every unit and layer."""
    for trial in range(trials):
        x, _ = random_data(rng)
        units, depth = 1 + trial % 3, 1 + trial % 4
        weights = 0.5 * rng.standard_normal((units, depth, 3, 3))
        maps = [_product(unit) + np.eye(3) for unit in weights]
        r, layer = int(rng.integers(units)), int(rng.integers(depth))
        inside = _product(weights[r, layer + 1 :]) @ weights[r, layer] @ _product(weights[r, :layer])
        whole = _product(maps[r + 1 :]) @ (inside + np.eye(3)) @ _product(maps[:r])
        yield relative_error(networks.forward(weights, x), x @ whole.T), ROUNDING


@claim(
    id="li.depth",
    source="Li et al. §3.2, a “(Σ(L_r − 1) + 1)-layer plain linear network”",
    statement="without shortcuts it is a plain network of Σ(L_r − 1) = nR weight matrices",
    verdict="holds: L_r counts layers of neurons; there is one weight matrix fewer",
    proof="none given",
    function=networks.forward,
    mutation=scaled(1.01),
)
def plain_depth(rng: np.random.Generator, trials: int) -> Pairs:
    """Without shortcuts the network is a plain one of n·R weight matrices, n·R + 1 layers of neurons, and no fewer."""
    for trial in range(trials):
        x, _ = random_data(rng)
        units, depth = 1 + trial % 3, 1 + trial % 4
        weights = 0.5 * rng.standard_normal((units, depth, 3, 3))
        matrices = list(weights.reshape(-1, 3, 3))
        require(len(matrices) == units * depth, "a matrix is missing")
        output = networks.forward(weights, x, shortcut=False)
        yield relative_error(output, x @ _product(matrices).T), ROUNDING
    layers = [depth + 1 for depth in (2, 2, 2)]  # L_r layers of neurons have L_r − 1 matrices
    printed = sum(count - 1 for count in layers) + 1
    matrices = sum(count - 1 for count in layers)
    require(printed == matrices + 1, "the printed count is that of the weight matrices")
    return (
        f"three 2-shortcuts have {matrices} weight matrices, which Figures 5 to 10 call the depth, and "
        f"Σ(L_r − 1) + 1 = {printed} layers of neurons"
    )


@claim(
    id="li.variance",
    source="Li et al. §4.1, “the output variance … will actually explode”",
    statement="linear, weights of variance g/d: E‖ŷ‖² = (1 + gⁿ)^R ‖x‖², doubling in every unit for Xavier's g = 1",
    proof="none given",
    function=networks.output_growth,
    mutation=larger,
)
def variance_explosion(rng: np.random.Generator, trials: int) -> Pairs:
    """Mean ‖ŷ‖² of random linear networks over their weights against (1 + gⁿ)^R ‖x‖², in standard errors."""
    d = 6
    for trial in range(max(1, trials // 5)):
        units = 1 + trial % 3
        depth = 1 + trial % 2
        gain = rng.uniform(0.3, 1.0)
        draws = 20_000
        h = np.broadcast_to(np.eye(d)[0], (draws, d))
        for _ in range(units):
            inside = h
            for _ in range(depth):
                matrices = rng.standard_normal((draws, d, d)) * math.sqrt(gain / d)
                inside = np.einsum("nij,nj->ni", matrices, inside)
            h = h + inside
        squares = np.square(h).sum(1)
        growth = networks.output_growth(units, depth, gain)
        yield abs(squares.mean() / growth - 1), 7 * squares.std() / math.sqrt(draws) / growth
    xavier = [networks.output_growth(units, 2) for units in (1, 10, 48)]
    yield from ((abs(growth / 2.0**units - 1), ROUNDING) for growth, units in zip(xavier, (1, 10, 48), strict=True))


@claim(
    id="li.eq_14",
    source="Li et al., (14)",
    statement="a 1-shortcut linear network follows the gradient of a plain one started at I, with products up to R",
    verdict="misprint: the products run to R, the number of units of (5), not to R − 1",
    proof="none given",
    function=networks.gradient,
    mutation=transposed,
)
def eq_14(rng: np.random.Generator, trials: int) -> Pairs:
    """For n = 1 and V = W + I the gradient is that of a plain linear network: products to R, not R − 1 as printed."""
    printed_errors = []
    for _ in range(trials):
        x, y = random_data(rng)
        V = np.eye(3) + 0.5 * rng.standard_normal((4, 3, 3))
        reference = complex_step_gradient(networks.loss, V[:, None] - np.eye(3), x, y)[:, 0]
        yield relative_error(_plain_gradient(V, x, y, units=4), reference), ROUNDING
        computed = networks.gradient(V[:, None] - np.eye(3), x, y)[:, 0]
        yield relative_error(computed, _plain_gradient(V, x, y, units=4)), ROUNDING
        printed_errors.append(relative_error(_plain_gradient(V, x, y, units=3)[:3], reference[:3]))
    require(min(printed_errors) > 1e-3, "products to R − 1 give the gradient of R units")
    return f"R = 4: with products to R − 1 the gradient is off by {100 * min(printed_errors):.0f} % or more"


@claim(
    id="li.one_shortcut",
    source="Li et al., abstract, “The 1-shortcut … is essentially equivalent to no shortcuts”",
    statement=(
        "n = 1, linear: the gradient at W is that of the plain network at W + I, so descent from starts that differ by "
        "I agrees; at W = 0, R ≥ 2, the plain network is stationary, the 1-shortcut network only if M = 0"
    ),
    verdict=(
        "depends on the reading: with the start shifted by I, holds; from the same start, such as zero, false unless "
        "M = 0"
    ),
    proof="complete: by (14), for linear networks, with the start shifted",
    after="li.eq_14",
    function=networks.gradient,
    mutation=transposed,
)
def one_shortcut_or_none(rng: np.random.Generator, trials: int) -> Pairs:
    """The gradient of a 1-shortcut network at W against that of the plain one at W + I; and of both at zero."""
    for trial in range(trials):
        x, y = random_data(rng)
        weights = 0.5 * rng.standard_normal((1 + trial % 4, 1, 3, 3))
        plain = complex_step_gradient(_plain_loss, weights + np.eye(3), x, y)
        yield relative_error(networks.gradient(weights, x, y), plain), ROUNDING
    zero = np.zeros((2, 1, 3, 3))
    slopes = networks.gradient(zero, x, y), complex_step_gradient(_plain_loss, zero, x, y)
    with_shortcut, without = (np.abs(slope).max() for slope in slopes)
    require(with_shortcut > 0 == without, "at zero both gradients vanish, or neither")
    return f"at W = 0, R = 2: the gradient is up to {with_shortcut:.2f} with 1-shortcuts, {without:.0f} without"


@claim(
    id="li.one_unit",
    source="Li et al. §4.2, R = 1",
    statement=(
        "one shortcut over all layers changes the outputs from Y to Y − X: the loss is that of a plain network for them"
    ),
    proof="none given",
    function=networks.loss,
    mutation=scaled(1.01),
)
def one_unit(rng: np.random.Generator, trials: int) -> Pairs:
    """R = 1: the loss with one shortcut over all layers against that of a plain network for the outputs Y − X."""
    for trial in range(trials):
        x, y = random_data(rng)
        weights = rng.standard_normal((1, 1 + trial % 4, 3, 3))
        plain = np.square(y - x - x @ _product(weights[0]).T).sum() / (2 * len(x))
        yield abs(networks.loss(weights, x, y) / plain - 1), ROUNDING


@claim(
    id="li.eq_15",
    source="Li et al., (15)",
    statement="where Σxx has an inverse the best linear map is Σyx Σxx⁻¹",
    function=networks.least_squares_map,
    mutation=scaled(1.01),
)
def eq_15(rng: np.random.Generator, trials: int) -> Pairs:
    """At W = Σ_YX Σ_XX⁻¹ the gradient of ‖Y − WX‖² vanishes and no random W is better."""
    for _ in range(trials):
        x, y = random_data(rng)
        best = networks.least_squares_map(x, y)
        yield np.abs((x @ best.T - y).T @ x).max() / np.abs(y.T @ x).max(), ROUNDING
        other = best + 0.1 * rng.standard_normal(best.shape)
        yield networks.minimum_loss(x, y), np.square(y - x @ other.T).sum() / (2 * len(x))


@claim(
    id="li.eq_16",
    source="Li et al., (16)",
    statement="L_min is the same for any G with ΣxxGΣxx = Σxx, and every n-shortcut linear network reaches it",
    proof="none given",
    function=networks.minimum_loss,
    mutation=scaled(1.01),
)
def eq_16(rng: np.random.Generator, trials: int) -> Pairs:
    """L_min with other generalised inverses of a singular Σ_XX, and that n-shortcut networks of every n reach it."""
    for trial in range(trials):
        x, y = random_data(rng, examples=2 if trial % 2 else 12)
        least = networks.minimum_loss(x, y)
        input_moment, cross_moment = networks.moments(x, y)
        pseudo = np.linalg.pinv(input_moment, hermitian=True)
        free = rng.standard_normal(pseudo.shape)
        inverse = pseudo + free - pseudo @ input_moment @ free @ input_moment @ pseudo
        loss = np.square(y - x @ (cross_moment @ inverse).T).sum() / (2 * len(x))
        scale = np.square(y).sum() / (2 * len(x))
        yield abs(loss - least), 1e-7 * scale  # the inverse's free part is multiplied by the moment's rounding
        yield abs(_reaching(rng, x, y, units=1 + trial % 3, depth=1 + trial % 4) - least), ROUNDING * scale


def _plain_loss(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> complex:
    return networks.loss(weights, x, y, shortcut=False)


def _plain_gradient(V: np.ndarray, x: np.ndarray, y: np.ndarray, units: int) -> np.ndarray:
    """Returns (Π_{r′>r} V_r′)ᵀ (Π V Σxx − Σyx) (Π_{r′<r} V_r′)ᵀ for the first `units` (Li et al., (14))."""
    input_moment, cross_moment = networks.moments(x, y)
    middle = _product(V[:units]) @ input_moment - cross_moment
    return np.stack([_product(V[r + 1 : units]).T @ middle @ _product(V[:r]).T for r in range(len(V))])


def _product(matrices: np.ndarray) -> np.ndarray:
    product = np.eye(3)
    for matrix in matrices:
        product = matrix @ product
    return product


def _reaching(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, units: int, depth: int) -> float:
    """Returns loss of an n-shortcut linear network whose last unit compensates for the random others."""
    weights = 0.3 * rng.standard_normal((units, depth, x.shape[1], x.shape[1]))
    hidden = networks.forward(weights[:-1], x)
    weights[-1] = np.eye(x.shape[1])
    weights[-1, 0] = np.linalg.lstsq(hidden, y, rcond=None)[0].T - np.eye(x.shape[1])
    return networks.loss(weights, x, y)
