"""Products by function transforms: forward mode over reverse mode, for backends whose module has grad, jvp and vjp.

    equations                                    code
    Hv = d/dt ∇L(w + tv) at t = 0                hessian_product
    Gv = Jᵀ ∇²ℓ J v, J of the outputs            gauss_newton_product

`transforms` is jax or torch.func, whose functions of these names are alike.
"""

from typing import Any

import keras

from shortcut_study.curvature.objective import Objective


def hessian_product(
    transforms: Any, objective: Objective, weights: list, others: list, vectors: list, batch: tuple, scales: Any
) -> list:
    """Returns the product of a batch's Hessian with a vector, both in the shapes of the weights."""
    gradient = transforms.grad(lambda weights: objective.total(weights, others, batch, scales))
    try:
        return transforms.jvp(gradient, (weights,), (vectors,))[1]
    except (TypeError, NotImplementedError):  # a gradient function of the user's own, which has no forward mode
        return transforms.vjp(gradient, weights)[1](vectors)[0]


def gauss_newton_product(
    transforms: Any, objective: Objective, weights: list, others: list, vectors: list, batch: tuple, scales: Any
) -> list:
    """Returns the same of the Gauss–Newton matrix."""
    x, y, sample_weight = batch
    with objective.at(weights, others):  # for the structure and the masks
        like = objective.outputs(x)

    def outputs_of(weights: list) -> list:
        with objective.at(weights, others):
            return keras.tree.flatten(objective.outputs(x))

    def loss_of(outputs: list) -> Any:
        with objective.at(weights, others):
            found = objective.sums(y, objective.with_masks(outputs, like), sample_weight)
        return sum(scales[i] * part.total for i, part in enumerate(found))

    outputs, pushed = transforms.jvp(outputs_of, (weights,), (vectors,))
    curved = transforms.jvp(transforms.grad(loss_of), (outputs,), (pushed,))[1]
    return transforms.vjp(outputs_of, weights)[1](curved)[0]
