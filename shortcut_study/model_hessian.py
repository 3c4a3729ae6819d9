"""Hessian–vector products of networks, exact, for lanczos.py: Keras models on TensorFlow, and n-shortcut networks.

    equations                              code
    L(w), w flat                           loss of the weights [dim], in the model's order
    Hv = d/dt ∇L(w + tv) at t = 0          forward mode (ForwardAccumulator) over reverse mode (GradientTape)

Forward over reverse took 2.0 (170,928 weights, batch 128) and 2.6 (Table 1's network, batch 32) times
as long as the gradient on 2 CPU cores; reverse over reverse 2.9 and 3.9, in the same memory.
At a kink of ReLU the second derivative is taken as 0.
"""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from shortcut_study.network import ShortcutNetwork
from shortcut_study.tape import tensor_forward


def hessian_vector_product(loss_fn: Callable, weights, vector):
    """Hv of a twice differentiable loss: the derivative of its gradient along v.

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
    model: keras.Model, images, labels, batch_size: int, training: bool = False, on_batch: Callable | None = None
) -> tuple[Callable, int]:
    """Products with the Hessian of the mean cross-entropy over the given examples.

    L = 1/m Σ −log softmax(logits)[label], without the model's weight penalties: (λ/2)‖w‖² would
    add λ to every eigenvalue. Weights, and the statistics of batch normalisation, are copied
    now; what becomes of the model later does not count, and nothing in it is changed.

    Args:
      model: keras.Model. Images to logits, under Keras's TensorFlow backend. Its Hessian is that
        of float32 arithmetic if the layers compute so; see `with_dtype`.
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
      ValueError: another backend, nothing to train, no examples, arrays that do not fit together,
        a layer that stops gradients (Keras's LayerNormalization does).
    """
    _check(model, images, labels, batch_size)
    weights = _flat([variable.value for variable in model.trainable_variables])
    product = _compiled_product(_twice_differentiable(model) if training else model, training, len(images))

    def mvp_fn(vector):
        vector, total = tf.constant(vector, weights.dtype), tf.zeros_like(weights)
        for start in range(0, len(images), batch_size):
            batch = slice(start, start + batch_size)
            arrays = tf.constant(images[batch], weights.dtype), tf.constant(labels[batch], tf.int32)
            total += product(weights, vector, *arrays)
            if on_batch:
                on_batch()
        return total.numpy()

    return mvp_fn, int(weights.shape[0])


def _check(model: keras.Model, images, labels, batch_size: int) -> None:
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"Hessian products need KERAS_BACKEND=tensorflow, got {keras.backend.backend()}")
    if not model.trainable_variables:
        raise ValueError("the model has no trainable weights")
    if len(images) == 0 or np.shape(labels) != (len(images),):
        raise ValueError(f"need one label an image, and one image at least, got {np.shape(images)}, {np.shape(labels)}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")


def _compiled_product(model: keras.Model, training: bool, num_examples: int):
    """(weights, vector, images, labels) -> a batch's share of Hv."""
    shapes = [variable.shape for variable in model.trainable_variables]
    sizes = [int(np.prod(shape)) for shape in shapes]
    others = [tf.identity(variable.value) for variable in model.non_trainable_variables]

    def loss(weights, images, labels):
        parts = [tf.reshape(part, shape) for part, shape in zip(tf.split(weights, sizes), shapes)]
        logits, _ = model.stateless_call(parts, others, images, training=training)
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)) / num_examples

    dtype = model.trainable_variables[0].dtype
    flat, labels = tf.TensorSpec([sum(sizes)], dtype), tf.TensorSpec([None], tf.int32)
    images = tf.TensorSpec(model.input_shape, dtype)
    _check_twice_differentiable(tf.function(loss).get_concrete_function(flat, images, labels).graph)

    @tf.function(input_signature=[flat, flat, images, labels])  # one compilation, also for a smaller last batch
    def product(weights, vector, images, labels):
        return hessian_vector_product(lambda w: loss(w, images, labels), weights, vector)

    return product


def _check_twice_differentiable(graph) -> None:
    """Raises ValueError where a loss stops a gradient: the Hessian would lack a term, and nothing would show it."""
    stops = [operation.name for operation in graph.get_operations() if operation.type == "StopGradient"]
    if stops:
        raise ValueError(f"the model is not twice differentiable for TensorFlow: it stops the gradient at {stops[0]}")


def with_dtype(model: keras.Model, dtype: str) -> keras.Model:
    """A copy of a model whose layers all compute and keep their weights in one type.

    A model trained in mixed precision needs it: products in bfloat16 are right to two digits only.

    Args:
      dtype: str. float32 or float64.
    """

    def clone(layer):
        config = layer.get_config()
        return type(layer).from_config(config | {"dtype": dtype} if "dtype" in config else config)

    return _copy(model, clone)


class _BatchNormalization(keras.layers.BatchNormalization):
    """Keras's, with a second derivative of the batch's moments.

    tf.nn.moments stops the gradient of the variance at the mean. The first derivative does not
    change, but the second lacks a term; it stays symmetric, so no check of symmetry tells.
    """

    def call(self, inputs, training=None, mask=None):
        if not (training and self.trainable):
            return super().call(inputs, training=training, mask=mask)
        shape = [1] * len(inputs.shape)
        shape[self.axis] = -1
        axes = [axis for axis, size in enumerate(shape) if size == 1]
        centred = inputs - tf.reduce_mean(inputs, axes, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axes, keepdims=True)
        outputs = centred * tf.math.rsqrt(variance + self.epsilon)
        outputs = outputs * tf.reshape(self.gamma, shape) if self.scale else outputs
        return outputs + tf.reshape(self.beta, shape) if self.center else outputs


def _twice_differentiable(model: keras.Model) -> keras.Model:
    def clone(layer):
        kind = _BatchNormalization if type(layer) is keras.layers.BatchNormalization else type(layer)
        return kind.from_config(layer.get_config())

    return _copy(model, clone)


def _copy(model: keras.Model, clone_function: Callable) -> keras.Model:
    copy = keras.models.clone_model(model, clone_function=clone_function)
    copy.set_weights(model.get_weights())
    return copy


def network_mvp(network: ShortcutNetwork, weights, x, y) -> tuple[Callable, int]:
    """Products with `hessian.hessian` of an n-shortcut network, without that matrix, in float64.

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

    def loss(columns):
        transposed = tf.reshape(columns, network.shape)
        error = y - tensor_forward(network, tf.linalg.matrix_transpose(transposed), x)
        return tf.reduce_sum(error * error) / (2 * x.shape[0])

    product = tf.function(lambda vector: hessian_vector_product(loss, columns, vector))
    return lambda vector: product(tf.constant(vector, tf.float64)).numpy(), network.num_parameters


def _flat(tensors):
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
