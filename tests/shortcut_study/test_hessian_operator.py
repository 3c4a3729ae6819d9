"""curvature.Hessian against second differences of Keras's loss, a NumPy network, and itself on JAX."""

import contextlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import hessian_cases
import keras
import numpy as np
import pytest
import tensorflow as tf
from hessian_cases import CASES, QUICK, QUICK_ON_JAX, hidden, numpy_loss, plain, sequential
from scipy.sparse.linalg import eigsh
from tensorflow.python.framework.ops import gradient_registry

from shortcut_study import curvature
from shortcut_study.curvature import examples

X, CLASSES, TARGETS = hessian_cases.X, hessian_cases.CLASSES, hessian_cases.TARGETS


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in CASES])
def test_products_are_second_differences_of_the_loss_that_keras_computes(name):
    hessian_cases.check(name)


def on_jax(*arguments, **environment):
    """Runs hessian_cases.py, or a program, under JAX; returns its output."""
    env = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"} | environment
    program = [sys.executable, *(arguments if arguments[:1] == ("-c",) else (hessian_cases.__file__, *arguments))]
    found = subprocess.run(program, capture_output=True, text=True, env=env, timeout=1500, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout.splitlines()


@pytest.mark.parametrize(
    "names", [pytest.param(QUICK, marks=pytest.mark.slow), pytest.param(tuple(CASES), marks=pytest.mark.nightly)]
)
def test_products_on_jax_are_second_differences_of_the_loss_too(names):
    assert on_jax(*names) == [*names]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_all_products_on_pytorch_are_second_differences_of_the_loss_too():
    assert on_jax(KERAS_BACKEND="torch") == [name for name in CASES if name != "lanczos5"]


ON_FOUR_DEVICES = """
import jax, keras, numpy as np
from hessian_cases import CLASSES, QUICK_ON_JAX, X, check, plain
from shortcut_study import curvature
keras.utils.set_random_seed(0)
model, x, y = plain(), np.tile(X, (4, 1)), np.tile(CLASSES, 4)
divided = curvature.Hessian(model, x, y, batch_size=12)
assert divided._backend.on_device(divided.examples.batches[0])[0].sharding.num_devices == jax.device_count() == 4
V = np.random.default_rng(0).standard_normal((27, 3)).astype("float32")
exact = curvature.Hessian(model, x, y, dtype="float64") @ V
assert np.abs(divided @ V - exact).max() < 1e-5
assert np.abs(divided @ V[:, 0] - exact[:, 0]).max() < 1e-5
assert exact.dtype == np.float64 and np.abs(exact - divided @ V).max() > 0
print(divided.spectrum(progress=False, num_vectors=2, order=5))
print(divided.landscape(points=3, progress=False))
for name in QUICK_ON_JAX:
    check(name)
    print(name)
"""
UNEVEN = """
import numpy as np
from hessian_cases import CLASSES, X, plain
from shortcut_study import curvature
model, x, y = plain(), np.tile(X, (4, 1)), np.tile(CLASSES, 4)
exact = curvature.Hessian(model, x, y, dtype="float64") @ np.ones(27)
assert np.abs(curvature.Hessian(model, x, y, batch_size=9) @ np.ones(27) - exact).max() < 1e-5
sizes = [curvature.Hessian(model, x[:m], y[:m], precision="default").examples.batch_size for m in (24, 23)]
print(sizes)
"""


CUSTOM_GRADIENT = """
import jax, jax.numpy as jnp, keras, numpy as np
from hessian_cases import CLASSES, X, hidden
from shortcut_study import curvature
@jax.custom_vjp
def sine(x):
    return jnp.sin(x)
sine.defvjp(lambda x: (sine(x), x), lambda x, g: (g * jnp.cos(x),))  # its forward calls itself: no forward mode
products = []
for function in (sine, jnp.sin):
    keras.utils.set_random_seed(0)
    layers = keras.layers.Dense(3), keras.layers.Lambda(function), keras.layers.Dense(3)
    products.append(curvature.Hessian(keras.Sequential([keras.Input((4,)), *layers]), X, CLASSES) @ np.ones(27))
assert np.abs(products[0] - products[1]).max() < 1e-5
print("reverse over reverse")
"""


@pytest.mark.slow
def test_a_gradient_without_forward_mode_on_jax_is_differentiated_in_reverse():
    assert on_four_devices(CUSTOM_GRADIENT) == ["reverse over reverse"]


def on_four_devices(program):
    path = os.pathsep.join([str(pathlib.Path(hessian_cases.__file__).parent), os.environ.get("PYTHONPATH", "")])
    return on_jax("-c", program, XLA_FLAGS="--xla_force_host_platform_device_count=4", PYTHONPATH=path)


@pytest.mark.slow
def test_batches_that_four_devices_cannot_divide_are_taken_whole():
    assert on_four_devices(UNEVEN) == ["[24, 23]"]


@pytest.mark.slow
def test_examples_are_divided_among_four_jax_devices_in_full_precision():
    printed = on_four_devices(ON_FOUR_DEVICES)
    assert printed[0].startswith("Hessian of the mean cross-entropy of logits over 24 examples in 27 weights, ")
    assert "mean cross-entropy of logits over 24 examples at 9 points around the 27 weights" in printed
    assert printed[-len(QUICK_ON_JAX) :] == list(QUICK_ON_JAX)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return plain()


def numpy_hessian(model, gauss_newton):
    """The dense matrix of a tanh and a linear layer, by hand: Σ Jᵀ (diag p − p pᵀ) J, J = ∂z/∂w, and Σ (p − e) ∂²z."""
    kernel, bias, last, _ = (v.numpy().astype(np.float64) for v in model.trainable_variables)
    h = np.tanh(X @ kernel + bias)
    z = h @ last + model.trainable_variables[3].numpy()
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    found = 0
    for x, h, p, label in zip(X, h, p, CLASSES):
        one, slope = np.append(x, 1), 1 - h**2
        # z_c = Σ_j tanh(Σ_i x_i K_ij + b_j) L_jc + d_c; weights in the order K (i, j), b, L (j, c), d.
        by_first = np.einsum("i,j,jc->cij", one, slope, last).reshape(3, -1)
        by_last = np.concatenate([np.einsum("j,cd->cjd", h, np.eye(3)).reshape(3, -1), np.eye(3)], 1)
        j = np.concatenate([by_first, by_last], 1)
        found = found + j.T @ (np.diag(p) - np.outer(p, p)) @ j
        if not gauss_newton:
            error = p - np.eye(3)[label]
            second = np.zeros_like(found)
            within = np.einsum("i,k,j,jl->ijkl", one, one, -2 * h * slope * (last @ error), np.eye(3))
            second[:15, :15] = within.reshape(15, 15)
            across = np.einsum("i,j,jk,c->ijkc", one, slope, np.eye(3), error).reshape(15, 9)
            second[:15, 15:24], second[15:24, :15] = across, across.T
            found = found + second
    return found / len(X)


@pytest.mark.parametrize("gauss_newton", [False, True])
def test_all_products_at_once_are_the_matrix_of_a_network_in_numpy(model, gauss_newton):
    h = curvature.Hessian(model, X, CLASSES, gauss_newton=gauss_newton, dtype="float64", batch_size=4)
    dense, other = (numpy_hessian(model, of) for of in (gauss_newton, not gauss_newton))
    together = h @ np.eye(27)
    np.testing.assert_allclose(together, dense, atol=1e-14)
    for some in (np.s_[:, 2:5], np.s_[:, 7:8], np.s_[:, 9]):
        np.testing.assert_allclose(h @ np.eye(27)[some], dense[some], atol=1e-14)
    assert np.abs(together - other).max() > 1e-3  # negative control
    kernel, bias, last, _ = model.trainable_variables
    part = curvature.Hessian(
        model, X, CLASSES, variables=iter([last, bias]), gauss_newton=gauss_newton, dtype="float64"
    )
    at = np.r_[15:24, 12:15]
    np.testing.assert_allclose(part @ np.eye(12), dense[np.ix_(at, at)], atol=1e-14)
    with pytest.raises(ValueError, match="takes a Hessian of all weights: give groups="):
        part.per_layer({"kernel": [kernel]}, progress=False)  # whose places would be those of other weights in part
    largest = eigsh(h.to_scipy(), k=1, which="LA", return_eigenvectors=False)
    assert largest == pytest.approx(np.linalg.eigvalsh(dense)[-1], abs=1e-12)


def test_a_product_with_a_single_entry_that_is_not_finite_is_rejected(model, monkeypatch):
    h, product = curvature.Hessian(model, X, CLASSES), np.arange(27.0)[None]
    product[0, 5] = np.inf
    monkeypatch.setattr(h._backend, "total", lambda *_: product)
    with pytest.raises(ValueError, match="no Hessian product: the loss, or a derivative of it, is NaN or infinite"):
        h @ np.ones(27)


def test_loss_and_gradient_at_any_weights_are_those_of_the_numpy_network(model):
    h = curvature.Hessian(model, X, CLASSES, dtype="float64", batch_size=4)
    step, v = np.random.default_rng(0).standard_normal((2, 27))
    for step in (None, 0.3 * step):
        at = 0.0 if step is None else step
        assert h.loss_at(step) == pytest.approx(numpy_loss(model, at), rel=1e-12)
        slope = (numpy_loss(model, at + 1e-5 * v) - numpy_loss(model, at - 1e-5 * v)) / 2e-5
        assert h.gradient_at(step) @ v == pytest.approx(slope, rel=1e-8)


def test_nothing_of_the_model_moves_and_what_becomes_of_it_later_does_not_count():
    model = sequential(
        keras.layers.RandomFlip(seed=1), keras.layers.Conv2D(2, 3), keras.layers.BatchNormalization(),
        keras.layers.Flatten(), keras.layers.Dropout(0.5, seed=2), keras.layers.Dense(3), shape=(6, 6, 2),
    )  # fmt: skip
    images, before = hessian_cases.IMAGES.astype(np.float32), [np.copy(v) for v in model.variables]
    h = curvature.Hessian(model, images, CLASSES, training=True)
    found = h @ (vector := np.ones(h.shape[0]))
    for old, new in zip(before, model.variables):
        np.testing.assert_array_equal(old, new)
    assert (
        {layer.compute_dtype for layer in model.layers} == {v.dtype for v in model.trainable_variables} == {"float32"}
    )
    for variable in model.trainable_variables:
        variable.assign(2 * variable)
    np.testing.assert_array_equal(h @ vector, found)  # dropout has one mask
    h.move_to(model)
    assert np.abs(h @ vector - found).max() > 1e-3


def test_weight_in_the_loss_and_weights_of_one_output_are_taken_in_float64_too():
    network, loss = hessian_cases.weight_in_loss()
    h = curvature.Hessian(network, X, TARGETS, loss, dtype="float64")
    v, step = np.random.default_rng(0).standard_normal((2, h.shape[0]))
    change = (h.gradient_at(1e-5 * v) - h.gradient_at(-1e-5 * v)) / 2e-5
    np.testing.assert_allclose(h @ v, change, rtol=1e-6, atol=1e-8)
    two, weights = hessian_cases.two_outputs(lambda a, b: {"c": a, "n": b}), np.arange(1.0, len(X) + 1)
    y, losses = {"c": CLASSES, "n": TARGETS[:, :2]}, {"c": hessian_cases.logits(), "n": "mse"}
    one, both = (
        curvature.Hessian(two, X, y, losses, sample_weight={"c": weights} | rest) for rest in ({}, {"n": weights**0})
    )
    assert one.loss_in_words == "mean SparseCategoricalCrossentropy, mse over 6 examples"
    step = step[:1].repeat(one.shape[0])
    np.testing.assert_allclose(one @ step, both @ step, rtol=1e-6)


def test_other_threads_find_tensorflow_s_own_gradients_during_a_product(model, monkeypatch):
    h, own, found = curvature.Hessian(model, X, CLASSES), gradient_registry.lookup("Cumprod"), []
    product = h._backend.product

    def watched(*arguments):
        found.append(gradient_registry.lookup("Cumprod"))
        return product(*arguments)

    monkeypatch.setattr(h._backend, "product", watched)
    h @ np.ones(h.shape[0])
    assert found == [own]


@pytest.mark.slow
def test_mixed_precision_and_half_precision_are_measured_in_float32():
    keras.utils.set_random_seed(0)
    for policy in ("mixed_bfloat16", "bfloat16"):
        mixed = sequential(keras.layers.Dense(3, "tanh", dtype=policy), keras.layers.Dense(3, dtype=policy))
        h, exact = (curvature.Hessian(mixed, X, CLASSES, dtype=dtype) for dtype in (None, "float64"))
        vector = np.random.default_rng(0).standard_normal(27)
        assert (h @ vector).dtype == np.float32
        np.testing.assert_allclose(h @ vector, exact @ vector, atol=1e-6)
        assert mixed.layers[0].compute_dtype == "bfloat16"


def test_dropout_has_one_mask_in_another_type_too():
    model = sequential(hidden(8), keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(3))
    h = curvature.Hessian(model, X, CLASSES, training=True, dtype="float64")
    v = np.random.default_rng(0).standard_normal(h.shape[0])
    differences = (h.gradient_at(1e-5 * v) - h.gradient_at(-1e-5 * v)) / 2e-5
    np.testing.assert_allclose(h @ v, differences, atol=1e-7 * np.abs(differences).max())


@pytest.mark.slow  # the table has a case of them
def test_whole_numbers_stay_what_they_are_beyond_those_of_float32():
    make, ids, labels, *_ = CASES["large whole numbers"]
    model = make()
    found, exact, rounded = (
        curvature.Hessian(model, x, labels, dtype=dtype) @ np.ones(24)
        for x, dtype in ((ids, "float32"), (ids, "float64"), (ids.astype(np.float32).astype(int), "float64"))
    )
    np.testing.assert_allclose(found, exact, atol=1e-6)
    assert np.abs(rounded - exact).max() > 1e-3  # negative control


def test_a_weight_penalty_is_omitted(model):
    penalised = sequential(keras.layers.Dense(3, "tanh", kernel_regularizer="l2"), keras.layers.Dense(3))
    penalised.set_weights(model.get_weights())
    found, expected = (curvature.Hessian(of, X, CLASSES) @ np.ones(27) for of in (penalised, model))
    np.testing.assert_array_equal(found, expected)


def test_the_loss_of_compile_counts_unless_another_is_given(model):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.compile("sgd", ["mse"], loss_weights=[0.5])
    vector = np.arange(27.0)
    half, whole = curvature.Hessian(copy, X, TARGETS), curvature.Hessian(model, X, TARGETS, loss="mse")
    np.testing.assert_allclose(2 * (half @ vector), whole @ vector, rtol=1e-5, atol=1e-6)
    given, default = (curvature.Hessian(of, X, CLASSES, loss=hessian_cases.logits()) for of in (copy, model))
    np.testing.assert_array_equal(given @ vector, default @ vector)


def test_frozen_weights_are_no_rows(model):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.layers[0].kernel.trainable = False
    found = curvature.Hessian(copy, X, CLASSES, dtype="float64") @ np.eye(15)
    np.testing.assert_allclose(found, numpy_hessian(model, False)[12:, 12:], atol=1e-14)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return X[4 * i : 4 * i + 4], CLASSES[4 * i : 4 * i + 4]


class ByNumber:
    """Has no __iter__, and no end but its length."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return X[4 * (i % 2) :][:4], CLASSES[4 * (i % 2) :][:4]


SOURCES = {
    "tf.data": lambda: tf.data.Dataset.from_tensor_slices((X, CLASSES)).batch(4),
    "shuffled": lambda: tf.data.Dataset.from_tensor_slices((X, CLASSES)).shuffle(6).batch(4),
    "PyDataset": Batches,
    "by number": ByNumber,
    "list with an empty batch": lambda: [(X[:4], CLASSES[:4]), (X[:0], CLASSES[:0]), (X[4:], CLASSES[4:])],
    "generator": lambda: ((X[i : i + 4], CLASSES[i : i + 4]) for i in (0, 4)),
    "tensors": lambda: [(tf.constant(X[:4]), tf.constant(CLASSES[:4])), (tf.constant(X[4:]), tf.constant(CLASSES[4:]))],
}


@pytest.mark.parametrize("source", SOURCES)
def test_batches_of_every_form_are_the_arrays_that_they_make(source):
    found = examples.gathered(SOURCES[source]())
    x, y = found.arrays()
    order = np.lexsort(x.T), np.lexsort(X.T)
    np.testing.assert_array_equal(x[order[0]], X[order[1]])
    np.testing.assert_array_equal(y[order[0]], CLASSES[order[1]])
    assert found.batch_size == 4 and examples.gathered(SOURCES["generator"](), batch_size=3).batch_size == 3


def test_batches_may_have_sample_weights_and_several_inputs():
    weights = hessian_cases.WEIGHTS
    found = examples.gathered(
        [({"a": X[:4], "b": X[:4]}, CLASSES[:4], weights[:4]), ({"a": X[4:], "b": X[4:]}, CLASSES[4:], weights[4:])]
    )
    _, x, _, found_weights = found.arrays()
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(found_weights, weights)


@pytest.mark.parametrize("num_inputs", [1, 2])
def test_list_is_one_array_for_one_input_or_output_and_several_for_two(num_inputs):
    inputs = [keras.Input((4,)) for _ in range(num_inputs)]
    model = keras.Model(inputs, [inputs[0] + k for k in range(3 - num_inputs)])
    x, y, weights = [X, X], [CLASSES, CLASSES], [X[:, 0], X[:, 0]]
    if num_inputs == 1:
        x = [*X]
    else:
        y, weights = [*CLASSES], [*X[:, 0]]
    found = examples.gathered(x, y, sample_weight=weights, model=model)
    assert [isinstance(part, list) for part in found.batches[0]] == [num_inputs == 2, *[num_inputs == 1] * 2]
    with pytest.raises(ValueError, match="x, given with y,"):
        examples.gathered([np.float32(1), X], CLASSES)


@pytest.mark.parametrize(
    "shape, expected",
    [
        ((500, 28, 28, 1), 250),
        ((500, 32, 32, 3), 125),
        ((10, 224, 224, 3), 2),
        ((7, 4), 7),
        ((300, 4), 150),
        ((3, 700, 700), 1),
    ],
)
def test_a_batch_size_is_chosen_by_the_size_of_the_examples(shape, expected):
    assert examples.gathered(np.broadcast_to(np.float32(0), shape), np.zeros(shape[:1])).batch_size == expected


def test_a_copy_in_another_type_is_the_same_network_or_is_rejected():
    keras.utils.set_random_seed(0)
    mixed = sequential(
        keras.layers.Dense(4, dtype="mixed_bfloat16"), keras.layers.TimeDistributed(keras.layers.Dense(3)), shape=(5, 4)
    )
    copy = curvature.with_dtype(mixed, "float64")
    assert {weight.dtype for weight in copy.weights} == {"float64"}
    np.testing.assert_allclose(copy(hessian_cases.SEQUENCES), mixed(hessian_cases.SEQUENCES), atol=0.05)
    layer = keras.layers.LeakyReLU(negative_slope=0.1)
    layer.negative_slope = 0.9  # which its configuration says
    layer.get_config = lambda: {"name": "leaky", "dtype": "float32", "negative_slope": 0.1}
    with pytest.raises(ValueError, match="computes something else; a get_config leaves something out"):
        curvature.with_dtype(sequential(hidden(), layer), "float64")


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("off", [1.0, -1.0])
def test_a_copy_may_differ_by_a_thousandth_of_the_largest_output(sign, off):
    for share, is_taken in ((0.9e-3, True), (1.1e-3, False)):
        layer = keras.layers.Rescaling(sign * (1 + off * share))
        layer.get_config = lambda: {"name": "scaled", "dtype": "float32", "scale": sign, "offset": 0.0}
        model = keras.Sequential([keras.Input(batch_shape=(3, None)), layer])  # of three images, no more and no fewer
        with contextlib.nullcontext() if is_taken else pytest.raises(ValueError, match="computes something else"):
            assert curvature.with_dtype(model, "float64").layers[0].compute_dtype == "float64"


def test_the_names_of_the_package_are_there_and_another_is_no_attribute():
    assert all(hasattr(curvature, name) for name in curvature.__all__)
    with pytest.raises(AttributeError, match=re.escape("module 'shortcut_study.curvature' has no attribute 'spectra'")):
        _ = curvature.spectra


@pytest.mark.parametrize("batch_size, num_batches", [(1, 6), (4, 2), (7, 1), (None, 1)])
def test_examples_come_in_batches_of_the_given_size_and_the_last_is_smaller(batch_size, num_batches):
    h = curvature.Hessian(plain(), X, CLASSES, batch_size=batch_size)
    assert (h.num_batches, h.examples.batch_size) == (num_batches, min(batch_size or 6, 6))


def test_a_weighted_mean_counts_the_weights_of_unmasked_values():
    keras.utils.set_random_seed(0)
    layers = keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
    x, y = np.array([[1, 2, 0], [3, 0, 4]]), np.array([[0, 1, 1], [1, 0, 0]])
    weight = np.array([[1.0, 2.0, 3.0], [0.5, 4.0, 1.5]])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    z = keras.ops.convert_to_numpy(model(x)).astype(float)
    each = np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, y[..., None], -1)[..., 0]
    h = curvature.Hessian(model, x, y, loss, sample_weight=weight)
    assert h.loss_at() == pytest.approx((each * weight * (x > 0)).sum() / 5, rel=1e-5)
