"""Arrays of one's own, given to `train` in Python: taken in many forms, refused in one line, resumed as the same."""

import dataclasses

import keras
import numpy as np
import pytest
from refusals import refused

from identity_matters import training
from identity_matters.config import TrainConfig
from identity_matters.data import arrays, loading
from identity_matters.data.arrays import mnist_sample
from identity_matters.data.loading import load
from identity_matters.data.user_arrays import as_examples, given_arrays
from identity_matters.evaluation import evaluate
from identity_matters.runs.directory import read_record


@pytest.fixture(scope="module")
def digits():
    """(x_train, y_train, x_test, y_test) of 200 and 50 digits."""
    data = mnist_sample()
    return data.train_images[:200], data.train_labels[:200], data.test_images[:50], data.test_labels[:50]


@pytest.fixture(scope="module")
def given_run(tiny_config, digits, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "given"
    return run_dir, training.train(tiny_config, run_dir, data=digits)


def test_training_on_arrays_is_training_on_the_data_set_that_they_come_from(given_run, tiny_run):
    run_dir, row = given_run
    assert row["train_top1_error"] <= 1 and read_record(run_dir)["status"] == "done"
    networks = [keras.saving.load_model(path / "model.keras") for path in (run_dir, tiny_run)]
    for variable, other in zip(*(network.variables for network in networks)):
        np.testing.assert_array_equal(variable, other)


def test_a_list_and_arrays_in_other_forms_are_taken(digits):
    x, y, x_test, y_test = digits
    forms = [x[..., 0] / 255, np.eye(10)[y], x_test[..., 0].astype(np.float32) / 255, y_test[:, None]]
    data = given_arrays(forms)
    np.testing.assert_array_equal(data.train_images, x)
    np.testing.assert_array_equal(data.test_labels, y_test)
    assert data.name == given_arrays(digits).name  # which tells whether a run goes on


@pytest.mark.parametrize("shape", [(6, 3, 32, 32), (6, 1, 28, 28)])
def test_channels_first_are_refused_with_what_to_do(shape):
    x = np.zeros(shape, np.uint8)
    assert "x.transpose(0, 2, 3, 1)" in refused(given_arrays, (x, np.arange(6), x, np.arange(6)))
    assert given_arrays((x.transpose(0, 2, 3, 1), np.arange(6)) * 2).image_shape == (*shape[2:], shape[1])
    with pytest.raises(ValueError, match="channels first"):
        as_examples(x, np.arange(6))


def test_resizing_is_of_what_is_used_alone_and_of_any_number_at_a_time(digits, monkeypatch):
    config = TrainConfig(image_size=14, train_examples=20, eval_examples=10)
    seen = []
    monkeypatch.setattr(
        loading, "resized", lambda data, size: seen.append(data.num_train) or arrays.resized(data, size)
    )
    data = load(config, digits)
    monkeypatch.setattr(arrays, "_PIXELS_AT_ONCE", 28 * 28 * 3)
    np.testing.assert_array_equal(load(config, digits).train_images, data.train_images)
    assert seen == [20, 20] and data.image_shape == (14, 14, 1)


def test_the_same_arrays_go_on_and_others_are_another_run(given_run, tiny_config, digits):
    run_dir, row = given_run
    assert training.train(tiny_config, run_dir, data=digits) == pytest.approx(row, rel=1e-6, nan_ok=True)
    x, y, x_test, y_test = digits
    message = refused(training.train, tiny_config, run_dir, data=(x, np.roll(y, 1), x_test, y_test))
    assert "another config" in message and "dataset (arrays " in message
    assert "another config" in refused(training.train, tiny_config, run_dir)


def test_a_run_on_a_file_is_refused_once_the_file_holds_other_data(tiny_config, digits, tmp_path):
    x, y, x_test, y_test = digits
    config = dataclasses.replace(tiny_config, npz=tmp_path / "own.npz")
    np.savez(config.npz, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    row = training.train(config, tmp_path / "run")
    assert training.train(config, tmp_path / "run") == pytest.approx(row, rel=1e-6, nan_ok=True)
    np.savez(config.npz, x_train=255 - x, y_train=y, x_test=x_test, y_test=y_test)
    assert "own.npz has changed" in refused(training.train, config, tmp_path / "run")


def test_a_run_on_arrays_says_that_nothing_has_stored_them(given_run, digits):
    run_dir, row = given_run
    for path in (run_dir / "saved_model", run_dir / "model.keras"):
        assert "given in Python" in refused(evaluate, path)
    assert evaluate(run_dir / "saved_model", digits[2:])["top1_error"] == pytest.approx(row["test_top1_error"])
    assert "given in Python" in refused(load, training.TrainConfig(dataset=read_record(run_dir)["config"]["dataset"]))


@pytest.mark.parametrize(
    "data, words",
    [
        ("digits", "(x_train, y_train, x_test, y_test), got a str"),
        (((1, 2), (3, 4)), "got 2 of them"),
        (([[1, 2], [3]], [0], [[1]], [0]), "train_images must be one array"),
        ((["a"], [0], ["b"], [0]), "train_images must be numbers"),
        ((np.zeros((2, 64)), [0, 1], np.zeros((2, 64)), [0, 1]), "must be [n, h, w]"),
    ],
)
def test_unfit_data_are_refused_with_what_is_wanted(data, words):
    assert words in refused(given_arrays, data)


def test_num_classes_makes_room_for_classes_that_the_training_set_lacks(digits):
    x, y, x_test, y_test = digits
    lacking = (x[y < 8], y[y < 8], x_test, y_test)
    assert "--num_classes=10" in refused(given_arrays, lacking)
    assert given_arrays(lacking, num_classes=10).num_classes == 10
    assert "speak of 8 classes" in refused(given_arrays, lacking, num_classes=7)


def test_num_classes_is_for_data_of_ones_own(tiny_config):
    assert "num_classes is for data of your own" in refused(load, dataclasses.replace(tiny_config, num_classes=12))


def test_a_run_with_more_classes_than_its_training_set_is_evaluated(tiny_config, digits, tmp_path):
    x, y, x_test, y_test = digits
    arrays = {"x_train": x[y < 8], "y_train": y[y < 8], "x_test": x_test, "y_test": y_test}
    np.savez(tmp_path / "own.npz", **arrays)
    config = dataclasses.replace(tiny_config, npz=tmp_path / "own.npz", num_classes=10)
    row = training.train(config, tmp_path / "run")
    assert evaluate(tmp_path / "run" / "saved_model")["top1_error"] == pytest.approx(row["test_top1_error"])


_BYTES = np.random.default_rng(0).integers(0, 256, (6, 8, 8)).astype(float)
_BYTES.flat[:2] = 0, 255  # so that the range is all of it


@pytest.mark.parametrize("number", [np.float32, np.float64])
@pytest.mark.parametrize(
    "train, test, ranges",
    [
        (_BYTES / 255, _BYTES, ("0 … 1", "0 … 255")),
        (_BYTES, _BYTES / 255, ("0 … 255", "0 … 1")),
        (_BYTES / 127.5 - 1, _BYTES, ("-1 … 1", "0 … 255")),
        (_BYTES, _BYTES / 127.5 - 1, ("0 … 255", "-1 … 1")),
        ((_BYTES / 255 - 0.45) / 0.23, _BYTES, ("-1.957 … 2.391", "0 … 255")),
        (_BYTES, (_BYTES / 255 - 0.45) / 0.23, ("0 … 255", "-1.957 … 2.391")),
        (_BYTES / 255**2, _BYTES / 255, ("0 … 0.003922", "0 … 1")),  # divided twice
        (_BYTES > 99, _BYTES, ("0 … 1", "0 … 255")),
        (_BYTES / 255, 4.1 * _BYTES / 255, ("0 … 1", "0 … 4.1")),
        (_BYTES / 255 - 0.5, 5 * (_BYTES / 255 - 0.5), ("-0.5 … 0.5", "-2.5 … 2.5")),  # 2 on either side
        (_BYTES / 50, _BYTES * 0.9, ("0 … 5.1", "0 … 229.5")),
    ],
)
def test_splits_of_different_scales_are_refused_with_both_ranges(train, test, ranges, number):
    message = refused(given_arrays, (train.astype(number), np.arange(6), test.astype(number), np.arange(6)))
    assert f"train_images lie in {ranges[0]}, but test_images in {ranges[1]}" in message


@pytest.mark.parametrize(
    "train, test",
    [
        (_BYTES / 255, _BYTES * 0.98 / 255),
        (_BYTES / 255, _BYTES * 1.05 / 255 - 0.02),  # as after a bicubic resize
        (_BYTES / 50 - 2, _BYTES / 20 - 4),  # standardised: of heavier tails
        (_BYTES, _BYTES // 20),  # a dark set
        (_BYTES % 17, _BYTES[:1] % 17),  # scikit-learn's digits, in 0 … 16
        (_BYTES[:1, :1] / 255, _BYTES / 255),
        (_BYTES, np.zeros((2, 8, 8))),
        (np.zeros((6, 8, 8)), _BYTES / 255),
        (_BYTES / 255, _BYTES[:1] / 1000),
        (_BYTES / 1500, _BYTES / 255),  # dark images to train on
        (_BYTES // 20, _BYTES),
        (_BYTES / 255, 3.9 * _BYTES / 255),
        (_BYTES / 255 - 0.5, 3.9 * (_BYTES / 255 - 0.5)),
        (_BYTES / 15, _BYTES / 4),  # above 64, but not of the scale of bytes
        (_BYTES > 99, _BYTES / 170),
    ],
)
def test_splits_of_one_scale_are_taken_though_their_ranges_differ_and_nothing_is_clipped(train, test):
    train, test = np.resize(train, (6, 8, 8)).astype(float), test.astype(float)
    data = given_arrays((train, np.arange(6), test, np.zeros(len(test), int)))
    floats = np.concatenate([train.ravel(), test.ravel()])
    found = np.concatenate([data.train_images.ravel(), data.test_images.ravel()])
    assert np.abs(np.polyval(np.polyfit(floats, found, 1), floats) - found).max() < 1  # one straight line for both


@pytest.mark.parametrize("scale, offset", [(1 / 255, 0.0), (1 / 127.5, -1.0), (0.1, 3.0)])
def test_test_images_brighter_than_the_training_images_stretch_both(capsys, scale, offset):
    train, test = scale * _BYTES + offset, scale * 2 * _BYTES + offset
    data = given_arrays((train, np.arange(6), test, np.arange(6)))
    np.testing.assert_allclose(data.train_images[..., 0], _BYTES / 2, atol=0.5001)
    np.testing.assert_array_equal(data.test_images[..., 0], _BYTES)
    stretched = f"{offset:.4g} … {offset + scale * 510:.4g}"
    said = f"the data: images are float64 in {stretched}; {stretched} becomes 0 … 255, in whole numbers"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("scale, low", [(1 / 255, 0), (1 / 255 / 15.9, 0), (1 / 255 / 16.1, 255), (1 / 255**2, 255)])
def test_images_far_below_1_keep_their_levels(scale, low):
    """From 0 … 1 to 0 … 1/16 they are taken as they are, so that a dark part of a set stays dark; below, stretched."""
    data = given_arrays((scale * _BYTES, np.arange(6), scale * _BYTES, np.arange(6)))
    assert data.train_images.max() == (low or round(255**2 * scale))
    assert len(np.unique(data.train_images)) >= 17 and not data.train_images.min()


@pytest.mark.parametrize(
    "number, limit", [(np.float16, 65504), (np.float16, 1e-3), (np.float32, 3.4e38), (np.float64, 1.7e308)]
)
def test_the_whole_range_of_a_floating_point_type_is_taken(number, limit):
    images = (limit * (np.arange(256) / 127.5 - 1)).astype(number).reshape(4, 8, 8)
    with np.errstate(all="raise", under="ignore"):
        data = given_arrays((images, np.arange(4), images, np.arange(4)))
    np.testing.assert_array_equal(data.train_images.ravel(), np.arange(256))


@pytest.mark.parametrize("value", [0.5, -3.0, 1e17, -1e17, 1.7e308, -1.7e308, 1e-320])
def test_constant_images_are_taken_whatever_their_value(value):
    images = np.full((3, 8, 8), value)
    assert len(np.unique(given_arrays((images, np.arange(3)) * 2).train_images)) == 1
    assert len(np.unique(as_examples(images, np.arange(3))[0])) == 1


def test_images_of_a_range_that_float32_does_not_divide_255_by_are_refused():
    images = 1e-40 * np.arange(-96, 96.0).reshape(3, 8, 8)
    assert "multiply them by a large number" in refused(given_arrays, (images, np.arange(3)) * 2)


@pytest.mark.parametrize("images, labels", [(5.0, 3), (np.zeros((2, 8, 8), np.uint8), 3), (5.0, [1, 2])])
def test_a_number_in_place_of_images_or_labels_is_refused(images, labels):
    assert "must be arrays, got the shapes" in refused(as_examples, images, labels)
