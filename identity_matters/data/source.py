"""The one door of data: each data set is a Source, and open_source makes the one that a config names.

    field of DataConfig     module          class
    npz                     npz             NpzSource: an .npz file
    images                  folder          FolderSource: a folder of PNG and JPEG files
    dataset                 digits, tfds    Digits: the embedded sample, TfdsSource: any other name
    arrays, batches given   arrays          ArraySource

A new one is a class in a file of its own, and a line in NAMED or a field of DataConfig that names it. What reads images
(the batch stream, evaluation, the launchers, the examples of a Hessian) reads them through a Source alone.
"""

import dataclasses
import importlib
import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from tqdm import tqdm

from identity_matters.config import DataConfig
from identity_matters.errors import UserError, note
from identity_matters.fields import require

Split = Literal["train", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")
MNIST_SAMPLE = "mnist_sample"
NAMED = {MNIST_SAMPLE: "digits:Digits"}  # data sets that are not TFDS's, by name
TWO_SPLITS = (
    "name two with --train_split and --test_split (train_split=…, test_split=…), or hold some of one out with "
    "--validation_examples=100 (validation_examples=100)"
)
# They are held three times over: as read, joined, and on the device (batches.DeviceImages).
MAX_BYTES_IN_MEMORY = 2**31 - 1
_READ_AT_ONCE = 2**26  # bytes
_LEAST_CHANCE = 1e-6  # of an order of examples, for it to be taken for a shuffled one


class Source(Protocol):
    """Labelled images of two splits, each example read by its place in its split.

    Attributes:
      name: What messages and config.json call the data.
      class_names: The names of the classes, where the data say them; labels are places among them.
      num_classes: Labels lie in 0 … num_classes − 1.
      image_shape: (height, width, channels) of the images that `read` gives.
      stored_size: (height, width) of the images before they are resized, if all have one size and that is known.
      varies: Whether the stored images vary in size, so that `read` gives windows of them.
      split_names: The two splits as the data call them.
    """

    name: str
    num_classes: int
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...] = ()
    stored_size: tuple[int, int] | None = None
    varies: bool = False
    split_names: tuple[str, str] = SPLITS

    @property
    def digest(self) -> str:
        """Returns a text that other images or labels would not have; empty where it cannot be known."""
        ...

    def num(self, split: Split) -> int:
        """Returns the number of examples of a split; raises UserError where the data lack it."""
        ...

    def labels(self, split: Split) -> np.ndarray | None:
        """Returns the labels of a whole split, int32 [n]; None where images would have to be read for them."""
        ...

    def read(
        self, split: Split, indices: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns examples of a split: images uint8 [n, h, w, c] and labels int32 [n].

        Args:
          split: str. train or test.
          indices: int [n]. Their places in the split.
          places: float [n, 2] in [0, 1). Where the window of an image that varies in size lies, down and across (None:
            in its middle).

        Raises:
          UserError: an example is damaged; the message names its file.
        """
        ...


def open_source(
    config: DataConfig,
    given: Sequence[Any] | None = None,
    class_names: Sequence[str] = (),
    image_shape: tuple[int, int, int] | None = None,
) -> Source:
    """Returns the data that a config names, or those that are given: four arrays, or (train, test) in batches.

    Nothing is read yet but what says how many images there are, and of what shape.

    Args:
      config: DataConfig.
      given: Four arrays x_train, y_train, x_test, y_test, or two data sets of batches, in place of what it names.
      class_names: For a folder of images: the classes of a network, in place of its own.
      image_shape: For a folder of images: the shape that a network takes, in place of its own.

    Raises:
      UserError: there is no such data set, it is not prepared (the message says what to run), or cannot be used.
    """
    if given is not None:
        source = _named("arrays:given_source")(given, config)
    elif places := [(name, where) for name, where in _places() if getattr(config, name)]:
        ((name, where),) = places
        options = {"class_names": class_names, "image_shape": image_shape} if name == "images" else {}
        source = _named(where)(config, **options)
    elif config.num_classes:
        raise UserError(f"num_classes is for your own data; the data set {config.dataset} defines its classes")
    else:
        try:
            source = _named(NAMED.get(config.dataset, "tfds:TfdsSource"))(config)
        except ModuleNotFoundError as error:
            raise UserError(
                f"{config.dataset} is read by {error.name}, which is not installed here; where it is, python -m "
                f"launch.export_npz --dataset={config.dataset} --npz={config.dataset}.npz makes a file, to be "
                f"given as --npz={config.dataset}.npz (npz='{config.dataset}.npz')"
            ) from error
    return _Part(source, config)


def _places() -> list[tuple[str, str]]:
    """Returns the fields that say where data of one's own lie, each with the class that reads them."""
    fields = dataclasses.fields(DataConfig)
    return [(field.name, field.metadata["source"]) for field in fields if "source" in field.metadata]


def _named(where: str) -> Any:
    """Returns what "module:name" of this package names; it is imported no sooner."""
    module, name = where.split(":")
    return getattr(importlib.import_module(f"identity_matters.data.{module}"), name)


def config_of_given(source: Source, config: DataConfig) -> DataConfig:
    """Returns what config.json says of data that were given: their name, and the numbers of a config.

    What else a config says, the names of files and splits, is of other data.
    """
    numbers: dict[str, Any] = {name: value for name, value in vars(config).items() if type(value) is int}
    return DataConfig(source.name, **numbers)


class _Part(Source):
    """The part of a source that a config asks for: the first examples, and the last training examples held out."""

    def __init__(self, source: Source, config: DataConfig) -> None:
        self._source, self._config = source, config
        self._parts: dict[Split, tuple[Split, range]] = {}
        self.name, self.num_classes, self.class_names = source.name, source.num_classes, source.class_names
        self.image_shape, self.stored_size, self.varies = source.image_shape, source.stored_size, source.varies
        self.split_names = source.split_names

    @property
    def digest(self) -> str:
        """Returns the digest of the whole source."""
        return self._source.digest

    def num(self, split: Split) -> int:
        """Returns the number of examples of a split."""
        return len(self._part(split)[1])

    def labels(self, split: Split) -> np.ndarray | None:
        """Returns the labels of a split, where the source gives them."""
        whole, part = self._part(split)
        labels = self._source.labels(whole)
        return None if labels is None else labels[part.start : part.stop]

    def read(
        self, split: Split, indices: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns examples of a split."""
        whole, part = self._part(split)
        return self._source.read(whole, np.asarray(indices) + part.start, places)

    def _part(self, split: Split) -> tuple[Split, range]:
        """Returns the split of the source from which a split is taken, and which of its examples."""
        if split not in self._parts:
            self._parts[split] = self._chosen(split)
        return self._parts[split]

    def _chosen(self, split: Split) -> tuple[Split, range]:
        source, held_out = self._source, self._config.validation_examples
        first, second = source.split_names
        is_both = f"{source.name}: {first!r} is both the training and the test split"
        require(first != second or bool(held_out), f"{is_both}; {TWO_SPLITS}")
        whole: Split = "train" if held_out else split
        total = source.num(whole)
        chosen = range(total)
        if held_out:
            below = f"validation_examples must be below the {total} training examples, got {held_out}"
            require(held_out < total, below)
            self._require_mixed("train", f"last {held_out}, which validation_examples holds out")
            chosen = range(total - held_out) if split == "train" else range(total - held_out, total)
        option = "train_examples" if split == "train" else "eval_examples"
        count = getattr(self._config, option)
        if 0 < count < len(chosen):
            self._require_mixed(whole, f"first {count}, which {option} takes")
        return whole, chosen[: count or None]

    def _require_mixed(self, split: Split, part: str) -> None:
        """Raises UserError where the examples of a split are sorted by class, so that a part is no random sample."""
        labels = self._source.labels(split)
        what = f"{'training' if split == 'train' else 'test'} examples of {self.name}"
        message = f"the {what} are sorted by class, so the {part}, are not a random sample of them; shuffle them"
        require(labels is None or is_mixed(labels), message)


def is_mixed(labels: np.ndarray) -> bool:
    """Returns whether labels [n] are not sorted by class, or so few that they may be so by chance."""
    _, counts = np.unique(labels, return_counts=True)
    if np.count_nonzero(np.diff(labels)) >= len(counts):
        return True
    # Of the n! / Π n_c! orders of n labels, n_c of class c, r! are sorted by class, all of them where there is one
    # class or one example of each. 2 · 5 of two classes are so once in 126 times, 2 · 12 less than once in a million.
    log_sorted = math.lgamma(len(counts) + 1)
    log_orders = math.lgamma(len(labels) + 1) - sum(math.lgamma(count + 1) for count in counts)
    return log_sorted - log_orders >= math.log(_LEAST_CHANCE)


def fits_in_memory(source: Source) -> bool:
    """Returns whether both splits are held in memory, and on the device, for training."""
    count = source.num("train") + source.num("test")
    return not source.varies and count * math.prod(source.image_shape) <= MAX_BYTES_IN_MEMORY


def read_all(source: Source, splits: Sequence[Split]) -> tuple[np.ndarray, np.ndarray]:
    """Returns all images of some splits, uint8 [n, h, w, c], and their labels, int32 [n], one split after the other."""
    total = sum(source.num(split) for split in splits)
    images, labels = np.empty((total, *source.image_shape), np.uint8), np.empty(total, np.int32)
    size = max(1, _READ_AT_ONCE // math.prod(source.image_shape))
    position = 0
    with tqdm(total=total, unit=" images", desc=f"reading {source.name}", disable=None, delay=1) as bar:
        for split in splits:
            for start in range(0, source.num(split), size):
                part = np.arange(start, min(start + size, source.num(split)))
                place = slice(position, position + len(part))
                images[place], labels[place] = source.read(split, part)
                position += len(part)
                bar.update(len(part))
    return images, labels


def say_named_by(path: str, config: DataConfig, data_dir: str = "") -> None:
    """Prints a line if a file, by its config, and not a flag (data_dir), names the place of the data."""
    reads_data_dir = not data_dir and config.dataset not in NAMED
    if place := config.npz or config.images or (reads_data_dir and config.data_dir):
        note(f"the data are read from {place!r}, which {path} names")


def require_unchanged(source: Source, config: DataConfig, contents: dict, where: str) -> None:
    """Raises UserError where the data of a run have another digest than its config.json knows."""
    known = contents.get("data_digest")
    place = config.npz or config.images or config.dataset
    changed = f"{place} has changed since {where} was trained on it; give the data as they were, or other data"
    require(not known or source.digest in ("", known), changed)
