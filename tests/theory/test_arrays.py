"""What counts as real numbers, as a second moment, as within rounding of 0."""

import numpy as np
import pytest

from theory import arrays

EPSILON = np.finfo(np.float64).eps


@pytest.mark.parametrize("off, accepted", [(5e-11, True), (1e-9, False), (-1e-9, False)])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e-4])
def test_a_moment_may_be_asymmetric_and_negative_only_by_rounding(off, accepted, scale):
    skewed, negative = scale * np.array([[2.0, 1 + off], [1.0, 3.0]]), scale * np.diag([1.0, -abs(off)])
    for array, message in ((skewed, "must be symmetric"), (negative, "positive semidefinite")):
        if accepted:
            np.testing.assert_array_equal(arrays.second_moment("Sigma", array), array)
        else:
            with pytest.raises(ValueError, match=message):
                arrays.second_moment("Sigma", array)


def test_entry_within_rounding_of_0_is_small_beside_its_terms_of_the_largest_entry():
    arrays.second_moment("Sigma", np.diag([1.0, 0.0]))
    array = np.array([[1e6, 2e-7], [0.0, 1.0]])  # 1e-12 of the largest entry
    arrays.second_moment("Sigma", array)
    with pytest.raises(ValueError, match="symmetric"):
        arrays.second_moment("Sigma", array * [[1, 10], [1, 1]])


def test_mean_products_are_means_and_their_rounding_epsilon_times_the_sizes():
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((7, 2)), rng.standard_normal((7, 3))
    mean, rounding = arrays.mean_products(left, right)
    for i, j in np.ndindex(2, 3):
        terms = [left[m, i] * right[m, j] for m in range(7)]
        assert mean[i, j] == pytest.approx(sum(terms) / 7)
        assert rounding[i, j] == pytest.approx(EPSILON * sum(map(abs, terms)), rel=1e-9, abs=0)


@pytest.mark.parametrize("scale, fits", [(1.01e-146, True), (1e-146, False), (1e153, True), (1e155, False)])
def test_products_that_leave_the_range_of_float64_are_rejected(scale, fits):
    left, right = scale * np.array([[1.0, 1.0], [0.0, 2.0]]), scale * np.array([[1.0], [0.0]])
    if fits:
        assert arrays.mean_products(left, right)[0][0, 0] == pytest.approx(scale**2 / 2, rel=1e-9)
        return
    with pytest.raises(ValueError, match="beyond the range"):
        arrays.mean_products(left, right)


def test_data_of_which_every_product_is_0_has_the_mean_0():
    mean, rounding = arrays.mean_products(np.array([[1.0], [0.0]]), np.array([[0.0], [3.0]]))
    assert mean == 0 and rounding == 0
    assert arrays.mean_products(np.array([[1.0, 1e-200]]), np.ones((1, 1)))[0].tolist() == [[1.0], [1e-200]]


@pytest.mark.parametrize("value", [np.ones(2, complex), np.array(["1"]), np.array([None])])
def test_only_real_numbers_are_accepted_and_become_float64(value):
    with pytest.raises(ValueError, match="x must be real numbers"):
        arrays.real("x", value)
    for given in (np.float32(1.5), np.array([True]), [1, 2], np.arange(2, dtype=np.uint8)):
        assert arrays.real("x", given).dtype == np.float64
    with pytest.raises(ValueError, match="x must be finite"):
        arrays.finite("x", [1.0, np.inf])
    arrays.require_at_least(1, radius=1)
    assert arrays.column([{"a": "1.5"}, {"a": 2}], "a").tolist() == [1.5, 2.0]
