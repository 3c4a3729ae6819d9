"""Trained networks in any format, as functions from raw images to logits.

A SavedModel takes raw images and needs TensorFlow; the others run under every Keras backend, on images that are
standardised here. Files may come from others: see identity_matters.untrusted.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import zipfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from identity_matters.errors import UserError, first_line, note
from identity_matters.fields import require
from identity_matters.model import has_standardization, standardize
from identity_matters.runs.files import read_json
from identity_matters.runs.record import read_record
from identity_matters.saved_model_signature import CLASS_NAMES_FILE, is_signed
from identity_matters.untrusted import load_network

_MAX_OUTPUTS = 2**28  # numbers that a layer makes of the images of a batch: 1 GB


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A trained network: `logits` maps float32 images [n, h, w, c] in 0–255 to [n, r]; path is empty without a file.

    max_batch is the largest n that is assumed to fit in memory. class_names are the names of its classes, if its run or
    its file has them.
    """

    logits: Callable[[np.ndarray], np.ndarray]
    image_shape: tuple[int, int, int]
    num_classes: int
    path: str = ""
    max_batch: int = 2**20
    class_names: tuple[str, ...] = ()


def load_classifier(model: str | os.PathLike | keras.Model, trust_saved_model: bool = False) -> Classifier:
    """Returns a trained network as `evaluate` takes it.

    Args:
      model: The directory of a SavedModel; a run's model.keras; a run directory, whose saved_model is used, or else its
        model.keras, which other Keras backends than TensorFlow prefer; or a Keras model from images to one number per
        class. One that begins with Keras's Rescaling or Normalization, or is of `pretrained.load`, gets images in
        0–255, any other network standardised ones, with a note.
      trust_saved_model: Load a SavedModel that this user did not export, or that was changed since. Loading one can run
        code.

    Raises:
      UserError: it is none of these, has several inputs or outputs, or others, or is a SavedModel that is neither
        trusted nor signed by this user, or that needs TensorFlow, which is not installed.
    """
    if isinstance(model, keras.Model):
        return _network_classifier(model)
    if not isinstance(model, str | os.PathLike):
        raise UserError(f"a network must be a path or a Keras model, got {model!r}")
    path = _in_run(os.fspath(model))
    if path.endswith(".keras"):
        return _network_classifier(load_network(path), path)
    if not os.path.exists(os.path.join(path, "saved_model.pb")):
        raise UserError(f"{path} is not a SavedModel of this project: there is no saved_model.pb")
    if not trust_saved_model and not is_signed(path):
        raise UserError(
            f"{path} is not as you exported it on this machine, and loading a SavedModel can run code: if you trust "
            "its author, give --trust_saved_model (trust_saved_model=True), or else the model.keras of its run"
        )
    return _saved_model_classifier(path)


def _in_run(path: str) -> str:
    """Returns the path of the network in a run directory; the path itself if it is none."""
    names = ("saved_model.pb", "saved_model", "model.keras")  # the first: it is a SavedModel itself
    if keras.backend.backend() != "tensorflow":
        names = ("saved_model.pb", "model.keras", "saved_model")
    present = [name for name in names if os.path.lexists(os.path.join(path, name))]
    return os.path.join(path, present[0]) if present and present[0] != names[0] else path


def _network_classifier(network: keras.Model, path: str = "") -> Classifier:
    taken, given = (getattr(network, name, None) for name in ("input_shape", "output_shape"))  # a property that raises
    advice = "begin it with keras.Input((height, width, channels))"
    if taken is None:
        raise UserError(f"the network {network.name!r} has no input shape; {advice}")
    is_of_images = isinstance(taken, tuple) and len(taken) == 4
    require(is_of_images, f"the network {network.name!r} takes {_shapes(taken)}, not only images [n, h, w, c]")
    require(None not in taken[1:], f"the network {network.name!r} takes images {taken[1:]} of any size; {advice}")
    is_classifier = isinstance(given, tuple) and len(given) == 2 and len(keras.tree.flatten(network.outputs)) == 1
    numbers = f"the network {network.name!r} returns {_shapes(given)}, not one number per class [n, classes]"
    require(is_classifier, f"{numbers}; give a model with only that output: keras.Model(network.inputs, …)")
    if not path and not has_standardization(network):
        note(f"the network {network.name!r} has no layer that scales images, so they are standardised for it")
    call = functools.partial(_call_on_raw, network)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # A partial, and not a function of this one: TensorFlow counts tracings by the function's code, and from the
        # fifth network on it would warn of them.
        call = tf.function(call, reduce_retracing=True)

    def logits(images: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(call(keras.ops.convert_to_tensor(images)))

    max_batch = max(1, _MAX_OUTPUTS // _largest_output(network)) if path else Classifier.max_batch
    names = _class_names(path) if path else ()
    return Classifier(logits, tuple(network.input_shape[1:]), network.output_shape[-1], path, max_batch, names)


def _class_names(path: str) -> tuple[str, ...]:
    """Returns the names of a network's classes: from the config.json of its run, or from its file if it has none."""
    folder = os.path.dirname(os.path.abspath(path))
    with contextlib.suppress(UserError):  # a damaged config.json: a network is good without it
        record = read_record(folder)
        if record and record.class_names:
            return tuple(record.class_names)
    if path.endswith(".keras"):
        with zipfile.ZipFile(path) as archive:
            return tuple(json.loads(archive.read("metadata.json")).get("class_names", ()))
    with contextlib.suppress(OSError, ValueError):
        return tuple(read_json(os.path.join(path, CLASS_NAMES_FILE)))
    return ()


def _largest_output(network: keras.Model) -> int:
    """Returns how many numbers a network's largest layer makes of one image; each of its layers has one output."""
    return max(math.prod(layer.output.shape[1:]) for layer in network.layers)


def _shapes(value: Any) -> str:
    """Returns the shapes of a network's inputs or outputs as text."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _call_on_raw(network: keras.Model, images: Any) -> Any:
    """Returns the logits of images in 0–255."""
    return network(images if has_standardization(network) else standardize(images), training=False)


def _saved_model_classifier(path: str) -> Classifier:
    serve = _load_signature(path)
    import tensorflow as tf

    def logits(images: np.ndarray) -> np.ndarray:
        try:
            return serve(images=tf.constant(images))["logits"].numpy()
        except tf.errors.OpError as error:
            lines = [line.strip() for line in error.message.splitlines()]
            reason = [line for line in lines if line and not line.startswith("[[")][-1]  # below the trace
            raise UserError(f"{path} cannot be evaluated: {reason[:200]}") from error

    shape = tuple(serve.structured_input_signature[1]["images"].shape)[1:]
    num_classes = serve.structured_outputs["logits"].shape[-1]
    return Classifier(logits, shape, num_classes, path, class_names=_class_names(path))


def _load_signature(path: str) -> Any:
    """Returns the serving_default function of a SavedModel."""
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        raise UserError(f"a SavedModel needs {error.name}, which is not installed; give model.keras") from error
    try:
        loaded = tf.saved_model.load(path)
        serve = loaded.signatures["serving_default"]
        serve.structured_input_signature[1]["images"], serve.structured_outputs["logits"]
    except Exception as error:  # TensorFlow raises anything at all on a damaged file
        raise UserError(f"{path} is not a SavedModel of this project: {first_line(error)}") from error
    serve.keep_alive = loaded  # the variables live as long as this object
    return serve
