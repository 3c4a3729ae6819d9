"""Checks of a Hessian's arguments: labels and images that fit the model, and batch normalisation with averages."""

import contextlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from shortcut_study.curvature import checks
from shortcut_study.curvature.examples import Examples


def functional(*outputs):
    inputs = [SimpleNamespace(shape=(None, 2, 1))]
    return SimpleNamespace(inputs=inputs, outputs=[SimpleNamespace(shape=shape) for shape in outputs])


MOST = np.iinfo(np.int32).max


@pytest.mark.parametrize(
    "y, loss, outputs, reason",
    [
        ([0, 2], None, [(None, 3)], None),
        ([[0], [2]], None, [(None, 3)], None),
        ([[0, 1], [2, 1]], None, [(None, 3)], r"got \(2, 2\) of int"),
        ([0.0, 1.0], None, [(None, 3)], "a whole number"),
        ([0, 3], None, [(None, 3)], "must lie in 0–2, the model's outputs, got 0–3"),
        ([-1, 2], None, [(None, 3)], "must lie in 0–2, the model's outputs, got -1–2"),
        ([0, 0], None, [(None, 2)], None),
        ([0, 0], None, [(None, 1)], "at least two classes"),
        ([0, 0], None, [(None, 2, 2)], "at least two classes"),
        ([0, 0], None, [(None, 1), (None, 3)], None),  # then each loss has its labels
        ([MOST, -MOST], "mse", [(None, 3)], None),
        ([MOST + 1, 0], "mse", [(None, 3)], "within int32, got 0–2147483648"),
        ([-MOST - 1, 0], "mse", [(None, 3)], "within int32, got -2147483648–0"),
        ([0, 5], "mse", [(None, 3)], None),
        ([0, 5], "sparse_categorical_crossentropy", [(None, 3)], "must lie in 0–2"),
        ([0, 5], SimpleNamespace(name="sparse_categorical_crossentropy", ignore_class=5), [(None, 3)], None),
        ([5, 5], SimpleNamespace(name="sparse_categorical_crossentropy", ignore_class=5), [(None, 3)], None),
    ],
)
def test_labels_are_classes_of_the_outputs_and_within_int32(y, loss, outputs, reason):
    given = Examples.from_arrays(np.zeros((2, 2, 1)), np.array(y), None, 2)
    loss = loss or SimpleNamespace(name="sparse_categorical_crossentropy")
    is_default = getattr(loss, "name", "") != "" and not hasattr(loss, "ignore_class")
    with contextlib.nullcontext() if reason is None else pytest.raises(ValueError, match=reason):
        checks.check_examples(given, loss, is_default, functional(*outputs))


def test_the_loss_itself_says_what_it_makes_of_labels_of_several_outputs():
    given = Examples.from_arrays(np.zeros((2, 2, 1)), [np.array([5, 6]), np.zeros(2)], None, 1)
    checks.check_examples(given, "sparse_categorical_crossentropy", False, functional((None, 3)))


@pytest.mark.parametrize("shape, is_taken", [((3, 2), True), ((3, 2, 1), True), ((3, 3, 1), False), ((3,), False)])
def test_images_are_of_the_shape_that_the_model_takes_or_lack_its_last_axis(shape, is_taken):
    given, refused = (
        Examples.from_arrays(np.zeros(shape), np.zeros(3), None, 3),
        pytest.raises(ValueError, match=r"be \[m, 2, 1\]"),
    )
    with contextlib.nullcontext() if is_taken else refused:
        checks.check_examples(given, "mse", False, functional((None, 3)))


def test_averages_that_one_channel_has_left_are_averages():
    layers = [keras.layers.BatchNormalization(name=name) for name in ("fresh", "mean", "variance", "both")]
    for layer in layers:
        layer.build((None, 2))
    layers[1].moving_mean.assign([0.0, 0.5])
    layers[2].moving_variance.assign([1.0, 0.5])
    layers[3].moving_mean.assign([0.5, 0.5])
    model = SimpleNamespace(_flatten_layers=lambda: [keras.layers.ReLU(), *layers])
    assert checks.without_averages(model) == ["fresh"]
