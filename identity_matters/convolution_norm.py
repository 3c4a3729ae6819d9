"""The spectral norm of a convolution, as a linear map of whole images: `conv_norm(kernel, shape)`."""

from typing import Literal

import numpy as np
from scipy.sparse.linalg import LinearOperator, svds


def conv_norm(
    kernel: np.ndarray,
    shape: tuple[int, int],
    strides: int | tuple[int, int] = 1,
    scale: np.ndarray | float = 1.0,
    dilation: int | tuple[int, int] = 1,
    padding: Literal["same", "valid"] = "same",
    groups: int = 1,
) -> float:
    """Returns the spectral norm of a convolution, the largest ‖diag(scale) C x‖/‖x‖ over all images x.

    It is found to 0.1 % by ARPACK.

    >>> round(conv_norm(np.full((1, 1, 1, 1), -3.0), (4, 4)), 6)
    3.0

    Args:
      kernel: [k, k', c / groups, c'].
      shape: Height and width of x, pixels.
      strides, dilation: Pixels from one place of the kernel to the next, and from one of its weights to the next; one
        number, or one down and one across.
      scale: float or [c']. Multiplies the output's channels.
      padding: As Keras's: same pads with zeros so that strides of 1 keep the resolution, valid with none.
      groups: The channels of the input and of the output come in so many groups, each convolved on its own.
    """
    kernel = np.asarray(kernel * scale, np.float32)
    # Groups share no channel, so the map is block-diagonal, and its norm is that of its largest block.
    return max(
        _ungrouped_norm(part, shape, np.broadcast_to(strides, 2), np.broadcast_to(dilation, 2), padding)
        for part in np.split(kernel, groups, axis=-1)
    )


def _ungrouped_norm(
    kernel: np.ndarray, shape: tuple[int, int], strides: np.ndarray, dilation: np.ndarray, padding: str
) -> float:
    (num_inputs, num_outputs) = kernel.shape[2:]
    spans = (np.array(kernel.shape[:2]) - 1) * dilation + 1
    out = -(-np.array(shape) // strides) if padding == "same" else (shape - spans) // strides + 1
    total = np.maximum((out - 1) * strides + spans - shape, 0)
    padded = shape + total
    before = total // 2
    inner = np.s_[before[0] : before[0] + shape[0], before[1] : before[1] + shape[1]]

    def window(*place: int) -> tuple[slice, ...]:
        """Returns the pixels that the weight at a place of the kernel multiplies."""
        starts = place * dilation
        return tuple(slice(start, start + step * count, step) for start, step, count in zip(starts, strides, out))

    def multiply(x: np.ndarray) -> np.ndarray:
        image = np.zeros((*padded, num_inputs), np.float32)
        result = np.zeros((*out, num_outputs), np.float32)
        image[inner] = x.reshape(*shape, num_inputs)
        for place in np.ndindex(kernel.shape[:2]):
            result += image[window(*place)] @ kernel[place]
        return result.ravel()

    def multiply_transposed(y: np.ndarray) -> np.ndarray:
        result = np.zeros((*padded, num_inputs), np.float32)
        y = y.reshape(*out, num_outputs)
        for place in np.ndindex(kernel.shape[:2]):
            result[window(*place)] += y @ kernel[place].T
        return result[inner].ravel()

    dims = int(np.prod(out)) * num_outputs, int(np.prod(shape)) * num_inputs
    if not kernel.any():
        return 0.0
    if min(dims) < 3:  # ARPACK finds fewer singular values than there are
        return float(np.linalg.norm(np.stack([multiply(e) for e in np.eye(dims[1])]), 2))
    operator = LinearOperator(dims, matvec=multiply, rmatvec=multiply_transposed, dtype=np.float32)
    start = np.random.default_rng(0).normal(size=min(dims)).astype(np.float32)
    return float(svds(operator, k=1, tol=1e-3, v0=start, return_singular_vectors=False)[0])
