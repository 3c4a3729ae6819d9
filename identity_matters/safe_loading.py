"""Safety checks on files of networks from others, before Keras or TensorFlow load them.

A .keras file names the classes that it is made of; none but those of this project's networks are let through, and no
weights but those that it holds. Keras reads a copy of what was checked. A SavedModel is a program, and no check shows
what it does: `identity_matters.classifier` runs it only on request.
"""

import collections
import contextlib
import io
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import h5py
import keras
import numpy as np

from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import require
from identity_matters.jax_on_cpu import require_sound_bfloat16
from identity_matters.model import require_usual_keras
from identity_matters.runs.files import open_file

# Keras's safe mode refuses Lambda and TFSMLayer where a file has them as layers, not wherever a callable may stand.
_KERAS_CLASSES = {
    "__keras_tensor__", "Add", "AveragePooling2D", "BatchNormalization", "Cast", "Concatenate", "Conv2D",
    "ConvertToTensor", "Dense", "Dropout", "DTypePolicy", "Functional", "GlobalAveragePooling2D", "InputLayer", "L2",
    "Maximum", "Mean", "Ones", "Pad", "RandomNormal", "ReLU", "Sqrt", "Square", "Subtract", "TrueDivide",
    "VarianceScaling", "ZeroPadding2D", "Zeros",
}  # fmt: skip
_CLASSES = _KERAS_CLASSES | {"ScalarBias", "ScalarMultiplier"}  # of identity_matters.scalars, which model imports
_MEMBERS = ["config.json", "metadata.json", "model.weights.h5"]
# In a SavedModel, the names of the classes as a JSON list; TensorFlow leaves this folder to whoever exports.
CLASS_NAMES_FILE = os.path.join("assets.extra", "class_names.json")
_MAX_OUTPUT = 2**26  # numbers that a layer makes of one image
_MAX_CONFIG = 2**22  # bytes; of the largest network of this project it has a tenth


def load_network(path: str) -> keras.Model:
    """Returns the network of a .keras file, without what compiled it.

    Raises UserError where it is no such file, is damaged, or holds a class that no network of this project has, or
    weights that are not finite or not those of its layers.
    """
    require_usual_keras()
    try:
        members = _read_members(path)
        foreign = sorted(set(_class_names(json.loads(members["config.json"]))) - _CLASSES)
        require(not foreign, f"it holds {truncated_repr(foreign)}, which no network of this project has")
        with tempfile.TemporaryDirectory() as folder, _adding_no_weights_but(members["model.weights.h5"]):
            copy = os.path.join(folder, "model.keras")
            with zipfile.ZipFile(copy, "w") as archive:
                for name, content in members.items():
                    archive.writestr(name, content)
            network = keras.models.load_model(copy, compile=False, safe_mode=True)
        ranks = [len(tensor.shape) for tensor in (*network.inputs, *network.outputs)]
        require(ranks == [4, 2], "it does not map images to one number per class")
        require(largest_output(network) <= _MAX_OUTPUT, "the output of a layer does not fit in memory")
        require(all(np.isfinite(weights).all() for weights in network.get_weights()), "a weight is infinite or NaN")
        if any(layer.compute_dtype == "bfloat16" for layer in network.layers):
            require_sound_bfloat16()
    except Exception as error:  # Keras, HDF5 and zipfile raise almost any on a damaged file
        reason = error if isinstance(error, UserError) else getattr(error, "strerror", None)
        raise UserError(f"cannot load {path}: {reason or 'it is damaged, or not a network of this project'}") from error
    return network


def metadata_of(path: str) -> dict:
    """Returns the metadata.json of a .keras file that `load_network` has loaded; {} where it is no JSON object."""
    with contextlib.suppress(ValueError):
        if isinstance(metadata := json.loads(_read_members(path)["metadata.json"]), dict):
            return metadata
    return {}


def largest_output(network: keras.Model) -> int:
    """Returns how many numbers a network's largest layer makes of one image; each of its layers has one output."""
    return max(math.prod(layer.output.shape[1:]) for layer in network.layers)


def _read_members(path: str) -> dict[str, bytes]:
    """Returns the members of a .keras file; raises UserError unless they are the usual ones, of the declared sizes."""
    with open_file(path) as file, zipfile.ZipFile(file) as archive:
        require(
            sorted(archive.namelist()) == _MEMBERS, f"it does not hold {', '.join(_MEMBERS)}, each once, and no more"
        )
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        is_small = sizes["config.json"] <= _MAX_CONFIG and sum(sizes.values()) <= os.fstat(file.fileno()).st_size
        require(is_small, "it declares more than the file holds, or more layers than a network has")
        return {name: archive.open(name).read(size) for name, size in sizes.items()}  # no more, whatever it unpacks to


@contextlib.contextmanager
def _adding_no_weights_but(stored: bytes) -> Iterator[None]:
    """Opens a context in which Keras's layers get no weights but of the shapes that an HDF5 file holds, each once.

    Otherwise a file of a few kilobytes could name a layer that takes all memory.
    """
    shapes: collections.Counter = collections.Counter()

    def count(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            is_whole = item.id.get_storage_size() == item.size * item.dtype.itemsize and not item.external
            require(is_whole and item.dtype.kind in "buif", "a weight holds less than it declares, or no numbers")
            shapes[item.shape] += 1

    with h5py.File(io.BytesIO(stored), "r") as file:
        file.visititems(count)
    add_weight = keras.layers.Layer.add_weight

    def add_stored_weight(layer: keras.layers.Layer, shape: Any = None, *args: Any, **options: Any) -> Any:
        shapes[tuple(shape)] -= 1
        require(shapes[tuple(shape)] >= 0, f"a layer needs weights {truncated_repr(tuple(shape))}, and it holds none")
        return add_weight(layer, shape, *args, **options)

    with mock.patch.object(keras.layers.Layer, "add_weight", add_stored_weight):
        yield


def _class_names(value: Any) -> Iterator[str]:
    """Yields the names of all classes in a serialised Keras object."""
    if isinstance(value, dict) and "class_name" in value:
        yield str(value["class_name"])
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _class_names(part)


def check_saved_model(path: str) -> None:
    """Raises UserError unless a directory is a SavedModel of regular files: a pipe would block."""
    if not any(os.path.lexists(os.path.join(path, f"saved_model.{extension}")) for extension in ("pb", "pbtxt")):
        raise UserError(f"{path} is not a SavedModel of this project: there is no saved_model.pb")
    for folder, _, names in os.walk(path):
        for name in names:
            open_file(os.path.join(folder, name)).close()
