"""A Hessian is that of Keras's loss, over all examples, or raises an error before the first number."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from refusals import refused
from tensorflow.python.framework import config as tf_config

from shortcut_study import curvature

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 6)).astype("float32")
LABELS = RNG.integers(0, 3, 40)
NO_DERIVATIVE = "the gradient is not the derivative of the loss"
NO_PRODUCT = "a Hessian product is not the difference of two gradients"
COUPLED = "couples the examples of a batch"


def logits(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def network(*parts, units=3, shape=(6,)):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input(shape), layers.Dense(8, "tanh"), *parts, layers.Dense(units)])


def weights_of(model):
    return [ops.convert_to_numpy(variable).astype(np.float64) for variable in model.trainable_variables]


def second_difference(model, loss, v, step=1e-2):
    """⟨v, Hv⟩ by second differences of a loss, a function without arguments, in the model's own weights."""
    before = weights_of(model)
    values = []
    for size in (step, 0, -step):
        start = 0
        for variable, old in zip(model.trainable_variables, before):
            part = v[start : start + old.size].reshape(old.shape)
            variable.assign(old + size * part)
            start += old.size
        values.append(float(loss()))
    for variable, old in zip(model.trainable_variables, before):
        variable.assign(old)
    return (values[0] - 2 * values[1] + values[2]) / step**2


class Penalised(keras.Model):
    """As in Keras's guide "Customizing what happens in fit()": squared logits join the loss of compile."""

    def __init__(self, strength=0.5):
        super().__init__()
        self.first = layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(10.0))
        self.last = layers.Dense(3)
        self.strength = strength

    def call(self, x):
        return self.last(self.first(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + self.strength * ops.mean(ops.square(y_pred))


def penalised():
    keras.utils.set_random_seed(0)
    model = Penalised()
    model(X)
    model.compile("sgd", logits())
    return model


def test_an_overridden_compute_loss_is_what_is_measured_without_weight_penalties():
    model = penalised()
    h = curvature.Hessian(model, X, LABELS, batch_size=15)
    penalty = 10.0 * np.sum(weights_of(model)[0] ** 2)
    minimised = model.evaluate(X, LABELS, verbose=0)
    assert h.loss_at() == pytest.approx(minimised - penalty, abs=1e-4 * penalty)
    v = RNG.standard_normal(h.shape[0])

    def loss():
        scores = model(X)
        return ops.mean(logits()(LABELS, scores)) + 0.5 * ops.mean(scores**2)

    assert v @ (h @ v) == pytest.approx(second_difference(model, loss, v, 0.03), rel=0.02)
    assert "Penalised.compute_loss over 40 examples" in str(h.spectrum(progress=False))
    exact = curvature.Hessian(model, X, LABELS, dtype="float64")
    np.testing.assert_allclose(h @ v, exact @ v, rtol=1e-3, atol=1e-4)
    assert model.first.kernel.regularizer is not None


def test_a_loss_that_is_given_wins_over_compute_loss_and_train_step():
    model = penalised()
    h = curvature.Hessian(model, X, LABELS, loss=logits())
    assert h.loss_at() == pytest.approx(float(logits()(LABELS, model(X))), rel=1e-5)

    class Stepping(Penalised):
        def train_step(self, data):
            return super().train_step(data)

    model = Stepping()
    model(X)
    assert "Stepping overrides train_step, so its loss is unknown" in refused(curvature.Hessian, model, X, LABELS)
    assert curvature.Hessian(model, X, LABELS, loss=logits()).shape == (83, 83)


def test_a_loss_that_is_not_finite_is_rejected_with_the_batch_that_has_it():
    model = network(units=1)
    model.compile("sgd", "poisson")
    targets = np.abs(RNG.standard_normal((40, 1)))
    assert "the loss of examples 0–39 is NaN or infinite" in refused(curvature.Hessian, model, X, targets)
    y = np.r_[np.ones(22), -np.ones(18)]
    line = refused(curvature.Hessian, network(), X, y, loss=lambda y, z: ops.log(y) * z[:, 0], batch_size=20)
    assert "the loss of examples 20–39 is NaN" in line


def contrastive(y, z):
    z = z / ops.norm(z, axis=-1, keepdims=True)
    similar = ops.matmul(z, ops.transpose(z)) / 0.5
    same = ops.cast(ops.equal(y, ops.transpose(y)), z.dtype)
    return ops.logsumexp(similar, -1) - ops.sum(similar * same, -1) / 10


class Centred(layers.Layer):
    def call(self, x):
        return x - ops.mean(x, 0, keepdims=True)


class AlwaysTraining(layers.Layer):
    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization()

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x):
        return self.norm(x, training=True)


COUPLING = {
    "contrastive": (network, contrastive, LABELS[:, None].astype("float32")),
    "Circle": (lambda: network(layers.Dense(4)), keras.losses.Circle(), LABELS),
    "batch mean": (lambda: network(Centred()), None, LABELS),
    "BatchNormalization(training=True)": (lambda: network(AlwaysTraining()), None, LABELS),
    "behind zeros": (lambda: network(Centred(), layers.Dense(5, kernel_initializer="zeros")), None, LABELS),
}


@pytest.mark.parametrize("name", COUPLING)
def test_examples_that_are_coupled_need_one_batch_that_holds_all(name):
    make, loss, y = COUPLING[name]
    model = make()
    line = refused(curvature.Hessian, model, X, y, loss=loss, batch_size=10)
    assert COUPLED in line and "batch_size=40 one batch holds all" in line
    if name == "Circle":
        return  # TensorFlow's second derivative of it is NaN
    h = curvature.Hessian(model, X, y, loss=loss, batch_size=40)
    assert "over 40 examples in batches of 40 in" in str(h.spectrum(progress=False, order=5, num_vectors=1))
    v = RNG.standard_normal(h.shape[0]) / 10

    def whole():
        scores = model(X)
        return ops.mean(logits()(y, scores) if loss is None else loss(ops.convert_to_tensor(y), scores))

    expected = second_difference(model, whole, v, 0.05)
    assert v @ (h @ v) == pytest.approx(expected, rel=0.02, abs=0.02 * np.linalg.norm(v) ** 2)


def test_batches_in_training_are_part_of_the_headline():
    model = network(layers.BatchNormalization())
    h = curvature.Hessian(model, X, LABELS, training=True, batch_size=20)
    assert "over 40 examples in batches of 20 in" in str(h.spectrum(progress=False, order=5, num_vectors=1))
    h = curvature.Hessian(network(), X, LABELS, batch_size=20)
    assert "over 40 examples in 83 weights" in str(h.spectrum(progress=False, order=5, num_vectors=1))


class StraightThrough(layers.Layer):
    def call(self, x):
        return x + ops.stop_gradient(ops.tanh(2 * x) - x)


def quadratic_with_constant(x):
    """x², with a gradient that is right and constant."""
    return tf.custom_gradient(lambda x: (x * x, lambda upstream: 2 * tf.stop_gradient(x) * upstream))(x)


FIRST_FOUR = {
    "weight 0": {"sample_weight": np.r_[np.zeros(4), np.ones(36)]},
    "label ignored": {"y": np.r_[np.full(4, -1), LABELS[4:]], "loss": logits(ignore_class=-1)},
    "input constant": {"x": np.r_[np.zeros((4, 6)), X[4:]]},
    "many without weight": {"sample_weight": np.r_[np.zeros(35), np.ones(5)]},
}


@pytest.mark.parametrize("name", FIRST_FOUR)
def test_wrong_derivatives_are_seen_if_the_first_examples_do_not_count(name):
    given = {"x": X, "y": LABELS} | FIRST_FOUR[name]
    model = network(StraightThrough())
    assert NO_DERIVATIVE in refused(curvature.Hessian, model, **given)
    model = network(layers.Lambda(quadratic_with_constant))
    assert NO_PRODUCT in refused(curvature.Hessian, model, **given)


@pytest.fixture
def fused_losses():
    """TensorFlow's own kernels, also after a test that trained: with deterministic operations it composes this loss."""
    was_deterministic = tf_config.is_op_determinism_enabled()
    tf_config.disable_op_determinism()
    yield
    if was_deterministic:
        tf_config.enable_op_determinism()


def test_label_rows_that_do_not_sum_to_1_are_rejected_anywhere(fused_losses):
    """tensorflow 60314: its gradient takes their sum for 1."""
    rows = np.eye(3)[LABELS]
    rows[37] = 0
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    assert NO_DERIVATIVE in refused(curvature.Hessian, network(), X, rows, loss=loss)
    rows = np.r_[np.tile(np.eye(3)[LABELS], (250, 1)), np.zeros((1, 3))]
    many = np.r_[np.tile(X, (250, 1)), X[:1]]
    line = refused(curvature.Hessian, network(), many, rows, loss=loss)
    assert "of TensorFlow's cross-entropy for label rows that do not sum to 1" in line


ZERO_POINTS = {
    "hypot": lambda t: ops.hypot(t, ops.ones_like(t)),
    "logaddexp": lambda t: ops.logaddexp(t[:, :2], t[:, 2:]),
    "ldexp": lambda t: ops.ldexp(t, ops.convert_to_tensor([0, 1, 2, 3])),
}


@pytest.mark.parametrize("name", ZERO_POINTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wrong_second_derivatives_at_the_weights_themselves_are_rejected(name, dtype):
    """tensorflow 127230, 127232, 127244: at 0 and for equal arguments, the start of layers of zeros."""
    first = layers.Dense(4, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((6,)), first, layers.Lambda(ZERO_POINTS[name])])
    y = RNG.standard_normal((40, 2 if name == "logaddexp" else 4))
    line = refused(curvature.Hessian, model, X, y, loss="mse", dtype=dtype)
    assert NO_PRODUCT in line or NO_DERIVATIVE in line


def test_an_untestable_difference_is_reported_and_not_rejected():
    def heading(model, **options):
        h = curvature.Hessian(model, X, LABELS, **options)
        assert h.is_checked_by_differences != str(h.spectrum(progress=False, order=4)).splitlines()[0].endswith(
            "Hessian-vector products, not checked by differences"
        )
        return h.is_checked_by_differences

    assert heading(network())
    assert heading(network(layers.ReLU()))
    kink = layers.Dense(5, "relu", kernel_initializer="zeros")  # checked near the weights only
    assert heading(network(kink))
    assert not heading(network(layers.Dropout(0.5, seed=1)), training=True)
    zeros = network(layers.Dense(5, "relu"))  # differences at the weights settle, at the mean of both sides
    zeros.set_weights([0 * w for w in zeros.get_weights()])
    assert heading(zeros)
    assert curvature.Hessian(zeros, X, LABELS, gauss_newton=True).is_checked_by_differences


def test_a_loss_without_its_second_derivative_is_rejected():
    def constant_curvature(y, z):
        error = z - ops.one_hot(ops.cast(y, "int32"), 3, dtype=z.dtype)
        return ops.sum(quadratic_with_constant(error), -1)

    line = refused(curvature.Hessian, network(), X, LABELS, loss=constant_curvature, gauss_newton=True)
    assert "the second derivative of the loss in the outputs is not the difference of its gradients" in line


def test_a_gauss_newton_matrix_is_compared_with_differences_of_outputs():
    right = curvature.Hessian(network(), X, LABELS, gauss_newton=True)
    assert right.is_checked_by_differences and 0 < right.rounding < 1e-4
    model = network(layers.Lambda(quadratic_with_constant))  # first derivatives are right, and no others are needed
    assert curvature.Hessian(model, X, LABELS, gauss_newton=True).is_checked_by_differences


def test_a_network_at_a_minimum_is_not_rejected_for_the_rounding_of_its_gradient():
    """Least squares, solved: the gradient over all examples is rounding, while those of the examples are not."""
    y = X @ RNG.standard_normal((6, 2)) + RNG.standard_normal((40, 2))
    model = keras.Sequential([keras.Input((6,)), layers.Dense(2, use_bias=False)])
    model.layers[0].kernel.assign(np.linalg.lstsq(X, y, rcond=None)[0])
    h = curvature.Hessian(model, X, y, loss="mse")
    assert np.linalg.norm(h.gradient_at()) < 1e-6
    np.testing.assert_allclose(h @ np.eye(12), np.kron(X.T @ X / 40, np.eye(2)), atol=1e-5)


def test_an_output_without_a_loss_has_no_labels():
    keras.utils.set_random_seed(0)
    first = keras.Input((6,))
    hidden = layers.Dense(8, "tanh")(first)
    model = keras.Model(first, [layers.Dense(3, name="a")(hidden), layers.Dense(3, name="b")(hidden)])
    model.compile("sgd", [logits(), None])
    h = curvature.Hessian(model, X, [LABELS, None])
    assert h.loss_at() == pytest.approx(float(logits()(LABELS, model(X)[0])), rel=1e-5)
    assert "output b has a loss and no labels" in refused(
        curvature.Hessian, model, X, [LABELS, None], loss=[logits(), "mse"]
    )


def test_padded_batches_of_several_lengths_are_the_mean_over_all_examples():
    words = [RNG.integers(1, 20, length) for length in (3, 4, 5, 4, 8, 6)]
    classes = np.arange(6) % 3
    parts = [layers.Embedding(20, 4, mask_zero=True), layers.GRU(4), layers.Dense(3)]
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((None,)), *parts])
    signature = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)
    data = tf.data.Dataset.from_generator(lambda: zip(words, classes), output_signature=signature).padded_batch(3)
    h = curvature.Hessian(model, data)
    padded = np.array([np.pad(word, (0, 9 - len(word))) for word in words])
    whole = curvature.Hessian(model, padded, classes)
    v = RNG.standard_normal(h.shape[0])
    np.testing.assert_allclose(h @ v, whole @ v, rtol=1e-3, atol=1e-5)
    assert h.num_batches == 2


def test_operations_and_types_without_a_second_derivative_are_named():
    first = keras.Input((10, 4))
    model = keras.Model(first, layers.Dense(6)(layers.GRU(5, return_sequences=True)(first)))
    model.compile("sgd", "ctc")
    x, y = RNG.standard_normal((8, 10, 4)).astype("float32"), RNG.integers(1, 6, (8, 4))
    assert "has no second derivative of a function in it, as in the CTC loss" in refused(curvature.Hessian, model, x, y)


def test_sample_weights_that_keras_does_not_take_are_rejected_with_their_shapes():
    words = RNG.integers(0, 5, (12, 6))
    model = keras.Sequential([keras.Input((6,)), layers.Embedding(5, 3, mask_zero=True), layers.Dense(3)])
    y = words % 3
    line = refused(curvature.Hessian, model, words, y, loss=logits(), sample_weight=np.ones(12))
    assert "labels and sample weights of shapes (12, 6), (12,)" in line
    line = refused(curvature.Hessian, network(), X, LABELS, sample_weight=np.ones((40, 2)))
    assert "sample_weight must be [m] or [m, 1] for one loss per example, got [m, 2]" in line


def test_a_stateful_layer_is_noted():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(batch_shape=(4, 5, 3)), layers.GRU(3, stateful=True), layers.Dense(3)])
    x, y = RNG.standard_normal((8, 5, 3)), np.arange(8) % 3
    with pytest.warns(UserWarning, match="gru.*stateful.*starts each batch from its present state"):
        curvature.Hessian(model, x, y, batch_size=4)
