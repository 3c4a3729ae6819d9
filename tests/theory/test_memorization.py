"""Networks that memorise any labelling: exact on the sample, for every method, shape and scale."""

import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from unit_points import unit_points

from theory.memorization import METHODS, figures, memorize, parameter_count


def forward(network, x):
    """The reference: (3.1) and §3 in columns, one point at a time, in float64, loops and nothing else."""
    scores = []
    for point in np.asarray(x, np.float64):
        h = network.projection.astype(np.float64) @ point
        for U, V, s in zip(network.U, network.V, network.s):
            h = h + V.astype(np.float64) @ np.maximum(0, U.astype(np.float64) @ h + s)
        scores.append(network.head_V @ np.maximum(0, network.head_U @ h + network.head_s))
    return np.array(scores)


def error(scores, labels) -> float:
    """Largest difference from the one-hot vectors."""
    return float(np.abs(scores - np.eye(scores.shape[1])[labels]).max())


@pytest.fixture(scope="module")
def digits():
    """1,000 raw MNIST images, uint8 and so non-negative, with random labels."""
    from identity_matters.data.digits import mnist_sample

    images = mnist_sample().train_images[:1000].reshape(1000, -1)
    return images, np.random.default_rng(0).integers(0, 10, 1000)


# The whole network


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 60),
    d=st.integers(1, 12),
    num_classes=st.integers(1, 20),
    width=st.integers(2, 24),
    exponent=st.integers(-6, 6),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 10**6),
    whiten=st.booleans(),
)
def test_peeling_fits_any_shape_at_any_scale(n, d, num_classes, width, exponent, dtype, seed, whiten):
    rng = np.random.default_rng(seed)
    x, labels = (10.0**exponent * rng.standard_normal((n, d))).astype(dtype), rng.integers(0, num_classes, n)
    network = memorize(x, labels, num_classes, width, seed=seed, whiten=whiten)
    assert network.num_parameters == parameter_count(n, d, num_classes, width)
    assert network.num_layers == -(-n // width) and network.width == width
    assert error(network(x), labels) <= (network.float32_error if network.fits_float32 else 1e-3)
    if network.fits_float32:
        scores = network(x.astype(np.float32))
        assert scores.dtype == np.float32
        assert error(scores, labels) <= network.float32_error


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["pairs", "cluster", "line", "ray", "sphere", "integers"]),
    n=st.integers(2, 40),
    d=st.integers(1, 6),
    width=st.integers(2, 12),
    with_origin=st.booleans(),
    exponent=st.integers(-6, 6),
    seed=st.integers(0, 10**6),
)
def test_peeling_fits_nearly_degenerate_points_in_float64(kind, n, d, width, with_origin, exponent, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d)) + 0.1
    if kind == "pairs":
        x[1::2] = x[: 2 * (n // 2) : 2] + 1e-6 * x[1::2] / np.linalg.norm(x[1::2], axis=1, keepdims=True)
    elif kind == "cluster":
        x = x[:1] + 1e-6 * x
    elif kind == "line":
        x = np.outer(rng.permutation(n) - n // 2 + 0.5, x[0])
    elif kind == "ray":
        x = np.outer(1 + rng.permutation(n), x[0])
    elif kind == "sphere" and d > 1:
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    elif kind == "integers":
        x = np.array(list(itertools.islice(itertools.product(range(-3, 4), repeat=max(2, d)), n)), float)
    if with_origin:
        x[0] = 0
    x = 10.0**exponent * np.unique(x, axis=0)
    labels = rng.integers(0, 3, len(x))
    network = memorize(x, labels, 3, width, seed=seed)
    assert error(network(x), labels) < 0.1
    assert error(forward(network, x), labels) < 0.1
    if network.fits_float32:
        assert error(network(x.astype(np.float32)), labels) <= network.float32_error


@pytest.mark.parametrize("width, whiten", [(2, False), (16, True), (64, False)])
def test_raw_images_with_random_labels_come_out_right(digits, width, whiten):
    images, labels = digits
    network = memorize(images, labels, 10, width, whiten=whiten)
    scores = network(images)
    assert error(scores, labels) < 0.1
    assert error(network(images.astype(np.float64)), labels) < 0.1
    assert width < 8 or scores.dtype == np.float32 and error(scores, labels) <= network.float32_error < 0.5
    tolerance = network.float32_error if network.fits_float32 else 1e-6
    np.testing.assert_allclose(scores[:20], forward(network, images[:20]), atol=tolerance)


def test_whitening_widens_the_gap_of_images(digits):
    images, labels = digits
    plain, whitened = (memorize(images, labels, 10, 16, whiten=whiten) for whiten in (False, True))
    assert whitened.smallest_gap > 2 * plain.smallest_gap


def test_the_errors_by_width_are_the_largest_over_points_and_classes(digits):
    x, labels = digits[0][:30] / 255, digits[1][:30]
    points = x.astype(np.float32)
    for row in figures.memorizing_networks(x, labels, 10, widths=(2,)):
        network = memorize(points, labels, 10, 2, whiten=bool(row["whitened"]))
        assert row["float32_error"] == pytest.approx(error(network.forward(points, np.float32), labels), rel=0.01)


def test_the_smallest_gap_is_that_of_the_points():
    x, labels = unit_points(60, 30)
    network = memorize(x, labels, 5, 12)
    z = x @ network.projection.T
    z = z[np.argsort(-np.linalg.norm(z, axis=1))]
    q = network.head_U
    gaps = [1 - max(other @ z[i] for other in [*z[i + 1 :], *q]) / (z[i] @ z[i]) for i in range(60)]
    assert network.smallest_gap == pytest.approx(min(gaps), rel=1e-9)


def test_the_float32_estimate_is_no_idle_bound(digits):
    images, labels = digits
    ratios = []
    for width in (8, 16, 32, 64):
        network = memorize(images, labels, 10, width)
        ratios.append(network.float32_error / error(network(images), labels))
    assert 1 <= min(ratios) and np.median(ratios) < 300


@pytest.mark.parametrize("distance, seed", [(3e-4, 0), (1e-4, 1), (1e-5, 3), (1e-6, 2), (1e-6, 4)])
def test_float32_points_with_near_copies_are_fitted(distance, seed):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((50, 10))
    x = np.concatenate([points, points + distance * rng.standard_normal((50, 10))]).astype(np.float32)
    labels = rng.integers(0, 3, 100)
    network = memorize(x, labels, 3, seed=seed)
    assert np.array_equal(network(x).argmax(1), labels)


def test_points_too_close_for_float32_are_done_in_float64():
    x, labels = unit_points(40, 6)
    x = x.astype(np.float32)
    x[1] = x[0] + np.float32(1e-6)
    labels[:2] = 0, 1
    network = memorize(x, labels, 5, 4)
    assert not network.fits_float32 and network.float32_error == np.inf
    assert network(x).dtype == np.float64 and error(network(x), labels) < 1e-3
    assert error(np.asarray(network.to_keras()(x)), labels) < 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_the_origin_is_a_point_like_any_other(method):
    x, labels = unit_points(33, 60)
    x[4] = 0
    width = 32 if method == "peeling" else 250
    for label in range(5):
        labels[4] = label
        network = memorize(x, labels, 5, width, method)
        assert error(network(x), labels) < 1e-12
        np.testing.assert_allclose(network(x), forward(network, x), atol=1e-12)
        assert network.num_parameters == parameter_count(33, 60, 5, width)
    assert error(memorize(x[4:5], [0], 1)(x[4:5]), [0]) < 1e-12


def test_equal_points_with_equal_labels_are_merged():
    x, labels = unit_points(20, 4)
    x[3], x[10, 0], x[11] = x[8], 0.0, x[10]
    x[11, 0] = -0.0
    x[10, 0], labels[3], labels[10] = 0.0, labels[8], labels[11]
    x[11, 1:] = x[10, 1:]
    network = memorize(x, labels, 5, 6)
    assert network.num_parameters == parameter_count(18, 4, 5, 6)
    assert error(network(x), labels) < 1e-9


def test_the_same_seed_gives_the_same_network_and_another_seed_another():
    x, labels = unit_points(30, 10)
    a, b, c = (memorize(x, labels, 5, 8, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a.U, b.U)
    assert not np.array_equal(a.U, c.U)


def test_any_input_gets_the_scores_of_the_formula():
    x, labels = unit_points(50, 10)
    network = memorize(x, labels, 5, 8)
    others = 3 * np.random.default_rng(1).standard_normal((3000, 10))  # several panels, many units awake
    np.testing.assert_allclose(network(others)[-40:], forward(network, others[-40:]), rtol=1e-8, atol=1e-8)
    assert "got shape (3, 9)" in refused(network, others[:3, :9])


# What users get wrong

X, Y = np.random.default_rng(0).standard_normal((6, 3)), np.array([0, 1, 2, 0, 1, 2])
RAY = np.outer(np.arange(1, 7), X[0])
LONG = np.where(np.arange(3200).reshape(1600, 2) == 3001, np.inf, 1.0)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x": X[:0], "labels": Y[:0]}, r"x must be \[n, d\].*got shape \(0, 3\)"),
        ({"x": X.astype(complex)}, "x must be real numbers of up to 64 bits, got complex128"),
        ({"x": np.where(X == X[2, 1], np.nan, X)}, "x must be finite, got nan in row 2, column 1"),
        ({"labels": Y[:5]}, r"labels must be 6 integers.*got int64 of shape \(5,\)"),
        ({"labels": Y.astype(float)}, "labels must be 6 integers.*got float64"),
        ({"labels": Y + 1}, "labels must lie in 0–2, got 1–3"),
        ({"labels": Y - 1}, "labels must lie in 0–2, got -1–1"),
        ({"num_classes": 0}, "num_classes must be an integer of at least 1, got 0"),
        ({"num_classes": 1.5}, "num_classes must be an integer of at least 1, got 1.5"),
        ({"x": X[None]}, r"x must be \[n, d\].*got shape \(1, 6, 3\)"),
        ({"x": X[:, :0]}, r"x must be \[n, d\].*got shape \(6, 0\)"),
        ({"x": X.astype(np.longdouble)}, "x must be real numbers of up to 64 bits, got float128"),
        ({"x": LONG, "labels": np.zeros(1600, int)}, "x must be finite, got inf in row 1500, column 1"),
        ({"width": 1}, "width must be an integer of at least 2, got 1"),
        ({"method": "magic"}, "method must be one of peeling, row_bias, paper, got 'magic'"),
        ({"x": X[[0, 1, 2, 3, 4, 2]], "labels": [0, 1, 2, 0, 1, 0]}, "points 2 and 5 are equal .* labels 2 and 0"),
        ({"x": X * np.arange(1, 7)[:, None], "method": "paper"}, "needs points of one norm .*got norms from"),
        ({"x": RAY, "method": "row_bias"}, "no width suffices; use 'peeling'"),
        ({"x": RAY, "method": "row_bias", "width": 8}, r"'row_bias', width 8, point \d: \|z\|² = .* is not above"),
        ({"x": RAY, "method": "paper", "width": 8}, r"'paper', width 8, point 0: .*min \|z_i − z_j\|² > 4ρ'"),
        ({"x": X[:, :1] * 0 + 1e8 + 1e-8 * np.arange(6)[:, None]}, "point"),
    ],
)
def test_a_mistake_gets_a_short_error_that_names_the_value(change, message):
    arguments = {"x": X, "labels": Y, "num_classes": 3} | change
    assert re.search(message, refused(memorize, **arguments))


# Keras


def run_python(code: str, **environment) -> str:
    variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_keras_model_is_the_same_network_and_survives_its_file(digits, tmp_path):
    import keras

    images, labels = digits[0][:300], digits[1][:300]
    network = memorize(images, labels, 10, 16)
    model = network.to_keras()
    assert model.count_params() == network.num_parameters == parameter_count(300, 784, 10, 16)
    scores = keras.ops.convert_to_numpy(model(images.astype(np.float32)))
    np.testing.assert_allclose(scores, network(images), atol=network.float32_error)
    model.save(tmp_path / "network.keras")
    loaded = keras.models.load_model(tmp_path / "network.keras", safe_mode=True)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(loaded(images.astype(np.float32))), scores)


@pytest.mark.slow
def test_tensorflow_without_our_packages_loads_the_exported_network(digits, tmp_path):
    images, labels = digits[0][:300], digits[1][:300]
    memorize(images, labels, 10, 16).to_keras().export(tmp_path / "saved", verbose=False)
    np.savez(tmp_path / "sample.npz", x=images.astype(np.float32), y=np.eye(10)[labels])
    code = f"""
import numpy as np, sys, tensorflow as tf
sample = np.load({str(tmp_path / "sample.npz")!r})
model = tf.saved_model.load({str(tmp_path / "saved")!r})
scores = model.serve(sample["x"]).numpy()
print(np.abs(scores - sample["y"]).max(), "theory" in sys.modules)
"""
    worst, has_theory = run_python(code).split()
    assert float(worst) < 1e-2 and has_theory == "False"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "numpy"])
def test_other_backends_build_the_same_model(backend):
    code = """
import numpy as np, keras
from theory.memorization import memorize
x, labels = np.random.default_rng(0).standard_normal((50, 9)).astype(np.float32), np.arange(50) % 4
scores = keras.ops.convert_to_numpy(memorize(x, labels, 4, 8).to_keras()(x))
print(np.abs(scores - np.eye(4)[labels]).max() < 1e-3)
"""
    assert run_python(code, KERAS_BACKEND=backend).strip() == "True"


def test_a_network_prints_as_one_line():
    shown = repr(memorize(np.arange(12.0).reshape(6, 2), np.arange(6) % 3, num_classes=3))
    assert shown.startswith("MemorizingNetwork(2 inputs -> 3 classes, width=") and len(shown) < 120
