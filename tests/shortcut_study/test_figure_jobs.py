"""The jobs of every figure: their rows, recomputed in another way; depth helps in the expected cases."""

from types import SimpleNamespace

import numpy as np
import pytest
from refusals import refused

from shortcut_study import jobs
from shortcut_study.aggregation import best_rates
from shortcut_study.architectures import ARCHITECTURES, ONE, ORTHOGONAL, THREE, TWO, XAVIER, Architecture
from shortcut_study.config import StudyConfig, learning_rates
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import descend
from shortcut_study.figures import figure_3, figure_5, figure_6, figure_7, figure_8, figure_9, figure_10
from shortcut_study.hessian import hessian, spectrum
from shortcut_study.network import ZERO_SCALE
from theory import shortcut_hessians
from theory.shortcut import networks as shortcut_networks

D, M = 3, 40  # the width of test_piecewise_gradient.py
SPECTRUM = ("max_abs", "p10_abs", "condition_number", "index")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((M, D))
    return StudyData(x, 0.5 * x @ rng.standard_normal((D, D)) + 0.1 * rng.standard_normal((M, D)))


def test_a_row_has_the_name_of_its_job_and_its_seconds(monkeypatch):
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(jobs, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    job = jobs.study_job({"experiment": "initial_spectrum", "depth": 6}, lambda _: [{"loss": 2.0}])
    (row,) = job.compute(None)
    assert job.label == row["job"] == "initial spectrum: no shortcuts, depth 6"
    assert (row["loss"], row["seconds"], row["depth"], row["norm"]) == (2.0, 2.5, 6, "")


def config(**changes):
    small = {"depths": (2, 3, 6), "relu_depths": (2, 4), "depth": 4, "learning_rate": 0.1, "descent_epochs": 30}
    small |= {"num_runs": 2, "sweep_runs": 2, "relu_runs": 2, "num_epochs": 25, "rates_per_decade": 1}
    return StudyConfig(**small | {"relu_rates_per_decade": 1, "num_levels": 2} | changes)


def of(jobs, experiment, activations="linear"):
    return [job for job in jobs if (job.key["experiment"], job.key["activations"]) == (experiment, activations)]


def kind_of(key):
    return Architecture(key["shortcut_depth"], key["initialisation"])


def start_of(job, seed=None):
    """Network and initial weights of a job, from its key."""
    kind = kind_of(job.key)
    network = kind.network(D, job.key["depth"], job.key["activations"])
    return network, network.initialize(kind.initialisation, job.key["seed"] if seed is None else seed)


def rows_of(jobs):
    return [row | {"seconds": ""} for job in jobs for row in job.compute(lambda share: None)]


@pytest.mark.parametrize("figure", [figure_3, figure_7, figure_10])
def test_networks_with_relus_go_over_the_first_examples_and_linear_ones_over_all(data, figure):
    few, some = config(relu_examples=25), data.first(25)
    assert len(some.x) == len(some.y) == 25
    jobs = [figure.jobs(*of) for of in ((few, data), (config(), data), (config(), some))]
    assert jobs[0]
    for job, of_all, of_some in zip(*jobs, strict=True):
        expected = of_all if job.key["activations"] == "linear" else of_some
        np.testing.assert_equal(rows_of([job]), rows_of([expected]))
        if job.key["activations"] != "linear":
            assert rows_of([job]) != rows_of([of_all])


def assert_spectrum(row, expected, rtol=1e-8):
    for name in SPECTRUM[:3]:
        assert row[name] == pytest.approx(getattr(expected, name), rel=rtol), name
    assert row["index"] == expected.index


@pytest.mark.parametrize("method", ["matrix", "counting"])
def test_initial_spectra_are_those_of_the_hessian_over_the_data(data, monkeypatch, method):
    if method == "counting":
        monkeypatch.setattr(figure_5, "LARGEST_MATRIX", 0)
    jobs = of(figure_5.jobs(config(depths=(6,), num_runs=1, seed=3), data), "initial_spectrum")
    assert {kind_of(job.key) for job in jobs} == set(ARCHITECTURES["linear"])
    for job in jobs:
        network, weights = start_of(job)
        (row,) = job.compute(None)
        expected = spectrum(hessian(network, weights, data.x, data.y, method="piecewise"))
        assert_spectrum(row, expected, 1e-8 if method == "matrix" else 2e-4)


def test_at_zero_the_spectrum_is_that_of_the_theorem_at_every_depth(data):
    at_zero = rows_of(figure_5.jobs_at_zero(config(), data))
    for row in at_zero:
        for num_units in {1: [row["depth"]], 2: [1, 3]}[row["shortcut_depth"]]:
            matrix = shortcut_hessians.hessian_at_zero(data.x, data.y, num_units, row["shortcut_depth"])
            sizes = np.abs(np.linalg.eigvalsh(matrix))
            assert row["max_abs"] == pytest.approx(sizes.max(), rel=1e-10)
            # Of 2-shortcuts all eigenvalues come d·R times and more: percentiles are the same for every R.
            assert row["p10_abs"] == pytest.approx(np.percentile(sizes, 10), rel=1e-10)
            assert row["condition_number"] == pytest.approx(row["max_abs"] / row["p10_abs"])
    assert [(row["shortcut_depth"], row["depth"]) for row in at_zero] == [(1, 2), (2, 2), (1, 3), (1, 6), (2, 6)]
    assert {row["initialisation"] for row in at_zero} == {"exact_zero"}


@pytest.mark.parametrize("activations", ["linear", "relu_mid"])
def test_norms_begin_at_the_initial_norm_and_follow_the_descent(data, activations):
    jobs = of(figure_3.jobs(config(depths=(2, 3, 4), seed=5), data), "norms", activations)
    assert [(job.key["depth"], job.key["seed"]) for job in jobs] == [(2, 5), (2, 6), (4, 5), (4, 6)]
    for job in jobs:
        rows = rows_of([job])
        normal = np.random.default_rng(job.key["seed"]).standard_normal((job.key["depth"], D, D))
        by_hand = ZERO_SCALE / np.sqrt(D) * np.mean([np.sqrt((matrix**2).sum()) for matrix in normal])
        assert rows[0]["epoch"] == 0 and rows[0]["norm"] == pytest.approx(by_hand, rel=1e-12)
        network, weights = start_of(job)
        final = descend(network, weights[None], data.x, data.y, [0.1], 30).weights[0]
        assert rows[-1]["epoch"] == 30
        assert rows[-1]["norm"] == pytest.approx(np.linalg.norm(final, axis=(2, 3)).mean(), rel=1e-9)
        loss = network.loss(final, data.x, data.y)
        assert rows[-1]["loss"] == pytest.approx(loss, rel=1e-9)
        least = shortcut_networks.minimum_loss(data.x, data.y)
        assert rows[-1]["excess_loss"] == pytest.approx(loss - least, abs=1e-12)
        assert {row["status"] for row in rows} == {"done"}


def test_norms_of_a_descent_that_diverges_say_so_from_there_on(data):
    rows = rows_of(of(figure_3.jobs(config(learning_rate=20.0), data), "norms")[:1])
    assert rows[0]["status"] == "done" and rows[-1]["status"] == "diverged"
    assert all(np.isfinite(row["norm"]) == (row["status"] == "done") for row in rows)


def test_the_epochs_in_the_table_are_all_of_the_first_and_the_last():
    for num_epochs in (1, 50, 119, 3000):
        epochs = figure_3.spaced_epochs(num_epochs)
        assert epochs[:2] == [0, 1] and epochs[-1] == num_epochs, num_epochs
        assert len(epochs) <= 120 and (np.diff(epochs) > 0).all()


@pytest.mark.parametrize("activations", ["linear", "relu_mid"])
def test_hessians_are_taken_where_the_loss_first_passes_a_level(data, activations):
    ends = {"linear": (0.1, 0.06), "relu_mid": (0.5, 0.45)}[activations]
    settings = config(seed=3, descent_epochs=60, num_levels=3)
    jobs = figure_6.jobs_along_loss(settings, data, activations, 1, ends)
    assert [kind_of(job.key) for job in jobs] == [XAVIER, ORTHOGONAL, TWO]
    levels, taken = np.append(np.inf, np.geomspace(*ends, 3)), 0
    for job in jobs:
        network, weights = start_of(job)
        whole = descend(network, weights[None], data.x, data.y, [0.1], 60)
        losses = (whole.excess_losses if activations == "linear" else whole.losses)[:, 0]
        first, *rows = job.compute(lambda share: None)
        assert first["learning_rate"] == 0.1 and first["status"] == "done" and first["loss"] == ""
        epochs = [next((e for e, loss in enumerate(losses) if loss <= level), None) for level in levels]
        assert [row["epoch"] for row in rows] == [epoch for epoch in epochs if epoch is not None] and epochs[0] == 0
        for row in rows:
            at = descend(network, weights[None], data.x, data.y, [0.1], row["epoch"]).weights[0]
            assert row["loss"] == pytest.approx(whole.losses[row["epoch"], 0], rel=1e-9)
            assert_spectrum(row, spectrum(hessian(network, at, data.x, data.y, method="piecewise")), 1e-7)
            taken += row["epoch"] > 0
    assert taken >= 3


def test_a_descent_that_diverges_leaves_the_spectra_that_it_reached(data):
    job = of(figure_6.jobs(config(learning_rate=20.0), data), "spectrum_at_losses")[-1]
    first, *rows = job.compute(lambda share: None)
    assert kind_of(job.key) == TWO and first["status"] == "diverged" and rows[0]["epoch"] == 0


def test_xaviers_networks_may_have_a_learning_rate_of_their_own(data):
    jobs = of(figure_6.jobs(config(xavier_learning_rate=0.02, num_runs=1), data), "spectrum_at_losses")
    rates = {kind_of(row): row["learning_rate"] for row in rows_of(jobs)}
    assert rates == {XAVIER: 0.02, ORTHOGONAL: 0.1, TWO: 0.1}


def test_a_single_run_is_gradient_descent_by_the_papers_formula(data):
    (job,) = of(figure_8.jobs(config(seed=2, learning_rate=0.2, descent_epochs=50), data), "single_run")
    rows = {row["epoch"]: row for row in job.compute(lambda share: None)}
    network, weights = start_of(job)
    descent = descend(network, weights[None], data.x, data.y, [0.2], 50)
    for epoch in range(51):
        gradient = shortcut_networks.gradient(weights, data.x, data.y)
        if epoch in rows:
            row = rows.pop(epoch)
            assert row["gradient_norm"] == pytest.approx(np.sqrt((gradient**2).sum()), rel=1e-8)
            assert row["excess_loss"] == pytest.approx(descent.excess_losses[epoch, 0], rel=1e-8)
            assert row["loss"] == pytest.approx(network.loss(weights, data.x, data.y), rel=1e-9)
            if epoch % 10 == 0:
                expected = spectrum(hessian(network, weights, data.x, data.y, method="piecewise"))
                assert_spectrum(row, expected, 1e-7)
        weights = weights - 0.2 * gradient
    assert not rows


def test_a_single_run_that_diverges_ends_with_a_row_that_says_so(data):
    (job,) = of(figure_8.jobs(config(learning_rate=20.0, descent_epochs=500), data), "single_run")
    *rows, last = job.compute(lambda share: None)
    assert last["status"] == "diverged" and {row["status"] for row in rows} == {"done"}
    assert np.isfinite([row["gradient_norm"] for row in rows]).all()


@pytest.fixture
def three_rates(monkeypatch):
    rates = np.array([0.01, 0.1, 50.0])
    for figure in (figure_9, figure_10):
        monkeypatch.setattr(figure, "learning_rates", lambda per_decade: rates)
    monkeypatch.setattr(figure_10, "HIGHEST_PRUNED", 0.0)
    return rates


@pytest.mark.parametrize("activations, figure", [("linear", figure_9), ("relu_mid", figure_10)])
def test_learning_rates_are_single_runs_and_one_that_diverges_is_marked(data, three_rates, activations, figure):
    settings = config(depths=(3, 4), relu_depths=(4,), seed=3)
    found = {}
    for job in of(figure.jobs(settings, data), "learning_rates", activations):
        for row in rows_of([job]):
            assert row["epoch"] == 25
            found[kind_of(row), row["depth"], row["seed"], row["learning_rate"]] = row
    networks = [
        (kind, depth) for depth in (3, 4) for kind in ARCHITECTURES[activations] if kind.has_depth(depth, activations)
    ]
    assert sorted(found) == sorted((*network, seed, rate) for network in networks for seed in (3, 4)
                                   for rate in three_rates)  # fmt: skip
    for (kind, depth, seed, rate), row in found.items():
        network = kind.network(D, depth, activations)
        start = network.initialize(kind.initialisation, seed)[None]
        alone = descend(network, start, data.x, data.y, [rate], 25)
        assert (row["status"] == "diverged") == (alone.diverged_at[0] >= 0) == (rate == 50)
        if row["status"] == "done":
            for name, theirs in (("loss", alone.losses), ("excess_loss", alone.excess_losses), ("norm", alone.norms)):
                assert row[name] == pytest.approx(theirs[-1, 0], rel=1e-8)
        else:
            assert np.isnan(row["loss"]) and np.isnan(row["excess_loss"])


def test_perturbed_start_finds_rates_at_which_the_final_loss_depends_on_rounding(data, three_rates, monkeypatch):
    settings = config(relu_depths=(4,), relu_runs=1)
    job = next(job for job in figure_10.jobs(settings, data) if kind_of(job.key) == TWO)
    slow, fast, diverged = job.compute(lambda share: None)
    assert diverged["perturbed_loss"] == slow["perturbed_loss"] == ""  # below a stable rate nothing is run again
    assert 0 < abs(fast["perturbed_loss"] - fast["loss"]) < 1e-9
    monkeypatch.setattr(figure_10, "PERTURBATION", 20.0)
    slow, fast, diverged = job.compute(lambda share: None)
    assert abs(fast["perturbed_loss"] - fast["loss"]) > 0.01 * fast["loss"] and slow["perturbed_loss"] != ""


def test_a_rate_is_stopped_if_a_higher_one_follows_its_path_and_ends_lower(data):
    network, rates = TWO.network(D, 4, "relu_mid"), np.array([1e-4, 3e-4, 1e-3, 0.05, 0.3])
    start = network.initialize("xavier", 0)
    found, bounded_by = figure_10.descend_pruned(network, start, data, rates, 200)
    assert bounded_by == {0: 0.05, 1: 0.05, 2: 0.05}
    whole = descend(network, np.stack([start] * len(rates)), data.x, data.y, rates, 200)
    kept = [3, 4]
    np.testing.assert_array_equal(found.losses[:, kept], whole.losses[:, kept])
    np.testing.assert_array_equal(found.norms[-1, kept], whole.norms[-1, kept])
    np.testing.assert_array_equal(found.weights[kept], whole.weights[kept])
    assert np.isnan(found.losses[-1, :3]).all()
    for i, bound in bounded_by.items():
        assert whole.losses[-1, rates == bound] < whole.losses[-1, i]


def test_a_rate_whose_path_is_another_is_followed_to_the_end(data, monkeypatch):
    network, rates = TWO.network(D, 4, "relu_mid"), np.array([1e-4, 3e-4, 1e-3])
    start = network.initialize("xavier", 0)
    monkeypatch.setattr(figure_10, "SAME_PATH", 1e-9)
    found, bounded_by = figure_10.descend_pruned(network, start, data, rates, 50)
    assert not bounded_by and np.isfinite(found.losses).all()


def test_a_row_of_a_stopped_rate_names_the_rate_that_bounds_it(data, monkeypatch):
    rates = np.array([1e-4, 3e-4, 0.05])
    monkeypatch.setattr(figure_10, "learning_rates", lambda per_decade: rates)
    job = next(iter(figure_10.jobs(config(num_epochs=100), data)))
    low, middle, high = job.compute(lambda share: None)
    assert low["status"] == middle["status"] == "bounded by 0.05" and low["loss"] == low["perturbed_loss"] == ""
    assert high["status"] == "done"
    assert best_rates([job.key | row for row in (low, middle, high)], "loss")[2].rate == 0.05


def test_the_learning_rates_of_a_sweep_go_from_a_thousandth_to_ten():
    np.testing.assert_allclose(learning_rates(1), [1e-3, 1e-2, 0.1, 1, 10])
    assert len(learning_rates(4)) == 17 and learning_rates(4)[[0, -1]].tolist() == [1e-3, 10]


@pytest.mark.parametrize(
    "kind, depth, activations, takes",
    [
        (ONE, 5, "linear", True), (TWO, 4, "linear", True), (TWO, 5, "linear", False), (THREE, 6, "linear", True),
        (THREE, 4, "linear", False), (XAVIER, 5, "linear", True), (XAVIER, 5, "relu_mid", False),
        (ORTHOGONAL, 4, "relu_mid", True), (TWO, 3, "relu_mid", False),
    ],
)  # fmt: skip
def test_there_are_networks_only_of_depths_that_the_shortcuts_divide(kind, depth, activations, takes):
    assert kind.has_depth(depth, activations) == takes
    if takes:
        network = kind.network(D, depth, activations)
        assert network.depth == depth and network.shortcut == (kind.shortcut_depth > 0)
    else:
        message = refused(kind.network, D, depth, activations)
        assert f"multiple of shortcut_depth {kind.unit_depth(activations)}, got {depth}" in message


def test_plain_networks_have_the_relus_of_the_two_shortcut_network(data):
    weights = TWO.network(D, 4, "relu_mid").initialize("xavier", 0)
    inside = [np.maximum(data.x @ weights[0, 0].T, 0) @ weights[0, 1].T]
    inside.append(np.maximum(inside[0] @ weights[1, 0].T, 0) @ weights[1, 1].T)
    for kind in (XAVIER, ORTHOGONAL):
        plain, shortcut = kind.network(D, 4, "relu_mid"), TWO.network(D, 4, "relu_mid")
        assert plain.activations == shortcut.activations == ("linear", "relu", "linear")
        assert plain.shape == shortcut.shape == (2, 2, D, D) and not plain.shortcut
        np.testing.assert_allclose(plain.forward(weights, data.x), inside[-1], atol=1e-14)


QUICK = {"descent_epochs": 5, "num_epochs": 5, "num_levels": 1}
ALL = {
    "3": lambda data: figure_3.jobs(config(**QUICK), data),
    "6": lambda data: figure_6.jobs(config(**QUICK), data),
    "7": lambda data: figure_7.jobs(config(**QUICK), data),
    "8": lambda data: figure_8.jobs(config(**QUICK), data)[-1:],
    "9 with one seed": lambda data: figure_9.jobs(config(**QUICK, sweep_runs=1, seed=7), data),
    "10": lambda data: figure_10.jobs(config(**QUICK), data),
}


@pytest.mark.parametrize("name", ALL)
def test_the_shares_of_a_job_add_up_to_no_more_than_all_of_it(data, name):
    for job in ALL[name](data):
        if job.key["experiment"] != "spectrum_at_zero":
            shares = []
            job.compute(shares.append)
            assert min(shares) > 0 and len(shares) > 1
            assert 0.7 < sum(shares) < 1 + 1e-9
