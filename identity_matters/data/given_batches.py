"""Data sets that are given in Python as batches of (images, labels), read once and held in memory.

    tf.data.Dataset, keras.utils.PyDataset, torch's DataLoader, a list of batches, …

Many of them shuffle again whenever they are read, so the examples are sorted by their contents: the same examples are
the same data, so that a run can continue.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from identity_matters.data.arrays import MAX_BYTES_IN_MEMORY
from identity_matters.data.user_arrays import as_numbers
from identity_matters.errors import UserError
from identity_matters.fields import require


def is_batched(data: Any) -> bool:
    """Returns whether data can be read batch by batch."""
    return not isinstance(data, str | bytes | dict) and (isinstance(data, Iterable) or hasattr(data, "__getitem__"))


def batches_of(name: str, data: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the batches (images, labels) of a data set as arrays; raises UserError for anything else in it."""
    what = f"a {type(data).__name__}"
    require(is_batched(data), f"{name} must be batches of (images, labels), got {what}")
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            parts = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
            raise UserError(f"{name} must be batches of (images, labels), got {parts}")
        images, labels = as_numbers(f"{name}: images", batch[0]), as_numbers(f"{name}: labels", batch[1])
        shapes = f"{images.shape} and {labels.shape}"
        require(
            images.ndim > 0 and labels.ndim > 0,
            f"{name} must be batches of (images, labels), got arrays {shapes}; for single examples, dataset.batch(100) "
            "makes batches",
        )
        require(len(images) == len(labels), f"{name} gives {len(images)} images with {len(labels)} labels")
        yield images, labels


def examples_of(name: str, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [n, h, w] or [n, h, w, c] and labels, [n] or one-hot, of a data set, ordered by their contents.

    Raises:
      UserError: it gives no batches, none at all, or more than fit in memory.
    """
    images, labels, num_values = [], [], 0
    for some_images, some_labels in batches_of(name, data):
        num_values += math.prod(some_images.shape)
        too_many = f"{name} gives more than {MAX_BYTES_IN_MEMORY:.3g} values, which do not fit in memory, or has no end"
        require(num_values <= MAX_BYTES_IN_MEMORY, too_many)
        images.append(some_images)
        labels.append(some_labels)
    require(bool(images), f"{name} gives no batch")
    for what, arrays in (("images", images), ("labels", labels)):
        shapes = sorted({array.shape[1:] for array in arrays})
        require(len(shapes) == 1, f"{name} gives {what} of several shapes: {', '.join(map(str, shapes[:4]))}")
    all_images, all_labels = np.concatenate(images), np.concatenate(labels)
    order = sorted(range(len(all_labels)), key=lambda i: _content(all_images[i], all_labels[i]))
    return all_images[order], all_labels[order]


def _content(image: np.ndarray, label: np.ndarray) -> bytes:
    """Returns a digest of an example, by which examples come in an order that has nothing to do with their classes."""
    found = hashlib.blake2b(digest_size=8)
    found.update(np.ascontiguousarray(image))
    found.update(np.ascontiguousarray(label))
    return found.digest()
