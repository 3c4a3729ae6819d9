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
keras.ops are used, so every Keras backend builds the same network. Only the initialisers
fixup and rezero add biases and multipliers, of one number each.
"""

import os
import zlib
from typing import Any

import keras
import numpy as np
from keras import initializers, layers, ops

from identity_matters.config import ModelConfig
from identity_matters.errors import UserError
from identity_matters.fields import require
from identity_matters.jax_on_cpu import require_sound_bfloat16, turn_fusions_off
from identity_matters.presets import MODEL_PRESETS as PRESETS
from identity_matters.scalars import ScalarBias, ScalarMultiplier

turn_fusions_off()  # XLA reads its flags once, when JAX is first used

# Of He et al.'s code. Keras's epsilon, 1e-3, is of the size of the variances that the small initialiser begins with.
BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5, "dtype": "float32"}
MULTIPLIERS = {"fixup": 1.0, "rezero": 0.0}  # what a branch is multiplied by at the start, by residual_initializer
ON_RAW_IMAGES = "_on_raw_images"  # how the names of networks end that standardise their images
SMALLEST_IMAGE = 9  # of a comparator, a side, pixels: All-CNN-C's convolution without padding still has 3×3 to see

__all__ = ["ModelConfig", "PRESETS", "all_conv_resnet", "residual_block", "residual_stddev", "standardize"]


def residual_stddev(kernel_size: int, filters: int) -> float:
    """Returns 1/(k²c), the initial standard deviation of a residual convolution (Hardt & Ma §4.1).

    >>> round(residual_stddev(kernel_size=3, filters=64), 6)
    0.001736

    Args:
      kernel_size: k, the side of the square kernel, pixels.
      filters: c, the number of output channels.
    """
    return 1 / (kernel_size**2 * filters)


def standard_stddev(kernel_size: int, filters: int) -> float:
    """Returns 1/(k√c), the initial standard deviation of a standard convolution (Hardt & Ma §4.1)."""
    return 1 / (kernel_size * filters**0.5)


def all_conv_resnet(config: ModelConfig, seed: int = 0) -> keras.Model:
    """Returns the network of Hardt & Ma's Table 1, or the variant that `config` describes.

    With the default config it has 55 convolutions with 13,538,736 weights, all of them trained, and a random
    projection of 2,560, not trained:

    >>> network = all_conv_resnet(ModelConfig())
    >>> sum(int(np.prod(kernel.shape)) for kernel in network.trainable_variables)
    13538736
    >>> network.output_shape
    (None, 10)

    Every kernel is drawn from (seed, its layer's name) alone, so two variants
    with the same seed have equal kernels wherever name and shape are equal.

    Returns:
      A functional keras.Model: standardised images [n, height, width, channels] (see
      `standardize`) to float32 logits [n, num_classes]. Layers are named like
      stage2_block1_conv1.

    Raises:
      UserError: the strides do not divide the sides of the images, or Keras has other settings than its usual ones.
    """
    require_usual_keras()
    check_image_shape(config)
    images = keras.Input(config.image_shape, name="images")
    x = _convolution(images, config, config.stem_width, "stem_conv", seed, config.stem_stride, config.stem_kernel_size)
    if config.stem_pool > 1:
        x = layers.AveragePooling2D(config.stem_pool, dtype="float32", name="stem_pool")(x)
    for stage, (width, blocks) in enumerate(zip(config.widths, config.blocks_per_stage), start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = residual_block(x, config, width, stride, f"stage{stage}_block{block}", seed)
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
    """Returns x + C₂(ReLU(C₁x)), where C₁ has the stride (Hardt & Ma §4.1).

    Of a config's variants `shortcut=False` gives ReLU(C₂(ReLU(C₁x))), `convs_per_block` = 1 or 3 gives x + C₁x or x +
    C₃(ReLU(C₂(ReLU(C₁x)))), and so on, and `use_batch_norm` normalises after each convolution.

    Two values of `residual_initializer` are rules of later papers and add trained numbers, one a layer:
      rezero: x + αC₂(ReLU(C₁x)), α = 0 at the start, the convolutions standard (ReZero, Bachlechner et al. 2020,
        arXiv 2003.04887). SkipInit (De & Smith 2020, arXiv 2002.10444) has the same α; its dropout is not taken.
      fixup: x + sC₂(ReLU(C₁(x + a) + b) + c) (Zhang, Dauphin & Ma 2019, arXiv 1901.09321). Of its three rules are
        taken: the last convolution of the branch is 0, and so is the projection where it is trained; the other
        convolutions of the branch are standard, times L^(−1/(2m − 2)) for L blocks of m convolutions; s = 1, and
        biases of 0 before each convolution and ReLU of the branch. Not in that paper: "standard" is this network's
        σ = 1/(k√c), there is no bias outside of the blocks, and the scalars take the learning rate of all.

    Args:
      x: KerasTensor [n, h, w, c].
      stride: 1, or 2 to halve the resolution.
      name: Prefix of the layers' names.

    Returns:
      KerasTensor [n, h/stride, w/stride, width].
    """
    y = _convolution(_biased(x, config, f"{name}_conv1"), config, width, f"{name}_conv1", seed, stride)
    for i in range(2, config.convs_per_block + 1):
        y = _relu(_biased(y, config, f"{name}_relu{i - 1}"), config, name, i - 1)
        y = _convolution(_biased(y, config, f"{name}_conv{i}"), config, width, f"{name}_conv{i}", seed)
    if config.residual_initializer in MULTIPLIERS:
        initial = MULTIPLIERS[config.residual_initializer]
        y = ScalarMultiplier(initial, dtype="float32", name=f"{name}_multiplier")(y)
    if not config.shortcut:
        return _relu(y, config, name, config.convs_per_block)
    # float32 in mixed precision too: a bfloat16 has 8 bits, and the small initialiser's branches are below the last of
    # a sum's, so that the stream would lose them (36 % of their part of the logits at Table 1's start).
    return layers.Add(dtype="float32", name=f"{name}_add")([_shortcut(x, width, stride, name), y])


def _relu(x: keras.KerasTensor, config: ModelConfig, block: str, convolution: int) -> keras.KerasTensor:
    """Returns ReLU(x), named after the convolution that it follows: _relu, _relu2, _relu3, …"""
    return layers.ReLU(dtype=dtype_policy(config), name=f"{block}_relu{'' if convolution == 1 else convolution}")(x)


def _biased(x: keras.KerasTensor, config: ModelConfig, name: str) -> keras.KerasTensor:
    """Returns x plus Fixup's trained number before a convolution or a ReLU, where the config asks for it, else x."""
    return ScalarBias(0.0, dtype="float32", name=f"{name}_bias")(x) if config.residual_initializer == "fixup" else x


def _shortcut(x: keras.KerasTensor, width: int, stride: int, name: str) -> keras.KerasTensor:
    """Returns x itself; where the shape changes, x average-pooled and padded with zero channels.

    Not in the paper, which says "as is standard": pooling over stride × stride pixels, and
    half of the zero channels before, half after, as the original TensorFlow ResNet did.
    """
    if stride > 1:
        x = layers.AveragePooling2D(stride, dtype="float32", name=f"{name}_pool")(x)
    new_channels = width - x.shape[-1]
    if new_channels:
        before = new_channels // 2
        x = ops.pad(x, ((0, 0), (0, 0), (0, 0), (before, new_channels - before)))
    return x


def _convolution(
    x: keras.KerasTensor, config: ModelConfig, filters: int, name: str, seed: int, stride: int = 1, kernel_size: int = 3
) -> keras.KerasTensor:
    """Returns x convolved without bias, padded to keep the resolution; normalised if the config says so."""
    options = {"padding": "same", "use_bias": False, "dtype": dtype_policy(config), "name": name}
    options["kernel_initializer"] = _kernel_initializer(config, kernel_size, filters, name, seed)
    options["kernel_regularizer"] = kernel_regularizer(config)
    x = layers.Conv2D(filters, kernel_size, strides=stride, **options)(x)
    if config.use_batch_norm:
        x = layers.BatchNormalization(**BATCH_NORM, name=name.replace("conv", "bn"))(x)
    return x


def _kernel_initializer(
    config: ModelConfig, kernel_size: int, filters: int, name: str, seed: int
) -> initializers.Initializer:
    """Returns the residual initialiser of the config, or the standard one for the stem; both are Gaussian."""
    initializer = "standard" if name == "stem_conv" else config.residual_initializer
    if initializer in ("zero", "fixup") and name.endswith(f"conv{config.convs_per_block}"):
        # C₁ = C₂ = 0 would be a critical point of the loss, which training would never leave.
        return initializers.Zeros()
    stddev = (residual_stddev if initializer == "small" else standard_stddev)(kernel_size, filters)
    if initializer == "fixup":
        stddev *= fixup_scale(sum(config.blocks_per_stage), config.convs_per_block)
    return initializers.RandomNormal(stddev=stddev, seed=layer_seed(seed, name))


def fixup_scale(num_blocks: int, convs_per_block: int) -> float:
    """Returns L^(−1/(2m − 2)), Fixup's factor on the initial kernels of a branch but the last (Zhang et al. 2019, §3).

    With it a step of gradient descent changes the logits by an amount that does not grow with the number of blocks.

    >>> fixup_scale(num_blocks=27, convs_per_block=2) == 27**-0.5
    True

    Args:
      num_blocks: L, of the whole network.
      convs_per_block: m, at least 2: the one convolution of a block of one starts at 0.
    """
    return num_blocks ** (-1 / (2 * convs_per_block - 2))


def _projection_initializer(config: ModelConfig, seed: int) -> initializers.Initializer:
    """Returns uniform values of variance 1/fan_in, as in the code the paper started from; 0 for Fixup's, if trained."""
    if config.residual_initializer == "fixup" and config.train_projection:
        return initializers.Zeros()
    scale = config.projection_scale**2
    return initializers.VarianceScaling(scale, "fan_in", "uniform", seed=layer_seed(seed, "projection"))


def layer_seed(seed: int, name: str) -> int:
    """Returns the seed of a layer's initial values, a function of the network's seed and of the layer's name."""
    return int(np.random.SeedSequence([seed, zlib.crc32(name.encode())]).generate_state(1)[0] >> 1)


def kernel_regularizer(config: ModelConfig) -> keras.regularizers.Regularizer | None:
    """Returns weight decay as in the paper's code, (λ/2)‖w‖²; Keras's L2 is λ‖w‖²."""
    return keras.regularizers.L2(config.weight_decay / 2) if config.weight_decay else None


def dtype_policy(config: ModelConfig) -> str:
    """Returns the dtype policy of convolutions and of the ReLUs between them; all else is float32."""
    if not config.mixed_precision:
        return "float32"
    require_sound_bfloat16()
    return "mixed_bfloat16"


def training_flops(network: keras.Model) -> float:
    """Returns the floating-point operations per image that the convolutions of one update need.

    A k×k convolution from a to b channels on h×w output pixels is 2·k²·a·b·h·w operations, those with padding zeros
    included as is usual. The gradients for its kernel and for its input are one such product each; the first
    convolution needs no gradient for the images. Table 1's network needs 1.515e12 a batch of 128.
    """
    convolutions = [layer for layer in network.layers if isinstance(layer, layers.Conv2D)]
    forward = [forward_flops(layer) for layer in convolutions]
    return 3 * sum(forward) - forward[0]


def forward_flops(convolution: layers.Conv2D) -> float:
    """Returns the floating-point operations per image of one convolution, counted as in `training_flops`."""
    return float(2.0 * np.prod((*convolution.kernel.shape, *convolution.output.shape[1:3])))


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


def taking_raw_images(network: keras.Model) -> keras.Model:
    """Returns a copy of a network from standardised images to logits that takes images in 0–255, or of any other scale.

    The copy consists of Keras layers only and standardises the images itself. Images that are standardised already are
    unchanged but for rounding, so that it takes these too.
    """
    raw = keras.Input(network.input_shape[1:], name="images")
    # Keras calls each layer on its own, and the copy that its configuration makes has these calls alone.
    joined = keras.Model(raw, network.call(standardize(raw)), name=network.name + ON_RAW_IMAGES)
    copy = keras.Model.from_config(joined.get_config())
    copy.set_weights(network.get_weights())
    return copy


def takes_raw_images(network: keras.Model) -> bool:
    """Returns whether a network takes images in 0–255: it is of `taking_raw_images`, or scales its images itself.

    The latter do by a Rescaling or a Normalization of Keras, before any layer that is trained.
    """
    return network.name.endswith(ON_RAW_IMAGES) or bool(_scales_first(network))


def _scales_first(network: keras.Model) -> bool | None:
    """Returns whether a layer that scales comes before the first with weights; None where there is neither."""
    for layer in network.layers:
        if isinstance(layer, layers.Rescaling | layers.Normalization):
            return True
        scales = _scales_first(layer) if hasattr(layer, "layers") else (False if layer.weights else None)
        if scales is not None:
            return scales
    return None


def check_image_shape(config: ModelConfig) -> None:
    """Raises UserError where the strides do not divide the images, or these are too small for another network.

    The config does not check this itself: until the shape of the data is known, image_shape is the preset's.
    """
    height, width, _ = config.image_shape
    # How many pixels of an image one pixel of the last stage covers, along each side.
    factor = config.stem_stride * config.stem_pool * 2 ** (len(config.widths) - 1)
    if config.network != "all_conv_resnet":
        needed = f"{config.network} needs images of at least {SMALLEST_IMAGE} pixels a side, got {height}x{width}"
        require(min(height, width) >= SMALLEST_IMAGE, needed)
    elif height % factor or width % factor:
        size = max(1, round(max(height, width) / factor)) * factor  # the nearest that the strides divide
        raise UserError(
            f"the strides divide the image by {factor}, which does not divide {height}x{width} pixels; "
            f"try --image_size={size} (image_size={size}), or fewer stages"
        )


def require_usual_keras() -> None:
    """Raises UserError where Keras is set to other images or numbers than [n, h, w, c] and float32.

    All layers here set their precision, but Keras's losses and casts follow the setting.
    """
    file = os.path.join(os.environ.get("KERAS_HOME", "~/.keras"), "keras.json")
    for name, usual in (("image_data_format", "channels_last"), ("floatx", "float32")):
        setting, change = getattr(keras.config, name)(), f"keras.config.set_{name}({usual!r}), or change {file}"
        require(setting == usual, f"Keras's {name} is {setting!r} and must be {usual!r}: {change}")
