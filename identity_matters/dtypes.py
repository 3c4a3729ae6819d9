"""A copy of a Keras model whose layers compute in another floating type."""

from typing import Any

import keras
import numpy as np

HALF = "float16", "bfloat16"
TOLERANCE = 1e-3  # of the largest |output| of a copy: far above rounding, far below the difference of another network


def with_dtype(model: keras.Model, dtype: str) -> keras.Model:
    """Returns a copy of a functional or sequential model whose layers compute, and keep their weights, in one type.

    `curvature.Hessian(…, dtype="float64")` needs none. ONNX Runtime takes no network in mixed precision.
    ValueError names a class that Keras cannot copy, or whose copy computes something else or stays in another type.
    """
    try:
        copy = type(model).from_config(_in_dtype(model.get_config(), dtype))
        copy.set_weights(model.get_weights())
    except (TypeError, NotImplementedError, ValueError) as error:
        raise ValueError(f"{model.name} cannot be copied; each class needs a whole get_config: {error}") from error
    for weight, copied in zip(model.weights, copy.weights):
        copied.trainable = weight.trainable  # frozen one by one, which no layer's configuration says
    for layer in copy._flatten_layers():
        computes = not isinstance(layer, keras.Model | keras.layers.InputLayer)
        if computes and layer.compute_dtype != dtype:
            raise ValueError(f"layer {layer.name}, a {type(layer).__name__}, stays {layer.compute_dtype}")
        if hasattr(layer, "finalize_state"):  # Normalization computes by constants that it makes of its weights here
            layer.finalize_state()
    if not any(layer.compute_dtype in HALF for layer in model._flatten_layers()):
        random = np.random.default_rng(0)
        batch = [random.random((x.shape[0] or 2, *(size or 32 for size in x.shape[1:]))) for x in model.inputs]
        pair = [
            keras.tree.flatten(network(batch if len(batch) > 1 else batch[0], training=False))
            for network in (model, copy)
        ]
        for expected, found in zip(*([keras.ops.convert_to_numpy(z) for z in outputs] for outputs in pair)):
            if np.abs(found - expected).max(initial=0) > TOLERANCE * np.abs(expected).max(initial=0):
                raise ValueError(f"the copy of {model.name} computes something else; a get_config leaves something out")
    return copy


def _in_dtype(config: Any, dtype: str) -> Any:
    """Returns a layer's configuration, and those of layers in it, with another dtype if there is one."""
    if isinstance(config, list | tuple):
        return type(config)(_in_dtype(value, dtype) for value in config)
    if not isinstance(config, dict):
        return config
    return {
        name: dtype if name == "dtype" and value not in ("int32", "int64") else _in_dtype(value, dtype)
        for name, value in config.items()
    }
