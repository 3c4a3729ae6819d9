"""ShortcutNetwork.to_keras: the same map, loss and Hessian; --hessian=tape gives the rows of the closed forms."""

import dataclasses

import keras
import numpy as np
import pytest
from refusals import refused

from shortcut_study import report
from shortcut_study.config import PRESETS
from shortcut_study.curvature import Hessian
from shortcut_study.dataset import load_images, study_data
from shortcut_study.hessian import hessian
from shortcut_study.network import ShortcutNetwork

D, M = 3, 9
NETWORKS = {
    "2-shortcut, linear": ShortcutNetwork(D, 3, 2),
    "1-shortcut, linear": ShortcutNetwork(D, 2, 1),
    "no shortcuts, linear": ShortcutNetwork(D, 4, 1, shortcut=False),
    "2-shortcut, ReLU at mid": ShortcutNetwork(D, 2, 2, mid="relu"),
    "3-shortcut, an activation at each position": ShortcutNetwork(D, 2, 3, "softsign", "tanh", "elu"),
}
SLOW = ("1-shortcut, linear", "no shortcuts, linear")


def problem(network):
    x, y = np.random.default_rng(0).standard_normal((2, M, D))
    return network.initialize("xavier", 1), x, y


def of_columns(network, weights):
    """The weights by unit, layer, column, row, one by one."""
    units, layers, d, _ = network.shape
    order = [(r, k, i, j) for r in range(units) for k in range(layers) for j in range(d) for i in range(d)]
    return np.array([weights[place] for place in order])


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_keras_network_is_the_same_map_with_weights_in_definition_5_s_order(network):
    weights, x, _ = problem(network)
    model = network.to_keras(weights)
    np.testing.assert_allclose(model(x).numpy(), network.forward(weights, x), rtol=0, atol=1e-14)
    flat = np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])
    np.testing.assert_array_equal(flat, of_columns(network, weights))
    assert {variable.dtype for variable in model.variables} == {"float64"}


@pytest.mark.parametrize(
    "network",
    [pytest.param(network, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, network in NETWORKS.items()],
)
def test_closed_form_tape_and_operator_have_one_hessian(network):
    weights, x, y = problem(network)
    operator = Hessian(network.to_keras(weights), x, y)
    tape = hessian(network, weights, x, y, "tape")
    scale = np.abs(tape).max()
    np.testing.assert_allclose(operator @ np.eye(network.num_parameters), tape, rtol=0, atol=1e-13 * scale)
    np.testing.assert_allclose(hessian(network, weights, x, y), tape, rtol=0, atol=1e-13 * scale)
    assert operator.dtype == np.float64


def test_a_saved_keras_network_comes_back_with_its_loss(tmp_path):
    network = NETWORKS["3-shortcut, an activation at each position"]
    weights, x, y = problem(network)
    network.to_keras(weights).save(tmp_path / "network.keras")
    loaded = keras.saving.load_model(tmp_path / "network.keras")
    np.testing.assert_array_equal(loaded(x).numpy(), network.to_keras(weights)(x).numpy())
    # Keras casts arrays to float32 in evaluate.
    assert loaded.evaluate(x, y, verbose=0) == pytest.approx(network.loss(weights, x, y), rel=1e-5)


def test_weights_of_another_shape_or_that_are_not_finite_have_no_keras_network():
    network = NETWORKS["2-shortcut, linear"]
    assert "got (3, 2, 3, 4)" in refused(network.to_keras, np.zeros((3, 2, 3, 4)))
    assert "weights must be finite" in refused(network.to_keras, np.full(network.shape, np.nan))


def test_another_backend_than_tensorflow_is_rejected(monkeypatch):
    network = NETWORKS["2-shortcut, linear"]
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    assert "need KERAS_BACKEND=tensorflow, got jax" in refused(hessian, network, *problem(network), "tape")


SPECTRUM = ("max_abs", "p10_abs", "condition_number", "index")


def rows_by(method, figure, **sizes):
    """The rows of a figure of the smoke study, without their seconds."""
    config = dataclasses.replace(PRESETS["smoke"], figure=figure, hessian=method, **sizes)
    data = study_data(config, load_images(config))
    jobs = report.study_jobs(config, data)
    return [row | {"seconds": ""} for job in jobs for row in job.compute(lambda share: None)]


def assert_equal_rows(figure, **sizes):
    """Compares all rows by both ways, to the rounding within which the project counts an eigenvalue as 0."""
    rows, taped = rows_by("auto", figure, **sizes), rows_by("tape", figure, **sizes)
    assert len(rows) == len(taped)
    for row, other in zip(rows, taped):
        assert {k: v for k, v in row.items() if k not in SPECTRUM} == {
            k: v for k, v in other.items() if k not in SPECTRUM
        }
        if row["max_abs"] == "":
            continue
        rounding = 100 * row["depth"] * np.finfo(np.float64).eps * row["max_abs"]  # P · ε · max |λ|
        assert other["max_abs"] == pytest.approx(row["max_abs"], rel=0, abs=rounding), row
        assert other["p10_abs"] == pytest.approx(row["p10_abs"], rel=0, abs=rounding), row
        share = rounding / row["p10_abs"] + rounding / row["max_abs"]
        assert other["condition_number"] == pytest.approx(row["condition_number"], rel=2 * share), row
        assert other["index"] == row["index"], row
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["5", "7", "8"])  # 8 computes the rows of 6
def test_the_tape_gives_the_rows_of_the_smoke_study(figure):
    rows = assert_equal_rows(figure, examples=200)
    experiments = {"5": {"initial_spectrum", "spectrum_at_zero"}, "7": {"spectrum_at_losses"}}
    experiments["8"] = {"spectrum_at_losses", "spectrum_at_zero", "single_run"}
    assert {row["experiment"] for row in rows if row["max_abs"] != ""} == experiments[figure]


@pytest.mark.parametrize("figure", [pytest.param("5", marks=pytest.mark.slow), "7", "8"])
def test_every_hessian_of_a_figure_comes_from_the_tape_if_asked(monkeypatch, figure):
    from shortcut_study import tape
    from shortcut_study.figures import figure_5

    taped = []
    whole = tape.tape_hessian
    monkeypatch.setattr(tape, "tape_hessian", lambda *of: taped.append(of) or whole(*of))
    for name in ("hessian_from_moments", "spectrum_by_counting", "spectrum_at_zero"):
        monkeypatch.setattr(figure_5, name, None)
    sizes = {"examples": 40, "depths": (2, 3), "depth": 2, "num_runs": 1, "num_levels": 1, "descent_epochs": 3}
    rows = rows_by("tape", figure, **sizes)
    assert len(taped) == sum(row["max_abs"] != "" for row in rows) > 0
