"""Rotations: normal forms against eigenvalues, and against rotations built plane by plane."""

import math

import numpy as np
import pytest
from factoring import planes, random_rotation
from hypothesis import given, settings
from hypothesis import strategies as st
from repeatable import REPEATABLE

from theory.linear import rotations

REPEATABLE = settings(REPEATABLE, max_examples=35)
EPSILON = np.finfo(np.float64).eps
# Between clusters of cos θ 3e-3 apart, rounding of some 10 d ε is divided by that gap; angles below 1e-13 become 0.
TOLERANCE = 1e-13


def tolerance(dimension: int) -> float:
    return TOLERANCE + 10 * dimension * EPSILON / 3e-3


NEAR_0 = st.floats(-17, -0.5).map(lambda exponent: 10.0**exponent)
ANGLES = st.one_of(
    st.floats(-math.pi, math.pi),
    NEAR_0,
    NEAR_0.map(lambda angle: -angle),
    NEAR_0.map(lambda angle: math.pi - angle),
    NEAR_0.map(lambda angle: 1 + angle),  # clusters of any width
    st.sampled_from([0.0, math.pi, math.pi / 2, 1.0, -1.0, math.acos(1 - 3e-3), math.acos(3e-3 - 1)]),
)


@given(angles=st.lists(ANGLES, max_size=25), extra=st.integers(0, 2), seed=st.integers(0, 10**6))
@REPEATABLE
def test_every_rotation_is_taken_apart_into_its_planes_and_angles(angles, extra, seed):
    d = max(2 * len(angles) + extra, 1)
    S = random_rotation(d, np.random.default_rng(seed))
    Q = S @ planes(angles, d) @ S.T
    basis, found = rotations.rotation_planes(Q)
    assert np.abs(basis.T @ basis - np.eye(d)).max() < 100 * d * EPSILON
    assert 2 * len(found) <= d and np.all(np.abs(found) <= math.pi)
    assert np.abs(basis @ planes(found, d) @ basis.T - Q).max() < tolerance(d)
    # cos θ determines the plane's eigenvalues; near 0 and π the angle itself is known to √tolerance only.
    left_out = np.zeros(d // 2 - len(found))
    given_angles = np.append(np.abs(angles), np.zeros(d // 2 - len(angles)))
    np.testing.assert_allclose(
        np.sort(np.cos(np.append(np.abs(found), left_out))), np.sort(np.cos(given_angles)), rtol=0, atol=tolerance(d)
    )


@pytest.mark.parametrize("d", [2, 4, 10])
def test_eigenvalues_minus_1_are_paired_into_half_turns_that_come_last(d):
    rng = np.random.default_rng(d)
    S = random_rotation(d + 3, rng)
    Q = S @ np.diag([-1.0] * d + [1.0] * 3) @ S.T
    basis, angles = rotations.rotation_planes(Q)
    assert angles.tolist() == [np.pi] * (d // 2)
    turned = basis @ planes([1.0, *angles], d + 3) @ basis.T  # another plane comes first
    assert rotations.rotation_planes(turned)[1][1:].tolist() == [np.pi] * (d // 2)
    halfway = basis @ planes(angles / 2, d + 3) @ basis.T
    np.testing.assert_allclose(halfway @ halfway, Q, atol=1e-13)


def normal_matrix(kind: str, rng) -> np.ndarray:
    d = 6
    S = random_rotation(d, rng)
    blocks = {
        "symmetric": np.diag(rng.standard_normal(d)),
        "repeated": np.diag([2.0, 2, 2, -1, -1, 0]),
        "orthogonal": planes(rng.uniform(-3, 3, 3), d),
        "repeated planes": 3 * planes([1.0, 1.0, -1.0], d),
        "skew": planes([np.pi / 2] * 3, d) * np.repeat(rng.uniform(1, 2, 3), 2),
        "scaled": 1e100 * planes([1.0, 2.0], d),
        "tiny": 1e-100 * planes([1.0, 2.0], d),
    }
    return S @ blocks[kind] @ S.T


# "scaled": ‖U Uᵀ − Uᵀ U‖_F overflows at entries of 1e100, and a normal U is refused.
@pytest.mark.parametrize("kind", ["symmetric", "repeated", "orthogonal", "repeated planes", "skew", "scaled", "tiny"])
@pytest.mark.parametrize("seed", range(2))
def test_claim_c1_a_normal_matrix_is_block_diagonal_in_an_orthogonal_basis(kind, seed):
    U = normal_matrix(kind, np.random.default_rng(seed))
    S, D = rotations.block_diagonalize(U)
    size = np.abs(U).max()
    np.testing.assert_allclose(S.T @ S, np.eye(6), atol=1e-14)
    np.testing.assert_allclose(S @ D @ S.T / size, U / size, atol=1e-13)
    inside = np.abs(np.diag(D, -1)) > 0
    assert not np.any(inside[1:] & inside[:-1])  # no block of size 3
    band = np.diag(np.diag(D)) + np.diag(np.diag(D, 1) * inside, 1) + np.diag(np.diag(D, -1), -1)
    np.testing.assert_array_equal(D, band)


@pytest.mark.parametrize("angle", [1e-160, 1e-12, 1e-8, 1e-4, 1.0, -math.pi])
def test_a_small_turn_minus_the_identity_keeps_its_digits(angle):
    difference = rotations.turn_minus_identity([angle], 3)
    series = sum((1j * angle) ** k / math.factorial(k) for k in range(1, 40))  # e^{iθ} − 1, term by term
    expected = np.zeros((3, 3))
    expected[:2, :2] = [[series.real, -series.imag], [series.imag, series.real]]
    np.testing.assert_allclose(difference, expected, rtol=4 * EPSILON, atol=1e-14 if abs(angle) > 1 else 0)
    if 1e-12 <= abs(angle) <= 1e-8:
        assert planes([angle], 3)[0, 0] - 1 == 0 != difference[0, 0]  # what a subtraction would leave


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("defect, refused", [(0.85e-10, True), (0.57e-10, False)])
def test_a_matrix_is_normal_to_a_share_of_its_square(size, defect, refused):
    U = np.diag([5.0, 4.0]) + np.array([[0.0, 1.0], [0.0, 0.0]]) * defect * 41
    share = np.linalg.norm(U @ U.T - U.T @ U) / np.linalg.norm(U) ** 2
    assert bool(share > 1e-10) is refused
    if refused:
        with pytest.raises(ValueError, match="U must be normal"):
            rotations.block_diagonalize(size * U)
    else:
        rotations.block_diagonalize(size * U)


@pytest.mark.parametrize("angle, sign", [(2.5, 1.0), (-0.7, -1.0), (0.0, -1.0)])
def test_an_orthogonal_matrix_is_a_power_of_a_rotation_times_a_reflection_at_most(angle, sign):
    Q = rotations.rotation(angle) @ np.diag([1.0, sign])
    W, reflection = rotations.rotation_roots(Q, 5)
    np.testing.assert_array_equal(reflection, np.diag([1.0, sign]))
    np.testing.assert_allclose(np.linalg.matrix_power(W, 5) @ reflection, Q, atol=1e-14)
    assert np.linalg.norm(W - np.eye(2), 2) == pytest.approx(2 * np.sin(abs(angle) / 10))
