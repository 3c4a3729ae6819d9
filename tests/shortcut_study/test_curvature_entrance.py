"""The two lines of `curvature` for arrays, data sets and compiled models, against the full matrix."""

import itertools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tqdm

from shortcut_study import curvature
from shortcut_study.curvature import examples, model_spectrum
from shortcut_study.curvature.deflation import deflated_quadrature

RNG = np.random.default_rng(0)
X, CLASSES = RNG.standard_normal((12, 4)).astype(np.float32), RNG.integers(0, 3, 12)
TARGETS = RNG.standard_normal((12, 3)).astype(np.float32)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(16, "tanh", name="hidden"), keras.layers.Dense(3, name="out")]
    return keras.Sequential([keras.Input((4,)), *layers])  # 131 weights


def matrix(model, x=X, y=CLASSES, **options):
    mvp_fn, dim = curvature.model_mvp(curvature.with_dtype(model, "float64"), x, y, **options)
    return np.stack([mvp_fn(row) for row in np.eye(dim)])


@pytest.fixture(scope="module")
def exact(model):
    return np.linalg.eigvalsh(matrix(model))


def test_two_lines_print_and_draw_the_spectrum_with_its_errors(model, exact, capsys):
    spectrum = curvature.spectrum(model, X, CLASSES, order=25)  # by default all eigenvalues would be found
    assert "100%" in capsys.readouterr().err.split("\r")[-1]
    for (value, bound), expected in ((spectrum.largest, exact[-1]), (spectrum.smallest, exact[0])):
        assert abs(value - expected) <= bound <= 1e-3 * exact[-1]
    trace, error = spectrum.trace
    assert abs(trace - exact.sum()) < 2 * error < exact.sum()
    lines = str(spectrum).splitlines()
    assert lines[0].startswith("Hessian of the mean cross-entropy of logits over 12 examples in 131 weights, ")
    assert [line.split(":")[0] for line in lines[5:7]] == [
        "trace",
        "eigenvalues smaller in size than 5% of the largest",
    ]
    assert "not resolved" not in str(spectrum) and float(lines[2].split()[0]) == pytest.approx(exact[-1], rel=1e-4)
    assert [axes.get_title() for axes in spectrum.plot("as titled").axes] == ["as titled"]
    h = matrix(model)
    for value, bound, vector in zip(spectrum.quadrature.known, spectrum.quadrature.known_bounds, spectrum.eigenvectors):
        assert np.linalg.norm(h @ vector - value * vector) <= bound + 1e-6
    assert all(hasattr(curvature, name) for name in curvature.__all__)


def test_the_bar_s_total_shrinks_to_the_number_of_products_and_is_reached(model, capsys):
    count = [0]

    def on_batch():
        count[0] += 1

    found = curvature.spectrum(model, X, CLASSES, batch_size=5, on_batch=on_batch)
    bars = re.findall(r"([^\r]*)\| (\d+)/(\d+) \[", capsys.readouterr().err)
    totals = [int(total) for _, _, total in bars]
    assert totals == sorted(totals, reverse=True) and totals[-1] == int(bars[-1][1]) == count[0]
    assert "at most" in bars[0][0] and "at most" not in bars[-1][0]
    assert f"{count[0] // 3} Hessian-vector products" in str(found)  # in three batches
    curvature.spectrum(model, X, CLASSES, order=3, num_vectors=1, progress=False)
    assert not capsys.readouterr().err


def test_of_a_small_model_all_eigenvalues_are_found_where_that_takes_no_more_products(model, exact):
    found = curvature.spectrum(model, X, CLASSES, progress=False)
    np.testing.assert_allclose(found.quadrature.known, exact, atol=1e-5)
    assert "condition number: " in str(found) and "index: " in str(found)


def test_a_long_spectrum_says_how_long_it_takes_and_what_takes_less(model, capsys, monkeypatch):
    clock = itertools.count(step=4)  # so that a product takes 4 seconds
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    options = {"order": 30, "num_vectors": 6}  # 152 products at most
    curvature.spectrum(model, X, CLASSES, **options)
    (line,) = re.findall("note: .*", capsys.readouterr().err)
    assert line.startswith("note: a product takes 4 s, all of them at most 10 minutes; half of the examples")
    curvature.spectrum(model, X, CLASSES, progress=False, **options)
    curvature.spectrum(model, X, CLASSES, **options | {"num_vectors": 3})  # 8 minutes
    assert "note" not in capsys.readouterr().err


def test_the_bar_does_not_count_the_time_of_compiling(model, monkeypatch):
    events, compiled, bar = [], model_spectrum.model_mvp, tqdm.tqdm
    monkeypatch.setattr(model_spectrum, "model_mvp", lambda *a, **k: events.append("compile") or compiled(*a, **k))
    monkeypatch.setattr(tqdm, "tqdm", lambda **options: events.append("bar") or bar(**options))
    curvature.spectrum(model, X, CLASSES, order=1, num_vectors=1, progress=False)
    assert events == ["compile", "bar"]


def test_more_order_than_memory_is_refused_with_the_order_that_fits(monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PHYS_PAGES": 2**21, "SC_PAGE_SIZE": 4096}[name])
    with pytest.raises(ValueError, match="order 500 needs 27.1 GB .* has 8.6 GB in all; choose at most 146"):
        deflated_quadrature(None, 13_538_736, 500, dtype=np.float32)


MISTAKES = {
    "fewer labels": ((X, CLASSES[:3]), {}, r"need one label per image, .* got shapes \(12, 4\), \(3,\)"),
    "one-hot": (
        (X, np.eye(3)[CLASSES]),
        {},
        r"CategoricalCrossentropy\(from_logits=True\)\), got \(12, 3\) of float64",
    ),
    "names": ((X, np.array(list("abc"))[CLASSES]), {}, "labels must be whole numbers, got .*names.index"),
    "text": ((X.astype(str), CLASSES), {}, "x, given with y, must be numbers, got <U"),
    "a data set and labels": (
        (tf.data.Dataset.from_tensors((X, CLASSES)), CLASSES),
        {},
        "x, given with y, must be numbers, got obj",
    ),
    "NaN": ((np.where(X > 1, np.nan, X), CLASSES), {}, "the images hold NaN or infinite numbers"),
    "NaN labels": ((X, np.nan * TARGETS), {"loss": "mse"}, "the labels hold NaN or infinite numbers"),
    "a class too many": (
        (X, CLASSES + 1),
        {"loss": CROSS_ENTROPY},
        "labels must lie in 0–2, the model's outputs, got 1–3",
    ),
    "shapes": ((X, TARGETS[:, :2]), {"loss": "mse"}, r"loss does not take labels \[m, 2\] and outputs \[m, 3\]"),
    "batch_size": ((X, CLASSES), {"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
    "path": ((X, CLASSES), {"path": "/no/where/file"}, "there is no folder /no/where"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_before_the_first_product_is_finished(model, name):
    arguments, options, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message) as refusal:
        curvature.spectrum(model, *arguments, progress=False, **options)
    assert "\n" not in str(refusal.value)


def test_a_number_that_a_layer_does_not_take_is_one_line():
    words = keras.Input((3,), dtype="int32")
    model = keras.Model(words, keras.layers.Dense(3)(keras.layers.Flatten()(keras.layers.Embedding(5, 2)(words))))
    with pytest.raises(ValueError, match=r"^the model or the loss does not take these examples: indices.*0, 5\)$"):
        curvature.spectrum(model, np.full((4, 3), 5), CLASSES[:4], progress=False)


def test_what_is_no_built_model_is_named():
    for model in ("digits", keras.Sequential([keras.layers.Dense(3)])):
        with pytest.raises(ValueError, match="need a built keras.Model, with an Input or called once, got "):
            curvature.spectrum(model, X, CLASSES)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return X[5 * i : 5 * i + 5], CLASSES[5 * i : 5 * i + 5]


SOURCES = {
    "tf.data": lambda: tf.data.Dataset.from_tensor_slices((X, CLASSES)).batch(5),
    "shuffled tf.data": lambda: tf.data.Dataset.from_tensor_slices((X, CLASSES)).shuffle(12).batch(5),
    "PyDataset": Batches,
    "list": lambda: [(X[:5], CLASSES[:5]), (X[5:], CLASSES[5:])],
    "generator": lambda: ((X[i : i + 5], CLASSES[i : i + 5]) for i in (0, 5, 10)),
    "tensors": lambda: [(tf.constant(X[:5]), tf.constant(CLASSES[:5])), (tf.constant(X[5:]), tf.constant(CLASSES[5:]))],
}


@pytest.mark.parametrize("source", SOURCES)
def test_batches_of_every_form_are_the_arrays_that_they_make(source):
    found = examples.gathered(SOURCES[source]())
    order = np.lexsort(found.x.T), np.lexsort(X.T)
    np.testing.assert_array_equal(found.x[order[0]], X[order[1]])
    np.testing.assert_array_equal(found.y[order[0]], CLASSES[order[1]])
    assert found.batch_size == 5 and examples.gathered(SOURCES["list"](), batch_size=3).batch_size == 3


def test_a_data_set_has_the_spectrum_of_its_arrays(model, exact):
    for source in ("tf.data", "generator"):
        found = curvature.spectrum(model, SOURCES[source](), progress=False, order=30, num_vectors=1)
        assert found.largest[0] == pytest.approx(exact[-1], rel=1e-4)


@pytest.mark.parametrize(
    "shape, expected",
    [((500, 28, 28, 1), 250), ((500, 32, 32, 3), 125), ((10, 224, 224, 3), 2), ((7, 4), 7), ((300, 4), 150)],
)
def test_a_batch_size_is_chosen_by_the_size_of_the_examples(shape, expected):
    assert examples.gathered(np.broadcast_to(np.float32(0), shape), np.zeros(shape[0])).batch_size == expected


REFUSED = {
    "x without y": (lambda: X, "need y, or batches of pairs (x, y) as x; got a ndarray without y"),
    "no batch": (lambda: [], "got no batch"),
    "three parts": (lambda: [(X, CLASSES, CLASSES)], "x must be batches of (images, labels), got 3 parts"),
    "no pairs": (lambda: tf.data.Dataset.from_tensor_slices(X).batch(5), "x must be batches of (images, labels)"),
    "single examples": (lambda: tf.data.Dataset.from_tensor_slices((X, CLASSES)), "dataset.batch(100) makes batches"),
    "several sizes": (lambda: [(X, CLASSES), (X[:, :3], CLASSES)], "the batches differ in more than their number"),
    "lengths": (lambda: [(X, CLASSES[:3])], "x gives 12 images with 3 labels"),
    "no end": (lambda: tf.data.Dataset.from_tensor_slices((X, CLASSES)).batch(5).repeat(), "repeats without end"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_set_of_examples_is_named(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError) as refusal:
        examples.gathered(make())
    assert message in str(refusal.value)


def test_batches_without_end_stop_before_they_fill_the_memory(monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PHYS_PAGES": 1, "SC_PAGE_SIZE": 4096}[name])

    def endless():
        while True:
            yield X, CLASSES

    with pytest.raises(ValueError, match="half of the memory; take some of them"):
        examples.gathered(endless())


@pytest.mark.parametrize(
    "loss, labels",
    [
        (CROSS_ENTROPY, CLASSES),
        ("mse", TARGETS),
        (lambda y, z: keras.ops.mean((y - z) ** 4, -1), TARGETS),
        (["mae"], TARGETS),
    ],
)
def test_the_loss_is_that_with_which_the_model_is_compiled(model, loss, labels):
    copy = curvature.with_dtype(model, "float64")
    expected = curvature.model_mvp(copy, X, labels, loss=loss[0] if isinstance(loss, list) else loss)
    copy.compile("sgd", loss)
    vector = RNG.standard_normal(131)
    for compiled in (copy, curvature.with_dtype(copy, "float64")):
        found, _ = curvature.model_mvp(compiled, X, labels)
        np.testing.assert_array_equal(found(vector), expected[0](vector))
    fresh = curvature.with_dtype(model, "float64")
    given, other = (curvature.model_mvp(of, X, CLASSES, loss=CROSS_ENTROPY)[0] for of in (copy, fresh))
    np.testing.assert_array_equal(given(vector), other(vector))  # a loss that is given counts


def test_a_loss_that_cannot_be_chosen_is_asked_for_in_one_line(model):
    copy = keras.models.clone_model(model)
    copy.compile("sgd", "mse", loss_weights=[0.5])
    with pytest.raises(ValueError, match="several losses, or with loss_weights; pass the one of interest: loss=…"):
        curvature.spectrum(copy, X, TARGETS)
    with pytest.raises(ValueError, match="compile the model, or pass loss=…"):
        curvature.spectrum(model, X, TARGETS)
    softmax = keras.Sequential([*keras.models.clone_model(model).layers, keras.layers.Softmax()])
    softmax.build((None, 4))
    with pytest.raises(ValueError, match="must give logits, but .* compile the model, or pass loss=…"):
        curvature.spectrum(softmax, X, CLASSES)


def test_the_gauss_newton_matrix_the_diagonal_and_the_layers_hang_from_the_same_name(model, exact):
    whole = matrix(model)
    assert curvature.spectrum(model, X, CLASSES, gauss_newton=True, progress=False).smallest[0] > -1e-4 > exact[0]
    both = curvature.diagonal(model, X, CLASSES, num_vectors=200, progress=False)
    assert re.fullmatch(
        r"trace \S+ ± \S+ \(95 % interval\), 131 diagonal entries from \S+ to \S+, 200 products", str(both)
    )
    assert abs(both.trace - exact.sum()) < 2 * both.trace_error
    assert (np.abs(both.diagonal - np.diag(whole)) <= both.diagonal_error + 1e-6).mean() > 0.9
    found = curvature.per_layer(model, X, CLASSES, progress=False)
    for row, at in zip(found.rows, (np.s_[:80], np.s_[80:])):
        block = np.linalg.eigvalsh(whole[at, at])
        assert row["num_weights"] == len(block)
        assert abs(row["largest"] - block[-1]) <= row["largest_error_bound"] < 1e-2 * block[-1]
        assert abs(row["trace"] - block.sum()) < 2 * row["trace_error"] + 1e-4
    assert [line.split()[0] for line in str(found).splitlines()] == ["part", "hidden", "out"]
    assert len(found.plot().axes) == 2


def test_groups_of_weights_have_their_own_block_under_their_own_name(model):
    whole, (k1, b1, k2, b2) = matrix(model), model.trainable_variables
    found = curvature.per_layer(
        model, X, CLASSES, groups={"kernels": [k1, k2], "biases": [b2, b1]}, progress=False
    ).rows
    at = {"kernels": np.r_[:64, 80:128], "biases": np.r_[128:131, 64:80]}
    for row in found:
        block = np.linalg.eigvalsh(whole[np.ix_(at[row["part"]], at[row["part"]])])
        assert (row["num_weights"], row["largest"]) == (len(block), pytest.approx(block[-1], rel=1e-4))
    with pytest.raises(ValueError, match='groups must be "layer", "block", or variables by name, got'):
        curvature.per_layer(model, X, CLASSES, groups="unit")
    with pytest.raises(ValueError, match="variables must be some of model.trainable_variables"):
        curvature.per_layer(model, X, CLASSES, groups={"none": []})


def test_the_callback_takes_the_compiled_loss_a_data_set_and_the_gauss_newton_matrix(model, tmp_path):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.compile(keras.optimizers.SGD(0.0), "mse")
    data = tf.data.Dataset.from_tensor_slices((X, TARGETS)).batch(5)
    callbacks = [curvature.HessianCallback(data, gauss_newton=newton) for newton in (False, True)]
    copy.fit(data, epochs=1, verbose=0, callbacks=callbacks)
    for callback, newton in zip(callbacks, (False, True)):
        eigenvalues = np.linalg.eigvalsh(matrix(model, X, TARGETS, loss="mse", gauss_newton=newton))
        row = callback.history[0]
        assert abs(row["largest"] - eigenvalues[-1]) <= row["largest_error_bound"] + 1e-5
    assert not list(tmp_path.iterdir())  # without a log_dir nothing is written
