"""Batch normalisation in one fused TensorFlow operation, for training.

Keras composes it from a dozen operations, each of which reads and writes whole activations. Fused, a training step of
ResNet-20 takes two thirds of the time on a CPU (benchmarks/batch_norm.py of version 0.2.0).
"""

import functools
from typing import Any

import keras


def fuse(network: keras.Model) -> keras.Model:
    """Returns the network, whose batch normalisations of float32 images train in one operation under TensorFlow.

    Outputs, gradients and moving averages are the same within rounding. Keras's own implementation computes what that
    operation does not (other ranks, axes and types, masks, synchronised moments), and every other backend. The layers
    stay Keras's, so that a file of the network, a callback's too, needs only Keras.
    """
    for layer in network.layers:
        if type(layer) is keras.layers.BatchNormalization:
            # The method of the object, not of a subclass: files of the network must name Keras's class, which any Keras
            # loads and this project's whitelist has.
            layer.call = functools.partial(_call, layer)
    return network


def _call(layer: keras.Layer, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
    """Returns the normalised inputs, by the moments of the batch in training and the moving ones otherwise."""
    if not (training and layer.trainable and mask is None and _is_fused(layer, inputs)):
        return keras.layers.BatchNormalization.call(layer, inputs, training=training, mask=mask)
    import tensorflow as tf

    none = tf.zeros([0])
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=inputs, scale=layer.gamma, offset=layer.beta, mean=none, variance=none, epsilon=layer.epsilon
    )
    # The operation gives the unbiased estimate of the variance. Keras averages the batch's own.
    count = tf.cast(tf.size(inputs) / tf.shape(inputs)[-1], tf.float32)
    for moving, batch in ((layer.moving_mean, mean), (layer.moving_variance, variance * (count - 1) / count)):
        moving.assign(moving * layer.momentum + batch * (1 - layer.momentum))
    return outputs


def _is_fused(layer: keras.Layer, inputs: Any) -> bool:
    is_plain = layer.center and layer.scale and not layer.synchronized and not getattr(layer, "renorm", False)
    is_image = len(inputs.shape) == 4 and layer.axis in (-1, 3)
    is_float32 = keras.backend.standardize_dtype(inputs.dtype) == "float32"
    return is_plain and is_image and is_float32 and keras.backend.backend() == "tensorflow"
