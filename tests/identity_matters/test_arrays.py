"""Data in memory: the embedded digits."""

import dataclasses

import numpy as np
import pytest
from refusals import refused

from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArrayData, held_out, mnist_sample
from identity_matters.data.loading import load


@pytest.fixture(scope="module")
def sample() -> ArrayData:
    return mnist_sample()


def test_the_embedded_sample_has_400_training_and_100_test_digits_of_each_class(sample):
    assert (sample.train_images.shape, sample.test_images.shape) == ((4000, 28, 28, 1), (1000, 28, 28, 1))
    assert (sample.train_images.dtype, sample.train_labels.dtype) == (np.uint8, np.int32)
    assert np.bincount(sample.train_labels).tolist() == [400] * 10
    assert np.bincount(sample.test_labels).tolist() == [100] * 10
    assert np.bincount(sample.train_labels[:200]).tolist() == [20] * 10  # the first examples are a sample of all


def test_the_embedded_training_and_test_digits_are_disjoint(sample):
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
    assert "validation_examples must be below" in refused(
        load, TrainConfig(dataset="mnist_sample", validation_examples=4000)
    )


def test_what_is_held_out_of_examples_that_come_class_by_class_is_refused(sample):
    by_class = np.argsort(sample.train_labels, kind="stable")
    images, labels = sample.train_images[by_class], sample.train_labels[by_class]
    data = dataclasses.replace(sample, train_images=images, train_labels=labels)
    assert "come class by class" in refused(held_out, data, 500) and held_out(data, 0) is data
    assert held_out(dataclasses.replace(data, train_labels=np.roll(labels, 1)), 500).num_test == 500
    assert held_out(dataclasses.replace(data, train_labels=labels * 0), 500).num_test == 500
