"""Hessian products of Keras models against three other ways to the same matrix, and Lanczos on them."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from identity_matters.config import ModelConfig
from identity_matters.model import all_conv_resnet
from shortcut_study.curvature import lanczos, products
from shortcut_study.curvature.copies import with_dtype

SMALL = ModelConfig(
    image_shape=(8, 8, 1), stem_width=2, widths=(2, 4), blocks_per_stage=(1, 1), residual_initializer="standard"
)  # 306 weights
ONE_BLOCK = dataclasses.replace(SMALL, widths=(3,), blocks_per_stage=(1,))


@pytest.fixture(scope="module")
def examples():
    rng = np.random.default_rng(0)
    return rng.standard_normal((23, 8, 8, 1)), rng.integers(0, 10, 23).astype(np.int32)


@pytest.fixture(scope="module")
def network():
    """In float64."""
    return with_dtype(all_conv_resnet(SMALL), "float64")


def cross_entropy(model, images, labels, training=False):
    """By hand, and through the model's call rather than its stateless form."""
    logits = model(tf.constant(images), training=training)
    of_label = tf.gather(logits, labels, axis=1, batch_dims=1)
    return tf.reduce_mean(tf.reduce_logsumexp(logits, axis=1) - of_label)


def gradient(model, images, labels, training=False):
    with tf.GradientTape() as tape:
        loss = cross_entropy(model, images, labels, training)
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    return np.concatenate([g.numpy().ravel() for g in gradients])


def shifted(model, step):
    """A copy with the flat step added to the trainable weights."""
    copy, start = with_dtype(model, "float64"), 0
    for variable in copy.trainable_variables:
        size = int(np.prod(variable.shape))
        variable.assign_add(np.reshape(step[start : start + size], variable.shape))
        start += size
    return copy


def difference_of_gradients(model, images, labels, vector, size=1e-5, training=False):
    ends = [gradient(shifted(model, sign * size * vector), images, labels, training) for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * size)


@pytest.fixture(scope="module")
def dense(network, examples):
    """The whole Hessian by reverse mode over reverse mode, a block for each pair of layers."""
    variables = [variable.value for variable in network.trainable_variables]

    @tf.function
    def blocks():
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape() as inner:
                loss = cross_entropy(network, *examples)
            gradients = [tf.reshape(g, [-1]) for g in inner.gradient(loss, variables)]
        return [outer.jacobian(g, variables, experimental_use_pfor=False) for g in gradients]

    return np.concatenate([np.concatenate([b.numpy().reshape(len(b), -1) for b in row], 1) for row in blocks()])


@pytest.fixture(scope="module")
def product(network, examples):
    """mvp_fn of the whole sample at once, dim."""
    return products.model_mvp(network, *examples, batch_size=23)


@pytest.mark.slow
def test_all_products_together_are_the_hessian(product, dense):
    mvp_fn, dim = product
    assert dim == 306 and dense.shape == (306, 306)
    together = np.stack([mvp_fn(row) for row in np.eye(dim)])
    np.testing.assert_allclose(together, dense, atol=1e-13)
    assert np.abs(1.001 * together - dense).max() > 1e-5  # negative control


def test_lanczos_at_full_order_finds_the_eigenvalues_of_the_keras_model(product, dense):
    expected = np.linalg.eigvalsh(dense)
    found = lanczos.ritz(lanczos.lanczos(*product, len(dense)))
    np.testing.assert_allclose(found.values, expected, atol=1e-13 * len(dense))
    part = lanczos.ritz(lanczos.lanczos(*product, 40))
    assert (np.abs(part.values[:, None] - expected).min(1) <= part.error_bounds).all()


@pytest.mark.parametrize("use_batch_norm, training", [(False, False), (True, False), (True, True)])
def test_a_product_is_the_difference_of_two_gradients(examples, use_batch_norm, training):
    config = dataclasses.replace(ONE_BLOCK, use_batch_norm=use_batch_norm)
    model = with_dtype(all_conv_resnet(config), "float64")
    before = [np.copy(weights) for weights in model.get_weights()]
    mvp_fn, dim = products.model_mvp(model, *examples, batch_size=23, training=training)
    vector = np.random.default_rng(1).standard_normal(dim)
    expected = difference_of_gradients(model, *examples, vector / np.linalg.norm(vector), training=training)
    found = mvp_fn(vector / np.linalg.norm(vector))
    np.testing.assert_allclose(found, expected, atol=1e-7 * np.abs(expected).max())
    for old, new in zip(before, model.get_weights()):  # moving averages included
        np.testing.assert_array_equal(old, new)


LAYERS = {
    "layer": lambda: [keras.layers.LayerNormalization()],
    "layer by its scale alone": lambda: [keras.layers.LayerNormalization(rms_scaling=True)],
    "layer over space": lambda: [keras.layers.Reshape((8, 8, 1)), keras.layers.LayerNormalization(axis=[1, 2])],
    "layer without shift": lambda: [keras.layers.LayerNormalization(center=False, scale=False)],
    "group": lambda: [keras.layers.Reshape((4, 4, 4)), keras.layers.GroupNormalization(2)],
    "group, channels second": lambda: [keras.layers.Reshape((4, 16)), keras.layers.GroupNormalization(2, axis=1)],
    "instance": lambda: [keras.layers.Reshape((4, 4, 4)), keras.layers.GroupNormalization(-1, scale=False)],
}


def normalised(name):
    """A network with a normalisation of its hidden units, in float64, with γ and β away from 1 and 0."""
    keras.utils.set_random_seed(3)
    hidden = keras.layers.Dense(64, "tanh")
    model = sequential(hidden, *LAYERS[name](), keras.layers.Flatten(), keras.layers.Dense(10))
    for variable in model.trainable_variables:
        variable.assign_add(0.1 * np.random.default_rng(0).standard_normal(variable.shape))
    return with_dtype(model, "float64")


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layer_and_group_normalisation_are_keras_own_and_have_their_second_derivative(examples, name, monkeypatch):
    model = normalised(name)
    ours = products.twice_differentiable(model)
    np.testing.assert_allclose(ours(examples[0]), model(examples[0]), atol=1e-12)
    mvp_fn, dim = products.model_mvp(model, *examples, batch_size=23)
    vector = np.random.default_rng(1).standard_normal(dim)
    vector /= np.linalg.norm(vector)
    expected = difference_of_gradients(model, *examples, vector)
    np.testing.assert_allclose(mvp_fn(vector), expected, atol=1e-7 * np.abs(expected).max())
    lacking = keras_own_product(model, examples, vector, monkeypatch)  # negative control
    lacks = np.linalg.norm(lacking - expected) > 1e-4 * np.linalg.norm(expected)
    assert lacks == (name != "layer by its scale alone")  # in which Keras stops no gradient


def keras_own_product(model, examples, vector, monkeypatch, training=False):
    """The product without our normalisation layers, and without the check that refuses Keras's."""
    with monkeypatch.context() as patch:
        patch.setattr(products, "twice_differentiable", lambda model: model)
        patch.setattr(products, "check_twice_differentiable", lambda *_, **__: None)
        mvp_fn, _ = products.model_mvp(model, *examples, batch_size=23, training=training)
        return mvp_fn(vector)


@pytest.mark.slow
def test_what_stops_gradients_is_refused_as_keras_own_batch_normalisation_would_lack_a_term(examples, monkeypatch):
    model = with_dtype(all_conv_resnet(dataclasses.replace(ONE_BLOCK, use_batch_norm=True)), "float64")
    mvp_fn, dim = products.model_mvp(model, *examples, batch_size=23, training=True)
    v = np.random.default_rng(1).standard_normal(dim)
    lacking = keras_own_product(model, examples, v, monkeypatch, training=True)
    assert np.linalg.norm(lacking - mvp_fn(v)) > 0.01 * np.linalg.norm(mvp_fn(v))
    monkeypatch.setattr(products, "twice_differentiable", lambda model: model)
    with pytest.raises(ValueError, match="stops the gradient at .*stage1_block1_bn1|stops the gradient at .*stem_bn"):
        products.model_mvp(model, *examples, batch_size=23, training=True)


def test_products_are_linear_symmetric_and_independent_of_the_batch_size(network, examples, product):
    called = []
    mvp_fn, dim = product
    by_parts, _ = products.model_mvp(network, *examples, batch_size=5, on_batch=lambda: called.append(1))
    u, v = np.random.default_rng(2).standard_normal((2, dim))
    np.testing.assert_allclose(mvp_fn(2 * u - 3 * v), 2 * mvp_fn(u) - 3 * mvp_fn(v), rtol=0, atol=1e-12)
    assert u @ mvp_fn(v) == pytest.approx(v @ mvp_fn(u), rel=1e-12)
    np.testing.assert_allclose(by_parts(v), mvp_fn(v), atol=1e-13)
    assert len(called) == 5  # of 5, 5, 5, 5 and 3 examples
    last, _ = products.model_mvp(network, examples[0][20:], examples[1][20:], batch_size=5)
    uneven = (mvp_fn(v) * 23 - last(v) * 3) / 20 / 5 * 4 + last(v) / 5  # negative control: a mean of the batches' means
    assert np.abs(uneven - mvp_fn(v)).max() > 1e-3


def test_float32_products_are_near_those_in_float64(network, examples, product):
    mvp_fn, dim = products.model_mvp(with_dtype(network, "float32"), *examples, batch_size=23)
    exact, _ = product
    v = np.random.default_rng(3).standard_normal(dim)
    assert mvp_fn(v).dtype == np.float32
    assert 0 < np.linalg.norm(mvp_fn(v) - exact(v)) < 1e-5 * np.linalg.norm(exact(v))


@pytest.mark.slow
def test_the_weight_penalty_is_left_out_and_would_shift_the_spectrum(examples):
    config = dataclasses.replace(ONE_BLOCK, weight_decay=0.5)
    model = with_dtype(all_conv_resnet(config), "float64")
    mvp_fn, dim = products.model_mvp(model, *examples, batch_size=23)
    v = np.random.default_rng(4).standard_normal(dim)

    def with_penalty(w):
        start, parts = 0, []
        for variable in model.trainable_variables:
            size = int(np.prod(variable.shape))
            parts.append(tf.reshape(w[start : start + size], variable.shape))
            start += size
        others = [variable.value for variable in model.non_trainable_variables]
        logits, _, losses = model.stateless_call(parts, others, examples[0], return_losses=True)
        ce = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(examples[1], logits))
        return ce + tf.add_n([tf.cast(loss, tf.float64) for loss in losses])

    weights = tf.concat([tf.reshape(variable.value, [-1]) for variable in model.trainable_variables], 0)
    penalised = tf.function(products.hessian_vector_product)(with_penalty, weights, tf.constant(v)).numpy()
    np.testing.assert_allclose(penalised, mvp_fn(v) + 0.5 * v, atol=1e-12)


def test_what_becomes_of_the_model_later_does_not_count(network, examples):
    model = with_dtype(network, "float64")
    mvp_fn, dim = products.model_mvp(model, *examples, batch_size=23)
    v = np.ones(dim)
    before = mvp_fn(v)
    for variable in model.variables:
        variable.assign(variable.value * 2)
    np.testing.assert_array_equal(mvp_fn(v), before)


def test_a_copy_in_another_type_is_the_same_network(examples):
    mixed = all_conv_resnet(dataclasses.replace(SMALL, mixed_precision=True))
    copy = with_dtype(mixed, "float32")
    plain = all_conv_resnet(SMALL)
    np.testing.assert_array_equal(copy(examples[0]), plain(examples[0]))
    assert [v.path for v in copy.trainable_variables] == [v.path for v in plain.trainable_variables]
    assert np.abs(mixed(examples[0]) - plain(examples[0])).max() > 1e-4


def sequential(*layers):
    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), *layers])


class OfAClassOfItsOwn(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(10)
        self(np.zeros((1, 8, 8, 1)))

    def call(self, inputs):
        return self.dense(keras.ops.reshape(inputs, (-1, 64)))


def recurrent():
    return sequential(keras.layers.Reshape((8, 8)), keras.layers.LSTM(4), keras.layers.Dense(10))


# Each: a model, whether it is asked for in training, what the line must name.
REFUSED = {
    "softmax": (lambda: sequential(keras.layers.Dense(10, "softmax")), False, "must give logits, but .*Softmax"),
    "dropout": (
        lambda: sequential(keras.layers.Dropout(0.5), keras.layers.Dense(10)),
        True,
        "random numbers of .*drop",
    ),
    "class": (OfAClassOfItsOwn, False, "functional or sequential, and built; got a OfAClassOfItsOwn"),
    "LSTM": (recurrent, False, "second derivatives of loops, .* lstm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_not_twice_differentiable_or_gives_no_logits_is_refused_in_one_line(examples, name):
    make, training, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as raised:
        products.model_mvp(make(), *examples, batch_size=5, training=training)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 250


OF_TWO_TYPES = sequential(keras.layers.Dense(4, dtype="float64"), keras.layers.Dense(10))


def test_dropout_out_of_training_is_no_obstacle(examples):
    model = sequential(keras.layers.Dropout(0.5), keras.layers.Dense(10))
    mvp_fn, dim = products.model_mvp(model, *examples, batch_size=5)
    assert np.isfinite(mvp_fn(np.ones(dim))).all()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"images": np.zeros((0, 8, 8, 1)), "labels": np.zeros(0, int)}, "at least one image"),
        ({"labels": np.zeros(3, int)}, r"\(23, 8, 8, 1\), \(3,\)"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 7.5}, "batch_size must be a whole number of at least 1, got 7.5"),
        ({"images": np.zeros((23, 8, 9, 1))}, r"^images must be \[m, 8, 8, 1\] .*, got \(23, 8, 9, 1\)$"),
        ({"labels": np.full(23, 10)}, "^labels must lie in 0–9, the model's outputs, got 10–10$"),
        ({"labels": np.zeros((23, 2), int)}, r"one label per image, .* \(23, 2\) of int64"),
        ({"model": sequential(keras.layers.Dense(1))}, r"at least two classes, the model gives \(None, 1\): pass loss"),
        ({"model": OF_TWO_TYPES}, r'of one type, got float32, float64; take with_dtype\(model, "float64"\)$'),
        ({"model": sequential()}, "no trainable weights"),
    ],
)
def test_a_mistake_in_a_call_is_named(network, examples, changes, message):
    arguments = {"model": network, "images": examples[0], "labels": examples[1], "batch_size": 5} | changes
    with pytest.raises(ValueError, match=message) as raised:
        products.model_mvp(**arguments)
    assert "\n" not in str(raised.value)


def test_a_vector_of_another_length_is_refused_in_one_line(network, examples, product):
    mvp_fn, dim = product
    part, size = products.model_mvp(network, *examples, 23, variables=network.trainable_variables[:1])
    for function, length, other in ((mvp_fn, dim, dim - 1), (part, size, 1)):
        with pytest.raises(ValueError, match=rf"^the vector must have shape \({length},\), got \({other},\)$"):
            function(np.ones(other))


def test_tensors_lists_and_labels_in_a_column_are_taken_as_arrays(network, examples, product):
    images, labels = examples
    expected = product[0](vector := np.ones(product[1]))
    for x, y in ((tf.constant(images), tf.constant(labels, tf.int64)), (images.tolist(), labels[:, None])):
        found = products.model_mvp(network, x, y, batch_size=23)[0](tf.constant(vector))
        np.testing.assert_allclose(found, expected, atol=1e-14)
    single = products.model_mvp(with_dtype(network, "float32"), tf.constant(images), labels, 23)[0](vector)
    np.testing.assert_allclose(single, expected, atol=1e-4)
