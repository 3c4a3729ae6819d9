"""What users read off a Hessian: spectra, diagonals, layers, bars, kept products, the callback, reports."""

import errno
import itertools
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
import tqdm
from hessian_cases import logits
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from identity_matters.runs.product_cache import ProductCache
from shortcut_study import curvature
from shortcut_study.curvature import callback, quadrature, report
from shortcut_study.curvature.callback import HessianCallback, eigenvalue_levels
from shortcut_study.curvature.model_spectrum import ModelSpectrum, PartSpectra, part_row, parts, positions
from shortcut_study.curvature.quadrature import deflated_quadrature

RNG = np.random.default_rng(0)
X, CLASSES = RNG.standard_normal((12, 4)).astype(np.float32), RNG.integers(0, 3, 12)
TARGETS = RNG.standard_normal((12, 3)).astype(np.float32)
VALUES = np.append(RNG.standard_normal(200), [20.0, 30.0])


def two_layers(*between, units=5):
    keras.utils.set_random_seed(0)
    first = keras.layers.Dense(units, "tanh", name="hidden")
    return keras.Sequential([keras.Input((4,)), first, *between, keras.layers.Dense(3, name="out")])


@pytest.fixture(scope="module")
def model():
    return two_layers(units=16)  # 131 weights


@pytest.fixture(scope="module")
def h(model):
    return curvature.Hessian(model, X, CLASSES, batch_size=5)


@pytest.fixture(scope="module")
def dense(model):
    return curvature.Hessian(model, X, CLASSES, dtype="float64") @ np.eye(131)


@pytest.fixture(scope="module")
def exact(dense):
    return np.linalg.eigvalsh(dense)


@pytest.mark.slow
def test_two_lines_print_and_draw_the_spectrum_with_its_errors(model, dense, exact, capsys):
    spectrum = curvature.spectrum(model, X, CLASSES, order=25)  # by default all eigenvalues would be found
    assert "100%" in capsys.readouterr().err.split("\r")[-1]
    for (value, bound), expected in ((spectrum.largest, exact[-1]), (spectrum.smallest, exact[0])):
        assert abs(value - expected) <= bound <= 1e-3 * exact[-1]
    trace, error = spectrum.trace
    assert abs(trace - exact.sum()) < 2 * error < exact.sum()
    lines = str(spectrum).splitlines()
    assert lines[0].startswith("Hessian of the mean cross-entropy of logits over 12 examples in 131 weights, ")
    assert float(lines[2].split()[0]) == pytest.approx(exact[-1], rel=1e-4)
    assert [axes.get_title() for axes in spectrum.plot("as titled").axes] == ["as titled"]
    for value, bound, vector in zip(spectrum.quadrature.known, spectrum.quadrature.known_bounds, spectrum.eigenvectors):
        assert np.linalg.norm(dense @ vector - value * vector) <= bound + 1e-6


@pytest.mark.slow
def test_the_bar_s_total_shrinks_to_the_number_of_products_and_is_reached(h, exact, capsys):
    found = h.spectrum()
    bars = re.findall(r"([^\r]*)\| (\d+)/(\d+) \[", capsys.readouterr().err)
    totals = [int(total) for _, _, total in bars]
    assert totals == sorted(totals, reverse=True) and totals[-1] == int(bars[-1][1])
    assert "at most" in bars[0][0] and "at most" not in bars[-1][0]
    assert f"{totals[-1] // 3} Hessian-vector products" in str(found)  # in three batches
    # Of a small model all eigenvalues are found, where that takes no more products.
    np.testing.assert_allclose(found.quadrature.known, exact, atol=1e-5)
    assert "condition number: " in str(found) and "index: " in str(found)
    h.spectrum(order=3, num_vectors=1, progress=False)
    assert not capsys.readouterr().err


def test_a_long_spectrum_says_how_long_it_takes_and_what_takes_less(h, capsys, monkeypatch):
    clock = itertools.chain([0, 1000], itertools.count(1000, 14.3))  # so that products but the first take 14.3 seconds
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    options = {"order": 8, "num_vectors": 6}  # 42 products at most, 600.6 seconds
    h.spectrum(**options)
    (line,) = re.findall("note: .*", capsys.readouterr().err)
    assert line.startswith("note: a product takes 14 s, all of them at most 10 minutes, without the work between")
    h.spectrum(progress=False, **options)
    h.spectrum(**options | {"num_vectors": 3})  # 8 minutes
    assert "note" not in capsys.readouterr().err


def test_the_bar_does_not_count_the_time_of_compiling(model, monkeypatch):
    events, bar, made = [], tqdm.tqdm, curvature.Hessian.__init__
    monkeypatch.setattr(curvature.Hessian, "__init__", lambda *a, **k: (made(*a, **k), events.append("made"))[0])
    monkeypatch.setattr(tqdm, "tqdm", lambda **options: events.append("bar") or bar(**options))
    curvature.spectrum(model, X, CLASSES, order=1, num_vectors=1, progress=False)
    assert events == ["made", "bar"]


@pytest.mark.slow
def test_gauss_newton_matrix_diagonal_and_layers_are_methods_of_the_hessian(model, h, dense, exact):
    newton = curvature.spectrum(model, X, CLASSES, gauss_newton=True, order=25, progress=False)
    assert newton.smallest[0] > -1e-4 > exact[0] and str(newton).startswith("Gauss–Newton matrix of the mean")
    both = curvature.diagonal(model, X, CLASSES, num_vectors=60, progress=False)
    pattern = r"trace \S+ ± \S+ \(95 % interval\), 131 diagonal entries from \S+ to \S+, 60 products"
    assert re.fullmatch(pattern, str(both)) and abs(both.trace - exact.sum()) < 2 * both.trace_error
    assert (np.abs(both.diagonal - np.diag(dense)) <= both.diagonal_error + 1e-6).mean() > 0.9
    k1, b1, k2, b2 = model.trainable_variables
    groups = {"kernels": [k1, k2], "biases": [b2, b1]}
    at = {"hidden": np.s_[:80], "out": np.s_[80:], "kernels": np.r_[:64, 80:128], "biases": np.r_[128:131, 64:80]}
    by_layer = curvature.per_layer(model, X, CLASSES, progress=False)
    for row in by_layer.rows + h.per_layer(groups, progress=False).rows:
        block = np.linalg.eigvalsh(dense[at[row["part"]]][:, at[row["part"]]])
        assert row["num_weights"] == len(block)
        assert abs(row["largest"] - block[-1]) <= row["largest_error_bound"] < 1e-2 * block[-1]
        assert abs(row["trace"] - block.sum()) < 2 * row["trace_error"] + 1e-4
    assert [line.split()[0] for line in str(by_layer).splitlines()] == ["part", "hidden", "out"]
    assert len(by_layer.plot().axes) == 2


def test_a_single_weight_has_one_eigenvalue_which_is_all():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, name="only")])
    h = curvature.Hessian(model, X[:, :1], TARGETS[:, :1], loss="mse", dtype="float64")
    expected = 2 * np.mean(X[:, 0].astype(np.float64) ** 2)
    spectrum, (row,) = h.spectrum(progress=False), h.per_layer(progress=False).rows
    assert spectrum.largest[0] == spectrum.smallest[0] == pytest.approx(expected) == spectrum.trace[0]
    assert row["part"] == "only" and row["num_weights"] == spectrum.dim == 1
    assert row["largest"] == row["smallest"] == pytest.approx(expected) == row["trace"]
    around = h.landscape("eigenvectors", points=3, progress=False)
    assert abs(around.directions.item()) == 1 and around.curvatures.item() == pytest.approx(expected)
    np.testing.assert_allclose(around.losses, around.quadratic)  # the loss is quadratic


def test_layers_of_one_name_are_parts_of_their_own():
    def inner(name):
        inputs = keras.Input((4,))
        return keras.Model(inputs, keras.layers.Dense(4, name="dense")(inputs), name=name)

    model = keras.Sequential([keras.Input((4,)), inner("a"), inner("b"), keras.layers.Dense(3, name="last")])
    found = parts(model)
    names = [name.removeprefix(f"{model.name}/") for name in found]
    assert names == ["dense", "dense (2)", "last"] and [len(entries) for entries in found.values()] == [20, 20, 15]
    assert sorted(np.concatenate(list(found.values()))) == list(range(55))
    model.layers[0].layers[1].kernel.trainable = False
    found = parts(model)
    assert [entries.tolist() for entries in found.values()] == [[0, 1, 2, 3], list(range(4, 24)), list(range(24, 39))]
    for others in (model.layers[0].weights, model.trainable_variables[:1] * 2):  # one is frozen
        with pytest.raises(ValueError, match="some of model.trainable_variables, each once"):
            positions(model, others)


def counting(calls, stop_at=None):
    def product(vector):
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        calls.append(vector.copy())
        return (VALUES * vector).astype(vector.dtype)

    return product


def kept_quadrature(path, calls, stop_at=None, dtype=np.float32, problem="a"):
    product = counting(calls, stop_at)
    product = product if path is None else ProductCache(path, {"loss": [problem]}).wrap(product)
    return deflated_quadrature(product, 202, dtype=dtype)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_interrupted_iteration_resumes_after_its_last_product_bit_identical(tmp_path, dtype):
    path, whole, first, second = tmp_path / "products", [], [], []
    expected = kept_quadrature(None, whole, dtype=dtype)
    with pytest.raises(KeyboardInterrupt):
        kept_quadrature(path, first, 37, dtype)
    again = kept_quadrature(path, second, dtype=dtype)
    assert len(first) == 37 and len(second) == len(whole) - 36  # the first is computed again, to compare
    for one, other in zip(again, expected):
        np.testing.assert_array_equal(one, other)
    kept_quadrature(path, third := [], dtype=dtype)
    assert len(third) == 1


def test_damaged_product_is_computed_again_and_another_folder_is_an_error(tmp_path):
    path = tmp_path / "products"
    kept_quadrature(path, [])
    first, second, third, *_ = sorted(path.glob("*.npy"))
    first.write_bytes(first.read_bytes()[:-1])  # no process leaves such: it writes under another name
    second.unlink()
    damaged = bytearray(third.read_bytes())
    damaged[-9] ^= 1
    third.write_bytes(damaged)
    (path / "x.npy.part").write_bytes(b"half")
    kept_quadrature(path, calls := [])
    assert len(calls) in (3, 4)  # the three, and the first product where it is none of them
    with pytest.raises(ValueError, match="holds products of other loss; remove it, or give another path"):
        kept_quadrature(path, [], problem="b")
    (tmp_path / "table.csv").write_text("step,loss\n1\n")
    (path / "problem.json").write_text("[")
    for other in (path, tmp_path / "table.csv", tmp_path):
        with pytest.raises(ValueError, match="is not a folder of Hessian products"):
            kept_quadrature(other, [])


def test_a_product_that_the_disk_has_no_room_for_is_named(tmp_path, monkeypatch):
    def full(file, header):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(OSError, match=rf"cannot write {tmp_path}/products/.*npy: No space left on device"):
        kept_quadrature(tmp_path / "products", [])


def test_the_same_vector_in_another_matrix_is_another_product(tmp_path):
    kept, vector = ProductCache(tmp_path / "products", {}), np.ones(3)
    assert kept.wrap(lambda v: v, "a")(vector).tolist() == [1, 1, 1]
    assert kept.wrap(lambda v: 2 * v, "b")(vector).tolist() == [2, 2, 2]
    assert kept.wrap(lambda v: 3 * v, "a")(vector).tolist() == [1, 1, 1]  # found


@pytest.mark.parametrize(
    "name, count",
    [("spectrum", 25), *(pytest.param(*c, marks=pytest.mark.slow) for c in (("diagonal", 9), ("per_layer", 25)))],
)
def test_each_measurement_of_a_model_resumes_from_its_folder(model, tmp_path, name, count):
    seen, stop_at = [], [count]

    def on_batch():
        seen.append(1)
        if len(seen) == stop_at[0]:
            raise KeyboardInterrupt

    h = curvature.Hessian(model, X, CLASSES, batch_size=6, on_batch=on_batch)
    options = (
        {"progress": False, "num_vectors": 6}
        if name == "diagonal"
        else {"progress": False, "num_vectors": 3, "order": 20}
    )
    with pytest.raises(KeyboardInterrupt):
        getattr(h, name)(path=tmp_path / "products", **options)
    stop_at[0], done = 0, len(seen)
    again = getattr(h, name)(path=tmp_path / "products", **options)
    rest = len(seen) - done
    expected = getattr(h, name)(**options)
    whole = len(seen) - done - rest
    assert whole - rest == 2 * ((count - 1) // 2 - 1)  # less the product that is checked
    assert str(again) == str(expected)


def scaled(temperature):
    return lambda y, z: keras.ops.sparse_categorical_crossentropy(y, z / temperature, from_logits=True)


OTHERS = {
    "weights": ({"model": None}, "weights"),
    "images": ({"x": X + np.eye(12)[:, :1]}, r"examples \(a data set that shuffles: reshuffle_each_iteration=False\)"),
    "labels": ({"y": (CLASSES + 1) % 3}, "examples"),
    "sample weights": ({"sample_weight": np.ones(12)}, "examples"),
    "Gauss–Newton": ({"gauss_newton": True}, "matrix"),
    "dtype": ({"dtype": "float64"}, "matrix|weights"),
    "training": ({"training": True}, "matrix"),
    "a loss of Keras": ({"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}, "loss"),
    "a loss that no digest shows": ({"loss": scaled(1.00005)}, "loss, or of another model or type; remove"),
}
# The default run has one case of each word; these name words of others.
SLOW = "labels", "sample weights", "dtype", "training", "a loss of Keras"


@pytest.fixture(scope="module")
def kept(model, tmp_path_factory):
    """The options of a spectrum whose products are kept."""
    options = {"progress": False, "path": tmp_path_factory.mktemp("kept") / "products", "order": 5, "num_vectors": 1}
    curvature.spectrum(model, X, CLASSES, loss=scaled(1.0), **options)
    return options


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in OTHERS])
def test_other_weights_examples_losses_and_matrices_do_not_reuse_these_products(model, kept, name):
    change, what = OTHERS[name]
    given = {"model": model, "x": X, "y": CLASSES, "loss": scaled(1.0)} | kept | change
    given["model"] = given["model"] or keras.models.clone_model(model)
    with pytest.raises(ValueError, match=f"holds products of other {what}"):
        curvature.spectrum(**given)


def test_some_variables_and_other_batches_of_the_same_examples(model, kept):
    with pytest.raises(ValueError, match="holds products of other matrix"):
        curvature.spectrum(model, X, CLASSES, loss=scaled(1.0), variables=model.trainable_variables[:1], **kept)
    found = curvature.spectrum(model, X, CLASSES, loss=scaled(1.0), batch_size=5, **kept)  # which is no other loss
    assert found.quadrature.nodes.shape == (1, 5)


def test_another_activation_with_the_same_weights_does_not_take_them(model, tmp_path):
    options = {"progress": False, "path": tmp_path / "products", "order": 5, "num_vectors": 1}
    curvature.spectrum(model, X, CLASSES, **options)
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16, "sigmoid"), keras.layers.Dense(3)])
    other.set_weights(model.get_weights())
    with pytest.raises(ValueError, match="holds products of other loss, or of another model"):
        curvature.spectrum(other, X, CLASSES, **options)


@pytest.mark.slow
def test_the_callback_records_the_hessian_of_each_measured_epoch(tmp_path):
    network = two_layers()
    start = np.linalg.eigvalsh(curvature.Hessian(network, X, CLASSES, dtype="float64") @ np.eye(43))
    network.compile("sgd", logits())
    callbacks = [
        HessianCallback(X, CLASSES, tmp_path / "logs", every=2, order=43, batch_size=5),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    history = network.fit(X, CLASSES, epochs=3, verbose=0, callbacks=callbacks).history
    rows = callbacks[0].history
    assert [row["epoch"] for row in rows] == [0, 2]
    assert (rows[0]["largest"], rows[0]["smallest"]) == pytest.approx((start[-1], start[0]), abs=1e-5)
    assert rows[0]["largest_error_bound"] < 1e-4 > rows[0]["smallest_error_bound"]
    assert abs(rows[0]["trace"] - start.sum()) < rows[0]["trace_error"]  # two vectors: t is 12.7
    # Keras has a row for each of the three epochs; the Hessian is measured after the second.
    measured = [np.nan, rows[1]["largest"], np.nan]
    np.testing.assert_array_equal(history["hessian_largest"], measured)
    table = np.genfromtxt(tmp_path / "log.csv", delimiter=",", names=True)
    np.testing.assert_allclose(table["hessian_largest"], measured, rtol=1e-6)
    end = curvature.Hessian(network, X, CLASSES).spectrum(progress=False).largest[0]
    assert rows[1]["largest"] != rows[0]["largest"] and end != pytest.approx(start[-1], rel=1e-3)
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert {f"hessian/{name}" for name in ("largest", "smallest", "trace", "eigenvalues")} <= set(
        events.Tags()["tensors"]
    )
    assert [event.step for event in events.Tensors("hessian/largest")] == [0, 2]


@pytest.mark.slow
def test_callback_takes_compiled_loss_dataset_and_options_and_fit_keeps_its_bits(tmp_path):
    ends = []
    for watched in (False, True):
        model = two_layers(keras.layers.Dropout(0.5, seed=1))
        model.compile("adam", "mse")
        data = tf.data.Dataset.from_tensor_slices((X, TARGETS)).batch(5)
        callbacks = [HessianCallback(data, order=43, gauss_newton=True)] if watched else []
        expected = np.linalg.eigvalsh(curvature.Hessian(model, X, TARGETS, gauss_newton=True) @ np.eye(43))[-1]
        model.fit(data, epochs=1, verbose=0, callbacks=callbacks)
        ends.append(model.get_weights())
    assert callbacks[0].history[0]["largest"] == pytest.approx(expected, rel=1e-4)
    for first, second in zip(*ends):
        np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="every must be a whole number of at least 1, got 0"):
        HessianCallback(X, CLASSES, every=0)


def fitted_to_rounding():
    """One kernel whose logits are 16 for the right class and 0 else: a loss of 2e-7."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.layers[0].kernel.assign(16 * np.eye(4, 3))
    return model, np.eye(4, dtype=np.float32)[:3], np.arange(3)


@pytest.mark.parametrize("diverges", [True, False])
def test_training_continues_after_a_measurement_that_failed(diverges):
    model, x, y = (two_layers(), X, CLASSES) if diverges else fitted_to_rounding()
    reason = "there is no Hessian product: the model's weights are NaN" if diverges else "mvp_fn is not sym"
    callback = HessianCallback(x, y, order=5)
    model.compile(keras.optimizers.SGD(np.nan if diverges else 0.01), logits())
    with pytest.warns(UserWarning, match=f"^the Hessian after . epochs is not measured: {reason}"):
        model.fit(x, y, epochs=1, verbose=0, callbacks=[callback])
    assert [row["epoch"] for row in callback.history] == [0, 1]
    measured = callback.history[1:] if diverges else callback.history
    assert all(np.isnan(row["largest"]) and np.isnan(row["trace"]) for row in measured)


@pytest.mark.slow
def test_batch_normalisation_is_not_measured_before_it_has_averages():
    model = two_layers(keras.layers.BatchNormalization())
    model.compile("sgd", logits())
    model.fit(X, CLASSES, epochs=2, verbose=0, callbacks=[callback := HessianCallback(X, CLASSES, order=5)])
    assert [row["epoch"] for row in callback.history] == [1, 2]
    model.fit(
        X, CLASSES, initial_epoch=2, epochs=3, verbose=0, callbacks=[callback := HessianCallback(X, CLASSES, order=5)]
    )
    assert [row["epoch"] for row in callback.history] == [2, 3]
    assert all(np.isfinite(row["trace_error"]) for row in callback.history)  # as two vectors or more give it


def test_levels_follow_the_weights():
    nodes, weights = np.array([[0.0, 1, 2], [0, 1, 3]]), np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]])
    levels = eigenvalue_levels(quadrature.Quadrature(nodes, weights, np.zeros((2, 3)), 0.0))
    values, counts = np.unique(levels, return_counts=True)
    assert values.tolist() == [0, 1, 2, 3] and counts.tolist() == [600, 300, 50, 50]


@pytest.mark.parametrize("fresh", [[], ["batch normalisation"]])
def test_hessian_is_measured_before_training_and_after_every_third_epoch(fresh, monkeypatch):
    measured, recorded = [], HessianCallback(X, CLASSES, every=3)
    monkeypatch.setattr(callback, "without_averages", lambda _: fresh)
    monkeypatch.setattr(recorded, "_measure", lambda epoch: measured.append(epoch) or callback.UNKNOWN)
    recorded._is_measured = False
    for epoch in range(4):
        recorded.on_epoch_begin(epoch)
        recorded.on_epoch_end(epoch)
    assert measured == [0, 3][bool(fresh) :]


@pytest.mark.parametrize("order, num_products", [(9, 6), (2, 4)])
def test_callback_takes_as_many_products_per_vector_as_its_order_or_the_dimension(order, num_products):
    recorded, products = HessianCallback(X, CLASSES, order=order, num_vectors=2), []
    recorded._hessian = SimpleNamespace(
        move_to=lambda _: None,
        shape=(3, 3),
        dtype=float,
        __matmul__=lambda v: products.append(v) or np.arange(1, 4) * v,
    )
    found = recorded._measure(7)
    assert len(products) == num_products and (found["largest"] == pytest.approx(3)) is (order > 3)


def nodes(values):
    values = np.array([values, values], float)
    return quadrature.Quadrature(values, np.full(values.shape, 1 / values.shape[1]), np.zeros(values.shape), 1e-7)


def test_spectra_of_a_matrix_and_its_parts_are_drawn_and_those_of_parts_are_a_table():
    rows = np.arange(-4.0, 5) + np.array([[0.5], [0.3]])  # of means 0.5 and 0.3
    spectrum = ModelSpectrum(quadrature.Quadrature(rows, 0 * rows + 1 / 9, 0 * rows, 1e-7), 10, np.empty((0, 10)))
    assert (spectrum.largest, spectrum.smallest) == ((4.5, 0), (-3.7, 0))
    # Student's t for the most skewed samples, as one eigenvalue of that size could make the two differ so much.
    assert spectrum.trace == pytest.approx((4, 12.7062 * (1 + 8.7 / 2)), rel=1e-5)
    lines = str(spectrum).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["4.5", "3.5", "2.5", "trace:"]
    assert sum("trace:" in line for line in lines) == 1
    assert [axes.get_title() for axes in spectrum.plot("as titled").axes] == ["as titled"]
    by_part = PartSpectra([part_row(name, spectrum) for name in ("a", "b")])
    assert len(by_part.plot().axes) == 2 and [line.split()[0] for line in str(by_part).splitlines()] == [
        "part",
        "a",
        "b",
    ]


def test_the_report_leaves_out_what_is_not_resolved_and_prints_each_ritz_value_once():
    resolved = report.report(nodes(np.linspace(-1, 9, 400)), count=2, dim=900)
    assert "condition number: 1" in resolved and "index: 10" in resolved
    coarse = report.report(nodes([-1.0, 0.001, 5.0]), count=1, dim=900).splitlines()
    names = ["trace", "eigenvalues smaller in size than 5 % of the largest"]
    assert [line.split(":")[0] for line in coarse[2:]] == names
    lines = report.report(nodes([-3.0, -1.0, 0.0, 2.0, 5.0]), count=5, dim=900).splitlines()
    assert [line.split()[::2] for line in lines[1:4]] == [["5", "-3"], ["2", "-1"], ["0"]]
    assert lines[4].startswith("trace: 540 ± 0 (95 % interval)")  # the two vectors of `nodes` agree
    assert len(report.report(nodes([4.0]), count=5, dim=900).splitlines()) == 4
    singular = report.report(nodes([1e-8] * 50 + [1.0] * 50), count=1, dim=900)
    assert "condition number: infinite within rounding, largest |eigenvalue| 1 over" in singular


def test_at_full_order_the_report_counts_eigenvalues_and_not_their_weights():
    eigenvalues = np.linspace(-1, 9, 11)
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((11, 11)))[0]
    product = ((basis * eigenvalues) @ basis.T).__matmul__
    found = quadrature.lanczos_quadrature(product, 11, 11, num_vectors=1)
    lines = report.report(found, count=2, dim=11).splitlines()[-3:]
    assert lines[0] == f"trace: 44 ± {11 * found.rounding:.1g}, of all 11 eigenvalues"
    assert lines[1:] == [
        "condition number: 9, largest |eigenvalue| 9 over 10th percentile 1",
        "index: 9.09 % of the eigenvalues are negative, 9.09 % are 0 within rounding",
    ]
    assert "index: 9.09 %" not in report.report(found, count=2, dim=12)  # negative control: by the weights
