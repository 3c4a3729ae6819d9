"""The norm of the gradient, which training writes to TensorBoard."""

import keras
from keras import ops


class GradientNormOptimizer(keras.optimizers.Optimizer):
    """A base of optimisers whose variable `gradient_norm` is the global norm of the last gradient, before clipping."""

    def build(self, variables: list) -> None:
        """Makes the variables, `gradient_norm` among them."""
        super().build(variables)
        self.gradient_norm = self.add_variable(
            (), dtype="float32", aggregation="only_first_replica", name="gradient_norm"
        )

    def _clip_gradients(self, grads: list) -> list:
        squares = [ops.sum(ops.square(ops.cast(gradient, "float32"))) for gradient in grads]
        self.gradient_norm.assign(ops.sqrt(sum(squares)))
        return super()._clip_gradients(grads)
