"""What has no Hessian product is refused in one line, before anything is compiled."""

import numbers

import keras
import numpy as np
import tensorflow as tf

from shortcut_study.curvature_products import Loss
from shortcut_study.model_copies import layers_of


def check_model(model: keras.Model) -> None:
    """Checks what a model needs for products with its Hessian.

    Raises:
      ValueError: another backend, nothing to train, weights of several types or of half precision, several inputs or
        outputs, or a mask of the outputs.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"Hessian products need KERAS_BACKEND=tensorflow, got {keras.backend.backend()}")
    if not model.trainable_variables:
        raise ValueError("the model has no trainable weights")
    types = sorted({variable.dtype for variable in model.trainable_variables})
    if len(types) > 1:
        raise ValueError(
            f'the weights must be of one type, got {", ".join(types)}; take with_dtype(model, "{types[-1]}")'
        )
    if types[0] in ("float16", "bfloat16"):
        raise ValueError(f'the weights must be float32 or float64, got {types[0]}; take with_dtype(model, "float32")')
    if len(getattr(model, "inputs", None) or [0]) != 1 or len(getattr(model, "outputs", None) or [0]) != 1:
        raise ValueError(f"need a model of one input and one output, got {len(model.inputs)}, {len(model.outputs)}")
    if getattr(model, "outputs", None) and getattr(model.outputs[0], "_keras_mask", None) is not None:
        raise ValueError("the model masks some of its outputs, which Keras leaves out of the loss; here all count")


def without_averages(model: keras.Model) -> list[str]:
    """Returns the names of the layers of batch normalisation whose averages are those they were made with, 0 and 1."""
    return [
        layer.name
        for layer in layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and not np.any(layer.moving_mean)
        and np.all(layer.moving_variance == 1)
    ]


def check_examples(
    images: np.ndarray, labels: np.ndarray, loss: Loss = None, batch_size: int = 1, model: keras.Model | None = None
) -> None:
    """Checks what a Hessian is asked of: a loss over examples, in batches, of a model if one is given.

    Raises:
      ValueError: no image, not one label an image, no whole batch_size; images that the model does not take; without a
        loss, labels that are not whole numbers [m] or [m, 1], each with an output of the model; with one, whole
        numbers beyond int32.
    """
    if not isinstance(batch_size, numbers.Integral) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    image_shape, labels = tuple(np.shape(images)), np.asarray(labels)
    is_class = labels.shape[1:] in ((), (1,)) and labels.dtype.kind in "iub"
    if not image_shape[:1] > (0,) or labels.shape[:1] != image_shape[:1] or not (loss or is_class):
        found = f"got {image_shape}, {labels.shape} of {labels.dtype}"
        raise ValueError(f"need one label an image, a whole number by default, and one image at least, {found}")
    if labels.dtype.kind in "iu" and np.abs(labels.astype(np.float64)).max() > np.iinfo(np.int32).max:
        raise ValueError(f"labels that are whole numbers must be within int32, got {labels.min()}–{labels.max()}")
    if not getattr(model, "inputs", None):
        return  # no model, or one that `twice_differentiable` refuses
    taken, given = model.inputs[0].shape[1:], model.outputs[0].shape[1:]
    if not tf.TensorShape(taken).is_compatible_with(image_shape[1:]):
        raise ValueError(f"images must be [m, {', '.join(map(str, taken))}] as the model takes them, got {image_shape}")
    if not loss and (len(given) != 1 or given[0] == 1):
        raise ValueError(
            f"the default loss takes [m, classes], two at least, the model gives {(None, *given)}: pass loss"
        )
    if not loss and given[0] and not 0 <= labels.min() <= labels.max() < given[0]:
        raise ValueError(f"labels must lie in 0–{given[0] - 1}, the model's outputs, got {labels.min()}–{labels.max()}")
