"""The Hessian along `fit` where there is nothing to measure, or not yet; test_curvature.py has its numbers."""

import keras
import numpy as np
import pytest

from shortcut_study.curvature import model_spectrum
from shortcut_study.curvature.callback import HessianCallback

RNG = np.random.default_rng(0)
X, CLASSES = RNG.standard_normal((12, 4)).astype(np.float32), RNG.integers(0, 3, 12)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fitted(model, tmp_path, **options):
    """The callback after a `fit` of two epochs."""
    callback = HessianCallback(X, CLASSES, tmp_path, order=5)
    model.compile(options.pop("optimizer", "sgd"), CROSS_ENTROPY)
    model.fit(X, CLASSES, verbose=0, callbacks=[callback], **{"epochs": 2} | options)
    return callback


def two_layers(*between):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "tanh"), *between, keras.layers.Dense(3)])


def diverged():
    model = two_layers()
    model.layers[-1].bias.assign([np.nan, 0, 0])
    return model, X, CLASSES


def fitted_to_rounding():
    """One kernel whose logits are 16 for the right class and 0 else: a loss of 2e-7."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.layers[0].kernel.assign(16 * np.eye(4, 3))
    return model, np.eye(4, dtype=np.float32)[:3], np.arange(3)


@pytest.mark.parametrize(
    "make, reason",
    [(diverged, "there is no Hessian product: the model's weights are NaN"), (fitted_to_rounding, "mvp_fn is not sym")],
)
def test_training_goes_on_where_there_is_nothing_to_measure(make, reason, tmp_path):
    model, x, y = make()
    callback = HessianCallback(x, y, tmp_path, order=5)
    model.compile("sgd", CROSS_ENTROPY)
    with pytest.warns(UserWarning, match=f"^the Hessian after . epochs is not measured: {reason}"):
        model.fit(x, y, epochs=2, verbose=0, callbacks=[callback])
    assert [row["epoch"] for row in callback.history] == [0, 1, 2]
    assert all(np.isnan(row["largest"]) and np.isnan(row["trace"]) for row in callback.history)


def test_batch_normalisation_is_not_measured_before_it_has_averages(tmp_path):
    model = two_layers(keras.layers.BatchNormalization())
    assert [row["epoch"] for row in fitted(model, tmp_path).history] == [1, 2]
    every_other = HessianCallback(X, CLASSES, tmp_path, order=5, every=2)
    fresh = two_layers(keras.layers.BatchNormalization())
    fresh.compile("sgd", CROSS_ENTROPY)
    fresh.fit(X, CLASSES, epochs=4, verbose=0, callbacks=[every_other])
    assert [row["epoch"] for row in every_other.history] == [2, 4]
    again = fitted(model, tmp_path, initial_epoch=2, epochs=3)
    assert [row["epoch"] for row in again.history] == [2, 3]


def test_the_columns_of_a_csv_logger_are_there_where_not_every_epoch_is_measured(tmp_path):
    model = two_layers()
    model.compile("sgd", CROSS_ENTROPY)
    callbacks = [
        HessianCallback(X, CLASSES, tmp_path / "logs", order=5, every=2),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    history = model.fit(X, CLASSES, epochs=4, verbose=0, callbacks=callbacks).history
    table = np.genfromtxt(tmp_path / "log.csv", delimiter=",", names=True)
    for name in ("hessian_largest", "hessian_smallest", "hessian_trace"):
        assert np.isnan(table[name]).tolist() == np.isnan(history[name]).tolist() == [True, False, True, False]
    measured = [row["largest"] for row in callbacks[0].history if row["epoch"] in (2, 4)]
    np.testing.assert_allclose(table["hessian_largest"][[1, 3]], measured, rtol=1e-6)


def test_layers_of_one_name_are_parts_of_their_own():
    def inner(name):
        inputs = keras.Input((4,))
        return keras.Model(inputs, keras.layers.Dense(4, name="dense")(inputs), name=name)

    model = keras.Sequential([keras.Input((4,)), inner("a"), inner("b"), keras.layers.Dense(3, name="last")])
    found = model_spectrum.parts(model)
    names = [name.removeprefix(f"{model.name}/") for name in found]
    assert names == ["dense", "dense (2)", "last"] and [len(entries) for entries in found.values()] == [20, 20, 15]
    assert sorted(np.concatenate(list(found.values()))) == list(range(55))
    model.layers[0].layers[1].kernel.trainable = False
    found = model_spectrum.parts(model)
    assert [entries.tolist() for entries in found.values()] == [[0, 1, 2, 3], list(range(4, 24)), list(range(24, 39))]
