"""Other losses, parts of the weights, the Gauss–Newton matrix: products against dense matrices made another way."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.sparse.linalg import eigsh
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shortcut_study.curvature import lanczos, quadrature, report
from shortcut_study.curvature.callback import HessianCallback, eigenvalue_levels
from shortcut_study.curvature.copies import with_dtype
from shortcut_study.curvature.hutchinson import confidence, hutchinson
from shortcut_study.curvature.products import model_mvp

RNG = np.random.default_rng(0)
X, CLASSES, TARGETS = RNG.standard_normal((12, 4)), RNG.integers(0, 3, 12), RNG.standard_normal((12, 3))


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(5, "tanh", name="hidden"), keras.layers.Dense(3, name="out")]
    return with_dtype(keras.Sequential([keras.Input((4,)), *layers]), "float64")  # 20 + 5 + 15 + 3 weights


def squares(labels, outputs):
    return tf.reduce_mean(tf.square(labels - outputs), axis=1)


def cross_entropy(labels, outputs):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


def forward(model, w):
    """The two layers by hand, from the flat weights."""
    k1, b1, k2, b2 = tf.split(w, [20, 5, 15, 3])
    return tf.tanh(X @ tf.reshape(k1, (4, 5)) + b1) @ tf.reshape(k2, (5, 3)) + b2


def flat(model):
    return tf.constant(np.concatenate([v.numpy().ravel() for v in model.trainable_variables]))


def dense_hessian(model, of_outputs):
    w = flat(model)
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            loss = of_outputs(forward(model, w))
        gradient = inner.gradient(loss, w)
    return outer.jacobian(gradient, w).numpy()


def dense_gauss_newton(model, of_outputs):
    """Jᵀ ∇²ℓ J with both factors written out."""
    w = flat(model)
    with tf.GradientTape() as tape:
        tape.watch(w)
        outputs = tf.reshape(forward(model, w), [-1])
    jacobian = tape.jacobian(outputs, w).numpy()
    with tf.GradientTape() as outer:
        outer.watch(outputs)
        with tf.GradientTape() as inner:
            inner.watch(outputs)
            loss = of_outputs(tf.reshape(outputs, (12, 3)))
        gradient = inner.gradient(loss, outputs)
    return jacobian.T @ outer.jacobian(gradient, outputs).numpy() @ jacobian


def matrix_of(mvp_fn, dim):
    return np.stack([mvp_fn(row) for row in np.eye(dim)])


# Each: the loss as a user gives it, the labels, the same mean over examples by hand.
LOSSES = {
    "default": (None, CLASSES, lambda z: tf.reduce_mean(cross_entropy(CLASSES, z))),
    "name": ("mean_squared_error", TARGETS, lambda z: tf.reduce_mean(squares(TARGETS, z))),
    "object": (keras.losses.MeanSquaredError(), TARGETS, lambda z: tf.reduce_mean(squares(TARGETS, z))),
    "object that sums": (
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
        CLASSES,
        lambda z: tf.reduce_mean(cross_entropy(CLASSES, z)),
    ),
    "function": (lambda y, z: squares(y, z) ** 2, TARGETS, lambda z: tf.reduce_mean(squares(TARGETS, z) ** 2)),
    "one-hot": (
        keras.losses.CategoricalCrossentropy(from_logits=True),
        np.eye(3)[CLASSES],
        lambda z: tf.reduce_mean(cross_entropy(CLASSES, z)),
    ),
    "a number an output": (lambda y, z: (y - z) ** 2, TARGETS, lambda z: tf.reduce_mean(squares(TARGETS, z))),
}
CASES = [(name, False) for name in LOSSES if name != "object"] + [(name, True) for name in ("default", "object")]


@pytest.mark.parametrize("name, gauss_newton", CASES)
def test_products_of_any_keras_loss_make_the_dense_matrix(model, name, gauss_newton):
    loss, labels, of_outputs = LOSSES[name]
    found = matrix_of(*model_mvp(model, X, labels, batch_size=5, loss=loss, gauss_newton=gauss_newton))
    dense = (dense_gauss_newton if gauss_newton else dense_hessian)(model, of_outputs)
    np.testing.assert_allclose(found, dense, atol=1e-12)
    other = (dense_hessian if gauss_newton else dense_gauss_newton)(model, of_outputs)
    assert np.abs(found - other).max() > 1e-3  # the two matrices differ


def test_a_probability_model_is_taken_with_a_loss_of_probabilities_and_refused_without(model):
    softmax = keras.Sequential([*model.layers, keras.layers.Softmax(dtype="float64")])
    softmax.build((None, 4))
    loss = keras.losses.SparseCategoricalCrossentropy()
    found = matrix_of(*model_mvp(softmax, X, CLASSES, 12, loss=loss))
    np.testing.assert_allclose(found, matrix_of(*model_mvp(model, X, CLASSES, 12)), atol=1e-6)  # Keras clips at 1e-7
    with pytest.raises(ValueError, match="must give logits"):
        model_mvp(softmax, X, CLASSES, 12)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy()])
def test_the_gauss_newton_matrix_of_keras_losses_of_probabilities_is_of_these_and_not_0(model, loss):
    softmax = keras.Sequential([*model.layers, keras.layers.Softmax(dtype="float64")])
    softmax.build((None, 4))

    def by_hand(y, p):
        return -tf.math.log(tf.gather(p, y, axis=1, batch_dims=1))

    found, expected = (
        matrix_of(*model_mvp(softmax, X, CLASSES, 12, loss=of, gauss_newton=True)) for of in (loss, by_hand)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)  # Keras clips at 1e-7
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("labels", [TARGETS[:, 0], TARGETS[:, :1]])
def test_labels_meet_outputs_of_one_column_as_in_keras_compile(labels):
    model = with_dtype(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), "float64")
    mvp_fn, dim = model_mvp(model, X, labels, batch_size=5, loss=lambda y, z: keras.ops.square(y - z))
    with_ones = np.column_stack([X, np.ones(12)])
    np.testing.assert_allclose(matrix_of(mvp_fn, dim), 2 / 12 * with_ones.T @ with_ones, atol=1e-12)


def test_some_variables_give_their_block_of_the_matrix_in_their_order(model):
    whole = matrix_of(*model_mvp(model, X, CLASSES, 12))
    hidden, bias, out, _ = model.trainable_variables
    found = matrix_of(*model_mvp(model, X, CLASSES, 12, variables=[out, bias]))
    at = np.r_[25:40, 20:25]
    np.testing.assert_allclose(found, whole[np.ix_(at, at)], atol=1e-14)


def two_inputs():
    inputs = [keras.Input((4,)), keras.Input((4,))]
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Add()(inputs)))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"variables": []}, "variables must be some of model.trainable_variables"),
        ({"variables": [np.zeros(3)]}, "variables must be some of"),
        ({"loss": "no_such_loss"}, "no_such_loss"),
        ({"loss": lambda y, z: tf.reduce_mean(squares(y, z)), "labels": TARGETS}, "one value per example"),
        ({"labels": TARGETS[:, 0]}, "one label per image, a whole number"),
        ({"model": two_inputs}, "one input and one output, got 2, 1"),
    ],
)
def test_a_mistake_in_a_call_is_named(model, changes, message):
    if changes.get("model") is two_inputs:  # built here: a fork does not survive a TensorFlow that runs
        changes = {"model": two_inputs()}
    with pytest.raises(ValueError, match=message):
        model_mvp(**{"model": model, "images": X, "labels": CLASSES, "batch_size": 12} | changes)


def random_matrix(dim=30):
    normal = np.random.default_rng(1).standard_normal((dim, dim))
    return normal + normal.T + dim * np.eye(dim)


def test_hutchinson_estimates_trace_and_diagonal_within_its_error_bars():
    h = random_matrix()
    found = [hutchinson(lambda v: h @ v, 30, 50, seed=seed) for seed in range(40)]
    deviations = confidence(50) * np.array([(f.trace - np.trace(h)) / f.trace_error for f in found])
    assert np.abs(deviations).max() < 4.5 and 0.6 < deviations.std() < 1.6
    of_diagonal = confidence(50) * np.array([(f.diagonal - np.diag(h)) / f.diagonal_error for f in found])
    assert 0.85 < of_diagonal.std() < 1.2 and np.abs(of_diagonal.mean()) < 0.1
    variance = 2 * (np.sum(h**2) - np.sum(np.diag(h) ** 2))
    assert np.mean([f.trace_error**2 for f in found]) == pytest.approx(confidence(50) ** 2 * variance / 50, rel=0.2)


def test_hutchinson_is_exact_on_a_diagonal_matrix_and_stops_at_its_tolerance():
    values = np.arange(1.0, 8)
    found = hutchinson(lambda v: values * v, 7, 1)
    assert found.trace == values.sum() and np.isnan(found.trace_error) and np.array_equal(found.diagonal, values)
    h = random_matrix()
    loose, strict = (
        hutchinson(lambda v: h @ v, 30, 500, tolerance=tolerance) for tolerance in (0.06, 0.008)
    )  # twice the standard errors
    assert 5 <= loose.num_vectors < strict.num_vectors < 500
    assert strict.trace_error <= 0.008 * strict.trace
    assert hutchinson(lambda v: h @ v, 30, 20).num_vectors == 20
    matrix = np.array([[2.0, 1.0], [1.0, 3.0]])  # vectors that agree by chance do not end it without a tolerance
    found = [hutchinson(lambda v: matrix @ v, 2, 400, seed) for seed in (25, 39, 76)]
    assert all(each.num_vectors == 400 and each.trace_error > 0 for each in found)


def test_lanczos_stops_once_the_ends_are_known_to_the_tolerance():
    values = np.append(np.linspace(-2, 7, 300), [7.2, 8.0, -3.0])
    product, orders = (lambda v: values * v), []
    for tolerance in (1e-2, 1e-5, 1e-9):
        found = lanczos.ritz(lanczos.lanczos(product, 303, 200, stop=lanczos.converged(1, tolerance)))
        orders.append(len(found.values))
        assert found.error_bounds[[0, -1]].max() <= tolerance * 8
        assert np.abs(found.values[[-1, 0]] - [8, -3]).max() <= tolerance * 8
    assert orders == sorted(set(orders)) and orders[0] % lanczos.STEPS_BETWEEN_CHECKS == 0 and orders[-1] < 150
    whole = lanczos.ritz(lanczos.lanczos(product, 303, orders[0]))
    np.testing.assert_array_equal(  # stopping changes nothing else
        whole.values, lanczos.ritz(lanczos.lanczos(product, 303, 200, stop=lanczos.converged(1, 1e-2))).values
    )
    several = quadrature.lanczos_quadrature(product, 303, 200, 3, stop=lanczos.converged(1, 1e-2))
    assert several.nodes.shape[0] == 3 and several.nodes.shape[1] < 150


def test_error_bounds_hold_for_float32_products_on_a_float64_basis():
    matrix = random_matrix().astype(np.float32)
    found = lanczos.ritz(lanczos.lanczos(lambda v: matrix @ v.astype(np.float32), 30, 30))
    errors = np.abs(found.values - np.linalg.eigvalsh(np.float64(matrix)))
    assert errors.max() > 1e-9  # above the rounding of the basis
    assert (errors <= found.error_bounds).all()


def test_a_linear_operator_is_what_arpack_takes(model):
    mvp_fn, dim = model_mvp(model, X, CLASSES, 12)
    operator = lanczos.linear_operator(mvp_fn, dim, np.float64)
    exact = np.linalg.eigvalsh(matrix_of(mvp_fn, dim))
    assert eigsh(operator, k=2, which="LA", return_eigenvectors=False) == pytest.approx(exact[-2:], abs=1e-10)


def nodes(values, weights=None):
    values = np.array([values, values], float)
    return quadrature.Quadrature(values, np.full(values.shape, 1 / values.shape[1]), np.zeros(values.shape), 1e-7)


def test_the_report_leaves_out_what_is_not_resolved():
    resolved = report.report(nodes(np.linspace(-1, 9, 400)), count=2, dim=900)
    assert "condition number: 1" in resolved and "index: 10" in resolved
    coarse = report.report(nodes([-1.0, 0.001, 5.0]), count=1, dim=900).splitlines()
    assert [line.split(":")[0] for line in coarse[2:]] == [
        "trace",
        "eigenvalues smaller in size than 5% of the largest",
    ]


def test_the_report_prints_each_ritz_value_once_and_an_infinite_condition_number_in_words():
    lines = report.report(nodes([-3.0, -1.0, 0.0, 2.0, 5.0]), count=5, dim=900).splitlines()
    assert [line.split()[::2] for line in lines[1:4]] == [["5", "-3"], ["2", "-1"], ["0"]]
    assert lines[4].startswith("trace: 540 ± 0 (95 % interval)")  # the two vectors of `nodes` agree
    assert len(report.report(nodes([4.0]), count=5, dim=900).splitlines()) == 4
    singular = report.report(nodes([1e-8] * 50 + [1.0] * 50), count=1, dim=900)
    assert "condition number: infinite within rounding, largest |eigenvalue| 1 over" in singular


def test_at_full_order_the_report_counts_eigenvalues_and_not_their_weights():
    eigenvalues = np.linspace(-1, 9, 11)
    basis = np.linalg.qr(random_matrix(11))[0]
    product = ((basis * eigenvalues) @ basis.T).__matmul__
    found = quadrature.lanczos_quadrature(product, 11, 11, num_vectors=1)
    lines = report.report(found, count=2, dim=11).splitlines()[-3:]
    assert lines[0].startswith("trace: 44 ± ") and lines[0].endswith(", of all 11 eigenvalues")
    assert lines[1:] == [
        "condition number: 9, largest |eigenvalue| 9 over 10th percentile 1",
        "index: 9.09% of the eigenvalues are negative, 9.09% are 0 within rounding",
    ]
    assert "index: 9.09%" not in report.report(found, count=2, dim=12)  # negative control: by the weights


def test_levels_follow_the_weights():
    found = quadrature.Quadrature(np.array([[0.0, 1, 2]]), np.array([[0.7, 0.2, 0.1]]), np.zeros((1, 3)), 0.0)
    levels, counts = np.unique(eigenvalue_levels(found, 100), return_counts=True)
    assert levels.tolist() == [0, 1, 2] and counts.tolist() == [70, 20, 10]


@pytest.mark.slow
def test_the_callback_records_the_hessian_of_each_measured_epoch(model, tmp_path):
    network = with_dtype(model, "float32")
    network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callback = HessianCallback(X, CLASSES, str(tmp_path), every=2, order=43, num_vectors=2, batch_size=5)
    logged = network.fit(X, CLASSES, epochs=5, verbose=0, callbacks=[callback, history := keras.callbacks.History()])
    assert logged is not None and [row["epoch"] for row in callback.history] == [0, 2, 4]
    start = np.linalg.eigvalsh(matrix_of(*model_mvp(model, X, CLASSES, 12)))
    assert callback.history[0]["largest"] == pytest.approx(start[-1], abs=1e-5)
    assert callback.history[0]["smallest"] == pytest.approx(start[0], abs=1e-5)
    assert callback.history[0]["largest_error_bound"] < 1e-4 > callback.history[0]["smallest_error_bound"]
    assert abs(callback.history[0]["trace"] - start.sum()) < callback.history[0]["trace_error"]  # t: 12.7
    assert callback.history[1]["largest"] != callback.history[0]["largest"]
    # Keras has a row for each of the five epochs; the Hessian is measured after the second and the fourth.
    measured = [np.nan, callback.history[1]["largest"], np.nan, callback.history[2]["largest"], np.nan]
    np.testing.assert_array_equal(history.history["hessian_largest"], measured)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    written = {f"hessian/{name}" for name in ("largest", "smallest", "trace", "eigenvalues")}
    assert written <= set(events.Tags()["tensors"])
    assert [event.step for event in events.Tensors("hessian/largest")] == [0, 2, 4]


def test_a_continued_fit_is_measured_at_the_epochs_that_it_has(model, tmp_path):
    network = with_dtype(model, "float32")
    network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callback = HessianCallback(X, CLASSES, tmp_path / "logs", order=2)
    network.fit(X, CLASSES, initial_epoch=3, epochs=5, verbose=0, callbacks=[callback])
    assert [row["epoch"] for row in callback.history] == [3, 4, 5]
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert [event.step for event in events.Tensors("hessian/largest")] == [3, 4, 5]
    whole = HessianCallback(X, CLASSES, str(tmp_path), order=43)  # a second fit has its first measurement too
    for _ in range(2):
        network.fit(X, CLASSES, initial_epoch=7, epochs=8, verbose=0, callbacks=[whole])
    assert [row["epoch"] for row in whole.history] == [7, 8, 7, 8]
    assert whole.history[1]["largest"] == pytest.approx(whole.history[2]["largest"], abs=1e-5)


def test_a_callback_that_can_never_measure_is_refused(tmp_path):
    for name, message in (("every", "0, 20 and 1"), ("order", "1, 0 and 1"), ("num_vectors", "1, 20 and 0")):
        with pytest.raises(ValueError, match=f"must be at least 1, got {message}"):
            HessianCallback(X, CLASSES, str(tmp_path), **{name: 0})
    with pytest.raises(ValueError, match="one label per image"):
        HessianCallback(X, CLASSES[:3], str(tmp_path))


def test_a_trace_from_one_vector_has_no_error_bar():
    row = {"part": "stem", "num_weights": 9, "largest": 1.0, "largest_error_bound": 1e-3, "smallest": -1, "trace": 2}
    rows = [row | {"trace_error": error} for error in (float("nan"), 0.5)]
    lines = report.parts_table(rows).splitlines()[1:]
    assert lines[0].split()[-1] == "–" and lines[1].split()[-1] == "0.5"


def test_a_spectrum_is_drawn_again_without_tensorflow():
    script = "import sys, shortcut_study.curvature.report as _; print({'tensorflow', 'keras'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
