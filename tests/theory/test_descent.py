"""Gradient descent from zero, and balanced layers: what each function says, against its formula written out."""

import pathlib
from decimal import Decimal, localcontext

import numpy as np
import pytest

from theory import linear_residual
from theory.descent import balancedness, from_zero


def test_one_layer_takes_one_step_at_the_largest_rate_and_none_from_the_solution():
    assert from_zero.largest_learning_rate(np.array([3.0]), 1) == 0.5
    assert from_zero.largest_learning_rate(np.array([-1.0, 3.0]), 1) == 0.5  # one layer reaches −1 too
    assert from_zero.recursion_risks(np.array([-1.0, 3.0]), 1, 0.5, 1)[-1] == 0
    assert from_zero.step_bound(np.array([3.0]), 1, 0.5, 1e-8) == 1
    assert from_zero.step_bound(np.array([1.0]), 5, 0.01, 1e-8) == 0


def test_balanced_projected_descent_keeps_layers_balanced_and_the_product_positive():
    R = np.array([[1.0, -1.5], [1.5, 1.2]])
    found = from_zero.balanced_projected_descent(R, 5, 0.03, 60, 0.5)
    layers = np.eye(2) + found.A
    products = layers[1:].swapaxes(1, 2) @ layers[1:] - layers[:-1] @ layers[:-1].swapaxes(1, 2)
    assert np.abs(products).max() < 1e-12 and found.risks[-1] < 1e-3 * found.risks[0]
    assert found.norms[0] == 0 and len(found.norms) == len(found.risks) == 61
    assert found.norms[-1] == linear_residual.max_spectral_norm(found.A) and found.risks[0] == 2 * 1.5**2 + 0.2**2


@pytest.mark.parametrize(
    "phi, num_layers", [([0.2, 0.6], 5), ([0.2, 3.0, 1.0], 4), ([7.0], 9), ([2.0, 0.5], 1), ([1.5], 3)]
)
@pytest.mark.parametrize("tolerance", [1e-8, 0.3])
def test_the_step_bound_is_its_formula_for_each_eigenvalue(phi, num_layers, tolerance):
    rate, found = 0.7 * from_zero.largest_learning_rate(np.array(phi), num_layers), []
    for one in phi:
        ends = sum(one ** (k / num_layers) for k in range(num_layers)), num_layers * one ** (2 - 2 / num_layers)
        growth = num_layers * one ** (1 - 1 / num_layers) / min(ends) if one > 1 else 1
        ratio = growth * abs(1 - one) * np.sqrt(len(phi) / tolerance)
        shrunk = 1 - 2 * rate * min(ends)
        found.append(0 if ratio <= 1 else max(1, np.log(ratio) / -np.log(shrunk)))
    assert from_zero.step_bound(np.array(phi), num_layers, rate, tolerance) == np.ceil(max(found))
    largest = from_zero.largest_learning_rate(np.array(phi), num_layers)
    from_zero.step_bound(np.array(phi), num_layers, largest * (1 + 1e-13), tolerance)
    for wrong in (largest * (1 + 1e-8), 0.0):
        with pytest.raises(ValueError, match="learning_rate must be"):
            from_zero.step_bound(np.array(phi), num_layers, wrong, tolerance)


def test_floor_is_the_sum_of_squares_and_negative_eigenvalues_contract_by_1_less_it():
    assert from_zero.excess_floor([-2.0, 3.0, -0.5, 0.0], 4, 0.1) == 4.25
    least, largest = from_zero.contraction([-0.5, 0.0, 2.0], 4)
    np.testing.assert_allclose(least, [0, 0, sum(2 ** (k / 4) for k in range(4))])
    np.testing.assert_allclose(largest, [1.5, 1, 4 * 2**1.5])
    assert [end.tolist() for end in from_zero.contraction([-0.5], 1)] == [[1], [1]]
    assert [end.tolist() for end in from_zero.contraction([-0.5], 2)] == [[0], [1.5]]


def test_the_distance_to_zero_is_that_of_the_line_of_complex_targets_too():
    phi = np.array([0.5 + 2j, -1 + 0.1j, 3 - 1j, 1.0, 0.9 + 0.01j, -2.0, 0.0, np.exp(2.5j)])
    lines = np.abs(1 + np.linspace(0, 1, 30_001)[:, None] * (phi - 1)).min(0)
    np.testing.assert_allclose(from_zero.distance_to_zero(phi), lines, atol=1e-8)


def test_the_excess_of_the_page_is_that_of_exact_numbers_and_that_of_float64():
    """R = −I₂, ℓ = 8, rate 0.01, from N_8 = 0 and the others I: the equal layers and the last are multiples of I."""
    with localcontext(prec=60):
        others, last = Decimal(1), Decimal(0)
        for _ in range(200):
            error = 2 * (others**7 * last + 1)
            slopes = error * others**6 * last, error * others**7
            others, last = others - slopes[0] / 100, last - slopes[1] / 100
        exact = 2 * (others**7 * last + 1) ** 2
    start, R = from_zero.asymmetric_start(8, 2), -np.eye(2)
    rounded = linear_residual.gradient_descent(start, R, np.eye(2), 0.01, 200).risks[-1]
    page = (pathlib.Path(__file__).parents[2] / "docs" / "appendix" / "descent.md").read_text()
    assert f"the excess is {exact:.1e} after 200 steps".replace("E-", "e-") in " ".join(page.split())
    assert exact < rounded < 1e-30 and "(2e-31 in float64, which is rounding)" in page


def test_the_deficiency_margin_is_the_least_singular_value_less_the_distance():
    R, W = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 0.7]]), np.eye(3)
    expected = np.linalg.svd(R)[1][2] - np.sqrt(1 + 1 + 0.25 + 0.09)
    assert balancedness.deficiency_margin(W, R) == pytest.approx(expected)


def test_the_drift_of_balanced_layers_is_bounded_by_twice_the_rate_times_the_gain():
    assert balancedness.drift_bound(0.1, 3.0, 1.0) == pytest.approx(0.4)
    assert balancedness.drift_bound(0.1, 3.0, 3.0) == 0


def test_the_product_of_one_layer_moves_against_its_gradient():
    (A, R), Sigma = np.random.default_rng(0).standard_normal((2, 1, 3, 3)), np.diag([1.0, 2.0, 3.0])
    found = balancedness.first_order_velocity(A, R[0], Sigma)
    np.testing.assert_allclose(found, -2 * (A[0] - (R[0] - np.eye(3))) @ Sigma)
