"""Copies of Keras models that have second derivatives: what they keep of the model, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shortcut_study.curvature.copies import with_dtype
from shortcut_study.curvature.products import model_mvp

RNG = np.random.default_rng(0)
X, CLASSES = RNG.standard_normal((12, 4)), RNG.integers(0, 3, 12)
VECTOR = RNG.standard_normal(43)


def layers():
    """Of 20 + 5 + 15 + 3 weights, the same at every call."""
    keras.utils.set_random_seed(0)
    return [keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)]


def model_of(*layers, **options):
    return with_dtype(keras.Sequential([keras.Input((4,)), *layers], **options), "float64")


@pytest.fixture(scope="module")
def plain():
    """The product of two layers alone."""
    return model_mvp(model_of(*layers()), X, CLASSES, 12)[0](VECTOR)


@pytest.mark.parametrize("is_nested", [False, True])
def test_an_adapted_normalization_keeps_its_mean_and_variance(is_nested):
    raw = 20 + 5 * X
    normalization = keras.layers.Normalization()
    normalization.adapt(raw)
    first = keras.Sequential([keras.Input((4,)), normalization]) if is_nested else normalization
    model = keras.Sequential([keras.Input((4,)), first, *layers()])
    np.testing.assert_allclose(with_dtype(model, "float64")(raw), model(raw), atol=1e-5)
    before = model_of(*layers())
    found = model_mvp(with_dtype(model, "float64"), raw, CLASSES, 12)[0](VECTOR)
    np.testing.assert_allclose(found, model_mvp(before, np.float64(normalization(raw)), CLASSES, 12)[0](VECTOR), 1e-4)


def test_normalisation_in_a_model_in_the_model_has_its_second_derivative():
    first, last = layers()
    inner = keras.Sequential([keras.Input((4,)), first, keras.layers.LayerNormalization()])
    found = model_mvp(model_of(inner, last), X, CLASSES, 12)[0]
    first, last = layers()
    vector = RNG.standard_normal(53)
    expected = model_mvp(model_of(first, keras.layers.LayerNormalization(), last), X, CLASSES, 12)[0](vector)
    np.testing.assert_allclose(found(vector), expected, atol=1e-12)
    assert found(vector).dtype == np.float64


def test_an_output_in_a_structure_and_a_batch_of_fixed_size_are_no_obstacle(plain):
    first, last = layers()
    inputs = keras.Input(batch_shape=(5, 4))
    model = with_dtype(keras.Model(inputs, {"logits": last(first(inputs))}), "float64")
    np.testing.assert_allclose(model_mvp(model, X, CLASSES, 12)[0](VECTOR), plain, atol=1e-12)


class Own(keras.layers.Layer):
    """A dense layer whose __init__ takes no **kwargs, so that Keras cannot copy it."""

    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units, "tanh")

    def call(self, inputs):
        return self.dense(inputs)


class Holding(keras.layers.Layer):
    """Has an argument that Keras does not serialise, so that it has no configuration."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


ODD = {
    "own": lambda **_: Own(5),
    "lambda": lambda **options: keras.layers.Lambda(lambda x: 2 * x, **options),
    "holding": lambda **options: Holding(lambda x: 3 * x, **options),
}


def test_layers_that_keras_cannot_copy_are_taken_as_they_are():
    plain, last = keras.layers.Rescaling(6.0), layers()[1]
    usual = keras.Sequential([keras.Input((4,)), layers()[0], plain, last])
    odd = keras.Sequential([keras.Input((4,)), *(make() for make in ODD.values()), keras.layers.Dense(3)])
    odd.set_weights(usual.get_weights())
    found, expected = (model_mvp(model, X, CLASSES, 12)[0](VECTOR) for model in (odd, usual))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for old, new in zip(usual.get_weights(), odd.get_weights()):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("name", ODD)
def test_with_dtype_names_a_layer_that_it_cannot_copy_and_what_it_needs(name):
    layer = ODD[name]()
    message = rf"^layer {layer.name}, a {type(layer).__name__}, cannot be copied: .* made with dtype='float64'$"
    with pytest.raises(ValueError, match=message) as raised:
        model_of(layer, keras.layers.Dense(3))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["lambda", "holding"])
def test_a_layer_without_weights_that_has_the_type_is_taken_in_a_copy(name):
    model = keras.Sequential([keras.Input((4,)), *layers(), ODD[name](dtype="float64")])
    copy = with_dtype(model, "float64")
    assert {variable.dtype for variable in copy.variables} == {"float64"}
    np.testing.assert_allclose(copy(X), model(X), atol=1e-5)


class Compiled(keras.layers.Layer):
    """Normalises inside a function of its own, with TensorFlow's moments or with dropout."""

    def __init__(self, takes_moments):
        super().__init__()
        self.takes_moments = takes_moments

    def get_config(self):
        return {"takes_moments": self.takes_moments}

    @tf.function
    def call(self, inputs):
        if not self.takes_moments:
            return tf.nn.dropout(inputs, 0.5)
        mean, variance = tf.nn.moments(inputs, [1], keepdims=True)
        return (inputs - mean) * tf.math.rsqrt(variance + 1e-3)


class OwnGradient(keras.layers.Layer):
    """tanh(kx)², its weight captured by a function with a gradient function, or its gradient partly constant."""

    def __init__(self, stops):
        super().__init__()
        self.stops = stops

    def get_config(self):
        return {"stops": self.stops}

    def build(self, shape):
        self.k = self.add_weight(shape=(shape[-1], 4), name="k")

    def call(self, inputs):
        if not self.stops:
            return tf.recompute_grad(lambda x: tf.square(tf.tanh(x @ self.k)))(inputs)
        squared = tf.custom_gradient(lambda h: (h * h, lambda upstream: 2 * tf.stop_gradient(h) * upstream))
        return squared(tf.tanh(inputs @ self.k))


def own_gradient(stops):
    return keras.Sequential([keras.Input((4,)), *layers(), OwnGradient(stops), keras.layers.Dense(3)])


def images(*layers):
    return keras.Sequential([keras.Input((4,)), keras.layers.Reshape((2, 2, 1)), *layers, keras.layers.Flatten()])


def resized(interpolation, is_trained):
    trained = [keras.layers.Conv2D(2, 1)] if is_trained else []
    grown = keras.layers.UpSampling2D(interpolation=interpolation)
    return keras.Sequential([images(*trained, grown), *layers()])


REFUSED = {
    "moments in a function": (lambda: keras.Sequential([keras.Input((4,)), *layers(), Compiled(True)]), "stops the"),
    "dropout in a function": (lambda: keras.Sequential([keras.Input((4,)), *layers(), Compiled(False)]), "random"),
    "bilinear": (lambda: resized("bilinear", True), "constant the gradient of the resized image at"),
    "bicubic": (lambda: resized("bicubic", True), "ResizeBicubicGrad"),
    "a gradient function that stops a gradient": (lambda: own_gradient(True), "stops the gradient at"),
    "softsign": (lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softsign")]), "SoftsignGrad"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lack_a_term_is_refused_in_one_line(name):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"not twice differentiable for TensorFlow: .*{message}") as raised:
        model_mvp(make(), X, CLASSES, 12)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 250


@pytest.mark.parametrize("interpolation, is_trained", [("bilinear", False), ("nearest", True)])
def test_resizing_that_lacks_nothing_is_taken(interpolation, is_trained):
    mvp_fn, dim = model_mvp(with_dtype(resized(interpolation, is_trained), "float64"), X, CLASSES, 12)
    assert np.isfinite(mvp_fn(np.ones(dim))).all()


def test_a_layer_that_gives_no_gradient_to_tensors_in_place_of_its_weights_is_refused_in_one_line():
    for gauss_newton in (False, True):
        with pytest.raises(ValueError, match="no gradient to the weights .*/k, .* use keras.RematScope") as raised:
            model_mvp(own_gradient(False), X, CLASSES, 12, gauss_newton=gauss_newton)
        assert "\n" not in str(raised.value) and len(str(raised.value)) < 250


def test_that_layer_is_refused_too_where_the_outputs_do_not_depend_on_it_yet():
    """A last layer of zeros hides the gradient, but not the second derivative in both layers."""
    model = own_gradient(False)
    model.layers[-1].kernel.assign(tf.zeros_like(model.layers[-1].kernel))
    with pytest.raises(ValueError, match="passes no gradient"):
        model_mvp(model, X, CLASSES, 12)


def test_what_keras_computes_again_has_the_products_of_the_plain_model():
    with keras.RematScope(mode="full"):
        again = with_dtype(keras.Sequential([keras.Input((4,)), *layers(), keras.layers.Dense(3, "tanh")]), "float64")
    plain = keras.Sequential([keras.Input((4,)), *layers(), keras.layers.Dense(3, "tanh")])
    plain = with_dtype(plain, "float64")
    plain.set_weights(again.get_weights())
    products = []
    for model in (again, plain):
        mvp_fn, dim = model_mvp(model, X, CLASSES, 12)
        products.append(mvp_fn(np.arange(dim) / dim))
    np.testing.assert_allclose(*products, rtol=1e-10)


def test_a_gradient_that_is_partly_constant_has_its_gauss_newton_products():
    """They take first derivatives of the outputs alone, which are right."""
    mvp_fn, dim = model_mvp(with_dtype(own_gradient(True), "float64"), X, CLASSES, 12, gauss_newton=True)
    assert np.isfinite(mvp_fn(np.ones(dim))).all()
