"""Products with the Hessian of a Keras model on TensorFlow, exact and without its matrix, for lanczos.py.

    equations                                    code
    L(w), w flat [dim]                           mean loss of the weights, in the model's order
    Hv = d/dt ∇L(w + tv) at t = 0                hessian_vector_product: forward mode over reverse mode
    Gv = Jᵀ ∇²ℓ J v, J of the outputs            gauss_newton_vector_product: forward, forward over reverse, reverse

Forward over reverse took 2.0 (170,928 weights, batch 128) and 2.6 (Table 1's network, batch 32) times
as long as the gradient on 2 CPU cores; reverse over reverse 2.9 and 3.9, in the same memory.
At a kink of ReLU the second derivative is taken as 0.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from shortcut_study.curvature.checks import (
    Loss,
    check_examples,
    check_gradient,
    check_loss,
    check_losses,
    check_model,
    check_product,
    check_twice_differentiable,
    traced_function,
)
from shortcut_study.curvature.copies import computes_in_half, twice_differentiable, with_dtype
from shortcut_study.curvature.examples import gathered, loss_of

ZERO = tf.UnconnectedGradients.ZERO
CLASS_LABELS = tf.TensorSpec([None], tf.int32)


def model_mvp(
    model: keras.Model,
    images: Any,
    labels: Any = None,
    batch_size: int | None = None,
    training: bool = False,
    on_batch: Callable | None = None,
    *,
    loss: Loss = None,
    variables: Sequence[keras.Variable] | None = None,
    gauss_newton: bool = False,
) -> tuple[Callable, int]:
    """Returns products with the Hessian of the mean loss over the given examples, and its dimension.

    The loss is that with which the model is compiled; else L = 1/m Σ −log softmax(logits)[label]. The model's weight
    penalties are left out: (λ/2)‖w‖² would add λ to every eigenvalue. A model that penalises
    activities is refused: Keras adds their sum over a batch to the mean.
    Weights, and the statistics of batch normalisation, are copied now; nothing is changed.

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")])
    >>> mvp_fn, dim = model_mvp(model, np.eye(2), np.array([0, 1]), batch_size=2)
    >>> dim, mvp_fn(np.array([1.0, 0.0, 0.0, 0.0])).tolist()  # 1/m · Σ x xᵀ ⊗ (diag p − p pᵀ), p = (½, ½)
    (4, [0.125, -0.125, 0.0, 0.0])

    Args:
      model: keras.Model. Images to logits, functional or sequential, under Keras's TensorFlow backend. Products are
        computed in the type of its weights, of a model in mixed precision too; see `with_dtype` for float64.
      images: [m, …] as the model takes them; or, without labels, batches: a tf.data.Dataset, a PyDataset, or an
        iterable, of pairs (x, y), which are read once.
      labels: int [m] or [m, 1], below the number of the model's outputs; or what the loss takes.
      batch_size: int. Examples at a time; memory grows with it, the result does not depend on it. None: see `gathered`.
      training: bool. Batch normalisation by each batch's own moments, so that batch_size belongs to the definition of
        the loss. No other layer may behave differently in training.
      on_batch: callable. Called without arguments after each batch, e.g. to move a progress bar.
      loss: As for `summed_loss`; the mean over the examples is taken, for every reduction of a Keras loss.
      variables: Some of model.trainable_variables: only their diagonal block of the matrix. Costs as much as all.
      gauss_newton: bool. The Gauss–Newton matrix in place of the Hessian.

    Returns:
      mvp_fn, dim: v [dim] -> Hv [dim], NumPy; the trainable weights, each flattened row by row, in the model's order.

    Raises:
      ValueError: another backend, nothing to train, no examples, arrays that do not fit together or the model; a model
        of a class of its own, of weights of several types, one that gives probabilities without a loss that takes them,
        or one that TensorFlow does not differentiate twice (Dropout in training, recurrent layers, layers that stop
        gradients or, as those with tf.recompute_grad, give none to tensors in place of their weights); from mvp_fn, a
        vector of another shape.
    """
    check_model(model)
    images, labels, batch_size = gathered(images, labels, batch_size)
    loss = loss_of(model, loss)
    check_examples(images, labels, loss, batch_size, model)
    chosen = None if variables is None else positions(model, variables)
    product = compiled_product(model, training, loss, gauss_newton, label_spec(model, labels))
    whole = mean_product(product, model, images, labels, batch_size, on_batch)
    return whole if chosen is None else block(*whole, chosen)


def mean_product(
    product: Callable,
    model: keras.Model,
    images: np.ndarray,
    labels: np.ndarray,
    batch_size: int,
    on_batch: Callable | None = None,
) -> tuple[Callable, int]:
    """Returns mvp_fn, dim as `model_mvp` does, from a product that `compiled_product` made for such a model."""
    (weights, others), label_type = flat_weights(model), label_spec(model, labels).dtype
    images, labels = np.asarray(images), np.asarray(labels)  # of tensors too, which tf.constant does not convert

    def mvp_fn(vector: np.ndarray) -> np.ndarray:
        vector = tf.constant(_of_shape(vector, weights.shape), weights.dtype)
        total, count = tf.zeros_like(weights), 0
        for start in range(0, len(images), batch_size):
            batch = slice(start, start + batch_size)
            arrays = tf.constant(images[batch], weights.dtype), tf.constant(labels[batch], label_type)
            try:
                found, counted = product(weights, others, vector, *arrays)
            except tf.errors.InvalidArgumentError as error:
                reason = error.message.rpartition("\n\n")[2].partition("\n")[0].partition(".  Label values")[0]
                raise ValueError(f"the model or the loss does not take these examples: {reason}") from error
            total, count = total + found, count + int(counted)
            if on_batch:
                on_batch()
        if not count:
            raise ValueError("the loss ignores all labels")
        if not np.isfinite(total).all():
            what = "loss, or a derivative of it, is" if np.isfinite(weights).all() else "model's weights are"
            raise ValueError(f"there is no Hessian product: the {what} NaN or infinite")
        return total.numpy() / count

    return mvp_fn, int(weights.shape[0])


def label_spec(model: keras.Model, labels: np.ndarray) -> tf.TensorSpec:
    """Returns shape and type of a batch of labels: int32, or the weights' type if they are floats."""
    is_whole = np.asarray(labels).dtype.kind in "iub"
    return tf.TensorSpec([None, *np.shape(labels)[1:]], tf.int32 if is_whole else model.trainable_variables[0].dtype)


def _of_shape(vector: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Returns a vector as an array; ValueError for another shape."""
    if (vector := np.asarray(vector)).shape != tuple(shape):
        raise ValueError(f"the vector must have shape {tuple(shape)}, got {vector.shape}")
    return vector


def positions(model: keras.Model, variables: Sequence[keras.Variable]) -> np.ndarray:
    """Returns where the entries of some trainable variables, in any order, stand in the flat weights, int [size].

    Raises:
      ValueError: none are given, or one is not among model.trainable_variables, or twice.
    """
    trained = model.trainable_variables
    ends = np.cumsum([math.prod(variable.shape) for variable in trained])
    chosen = [next((i for i, other in enumerate(trained) if other is variable), None) for variable in variables]
    if not chosen or None in chosen or len(set(chosen)) < len(chosen):
        raise ValueError("variables must be some of model.trainable_variables, each once")
    return np.concatenate([np.arange(ends[i] - math.prod(trained[i].shape), ends[i]) for i in chosen])


def block(mvp_fn: Callable, dim: int, chosen: np.ndarray) -> tuple[Callable, int]:
    """Returns products with the diagonal block of a matrix at some of its coordinates, int [size], and the size."""

    def product(vector: np.ndarray) -> np.ndarray:
        vector = _of_shape(vector, chosen.shape)
        whole = np.zeros(dim, vector.dtype)
        whole[chosen] = vector
        return mvp_fn(whole)[chosen]

    return product, len(chosen)


def compiled_product(
    model: keras.Model,
    training: bool = False,
    loss: Loss = None,
    gauss_newton: bool = False,
    label_spec: tf.TensorSpec = CLASS_LABELS,
) -> Callable:
    """Returns a function for Hv of the summed loss of a batch, compiled once for all weights.

    Models of one architecture can share it: compiling a batch-normalised network takes as long as hundreds of products.

    Args:
      model, training, loss, gauss_newton: As for `model_mvp`.
      label_spec: Shape and type of the labels of a batch.

    Returns:
      product(weights [dim], others, vector [dim], images, labels) -> [dim], a tensor, and how many values of the batch
      count, whose loss is summed; weights and others as from `flat_weights`.

    Raises:
      ValueError: as `model_mvp` about the model.
    """
    dtype = model.trainable_variables[0].dtype
    # Products in bfloat16 are right to two digits only.
    network = twice_differentiable(with_dtype(model, dtype) if computes_in_half(model) else model)
    total_loss = summed_loss(loss)
    check_loss(total_loss, label_spec, network.outputs[0])
    outputs_fn = _flat_outputs(network, training)
    num_weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    flat, images = tf.TensorSpec([num_weights], dtype), tf.TensorSpec([None, *model.inputs[0].shape[1:]], dtype)
    others = [tf.TensorSpec(variable.shape, variable.dtype) for variable in model.non_trainable_variables]
    _check_graph(network, outputs_fn, total_loss, (flat, others, images, label_spec), gauss_newton, loss is None)
    check_gradient(network, training)

    # One compilation, also for a smaller last batch.
    @tf.function(input_signature=[flat, others, flat, images, label_spec])
    def product(weights: tf.Tensor, others: list, vector: tf.Tensor, images: tf.Tensor, labels: tf.Tensor) -> tuple:
        def outputs_at(weights: tf.Tensor) -> tf.Tensor:
            return outputs_fn(weights, others, images)[0]

        counts = []

        def loss_of(outputs: tf.Tensor) -> tf.Tensor:
            loss, count = total_loss(labels, outputs)
            counts.append(count)
            return loss

        if gauss_newton:
            return gauss_newton_vector_product(outputs_at, loss_of, weights, vector), counts[0]
        return hessian_vector_product(lambda weights: loss_of(outputs_at(weights)), weights, vector), counts[0]

    check_product(product)
    return product


def _check_graph(
    network: keras.Model, outputs_fn: Callable, total_loss: Callable, specs: tuple, gauss_newton: bool, by_logits: bool
) -> None:
    """Traces the gradient for its graph alone: a missing part, as a stopped gradient, would not show in the numbers."""
    added = []

    def traced(weights: tf.Tensor, others: list, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, num_losses = outputs_fn(weights, others, images)
            added.append(num_losses)
            loss, _ = total_loss(labels, outputs)
        return outputs, loss if gauss_newton else tape.gradient(loss, weights, unconnected_gradients=ZERO)

    found = traced_function(tf.function(traced), *specs)
    check_losses(network, added[0])
    weights, others = flat_weights(network)
    check_twice_differentiable(found, [weights, *others], takes_logits=by_logits)


def _flat_outputs(network: keras.Model, training: bool) -> Callable:
    """Returns the network as a function of its trained weights, flat, its other variables and a batch of images.

    Beside the outputs it gives the number of losses that the layers add.
    """
    shapes = [variable.shape for variable in network.trainable_variables]

    def outputs_fn(weights: tf.Tensor, others: list, images: tf.Tensor) -> tuple[tf.Tensor, int]:
        parts = map(tf.reshape, tf.split(weights, [math.prod(shape) for shape in shapes]), shapes)
        # Stateless, or the tapes would see variables where the weights are a tensor, and averages would move.
        options = {"training": training, "return_losses": True}
        outputs, _, losses = network.stateless_call(list(parts), others, images, **options)
        return keras.tree.flatten(outputs)[0], len(losses)

    return outputs_fn


def flat_weights(model: keras.Model) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns copies of a model's trained weights, flat [dim], and of its other variables."""
    weights = tf.concat([tf.reshape(variable.value, [-1]) for variable in model.trainable_variables], axis=0)
    return weights, [tf.identity(variable.value) for variable in model.non_trainable_variables]


def hessian_vector_product(loss_fn: Callable, weights: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """Returns Hv of a twice differentiable function of the weights: the derivative of its gradient along v."""
    with tf.autodiff.ForwardAccumulator(weights, vector) as forward:
        with tf.GradientTape() as reverse:
            reverse.watch(weights)
            loss = loss_fn(weights)
        gradient = reverse.gradient(loss, weights, unconnected_gradients=ZERO)
    return forward.jvp(gradient, unconnected_gradients=ZERO)


def gauss_newton_vector_product(
    outputs_fn: Callable, loss_fn: Callable, weights: tf.Tensor, vector: tf.Tensor
) -> tf.Tensor:
    """Returns Gv = Jᵀ ∇²ℓ J v: J is the Jacobian of the outputs, ∇²ℓ the Hessian of the loss as a function of them.

    G is the Hessian of the loss of the linearised network (Schraudolph 2002), positive semidefinite where the loss is
    convex in the outputs. loss_fn is a function of the outputs, these of the weights, shaped as the vector.
    """
    with tf.autodiff.ForwardAccumulator(weights, vector) as forward:
        with tf.GradientTape() as reverse:
            reverse.watch(weights)
            # Keras's losses would go back from what a softmax gives to what it was given, past these outputs.
            outputs = tf.identity(outputs_fn(weights))
    curved = hessian_vector_product(loss_fn, outputs, forward.jvp(outputs, unconnected_gradients=ZERO))
    return reverse.gradient(outputs, weights, output_gradients=curved, unconnected_gradients=ZERO)


def summed_loss(loss: Loss) -> Callable:
    """Returns a function of a batch's labels and outputs to the sum of the losses of its examples, and their number.

    Where a Keras loss ignores labels, as with ignore_class, the sum and the number are of the values that count.

    Args:
      loss: A keras.losses.Loss, its name, or a function of (labels, outputs) to [m] or [m, …], whose mean over all but
        the first axis is the loss of an example. Labels [m] meet outputs [m, 1] as [m, 1], as in Keras's compile.
        None: −log softmax(outputs)[label].

    Raises:
      ValueError: Keras knows no loss of that name, or it has a __call__ of its own; from the function returned, a loss
        that is one number.
    """
    if loss is None:

        def cross_entropy(labels: tf.Tensor, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), outputs)
            return tf.reduce_sum(losses), tf.shape(losses)[0]

        return cross_entropy
    loss = keras.losses.get(loss)
    if isinstance(loss, keras.losses.Loss) and type(loss).__call__ is not keras.losses.Loss.__call__:
        raise ValueError(
            f"{type(loss).__name__} overrides __call__; a loss must return one value per example from call"
        )
    # A Loss object's reduction would divide by the size of the batch; its call method gives one value per example.
    losses_of = loss.call if isinstance(loss, keras.losses.Loss) else loss

    def total(labels: tf.Tensor, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        losses = losses_of(_of_rank(labels, outputs), outputs)
        if not losses.shape.rank:
            raise ValueError("the loss must give one value per example, without a mean over them; it gave one number")
        if losses.shape[0] not in (None, outputs.shape[0]):
            raise ValueError(f"the loss must give one value per example, it gave {losses.shape} for {outputs.shape}")
        mask = getattr(losses, "_keras_mask", None)  # of what counts, as Loss.__call__ reads it
        if mask is not None:
            return tf.reduce_sum(tf.where(mask, losses, 0)), tf.math.count_nonzero(mask, dtype=tf.int32)
        return tf.reduce_sum(tf.reduce_mean(tf.reshape(losses, [tf.shape(losses)[0], -1]), axis=1)), tf.shape(losses)[0]

    return total


def _of_rank(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Returns labels with or without a last axis of 1, as the outputs have it: [m] less [m, 1] would be [m, m]."""
    if labels.shape.rank + 1 == outputs.shape.rank and outputs.shape[-1] == 1:
        return labels[..., tf.newaxis]
    if labels.shape.rank == outputs.shape.rank + 1 and labels.shape[-1] == 1:
        return labels[..., 0]
    return labels
