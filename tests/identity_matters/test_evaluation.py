"""The SavedModel answers as the network does, without our code; errors are counted as NumPy counts them."""

import dataclasses
import gc
import os
import shutil
import subprocess
import sys
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from refusals import refused
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tqdm import tqdm

from identity_matters import evaluation
from identity_matters.config import DataConfig
from identity_matters.data.digits import mnist_sample
from identity_matters.data.source import open_source
from identity_matters.errors import UserError
from identity_matters.evaluation import evaluate, export, load_classifier
from identity_matters.model import all_conv_resnet, standardize
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.tables import read_metrics


@pytest.fixture(scope="module")
def digits():
    """float32 [9, 28, 28, 1] in 0–255, one of them constant."""
    images = mnist_sample().test_images[:9].astype(np.float32)
    images[4] = 200
    return images


@pytest.fixture(scope="module")
def exported(tiny_run):
    return str(tiny_run / "saved_model")


@pytest.fixture(scope="module")
def pixel_model(tmp_path_factory):
    """A SavedModel whose ten logits are the pixels of a 2×5 image."""
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None, 2, 5, 1], tf.float32, name="images")])
    def serve(images):
        logits = tf.reshape(images, [-1, 10])
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    path = str(tmp_path_factory.mktemp("models") / "pixels")
    tf.saved_model.save(module, path, signatures={"serving_default": serve})
    return path


@pytest.fixture(scope="module")
def ranked():
    """(images, labels, top-1 error, top-5 error) for pixel_model: 40 images of ten different pixels each."""
    rng = np.random.default_rng(0)
    logits, labels = rng.permuted(np.tile(np.arange(10), (40, 1)), axis=1), rng.integers(0, 10, 40)
    order = np.argsort(logits, axis=1)
    top1 = np.mean(order[:, -1] != labels)
    top5 = np.mean([label not in best for label, best in zip(labels, order[:, -5:])])
    return logits.reshape(40, 2, 5, 1), labels, top1, top5


def trusted(*arguments, **options):
    return evaluate(*arguments, **options, trust_saved_model=True)


def serve(path, images) -> dict[str, np.ndarray]:
    loaded = tf.saved_model.load(path)  # its variables live as long as this object
    outputs = loaded.signatures["serving_default"](images=tf.constant(images))
    return {name: value.numpy() for name, value in outputs.items()}


def test_saved_model_returns_bitwise_the_network_s_logits_and_their_softmax(tiny_run, exported, digits):
    network, outputs = keras.saving.load_model(tiny_run / "model.keras"), serve(exported, digits)
    logits = outputs["logits"]
    np.testing.assert_array_equal(logits, network(digits))
    np.testing.assert_allclose(logits, network(standardize(digits)), rtol=1e-4, atol=1e-6)  # as it was standardised
    exponentials = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(outputs["probabilities"], exponentials / exponentials.sum(1, keepdims=True), rtol=1e-5)


def test_batch_normalised_mixed_precision_network_is_exported_in_inference_mode(tiny_config, digits, tmp_path):
    network = all_conv_resnet(dataclasses.replace(tiny_config.model, use_batch_norm=True, mixed_precision=True))
    for _ in range(2):  # the second replaces the first
        export(network, str(tmp_path / "saved_model"))
    outputs = serve(str(tmp_path / "saved_model"), digits)
    assert {output.dtype for output in outputs.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(outputs["logits"], network(standardize(digits), training=False))
    assert os.listdir(tmp_path) == ["saved_model"]


def test_an_export_removes_nobodys_files(tiny_config, tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    assert "other files than a SavedModel" in refused(export, all_conv_resnet(tiny_config.model), str(tmp_path))
    assert (tmp_path / "thesis.tex").read_text() == "years"


@pytest.mark.slow
def test_tensorflow_without_our_packages_runs_the_saved_model(exported, digits, tmp_path):
    """As `saved_model_cli run`, in a process that cannot import our packages."""
    for package in ("identity_matters", "launch"):
        (tmp_path / f"{package}.py").write_text("raise ImportError('not here')")
    np.save(tmp_path / "images.npy", digits)
    command = "run --dir {} --tag_set serve --signature_def serving_default --inputs images=images.npy --outdir ."
    ours = [sys.executable, "-c", "import identity_matters.model"]
    cli = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli", *command.format(exported).split()]
    isolated = {"cwd": tmp_path, "capture_output": True, "text": True}
    # oneDNN as we run it: its sums round differently.
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TF_ENABLE_ONEDNN_OPTS": "1"}
    assert "not here" in subprocess.run(ours, env=environment, **isolated).stderr
    result = subprocess.run(cli, env=environment, **isolated)
    assert result.returncode == 0, result.stderr
    for name, expected in serve(exported, digits).items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), expected)


def test_errors_equal_those_that_numpy_counts(pixel_model, ranked):
    images, labels, top1, top5 = ranked
    assert 0.3 < top5 < top1 < 1  # the sample tells the two apart
    expected = {"top1_error": pytest.approx(top1), "top5_error": pytest.approx(top5), "num_examples": 40}
    for batch_size in (1, 7, 100):
        assert trusted(pixel_model, (images, labels), batch_size=batch_size) == expected


@pytest.fixture
def bar(monkeypatch):
    """The totals that the progress bar has at each batch, and (images done, total) at its end."""
    totals = []

    class Bar(tqdm):
        def update(self, n=1):
            super().update(n)
            totals.append(self.total)

        def close(self):
            if not self.disable:
                totals.append((self.n, self.total))
            super().close()

    monkeypatch.setattr(evaluation, "tqdm", Bar)
    return totals


def nines(images, labels):
    return [(images[i : i + 9], labels[i : i + 9]) for i in range(0, 40, 9)]


@pytest.mark.parametrize(
    "data, totals",
    [
        (lambda *arrays: arrays, [40, (40, 40)]),
        (lambda *arrays: [[*batch] for batch in nines(*arrays)], [45] * 5 + [(40, 40)]),
        (lambda images, labels: [(images, np.eye(10)[labels])], [40, (40, 40)]),
        (lambda *arrays: (batch for batch in nines(*arrays)), [None] * 5 + [(40, 40)]),
        (lambda *arrays: tf.data.Dataset.from_tensor_slices(arrays).batch(20), [40, 40, (40, 40)]),
        (lambda *arrays: [(arrays[0][:0], arrays[1][:0]), arrays], [80, (40, 40)]),
        (lambda *arrays: [tf.constant(arrays[0]), arrays[1]], [40, (40, 40)]),  # no list of two batches
    ],
)
def test_batches_come_in_many_forms_and_the_progress_bar_has_a_known_total(pixel_model, ranked, bar, data, totals):
    found = trusted(pixel_model, data(*ranked[:2]), progress=True, batch_size=40)
    assert bar == totals and found == trusted(pixel_model, ranked[:2])


def test_the_progress_bar_counts_no_more_than_max_examples(pixel_model, ranked, bar):
    trusted(pixel_model, ranked[:2], progress=True, max_examples=25, batch_size=20)
    trusted(pixel_model, (batch for batch in nines(*ranked[:2])), progress=True, max_examples=99)
    assert bar == [25, 25, (25, 25), *[99] * 5, (40, 40)]


def test_the_progress_bar_of_named_data_has_a_total(tiny_run, digits_npz, bar):
    model = tiny_run / "model.keras"
    evaluate(model, progress=True, batch_size=30)
    evaluate(model, npz=digits_npz, progress=True)
    evaluate(model, "mnist_sample", progress=True, batch_size=500)
    assert bar == [50, 50, (50, 50), 200, 200, (200, 200), 1000, 1000, (1000, 1000)]


@pytest.mark.parametrize("max_examples, counted", [(1, 1), (1000, 40)])
def test_max_examples_takes_the_first_so_many(pixel_model, ranked, max_examples, counted):
    images, labels, *_ = ranked
    result = trusted(pixel_model, (images, labels), max_examples=max_examples, batch_size=3)
    assert result == trusted(pixel_model, (images[:max_examples], labels[:max_examples]))
    assert result["num_examples"] == counted


def test_ties_count_against_the_model_and_nan_is_rejected(pixel_model):
    labels = np.arange(10)
    constant = trusted(pixel_model, (np.full((10, 2, 5, 1), 3.0), labels))
    assert (constant["top1_error"], constant["top5_error"]) == (1.0, 1.0)
    untied = trusted(pixel_model, (np.eye(10).reshape(10, 2, 5, 1), labels))
    assert (untied["top1_error"], untied["top5_error"]) == (0.0, 0.0)
    with pytest.raises(UserError, match="a value that is not a number"):
        trusted(pixel_model, (np.full((10, 2, 5, 1), np.nan), labels))


def test_without_a_data_set_those_of_the_run_are_used_and_its_errors_found_again(tiny_run, exported, capfd):
    last = read_metrics(tiny_run / "metrics.csv")[-1]
    result = evaluate(exported)
    assert result["num_examples"] == 50
    assert result["top1_error"] == pytest.approx(last["test_top1_error"], abs=1e-6)
    assert result["top5_error"] == pytest.approx(last["test_top5_error"], abs=1e-6)
    assert "resized" not in capfd.readouterr().err


def test_npz_file_of_a_run_is_found_from_elsewhere_and_must_be_the_training_file(
    tmp_path, tiny_run, tiny_config, digits_npz, monkeypatch
):
    shutil.copytree(tiny_run, run := tmp_path / "run")
    shutil.copy(digits_npz, own := tmp_path / "own.npz")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(tiny_config, data=DataConfig(npz="own.npz", eval_examples=50))
    (run / "config.json").unlink()
    with RunDirectory(str(tmp_path / "begun"), config, data_digest=open_source(config.data).digest) as begun:
        begun.set_status("done")
    shutil.copy(tmp_path / "begun" / "config.json", run)
    expected = evaluate(str(run / "model.keras"), npz=str(own), max_examples=50)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert evaluate(str(run / "model.keras")) == expected
    with np.load(own) as arrays:
        np.savez(own, **dict(arrays) | {"test_labels": 9 - arrays["test_labels"]})
    assert f"{own} has changed since" in refused(evaluate, str(run / "model.keras"))
    assert evaluate(str(run / "model.keras"), npz=str(own))["num_examples"] == 200


@pytest.mark.parametrize("damage", ["missing", "junk graph", "short weights", "of something else"])
def test_a_directory_that_is_no_saved_model_is_rejected_by_name(tmp_path, exported, damage):
    path = tmp_path / "saved_model"
    if damage == "of something else":
        tf.saved_model.save(tf.Module(), str(path))
    elif damage != "missing":
        shutil.copytree(exported, path)
    if damage == "junk graph":
        (path / "saved_model.pb").write_bytes(b"junk" * 100)
    elif damage == "short weights":
        weights = next((path / "variables").glob("*data*"))
        weights.write_bytes(weights.read_bytes()[:100])
    assert f"{path} is not a SavedModel of this project" in refused(trusted, str(path), "mnist_sample")


def test_a_file_of_images_that_are_no_squares_is_evaluated_as_it_is(pixel_model, ranked, tmp_path):
    images, labels, top1, _ = ranked
    images = images.astype(np.uint8)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(tmp_path / "wide.npz", **arrays)
    assert trusted(pixel_model, npz=str(tmp_path / "wide.npz"))["top1_error"] == top1
    np.savez(tmp_path / "wide.npz", **arrays | {"train_labels": labels % 3})  # of fewer classes than the network has
    assert trusted(pixel_model, npz=str(tmp_path / "wide.npz"))["top1_error"] == top1


@pytest.mark.parametrize(
    "change",
    [
        lambda images, labels: (images[..., 0], labels),
        lambda images, labels: (images, labels[:, None]),
        lambda images, labels: (images, np.eye(10)[labels]),
        lambda images, labels: (images / 9, labels),
        lambda images, labels: (images.tolist(), labels.tolist()),
    ],
)
def test_arrays_are_taken_in_the_forms_that_training_takes(pixel_model, ranked, change):
    images, labels, *_ = ranked
    assert trusted(pixel_model, change(images, labels)) == trusted(pixel_model, (images, labels))


def test_a_runs_keras_file_and_a_network_are_evaluated_as_the_saved_model(tiny_run, exported):
    path = tiny_run / "model.keras"
    expected = evaluate(exported)
    assert evaluate(path) == evaluate(str(path)) == expected
    data, whole = mnist_sample(), evaluate(exported, "mnist_sample")
    assert whole == evaluate(exported, (data.test_images, data.test_labels)) and whole["num_examples"] == 1000
    assert evaluate(keras.saving.load_model(path), "mnist_sample") == whole
    assert "name a dataset" in refused(evaluate, keras.saving.load_model(path))


def scaled(*first):
    """A network of Keras that begins with these layers, on digits of 28×28 pixels."""
    keras.utils.set_random_seed(0)
    rest = [keras.layers.Conv2D(4, 3, strides=3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1)), *first, *rest], name="mine")


@pytest.mark.parametrize(
    "first",
    [
        lambda: [keras.layers.Rescaling(1 / 255)],
        lambda: [keras.layers.RandomFlip(), keras.layers.Rescaling(1 / 127.5, -1)],
        lambda: [keras.layers.Normalization(mean=[33.0], variance=[6000.0])],
        lambda: [keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.RandomContrast(0.5)])],
    ],
)
@pytest.mark.parametrize("form", ["network", pytest.param("saved_model", marks=pytest.mark.slow)])
def test_a_network_that_scales_its_images_itself_gets_them_as_they_are(first, form, tmp_path, capfd):
    network, data = scaled(*first()), mnist_sample()
    images, labels = data.test_images[:300].astype(np.float32), data.test_labels[:300]
    answers = np.argmax(network(images, training=False), 1)
    labels = np.where(np.arange(300) % 3, answers, labels)
    if form == "saved_model":
        export(network, str(tmp_path / "model"))
    evaluated = network if form == "network" else str(tmp_path / "model")
    expected = np.mean(answers != labels)
    assert trusted(evaluated, (images, labels))["top1_error"] == pytest.approx(expected) and 0 < expected < 0.4
    assert "standardised" not in capfd.readouterr().err


@pytest.mark.parametrize("first", [[], [keras.layers.ZeroPadding2D(1)]])
def test_network_without_its_own_scaling_gets_standardised_images_and_a_note(first, capfd):
    network, data = scaled(*first), mnist_sample()
    logits = network(standardize(data.test_images), training=False)
    assert evaluate(network, (data.test_images, np.argmax(logits, 1)))["top1_error"] == 0
    note = "note: the network 'mine' has no layer that scales images, so they are standardised for it"
    assert capfd.readouterr().err.splitlines() == [note]


def of_outputs(make, size=(8, 8, 1)):
    images = keras.Input(size)
    return keras.Model(images, make(keras.layers.Flatten()(images), images), name="mine")


def dense(x):
    return keras.layers.Dense(3)(x)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)], name="mlp"),
         "the network 'mlp' has no input shape; begin it with keras.Input(("),
        (lambda: of_outputs(lambda x, _: [dense(x), dense(x)]), "returns (None, 3), (None, 3), not one number"),
        (lambda: of_outputs(lambda x, _: {"a": dense(x), "b": dense(x)}), "returns (None, 3), (None, 3), not"),
        (lambda: of_outputs(lambda _, images: keras.layers.Conv2D(3, 1)(images)), "returns (None, 8, 8, 3), not"),
        (lambda: keras.Model(two := [keras.Input((8, 8, 1)) for _ in "ab"], dense(keras.layers.Flatten()(two[0]))),
         "takes (None, 8, 8, 1), (None, 8, 8, 1), not only images"),
        (lambda: keras.Sequential([keras.Input((64,)), keras.layers.Dense(3)]), "takes (None, 64), not only images"),
        (lambda: of_outputs(lambda _, images: keras.layers.GlobalMaxPooling2D()(images), (None, 8, 3)),
         "takes images (None, 8, 3) of any size; begin it with keras.Input((height, width, channels))"),
    ],
)  # fmt: skip
def test_a_network_that_is_no_classifier_of_images_is_rejected(make, words):
    x = np.zeros((4, 8, 8, 1))
    assert words in refused(evaluate, make(), (x, np.zeros(4, int)))
    assert words in refused(load_classifier, make())


def test_a_split_or_a_share_that_is_given_is_evaluated(tmp_path, capfd):
    (tmp_path / "dev").mkdir()
    known = DataConfig(images=str(tmp_path), test_share=0.2)
    for fields, share in (({"test_split": "dev"}, 0), ({"test_share": 0.5}, 0.5), ({"test_share": 1}, 0)):
        assert evaluation._with_share(DataConfig(images=str(tmp_path), **fields), known).test_share == share
    assert not capfd.readouterr().err
    assert evaluation._with_share(DataConfig(images=str(tmp_path)), known).test_share == 0.2


NO_BATCHES = "batches of (images, labels)"
UNFIT = [
    (lambda x, y: (x.reshape(40, 5, 2, 1), y), "the model takes images (2, 5, 1), the data are (5, 2, 1)"),
    (lambda x, y: "mnist_sample", "the model takes images (2, 5, 1)"),
    (lambda x, y: (x, np.where(np.arange(40) == 39, -1, y)), "0–99999, got -1"),
    (lambda x, y: (x, np.where(np.arange(40) == 39, 10, y)), "0–9, got "),
    (lambda x, y: (x, np.where(y, y, 0.5)), "whole numbers, got 0.5"),
    (lambda x, y: [(x, y.astype(np.float32))], "integers"),
    (lambda x, y: [(x, np.where(np.arange(40) == 39, -1, y))], "0–9, got -1–9"),
    (lambda x, y: [(x, y + 1)], "0–9, got 1–10"),
    (lambda x, y: (300 * x, y), "images = (images - 0) / 2700, for both splits, converts them"),
    (lambda x, y: (x, y, y), "(images, labels), got 3"),
    (lambda x, y: [(x[:39], y)], "39 images"),
    (lambda x, y: (x, y[:20]), "40 images, but 20 labels"),
    (lambda x, y: [], "no examples"),
    (lambda x, y: (x[:0], y[:0]), "no examples"),
    (lambda x, y: None, "name a dataset"),
    (lambda x, y: x, NO_BATCHES),
    (lambda x, y: [x, y, y], NO_BATCHES),
    (lambda x, y: [x, y.tolist()], NO_BATCHES),
    (lambda x, y: [(1.0, 1)], NO_BATCHES),
    (lambda x, y: [(x, 1)], NO_BATCHES),
]


@pytest.mark.parametrize("change, words", UNFIT)
def test_unfit_data_are_rejected_with_the_expected_form(pixel_model, ranked, change, words):
    assert words in refused(trusted, pixel_model, change(*ranked[:2]), batch_size=10)


def test_arguments_and_numbers_out_of_range_are_rejected(pixel_model, ranked):
    assert "takes no argument size; of data it takes dataset, " in refused(trusted, pixel_model, ranked[:2], size=2)
    assert "max_examples must be at least 0, got -1" in refused(trusted, pixel_model, ranked[:2], max_examples=-1)
    assert "batch_size must be a whole number, got 2.5" in refused(trusted, pixel_model, ranked[:2], batch_size=2.5)
    assert "batch_size must be at least 1, got 0" in refused(trusted, pixel_model, ranked[:2], batch_size=0)


def test_images_of_another_size_are_resized_with_a_note(tiny_config, digits_npz, tmp_path, capsys):
    path = str(tmp_path / "model.keras")
    network = all_conv_resnet(dataclasses.replace(tiny_config.model, image_shape=(20, 20, 1)))
    network.save(path)
    assert evaluate(path, npz=digits_npz) == evaluate(network, npz=digits_npz)
    notes = [line for line in capsys.readouterr().err.splitlines() if "standardised" not in line]
    assert notes == 2 * ["note: digits.npz: images of 28x28 pixels are resized to 20x20"]
    evaluate(network, "mnist_sample", max_examples=10)
    assert capsys.readouterr().err.endswith("note: mnist_sample: images of 28x28 pixels are resized to 20x20\n")


def test_repeated_evaluation_uses_the_current_weights_without_a_warning(
    tiny_config, digits, tmp_path, caplog, monkeypatch
):
    detectors = polymorphic_function._FrequentTracingDetectorManager()  # those of this process warn twice and no more
    monkeypatch.setattr(polymorphic_function, "_frequent_tracing_detector_manager", detectors)
    network, labels = all_conv_resnet(tiny_config.model, seed=1), np.arange(9)
    network.save(tmp_path / "model.keras")
    with caplog.at_level("WARNING", logger="tensorflow"):
        first = [evaluate(network, (digits, labels)) for _ in range(6)]
        assert [evaluate(tmp_path / "model.keras", (digits, labels)) for _ in range(6)] == first == 6 * first[:1]
    assert "retracing" not in caplog.text
    model = load_classifier(network)
    before = model.logits(digits)
    network.set_weights([2 * array for array in network.get_weights()])
    np.testing.assert_array_equal(model.logits(digits), load_classifier(network).logits(digits))
    np.testing.assert_allclose(model.logits(digits), network(standardize(digits)), rtol=1e-5)
    assert not np.allclose(model.logits(digits), before)


@pytest.mark.slow
def test_a_network_that_was_evaluated_is_not_kept(tiny_config, digits):
    network = all_conv_resnet(tiny_config.model)
    evaluate(network, (digits, np.arange(9)))
    kept = weakref.ref(network)
    del network
    keras.backend.clear_session()
    gc.collect()
    assert kept() is None
