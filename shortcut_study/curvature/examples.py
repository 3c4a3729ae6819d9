"""The examples of a loss as users have them: arrays, several inputs and outputs, or batches, with sample weights."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.data.arrays import as_numbers
from identity_matters.data.given import is_batched, read_batches
from identity_matters.errors import UserError
from identity_matters.runs.machine import physical_memory

# Sizes of a default batch. A large batch was slower when the activations did not fit in the cache.
BATCH_EXAMPLES = 256
BATCH_NUMBERS = 128 * 32 * 32 * 3  # in the inputs: 128 CIFAR images
BATCH_BYTES = 64e6  # inputs and outputs of all layers, up to which a batch has more than 256 examples


class Examples:
    """All examples of a loss, in batches (x, y) or (x, y, sample_weight) of arrays [m, …], or lists or dicts of them.

    Batches may differ in other axes too, as padded sequences do.
    """

    def __init__(self, batches: Sequence[tuple], batch_size: int) -> None:
        self.batches = [*batches]
        self.batch_size = batch_size

    @classmethod
    def from_arrays(cls, x: Any, y: Any, sample_weight: Any, batch_size: int) -> "Examples":
        """Returns the examples in batches that are views of the arrays; the last batch may be smaller."""
        whole = (x, y) if sample_weight is None else (x, y, sample_weight)
        starts = range(0, num_examples(whole), batch_size)
        return cls([rows(whole, slice(start, start + batch_size)) for start in starts], batch_size)

    def __len__(self) -> int:
        """The number of examples."""
        return sum(map(num_examples, self.batches))

    def arrays(self) -> list[np.ndarray]:
        """Returns all arrays, of batches that differ in their number of examples only as one batch."""
        whole = self.take(np.arange(len(self)), len(self))
        return [array for batch in whole.batches for array in keras.tree.flatten(batch)]

    def cast_inputs(self, dtype: str) -> "Examples":
        """Returns the examples with floating inputs in a type. Whole numbers stay: an id beyond 2²⁴ would change."""

        def cast(array: np.ndarray) -> np.ndarray:
            return array.astype(dtype, copy=False) if array.dtype.kind == "f" else array

        batches = [(keras.tree.map_structure(cast, x), *rest) for x, *rest in self.batches]
        return Examples(batches, self.batch_size)

    def shapes(self) -> list[tuple]:
        """Returns the shape of each array of a batch, with None for axes that differ between batches."""

        def common(sizes: tuple[int, ...]) -> int | None:
            return sizes[0] if len(set(sizes)) == 1 else None

        batches = [[array.shape[1:] for array in keras.tree.flatten(batch)] for batch in self.batches]
        return [(None, *map(common, zip(*shapes))) for shapes in zip(*batches)]

    def take(self, indices: np.ndarray, batch_size: int) -> "Examples":
        """Returns the examples with these indices, ascending, in batches of at most batch_size."""
        chosen: list[tuple] = []
        start = 0
        for batch in self.batches:
            stop = start + num_examples(batch)
            inside = indices[(start <= indices) & (indices < stop)] - start
            if len(inside):
                chosen.append(rows(batch, inside))
            start = stop
        groups: list[list[tuple]] = []
        for batch in chosen:
            if groups and _shapes_of(groups[-1][0]) == _shapes_of(batch):
                groups[-1].append(batch)
            else:
                groups.append([batch])
        merged = [keras.tree.map_structure(lambda *parts: np.concatenate(parts), *group) for group in groups]
        parts = [
            rows(batch, slice(start, start + batch_size))
            for batch in merged
            for start in range(0, num_examples(batch), batch_size)
        ]
        return Examples(parts, batch_size)


def num_examples(batch: tuple) -> int:
    """Returns the number of examples of a batch."""
    return len(keras.tree.flatten(batch)[0])


def rows(batch: tuple, indices: Any) -> tuple:
    """Returns some of the examples of a batch."""
    return keras.tree.map_structure(lambda array: array[indices], batch)


def _shapes_of(batch: tuple) -> list[tuple]:
    return [array.shape[1:] for array in keras.tree.flatten(batch)]


def gathered(
    x: Any, y: Any = None, batch_size: int | None = None, sample_weight: Any = None, model: Any = None
) -> Examples:
    """Returns the examples, as `Hessian` takes them, in arrays: they are read once, as products ask for them often.

    Without a batch_size, batches keep their size. Arrays are divided evenly into batches of at most 256 examples or
    400,000 numbers, or of more if inputs and outputs of all layers stay below 64 MB. If the model says how many inputs
    and outputs it has, a list is one array or several.
    """
    if isinstance(x, Examples):
        return x
    if y is None:
        return _read_batches(x, batch_size)
    num_inputs, num_outputs = (
        len(getattr(model, ends)) if getattr(model, ends, None) else None for ends in ("inputs", "outputs")
    )
    x = _arrays("x, given with y,", x, num_inputs)
    size = len(keras.tree.flatten(x)[0]) if keras.tree.flatten(x) and keras.tree.flatten(x)[0].ndim else 0
    y = _arrays("labels", y, num_outputs, size)
    if sample_weight is not None:
        sample_weight = _arrays("sample_weight", sample_weight, num_outputs, size)
    if batch_size is None:
        batch_size = _default_batch_size(size, keras.tree.flatten(x), model)
    _check_sizes(x, y, sample_weight, batch_size)
    return Examples.from_arrays(x, y, sample_weight, min(batch_size, size))


def _check_sizes(x: Any, y: Any, sample_weight: Any, batch_size: Any) -> None:
    """Raises ValueError if there is no example, or a number of labels or weights that differs from it."""
    is_count = isinstance(batch_size, int | np.integer) and not isinstance(batch_size, bool) and batch_size >= 1
    if not is_count:
        raise UserError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    trees = [tree for tree in (x, y, sample_weight) if tree is not None]
    shapes = [np.shape(array) for tree in trees for array in keras.tree.flatten(tree)]
    sizes = {shape[:1] for shape in shapes}
    if len(sizes) != 1 or sizes & {(), (0,)}:
        received = ", ".join(map(str, shapes))
        raise UserError(f"need one label per image, and at least one image, got shapes {received}")


def _default_batch_size(size: int, inputs: list[np.ndarray], model: Any) -> int:
    numbers = sum(math.prod(array.shape[1:]) for array in inputs)
    most = max(1, min(BATCH_EXAMPLES, BATCH_NUMBERS // max(1, numbers)))
    in_layers = _numbers_in_layers(model)
    if in_layers:
        most = max(most, int(BATCH_BYTES / (4 * (numbers + in_layers))))
    return -(-size // max(1, -(-size // most))) or 1


def _numbers_in_layers(model: Any) -> int | None:
    """Returns how many numbers the layers of a functional model give for an example; None if that is not known."""
    if not getattr(model, "inputs", None):
        return None
    numbers = 0
    for layer in model._flatten_layers():
        if layer is model:
            continue
        if not layer._inbound_nodes:
            if isinstance(layer, keras.Model) or not layer.built:
                continue
            return None  # a layer that another one calls
        for node in layer._inbound_nodes:
            for tensor in node.output_tensors:
                if None in tensor.shape[1:]:
                    return None
                numbers += math.prod(tensor.shape[1:])
    return numbers


def _read_batches(x: Any, batch_size: int | None) -> Examples:
    """Returns the batches of a data set; with a batch_size, those of equal shapes are divided anew."""
    batches = list(_batches(x))
    if not batches:
        raise UserError("need y, or batches of pairs (x, y) as x; got no batch")
    structures = [keras.tree.map_structure(np.ndim, batch) for batch in batches]
    lengths = [len(batch) for batch in batches]
    fits = all(length == lengths[0] and structure == structures[0] for length, structure in zip(lengths, structures))
    if not fits:
        raise UserError("the batches differ in the number of their arrays or axes")
    if batch_size is None:
        return Examples(batches, num_examples(batches[0]))
    _check_sizes(*batches[0][:2], None, batch_size)
    whole = Examples(batches, batch_size)
    return whole.take(np.arange(len(whole)), batch_size)


def _arrays(name: str, value: Any, count: int | None, size: int = 0) -> Any:
    """Returns numbers in an array, or in arrays if they are a dict, or a list of as many arrays as there may be.

    None, for an output without a loss, becomes an array [size, 0], which `Objective` does not read.
    """
    nothing = np.zeros((size, 0))
    if isinstance(value, dict):
        return {key: nothing if part is None else as_numbers(f"{name} {key}", part) for key, part in value.items()}
    are_arrays = isinstance(value, list | tuple) and all(
        getattr(part, "shape", ()) != () or part is None for part in value
    )
    if are_arrays and value and (count is None or count > 1):
        return [nothing if part is None else as_numbers(name, part) for part in value]
    return as_numbers(name, value)


def _batches(x: Any) -> Iterator[tuple]:
    """Yields tuples (x, y) or (x, y, sample_weight) of arrays, until they fill half of the memory; a bar shows."""
    if hasattr(x, "shape") or not is_batched(x):
        raise UserError(f"need y, or batches of pairs (x, y) as x; got a {type(x).__name__} without y")
    size = 0
    most = physical_memory() // 2
    as_part: Callable = functools.partial(_arrays, count=None)
    batches = read_batches("x", x, as_part=as_part, with_weights=True)
    for arrays in tqdm(batches, unit=" batches", desc="reading x", disable=None, delay=1):
        size += sum(array.nbytes for array in keras.tree.flatten(arrays))
        if size > most:
            raise UserError(f"the batches have more than {most / 1e9:.1f} GB, half of the memory; take some of them")
        yield arrays


def indices_that_count(examples: Examples, ignored_class: int | None = None) -> np.ndarray:
    """Returns the indices of the examples that can show an error: all, if none of them meets all conditions.

    A weight is not 0, a label is not ignored, and an input is not constant.
    """
    parts = [_counts(batch, ignored_class) for batch in examples.batches]
    counts = np.concatenate(parts)
    return np.flatnonzero(counts) if counts.any() else np.arange(len(counts))


def _counts(batch: tuple, ignored_class: int | None) -> np.ndarray:
    """Returns for each example of a batch whether it counts, bool [m]."""
    x, y, *weights = batch
    size = num_examples(batch)

    def any_of(tree: Any, is_true: Callable) -> np.ndarray:
        arrays = [array.reshape(size, -1) for array in keras.tree.flatten(tree) if array[0].size]
        return np.any([is_true(array).any(1) for array in arrays], axis=0) if arrays else np.ones(size, bool)

    varies = any_of(x, lambda array: array != array[:, :1] if array.shape[1] > 1 else np.ones_like(array, bool))
    has_label = any_of(y, lambda array: array != ignored_class) if ignored_class is not None else np.ones(size, bool)
    has_weight = any_of(weights, lambda array: array != 0) if weights else np.ones(size, bool)
    return varies & has_label & has_weight
