"""Claims on networks of units: Hardt & Ma §4 (Table 1) and §5, Bartlett, Shamir, Kawaguchi & Bengio, this project."""

import numpy as np
from scipy import optimize

from theory.claim import claim, restated
from theory.derivatives import complex_step_gradient
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.mutations import changed, larger, scaled, vanishing
from theory.relu import linear_output, networks, search, smooth_units, table_1

miscounted = changed(lambda count: table_1.Count(count.convolutions, count.weights + 1))


@claim(
    id="hm.table_1",
    source="Hardt & Ma, Table 1",
    statement="55 convolutions, 13,538,736 weights",
    proof="none given",
    function=table_1.count_weights,
    mutation=miscounted,
)
def weights_of_table_1(rng: np.random.Generator, trials: int) -> Pairs:
    """55 convolutions and 13,538,736 weights against Table 1's 13.5M, block by block."""
    weights = 9 * 3 * 16
    for narrow, wide in ((16, 64), (64, 128), (128, 256)):
        weights += 9 * narrow * wide + 17 * 9 * wide * wide
    count = table_1.count_weights()
    yield abs(count.weights - weights), 0.0
    yield abs(count.convolutions - 55), 0.0
    yield abs(round(weights / 1e6, 1) - 13.5), ROUNDING


@claim(
    id="hm.parameters",
    source="Hardt & Ma §4.1, “13.59 million trainable parameters”",
    statement=(
        "Table 1 has 13.54 million; 13.59 needs biases and 1 × 1 convolutions as shortcuts, which the paper "
        "does not have"
    ),
    verdict="misprint: Table 1 has 13.5M, as its caption says",
    proof="none given",
    function=table_1.count_weights,
    mutation=miscounted,
)
def weights_of_the_text(rng: np.random.Generator, trials: int) -> Pairs:
    """The text's 13.59 million against every count of Table 1, also with biases and with convolutions as shortcuts."""
    bare, biased, projected, with_both = (
        table_1.count_weights(biases, projections).weights for projections in (False, True) for biases in (False, True)
    )
    yield from weights_of_table_1(rng, trials)
    require(13.59 not in [round(count / 1e6, 2) for count in (bare, biased, projected)], "Table 1 has 13.59M weights")
    return (
        f"Table 1 has {bare:,}, with biases {biased:,}; with biases and 1 × 1 convolutions as shortcuts, which the "
        f"paper does not have, {with_both:,}"
    )


@claim(
    id="hm.footnote_4",
    source="Hardt & Ma, footnote 4, “typically r is less than 10³ and d is less than 10⁵ while n is larger than 10⁶”",
    statement="in the paper's own data sets d and r are smaller than n; ImageNet has r = 1,000, d = 150,528",
    verdict=(
        "false: it is true for none of its data sets: ImageNet has r = 10³ and d > 10⁵, CIFAR n = 50,000; what the "
        "proof uses, r, d < n, holds"
    ),
    proof="none given",
    after="hm.last_layer",
    function=table_1.data_sets,
    mutation=changed(lambda sets: sets | {"ImageNet": sets["ImageNet"]._replace(examples=100_000)}),
)
def sizes_of_data(rng: np.random.Generator, trials: int) -> Pairs:
    """d, r < n for the data sets of §4; and footnote 4's three numbers."""
    sets = table_1.data_sets()
    for sample in sets.values():
        yield max(sample.dimension, sample.classes), sample.examples - 1
        as_printed = sample.classes < 10**3 and sample.dimension < 10**5 and sample.examples > 10**6
        require(not as_printed, "footnote 4 holds for a data set")
    return "; ".join(f"{name}: n = {s.examples:,}, d = {s.dimension:,}, r = {s.classes:,}" for name, s in sets.items())


@claim(
    id="hm.section_5",
    source="Hardt & Ma, §5, conjecture taken literally",
    statement="x + V ReLU(Ux) has critical points with |||A||| ≤ τ < 1 that are not global minima, for any small τ",
    verdict=(
        "depends on the reading: for critical points in the parameters, false; for critical points in the layers as "
        "functions, holds (Bartlett, Evans & Long 2018)"
    ),
    proof="none given",
    function=search.swapped_blocks,
    mutation=changed(lambda point: point | {"risk": 0.0}),
    relation="≥",
)
def section_5(rng: np.random.Generator, trials: int) -> Pairs:
    """Critical points with |||A||| ≤ τ that are not global minima: zero, and a local minimum near the swapped teacher.

    The risk is that of x ~ N(0, I₂) itself, integrated exactly, and the teacher lies in the ball.
    """
    points = [search.swapped_blocks(radius) for radius in (0.05, 0.1, 0.3, 0.5)]
    for point in points:
        require(point["category"] == "bad_local_minimum" and point["risk"] > 0, "the swapped blocks are no bad minimum")
    for _ in range(max(1, trials // 10)):
        teacher = search.draw_weights(rng, 1, search.Setting(), smallest=0.5)
        zero = networks.Population(teacher).risk_and_gradient(0 * teacher, np.array([0]))
        require(zero[0][0] > 0 and not zero[1].any(), "zero is not a bad critical point")
    yield from ((point["curvature"], search.CURVATURE_TOLERANCE) for point in points)
    last = points[-1]
    return (
        f"τ = {last['radius']:g}, two blocks of one unit: a local minimum with |||A||| = "
        f"{last['spectral_norm']:.2f} τ, f = {last['risk']:.1e} f(0), least curvature {last['curvature']:.2f} of the "
        "largest; zero is a bad critical point too"
    )


@restated(
    id="sh.local_minima",
    source="Shamir 2018; Kawaguchi & Bengio 2019",
    statement="W(x + V f), r ≤ d: a local minimum in (W, V) has the risk of the best predictor linear in (x, f)",
    hypotheses={"r ≤ d": lambda: linear_output.local_minimum_risk(np.ones((4, 1)), np.eye(4), np.eye(4)) >= 0},
    function=linear_output.local_minimum_risk,
    mutation=(scaled(0.99), scaled(1.01), scaled(-1)),
)
def local_minima(rng: np.random.Generator, trials: int) -> Pairs:
    """The final risk of descent on (W, V) against the theorem's; bad critical points have a direction downhill."""
    saddles = []
    for _ in range(max(1, trials // 4)):
        x, features, y = _problem(rng)
        predicted = linear_output.local_minimum_risk(x, features, y)
        end, stays = _descend(rng, x, features, y)
        if stays:
            yield abs(end / predicted - 1), 1e-6
        yield predicted, linear_output.best_linear_risk(x, y) * (1 + ROUNDING)
        W, V = _saddle(x, features, y)
        saddle_risk = linear_output.risk(W, V, x, features, y)
        saddles.append(saddle_risk / linear_output.best_linear_risk(x, y))
        moved = linear_output.escape(W, V, x, features, y, 0.01)
        yield linear_output.risk(*moved, x, features, y), saddle_risk * (1 - 1e-9)
    return f"critical points with W = 0 have up to {max(saddles):.1f} times the risk of the best linear predictor"


@restated(
    id="kb.chain",
    source="Kawaguchi & Bengio 2019, related to Hardt & Ma §5",
    statement=(
        "with a trained output W, r ≤ d, minima of the ReLU search have the risk of the best predictor linear in (h, f)"
    ),
    hypotheses={"r ≤ d": lambda: linear_output.local_minimum_risk(np.ones((4, 1)), np.eye(4), np.eye(4)) >= 0},
    function=linear_output.local_minimum_risk,
    mutation=(scaled(1.01), scaled(0.99)),
)
def chain(rng: np.random.Generator, trials: int) -> Pairs:
    """The local minima of `search` with a trained output: their risk against the best predictor linear in (h, f).

    A critical point of (W, V) may lie above the best by the order of its gradient's square.
    """
    bad = []
    above = linear_output.CRITICAL**2
    for layers, width in ((1, 2), (2, 1)):
        setting = search.Setting(2, layers, width, 60, 0.5)
        rows = linear_output.compare(setting, max(8, trials // 5), int(rng.integers(2**31)))
        bad.extend(row for row in rows if row["category"] == "bad_local_minimum")
        for row in rows:
            if row["critical"]:
                yield row["with_output"], row["last_block"] + above
            yield row["last_block"], row["with_output"] + 1e-12
    worse = sum(row["risk"] > row["linear"] for row in bad)
    return f"{len(bad)} bad local minima without W: {worse} are worse than the best linear predictor"


@claim(
    id="ours.ball_risk",
    source="this project, related to Hardt & Ma §5",
    statement="ReLU student and teacher in B_τ: f ≤ 4((1 + τ²)^ℓ − 1)² E‖x‖², near 4ℓ²τ⁴E‖x‖², at any width",
    function=linear_output.ball_risk_bound,
    mutation=scaled(0.9),
)
def ball(rng: np.random.Generator, trials: int) -> Pairs:
    """f of random students and teachers in B_τ against the bound; one in five has aligned units of opposite signs."""
    for trial in range(trials):
        depth, width, d = (int(size) for size in rng.integers(1, 5, 3))
        radius = rng.uniform(0.05, 0.95)
        setting = search.Setting(d, depth, width, 200, radius)
        x = rng.standard_normal((1, 200, d))
        student, teacher = search.draw_weights(rng, 2, setting)[:, None]
        if trial % 5 == 0:  # one input; each block of the teacher multiplies h by 1 + τ², of the student by 1 − τ²
            x = np.full((1, 1, 1), 2.0)
            teacher = radius * np.ones((1, depth, 2, 1, 1))
            student = teacher * np.array([1, -1])[:, None, None]
        y = networks.forward(teacher, x)
        moment = np.square(x).sum() / x.shape[1]
        risk = networks.risk_and_gradient(student, x, y)[0][0]
        yield risk, linear_output.ball_risk_bound(depth, radius, moment) * (1 + ROUNDING)
        if trial % 5 == 0 and depth == 1:
            yield linear_output.ball_risk_bound(depth, radius, moment), risk * (1 + ROUNDING)


@claim(
    id="ours.reordering_risk",
    source="this project, related to Hardt & Ma §5",
    statement=(
        "bad minima at a reordered teacher: f ≤ 4((1 + τ²)^ℓ − 1 − ℓτ²)² E‖x‖², of order τ⁸; others can have the same "
        "f/f(0) at every τ"
    ),
    function=linear_output.reordering_risk_bound,
    mutation=(scaled(0.005), scaled(1.01), lambda function: linear_output.ball_risk_bound),
)
def regrouped(rng: np.random.Generator, trials: int) -> Pairs:
    """f at teachers with reordered blocks against the bound; the order τ⁸; and one block whose f/f(0) is constant.

    Regrouping is a permutation of blocks. Two blocks x + τ²Oᵢx, Oᵢ orthogonal, O₁O₂ = −O₂O₁, on inputs that no
    ReLU changes, have just the bound; for small τ it is near ℓ²(ℓ − 1)²τ⁸. The last part is a local minimum of one
    block in the population, whose f/f(0) is the same at every radius: so f ≤ c τ⁴ f(0) does not hold for all local
    minima in the ball.
    """
    for _ in range(trials):
        depth, width, d = int(rng.integers(2, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
        radius = rng.uniform(0.05, 0.95)
        teacher = search.draw_weights(rng, 1, search.Setting(d, depth, width, 200, radius), 0.9)
        x = rng.standard_normal((1, 200, d))
        risk = networks.risk_and_gradient(teacher[:, rng.permutation(depth)], x, networks.forward(teacher, x))[0][0]
        moment = np.square(x).sum() / x.shape[1]
        yield risk, linear_output.reordering_risk_bound(depth, radius, moment)
        turns = np.array([[[1.0, 0], [0, -1]], [[0, 1], [1, 0]]])  # O₁ and O₂; each is its own transpose
        teacher = radius * np.stack([np.broadcast_to(np.eye(2), turns.shape), turns], axis=1)[None]
        x = rng.uniform(0.5, 2, (1, 50, 2))  # positive
        risk = networks.risk_and_gradient(teacher[:, ::-1], x, networks.forward(teacher, x))[0][0]
        bound = linear_output.reordering_risk_bound(2, radius, np.square(x).sum() / x.shape[1])
        yield from ((risk, bound * (1 + ROUNDING)), (bound, risk * (1 + ROUNDING)))
    for depth in range(2, 6):  # (1 + τ²)^ℓ − 1 − ℓτ² is ℓ(ℓ − 1)/2 τ⁴ times 1 + (ℓ − 2)/3 τ² + …
        small = linear_output.reordering_risk_bound(depth, 1e-3, 1.0) / (depth * (depth - 1) * 1e-12) ** 2
        yield abs(small - 1), depth * 1e-6
    for radius in (0.05, 0.5):
        point = search.swapped_blocks(radius)
        yield point["risk"] * point["risk_at_zero"], linear_output.reordering_risk_bound(2, 0.8 * radius, 2.0)
    shares = one_block_minimum()
    require(abs(shares[1] / shares[0] - 1) < 1e-4 and shares[0] > 1e-6, f"f/f(0) of one block changed: {shares}")
    return f"one block of 4 units has a bad local minimum with f/f(0) = {shares[0]:.1e} at every radius"


def one_block_minimum(seed: int = 44) -> list[float]:
    """Returns f/f(0) at a bad local minimum of one block of 4 units in the population, for τ = 0.5 and 0.05."""
    rng = np.random.default_rng(seed)
    setting = search.Setting(2, 1, 4, 100, 0.5)
    teacher = search.draw_weights(rng, 1, setting, 0.5)
    start = search.draw_weights(rng, 1, setting)
    end = search.find_critical_points(networks.Population(teacher), start, "risk", 60)
    shares = []
    for scale in (1, 0.1):
        points = search.classify(networks.Population(scale * teacher), scale * end, 0.5 * scale)
        category = points["category"][0]
        require(category == "bad_local_minimum", f"it is a {category} at {scale} times the radius")
        shares.append(float(points["risk"][0]))
    return shares


def _steep_layers() -> bool:
    """Returns whether the bound holds for two layers diag(0, 4)h, ε = 3, with an error along the first axis."""
    w = np.stack([np.diag([1.0, 3.0]), np.diag([-1.0, 1.0])])[None].repeat(2, axis=0)
    x = np.eye(2)[1:]
    slopes = smooth_units.gradients(w, x, smooth_units.forward(w, x, "linear") - np.eye(2)[:1], "linear")
    return bool(np.square(slopes.functional).sum() >= 4 * slopes.risk * (1 + (1 - 3) ** 2))


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
        w = rng.standard_normal((depth, 2, width, d))
        x = rng.standard_normal((4, d))
        epsilon = rng.uniform(0.02, 0.95)
        w *= np.sqrt(epsilon / smooth_units.UNITS[unit].steepest) / np.linalg.norm(w, 2, axis=(-2, -1), keepdims=True)
        y = rng.standard_normal((4, d))
        slopes = smooth_units.gradients(w, x, y, unit)
        squared_norm = np.square(slopes.functional).sum() / 4
        yield squared_norm * (1 + ROUNDING), smooth_units.functional_lower_bound(depth, epsilon, slopes.risk)
        if trial < 4:
            reference = complex_step_gradient(_moved_risk, np.zeros((depth, 4, d)), w, x, y, unit)
            errors.append(relative_error(slopes.functional / 4, reference))
            reference = complex_step_gradient(_risk, w, x, y, unit)
            errors.append(relative_error(slopes.parameters, reference))
        root = np.sqrt(epsilon) * np.eye(d)
        slopes = smooth_units.gradients(np.stack([root, -root])[None].repeat(depth, axis=0), x, y, "linear")
        bound = smooth_units.functional_lower_bound(depth, epsilon, slopes.risk)
        squared_norm = np.square(slopes.functional).sum() / 4
        yield from ((bound * (1 + ROUNDING), squared_norm), (squared_norm * (1 + ROUNDING), bound))
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
    """∇f at a doubled unit and at zero, both with f > 0; targets of networks of the same size in the ball."""
    for radius in (0.2, 0.5, 0.9):
        point = smooth_units.doubled_unit(radius)
        slopes = smooth_units.gradients(point.w, point.x, point.y, "logistic")
        start = smooth_units.gradients(0 * point.w, point.x, point.y, "logistic")
        yield np.abs(slopes.parameters).max() / np.abs(start.parameters).max(), 1e-12
        yield networks.spectral_norm(np.concatenate([point.w, point.teacher])[None]).max(), radius
        reached = smooth_units.forward(point.teacher, point.x, "logistic")
        require(np.array_equal(reached, point.y), "no network in the ball has f = 0")
        require(slopes.risk > 1e-7 * start.risk, "the doubled unit has f = 0")
        slope = np.square(slopes.functional).mean(1).sum()
        require(slope >= 4 * slopes.risk * (1 - ROUNDING), "the functional gradient is 0 there too")
        share = slopes.risk / start.risk
    for trial in range(max(2, trials // 5)):
        unit = ("tanh", "logistic")[trial % 2]
        d = int(rng.integers(1, 4))
        teacher = rng.uniform(0.01, 0.5) * rng.standard_normal((1, 2, 1, d))
        x = rng.standard_normal((8, d))
        # Two units v(σ(u·h) − σ(−u·h)): odd, so that on x and −x logistic units of weight 0 have no slope either.
        teacher = np.concatenate([teacher, -teacher], axis=2)
        x = np.concatenate([x, -x])
        slopes = smooth_units.gradients(0 * teacher, x, smooth_units.forward(teacher, x, unit), unit)
        require(slopes.risk > 0, "zero has f = 0")
        yield np.abs(slopes.parameters).max(), 1e-15
    return f"τ = 0.9: ∇f = 0 at a doubled unit, where f = {share:.1e} f(0); and at zero, for every τ"


def _problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d = int(rng.integers(2, 5))
    x = rng.standard_normal((80, d))
    features = np.maximum(x @ rng.standard_normal((d, d + 1)), 0)
    r = int(rng.integers(1, d + 1))
    return x, features, features @ rng.standard_normal((d + 1, r)) + rng.standard_normal((80, r)) + x[:, :r]


def _descend(rng: np.random.Generator, x: np.ndarray, features: np.ndarray, y: np.ndarray) -> tuple[float, bool]:
    """Returns the final risk of BFGS on (W, V), and whether it ends at a critical point of moderate size.

    If W would have to pass a matrix of lower rank, it may creep along a valley to infinity, V → ∞, instead.
    """
    shapes = (y.shape[1], x.shape[1]), (x.shape[1], features.shape[1])
    size = shapes[0][0] * shapes[0][1]

    def split(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return flat[:size].reshape(shapes[0]), flat[size:].reshape(shapes[1])

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        slopes = linear_output.gradient(*split(flat), x, features, y)
        return linear_output.risk(*split(flat), x, features, y), np.concatenate([slope.ravel() for slope in slopes])

    start = 0.3 * rng.standard_normal(size + shapes[1][0] * shapes[1][1])
    solution = optimize.minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5_000})
    return float(solution.fun), bool(np.abs(solution.jac).max() < 1e-6 and np.abs(solution.x).max() < 30)


def _saddle(x: np.ndarray, features: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a critical point with W = 0 and V ≠ 0: V solves ∂G/∂A + ∂G/∂B Vᵀ = 0, and ∂G/∂B ≠ 0."""
    by_x, by_features = y.T @ x, y.T @ features
    return np.zeros((y.shape[1], x.shape[1])), -(np.linalg.pinv(by_features) @ by_x).T


def _moved_risk(moves: np.ndarray, w: np.ndarray, x: np.ndarray, y: np.ndarray, unit: str) -> complex:
    """Returns f after the values of h_i are moved by moves [ℓ, m, d]."""
    for layer, move in zip(w, moves):
        x = smooth_units.forward(layer[None], x, unit) + move
    return ((x - y) ** 2).sum() / len(y)


def _risk(w: np.ndarray, x: np.ndarray, y: np.ndarray, unit: str) -> complex:
    """Returns f, for complex weights too."""
    return ((smooth_units.forward(w, x, unit) - y) ** 2).sum() / len(y)
