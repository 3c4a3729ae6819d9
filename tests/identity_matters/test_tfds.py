"""TFDS sets, in memory and streamed, made here."""

import dataclasses
import itertools
import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow_datasets as tfds
from gradient_sets import (
    NUM_TEST,
    NUM_TRAIN,
    SIZES,
    IdentityMany,
    IdentityNoImages,
    IdentityTinyDeep,
    IdentityTinyJpeg,
    IdentityTinyPng,
    gradient,
)
from refusals import refused
from scipy.special import log_softmax

from identity_matters import training
from identity_matters.classifier import load_classifier
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.data import tfds as tfds_module
from identity_matters.data.arrays import ArrayData
from identity_matters.data.batches import StreamedBatches
from identity_matters.data.loading import load
from identity_matters.data.tfds import prepared_builder, tfds_source
from identity_matters.distributed.workers import Workers
from launch.trained_run import raw_batches


@pytest.fixture
def offline(monkeypatch):
    """Fails on any connection that Python opens, and on a look at the index of data sets that TFDS keeps on the web."""

    def fail(*args, **kwargs):
        raise AssertionError("a test used the network")

    monkeypatch.setattr(socket.socket, "connect", fail)
    monkeypatch.setattr("tensorflow_datasets.core.community.community_register", fail)


def test_an_unknown_data_set_gets_a_suggestion(offline, tmp_path):
    assert "did you mean cifar10" in refused(load, TrainConfig(dataset="cifra10", data_dir=str(tmp_path)))
    assert "mnist_sample" in refused(load, TrainConfig(dataset="minst_sample", data_dir=str(tmp_path)))
    assert "'qqqqzzzz'" in refused(load, TrainConfig(dataset="qqqqzzzz", data_dir=str(tmp_path)))


@pytest.mark.parametrize("name", ["cifar10:9.9.9", "cifar10/nothing", "../cifar10"])
def test_a_version_or_config_that_does_not_exist_is_refused_by_name(offline, tmp_path, name):
    assert name in refused(load, TrainConfig(dataset=name, data_dir=str(tmp_path)))


def test_a_set_that_is_not_prepared_says_to_download_and_leaves_nothing(offline, tmp_path):
    message = refused(load, TrainConfig(dataset="cifar10", data_dir=str(tmp_path)))
    assert "--download" in message and str(tmp_path) in message
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The three sets, prepared; the training split in three files, so that their order is shuffled too."""
    path = str(tmp_path_factory.mktemp("tfds"))
    for builder in (IdentityTinyPng, IdentityTinyJpeg, IdentityNoImages):
        builder(data_dir=path).download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    return path


@pytest.fixture
def png(data_dir) -> TrainConfig:
    return TrainConfig(dataset="identity_tiny_png", data_dir=data_dir, batch_size=5)


@pytest.fixture
def jpeg(data_dir) -> TrainConfig:
    return TrainConfig(dataset="identity_tiny_jpeg", data_dir=data_dir, image_size=56, batch_size=5)


def examples_of(images) -> np.ndarray:
    """Which examples the images show; JPEG's rounding is well under ten levels."""
    return np.rint(images[..., 2].mean((1, 2)) / 10).astype(int)


def test_a_set_of_equal_images_is_read_into_memory(offline, png):
    data = load(png)
    assert isinstance(data, ArrayData)
    assert (data.name, data.num_classes, data.num_train, data.num_test) == ("identity_tiny_png", 24, 24, 7)
    assert sorted(data.train_labels) == list(range(NUM_TRAIN)) and sorted(data.test_labels) == list(range(NUM_TEST))
    for images, labels in ((data.train_images, data.train_labels), (data.test_images, data.test_labels)):
        np.testing.assert_array_equal(images, [gradient(label, 12, 10) for label in labels])
        assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(load(png).train_labels, data.train_labels)


def test_a_set_in_memory_can_be_shortened_and_resized(png):
    whole = load(png)
    data = load(dataclasses.replace(png, train_examples=9, eval_examples=3, image_size=6))
    assert (data.train_images.shape, data.test_images.shape) == ((9, 6, 6, 3), (3, 6, 6, 3))
    np.testing.assert_array_equal(data.train_labels, whole.train_labels[:9])
    assert np.all(data.train_images[..., 2] == 10 * data.train_labels[:, None, None])
    # Twelve rows on six: the middle of two neighbours, 3 (2i + ½), to the nearest level.
    assert np.all(np.abs(data.train_images[:, 1:-1, :, 0] - (6 * np.arange(6) + 1.5)[1:-1, None]) <= 0.5)


def test_a_set_that_is_no_image_classification_is_refused_by_name(png):
    config = dataclasses.replace(png, dataset="identity_no_images")
    assert "identity_no_images is not an image-classification set" in refused(load, config)


def test_images_that_vary_in_size_need_an_image_size(jpeg):
    message = refused(load, dataclasses.replace(jpeg, image_size=0))
    assert "identity_tiny_jpeg" in message and "--image_size" in message


@pytest.mark.parametrize("name", ["imagenet2012", "i_naturalist2017", "i_naturalist2018", "i_naturalist2021"])
def test_a_test_split_whose_labels_are_kept_back_is_not_evaluated_on(name):
    validation = "val" if name.endswith("2021") else "validation"
    builder = SimpleNamespace(name=name, info=SimpleNamespace(splits=("train", "test", validation)))
    assert tfds_module._test_split(builder) == validation


@pytest.fixture(params=["jpeg", pytest.param("png", marks=pytest.mark.slow)])
def streamed(request, jpeg, png, monkeypatch):
    """A config of a set that is streamed: the one of varying size, and the other where memory is short."""
    if request.param == "jpeg":
        return jpeg
    monkeypatch.setattr(tfds_module, "MAX_BYTES_IN_MEMORY", 1000)
    return png


# How far JPEG's rounding takes these pixels.
JPEG = 7
# Row, column and mirroring of a window of an image with a frame of 1 pixel.
PLACES = list(itertools.product(range(3), range(3), (False, True)))


def take(batches, count):
    return list(itertools.islice(batches, count))


def test_sets_of_varying_size_or_too_large_for_memory_are_streamed(offline, streamed):
    source = load(streamed)
    assert isinstance(source, tfds_module.TfdsSource) and source.is_streamed
    assert (source.num_train, source.num_test, source.num_classes) == (NUM_TRAIN, NUM_TEST, 24)
    shape = source.image_shape
    assert shape == ((56, 56, 3) if streamed.image_size else (12, 10, 3))
    images, labels = next(source.train_batches(0, 0, 5))
    assert (images.shape, images.dtype, labels.shape) == ((5, *shape), np.uint8, (5,))
    assert np.issubdtype(labels.dtype, np.integer)
    np.testing.assert_array_equal(labels, examples_of(images))


def test_parameter_servers_refuse_a_streamed_set(jpeg, tmp_path, monkeypatch):
    workers = Workers()
    workers.takes_streams = False  # as of a Coordinator
    monkeypatch.setattr(training, "join", lambda config: workers)
    config = dataclasses.replace(jpeg, strategy="parameter_server")
    assert "identity_tiny_jpeg" in refused(training.train, config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_streamed_step_is_the_same_whether_reached_or_jumped_to(streamed):
    source = load(streamed)
    reached = take(source.train_batches(3, 0, 5), 7)  # four steps an epoch
    for step in (1, 3, 6):
        images, labels = next(source.train_batches(3, step, 5))
        np.testing.assert_array_equal(images, reached[step][0])
        np.testing.assert_array_equal(labels, reached[step][1])
    for (images, _), (others, _) in itertools.pairwise(reached):
        assert not np.array_equal(images, others)


def test_a_streamed_epoch_shows_no_example_twice_and_the_next_has_another_order(streamed):
    labels = np.array([labels for _, labels in take(load(streamed).train_batches(3, 0, 5), 28)]).reshape(7, 20)
    assert all(len(set(epoch)) == 20 for epoch in labels)
    # Each epoch leaves out 4 of 24; that one is left out of all seven has probability 24/6⁷.
    assert set(labels.ravel()) == set(range(NUM_TRAIN))
    assert not np.array_equal(labels[0], labels[1])


@pytest.mark.slow
def test_another_seed_gives_another_streamed_order_and_other_crops(streamed):
    (images, labels), (others, other_labels) = (next(load(streamed).train_batches(seed, 0, 24)) for seed in (0, 1))
    assert not np.array_equal(labels, other_labels)
    assert not np.array_equal(images[np.argsort(labels)], others[np.argsort(other_labels)])


def test_a_batch_larger_than_the_streamed_set_is_refused(streamed):
    message = refused(load, dataclasses.replace(streamed, batch_size=25))
    assert "25" in message and "24" in message


def corner(image) -> tuple[int, int, bool]:
    """Row and column of the upper left pixel of a window of a gradient, and whether it is mirrored."""
    flipped = image[:, 0, 1].mean() > image[:, -1, 1].mean()
    left = image[:, ::-1] if flipped else image
    return round(left[0, :, 0].mean() / 3), round(left[:, 0, 1].mean() / 3), bool(flipped)


def central_window(label) -> np.ndarray:
    height, width = SIZES[label % 3]
    top, left = (height - 56) // 2, (width - 56) // 2
    return gradient(label, height, width)[top : top + 56, left : left + 56]


def test_training_crops_are_random_windows_mirrored_half_of_the_time(jpeg):
    found = [[], [], []]
    for images, labels in take(load(jpeg).train_batches(0, 0, 24), 6):
        for image, label in zip(images, labels):
            found[label % 3].append(corner(image))
    for (height, width), corners in zip(SIZES, found):
        rows, columns, flips = np.array(corners).T
        for starts, room in ((rows, height - 56), (columns, width - 56)):
            assert starts.min() >= 0 and starts.max() <= room and np.ptp(starts) > room / 2
            assert abs(starts.mean() - room / 2) < 4 * (room + 1) / 12**0.5 / len(starts) ** 0.5
        assert abs(flips.mean() - 0.5) < 4 * 0.5 / len(flips) ** 0.5
    rows, columns, _ = np.array(found[2]).T
    assert set(rows) == set(columns) == set(range(9))  # every offset of 56 in 64, the last too


def test_a_training_crop_as_large_as_the_output_is_not_resized(jpeg):
    for image in next(load(jpeg).train_batches(0, 0, 24))[0]:
        row, column, flipped = corner(image)
        window = gradient(0, 80, 80)[row : row + 56, column : column + 56][:, :: -1 if flipped else 1]
        assert np.abs(image[..., :2].astype(int) - window[..., :2]).max() <= JPEG


def test_streamed_test_images_are_their_central_windows(jpeg):
    batches = list(load(jpeg).raw_test_batches(3))
    assert [len(labels) for _, labels in batches] == [3, 3, 1]
    images, labels = (np.concatenate(parts) for parts in zip(*batches))
    assert sorted(labels) == list(range(NUM_TEST))
    for image, label in zip(images, labels):
        window = central_window(label)
        assert np.abs(image.astype(int) - window).max() <= JPEG
        assert np.abs(image[..., 0].astype(int) - window[..., 0] - 3).mean() > 2  # a row off is three levels


def test_a_streamed_window_is_resized_to_the_image_size(jpeg):
    images, labels = next(load(dataclasses.replace(jpeg, image_size=28)).raw_test_batches(7))
    assert images.shape == (7, 28, 28, 3)
    for image, label in zip(images, labels):
        height, width = SIZES[label % 3]
        # Of the middle of two pixels.
        rows, columns = ((n - 56) // 2 + 2 * np.arange(28) + 0.5 for n in (height, width))
        inner = image[2:-2, 2:-2].astype(float)
        assert np.abs(inner[..., 0] - 3 * rows[2:-2, None]).max() <= 3
        assert np.abs(inner[..., 1] - 3 * columns[2:-2]).max() <= 3


def test_a_streamed_set_of_one_size_is_tested_on_whole_images_as_one_in_memory_is(png, monkeypatch):
    for size in (0, 8):
        config = dataclasses.replace(png, image_size=size)
        in_memory = load(config)
        with monkeypatch.context() as patched:
            patched.setattr(tfds_module, "MAX_BYTES_IN_MEMORY", 1000)
            images, labels = next(load(config).raw_test_batches(NUM_TEST))
        np.testing.assert_array_equal(labels, in_memory.test_labels)
        # Keras and TensorFlow may round a half to either side.
        assert np.abs(images.astype(int) - in_memory.test_images).max() <= (1 if size else 0)


def test_a_streamed_set_of_one_size_is_trained_on_shifted_images_as_one_in_memory_is(png, monkeypatch):
    monkeypatch.setattr(tfds_module, "MAX_BYTES_IN_MEMORY", 1000)
    batches = StreamedBatches(load(png), dataclasses.replace(png, crop_padding=1, batch_size=24))
    found = set()
    for images, labels in take(batches.train_batches(0), 8):
        for image, label in zip(images, labels):
            padded = np.pad(gradient(label, 12, 10), ((1, 1), (1, 1), (0, 0)))
            windows = {(r, c, f): padded[r : r + 12, c : c + 10][:, :: -1 if f else 1] for r, c, f in PLACES}
            found.add(next(place for place, window in windows.items() if np.array_equal(window, image)))
    assert found == set(PLACES)
    unmoved = StreamedBatches(load(png), dataclasses.replace(png, crop_padding=0, random_flip=False))
    for image, label in zip(*next(unmoved.train_batches(0))):
        np.testing.assert_array_equal(image, gradient(label, 12, 10))


def test_a_streamed_run_reports_the_test_cross_entropy_of_the_network_that_it_leaves(png, tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_module, "MAX_BYTES_IN_MEMORY", 1000)
    model = ModelConfig(stem_width=2, widths=(2, 4), blocks_per_stage=(1, 1))
    config = dataclasses.replace(png, model=model, train_steps=2, learning_rate=1e-3, crop_padding=0)
    row = training.train(config, tmp_path)
    images, labels = next(load(config).raw_test_batches(NUM_TEST))
    logits = load_classifier(tmp_path).logits(images.astype(np.float32))
    cross_entropy = -np.mean(log_softmax(logits, axis=1)[range(NUM_TEST), labels])
    assert row["test_cross_entropy"] == pytest.approx(cross_entropy, rel=1e-5)


def test_a_shortened_set_has_the_pixels_of_the_whole_in_runs_evaluations_and_spectra(jpeg):
    config = dataclasses.replace(jpeg, train_examples=4, eval_examples=2, batch_size=2)
    source = load(config)
    assert source.is_streamed and (source.num_train, source.num_test) == (4, 2)
    np.testing.assert_array_equal(next(source.raw_test_batches(2))[0], next(tfds_source(jpeg).raw_test_batches(2))[0])
    for image, label in zip(*next(raw_batches(config, 3))):
        window = central_window(label)
        assert np.abs(image.astype(int) - window).max() <= JPEG


def test_spectra_are_of_images_that_were_not_held_out(png):
    config = dataclasses.replace(png, validation_examples=20)
    assert sum(len(labels) for _, labels in raw_batches(config, 10)) == load(config).num_train == NUM_TRAIN - 20


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> TrainConfig:
    path = str(tmp_path_factory.mktemp("many"))
    IdentityMany(data_dir=path).download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=4))
    return TrainConfig(dataset="identity_many", data_dir=path, batch_size=5)


def test_the_first_examples_of_a_set_of_several_files_are_the_same_whether_all_are_read_or_they_alone(many):
    whole = load(many).train_labels
    assert sorted(whole) == list(range(IdentityMany.NUM_TRAIN))
    shortened = dataclasses.replace(many, train_examples=50)
    np.testing.assert_array_equal(load(shortened).train_labels, whole[:50])
    for validation_examples in (0, 60):
        config = dataclasses.replace(many, validation_examples=validation_examples)
        seen = np.concatenate([labels for _, labels in raw_batches(config, 1000)])
        np.testing.assert_array_equal(seen, load(config).train_labels)


def test_images_of_16_bits_are_refused(tmp_path):
    IdentityTinyDeep(data_dir=str(tmp_path)).download_and_prepare()
    message = refused(load, TrainConfig(dataset="identity_tiny_deep", data_dir=str(tmp_path)))
    assert message == "the images of identity_tiny_deep are uint16; only 0–255, uint8, are read"


@pytest.mark.parametrize("batch_size", [3, 10])
def test_streamed_test_batches_are_filled_up_with_weight_0(jpeg, batch_size):
    batches = StreamedBatches(load(jpeg), dataclasses.replace(jpeg, batch_size=batch_size))
    shown = list(batches.weighted_test_batches())
    assert len(shown) == batches.test_steps == -(-NUM_TEST // batch_size)
    assert {(images.shape, labels.shape) for images, labels, _ in shown} == {((batch_size, 56, 56, 3), (batch_size,))}
    images, labels, weights = (np.concatenate(parts) for parts in zip(*shown))
    assert weights.tolist() == [1] * NUM_TEST + [0] * (len(shown) * batch_size - NUM_TEST)
    np.testing.assert_array_equal(labels[:NUM_TEST], examples_of(images[:NUM_TEST]))


@pytest.mark.parametrize("batch_size", [6, pytest.param(10, marks=pytest.mark.slow)])
def test_workers_read_their_rows_of_the_streamed_batches_and_no_others(jpeg, batch_size):
    """Two workers, the parts of the batches, put together, are those of one."""
    config = dataclasses.replace(jpeg, batch_size=batch_size)
    half = batch_size // 2
    one = StreamedBatches(load(config), config)
    two = [StreamedBatches(load(config), config, rows) for rows in (slice(0, half), slice(half, batch_size))]
    for stream in (lambda b: take(b.train_batches(1), 5), lambda b: list(b.weighted_test_batches())):
        for whole, *parts in zip(stream(one), *map(stream, two), strict=True):
            assert len(parts[0][1]) == len(parts[1][1]) == half
            for expected, *pieces in zip(whole, *parts, strict=True):
                np.testing.assert_array_equal(expected, np.concatenate(pieces))


@pytest.mark.slow
def test_a_download_without_a_network_ends_soon_in_a_line_that_names_the_server(tmp_path, monkeypatch, caplog):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    began = time.monotonic()
    message = refused(prepared_builder, "cifar10", str(tmp_path), download=True)
    assert "cannot be reached from here" in message and "cs.toronto.edu" in message
    assert time.monotonic() - began < 60 and not [r for r in caplog.records if "Retrying" in r.getMessage()]


@pytest.mark.parametrize("name", ["huggingface:mnist", "somebody:mnist"])
def test_a_set_that_brings_code_of_another_party_is_refused(offline, tmp_path, name):
    assert "bring their own code" in refused(load, TrainConfig(dataset=name, data_dir=str(tmp_path)))
