"""Linear residual networks between two fixed maps: gradient, guarantee and descent from zero."""

import numpy as np
import pytest

from theory import linear_residual
from theory.descent import widened


def test_without_maps_around_the_risk_and_gradient_are_hardt_and_ma_s():
    rng = np.random.default_rng(0)
    layers, R = 0.3 * rng.standard_normal((4, 3, 3)), rng.standard_normal((3, 3))
    Sigma = np.diag([1.0, 2.0, 3.0])
    risk, gradient = widened.risk_and_gradient(widened.Widened(np.eye(3), np.eye(3), R, Sigma), layers)
    assert risk == pytest.approx(linear_residual.risk(layers, R, Sigma))
    np.testing.assert_allclose(gradient, linear_residual.gradient(layers, R, Sigma))


def with_singular_values(rng, rows, columns, values):
    u, _ = np.linalg.qr(rng.standard_normal((rows, rows)))
    v, _ = np.linalg.qr(rng.standard_normal((columns, columns)))
    return u[:, : len(values)] * values @ v[: len(values)]


# ‖A‖, μ_A; ‖B‖, μ_B; ‖Σ‖, σ_min(Σ), all apart.
INWARD, OUTWARD, MOMENT = np.array([3.0, 1.0, 0.2]), np.array([2.5, 0.4]), np.array([4.0, 0.9, 0.15])


def general_problem(distance, seed=0, inward=INWARD, outward=OUTWARD, moment=MOMENT):
    """Maps of small μ and large norm, a general Σ, and a target at a distance from the network at zero."""
    rng = np.random.default_rng(seed)
    A, B = with_singular_values(rng, 5, 3, inward), with_singular_values(rng, 2, 5, outward)
    basis = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    return widened.Widened(A, B, B @ A + distance * rng.standard_normal((2, 3)), basis * moment @ basis.T)


def excess_at_zero(problem):
    return np.square((problem.outward @ problem.inward - problem.R) @ np.linalg.cholesky(problem.Sigma)).sum()


@pytest.mark.parametrize("num_layers", [1, 2, 7])
@pytest.mark.parametrize("seed", range(3))
def test_the_guarantee_is_its_formula_if_mu_is_far_below_the_norms(num_layers, seed):
    problem = general_problem(1.0, seed)
    (norm_A, _, mu_A), (norm_B, mu_B), (norm_S, _, mu_S) = INWARD, OUTWARD, MOMENT
    said, f = widened.guarantee(problem, num_layers), excess_at_zero(problem)
    assert problem.spread() == pytest.approx((mu_A * mu_B, norm_A * norm_B, norm_S))
    allowed = mu_S * mu_A**2 * mu_B**2 / (4 * np.e**1.5 * norm_A * norm_B * norm_S**0.5)
    growth = 1 + 1 / (2 * num_layers)
    smoothness = 2 * num_layers * growth ** (2 * num_layers - 2) * norm_A**2 * norm_B**2 * norm_S
    smoothness += 2 * (num_layers - 1) * growth ** (num_layers - 2) * norm_A * norm_B * (norm_S * f) ** 0.5
    assert said.allowed == pytest.approx(allowed) and not said.applies and f**0.5 > allowed
    assert said.learning_rate == pytest.approx(1 / smoothness)
    assert 1 - said.rate == pytest.approx(2 / smoothness * num_layers * mu_S * mu_A**2 * mu_B**2 / np.e)


def test_a_moment_without_an_inverse_allows_nothing():
    said = widened.guarantee(general_problem(1.0, moment=np.array([1.0, 0.5, 0.0])), 3)
    assert said.allowed == pytest.approx(0, abs=1e-12) and said.rate == pytest.approx(1, abs=1e-12)


def test_the_gradient_bound_takes_the_largest_norm_and_the_least_eigenvalue():
    problem = general_problem(1.0)
    layers = np.array([0.1, 0.5, 0.3])[:, None, None] * np.linalg.qr(np.ones((5, 5)) + np.eye(5))[0]
    excess = widened.risk_and_gradient(problem, layers)[0]
    expected = 4 * 3 * (0.2 * 0.4) ** 2 * (1 - 0.5) ** 4 * 0.15 * excess
    assert widened.gradient_lower_bound(problem, layers) == pytest.approx(expected)
    assert widened.gradient_lower_bound(problem, 2.1 * layers) == 0
