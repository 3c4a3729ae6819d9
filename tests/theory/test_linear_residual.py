"""Linear residual networks: limits of the bounds, cases of equality, invalid problems, eigenvalues of 0."""

import re

import numpy as np
import pytest
from refusals import refused

from theory import linear_residual as lr
from theory.derivatives import difference_hessian


@pytest.mark.parametrize("num_layers, expected", [(1, 4 * 9.0), (2, 0.0), (5, 0.0)])
def test_from_radius_1_on_the_bound_is_0_unless_there_is_one_layer(num_layers, expected):
    A = np.zeros((num_layers, 1, 1))
    A[0] = -2
    assert lr.gradient_lower_bound(A, np.array([[2.0]]), np.eye(1)) == expected


@pytest.mark.parametrize("num_layers, tau, target", [(1, 0.4, 0.0), (3, 0.0, -1.0), (4, 0.3, -2.0), (6, 0.5, 0.0)])
def test_the_smoothness_bound_is_reached_by_scalars_that_are_too_large(num_layers, tau, target):
    def risk(v):  # Σ = 4
        return 4 * (np.prod(1 + tau + v) - target) ** 2

    bound = lr.smoothness_bound(np.array([[4.0]]), num_layers, tau, risk(np.zeros(num_layers)))
    assert np.abs(np.linalg.eigvalsh(difference_hessian(risk, num_layers))).max() == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("radius", [1, 1.5, 3])
def test_from_radius_1_on_the_rate_bound_promises_nothing_but_for_one_layer(radius):
    assert lr.convergence_rate_bound(np.eye(2), 4, radius, 0.01) == 1
    assert lr.convergence_rate_bound(np.eye(2), 1, radius, 0.01) == pytest.approx(0.98)


NOT_A_NUMBER = np.full((2, 2), np.nan)
MISTAKES = {
    "A without layers": (np.zeros((0, 2, 2)), np.eye(2), np.eye(2), "A, R and Sigma must have shapes"),
    "A of one matrix": (np.zeros((2, 2)), np.eye(2), np.eye(2), r"A, R and Sigma must have shapes .*\(2, 2\)"),
    "A not square": (np.zeros((1, 2, 3)), np.eye(2), np.eye(2), r"A, R and Sigma must have shapes .*\(1, 2, 3\)"),
    "R too large": (np.zeros((1, 2, 2)), np.eye(3), np.eye(2), r"A, R and Sigma must have shapes .*\(3, 3\)"),
    "NaN in A": (NOT_A_NUMBER[None], np.eye(2), np.eye(2), "A must be finite"),
    "Sigma not symmetric": (np.zeros((1, 2, 2)), np.eye(2), np.array([[1, 1], [0, 1.0]]), "Sigma must be symmetric"),
    # A negative eigenvalue makes the "risk" negative or 0; risk() says that it raises for what is no second moment.
    "Sigma indefinite": (np.zeros((1, 2, 2)), 2 * np.eye(2), np.diag([1.0, -1.0]), "Sigma"),
}


@pytest.mark.parametrize("function", [lr.risk, lr.gradient, lr.gradient_lower_bound, lr.gradient_lower_bound_by_layer])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_invalid_problem_raises_a_short_error(function, mistake):
    A, R, Sigma, message = MISTAKES[mistake]
    assert re.search(message, refused(function, A, R, Sigma))


@pytest.mark.parametrize("function", [lr.risk, lr.gradient, lr.gradient_lower_bound, lr.gradient_lower_bound_by_layer])
def test_lists_of_numbers_do_as_well_as_arrays(function):
    A, R, Sigma = np.array([[[0.5]], [[0.1]]]), np.array([[2.0]]), np.array([[1.0]])
    np.testing.assert_array_equal(function(A.tolist(), R.tolist(), Sigma.tolist()), function(A, R, Sigma))


@pytest.mark.parametrize("small, is_kept", [(1e-9, True), (3e-15, True), (1e-15, False), (0.0, False)])
def test_eigenvalues_count_down_to_d_epsilon_of_the_largest(small, is_kept):
    Sigma = np.diag([8.0, 5, 4, 3, 2, 8 * small])  # 6 ε = 1.3e-15
    seen, least = lr.above_rounding(Sigma)
    assert least == pytest.approx(8 * small if is_kept else 2, rel=1e-12)
    np.testing.assert_array_equal(seen, Sigma if is_kept else np.diag([8.0, 5, 4, 3, 2, 0]))


def test_a_general_moment_loses_what_is_rounding_alone():
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    for small, expected in ((1e-9, 1e-9), (1e-18, 0.5)):
        Sigma = basis * [2.0, 1.0, 0.5, small] @ basis.T
        seen, least = lr.above_rounding((Sigma + Sigma.T) / 2)
        assert least == pytest.approx(expected, rel=1e-6)
        np.testing.assert_allclose(seen, Sigma, atol=1e-15)
    assert lr.above_rounding(np.zeros((2, 2)))[1] == 0


@pytest.mark.parametrize("x, y", [(np.ones(3), np.ones((3, 1))), (np.ones((3, 1)), np.ones(3)),
                                  (np.ones((3, 1)), np.ones((2, 1))), (np.ones((0, 1)), np.ones((0, 1))),
                                  (np.ones((3, 0)), np.ones((3, 1))), (np.ones((3, 1)), np.ones((3, 0)))])  # fmt: skip
def test_a_sample_has_examples_in_rows_as_many_as_labels(x, y):
    assert "x and y must both be [m, d]" in refused(lr.sample_problem, x, y)
    assert lr.sample_problem(np.ones((1, 1)), np.ones((1, 1))).Sigma == 1


def test_the_rate_of_a_descent_is_its_slowest_step_above_rounding():
    risks = np.array([1.0, 0.5, 0.45, 1e-19, 0.9e-19, 1e-21, 0.95e-21])
    assert lr.Descent(None, risks, None).rate == pytest.approx(0.9)
    assert lr.Descent(None, np.array([1.0, 1e-5, 1e-19, 0.99e-19]), None).rate == pytest.approx(0.99)
    assert lr.Descent(None, np.array([1e4, 1e-1, 1e-17, 0.99e-17]), None).rate == pytest.approx(1e-5)
