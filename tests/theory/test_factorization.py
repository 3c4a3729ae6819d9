"""Near-identity factorisations: products multiplied out, bounds against brute force, the limits of float64."""

import math

import numpy as np
import pytest
from factoring import ANGLES, KINDS, STRETCHES, gamma_of, multiply, norms, planes, relative, target
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from repeatable import REPEATABLE
from scipy import linalg

from theory import factorization as fz

REPEATABLE = settings(REPEATABLE, max_examples=40)
EPSILON = np.finfo(np.float64).eps


@given(
    kind=st.sampled_from(KINDS),
    d=st.one_of(st.integers(1, 8), st.integers(9, 24)),
    num_layers=st.integers(1, 60),
    log10_kappa=st.floats(0, 8),
    angles=st.sampled_from(list(ANGLES)),
    stretches=st.sampled_from(list(STRETCHES)),
    scale=st.sampled_from([1.0, 1.0, 1e100, 1e-100]),
    seed=st.integers(0, 10**6),
)
@REPEATABLE
def test_polar_layers_multiply_to_r_are_all_of_one_norm_and_keep_within_the_bound(
    kind, d, num_layers, log10_kappa, angles, stretches, scale, seed
):
    d = min(d, 24) if kind.startswith("Jordan") else d  # their condition number grows with d
    R = scale * target(kind, d, log10_kappa * math.log(10), angles, stretches, np.random.default_rng(seed))
    gamma = gamma_of(R)
    num_layers = max(num_layers, math.ceil(gamma / 4))  # else I + A cancels: a layer e^{−γ/ℓ} times I loses its digits
    A = fz.factorize(R, num_layers)
    assert A.shape == (num_layers, d, d) and A.dtype == np.float64
    # 10 d ε of a layer (I + A ≥ e⁻⁴ of its parts); the angles to 1e-13 + 10 d ε/3e-3 (test_rotations.py).
    rounding = 10 * d * EPSILON
    assert relative(multiply(A), R) < (num_layers * math.exp(4) + 1 / 3e-3) * rounding + 1e-13
    assert np.ptp(norms(A)) <= 10 * rounding * (1 + norms(A)[0])
    bound = 2 * math.sin(math.pi / (2 * num_layers)) + math.expm1(gamma / num_layers)
    # γ itself is known to d ε κ.
    assert norms(A).max() <= bound * (1 + rounding) + rounding * (1 + 10**log10_kappa / num_layers)
    assert fz.norm_bound(R, num_layers) == pytest.approx(bound, rel=1e-6)
    assert fz.log_condition(R) == pytest.approx(gamma, rel=1e-6, abs=rounding)


def test_norm_times_depth_settles_with_an_error_that_halves_as_depth_doubles():
    R = np.random.default_rng(4).standard_normal((5, 5))
    R[0] *= np.sign(np.linalg.det(R))
    Q, P = linalg.polar(R)
    polar = linalg.svdvals(linalg.logm(Q).real + linalg.logm(P).real)[0]
    principal = linalg.svdvals(linalg.logm(R))[0]
    for method, limit in (("polar", polar), ("principal", principal)):
        counts = 200 * 2 ** np.arange(4)
        errors = np.array([count * norms(fz.factorize(R, int(count), method)[:1])[0] - limit for count in counts])
        assert np.all(np.abs(errors) < 0.1 * limit)
        np.testing.assert_allclose(errors[:-1] / errors[1:], 2, atol=0.1)
    turn = planes([3.0], 2)  # for rotations the error is quartered
    errors = [count * norms(fz.factorize(turn, count)).max() - 3 for count in (50, 100, 200)]
    np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 4, rtol=1e-3)


# A pair of eigenvalues −1 that is defective comes out of eigvals as −1 ± 2e-8 i, just outside the test for
# the cut, and logm then returns no logarithm of R: the layers multiply to another matrix, 160 % off or of
# norm 1e233, or SciPy's own ValueError comes through. There is none where ‖e^L − R‖ is not small: say so.
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_without_a_principal_logarithm_principal_raises_and_best_is_polar(size, seed):
    S = np.random.default_rng(seed).standard_normal((size + 2, size + 2))
    J = linalg.block_diag(-np.eye(size) + np.eye(size, k=1), np.eye(2))
    R = S @ J @ np.linalg.inv(S)
    assert relative(multiply(fz.factorize(R, 8)), R) < 1e-12
    assert relative(multiply(fz.factorize(R, 8, "best")), R) < 1e-6
    try:
        A = fz.factorize(R, 8, "principal")
    except ValueError as error:
        assert "principal" in str(error)
        return
    assert relative(multiply(A), R) < 1e-6


# Below 1e-8 the angle of acos(1 − ε) alone exceeds it: then the "bound" is beaten. atan2 as above does not.
@given(
    d=st.integers(1, 6),
    num_layers=st.integers(1, 12),
    log10_norm=st.one_of(st.floats(-12, -6), st.floats(-3, -0.01)),
    seed=st.integers(0, 10**6),
)
@settings(REPEATABLE, max_examples=40)
def test_no_factorisation_goes_below_the_lower_bound(d, num_layers, log10_norm, seed):
    A = np.random.default_rng(seed).standard_normal((num_layers, d, d))
    A *= 10**log10_norm / norms(A)[:, None, None]
    R = multiply(A)
    kappa = np.linalg.cond(R)
    if np.linalg.det(R) < 0 or kappa > 1e10:
        return
    assert fz.norm_lower_bound(R, num_layers) <= 10**log10_norm * (1 + 1e-9) + 10 * d * EPSILON * kappa


def test_a_bound_too_large_for_a_float_is_infinite():
    R = np.array([[1.0, 1e5], [0.0, 1.0]])  # ‖log R‖ = 1e5: e^{1e5} − 1. math.expm1 raises OverflowError.
    assert fz.norm_bound(R, 1, "principal") == math.inf
    assert fz.norm_bound(R, 10**6, "principal") == pytest.approx(math.expm1(0.1))
    assert fz.norm_bound(np.diag([2.0, 0.5]), 4, "best") == pytest.approx(math.expm1(math.log(2) / 4))
    assert fz.norm_bound(np.eye(2), 4, "paper") == pytest.approx(math.pi)  # of fewer layers than the method needs


@pytest.mark.parametrize("frequency", [0.1, 1.0, 6.28])
def test_waves_are_interpolated_to_rounding_by_as_few_points_as_the_bound_allows(frequency):
    times = np.arange(100) / 100
    points, interpolation = fz._wave_interpolation(times, frequency)
    quarter = frequency * 0.99 / 4
    enough = next(m for m in range(1, 40) if 4 * quarter**m / math.factorial(m) <= EPSILON / 4)
    assert interpolation.shape == (100, enough) and len(points) == enough
    assert points.min() > 0 and points.max() < 0.99
    for wave in (np.cos, np.sin):
        np.testing.assert_allclose(interpolation @ wave(frequency * points), wave(frequency * times), atol=1e-14)
    assert fz._wave_interpolation(times[: enough + 1], 100 * frequency)[1] is None  # no fewer points than times
    assert fz._wave_interpolation(times, 0.0)[1].shape == (100, 1)


@pytest.mark.parametrize("number, num_layers", [(1e-150, 20), (1e-15, 2), (1e-10, 2)])
def test_the_smallest_matrices_that_are_factorised_keep_half_their_digits(number, num_layers):
    assert np.prod(1 + fz.factorize([[number]], num_layers)) == pytest.approx(number, rel=1e-7)
    for method in ("polar", "principal", "best"):
        assert refused(fz.factorize, [[number]], num_layers - 1, method).endswith(f"or take ℓ ≥ {num_layers}")


def test_principal_is_rejected_on_the_cut_and_not_beside_it_at_any_scale():
    for scale in (1e-5, 1.0, 1e5):
        R = scale * planes([math.pi - 1e-3], 2)
        assert relative(multiply(fz.factorize(R, 64, "principal")), R) < 1e-9
        assert "without eigenvalues on" in refused(fz.factorize, scale * np.diag([-2.0, -0.5, 1.0]), 8, "principal")


@pytest.mark.parametrize("scale", [1e306, 1e-306])
def test_a_scale_that_float64_does_not_hold_is_rejected(scale):
    assert "factor of e" in refused(fz.rescale, scale * np.eye(2))
    R = np.array([[3.0, 1.0], [0.0, 0.2]])
    scaled, factor = fz.rescale(scale**0.9 * R)
    np.testing.assert_allclose(scaled, factor * scale**0.9 * R)
    assert np.prod(linalg.svdvals(scaled)) == pytest.approx(1)


@pytest.mark.parametrize("num_layers", [1, 3])
def test_the_gradient_by_which_the_lower_bound_is_sought_is_that_of_its_value(num_layers):
    R, x = np.random.default_rng(5).standard_normal((2, 4, 4))
    x, step = x[0], 1e-6
    gradient = fz._turn_and_stretch(x, R, 0.3, num_layers)[1]
    for i, unit in enumerate(np.eye(4)):
        above, below = (fz._turn_and_stretch(x + sign * step * unit, R, 0.3, num_layers)[0] for sign in (1, -1))
        assert gradient[i] == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("share, is_singular", [(1.9, True), (2.1, False)])
def test_a_matrix_is_singular_within_the_rounding_of_its_size(share, is_singular):
    R = np.diag([1.0, share * np.finfo(np.float64).eps])  # two rows
    if is_singular:
        assert "must not be singular" in refused(fz.singular_parts, R)
    else:
        np.testing.assert_array_equal(fz.singular_parts(R)[1][1], np.diag(R))
