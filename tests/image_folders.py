"""Folders of images for tests, made of arrays."""

import pathlib

import numpy as np
from PIL import Image

from identity_matters.data.digits import mnist_sample

DIGITS = "zero one two three four five six seven eight nine".split()


def write(path: pathlib.Path, image: np.ndarray, **options) -> pathlib.Path:
    """Writes an image uint8 [h, w] or [h, w, 3] to a file, in the format that its name says; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path, **options)
    return path


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def write_classes(folder: pathlib.Path, names=("ant", "bee"), count: int = 3, shape=(8, 8), suffix: str = ".png"):
    """Writes `count` images of each class, of equal names in all of them; returns the folder."""
    for label, name in enumerate(names):
        for i in range(count):
            write(folder / name / f"{i:03}{suffix}", noise(*shape, seed=100 * label + i))
    return folder


def write_digits(folder: pathlib.Path, num_train: int, num_test: int) -> pathlib.Path:
    """Writes the first digits of the embedded sample as train/CLASS/… and test/CLASS/…; returns the folder."""
    data = mnist_sample()
    for split, images, labels, count in (
        ("train", data.train_images, data.train_labels, num_train),
        ("test", data.test_images, data.test_labels, num_test),
    ):
        for i in range(count):
            write(folder / split / DIGITS[labels[i]] / f"{i:05}.png", images[i, ..., 0])
    return folder
