"""The Hessian at zero by differences of the loss: a reference that shares no code with the formulas."""

import numpy as np

from theory.derivatives import difference_hessian
from theory.shortcut import networks
from theory.shortcut.activations import Activation, ActivationLike

DIFFERENCES = 1e-5  # relative: central differences with step 1e-4 in extended precision
# σ(0) = 0, with nonzero derivatives, so that a formula that drops one fails.
BENT = Activation(lambda z: 0.7 * z + 0.4 * z * z, lambda z: 0.7 + 0.8 * z, (0.0, 0.7, 0.8))


def random_data(rng: np.random.Generator, dimension: int = 3, examples: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Returns Gaussian x, y [m, d]."""
    return rng.standard_normal((examples, dimension)), rng.standard_normal((examples, dimension))


def numeric_hessian(x: np.ndarray, y: np.ndarray, units: int, depth: int, *places: ActivationLike) -> np.ndarray:
    """Returns the Hessian of the loss at zero by differences, in the order of Definition 5; places: pre, mid, post."""
    d = x.shape[1]
    x, y = x.astype(np.longdouble), y.astype(np.longdouble)

    def loss(vector: np.ndarray) -> np.longdouble:
        weights = np.swapaxes(vector.reshape(units, depth, d, d), -1, -2)
        return networks.loss(weights, x, y, *places)

    return difference_hessian(loss, units * depth * d * d)


def by_definition_5(weights: np.ndarray) -> np.ndarray:
    """Returns the weights as a vector: unit, layer, column, row."""
    return np.swapaxes(weights, -1, -2).ravel()
