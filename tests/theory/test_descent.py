"""Gradient descent from zero: what each function says, against descent on the matrices themselves."""

import numpy as np
import pytest

from theory import factorization, linear_residual
from theory.descent import from_zero
from theory.linear.rotations import rotation


def descend(R, num_layers, learning_rate, num_steps):
    start = np.zeros((num_layers, *R.shape))
    return linear_residual.gradient_descent(start, R, np.eye(len(R)), learning_rate, num_steps)


def symmetric(rng, phi):
    basis = np.linalg.qr(rng.standard_normal((len(phi), len(phi))))[0]
    return (basis * phi) @ basis.T


@pytest.mark.parametrize("num_layers", [1, 2, 5, 16])
def test_the_recursion_is_gradient_descent_to_rounding(num_layers):
    phi = np.array([-0.7, 0.0, 0.4, 1.8])
    found = descend(symmetric(np.random.default_rng(0), phi), num_layers, 0.01, 100)
    np.testing.assert_allclose(found.risks, from_zero.recursion_risks(phi, num_layers, 0.01, 100), rtol=1e-9)
    values = from_zero.eigenvalue_recursion(phi, num_layers, 0.01, 100)
    np.testing.assert_allclose(np.linalg.eigvalsh(np.eye(4) + found.A[0]), np.sort(values[-1]), atol=1e-12)
    assert np.ptp(found.A, axis=0).max() < 1e-13  # all layers alike


def test_the_recursion_does_not_hold_for_a_target_that_is_not_normal():
    R = np.array([[1.0, 2.0], [0.0, 0.5]])
    said = from_zero.recursion_risks(np.linalg.eigvals(R), 6, 0.01, 100)
    assert descend(R, 6, 0.01, 100).risks[-1] > 100 * said[-1]


def test_descent_on_a_positive_definite_target_ends_at_the_solution_of_least_norm():
    R = np.diag([0.3, 2.0, 3.0])
    rate = from_zero.largest_learning_rate(np.diag(R), 8)
    found = descend(R, 8, rate, int(from_zero.step_bound(np.diag(R), 8, rate, 1e-12)))
    assert found.risks[-1] <= 1e-12
    assert found.norms[-1] == pytest.approx(factorization.norm_lower_bound(R, 8), rel=1e-5)


def test_each_of_k_equal_eigenvalues_may_keep_a_kth_of_the_tolerance():
    alone, together = np.array([0.4]), np.full(100, 0.4)
    bound = from_zero.step_bound(together, 4, 0.01, 1e-6)
    assert bound == from_zero.step_bound(alone, 4, 0.01, 1e-8) > from_zero.step_bound(alone, 4, 0.01, 1e-6)


def test_the_step_bound_does_not_grow_with_the_depth():
    phi = np.array([0.3, 3.0])
    bounds = [from_zero.step_bound(phi, l, from_zero.largest_learning_rate(phi, l), 1e-8) for l in (8, 64, 512)]
    assert bounds[0] < bounds[1] < bounds[2] < 1.1 * bounds[1] < 10**2 * np.log(10**5)


def test_one_layer_takes_one_step_at_the_largest_rate_and_none_from_the_solution():
    assert from_zero.largest_learning_rate(np.array([3.0]), 1) == 0.5
    assert from_zero.largest_learning_rate(np.array([-1.0, 3.0]), 1) == 0.5  # one layer reaches −1 too
    assert from_zero.recursion_risks(np.array([-1.0, 3.0]), 1, 0.5, 1)[-1] == 0
    assert from_zero.step_bound(np.array([3.0]), 1, 0.5, 1e-8) == 1
    assert from_zero.step_bound(np.array([1.0]), 5, 0.01, 1e-8) == 0


@pytest.mark.parametrize("phi", [0.05, 0.9, 1.1, 7.0])
def test_the_contraction_lies_between_its_ends_and_meets_them(phi):
    root, q = phi ** (1 / 6), []
    for value in np.linspace(1, root, 50)[:-1]:
        q.append(value**5 * (value**6 - phi) / (value - root))
    low, high = from_zero.contraction(np.array([phi]), 6)
    assert low[0] * (1 - 1e-9) <= min(q) and max(q) <= high[0] * (1 + 1e-9)
    ends = sorted((q[0], 6 * phi ** (10 / 6)))
    np.testing.assert_allclose([low[0], high[0]], ends, rtol=1e-9)


def test_a_negative_eigenvalue_keeps_the_floor_at_any_rate_for_even_depth_and_not_for_odd():
    phi = np.array([-1.0])
    for rate in (0.1, 0.25, 0.6, 0.9):
        assert np.nanmin(from_zero.recursion_risks(phi, 8, rate, 50)) >= from_zero.excess_floor(phi, 8, rate)
    assert (
        from_zero.recursion_risks(phi, 3, 0.55, 400)[-1] < 0.1
    )  # jumps over 0, to the root −1, outside every small ball
    assert from_zero.recursion_risks(phi, 3, 0.25, 400)[-1] >= 1


def test_with_the_largest_step_a_negative_eigenvalue_is_at_the_floor_after_one_step():
    phi = np.array([-1.0])
    rate = from_zero.largest_learning_rate(phi, 8)
    assert from_zero.eigenvalue_recursion(phi, 8, rate, 3).ravel().tolist() == [1, 0, 0, 0]
    assert from_zero.recursion_risks(phi, 8, rate, 3).tolist() == [4, 1, 1, 1]
    assert from_zero.excess_floor(phi, 8, rate) == 1


def test_the_distance_to_zero_of_a_rotation_is_cos_of_half_its_angle_and_0_for_negative_targets():
    angles = np.array([0.0, 1.0, 2.5, 3.0])
    np.testing.assert_allclose(from_zero.distance_to_zero(np.exp(1j * angles)), np.cos(angles / 2))
    np.testing.assert_allclose(from_zero.distance_to_zero([-2.0, 0.0, 0.5, 1.0, 3.0]), [0, 0, 0.5, 1, 1], atol=1e-12)


def test_descent_reaches_a_rotation_by_170_degrees_which_the_theorem_for_positive_targets_does_not_cover():
    R = rotation(np.radians(170))
    assert np.linalg.eigvalsh((R + R.T) / 2)[0] < 0
    assert descend(R, 8, 0.08, 1_000).risks[-1] < 1e-12


def test_balanced_projected_descent_keeps_its_layers_balanced_and_its_product_positive():
    R = np.array([[1.0, -1.5], [1.5, 1.2]])
    found = from_zero.balanced_projected_descent(R, 5, 0.03, 200, 0.5)
    layers = np.eye(2) + found.A
    products = layers[1:].swapaxes(1, 2) @ layers[1:] - layers[:-1] @ layers[:-1].swapaxes(1, 2)
    assert np.abs(products).max() < 1e-12 and found.risks[-1] < 1e-10
    assert found.norms[0] == 0 and len(found.norms) == len(found.risks) == 201
    assert found.norms[-1] == linear_residual.max_spectral_norm(found.A) and found.risks[0] == 2 * 1.5**2 + 0.2**2


@pytest.mark.parametrize(
    "phi, rate, named", [([1.0, -0.1], 0.01, "got -0.1"), ([2.0], 0.5, "at most"), ([0.0], 0.01, "positive")]
)
def test_a_step_bound_that_is_not_proved_is_refused(phi, rate, named):
    with pytest.raises(ValueError, match=named):
        from_zero.step_bound(np.array(phi), 4, rate, 1e-6)


def test_the_step_bound_of_a_target_above_1_counts_how_far_its_eigenvalue_may_rise():
    """|w − φ| ≤ C|1 − φ|(1 − ηq)^t with C = ℓφ^{1−1/ℓ}/q, not 1: with 1 the bound would be 8 steps."""
    phi, num_layers, rate, tolerance = np.array([7.59]), 14, 3.29e-4, 28.0
    bound = from_zero.step_bound(phi, num_layers, rate, tolerance)
    least = (phi[0] ** (np.arange(14) / 14)).sum()
    growth = 14 * phi[0] ** (13 / 14) / least
    assert bound == np.ceil(np.log(growth * 6.59 / 28**0.5) / -np.log1p(-2 * rate * least)) == 36
    risks = from_zero.recursion_risks(phi, num_layers, rate, 36)
    assert risks[8] > tolerance >= risks[36]


@pytest.mark.parametrize("seed", range(3))
def test_after_the_step_bound_the_excess_is_within_any_tolerance(seed):
    rng = np.random.default_rng(seed)
    for _ in range(200):
        phi, num_layers = np.exp(rng.uniform(-1.5, 2.5, rng.integers(1, 4))), int(rng.integers(1, 20))
        rate = rng.uniform(0.1, 1) * from_zero.largest_learning_rate(phi, num_layers)
        tolerance = np.square(1 - phi).sum() * 10 ** rng.uniform(-3, 0)
        bound = int(from_zero.step_bound(phi, num_layers, rate, tolerance))
        assert from_zero.recursion_risks(phi, num_layers, rate, bound)[-1] <= tolerance * (1 + 1e-12)


@pytest.mark.parametrize("num_layers, rate, steps", [(2, 0.5, 10), (5, 0.01, 300), (40, 0.1, 1)])
def test_the_bound_of_a_singular_target_is_its_formula(num_layers, rate, steps):
    expected = (1 + 2 * (num_layers - 1) * 2 * rate * steps) ** (-num_layers / (num_layers - 1))
    assert from_zero.singular_risk_bound(num_layers, rate, steps) == pytest.approx(expected)
    assert from_zero.recursion_risks(np.zeros(1), num_layers, rate, steps)[-1] <= expected * (1 + 1e-9)


@pytest.mark.parametrize(
    "num_layers, rate, named", [(1, 0.1, "num_layers"), (2, 0.0, "got 0.0"), (2, 0.51, "got 0.51")]
)
def test_a_singular_target_s_bound_needs_two_layers_and_a_rate_up_to_a_half(num_layers, rate, named):
    with pytest.raises(ValueError, match=named):
        from_zero.singular_risk_bound(num_layers, rate, 3)


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


def test_the_floor_is_the_sum_of_squares_and_the_contraction_of_a_negative_eigenvalue_1_less_it():
    assert from_zero.excess_floor([-2.0, 3.0, -0.5, 0.0], 4, 0.1) == 4.25
    least, largest = from_zero.contraction([-0.5, 0.0, 2.0], 4)
    np.testing.assert_allclose(least, [0, 0, sum(2 ** (k / 4) for k in range(4))])
    np.testing.assert_allclose(largest, [1.5, 1, 4 * 2**1.5])
    assert [end.tolist() for end in from_zero.contraction([-0.5], 1)] == [[1], [1]]
    assert [end.tolist() for end in from_zero.contraction([-0.5], 2)] == [[0], [1.5]]


def test_the_recursion_goes_to_a_complex_eigenvalue_step_by_step():
    phi, value = 0.6 + 0.9j, 1 + 0j
    for step in range(4):
        found = from_zero.eigenvalue_recursion([phi, 0.5], 3, 0.05, step)
        assert found.shape == (step + 1, 2) and found[-1, 0] == pytest.approx(value)
        risks = from_zero.recursion_risks([phi], 3, 0.05, step)
        assert risks[-1] == pytest.approx(abs(value**3 - phi) ** 2)
        value = value - 0.1 * value.conjugate() ** 2 * (value**3 - phi)


def test_the_nearest_positive_matrix_changes_the_symmetric_part_alone():
    W = np.random.default_rng(0).standard_normal((4, 4))
    found = from_zero.project_positive(W, 0.3)
    np.testing.assert_allclose(found - found.T, W - W.T)
    values, vectors = np.linalg.eigh(W + W.T)
    np.testing.assert_allclose(vectors.T @ (found + found.T) @ vectors, np.diag(np.maximum(values, 0.6)), atol=1e-12)


def test_the_distance_to_zero_is_that_of_the_line_of_complex_targets_too():
    phi = np.array([0.5 + 2j, -1 + 0.1j, 3 - 1j, 1.0, 0.9 + 0.01j])
    lines = np.abs(1 + np.linspace(0, 1, 100_001)[:, None] * (phi - 1)).min(0)
    np.testing.assert_allclose(from_zero.distance_to_zero(phi), lines, atol=1e-9)
