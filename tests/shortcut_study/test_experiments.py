"""shortcut_study.experiments: the rows of every experiment, recomputed in another way; depth helps where it should."""

import io
from pathlib import Path

import numpy as np
import pytest
from tqdm import tqdm

from identity_matters.runs.tables import read_rows, write_metrics
from shortcut_study import experiments
from shortcut_study.dynamics import descend
from shortcut_study.experiments import KINDS, ONE, ORTHOGONAL, THREE, TWO, XAVIER, Kind
from shortcut_study.hessian import hessian, spectrum
from shortcut_study.network import ZERO_SCALE
from shortcut_study.sweep import run_sweep
from theory import shortcut_hessians, shortcut_networks

D, M = 3, 40  # the width of test_piecewise_gradient.py
SPECTRUM = ("max_abs", "p10_abs", "condition_number", "index")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((M, D))
    return x, 0.5 * x @ rng.standard_normal((D, D)) + 0.1 * rng.standard_normal((M, D))


def start_of(unit, seed=None):
    """Network and initial weights of a unit, from its key alone."""
    kind = Kind(unit.key["shortcut_depth"], unit.key["initialisation"])
    network = kind.network(D, unit.key["depth"], unit.key["activations"])
    return network, network.initialize(kind.initialisation, unit.key["seed"] if seed is None else seed)


def rows_of(units):
    return [unit.key | row for unit in units for row in unit.compute(lambda share: None)]


def assert_spectrum(row, expected, rtol=1e-8):
    for name in SPECTRUM[:3]:
        assert row[name] == pytest.approx(getattr(expected, name), rel=rtol), name
    assert row["index"] == expected.index


def test_initial_spectra_are_those_of_the_hessian_by_autodiff(data):
    # The smallest |eigenvalue| is above 1e-8 of the largest: no sign is a matter of rounding.
    units = experiments.initial_spectra(*data, (2, 3), (1, 2))
    assert {(unit.key["shortcut_depth"], unit.key["initialisation"]) for unit in units} == set(KINDS["linear"])
    for unit in units:
        network, weights = start_of(unit)
        (row,) = unit.compute(None)
        assert_spectrum(row, spectrum(hessian(network, weights, *data, method="tape")))


@pytest.mark.parametrize("method", ["matrix", "counting"])
def test_initial_spectra_are_those_of_the_hessian_over_the_data(data, monkeypatch, method):
    if method == "counting":
        monkeypatch.setattr(experiments, "LARGEST_MATRIX", 0)
    for unit in experiments.initial_spectra(*data, (6,), (1,)):
        network, weights = start_of(unit)
        (row,) = unit.compute(None)
        expected = spectrum(hessian(network, weights, *data, method="piecewise"))
        assert_spectrum(row, expected, 1e-8 if method == "matrix" else 1e-5)  # the doc string says about 1e-6


def test_at_zero_the_spectrum_is_that_of_the_theorem_at_every_depth(data):
    for row in rows_of(experiments.spectra_at_zero(*data, (2, 3, 6))):
        shortcut_depth = row["shortcut_depth"]
        for num_units in {1: [row["depth"]], 2: [1, 3]}[shortcut_depth]:
            matrix = shortcut_hessians.hessian_at_zero(*data, num_units, shortcut_depth)
            sizes = np.abs(np.linalg.eigvalsh(matrix))
            assert row["max_abs"] == pytest.approx(sizes.max(), rel=1e-10)
            # Of 2-shortcuts all eigenvalues come d·R times and more: percentiles are the same for every R.
            assert row["p10_abs"] == pytest.approx(np.percentile(sizes, 10), rel=1e-10)
            assert row["condition_number"] == pytest.approx(row["max_abs"] / row["p10_abs"])
    at_zero = rows_of(experiments.spectra_at_zero(*data, (2, 3, 6)))
    assert [(row["shortcut_depth"], row["depth"]) for row in at_zero] == [(1, 2), (2, 2), (1, 3), (1, 6), (2, 6)]
    assert {row["initialisation"] for row in at_zero} == {"exact_zero"}


def test_the_two_shortcuts_condition_number_stays_with_depth_and_the_one_shortcuts_grows(data):
    rows = rows_of(experiments.initial_spectra(*data, (2, 6, 12), (0,), (ONE, TWO, ORTHOGONAL, XAVIER)))
    by_kind = {
        kind: [row["condition_number"] for row in rows if (row["shortcut_depth"], row["initialisation"]) == kind]
        for kind in (ONE, TWO, ORTHOGONAL, XAVIER)
    }
    assert max(by_kind[TWO]) < 1.1 * min(by_kind[TWO])
    for kind in (ONE, ORTHOGONAL, XAVIER):
        assert all(deeper > 1.5 * shallower for shallower, deeper in zip(by_kind[kind], by_kind[kind][1:])), kind
    at_zero = [r["condition_number"] for r in rows_of(experiments.spectra_at_zero(*data, (2, 6, 12)))]
    np.testing.assert_allclose(at_zero[1::2], by_kind[TWO], rtol=0.1)  # Xavier's weights times 0.01 are nearly zero
    np.testing.assert_allclose(at_zero[::2], by_kind[ONE], rtol=0.1)


@pytest.mark.parametrize("activations", ["linear", "relu_mid"])
def test_norms_begin_at_the_initial_norm_and_follow_the_descent(data, activations):
    units = experiments.norms(*data, activations, (2, 3, 4), (5, 6), 0.1, 30)
    assert [(unit.key["depth"], unit.key["seed"]) for unit in units] == [(2, 5), (2, 6), (4, 5), (4, 6)]
    for unit in units:
        rows = rows_of([unit])
        normal = np.random.default_rng(unit.key["seed"]).standard_normal((unit.key["depth"], D, D))
        by_hand = ZERO_SCALE / np.sqrt(D) * np.mean([np.sqrt((matrix**2).sum()) for matrix in normal])
        assert rows[0]["epoch"] == 0 and rows[0]["norm"] == pytest.approx(by_hand, rel=1e-12)
        network, weights = start_of(unit)
        final = descend(network, weights[None], *data, [0.1], 30).weights[0]
        assert rows[-1]["epoch"] == 30
        assert rows[-1]["norm"] == pytest.approx(np.linalg.norm(final, axis=(2, 3)).mean(), rel=1e-9)
        assert rows[-1]["loss"] == pytest.approx(network.loss(final, *data), rel=1e-9)
        assert rows[-1]["excess_loss"] == pytest.approx(
            rows[-1]["loss"] - shortcut_networks.minimum_loss(*data), abs=1e-12
        )
        assert {row["status"] for row in rows} == {"done"}


def test_norms_of_a_descent_that_diverges_say_so_from_there_on(data):
    rows = rows_of(experiments.norms(*data, "linear", (2,), (0,), 20.0, 30))
    assert rows[0]["status"] == "done" and rows[-1]["status"] == "diverged"
    assert all(np.isfinite(row["norm"]) == (row["status"] == "done") for row in rows)


def test_the_epochs_in_the_table_are_all_of_the_first_and_the_last():
    assert experiments._epochs(50) == sorted(set(experiments._epochs(50)))
    for num_epochs in (1, 50, 119, 3000):
        epochs = experiments._epochs(num_epochs)
        assert epochs[:2] == [0, 1] and epochs[-1] == num_epochs, num_epochs
        assert len(epochs) <= experiments.NUM_EPOCHS_IN_TABLE and (np.diff(epochs) > 0).all()


@pytest.mark.parametrize("activations", ["linear", "relu_mid"])
def test_hessians_are_taken_where_the_loss_first_passes_a_level(data, activations):
    levels = (np.inf, *{"linear": (0.1, 0.06), "relu_mid": (0.5, 0.45)}[activations], 1e-9)
    units = experiments.spectra_at_losses(*data, activations, 4, (3,), 0.1, 60, levels)
    assert [Kind(u.key["shortcut_depth"], u.key["initialisation"]) for u in units] == [XAVIER, ORTHOGONAL, TWO]
    taken = 0
    for unit in units:
        network, weights = start_of(unit)
        whole = descend(network, weights[None], *data, [0.1], 60)
        losses = (whole.excess_losses if activations == "linear" else whole.losses)[:, 0]
        first, *rows = unit.compute(lambda share: None)
        assert first == {"learning_rate": 0.1, "status": "done"}
        epochs = [next((e for e, loss in enumerate(losses) if loss <= level), None) for level in levels]
        epochs = [epoch for epoch in epochs if epoch is not None]
        assert [row["epoch"] for row in rows] == epochs and epochs[0] == 0
        for row in rows:
            at = descend(network, weights[None], *data, [0.1], row["epoch"]).weights[0]
            assert row["loss"] == pytest.approx(whole.losses[row["epoch"], 0], rel=1e-9)
            assert_spectrum(row, spectrum(hessian(network, at, *data, method="piecewise")), 1e-7)
            taken += row["epoch"] > 0
    assert taken >= 3


def test_a_descent_that_diverges_leaves_the_spectra_that_it_reached(data):
    (unit,) = experiments.spectra_at_losses(*data, "linear", 4, (0,), 20.0, 60, (np.inf, 1e-9), kinds=(TWO,))
    first, *rows = unit.compute(lambda share: None)
    assert first["status"] == "diverged" and [row["epoch"] for row in rows] == [0]


def test_a_single_run_is_gradient_descent_by_the_papers_formula(data):
    (unit,) = experiments.single_run(*data, 4, 2, 0.2, 50)
    rows = {row["epoch"]: row for row in unit.compute(lambda share: None)}
    network, weights = start_of(unit)
    descent = descend(network, weights[None], *data, [0.2], 50)
    for epoch in range(51):
        gradient = shortcut_networks.gradient(weights, *data)
        if epoch in rows:
            row = rows.pop(epoch)
            assert row["gradient_norm"] == pytest.approx(np.sqrt((gradient**2).sum()), rel=1e-8)
            assert row["excess_loss"] == pytest.approx(descent.excess_losses[epoch, 0], rel=1e-8)
            assert row["loss"] == pytest.approx(network.loss(weights, *data), rel=1e-9)
            if epoch % 10 == 0:
                assert_spectrum(row, spectrum(hessian(network, weights, *data, method="piecewise")), 1e-7)
        weights = weights - 0.2 * gradient
    assert not rows


def test_a_single_run_that_diverges_ends_with_a_row_that_says_so(data):
    (unit,) = experiments.single_run(*data, 4, 2, 20.0, 500)
    *rows, last = unit.compute(lambda share: None)
    assert last["status"] == "diverged" and {row["status"] for row in rows} == {"done"}
    assert np.isfinite([row["gradient_norm"] for row in rows]).all()


@pytest.mark.parametrize("activations", ["linear", "relu_mid"])
def test_learning_rates_are_single_runs_and_one_that_diverges_is_marked(data, activations):
    rates, seeds = np.array([0.01, 0.1, 50.0]), (3, 4)
    units = experiments.learning_rates(*data, activations, (3, 4), rates, seeds, 25)
    found = {}
    for unit in units:
        for row in rows_of([unit]):
            assert row["epoch"] == 25
            found[
                Kind(row["shortcut_depth"], row["initialisation"]), row["depth"], row["seed"], row["learning_rate"]
            ] = row
    networks = [(kind, depth) for depth in (3, 4) for kind in KINDS[activations] if kind.takes(depth, activations)]
    assert sorted(found) == sorted((*network, seed, rate) for network in networks for seed in seeds for rate in rates)
    for (kind, depth, seed, rate), row in found.items():
        network = kind.network(D, depth, activations)
        alone = descend(network, network.initialize(kind.initialisation, seed)[None], *data, [rate], 25)
        assert (row["status"] == "diverged") == (alone.diverged_at[0] >= 0)
        if row["status"] == "done":
            for name in ("loss", "excess_loss", "norm"):
                assert row[name] == pytest.approx(
                    getattr(alone, {"loss": "losses", "norm": "norms"}.get(name, "excess_losses"))[-1, 0], rel=1e-8
                )
        else:
            assert np.isnan(row["loss"]) and np.isnan(row["excess_loss"])
    assert {row["status"] for (*_, rate), row in found.items() if rate == 50} == {"diverged"}
    assert {row["status"] for (*_, rate), row in found.items() if rate < 1} == {"done"}


@pytest.mark.parametrize(
    "kind, depth, activations, takes",
    [
        (ONE, 5, "linear", True), (TWO, 4, "linear", True), (TWO, 5, "linear", False), (THREE, 6, "linear", True),
        (THREE, 4, "linear", False), (XAVIER, 5, "linear", True), (XAVIER, 5, "relu_mid", False),
        (ORTHOGONAL, 4, "relu_mid", True), (TWO, 3, "relu_mid", False),
    ],
)  # fmt: skip
def test_there_are_networks_only_of_depths_that_the_shortcuts_divide(kind, depth, activations, takes):
    assert kind.takes(depth, activations) == takes
    if takes:
        network = kind.network(D, depth, activations)
        assert network.depth == depth and network.shortcut == (kind.shortcut_depth > 0)
    else:
        with pytest.raises(ValueError, match=f"multiple of shortcut_depth {kind.unit_depth(activations)}, got {depth}"):
            kind.network(D, depth, activations)


def test_plain_networks_have_their_relus_where_the_two_shortcut_has_them(data):
    weights = TWO.network(D, 4, "relu_mid").initialize("xavier", 0)
    inside = [np.maximum(data[0] @ weights[0, 0].T, 0) @ weights[0, 1].T]
    inside.append(np.maximum(inside[0] @ weights[1, 0].T, 0) @ weights[1, 1].T)
    for kind in (XAVIER, ORTHOGONAL):
        plain, shortcut = kind.network(D, 4, "relu_mid"), TWO.network(D, 4, "relu_mid")
        assert plain.activations == shortcut.activations == ("linear", "relu", "linear")
        assert plain.shape == shortcut.shape == (2, 2, D, D) and not plain.shortcut
        np.testing.assert_allclose(plain.forward(weights, data[0]), inside[-1], atol=1e-14)


ALL = {
    "norms": lambda x, y: experiments.norms(x, y, "linear", (2, 6), (0, 1), 0.1, 5),
    "norms with ReLUs": lambda x, y: experiments.norms(x, y, "relu_mid", (2,), (0, 1), 0.1, 5),
    "initial_spectra": lambda x, y: experiments.initial_spectra(x, y, (2, 6), (0, 1)),
    "spectra_at_zero": lambda x, y: experiments.spectra_at_zero(x, y, (2, 6)),
    "spectra_at_losses": lambda x, y: experiments.spectra_at_losses(x, y, "linear", 4, (0, 1), 0.1, 5, (np.inf, 1e-9)),
    "spectra_at_losses with ReLUs": lambda x, y: experiments.spectra_at_losses(x, y, "relu_mid", 4, (0,), 0.1, 5, (np.inf,)),
    "single_run": lambda x, y: experiments.single_run(x, y, 4, 0, 0.1, 5),
    "learning_rates": lambda x, y: experiments.learning_rates(x, y, "linear", (2, 6), [0.1, 90.0], (0, 1), 5),
    "learning_rates with one seed": lambda x, y: experiments.learning_rates(x, y, "linear", (2,), [0.1, 90.0], (7,), 5),
    "learning_rates with ReLUs": lambda x, y: experiments.learning_rates(x, y, "relu_mid", (2,), [0.1, 90.0], (0, 1), 5),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_rows_that_come_back_from_the_file_are_known_and_computed_no_more(data, tmp_path, name):
    path, computed = str(tmp_path / "rows.csv"), []

    def sweep():
        units = [
            unit._replace(compute=lambda progress, unit=unit: computed.append(unit.key) or unit.compute(progress))
            for unit in ALL[name](*data)
        ]
        with tqdm(total=sum(unit.cost for unit in units), file=io.StringIO()) as bar:
            run_sweep(units, read_rows(path), lambda rows: write_metrics(path, rows), bar)
            assert bar.n == pytest.approx(bar.total)
        return units

    units = sweep()
    assert computed == [unit.key for unit in units]
    before = Path(path).read_text()
    sweep()
    assert len(computed) == len(units)
    assert Path(path).read_text() == before


@pytest.mark.parametrize("name", [name for name in ALL if "initial" not in name and "zero" not in name])
def test_the_shares_of_the_work_add_up_to_all_of_it(data, name):
    for unit in ALL[name](*data):
        shares = []
        unit.compute(shares.append)
        assert min(shares) > 0 and len(shares) > 1 and unit.cost > 0
        assert sum(shares) == pytest.approx(1)
