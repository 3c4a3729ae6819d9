"""Data sets of batches, given to `train` and `evaluate` in Python, and labels that cannot be trained on."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from identity_matters import training
from identity_matters.data import given_batches
from identity_matters.data.arrays import mnist_sample
from identity_matters.data.given_batches import examples_of
from identity_matters.data.loading import load
from identity_matters.data.user_arrays import given_arrays, load_npz
from identity_matters.evaluation import evaluate


@pytest.fixture(scope="module")
def digits():
    """(x_train, y_train, x_test, y_test) of 200 and 50 digits."""
    data = mnist_sample()
    return data.train_images[:200], data.train_labels[:200], data.test_images[:50], data.test_labels[:50]


class Batches(keras.utils.PyDataset):
    """As users write them: nothing ends it but its length."""

    def __init__(self, images, labels):
        super().__init__()
        self.arrays = images.astype(np.float32), labels

    def __len__(self):
        return -(-len(self.arrays[1]) // 32)

    def __getitem__(self, index):
        return tuple(array[32 * (index % len(self)) :][:32] for array in self.arrays)


def as_tf_data(images, labels):
    """As keras.utils.image_dataset_from_directory gives them: floats in 0 … 255, in another order every time."""
    return tf.data.Dataset.from_tensor_slices((images.astype(np.float32), labels)).shuffle(1000).batch(32)


FORMS = {
    "tf.data": as_tf_data,
    "one-hot": lambda x, y: as_tf_data(x, np.eye(10, dtype=np.float32)[y]),
    "[n, 1]": lambda x, y: as_tf_data(x, y[:, None]),
    "PyDataset": Batches,
    "list": lambda x, y: [(x[i : i + 32], y[i : i + 32]) for i in range(0, len(y), 32)],
    "generator": lambda x, y: ([x[i], y[i]] for i in np.split(np.arange(len(y)), 10)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_pair_of_data_sets_holds_the_examples_of_the_arrays(tiny_config, digits, form):
    x, y, x_test, y_test = digits
    data = load(training.TrainConfig(), (FORMS[form](x, y), FORMS[form](x_test, y_test)))
    assert data.num_train == 200 and data.num_test == 50 and data.num_classes == 10
    known = {image.tobytes(): label for image, label in zip(x, y)}
    assert {image.tobytes(): label for image, label in zip(data.train_images, data.train_labels)} == known
    assert len(np.unique(data.train_labels[:20])) > 4  # no class by class


def test_the_same_examples_in_another_order_are_the_same_data(digits):
    x, y, x_test, y_test = digits
    names = {load(training.TrainConfig(), (as_tf_data(x, y), Batches(x_test, y_test))).name for _ in range(2)}
    assert len(names) == 1
    assert load(training.TrainConfig(), (as_tf_data(x, 9 - y), Batches(x_test, y_test))).name not in names


def test_a_run_on_data_sets_goes_on_and_is_evaluated_on_one(tiny_config, digits, tmp_path, without_results):
    x, y, x_test, y_test = digits
    row = training.train(tiny_config, tmp_path / "run", data=(as_tf_data(x, y), Batches(x_test, y_test)))
    assert row["step"] == 4
    longer = training.TrainConfig(**vars(tiny_config) | {"train_steps": 6})
    assert training.train(longer, tmp_path / "run", data=(as_tf_data(x, y), as_tf_data(x_test, y_test)))["step"] == 6


def test_evaluate_takes_every_form_too(tiny_run, digits):
    x, y = digits[2:]
    expected = evaluate(tiny_run, (x, y))
    for form, make in FORMS.items():
        if form != "[n, 1]":
            assert evaluate(tiny_run, make(x, y)) == expected, form


def endless():
    return (batch for batch in itertools.repeat((np.zeros((64, 8, 8), np.uint8), np.zeros(64, int))))


X, Y = np.zeros((4, 8, 8), np.uint8), np.arange(4)


@pytest.mark.parametrize(
    "data, words",
    [
        (lambda: [(X, Y, Y)], "batches of (images, labels), got 3 parts"),
        (lambda: [X], "batches of (images, labels), got a ndarray"),
        (lambda: 5, "batches of (images, labels), got a int"),
        (lambda: {"image": X, "label": Y}, "batches of (images, labels), got a dict"),
        (lambda: zip(X, Y), "for single examples, dataset.batch(100) makes batches"),
        (lambda: [(X, Y[:3])], "4 images with 3 labels"),
        (lambda: [(X, Y), (X[:, :4], Y)], "images of several shapes: (4, 8), (8, 8)"),
        (lambda: [], "gives no batch"),
        (endless, "do not fit in memory, or has no end"),
        (lambda: [(X, ["ant", "bee", "cat", "dog"])], "names.index(y)"),
    ],
)
def test_what_is_no_data_set_is_refused_in_one_line(data, words, monkeypatch):
    monkeypatch.setattr(given_batches, "MAX_BYTES_IN_MEMORY", 100_000)
    message = refused(examples_of, "train", data())
    assert message.startswith("train") and words in message


@pytest.mark.parametrize(
    "names", [["bee", "ant", "bee"], np.array(["bee", "ant", "bee"], object), [b"bee", b"ant", b"bee"]]
)
def test_string_labels_are_refused_with_the_line_that_converts_them(names):
    x = np.zeros((3, 8, 8), np.uint8)
    message = refused(given_arrays, (x, names, x, names))
    line = message.partition("; ")[2].removesuffix(" converts names")
    scope = {"y_train": names, "y_test": names[:2]}
    exec(line, scope)
    assert scope["y_train"] == [1, 0, 1] and scope["y_test"] == [1, 0]
    assert given_arrays((x, scope["y_train"], x[:2], scope["y_test"])).num_classes == 2


@pytest.mark.parametrize("rows, found", [([[1, 1, 0], [0, 0, 1]], "2 classes"), ([[0, 0, 0], [0, 0, 1]], "0 classes")])
def test_multi_label_is_refused(rows, found):
    x = np.zeros((2, 8, 8), np.uint8)
    message = refused(given_arrays, (x, np.array(rows), x, np.array(rows)))
    assert found in message and "multi-label is not supported" in message


def test_arrays_of_a_file_that_nothing_reads_are_named(tmp_path, capfd):
    x, y = np.zeros((3, 8, 8), np.uint8), np.arange(3)
    arrays = {"train_images": x, "train_labels": y, "x_test": x, "y_test": y}
    np.savez(tmp_path / "mine.npz", **arrays)
    load_npz(str(tmp_path / "mine.npz"))
    assert not capfd.readouterr().err
    np.savez(tmp_path / "mine.npz", **arrays, val_images=x, val_labels=y)
    load_npz(str(tmp_path / "mine.npz"))
    assert "note: mine.npz: val_images, val_labels are not read; the errors are those" in capfd.readouterr().err
    np.savez(tmp_path / "mine.npz", **arrays | {"train_labels": np.array(["a", "b", "c"])})
    assert "train_labels must be whole numbers, got <U1; names = " in refused(load_npz, str(tmp_path / "mine.npz"))
