"""Classes of photos: a trained network's predictions for images without labels."""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
from scipy.special import softmax

from identity_matters.classifier import Classifier, load_classifier
from identity_matters.data import photos
from identity_matters.fields import require

_BATCH = 64  # images


class Answer(NamedTuple):
    """A network's prediction for one image.

    Attributes:
      file: Path of the image.
      class_name: The class with the largest logit: its name, or its number if the network has no class names.
      probability: Softmax of the logits at this class, in [0, 1].
    """

    file: str
    class_name: str
    probability: float


def classify(
    network: str | os.PathLike | keras.Model | Classifier,
    images: str | os.PathLike | Sequence[str | os.PathLike],
    class_names: Sequence[str] = (),
    trust_saved_model: bool = False,
) -> Iterator[Answer]:
    """Yields the answer of a trained network for each photo, resized as images are in training.

    Args:
      network: A run directory, its saved_model or model.keras, or what else `load_classifier` takes.
      images: The path of a PNG or JPEG file or of a folder of them, or several of these.
      class_names: The names of the classes in the order of their numbers, in place of those that the network carries.
      trust_saved_model: Load a SavedModel that this user did not export, or that was changed since: it can run code.

    Raises:
      UserError: there is no such network, it takes images of other than 1 or 3 channels, or a file is no image that it
        can take.

    >>> list(classify(keras.Sequential([keras.Input((8, 8, 2)), keras.layers.Flatten()]), "cat.png"))
    Traceback (most recent call last):
    identity_matters.errors.UserError: the network takes images of 2 channels; a PNG or JPEG has 1 or 3
    """
    model = network if isinstance(network, Classifier) else load_classifier(network, trust_saved_model)
    channels = model.image_shape[-1]
    require(channels in (1, 3), f"the network takes images of {channels} channels; a PNG or JPEG has 1 or 3")
    paths = [images] if isinstance(images, str | os.PathLike) else images
    files = photos.find([os.fspath(path) for path in paths])
    names = tuple(class_names) or model.class_names
    size = min(_BATCH, model.max_batch)
    for start in range(0, len(files), size):
        part = files[start : start + size]
        logits = np.asarray(model.logits(photos.read(part, model.image_shape).astype(np.float32)), np.float64)
        for file, row in zip(part, softmax(logits, axis=1)):
            label = int(row.argmax())
            yield Answer(file, names[label] if label < len(names) else str(label), float(row[label]))
