"""The interface of a data set: a Source of labelled images in two splits, each example read by its index."""

import abc
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from identity_matters.errors import UserError

Split = Literal["train", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")
MNIST_SAMPLE = "mnist_sample"
# They are held three times over: as read, joined, and on the device (batches.DeviceImages).
MAX_BYTES_IN_MEMORY = 2**31 - 1
_READ_AT_ONCE = 2**26  # bytes


class Source(abc.ABC):
    """Labelled images of two splits, each example read by its index in its split.

    Attributes:
      name: What messages and config.json call the data.
      class_names: The names of the classes, if the data have them; labels are indices of them.
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
    @abc.abstractmethod
    def digest(self) -> str:
        """A text that other images or labels would not have; empty if it cannot be known."""

    @abc.abstractmethod
    def num(self, split: Split) -> int:
        """Returns the number of examples of a split; raises UserError if the data lack it."""

    @abc.abstractmethod
    def labels(self, split: Split) -> np.ndarray | None:
        """Returns the labels of a whole split, int32 [n]; None if images would have to be read for them."""

    @abc.abstractmethod
    def read(
        self, split: Split, indices: np.ndarray, places: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns examples of a split: images uint8 [n, h, w, c] and labels int32 [n].

        Args:
          split: train or test.
          indices: int [n].
          places: float [n, 2] in [0, 1). Position of the window in an image of varying size, down and across (None: in
            its middle).

        Raises:
          UserError: an example is damaged; the message names its file.
        """

    def locate(self, split: Split, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the files and byte spans of examples of a split, for `read_located` on another machine.

        Files are text, an object array [n]; spans are the bytes before, in and behind an example, int64 [n, 3].

        Raises UserError if the examples are not in record files.
        """
        raise UserError(f"strategy parameter_server streams only TFDS sets; {self.name} must fit in memory")

    def read_located(self, files: Any, spans: Any, places: Any) -> tuple[Any, Any]:
        """Returns examples as `read` does, from what `locate` returned, by operations of TensorFlow."""
        raise NotImplementedError


def fits_in_memory(source: Source) -> bool:
    """Returns whether both splits are held in memory, and on the device, for training."""
    count = source.num("train") + source.num("test")
    return not source.varies and count * math.prod(source.image_shape) <= MAX_BYTES_IN_MEMORY


def read_all(source: Source, splits: Sequence[Split]) -> tuple[np.ndarray, np.ndarray]:
    """Returns all images of some splits, uint8 [n, h, w, c], and their labels, int32 [n], one split after the other."""
    total = sum(source.num(split) for split in splits)
    images = np.empty((total, *source.image_shape), np.uint8)
    labels = np.empty(total, np.int32)
    size = max(1, _READ_AT_ONCE // math.prod(source.image_shape))
    position = 0
    # disable=None: no bar in a log file. delay=1: no bar for a set that is read within a second.
    with tqdm(total=total, unit=" images", desc=f"reading {source.name}", disable=None, delay=1) as bar:
        for split in splits:
            for start in range(0, source.num(split), size):
                part = np.arange(start, min(start + size, source.num(split)))
                place = slice(position, position + len(part))
                images[place], labels[place] = source.read(split, part)
                position += len(part)
                bar.update(len(part))
    return images, labels
