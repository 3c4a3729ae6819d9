"""Networks in files, which may come from others, are looked at before Keras or TensorFlow load them.

A .keras file names the classes that it is made of; none but those of this project's networks are let through. A
SavedModel is a program, and no look at it tells what it does: `identity_matters.classifier` runs it on request alone.
"""

import json
import os
import zipfile
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from identity_matters.errors import UserError, first_line
from identity_matters.fields import require
from identity_matters.model import require_usual_keras
from identity_matters.runs.files import MAX_TEXT_BYTES, open_file

# Keras's safe mode refuses Lambda and TFSMLayer where a file has them as layers, not wherever a callable may stand.
_KERAS_CLASSES = {
    "Add", "AveragePooling2D", "BatchNormalization", "Concatenate", "Conv2D", "Dense", "DTypePolicy", "Dropout",
    "Functional", "GlobalAveragePooling2D", "InputLayer", "L2", "Ones", "Pad", "RandomNormal", "ReLU",
    "VarianceScaling", "ZeroPadding2D", "Zeros", "__keras_tensor__",
}  # fmt: skip
_CLASSES = _KERAS_CLASSES | {"ScalarBias", "ScalarMultiplier"}  # of identity_matters.scalars, which model imports


def load_network(path: str) -> keras.Model:
    """Returns the network of a .keras file, without what compiled it.

    Raises UserError where it is no such file, is damaged, or holds a class that no network of this project has, or
    weights that are not finite.
    """
    require_usual_keras()
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            require(archive.getinfo("config.json").file_size <= MAX_TEXT_BYTES, "its config.json is too large")
            foreign = set(_class_names(json.loads(archive.read("config.json")))) - _CLASSES
        if foreign:
            raise UserError(f"it holds {min(foreign)!r}, which no network of this project has")
        network = keras.models.load_model(path, compile=False, safe_mode=True)
        ranks = [len(tensor.shape) for tensor in (*network.inputs, *network.outputs)]
        require(ranks == [4, 2], "it does not take images to a number for each class")
    except Exception as error:  # Keras raises anything at all on a damaged file
        raise UserError(f"cannot load {path}: {first_line(error)}") from error
    is_finite = all(np.isfinite(weights).all() for weights in network.get_weights())
    require(is_finite, f"{path} holds an infinite or NaN weight")
    return network


def _class_names(value: Any) -> Iterator[str]:
    """Yields the names of all classes in a serialised Keras object."""
    if isinstance(value, dict) and "class_name" in value:
        yield str(value["class_name"])
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _class_names(part)


def check_saved_model(path: str) -> None:
    """Raises UserError where a directory is no SavedModel, or a file of it is no regular one, to be waited for."""
    if not any(os.path.lexists(os.path.join(path, f"saved_model.{extension}")) for extension in ("pb", "pbtxt")):
        raise UserError(f"{path} is not a SavedModel of this project: there is no saved_model.pb")
    for folder, _, names in os.walk(path):
        for name in names:
            open_file(os.path.join(folder, name)).close()
