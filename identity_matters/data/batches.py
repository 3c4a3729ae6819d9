"""The batch stream of a data set in memory: a pure function of (seed, step).

A batch is planned on the host and made on the device. The plan of a step is four integers
per example, from a counter-based generator (Philox) keyed by the seed, so any step's plan
is computed without those before it: a resumed run sees the batches it would have seen, and
N workers together see the batch that one would. device_images.py makes the batch from its plan.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import keras
import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArrayData
from identity_matters.data.device_images import DeviceImages
from identity_matters.model import standardize

if TYPE_CHECKING:
    from identity_matters.data.tfds import TfdsSource

_ORDER, _AUGMENTATION = 0, 1  # what a Philox key is used for


def _random_words(seed: int, purpose: int, index: int, count: int) -> np.ndarray:
    """Returns uint64 [count], raw output of Philox, which is the same in every NumPy version."""
    # Raw words, not a Generator's integers or permutation: NumPy may change how it makes these of the same stream.
    return np.random.Philox(key=[seed, purpose], counter=[0, 0, 0, index]).random_raw(count)


@functools.lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """Returns the order of the examples in one epoch: int64 [num_examples], a permutation."""
    return np.argsort(_random_words(seed, _ORDER, epoch, num_examples), kind="stable")


def plan_batch(
    seed: int, step: int, batch_size: int, num_examples: int, crop_padding: int = 0, random_flip: bool = False
) -> np.ndarray:
    """Returns the plan of one step: which examples its batch holds, and how each is augmented.

    Every epoch visits each example once; a batch may end one epoch and begin the next.

    >>> plan_batch(seed=7, step=2, batch_size=3, num_examples=20, crop_padding=4, random_flip=True).tolist()
    [[2, 2, -3, 0], [19, 1, 0, 1], [12, -3, -2, 0]]

    Args:
      seed: int ≥ 0.
      step: int ≥ 0. The number of the update, from 0.
      batch_size, num_examples: int. Examples of a batch, and of an epoch.
      crop_padding: int. Crops are offset by −crop_padding … crop_padding pixels.
      random_flip: bool. Whether half of the images are mirrored.

    Returns:
      int32 [batch_size, 4]: example, row offset, column offset, flipped (0 or 1).
    """
    position = step * batch_size + np.arange(batch_size)
    epoch = position // num_examples
    example = np.empty(batch_size, np.int64)
    for e in np.unique(epoch):
        in_epoch = epoch == e
        example[in_epoch] = epoch_order(seed, int(e), num_examples)[position[in_epoch] % num_examples]
    words = _random_words(seed, _AUGMENTATION, step, 3 * batch_size).reshape(3, batch_size)
    offsets = (words[:2] % np.uint64(2 * crop_padding + 1)).astype(np.int64) - crop_padding
    flipped = words[2] >> np.uint64(63) if random_flip else np.zeros(batch_size)
    return np.stack([example, *offsets, flipped], axis=1).astype(np.int32)


class ArrayBatches:
    """Training and test batches of data in memory.

    Args:
      data: ArrayData.
      config: TrainConfig. Read: seed, batch_size, crop_padding, random_flip.
      rows: slice. The rows of every batch that this process takes; other processes take the others.

    Attributes:
      test_steps: int. How many batches weighted_test_batches yields.
      device_images: DeviceImages. The training images, then the test images.
    """

    def __init__(self, data: ArrayData, config: TrainConfig, rows: slice = slice(None)) -> None:
        self._data, self._config, self._rows = data, config, rows
        self.test_steps = -(-data.num_test // config.batch_size)
        self.device_images = DeviceImages(np.concatenate([data.train_images, data.test_images]), name="device_images")

    @property
    def train_pixels(self) -> np.ndarray:
        """Returns the training images as rows, uint8 [N, h·w·c]; see planned_images."""
        return self._data.train_images.reshape(self._data.num_train, -1)

    def attach(self, network: keras.Model) -> keras.Model:
        """Returns the model that fit trains: plans to logits, by look-up, augmentation, standardisation and network."""
        plan = keras.Input((4,), dtype="int32", name="plan")
        return keras.Model(plan, network(standardize(self.device_images(plan))), name="training")

    def train_batches(self, first_step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (plan [b, 4], labels [b]) of first_step, first_step + 1, … without end."""
        step = first_step
        while True:
            yield self._planned_batch(step)
            step += 1

    def weighted_test_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields (plan [b, 4], labels [b], weights [b]) once through the test images, in order.

        The last batch is filled up with examples of weight 0, so that every batch has one shape.
        """
        data, batch_size = self._data, self._config.batch_size
        for start in range(0, data.num_test, batch_size):
            example = np.arange(start, start + batch_size)
            weights = (example < data.num_test).astype(np.float32)
            example = np.minimum(example, data.num_test - 1)
            plan = np.zeros((batch_size, 4), np.int32)
            plan[:, 0] = data.num_train + example
            yield tuple(array[self._rows] for array in (plan, data.test_labels[example], weights))

    def _planned_batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns this process's rows of the plan [b, 4] and the labels [b] of a training step."""
        config = self._config
        plan = plan_batch(
            config.seed, step, config.batch_size, self._data.num_train, config.crop_padding, config.random_flip
        )[self._rows]
        return plan, self._data.train_labels[plan[:, 0]]


class StreamedBatches:
    """Training and test batches of a set that is read from disk as it is needed.

    Args:
      source: TfdsSource.
      config: TrainConfig. Read: seed, batch_size, crop_padding, random_flip.
      rows: slice. The rows of every batch that this process takes; only these are decoded.

    Attributes:
      test_steps: int. How many batches weighted_test_batches yields.
    """

    def __init__(self, source: "TfdsSource", config: TrainConfig, rows: slice = slice(None)) -> None:
        self._source, self._config = source, config
        self._rows = range(config.batch_size)[rows]
        self.test_steps = -(-source.num_test // config.batch_size)

    def attach(self, network: keras.Model) -> keras.Model:
        """Returns the model that fit trains: uint8 images to logits, by standardisation and network."""
        images = keras.Input(self._source.image_shape, dtype="uint8", name="images")
        return keras.Model(images, network(standardize(images)), name="training")

    def train_batches(self, first_step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (uint8 images [b, h, w, c], labels [b]) of first_step, first_step + 1, … without end."""
        config = self._config
        return self._source.train_batches(
            config.seed, first_step, config.batch_size, config.random_flip, self._rows, config.crop_padding
        )

    def weighted_test_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields (uint8 images [b, h, w, c], labels [b], weights [b]) once through the test images, in order.

        The last batch is filled up with black images of weight 0, so that every batch has one shape.
        """
        size = len(self._rows)
        batches = self._source.raw_test_batches(self._config.batch_size, self._rows)
        nothing = np.zeros((0, *self._source.image_shape), np.uint8), np.zeros(0, np.int32)
        for _ in range(self.test_steps):
            images, labels = next(batches, nothing)
            missing = size - len(labels)
            weights = np.pad(np.ones(len(labels), np.float32), (0, missing))
            yield np.pad(images, ((0, missing), (0, 0), (0, 0), (0, 0))), np.pad(labels, (0, missing)), weights


def as_dataset(batches: Iterator[tuple[np.ndarray, ...]]) -> Iterable:
    """Returns batches, tuples of arrays of the same shapes and types, in the form that fit and evaluate take quickest.

    That is a tf.data.Dataset under TensorFlow, a generator under other Keras backends.
    """
    if keras.backend.backend() != "tensorflow":
        return (batch for batch in batches)
    import tensorflow as tf

    first = next(batches)
    signature = tuple(tf.TensorSpec(array.shape, array.dtype) for array in first)
    dataset = tf.data.Dataset.from_generator(lambda: itertools.chain([first], batches), output_signature=signature)
    options = tf.data.Options()
    # Its thread can hold up the end of every call of fit for 2.5 s, and fit is called at every event.
    options.autotune.enabled = False
    return dataset.with_options(options).prefetch(2)
