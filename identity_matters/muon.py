"""Muon: descent along momentum whose matrices are orthogonalised (Jordan et al. 2024).

    m ← μm + g                  momentum
    u = g + μm                  Nesterov's look-ahead; without it u = m
    W ← W − η √max(1, r/c) · NS(u)

NS(u) replaces the singular values of u, seen as a matrix [c, r], by values near 1 and keeps the singular vectors.
A convolution kernel [k, k, c_in, c_out] is the matrix [k·k·c_in, c_out]. Other variables (the scale of a batch
normalisation, a trained last layer) take the step u itself, which is SGD with momentum; with orthogonalize_dense those
of rank 2, as the kernels of Dense layers, are orthogonalised too. Keras's Muon does that, and leaves kernels of
rank 4 to AdamW.

Source: Keller Jordan, Yuchen Jin, Vlado Boza, Jiacheng You, Franz Cesista, Laker Newhouse and Jeremy Bernstein,
*Muon: An optimizer for hidden layers in neural networks*, 2024 (kellerjordan.github.io/posts/muon).
"""

from typing import Any

import keras
from keras import ops

from identity_matters.config import TrainConfig
from identity_matters.gradient_norm import GradientNormOptimizer

# Jordan et al. 2024: p(s) = a s + b s³ + c s⁵ has p′(0) as large as it can be while p∘…∘p stays within 0.7 … 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)

# Steps on one Gram matrix. Its smallest eigenvalues are rounding, perhaps below 0, and a step on the Gram matrix
# multiplies them by 3.44²: after 8 steps in float32, and 5 in TF32, in which GPUs multiply, they spoil the result.
STEPS_PER_GRAM = 3


def orthogonalize(matrices: Any, num_steps: int = 5) -> Any:
    """Matrices with the singular vectors of the given ones, and singular values near 1 (Jordan et al. 2024).

    With u = U diag(s) Vᵀ the result is U diag(p(…p(s/‖u‖_F))) Vᵀ, p(s) = as + bs³ + cs⁵ applied num_steps times. After
    5 steps a singular value of at least 0.01 ‖u‖_F ends in 0.68 … 1.13. The iteration runs on the Gram matrix of the
    shorter side n, so that a step costs 8n³ operations and not 4mn² + 2n³; only the first and the last product of
    every 3 steps see the longer side m. In float32 singular values below about 3e-4 ‖u‖_F are rounding.

    Returns:
      Tensor [..., m, n] of float64 or float32 as the given matrices, of float32 if those are of half precision;
      independent of their scale, zeros for a zero matrix.
    """
    dtype = keras.backend.standardize_dtype(matrices.dtype)
    if dtype in ("float16", "bfloat16"):  # of 11 and 8 bits, in which the iteration would be mostly rounding
        matrices = ops.cast(matrices, "float32")
    if matrices.shape[-2] < matrices.shape[-1]:
        return ops.swapaxes(orthogonalize(ops.swapaxes(matrices, -1, -2), num_steps), -1, -2)
    # The squares of entries below 1e-19, which plain networks have, would underflow to 0.
    largest = ops.max(ops.abs(matrices), axis=(-2, -1), keepdims=True)
    matrices = matrices / ops.maximum(largest, 1e-37)
    norm = ops.sqrt(ops.sum(ops.square(matrices), axis=(-2, -1), keepdims=True))
    matrices = matrices / ops.maximum(norm, 1e-37)
    for start in range(0, num_steps, STEPS_PER_GRAM):
        matrices = _steps_on_one_gram(matrices, min(STEPS_PER_GRAM, num_steps - start))
    return matrices


def _steps_on_one_gram(matrices: Any, num_steps: int) -> Any:
    """Steps of the iteration on matrices [..., m, n] of singular values up to 1.2; m ≥ n."""
    a, b, c = COEFFICIENTS
    gram = ops.matmul(ops.swapaxes(matrices, -1, -2), matrices)
    identity = ops.eye(matrices.shape[-1], dtype=matrices.dtype)
    product = None
    for step in range(num_steps):
        factor = a * identity + b * gram + c * ops.matmul(gram, gram)
        product = factor if product is None else ops.matmul(product, factor)
        if step < num_steps - 1:
            gram = ops.matmul(ops.matmul(factor, gram), factor)
    return ops.matmul(matrices, product)


def _base() -> type:
    """The base; under TensorFlow one that sums the gradients of replicas first: NS(g + h) ≠ NS(g) + NS(h)."""
    if keras.backend.backend() != "tensorflow":
        return GradientNormOptimizer
    from identity_matters.replicated import all_reduce_before_clipping

    return all_reduce_before_clipping(GradientNormOptimizer)


@keras.saving.register_keras_serializable("identity_matters")
class Muon(_base()):
    """The optimiser of this module, under every Keras backend and, of TensorFlow, every tf.distribute strategy.

    To load a model that was compiled with it, import this module first: it registers the class.

    Args:
      learning_rate: η, or a schedule: about the spectral norm of a kernel's step over √max(1, r/c).
      momentum: μ in [0, 1).
      newton_schulz_steps: Steps of `orthogonalize`, 1 to 100.
      orthogonalize_dense: Whether variables of rank 2 are orthogonalised too: the kernels of Dense layers, that of the
        logits among them, and embeddings, for which this is not meant.
      **options: Those of keras.optimizers.Optimizer: weight_decay λ is decoupled, W ← (1 − ηλ)W, global_clipnorm, name.

    Raises:
      UserError: momentum or newton_schulz_steps is out of its range.
    """

    def __init__(
        self,
        learning_rate: Any = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        newton_schulz_steps: int = 5,
        orthogonalize_dense: bool = False,
        name: str = "muon",
        **options: Any,
    ) -> None:
        # The limits of the flags; they hold here too if a file or a user makes the optimiser.
        TrainConfig(momentum=momentum, newton_schulz_steps=newton_schulz_steps)
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.momentum = momentum
        self.nesterov = nesterov
        self.newton_schulz_steps = newton_schulz_steps
        self.orthogonalize_dense = orthogonalize_dense

    def build(self, variables: list) -> None:
        """Makes the momentum variables, one for each trainable variable."""
        if self.built:
            return
        super().build(variables)
        self.momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its momentum; gradient is (new momentum, step), from _backend_update_step."""
        momentum, step = gradient
        self.assign(self.momentums[self._get_variable_index(variable)], momentum)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * step)

    def _backend_update_step(self, grads: list, trainable_variables: list, learning_rate: Any) -> None:
        pairs = self._momentums_and_steps(grads, trainable_variables)
        super()._backend_update_step(pairs, trainable_variables, learning_rate)

    def _momentums_and_steps(self, gradients: list, variables: list) -> list[tuple]:
        """The new momentum of each variable and its step, before the learning rate.

        Kernels of one shape are orthogonalised in one batched product.
        """
        momentums = []
        steps = []
        kernels = {}
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            momentum = ops.convert_to_tensor(self.momentums[self._get_variable_index(variable)])
            momentums.append(self.momentum * momentum + gradient)
            steps.append(gradient + self.momentum * momentums[-1] if self.nesterov else momentums[-1])
            if len(variable.shape) == 4 or self.orthogonalize_dense and len(variable.shape) == 2:
                kernels.setdefault((tuple(variable.shape), str(steps[-1].dtype)), []).append(i)
        for (shape, _), indices in kernels.items():
            matrices = ops.stack([ops.reshape(steps[i], (-1, shape[-1])) for i in indices])
            scale = max(1.0, matrices.shape[-1] / matrices.shape[-2]) ** 0.5
            orthogonal = scale * orthogonalize(matrices, self.newton_schulz_steps)
            for position, i in enumerate(indices):
                steps[i] = ops.cast(ops.reshape(orthogonal[position], shape), steps[i].dtype)
        return list(zip(momentums, steps, strict=True))

    def get_config(self) -> dict:
        """The arguments, as Keras saves them."""
        names = ("momentum", "nesterov", "newton_schulz_steps", "orthogonalize_dense")
        return super().get_config() | {name: getattr(self, name) for name in names}
