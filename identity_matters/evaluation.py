"""Export to a SavedModel, and the top-1 and top-5 error of a SavedModel.

The SavedModel takes raw images and needs TensorFlow alone:

    serving_default: images float32 [n, h, w, c] in 0–255 -> logits, probabilities float32 [n, r]
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from identity_matters.config import TrainConfig
from identity_matters.data.loading import raw_test_batches, say_named_by
from identity_matters.fields import from_json
from identity_matters.model import standardize
from identity_matters.runs.directory import replacing
from identity_matters.runs.errors import UserError
from identity_matters.runs.files import read_json
from identity_matters.trust import check_saved_model, load_network

_DATA_FILE = os.path.join("assets.extra", "data.json")
_DATA_FIELDS = ("dataset", "data_dir", "npz", "image_size", "eval_examples")


def export(network: keras.Model, config: TrainConfig, path: str) -> None:
    """Writes the network, standardisation included, as a SavedModel that needs nothing of ours.

    Args:
      network: keras.Model. From `all_conv_resnet`.
      config: TrainConfig. Which data to evaluate on by default is stored beside the model.
      path: str. A directory, replaced if it exists.
    """
    serving = tf.Module()
    # The tf.Variables themselves: under Keras's own, TensorFlow's session loader (saved_model_cli,
    # TensorFlow Serving) restores copies that the graph does not read.
    serving.variables_served = [variable.value for variable in network.variables]
    signature = tf.TensorSpec([None, *network.input_shape[1:]], tf.float32, name="images")

    @tf.function(input_signature=[signature])
    def serve(images: tf.Tensor) -> dict[str, tf.Tensor]:
        logits = network(standardize(images), training=False)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    with replacing(path) as temporary:
        tf.saved_model.save(serving, temporary, signatures={"serving_default": serve})
        os.makedirs(os.path.join(temporary, "assets.extra"))
        with open(os.path.join(temporary, _DATA_FILE), "w") as file:
            json.dump(_data_fields(config), file)
        shutil.rmtree(path, ignore_errors=True)


def _data_fields(config: TrainConfig) -> dict:
    """Returns the fields of the config that name its data, paths as absolute ones."""
    fields = {name: getattr(config, name) for name in _DATA_FIELDS}
    # The SavedModel may be evaluated from another working directory.
    return fields | {name: os.path.abspath(fields[name]) for name in ("data_dir", "npz") if fields[name]}


def exported_data(saved_model: str) -> dict:
    """Returns the data fields of the TrainConfig of the run that exported a SavedModel.

    Raises:
      UserError: the SavedModel does not hold them.
    """
    path = os.path.join(saved_model, _DATA_FILE)
    try:
        fields = read_json(path)
        if not isinstance(fields, dict) or fields.keys() != set(_DATA_FIELDS):
            raise UserError(f"it does not hold {', '.join(_DATA_FIELDS)}")
        from_json(TrainConfig(), fields)
    except FileNotFoundError as error:
        raise UserError(f"{saved_model} does not say what data it was trained on; name a dataset") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} does not say what data the model was trained on: {error}; name a dataset") from error
    return fields


def evaluate(
    saved_model: str,
    dataset: str | tuple | Iterable | None = None,
    data_dir: str = "",
    npz: str = "",
    max_examples: int = 0,
    batch_size: int = 100,
    progress: bool = False,
    trust_saved_model: bool = False,
) -> dict[str, float]:
    """Returns the top-1 and top-5 error of a SavedModel on test images.

    An example counts as wrong where another class scores as high as its label's: on black images, whose logits are
    all 0, everything is wrong.

    >>> import tempfile
    >>> from identity_matters.model import ModelConfig, all_conv_resnet
    >>> network = all_conv_resnet(ModelConfig(image_shape=(8, 8, 1), widths=(16,), blocks_per_stage=(1,)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "saved_model")
    ...     export(network, TrainConfig(), path)
    ...     evaluate(path, (np.zeros((4, 8, 8, 1)), np.array([0, 1, 2, 3])))
    {'top1_error': 1.0, 'top5_error': 1.0, 'num_examples': 4}

    Args:
      saved_model: str. The directory of the SavedModel.
      dataset: mnist_sample or the name of a TFDS set, whose test split is used; or (images
        [n, h, w, c] in 0–255, labels [n]); or an iterable of such batches; or None: the data
        of the run that exported the model.
      data_dir, npz: str. As in TrainConfig.
      max_examples: int. How many examples to use, from the first on (0: all).
      batch_size: int. Images that are evaluated at once.
      progress: bool. Whether to show a progress bar.
      trust_saved_model: bool. Run the SavedModel, whatever it does; else the model.keras beside it in its place, or,
        where there is none, only a SavedModel that acts on neither files nor the network nor code.

    Returns:
      {"top1_error", "top5_error", "num_examples"}; errors are fractions.

    Raises:
      UserError: not a SavedModel of ours, or data that do not fit it.
    """
    serve, shape, num_classes = _load_network(saved_model, trust_saved_model)
    batches = _labelled_batches(dataset, data_dir, npz, batch_size, image_size=shape[0], saved_model=saved_model)
    top1 = top5 = num_examples = 0
    with tqdm(unit=" images", disable=not progress) as bar:
        for images, labels in _first_examples(batches, max_examples):
            _check_batch(images, labels, shape, num_classes)
            rank = _label_ranks(serve(tf.constant(images)).numpy(), labels)
            top1 += int(np.sum(rank < 1))
            top5 += int(np.sum(rank < 5))
            num_examples += len(labels)
            bar.update(len(labels))
    if not num_examples:
        raise UserError("there are no examples to evaluate on")
    return {
        "top1_error": 1 - top1 / num_examples,
        "top5_error": 1 - top5 / num_examples,
        "num_examples": num_examples,
    }


def _labelled_batches(
    dataset: str | tuple | Iterable | None, data_dir: str, npz: str, batch_size: int, image_size: int, saved_model: str
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Returns batches of raw images and labels from any of the forms that `evaluate` takes."""
    if isinstance(dataset, tuple):
        images, labels = dataset
        return ((images[i : i + batch_size], labels[i : i + batch_size]) for i in range(0, len(labels), batch_size))
    if dataset is not None and not isinstance(dataset, str):
        return dataset
    fields = {"dataset": dataset or "", "data_dir": data_dir, "npz": npz, "image_size": image_size}
    if not dataset and not npz:
        fields = exported_data(saved_model)
        say_named_by(os.path.join(saved_model, _DATA_FILE), fields["npz"] or (not data_dir and fields["data_dir"]))
        fields |= {"data_dir": data_dir} if data_dir else {}
    return raw_test_batches(dataclasses.replace(TrainConfig(), **fields), batch_size)


def _first_examples(batches: Iterable, max_examples: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the batches as arrays, up to the first max_examples examples (0: all)."""
    num_left = max_examples
    for images, labels in batches:
        if max_examples:
            images, labels = images[:num_left], labels[:num_left]
        yield np.asarray(images, np.float32), np.asarray(labels)
        num_left -= len(labels)
        if max_examples and not num_left:
            return


def _load_network(saved_model: str, is_trusted: bool) -> tuple[Callable, tuple[int, ...], int]:
    """Returns the function from raw images to logits, the shape of an image, and the number of classes."""
    beside = os.path.join(os.path.dirname(os.path.normpath(saved_model)), "model.keras")
    if is_trusted or not os.path.lexists(beside):
        serve = _load_signature(saved_model, is_trusted)
        shape = tuple(serve.structured_input_signature[1]["images"].shape)[1:]
        return lambda images: serve(images=images)["logits"], shape, serve.structured_outputs["logits"].shape[-1]
    if not os.path.isdir(saved_model):
        raise UserError(f"{saved_model} is not a SavedModel of this project: no such directory")
    network = load_network(beside)
    logits = tf.function(lambda images: network(standardize(images), training=False), reduce_retracing=True)
    return logits, tuple(network.input_shape)[1:], network.output_shape[-1]


def _load_signature(saved_model: str, is_trusted: bool) -> Any:
    """Returns the serving_default function of a SavedModel."""
    if not is_trusted:
        check_saved_model(saved_model)
    try:
        loaded = tf.saved_model.load(saved_model)
        serve = loaded.signatures["serving_default"]
        serve.structured_input_signature[1]["images"], serve.structured_outputs["logits"]
    except Exception as error:  # TensorFlow raises anything at all on a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{saved_model} is not a SavedModel of this project: {reason}") from error
    serve.keep_alive = loaded  # the variables live as long as this object
    return serve


def _check_batch(images: np.ndarray, labels: np.ndarray, shape: tuple, num_classes: int) -> None:
    """Raises UserError where a batch does not fit the model."""
    if images.shape[1:] != shape:
        raise UserError(f"the model takes images {shape}, the data are {images.shape[1:]}")
    if labels.shape != images.shape[:1]:
        raise UserError(f"{len(images)} images, but labels of shape {labels.shape}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"labels must be integers, got {labels.dtype}")
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise UserError(f"labels must lie in 0–{num_classes - 1}, got {labels.min()}–{labels.max()}")


def _label_ranks(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns how many classes score above the label's: int [n]. Ties and logits that are not finite count as above."""
    label_scores = np.take_along_axis(logits, labels[:, None], axis=1)
    num_not_below = np.sum(~(logits < label_scores), axis=1)  # the label itself is one of them
    return num_not_below - 1
