"""Batch normalisation in one fused operation of TensorFlow's, for training.

Keras composes it of a dozen operations, each of which reads and writes whole activations. Fused, a training step of
ResNet-20 takes two thirds of the time on a CPU (`python -m benchmarks.batch_norm`). Networks are built, saved and
loaded with Keras's own layers, so that their files need nothing of ours; training puts this one in their place.
"""

from typing import Any

import keras


def fused(network: keras.Model) -> keras.Model:
    """Returns a copy of a functional model with FusedBatchNormalization in place of Keras's, of the same weights.

    A model that normalises nothing is returned itself.
    """
    if not any(type(layer) is keras.layers.BatchNormalization for layer in network.layers):
        return network

    def clone(layer: keras.Layer) -> keras.Layer:
        is_keras_own = type(layer) is keras.layers.BatchNormalization
        return (FusedBatchNormalization if is_keras_own else type(layer)).from_config(layer.get_config())

    copy = keras.models.clone_model(network, clone_function=clone)
    copy.set_weights(network.get_weights())
    return copy


class FusedBatchNormalization(keras.layers.BatchNormalization):
    """keras.layers.BatchNormalization, whose training on float32 images is one operation under TensorFlow.

    The same outputs, gradients and moving averages but for rounding. Whatever that operation does not compute (other
    ranks, axes and types, masks, synchronised moments), and every other backend, is Keras's own.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Returns the normalised inputs, by the moments of the batch in training and the moving ones otherwise."""
        if not (training and self.trainable and mask is None and self._is_fused(inputs)):
            return super().call(inputs, training=training, mask=mask)
        import tensorflow as tf

        none = tf.zeros([0])
        outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs, scale=self.gamma, offset=self.beta, mean=none, variance=none, epsilon=self.epsilon
        )
        # The operation gives the unbiased estimate of the variance. Keras averages the batch's own.
        count = tf.cast(tf.size(inputs) / tf.shape(inputs)[-1], tf.float32)
        for moving, batch in ((self.moving_mean, mean), (self.moving_variance, variance * (count - 1) / count)):
            moving.assign(moving * self.momentum + batch * (1 - self.momentum))
        return outputs

    def _is_fused(self, inputs: Any) -> bool:
        is_plain = self.center and self.scale and not self.synchronized and not getattr(self, "renorm", False)
        is_image = len(inputs.shape) == 4 and self.axis in (-1, 3)
        is_float32 = keras.backend.standardize_dtype(inputs.dtype) == "float32"
        return is_plain and is_image and is_float32 and keras.backend.backend() == "tensorflow"
