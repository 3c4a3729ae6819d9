"""A user's arrays and batches, passed in Python: accepted forms, short errors, and resumption with the same data."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from begun import read_config_json
from loaded import load
from refusals import refused

from identity_matters import pretrained, training
from identity_matters.config import DataConfig
from identity_matters.data import arrays
from identity_matters.data import given as given_module
from identity_matters.data.arrays import given_source
from identity_matters.data.digits import mnist_sample
from identity_matters.data.given import read_batches, read_examples
from identity_matters.evaluation import evaluate
from shortcut_study.curvature.examples import gathered

ANY = DataConfig()


def loaded_name(data):
    return given_source(data, ANY).name


@pytest.fixture(scope="module")
def digits():
    """(x_train, y_train, x_test, y_test) of 200 and 50 digits."""
    data = mnist_sample()
    return data.train_images[:200], data.train_labels[:200], data.test_images[:50], data.test_labels[:50]


@pytest.fixture(scope="module")
def given_run(tiny_config, digits, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "given"
    return run_dir, training.train(tiny_config, run_dir, data=digits)


@pytest.mark.slow
def test_training_on_arrays_is_training_on_the_data_set_that_they_come_from(given_run, tiny_run):
    run_dir, row = given_run
    assert row["train_top1_error"] <= 1 and read_config_json(run_dir)["status"] == "done"
    networks = [keras.saving.load_model(path / "model.keras") for path in (run_dir, tiny_run)]
    for variable, other in zip(*(network.variables for network in networks)):
        np.testing.assert_array_equal(variable, other)


def test_a_list_and_arrays_in_other_forms_are_taken(digits):
    x, y, x_test, y_test = digits
    forms = [x[..., 0] / 255, np.eye(10)[y], x_test[..., 0].astype(np.float32) / 255, y_test[:, None]]
    data = load(ANY, forms)
    np.testing.assert_array_equal(data.train_images, x)
    np.testing.assert_array_equal(data.test_labels, y_test)
    assert data.source.name == loaded_name(digits)  # which tells whether a run goes on


def test_the_config_of_a_run_on_arrays_has_their_name_and_shape_and_its_own_numbers(digits, tiny_config):
    model = dataclasses.replace(tiny_config.model, image_shape=(32, 32, 3), num_classes=3)
    config = dataclasses.replace(tiny_config, model=model)
    data = dataclasses.replace(tiny_config.data, dataset=loaded_name(digits))
    fitted = training.fitted_to(given_source(digits, config.data), config, is_given=True)
    assert fitted == dataclasses.replace(tiny_config, data=data)


def test_channels_first_are_rejected_with_advice():
    x = np.zeros((6, 3, 32, 32), np.uint8)
    assert "x.transpose(0, 2, 3, 1)" in refused(given_source, (x, np.arange(6), x, np.arange(6)), ANY)
    assert given_source((x.transpose(0, 2, 3, 1), np.arange(6)) * 2, ANY).image_shape == (32, 32, 3)


@pytest.mark.slow
def test_the_same_arrays_resume_and_others_are_another_run(given_run, tiny_config, digits):
    run_dir, row = given_run
    assert training.train(tiny_config, run_dir, data=digits) == pytest.approx(row, rel=1e-6, nan_ok=True)
    x, y, x_test, y_test = digits
    message = refused(training.train, tiny_config, run_dir, data=(x, np.roll(y, 1), x_test, y_test))
    assert "another config" in message and "data.dataset (arrays " in message
    assert "another config" in refused(training.train, tiny_config, run_dir)


@pytest.mark.slow
def test_a_run_on_arrays_says_that_nothing_has_stored_them(given_run, digits):
    run_dir, row = given_run
    for path in (run_dir / "saved_model", run_dir / "model.keras"):
        assert "given in Python" in refused(evaluate, path)
    assert evaluate(run_dir / "saved_model", digits[2:])["top1_error"] == pytest.approx(row["test_top1_error"])
    stored = read_config_json(run_dir)["config"]["data"]
    assert "given in Python" in refused(load, DataConfig(stored["dataset"]))


_BYTES = np.random.default_rng(0).integers(0, 256, (6, 8, 8)).astype(float)
_BYTES.flat[:2] = 0, 255  # so that the range is all of it


@pytest.mark.parametrize(
    "images, labels, words",
    [
        (4, [-1, 0, 1, 2], "labels must lie in 0–3, the training labels' range, got -1–2"),
        (4, [0, 1, 2, 4], "labels must lie in 0–3, the training labels' range, got 0–4"),
        (4, [0, 1, 2], "4 images, but labels of shape (3,)"),
        (0, [], "images must be [n, h, w] or [n, h, w, c] and not empty, got (0, 8, 8, 1)"),
    ],
)
def test_a_split_that_does_not_fit_together_is_rejected(images, labels, words):
    split = {"train": np.zeros((images, 8, 8, 1), np.uint8)}, {"train": np.array(labels, np.int32)}
    assert words in refused(arrays.ArraySource, "random", *split, 4)


@pytest.mark.parametrize(
    "data, words",
    [
        ("digits", "(x_train, y_train, x_test, y_test), got a str"),
        (((1, 2, 3)), "got 3 of them"),
        (([[1, 2], [3]], [0], [[1]], [0]), "train_images must be one array"),
        ((["a"], [0], ["b"], [0]), "train_images must be numbers"),
        ((np.zeros((2, 64)), [0, 1], np.zeros((2, 64)), [0, 1]), "must be [n, h, w]"),
        ((np.where(_BYTES > 99, np.nan, 0), [0, 1] * 3, _BYTES, [0, 1] * 3), "train_images have a value that is not"),
        ((_BYTES, [0, 0.5] * 3, _BYTES, [0, 1] * 3), "train_labels must be whole numbers, got 0.5"),
        ((_BYTES, [[2, -1], [0, 1]] * 3, _BYTES, [0, 1] * 3), "one-hot rows of one class each"),
        ((_BYTES, [[0, 1, 1], [0, 0, 1]] * 3, _BYTES, [0, 1] * 3), "one-hot rows of one class each"),  # multi-label
    ],
)
def test_unfit_data_are_rejected_with_the_expected_form(data, words):
    assert words in refused(given_source, data, ANY)


def test_num_classes_makes_room_for_classes_that_the_training_set_lacks(digits):
    x, y, x_test, y_test = digits
    lacking = (x[y < 9], y[y < 9], x_test, y_test)
    assert "--num_classes=10" in refused(given_source, lacking, ANY)
    assert given_source(lacking, DataConfig(num_classes=10)).num_classes == 10
    for too_few in (1, 8):
        assert "have 9 classes" in refused(given_source, lacking, DataConfig(num_classes=too_few))
    assert "num_classes is for your own data" in refused(load, DataConfig("mnist_sample", num_classes=12))


@pytest.mark.slow
def test_labels_that_begin_at_1_are_noted(digits, capsys):
    x_train, y_train, x_test, y_test = digits
    source = given_source((x_train, y_train + 1, x_test, y_test + 1), ANY)
    assert source.num_classes == 11
    line = capsys.readouterr().err
    assert "labels of the data are 1–10" in line and "has 11 classes, 1 of them without an image" in line
    given_source(digits, ANY)
    given_source((x_train, y_train + 1, x_test, y_test + 1), DataConfig(num_classes=12))
    assert capsys.readouterr().err == ""


def test_a_run_with_more_classes_than_its_training_set_is_evaluated(tiny_config, digits, tmp_path):
    x, y, x_test, y_test = digits
    arrays = {"x_train": x[y < 8], "y_train": y[y < 8], "x_test": x_test, "y_test": y_test}
    np.savez(tmp_path / "own.npz", **arrays)
    config = dataclasses.replace(tiny_config, data=DataConfig(npz=tmp_path / "own.npz", num_classes=10))
    row = training.train(config, tmp_path / "run")
    assert evaluate(tmp_path / "run" / "saved_model")["top1_error"] == pytest.approx(row["test_top1_error"])


def given(train, test):
    data = (train, np.arange(len(train)), test, np.zeros(len(test), int))
    return load(DataConfig(num_classes=len(train) + 1), data)


@pytest.mark.parametrize("number", [np.float16, np.float64])
@pytest.mark.parametrize(
    "train, test",
    [
        (_BYTES / 255, _BYTES * 0.98 / 255),
        (_BYTES, _BYTES // 20),  # a dark set
        (_BYTES % 3, _BYTES),
        (_BYTES % 3, _BYTES % 3),
        (_BYTES % 17, _BYTES[:1] % 17),  # scikit-learn's digits, in 0 … 16
        (_BYTES[:1, :1].repeat(8, axis=1) / 255, _BYTES / 255),
        (np.zeros((6, 8, 8)), _BYTES / 255),
        (_BYTES / 1500, _BYTES / 255),  # dark images to train on
    ],
)
def test_floats_of_one_scale_become_the_nearest_bytes_though_their_ranges_differ(train, test, number):
    train, test = train.astype(number), test.astype(number)
    data, factor = given(train, test), 1 if max(train.max(), test.max()) > 1 else 255
    for found, floats in ((data.train_images, train), (data.test_images, test)):
        expected = np.rint(floats.astype(np.promote_types(number, np.float32)) * factor)
        np.testing.assert_array_equal(found[..., 0], expected)


def test_splits_of_different_scales_are_rejected():
    assert "one split of the images lies in 0 … 1, the other in 0 … 255" in refused(given, _BYTES, _BYTES / 255)


def test_images_are_resized_as_by_keras_in_chunks_of_any_size(digits, monkeypatch):
    x = digits[0][:20]
    expected = keras.ops.image.resize(x.astype(np.float32), (14, 14), antialias=True)
    for pixels in (28 * 28 * 3, 2**20):
        monkeypatch.setattr(arrays, "_PIXELS_AT_ONCE", pixels)
        np.testing.assert_array_equal(arrays.resize(x, 14), np.rint(keras.ops.convert_to_numpy(expected)))
    assert arrays.resize(x[:, 3:], 14).shape == (20, 14, 14, 1)


def test_floats_and_bytes_are_not_mixed():
    for train, test in ((_BYTES.astype(np.uint8), _BYTES), (_BYTES / 255, _BYTES > 99)):
        types = f"images as one type, got train_images {train.dtype}, test_images {test.dtype}"
        assert refused(given, train, test).endswith(types)


@pytest.mark.parametrize(
    "train, test, advice",
    [
        (_BYTES / 127.5 - 1, _BYTES / 127.5 - 1, "(images - -1) / 2"),
        (_BYTES / 255, _BYTES / 255 - 0.02, "(images - -0.02) / 1"),
        (_BYTES, 2 * _BYTES, "(images - 0) / 510"),
    ],
)
def test_other_ranges_are_rejected_with_the_line_that_converts_them(train, test, advice):
    message = refused(given, train, test)
    assert "must lie in 0 … 255, or be floats in 0 … 1, got" in message and f"images = {advice}, for both" in message


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
def test_a_pair_of_data_sets_holds_the_examples_of_the_arrays(digits, form):
    x, y, x_test, y_test = digits
    data = load(ANY, (FORMS[form](x, y), FORMS[form](x_test, y_test)))
    assert len(data.train_labels) == 200 and len(data.test_labels) == 50 and data.source.num_classes == 10
    known = {image.tobytes(): label for image, label in zip(x, y)}
    assert {image.tobytes(): label for image, label in zip(data.train_images, data.train_labels)} == known
    assert len(np.unique(data.train_labels[:20])) > 4  # no class by class


def test_the_same_examples_in_another_order_are_the_same_data(digits):
    x, y, x_test, y_test = digits
    names = {loaded_name((as_tf_data(x, y), Batches(x_test, y_test))) for _ in range(2)}
    assert len(names) == 1
    assert loaded_name((as_tf_data(x, 9 - y), Batches(x_test, y_test))) not in names


@pytest.mark.slow
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
        (lambda: zip(X, Y), "arrays (8, 8) and (); dataset.batch(100) makes batches of single examples"),
        (lambda: [(X, Y[:3])], "4 images with 3 labels"),
        (lambda: [(X, Y), (X[:, :4], Y)], "images of several shapes: (4, 8), (8, 8)"),
        (lambda: [], "gives no batch"),
        (endless, "gives more than the 1e+05 values that fit in memory"),
    ],
)
def test_an_invalid_data_set_raises_a_short_error(data, words, monkeypatch):
    monkeypatch.setattr(given_module, "MAX_BYTES_IN_MEMORY", 100_000)
    message = refused(read_examples, "train", data())
    assert message.startswith("train") and words in message


class ByNumber:
    """Batches that only have a number, and whose numbers have no end."""

    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count

    def __getitem__(self, i):
        return X, Y


READERS = {
    "train": lambda data: read_examples("train", data),
    "evaluate": lambda data: evaluate(pretrained.load("digits"), data),
    "curvature": lambda data: gathered(data),
}


@pytest.mark.parametrize("reader", READERS)
def test_data_without_end_are_a_short_error(reader):
    repeated = tf.data.Dataset.from_tensors((X, Y)).repeat()
    assert "repeats without end; take some of it, e.g. data.take(100)" in refused(READERS[reader], repeated)


def wide(count, length):
    """Batches of a data set for the shipped digits."""
    for _ in range(count):
        yield np.zeros((length, 28, 28, 1), np.uint8), np.zeros(length, int)


def test_the_first_examples_of_data_without_end_are_evaluated():
    data = tf.data.Dataset.from_generator(lambda: wide(1, 4), output_types=("uint8", "int64")).repeat()
    assert evaluate(pretrained.load("digits"), data, max_examples=10)["num_examples"] == 10


@pytest.mark.parametrize("reader", ["train", "curvature"])
def test_batches_by_number_are_read_to_their_number(reader):
    read = [READERS[reader](ByNumber(count)) for count in (1, 3)]
    assert [len(found) if reader == "curvature" else len(found[0]) for found in read] == [4, 12]


def test_sample_weights_are_as_many_as_the_images():
    parts = lambda weights: list(read_batches("data", [(X, Y, weights)], with_weights=True))  # noqa: E731
    assert len(parts(Y)[0]) == 3 and "gives 4 images with 4 and 3 labels" in refused(parts, Y[:3])


@pytest.mark.parametrize("names", [np.array(["bee", "ant", "bee"], object), [b"bee", b"ant", b"bee"]])
def test_string_labels_are_rejected_with_the_line_that_converts_them(names):
    x = np.zeros((3, 8, 8), np.uint8)
    message = refused(given_source, (x, names, x, names), ANY)
    line = message.partition("; ")[2].removesuffix(" converts names")
    scope = {"y": names}
    exec(line, scope)
    assert scope["y"] == [1, 0, 1] and given_source((x, scope["y"]) * 2, ANY).num_classes == 2


def of_values(*values, dtype=np.float32):
    """Images of one pixel each."""
    return np.array(values, dtype).reshape(-1, 1, 1, 1)


@pytest.mark.parametrize(
    "images, taken",
    [
        (of_values(0, 255, dtype=np.int16), [0, 255]),
        (of_values(-1, 255, dtype=np.int16), "must lie in 0 … 255"),
        (of_values(0, 256, dtype=np.int16), "got 0 … 256"),
        (of_values(0, 1, dtype=bool), [0, 255]),
        (of_values(0, 0.5, 1), [0, 127.5, 255]),  # 0 … 1
        (of_values(0, 0.5, 1.25), [0, 0.5, 1.25]),  # 0 … 255
        (of_values(0, 0.5, 255), [0, 0.5, 255]),
        (of_values(0, 0.5, 255.5), "must lie in 0 … 255"),
        (of_values(-0.5, 0.5, 255), "got -0.5 … 255"),
        (of_values(np.nan, 0.5), "have a value that is not a number"),
        (np.zeros((2, 3, 5, 5), np.uint8), "channels first"),
        (np.zeros((2, 4, 5, 5), np.uint8), "channels first"),
        (np.zeros((2, 1, 6, 5), np.uint8), "channels first"),
        (np.zeros((2, 2, 6, 5), np.uint8), [0] * 120),
        (np.zeros((2, 3, 4, 5), np.uint8), [0] * 120),
        (np.zeros((2, 6, 4), np.uint8), [0] * 48),
    ],
)
def test_evaluation_images_are_bytes_or_floats_in_one_of_two_ranges_channels_last(images, taken):
    labels = np.zeros(len(images), int)
    if isinstance(taken, str):
        assert taken in refused(arrays.as_examples, images, labels)
        return
    found, _ = arrays.as_examples(images, labels)
    assert found.ndim == 4
    np.testing.assert_allclose(found.ravel(), taken, atol=0.5)
