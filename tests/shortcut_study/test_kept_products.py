"""Products in a file: an interrupted call goes on after the last finished one, and no other problem's is taken."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shortcut_study import curvature
from shortcut_study.curvature.deflation import deflated_quadrature
from shortcut_study.curvature.kept import KeptProducts

RNG = np.random.default_rng(0)
VALUES = np.append(RNG.standard_normal(200), [20.0, 30.0])
X, CLASSES = RNG.standard_normal((12, 4)).astype(np.float32), RNG.integers(0, 3, 12)


def counting(calls, stop_at=None):
    def product(vector):
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        calls.append(vector.copy())
        return (VALUES * vector).astype(vector.dtype)

    return product


def quadrature(path, calls, stop_at=None, dtype=np.float32, problem=("a",)):
    return deflated_quadrature(KeptProducts(path, list(problem)).of(counting(calls, stop_at)), 202, dtype=dtype)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_interrupted_iteration_goes_on_after_the_last_finished_product_to_the_same_bits(tmp_path, dtype):
    path, whole, first, second = tmp_path / "products", [], [], []
    expected = quadrature(None, whole, dtype=dtype)
    with pytest.raises(KeyboardInterrupt):
        quadrature(path, first, 37, dtype)
    again = quadrature(path, second, dtype=dtype)
    assert len(first) == 37 and len(second) == len(whole) - 36  # the first is computed again, to compare
    for one, other in zip(again, expected):
        np.testing.assert_array_equal(one, other)
    third = []
    quadrature(path, third, dtype=dtype)
    assert len(third) == 1


def test_what_a_killed_process_has_not_written_to_its_end_is_computed_again(tmp_path):
    path, first = tmp_path / "products", []
    quadrature(path, first)
    data = path.read_bytes()
    entry = (len(data) - 51) // len(first)
    for cut, lost in ((1, 1), (entry, 1), (entry + 1, 2), (len(data) - 20, len(first))):
        path.write_bytes(data[:-cut])
        assert quadrature(path, calls := []) is not None and len(calls) == min(lost + 1, len(first))
        assert path.read_bytes() == data
    damaged = bytearray(data)
    damaged[len(data) - entry // 2] ^= 1
    path.write_bytes(damaged)
    quadrature(path, calls := [])
    assert len(calls) == 2  # its check sum is wrong


def test_a_file_of_another_problem_and_what_is_no_such_file_are_refused(tmp_path):
    path = tmp_path / "products"
    quadrature(path, [])
    for problem in (("b",), ("a", "b"), ("ab",), (np.array([1.0]),)):
        with pytest.raises(ValueError, match="holds products of another model, another loss or other examples"):
            quadrature(path, [], problem=problem)
    assert quadrature(path, calls := []) is not None and len(calls) == 1
    path.write_text("step,loss\n1\n")
    for other in (path, tmp_path):
        with pytest.raises(ValueError, match="is not a file of Hessian products"):
            quadrature(other, [])


def test_the_same_vector_in_another_matrix_is_another_product(tmp_path):
    kept, vector = KeptProducts(tmp_path / "products", []), np.ones(3)
    assert kept.of(lambda v: v, "a")(vector).tolist() == [1, 1, 1]
    assert kept.of(lambda v: 2 * v, "b")(vector).tolist() == [2, 2, 2] and len(kept) == 2
    assert kept.of(lambda v: 3 * v, "a")(vector).tolist() == [1, 1, 1]  # found
    assert not KeptProducts(None, []).of(lambda v: 0 * v)(vector).any()


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(16, "tanh", name="hidden"), keras.layers.Dense(3, name="out")]
    return keras.Sequential([keras.Input((4,)), *layers])


def interrupted_at(count):
    """An on_batch that raises like Ctrl-C after so many batches, and the list of those that it saw."""
    seen = []

    def on_batch():
        seen.append(1)
        if len(seen) == count:
            raise KeyboardInterrupt

    return on_batch, seen


@pytest.mark.parametrize("call", [curvature.spectrum, curvature.diagonal, curvature.per_layer])
def test_each_measurement_of_a_model_goes_on_from_its_file(model, tmp_path, call):
    options = {"batch_size": 6, "progress": False, "path": tmp_path / "products"}
    options |= {"num_vectors": 6} if call is curvature.diagonal else {"num_vectors": 3, "order": 20}
    on_batch, _ = interrupted_at(25)  # within the thirteenth product
    with pytest.raises(KeyboardInterrupt):
        call(model, X, CLASSES, on_batch=on_batch, **options) if call is not curvature.diagonal else call(
            model, X, CLASSES, on_batch=interrupted_at(9)[0], **options
        )
    on_batch, rest = interrupted_at(0)
    again = call(model, X, CLASSES, on_batch=on_batch, **options)
    on_batch, whole = interrupted_at(0)
    expected = call(model, X, CLASSES, on_batch=on_batch, **options | {"path": None})
    assert len(whole) - len(rest) == (6 if call is curvature.diagonal else 22)  # less the product that is checked
    assert str(again) == str(expected)


def test_other_weights_examples_losses_and_matrices_do_not_take_the_products_of_these(model, tmp_path):
    options = {"progress": False, "path": tmp_path / "products", "order": 5, "num_vectors": 1}
    curvature.spectrum(model, X, CLASSES, **options)
    other = keras.models.clone_model(model)
    smoothed = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    one_hot = np.eye(3)[CLASSES]
    for change in (
        {"model": other},
        {"x": X + 1},
        {"y": (CLASSES + 1) % 3},
        {"gauss_newton": True},
        {"variables": model.trainable_variables[:1]},
        {"y": one_hot, "loss": smoothed},
        {"loss": lambda y, z: keras.ops.sum(z, -1) ** 4},
    ):
        with pytest.raises(ValueError, match="holds products of another model, another loss or other examples"):
            curvature.spectrum(**{"model": model, "x": X, "y": CLASSES} | options | change)
    curvature.spectrum(model, X, CLASSES, batch_size=5, **options)  # which belongs to no loss
    with pytest.raises(ValueError, match="products of another"):
        curvature.spectrum(model, X, CLASSES, batch_size=5, training=True, **options)


def scaled(factor):
    return lambda y, z: factor * tf.reduce_mean(tf.square(y - z), -1)


@pytest.mark.slow
def test_another_model_or_loss_that_no_digest_shows_is_refused(model, tmp_path):
    """An activation; a function that differs in a name; one that differs in its closure."""
    options = {"x": X, "y": np.eye(3)[CLASSES], "progress": False, "order": 5, "num_vectors": 1}
    relu = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])
    relu.set_weights(model.get_weights())
    path = tmp_path / "products"
    first = curvature.spectrum(model, loss=scaled(1.0), path=path, **options)
    for other, loss in (
        (relu, scaled(1.0)),
        (model, scaled(2.0)),
        (model, lambda y, z: tf.reduce_mean(tf.exp(y - z), -1)),
    ):
        with pytest.raises(ValueError, match="holds products of another model, another loss or other examples"):
            curvature.spectrum(other, loss=loss, path=path, **options)
    assert curvature.spectrum(model, loss=scaled(1.0), path=path, **options).largest == first.largest


@pytest.mark.slow
def test_a_loss_with_a_function_in_it_that_is_made_anew_finds_its_products(model, tmp_path):
    options = {"x": X, "y": np.eye(3)[CLASSES], "progress": False, "order": 5, "num_vectors": 1}
    source = "def loss(y, z): return tf.add_n([(lambda e: e * e)(z[:, i] - y[:, i]) for i in range(3)])"
    for _ in range(2):
        exec(source, names := {"tf": tf})
        curvature.spectrum(model, loss=names["loss"], path=tmp_path / "products", **options)


def test_what_is_refused_leaves_no_file(model, tmp_path):
    with pytest.raises(ValueError, match="labels must lie in"):
        curvature.spectrum(model, X, CLASSES + 1, path=tmp_path / "products", progress=False)
    assert not list(tmp_path.iterdir())
