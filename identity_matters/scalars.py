"""Layers of one trained number each: what ReZero, SkipInit and Fixup put into a residual branch.

They compute in float32 even if convolutions do not, because a number near 0 loses most of its first steps in bfloat16.
A .keras file that holds them loads only if `identity_matters` can be imported: import this module first, which
registers the classes. A SavedModel needs only TensorFlow.
"""

from typing import Any

import keras


class _Scalar(keras.layers.Layer):
    """A layer with one trained number, `value`, that starts at `initial`."""

    def __init__(self, initial: float, **options: Any) -> None:
        super().__init__(**options)
        self.initial = float(initial)

    def build(self, input_shape: tuple) -> None:
        """Makes the number."""
        initializer = keras.initializers.Constant(self.initial)
        self.value = self.add_weight(shape=(1,), initializer=initializer, name="value")  # tf2onnx fails on ()

    def get_config(self) -> dict:
        """The arguments, as Keras saves them."""
        return super().get_config() | {"initial": self.initial}


@keras.saving.register_keras_serializable("identity_matters")
class ScalarMultiplier(_Scalar):
    """Multiplies its input, of any shape, by one trained number, which starts at `initial`."""

    def call(self, inputs: Any) -> Any:
        """Returns the product."""
        return inputs * self.value


@keras.saving.register_keras_serializable("identity_matters")
class ScalarBias(_Scalar):
    """Adds one trained number, which starts at `initial`, to every entry of its input, of any shape."""

    def call(self, inputs: Any) -> Any:
        """Returns the sum."""
        return inputs + self.value
