"""Convolutions of every network of this package: their initial kernels, weight decay, precision and cost."""

import zlib

import keras
import numpy as np
from keras import initializers, layers, ops

from identity_matters.config import ModelConfig
from identity_matters.errors import UserError


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


def convolution(
    x: keras.KerasTensor,
    config: ModelConfig,
    filters: int,
    name: str,
    initializer: initializers.Initializer,
    stride: int = 1,
    kernel_size: int = 3,
) -> keras.KerasTensor:
    """Returns x [n, h, w, c] convolved without bias, padded so that a stride of 1 keeps the resolution."""
    return layers.Conv2D(
        filters,
        kernel_size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer=initializer,
        kernel_regularizer=kernel_regularizer(config),
        dtype=dtype_policy(config),
        name=name,
    )(x)


def kernel_initializer(
    config: ModelConfig, kernel_size: int, filters: int, name: str, seed: int
) -> initializers.Initializer:
    """Returns the Gaussian initialiser of a layer's kernel, which depends only on (seed, name).

    The stem is standard; a residual convolution is as config.residual_initializer says.
    """
    is_small = config.residual_initializer == "small" and name != "stem_conv"
    stddev = residual_stddev(kernel_size, filters) if is_small else standard_stddev(kernel_size, filters)
    return initializers.RandomNormal(stddev=stddev, seed=layer_seed(seed, name))


def shortcut(x: keras.KerasTensor, width: int, stride: int, name: str) -> keras.KerasTensor:
    """Returns x itself or, if the shape changes, x average-pooled and padded with zero channels.

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
    check_mixed_precision()
    return "mixed_bfloat16"


def check_mixed_precision() -> None:
    """Raises UserError under JAX on a CPU, because compiled bfloat16 products are wrong there (jax issue 39103)."""
    if keras.backend.backend() != "jax":
        return
    import jax

    if jax.default_backend() == "cpu":
        raise UserError("--mixed_precision: JAX computes bfloat16 wrong on CPUs; leave it out, or use TensorFlow")


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
