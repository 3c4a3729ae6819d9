"""Losses without a Hessian and invalid arguments raise a short error that names the value and the way out."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from hessian_cases import (
    CLASSES,
    TARGETS,
    WORDS,
    X,
    hidden,
    logits,
    plain,
    sequential,
    squares,
    two_inputs,
    two_outputs,
)
from keras import layers, ops
from refusals import refused

from shortcut_study import curvature
from shortcut_study.curvature import checks, examples


def replaced(forward, backward):
    """A layer with a custom gradient: backward(upstream, x)."""
    function = tf.custom_gradient(lambda x: (forward(x), lambda upstream: backward(upstream, x)))
    return sequential(hidden(), layers.Lambda(function), layers.Dense(3))


class Recomputed(layers.Layer):
    """tanh(kx)² in tf.recompute_grad, which gives no gradient to a tensor in place of k."""

    def build(self, shape):
        self.k = self.add_weight(shape=(shape[-1], 3), name="k")

    def call(self, inputs):
        return tf.recompute_grad(lambda x: tf.square(tf.tanh(x @ self.k)))(inputs)


class Adds(layers.Layer):
    def call(self, x):
        self.add_loss(ops.mean(x**2))
        return x


class Doubled(keras.losses.MeanSquaredError):
    def __call__(self, *arguments, **options):
        return 2 * super().__call__(*arguments, **options)


def hidden_by_zeros(layer):
    model = sequential(layer, layers.Dense(3))
    model.layers[-1].kernel.assign(0 * model.layers[-1].kernel)
    return model


def reading_a_tensor():
    """A weight that a Lambda reads as a tf.Variable, past Keras."""
    first = hidden()
    model = sequential(first, layers.Dense(3))
    value = first.kernel.value
    return sequential(*model.layers, layers.Lambda(lambda z: z + tf.reduce_sum(value**2) * z**2))


def without_gradient():
    grown = layers.Lambda(lambda x: tf.nn.local_response_normalization(x))
    return sequential(layers.Conv2D(2, 3), grown, layers.Flatten(), layers.Dense(3), shape=(6, 6, 2))


def in_a_lambda(function):
    return sequential(hidden(), layers.Lambda(function), layers.Dense(3))


NO_DERIVATIVE = "the gradient is not the derivative of the loss: .* as reversal, clipping, rounding"
NO_SECOND = "a Hessian product is not the difference of two gradients: .* most in .*dense"
IMAGES = np.ones((6, 6, 6, 2)) + X[:, :1, None, None]
ONE_HOT = np.eye(3)[CLASSES]
IGNORING = keras.losses.SparseCategoricalCrossentropy(True, -1)


def refusal(words, make=plain, **changes):
    """Words of the line, how the model is made, what is given in place of the examples and in options."""
    return words, make, changes


REFUSED = {
    "part of a fixed batch": refusal(
        "whole batches: give a multiple of batch_size=4 examples, got 6",
        lambda: keras.Sequential([keras.Input(batch_shape=(4, 4)), layers.Dense(3)]),
        batch_size=4,
    ),
    # what has no Hessian
    "reversal": refusal(NO_DERIVATIVE, lambda: replaced(lambda x: x + 0, lambda g, x: -g)),
    "reversal, a block": refusal(
        NO_DERIVATIVE, lambda: replaced(lambda x: x + 0, lambda g, x: -g), variables=lambda m: m.trainable_variables[:1]
    ),
    "reversal, Gauss–Newton": refusal(
        NO_DERIVATIVE, lambda: replaced(lambda x: x + 0, lambda g, x: -g), gauss_newton=True
    ),
    "clipping": refusal(NO_DERIVATIVE, lambda: replaced(lambda x: x + 0, lambda g, x: tf.clip_by_norm(g, 1e-3))),
    "rounding": refusal(NO_DERIVATIVE, lambda: replaced(tf.round, lambda g, x: g)),
    "a stop": refusal(NO_DERIVATIVE, lambda: in_a_lambda(lambda h: tf.stop_gradient(h) * h)),
    "a stop in the loss": refusal(NO_DERIVATIVE, loss=lambda y, z: squares(ops.stop_gradient(z), 2 * z), y=TARGETS),
    "a constant gradient": refusal(
        NO_SECOND, lambda: replaced(lambda x: x * x, lambda g, x: 2 * tf.stop_gradient(x) * g)
    ),
    "recompute_grad": refusal(
        "knows no derivative of recompute_grad", lambda: sequential(hidden(), Recomputed(), layers.Dense(3))
    ),
    "recompute_grad behind zeros": refusal(f"{NO_SECOND}|{NO_DERIVATIVE}", lambda: hidden_by_zeros(Recomputed())),
    "a tensor of a weight": refusal(
        "the gradient in .*kernel is another .* or reads it as a tf.Variable", reading_a_tensor
    ),
    "no derivative": refusal("it knows no derivative of LRNGrad; replace that operation", without_gradient, x=IMAGES),
    "dropout of TensorFlow": refusal(
        "draws random numbers anew at each", lambda: in_a_lambda(lambda h: tf.nn.dropout(h, 0.5))
    ),
    "activity_regularizer": refusal(
        "the activity_regularizer of layer dense.* no Hessian here",
        lambda: sequential(layers.Dense(3, activity_regularizer="l2")),
    ),
    "add_loss": refusal("^add_loss in a layer adds to the loss", lambda: sequential(Adds(), layers.Dense(3))),
    # what is another loss
    "an own __call__": refusal(
        "the loss is .* here and .* by Keras's own code: .* its own __call__", loss=Doubled(), y=TARGETS
    ),
    "one number": refusal("one value per example, .* it gave one number", loss=lambda y, z: ops.mean(y - z), y=TARGETS),
    "a value a class": refusal("one value per example, it gave", loss=lambda y, z: ops.mean(z**2, 0)),
    "all entries": refusal("one value per example, it gave", loss=lambda y, z: ops.reshape(z**2, [-1])),
    "probabilities": refusal(
        "must give logits, but its outputs are prob", lambda: sequential(layers.Dense(3, "softmax"))
    ),
    "no labels": refusal("the loss ignores all labels", loss=IGNORING, y=np.full(6, -1)),
    "an unknown loss": refusal("no_such_loss", loss="no_such_loss"),
    "an unknown output": refusal(
        "no output named x, only c, n",
        lambda: two_outputs(lambda a, b: {"c": a, "n": b}),
        loss={"x": "mse"},
        y={"c": CLASSES, "n": TARGETS},
    ),
    "three losses": refusal(
        "has 2 outputs, got 3", lambda: two_outputs(lambda a, b: [a, b]), loss=["mse"] * 3, y=[TARGETS, TARGETS[:, :2]]
    ),
    # models
    "a name": refusal("need a built keras.Model, with an Input or called once, got 'digits'", lambda: "digits"),
    "not built": refusal("need a built keras.Model", lambda: keras.Sequential([layers.Dense(3)])),
    "nothing to train": refusal("no trainable weights; set trainable = True", lambda: sequential(layers.Flatten())),
    "dtype": refusal("dtype must be float32 or float64, got 'bfloat16'", dtype="bfloat16"),
    "precision": refusal("precision must be one of highest, high, default, got 'tf32'", precision="tf32"),
    "one output": refusal(
        r"at least two classes, the model gives \(None, 1\): pass", lambda: sequential(layers.Dense(1))
    ),
    "one input of two": refusal("takes 2 inputs, got 1", lambda: two_inputs(lambda a, b: [a, b])),
    # examples
    "no image": refusal("at least one image", x=X[:0], y=CLASSES[:0]),
    "fewer labels": refusal(r"need one label per image, .* got shapes \(6, 4\), \(3,\)", y=CLASSES[:3]),
    "fewer weights": refusal(r"shapes \(6, 4\), \(6,\), \(2,\)", sample_weight=np.ones(2)),
    "one-hot": refusal(r"CategoricalCrossentropy\(from_logits=True\)\), got \(6, 3\) of float64", y=ONE_HOT),
    "names": refusal("labels must be numbers, got .*names.index", y=np.array(list("abc"))[CLASSES]),
    "text": refusal("x, given with y, must be numbers, got <U", x=X.astype(str)),
    "NaN": refusal("the images hold NaN or infinite numbers", x=np.where(X > 1, np.nan, X)),
    "NaN labels": refusal("the labels hold NaN or infinite numbers", y=np.nan * TARGETS, loss="mse"),
    "a class too many": refusal("labels must lie in 0–2, the model's outputs, got 1–3", y=CLASSES + 1),
    "a class too many, given": refusal("labels must lie in 0–2", y=CLASSES + 1, loss=logits()),
    "labels beyond int32": refusal("within int32, got", y=CLASSES + 2**33, loss=lambda y, z: z),
    "images": refusal(r"^images must be \[m, 4\] as the model takes them, got \(6, 3\)$", x=X[:, :3]),
    "images of another width": refusal(
        r"^images must be \[m, 4, 4, 1\] as the model takes them, got \(6, 4, 3, 1\)$",
        lambda: sequential(layers.Flatten(), layers.Dense(3), shape=(4, 4, 1)),
        x=np.ones((6, 4, 3, 1)),
    ),
    "labels of another shape": refusal(
        r"loss does not take labels \[m, 2\] and outputs \[m, 3\]", y=TARGETS[:, :2], loss="mse"
    ),
    "batch_size": refusal("batch_size must be a whole number of at least 1, got 0", batch_size=0),
    "half a batch": refusal("batch_size must be a whole number of at least 1, got 7.5", batch_size=7.5),
    "a word too many": refusal(
        r"^the model or the loss does not take these examples: indices.*0, 5\)",
        lambda: sequential(layers.Embedding(5, 2), layers.Flatten(), layers.Dense(3), shape=(5,), dtype="int32"),
        x=WORDS + 4,
    ),
    "no variables": refusal("variables must be some of model.trainable_variables", variables=lambda m: []),
    "other variables": refusal("variables must be some of", variables=lambda m: [np.zeros(3)]),
    "x without y": refusal(r"need y, or batches of pairs \(x, y\) as x; got a ndarray without y", y=None),
    "no batch": refusal("got no batch", x=[], y=None),
    "four parts": refusal(r"x must be batches of .*, got 4 parts", x=[(X, CLASSES, CLASSES, X)], y=None),
    "no pairs": refusal("x must be batches of", x=lambda: tf.data.Dataset.from_tensor_slices(X).batch(5), y=None),
    "single examples": refusal(
        r"dataset.batch\(100\) makes", x=lambda: tf.data.Dataset.from_tensor_slices((X, CLASSES)), y=None
    ),
    "several sizes": refusal(r"images must be \[m, 4\] as the", x=[(X, CLASSES), (X[:, :3], CLASSES)], y=None),
    "several axes": refusal("differ in the number of their arrays", x=[(X, CLASSES), (X[:, 0], CLASSES)], y=None),
    "lengths": refusal("x gives 6 images with 3 labels", x=[(X, CLASSES[:3])], y=None),
    "no arrays": refusal("batches of", x=[(X, {})], y=None),
    "no end": refusal("repeats without end", x=lambda: tf.data.Dataset.from_tensors((X, CLASSES)).repeat(), y=None),
}


# As "reversal" they have a gradient that is not the loss's derivative.
SLOW = "reversal, a block", "reversal, Gauss–Newton", "clipping", "rounding", "a stop", "recompute_grad behind zeros"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in REFUSED])
def test_invalid_arguments_raise_a_short_error_before_the_first_number(name):
    words, make, changes = REFUSED[name]
    keras.utils.set_random_seed(0)
    model, options = make(), {"x": X, "y": CLASSES} | changes
    if callable(options["x"]):
        options["x"] = options["x"]()
    if "variables" in options:
        options["variables"] = options["variables"](model)
    assert re.search(words, refused(curvature.Hessian, model, **options))


def test_products_measurements_and_backends_raise_a_short_error_too(monkeypatch, tmp_path):
    model = plain()
    h = curvature.Hessian(model, X, CLASSES)
    for shape in ((26,), (1, 27), (27, 2, 2), (27, 0)):
        assert "(27,), or (27, k)" in refused(h.__matmul__, np.ones(shape))
    assert 'groups must be "layer", "block", or variables by name, got' in refused(h.per_layer, "unit")
    assert "method must be one of hutchinson, xdiag, got ['xdiag']" in refused(h.diagonal, method=["xdiag"])
    for measure, name in ((h.diagonal, "num_vectors"), (h.trace, "num_products"), (h.spectrum, "order")):
        assert f"{name} must be a whole number of at least" in refused(measure, progress=False, **{name: 10.5})
    assert "there is no folder /no/where" in refused(h.spectrum, path="/no/where/products")
    with pytest.raises(TypeError, match="unexpected keyword argument 'ordr'"):
        curvature.spectrum(model, X, CLASSES, ordr=3)
    model.layers[0].kernel.assign(np.nan * model.layers[0].kernel)
    h.move_to(model)
    assert "the model's weights are NaN" in refused(h.__matmul__, np.ones(27))
    assert "the loss of examples 0–5 is NaN or infinite" in refused(curvature.Hessian, model, X, CLASSES)
    monkeypatch.setattr(keras.backend, "backend", lambda: "openvino")
    assert "KERAS_BACKEND=tensorflow, jax or torch, got openvino" in refused(curvature.Hessian, plain(), X, CLASSES)


def test_batches_without_end_stop_at_half_of_the_memory(monkeypatch):
    size = X.nbytes + CLASSES.nbytes
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PHYS_PAGES": 6, "SC_PAGE_SIZE": size}[name])
    assert len(examples.gathered(iter([(X, CLASSES)] * 3))) == 3 * len(X)
    given = []

    def endless():
        while True:
            given.append(0)
            yield X, CLASSES

    assert "half of the memory" in refused(examples.gathered, endless())
    assert len(given) == 4


def test_a_model_too_large_for_the_memory_is_rejected_before_it_is_copied(monkeypatch):
    monkeypatch.setattr(checks, "available_memory", lambda: 20 * 4 * 27 - 1)
    line = refused(curvature.Hessian, plain(), X, CLASSES)
    assert line.startswith("a Hessian in 27 weights needs 0.0 GB to check")
    monkeypatch.setattr(checks, "available_memory", lambda: 20 * 4 * 27)
    assert curvature.Hessian(plain(), X, CLASSES).shape == (27, 27)


@pytest.mark.slow
def test_a_stopped_gradient_without_effect_is_accepted():
    def by_hand(y, z):
        shift = ops.stop_gradient(ops.max(z, -1, keepdims=True))
        sums = ops.sum(ops.exp(z - shift), -1)
        return ops.log(sums) + shift[:, 0] - tf.gather(z, tf.cast(y, tf.int32), batch_dims=1)

    model = plain()
    found, expected = (curvature.Hessian(model, X, CLASSES, loss=loss) @ np.ones(27) for loss in (by_hand, None))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # Constant in part, but with right first derivatives, which are all that the Gauss–Newton matrix takes.
    model = replaced(lambda x: x * x, lambda g, x: 2 * tf.stop_gradient(x) * g)
    plain_model = in_a_lambda(lambda x: x * x)
    plain_model.set_weights(model.get_weights())
    found, expected = (
        curvature.Hessian(of, X, CLASSES, gauss_newton=True) @ np.ones(27) for of in (model, plain_model)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
