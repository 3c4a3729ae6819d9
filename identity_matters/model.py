"""The all-convolutional residual network (Hardt & Ma §4, Table 1).

    paper                                 code
    3×3×3×16, standard conv               stem_conv, config.stem_width
    3×3×16×64, 1, 9 residual blocks       stage1: widths[0], blocks_per_stage[0]
    3×3×64×128, 2, 9 residual blocks      stage2: the first convolution has stride 2
    3×3×128×256, 2, 9 residual blocks     stage3
    8×8 global average pool               average_pool
    256×num_classes random projection     projection, not trained
    x + C₂(ReLU(C₁x))                     residual_block
    σ = 1/(k²c)                           residual_stddev(k, c)

There is no batch normalisation, bias, dropout, max pooling or final ReLU. Only keras and
keras.ops are used, so every Keras backend builds the same network.
"""

import os
from collections.abc import Callable
from typing import Any

import keras
from keras import initializers, layers, ops

from identity_matters.comparators import batch_norm, variant_block
from identity_matters.config import ModelConfig
from identity_matters.convolutions import (
    convolution,
    dtype_policy,
    kernel_initializer,
    layer_seed,
    residual_stddev,
    shortcut,
)
from identity_matters.errors import UserError
from identity_matters.fields import require
from identity_matters.presets import MODEL_PRESETS as PRESETS

ON_RAW_IMAGES = "_on_raw_images"  # how the names of networks end that standardise their images
SMALLEST_IMAGE = 9  # of a comparator, a side, pixels: All-CNN-C's convolution without padding still has 3×3 to see

__all__ = ["ModelConfig", "PRESETS", "all_conv_resnet", "residual_block", "residual_stddev", "standardize"]


def all_conv_resnet(config: ModelConfig, seed: int = 0) -> keras.Model:
    """Returns the network of Hardt & Ma's Table 1, or the variant that `config` describes.

    With the default config it has 55 convolutions with 13,538,736 weights, all of them trained, and a random
    projection of 2,560, not trained:

    >>> import numpy as np
    >>> network = all_conv_resnet(ModelConfig())
    >>> sum(int(np.prod(kernel.shape)) for kernel in network.trainable_variables)
    13538736
    >>> network.output_shape
    (None, 10)

    Every kernel depends only on the seed and its layer's name, so two variants with the same seed have equal kernels in
    layers of equal name and shape.

    Returns:
      A functional keras.Model: standardised images [n, height, width, channels] (see
      `standardize`) to float32 logits [n, num_classes]. Layers are named like
      stage2_block1_conv1.

    Raises:
      UserError: the strides do not divide the sides of the images, or Keras has other settings than its usual ones.
    """
    require_usual_keras()
    check_image_shape(config)
    block = block_of(config)
    images = keras.Input(config.image_shape, name="images")
    kernel = kernel_initializer(config, config.stem_kernel_size, config.stem_width, "stem_conv", seed)
    x = convolution(images, config, config.stem_width, "stem_conv", kernel, config.stem_stride, config.stem_kernel_size)
    if config.use_batch_norm:
        x = batch_norm(x, "stem_bn")
    if config.stem_pool > 1:
        x = layers.AveragePooling2D(config.stem_pool, dtype="float32", name="stem_pool")(x)
    for stage, (width, blocks) in enumerate(zip(config.widths, config.blocks_per_stage), start=1):
        for number in range(1, blocks + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            x = block(x, config, width, stride, f"stage{stage}_block{number}", seed)
    x = layers.GlobalAveragePooling2D(dtype="float32", name="average_pool")(x)
    logits = layers.Dense(
        config.num_classes,
        use_bias=False,
        trainable=config.train_projection,
        kernel_initializer=_projection_initializer(config, seed),
        dtype="float32",
        name="projection",
    )(x)
    return keras.Model(images, logits, name="all_conv_resnet")


def residual_block(
    x: keras.KerasTensor, config: ModelConfig, width: int, stride: int, name: str, seed: int = 0
) -> keras.KerasTensor:
    """Returns x + C₂(ReLU(C₁x)); C₁ has the stride (Hardt & Ma §4.1).

    Args:
      x: KerasTensor [n, h, w, c].
      stride: 1, or 2 to halve the resolution.
      name: Prefix of the layers' names.

    Returns:
      KerasTensor [n, h/stride, w/stride, width].
    """
    first = kernel_initializer(config, 3, width, f"{name}_conv1", seed)
    second = kernel_initializer(config, 3, width, f"{name}_conv2", seed)
    y = convolution(x, config, width, f"{name}_conv1", first, stride)
    y = layers.ReLU(dtype=dtype_policy(config), name=f"{name}_relu")(y)
    y = convolution(y, config, width, f"{name}_conv2", second)
    # float32 in mixed precision too: a bfloat16 has 8 bits, and the small initialiser's branches are below the last of
    # a sum's, so that the stream would lose them (36 % of their part of the logits at Table 1's start).
    return layers.Add(dtype="float32", name=f"{name}_add")([shortcut(x, width, stride, name), y])


def block_of(config: ModelConfig) -> Callable[..., keras.KerasTensor]:
    """Returns the function that builds a config's blocks: `residual_block`, or `comparators.variant_block`."""
    is_table_1 = config.shortcut and config.convs_per_block == 2 and not config.use_batch_norm
    return residual_block if is_table_1 and config.residual_initializer in ("small", "standard") else variant_block


def _projection_initializer(config: ModelConfig, seed: int) -> initializers.Initializer:
    """Returns uniform values of variance 1/fan_in, as in the code the paper started from; 0 for Fixup's, if trained."""
    if config.residual_initializer == "fixup" and config.train_projection:
        return initializers.Zeros()
    scale = config.projection_scale**2
    return initializers.VarianceScaling(scale, "fan_in", "uniform", seed=layer_seed(seed, "projection"))


def standardize(images: Any) -> Any:
    """Returns each image with mean 0 and standard deviation 1 over all its pixels and channels.

    The divisor is at least 1/√(number of values), so that a constant image gives zeros. Images [n, h, w, c] of any
    real dtype become float32.
    """
    images = ops.cast(images, "float32")
    num_values = images.shape[1] * images.shape[2] * images.shape[3]
    centred = images - ops.mean(images, axis=(1, 2, 3), keepdims=True)
    stddev = ops.sqrt(ops.mean(ops.square(centred), axis=(1, 2, 3), keepdims=True))
    return centred / ops.maximum(stddev, num_values**-0.5)


def with_standardization(network: keras.Model) -> keras.Model:
    """Returns a copy of a network from standardised images to logits that takes images in 0–255, or of any other scale.

    The copy consists of Keras layers only and standardises the images itself. Images that are standardised already
    change only by rounding, so the copy accepts these too.
    """
    raw = keras.Input(network.input_shape[1:], name="images")
    # Keras calls each layer separately, and the copy made from its configuration has only these calls.
    joined = keras.Model(raw, network.call(standardize(raw)), name=network.name + ON_RAW_IMAGES)
    copy = keras.Model.from_config(joined.get_config())
    copy.set_weights(network.get_weights())
    return copy


def has_standardization(network: keras.Model) -> bool:
    """Returns whether a network takes images in 0–255: it is of `with_standardization`, or scales its images itself.

    The latter do by a Rescaling or a Normalization of Keras, before any layer that is trained.
    """
    return network.name.endswith(ON_RAW_IMAGES) or bool(_scales_first(network))


def _scales_first(network: keras.Model) -> bool | None:
    """Returns whether a layer that scales comes before the first with weights; None if there is neither."""
    for layer in network.layers:
        if isinstance(layer, layers.Rescaling | layers.Normalization):
            return True
        scales = _scales_first(layer) if hasattr(layer, "layers") else (False if layer.weights else None)
        if scales is not None:
            return scales
    return None


def check_image_shape(config: ModelConfig) -> None:
    """Raises UserError if the strides do not divide the images, or these are too small for another network.

    The config does not check this itself: until the shape of the data is known, image_shape is the preset's.
    """
    height, width, _ = config.image_shape
    # How many pixels of an image one pixel of the last stage covers, along each side.
    factor = config.stem_stride * config.stem_pool * 2 ** (len(config.widths) - 1)
    if config.network != "all_conv_resnet":
        if min(height, width) < SMALLEST_IMAGE:
            raise UserError(
                f"{config.network} needs images of at least {SMALLEST_IMAGE} pixels a side, got {height}x{width}"
            )
    elif height % factor or width % factor:
        size = max(1, round(max(height, width) / factor)) * factor  # the nearest that the strides divide
        raise UserError(
            f"the strides divide the image by {factor}, which does not divide {height}x{width} pixels; "
            f"try --image_size={size} (image_size={size}), or fewer stages"
        )


def require_usual_keras() -> None:
    """Raises UserError if Keras is set to other images or numbers than [n, h, w, c] and float32.

    All layers of this project set their precision, but Keras's losses and casts follow the setting.
    """
    file = os.path.join(os.environ.get("KERAS_HOME", "~/.keras"), "keras.json")
    for name, usual in (("image_data_format", "channels_last"), ("floatx", "float32")):
        setting = getattr(keras.config, name)()
        change = f"keras.config.set_{name}({usual!r}), or change {file}"
        require(setting == usual, f"Keras's {name} is {setting!r} and must be {usual!r}: {change}")
