"""Data sets of batches that users give: tf.data.Dataset, keras.utils.PyDataset, torch's DataLoader, a list.

Many of them shuffle again whenever they are read, so examples that are held in memory are sorted by their contents: the
same examples are the same data, so that a run can continue.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from identity_matters.data.base import MAX_BYTES_IN_MEMORY
from identity_matters.errors import UserError

_INFINITE = -1  # of tf.data's cardinality


def is_batched(data: Any) -> bool:
    """Returns whether data can be read batch by batch."""
    return not isinstance(data, str | bytes | dict) and (isinstance(data, Iterable) or hasattr(data, "__getitem__"))


def iterate_batches(name: str, data: Any, is_whole: bool = True) -> Iterator[Any]:
    """Yields the batches of a data set; raises UserError if all of it is to be read and it repeats without end."""
    if is_whole and hasattr(data, "cardinality") and int(data.cardinality()) == _INFINITE:
        raise UserError(f"{name} repeats without end; take some of it, e.g. data.take(100) of tf.data")
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        # By number: a set without __iter__ need not raise an IndexError at its end.
        yield from (data[i] for i in range(len(data)))
    else:
        yield from data


def read_batches(
    name: str, data: Any, is_whole: bool = True, as_part: Callable = lambda name, part: np.asarray(part),
    with_weights: bool = False,
) -> Iterator[tuple]:  # fmt: skip
    """Yields the batches (images, labels) of a data set as arrays; empty batches are skipped.

    Args:
      name: What messages call the data.
      data: A data set for which `is_batched` is true.
      is_whole: Whether all of it is read.
      as_part: as_part(name, part) -> an array, or a list or dict of arrays.
      with_weights: Whether a batch may have sample weights as its third part.

    Raises UserError for anything else in it, and as `iterate_batches`.
    """
    expected = f"{name} must be batches of (images, labels)" + ", or with sample weights" * with_weights
    if not is_batched(data):
        raise UserError(f"{expected}, got a {type(data).__name__}")
    for batch in iterate_batches(name, data, is_whole):
        if not isinstance(batch, tuple | list) or not 2 <= len(batch) <= 2 + with_weights:
            received = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
            raise UserError(f"{expected}, got {received}")
        parts = tuple(
            as_part(f"{name}: {kind}", part) for kind, part in zip(("images", "labels", "sample weights"), batch)
        )
        arrays = [array for part in parts for array in _arrays_in(part)]
        if not all(map(len, map(_arrays_in, parts))) or not all(array.ndim for array in arrays):
            shapes = " and ".join(str(array.shape) for array in arrays)
            raise UserError(f"{expected}, got arrays {shapes}; dataset.batch(100) makes batches of single examples")
        counts = [len(array) for array in arrays]
        if len(set(counts)) > 1:
            labels = " and ".join(map(str, counts[1:]))
            raise UserError(f"{name} gives {counts[0]} images with {labels} labels")
        if counts[0]:
            yield parts


def _arrays_in(part: Any) -> list[np.ndarray]:
    """Returns the arrays of a part of a batch."""
    if isinstance(part, dict):
        return list(part.values())
    return part if isinstance(part, list) else [part]


def read_examples(name: str, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns images [n, h, w] or [n, h, w, c] and labels, [n] or one-hot, of a data set, ordered by their contents.

    Raises:
      UserError: it gives no batches, none at all, or more than fit in memory.
    """
    images = []
    labels = []
    num_values = 0
    batches = tqdm(read_batches(name, data), unit=" batches", desc=f"reading {name}", disable=None, delay=1)
    for some_images, some_labels in batches:
        # Values are counted, not bytes: as uint8, every value will be one byte.
        num_values += math.prod(some_images.shape)
        if num_values > MAX_BYTES_IN_MEMORY:
            raise UserError(f"{name} gives more than the {MAX_BYTES_IN_MEMORY:.3g} values that fit in memory")
        images.append(some_images)
        labels.append(some_labels)
    if not images:
        raise UserError(f"{name} gives no batch")
    for kind, arrays in (("images", images), ("labels", labels)):
        shapes = sorted({array.shape[1:] for array in arrays})
        if len(shapes) > 1:
            raise UserError(f"{name} gives {kind} of several shapes: {', '.join(map(str, shapes[:4]))}")
    all_images, all_labels = np.concatenate(images), np.concatenate(labels)
    # Ties need no rule: examples of the same digest are the same.
    order = sorted(range(len(all_labels)), key=lambda i: _content(all_images[i], all_labels[i]))
    return all_images[order], all_labels[order]


def _content(image: np.ndarray, label: np.ndarray) -> bytes:
    """Returns a digest of an example, by which examples come in an order that has nothing to do with their classes."""
    hasher = hashlib.blake2b(digest_size=8)
    hasher.update(np.ascontiguousarray(image))
    hasher.update(np.ascontiguousarray(label))
    return hasher.digest()
