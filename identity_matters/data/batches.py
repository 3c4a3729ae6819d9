"""The batch stream of a source: a pure function of (seed, step).

A batch is planned on the host, see plans.py: a resumed run sees the batches it would have seen, and N workers together
see the batch that one would. Images that fit in memory stay on the device, which looks up, crops and flips a whole
batch at once, under every backend; of larger sets, each process reads its rows of a batch as they are needed.
"""

import collections
import concurrent.futures
import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from identity_matters.config import TrainConfig
from identity_matters.data.base import SPLITS, Source, fits_in_memory, read_all
from identity_matters.data.plans import plan_batch
from identity_matters.model import standardize

_AHEAD = 2  # batches of a stream that are read while one is trained on
_PLACES = 2**14  # of a window, to each side of the middle


class DeviceImages(keras.layers.Layer):
    """Images held on the device; maps plans int32 [n, 4] to float32 images [n, h, w, c].

    Pixels outside an image are 0. Shifting and mirroring are linear along each axis, so they are two
    batched products with 0/1 matrices: exact in any floating-point format with 8 significant
    bits, and several times as fast on a CPU as gathering pixel by pixel.
    """

    def __init__(self, images: np.ndarray, **kwargs: Any) -> None:
        super().__init__(dtype="float32", **kwargs)
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
    """Returns the images that a plan int32 [n, 4] asks for of pixels, uint8 [N, h·w·c]: float32 [n, h, w, c]."""
    height, width, channels = image_shape
    example, row_offset, column_offset, flipped = (ops.expand_dims(plan[:, i], -1) for i in range(4))
    columns = ops.arange(width, dtype="int32")
    # The shifted image is flipped, as in `augmented`: the other order would reverse the column offset.
    columns = ops.where(flipped > 0, width - 1 - columns, columns)
    select_rows = _one_hot(row_offset + ops.arange(height, dtype="int32"), height)  # [n, h out, h in]
    select_columns = _one_hot(column_offset + columns, width)  # [n, w out, w in]
    # The cast follows the look-up, so that only the batch and never the whole set is held as floats.
    images = ops.cast(_look_up(pixels, example[:, 0]), "float32")
    images = ops.matmul(select_rows, ops.reshape(images, (-1, height, width * channels)))
    images = ops.reshape(images, (-1, height, width, channels))
    return ops.einsum("nhwc,nvw->nhvc", images, select_columns)


def _look_up(pixels: Any, example: Any) -> Any:
    """Returns some rows of the images.

    Keras's take reads the whole variable first. TensorFlow then has no gather of bytes on a GPU, so that every step
    would copy all images to the host; it has one from the variable itself.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.take(pixels, example, axis=0)
    import tensorflow as tf

    return tf.gather(pixels.value if isinstance(pixels, keras.Variable) else pixels, example)


def _one_hot(index: Any, size: int) -> Any:
    """Returns float32 [n, k, size] for int32 [n, k]; zeros for an index outside 0 … size − 1."""
    return ops.cast(ops.expand_dims(index, -1) == ops.arange(size, dtype="int32"), "float32")


class ArrayBatches:
    """Training and test batches of data in memory, of which this process takes some rows and others the others.

    weighted_test_batches yields `test_steps` batches; device_images holds the training images, then the test images;
    summary says how many there are, of what shape, and has a checksum of their labels.
    """

    def __init__(self, source: Source, config: TrainConfig, rows: slice = slice(None)) -> None:
        self._config = config
        self._rows = rows
        self.num_train, self.num_test = (source.num(split) for split in SPLITS)
        self.test_steps = -(-self.num_test // config.batch_size)
        images, self._labels = read_all(source, SPLITS)
        self.device_images = DeviceImages(images, name="device_images")
        shape = "x".join(map(str, source.image_shape))
        labels = zlib.crc32(self._labels.astype("<i4").tobytes())
        self.summary = f"{_numbers(self)}, {shape}, labels {labels:08x}"

    def attach(self, network: keras.Model) -> keras.Model:
        """Returns the model that fit trains: plans to logits, by look-up, augmentation, standardisation and network."""
        plan = keras.Input((4,), dtype="int32", name="plan")
        return keras.Model(plan, network(standardize(self.device_images(plan))), name="training")

    def train_batches(self, first_step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (plan [b, 4], labels [b]) of first_step, first_step + 1, … without end."""
        config = self._config
        for step in itertools.count(first_step):
            plan = plan_batch(
                config.seed, step, config.batch_size, self.num_train, config.crop_padding, config.random_flip
            )[self._rows]
            yield plan, self._labels[plan[:, 0]]

    def weighted_test_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields (plan [b, 4], labels [b], weights [b]) once through the test images, in order.

        The last batch is filled up with examples of weight 0, so that every batch has one shape.
        """
        batch_size = self._config.batch_size
        for start in range(0, self.num_test, batch_size):
            example = np.arange(start, start + batch_size)
            weights = (example < self.num_test).astype(np.float32)
            plan = np.zeros((batch_size, 4), np.int32)
            # On the device, the test images follow the training images.
            plan[:, 0] = self.num_train + np.minimum(example, self.num_test - 1)
            yield tuple(array[self._rows] for array in (plan, self._labels[plan[:, 0]], weights))

    def input_images(self, step: int, count: int) -> np.ndarray:
        """Returns the first images of a step's batch, after augmentation, uint8 [count, h, w, c]."""
        plan, _ = next(self.train_batches(step))
        # Products with 0/1 matrices leave bytes whole, so the cast does not truncate anything.
        return keras.ops.convert_to_numpy(self.device_images(plan[:count])).astype(np.uint8)

    def test_data(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns all batches of weighted_test_batches joined: (plan, labels, weights)."""
        plan, labels, weights = (np.concatenate(parts) for parts in zip(*self.weighted_test_batches()))
        return plan, labels, weights


class StreamedBatches:
    """Training and test batches of a source that is read as it is needed; only this process's rows are read.

    weighted_test_batches yields `test_steps` batches.
    """

    def __init__(self, source: Source, config: TrainConfig, rows: slice = slice(None)) -> None:
        self._source = source
        self._config = config
        self._rows = rows
        self.num_train, self.num_test = (source.num(split) for split in SPLITS)
        self.test_steps = -(-self.num_test // config.batch_size)
        self.summary = f"{_numbers(self)} of {source.name}"

    def attach(self, network: keras.Model) -> keras.Model:
        """Returns the model that fit trains: uint8 images to logits, by standardisation and network."""
        images = keras.Input(self._source.image_shape, dtype="uint8", name="images")
        return keras.Model(images, network(standardize(images)), name="training")

    def train_batches(self, first_step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (uint8 images [b, h, w, c], labels [b]) of first_step, first_step + 1, … without end.

        Images of one size are shifted by up to crop_padding pixels; of others, windows are taken at random.
        """
        padding = 0 if self._source.varies else self._config.crop_padding

        def read(step: int) -> tuple[np.ndarray, np.ndarray]:
            plan, places = self._plan(step)
            images, labels = self._source.read("train", plan[:, 0], places)
            return augmented(images, plan, padding), labels

        return _read_ahead(read, itertools.count(first_step))

    def located_batches(self, first_step: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yields (files [b], spans [b, 3], places [b, 2], plan [b, 4]) of first_step, … for `read_located`."""
        for step in itertools.count(first_step):
            plan, places = self._plan(step)
            files, spans = self._source.locate("train", plan[:, 0])
            # read_located returns only these images, so the index is now the position in the batch.
            plan[:, 0] = np.arange(len(plan))
            # The signature of the data set requires places even if all images have one size and no windows.
            middle = np.full((len(plan), 2), 0.5)
            yield files, spans, (middle if places is None else places).astype(np.float32), plan

    def read_located(self, files: Any, spans: Any, places: Any, plan: Any) -> tuple[Any, Any]:
        """Returns images float32 [b, h, w, c], augmented, and labels [b] by TensorFlow's operations."""
        images, labels = self._source.read_located(files, spans, places)
        shape = self._source.image_shape
        return planned_images(ops.reshape(images, (-1, math.prod(shape))), plan, shape), labels

    def _plan(self, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the plan of this process's rows of a step, and the places of windows of images that vary in size."""
        config = self._config
        varies = self._source.varies
        padding = _PLACES if varies else config.crop_padding
        plan = plan_batch(config.seed, step, config.batch_size, self.num_train, padding, config.random_flip)
        plan = plan[self._rows]
        if not varies:
            return plan, None
        # The offsets of the plan choose the window here; they are set to 0 so that nothing shifts it again.
        places = (plan[:, 1:3] + padding) / (2 * padding + 1)
        plan[:, 1:3] = 0
        return plan, places

    def weighted_test_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields (uint8 images [b, h, w, c], labels [b], weights [b]) once through the test images, in order.

        The last batch is filled up with examples of weight 0, so that every batch has one shape.
        """
        return _read_ahead(self.test_batch, range(self.test_steps))

    def test_batch(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns a batch of weighted_test_batches."""
        start = number * self._config.batch_size
        example = np.arange(start, start + self._config.batch_size)[self._rows]
        weights = (example < self.num_test).astype(np.float32)
        return *self._source.read("test", np.minimum(example, self.num_test - 1)), weights

    def input_images(self, step: int, count: int) -> np.ndarray:
        """Returns the first images of a step's batch, after augmentation, uint8 [count, h, w, c]."""
        images, _ = next(self.train_batches(step))
        return images[:count]

    def test_data(self) -> keras.utils.PyDataset:
        """Returns the batches of weighted_test_batches as a data set."""
        return _TestBatches(self)


class _TestBatches(keras.utils.PyDataset):
    """The test batches of a stream, which Keras reads ahead in threads."""

    def __init__(self, batches: StreamedBatches) -> None:
        super().__init__(workers=2, max_queue_size=_AHEAD)
        self._batches = batches

    def __len__(self) -> int:
        return self._batches.test_steps

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self._batches.test_batch(index)


Batches = ArrayBatches | StreamedBatches


def _numbers(batches: Batches) -> str:
    return f"{batches.num_train} training and {batches.num_test} test images"


def open_batches(source: Source, config: TrainConfig, rows: slice = slice(None)) -> Batches:
    """Returns the batches of a source; raises UserError if they neither fit in memory nor can be streamed."""
    if fits_in_memory(source):
        return ArrayBatches(source, config, rows)
    if config.strategy != "synchronous":
        source.locate("train", np.arange(1))  # raises UserError if workers cannot read the data by themselves
    return StreamedBatches(source, config, rows)


def _read_ahead(read: Any, keys: Iterable[int]) -> Iterator[Any]:
    """Yields read(key) of each key in turn; a thread reads the next ones meanwhile."""
    keys = iter(keys)
    reader = concurrent.futures.ThreadPoolExecutor(1)
    pending = collections.deque(reader.submit(read, key) for key in itertools.islice(keys, _AHEAD))
    try:
        while pending:
            batch = pending.popleft().result()
            pending.extend(reader.submit(read, key) for key in itertools.islice(keys, 1))
            yield batch
    finally:
        for future in pending:
            future.cancel()
        # Closing the generator must not wait for a batch that nobody will use.
        reader.shutdown(wait=False)


def augmented(images: np.ndarray, plan: np.ndarray, padding: int) -> np.ndarray:
    """Returns images uint8 [n, h, w, c] shifted and mirrored as a plan says, as planned_images does on the device."""
    height, width = images.shape[1:3]
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    result = np.empty_like(images)
    for image, (_, row, column, flipped), place in zip(padded, plan, result):
        shifted = image[row + padding : row + padding + height, column + padding : column + padding + width]
        place[:] = shifted[:, ::-1] if flipped else shifted
    return result


def as_dataset(make_batches: Callable[[], Iterator[tuple[np.ndarray, ...]]]) -> Iterable:
    """Returns batches, tuples of arrays of the same shapes and types, in the form that fit takes quickest.

    That is a tf.data.Dataset under TensorFlow, a generator under other Keras backends.
    """
    if keras.backend.backend() != "tensorflow":
        return make_batches()
    import tensorflow as tf

    # The batch that is read for its shapes is not lost: each call of make_batches starts a new stream.
    signature = tuple(tf.TensorSpec(array.shape, array.dtype) for array in next(make_batches()))
    dataset = tf.data.Dataset.from_generator(make_batches, output_signature=signature)
    options = tf.data.Options()
    # Its thread can hold up the end of fit for 2.5 s.
    options.autotune.enabled = False
    return dataset.with_options(options).prefetch(2)
