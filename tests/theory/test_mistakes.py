"""Invalid arguments of theory's functions raise a clear error before anything is computed."""

import math
import re

import numpy as np
import pytest
from refusals import refused

from theory import arrays, factorization
from theory import linear_residual as lr
from theory import shortcut_hessians as sh
from theory.descent import balancedness, from_zero, saddle_escape, target_map, update_rules, widened
from theory.linear import rotations
from theory.memorization import blocks, construction, first_layer
from theory.relu import linear_output, smooth_units
from theory.relu import networks as relu_networks
from theory.shortcut import networks, stationarity
from theory.shortcut.activations import Activation, activation_named, derivatives_at_zero

pytestmark = pytest.mark.filterwarnings("error")  # a warning is a wrong answer too

X, Y = np.random.default_rng(0).standard_normal((2, 10, 3))
EYE, LAYERS = np.eye(3), np.zeros((2, 3, 3))
ROOT = Activation(lambda z: np.sign(z) * np.sqrt(np.abs(z)), None, (0.0, math.nan, math.nan))
MILD_ROOT = ROOT._replace(function=lambda z: np.sign(z) * np.abs(z) ** 0.99)
LOGARITHM = ROOT._replace(function=lambda z: z * np.log(np.abs(z)))
COMPLEX = X + 1j
# LAPACK's singular value decomposition does not end on this one.
ENDLESS = np.array([[-0.3, 1.4, 2e-4], [np.inf, 0.95, -0.3], [0.4, 0.2, -1.1]])
SHEAR = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 5.0]])
NO_MOMENTS = [(2, 3), (3,), (2, 2, 2), (0, 0), ()]
MISTAKES = [
    (factorization.augment, (np.zeros((2, 3)),), r"R must be a square matrix, got shape \(2, 3\)"),
    (factorization.factorize, (1e-310 * EYE, 8, "principal"), "method principal finds no"),
    (factorization.factorize, (X[:2], 4), r"R must be a square matrix, got shape \(2, 3\)"),
    (factorization.factorize, (np.diag([1.0, np.nan]), 4), "R must be finite"),
    (factorization.factorize, (np.diag([1.0, 0.0]), 4), "R must not be singular, .* from 1 down to 0"),
    (factorization.factorize, (np.diag([1.0, 1e-17]), 4), "R must not be singular, .* down to 1e-17"),
    (factorization.factorize, (np.diag([1.0, -1.0]), 4), "det R must be positive"),
    (factorization.norm_bound, (np.diag([1.0, -1.0]), 4), "det R must be positive"),
    (factorization.norm_lower_bound, (np.diag([1.0, -1.0]), 4), "det R must be positive"),
    (factorization.factorize, (EYE, 0), "num_layers must be a whole number of at least 1, got 0"),
    (factorization.factorize, (EYE, 4, "printed"), "method must be one of polar, .*, paper, got 'printed'"),
    (factorization.factorize, (np.diag([-2.0, -2.0]), 4, "principal"), "method principal needs .* got -2"),
    (factorization.factorize, (EYE, 4, "paper"), "method paper needs at least 5 layers .* got 4"),
    (lr.sample_problem, (X[:0], Y[:0]), r"x and y must both be \[m, d\], got shapes \(0, 3\)"),
    (lr.sample_problem, (ENDLESS, EYE), "x must be finite"),
    (linear_output.best_linear_risk, (ENDLESS, EYE), "inputs must be finite"),
    (lr.max_spectral_norm, (ENDLESS[None],), "A must be finite"),
    (lr.project, (ENDLESS[None], 0.5), "A must be finite"),
    (balancedness.preconditioner, (ENDLESS, 2), "W must be finite"),
    (update_rules.polar_factor, (ENDLESS,), "G must be finite"),
    (lr.product_lower_bound, (ENDLESS, EYE), "X must be finite"),
    (rotations.block_diagonalize, (ENDLESS,), "U must be finite"),
    (lr.product_lower_bound, (X[:, :0], X[:0]), r"X must be square or tall, got shape \(10, 0\)"),
    (networks.loss, (np.zeros((2, 0, 3, 3)), X, Y), r"weights must be .* got shape \(2, 0"),
    (factorization.factorize, (EYE * 1j, 3), "R must be real numbers, got complex128"),
    (lr.risk, (LAYERS * 1j, EYE, EYE), "A must be real numbers"),
    (lr.risk, (np.ones(3), EYE, EYE), r"must have shapes .* got \(3,\)"),
    (lr.standard_gradient, (LAYERS * 1j, EYE, EYE), "W must be real numbers"),
    (networks.output_growth, (0, 2), "num_units and shortcut_depth must be whole numbers of at least 1, got 0 and 2"),
    (networks.output_growth, (2, 1.5), "num_units and shortcut_depth must be whole .*, got 2 and 1.5"),
    (networks.moments, (X, np.where(Y == Y.max(), np.inf, Y)), "x and y must be finite"),
    (networks.moments, (np.where(X == X.max(), np.nan, X), Y), "x and y must be finite"),
    (networks.moments, (X, COMPLEX), "y must be real numbers"),
    (networks.gradient, (np.zeros((1, 1, 3, 3)) * 1j, X, Y), "weights must be real"),
    (saddle_escape.risk_and_gradient, (LAYERS[None] * 1j, EYE), "weights must be real"),
    (first_layer.separation, (COMPLEX,), "x must be real numbers"),
    (networks.forward, (LAYERS, X), r"weights must be \[num_units, shortcut_depth"),
    (networks.forward, (np.ones((2, 2, 2, 3)), X), r"weights must be \[num_units, shortcut_depth"),
    (relu_networks.Population, (np.zeros((1, 2, 2, 2, 3)),), "not for d = 3"),
    *((activation_named, (wrong,), f"or an Activation, got {wrong!r}") for wrong in ("magic", 3, None)),
    (derivatives_at_zero, ("mid", "sigmoid"), "mid must be 0 at 0"),
    (derivatives_at_zero, ("post", (1.0,)), r"post must be a name, an Activation or \(σ′\(0\), σ″\(0\)\)"),
    *((arrays.second_moment, ("Sigma", np.ones(shape)), "Sigma must have the shape") for shape in NO_MOMENTS),
    (arrays.mean_products, (np.array([[1e-150, 0.0]]), np.array([[0.0, 1e-150]])), "beyond the range"),
    (stationarity.order_of_stationarity, (X, Y, 0), "shortcut_depth must be whole numbers of at least 1, got 1 and 0"),
    (stationarity.order_of_stationarity, (X, Y, 2.5), "got 1 and 2.5"),
    (stationarity.escape_from_saddle, (X, X, 1), "not a strict saddle"),
    (stationarity.escape_from_saddle, (Y, Y, 1), "not a strict saddle"),
    (lr.smoothness_bound, (EYE, 3, -1, 0.1), "radius must be"),
    (lr.project, (LAYERS, math.nan), "radius must be at least 0, got nan"),
    (first_layer.pair_failure_probability, (math.nan, 3), r"cosine must lie in \[−1, 1\], got nan"),
    (first_layer.pair_failure_probability, (np.array([0.0, -1.5]), 3), "cosine must lie in .*, got -1.5"),
    (first_layer.pair_failure_probability, (0.5, 0), "width must be a whole number of at least 1, got 0"),
    (first_layer.pair_failure_probability, (0.5, 1.5), "width must be a whole number of at least 1, got 1.5"),
    *(
        (width, arguments, named)
        for width in (first_layer.row_bias_width, first_layer.common_bias_width)
        for arguments, named in (
            ((0, 1.0), "num_points"),
            ((5, 0.0), "rho"),
            ((5, 4.1), "rho"),
            ((5, 1.0, 1.0), "failure"),
            ((5, 1.0, 0.0), "failure"),
        )
    ),
    (factorization.factorize, ([[1e-150]], 2), r"R, of norm 1e-150, is too small .* or take ℓ ≥ 20"),
    (factorization.rescale, (1e-310 * EYE,), "R must not need a factor of e\\^714"),
    (construction.memorize, (1e-310 * X, np.arange(10) % 2, 2), "x must not be as small as 2.*e-310"),
    (from_zero.excess_floor, (np.array([1j, -1j]), 2, 0.1), "phi must be real numbers, got complex128"),
    (stationarity.order_of_stationarity, (X, Y, 3, "linear", ROOT, ROOT), "in general no Hessian exists at zero with"),
    (stationarity.order_of_stationarity, (X, Y, 2, "linear", ROOT), "in general no Hessian exists at zero with"),
    (stationarity.order_of_stationarity, (X, Y, 3, "linear", MILD_ROOT), "in general no Hessian exists at zero with"),
    (linear_output.risk, (np.ones((1, 3)), EYE, X, X, X[:, 0]), r"y must have shape \(10, 1\), got \(10,\)"),
    (lr.convergence_rate_bound, (np.diag([-1.0, 1.0]), 2, 0.5, 0.1), "Sigma must be positive semidefinite"),
    (first_layer.separation, (ENDLESS,), "x must be finite"),
    (from_zero.excess_floor, (-np.ones(2), 3, 0.5), "learning_rate must be at most 0.25 .*, got 0.5"),
    (from_zero.excess_floor, (-np.ones(2), 3, 0.25 * (1 + 1e-8)), "learning_rate must be at most 0.25 "),
    (from_zero.excess_floor, (-np.ones(2), 1, 0.1), "num_layers must be at least 2, got 1"),
    (from_zero.asymmetric_start, (0, 2), "num_layers must be at least 1, got 0"),
    (from_zero.asymmetric_flow_bound, (EYE, -1.0), "time must be at least 0, got -1.0"),
    (smooth_units.functional_lower_bound, (2, 1.0, 1.0), r"lipschitz must lie in \[0, 1\), got 1.0"),
    (smooth_units.doubled_unit, (0.1,), r"radius must lie in \[0.2, 1\), got 0.1"),
    (blocks.separating_block, (X[:1] * 0, X[:1], np.vstack([X, -X])), "point 0 of the block: it lies in the hull"),
    (first_layer.lifted, (COMPLEX,), "x must be real numbers"),
    (from_zero.singular_risk_bound, (3, 0.51, 10), r"learning_rate must lie in \(0, ½\], got 0.51"),
    (from_zero.singular_risk_bound, (2, 0.0, 10), r"learning_rate must lie in \(0, ½\], got 0.0"),
    (from_zero.singular_risk_bound, (1, 0.1, 10), "num_layers must be at least 2, got 1"),
    (from_zero.step_bound, ([0.5, 2.0], 3, -0.1, 1e-6), "learning_rate must be positive"),
    (from_zero.step_bound, ([1.0, -0.1], 4, 0.01, 1e-6), "got -0.1"),
    (from_zero.step_bound, ([0.0], 4, 0.01, 1e-6), "positive"),
    (target_map.target_matrix, ("big", 2, 0), "got 'big'"),
    (update_rules.direction, ("adam", EYE, EYE), "'adam'"),
    (target_map.start_layers, ("big", 1, 2, 0), "got 'big'"),
    (widened.Widened(np.ones((2, 3)), np.ones((2, 2)), EYE[:2], EYE).spread, (), "3 and 2, got m = 2"),
    (widened.Widened(np.ones((2, 2)), np.ones((3, 2)), EYE[:, :2], EYE).spread, (), "2 and 3, got m = 2"),
    (saddle_escape.predicted_steps, ("orthogonalized", 2, 1.0, 0.01, 0.1), "method must be one of descent, momentum,"),
    (networks.loss, (np.zeros((1, 2, 3, 3)), X, Y[:1]), r"y must have the shape of the output, \(10, 3\), got \(1,"),
    (lr.max_spectral_norm, (EYE,), r"A must have the shape \[ℓ, d, d\], got"),
    (lr.max_spectral_norm, (LAYERS[:0],), r"A must have the shape \[ℓ, d, d\], got"),
    (lr.smoothness_bound, (-EYE, 2, 0.5, 1.0), "Sigma must be positive semidefinite"),
    (lr.smoothness_bound, (EYE, 2, 0.5, -1.0), "excess_risk must be at least 0, got -1.0"),
    (construction.memorize, ([[1e-8], [2e-8], [1e8]], [0, 1, 0], 2), "points too close, or of too different sizes,"),
    (networks.forward, (np.zeros((1, 2, 3, 3)), X, ["tanh", "relu"]), r"activation must be one of .* got \['tanh',"),
    (rotations.rotation_roots, (2 * np.eye(2), 3), r"Q must be orthogonal \[2, 2\], got \[\["),
    (rotations.rotation_roots, (EYE, 3), "Q must be orthogonal"),
    (rotations.rotation_roots, (0.9 * np.eye(2), 3), "Q must be orthogonal"),
    (rotations.rotation_roots, (np.array([[1.0, 1e-9], [0.0, 1.0]]), 3), "Q must be orthogonal"),
    (rotations.block_diagonalize, (SHEAR,), "U must be normal, but .* is [0-9].* of "),
    (rotations.block_diagonalize, (1e100 * SHEAR,), "U must be normal, but .* is [0-9].* of "),  # ‖U Uᵀ‖ overflows
    (rotations.block_diagonalize, (1e-170 * SHEAR,), "U must be normal, but .* is [0-9].* of "),  # and underflows
    (rotations.rotation_roots, (np.eye(2), 0), "num_roots must be at least 1, got 0"),
    (balancedness.product_velocity, (EYE, np.ones(3), 3), r"W and gradient must have one shape \[d, d\], got \(3,"),
    (balancedness.deficiency_margin, (EYE, np.ones((1, 3))), r"W and R must have one shape \[d, d\], got \(3, 3\)"),
    (balancedness.deficiency_margin, (EYE, np.eye(2)), r"W and R must have one shape \[d, d\], got \(3, 3\)"),
    (balancedness.deficiency_margin, (X[:2], X[:2]), r"W and R must have one shape \[d, d\], got \(2, 3\)"),
    (lr.gradient_descent, (LAYERS, 2 * EYE, EYE, 5.0, 100), r"diverged in step \d+: learning_rate 5.0 is too large"),
    *(((lambda x=x: arrays.require_at_least(1, radius=x)), (), f"at least 1, got {x}") for x in (0.999, np.nan)),
    (lr.smoothness_bound, (EYE, 0, 0.5, 1.0), "num_layers must be at least 1, got 0"),
    (lr.risk, (LAYERS, 1e200 * EYE, EYE), "the risk must lie in the range of"),
    (sh.hessian_at_zero, (X, Y, 2, 1, "linear", "gelu"), "activation must be one of linear, .* got 'gelu'"),
    (sh.hessian_at_zero, (X, Y, 2, 3, "gelu"), "activation must be one of linear, .* got 'gelu'"),
    (stationarity.order_of_stationarity, (X, Y, 3, "linear", "linear", LOGARITHM), "in general no Hessian exists at"),
    (lr.gradient_lower_bound, (LAYERS - EYE, 1e160 * EYE, EYE), "the risk must lie in the range of float64"),
]


@pytest.mark.parametrize("function, arguments, message", MISTAKES)
def test_a_mistake_is_one_clear_line(function, arguments, message):
    assert re.search(message, refused(function, *arguments))
