"""What launch.hessian_spectrum cannot compute, said before it begins."""

import hashlib
import math
import os
from typing import TYPE_CHECKING

from identity_matters.errors import UserError

if TYPE_CHECKING:
    import keras

NUM_SPARE_VECTORS = 12  # beside the basis: weights, gradients, products


def num_weights(model: "keras.Model") -> int:
    """Returns the number of trained weights."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def weights_digest(model: "keras.Model") -> str:
    """Returns a digest of all weights, those that are not trained included."""
    digest = hashlib.blake2b(digest_size=8)
    for array in model.get_weights():
        digest.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def check_order(order: int, model: "keras.Model") -> None:
    """Raises UserError where there are not so many steps to take, or no memory for their vectors."""
    dim, memory = num_weights(model), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if order > dim:
        raise UserError(f"order must be at most the number of trained weights, {dim}, got {order}")
    possible = memory // (4 * dim) - NUM_SPARE_VECTORS
    if order > possible:
        raise UserError(
            f"order {order} needs {4 * dim * order / 1e9:.1f} GB for vectors of {dim:,} weights and this "
            f"machine has {memory / 1e9:.1f} GB in all; choose at most {max(possible, 1)}"
        )


def check_batch_norm(model: "keras.Model", batch_moments: bool) -> None:
    """Raises UserError for moving averages that no batch has entered, unless batches have their own moments."""
    from shortcut_study.curvature.model_checks import without_averages

    names = without_averages(model)
    if names and not batch_moments:
        raise UserError(f"{names[0]} has averaged no batches yet; add --batch_moments")
