"""The door of data: the part of a source that a config asks for, and the embedded digits, read through it."""

import contextlib
import dataclasses
import hashlib
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
from loaded import load
from refusals import refused

from identity_matters.config import DataConfig
from identity_matters.data import base as base_module
from identity_matters.data import digits
from identity_matters.data import source as source_module
from identity_matters.data.arrays import ArraySource
from identity_matters.data.base import Source
from identity_matters.data.digits import MnistSample, mnist_sample
from identity_matters.data.source import open_source
from identity_matters.runs.record import Record

DIGITS = DataConfig("mnist_sample")


@pytest.fixture(scope="module")
def sample() -> MnistSample:
    return mnist_sample()


def test_embedded_sample_has_400_training_and_100_test_digits_per_class(sample):
    assert (sample.train_images.shape, sample.test_images.shape) == ((4000, 28, 28, 1), (1000, 28, 28, 1))
    assert (sample.train_images.dtype, sample.train_labels.dtype) == (np.uint8, np.int32)
    assert np.bincount(sample.train_labels).tolist() == [400] * 10
    assert np.bincount(sample.test_labels).tolist() == [100] * 10
    assert np.bincount(sample.train_labels[:200]).tolist() == [20] * 10  # the first examples are a sample of all
    train, test = ({image.tobytes() for image in images} for images in (sample.train_images, sample.test_images))
    assert len(train) == 4000 and len(test) == 1000 and not train & test


def test_the_embedded_digits_are_those_that_their_note_describes(sample):
    note = pathlib.Path(digits.__file__).with_name("mnist_sample.md").read_text()
    arrays = sample.train_images, sample.test_images, sample.train_labels, sample.test_labels
    assert hashlib.sha256(b"".join(array.astype(np.uint8).tobytes() for array in arrays)).hexdigest() in note


def test_the_first_so_many_examples_are_taken_on_request(sample):
    data = load(dataclasses.replace(DIGITS, train_examples=30, eval_examples=7))
    np.testing.assert_array_equal(data.train_images, sample.train_images[:30])
    np.testing.assert_array_equal(data.test_labels, sample.test_labels[:7])
    assert data.source.labels("test").tolist() == data.test_labels.tolist()


def test_validation_examples_are_the_last_training_examples_and_are_not_trained_on(sample):
    data = load(dataclasses.replace(DIGITS, validation_examples=50, train_examples=100, eval_examples=20))
    np.testing.assert_array_equal(data.train_images, sample.train_images[:100])
    np.testing.assert_array_equal(data.test_images, sample.train_images[-50:][:20])
    np.testing.assert_array_equal(data.test_labels, sample.train_labels[-50:][:20])
    everything = open_source(dataclasses.replace(DIGITS, validation_examples=50))
    assert (everything.num("train"), everything.num("test")) == (3950, 50)
    np.testing.assert_array_equal(everything.read("test", np.array([3, 1]))[0], sample.train_images[[-47, -49]])
    too_many = open_source(dataclasses.replace(DIGITS, validation_examples=4000))
    assert "validation_examples must be below" in refused(too_many.num, "train")


@pytest.mark.parametrize(
    "change, words",
    [
        ({"validation_examples": 500}, "training examples of own are sorted by class, so the last 500, which valid"),
        ({"train_examples": 400}, "training examples of own are sorted by class, so the first 400, which train_exam"),
        ({"eval_examples": 1}, "test examples of own are sorted by class, so the first 1, which eval_examples"),
    ],
)
def test_a_part_of_examples_that_come_class_by_class_is_rejected(sample, change, words):
    def part(labels, **counts):
        images = {"train": sample.train_images[: len(labels)], "test": sample.test_images}
        own = ArraySource("own", images, {"train": labels, "test": np.sort(sample.test_labels)}, 10)
        return load_part(own, DataConfig(**counts))

    labels = np.sort(sample.train_labels)
    assert words in refused(part, labels, **change)
    for counts in ({}, {"train_examples": 4000, "eval_examples": 1000}, {"train_examples": 9999}):
        assert part(labels, **counts)[0] == 4000
    if "validation_examples" in change:
        assert part(np.roll(labels, 1), **change)[1] == part(labels * 0, **change)[1] == 500


def load_part(source, config):
    """Returns the numbers of training and test examples of the part of a source that a config asks for."""
    part = source_module._Part(source, config)
    return part.num("train"), part.num("test")


@pytest.mark.parametrize("counts", [(12, 12), (3,) * 10, (4, 1000), (2,) * 100])
def test_more_examples_are_in_order_because_they_were_sorted(counts):
    labels = np.repeat(np.random.default_rng(0).permutation(len(counts)), counts)
    assert source_module.is_sorted_by_class(labels)
    for seed in range(20):
        assert not source_module.is_sorted_by_class(np.random.default_rng(seed).permutation(labels))


class Stripes(Source):
    """A data set of one's own: 12 images whose brightness is their place."""

    def __init__(self, config: DataConfig) -> None:
        self.name, self.num_classes, self.image_shape = "stripes", 3, (4, 4, 1)

    @property
    def digest(self) -> str:
        return "12 stripes"

    def num(self, split):
        return 12

    def labels(self, split):
        return np.arange(12, dtype=np.int32) % 3

    def read(self, split, indices, places=None):
        pixels = np.broadcast_to(np.asarray(indices, np.uint8)[:, None, None, None], (len(indices), 4, 4, 1))
        return pixels, self.labels(split)[indices]


def test_all_examples_are_read_in_pieces_if_they_fit_in_memory(monkeypatch):
    stripes, shown = Stripes(DIGITS), []
    bar = lambda total, **_: contextlib.nullcontext(SimpleNamespace(update=shown.append))  # noqa: E731
    monkeypatch.setattr(base_module, "tqdm", bar)
    for size in (1, 5 * 16, 2**26):
        monkeypatch.setattr(base_module, "_READ_AT_ONCE", size)
        images, labels = base_module.read_all(stripes, ("train", "test"))
        assert images.shape == (24, 4, 4, 1) and images[:, 3, 0, 0].tolist() == 2 * [*range(12)]
        assert labels.tolist() == 8 * [0, 1, 2]
    assert shown == [1] * 24 + [5, 5, 2] * 2 + [12] * 2
    for size, fits in ((383, False), (384, True)):
        monkeypatch.setattr(base_module, "MAX_BYTES_IN_MEMORY", size)
        assert base_module.fits_in_memory(stripes) == fits
    stripes.varies = True
    assert not base_module.fits_in_memory(stripes)


@pytest.mark.parametrize(
    "data, flag, place, said",
    [
        ({"npz": "/a.npz"}, "", "/a.npz", True),
        ({"images": "/photos"}, "/d", "/photos", True),
        ({"dataset": "cifar10", "data_dir": "/own"}, "", "/own", True),
        ({"dataset": "cifar10", "data_dir": "/own"}, "/d", "cifar10", False),
        ({"dataset": "cifar10"}, "", "cifar10", False),
        ({"dataset": "mnist_sample", "data_dir": "/own"}, "", "mnist_sample", False),
    ],
)
def test_where_the_data_of_a_run_lie_is_said_and_that_they_have_changed(data, flag, place, said, capfd):
    config = DataConfig(**data)
    source_module.note_data_location("config.json", config, flag)
    line = f"note: the data are read from {place!r}, which config.json names\n"
    assert capfd.readouterr().err == line * said
    for digest in ("12 stripes", ""):
        record = Record("train", {}, data_digest=digest)
        source_module.check_data_is_unchanged(Stripes(config), config, record, "the run")
    record = Record("train", {}, data_digest="13")
    found = refused(source_module.check_data_is_unchanged, Stripes(config), config, record, "the run")
    assert found.startswith(f"{config.npz or config.images or config.dataset} has changed since the run was trained")
