"""What Table 1's network is compared with: variants of its block, and the networks of other papers.

    block                   paper                                                     config
    Fixup                   Zhang, Dauphin & Ma 2019, arXiv:1901.09321                residual_initializer="fixup"
    ReZero                  Bachlechner et al. 2020, arXiv:2003.04887                 residual_initializer="rezero"
    batch normalisation     Ioffe & Szegedy 2015, arXiv:1502.03167                    use_batch_norm
    others                  Hardt & Ma §4; Li et al.                                  shortcut, convs_per_block

    network                 paper                                                     builder
    All-CNN-C               Springenberg et al. 2015, arXiv:1412.6806, Tables 1, 2    all_cnn_c
    ResNet-20 to 110        He et al. 2016, arXiv:1512.03385, §4.2, Table 6           resnet
    pre-activation ResNet   He et al. 2016b, arXiv:1603.05027, Figure 4(e), appendix  preact_resnet
    DenseNet-100-24         Huang et al. 2017, arXiv:1608.06993, §3, Table 2          densenet
    DenseNet-BC-100-12      the same                                                  densenet_bc

Each network is a functional keras.Model from standardised images to float32 logits: each kernel depends only on the
seed and its layer's name, weight decay is on convolution kernels (the papers decay all weights), mixed precision is for
convolutions and the ReLUs before them. Parameter counts leave out moving averages.

Not in the papers: all kernels of these networks, the dense layer's too, are Gaussian of variance 2/fan_in (He et al.
2015); code of the ResNets' and DenseNet's authors takes the fan-out, Springenberg et al. say nothing.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import initializers, layers, ops

from identity_matters.config import ModelConfig
from identity_matters.convolutions import (
    convolution,
    dtype_policy,
    kernel_initializer,
    kernel_regularizer,
    layer_seed,
    shortcut,
    standard_stddev,
)
from identity_matters.fields import require
from identity_matters.scalars import ScalarBias, ScalarMultiplier

Tensor = keras.KerasTensor


class BatchNormalization(keras.layers.BatchNormalization):
    """Keras's batch normalisation over the last axis, which trains in one fused operation under TensorFlow.

    Keras composes it from a dozen operations, each of which reads and writes whole activations. With the fused one a
    training step of ResNet-20 takes two thirds of the time on a CPU. Outputs, gradients and moving averages are the
    same within rounding.
    """

    __module__ = "keras.layers"  # saved files name Keras's class, so that they load without this project

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Returns the inputs normalised by the batch's mean and variance in training, else by the moving averages."""
        is_image = len(inputs.shape) == 4 and keras.backend.standardize_dtype(inputs.dtype) == "float32"
        is_fused = training and self.trainable and is_image and keras.backend.backend() == "tensorflow"
        if not is_fused or mask is not None:
            return super().call(inputs, training=training, mask=mask)
        import tensorflow as tf

        none = tf.zeros([0])
        outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs, scale=self.gamma, offset=self.beta, mean=none, variance=none, epsilon=self.epsilon
        )
        # The operation returns the unbiased estimate of the variance; Keras averages the batch's own.
        count = tf.cast(tf.size(inputs) / tf.shape(inputs)[-1], tf.float32)
        self._average(self.moving_mean, mean)
        self._average(self.moving_variance, variance * (count - 1) / count)
        return outputs

    def _average(self, moving: keras.Variable, batch: Any) -> None:
        moving.assign(moving * self.momentum + batch * (1 - self.momentum))


def batch_norm(x: Tensor, name: str) -> Tensor:
    """Returns x normalised with the momentum and epsilon of He et al.'s code.

    Keras's epsilon, 1e-3, is of the size of the variances that the small initialiser begins with.
    """
    return BatchNormalization(momentum=0.9, epsilon=1e-5, dtype="float32", name=name)(x)


def variant_block(x: Tensor, config: ModelConfig, width: int, stride: int, name: str, seed: int = 0) -> Tensor:
    """Returns a residual block like `model.residual_block`, changed as the config says.

    shortcut=False: ReLU(C₂(ReLU(C₁x))). convs_per_block = 1 or 3: x + C₁x or x + C₃(ReLU(C₂(ReLU(C₁x)))), and so on.
    use_batch_norm: each convolution is normalised.
    residual_initializer:
      zero: the last convolution is 0 at the start, so that the block starts as its shortcut.
      rezero: x + αC₂(ReLU(C₁x)), α trained and 0 at the start, the convolutions standard (Bachlechner et al. 2020).
        SkipInit (De & Smith 2020, arXiv:2002.10444) has the same α; its dropout is omitted.
      fixup: x + sC₂(ReLU(C₁(x + a) + b) + c) (Zhang et al. 2019): the last convolution of the branch is 0 at the start,
        and so is the projection if it is trained; the other convolutions are standard, times `fixup_scale`; s = 1, and
        the biases before each convolution and ReLU are 0. Not in that paper: "standard" is this network's σ = 1/(k√c),
        there is no bias outside the blocks, and the scalars have the learning rate of all weights.
    """
    for i in range(1, config.convs_per_block + 1):
        if i == 1:
            y = x
        else:
            y = _variant_relu(_biased(y, config, f"{name}_relu{i - 1}"), config, name, i - 1)
        y = _biased(y, config, f"{name}_conv{i}")
        kernel = _variant_initializer(config, width, f"{name}_conv{i}", seed)
        y = convolution(y, config, width, f"{name}_conv{i}", kernel, stride if i == 1 else 1)
        if config.use_batch_norm:
            y = batch_norm(y, f"{name}_bn{i}")
    if config.residual_initializer == "fixup":
        y = ScalarMultiplier(1.0, dtype="float32", name=f"{name}_multiplier")(y)
    if config.residual_initializer == "rezero":
        y = ScalarMultiplier(0.0, dtype="float32", name=f"{name}_multiplier")(y)
    if not config.shortcut:
        return _variant_relu(y, config, name, config.convs_per_block)
    return layers.Add(dtype="float32", name=f"{name}_add")([shortcut(x, width, stride, name), y])


def _variant_relu(x: Tensor, config: ModelConfig, block: str, number: int) -> Tensor:
    """Returns ReLU(x), named after the convolution that it follows: _relu, _relu2, _relu3, …"""
    suffix = "" if number == 1 else number
    return layers.ReLU(dtype=dtype_policy(config), name=f"{block}_relu{suffix}")(x)


def _biased(x: Tensor, config: ModelConfig, name: str) -> Tensor:
    """Returns x plus one trained number for Fixup, else x."""
    return ScalarBias(0.0, dtype="float32", name=f"{name}_bias")(x) if config.residual_initializer == "fixup" else x


def _variant_initializer(config: ModelConfig, width: int, name: str, seed: int) -> initializers.Initializer:
    is_last = name.endswith(f"conv{config.convs_per_block}")
    if is_last and config.residual_initializer in ("zero", "fixup"):
        # Only the last one: C₁ = C₂ = 0 would be a critical point of the loss, which training would never leave.
        return initializers.Zeros()
    if config.residual_initializer == "fixup":
        stddev = standard_stddev(3, width) * fixup_scale(sum(config.blocks_per_stage), config.convs_per_block)
        return initializers.RandomNormal(stddev=stddev, seed=layer_seed(seed, name))
    return kernel_initializer(config, 3, width, name, seed)


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


def all_cnn_c(config: ModelConfig, seed: int = 0, dropout: tuple[float, float] = (0.2, 0.5)) -> keras.Model:
    """All-CNN-C: nine convolutions with biases, and a global average (Springenberg et al. 2015, Tables 1 and 2).

    Six 3×3 convolutions, the third and the sixth with stride 2; a seventh without padding, as the
    average is over 6×6 pixels; two of 1×1. A ReLU follows each, the last one too. Dropout takes these fractions of the
    image, and of what strided convolutions give.

    Returns:
      A keras.Model of 1,369,738 parameters for CIFAR-10 (published: 1.4 M).
    """
    x = images = keras.Input(config.image_shape, name="images")
    for stage, width in ((1, 96), (2, 192)):
        x = _dropout(x, dropout[stage - 1], f"stage{stage}_dropout", seed)
        for i, stride in ((1, 1), (2, 1), (3, 2)):
            x = _convolution(x, config, width, f"stage{stage}_conv{i}", seed, stride=stride, use_bias=True)
            x = layers.ReLU(dtype=dtype_policy(config), name=f"stage{stage}_relu{i}")(x)
    x = _dropout(x, dropout[1], "stage3_dropout", seed)
    for i, width, kernel_size in ((1, 192, 3), (2, 192, 1), (3, config.num_classes, 1)):
        x = _convolution(x, config, width, f"stage3_conv{i}", seed, kernel_size, use_bias=True, padding="valid")
        x = layers.ReLU(dtype="float32" if i == 3 else dtype_policy(config), name=f"stage3_relu{i}")(x)
    logits = layers.GlobalAveragePooling2D(dtype="float32", name="average_pool")(x)
    return keras.Model(images, logits, name="all_cnn_c")


def resnet(config: ModelConfig, seed: int = 0, depth: int = 20) -> keras.Model:
    """ResNet of 6n + 2 layers for CIFAR, with shortcuts of option A (He et al. 2016, §4.2).

    A 3×3 convolution, 3 stages of n units of two 3×3 convolutions with 16, 32 and 64 channels
    at 32×32, 16×16 and 8×8 pixels, a global average and a dense layer.

    Returns:
      A keras.Model. Published parameters (Table 6), and exact for CIFAR-10: depth 20: 0.27 M,
      269,722; 32: 0.46 M, 464,154; 44: 0.66 M, 658,586; 56: 0.85 M, 853,018; 110: 1.7 M, 1,727,962.

    Raises: UserError if depth is not 6n + 2.
    """
    images = keras.Input(config.image_shape, name="images")
    x = _bn_relu(_convolution(images, config, 16, "stem_conv", seed), "stem_bn")
    for name, width, stride, _ in _units(depth):
        x = _original_unit(x, config, width, stride, name, seed)
    return _classifier(images, x, config, seed, f"resnet_{depth}")


def preact_resnet(config: ModelConfig, seed: int = 0, depth: int = 20) -> keras.Model:
    """Pre-activation ResNet of 6n + 2 layers for CIFAR (He et al. 2016b, Figure 4(e) and appendix).

    As `resnet`, with batch normalisation and ReLU before each convolution of a unit and before the
    global average; in the first unit of a stage before the branch point, so on its shortcut too: in
    stage 1 by the appendix, in 2 and 3 by the authors' code and fb.resnet.torch, which Li et al. used.

    Returns:
      A keras.Model with as many parameters as `resnet` of this depth: for CIFAR-10 75,290 at
      depth 8, 172,506 at 14, 269,722 at 20, 464,154 at 32 (published: 1.7 M at 110).

    Raises: UserError if depth is not 6n + 2.
    """
    images = keras.Input(config.image_shape, name="images")
    x = _convolution(images, config, 16, "stem_conv", seed)
    for name, width, stride, is_first in _units(depth):
        x = _preact_unit(x, config, width, stride, name, seed, is_first)
    return _classifier(images, _bn_relu(x, "final_bn"), config, seed, f"preact_resnet_{depth}")


def densenet(config: ModelConfig, seed: int = 0, depth: int = 100, growth_rate: int = 24) -> keras.Model:
    """DenseNet of 3n + 4 layers for CIFAR, without bottlenecks and without compression (Huang et al. 2017, §3).

    Hardt & Ma compare with it in their Table 2 (test errors of 3.74 % on CIFAR-10 and 19.25 % on CIFAR-100). A 3×3
    convolution of 16 channels; 3 dense blocks of n layers, each of which adds k channels, the growth rate, to its
    input; between blocks a 1×1 convolution with as many channels as its input and 2×2 average pooling; a dense layer.
    No dropout, as in the paper's training with crops and flips.

    Returns:
      A keras.Model from images [n, h, w, c] to logits [n, num_classes], by default of 27,249,082 parameters for
      CIFAR-10 (published in Table 2: 27.2 M).

    Raises: UserError if depth is not 3n + 4.
    """
    images = keras.Input(config.image_shape, name="images")
    num_layers = _repeats(depth, 4, group=3)
    x = _convolution(images, config, 16, "stem_conv", seed)
    x = _dense_blocks(x, config, num_layers, growth_rate, seed, has_bottlenecks=False)
    return _classifier(images, _bn_relu(x, "final_bn"), config, seed, f"densenet_{depth}_{growth_rate}")


def densenet_bc(config: ModelConfig, seed: int = 0, depth: int = 100, growth_rate: int = 12) -> keras.Model:
    """DenseNet-BC of 6n + 4 layers for CIFAR, with bottlenecks and compression ½ (Huang et al. 2017, §3).

    A 3×3 convolution of 2k channels, k the growth rate; 3 dense blocks of n layers, each of which adds
    k channels to its input; between blocks a 1×1 convolution to half of the channels and 2×2
    average pooling; a dense layer. No dropout, as in the paper's training with crops and flips.

    Returns:
      A keras.Model, by default of 769,162 parameters for CIFAR-10 (published in Table 2: 0.8 M).

    Raises: UserError if depth is not 6n + 4.
    """
    images = keras.Input(config.image_shape, name="images")
    num_layers = _repeats(depth, 4)
    x = _convolution(images, config, 2 * growth_rate, "stem_conv", seed)
    x = _dense_blocks(x, config, num_layers, growth_rate, seed, has_bottlenecks=True)
    return _classifier(images, _bn_relu(x, "final_bn"), config, seed, f"densenet_bc_{depth}_{growth_rate}")


NETWORKS: dict[str, Callable[[ModelConfig, int], keras.Model]] = {
    "all_cnn_c": all_cnn_c,
    **{f"resnet_{depth}": functools.partial(resnet, depth=depth) for depth in (20, 32, 44, 56, 110)},
    **{f"preact_resnet_{depth}": functools.partial(preact_resnet, depth=depth) for depth in (8, 14, 20, 32)},
    "densenet_100_24": densenet,
    "densenet_bc_100_12": densenet_bc,
}


def _repeats(depth: int, others: int, group: int = 6) -> int:
    n, remainder = divmod(depth - others, group)
    require(n >= 1 and not remainder, f"depth must be {group}n + {others} with n at least 1, got {depth}")
    return n


def _units(depth: int) -> list[tuple[str, int, int, bool]]:
    """(name, width, stride, whether it is the first of its stage) of each unit of a ResNet."""
    return [
        (f"stage{stage}_block{block}", width, 2 if stage > 1 and block == 1 else 1, block == 1)
        for stage, width in ((1, 16), (2, 32), (3, 64))
        for block in range(1, _repeats(depth, 2) + 1)
    ]


def _original_unit(x: Tensor, config: ModelConfig, width: int, stride: int, name: str, seed: int) -> Tensor:
    """ReLU(x + BN(C₂ ReLU(BN(C₁x)))) (He et al. 2016, Figure 2)."""
    y = _convolution(x, config, width, f"{name}_conv1", seed, stride=stride)
    y = _convolution(_bn_relu(y, f"{name}_bn1", dtype_policy(config)), config, width, f"{name}_conv2", seed)
    terms = [_shortcut(x, width, stride, name), batch_norm(y, f"{name}_bn2")]
    return layers.ReLU(dtype="float32", name=f"{name}_relu2")(layers.Add(dtype="float32", name=f"{name}_add")(terms))


def _preact_unit(x: Tensor, config: ModelConfig, width: int, stride: int, name: str, seed: int, first: bool) -> Tensor:
    """x + C₂ ReLU(BN(C₁a)), a = ReLU(BN(x)); a + C₂ ReLU(BN(C₁a)) for the first unit of a stage."""
    a = _bn_relu(x, f"{name}_bn1", "float32" if first else dtype_policy(config))
    y = _convolution(a, config, width, f"{name}_conv1", seed, stride=stride)
    y = _convolution(_bn_relu(y, f"{name}_bn2", dtype_policy(config)), config, width, f"{name}_conv2", seed)
    return layers.Add(dtype="float32", name=f"{name}_add")([_shortcut(a if first else x, width, stride, name), y])


def _shortcut(x: Tensor, width: int, stride: int, name: str) -> Tensor:
    """Option A: every second pixel, from the first, and zero channels after those of x."""
    if stride > 1:
        x = layers.AveragePooling2D(1, strides=stride, dtype="float32", name=f"{name}_subsample")(x)
    new_channels = width - x.shape[-1]
    return ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, new_channels))) if new_channels else x


def _dense_blocks(
    x: Tensor, config: ModelConfig, num_layers: int, growth: int, seed: int, has_bottlenecks: bool
) -> Tensor:
    """Three dense blocks of num_layers and two transitions, which halve the channels if there are bottlenecks."""
    for block in (1, 2, 3):
        for layer in range(1, num_layers + 1):
            x = _dense_layer(x, config, growth, f"block{block}_layer{layer}", seed, has_bottlenecks)
        if block < 3:
            channels = x.shape[-1] // 2 if has_bottlenecks else x.shape[-1]
            y = _bn_relu(x, f"transition{block}_bn", dtype_policy(config))
            y = _convolution(y, config, channels, f"transition{block}_conv", seed, kernel_size=1)
            x = layers.AveragePooling2D(2, dtype="float32", name=f"transition{block}_pool")(y)
    return x


def _dense_layer(x: Tensor, config: ModelConfig, growth: int, name: str, seed: int, has_bottleneck: bool) -> Tensor:
    """[x, C ReLU(BN(x))], C 3×3 to k channels (Huang et al. 2017, §3).

    With a bottleneck [x, C₂ ReLU(BN(C₁ ReLU(BN(x))))], C₁ 1×1 to 4k channels, C₂ 3×3 to k.
    """
    y = _bn_relu(x, f"{name}_bn1", dtype_policy(config))
    if has_bottleneck:
        y = _convolution(y, config, 4 * growth, f"{name}_conv1", seed, kernel_size=1)
        y = _bn_relu(y, f"{name}_bn2", dtype_policy(config))
    y = _convolution(y, config, growth, f"{name}_conv2" if has_bottleneck else f"{name}_conv1", seed)
    return layers.Concatenate(dtype="float32", name=f"{name}_concatenate")([x, y])


def _convolution(
    x: Tensor, config: ModelConfig, filters: int, name: str, seed: int, kernel_size: int = 3, stride: int = 1,
    use_bias: bool = False, padding: str = "same",
) -> Tensor:  # fmt: skip
    """A convolution; one with a stride is centred on every second pixel from the first, as shortcuts are."""
    if stride > 1:  # "same" would pad an even side only at its end
        padding = "valid"
        x = layers.ZeroPadding2D(kernel_size // 2, dtype=dtype_policy(config), name=f"{name}_padding")(x)
    regularizer = kernel_regularizer(config)
    options = {"kernel_initializer": _he_normal(name, seed), "kernel_regularizer": regularizer, "use_bias": use_bias}
    return layers.Conv2D(filters, kernel_size, stride, padding, dtype=dtype_policy(config), name=name, **options)(x)


def _he_normal(name: str, seed: int) -> initializers.Initializer:
    return initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal", seed=layer_seed(seed, name))


def _bn_relu(x: Tensor, name: str, dtype: str = "float32") -> Tensor:
    """ReLU(BN(x)); name holds bn, for which the ReLU's has relu."""
    return layers.ReLU(dtype=dtype, name=name.replace("bn", "relu"))(batch_norm(x, name))


def _dropout(x: Tensor, rate: float, name: str, seed: int) -> Tensor:
    """Dropout with masks from (seed, name); x itself if the rate is 0."""
    if not rate:
        return x
    layer = layers.Dropout(rate, seed=layer_seed(seed, name), dtype="float32", name=name)
    # Keras numbers the generators of a process; checkpoints need a name that does not depend on what was built before.
    layer.seed_generator.state._path = f"{name}/seed_generator_state"
    return layer(x)


def _classifier(images: Tensor, x: Tensor, config: ModelConfig, seed: int, name: str) -> keras.Model:
    x = layers.GlobalAveragePooling2D(dtype="float32", name="average_pool")(x)
    initializer = _he_normal("dense", seed)
    logits = layers.Dense(config.num_classes, kernel_initializer=initializer, dtype="float32", name="dense")(x)
    return keras.Model(images, logits, name=name)
