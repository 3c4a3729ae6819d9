"""Images that stay on the device, where a whole batch is looked up, cropped and flipped at once, under every backend.

plan    int32 [n, 4]: of each image its index, two offsets of the crop, and whether it is mirrored (batches.py)
"""

from typing import Any

import keras
import numpy as np
from keras import ops


class DeviceImages(keras.layers.Layer):
    """Images held on the device; maps plans int32 [n, 4] to float32 images [n, h, w, c].

    Pixels outside an image are 0. Shifting and mirroring are linear along each axis, so they are two
    batched products with 0/1 matrices: exact in any floating-point format with 8 significant
    bits, and several times as fast on a CPU as gathering pixel by pixel.

    Args:
      images: uint8 [N, h, w, c].
    """

    def __init__(self, images: np.ndarray, **kwargs: Any) -> None:
        super().__init__(trainable=False, dtype="float32", **kwargs)
        self.image_shape = images.shape[1:]
        shape = (len(images), int(np.prod(self.image_shape)))
        self.pixels = self.add_weight(shape=shape, dtype="uint8", initializer="zeros", trainable=False, name="pixels")
        self.pixels.assign(images.reshape(shape))

    def call(self, plan: Any) -> Any:
        """Returns the images that a plan asks for."""
        return planned_images(self.pixels, plan, self.image_shape)

    def compute_output_spec(self, plan: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the shape and type of what `call` returns."""
        return keras.KerasTensor((plan.shape[0], *self.image_shape), dtype="float32")


def planned_images(pixels: Any, plan: Any, image_shape: tuple[int, int, int]) -> Any:
    """Returns the images that a plan asks for, cropped and flipped: float32 [n, h, w, c].

    Args:
      pixels: variable or tensor uint8 [N, h·w·c]. All images, as rows.
      plan: tensor int32 [n, 4]. See plan_batch.
      image_shape: (h, w, c).
    """
    height, width, channels = image_shape
    example, row_offset, column_offset, flipped = (ops.expand_dims(plan[:, i], -1) for i in range(4))
    columns = ops.arange(width, dtype="int32")
    columns = ops.where(flipped > 0, width - 1 - columns, columns)
    select_rows = _one_hot(row_offset + ops.arange(height, dtype="int32"), height)  # [n, h out, h in]
    select_columns = _one_hot(column_offset + columns, width)  # [n, w out, w in]
    images = ops.cast(_look_up(pixels, example[:, 0]), "float32")
    images = ops.matmul(select_rows, ops.reshape(images, (-1, height, width * channels)))
    images = ops.reshape(images, (-1, height, width, channels))
    return ops.einsum("nhwc,nvw->nhvc", images, select_columns)


def _look_up(pixels: Any, example: Any) -> Any:
    """Returns some rows of the images.

    Keras's take reads the whole variable first. Of bytes, TensorFlow then has no gather on a GPU, so that in every step
    all images would go to the host; from the variable itself it has one.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.take(pixels, example, axis=0)
    import tensorflow as tf

    return tf.gather(pixels.value if isinstance(pixels, keras.Variable) else pixels, example)


def _one_hot(index: Any, size: int) -> Any:
    """Returns float32 [n, k, size] for int32 [n, k]; zeros for an index outside 0 … size − 1."""
    return ops.cast(ops.expand_dims(index, -1) == ops.arange(size, dtype="int32"), "float32")
