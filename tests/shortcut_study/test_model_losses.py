"""Losses and layers that users bring to the Hessian of their models: what counts, what is refused, what stays."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from shortcut_study import curvature

RNG = np.random.default_rng(0)
X, CLASSES, VECTOR = RNG.standard_normal((8, 4)), RNG.integers(0, 3, 8), RNG.standard_normal(43)
IMAGES, LABELS = RNG.standard_normal((16, 8, 8, 3)).astype(np.float32), RNG.integers(0, 3, 16)


def dense(**options):
    keras.utils.set_random_seed(0)
    first = keras.layers.Dense(5, "tanh", dtype="float64", **options)
    return keras.Sequential([keras.Input((4,)), first, keras.layers.Dense(3, dtype="float64")])


def augmented():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.RandomFlip("horizontal", seed=3), keras.layers.Conv2D(4, 3, activation="tanh")]
    pooled = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((8, 8, 3)), *layers, *pooled])


def product(model, x=X, y=CLASSES, batch_size=3, vector=VECTOR, **options):
    return curvature.model_mvp(model, x, y, batch_size, **options)[0](vector)


def test_augmentation_is_accepted_each_time_and_draws_nothing():
    model = augmented()
    before = [np.copy(variable) for variable in model.variables]
    found = [product(model, IMAGES, LABELS, vector=np.ones(127)) for _ in range(2)]
    for first, second in zip(before, model.variables):
        np.testing.assert_array_equal(first, second)
    # Without augmentation the Hessian is that of the other layers alone.
    plain = keras.Sequential([keras.Input((8, 8, 3)), *model.layers[1:]])
    for other in found:
        np.testing.assert_allclose(other, product(plain, IMAGES, LABELS, vector=np.ones(127)), rtol=1e-5, atol=1e-7)


def test_fit_ends_with_the_same_bits_with_and_without_the_callback(tmp_path):
    ends = []
    for watched in (False, True):
        model = augmented()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        callbacks = [curvature.HessianCallback(IMAGES, LABELS, tmp_path, order=2)] if watched else []
        model.fit(IMAGES, LABELS, epochs=2, batch_size=4, verbose=0, callbacks=callbacks)
        ends.append(model.get_weights())
    for first, second in zip(*ends):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("batch_size, gauss_newton", [(3, False), (8, True)])
def test_ignored_labels_do_not_count_in_the_mean(batch_size, gauss_newton):
    labels = np.array([0, -1, 1, 2, -1, 0, -1, 1])  # 3 of 8, not as many in each batch
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    found = product(dense(), X, labels, batch_size, loss=loss, gauss_newton=gauss_newton)
    counted = labels >= 0
    expected = product(dense(), X[counted], labels[counted], gauss_newton=gauss_newton)
    np.testing.assert_allclose(found, expected, atol=1e-14)


def test_a_loss_that_ignores_all_labels_is_refused():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    with pytest.raises(ValueError, match="the loss ignores all labels"):
        product(dense(), X, np.full(8, -1), loss=loss)


def test_a_loss_with_a_call_operator_of_its_own_is_refused():
    class Doubled(keras.losses.MeanSquaredError):
        def __call__(self, *arguments, **options):
            return 2 * super().__call__(*arguments, **options)

    with pytest.raises(ValueError, match="Doubled overrides __call__"):
        product(dense(), X, np.zeros((8, 3)), loss=Doubled())


def by_keras(labels, logits):
    chosen = keras.ops.take_along_axis(logits, keras.ops.expand_dims(labels, -1), -1)[:, 0]
    return keras.ops.logsumexp(logits, axis=-1) - chosen


def by_hand(labels, logits):
    shift = tf.stop_gradient(tf.reduce_max(logits, -1, keepdims=True))
    sums = tf.reduce_sum(tf.exp(logits - shift), -1)
    return tf.math.log(sums) + shift[:, 0] - tf.gather(logits, labels, batch_dims=1)


@pytest.mark.parametrize("loss, gauss_newton", [(by_keras, False), (by_hand, False), (by_keras, True)])
def test_a_logsumexp_stops_nothing_that_counts(loss, gauss_newton):
    found = product(dense(), loss=loss, gauss_newton=gauss_newton)
    np.testing.assert_allclose(found, product(dense(), gauss_newton=gauss_newton), atol=1e-12)


STOPS = {
    "a factor": lambda labels, logits: by_keras(labels, logits) + tf.stop_gradient(logits[:, 0]) * logits[:, 1],
    "a variance": lambda labels, logits: by_keras(labels, logits) + tf.nn.moments(logits, [-1])[1],
}


@pytest.mark.parametrize("loss", STOPS.values(), ids=STOPS)
def test_a_stop_that_counts_is_refused(loss):
    with pytest.raises(ValueError, match="stops the gradient at .*StopGradient"):
        product(dense(), loss=loss)


def test_penalties_of_activities_are_refused_and_those_of_weights_left_out():
    with pytest.raises(ValueError, match="the activity_regularizer of layer dense.* no Hessian here$"):
        product(dense(activity_regularizer=keras.regularizers.L2(0.5)))
    penalised = dense(kernel_regularizer="l2", bias_regularizer="l2")
    np.testing.assert_array_equal(product(penalised), product(dense()))


def test_add_loss_is_refused():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x**2))
            return x

    model = dense()
    model.add(Adds(dtype="float64"))
    with pytest.raises(ValueError, match="^add_loss in a layer adds to the loss"):
        product(model)
