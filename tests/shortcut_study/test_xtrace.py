"""curvature.estimators: XTrace and XDiag against their definitions, Hutch++ and Hutchinson, and the coverage of ±."""

import hessian_cases
import keras
import numpy as np
import pytest
from refusals import refused

from shortcut_study import curvature
from shortcut_study.curvature import estimators
from shortcut_study.curvature.estimators import confidence, hutchinson, xdiag, xtrace

DIM = 120
PLACES = np.arange(1, DIM + 1)


def spectra():
    random = np.random.default_rng(0)
    return {
        "flat": 1 + 2 * random.random(DIM),
        "decaying": 100 / PLACES,
        "one outlier": np.append(random.random(DIM - 1), 300.0),
        "indefinite": random.standard_normal(DIM) * np.where(PLACES <= 10, 20, 1),
        "low rank": np.where(PLACES <= 10, 10 * random.random(DIM), 0),
    }


def matrix(eigenvalues):
    vectors = np.linalg.qr(np.random.default_rng(1).standard_normal((DIM, DIM)))[0]
    return (vectors * eigenvalues) @ vectors.T


def error_of(estimates, without):
    """Of k estimates and those without another vector, [k, k]: as the variance of the mean is defined."""
    k = len(estimates)
    changes = np.array(
        [[estimates[i] - without[i][j] if i != j else 0 * estimates[i] for j in range(k)] for i in range(k)]
    )
    shared = np.sum((changes + changes.swapaxes(0, 1)) ** 2, (0, 1)) / (4 * k * (k - 1))
    return confidence(k) * np.sqrt(np.var(estimates, 0, ddof=1) / k + shared)


def column_by_column(H, num_products, seed):
    """XTrace as it is defined: for each column the range of H times the others, and that column for the rest."""
    k = num_products // 2
    omega = np.random.default_rng(seed).standard_normal((k, len(H)))

    def estimate(i, *others):
        q = np.linalg.qr(H @ np.delete(omega, [i, *others], 0).T)[0]
        rest = omega[i] - q @ (q.T @ omega[i])
        return np.trace(q.T @ H @ q) + (len(H) - q.shape[1]) * rest @ H @ rest / (rest @ rest)

    estimates = [estimate(i) for i in range(k)]
    return np.mean(estimates), error_of(estimates, [[estimate(i, j) for j in range(k)] for i in range(k)])


def hutch_plus_plus(H, num_products, seed):
    """Meyer, Musco, Musco & Woodruff (2021), algorithm 1."""
    random, k = np.random.default_rng(seed), num_products // 3
    q = np.linalg.qr(H @ random.choice([-1.0, 1.0], (len(H), k)))[0]
    rest = random.choice([-1.0, 1.0], (len(H), k))
    rest -= q @ (q.T @ rest)
    return np.trace(q.T @ H @ q) + np.trace(rest.T @ H @ rest) / k


SPECTRA = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in ("decaying", "indefinite"))) for name in spectra()
]


@pytest.mark.parametrize("name", SPECTRA)
def test_xtrace_is_its_definition_and_more_accurate_than_hutch_plus_plus(name):
    eigenvalues = spectra()[name]
    H, exact, size = matrix(eigenvalues), eigenvalues.sum(), np.abs(eigenvalues).sum()
    if name != "low rank":  # where the range of the others is not one space
        found = xtrace(lambda v: H @ v, DIM, 17, 3)
        assert found[:2] == pytest.approx(column_by_column(H, 16, 3), rel=1e-9) and found.num_products == 16
    found = [xtrace(lambda v: H @ v, DIM, 30, seed) for seed in range(100)]
    errors = np.array([of.value - exact for of in found])
    others = np.array([hutch_plus_plus(H, 30, seed) - exact for seed in range(100)])
    rms, other = (np.sqrt(np.mean(of**2)) for of in (errors, others))
    assert rms <= max(other, 1e-9 * size)
    assert found[0].num_products == 30
    # A binomial share of 0.95 in 100 is below 0.88 once in 250 times.
    assert np.mean(np.abs(errors) <= [of.error + 1e-9 * size for of in found]) >= 0.88


@pytest.mark.slow
@pytest.mark.parametrize("find", [xtrace, xdiag])
def test_trace_interval_holds_the_trace_when_the_spread_of_estimates_does_not(find, monkeypatch):
    """A spectrum and a size that nothing was fitted to; the estimates share most of their range."""
    H, exact = matrix(0.85**PLACES), np.sum(0.85**PLACES)

    def held():
        found = [find(lambda v: H @ v, DIM, 40, seed)[:2] for seed in range(150)]
        values, errors = np.transpose(found)
        return np.mean(np.abs(values - exact) <= errors), np.mean(errors) / np.std(values)

    share, size = held()
    assert share >= 0.93 and size < 8
    monkeypatch.setattr(estimators, "_variance", lambda estimates, _: estimates.var(ddof=1) / len(estimates))
    assert held()[0] < 0.88  # negative control: estimates as if they were independent


def diagonal_column_by_column(H, num_products, seed):
    """XDiag as it is defined."""
    k, random = num_products // 2, np.random.default_rng(seed)
    omega = np.where(random.random((k, len(H))) < 0.5, -1, 1)

    def estimate(i, *others):
        q = np.linalg.qr(H @ np.delete(omega, [i, *others], 0).T)[0]
        return np.diag(q @ q.T @ H) + omega[i] * ((np.eye(len(H)) - q @ q.T) @ H @ omega[i])

    estimates = [estimate(i) for i in range(k)]
    return np.mean(estimates, 0), estimates, [[estimate(i, j) for j in range(k)] for i in range(k)]


def neighbours_error(estimates, without):
    """The error of each entry: neighbours in a circle stand for all pairs of vectors."""
    k = len(estimates)
    after = [estimates[i] - without[i][(i + 1) % k] for i in range(k)]
    before = [estimates[(i + 1) % k] - without[(i + 1) % k][i] for i in range(k)]
    shared = np.mean((np.add(after, before) / 2) ** 2, 0)
    return confidence(k) * np.sqrt(np.var(estimates, 0, ddof=1) / k + shared)


@pytest.mark.parametrize("name", SPECTRA)
def test_xdiag_is_its_definition_and_more_accurate_than_hutchinson_unless_flat(name):
    H = matrix(spectra()[name])
    exact, size = np.diag(H), np.linalg.norm(np.diag(H))
    if name != "low rank":
        expected, estimates, without = diagonal_column_by_column(H, 16, 3)
        made = xdiag(lambda v: H @ v, DIM, 17, 3)
        np.testing.assert_allclose(made.diagonal, expected, atol=1e-9 * size)
        np.testing.assert_allclose(made.diagonal_error, neighbours_error(estimates, without), rtol=1e-7)
        sums = np.sum(estimates, 1), np.sum(without, 2)
        assert (made.trace, made.trace_error) == pytest.approx((sums[0].mean(), error_of(*sums)), rel=1e-7)
    found, others = ([of(lambda v: H @ v, DIM, 30, seed) for seed in range(20)] for of in (xdiag, hutchinson))
    error, other = (np.mean([np.linalg.norm(of.diagonal - exact) for of in all_of]) for all_of in (found, others))
    assert other < error if name == "flat" else error < other
    assert found[0].num_vectors == 30 and abs(found[0].trace - np.trace(H)) <= 3 * found[0].trace_error + 1e-9 * size
    held = [np.abs(of.diagonal - exact) <= of.diagonal_error + 1e-9 * size for of in found]
    assert np.mean(held) >= 0.93


def test_diagonal_is_exact_with_dim_products_and_fewer_than_four_are_an_error():
    H = matrix(spectra()["decaying"])[:7, :7]
    found = xdiag(lambda v: H @ v, 7, 7)
    np.testing.assert_array_equal(found.diagonal, np.diag(H))
    assert (found.trace_error, found.diagonal_error.max(), found.num_vectors) == (0, 0, 7)
    assert found.trace == pytest.approx(np.trace(H)) and xtrace(lambda v: H @ v, 7, 7) == (found.trace, 0, 7)
    assert "num_vectors must be a whole number of at least 4, got 3" in refused(xdiag, lambda v: H @ v, 7, 3)


def test_trace_of_a_hessian_is_the_dense_one_s_and_a_folder_keeps_its_products(tmp_path, monkeypatch):
    keras.utils.set_random_seed(0)
    h = curvature.Hessian(hessian_cases.plain(), hessian_cases.X, hessian_cases.CLASSES, dtype="float64")
    dense = np.trace(h @ np.eye(27))
    exact = h.trace(progress=False)
    assert exact.value == pytest.approx(dense, rel=1e-12) and (exact.error, exact.num_products) == (0, 27)
    found = h.trace(num_products=20, path=tmp_path / "kept", progress=False)
    assert abs(found.value - dense) <= found.error
    made, whole = [], curvature.Hessian.__matmul__
    monkeypatch.setattr(curvature.Hessian, "__matmul__", lambda self, v: made.append(1) or whole(self, v))
    assert h.trace(num_products=20, path=tmp_path / "kept", progress=False) == found
    assert len(made) == 1  # one is compared
    assert str(found).startswith(f"trace {found.value:.4g} ± ")
    both = h.diagonal(num_vectors=20, method="xdiag", progress=False)
    assert np.mean(np.abs(both.diagonal - np.diag(h @ np.eye(27))) <= both.diagonal_error) >= 0.8
    assert "method must be one of hutchinson, xdiag, got 'x'" in refused(h.diagonal, method="x")


@pytest.mark.parametrize("scale", [2.0**-600, -(2.0**-60), -1.0, 2.0**60])
def test_of_a_matrix_of_rank_two_any_scale_is_right(scale):
    """Its R has zeros on the diagonal, and numbers below 0."""
    values = scale * np.append([3.0, 1.0], np.zeros(18))
    found = xtrace(lambda v: values * v, 20, 10), xdiag(lambda v: values * v, 20, 10)
    assert [of[0] / scale for of in found] == pytest.approx([4, 4], rel=1e-12)
    np.testing.assert_allclose(found[1].diagonal / scale, values / scale, atol=1e-12)


def test_a_matrix_of_zeros_has_the_trace_0_and_bad_products_are_a_short_error():
    assert xtrace(lambda v: 0 * v, 50, 8)[:2] == (0, 0)
    for product, number, words in (
        (lambda v: v[1:], 8, "must return shape (50,), got (49,)"),
        (lambda v: v * np.nan, 8, "infinite or NaN entry"),
        (lambda v: v, 3, "num_products must be a whole number of at least 4, got 3"),
    ):
        assert words in refused(xtrace, product, 50, number)
