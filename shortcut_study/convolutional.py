"""Condition numbers of convolutional residual networks at their initial weights, with and without batch normalisation.

Not in the paper: Li et al. §6 leave convolutions and batch normalisation to future work.

    Li et al.                             here
    W^{r,l}, r = 1 … R, l = 1 … n         kernels of the layers stage…_block…_conv…, R blocks of n convolutions
    L = 1/(2m) Σ‖y − ŷ‖²                  mean cross-entropy
    Hessian in all weights                its block of those kernels
    |λ|_max, |λ|_(0.1), index             max_abs, p10_abs, index, as of hessian.Spectrum

Counted are the kernels inside the shortcuts alone. The stem, γ and β of batch normalisation and the last layer belong
to no W^{r,l}; there are as many kernels with batch normalisation as without; and in them alone batch normalisation
makes the condition number independent of the scale of the kernels, but for its ε: L(αw) = L(w), so H(αw) = H(w)/α².

Batch normalisation uses the moments of the whole sample, as its first training step on it would. The moving
statistics of a network that has seen nothing are 0 and 1.

The 10th percentile lies where the eigenvalues are crowded, 10² to 10⁵ times below the largest, and Lanczos finds it
last. With half of all steps what it is sure of still reached from about 0 to 1.4–6 times the value, for 216 to 864
weights without batch normalisation, and the estimate itself was up to 5 times too small. So the default is to take all
the steps, which finds every eigenvalue: the condition numbers were those of the dense matrix to 14 digits. float32
would do to 6 digits, but took no less time at this size, and cannot tell a small eigenvalue from 0.
"""

import math
import re
from collections.abc import Iterable, Iterator

import keras
import numpy as np
import tensorflow as tf

from shortcut_study import model_hessian, quadrature
from shortcut_study.lanczos import lanczos, ritz

RESIDUAL_KERNEL = re.compile(r"block\d+_conv\d+/kernel$")


def initial_spectrum(
    model: keras.Model, images, labels, order: int | None = None, num_vectors: int = 1, seed: int = 0
) -> dict:
    """Condition number and index of the Hessian in one model's residual kernels; see `initial_spectra`."""
    return next(initial_spectra([model], images, labels, order, num_vectors, seed))


def initial_spectra(
    models: Iterable[keras.Model], images, labels, order: int | None = None, num_vectors: int = 1, seed: int = 0
) -> Iterator[dict]:
    """Condition number and index of the Hessian in the residual kernels, for each of several models.

    L = 1/m Σ −log softmax(logits)[label], without the weight penalties, in float64. The models must be of one
    architecture: their Hessian product is compiled once, which for a batch-normalised network takes as long as
    hundreds of products. A full order costs num_weights products and exact eigenvalues come of it; a lower one gives
    Lanczos quadrature's estimates. At a kink of ReLU the second derivative is taken as 0.

    Args:
      models: Images to logits; layers named as by identity_matters.model.all_conv_resnet. Not changed.
      images: [m, …] as the models take them, standardised. All at once: batch normalisation's moments are theirs.
      labels: int [m].
      order: Lanczos steps; None: as many as there are weights.
      num_vectors: Random starting vectors, for a lower order only: a full one needs no second.
      seed: Of the starting vectors.

    Yields:
      max_abs: Largest |λ|.
      p10_abs: 10th percentile of |λ|.
      p10_low, p10_high: Range of p10_abs: rounding at full order, what quadrature.Summary says at a lower one.
      condition_number: max_abs / p10_abs; inf where more than a tenth of the eigenvalues vanish, as they do where
        the last of three convolutions is 0.
      index: Share of negative eigenvalues; what vanishes within rounding is not negative.
      num_weights: In the residual kernels.

    Raises:
      ValueError: no residual kernel, an order beyond num_weights, models of several architectures, no examples.
    """
    product, architecture = None, None
    for model in models:
        model = model_hessian.with_dtype(model, "float64")
        if product is None:
            product, architecture = _compiled_product(model, images, labels), _shapes(model)
        if _shapes(model) != architecture:
            raise ValueError("the models must be of one architecture, their variables differ in name or shape")
        mvp_fn, dim = _residual_product(product, model)
        yield _summary(mvp_fn, dim, dim if order is None else order, num_vectors, seed) | {"num_weights": dim}


def residual_kernel_entries(model: keras.Model) -> np.ndarray:
    """Where the residual kernels lie in the flat trained weights: int [num_weights].

    Raises:
      ValueError: the model has none.
    """
    counted = [
        np.full(math.prod(variable.shape), bool(RESIDUAL_KERNEL.search(variable.path)))
        for variable in model.trainable_variables
    ]
    if not np.any(np.concatenate(counted or [[False]])):
        raise ValueError("the model trains no residual kernel, a variable named like stage1_block1_conv1/kernel")
    return np.flatnonzero(np.concatenate(counted))


def _shapes(model: keras.Model) -> list[tuple]:
    return [(variable.path, tuple(variable.shape)) for variable in model.variables]


def _compiled_product(model: keras.Model, images, labels):
    """(trained weights [n], the other variables, vector [n]) -> Hv [n], with those weights as arguments."""
    if len(images) == 0 or np.shape(labels) != (len(images),):
        raise ValueError(f"need one label an image, and one image at least, got {np.shape(images)}, {np.shape(labels)}")
    shapes = [variable.shape for variable in model.trainable_variables]
    sizes = [math.prod(shape) for shape in shapes]
    images, labels = tf.constant(images, tf.float64), tf.constant(labels, tf.int32)
    network = model_hessian._twice_differentiable(model)

    def loss(weights, others):
        parts = [tf.reshape(part, shape) for part, shape in zip(tf.split(weights, sizes), shapes)]
        logits, _ = network.stateless_call(parts, others, images, training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    @tf.function
    def product(weights, others, vector):
        return model_hessian.hessian_vector_product(lambda w: loss(w, others), weights, vector)

    model_hessian._check_twice_differentiable(tf.function(loss).get_concrete_function(*_values(model)).graph)
    return product


def _residual_product(product, model: keras.Model):
    """mvp_fn, dim for `lanczos`: the block of the residual kernels."""
    weights, others = _values(model)
    entries = residual_kernel_entries(model)

    def mvp_fn(vector):
        padded = np.zeros(weights.shape[0])
        padded[entries] = vector
        return product(weights, others, tf.constant(padded)).numpy()[entries]

    return mvp_fn, len(entries)


def _values(model: keras.Model):
    """The trained weights, flat, and a list of the other variables' values."""
    weights = tf.concat([tf.reshape(variable.value, [-1]) for variable in model.trainable_variables], axis=0)
    return weights, [tf.convert_to_tensor(variable.value) for variable in model.non_trainable_variables]


def _summary(mvp_fn, dim: int, order: int, num_vectors: int, seed: int) -> dict:
    if order == dim:
        decomposition = lanczos(mvp_fn, dim, dim, [seed, 0])
        return _exact_summary(ritz(decomposition).values, dim * decomposition.rounding)
    found = quadrature.summary(quadrature.lanczos_quadrature(mvp_fn, dim, order, num_vectors, seed))
    names = ("max_abs", "p10_abs", "condition_number", "index")
    low, high = found.p10_range
    return {name: getattr(found, name) for name in names} | {"p10_low": low, "p10_high": high}


def _exact_summary(eigenvalues, rounding: float) -> dict:
    """Of all eigenvalues, each counted once. Any of them is off by no more than what the matrix is (Weyl)."""
    sizes = np.abs(eigenvalues)
    max_abs, p10_abs = float(sizes.max()), float(np.percentile(sizes, 10))
    return {
        "max_abs": max_abs,
        "p10_abs": p10_abs,
        "p10_low": max(p10_abs - rounding, 0.0),
        "p10_high": p10_abs + rounding,
        "condition_number": max_abs / p10_abs if p10_abs > rounding else math.inf,
        "index": float((eigenvalues < -rounding).mean()),
    }
