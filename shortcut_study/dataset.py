"""The paper's data: whitened leading principal components of images, one-hot targets (Li et al., appendix B)."""

from typing import NamedTuple

import numpy as np

from identity_matters.config import DataConfig
from identity_matters.data.base import fits_in_memory, read_all
from identity_matters.data.source import open_source
from identity_matters.errors import UserError, VaryingSizes
from shortcut_study.config import StudyConfig


class StudyData(NamedTuple):
    """The data of the jobs of the figures.

    Attributes:
      x, y: [m, d], inputs and targets of n-shortcut networks.
      images: [m, height, width, channels], as they were loaded, only for the convolutional figure.
      labels: int [m].
    """

    x: np.ndarray
    y: np.ndarray
    images: np.ndarray | None = None
    labels: np.ndarray | None = None

    def first(self, count: int) -> "StudyData":
        """Returns the data with the first `count` inputs and targets (0: all), and the images as they are."""
        return self._replace(x=self.x[:count], y=self.y[:count]) if count else self


class StudyImages(NamedTuple):
    """Training images uint8 [m, h, w, c] and labels int32 [m] in 0 … num_classes − 1."""

    images: np.ndarray
    labels: np.ndarray
    num_classes: int


def load_images(config: StudyConfig) -> StudyImages:
    """Returns the images and labels of a study.

    Raises:
      UserError: there is no such data set, its images vary in size, or it is not held in memory.
    """
    data = DataConfig(config.dataset, config.data_dir, download=config.download, train_examples=config.examples)
    try:
        source = open_source(data)
    except VaryingSizes as error:  # its advice is for launch.train
        raise UserError(
            f"the images of {config.dataset} vary in size; choose a set of small images of one size"
        ) from error
    if not fits_in_memory(source):
        raise UserError(f"dataset {config.dataset} is not held in memory; choose one of small images")
    return StudyImages(*read_all(source, ["train"]), source.num_classes)


def study_data(config: StudyConfig, data: StudyImages) -> StudyData:
    """Returns the inputs and targets that a study computes from its training images.

    Raises:
      ValueError: as `whitened_components`.
    """
    options = config.input_scale, config.centred, config.mean_over_outputs
    return StudyData(*whitened_components(*data, *options), data.images, data.labels)


def whitened_components(
    images: np.ndarray,
    labels: np.ndarray,
    num_classes: int,
    scale: float = 1.0,
    centred: bool = True,
    mean_over_outputs: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the leading principal components of images, each scaled to variance 1, and one-hot labels (Li et al., B).

    Not in the paper: the variance of the inputs, whether the mean is subtracted, and whether the loss is averaged over
    the outputs. 1/(m·d) Σ‖y − ŷ‖² is 2/d of the paper's 1/(2m) Σ‖y − ŷ‖², and networks without biases whose
    activations are linear or ReLUs have it if inputs and targets are both scaled by √(2/d).

    Args:
      images: [m, …], any numbers.
      labels: [m] int in 0 … num_classes − 1.
      num_classes: int. Also the number of components: inputs and targets have the width of the network.
      scale: float. Standard deviation of each input (root mean square if they are not centred).
      centred: bool. Subtract the mean image; else second moments about 0 are whitened.
      mean_over_outputs: bool. Scale inputs and targets such that the loss is averaged over the outputs.

    Returns:
      x: [m, d], whitened: mean 0 and (1/m) Σ x xᵀ = I by default. y: [m, d], one-hot.

    Raises:
      ValueError: labels of no class, or images of fewer dimensions than there are classes.
    """
    labels = np.asarray(labels)
    if not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(f"labels must lie in 0–{num_classes - 1}, got {labels.min()}–{labels.max()}")
    pixels = np.asarray(images).reshape(len(images), -1).astype(np.float64)
    if centred:
        pixels -= pixels.mean(axis=0)
    variances, directions = np.linalg.eigh(pixels.T @ pixels / len(pixels))
    variances, directions = variances[::-1][:num_classes], directions[:, ::-1][:, :num_classes]
    if len(variances) < num_classes or variances[-1] <= 1e-12 * variances[0]:
        rank = int((variances > 1e-12 * variances[0]).sum())
        raise ValueError(f"the {len(pixels)} images span only {rank} dimensions, there are {num_classes} classes")
    # An eigenvector's sign is LAPACK's choice: make its largest entry positive.
    largest = directions[np.abs(directions).argmax(axis=0), np.arange(num_classes)]
    whitened = pixels @ (directions * np.sign(largest)) / np.sqrt(variances)
    factor = np.sqrt(2 / num_classes) if mean_over_outputs else 1.0
    return factor * scale * whitened, factor * np.eye(num_classes)[labels]
