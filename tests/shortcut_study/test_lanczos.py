"""Lanczos and its quadrature: matrices of known spectrum, error bounds, ranges, errors."""

import re

import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from shortcut_study import conditioning
from shortcut_study.curvature import estimators as hutch
from shortcut_study.curvature import lanczos as lz
from shortcut_study.curvature import quadrature as quad
from shortcut_study.hessian import spectrum

SPECTRA = {
    "simple": np.linspace(1, 2, 40),
    "indefinite": np.linspace(-3, 5, 40),
    "repeated": np.repeat([-2.0, 0.5, 1.0, 7.0], 10),
    "rank deficient": np.append(np.zeros(30), np.arange(1.0, 11.0)),
    "all equal": np.full(40, 3.0),
    "zero": np.zeros(40),
    "graded": 10.0 ** -np.arange(40.0),
}


def matrix(eigenvalues, seed=0):
    """Symmetric, with these eigenvalues and random eigenvectors."""
    normal = np.random.default_rng(seed).standard_normal((len(eigenvalues),) * 2)
    q, _ = np.linalg.qr(normal)
    product = q * eigenvalues @ q.T
    return (product + product.T) / 2


def product_with(h):
    return lambda v: h @ v


def semicircle(dim, shift=0.7, seed=0):
    normal = np.random.default_rng(seed).standard_normal((dim, dim))
    return (normal + normal.T) / np.sqrt(2 * dim) + shift * np.eye(dim)


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_full_order_ritz_values_are_all_eigenvalues_with_their_multiplicities(name, dtype):
    expected = np.sort(SPECTRA[name])
    found = lz.ritz(lz.lanczos(product_with(matrix(expected)), 40, 40, seed=1, dtype=dtype))
    tolerance = 20 * np.finfo(dtype).eps * np.abs(expected).max()
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=tolerance)
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rows", [None, 3])  # of a basis that are read at a time: all, or few as of a large file
@pytest.mark.parametrize("name", SPECTRA)
def test_the_basis_is_orthonormal_and_the_three_terms_hold(name, rows, monkeypatch):
    if rows:
        monkeypatch.setattr(lz, "BYTES_AT_A_TIME", rows * 40 * 8)
    h = matrix(SPECTRA[name])
    for order in (1, 2, 15, 40):
        d = lz.lanczos(product_with(h), 40, order, seed=2)
        np.testing.assert_allclose(d.basis @ d.basis.T, np.eye(order), atol=1e-14)
        tridiagonal = np.diag(d.diagonal) + np.diag(d.off_diagonal, 1) + np.diag(d.off_diagonal, -1)
        rest = h @ d.basis.T - d.basis.T @ tridiagonal
        assert np.abs(rest[:, :-1]).max(initial=0) <= 1e-14 * max(1, np.abs(h).max() * 40)
        assert np.linalg.norm(rest[:, -1]) == pytest.approx(d.residual, abs=1e-13)


def test_the_weights_are_those_of_the_starting_vector_also_after_a_restart():
    values = np.repeat([-2.0, 0.5, 1.0, 7.0], 10)
    h = matrix(values)
    d = lz.lanczos(product_with(h), 40, 12, seed=3)
    assert np.flatnonzero(d.off_diagonal < 1e-9).tolist() == [3, 7]  # four distinct eigenvalues
    found, start = lz.ritz(d), d.basis[0]
    for power in range(6):
        expected = start @ np.linalg.matrix_power(h, power) @ start
        assert (found.weights * found.values**power).sum() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_error_bounds_are_bounds_and_not_vacuous(dtype):
    values = np.append(np.linspace(-1, 3, 195), [10, 20, 30, 40, 50])
    h = matrix(values)
    d = lz.lanczos(product_with(h), 200, 30, dtype=dtype)
    found = lz.ritz(d)
    errors = np.abs(found.values[:, None] - values).min(1)
    assert (errors <= found.error_bounds).all()
    vectors = (found.coefficients.T @ d.basis).T.astype(np.float64)
    residuals = np.linalg.norm(h @ vectors - vectors * found.values, axis=0)
    assert (residuals <= found.error_bounds).all()
    np.testing.assert_allclose(residuals, found.error_bounds, rtol=0.01, atol=100 * d.rounding)
    assert found.error_bounds[-1] < 1e-3 < found.error_bounds.max()
    halved = found.error_bounds / 2  # negative control: half of it is no bound of the residual
    assert (residuals[:-5] > halved[:-5]).all()


@pytest.mark.parametrize("seed", range(2))
def test_the_error_bounds_hold_for_products_that_are_less_exact_than_their_type(seed):
    values = np.append(np.linspace(-1, 3, 395), [10, 20, 30, 40, 50])
    h, noise = matrix(values), 1e-3 * np.random.default_rng(seed).standard_normal((400, 400))
    d = lz.lanczos(lambda v: ((h + noise) @ v).astype(np.float32), 400, 40, seed, np.float32)
    found = lz.ritz(d)
    errors = np.abs(found.values[:, None] - values).min(1)
    assert (errors <= found.error_bounds).all()
    of_iteration = 40 * np.finfo(np.float32).eps * np.abs(found.values).max()
    assert errors[-5:].max() > of_iteration  # negative control: the rounding of the iteration alone
    assert found.error_bounds[-1] < 100 * errors[-5:].max()


def test_the_norm_of_a_long_float32_vector_and_its_orthogonality_do_not_suffer():
    scales = np.random.default_rng(0).uniform(0.5, 2, 300_000).astype(np.float32)
    d = lz.lanczos(lambda v: scales * v, len(scales), 6, dtype=np.float32)
    gram = d.basis.astype(np.float64) @ d.basis.T.astype(np.float64)
    assert d.basis.dtype == np.float32
    np.testing.assert_allclose(gram, np.eye(6), atol=2e-6)
    assert d.asymmetry < 1e-5


def test_the_memory_that_is_given_is_used_and_the_mvp_sees_no_copy():
    memory, h = np.empty((10, 40)), matrix(SPECTRA["simple"])
    d = lz.lanczos(lambda v: h @ v if np.shares_memory(v, memory) else 1 / 0, 40, 8, out=memory)
    assert np.shares_memory(d.basis, memory) and d.basis.shape == (8, 40)
    fresh = lz.lanczos(product_with(h), 40, 8)
    np.testing.assert_array_equal(d.diagonal, fresh.diagonal)


def test_the_summary_of_a_matrix_of_zeros_is_that_of_its_eigenvalues():
    exact = spectrum(np.zeros((50, 50)))
    found = conditioning.summary(quad.lanczos_quadrature(lambda v: 0 * v, 50, 5, 2))
    assert exact.index_range == (0, 1)  # all of them may be negative, or none
    assert found._asdict() == exact._asdict() | {"p10_range": (0, 0)}


def test_ranges_hold_without_exception_for_the_measure_of_the_starting_vectors():
    values = np.linspace(-1, 2, 60)
    h = matrix(values)
    eigenvalues, eigenvectors = np.linalg.eigh(h)
    for seed in range(20):
        for order in (2, 5, 9, 30):
            d = lz.lanczos(product_with(h), 60, order, seed)
            masses = (eigenvectors.T @ d.basis[0]) ** 2
            found = lz.ritz(d)
            of_one = (part[None] for part in (found.values, found.weights, found.error_bounds))
            s = conditioning.summary(quad.Quadrature(*of_one, d.rounding))
            by_size = np.argsort(np.abs(eigenvalues))
            tenth = np.abs(eigenvalues)[by_size][np.argmax(np.cumsum(masses[by_size]) >= 0.1)]
            assert s.index_range[0] - 1e-12 <= masses[eigenvalues < 0].sum() <= s.index_range[1] + 1e-12
            assert s.p10_range[0] - 1e-12 <= tenth <= s.p10_range[1] + 1e-12


@pytest.mark.parametrize("nodes", [[0.0], [-1.0, 1.0]], ids=["1 of ±1", "2 of 9 % at 0 and the rest at ±1.048"])
def test_a_percentile_that_may_lie_beyond_the_largest_node_has_no_upper_end(nodes):
    nodes = np.array([nodes])
    seen = quad.Quadrature(nodes, np.full(nodes.shape, 1 / nodes.size), np.full(nodes.shape, 0.3), 1e-16)
    assert conditioning.summary(seen).p10_range == (0, np.inf)
    assert conditioning.summary(seen._replace(error_bounds=0 * nodes)).p10_range[1] == nodes.max()


@pytest.mark.parametrize(("dtype", "gap"), [(np.float32, 1e-4), (np.float64, 1e-13)])
def test_the_error_bounds_hold_where_an_early_stop_meets_eigenvalues_that_lie_close(dtype, gap):
    values = 1 + gap * (np.arange(2000) % 2)
    d = lz.lanczos(lambda v: values.astype(v.dtype) * v, 2000, 1000, dtype=dtype, stop=lz.converged(1, 1e-3))
    found = lz.ritz(d)
    errors = np.abs(found.values[:, None] - np.unique(values)).min(1)
    assert len(found.values) < 1000 and (errors <= found.error_bounds).all()


def test_a_singular_matrix_has_condition_number_infinity_and_no_negative_zeros():
    h = matrix(SPECTRA["rank deficient"])
    found = conditioning.summary(quad.lanczos_quadrature(product_with(h), 40, 40, num_vectors=2))
    assert found.condition_number == np.inf
    assert found.index == 0


def test_extreme_eigenvalues_are_the_outermost_over_vectors_not_the_best_bounded():
    nodes = np.array([[-3.0, 0.0, 5.0], [-4.0, 1.0, 4.0]])
    of_two = quad.Quadrature(nodes, np.full((2, 3), 1 / 3), np.array([[0.3, 0.2, 0.1], [0.03, 0.02, 0.01]]), 1e-9)
    for largest, expected in ((True, ([5, 1, -3], [0.1, 0.02, 0.3])), (False, ([-4, 0, 4], [0.03, 0.2, 0.01]))):
        np.testing.assert_array_equal(quad.extreme_eigenvalues(of_two, 3, largest), expected)


def test_a_product_that_is_not_symmetric_is_rejected_however_little():
    h = semicircle(100)
    skew = np.triu(np.ones((100, 100)), 1)
    for size in (1.0, 0.01):
        assert "not symmetric" in refused(lz.lanczos, product_with(h + size * (skew - skew.T)), 100, 10)
    assert lz.lanczos(product_with(h), 100, 10).asymmetry < 1e-14
    slight = lz.lanczos(product_with(h + 1e-6 * (skew - skew.T)), 100, 10).asymmetry  # below the tolerance, but told
    assert 1e-8 < slight < 1e-3
    below, above = (np.array([[0.0, 1 + size], [1.0, 0.0]]) for size in (0.0049, 0.0051))  # a thousandth of 5
    assert lz.lanczos(product_with(below), 2, 2, scale=5.0).asymmetry == pytest.approx(0.0049 / 5)
    assert "0.0051, H itself about 5" in refused(lz.lanczos, product_with(above), 2, 2, scale=5.0)
    for sign in (1, -1):  # as little against a multiple of I, of either sign
        multiple = sign * 1e4 * np.eye(100) + 1e-2 * (h + skew - skew.T)
        assert 1e-8 < lz.lanczos(product_with(multiple), 100, 10).asymmetry < 0.1


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_matrix_whose_squares_overflow_float64_has_correct_eigenvalues(scale):
    h = semicircle(20)
    values = lz.ritz(lz.lanczos(product_with(scale * h), 20, 20)).values
    np.testing.assert_allclose(values / scale, np.linalg.eigvalsh(h), rtol=0, atol=1e-13)


HERMITIAN, SEVERAL = np.array([[2, 1j], [-1j, 2]]), quad.Quadrature(*np.ones((3, 1, 2)), 0.0)
LANCZOS, HUTCHINSON = {"mvp_fn": lambda v: v, "dim": 5, "order": 3}, {"mvp_fn": lambda v: v, "dim": 3, "num_vectors": 4}
NOT_REAL = {"mvp_fn": lambda v: HERMITIAN @ v, "dim": 2}
MISTAKES = [
    (lz.lanczos, LANCZOS | {"order": 0}, "^order must be a whole number of at least 1, got 0"),
    (lz.lanczos, LANCZOS | {"order": 6}, "got 6"),
    (lz.lanczos, LANCZOS | {"mvp_fn": lambda v: v[:-1]}, r"must return shape \(5,\), got \(4,\)"),
    (
        lz.lanczos,
        LANCZOS | {"mvp_fn": lambda v: tf.cast(v, tf.bfloat16).numpy()},
        "got bfloat16; for bfloat16 take",
    ),
    (lz.lanczos, NOT_REAL | {"order": 2}, "^mvp_fn must return real numbers, got complex128"),
    (quad.lanczos_quadrature, LANCZOS | {"num_vectors": 0}, "^num_vectors must be a whole number of at least 1"),
    *((quad.density, {"quadrature": SEVERAL, "width": width}, "^width must be positive") for width in (0, np.nan)),
    (hutch.hutchinson, HUTCHINSON | {"num_vectors": 0}, "^num_vectors must be a whole number of at least 1, got 0"),
    (hutch.hutchinson, HUTCHINSON | {"tolerance": -1.0}, "tolerance must be at least 0"),
    (hutch.hutchinson, HUTCHINSON | {"mvp_fn": lambda v: v[:2]}, r"^mvp_fn must return shape \(3,\), got \(2,\)$"),
    (hutch.hutchinson, NOT_REAL | {"num_vectors": 5}, "^mvp_fn must return real numbers, got complex128"),
]


@pytest.mark.parametrize("function, arguments, message", MISTAKES)
def test_a_mistake_is_named(function, arguments, message):
    assert re.search(message, refused(function, **arguments))


def test_lanczos_stops_once_the_ends_are_known_to_the_tolerance():
    values = np.append(np.linspace(-2, 7, 300), [7.2, 8.0, -3.0])
    product, orders = (lambda v: values * v), []
    for tolerance in (1e-2, 1e-5, 1e-9):
        found = lz.ritz(lz.lanczos(product, 303, 200, stop=lz.converged(1, tolerance)))
        orders.append(len(found.values))
        assert found.error_bounds[[0, -1]].max() <= tolerance * 8
        assert np.abs(found.values[[-1, 0]] - [8, -3]).max() <= tolerance * 8
    assert orders == sorted(set(orders)) and orders[0] % lz.STEPS_BETWEEN_CHECKS == 0 and orders[-1] < 150
    whole = lz.ritz(lz.lanczos(product, 303, orders[0]))
    np.testing.assert_array_equal(  # stopping changes nothing else
        whole.values, lz.ritz(lz.lanczos(product, 303, 200, stop=lz.converged(1, 1e-2))).values
    )
