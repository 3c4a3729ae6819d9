"""Spectra of convolutional networks at their initial weights: Lanczos against dense Hessians, and the figure's rows."""

import dataclasses
import math

import keras
import numpy as np
import pytest
from refusals import refused

from identity_matters.config import ModelConfig
from identity_matters.model import all_conv_resnet
from identity_matters.runs.tables import read_rows, write_metrics
from shortcut_study import hessian
from shortcut_study.config import StudyConfig
from shortcut_study.convolutional import initial_spectra
from shortcut_study.curvature.operator import Hessian
from shortcut_study.dataset import StudyData
from shortcut_study.figures import convolutional

NUM_IMAGES = 12
# 2 convolutions of 36 weights inside shortcuts, after a stem of 18.
ONE = ModelConfig(
    image_shape=(8, 8, 1), stem_width=2, stem_stride=2, widths=(2,), blocks_per_stage=(2,), convs_per_block=1
)
TWO = dataclasses.replace(ONE, blocks_per_stage=(1,), convs_per_block=2)
BATCH_NORM = dataclasses.replace(TWO, use_batch_norm=True)
THREE = dataclasses.replace(TWO, convs_per_block=3)


@pytest.fixture(scope="module")
def examples():
    rng = np.random.default_rng(0)
    return rng.standard_normal((NUM_IMAGES, 8, 8, 1)), rng.integers(0, 10, NUM_IMAGES).astype(np.int32)


def initial_spectrum(model, examples):
    return next(initial_spectra([model], *examples))


def dense(config, examples, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """The Hessian, a column for each unit vector; which of its rows belong to residual kernels."""
    model = all_conv_resnet(config, seed)
    h = Hessian(model, *examples, batch_size=NUM_IMAGES, training=True, dtype="float64")
    counted = [
        np.full(v.numpy().size, "stage" in v.path and v.path.endswith("kernel")) for v in model.trainable_variables
    ]
    return h @ np.eye(h.shape[0]), np.concatenate(counted)


@pytest.fixture(
    scope="module",
    params=[ONE, *(pytest.param(of, marks=pytest.mark.slow) for of in (TWO, BATCH_NORM))],
    ids=["one", "two", "batch norm"],
)
def case(request, examples):
    """A config, its Hessian in the residual kernels and in all trained weights."""
    matrix, counted = dense(request.param, examples)
    return request.param, matrix[np.ix_(counted, counted)], matrix


def test_full_order_summary_is_the_dense_hessian_s_in_the_residual_kernels(case, examples):
    config, block, whole = case
    found = initial_spectrum(all_conv_resnet(config), examples)
    exact, other = hessian.spectrum(block), hessian.spectrum(whole)
    assert found["num_weights"] == len(block) == 72 and len(whole) == 90 + 12 * config.use_batch_norm
    for name in ("max_abs", "p10_abs", "condition_number", "index"):
        assert found[name] == pytest.approx(getattr(exact, name), rel=1e-8)
    # Negative control: stem, γ and β would change it.
    assert abs(math.log10(found["condition_number"] / other.condition_number)) > 0.01


@pytest.mark.slow
def test_several_models_of_one_architecture_return_what_each_returns_separately(examples):
    models = [all_conv_resnet(BATCH_NORM, seed) for seed in (0, 1)]
    first, second = initial_spectra(iter(models), *examples)
    # The projections, which are not trained, differ too.
    assert second == pytest.approx(initial_spectrum(models[1], examples), rel=1e-6)
    assert abs(second["max_abs"] / first["max_abs"] - 1) > 0.01


def test_a_zero_last_convolution_of_three_makes_the_condition_number_infinite(examples):
    found = initial_spectrum(all_conv_resnet(dataclasses.replace(THREE, residual_initializer="zero")), examples)
    # C₃ = 0: the loss does not know of C₁ and C₂, two thirds of the weights, to second order in them.
    assert found["condition_number"] == math.inf
    assert found["index"] < 1 / 2  # rounding about 0 is not counted as negative


@pytest.mark.parametrize(
    "models, changes, message",
    [([TWO, ONE], {}, "of one architecture"), ([TWO], {"labels": np.zeros(3, int)}, "one label per image")],
)
def test_a_mistake_in_a_call_is_named(examples, models, changes, message):
    arguments = {"images": examples[0], "labels": examples[1]} | changes
    assert message in refused(lambda: list(initial_spectra(map(all_conv_resnet, models), **arguments)))
    plain = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    assert "no residual kernel" in refused(initial_spectrum, plain, examples)


def figure_rows() -> list[dict]:
    """Two seeds of a curve in each panel, and one of every kind of number that is none."""
    shared = {"experiment": "convolutional", "shortcut_depth": 2, "initialisation": "small"}
    shared |= {"max_abs": 1.0, "p10_abs": 1e-3}
    rows = [
        shared | {"batch_norm": bn, "depth": depth, "seed": seed, "condition_number": 10.0 ** (2 + 2 * seed)}
        for bn in (0, 1)
        for depth in (6, 12)
        for seed in (0, 1)
    ]
    zero = rows[0] | {"shortcut_depth": 3, "initialisation": "zero"}
    return rows + [
        zero | {"condition_number": math.inf, "p10_abs": 0.0},
        zero | {"depth": 12, "condition_number": math.nan},
        rows[-1] | {"seed": 2, "condition_number": ""},
    ]


def test_the_figure_shows_geometric_means_and_marks_what_is_infinite(tmp_path):
    write_metrics(str(tmp_path / "results.csv"), figure_rows())
    for rows in (figure_rows(), read_rows(str(tmp_path / "results.csv"))):
        figure = convolutional.draw(rows)
        figure.savefig(tmp_path / "figure.png")
        without, with_batch_norm = figure.axes[:2]
        for axes in (without, with_batch_norm):
            (line,) = [line for line in axes.lines if "over 2, small" == str(line.get_label())]
            np.testing.assert_allclose(line.get_ydata(), 1e3)  # the mean of 10² and 10⁴, not 5050
            np.testing.assert_array_equal(line.get_xdata(), [6, 12])
        marks = [sum(line.get_marker() == "^" and line.get_mfc() == "none" for line in axes.lines)
                 for axes in figure.axes[:2]]  # fmt: skip
        assert marks == [1, 0]
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    convolutional.draw([])


def test_the_labels_are_those_of_the_images_that_are_chosen(monkeypatch):
    labels = np.random.default_rng(0).integers(0, 10, 60)
    images = np.zeros((60, 4, 4, 1), np.uint8)
    images.reshape(60, 16)[np.arange(60), labels] = 255  # the place of the bright pixel is the label
    data = StudyData(np.zeros((60, 10)), np.eye(10)[labels], images, labels)
    taken = []
    take = lambda models, *examples: taken.append(examples) or []  # noqa: E731
    monkeypatch.setattr("shortcut_study.convolutional.initial_spectra", take)
    convolutional.jobs(StudyConfig(conv_depths=(6,), conv_runs=1), data)[0].compute(lambda share: None)
    ((pixels, chosen),) = taken
    assert pixels.reshape(50, 16).argmax(1).tolist() == chosen.tolist()


def test_networks_of_one_depth_have_equally_many_residual_convolutions(monkeypatch):
    labels, built = np.arange(10), []
    data = StudyData(np.zeros((10, 10)), np.eye(10), np.zeros((10, 8, 8, 1), np.uint8), labels)
    monkeypatch.setattr("shortcut_study.convolutional.initial_spectra", lambda models, *_: built.extend(models) or [])
    for job in convolutional.jobs(StudyConfig(conv_depths=(6,), conv_runs=1), data):
        job.compute(lambda share: None)
    numbers = [
        [sum(isinstance(layer, of) for layer in model.layers) for of in (keras.layers.Conv2D, keras.layers.Add)]
        for model in built
    ]
    assert numbers == [[1 + 6, 6 // n] for n in (1, 2, 3) for _ in range(3)]  # and the stem
