"""The top-1 and top-5 error of a trained network: a SavedModel, a run's model.keras, or a Keras model."""

import contextlib
import dataclasses
import functools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.classifier import Classifier, load_classifier
from identity_matters.config import ModelConfig, TrainConfig
from identity_matters.data.arrays import note
from identity_matters.data.given_batches import batches_of, is_batched
from identity_matters.data.image_files import TEST
from identity_matters.data.loading import raw_test_batches, say_named_by
from identity_matters.data.user_arrays import as_examples, as_integers, as_numbers, require_stored
from identity_matters.errors import UserError
from identity_matters.export import export
from identity_matters.fields import converted, from_json, require
from identity_matters.optimization import is_among_highest
from identity_matters.runs.config_json import data_places
from identity_matters.runs.directory import require_unchanged
from identity_matters.runs.files import read_json

__all__ = ["Classifier", "evaluate", "export", "exported_data", "load_classifier"]

DATA_FIELDS = (
    "dataset", "data_dir", "npz", "images", "test_share", "train_split", "test_split", "image_size", "eval_examples"
)  # fmt: skip
_SHARES = "num_classes", "train_examples", "validation_examples"  # of the data, whose digest depends on them
_NO_DATASET = "a dataset must be a name, (images, labels), or batches of (images, labels)"


def exported_data(saved_model: str) -> dict:
    """Returns the data fields of the TrainConfig of the run that left a SavedModel, or a model.keras, in its directory.

    Raises:
      UserError: no config.json of a run lies beside it, nothing has stored its data, or they have changed.
    """
    require(bool(saved_model), "name a dataset, an npz, or (images, labels) to evaluate on")
    path = _config_path(saved_model)
    try:
        contents = read_json(path)
        found = {name: contents["config"][name] for name in (*DATA_FIELDS, *_SHARES) if name in contents["config"]}
        found |= {"dataset": contents["config"]["dataset"]} | data_places(contents)  # older runs lack the others
        config = from_json(TrainConfig(), found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not say what data the model was trained on: {error}; name a dataset") from error
    require_stored(config.dataset)
    require_unchanged(config, contents, saved_model)
    return {name: getattr(config, name) for name in DATA_FIELDS}


def _config_path(saved_model: str) -> str:
    """Returns the path of the config.json of the run that left a network."""
    return os.path.join(os.path.dirname(os.path.abspath(saved_model)), "config.json")


def evaluate(
    saved_model: str | os.PathLike | keras.Model | Classifier,
    dataset: str | tuple | Iterable | None = None,
    data_dir: str | os.PathLike = "",
    npz: str | os.PathLike = "",
    max_examples: int = 0,
    batch_size: int = 100,
    progress: bool = False,
    trust_saved_model: bool = False,
    images: str | os.PathLike = "",
    test_share: float = 0.0,
    test_split: str = "",
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
    ...     evaluate(path, (np.zeros((4, 8, 8, 1)), np.array([0, 1, 2, 3])), trust_saved_model=True)
    {'top1_error': 1.0, 'top5_error': 1.0, 'num_examples': 4}

    Args:
      saved_model: The directory of a SavedModel, or another argument or the result of `load_classifier`.
      dataset: mnist_sample or the name of a TFDS set, whose test split is used; or (images, labels) as
        identity_matters.data.user_arrays takes them; or batches, images [n, h, w, c] in 0–255 and labels [n] or
        one-hot, of tf.data, a PyDataset or another iterable; or None: npz, images or the data of the run.
      data_dir, npz, images, test_share, test_split: As in launch.evaluate.
      max_examples: Evaluate on the first max_examples examples (0: all).
      batch_size: Images that are evaluated at once; fewer if a network's layers would need more than 1 GB of memory.
      progress: Show a progress bar.
      trust_saved_model: Run the SavedModel, which is a program; otherwise the model.keras beside it is used.

    Returns:
      {"top1_error", "top5_error", "num_examples"}; errors are fractions.

    Raises:
      UserError: it is not a network of this project, the data do not fit it, or a number is out of range.
    """
    max_examples, batch_size = converted("max_examples", int, max_examples), converted("batch_size", int, batch_size)
    require(max_examples >= 0, f"max_examples must be at least 0, got {max_examples}")
    given = ["a dataset"] * (dataset is not None) + ["an npz"] * bool(npz) + ["images"] * bool(images)
    require(len(given) < 2, f"{' and '.join(given)} are both given; give one of them")
    require(batch_size >= 1, f"batch_size must be at least 1, got {batch_size}")
    model = saved_model if isinstance(saved_model, Classifier) else load_classifier(saved_model, trust_saved_model)
    batch_size = min(batch_size, model.max_batch)
    named = {"data_dir": data_dir, "npz": npz, "images": images, "test_share": test_share, "test_split": test_split}
    batches = functools.partial(_labelled_batches, dataset, named, batch_size, model)
    top1, top5, num_examples = _num_right(model, batches, max_examples, progress)
    require(num_examples > 0, "there are no examples to evaluate on")
    return {
        "top1_error": (num_examples - top1) / num_examples,
        "top5_error": (num_examples - top5) / num_examples,
        "num_examples": num_examples,
    }


def _num_right(model: Classifier, open_batches: Callable, max_examples: int, progress: bool) -> tuple[int, int, int]:
    """Returns how many examples have their label's score highest, how many among the five highest, and their number."""
    top1 = top5 = num_examples = 0
    # The bar is drawn at the first batch, after the lines about the data.
    with tqdm(total=max_examples or None, unit=" images", disable=not progress, delay=0.01) as bar:

        def expect(count: int) -> None:
            bar.total = min(count, max_examples or count)

        for images, labels in _first_examples(open_batches(expect), max_examples):
            _check_batch(images, labels, model.image_shape, model.num_classes)
            logits = keras.ops.convert_to_tensor(model.logits(images))
            top1 += int(keras.ops.sum(is_among_highest(labels, logits, 1)))
            top5 += int(keras.ops.sum(is_among_highest(labels, logits, 5)))
            num_examples += len(labels)
            bar.update(len(labels))
        bar.total = num_examples
    return top1, top5, num_examples


def _labelled_batches(
    dataset: str | tuple | Iterable | None,
    named: dict[str, Any],
    batch_size: int,
    model: Classifier,
    expect: Callable[[int], object],
) -> Iterable:
    """Returns batches of raw images and labels from any of the forms that `evaluate` takes.

    expect is called with the number of examples as soon as it is known.
    """
    if isinstance(dataset, list) and len(dataset) == 2 and all(hasattr(array, "shape") for array in dataset):
        dataset = tuple(dataset)
    if isinstance(dataset, tuple):
        require(len(dataset) == 2, f"a dataset of arrays must be (images, labels), got {len(dataset)} of them")
        images, labels = as_examples(*dataset)
        require(len(images) == len(labels), f"{len(images)} images, but {len(labels)} labels")
        expect(len(labels))
        return ((images[i : i + batch_size], labels[i : i + batch_size]) for i in range(0, len(labels), batch_size))
    if dataset is not None and not isinstance(dataset, str):
        require(is_batched(dataset), _NO_DATASET)
        return _counted(batches_of("the dataset", dataset), operator.length_hint(dataset), expect)
    return _named_batches(named | {"dataset": dataset or ""}, batch_size, model, expect)


def _counted(batches: Iterable, num_batches: int, expect: Callable[[int], object]) -> Iterator:
    """Yields the batches; expects those to come (0: an unknown number) to be as large as the last one."""
    num_seen = 0
    for place, (images, labels) in enumerate(batches, 1):
        num_seen += len(labels)
        if num_batches:
            expect(num_seen + max(0, num_batches - place) * len(labels))
        yield images, labels


def _named_batches(
    named: dict[str, Any], batch_size: int, model: Classifier, expect: Callable[[int], object]
) -> Iterable:
    """Returns batches of raw images and labels of the data that fields of a TrainConfig name, or those of the run."""
    height, width = model.image_shape[:2]
    size = height if height == width else 0  # a run's image_size makes squares
    given = {name: value for name, value in named.items() if value}
    fields: dict[str, Any] = {"image_size": size}
    if not given.keys() & {"dataset", "npz", "images"}:
        fields = exported_data(model.path)
        say_named_by(_config_path(model.path), fields, given.get("data_dir", ""))
    fields |= given
    if (split := fields.get("test_split")) and split == (fields.get("train_split") or "train"):
        note(f"the split {split!r} is one that networks are trained on: this is not a test error")
    class_names: Sequence[str] = ()
    if fields.get("images"):
        class_names = _take_share(fields, model.path)
    if fields.get("npz"):
        fields["num_classes"] = model.num_classes
    network = ModelConfig(image_shape=model.image_shape, num_classes=model.num_classes)
    return raw_test_batches(dataclasses.replace(TrainConfig(model=network), **fields), batch_size, class_names, expect)


def _take_share(fields: dict[str, Any], path: str) -> Sequence[str]:
    """Sets the share of images to evaluate on, of which a run has one; returns the names of the run's classes."""
    known, names = 0.0, tuple[str, ...]()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # no run, or a damaged one
        contents = read_json(_config_path(path))
        known = from_json(TrainConfig(), contents["config"]).test_share
        names = tuple(map(str, contents.get("class_names", ())))
    has_split = os.path.isdir(os.path.join(fields["images"], fields.get("test_split") or TEST))
    if known and not has_split and not fields.get("test_share"):
        fields["test_share"] = known
        note(f"{fields['images']}: there is no test/; the run's test_share, {known:g}, is evaluated")
    fields["test_share"] = fields.get("test_share", 0.0) % 1  # 1: all
    return names


def _first_examples(batches: Iterable, max_examples: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the batches as arrays, up to the first max_examples examples (0: all)."""
    num_left = max_examples
    for batch in batches:
        require(isinstance(batch, tuple | list) and len(batch) == 2, _NO_DATASET)
        images, labels = as_numbers("images", batch[0]), as_numbers("labels", batch[1])
        require(images.ndim > 0 and labels.ndim > 0, _NO_DATASET)
        if labels.ndim == 2:  # one-hot
            labels, _ = as_integers("labels", labels, say=lambda line: None)
        if max_examples:
            images, labels = images[:num_left], labels[:num_left]
        yield images.astype(np.float32, copy=False), labels
        num_left -= len(labels)
        if max_examples and not num_left:
            return


def _check_batch(images: np.ndarray, labels: np.ndarray, shape: tuple, num_classes: int) -> None:
    """Raises UserError where a batch does not fit the model."""
    require(images.shape[1:] == shape, f"the model takes images {shape}, the data are {images.shape[1:]}")
    require(labels.shape == images.shape[:1], f"{len(images)} images, but labels of shape {labels.shape}")
    require(np.issubdtype(labels.dtype, np.integer), f"labels must be integers, got {labels.dtype}")
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise UserError(f"labels must lie in 0–{num_classes - 1}, got {labels.min()}–{labels.max()}")
