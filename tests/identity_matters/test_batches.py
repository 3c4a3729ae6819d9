"""The batch stream: a pure function of (seed, step), fair, and exact on the device."""

import concurrent.futures
import dataclasses
import itertools
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.data.arrays import ArraySource
from identity_matters.data.batches import (
    ArrayBatches,
    DeviceImages,
    StreamedBatches,
    _look_up,
    _read_ahead,
    open_batches,
)
from identity_matters.data.plans import plan_batch
from identity_matters.model import all_conv_resnet, standardize

NUM_TRAIN, NUM_TEST = 20, 11


@pytest.fixture(scope="module")
def data() -> SimpleNamespace:
    """Random images, not square; no two alike."""
    images = np.random.default_rng(0).integers(0, 256, (NUM_TRAIN + NUM_TEST, 8, 6, 3), np.uint8)
    labels, test_labels = np.arange(NUM_TRAIN, dtype=np.int32) % 7, np.arange(NUM_TEST, dtype=np.int32) % 5
    parts = {"train_images": images[:NUM_TRAIN], "test_images": images[NUM_TRAIN:]}
    return SimpleNamespace(**parts, train_labels=labels, test_labels=test_labels)


@pytest.fixture(scope="module")
def source(data) -> ArraySource:
    images = {"train": data.train_images, "test": data.test_images}
    return ArraySource("random", images, {"train": data.train_labels, "test": data.test_labels}, num_classes=7)


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    return TrainConfig(batch_size=8, crop_padding=3, seed=5)


def pad_crop_flip(image, row_offset, column_offset, flipped, pad=10):
    """The reference: zeros all around, a window, mirrored last."""
    height, width, _ = image.shape
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    window = padded[pad + row_offset :, pad + column_offset :][:height, :width]
    return window[:, ::-1] if flipped else window


def augmented(images, plan):
    return np.stack([pad_crop_flip(images[example], *rest) for example, *rest in plan]).astype(np.float32)


@pytest.mark.parametrize("kind", [ArrayBatches, StreamedBatches])
def test_a_step_is_the_same_whether_reached_or_jumped_to(source, config, kind):
    batches = kind(source, config)
    for step, reached in zip(range(14), batches.train_batches(0)):
        for jumping in (batches, kind(source, config)):
            for found, expected in zip(next(jumping.train_batches(step)), reached):
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("random_flip", [False, True])
def test_streamed_batches_are_those_in_memory_and_of_each_worker_its_rows(source, config, random_flip):
    """Shifted and mirrored on the host as on the device."""
    config = dataclasses.replace(config, random_flip=random_flip)
    whole, held = StreamedBatches(source, config), ArrayBatches(source, config)
    parts = [StreamedBatches(source, config, rows) for rows in (slice(0, 4), slice(4, 8))]
    streams = [batches.train_batches(3) for batches in (held, whole, *parts)]
    for (plan, labels), shown, *pieces in itertools.islice(zip(*streams), 5):
        np.testing.assert_array_equal(shown[0], held.device_images(plan))
        np.testing.assert_array_equal(shown[1], labels)
        for array, *rows in zip(shown, *pieces):
            np.testing.assert_array_equal(array, np.concatenate(rows))
    assert whole.test_steps == held.test_steps == 2
    streams = [batches.weighted_test_batches() for batches in (held, whole, *parts)]
    for (plan, labels, weights), shown, *pieces in zip(*streams, strict=True):
        np.testing.assert_array_equal(shown[0], held.device_images(plan))
        assert shown[1].tolist() == labels.tolist() and shown[2].tolist() == weights.tolist()
        for array, *rows in zip(shown, *pieces):
            np.testing.assert_array_equal(array, np.concatenate(rows))


def test_windows_of_images_that_vary_in_size_lie_anywhere_in_them(data, source, config):
    seen = []

    class Varying(ArraySource):
        varies = True

        def read(self, split, indices, places=None):
            seen.append(places)
            return source.read(split, indices)

    images, labels = ({"train": getattr(data, f"train_{what}")} for what in ("images", "labels"))
    varying = Varying("varying", images | {"test": data.test_images}, labels | {"test": data.test_labels}, 7)
    streamed = open_batches(varying, config)
    assert isinstance(streamed, StreamedBatches) and isinstance(open_batches(source, config), ArrayBatches)
    asynchronous = dataclasses.replace(config, strategy="parameter_server")
    assert "streams only TFDS sets; varying must fit in memory" in refused(open_batches, varying, asynchronous)
    shown, labels = next(streamed.train_batches(3))
    plan = plan_batch(config.seed, 3, 8, NUM_TRAIN, 2**14, True)
    np.testing.assert_array_equal(seen[0], (plan[:, 1:3] + 2**14) / (2**15 + 1))
    plan[:, 1:3] = 0
    np.testing.assert_array_equal(shown, augmented(data.train_images, plan))
    np.testing.assert_array_equal(labels, plan[:, 0] % 7)


def test_two_batches_are_read_ahead_and_no_more(monkeypatch):
    read, ended = [], []

    class AtOnce(SimpleNamespace):
        """An executor that runs each task before it returns."""

        def submit(self, function, key):
            return SimpleNamespace(result=lambda found=function(key): found, cancel=lambda: ended.append(key))

        def shutdown(self, wait):
            ended.append(wait)

    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", lambda threads: AtOnce())
    stream = _read_ahead(lambda key: read.append(key) or -key, itertools.count(3))
    assert list(itertools.islice(stream, 5)) == [-3, -4, -5, -6, -7] and read == [*range(3, 10)]
    stream.close()
    assert ended == [8, 9, False]


def test_the_error_of_a_read_ahead_comes_at_its_batch(source, config):
    class Damaged(ArraySource):
        def read(self, split, indices, places=None):
            if 3 in indices:
                raise OSError("the fourth image is damaged")
            return source.read(split, indices, places)

    images = {split: source.read(split, np.arange(source.num(split)))[0] for split in ("train", "test")}
    labels = {split: source.labels(split) for split in ("train", "test")}
    batches = StreamedBatches(Damaged("damaged", images, labels, 7), dataclasses.replace(config, batch_size=2))
    shown = []
    with pytest.raises(OSError, match="fourth"):
        shown.extend(batches.weighted_test_batches())
    shown_first = next(batches.weighted_test_batches())
    np.testing.assert_array_equal(shown_first[0], images["test"][:2])


@pytest.mark.parametrize("batch_size", [1, 8, 33])
def test_every_epoch_visits_every_example_exactly_once(batch_size):
    epochs = 4
    steps = -(-epochs * NUM_TRAIN // batch_size)
    examples = np.concatenate([plan_batch(3, step, batch_size, NUM_TRAIN)[:, 0] for step in range(steps)])
    by_epoch = examples[: epochs * NUM_TRAIN].reshape(epochs, NUM_TRAIN)
    np.testing.assert_array_equal(np.sort(by_epoch, axis=1), np.tile(np.arange(NUM_TRAIN), (epochs, 1)))
    assert len({tuple(order) for order in by_epoch}) == epochs


def test_the_batch_size_does_not_change_the_order_of_the_examples():
    by_ones = [plan_batch(3, step, 1, NUM_TRAIN)[0, 0] for step in range(40)]
    np.testing.assert_array_equal(
        np.concatenate([plan_batch(3, step, 8, NUM_TRAIN)[:, 0] for step in range(5)]), by_ones
    )


def test_augmentation_keeps_the_order_and_without_padding_and_flips_moves_no_image():
    np.testing.assert_array_equal(plan_batch(2, 9, 16, 50)[:, 0], plan_batch(2, 9, 16, 50, 4, True)[:, 0])
    assert not plan_batch(2, 9, 16, 50)[:, 1:].any()
    assert not plan_batch(2, 9, 16, 50, crop_padding=4)[:, 3].any()
    assert not plan_batch(2, 9, 16, 50, random_flip=True)[:, 1:3].any()


def philox(key, index, count) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011) in Python integers; NumPy counts from 1."""
    words, mask = [], 2**64 - 1
    for counter in range(1, -(-count // 4) + 1):
        x, k = [counter, 0, 0, index], list(key)
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
            x = [(b >> 64) ^ x[1] ^ k[0], b & mask, (a >> 64) ^ x[3] ^ k[1], a & mask]
            k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
        words += x
    return words[:count]


def test_the_plan_equals_philox_written_out():
    """So examples, offsets and flips are uniform, and independent of one another."""
    order = philox((7, 0), 3, NUM_TRAIN)
    words = np.array(philox((7, 1), 8, 24), dtype=object).reshape(3, 8)
    plan = plan_batch(seed=7, step=8, batch_size=8, num_examples=NUM_TRAIN, crop_padding=4, random_flip=True)
    np.testing.assert_array_equal(plan[:, 0], np.argsort(order)[4:12])  # step 8 starts 4 into epoch 3
    np.testing.assert_array_equal(plan[:, 1:].T, [words[0] % 9 - 4, words[1] % 9 - 4, words[2] // 2**63])


@pytest.mark.parametrize("flipped", [0, 1])
@pytest.mark.parametrize("row_offset", [-9, 0, 2])
@pytest.mark.parametrize("column_offset", [-4, 0, 6])
def test_device_images_equal_pad_crop_flip_in_numpy_bit_for_bit(data, row_offset, column_offset, flipped):
    images = np.concatenate([data.train_images, data.test_images])
    plan = np.array([[example, row_offset, column_offset, flipped] for example in (0, 7, 19, 20, 30)], np.int32)
    layer = DeviceImages(images)
    assert layer.compute_output_spec(plan).shape == (len(plan), *images.shape[1:])
    result = layer(plan).numpy()
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, augmented(images, plan))


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_rows_of_images_are_looked_up(data, backend, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)  # TensorFlow has the functions of both
    rows = data.train_images.reshape(NUM_TRAIN, -1)
    np.testing.assert_array_equal(_look_up(keras.Variable(rows), np.array([7, 0])), rows[[7, 0]])


def test_a_batch_is_the_training_images_of_its_plan_augmented_with_their_labels(data, source, config):
    batches = ArrayBatches(source, config)
    plan, labels = next(batches.train_batches(4))
    images = batches.device_images(plan)
    assert plan[:, 0].max() < NUM_TRAIN and plan[:, 3].any() and (plan[:, 1:3] < 0).any()
    np.testing.assert_array_equal(images, augmented(data.train_images, plan))
    np.testing.assert_array_equal(labels, plan[:, 0] % 7)
    assert not np.array_equal(images, data.train_images[plan[:, 0]])


@pytest.fixture(scope="module")
def network():
    """A network for images of the data's shape. Read only."""
    return all_conv_resnet(ModelConfig((8, 6, 3), 7, stem_width=4, widths=(4, 8), blocks_per_stage=(1, 1)))


def test_the_training_model_feeds_the_network_the_standardised_batch(data, source, config, network):
    batches = ArrayBatches(source, config)
    model = batches.attach(network)
    plan, _ = next(batches.train_batches(2))
    np.testing.assert_array_equal(model(plan), network(standardize(augmented(data.train_images, plan))))
    assert {v.path for v in model.trainable_variables} == {v.path for v in network.trainable_variables}


def test_the_training_model_of_a_streamed_set_standardises_the_images(data, source, config, network):
    batches = StreamedBatches(source, config)
    model = batches.attach(network)
    np.testing.assert_array_equal(model(data.test_images), network(standardize(data.test_images)))
    assert not np.allclose(model(data.test_images), network(data.test_images))


def test_no_step_reads_more_of_the_bytes_than_it_needs(data):
    # TensorFlow's ops on a tensor of bytes have no gather on GPUs: all images would be copied to the host.
    device_images = DeviceImages(data.train_images)
    graph = tf.function(device_images).get_concrete_function(tf.TensorSpec([8, 4], tf.int32)).graph
    byte_operations = [
        op for op in graph.get_operations() if tf.uint8 in [tensor.dtype for tensor in (*op.inputs, *op.outputs)]
    ]
    sizes = {op.type: [tensor.shape.num_elements() for tensor in op.outputs] for op in byte_operations}
    assert "ResourceGather" in sizes
    assert max(size for found in sizes.values() for size in found) <= 8 * data.train_images[0].size


@pytest.mark.parametrize("batch_size", [1, 4, 11, 16])
def test_test_batches_cover_each_test_image_once_and_fill_up_with_weight_0(data, source, config, batch_size):
    batches = ArrayBatches(source, dataclasses.replace(config, batch_size=batch_size))
    device_images = DeviceImages(np.concatenate([data.train_images, data.test_images]))
    shown = list(batches.weighted_test_batches())
    assert len(shown) == batches.test_steps == -(-NUM_TEST // batch_size)
    assert {plan.shape for plan, _, _ in shown} == {(batch_size, 4)}
    plans, labels, weights = (np.concatenate(parts) for parts in zip(*shown))
    assert weights.tolist() == [1] * NUM_TEST + [0] * (len(shown) * batch_size - NUM_TEST)
    np.testing.assert_array_equal(device_images(plans[:NUM_TEST]), data.test_images)
    np.testing.assert_array_equal(labels[:NUM_TEST], data.test_labels)
    assert set(labels) <= set(data.test_labels)
