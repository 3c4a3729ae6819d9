"""The examples of a loss as users have them: arrays, several inputs and outputs, or batches, with sample weights."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.data.arrays import MAX_EMPTY, as_numbers, in_turn, is_batched

# Of a batch by default: numbers in the inputs, as of 128 CIFAR images, and examples. Larger ones were slower.
BATCH_NUMBERS, BATCH_EXAMPLES = 128 * 32 * 32 * 3, 256


class Examples(NamedTuple):
    """All examples of a loss, and the number taken at a time.

    Attributes:
      x, y: Arrays [m, …], or lists or dicts of such, as the model takes and the losses compare.
      sample_weight: As y, or None.
      batch_size: int.
    """

    x: Any
    y: Any
    sample_weight: Any
    batch_size: int

    def __len__(self) -> int:
        """The number of examples."""
        return len(keras.tree.flatten(self.x)[0])

    def part(self, start: int, stop: int) -> tuple[Any, Any, Any]:
        """Returns x, y and sample_weight of some of the examples."""
        return mapped(lambda array: array[start:stop], tuple(self[:3]))

    def batches(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yields x, y and sample_weight of each batch; the last may be smaller."""
        for start in range(0, len(self), self.batch_size):
            yield self.part(start, start + self.batch_size)


def mapped(function: Callable, tree: Any) -> Any:
    """Returns arrays in lists and dicts with a function applied to each; None stays."""
    return keras.tree.map_structure(lambda leaf: None if leaf is None else function(leaf), tree)


def gathered(
    x: Any,
    y: Any = None,
    batch_size: int | None = None,
    sample_weight: Any = None,
    num_inputs: int | None = None,
    num_outputs: int | None = None,
) -> Examples:
    """Returns the examples in arrays, which are read once: products ask for the same ones again and again.

    Args:
      x: [m, …], or a list or dict of arrays for several inputs; or, without y, batches: a tf.data.Dataset, a PyDataset,
        or an iterable, of (x, y) or (x, y, sample_weight).
      y: [m] or [m, …], or a list or dict for several outputs.
      batch_size: int. None: of batches the size of the first; else at most 256 examples, or as many as have 400,000
        numbers, in batches of one size.
      num_inputs, num_outputs: int. Those of the model, where it says them: a list is then one array, or several.

    Raises:
      ValueError: no batches, batches that are no pairs or of several shapes, or more of them than half of the memory;
        what is no numbers.
    """
    if y is None:
        bar = tqdm(_batches(_with_an_end(x)), unit=" batches", desc="reading x", disable=None, delay=1)
        parts = list(_within_memory(bar))
        if not parts:
            raise ValueError("need y, or batches of pairs (x, y) as x; got no batch")
        try:
            whole = keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
        except ValueError as error:
            raise ValueError(f"the batches differ in more than their number of examples: {error}") from error
        first = len(keras.tree.flatten(parts[0])[0])
        return Examples(*whole, *[None] * (3 - len(whole)), first if batch_size is None else batch_size)
    x, y = _arrays("x, given with y,", x, num_inputs), _arrays("labels", y, num_outputs)
    if sample_weight is not None:
        sample_weight = _arrays("sample_weight", sample_weight, num_outputs)
    if batch_size is None:
        flat = keras.tree.flatten(x)
        num_examples = len(flat[0]) if flat and flat[0].ndim else 0
        numbers = sum(math.prod(array.shape[1:]) for array in flat)
        most = max(1, min(BATCH_EXAMPLES, BATCH_NUMBERS // max(1, numbers)))
        batch_size = -(-num_examples // max(1, -(-num_examples // most))) or 1
    return Examples(x, y, sample_weight, batch_size)


def _arrays(name: str, value: Any, count: int | None) -> Any:
    """Returns numbers in an array, or in arrays where they are a dict, or a list of as many arrays as there may be."""
    if isinstance(value, dict):
        return {key: as_numbers(f"{name} {key}", array) for key, array in value.items()}
    are_arrays = isinstance(value, list | tuple) and all(getattr(part, "shape", ()) != () for part in value)
    if are_arrays and value and (count is None or count > 1):
        return [as_numbers(name, array) for array in value]
    return as_numbers(name, value)


def _batches(data: Iterable) -> Iterator[tuple]:
    """Yields tuples (x, y) or (x, y, sample_weight) of arrays; raises ValueError for anything else."""
    what, num_empty = "batches of (images, labels), or with sample weights", 0
    for batch in data:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            parts = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
            raise ValueError(f"x must be {what}, got {parts}")
        names = "x: images", "x: labels", "x: sample weights"
        arrays = tuple(_arrays(name, part, None) for name, part in zip(names, batch))
        flat = keras.tree.flatten(arrays)
        if not all(array.ndim for array in flat):
            raise ValueError(f"x must be {what}, got single numbers; of single examples, dataset.batch(100) makes them")
        if any(len(array) != len(flat[0]) for array in flat):
            raise ValueError(f"x gives {len(flat[0])} images with {' and '.join(str(len(a)) for a in flat[1:])} labels")
        num_empty = 0 if len(flat[0]) else num_empty + 1
        if num_empty == MAX_EMPTY:
            raise ValueError(f"x gives {MAX_EMPTY:,} batches in a row without an example")
        if len(flat[0]):
            yield arrays


def _with_an_end(x: Any) -> Iterable:
    """Returns batches as they are; rejects what says that it has no end, and arrays."""
    if hasattr(x, "shape") or not is_batched(x):
        raise ValueError(f"need y, or batches of pairs (x, y) as x; got a {type(x).__name__} without y")
    return in_turn("x", x)


def _within_memory(parts: Iterable) -> Iterator:
    """Yields arrays; raises before they fill the memory, as batches without end would."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    size = 0
    for arrays in parts:
        size += sum(array.nbytes for array in keras.tree.flatten(arrays))
        if size > most:
            raise ValueError(f"the batches have more than {most / 1e9:.1f} GB, half of the memory; take some of them")
        yield arrays
