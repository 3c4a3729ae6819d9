"""What streamed examples show: windows of images of any size, or whole images of one size, as those in memory.

position    float32 [3] in [0, 1), random: where, down and across, and whether it is mirrored; None to test
"""

import tensorflow as tf

# ImageNet's usual test protocol: the central 224 of 256 pixels of the shorter side.
CROP_FRACTION = 224 / 256


def window(
    encoded: tf.Tensor, image_shape: tuple[int, int, int], is_jpeg: bool, position: tf.Tensor | None
) -> tf.Tensor:
    """Returns a square window of an encoded image, uint8 [h, w, c]: at random, or the central one.

    Args:
      encoded: string. The image's file.
      image_shape: (h, w, c), to which the window is resized.
      is_jpeg: bool. Of a JPEG no more than the window is decoded.
      position: See above.
    """
    if is_jpeg:
        shape = tf.image.extract_jpeg_shape(encoded)
    else:
        image = tf.io.decode_image(encoded, channels=image_shape[2], expand_animations=False)
        shape = tf.shape(image)
    side = tf.cast(CROP_FRACTION * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
    place = tf.constant([0.5, 0.5]) if position is None else position[:2]
    corner = tf.cast(place * tf.cast(shape[:2] - side + 1, tf.float32), tf.int32)
    if is_jpeg:
        image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([corner, [side, side]], axis=0), channels=image_shape[2])
    else:
        image = tf.image.crop_to_bounding_box(image, corner[0], corner[1], side, side)
    return resize(image, image_shape[:2])


def shifted(image: tf.Tensor, padding: int, position: tf.Tensor) -> tf.Tensor:
    """Returns an image uint8 [h, w, c] at random in its frame, off by `padding` pixels at most; outside of it is 0."""
    height, width, channels = image.shape
    corner = tf.cast(position[:2] * (2 * padding + 1), tf.int32)
    padded = tf.pad(image, [[padding, padding], [padding, padding], [0, 0]])
    return tf.ensure_shape(tf.slice(padded, [corner[0], corner[1], 0], [height, width, channels]), image.shape)


def resize(image: tf.Tensor, sides: tuple[int, int]) -> tf.Tensor:
    """Returns the image at (height, width) = sides, as uint8."""
    resized = tf.image.resize(tf.cast(image, tf.float32), sides, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
