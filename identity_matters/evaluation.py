"""The top-1 and top-5 error of a trained network: a SavedModel, a run's model.keras, or a Keras model."""

import dataclasses
import itertools
import operator
import os
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.classifier import Classifier, load_classifier
from identity_matters.config import DataConfig, TrainConfig
from identity_matters.data.arrays import as_examples, as_labels, check_dataset_is_reloadable
from identity_matters.data.base import Source
from identity_matters.data.folder import TEST, split_folder
from identity_matters.data.given import is_batched, read_batches
from identity_matters.data.source import check_data_is_unchanged, note_data_location, open_source
from identity_matters.errors import UserError, note
from identity_matters.export import export
from identity_matters.fields import coerce, require
from identity_matters.optimization import in_top_k
from identity_matters.runs.record import Record, read_record

__all__ = ["Classifier", "evaluate", "export", "load_classifier"]

_NO_DATASET = "a dataset must be a name, (images, labels), or batches of (images, labels)"


def evaluate(
    saved_model: str | os.PathLike | keras.Model | Classifier,
    dataset: str | tuple | Iterable | None = None,
    max_examples: int = 0,
    batch_size: int = 100,
    progress: bool = False,
    trust_saved_model: bool = False,
    **data: Any,
) -> dict[str, float]:
    """Returns the top-1 and top-5 error of a trained network on test images.

    An example counts as wrong if another class scores as high as its label's. So black images, whose logits are all 0,
    are wrong.

    >>> import tempfile
    >>> from identity_matters.model import ModelConfig, all_conv_resnet
    >>> network = all_conv_resnet(ModelConfig(image_shape=(8, 8, 1), widths=(16,), blocks_per_stage=(1,)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "saved_model")
    ...     export(network, path)
    ...     evaluate(path, (np.zeros((4, 8, 8, 1)), np.array([0, 1, 2, 3])))
    {'top1_error': 1.0, 'top5_error': 1.0, 'num_examples': 4}

    Args:
      saved_model: The directory of a SavedModel, or another argument or the result of `load_classifier`.
      dataset: mnist_sample or the name of a TFDS set, whose test split is used; or (images, labels) as
        identity_matters.data.arrays takes them; or batches, images [n, h, w, c] in 0–255 and labels [n] or
        one-hot, of tf.data, a PyDataset or another iterable; or None: npz, images or the data of the run.
      max_examples: Evaluate on the first max_examples examples (0: all).
      batch_size: Images that are evaluated at once; fewer if a network's layers would need more than 1 GB of memory.
      progress: Show a progress bar.
      trust_saved_model: Load a SavedModel that this user did not export, or that was changed since: it can run code.
      **data: Other fields of a DataConfig: npz, images, test_share, test_split, data_dir. In the place of the run's.

    Returns:
      {"top1_error", "top5_error", "num_examples"}; errors are fractions.

    Raises:
      UserError: it is not a network of this project, the data do not fit it, or a number is out of range.
    """
    max_examples = coerce("max_examples", int, max_examples)
    batch_size = coerce("batch_size", int, batch_size)
    require(max_examples >= 0, f"max_examples must be at least 0, got {max_examples}")
    names = [field.name for field in dataclasses.fields(DataConfig)]
    unknown = ", ".join(set(data) - set(names))
    require(not unknown, f"evaluate takes no argument {unknown}; of data it takes {', '.join(names)}")
    data = {name: value for name, value in data.items() if value}
    places = {"dataset": "a dataset", "npz": "an npz", "images": "images"}
    given = [words for name, words in places.items() if (dataset is not None if name == "dataset" else name in data)]
    require(len(given) < 2, f"{' and '.join(given)} are both given; give one of them")
    require(batch_size >= 1, f"batch_size must be at least 1, got {batch_size}")
    model = saved_model if isinstance(saved_model, Classifier) else load_classifier(saved_model, trust_saved_model)
    batch_size = min(batch_size, model.max_batch)
    count, batches = _labelled_batches(dataset, data, batch_size, model, is_whole=not max_examples)
    top1, top5, num_examples = _num_right(model, batches, count, max_examples, progress)
    require(num_examples > 0, "there are no examples to evaluate on")
    return {
        "top1_error": (num_examples - top1) / num_examples,
        "top5_error": (num_examples - top5) / num_examples,
        "num_examples": num_examples,
    }


def _num_right(
    model: Classifier, batches: Iterable, count: int, max_examples: int, progress: bool
) -> tuple[int, int, int]:
    """Returns how many examples have their label's score highest, how many among the five highest, and their number.

    count is the number of examples in the batches, or 0 if it is not known.
    """
    top1 = top5 = num_examples = 0
    total = min(filter(None, (count, max_examples)), default=None)
    # The bar is drawn at the first batch, after the lines about the data.
    with tqdm(total=total, unit=" images", disable=not progress, delay=0.01) as bar:
        for images, labels in _first_examples(batches, max_examples):
            _check_batch(images, labels, model.image_shape, model.num_classes)
            logits = keras.ops.convert_to_tensor(model.logits(images))
            top1 += int(keras.ops.sum(in_top_k(labels, logits, 1)))
            top5 += int(keras.ops.sum(in_top_k(labels, logits, 5)))
            num_examples += len(labels)
            bar.update(len(labels))
        bar.total = num_examples
    return top1, top5, num_examples


def _labelled_batches(
    dataset: str | tuple | Iterable | None, data: dict[str, Any], batch_size: int, model: Classifier, is_whole: bool
) -> tuple[int, Iterable]:
    """Returns the number of examples (0: not known) and batches of them, of any of the forms that `evaluate` takes.

    is_whole says whether all of them are read.
    """
    if isinstance(dataset, list) and len(dataset) == 2 and all(hasattr(array, "shape") for array in dataset):
        dataset = tuple(dataset)
    if isinstance(dataset, tuple):
        require(len(dataset) == 2, f"a dataset of arrays must be (images, labels), got {len(dataset)} of them")
        images, labels = as_examples(*dataset)
        require(len(images) == len(labels), f"{len(images)} images, but {len(labels)} labels")
        parts = (slice(i, i + batch_size) for i in range(0, len(labels), batch_size))
        return len(labels), ((images[part], labels[part]) for part in parts)
    if dataset is not None and not isinstance(dataset, str):
        require(is_batched(dataset), _NO_DATASET)
        batches = read_batches("the dataset", dataset, is_whole)
        first = next(batches, None)
        if first is None:
            raise UserError("there are no examples to evaluate on")
        return operator.length_hint(dataset) * len(first[1]), itertools.chain([first], batches)
    source = open_test_data(model, data | ({"dataset": dataset} if dataset else {}))
    indices = np.arange(source.num("test"))
    starts = range(0, len(indices), batch_size)
    return len(indices), (source.read("test", indices[start : start + batch_size]) for start in starts)


def open_test_data(model: Classifier, named: dict[str, Any]) -> Source:
    """Returns the data that fields of a DataConfig name, or those of the run of a network, for its test split.

    Images are resized to the network's input size, with a note.

    Raises:
      UserError: as `open_source`, or they are those of a run, and nothing has stored them or they have changed.
    """
    height, width, _ = model.image_shape
    defaults: dict[str, Any] = {"image_size": height if height == width else 0}  # a run's image_size makes squares
    is_of_run = not named.keys() & {"dataset", "npz", "images"}
    trained_on, record = _data_of_run(model.path, is_needed=is_of_run)
    if is_of_run:
        note_data_location(os.path.join(_folder(model.path), "config.json"), trained_on, named.get("data_dir", ""))
        defaults = vars(trained_on) | {"num_classes": 0, "validation_examples": 0}
    config = DataConfig(**defaults | named)
    trained = trained_on.train_split or "train"
    if config.test_split and config.test_split == trained:
        note(f"the split {trained!r} is one that networks are trained on: this is not a test error")
    if config.npz or config.images:
        config = dataclasses.replace(config, num_classes=model.num_classes)
    if config.images:
        source = open_source(_with_share(config, trained_on), None, model.class_names, model.image_shape)
    else:
        source = open_source(config)
        if source.stored_size != source.image_shape[:2] and source.stored_size is not None:
            size, new_size = ("x".join(map(str, sides)) for sides in (source.stored_size, source.image_shape[:2]))
            note(f"{source.name}: images of {size} pixels are resized to {new_size}")
    if is_of_run:
        check_data_is_unchanged(
            open_source(trained_on) if trained_on.images else source, trained_on, record, model.path
        )
    return source


def _folder(path: str) -> str:
    return os.path.dirname(os.path.abspath(path))


def _data_of_run(path: str, is_needed: bool) -> tuple[DataConfig, Record | None]:
    """Returns the data of the run that left a network at a path, and what its config.json says.

    Raises:
      UserError: it is needed, and there is no such run, or nothing has stored its data.
    """
    if not path:
        require(not is_needed, "name a dataset, an npz, or (images, labels) to evaluate on")
        return DataConfig(), None
    try:
        record = read_record(_folder(path))
        if record is None:
            raise UserError("it is not there")
        config = record.config_as(TrainConfig()).data
    except UserError as error:
        if not is_needed:
            return DataConfig(), None
        place = os.path.join(_folder(path), "config.json")
        raise UserError(f"{place} does not say what data the model was trained on: {error}; name a dataset") from error
    if is_needed:
        check_dataset_is_reloadable(config.dataset)
    return config, record


def _with_share(config: DataConfig, trained_on: DataConfig) -> DataConfig:
    """Returns the config of a folder with the share of it to evaluate on.

    If the config has none, all of a folder is evaluated; of the run's own folder, only the share that was held out.
    """
    has_split = bool(split_folder(config.images, config.test_split, TEST))
    share = config.test_share
    of_run = trained_on.test_share
    if of_run and not has_split and not share:
        is_own = os.path.realpath(config.images) == os.path.realpath(trained_on.images)
        share = of_run if is_own else share
        instead = f"; if the run was trained on it, give its --test_share={of_run:g} (test_share={of_run:g})"
        message = f"the run's test_share, {of_run:g}, is evaluated" if is_own else f"all of it is evaluated{instead}"
        note(f"{config.images}: there is no test/; {message}")
    return dataclasses.replace(config, test_share=share % 1)  # 1: all


def _first_examples(batches: Iterable, max_examples: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the batches, arrays of images and labels, up to the first max_examples examples (0: all)."""
    num_left = max_examples
    for images, labels in batches:
        if labels.ndim == 2:  # one-hot
            labels, _ = as_labels("labels", labels)
        if max_examples:
            images, labels = images[:num_left], labels[:num_left]
        yield images.astype(np.float32, copy=False), labels
        num_left -= len(labels)
        if max_examples and not num_left:
            return


def _check_batch(images: np.ndarray, labels: np.ndarray, shape: tuple, num_classes: int) -> None:
    """Raises UserError if a batch does not fit the model."""
    require(images.shape[1:] == shape, f"the model takes images {shape}, the data are {images.shape[1:]}")
    require(labels.shape == images.shape[:1], f"{len(images)} images, but labels of shape {labels.shape}")
    require(np.issubdtype(labels.dtype, np.integer), f"labels must be integers, got {labels.dtype}")
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise UserError(f"labels must lie in 0–{num_classes - 1}, got {labels.min()}–{labels.max()}")
