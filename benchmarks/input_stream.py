"""Time the batch stream of a data set in memory against tf.data and plain NumPy.

    python -m benchmarks.input_stream                 80 seconds on 2 cores

Each stream makes standardised float32 batches of 50,000 synthetic 32×32×3 images in random order,
cropped after padding by 4 pixels and flipped at random. "Ours, all of it" is the cost in a training
step: plans through training's feed, then batches.DeviceImages and standardize, compiled.
tf.data maps stateless ops over single images in parallel. NumPy indexes whole batches; its
first batch is checked to be the same as ours.

docs/appendix/speed.md has the results.
"""

import dataclasses
import functools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Benchmark, check_same, interleaved, report, synthetic_data
from identity_matters.config import TrainConfig
from identity_matters.fields import option
from launch import launcher

if TYPE_CHECKING:
    from identity_matters.data.batches import ArrayBatches

NUM_IMAGES, IMAGE_SHAPE = 50_000, (32, 32, 3)  # CIFAR-10's training set
TARGET = 20_000  # images/s
MAX_DIFFERENCE = 3e-5  # of standardised pixels, over the largest
PLANS, OURS = "ours, the plans alone", "ours, all of it"
TF_DATA, NUMPY = "tf.data, image by image", "NumPy, batch by batch"
PAIRS = {"ours / tf.data": (OURS, TF_DATA), "ours / NumPy": (OURS, NUMPY)}


@dataclasses.dataclass(frozen=True)
class StreamBenchmark(Benchmark):
    """The cases to time, and how often.

    Attributes:
      seconds: Seconds for which each stream is timed in a round.
      batch_size: Images per batch.
      crop_padding: Pixels of zeros around an image before it is cropped at random.
    """

    seconds: float = option(3.0, at_least=0)
    batch_size: int = option(128, at_least=1)
    crop_padding: int = option(4, at_least=0)


def main(benchmark: StreamBenchmark) -> None:
    """Times the four streams in turns and prints the table."""
    from identity_matters.data.batches import ArrayBatches

    run = TrainConfig(batch_size=benchmark.batch_size, crop_padding=benchmark.crop_padding)
    data = synthetic_data(run, NUM_IMAGES)
    images, labels = data.read("train", np.arange(NUM_IMAGES))
    batches = ArrayBatches(data, run)
    check_same_batches(batches, images, run)
    streams = {
        PLANS: batches.train_batches(0),
        OURS: our_stream(batches),
        TF_DATA: tf_data_stream(images, labels, run),
        NUMPY: numpy_stream(images, batches.train_batches(0), run),
    }
    cases = {name: functools.partial(images_per_second, stream, benchmark) for name, stream in streams.items()}
    title = f"images/s, {IMAGE_SHAPE}, batch {run.batch_size}; target: {TARGET:,}"
    report(title, {"measured": interleaved(cases, benchmark.repeats)}, PAIRS, benchmark.repeats)


def images_per_second(stream: Iterator, benchmark: StreamBenchmark) -> float:
    """Returns the images per second that a stream yields, over the benchmark's seconds."""
    for _ in range(3):
        next(stream)  # it may have prefetched while others were timed
    start, count, elapsed = time.perf_counter(), 0, 0.0
    while count == 0 or elapsed < benchmark.seconds:
        next(stream)
        count += 1
        elapsed = time.perf_counter() - start
    return count * benchmark.batch_size / elapsed


def our_stream(batches: "ArrayBatches") -> Iterator[tuple[Any, Any]]:
    """Yields standardised float32 batches from the feed and the compiled layers that training uses."""
    import tensorflow as tf

    from identity_matters.data.batches import as_dataset
    from identity_matters.model import standardize

    make_batch = tf.function(lambda plan: standardize(batches.device_images(plan)))
    for plan, labels in as_dataset(lambda: batches.train_batches(0)):
        yield make_batch(plan), labels


def tf_data_stream(images: np.ndarray, labels: np.ndarray, run: TrainConfig) -> Iterator[tuple[Any, Any]]:
    """Yields such batches from the usual tf.data pipeline: stateless ops on one image at a time, in parallel."""
    import tensorflow as tf

    pixels, classes = tf.constant(images), tf.constant(labels)
    padding = ((run.crop_padding, run.crop_padding), (run.crop_padding, run.crop_padding), (0, 0))

    def example(index: Any, position: Any) -> tuple[Any, Any]:
        seed = tf.stack([tf.constant(run.seed, tf.int64), position])
        image = tf.pad(pixels[index], padding)
        image = tf.image.stateless_random_crop(image, IMAGE_SHAPE, seed)
        image = tf.image.stateless_random_flip_left_right(image, seed)
        return tf.image.per_image_standardization(image), classes[index]

    indices = tf.data.Dataset.range(len(images)).shuffle(len(images), run.seed).repeat()
    dataset = tf.data.Dataset.zip(indices, tf.data.Dataset.counter())
    dataset = dataset.map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(dataset.batch(run.batch_size, drop_remainder=True).prefetch(2))


def numpy_stream(images: np.ndarray, planned: Iterator, run: TrainConfig) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the batches of our plans, made by indexing whole batches in NumPy."""
    pad = run.crop_padding
    height, width, _ = IMAGE_SHAPE
    padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    num_values = np.prod(IMAGE_SHAPE)
    for plan, labels in planned:
        example, row_offset, column_offset, flipped = plan.T[:, :, None]
        columns = np.arange(width)
        columns = np.where(flipped, width - 1 - columns, columns)
        rows = pad + row_offset + np.arange(height)
        columns = pad + column_offset + columns
        batch = padded[example[:, :, None], rows[:, :, None], columns[:, None, :]].astype(np.float32)
        batch -= batch.mean((1, 2, 3), keepdims=True)
        stddev = np.sqrt(np.square(batch).mean((1, 2, 3), keepdims=True))
        yield batch / np.maximum(stddev, np.float32(num_values**-0.5)), labels


def check_same_batches(batches: "ArrayBatches", images: np.ndarray, run: TrainConfig) -> None:
    """Raises ArithmeticError if the first batch of `our_stream` is not that of `numpy_stream`."""
    ours, our_labels = next(our_stream(batches))
    reference, labels = next(numpy_stream(images, batches.train_batches(0), run))
    check_same("NumPy's standardised pixels", ours.numpy(), reference, MAX_DIFFERENCE)
    check_same("NumPy's labels", np.asarray(our_labels), labels, 0)


cli = launcher.command(main, {"": StreamBenchmark()}, manual=__doc__)

if __name__ == "__main__":
    cli()
