"""Spectra with individually resolved outer eigenvalues, against all eigenvalues, and the coverage of their errors."""

import numpy as np
import pytest
from refusals import refused

from identity_matters.runs.tables import read_rows, write_metrics
from shortcut_study import conditioning
from shortcut_study.curvature import estimators as hutch
from shortcut_study.curvature import lanczos as lz
from shortcut_study.curvature import quadrature as quad
from shortcut_study.curvature.quadrature import deflated_quadrature
from shortcut_study.curvature.report import report
from shortcut_study.figures import spectrum as figures

OUTER = np.array([-0.6, -0.5, 0.9, 1.5, 2.0, 3.0, 5.0, 10.0])
VALUES = np.append(0.05 * np.random.default_rng(0).standard_normal(1992), OUTER)


def found(values=VALUES, **options):
    calls = []
    return *deflated_quadrature(lambda v: calls.append(v) or values * v, len(values), **options), calls


@pytest.fixture(scope="module")
def default():
    return found()


def test_outer_eigenvalues_have_their_vectors_and_the_rest_is_orthogonal_to_them(default):
    quadrature, vectors, calls = default
    assert set(np.abs(quadrature.known[:, None] - OUTER).argmin(1)) >= {0, 3, 4, 5, 6, 7}
    for value, bound, vector in zip(quadrature.known, quadrature.known_bounds, vectors):
        assert np.abs(value - VALUES).min() <= bound <= 0.01
        assert np.linalg.norm(VALUES * vector - value * vector) <= bound + 1e-12
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(vectors)), atol=1e-12)
    steps = len(calls) - 4 * quadrature.nodes.shape[1] - 20  # of the first iteration
    assert np.abs(vectors @ np.array(calls[steps:]).T).max() < 1e-12
    assert quadrature.known_weight == pytest.approx(1 / 2000) and len(quadrature.probes) == 20


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_rest_stays_orthogonal_to_what_is_known_of_a_definite_matrix(dtype):
    """(I − P)H(I − P) has a 0 for each known vector, which must not come back as an eigenvalue far from all of H's."""
    values = np.linspace(0.1, 1, 70).astype(dtype)
    deflated = np.eye(70, dtype=dtype)[[0, -1]]
    done = lz.lanczos(lambda v: values * v, 70, 60, 1, dtype, orthogonal_to=deflated, scale=1.0)
    assert np.abs(done.basis @ deflated.T).max() < 60 * np.finfo(dtype).eps
    assert lz.ritz(done).values[0] > 0.1
    assert found(values, dtype=dtype, num_vectors=1)[0].nodes.min() > 0.1 and done.rounding < 100 * np.finfo(dtype).eps


def test_weights_of_the_whole_sum_to_one_and_the_mean_eigenvalue_takes_probes_too(default):
    quadrature, _, _ = default
    np.testing.assert_allclose(quadrature.whole().weights.sum(1), 1)
    assert (np.diff(quadrature.whole().nodes) >= 0).all()
    mean, error = quad.mean_eigenvalue(quadrature)
    assert mean == pytest.approx(quadrature.probes.mean())
    student = 2.0930 * quadrature.probes.std(ddof=1) / 20**0.5  # t, 19 degrees of freedom
    assert student < error < 1.05 * student  # many eigenvalues hold the rest
    rows = quadrature._replace(probes=quad.NONE)
    samples = (rows.weights * rows.nodes).sum(1) + rows.known.sum() / 2000
    bulk = np.delete(VALUES, [np.abs(VALUES - value).argmin() for value in quadrature.known])
    centre = (rows.weights * rows.nodes).sum() / rows.weights.sum()
    reach = (np.abs(rows.nodes - centre) + rows.error_bounds).max()
    rank = 2000**2 * samples.var(ddof=1) / 2 / reach**2  # no more than of the eigenvalues themselves
    assert 1 < rank < (bulk**2).sum() ** 3 / (bulk**3).sum() ** 2
    mean, error = quad.mean_eigenvalue(rows)
    assert (mean, error) == pytest.approx(
        (samples.mean(), 3.18245 * (1 + 8.7 / 4 / rank) * samples.std(ddof=1) / 2), rel=1e-4
    )


@pytest.mark.parametrize("num_vectors, rows, probes", [(3, 3, 0), (5, 5, 0), (6, 4, 2)])
def test_of_six_vectors_and_more_four_give_the_density_and_the_others_the_trace(num_vectors, rows, probes):
    quadrature = found(order=10, num_vectors=num_vectors)[0]
    assert (len(quadrature.nodes), len(quadrature.probes)) == (rows, probes)


def test_fewer_products_give_a_closer_trace_than_vectors_without_deflation(default):
    quadrature, _, calls = default
    plain = quad.lanczos_quadrature(lambda v: VALUES * v, 2000, 1, len(calls))
    assert quad.mean_eigenvalue(quadrature)[1] < 0.5 * quad.mean_eigenvalue(plain)[1]


def test_density_smooths_all_eigenvalues_and_each_outer_one_has_its_height(default):
    density = quad.density(default[0])
    width = 0.01 * 10.6
    exact = np.exp(-0.5 * ((density.grid[:, None] - VALUES) / width) ** 2).mean(1) / (width * np.sqrt(2 * np.pi))
    assert np.abs(density.values - exact).max() < 0.01 * exact.max()
    outside = (density.grid > 1.2) & (exact > 1e-9)  # where no eigenvalue is that is not known
    np.testing.assert_allclose(density.values[outside], exact[outside], rtol=0.02)
    plain = quad.density(quad.lanczos_quadrature(lambda v: VALUES * v, 2000, len(default[2]) // 4, 4), width)
    heights = np.interp(10.0, plain.grid, plain.values) / np.interp(10.0, density.grid, density.values)
    assert abs(heights - 1) > 0.1  # negative control: a random vector's weight is that of no eigenvalue


@pytest.mark.parametrize("size", [0.02, 0.05, 0.3, 1.0, 4.0])
def test_the_share_within_a_distance_of_0_lies_between_its_bounds(default, size):
    low, high = conditioning.share_within(default[0], size, 2000)
    assert low <= np.mean(np.abs(VALUES) <= size) <= high and (size < 0.3 or high - low < 0.05)
    if size >= 1:  # all beyond are known
        assert conditioning._shares(default[0], -size, size)[1] == pytest.approx(np.mean(np.abs(VALUES) <= size))


def test_a_known_eigenvalue_counts_in_a_share_as_far_as_its_bound_lets_it():
    nodes = np.array([[0.1, 0.2]]), np.array([[0.25, 0.25]]), np.zeros((1, 2))
    seen = quad.Quadrature(*nodes, 1e-9, np.array([1.0, 2.0]), np.array([0.1, 0.1]))
    assert conditioning._shares(seen, 0.5, 1.5).tolist() == pytest.approx(
        [0.25, 0.5]
    )  # 2 lies outside, and the node's share may
    assert conditioning._shares(seen, 0.5, 1.05).tolist() == pytest.approx([0.0, 0.5])
    assert conditioning._shares(seen, 0.5, 1.95).tolist() == pytest.approx([0.25, 0.75])


def test_a_matrix_of_no_more_rows_than_steps_is_known_whole():
    values = np.append(np.linspace(-1, 9, 20), 9.0)  # one of them twice
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((21, 21)))[0]
    quadrature, vectors = deflated_quadrature(((basis * values) @ basis.T).__matmul__, 21)
    np.testing.assert_allclose(quadrature.known, np.sort(values), atol=1e-12)
    assert quadrature.nodes.shape == (1, 0) and vectors.shape == (21, 21)
    np.testing.assert_allclose(vectors @ (basis * values) @ basis.T, quadrature.known[:, None] * vectors, atol=1e-12)
    assert quad.mean_eigenvalue(quadrature) == (pytest.approx(values.mean()), 0.0)
    text = report(quadrature, 2, 21)
    assert "trace: 89 ± " in text and "of all 21 eigenvalues" in text and "index: 9.52 %" in text


def test_a_double_eigenvalue_shows_again_in_the_rest():
    quadrature, _, _ = found(np.append(VALUES, 10.0))
    values, bounds = quad.extreme_eigenvalues(quadrature, 3)
    assert np.abs(values - [10, 10, 5]).max() <= bounds.max() < 0.5


def test_a_negated_matrix_has_the_negated_eigenvalues():
    one, other = (found(of, num_vectors=3)[0] for of in (VALUES - 0.7, 0.7 - VALUES))
    np.testing.assert_allclose(other.known, -one.known[::-1])
    np.testing.assert_allclose(other.nodes, -one.nodes[:, ::-1], atol=1e-9)


@pytest.mark.parametrize("values, steps", [((0.0, 0.62), 10), ((0.0, 0.60), 5), ((0.0, 0.1), 5), ((-3.0, 9.0), 15)])
def test_the_steps_of_the_rest_are_planned_by_its_range_with_its_bounds(values, steps):
    """A step for each 0.13, a hundredth of the whole range, in fives, and no more than the order."""
    outer = lz.Ritz(np.array([-3.0, *values, 10]), np.full(4, 0.25), np.array([9, 0.02, 0.02, 9]), np.eye(4), 1e-12)
    assert quad._expected_steps(outer, np.array([True, False, False, True]), 15) == steps
    assert quad._expected_steps(outer, np.ones(4, bool), 15) == 0


@pytest.mark.parametrize("num_vectors, most, long", [(24, 60 * 5 + 20, 4), (1, 60 * 3, 1)])
def test_the_plan_is_the_most_at_first_and_the_number_of_products_in_the_end(num_vectors, most, long):
    plans = []
    *_, calls = found(num_vectors=num_vectors, on_plan=lambda total, is_final: plans.append((total, is_final)))
    totals, finals = zip(*plans)
    assert totals[0] == most and list(totals) == sorted(totals, reverse=True) and totals[-1] == len(calls)
    assert finals == (False, False) + (True,) * long
    # By the range of the rest, in fives, before its first product.
    assert totals[1] < 200 and (totals[1] - totals[-1]) % (5 * long) == 0


def test_the_trace_is_exact_if_all_inner_eigenvalues_are_equal():
    values = np.append(np.full(497, 2.0), [-70.0, 50.0, 100.0])
    quadrature, _, _ = found(values, order=20)
    assert len(quadrature.probes) == 20
    assert quad.mean_eigenvalue(quadrature) == pytest.approx((values.mean(), 0), rel=1e-12, abs=1e-12)
    assert found(np.zeros(500), order=20)[0].nodes.shape[1] == 5  # where it is first looked at


def test_the_rounding_of_a_quadrature_is_the_largest_of_its_iterations(default):
    plain = quad.lanczos_quadrature(lambda v: VALUES * v, 2000, 5, 3)
    by_vector = [lz.lanczos(lambda v: VALUES * v, 2000, 5, [0, vector]).rounding for vector in range(3)]
    assert plain.rounding == max(by_vector) > min(by_vector)
    outer = lz.lanczos(lambda v: VALUES * v, 2000, 60, [0, 0], stop=lz.converged(1, 1e-3))
    assert default[0].rounding == outer.rounding


def test_a_matrix_of_little_more_rows_than_the_order_has_all_its_eigenvalues_found():
    """64 rows at order 60: the known vectors' errors would move the small ones by 2 %."""
    rng, plans = np.random.default_rng(24), []
    values = np.sort(np.r_[rng.uniform(0.1, 1, 54) * rng.choice([-1, 1], 54), rng.uniform(1e-6, 1e-5, 10)])
    quadrature, _, calls = found(values, seed=24, on_plan=lambda total, is_final: plans.append((total, is_final)))
    np.testing.assert_allclose(quadrature.known, values, rtol=1e-6)
    assert quadrature.nodes.size == 0 and plans[-1] == (len(calls), True)


@pytest.mark.parametrize("dim", range(9, 15))
def test_all_eigenvalues_are_found_if_the_order_and_the_outer_ones_cover_them(dim):
    """With five steps of seven allowed, the first iteration resolves the outer four or five; the rest is narrow."""
    values = np.append(1e-3 * np.linspace(-1, 1, dim - 4), [1.0, 2, 3, 4])
    first = lz.ritz(lz.lanczos(lambda v: values * v, dim, 7, [0, 0], stop=lz.converged(1, 0.01)))
    num_known = np.sum(first.error_bounds <= 0.01 * 4)
    quadrature, _, calls = found(values, order=7, num_vectors=1, tolerance=0.01)
    if dim <= 7 + num_known:  # 12 is as many
        assert len(quadrature.known) == dim and len(calls) == len(first.values) + dim
    else:
        assert len(quadrature.known) == num_known and len(calls) < dim + 1
    assert num_known == (4 if dim in (13, 14) else 5)


@pytest.mark.parametrize("half, num_steps", [(0.3, 5), (0.355, 5), (0.36, 10), (0.42, 10)])
def test_rest_takes_a_step_per_density_width_and_is_checked_every_five_steps(half, num_steps):
    values = np.append(half * np.linspace(-1, 1, 1992), [-3.0, 10.0])
    quadrature, _, _ = found(values, num_vectors=1)
    assert len(quadrature.known) == 2 and quadrature.nodes.shape[1] == num_steps
    assert num_steps * 0.01 * 13 >= np.ptp(quadrature.nodes) >= (num_steps - 5) * 0.01 * 13


def test_rows_of_a_table_say_all_of_a_quadrature(default):
    for quadrature in (
        default[0],
        found(VALUES[-20:])[0],
        found(num_vectors=3)[0],
        found(order=1)[0],
        quad.lanczos_quadrature(lambda v: VALUES * v, 2000, 5, 3),
    ):
        again = figures.quadrature_from_rows(
            [{k: str(v) for k, v in row.items()} for row in figures.quadrature_rows(quadrature)]
        )
        for one, other in zip(quadrature, again):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-18)


def test_a_table_keeps_the_trace_of_millions_of_weights(tmp_path):
    share = 1 / 13_538_736  # of one eigenvalue: 7e-8, and a table has seven digits
    weights = np.array([[0.0669861812, 0.9330138188 - 3 * share]])
    known = np.array([18.24, 25.57, 38.71])
    quadrature = quad.Quadrature(np.array([[-0.0157, 0.0013]]), weights, np.zeros((1, 2)), 0.0, known, np.zeros(3))
    write_metrics(str(tmp_path / "results.csv"), figures.quadrature_rows(quadrature))
    again = figures.quadrature_from_rows(read_rows(str(tmp_path / "results.csv")))
    np.testing.assert_allclose(again.known_weight, share, rtol=1e-6)
    np.testing.assert_allclose(quad.mean_eigenvalue(again)[0], quad.mean_eigenvalue(quadrature)[0], rtol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_vectors": 0}, "num_vectors must be a whole number of at least 1, got 0"),
        ({"order": 0}, "order must be a whole number of at least 1, got 0"),
        ({"tolerance": -1.0}, "tolerance must be at least 0, got -1.0"),
        ({"tolerance": float("nan")}, "tolerance must be at least 0, got nan"),
    ],
)
def test_numbers_that_make_no_sense_are_named(options, message):
    assert message in refused(found, **options)


def test_a_deflated_iteration_is_that_of_the_projected_matrix():
    random = np.random.default_rng(2)
    h = random.standard_normal((12, 12))
    h, directions = h + h.T, np.linalg.qr(random.standard_normal((12, 3)))[0].T
    rest = np.eye(12) - directions.T @ directions
    eigenvalues = np.linalg.eigvalsh(rest @ h @ rest)
    eigenvalues = np.sort(np.delete(eigenvalues, np.abs(eigenvalues).argsort()[:3]))  # the three 0 of the directions
    np.testing.assert_allclose(
        lz.ritz(lz.lanczos(lambda v: h @ v, 12, 9, orthogonal_to=directions)).values, eigenvalues
    )
    assert "1–9, the dimension, got 10" in refused(lz.lanczos, lambda v: h @ v, 12, 10, orthogonal_to=directions)


def test_the_confidence_is_student_s_quantile():
    """From the tables of Student (1908) and Fisher: 12.706, 4.303, 2.776, 2.045 at 1, 2, 4, 29 degrees of freedom."""
    assert [hutch.confidence(n) for n in (2, 3, 5, 30)] == pytest.approx([12.706, 4.303, 2.776, 2.045], abs=1e-3)
    assert np.isnan(hutch.confidence(1))


@pytest.mark.parametrize("rank", [1, 3, 10])
@pytest.mark.parametrize("count", [4, 10, 40])
def test_confidence_interval_holds_skewed_samples_means_unlike_student_s(rank, count):
    samples = np.random.default_rng(count).chisquare(rank, (20_000, count))
    errors, spread = np.abs(samples.mean(1) - rank), samples.std(1, ddof=1) / count**0.5
    held = [np.mean(errors <= hutch.confidence(count, of) * spread) for of in (rank, np.inf)]
    assert 0.945 <= held[0] <= 0.975 and held[1] < held[0]
    assert rank > 1 or held[1] < 0.92


def test_trace_interval_holds_if_few_steps_leave_outer_eigenvalues_unknown():
    values = np.append(np.random.default_rng(3).random(300), np.linspace(20, 200, 10))
    rows = [found(values, order=10, num_vectors=24, seed=seed)[0] for seed in range(400)]
    means, errors = np.transpose([quad.mean_eigenvalue(of, 310) for of in rows])
    t = hutch.confidence(20) * np.array([hutch.standard_error(of.probes) for of in rows])
    held, by_t = (np.mean(np.abs(means - values.mean()) <= of) for of in (errors, t))
    assert by_t < 0.93 <= held
    assert quad.mean_eigenvalue(rows[0])[1] == pytest.approx(errors[0])  # the known ones tell the dimension
    nothing_known = rows[0]._replace(known=quad.NONE, known_bounds=quad.NONE)
    assert quad.mean_eigenvalue(nothing_known)[1] == pytest.approx((1 + 8.7 / 20) * t[0])  # the worst


def test_rounding_of_outer_eigenvalues_is_no_asymmetry_of_a_far_smaller_rest():
    random = np.random.default_rng(3)
    normal = random.standard_normal((300, 300))
    basis = np.linalg.qr(normal)[0]
    values = np.append(1e-4 * random.standard_normal(299), 10.0)
    rounded = ((basis * values) @ basis.T).astype(np.float32) + 1e-7 * normal.astype(np.float32)  # of 10
    quadrature, _ = deflated_quadrature(lambda v: rounded @ v, 300, dtype=np.float32)
    assert quadrature.known[-1] == pytest.approx(10, rel=1e-5) and quadrature.rounding > 1e-6
    with pytest.raises(ValueError, match="mvp_fn is not symmetric"):
        lz.lanczos(lambda v: rounded @ v, 300, 30, 1, np.float32, orthogonal_to=basis.T[-1:].astype(np.float32))
