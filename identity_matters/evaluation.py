"""The top-1 and top-5 error of a trained network: a SavedModel, a run's model.keras, or a Keras model.

A SavedModel takes raw images and needs TensorFlow; the others run under every Keras backend, on images that are
standardised here.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.config import TrainConfig
from identity_matters.data.loading import raw_test_batches
from identity_matters.data.own import as_examples, require_stored
from identity_matters.export import DATA_FIELDS, DATA_FILE, export
from identity_matters.model import standardize
from identity_matters.runs.directory import read_record
from identity_matters.runs.errors import UserError

__all__ = ["Classifier", "evaluate", "export", "exported_data", "load_classifier"]


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A trained network, however it is stored.

    Attributes:
      logits: Function from float32 images [n, h, w, c] in 0–255 to logits [n, r].
      image_shape: (height, width, channels).
      num_classes: int. r.
      path: str. Where it is stored (empty: nowhere).
    """

    logits: Callable[[np.ndarray], np.ndarray]
    image_shape: tuple[int, int, int]
    num_classes: int
    path: str = ""


def load_classifier(model: str | os.PathLike | keras.Model) -> Classifier:
    """Returns a trained network as `evaluate` takes it.

    Args:
      model: The directory of a SavedModel; a run's model.keras; or a Keras model from standardised images to logits.

    Raises:
      UserError: it is none of them, or a SavedModel where there is no TensorFlow.
    """
    if isinstance(model, keras.Model):
        return _of_network(model)
    path = os.fspath(model)
    if path.endswith(".keras"):
        return _of_network(_load_network(path), path)
    serve = _load_signature(path)

    def logits(images: np.ndarray) -> np.ndarray:
        return serve(images=images)["logits"].numpy()

    shape = tuple(serve.structured_input_signature[1]["images"].shape)[1:]
    return Classifier(logits, shape, serve.structured_outputs["logits"].shape[-1], path)


def _of_network(network: keras.Model, path: str = "") -> Classifier:
    def logits(images: np.ndarray) -> np.ndarray:
        return keras.ops.convert_to_numpy(network(standardize(images), training=False))

    return Classifier(logits, tuple(network.input_shape[1:]), network.output_shape[-1], path)


def _load_network(path: str) -> keras.Model:
    """Returns the network of a model.keras file."""
    try:
        network = keras.saving.load_model(path, compile=False)
        if len(network.input_shape) != 4 or len(network.output_shape) != 2:
            raise ValueError(f"it takes {network.input_shape} and returns {network.output_shape}")
        return network
    except Exception as error:  # Keras raises anything at all on a damaged file
        raise UserError(f"{path} is not a model.keras of this project: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def exported_data(saved_model: str) -> dict:
    """Returns the data fields of the TrainConfig of the run that left a SavedModel, or a model.keras.

    Raises:
      UserError: the SavedModel does not hold them, no config.json lies beside model.keras, or nothing has stored them.
    """
    if not saved_model:
        raise UserError("name a dataset, an npz, or (images, labels) to evaluate on")
    fields = _record_fields(saved_model) if saved_model.endswith(".keras") else _saved_model_fields(saved_model)
    require_stored(str(fields["dataset"]))
    return fields


def _record_fields(path: str) -> dict:
    record = read_record(os.path.dirname(path) or ".")
    if record is None or not set(DATA_FIELDS) <= record["config"].keys():
        raise UserError(f"there is no config.json of a run beside {path}; name a dataset")
    return {name: record["config"][name] for name in DATA_FIELDS}


def _saved_model_fields(saved_model: str) -> dict:
    try:
        with open(os.path.join(saved_model, DATA_FILE)) as file:
            fields = json.load(file)
        if not isinstance(fields, dict) or fields.keys() != set(DATA_FIELDS):
            raise UserError(f"its {DATA_FILE} does not hold {', '.join(DATA_FIELDS)}")
        return fields
    except (OSError, ValueError) as error:
        raise UserError(f"{saved_model} does not say what data it was trained on; name a dataset") from error


def evaluate(
    saved_model: str | os.PathLike | keras.Model | Classifier,
    dataset: str | tuple | Iterable | None = None,
    data_dir: str | os.PathLike = "",
    npz: str | os.PathLike = "",
    max_examples: int = 0,
    batch_size: int = 100,
    progress: bool = False,
) -> dict[str, float]:
    """Returns the top-1 and top-5 error of a trained network on test images.

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
      saved_model: The directory of a SavedModel, or what else `load_classifier` takes, or gives.
      dataset: mnist_sample or the name of a TFDS set, whose test split is used; or (images, labels) as
        identity_matters.data.own takes them; or an iterable of batches, images [n, h, w, c] in 0–255 and labels [n];
        or None: the data of the run that exported the model.
      data_dir, npz: As in TrainConfig.
      max_examples: int. How many examples to use, from the first on (0: all).
      batch_size: int. Images that are evaluated at once.
      progress: bool. Whether to show a progress bar.

    Returns:
      {"top1_error", "top5_error", "num_examples"}; errors are fractions.

    Raises:
      UserError: not a network of ours, or data that do not fit it.
    """
    model = saved_model if isinstance(saved_model, Classifier) else load_classifier(saved_model)
    batches = _labelled_batches(dataset, data_dir, npz, batch_size, model)
    top1 = top5 = num_examples = 0
    with tqdm(unit=" images", disable=not progress) as bar:
        for images, labels in _first_examples(batches, max_examples):
            _check_batch(images, labels, model.image_shape, model.num_classes)
            rank = _label_ranks(model.logits(images), labels)
            top1 += int(np.sum(rank < 1))
            top5 += int(np.sum(rank < 5))
            num_examples += len(labels)
            bar.update(len(labels))
    if not num_examples:
        raise UserError("there are no examples to evaluate on")
    return {
        "top1_error": (num_examples - top1) / num_examples,
        "top5_error": (num_examples - top5) / num_examples,
        "num_examples": num_examples,
    }


def _labelled_batches(
    dataset: str | tuple | Iterable | None, data_dir: str, npz: str, batch_size: int, model: Classifier
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Returns batches of raw images and labels from any of the forms that `evaluate` takes."""
    if isinstance(dataset, tuple):
        if len(dataset) != 2:
            raise UserError(f"a dataset of arrays must be (images, labels), got {len(dataset)} of them")
        images, labels = as_examples(*dataset)
        return ((images[i : i + batch_size], labels[i : i + batch_size]) for i in range(0, len(labels), batch_size))
    if dataset is not None and not isinstance(dataset, str):
        return dataset
    fields = {"dataset": dataset or "", "data_dir": data_dir, "npz": npz, "image_size": model.image_shape[0]}
    if not dataset and not npz:
        fields = exported_data(model.path) | ({"data_dir": data_dir} if data_dir else {})
    if fields["npz"]:
        fields["num_classes"] = model.num_classes
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


def _load_signature(saved_model: str) -> Any:
    """Returns the serving_default function of a SavedModel."""
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        network = os.path.join(os.path.dirname(saved_model.rstrip(os.sep)), "model.keras")
        raise UserError(f"a SavedModel needs {error.name}, which is not installed here; give {network}") from error
    try:
        loaded = tf.saved_model.load(saved_model)
        serve = loaded.signatures["serving_default"]
        serve.structured_input_signature[1]["images"], serve.structured_outputs["logits"]
    except Exception as error:  # TensorFlow raises anything at all on a damaged file
        raise UserError(f"{saved_model} is not a SavedModel of this project: {_first_line(error)}") from error
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
