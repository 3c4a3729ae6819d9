"""The embedded MNIST sample, with which everything runs without a download."""

import pathlib
from typing import NamedTuple

import numpy as np

from identity_matters.config import DataConfig
from identity_matters.data.arrays import ArraySource
from identity_matters.data.base import MNIST_SAMPLE
from identity_matters.errors import note


class Digits(ArraySource):
    """`mnist_sample` as a data set of that name."""

    def __init__(self, config: DataConfig) -> None:
        if config.data_dir:
            note(f"data_dir {config.data_dir} is not used: the dataset {MNIST_SAMPLE} comes with the package")
        digits = mnist_sample()
        images = {"train": digits.train_images, "test": digits.test_images}
        labels = {"train": digits.train_labels, "test": digits.test_labels}
        super().__init__(MNIST_SAMPLE, images, labels, num_classes=10, image_size=config.image_size)


class MnistSample(NamedTuple):
    """Images uint8 [n, 28, 28, 1] and labels int32 [n], of 4,000 digits to train on and 1,000 to test on."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def mnist_sample() -> MnistSample:
    """Returns 5,000 MNIST digits, which come with the package: of each class 400 to train on, 100 to test on.

    The classes take turns, so that the first examples of a split are a sample of all of them:

    >>> mnist_sample().train_labels[:12].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    """
    with np.load(pathlib.Path(__file__).with_name("mnist_sample.npz"), allow_pickle=False) as stored:
        images, labels = stored["images"][..., None], stored["labels"].astype(np.int32)
    return MnistSample(images[:4000], labels[:4000], images[4000:], labels[4000:])
