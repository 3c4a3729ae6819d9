"""Checks of a Hessian's arguments: a model that can be trained, and examples that fit it and its loss.

derivative_checks compares the differentiated function with the loss that Keras minimises.
"""

import warnings
from typing import Any

import keras
import numpy as np
from keras.ops import convert_to_numpy

from identity_matters.errors import UserError, truncated_repr
from identity_matters.runs.machine import available_memory
from shortcut_study.curvature.examples import Examples

NUM_VECTORS = 20  # of all weights, that were in use at most while the Hessian of ResNet-50 was made


def check_model(model: keras.Model, dtype: str | None = None) -> None:
    """Raises ValueError if a model is not built, has nothing to train, or has weights of unfit types."""
    if not isinstance(model, keras.Model) or not model.built:
        raise UserError(f"need a built keras.Model, with an Input or called once, got {truncated_repr(model)}")
    if not model.trainable_variables:
        raise UserError("the model has no trainable weights; set trainable = True for frozen layers")
    if dtype not in (None, "float32", "float64"):
        raise UserError(f"dtype must be float32 or float64, got {dtype!r}")
    for layer in model._flatten_layers():
        mode = layer.dtype_policy.quantization_mode
        if mode == "float8":
            raise UserError(f"layer {layer.name} computes in float8, whose rounding has no second derivative")
        if getattr(layer, "stateful", False):
            warnings.warn(f"{layer.name} is stateful, and starts each batch from its present state", stacklevel=4)


def check_memory_to_build(num_weights: int, dtype: str) -> None:
    """Raises ValueError if the checks and the first product of a Hessian do not fit into the memory that is free."""
    needed = NUM_VECTORS * np.dtype(dtype).itemsize * num_weights
    free = available_memory()
    if needed > free:
        raise UserError(
            f"a Hessian in {num_weights:,} weights needs {needed / 1e9:.1f} GB to check and compute its first product, "
            f"and {free / 1e9:.1f} GB are free"
        )


def without_averages(model: keras.Model) -> list[str]:
    """Returns the names of the layers of batch normalisation whose averages are those they were made with, 0 and 1."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    averages = [(convert_to_numpy(layer.moving_mean), convert_to_numpy(layer.moving_variance)) for layer in layers]
    return [layer.name for layer, (mean, variance) in zip(layers, averages) if not mean.any() and (variance == 1).all()]


def check_examples(examples: Examples, loss: Any, is_default: bool, model: keras.Model | None = None) -> None:
    """Raises ValueError if examples make no loss, or none of a model if one is given."""
    for batch in examples.batches:
        x, y, weights = ([*keras.tree.flatten(tree)] for tree in (*batch, None)[:3])
        _check_numbers(x, y, weights if len(batch) > 2 else [])
        _check_default_labels(y, is_default)
        if getattr(model, "inputs", None):
            _check_inputs(x, model, has_names=isinstance(batch[0], dict))
            _check_labels(y, loss, is_default, model)


def _check_numbers(x: list[np.ndarray], y: list[np.ndarray], weights: list[np.ndarray]) -> None:
    for name, arrays in (("images", x), ("labels", y), ("sample weights", weights)):
        if not all(np.isfinite(array).all() for array in arrays):
            raise UserError(f"the {name} hold NaN or infinite numbers; replace them, or leave these examples out")
    for name, arrays in (("labels", y), ("inputs", x if keras.backend.backend() == "jax" else ())):
        for array in arrays:
            if array.dtype.kind in "iu" and np.abs(array.astype(np.float64)).max(initial=0) > np.iinfo(np.int32).max:
                raise ValueError(f"{name} that are whole numbers must be within int32, got {array.min()}–{array.max()}")


def _check_default_labels(y: list[np.ndarray], is_default: bool) -> None:
    fits = len(y) == 1 and y[0].shape[1:] in ((), (1,)) and y[0].dtype.kind in "iub"
    if is_default and not fits:
        raise UserError(
            "the default loss takes one label per image, a whole number; compile the model, or pass loss=… "
            "(for one-hot rows and logits keras.losses.CategoricalCrossentropy(from_logits=True)), "
            f"got {y[0].shape} of {y[0].dtype}"
        )


def _check_inputs(x: list[np.ndarray], model: keras.Model, has_names: bool) -> None:
    inputs = model.inputs
    if len(x) != len(inputs):
        raise UserError(f"the model takes {len(inputs)} inputs, got {len(x)} arrays")
    if has_names:
        return
    for taken, array in zip(inputs, x):
        fits = all(size in (None, given) for size, given in zip(taken.shape[1:], array.shape[1:]))
        if not fits or len(taken.shape) not in (array.ndim, array.ndim + 1):
            wanted = ", ".join(map(str, taken.shape[1:]))
            raise UserError(f"images must be [m, {wanted}] as the model takes them, got {array.shape}")


def _check_labels(y: list[np.ndarray], loss: Any, is_default: bool, model: keras.Model) -> None:
    """Raises ValueError if labels of the only output are no classes of it; other losses have to judge by themselves."""
    if len(model.outputs) > 1 or len(y) > 1:
        return
    shape = model.outputs[0].shape[1:]
    if is_default and (len(shape) != 1 or shape[0] == 1):
        raise UserError(
            f"the default loss takes [m, classes], at least two classes, the model gives {(None, *shape)}: pass loss"
        )
    loss = keras.tree.flatten(loss)[0]
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    counted = y[0][y[0] != getattr(loss, "ignore_class", None)]
    if "sparse_categorical" in name and shape and shape[-1] and counted.size:
        low = counted.min()
        high = counted.max()
        most = shape[-1] - 1
        if not 0 <= low <= high <= most:
            raise UserError(f"labels must lie in 0–{most}, the model's outputs, got {low}–{high}")
