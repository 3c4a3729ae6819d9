"""Data sets: each is a Source, and open_source makes the one that a config names.

    npz                     npz.NpzSource: an .npz file
    images                  folder.FolderSource: a folder of PNG and JPEG files
    dataset                 digits.Digits: the embedded sample; tfds.TfdsSource: any other name
    arrays, batches given   arrays.ArraySource

A new one is a class in a file of its own, and a case of `open_source`. What reads images (the batch stream, evaluation,
the launchers, the examples of a Hessian) reads them through a Source.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from identity_matters.config import DataConfig
from identity_matters.data.arrays import given_source
from identity_matters.data.base import MNIST_SAMPLE, Source, Split
from identity_matters.data.digits import Digits
from identity_matters.data.folder import TWO_SPLITS, FolderSource
from identity_matters.data.npz import NpzSource
from identity_matters.errors import UserError, note
from identity_matters.runs.record import Record


def open_source(
    config: DataConfig,
    given: Sequence[Any] | None = None,
    class_names: Sequence[str] = (),
    image_shape: tuple[int, int, int] | None = None,
) -> Source:
    """Returns the data that a config names, or those that are given: four arrays, or (train, test) in batches.

    Args:
      config: DataConfig.
      given: Four arrays x_train, y_train, x_test, y_test, or two data sets of batches, in place of what it names.
      class_names: For a folder of images: the classes of a network, in place of its own.
      image_shape: For a folder of images: the shape that a network takes, in place of its own.

    Raises:
      UserError: there is no such data set, it is not prepared (the message says what to run), or cannot be used.
    """
    return _Part(_open_whole(config, given, class_names, image_shape), config)


def _open_whole(
    config: DataConfig,
    given: Sequence[Any] | None,
    class_names: Sequence[str],
    image_shape: tuple[int, int, int] | None,
) -> Source:
    if given is not None:
        return given_source(given, config)
    if config.npz:
        return NpzSource(config)
    if config.images:
        return FolderSource(config, class_names, image_shape)
    if config.num_classes:
        raise UserError(f"num_classes is for your own data; the data set {config.dataset} defines its classes")
    if config.dataset == MNIST_SAMPLE:
        return Digits(config)
    try:
        # Only here: TFDS and TensorFlow need not be installed for other data.
        from identity_matters.data.tfds import TfdsSource
    except ModuleNotFoundError as error:
        raise UserError(
            f"{config.dataset} is read by {error.name}, which is not installed here; where it is, python -m "
            f"launch.export_npz --dataset={config.dataset} --npz={config.dataset}.npz makes a file, to be "
            f"given as --npz={config.dataset}.npz (npz='{config.dataset}.npz')"
        ) from error
    return TfdsSource(config)


def config_of_given(source: Source, config: DataConfig) -> DataConfig:
    """Returns what config.json says of data that were given: their name, and the numbers of a config.

    What else a config says, the names of files and splits, is of other data.
    """
    # isinstance would also accept flags: a bool is an int in Python.
    numbers: dict[str, Any] = {name: value for name, value in vars(config).items() if type(value) is int}
    return DataConfig(source.name, **numbers)


class _Part(Source):
    """The part of a source that a config asks for: the first examples, and the last training examples held out."""

    def __init__(self, source: Source, config: DataConfig) -> None:
        self._source = source
        self._config = config
        self._parts: dict[Split, tuple[Split, range]] = {}
        self.name = source.name
        self.num_classes = source.num_classes
        self.class_names = source.class_names
        self.image_shape = source.image_shape
        self.stored_size = source.stored_size
        self.varies = source.varies
        self.split_names = source.split_names

    @property
    def digest(self) -> str:
        """The digest of the whole source."""
        return self._source.digest

    def num(self, split: Split) -> int:
        """Returns the number of examples of a split."""
        return len(self._part(split)[1])

    def labels(self, split: Split) -> np.ndarray | None:
        """Returns the labels of a split, if the source has them."""
        whole, part = self._part(split)
        labels = self._source.labels(whole)
        return None if labels is None else labels[part.start : part.stop]

    def read(
        self, split: Split, indices: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns examples of a split."""
        whole, part = self._part(split)
        return self._source.read(whole, np.asarray(indices) + part.start, places)

    def locate(self, split: Split, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the files and byte spans of examples of a split."""
        whole, part = self._part(split)
        return self._source.locate(whole, np.asarray(indices) + part.start)

    def read_located(self, files: Any, spans: Any, places: Any) -> tuple[Any, Any]:
        """Returns examples from what `locate` returned."""
        return self._source.read_located(files, spans, places)

    def _part(self, split: Split) -> tuple[Split, range]:
        """Returns the split of the source from which a split is taken, and which of its examples."""
        if split not in self._parts:
            self._parts[split] = self._chosen(split)
        return self._parts[split]

    def _chosen(self, split: Split) -> tuple[Split, range]:
        source = self._source
        held_out = self._config.validation_examples
        first, second = source.split_names
        if first == second and not held_out:
            raise UserError(f"{source.name}: {first!r} is both the training and the test split; {TWO_SPLITS}")
        whole: Split = "train" if held_out else split
        total = source.num(whole)
        chosen = range(total)
        if held_out:
            if held_out >= total:
                raise UserError(f"validation_examples must be below the {total} training examples, got {held_out}")
            self._check_is_mixed("train", f"last {held_out}, which validation_examples holds out")
            # From the end of the whole set, so that train_examples does not change which examples are held out.
            chosen = range(total - held_out) if split == "train" else range(total - held_out, total)
        option = "train_examples" if split == "train" else "eval_examples"
        count = getattr(self._config, option)
        if 0 < count < len(chosen):
            self._check_is_mixed(whole, f"first {count}, which {option} takes")
        return whole, chosen[: count or None]

    def _check_is_mixed(self, split: Split, part: str) -> None:
        """Raises UserError if the examples of a split are sorted by class, so that a part is no random sample."""
        labels = self._source.labels(split)
        if labels is not None and is_sorted_by_class(labels):
            examples = f"{'training' if split == 'train' else 'test'} examples of {self.name}"
            raise UserError(
                f"the {examples} are sorted by class, so the {part}, are not a random sample of them; shuffle them"
            )


def is_sorted_by_class(labels: np.ndarray) -> bool:
    """Returns whether the examples of each of several classes stand together in labels [n]."""
    num_classes = len(np.unique(labels))
    # One example of each class, or one class, is sorted in any order and so proves nothing.
    return 1 < num_classes < len(labels) and np.count_nonzero(np.diff(labels)) == num_classes - 1


def note_data_location(path: str, config: DataConfig, data_dir: str = "") -> None:
    """Prints a note if a config file, and not a flag (data_dir), names the location of the data."""
    reads_data_dir = not data_dir and config.dataset != MNIST_SAMPLE
    place = config.npz or config.images or (reads_data_dir and config.data_dir)
    if place:
        note(f"the data are read from {place!r}, which {path} names")


def check_data_is_unchanged(source: Source, config: DataConfig, record: Record | None, where: str) -> None:
    """Raises UserError if the digest of a run's data differs from that in its config.json."""
    recorded_digest = record.data_digest if record else ""
    if recorded_digest and source.digest not in ("", recorded_digest):
        place = config.npz or config.images or config.dataset
        raise UserError(
            f"{place} has changed since {where} was trained on it; give the data as they were, or other data"
        )
