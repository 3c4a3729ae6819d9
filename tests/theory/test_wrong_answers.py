"""What once had a wrong answer, a warning or a traceback: extreme scales, the ends of ranges, arguments mixed up."""

import math
import os
import warnings

import numpy as np
import pytest

from theory import (
    balancedness,
    descent,
    factorization,
    gradient_bounds,
    linear_output,
    linear_residual,
    memorization,
    parallel,
    projection_width,
    relu_networks,
    rotations,
    saddle_escape,
    shortcut_hessians,
    shortcut_networks,
    stationarity,
    update_rules,
    widened_descent,
)
from theory.activations import Activation

X, Y = np.random.default_rng(0).standard_normal((2, 10, 3))
EYE, LAYERS = np.eye(3), np.zeros((2, 3, 3))
ROOT = Activation(lambda z: np.sign(z) * np.sqrt(np.abs(z)), None, (0.0, math.nan, math.nan))
MILD_ROOT = ROOT._replace(function=lambda z: np.sign(z) * np.abs(z) ** 0.99)
LOGARITHM = ROOT._replace(function=lambda z: z * np.log(np.abs(z)))


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("scale", [1e-160, 1e160])
def test_the_lower_bound_of_a_large_target_is_that_of_its_logarithms(scale):
    M = np.random.default_rng(1).standard_normal((3, 3))
    M *= np.sign(np.linalg.det(M))
    num_layers, x = 2000, np.linalg.svd(M)[2][0 if scale > 1 else -1]
    image = M @ x
    log_gain = math.log(np.linalg.norm(image)) + math.log(scale)
    angle = math.acos(image @ x / np.linalg.norm(image))
    at_x = abs(np.exp((log_gain + 1j * angle) / num_layers) - 1)
    found = factorization.norm_lower_bound(scale * M, num_layers)
    polar = np.linalg.norm(factorization.factorize(scale * M, num_layers)[0], 2)
    assert at_x * (1 - 1e-9) <= found <= polar * (1 + 1e-9)
    assert found == pytest.approx(0.2, rel=0.2)


def test_the_common_bias_width_of_two_opposite_points_and_of_one_point():
    assert projection_width.common_bias_width(2, 4.0) <= projection_width.common_bias_width(2, 3.999)
    assert projection_width.common_bias_width(2, 4.0) == pytest.approx(
        projection_width.common_bias_width(2, 4 - 1e-7), abs=1
    )
    for x in (np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([[1.0, 0.0]])):
        labels = np.arange(len(x))
        network = memorization.memorize(x, labels, 2, method="paper")
        assert (network(x).argmax(1) == labels).all()


@pytest.mark.parametrize("num_points", [2, 50, 10_000])
@pytest.mark.parametrize("rho", [0.01, 1.0, 2.0, 2.5, 3.9])
def test_the_chernoff_argument_is_the_maximum(num_points, rho):
    cosine, t = 1 - rho / 2, 0.9
    a = projection_width._chernoff_exponent_argument(max(t, cosine), cosine)
    exponent = lambda a: a * max(t, cosine) + 0.5 * math.log((1 - cosine * a) ** 2 - a**2)  # noqa: E731
    assert exponent(a) >= max(exponent(a * (1 - 1e-4)), exponent(a * (1 + 1e-4))) - 1e-14


def test_one_point_taken_twice_always_fails_and_opposite_ones_never():
    assert projection_width.pair_failure_probability(1.0, 5) == 1
    assert projection_width.pair_failure_probability(-1.0, 5) == 0
    assert projection_width.pair_failure_probability(np.array([0.0, 1.0]), 1).tolist() == pytest.approx([0.25, 1])


def test_separation_does_not_depend_on_the_scale():
    for scale in (1e-200, 1e200):
        assert projection_width.separation(scale * X) == pytest.approx(projection_width.separation(X))


def test_a_descent_that_diverges_names_its_learning_rate():
    with pytest.raises(ValueError, match=r"^gradient descent diverged in step \d+: learning_rate 5.0 is too large$"):
        linear_residual.gradient_descent(LAYERS, 2 * EYE, EYE, 5.0, 100)


def test_a_subnormal_target_without_a_logarithm_is_factorized_by_polar_alone():
    R = 1e-310 * np.eye(2)
    np.testing.assert_array_equal(factorization.factorize(R, 8, "best"), factorization.factorize(R, 8))
    assert factorization.norm_bound(R, 8, "best") == factorization.norm_bound(R, 8)
    assert factorization.norm_bound(R, 1) == math.inf  # e^714 is no float64


def test_lists_are_taken_as_arrays_are():
    rng = np.random.default_rng(2)
    A, R = rng.standard_normal((2, 3, 3)), rng.standard_normal((3, 3))
    cases = [
        (balancedness.imbalances, A),
        (balancedness.imbalance_drift, A, 0.1),
        (balancedness.deficiency_margin, R, EYE),
        (balancedness.first_order_velocity, A, R, EYE),
        (descent.project_positive, R, 0.1),
        (linear_residual.sample_problem, X, Y),
    ]
    for function, *arguments in cases:
        lists = [value.tolist() if isinstance(value, np.ndarray) else value for value in arguments]
        np.testing.assert_equal(function(*lists), function(*arguments))


def test_the_best_map_of_ill_conditioned_data_is_found():
    x = X * [1, 3e-8, 1]
    W = np.array([[1, 1 / 3e-8, 0], [2, -1 / 3e-8, 1], [0, 0, 1]])
    np.testing.assert_allclose(shortcut_networks.least_squares_map(x, x @ W.T), W, rtol=1e-7, atol=1e-6)
    assert shortcut_networks.minimum_loss(x, x @ W.T) < 1e-14


def test_the_gradient_bound_holds_where_sigma_is_singular_but_for_rounding():
    A, R, Sigma = np.zeros((3, 2, 2)), np.diag([1.0, 2.0]), np.diag([1, 1e-17])
    squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
    for bound in (linear_residual.gradient_lower_bound, gradient_bounds.gradient_lower_bound_by_layer):
        assert bound(A, R, Sigma) <= squared
        assert bound(A, np.diag([2.0, 1.0]), Sigma) == pytest.approx(12)  # ℓ = 3, a risk of 1 along the first axis


def test_a_gap_within_rounding_of_zero_is_zero():
    x = np.random.default_rng(3).standard_normal((50, 3))
    noise = np.random.default_rng(4).standard_normal((50, 3))
    y = x + noise - x @ np.linalg.lstsq(x, noise, rcond=None)[0]
    assert not shortcut_hessians.moment_gap(x, y).any()
    assert shortcut_hessians.condition_number_at_zero(x, y, 2, 2) == math.inf
    assert not stationarity.order_of_stationarity(x, y, 2).exact
    with pytest.raises(ValueError, match="zero is no strict saddle"):
        stationarity.escape_from_saddle(x, y, 2)
    assert shortcut_hessians.moment_gap(1e-12 * x, 1e-12 * (x + noise)).any()  # not by its size


def test_whole_numbers_are_taken_as_real_ones():
    gap, whole = np.diag([1, 2, 3]), np.ones((2, 2, 3, 3), int)
    for found, expected in zip(*(saddle_escape.risk_and_gradient(w, gap) for w in (whole, whole.astype(float)))):
        np.testing.assert_array_equal(found, expected)
    x = np.random.default_rng(5).standard_normal((1, 7, 3))
    whole = np.ones((1, 1, 2, 2, 3), int)
    for found, expected in zip(*(relu_networks.risk_and_gradient(w, x, -x) for w in (whole, whole.astype(float)))):
        np.testing.assert_array_equal(found, expected)
    pixels = np.array([[3, 200], [255, 0]], np.uint8)
    weights = np.ones((1, 2, 2, 2))
    for pre in ("linear", "softplus", "softsign", "tanh"):
        found, expected = (shortcut_networks.forward(weights, x, pre) for x in (pixels, pixels.astype(float)))
        np.testing.assert_array_equal(found, expected)


def test_a_margin_below_zero_promises_nothing():
    assert balancedness.margin_bound(3, -0.1, 1.0) == 0


def test_no_matrix_has_no_least_eigenvalue():
    assert linear_residual.above_rounding(np.zeros((0, 0)))[1] == 0


COMPLEX = X + 1j
# LAPACK's singular value decomposition does not end on this one.
ENDLESS = np.array([[-0.3, 1.4, 2e-4], [np.inf, 0.95, -0.3], [0.4, 0.2, -1.1]])
MISTAKES = {
    "no target to flip": (
        factorization.flip_label,
        (np.zeros((0, 0)),),
        r"R must be a square matrix, got shape \(0, 0\)",
    ),
    "no square to augment": (
        factorization.augment,
        (np.zeros((2, 3)),),
        r"R must be a square matrix, got shape \(2, 3\)",
    ),
    "subnormal target of principal": (
        factorization.factorize,
        (1e-310 * EYE, 8, "principal"),
        "method principal finds no",
    ),
    "no sample": (
        linear_residual.sample_problem,
        (X[:0], Y[:0]),
        r"x and y must both be \[m, d\], got shapes \(0, 3\)",
    ),
    "sample of another size": (
        linear_residual.sample_problem,
        (X, Y[1:]),
        r"x and y must both be \[m, d\], got shapes",
    ),
    "infinite sample": (linear_residual.sample_problem, (ENDLESS, EYE), "x must be finite"),
    "infinite inputs": (linear_output.best_linear_risk, (ENDLESS, EYE), "inputs must be finite"),
    "infinite layers": (linear_residual.max_spectral_norm, (ENDLESS[None],), "A must be finite"),
    "infinite layers to project": (linear_residual.project, (ENDLESS[None], 0.5), "A must be finite"),
    "infinite product": (balancedness.preconditioner, (ENDLESS, 2), "W must be finite"),
    "infinite gradient": (update_rules.polar_factor, (ENDLESS,), "G must be finite"),
    "infinite factor": (gradient_bounds.product_lower_bound, (ENDLESS, EYE), "X must be finite"),
    "infinite normal": (rotations.block_diagonalize, (ENDLESS,), "U must be finite"),
    "no factor": (
        gradient_bounds.product_lower_bound,
        (X[:, :0], X[:0]),
        r"X must be square or tall, got shape \(10, 0\)",
    ),
    "no moments": (shortcut_networks.moments, (X[:0], Y[:0]), r"x and y must both be \[m, d\]"),
    "units without layers": (
        shortcut_networks.loss,
        (np.zeros((2, 0, 3, 3)), X, Y),
        r"weights must be .* got shape \(2, 0",
    ),
    "complex target": (factorization.factorize, (EYE * 1j, 3), "R must be real numbers, got complex128"),
    "complex target to augment": (factorization.augment, (EYE * 1j,), "R must be real numbers"),
    "complex target to flip": (factorization.flip_label, (EYE * 1j,), "R must be real numbers"),
    "complex layers": (linear_residual.risk, (LAYERS * 1j, EYE, EYE), "A must be real numbers"),
    "complex weights": (linear_residual.standard_gradient, (LAYERS * 1j, EYE, EYE), "W must be real numbers"),
    "complex sample": (linear_residual.sample_problem, (COMPLEX, Y), "x must be real numbers"),
    "complex norm": (linear_residual.max_spectral_norm, (LAYERS * 1j,), "A must be real numbers"),
    "complex moments": (shortcut_networks.moments, (X, COMPLEX), "y must be real numbers"),
    "complex least squares": (shortcut_networks.minimum_loss, (X, COMPLEX), "y must be real numbers"),
    "complex gradient": (shortcut_networks.gradient, (np.zeros((1, 1, 3, 3)) * 1j, X, Y), "weights must be real"),
    "complex weights at zero": (saddle_escape.risk_and_gradient, (LAYERS[None] * 1j, EYE), "weights must be real"),
    "complex gap": (shortcut_hessians.moment_gap, (COMPLEX, Y), "x must be real numbers"),
    "complex rotation": (rotations.rotation_roots, (np.eye(2) * 1j, 3), "Q must be real numbers"),
    "complex normal": (rotations.block_diagonalize, (EYE * 1j,), "U must be real numbers"),
    "complex points": (projection_width.separation, (COMPLEX,), "x must be real numbers"),
    "weights without layers": (shortcut_networks.forward, (LAYERS, X), r"weights must be \[num_units, shortcut_depth"),
    "the same to loss": (shortcut_networks.loss, (LAYERS, X, Y), r"weights must be .* got shape \(2, 3, 3\)"),
    "the same to gradient": (shortcut_networks.gradient, (LAYERS, X, Y), r"weights must be \[num_units"),
    "the same to the map": (shortcut_networks.linear_map, (LAYERS,), r"weights must be \[num_units"),
    "the same to the leading term": (stationarity.leading_term, (LAYERS, X, Y), r"weights must be \[num_units"),
    "negative radius": (linear_residual.project, (LAYERS, -0.1), "radius must be at least 0, got -0.1"),
    "negative radius of a ball": (linear_residual.stationarity_in_ball, (LAYERS, EYE, EYE, -1), "radius must be"),
    "negative radius of a rate": (linear_residual.convergence_rate_bound, (EYE, 3, -1, 0.1), "radius must be"),
    "negative radius of a bound": (linear_residual.smoothness_bound, (EYE, EYE, 3, -1, 0.1), "radius must be"),
    "negative radius of a descent": (
        linear_residual.gradient_descent,
        (LAYERS, EYE, EYE, 0.1, 1, -1),
        "radius must be",
    ),
    "NaN radius": (linear_residual.project, (LAYERS, math.nan), "radius must be at least 0, got nan"),
    "cosine above 1": (projection_width.pair_failure_probability, (1.5, 3), r"cosine must lie in \[−1, 1\], got 1.5"),
    "NaN cosine": (projection_width.pair_failure_probability, (math.nan, 3), r"cosine must lie in \[−1, 1\], got nan"),
    "no width": (projection_width.pair_failure_probability, (0.5, 0), "width must be a whole number of at least 1"),
    "subnormal target": (factorization.rescale, (1e-310 * EYE,), "R must not need a factor of e\\^714"),
    "subnormal points": (
        memorization.memorize,
        (1e-310 * X, np.arange(10) % 2, 2),
        "x must not be as small as 2.*e-310",
    ),
    "integers that collide": (
        memorization.memorize,
        (np.array([[2**53], [2**53 + 1]]), [0, 1], 2),
        "x must hold integers that float64 represents, got 9007199254740993",
    ),
    "negative integers that collide": (
        memorization.memorize,
        (np.array([[-(2**60)], [-(2**60) - 1], [0]]), [0, 1, 1], 2),
        "x must hold integers that float64 represents, got -1152921504606846977",
    ),
    "complex eigenvalues of a target": (
        descent.excess_floor,
        (np.array([1j, -1j]),),
        "phi must be real numbers, got complex128",
    ),
    "complex eigenvalues and a rate": (
        descent.largest_learning_rate,
        (np.array([1j, -1j]), 2),
        "phi must be real numbers, got complex128",
    ),
    "an order where slopes have no bound": (
        stationarity.order_of_stationarity,
        (X, Y, 3, "linear", ROOT, ROOT),
        "in general no Hessian exists at zero with .* its slope at 0 has no bound",
    ),
    "an order where slopes are hardly without bound": (
        stationarity.order_of_stationarity,
        (X, Y, 3, "linear", MILD_ROOT),
        "in general no Hessian exists at zero with .* at mid: its slope at 0 has no bound",
    ),
    "an order where slopes grow like a logarithm": (
        stationarity.order_of_stationarity,
        (X, Y, 3, "linear", "linear", LOGARITHM),
        "in general no Hessian exists at zero with .* at post: its slope at 0 has no bound",
    ),
    "a vector of targets": (
        linear_output.risk,
        (np.ones((1, 3)), EYE, X, X, X[:, 0]),
        r"y must have shape \(10, 1\), got \(10,\)",
    ),
    "a vector of targets to descend to": (
        linear_output.gradient,
        (np.ones((1, 3)), EYE, X, X, X[:, 0]),
        r"y must have shape \(10, 1\), got \(10,\)",
    ),
    "a rate of a negative second moment": (
        linear_residual.convergence_rate_bound,
        (np.diag([-1.0, 1.0]), 2, 0.5, 0.1),
        "Sigma must be positive semidefinite",
    ),
    "a rate of what is no second moment": (
        linear_residual.convergence_rate_bound,
        (np.array([[1.0, 5.0], [0.0, 1.0]]), 2, 0.5, 0.1),
        "Sigma must be symmetric",
    ),
    "a negative cosine": (
        projection_width.correlated_pairs,
        (1000, 2, -0.5),
        r"width must be at least 1 and cosine in \[0, 1\], got 2 and -0.5",
    ),
    "infinite points": (projection_width.separation, (ENDLESS,), "x must be finite"),
    "a descent that climbs": (descent.step_bound, ([0.5, 2.0], 3, -0.1, 1e-6), "learning_rate must be positive"),
    "layers narrower than the input": (
        widened_descent.Widened(np.ones((1, 3)), np.ones((3, 1)), EYE, EYE).spread,
        (),
        "the layers must be as wide as input and output, 3 and 3, got m = 1",
    ),
    "a prediction for a method that there is none of": (
        saddle_escape.predicted_steps,
        ("orthogonalized", 2, 1.0, 0.01, 0.1),
        "method must be one of descent, momentum, orthogonalised, got 'orthogonalized'",
    ),
    "least steps of a method that there is none of": (
        saddle_escape.least_steps,
        ("adam", 0.01 * np.ones((1, 2, 3, 3)), EYE, 0.1),
        "method must be one of descent, momentum, orthogonalised, got 'adam'",
    ),
    "targets of another length": (
        shortcut_networks.loss,
        (np.zeros((1, 2, 3, 3)), X, Y[:1]),
        r"y must have the shape of the output, \(10, 3\), got \(1, 3\)",
    ),
    "a product for one of another size": (
        linear_residual.error,
        (LAYERS, 2.0),
        r"R must have the shape \(3, 3\) of the product of the layers, got \(\)",
    ),
    "one layer for layers": (linear_residual.max_spectral_norm, (EYE,), r"A must have the shape \[ℓ, d, d\], got"),
    "a negative second moment": (
        linear_residual.smoothness_bound,
        (EYE, -EYE, 2, 0.5, 1.0),
        "Sigma must be positive semidefinite",
    ),
    "a negative excess risk": (
        linear_residual.smoothness_bound,
        (EYE, EYE, 2, 0.5, -1.0),
        "excess_risk must be at least 0, got -1.0",
    ),
    "a kind of bias that there is none of": (
        projection_width.largest_distortion,
        (0.5, "rows"),
        "bias must be one of printed, common, row, got 'rows'",
    ),
    "points of sizes 16 orders of magnitude apart": (
        memorization.memorize,
        ([[1e-8], [2e-8], [1e8]], [0, 1, 0], 2),
        "points too close, or of too different sizes, for float64",
    ),
    "a list of activations": (
        shortcut_networks.forward,
        (np.zeros((1, 2, 3, 3)), X, ["tanh", "relu"]),
        r"activation must be one of .* got \['tanh', 'relu'\]",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_line(mistake):
    function, arguments, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)


def test_cores_are_counted_where_the_system_does_not_say_which_are_ours(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert parallel.available_cores() == os.cpu_count()
    x = np.random.default_rng(0).standard_normal((300, 6))
    labels = np.arange(300) % 3
    assert (memorization.memorize(x, labels, 3)(x).argmax(1) == labels).all()
    assert len(parallel.in_parallel(lambda item: item, range(5))) == 5
