"""The network written separately, in NumPy and float64, and how two networks are compared."""

import keras
import numpy as np
from keras import layers

from identity_matters.config import ModelConfig
from identity_matters.model import block_of

# Not square; 3 and 5 new channels at the strides; standard kernels, so that the blocks matter.
SMALL = ModelConfig(
    image_shape=(16, 12, 3),
    stem_width=5,
    widths=(5, 8, 13),
    blocks_per_stage=(1, 2, 1),
    residual_initializer="standard",
)


def convolutions(network) -> list[layers.Conv2D]:
    return [layer for layer in network.layers if isinstance(layer, layers.Conv2D)]


def arrays(network) -> dict[str, np.ndarray]:
    return {v.path: v.numpy() for v in network.variables}


def count(variables) -> int:
    return sum(int(np.prod(v.shape)) for v in variables)


def changed(network, other) -> set[str]:
    """The paths of the variables that both have but with other values."""
    a, b = arrays(network), arrays(other)
    return {path for path in a.keys() & b.keys() if not np.array_equal(a[path], b[path])}


# Reference: the same network in NumPy, float64.


def convolve(x, kernel, stride=1, odd_row_first=False):
    """TensorFlow's SAME padding: ⌈n/stride⌉ outputs, the odd row of zeros after the image."""
    k, outputs, pads = len(kernel), [], []
    for n in x.shape[1:3]:
        outputs.append(-(-n // stride))
        total = max((outputs[-1] - 1) * stride + k - n, 0)
        before = (total + odd_row_first) // 2
        pads.append((before, total - before))
    x = np.pad(x.astype(np.float64), ((0, 0), *pads, (0, 0)))
    rows, columns = (stride * (n - 1) + 1 for n in outputs)
    return sum(
        x[:, i : i + rows : stride, j : j + columns : stride] @ kernel[i, j].astype(np.float64)
        for i in range(k)
        for j in range(k)
    )


def average_pool(x, size):
    n, height, width, channels = x.shape
    return x.reshape(n, height // size, size, width // size, size, channels).mean((2, 4))


def pad_channels(x, before, after):
    return np.concatenate([np.zeros((*x.shape[:3], before)), x, np.zeros((*x.shape[:3], after))], axis=3)


def numpy_forward(network, c: ModelConfig, x, scale=1.0, odd_row_first=False, all_channels_after=False):
    """Logits; each convolution times `scale`. The last two arguments are mistakes to be caught."""
    weights = arrays(network)

    def conv(x, name, stride=1):
        return scale * convolve(x, weights[f"{name}/kernel"], stride, odd_row_first)

    def bias(name):
        return weights.get(f"{name}_bias/value", 0.0)

    x = average_pool(conv(x, "stem_conv", c.stem_stride), c.stem_pool)
    for stage, (width, blocks) in enumerate(zip(c.widths, c.blocks_per_stage), start=1):
        for block in range(1, blocks + 1):
            name, stride = f"stage{stage}_block{block}", 2 if stage > 1 and block == 1 else 1
            y = conv(x + bias(f"{name}_conv1"), f"{name}_conv1", stride)
            for i in range(2, c.convs_per_block + 1):
                y = np.maximum(y + bias(f"{name}_relu{i - 1}"), 0)
                y = conv(y + bias(f"{name}_conv{i}"), f"{name}_conv{i}")
            y = weights.get(f"{name}_multiplier/value", 1.0) * y
            new = width - x.shape[3]
            before = 0 if all_channels_after else new // 2
            x = pad_channels(average_pool(x, stride), before, new - before) + y if c.shortcut else np.maximum(y, 0)
    return x.mean((1, 2)) @ weights["projection/kernel"].astype(np.float64)


def relative_difference(a, b) -> float:
    return float(np.max(np.abs(np.asarray(a) - b)) / np.max(np.abs(b)))


# Half the digits of float32: some 10 layers deep, sums of about 100 terms.
FLOAT32 = 1e-5


def single_block(width_in, width, stride, c=SMALL) -> keras.Model:
    """A residual block as a model, on 8×6 pixels."""
    x = keras.Input((8, 6, width_in))
    return keras.Model(x, block_of(c)(x, c, width, stride, "block"))
