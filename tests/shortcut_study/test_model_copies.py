"""A copy of a model is the same network, or it is refused: configurations that leave something out, frozen weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shortcut_study.curvature.copies import twice_differentiable, with_dtype
from shortcut_study.curvature.products import model_mvp

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


LEFT_OUT = {"an argument": lambda: Scaled(3.0), "what was set since": changed_afterwards, "random constants": Projected}


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
    twice = shared(shared(first)) + first
    mvp_fn, dim = model_mvp(keras.Model(first, keras.layers.Dense(3)(twice)), X, CLASSES, 12)
    assert np.isfinite(mvp_fn(np.ones(dim))).all()
    scaled = Scaled(3.0)
    with pytest.raises(ValueError, match="^a layer computes something else as a copy"):  # by the outputs alone
        twice_differentiable(keras.Model(first, scaled(scaled(twice))))


def test_a_layer_of_two_calls_is_no_obstacle_in_whatever_order_the_copy_makes_them():
    """Keras copies by depth, so that the first call of the copy is another than that of the model."""
    keras.utils.set_random_seed(0)
    shared, first = keras.layers.Dense(4, "tanh"), keras.Input((4,))
    late = shared(keras.layers.Dense(4)(first))
    early = shared(first)
    for _ in range(6):
        early = keras.layers.Dense(4, "tanh")(early)
    model = keras.Model(first, keras.layers.Dense(3)(keras.layers.Concatenate()([early, late])))
    np.testing.assert_allclose(with_dtype(model, "float64")(X), model(X), atol=1e-5)


def test_a_layer_whose_output_is_rounding_alone_is_no_obstacle():
    keras.utils.set_random_seed(0)
    first = keras.Input((8, 8, 3))
    normalised = keras.layers.GroupNormalization(-1)(keras.layers.Conv2D(8, 3)(first))
    means = keras.layers.Dense(8, "sigmoid")(keras.layers.GlobalAveragePooling2D()(normalised))
    outputs = keras.layers.Dense(3)(keras.layers.Flatten()(keras.layers.Multiply()([normalised, means])))
    for copy in (twice_differentiable, lambda model: with_dtype(model, "float64")):
        assert copy(keras.Model(first, outputs)).count_params() == keras.Model(first, outputs).count_params()


def test_inputs_of_one_shape_are_given_other_numbers():
    inputs = [keras.Input((4,)), keras.Input((4,))]
    outputs = keras.layers.Dense(3)(Scaled(3.0)(keras.layers.Subtract()(inputs)))
    with pytest.raises(ValueError, match="a Scaled, computes something else"):
        with_dtype(keras.Model(inputs, outputs), "float32")


class Block(keras.layers.Layer):
    """Makes its layers as Keras's guides do; `layers` is a number here."""

    def __init__(self, units=4, layers=2, **options):
        super().__init__(**options)
        self.units, self.layers = units, layers
        self.inner = [keras.layers.Dense(units, "tanh") for _ in range(layers)]

    def get_config(self):
        return super().get_config() | {"units": self.units, "layers": self.layers}

    def build(self, shape):
        for layer in self.inner:
            layer.build(shape)

    def call(self, inputs):
        for layer in self.inner:
            inputs = layer(inputs)
        return inputs


class Fixed(keras.layers.Layer):
    """Keeps its own type, whatever its configuration is given."""

    def __init__(self, **options):
        super().__init__(**options | {"dtype": "float32"})

    def call(self, inputs):
        return inputs


@pytest.fixture
def mixed_precision():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    yield
    keras.mixed_precision.set_global_policy("float32")


def test_layers_in_layers_take_the_type_too_and_one_that_does_not_is_named(mixed_precision):
    model = keras.Sequential([keras.Input((4,)), Block(), keras.layers.Dense(3)])
    mvp_fn, dim = model_mvp(model, X, CLASSES, 12)
    vector = RNG.standard_normal(dim)
    exact = model_mvp(with_dtype(model, "float64"), X, CLASSES, 12)[0](vector)
    np.testing.assert_allclose(mvp_fn(vector), exact, atol=1e-6)
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    timed = keras.layers.TimeDistributed(keras.layers.Dense(3))
    copy = with_dtype(keras.Sequential([keras.Input((2, 4)), timed]), "float64")
    assert {weight.dtype for weight in copy.weights} == {"float64"}
    with pytest.raises(ValueError, match="a Fixed, stays float32: it must take a dtype"):
        with_dtype(keras.Sequential([keras.Input((4,)), Fixed(), keras.layers.Dense(3)]), "float64")


def test_a_model_all_in_float32_is_taken_so_whatever_the_global_policy_is(mixed_precision):
    layers = [keras.layers.Lambda(lambda x: 2 * x, dtype="float32"), keras.layers.Dense(3, dtype="float32")]
    mvp_fn, dim = model_mvp(keras.Sequential([keras.Input((4,)), *layers]), X, CLASSES, 12)
    assert mvp_fn(np.ones(dim)).dtype == np.float32


def test_outputs_of_unknown_size_are_no_obstacle():
    model = keras.Sequential([keras.Input((None, None, 3)), keras.layers.Conv2D(2, 3, padding="same")])
    images, labels = RNG.standard_normal((3, 8, 8, 3)), RNG.integers(0, 2, (3, 8, 8))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mvp_fn, dim = model_mvp(model, images, labels, 3, loss=loss)
    assert np.isfinite(mvp_fn(np.ones(dim))).all()


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
        "^the loss must give one value per example, it gave ",
    ),
    "a loss of all entries": (
        lambda: (model_of(), CLASSES, lambda y, z: tf.reshape(z**2, [-1])),
        "^the loss must give one value per example, it gave ",
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
