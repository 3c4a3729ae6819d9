"""Hessian–vector products of networks, exact, for lanczos.py: Keras models on TensorFlow, and n-shortcut networks.

    equations                              code
    L(w), w flat                           loss of the weights [dim], in the model's order
    Hv = d/dt ∇L(w + tv) at t = 0          forward mode (ForwardAccumulator) over reverse mode (GradientTape)

Forward over reverse took 2.0 (170,928 weights, batch 128) and 2.6 (Table 1's network, batch 32) times
as long as the gradient on 2 CPU cores; reverse over reverse 2.9 and 3.9, in the same memory.
At a kink of ReLU the second derivative is taken as 0.
"""

import math
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from shortcut_study.differentiable import check_twice_differentiable, twice_differentiable
from shortcut_study.network import ShortcutNetwork
from shortcut_study.tape import tensor_forward


def hessian_vector_product(loss_fn: Callable, weights: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """Returns Hv of a twice differentiable loss: the derivative of its gradient along v.

    Args:
      loss_fn: callable. Weights to a scalar.
      weights, vector: tensors [dim].
    """
    with tf.autodiff.ForwardAccumulator(weights, vector) as forward:
        with tf.GradientTape() as reverse:
            reverse.watch(weights)
            loss = loss_fn(weights)
        gradient = reverse.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return forward.jvp(gradient, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def model_mvp(
    model: keras.Model,
    images: np.ndarray,
    labels: np.ndarray,
    batch_size: int,
    training: bool = False,
    on_batch: Callable | None = None,
) -> tuple[Callable, int]:
    """Returns products with the Hessian of the mean cross-entropy over the given examples, and its dimension.

    L = 1/m Σ −log softmax(logits)[label], without the model's weight penalties: (λ/2)‖w‖² would
    add λ to every eigenvalue. Weights, and the statistics of batch normalisation, are copied
    now; what becomes of the model later does not count, and nothing in it is changed.

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")])
    >>> mvp_fn, dim = model_mvp(model, np.eye(2), np.array([0, 1]), batch_size=2)
    >>> dim, mvp_fn(np.array([1.0, 0.0, 0.0, 0.0])).tolist()  # 1/m · Σ x xᵀ ⊗ (diag p − p pᵀ), p = (½, ½)
    (4, [0.125, -0.125, 0.0, 0.0])

    Args:
      model: keras.Model. Images to logits, functional or sequential, under Keras's TensorFlow backend. Its Hessian is
        that of float32 arithmetic if the layers compute so; see `with_dtype`.
      images: [m, …] as the model takes them (standardised, for all_conv_resnet).
      labels: int [m].
      batch_size: int. Examples at a time; memory grows with it, the result does not depend on it.
      training: bool. Batch normalisation by each batch's own moments, so that batch_size
        belongs to the definition of the loss. No other layer may behave differently in training.
      on_batch: callable. Called without arguments after each batch, e.g. to move a progress bar.

    Returns:
      mvp_fn, dim: v [dim] -> Hv [dim], NumPy; the trainable weights, each flattened row by row, in
      the order of model.trainable_variables.

    Raises:
      ValueError: another backend, nothing to train, no examples, arrays that do not fit together; a model of a class of
        its own, one that gives probabilities, or one that TensorFlow does not differentiate twice (Dropout in
        training, recurrent layers, layers that stop gradients).
    """
    check_examples(images, labels)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    product, (weights, others) = compiled_product(model, training), flat_weights(model)

    def mvp_fn(vector: np.ndarray) -> np.ndarray:
        vector, total = tf.constant(vector, weights.dtype), tf.zeros_like(weights)
        for start in range(0, len(images), batch_size):
            batch = slice(start, start + batch_size)
            arrays = tf.constant(images[batch], weights.dtype), tf.constant(labels[batch], tf.int32)
            total += product(weights, others, vector, *arrays)
            if on_batch:
                on_batch()
        return total.numpy() / len(images)

    return mvp_fn, int(weights.shape[0])


def check_examples(images: np.ndarray, labels: np.ndarray) -> None:
    """Raises ValueError unless there is one label an image, and one image at least."""
    if len(images) == 0 or np.shape(labels) != (len(images),):
        raise ValueError(f"need one label an image, and one image at least, got {np.shape(images)}, {np.shape(labels)}")


def compiled_product(model: keras.Model, training: bool = False) -> Callable:
    """Returns a function for Hv of the summed cross-entropy of a batch, compiled once for all weights.

    So models of one architecture can share it; compiling a batch-normalised network takes as long as hundreds of
    products.

    Args:
      model: As for `model_mvp`.
      training: bool.

    Returns:
      product(weights [dim], others, vector [dim], images, labels) -> [dim] tensor; weights and others as from
      `flat_weights`.

    Raises:
      ValueError: as `model_mvp` about the model.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"Hessian products need KERAS_BACKEND=tensorflow, got {keras.backend.backend()}")
    if not model.trainable_variables:
        raise ValueError("the model has no trainable weights")
    network = twice_differentiable(model)
    shapes = [variable.shape for variable in model.trainable_variables]
    sizes = [math.prod(shape) for shape in shapes]

    def logits(weights: tf.Tensor, others: list, images: tf.Tensor) -> tf.Tensor:
        parts = [tf.reshape(part, shape) for part, shape in zip(tf.split(weights, sizes), shapes)]
        return network.stateless_call(parts, others, images, training=training)[0]

    dtype = model.trainable_variables[0].dtype
    flat, labels = tf.TensorSpec([sum(sizes)], dtype), tf.TensorSpec([None], tf.int32)
    others = [tf.TensorSpec(variable.shape, variable.dtype) for variable in model.non_trainable_variables]
    images = tf.TensorSpec(model.input_shape, dtype)
    traced = tf.function(logits).get_concrete_function(flat, others, images)
    check_twice_differentiable(traced.graph, traced.outputs[0])

    @tf.function(input_signature=[flat, others, flat, images, labels])  # one compilation, also for a smaller last batch
    def product(weights: tf.Tensor, others: list, vector: tf.Tensor, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        def loss(weights: tf.Tensor) -> tf.Tensor:
            found = logits(weights, others, images)
            return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, found))

        return hessian_vector_product(loss, weights, vector)

    return product


def flat_weights(model: keras.Model) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns copies of a model's trained weights, flat [dim], and of its other variables."""
    weights = tf.concat([tf.reshape(variable.value, [-1]) for variable in model.trainable_variables], axis=0)
    return weights, [tf.identity(variable.value) for variable in model.non_trainable_variables]


def network_mvp(network: ShortcutNetwork, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[Callable, int]:
    """Returns products with `hessian.hessian` of an n-shortcut network, without that matrix, in float64.

    Costs as much as two or three gradients, where the matrix has num_parameters² entries.

    Args:
      network: ShortcutNetwork, of activations that tape.py can differentiate.
      weights: [num_units, shortcut_depth, width, width].
      x, y: [m, width].

    Returns:
      mvp_fn, dim; parameters ordered by unit, layer in unit, column, row (Li et al., Definition 5).
    """
    columns = tf.constant(np.swapaxes(weights, -1, -2).ravel(), tf.float64)
    x, y = tf.constant(x, tf.float64), tf.constant(y, tf.float64)

    def loss(columns: tf.Tensor) -> tf.Tensor:
        transposed = tf.reshape(columns, network.shape)
        error = y - tensor_forward(network, tf.linalg.matrix_transpose(transposed), x)
        return tf.reduce_sum(error * error) / (2 * x.shape[0])

    product = tf.function(lambda vector: hessian_vector_product(loss, columns, vector))
    return lambda vector: product(tf.constant(vector, tf.float64)).numpy(), network.num_parameters
