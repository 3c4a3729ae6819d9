"""Momentum SGD as in the original TensorFlow code of the ResNets: tf.train.MomentumOptimizer.

    v ← μv + g          accumulated gradients
    w ← w − ηv          at the present learning rate η

Keras's SGD and Sutskever et al. 2013 keep the learning rate inside the velocity, v ← μv − ηg and w ← w + v. The two
rules agree as long as η is constant. After η drops, Keras's velocity still holds gradients at the old rate: with g = 1,
μ = 0.9 and η = 0.05, divided by 10 after 30 steps, the next step is 0.048 here and 0.436 under Keras's rule; 15 steps
later Keras's is still 2.6 times as large. PyTorch's SGD and Muon follow the rule of this module.
"""

from typing import Any

import keras
from keras import ops

from identity_matters.config import TrainConfig
from identity_matters.gradient_norm import GradientNormOptimizer


@keras.saving.register_keras_serializable("identity_matters")
class Momentum(GradientNormOptimizer):
    """The optimiser of this module, under every Keras backend and, of TensorFlow, every tf.distribute strategy.

    Its formula is that of tf.train.MomentumOptimizer without use_nesterov. Nesterov's momentum, `--optimizer=nesterov`,
    is Keras's SGD(nesterov=True).

    To load a model that was compiled with it, import this module first: it registers the class.

    Args:
      learning_rate: η, or a schedule.
      momentum: μ in [0, 1). With 0 there are no accumulators, and w ← w − ηg.
      **options: Those of keras.optimizers.Optimizer: weight_decay λ is decoupled, w ← (1 − ηλ)w, global_clipnorm.

    Raises:
      UserError: momentum is out of its range.
    """

    def __init__(
        self, learning_rate: Any = 0.01, momentum: float = 0.9, name: str = "momentum", **options: Any
    ) -> None:
        TrainConfig(momentum=momentum)  # raises UserError for a value that the flag does not accept
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.momentum = momentum

    def build(self, variables: list) -> None:
        """Creates an accumulator for each variable [of its shape], unless momentum is 0."""
        if self.built:
            return
        super().build(variables)
        # Named unlike Keras's velocity, so that no checkpoint of Keras's SGD is taken for one of this optimiser.
        self.momentums = self.add_optimizer_variables(variables, "accumulator") if self.momentum else []

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its accumulator."""
        step = ops.cast(gradient, variable.dtype)
        if self.momentum:
            accumulator = self.momentums[self._get_variable_index(variable)]
            self.assign(accumulator, ops.add(ops.multiply(accumulator, ops.cast(self.momentum, variable.dtype)), step))
            step = accumulator
        self.assign_sub(variable, ops.multiply(step, ops.cast(learning_rate, variable.dtype)))

    def get_config(self) -> dict:
        """The arguments, as Keras saves them."""
        return super().get_config() | {"momentum": self.momentum}
