"""A copy of a model is the same network, or it is refused: configurations that leave something out, frozen weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shortcut_study.differentiable import twice_differentiable, with_dtype
from shortcut_study.model_hessian import model_mvp

RNG = np.random.default_rng(0)
X, CLASSES = RNG.standard_normal((12, 4)), RNG.integers(0, 3, 12)


class Scaled(keras.layers.Layer):
    """Multiplies by a number that its configuration leaves out."""

    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.factor = factor

    def get_config(self):
        return {"name": self.name}

    def call(self, inputs):
        return self.factor * inputs


class Projected(keras.layers.Layer):
    """Multiplies by random numbers that it draws when it is built and does not keep as weights."""

    def build(self, shape):
        self.constant = np.random.default_rng().standard_normal((shape[-1], 4)).astype(np.float32)

    def call(self, inputs):
        return tf.cast(inputs, tf.float32) @ self.constant


class Units(keras.layers.Layer):
    """A dense layer in a layer, of a number of units that its configuration leaves out."""

    def __init__(self, units=3, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(units)

    def get_config(self):
        return {"name": self.name}

    def build(self, shape):
        self.dense.build(shape)

    def call(self, inputs):
        return self.dense(inputs)


def changed_afterwards():
    layer = keras.layers.LeakyReLU(negative_slope=0.1)
    layer.negative_slope = 0.9
    layer.get_config = lambda: {"name": layer.name, "negative_slope": 0.1}
    return layer


def model_of(*layers):
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(3)])


LEFT_OUT = {
    "an argument": lambda: Scaled(3.0),
    "what was set since": changed_afterwards,
    "random constants": Projected,
}


@pytest.mark.parametrize("copy", [twice_differentiable, lambda model: with_dtype(model, "float32")])
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_layer_whose_copy_is_another_is_named(name, is_nested, copy):
    layer = LEFT_OUT[name]()
    model = model_of(model_of(layer) if is_nested else layer)
    model.layers[-1].kernel.assign(tf.zeros_like(model.layers[-1].kernel))  # which hides it in the outputs
    message = f"^layer {layer.name}, a {type(layer).__name__}, computes something else as a copy: its get_config must"
    with pytest.raises(ValueError, match=message) as raised:
        copy(model)
    assert "\n" not in str(raised.value)


def test_a_layer_whose_copy_has_other_weights_is_named():
    layer = Units(5)
    with pytest.raises(ValueError, match=f"^layer {layer.name}, a Units, has other weights as a copy"):
        model_mvp(model_of(layer), X, CLASSES, 12)


def test_a_layer_of_half_precision_is_compared_in_its_own_type_and_still_found():
    mixed = lambda: keras.layers.Dense(4, dtype="mixed_bfloat16")
    copy = with_dtype(model_of(mixed()), "float32")
    assert {layer.compute_dtype for layer in copy.layers} == {"float32"}
    with pytest.raises(ValueError, match="a Scaled, computes something else"):
        with_dtype(model_of(mixed(), Scaled(3.0)), "float32")


def test_a_layer_that_another_model_called_first_is_no_obstacle():
    shared = keras.layers.Dense(4, "tanh")
    model_of(shared)
    first = keras.Input((4,))
    twice = shared(shared(first))
    mvp_fn, dim = model_mvp(keras.Model(first, keras.layers.Dense(3)(twice)), X, CLASSES, 12)
    assert np.isfinite(mvp_fn(np.ones(dim))).all()
    with pytest.raises(ValueError, match="^a layer computes something else as a copy"):  # by the outputs alone
        twice_differentiable(keras.Model(first, Scaled(3.0)(twice)))


def test_weights_that_are_frozen_one_by_one_stay_so():
    units = Units()
    model = model_of(units, keras.layers.Dense(4, "tanh"))
    units.dense.trainable = False
    model.layers[1].bias.trainable = False
    mvp_fn, dim = model_mvp(model, X, CLASSES, 12)
    assert dim == 12 + 15  # the kernel of the second layer, all of the last
    vector = RNG.standard_normal(dim)
    whole = model_of(units, keras.layers.Dense(4, "tanh"))
    whole.set_weights(model.get_weights())
    units.dense.trainable = True
    of_whole, size = model_mvp(whole, X, CLASSES, 12)
    kept = np.r_[15:27, 31:46]
    widened = np.zeros(size)
    widened[kept] = vector
    np.testing.assert_allclose(mvp_fn(vector), of_whole(widened)[kept], atol=1e-6)


def test_products_of_a_model_in_mixed_precision_are_those_of_its_weights_in_float32():
    keras.utils.set_random_seed(0)
    mixed = keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(5, "tanh", dtype="mixed_bfloat16"),
        keras.layers.Dense(3, dtype="mixed_bfloat16"),
    ])  # fmt: skip
    mvp_fn, dim = model_mvp(mixed, X, CLASSES, 12)
    vector = RNG.standard_normal(dim)
    exact = model_mvp(with_dtype(mixed, "float64"), X, CLASSES, 12)[0](vector)
    assert mvp_fn(vector).dtype == np.float32
    np.testing.assert_allclose(mvp_fn(vector), exact, atol=1e-6)


REFUSED = {
    "weights in bfloat16": (
        lambda: (keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype="bfloat16")]), CLASSES, None),
        '^the weights must be float32 or float64, got bfloat16; take with_dtype',
    ),
    "labels beyond int32": (lambda: (model_of(), CLASSES + 2**33, lambda y, z: z), "^labels .* within int32, got"),
    "a loss of each class": (
        lambda: (model_of(), CLASSES, lambda y, z: tf.reduce_mean(z**2, axis=0)),
        "^the loss must give one value an example, it gave ",
    ),
    "a loss of all entries": (
        lambda: (model_of(), CLASSES, lambda y, z: tf.reshape(z**2, [-1])),
        "^the loss must give one value an example, it gave ",
    ),
    "a mask": (
        lambda: (
            keras.Sequential([keras.Input((4,)), keras.layers.Reshape((2, 2)), keras.layers.Masking(),
                              keras.layers.Dense(3)]),
            np.stack([CLASSES, CLASSES], 1),
            "sparse_categorical_crossentropy",
        ),
        "^the model masks some of its outputs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_another_loss_is_refused(name):
    make, message = REFUSED[name]
    model, labels, loss = make()
    with pytest.raises(ValueError, match=message) as raised:
        model_mvp(model, X, labels, 12, loss=loss)
    assert "\n" not in str(raised.value)
