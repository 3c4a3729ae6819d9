"""Data in memory: the embedded digits."""

import dataclasses

import numpy as np
import pytest
from refusals import refused

from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArrayData, held_out, mnist_sample, require_mixed, shortened
from identity_matters.data.loading import load, raw_test_batches


@pytest.fixture(scope="module")
def sample() -> ArrayData:
    return mnist_sample()


def test_the_embedded_sample_has_400_training_and_100_other_test_digits_of_each_class(sample):
    assert (sample.train_images.shape, sample.test_images.shape) == ((4000, 28, 28, 1), (1000, 28, 28, 1))
    assert (sample.train_images.dtype, sample.train_labels.dtype) == (np.uint8, np.int32)
    assert np.bincount(sample.train_labels).tolist() == [400] * 10
    assert np.bincount(sample.test_labels).tolist() == [100] * 10
    assert np.bincount(sample.train_labels[:200]).tolist() == [20] * 10  # the first examples are a sample of all
    train, test = ({image.tobytes() for image in images} for images in (sample.train_images, sample.test_images))
    assert len(train) == 4000 and len(test) == 1000 and not train & test


def test_the_embedded_digits_have_their_labels(sample):
    """Class means tell 4 of 5 test digits apart, on other pixels or labels than these 1 of 10."""
    means = np.stack([sample.train_images[sample.train_labels == c].mean(0).ravel() for c in range(10)])
    test = sample.test_images.reshape(1000, -1).astype(np.float64)
    nearest = np.argmin(((test[:, None] - means) ** 2).sum(-1), axis=1)
    assert np.mean(nearest == sample.test_labels) > 0.75
    assert np.mean(nearest == np.roll(sample.test_labels, 1)) < 0.25


def test_the_first_so_many_examples_are_taken_on_request(sample):
    data = load(TrainConfig(dataset="mnist_sample", train_examples=30, eval_examples=7))
    np.testing.assert_array_equal(data.train_images, sample.train_images[:30])
    np.testing.assert_array_equal(data.test_labels, sample.test_labels[:7])


def test_validation_examples_are_the_last_training_examples_and_are_not_trained_on(sample):
    data = load(TrainConfig(dataset="mnist_sample", validation_examples=50, train_examples=100, eval_examples=20))
    np.testing.assert_array_equal(data.train_images, sample.train_images[:100])
    np.testing.assert_array_equal(data.test_images, sample.train_images[-50:][:20])
    np.testing.assert_array_equal(data.test_labels, sample.train_labels[-50:][:20])
    everything = load(TrainConfig(dataset="mnist_sample", validation_examples=50))
    assert (everything.num_train, everything.num_test) == (3950, 50)
    too_many = TrainConfig(dataset="mnist_sample", validation_examples=4000)
    assert "validation_examples must be below" in refused(load, too_many)


@pytest.fixture(scope="module")
def by_class(sample) -> ArrayData:
    """The sample with both splits sorted by class."""
    order = {split: np.argsort(getattr(sample, f"{split}_labels"), kind="stable") for split in ("train", "test")}
    names = [(split, f"{split}_{kind}") for split in order for kind in ("images", "labels")]
    return dataclasses.replace(sample, **{name: getattr(sample, name)[order[split]] for split, name in names})


def test_what_is_held_out_of_examples_that_come_class_by_class_is_refused(by_class):
    labels = by_class.train_labels
    assert refused(held_out, by_class, 500) == (
        "the training examples of mnist_sample are sorted by class, so the last 500, which validation_examples "
        "holds out, are not a random sample of them; shuffle them"
    )
    assert held_out(by_class, 0) is by_class
    assert held_out(dataclasses.replace(by_class, train_labels=np.roll(labels, 1)), 500).num_test == 500
    assert held_out(dataclasses.replace(by_class, train_labels=labels * 0), 500).num_test == 500


def test_the_first_of_examples_that_come_class_by_class_are_refused(sample, by_class, tmp_path):
    words = "examples of mnist_sample are sorted by class, so the first"
    assert f"the training {words} 400, which train_examples takes" in refused(shortened, by_class, 400, 0)
    assert f"the test {words} 999, which eval_examples takes" in refused(shortened, by_class, 0, 999)
    for counts in ((0, 0), (4000, 1000), (9999, 9999)):
        np.testing.assert_array_equal(shortened(by_class, *counts).train_labels, by_class.train_labels)
    assert shortened(sample, 5, 1).num_train == 5
    names = [f"{split}_{kind}" for split in ("train", "test") for kind in ("images", "labels")]
    np.savez(tmp_path / "own.npz", **{name: getattr(by_class, name) for name in names})
    config = TrainConfig(npz=tmp_path / "own.npz", eval_examples=100)
    assert "the test examples of own.npz are sorted by class" in refused(next, raw_test_batches(config, 100))
    assert "the test examples of own.npz are sorted by class" in refused(load, config)


@pytest.mark.parametrize("counts", [(5, 5), (2, 2, 2), (1, 9), (10, 10), (1,) * 20, (12,), (1, 1000), (999999, 1)])
def test_a_few_examples_or_rare_classes_may_be_in_order_by_chance(counts):
    require_mixed(np.repeat(np.arange(len(counts)), counts), "examples", "first")


@pytest.mark.parametrize("counts", [(12, 12), (3,) * 10, (4, 1000), (2,) * 100])
def test_more_examples_are_in_order_because_they_were_sorted(counts):
    labels = np.repeat(np.random.default_rng(0).permutation(len(counts)), counts)
    assert "shuffle them" in refused(require_mixed, labels, "examples", "first")
    for seed in range(20):
        require_mixed(np.random.default_rng(seed).permutation(labels), "examples", "first")
