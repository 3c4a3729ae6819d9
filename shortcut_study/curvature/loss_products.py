"""Products with the second derivatives of a loss, without their matrices, and the losses that they are of.

    equations                                    code
    Hv = d/dt ∇L(w + tv) at t = 0                hessian_vector_product: forward mode over reverse mode
    Gv = Jᵀ ∇²ℓ J v, J of the outputs            gauss_newton_vector_product: forward, forward over reverse, reverse

Forward over reverse took 2.0 (170,928 weights, batch 128) and 2.6 (Table 1's network, batch 32) times
as long as the gradient on 2 CPU cores; reverse over reverse 2.9 and 3.9, in the same memory.
At a kink of ReLU the second derivative is taken as 0.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

Loss = keras.losses.Loss | Callable | str | None

ZERO = tf.UnconnectedGradients.ZERO


def hessian_vector_product(loss_fn: Callable, weights: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
    """Returns Hv of a twice differentiable loss: the derivative of its gradient along v.

    Args:
      loss_fn: callable. Weights to a scalar.
      weights, vector: tensors of one shape.
    """
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
    convex in the outputs.

    Args:
      outputs_fn: callable. Weights to outputs.
      loss_fn: callable. Outputs to a scalar.
      weights, vector: tensors of one shape.
    """
    with tf.autodiff.ForwardAccumulator(weights, vector) as forward:
        with tf.GradientTape() as reverse:
            reverse.watch(weights)
            # Keras's losses would go back from what a softmax gives to what it was given, past these outputs.
            outputs = tf.identity(outputs_fn(weights))
    curved = hessian_vector_product(loss_fn, outputs, forward.jvp(outputs, unconnected_gradients=ZERO))
    return reverse.gradient(outputs, weights, output_gradients=curved, unconnected_gradients=ZERO)


def summed_loss(loss: Loss) -> Callable:
    """Returns a function of labels and outputs, both of a batch: the sum of the losses of its examples.

    Args:
      loss: A keras.losses.Loss, its name, or a function of (labels, outputs) to [m] or [m, …], whose mean over all but
        the first axis is the loss of an example. Labels [m] meet outputs [m, 1] as [m, 1], as in Keras's compile.
        None: −log softmax(outputs)[label].

    Raises:
      ValueError: Keras knows no loss of that name; from the function returned, a loss that is one number.
    """
    if loss is None:
        return lambda labels, outputs: tf.reduce_sum(
            tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), outputs)
        )
    loss = keras.losses.get(loss)
    # A Loss object's reduction would divide by the size of the batch; its call method gives one value an example.
    of_examples = loss.call if isinstance(loss, keras.losses.Loss) else loss

    def total(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        losses = of_examples(_of_rank(labels, outputs), outputs)
        if not losses.shape.rank:
            raise ValueError("the loss must give one value an example, without a mean over them; it gave one number")
        if losses.shape[0] not in (None, outputs.shape[0]):
            raise ValueError(f"the loss must give one value an example, it gave {losses.shape} for {outputs.shape}")
        return tf.reduce_sum(tf.reduce_mean(tf.reshape(losses, [tf.shape(losses)[0], -1]), axis=1))

    return total


def check_loss(total_loss: Callable, label_spec: tf.TensorSpec, outputs: keras.KerasTensor) -> None:
    """Raises ValueError where a loss as from `summed_loss` does not give one value an example.

    Args:
      total_loss: callable.
      label_spec: Shape and type of the labels of a batch.
      outputs: Shape and type of those of the model.
    """
    for count in (2, 3):  # a loss [classes] would be one an example for as many examples as classes
        specs = (tf.TensorSpec((count, *x.shape[1:]), x.dtype) for x in (label_spec, outputs))
        tf.function(total_loss, autograph=False).get_concrete_function(*specs)


def _of_rank(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Returns labels with or without a last axis of 1, as the outputs have it: [m] less [m, 1] would be [m, m]."""
    if labels.shape.rank + 1 == outputs.shape.rank and outputs.shape[-1] == 1:
        return labels[..., tf.newaxis]
    if labels.shape.rank == outputs.shape.rank + 1 and labels.shape[-1] == 1:
        return labels[..., 0]
    return labels
