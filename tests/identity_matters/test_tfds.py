"""TFDS sets made by the tests, in memory and streamed."""

import dataclasses
import itertools
import shutil
import socket

import numpy as np
import processes
import pytest
import tensorflow as tf
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
from loaded import load
from refusals import refused
from scipy.special import log_softmax

from identity_matters import training
from identity_matters.classifier import load_classifier
from identity_matters.config import DataConfig, ModelConfig, TrainConfig
from identity_matters.data import base as base_module
from identity_matters.data.arrays import resize
from identity_matters.data.base import fits_in_memory
from identity_matters.data.batches import StreamedBatches, open_batches
from identity_matters.data.source import open_source
from identity_matters.data.tfds import _resize, _window
from identity_matters.errors import UserError
from identity_matters.runs.tables import read_metrics
from launch.trained_run import first_examples


@pytest.fixture
def offline(monkeypatch):
    """Fails on any connection that Python opens, and on a look at the index of data sets that TFDS keeps on the web."""

    def fail(*args, **kwargs):
        raise AssertionError("a test used the network")

    monkeypatch.setattr(socket.socket, "connect", fail)
    monkeypatch.setattr("tensorflow_datasets.core.community.community_register", fail)


@pytest.mark.parametrize(
    "name, words",
    [
        ("cifra10", "did you mean cifar10"),
        ("minst_sample", "mnist_sample"),
        ("qqqqzzzz", "'qqqqzzzz'"),
        *((name, name) for name in ("cifar10:9.9.9", "cifar10/nothing", "../cifar10")),  # no such version or config
        ("huggingface:mnist", "bring their own code"),
        ("somebody:mnist", "bring their own code"),
    ],
)
def test_an_unknown_data_set_is_named_and_may_get_a_suggestion(offline, tmp_path, name, words):
    assert words in refused(load, DataConfig(name, str(tmp_path)))


def test_three_names_at_most_are_suggested(offline, tmp_path, monkeypatch):
    monkeypatch.setattr(tfds, "list_builders", lambda **_: [f"cifra{number}" for number in range(5)])
    assert refused(load, DataConfig("cifra", str(tmp_path))).count("cifra") == 1 + 3


def test_a_set_that_is_not_prepared_says_to_download_and_leaves_nothing(offline, tmp_path):
    message = refused(load, DataConfig(dataset="cifar10", data_dir=str(tmp_path)))
    assert "--download" in message and str(tmp_path) in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("download", [True, False])
def test_a_set_is_looked_for_where_and_downloaded_only_if_the_config_says(download, monkeypatch):
    def prepared(*asked):
        raise UserError(repr(asked))

    monkeypatch.setattr("identity_matters.data.tfds.prepared_builder", prepared)
    assert refused(load, DataConfig("cifar10", "/data", download=download)) == repr(("cifar10", "/data", download))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Four sets, prepared; the training split in three files, so that their order is shuffled too."""
    path = str(tmp_path_factory.mktemp("tfds"))
    for builder in (IdentityTinyPng, IdentityTinyJpeg, IdentityNoImages, IdentityTinyDeep):
        builder(data_dir=path).download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    return path


@pytest.fixture
def png(data_dir) -> DataConfig:
    return DataConfig("identity_tiny_png", data_dir)


@pytest.fixture
def jpeg(data_dir) -> DataConfig:
    return DataConfig("identity_tiny_jpeg", data_dir, image_size=56)


def examples_of(images) -> np.ndarray:
    """Which examples the images show; JPEG's rounding is well under ten levels."""
    return np.rint(images[..., 2].mean((1, 2)) / 10).astype(int)


def test_a_set_of_equal_images_is_read_in_order_and_by_place(offline, png):
    data = load(png)
    source = data.source
    assert (source.name, source.num_classes, source.stored_size) == ("identity_tiny_png", 24, (12, 10))
    assert sorted(data.train_labels) == list(range(NUM_TRAIN)) and sorted(data.test_labels) == list(range(NUM_TEST))
    for split in ("train", "test"):
        images, labels = (getattr(data, f"{split}_{name}") for name in ("images", "labels"))
        np.testing.assert_array_equal(images, [gradient(label, 12, 10) for label in labels])
        np.testing.assert_array_equal(source.labels(split), labels)
        chosen = np.array([5, 0, 6, 0])
        for array, expected in zip(source.read(split, chosen), (images[chosen], labels[chosen])):
            np.testing.assert_array_equal(array, expected)
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    shards = open_source(png)._source._builder.as_dataset(split="train", read_config=in_order)
    np.testing.assert_array_equal(data.train_labels, [example["label"] for example in shards.as_numpy_iterator()])


def test_the_digest_is_of_all_records(png, jpeg, tmp_path):
    assert open_source(png).digest == open_source(dataclasses.replace(png, train_examples=3)).digest
    assert open_source(png).digest != open_source(jpeg).digest
    IdentityOther(data_dir=str(tmp_path)).download_and_prepare()
    assert open_source(DataConfig("identity_tiny_png", str(tmp_path))).digest != open_source(png).digest


def test_a_set_in_memory_can_be_shortened_and_resized(png):
    whole = load(png)
    data = load(dataclasses.replace(png, train_examples=9, eval_examples=3, image_size=6))
    assert (data.train_images.shape, data.test_images.shape) == ((9, 6, 6, 3), (3, 6, 6, 3))
    np.testing.assert_array_equal(data.train_labels, whole.train_labels[:9])
    assert np.all(data.train_images[..., 2] == 10 * data.train_labels[:, None, None])
    # Twelve rows on six: the middle of two neighbours, 3 (2i + ½), to the nearest level.
    assert np.all(np.abs(data.train_images[:, 1:-1, :, 0] - (6 * np.arange(6) + 1.5)[1:-1, None]) <= 0.5)


@pytest.mark.parametrize(
    "name, words",
    [
        ("identity_no_images", "identity_no_images is not an image-classification set"),
        ("identity_tiny_jpeg", "--image_size"),  # its images vary in size
        ("identity_tiny_deep", "the images of identity_tiny_deep are not uint8, 0–255"),
    ],
)
def test_a_set_of_other_contents_is_rejected_by_name(png, name, words):
    message = refused(load, dataclasses.replace(png, dataset=name))
    assert name in message and words in message


JPEG = 7  # how far JPEG's rounding takes these pixels


def take(batches, count):
    return list(itertools.islice(batches, count))


def stream(config, **changes):
    """The streamed batches of a data set."""
    changes = {"batch_size": 5} | changes
    return StreamedBatches(open_source(config), TrainConfig(data=config, **changes))


def test_sets_of_varying_size_are_streamed(offline, jpeg, png, monkeypatch):
    source = open_source(jpeg)
    assert source.varies and not fits_in_memory(source) and fits_in_memory(open_source(png))
    assert isinstance(open_batches(source, TrainConfig(data=jpeg)), StreamedBatches)
    images, labels = next(stream(jpeg).train_batches(0))
    assert (images.shape, images.dtype, labels.shape) == ((5, 56, 56, 3), np.uint8, (5,))
    np.testing.assert_array_equal(labels, examples_of(images))
    monkeypatch.setattr(base_module, "MAX_BYTES_IN_MEMORY", 1000)
    assert not fits_in_memory(open_source(png))


@pytest.mark.parametrize("name", ["jpeg", "png"])
def test_a_worker_reads_the_batch_of_a_stream_by_itself(request, name):
    """TensorFlow's operations on the records' places read the images and labels that this process would read."""
    batches = stream(request.getfixturevalue(name), seed=3, crop_padding=2)
    expected = batches.train_batches(4)
    for located in take(batches.located_batches(4), 3):
        images, labels = batches.read_located(*map(tf.constant, located))
        for found, array in zip((images, labels), next(expected), strict=True):
            np.testing.assert_array_equal(found, array)


@pytest.mark.nightly
def test_two_workers_train_on_a_stream_that_each_reads_by_itself(tmp_path, data_dir):
    """They get the places of records from the chief, and no images."""
    flags = "--image_size=56 --stem_width=4 --widths=4,8 --blocks_per_stage=1,1 --batch_size=6 --train_steps=20"
    intervals = "--eval_every=10 --checkpoint_every=10 --decay_steps=15 --learning_rate=0.02"
    job = ["--strategy=parameter_server", "--num_workers=2", "--dataset=identity_tiny_jpeg", f"--data_dir={data_dir}"]
    process = processes.start(tmp_path / "run", "cluster", *job, *flags.split(), *intervals.split())
    assert process.wait() == 0, (tmp_path / "run" / "workers.log").read_text()
    row = read_metrics(str(tmp_path / "run" / "metrics.csv"))[-1]
    assert row["step"] == 20 and 0 <= row["staleness"] < 4


def test_parameter_servers_stream_only_tfds_sets(tmp_path, monkeypatch):
    monkeypatch.setattr(base_module, "MAX_BYTES_IN_MEMORY", 1000)
    source = open_source(DataConfig("mnist_sample"))
    config = TrainConfig(data=DataConfig("mnist_sample"), strategy="parameter_server")
    assert "streams only TFDS sets; mnist_sample must fit in memory" in refused(open_batches, source, config)


def test_a_streamed_step_is_the_same_whether_reached_or_jumped_to(jpeg):
    reached = take(stream(jpeg, seed=3).train_batches(0), 7)
    for step in (1, 6):
        for array, expected in zip(next(stream(jpeg, seed=3).train_batches(step)), reached[step]):
            np.testing.assert_array_equal(array, expected)
    whole = [next(stream(jpeg, seed=seed, batch_size=24).train_batches(0)) for seed in (0, 1)]
    (images, labels), (others, other_labels) = whole
    assert not np.array_equal(labels, other_labels)
    assert not np.array_equal(images[np.argsort(labels)], others[np.argsort(other_labels)])


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
    for images, labels in take(stream(jpeg, batch_size=24).train_batches(0), 6):
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
    for image in next(stream(jpeg, batch_size=24).train_batches(0))[0]:
        row, column, flipped = corner(image)
        window = gradient(0, 80, 80)[row : row + 56, column : column + 56][:, :: -1 if flipped else 1]
        assert np.abs(image[..., :2].astype(int) - window[..., :2]).max() <= JPEG


def test_streamed_test_images_are_their_central_windows(jpeg):
    assert stream(jpeg, batch_size=4).test_steps == -(-NUM_TEST // 4)  # the last of them smaller
    images, labels = open_source(jpeg).read("test", np.arange(NUM_TEST))
    assert sorted(labels) == list(range(NUM_TEST))
    for image, label in zip(images, labels):
        window = central_window(label)
        assert np.abs(image.astype(int) - window).max() <= JPEG
        assert np.abs(image[..., 0].astype(int) - window[..., 0] - 3).mean() > 2  # a row off is three levels


def test_a_streamed_window_is_resized_to_the_image_size(jpeg):
    images, labels = open_source(dataclasses.replace(jpeg, image_size=28)).read("test", np.arange(7))
    assert images.shape == (7, 28, 28, 3)
    for image, label in zip(images, labels):
        height, width = SIZES[label % 3]
        # Of the middle of two pixels.
        rows, columns = ((n - 56) // 2 + 2 * np.arange(28) + 0.5 for n in (height, width))
        inner = image[2:-2, 2:-2].astype(float)
        assert np.abs(inner[..., 0] - 3 * rows[2:-2, None]).max() <= 3
        assert np.abs(inner[..., 1] - 3 * columns[2:-2]).max() <= 3


@pytest.mark.slow
def test_streamed_run_reports_the_test_cross_entropy_of_its_final_network(png, tmp_path, monkeypatch):
    monkeypatch.setattr(base_module, "MAX_BYTES_IN_MEMORY", 1000)
    model = ModelConfig(stem_width=2, widths=(2, 4), blocks_per_stage=(1, 1))
    config = TrainConfig(model, png, train_steps=2, learning_rate=1e-3, crop_padding=0, batch_size=5, decay_steps=())
    row = training.train(config, tmp_path)
    images, labels = open_source(png).read("test", np.arange(NUM_TEST))
    logits = load_classifier(tmp_path).logits(images.astype(np.float32))
    cross_entropy = -np.mean(log_softmax(logits, axis=1)[range(NUM_TEST), labels])
    assert row["test_cross_entropy"] == pytest.approx(cross_entropy, rel=1e-5)


def test_spectra_are_of_the_first_images_that_were_not_held_out(png):
    config = TrainConfig(data=dataclasses.replace(png, validation_examples=20))
    assert first_examples(config, 10)[1].tolist() == load(png).train_labels[:4].tolist()


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> DataConfig:
    path = str(tmp_path_factory.mktemp("many"))
    IdentityMany(data_dir=path).download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=4))
    return DataConfig("identity_many", path)


def test_first_examples_in_several_files_are_the_same_however_many_are_read(many):
    whole = load(many).train_labels
    assert sorted(whole) == list(range(IdentityMany.NUM_TRAIN))
    np.testing.assert_array_equal(load(dataclasses.replace(many, train_examples=50)).train_labels, whole[:50])


class IdentityOther(IdentityTinyPng, skip_registration=True):
    """The same set with one other pixel."""

    name = "identity_tiny_png"

    def image(self, example):
        image = gradient(example, 12, 10)
        image[3, 3, 1] += example == 5
        return image


class IdentityNoKeys(IdentityTinyPng, skip_registration=True):
    """Without supervised keys, of the splits train and dev, with the features of EXTRA beside image and label."""

    EXTRA = {"note": tfds.features.Text()}

    def _info(self):
        label = tfds.features.ClassLabel(num_classes=self.NUM_TRAIN)
        features = {"picture": self.IMAGE, "kind": label, **self.EXTRA}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(self.NUM_TRAIN), "dev": self._generate_examples(self.NUM_TEST)}

    def _generate_examples(self, count):
        extra = {"note": "", "other": 0, "second": gradient(0, 12, 10)}
        for i in range(count):
            yield i, {"picture": self.image(i), "kind": i} | {name: extra[name] for name in self.EXTRA}


class IdentityTwoLabels(IdentityNoKeys, skip_registration=True):
    EXTRA = {"other": tfds.features.ClassLabel(num_classes=2)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds") / "data"
    for builder in (IdentityTinyPng, IdentityNoKeys, IdentityTwoLabels):
        builder(data_dir=str(path)).download_and_prepare()
    # A set that no code describes, as TFDS reads it from its files alone.
    shutil.copytree(path / "identity_tiny_png", path / "plain_set")
    info = path / "plain_set" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("identity_tiny_png", "plain_set"))
    for file in info.parent.glob("identity_tiny_png-*"):
        file.rename(file.with_name(file.name.replace("identity_tiny_png", "plain_set")))
    return path


@pytest.fixture
def config(prepared):
    return DataConfig("plain_set", str(prepared))


def test_a_set_without_code_is_read(config):
    assert open_source(config).num("train") == 24
    assert open_source(dataclasses.replace(config, dataset="plain_set:1.0.0")).num("test") == 7


def test_a_set_of_one_image_and_one_class_label_needs_no_supervised_keys(config):
    named = {"dataset": "identity_no_keys", "train_split": "train", "test_split": "dev"}
    config = dataclasses.replace(config, **named)
    data = load(config)
    assert (len(data.train_labels), len(data.test_labels), data.source.num_classes) == (24, 7, 24)
    np.testing.assert_array_equal(data.train_images[3], gradient(data.train_labels[3], 12, 10))
    assert "has no split 'validation', only" in refused(load, dataclasses.replace(config, test_split=""))
    assert "--test_split" in refused(load, dataclasses.replace(config, test_split="nix"))
    swapped = open_source(dataclasses.replace(config, train_split="dev", test_split="train"))
    assert (swapped.num("train"), swapped.num("test")) == (7, 24)
    for fields in (
        {"train_split": "", "test_split": "train"},
        {"dataset": "plain_set", "train_split": "test", "test_split": ""},
    ):
        config = dataclasses.replace(config, **named | fields)
        assert "is both the training and the test split" in refused(load, config)
        assert open_source(dataclasses.replace(config, validation_examples=3)).num("test") == 3


def test_a_set_of_two_class_labels_is_rejected(config):
    message = refused(load, dataclasses.replace(config, dataset="identity_two_labels", test_split="dev"))
    assert "is not an image-classification set" in message


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
@pytest.mark.parametrize("place, corner", [((0, 0), (0, 0)), ((0.5, 0.5), (5, 12)), ((0.999, 0.999), (9, 24))])
def test_a_window_is_a_part_of_an_image_pixel_by_pixel(place, corner, encoding):
    """Of 65 pixels down and 80 across 7/8 of the shorter side, 56, at a place between the first and the last."""
    image = gradient(0, 65, 80)
    encoded = getattr(tf.io, f"encode_{encoding}")(image)
    found = _window(encoded, (56, 56, 3), encoding == "jpeg", tf.constant(place, tf.float32)).numpy()
    window = image[corner[0] : corner[0] + 56, corner[1] : corner[1] + 56]
    assert np.abs(found[..., :2].astype(int) - window[..., :2]).max() <= (JPEG if encoding == "jpeg" else 0)
    assert abs(found[..., 0].mean() - window[..., 0].mean()) < 1.5  # a row off is three levels


@pytest.mark.parametrize("labels", [[-1, 3], [3, 24]])
def test_a_label_of_no_class_is_rejected(png, labels):
    words = f"labels {labels[0]}–{labels[1]} of 24 classes"
    assert words in refused(open_source(png)._source._checked_labels, np.array(labels))


@pytest.mark.parametrize(
    "error, reason",
    [
        (OSError(5, "Input/output error"), "Input/output error"),
        (tf.errors.DataLossError(None, None, "{{node Read}} a record is cut [Op:Read]\nname"), "a record is cut"),
    ],
)
def test_an_error_of_reading_has_a_short_error(png, error, reason):
    def fail():
        with open_source(png)._source._reading():
            raise error

    assert refused(fail) == f"cannot read identity_tiny_png in {png.data_dir}/identity_tiny_png/1.0.0: {reason}"


def test_set_larger_than_memory_is_shortened_without_reading_its_labels(png, monkeypatch):
    monkeypatch.setattr("identity_matters.data.tfds.MAX_BYTES_IN_MEMORY", 1000)
    source = open_source(dataclasses.replace(png, train_examples=9))
    assert source.num("train") == 9 and source._source.labels("train") is None


def test_a_smaller_image_has_a_part_of_every_pixel():
    """An image of four columns, one white; the middle two, all that interpolation would use, are black."""
    image = np.zeros((24, 24, 1), np.uint8)
    image[:, ::4] = 255
    for small in (_resize(tf.constant(image), (6, 6)), resize(image[None], 6)[0]):
        assert set(np.asarray(small)[:, 1:-1].ravel()) == {64}  # a quarter of 255
