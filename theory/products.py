"""The product N_ℓ···N_1 X of layers and its gradient (Hardt & Ma, Lemma 2.4), for one network or many at once."""

import numpy as np


def products(layers: np.ndarray, first: np.ndarray | None = None) -> np.ndarray:
    """Returns X, N_1 X, …, N_ℓ···N_1 X [..., ℓ + 1, m, k].

    Args:
      layers: N [..., ℓ, m, m], layer 1 (the first to act) first.
      first: X [m, k]; None for the identity.
    """
    num_layers, m = layers.shape[-3:-1]
    first = np.eye(m) if first is None else first
    before = np.empty((*layers.shape[:-3], num_layers + 1, *first.shape), np.result_type(layers, first))
    before[..., 0, :, :] = first
    for i in range(num_layers):
        before[..., i + 1, :, :] = layers[..., i, :, :] @ before[..., i, :, :]
    return before


def product_gradient(layers: np.ndarray, before: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Returns ∂f/∂N_i = (N_ℓ···N_{i+1})ᵀ G (N_{i−1}···N_1 X)ᵀ [..., ℓ, m, m] (Hardt & Ma, Lemma 2.4, (2.5)).

    The last line of A.2 has the factors in reverse order; the line above it is right.

    Args:
      layers: N [..., ℓ, m, m]. before: `products` of these layers.
      slope: G = ∂f/∂(N_ℓ···N_1 X) [..., m, k].
    """
    after = np.empty_like(before[..., 1:, :, :])
    for i in reversed(range(layers.shape[-3])):
        after[..., i, :, :] = slope
        slope = layers[..., i, :, :].swapaxes(-1, -2) @ slope
    return after @ before[..., :-1, :, :].swapaxes(-1, -2)
