"""The search for bad critical points of ReLU networks: derivatives, planted points, exact population, counts."""

import numpy as np
import pytest

from theory.derivatives import difference_gradient
from theory.relu import figures, networks, search, smooth_units
from theory.relu.networks import Population, Sample, forward, hessian, risk_and_gradient
from theory.relu.search import Setting, classify, find_critical_points

SETTINGS = [Setting(2, 1, 2, 30), Setting(3, 2, 2, 25), Setting(2, 3, 3, 20), Setting(2, 2, 1, 40)]


def make_problem(setting, n=3, seed=0):
    """Random students w [n, …], teachers and a sample each."""
    rng = np.random.default_rng(seed)
    w, teachers = (search.draw_weights(rng, n, setting, 0.5) for _ in range(2))
    x = rng.standard_normal((n, setting.samples, setting.d))
    return w, teachers, Sample(x, forward(teachers, x))


def central_differences(function, w, step=1e-6):
    """d function / dw [n, P, …], one weight at a time."""
    directions = np.eye(w[0].size).reshape(-1, *w.shape[1:])
    return np.stack([(function(w + step * e) - function(w - step * e)) / (2 * step) for e in directions], axis=1)


def complex_steps(function, w):
    """d function / dw [n, P, …], exact to rounding inside a linear region."""
    steps = 1e-30j * np.eye(w[0].size).reshape(-1, *w.shape[1:])
    return np.stack([function(w + step).imag / 1e-30 for step in steps], axis=1)


def plant(w, x, strength):
    """Targets that make w critical, f > 0: a residual orthogonal to every ∂ŷ/∂w. Weak: a minimum, strong: a saddle."""
    jacobian = complex_steps(lambda v: forward(v, x), w).reshape(w.size, -1)
    residual = np.random.default_rng(1).standard_normal(jacobian.shape[1])
    for _ in range(2):  # the second round removes what rounding left
        residual -= np.linalg.pinv(jacobian, 1e-10) @ (jacobian @ residual)
    return Sample(x, forward(w, x) + strength * residual.reshape(x.shape))


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_gradient_is_that_of_the_risk_without_a_half(setting):
    w, _, problem = make_problem(setting)

    def risk(v):
        return np.sum((problem.y - forward(v, problem.x)) ** 2, axis=(1, 2)) / setting.samples

    value, gradient = risk_and_gradient(w, problem.x, problem.y)
    np.testing.assert_allclose(value, risk(w), rtol=1e-13)
    np.testing.assert_allclose(gradient, difference_gradient(lambda v: risk(v).sum(), w), atol=1e-8)
    assert np.abs(gradient).max() > 0.01


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_hessian_is_the_derivative_of_the_gradient_by_complex_steps(setting):
    w, _, problem = make_problem(setting)

    def gradient(v):
        return risk_and_gradient(v, problem.x, problem.y)[1].reshape(len(v), -1)

    h = hessian(w, problem.x, problem.y)
    np.testing.assert_allclose(h, complex_steps(gradient, w), atol=1e-14)
    np.testing.assert_allclose(problem.hessian(w[1:], np.array([1, 2])), h[1:], atol=1e-14)
    np.testing.assert_allclose(h, h.swapaxes(1, 2), atol=1e-15)


def test_two_units_with_one_pattern_give_four_free_directions_not_two():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(1, 2, (1, 20, 2)), -rng.uniform(1, 2, (1, 20, 2))], axis=1)
    # Both are active on the first half.
    w = np.reshape([[[0.3, 0.1], [0.1, 0.3]], [[0.2, 0.0], [0.1, -0.3]]], (1, 1, 2, 2, 2))
    problem = Sample(x, forward(w, x))
    directions = networks.free_directions(w[0], x[0])
    h = problem.hessian(w, np.array([0]))[0]
    assert len(directions) == 4 and np.abs(h @ directions.T).max() < 1e-15
    assert np.count_nonzero(np.abs(np.linalg.eigvalsh(h)) < 1e-14) == 4
    assert classify(problem, networks.balance(w), 0.5)["category"] == "global_minimum"


@pytest.mark.parametrize("setting", [Setting(2, 1, 2, 40), Setting(2, 2, 2, 40), Setting(3, 2, 2, 40)])
def test_a_planted_minimum_and_a_planted_saddle_are_distinguished(setting):
    w, _, problem = make_problem(setting, n=1)
    w, x = networks.balance(w), problem.x
    result = classify(plant(w, x, 0.001), w, 0.5)
    assert result["category"] == "bad_local_minimum" and result["gradient_norm"] < 1e-11
    ends = [classify(plant(w, x, strength), w, 0.5)["category"] for strength in (1e-9, 5e-11)]
    assert ends == ["bad_local_minimum", "global_minimum"]  # f is about 1e-16 and 2e-19 of f(0)
    problem = plant(w, x, 1.0)
    result = classify(problem, w, 0.5)
    assert result["category"] == "saddle" and result["risk"] > 0.01
    values, vectors = np.linalg.eigh(problem.hessian(w, np.array([0]))[0])
    downhill = w + 1e-4 * vectors[:, 0].reshape(w.shape)
    change = problem.risk_and_gradient(downhill, [0])[0] - problem.risk_and_gradient(w, [0])[0]
    assert values[0] < 0 and change[0] == pytest.approx(values[0] / 2 * 1e-8, rel=0.05)


def test_a_dead_unit_makes_a_critical_point_degenerate_and_not_a_minimum():
    w, _, problem = make_problem(Setting(2, 1, 1, 40), n=1)
    w = networks.balance(w)
    x = problem.x[:, problem.x[0] @ w[0, 0, 0, 0] > 0]
    w = np.concatenate([w, np.stack([-w[:, :, 0], w[:, :, 1]], axis=2)], axis=3)  # the second unit is active on nothing
    result = classify(plant(w, x, 0.001), w, 1.0)
    assert result["category"] == "degenerate" and abs(result["curvature"]) < 1e-12


def test_zero_unit_keeps_a_critical_point_critical_and_can_be_switched_on_downhill():
    one_unit, teachers, problem = make_problem(Setting(2, 1, 2, 80), n=12)
    w = find_critical_points(problem, one_unit[:, :, :, :1], "risk")
    padded = np.concatenate([w, np.zeros_like(w)], axis=3)
    result = classify(problem, padded, 0.8)
    chosen = np.flatnonzero(result["category"] == "zero_unit")
    assert len(chosen) >= 3
    f, _ = problem.risk_and_gradient(padded, np.arange(12))
    rng = np.random.default_rng(0)
    for i in chosen:
        tried = np.repeat(padded[i : i + 1], 200, axis=0)
        tried[:, :, :, 1] = 1e-3 * rng.standard_normal(tried[:, :, :, 1].shape)
        assert problem.risk_and_gradient(tried, np.full(200, i))[0].min() < f[i] * (1 - 1e-9)


@pytest.fixture(scope="module")
def bad_minima():
    """Bad local minima of two blocks of one unit from random starts: weights, their problem, classify's answer."""
    starts, _, problem = make_problem(Setting(2, 2, 1, 100), n=40, seed=3)
    w = find_critical_points(problem, starts, "risk")
    bad = np.flatnonzero(classify(problem, w, 0.5)["category"] == "bad_local_minimum")
    w, problem = w[bad], Sample(problem.x[bad], problem.y[bad])
    return w, problem, classify(problem, w, 0.5)


def test_bad_local_minima_are_found_and_every_small_step_raises_the_risk(bad_minima):
    w, problem, result = bad_minima
    assert len(w) >= 5 and result["risk"].min() > 1e-9 and result["spectral_norm"].max() < 1
    rng = np.random.default_rng(0)
    for i in range(len(w)):
        free = np.linalg.qr(networks.free_directions(w[i], problem.x[i]).T)[0]
        step = rng.standard_normal((300, w[0].size))
        step -= step @ free @ free.T
        size = 0.1 * networks.kink_margin(w[i : i + 1], problem.x[i : i + 1])[0] * np.linalg.norm(w[i])
        step *= size / np.linalg.norm(step, axis=1, keepdims=True)
        tried = w[i] + np.concatenate([step, -step]).reshape(-1, *w.shape[1:])
        f = np.sum((problem.y[i] - forward(tried, problem.x[i : i + 1])) ** 2, axis=(1, 2))
        assert f.min() > np.sum((problem.y[i] - forward(w[i : i + 1], problem.x[i : i + 1])) ** 2)


@pytest.mark.parametrize("setting", [Setting(2, 1, 3), Setting(2, 2, 2), Setting(2, 3, 2)])
def test_the_population_risk_is_that_of_a_dense_circle(setting):
    w, teachers, _ = make_problem(setting, n=1)
    f, gradient = Population(teachers).risk_and_gradient(w, np.array([0]))
    angle = 2 * np.pi * (np.arange(100_000) + 0.5) / 100_000
    circle = np.sqrt(2) * np.stack([np.cos(angle), np.sin(angle)], 1)[None]
    on_circle = risk_and_gradient(w, circle, forward(teachers, circle))
    np.testing.assert_allclose(f, on_circle[0], rtol=1e-8)
    np.testing.assert_allclose(gradient, on_circle[1], atol=1e-6)


def test_the_population_hessian_is_that_of_differences_of_its_gradient():
    w, teachers, _ = make_problem(Setting(2, 2, 2), n=1)
    population = Population(teachers)
    wider = central_differences(lambda v: population.risk_and_gradient(v, np.array([0]))[1].reshape(1, -1), w, 1e-4)
    np.testing.assert_allclose(population.hessian(w, np.array([0])), wider, atol=1e-6)


@pytest.fixture(scope="module")
def small_search():
    """Rows and points of three settings, each by both methods."""
    settings = [Setting(2, 2, 1, 40, radius) for radius in (0.2, 0.5)] + [Setting(3, 1, 2, 40)]
    cells = [(setting, method, [1, k]) for k, setting in enumerate(settings) for method in search.METHODS]
    rows, points = zip(*(search.measure(setting, method, 20, 2, seed) for setting, method, seed in cells))
    return list(rows), [point for of_cell in points for point in of_cell]


def test_a_cell_is_repeated_by_its_seed_and_changed_by_another(small_search):
    rows, points = small_search
    again, same_points = search.measure(Setting(2, 2, 1, 40, 0.2), "risk", 20, 2, [1, 0])
    assert 0 < again["seconds"] < 600
    np.testing.assert_equal(again | {"seconds": 0}, rows[1] | {"seconds": 0})
    np.testing.assert_equal(same_points, points[20:40])
    other, other_points = search.measure(Setting(2, 2, 1, 40, 0.2), "risk", 20, 0, [2, 0])
    assert other_points[0]["risk"] != points[20]["risk"] and other["tenfold_tried"] == 0
    rng, setting = np.random.default_rng([1, 0]), Setting(2, 2, 1, 40, 0.2)
    teachers, starts = search.draw_weights(rng, 20, setting, 0.5), search.draw_weights(rng, 20, setting)
    x = rng.standard_normal((20, 10 * 40, 2))
    problem = Sample(x[:, :40], forward(teachers, x[:, :40]))
    result = classify(problem, find_critical_points(problem, starts, "risk"), 0.2)
    assert [point["risk"] for point in same_points] == pytest.approx(result["risk"])


def test_bad_minima_are_tested_again_in_a_tenfold_sample_and_in_the_population(monkeypatch):
    problems = []
    monkeypatch.setattr(search, "_still_bad", lambda problem, *_: problems.append(problem) or 0)
    row, _ = search.measure(Setting(2, 2, 1, 40, 0.2), "risk", 20, 2, [1, 0])
    tenfold, population = problems
    assert tenfold.x.shape == (row["tenfold_tried"], 400, 2) and len(tenfold.x) > 0
    np.testing.assert_allclose(tenfold.y, forward(population.teachers, tenfold.x))


def test_every_trial_is_counted_once_and_the_rows_agree_with_the_points(small_search):
    rows, found = small_search
    assert len(rows) == 6 and len(found) == 120
    for row, points in zip(rows, np.reshape(found, (6, 20))):
        assert sum(row[name] for name in search.CATEGORIES) == row["trials"] == 20
        for name in search.CATEGORIES:
            assert row[name] == sum(point["category"] == name for point in points)
            assert row[f"{name}_low"] <= row[name] / 20 <= row[f"{name}_high"]
        risks = [point["risk"] for point in points if point["category"] == "bad_local_minimum"]
        if risks:
            said = [row[f"bad_risk_{name}"] for name in ("least", "median", "largest")]
            assert said == pytest.approx([min(risks), np.median(risks), max(risks)])
        assert row["tenfold_tried"] == min(2, len(risks)) >= row["tenfold_bad"]
        assert row["population_tried"] == (row["tenfold_tried"] if row["d"] == 2 else 0) >= row["population_bad"]
    assert sum(row["tenfold_bad"] for row in rows) > 0 and sum(row["population_bad"] for row in rows) > 0
    assert sum(row["bad_local_minimum"] for row in rows) > 0 and sum(row["saddle"] for row in rows) > 0
    assert all(type(value) in (str, int, float) for row in rows + found for value in row.values())


def test_the_table_has_a_line_per_row_with_its_intervals(small_search):
    rows, _ = small_search
    lines = figures.table(rows).splitlines()
    assert len(lines) == 2 + len(rows) and len({line.count("|") for line in lines}) == 1
    row = rows[1]
    assert f"{100 * (row['bad_local_minimum'] / 20):.1f} % ({100 * row['bad_local_minimum_low']:.1f} %–" in lines[3]


def test_the_figure_is_drawn_from_csv_text_as_from_the_rows_themselves(small_search):
    as_text = ([{name: str(value) for name, value in row.items()} for row in table] for table in small_search)
    drawn, from_text = (
        [[line.get_xydata() for line in axes.lines] for axes in figures.relu_search_figure(*tables).axes]
        for tables in (small_search, as_text)
    )
    np.testing.assert_equal(from_text, drawn)
    assert len(drawn) == 3 and all(drawn)


def test_the_population_s_inputs_for_patterns_go_evenly_around_the_circle():
    x = Population(np.zeros((2, 1, 2, 1, 2))).x
    assert x.shape == (2, 720, 2)
    np.testing.assert_allclose(x[1, 1:] @ [1, 1j] / (x[1, :-1] @ [1, 1j]), np.exp(1j * np.pi / 360))


def test_least_curvature_is_across_free_directions_and_relative_to_the_largest():
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    H = basis * [5.0, -2.0, 0.5, -9.0] @ basis.T
    assert search.least_curvature(H, basis[:, 3:].T) == pytest.approx(-2 / 5)
    assert search.least_curvature(H, basis[:, 1:2].T) == pytest.approx(-1)
    assert search.least_curvature(H, basis[:, [1, 3]].T) == pytest.approx(0.1)


@pytest.mark.parametrize("size, expected", [(1.0, True), (1e-7, True), (0.0, False)])
def test_zero_unit_leaves_downhill_while_any_error_remains_however_small(size, expected):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 30, 2))
    problem, w = Sample(x, x + size * rng.standard_normal(x.shape)), np.zeros((3, 2, 2, 1, 2))
    assert search._leaves_zero_units_downhill(problem, w, np.ones((3, 2, 1), bool)).tolist() == [expected] * 3
    assert not search._leaves_zero_units_downhill(problem, w, np.zeros((3, 2, 1), bool)).any()


def test_the_kink_margin_is_the_least_cosine_with_a_hidden_vector():
    w, _, problem = make_problem(Setting(3, 2, 2, 6), n=2)
    found = []
    for one, inputs in zip(w, problem.x):
        cosines, h = [], inputs
        for u, v in one:
            cosines += [abs(a @ row) / np.linalg.norm(a) / np.linalg.norm(row) for a in u for row in h]
            h = h + np.maximum(h @ u.T, 0) @ v
        found.append(min(cosines))
    np.testing.assert_allclose(networks.kink_margin(w, problem.x), found)


def test_balanced_units_have_equal_norms_and_leave_the_network_as_it_is():
    w, _, problem = make_problem(Setting(3, 2, 2, 6), n=2)
    w[0, 0, 0, 1] *= 7
    balanced = networks.balance(w)
    norms = np.linalg.norm(balanced, axis=-1)
    np.testing.assert_allclose(norms[:, :, 0], norms[:, :, 1])
    np.testing.assert_allclose(forward(balanced, problem.x), forward(w, problem.x))
    expected = [max(np.linalg.svd(matrix)[1][0] for matrix in one.reshape(-1, 2, 3)) for one in balanced]
    np.testing.assert_allclose(networks.spectral_norm(balanced), expected)
    assert not networks.balance(0 * w).any()


def test_the_categories_follow_their_tolerances():
    """Critical to 1e-11 of f(0)/τ, global to 1e-18 of f(0), a unit zero below 1e-6 τ, on a kink below 1e-7."""
    _, teachers, problem = make_problem(Setting(2, 1, 1, 40), n=1)
    w = networks.balance(teachers)
    zero = problem.risk_and_gradient(0 * w, np.arange(1))[0]
    assert classify(problem, w, 0.1)["category"] == "outside"
    for factor, expected in ((1 + 1e-12, "global_minimum"), (1 + 1e-6, "not_converged")):
        found = classify(problem, factor * w, 0.5)
        f, g = problem.risk_and_gradient(factor * w, np.arange(1))
        assert found["category"] == expected and found["risk"] == pytest.approx(f / zero)
        assert np.isnan(found["curvature"][0]) == (expected == "not_converged")
        assert found["gradient_norm"] == pytest.approx(0.5 * np.linalg.norm(g) / zero)
        assert found["spectral_norm"] == pytest.approx(networks.spectral_norm(factor * w) / 0.5)
    x = np.concatenate([problem.x, [[[-w[0, 0, 0, 0, 1], w[0, 0, 0, 0, 0]]]]], axis=1)  # u·x = 0
    on_kink = Sample(x, forward(w, x))
    assert classify(on_kink, w, 0.5)["category"] == "global_minimum"  # comes before the kink
    assert classify(on_kink, 1.001 * w, 0.5)["category"] == "kink"
    for size, expected in ((6e-7, "kink"), (4e-7, "not_converged")):  # a second unit, nothing below 5e-7
        two = np.concatenate([1.001 * w, size * w / np.linalg.norm(w, axis=-1, keepdims=True)], axis=3)
        assert classify(on_kink, two, 0.5)["category"] == expected
    off = Sample(on_kink.x, on_kink.y + 1e-3)
    assert np.isnan(classify(off, 1.001 * w, 0.5)["curvature"]).all()


def test_starts_and_teachers_of_a_search_have_the_spectral_norms_of_its_setting():
    setting = Setting(3, 2, 4, 10, 0.3)
    w = search.draw_weights(np.random.default_rng(0), 500, setting, 0.5)
    norms = np.linalg.norm(w, 2, axis=(-2, -1)) / 0.3
    assert abs(np.corrcoef(norms.reshape(500, 4).T)[np.triu_indices(4, 1)]).max() < 0.2  # each matrix has its own
    assert w.shape == (500, 2, 2, 4, 3) and 0.5 < norms.min() < 0.51 and 0.99 < norms.max() < 1
    assert norms.mean() == pytest.approx(0.75, abs=0.01)
    assert np.linalg.norm(search.draw_weights(np.random.default_rng(0), 500, setting), 2, axis=(-2, -1)).min() < 0.01


def test_a_unit_that_is_zero_is_off_and_passes_no_gradient_back():
    w, _, problem = make_problem(Setting(2, 1, 2, 6), n=1)
    w[:, :, 0] = 0
    assert not risk_and_gradient(w, problem.x, problem.y)[1].any()


@pytest.mark.parametrize("name", smooth_units.UNITS)
def test_smooth_units_have_their_stated_slopes_and_gradients_match_differences(name):
    unit, z = smooth_units.UNITS[name], np.linspace(-3, 3, 61)
    slopes = unit.function(z + 1e-30j).imag / 1e-30
    np.testing.assert_allclose(unit.derivative(z), slopes, rtol=1e-13)
    assert slopes.max() == unit.steepest  # at 0
    w, x, y = (np.random.default_rng(0).standard_normal(shape) for shape in ((2, 2, 3, 2), (5, 2), (5, 2)))

    def risk(w):
        return np.sum((smooth_units.forward(w, x, name) - y) ** 2) / 5

    found = smooth_units.gradients(w, x, y, name)
    assert found.risk == pytest.approx(risk(w))
    np.testing.assert_allclose(found.parameters, difference_gradient(risk, w), atol=1e-6)
    assert smooth_units.functional_lower_bound(2, 0.0, 3.0) == 4 * 2 * 3  # layers that are the identity
