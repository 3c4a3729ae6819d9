"""Arguments that a function of theory cannot take are refused in one clear line, before anything is computed."""

import math

import numpy as np
import pytest

from theory.descent import balancedness, from_zero, saddle_escape, update_rules, widened
from theory.linear import factorization, landscape, rotations
from theory.memorization import construction, first_layer
from theory.relu import linear_output
from theory.shortcut import hessians, networks, stationarity
from theory.shortcut.activations import Activation

pytestmark = pytest.mark.filterwarnings("error")  # a warning is a wrong answer too

X, Y = np.random.default_rng(0).standard_normal((2, 10, 3))
EYE, LAYERS = np.eye(3), np.zeros((2, 3, 3))
ROOT = Activation(lambda z: np.sign(z) * np.sqrt(np.abs(z)), None, (0.0, math.nan, math.nan))
MILD_ROOT = ROOT._replace(function=lambda z: np.sign(z) * np.abs(z) ** 0.99)
LOGARITHM = ROOT._replace(function=lambda z: z * np.log(np.abs(z)))
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
        landscape.sample_problem,
        (X[:0], Y[:0]),
        r"x and y must both be \[m, d\], got shapes \(0, 3\)",
    ),
    "sample of another size": (
        landscape.sample_problem,
        (X, Y[1:]),
        r"x and y must both be \[m, d\], got shapes",
    ),
    "infinite sample": (landscape.sample_problem, (ENDLESS, EYE), "x must be finite"),
    "infinite inputs": (linear_output.best_linear_risk, (ENDLESS, EYE), "inputs must be finite"),
    "infinite layers": (landscape.max_spectral_norm, (ENDLESS[None],), "A must be finite"),
    "infinite layers to project": (landscape.project, (ENDLESS[None], 0.5), "A must be finite"),
    "infinite product": (balancedness.preconditioner, (ENDLESS, 2), "W must be finite"),
    "infinite gradient": (update_rules.polar_factor, (ENDLESS,), "G must be finite"),
    "infinite factor": (landscape.product_lower_bound, (ENDLESS, EYE), "X must be finite"),
    "infinite normal": (rotations.block_diagonalize, (ENDLESS,), "U must be finite"),
    "no factor": (
        landscape.product_lower_bound,
        (X[:, :0], X[:0]),
        r"X must be square or tall, got shape \(10, 0\)",
    ),
    "no moments": (networks.moments, (X[:0], Y[:0]), r"x and y must both be \[m, d\]"),
    "units without layers": (
        networks.loss,
        (np.zeros((2, 0, 3, 3)), X, Y),
        r"weights must be .* got shape \(2, 0",
    ),
    "complex target": (factorization.factorize, (EYE * 1j, 3), "R must be real numbers, got complex128"),
    "complex target to augment": (factorization.augment, (EYE * 1j,), "R must be real numbers"),
    "complex target to flip": (factorization.flip_label, (EYE * 1j,), "R must be real numbers"),
    "complex layers": (landscape.risk, (LAYERS * 1j, EYE, EYE), "A must be real numbers"),
    "complex weights": (landscape.standard_gradient, (LAYERS * 1j, EYE, EYE), "W must be real numbers"),
    "complex sample": (landscape.sample_problem, (COMPLEX, Y), "x must be real numbers"),
    "complex norm": (landscape.max_spectral_norm, (LAYERS * 1j,), "A must be real numbers"),
    "complex moments": (networks.moments, (X, COMPLEX), "y must be real numbers"),
    "complex least squares": (networks.minimum_loss, (X, COMPLEX), "y must be real numbers"),
    "complex gradient": (networks.gradient, (np.zeros((1, 1, 3, 3)) * 1j, X, Y), "weights must be real"),
    "complex weights at zero": (saddle_escape.risk_and_gradient, (LAYERS[None] * 1j, EYE), "weights must be real"),
    "complex gap": (hessians.moment_gap, (COMPLEX, Y), "x must be real numbers"),
    "complex rotation": (rotations.rotation_roots, (np.eye(2) * 1j, 3), "Q must be real numbers"),
    "complex normal": (rotations.block_diagonalize, (EYE * 1j,), "U must be real numbers"),
    "complex points": (first_layer.separation, (COMPLEX,), "x must be real numbers"),
    "weights without layers": (networks.forward, (LAYERS, X), r"weights must be \[num_units, shortcut_depth"),
    "the same to loss": (networks.loss, (LAYERS, X, Y), r"weights must be .* got shape \(2, 3, 3\)"),
    "the same to gradient": (networks.gradient, (LAYERS, X, Y), r"weights must be \[num_units"),
    "the same to the map": (networks.linear_map, (LAYERS,), r"weights must be \[num_units"),
    "the same to the leading term": (stationarity.leading_term, (LAYERS, X, Y), r"weights must be \[num_units"),
    "negative radius": (landscape.project, (LAYERS, -0.1), "radius must be at least 0, got -0.1"),
    "negative radius of a ball": (landscape.stationarity_in_ball, (LAYERS, EYE, EYE, -1), "radius must be"),
    "negative radius of a rate": (landscape.convergence_rate_bound, (EYE, 3, -1, 0.1), "radius must be"),
    "negative radius of a bound": (landscape.smoothness_bound, (EYE, 3, -1, 0.1), "radius must be"),
    "negative radius of a descent": (
        landscape.gradient_descent,
        (LAYERS, EYE, EYE, 0.1, 1, -1),
        "radius must be",
    ),
    "NaN radius": (landscape.project, (LAYERS, math.nan), "radius must be at least 0, got nan"),
    "cosine above 1": (first_layer.pair_failure_probability, (1.5, 3), r"cosine must lie in \[−1, 1\], got 1.5"),
    "NaN cosine": (first_layer.pair_failure_probability, (math.nan, 3), r"cosine must lie in \[−1, 1\], got nan"),
    "no width": (first_layer.pair_failure_probability, (0.5, 0), "width must be a whole number of at least 1"),
    "subnormal target": (factorization.rescale, (1e-310 * EYE,), "R must not need a factor of e\\^714"),
    "subnormal points": (
        construction.memorize,
        (1e-310 * X, np.arange(10) % 2, 2),
        "x must not be as small as 2.*e-310",
    ),
    "integers that collide": (
        construction.memorize,
        (np.array([[2**53], [2**53 + 1]]), [0, 1], 2),
        "x must hold integers that float64 represents, got 9007199254740993",
    ),
    "negative integers that collide": (
        construction.memorize,
        (np.array([[-(2**60)], [-(2**60) - 1], [0]]), [0, 1, 1], 2),
        "x must hold integers that float64 represents, got -1152921504606846977",
    ),
    "complex eigenvalues of a target": (
        from_zero.excess_floor,
        (np.array([1j, -1j]),),
        "phi must be real numbers, got complex128",
    ),
    "complex eigenvalues and a rate": (
        from_zero.largest_learning_rate,
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
        landscape.convergence_rate_bound,
        (np.diag([-1.0, 1.0]), 2, 0.5, 0.1),
        "Sigma must be positive semidefinite",
    ),
    "a rate of what is no second moment": (
        landscape.convergence_rate_bound,
        (np.array([[1.0, 5.0], [0.0, 1.0]]), 2, 0.5, 0.1),
        "Sigma must be symmetric",
    ),
    "a negative cosine": (
        first_layer.correlated_pairs,
        (1000, 2, -0.5),
        r"width must be at least 1 and cosine in \[0, 1\], got 2 and -0.5",
    ),
    "infinite points": (first_layer.separation, (ENDLESS,), "x must be finite"),
    "a bound for steps too long for it": (
        from_zero.singular_risk_bound,
        (3, 1.0, 10),
        r"learning_rate must lie in \(0, ½\], got 1.0",
    ),
    "that bound for one layer": (from_zero.singular_risk_bound, (1, 0.1, 10), "num_layers must be at least 2, got 1"),
    "a descent that climbs": (from_zero.step_bound, ([0.5, 2.0], 3, -0.1, 1e-6), "learning_rate must be positive"),
    "layers narrower than the input": (
        widened.Widened(np.ones((1, 3)), np.ones((3, 1)), EYE, EYE).spread,
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
        networks.loss,
        (np.zeros((1, 2, 3, 3)), X, Y[:1]),
        r"y must have the shape of the output, \(10, 3\), got \(1, 3\)",
    ),
    "a product for one of another size": (
        landscape.error,
        (LAYERS, 2.0),
        r"R must have the shape \(3, 3\) of the product of the layers, got \(\)",
    ),
    "one layer for layers": (landscape.max_spectral_norm, (EYE,), r"A must have the shape \[ℓ, d, d\], got"),
    "a negative second moment": (
        landscape.smoothness_bound,
        (-EYE, 2, 0.5, 1.0),
        "Sigma must be positive semidefinite",
    ),
    "a negative excess risk": (
        landscape.smoothness_bound,
        (EYE, 2, 0.5, -1.0),
        "excess_risk must be at least 0, got -1.0",
    ),
    "a kind of bias that there is none of": (
        first_layer.largest_distortion,
        (0.5, "rows"),
        "bias must be one of printed, common, row, got 'rows'",
    ),
    "points of sizes 16 orders of magnitude apart": (
        construction.memorize,
        ([[1e-8], [2e-8], [1e8]], [0, 1, 0], 2),
        "points too close, or of too different sizes, for float64",
    ),
    "a list of activations": (
        networks.forward,
        (np.zeros((1, 2, 3, 3)), X, ["tanh", "relu"]),
        r"activation must be one of .* got \['tanh', 'relu'\]",
    ),
    "roots of no rotation": (
        rotations.rotation_roots,
        (2 * np.eye(2), 3),
        r"Q must be orthogonal \[2, 2\], got \[\[",
    ),
    "roots of a turn of space": (
        rotations.rotation_roots,
        (EYE, 3),
        r"Q must be orthogonal \[2, 2\], got \(3, 3\)",
    ),
    "no roots": (rotations.rotation_roots, (np.eye(2), 0), "num_roots must be at least 1, got 0"),
    "fewer roots than none": (rotations.rotation_roots, (np.eye(2), -2), "num_roots must be at least 1, got -2"),
    "a vector for a gradient": (
        balancedness.product_velocity,
        (EYE, np.ones(3), 3),
        r"W and gradient must have one shape \[d, d\], got \(3, 3\) and \(3,\)",
    ),
    "a row for a target": (
        balancedness.deficiency_margin,
        (EYE, np.ones((1, 3))),
        r"W and R must have one shape \[d, d\], got \(3, 3\) and \(1, 3\)",
    ),
    "smoothness of no layers": (
        landscape.smoothness_bound,
        (EYE, 0, 0.5, 1.0),
        "num_layers must be at least 1, got 0",
    ),
    "a rate of fewer layers than none": (
        landscape.convergence_rate_bound,
        (EYE, -3, 0.5, 0.1),
        "num_layers must be at least 1, got -3",
    ),
    "half a surrogate": (
        first_layer.correlated_pairs,
        (0.5, 3),
        "num_surrogates must be a whole number of at least 1, got 0.5",
    ),
    "surrogates of no width": (
        first_layer.correlated_pairs,
        (10, math.nan),
        "width must be at least 1 and cosine in .* got nan and 0.5",
    ),
    "a risk beyond float64": (landscape.risk, (LAYERS, 1e200 * EYE, EYE), "the risk must lie in the range of"),
    "a product beyond float64": (landscape.risk, (1e200 + LAYERS, EYE, EYE), "the risk must lie in the range of"),
    "a bound of a risk beyond float64": (
        landscape.gradient_lower_bound,
        (LAYERS - EYE, 1e160 * EYE, EYE),
        "the risk must lie in the range of float64",
    ),
    "a mid that there is none of, where it does not count": (
        hessians.hessian_at_zero,
        (X, Y, 2, 1, "linear", "gelu"),
        "activation must be one of linear, .* got 'gelu'",
    ),
    "a pre that there is none of, where it does not count": (
        hessians.hessian_at_zero,
        (X, Y, 2, 3, "gelu"),
        "activation must be one of linear, .* got 'gelu'",
    ),
    "a pre of a spectrum": (
        hessians.spectrum_at_zero,
        (X, Y, 2, 3, "gelu"),
        "activation must be one of linear",
    ),
    "a pre of an order": (
        stationarity.order_of_stationarity,
        (X, Y, 2, "gelu", "relu"),
        "activation must be one of linear",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_line(mistake):
    function, arguments, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
