"""Models × losses for the Hessian on every backend: what each is, and its product by differences of Keras's own loss.

Run as a program it checks some or all of them: `KERAS_BACKEND=jax python tests/hessian_cases.py LSTM`.
"""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import keras
import numpy as np
from keras import layers, ops
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.backend.common import dtypes

from shortcut_study import curvature
from shortcut_study.curvature.objective import dtype_override

RNG = np.random.default_rng(0)
X, CLASSES, TARGETS = RNG.standard_normal((6, 4)), RNG.integers(0, 3, 6), RNG.standard_normal((6, 3))
WORDS, SEQUENCES = RNG.integers(1, 5, (6, 5)), RNG.standard_normal((6, 5, 4))
IMAGES, WEIGHTS = RNG.standard_normal((6, 6, 6, 2)), RNG.uniform(0.5, 2, 6)
CROSS_ENTROPY = "sparse_categorical_crossentropy"
if keras.backend.backend() == "jax":
    import jax

    jax.config.update("jax_enable_x64", True)
# Of second differences, and the error that they may have as a share of ‖u‖ ‖Hv‖: rounding over the step's square.
STEP, TOLERANCE = 5e-5, 1e-5
# TensorFlow resizes, and Keras on JAX takes the softmax of attention, in float32.
ON_JAX = keras.backend.backend() == "jax"
SEED = 1 if keras.backend.backend() == "torch" else 0  # of weights whose ReLUs are no nearer to their kink than a step
ROUNDED, COARSE_STEP, COARSE = ("attention",) if ON_JAX else ("bilinear", "bicubic", "lanczos5"), 2e-3, 1e-2
# One of each kind of layer and of loss; the others are slow tests.
QUICK = "a function", "probabilities", "ignored labels, gauss_newton", "mean by weights", "cosine, squeezed"
QUICK += "masked outputs, gauss_newton", "tied words", "a weight in the loss", "outputs by name", "an own class"
QUICK += "large whole numbers", "products of those behind", "bilinear", "batch norm in training", "convolutions"
QUICK += "dropout in training", "computed again"
QUICK_ON_JAX = "tied words", "ignored labels, gauss_newton"


def sequential(*parts, shape=(4,), dtype=None):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *parts])


def hidden(units=3, activation="tanh"):
    return layers.Dense(units, activation)


def logits():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def squares(y, z):
    return ops.mean(ops.square(y - z), -1)


def tied_words():
    embedding = layers.Embedding(5, 3)
    by_rows = layers.Lambda(lambda t: ops.matmul(t, ops.transpose(embedding.embeddings)))
    return sequential(embedding, hidden(), by_rows, shape=(5,), dtype="int32")


def tied_autoencoder():
    first = hidden()
    return sequential(first, layers.Lambda(lambda h: ops.einsum("bi,ji->bj", h, first.kernel)))


def weight_in_loss():
    model = sequential(first := hidden(), hidden())
    return model, lambda y, z: ops.sum(ops.square(y - z), -1) + ops.sum(ops.square(first.kernel)) * ops.sum(z, -1)


def two_inputs(structure):
    first, second = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    joined = layers.Multiply()([hidden()(first), hidden()(second)])
    return keras.Model(structure(first, second), layers.Dense(3)(joined))


def two_outputs(structure):
    first = keras.Input((4,))
    h = hidden()(first)
    return keras.Model(first, structure(layers.Dense(3, name="classes")(h), layers.Dense(2, name="numbers")(h)))


def with_whole_numbers():
    first = keras.Input((4,))
    z = layers.Dense(3)(hidden()(first))
    return keras.Model(first, {"z": z, "class": layers.Lambda(lambda z: ops.argmax(z, -1))(z)})


class OwnModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = hidden(), layers.Dense(3)
        self(np.zeros((1, 4)))

    def call(self, x):
        return self.last(ops.sin(self.first(x)))


class Remainder(layers.Layer):
    """An embedding of whole numbers modulo 4."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(4, 3)

    def build(self, shape):
        self.table.build(shape)

    def call(self, ids):
        return self.table(ops.mod(ids, 4))


def lora():
    model = sequential(first := hidden(), layers.Dense(3))
    first.enable_lora(2)
    first.lora_kernel_b.assign(RNG.standard_normal(first.lora_kernel_b.shape))
    return model


class WithZeros(layers.Layer):
    """Products along the last axis of a kernel's rows, two of whose entries are 0."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")

    def call(self, x):
        return self.function(self.kernel * ops.expand_dims(x, -1))


def products_with_zeros(function):
    model = sequential(layer := WithZeros(function), layers.Flatten(), layers.Dense(3))
    kernel = RNG.standard_normal((4, 3))
    kernel[0, :2], kernel[1, 1], kernel[2, 2] = 0, 0, 0
    layer.kernel.assign(kernel)
    return model


def behind(h):
    if ON_JAX:
        return ops.flip(ops.cumprod(ops.flip(h, -1), -1), -1)
    import tensorflow as tf

    return tf.math.cumprod(h, -1, exclusive=True, reverse=True)


def masked_words(*last):
    return sequential(layers.Embedding(5, 3, mask_zero=True), *last, shape=(5,), dtype="int32")


def normalised(layer, *before):
    model = sequential(hidden(8), *before, layer, layers.Flatten(), layers.Dense(3))
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * RNG.standard_normal(variable.shape))
    return model


def resized(interpolation):
    grown = layers.UpSampling2D(2, interpolation=interpolation)
    return sequential(layers.Conv2D(2, 3, activation="tanh"), grown, layers.Flatten(), layers.Dense(2, "tanh"),
                      shape=(6, 6, 2))  # fmt: skip


def remat():
    with keras.RematScope(mode="full"):
        first = hidden()
    return sequential(first, hidden(), layers.Dense(3))


def shared():
    first, layer = keras.Input((4,)), hidden(4)
    return keras.Model(first, layers.Dense(3)(layer(layer(first)) + first))


def adapted():
    normalization = layers.Normalization()
    normalization.adapt(20 + 5 * X)
    return sequential(normalization, hidden(), layers.Dense(3))


def gated():
    first = keras.Input((4,))
    return keras.Model(first, layers.Dense(3)(ops.glu(layers.Dense(6)(first))))


def attention():
    first = keras.Input((5, 4))
    attended = layers.MultiHeadAttention(2, 2)(first, first)
    return keras.Model(first, layers.Dense(3)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(attended))))


def softmax():
    return sequential(hidden(), layers.Dense(3, "softmax"))


def plain():
    return sequential(hidden(), layers.Dense(3))


def numpy_loss(model, step=0.0):
    """The mean cross-entropy of a `plain` model, written separately, at its weights plus a flat step."""
    w = np.concatenate([ops.convert_to_numpy(v).astype(np.float64).ravel() for v in model.trainable_variables]) + step
    kernel, bias, last, offset = (w[a:b] for a, b in ((0, 12), (12, 15), (15, 24), (24, 27)))
    z = np.tanh(X @ kernel.reshape(4, 3) + bias) @ last.reshape(3, 3) + offset
    return np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), CLASSES])


def steps(units=1, activation=None):
    return sequential(layers.Dense(3, "tanh"), layers.Dense(units, activation), shape=(5, 4))


def convolutions(*parts):
    return sequential(*parts, layers.GlobalAveragePooling2D(), layers.Dense(3), shape=(6, 6, 2))


IGNORED = np.where(np.arange(6) % 3, CLASSES, -1)
STEP_LABELS = RNG.uniform(0.1, 1, (6, 5))
LARGE = 2**24 + 1 + np.arange(6)[:, None]


class Case(NamedTuple):
    """A model, or a model and its loss, on examples; `loss` makes what is compiled; options are the Hessian's."""

    make: Callable
    x: Any
    y: Any
    loss: Callable | str | list | None
    loss_weights: Any
    options: dict


def case(make, x=X, y=CLASSES, loss=None, loss_weights=None, **options):
    return Case(make, x, y, loss, loss_weights, options)


def ignoring():
    return keras.losses.SparseCategoricalCrossentropy(True, -1)


def mean_by_weights():
    return keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")


def lstm():
    return sequential(layers.LSTM(3), layers.Dense(3), shape=(5, 4))


def named_outputs():
    return two_outputs(lambda a, b: {"c": a, "n": b})


BOTH = [CLASSES, TARGETS[:, :2]]
CASES = {
    "default": case(plain),
    "labels in a column": case(plain, y=CLASSES[:, None]),
    "small batches": case(plain, batch_size=4),
    "gauss_newton": case(plain, gauss_newton=True),
    "mse": case(plain, y=TARGETS, loss="mse"),
    "mse, gauss_newton": case(plain, y=TARGETS, loss="mse", gauss_newton=True),
    "a sum": case(plain, y=TARGETS, loss=lambda: keras.losses.MeanSquaredError(reduction="sum")),
    "a function": case(plain, y=TARGETS, loss=lambda: lambda y, z: squares(y, z) ** 2),
    "values": case(plain, y=TARGETS, loss=lambda: lambda y, z: ops.square(y - z)),
    "own, whole labels": case(plain, loss=lambda: lambda y, z: ops.square(y - z[:, 0]) * ops.mean(y), batch_size=6),
    "own, halves of whole labels": case(
        plain, y=np.eye(3, dtype=int)[CLASSES], loss=lambda: lambda y, z: squares(y * 0.9, z)
    ),
    "smoothed": case(plain, y=np.eye(3)[CLASSES], loss=lambda: keras.losses.CategoricalCrossentropy(True, 0.1)),
    "probabilities": case(softmax, loss=CROSS_ENTROPY),
    "probabilities, gauss_newton": case(softmax, loss=CROSS_ENTROPY, gauss_newton=True),
    "ignored labels": case(plain, y=IGNORED, loss=ignoring),
    "ignored labels, gauss_newton": case(plain, y=IGNORED, loss=ignoring, gauss_newton=True),
    "weighted": case(plain, sample_weight=WEIGHTS),
    "mean by weights": case(plain, y=TARGETS, loss=mean_by_weights, sample_weight=WEIGHTS, batch_size=4),
    "cosine, squeezed": case(steps, SEQUENCES, STEP_LABELS, keras.losses.CosineSimilarity),
    "own sum, squeezed": case(steps, SEQUENCES, STEP_LABELS, lambda: lambda y, z: ops.sum(ops.square(y - z), -1)),
    "divergence, squeezed": case(lambda: steps(1, "sigmoid"), SEQUENCES, STEP_LABELS, "kl_divergence"),
    "one-hot, squeezed": case(lambda: steps(1, "sigmoid"), SEQUENCES, STEP_LABELS, "categorical_crossentropy"),
    "tied words": case(tied_words, WORDS, WORDS, logits),
    "tied autoencoder": case(tied_autoencoder, y=X, loss="mse"),
    "a weight in the loss": case(weight_in_loss, y=TARGETS),
    "LSTM": case(lstm, SEQUENCES),
    "LSTM, gauss_newton": case(lstm, SEQUENCES, gauss_newton=True),
    "SimpleRNN": case(lambda: sequential(layers.SimpleRNN(3), layers.Dense(3), shape=(5, 4)), SEQUENCES),
    "GRU both ways": case(
        lambda: sequential(layers.Bidirectional(layers.GRU(2)), layers.Dense(3), shape=(5, 4)), SEQUENCES
    ),
    "masked words": case(lambda: masked_words(layers.GRU(3), layers.Dense(3)), WORDS * (WORDS > 1)),
    "masked outputs": case(lambda: masked_words(layers.Dense(3)), WORDS * (WORDS > 1), WORDS % 3, logits, batch_size=4),
    "masked outputs, gauss_newton": case(
        lambda: masked_words(layers.Dense(3)), WORDS * (WORDS > 1), WORDS % 3, logits, gauss_newton=True
    ),
    "two inputs": case(lambda: two_inputs(lambda a, b: [a, b]), [X, X[::-1]]),
    "inputs by name": case(lambda: two_inputs(lambda a, b: {"a": a, "b": b}), {"a": X, "b": X[::-1]}),
    "two outputs": case(lambda: two_outputs(lambda a, b: [a, b]), y=BOTH, loss=lambda: [logits(), "mse"]),
    "outputs by name": case(
        named_outputs,
        y={"c": IGNORED, "n": TARGETS[:, :2]},
        loss=lambda: {"c": ignoring(), "n": "mae"},
        loss_weights={"c": 1.0, "n": 0.3},
        batch_size=4,
    ),
    "outputs by layers' names": case(
        lambda: two_outputs(lambda a, b: [a, b]),
        y=BOTH,
        loss=lambda: {"classes": logits(), "numbers": "mse"},
        loss_weights={"classes": 1.0, "numbers": 0.5},
        gauss_newton=True,
    ),
    "an output of whole numbers": case(
        with_whole_numbers, y={"z": CLASSES}, loss=lambda: {"z": logits()}, gauss_newton=True
    ),
    "an own class": case(OwnModel),
    "large whole numbers": case(
        lambda: sequential(Remainder(), layers.Flatten(), layers.Dense(3), shape=(1,), dtype="int32"), LARGE
    ),
    "LoRA": case(lora),
    "softsign": case(lambda: sequential(hidden(3, "softsign"), layers.Dense(3))),
    "glu": case(gated),
    "elu, gelu, mish, silu": case(
        lambda: sequential(*(hidden(3, name) for name in ("elu", "gelu", "mish", "silu")), layers.Dense(3))
    ),
    "products": case(lambda: products_with_zeros(lambda h: ops.prod(h, -1))),
    "cumulative products": case(lambda: products_with_zeros(lambda h: ops.cumprod(h, -1))),
    "products of those behind": case(lambda: products_with_zeros(behind)),
    **{
        name: case(lambda name=name: resized(name), IMAGES, TARGETS[:, :2], "mse")
        for name in ("bilinear", "bicubic", "lanczos5")
    },
    "batch norm": case(lambda: normalised(layers.BatchNormalization())),
    "batch norm in training": case(lambda: normalised(layers.BatchNormalization()), training=True),
    "layer norm": case(lambda: normalised(layers.LayerNormalization())),
    "layer norm over two axes": case(
        lambda: normalised(layers.LayerNormalization(axis=[1, 2], center=False), layers.Reshape((4, 2)))
    ),
    "group norm": case(lambda: normalised(layers.GroupNormalization(2), layers.Reshape((2, 4)))),
    "RMS norm": case(lambda: normalised(layers.RMSNormalization())),
    "spectral norm": case(lambda: sequential(layers.SpectralNormalization(hidden()), layers.Dense(3))),
    "unit norm": case(lambda: normalised(layers.UnitNormalization())),
    "dropout in training": case(
        lambda: sequential(hidden(8), layers.Dropout(0.5, seed=1), layers.Dense(3)), training=True
    ),
    "augmentation": case(
        lambda: convolutions(layers.RandomFlip(seed=3), layers.Conv2D(3, 3, activation="tanh")), IMAGES
    ),
    "attention": case(attention, SEQUENCES),
    "convolutions": case(
        lambda: convolutions(
            layers.SeparableConv2D(3, 3, activation="tanh"),
            layers.DepthwiseConv2D(2, activation="tanh"),
            layers.MaxPooling2D(),
            layers.Conv2DTranspose(2, 2, activation="relu"),
        ),
        IMAGES,
    ),
    "computed again": case(remat),
    "a model in the model": case(lambda: sequential(plain(), layers.LayerNormalization())),
    "called twice": case(shared),
    "adapted": case(adapted, 20 + 5 * X),
}


@contextlib.contextmanager
def float64():
    """Context manager: Keras makes models and losses in float64."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        with mock.patch.dict(dtypes.BIT64_TO_BIT32_DTYPE, float64="float64"):  # Keras computes tanh in float32 on JAX
            yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


def made(name):
    """Returns a compiled float64 model, x, y, the Hessian's options, and the model's Hessian."""
    make, x, y, loss, loss_weights, options = CASES[name]
    global RNG
    RNG = np.random.default_rng(1)
    keras.utils.set_random_seed(SEED)
    model, loss = make(), loss() if callable(loss) else loss
    model, loss = model if isinstance(model, tuple) else (model, loss)
    h = curvature.Hessian(model, x, y, loss, loss_weights=loss_weights, **options)
    model.compile("sgd", logits() if loss is None else loss, loss_weights=loss_weights)
    return model, x, y, options, h


def value(model, x, y, options, step=None):
    """The loss as Keras computes it, with the flat step added to the weights for a while, or at given outputs."""
    before = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
    shifted = before if step is None else np.split(step, np.cumsum([b.size for b in before])[:-1])
    with dtype_override(model, "float64"), keras.StatelessScope():
        for variable, old, part in zip(model.trainable_variables, before, shifted):
            if step is not None:
                variable.assign(old + part.reshape(old.shape))
        outputs = model(x, training=options.get("training", False))
        yield outputs
        yield loss_at(model, x, y, outputs, options)


def loss_at(model, x, y, outputs, options):
    loss = model._compile_loss(y, outputs, options.get("sample_weight"))
    of = model.loss
    if isinstance(of, keras.losses.Loss) and of.reduction == "sum":  # the mean is meant
        loss = loss / len(CLASSES)
    return float(loss)


def error(name):
    """Returns the largest difference of ⟨u, Hv⟩ from second differences of the loss, over ‖u‖ ‖Hv‖, of three pairs."""
    with float64():
        model, x, y, options, h = made(name)
        found, step = [], COARSE_STEP if name in ROUNDED else STEP
        for pair in np.random.default_rng(2).standard_normal((3, 2, h.shape[0])):
            u, v = pair
            if options.get("gauss_newton"):
                expected = linearised(model, x, y, options, u, v)
            else:
                ends = [
                    sign * list(value(model, x, y, options, step * (first * u + second * v)))[1]
                    for sign, first, second in ((1, 1, 1), (-1, 1, -1), (-1, -1, 1), (1, -1, -1))
                ]
                expected = sum(ends) / (4 * step**2)
            hv = h @ v
            found.append(abs(u @ hv - expected) / (np.linalg.norm(u) * np.linalg.norm(hv)))
    return max(found)


def linearised(model, x, y, options, u, v):
    """Second difference of the loss at outputs that move along J u and J v."""
    ends = [list(value(model, x, y, options, sign * STEP * w))[0] for w in (u, v) for sign in (1, -1)]
    at = list(value(model, x, y, options))[0]
    flat = [[ops.convert_to_numpy(z) for z in keras.tree.flatten(end)] for end in ends]
    ju, jv = ([(a - b) / 2 for a, b in zip(*two)] for two in (flat[:2], flat[2:]))
    found = 0
    for sign, first, second in ((1, 1, 1), (-1, 1, -1), (-1, -1, 1), (1, -1, -1)):
        moved = []
        for z, a, b in zip(keras.tree.flatten(at), ju, jv):
            moved.append(ops.convert_to_tensor(ops.convert_to_numpy(z) + first * a + second * b))
            if get_keras_mask(z) is not None:
                set_keras_mask(moved[-1], get_keras_mask(z))
        found += sign * loss_at(model, x, y, keras.tree.pack_sequence_as(at, moved), options)
    return found / (4 * STEP**2)


def check(name):
    """Raises AssertionError if the operator is not the Hessian of Keras's loss, or leaves a trace in the model."""
    found = error(name)
    assert found < (COARSE if name in ROUNDED else TOLERANCE), f"{name}: {found:.1e}"


if __name__ == "__main__":
    unknown = {"lanczos5"} if keras.backend.backend() == "torch" else set()  # to Keras on PyTorch
    for case in sys.argv[1:] or [name for name in CASES if name not in unknown]:
        check(case)
        print(case)
