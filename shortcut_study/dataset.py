"""The paper's data: whitened leading principal components of images, one-hot targets (Li et al., appendix B)."""

from typing import NamedTuple

import numpy as np


class Regression(NamedTuple):
    """x [m, d], whitened: mean 0 and (1/m) Σ x xᵀ = I; y [m, d], one-hot."""

    x: np.ndarray
    y: np.ndarray


def whitened_components(images, labels, num_classes: int, num_components: int = 10) -> Regression:
    """The leading principal components of the images, each scaled to variance 1, and one-hot labels (Li et al., B).

    Args:
      images: [m, …], any numbers. labels: [m] int in 0 … num_classes − 1.
      num_classes: int. The number of components: inputs and targets have the width of the network.
      num_components: int.

    Raises:
      ValueError: a number of components other than that of the classes, or one that the images do not have.
    """
    if num_components != num_classes:
        raise ValueError(
            f"an n-shortcut network has inputs and targets of one width: num_components must be the number of classes, "
            f"{num_classes}, got {num_components}"
        )
    pixels = np.asarray(images).reshape(len(images), -1).astype(np.float64)
    pixels -= pixels.mean(axis=0)
    variances, directions = np.linalg.eigh(pixels.T @ pixels / len(pixels))
    variances, directions = variances[::-1][:num_components], directions[:, ::-1][:, :num_components]
    if len(variances) < num_components or variances[-1] <= 1e-12 * variances[0]:
        rank = int((variances > 1e-12 * variances[0]).sum())
        raise ValueError(f"the {len(pixels)} images span only {rank} dimensions, num_components is {num_components}")
    # An eigenvector's sign is LAPACK's choice: make its largest entry positive.
    largest = directions[np.abs(directions).argmax(axis=0), np.arange(num_components)]
    return Regression(pixels @ (directions * np.sign(largest)) / np.sqrt(variances), np.eye(num_classes)[labels])
