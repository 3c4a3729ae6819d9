"""A memorising network as a keras.Model, on any Keras backend.

Layers: projection (A_0), blocks (all ℓ residual blocks in one loop, so that a network of 782 is
built and exported in under a second), head_units and head. To load a saved file elsewhere,
import this module first: it registers ResidualBlocks.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops


@keras.saving.register_keras_serializable(package="theory")
class ResidualBlocks(layers.Layer):
    """h ← h + V_j ReLU(U_j h + s_j), j = 1, …, ℓ, for every row h (Hardt & Ma (3.1), §3).

    Args:
      num_blocks: int. ℓ.
    """

    def __init__(self, num_blocks: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_blocks = num_blocks

    def build(self, input_shape: tuple) -> None:
        """Makes the weights U, V [ℓ, k, k] and s [ℓ, k]."""
        width = input_shape[-1]
        self.U = self.add_weight(shape=(self.num_blocks, width, width), name="U")
        self.V = self.add_weight(shape=(self.num_blocks, width, width), name="V")
        self.s = self.add_weight(shape=(self.num_blocks, width), name="s")

    def call(self, h: Any) -> Any:
        """Returns h [n, k] after all blocks."""

        def block(h: Any, weights: tuple) -> tuple:
            U, V, s = weights
            return h + ops.relu(h @ ops.transpose(U) + s) @ ops.transpose(V), None

        return ops.scan(block, h, tuple(ops.convert_to_tensor(w) for w in (self.U, self.V, self.s)))[0]

    def compute_output_spec(self, h: Any) -> keras.KerasTensor:
        """Returns the shape and the type of `call`'s result, those of h."""
        return keras.KerasTensor(h.shape, dtype=self.compute_dtype)

    def get_config(self) -> dict:
        """Returns the arguments that `from_config` needs."""
        return {**super().get_config(), "num_blocks": self.num_blocks}


def keras_model(weights: Sequence[np.ndarray], dtype: str) -> keras.Model:
    """Returns a functional model with these weights, all trainable: x [n, d] to scores [n, r].

    Args:
      weights: The arrays of a `MemorizingNetwork` in their order, projection to head_s.
      dtype: str. float32 or float64; JAX needs its x64 mode for the latter.
    """
    projection, U, V, s, head_U, head_V, head_s = weights
    inputs = keras.Input((projection.shape[1],), dtype=dtype, name="x")
    h = layers.Dense(len(projection), use_bias=False, dtype=dtype, name="projection")(inputs)
    h = ResidualBlocks(len(U), dtype=dtype, name="blocks")(h)
    h = layers.Dense(len(head_U), activation="relu", dtype=dtype, name="head_units")(h)
    scores = layers.Dense(len(head_V), use_bias=False, dtype=dtype, name="head")(h)
    model = keras.Model(inputs, scores, name="memorizing_network")
    model.set_weights([projection.T, U, V, s, head_U.T, head_s, head_V.T])
    return model
