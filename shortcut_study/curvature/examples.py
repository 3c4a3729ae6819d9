"""The examples of a loss as users have them: arrays, several inputs and outputs, or batches, with sample weights."""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.data.arrays import as_numbers, batches_of, is_batched
from identity_matters.fields import require
from identity_matters.runs.machine import physical_memory

# Of a batch by default: numbers in the inputs, as of 128 CIFAR images, and examples. Larger ones were slower.
BATCH_NUMBERS, BATCH_EXAMPLES = 128 * 32 * 32 * 3, 256


class Examples(NamedTuple):
    """All examples of a loss, in arrays [m, …] or lists or dicts of such, and the number taken at a time."""

    x: Any
    y: Any
    sample_weight: Any
    batch_size: int

    def __len__(self) -> int:
        """The number of examples."""
        return len(keras.tree.flatten(self.x)[0])

    def part(self, start: int, stop: int) -> tuple:
        """Returns (x, y) or (x, y, sample_weight) of some of the examples."""
        given = self[:2] if self.sample_weight is None else self[:3]
        return keras.tree.map_structure(lambda array: array[start:stop], tuple(given))

    def first(self, size: int) -> "Examples":
        """Returns the first batch, of another size."""
        x, y, *sample_weight = self.part(0, size)
        return Examples(x, y, *sample_weight or [None], size)

    def batches(self) -> Iterator[tuple]:
        """Yields (x, y) or (x, y, sample_weight) of each batch; the last may be smaller."""
        for start in range(0, len(self), self.batch_size):
            yield self.part(start, start + self.batch_size)


def gathered(
    x: Any, y: Any = None, batch_size: int | None = None, sample_weight: Any = None, model: Any = None
) -> Examples:
    """Returns the examples, as `Hessian` takes them, in arrays: they are read once, as products ask for them often.

    Without a batch_size batches keep the size of the first, and arrays are divided evenly into batches of at most 256
    examples or 400,000 numbers. If the model says how many inputs and outputs it has, a list is one array or several.
    """
    if y is None:
        parts = list(_batches(x))
        require(len(parts) > 0, "need y, or batches of pairs (x, y) as x; got no batch")
        try:
            whole = keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
        except ValueError as error:
            raise ValueError(f"the batches differ in more than their number of examples: {error}") from error
        first = len(keras.tree.flatten(parts[0])[0])
        return Examples(*whole, *[None] * (3 - len(whole)), first if batch_size is None else batch_size)
    num = [len(of) if (of := getattr(model, ends, None)) else None for ends in ("inputs", "outputs")]
    x, y = _arrays("x, given with y,", x, num[0]), _arrays("labels", y, num[1])
    sample_weight = None if sample_weight is None else _arrays("sample_weight", sample_weight, num[1])
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


def _batches(x: Any) -> Iterator[tuple]:
    """Yields tuples (x, y) or (x, y, sample_weight) of arrays, until they fill half of the memory; a bar shows."""
    fits = not hasattr(x, "shape") and is_batched(x)
    require(fits, f"need y, or batches of pairs (x, y) as x; got a {type(x).__name__} without y")
    size, most = 0, physical_memory() // 2
    batches = batches_of("x", x, as_part=functools.partial(_arrays, count=None), with_weights=True)
    for arrays in tqdm(batches, unit=" batches", desc="reading x", disable=None, delay=1):
        size += sum(array.nbytes for array in keras.tree.flatten(arrays))
        require(size <= most, f"the batches have more than {most / 1e9:.1f} GB, half of the memory; take some of them")
        yield arrays
