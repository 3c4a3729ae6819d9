"""The exact Hessian of a network with linear and ReLU activations, summed over the data (after Bishop, 1992).

If no pre-activation is 0, the network is, sample by sample, a product of the weight matrices and of
diagonal masks, so ∂²ŷ/∂W_p² = 0 and, for p before q,

    ∂²L/∂W_p[i₁,j₁]∂W_q[i₂,j₂] = (1/m) Σ_s [ Σ_k A_p[k,i₁] A_q[k,i₂] u_p[j₁] u_q[j₂] + δ_q[i₂] K_qp[j₂,i₁] u_p[j₁] ]

with, for the sample s, u_p the input of W_p, A_p = ∂ŷ/∂(W_p u_p), δ_q = A_qᵀ(ŷ − y), K_qp = ∂u_q/∂(W_p u_p). Summing
over k first, then over the samples as a product of matrices [d², m] and [m, d²] for every p ≤ q, costs
m·P² operations for either term; the Jacobian of all outputs, squared, would cost d times that. Blocks of samples
stay in the cache, of two halves of the data on two threads.
"""

import concurrent.futures
from collections.abc import Iterator

import numpy as np

from shortcut_study.network import ShortcutNetwork
from theory.parallel import single_threaded_products

_PIECES = 2  # of the data, a thread each: as many on every machine, because the sum rounds by them
_BLOCK_BYTES = 2**23  # of Σ_k A_p[k,i₁] A_q[k,i₂]


def is_piecewise_linear(network: ShortcutNetwork) -> bool:
    """Returns whether all activations are linear or ReLUs."""
    return all(activation in ("linear", "relu") for activation in network.activations)


def piecewise_hessian(network: ShortcutNetwork, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns `hessian.hessian` for linear and ReLU activations; at a kink ReLU's slope is taken as 0.

    Args and Returns as `hessian.hessian`.
    """
    d, depth = network.width, network.depth
    rows = max(1, _BLOCK_BYTES // (8 * (depth * d) ** 2))

    def piece(first: int, last: int) -> np.ndarray:
        total = np.zeros((depth, depth, d, d, d, d))  # [p, q, i₁, i₂, j₁, j₂], p ≤ q
        for start in range(first, last, rows):
            block = slice(start, min(start + rows, last))
            _add_block(total, network, weights, x[block], y[block])
        return total

    bounds = [len(x) * i // _PIECES for i in range(_PIECES + 1)]
    # Matrices this small are faster on one thread of BLAS each.
    with single_threaded_products(), concurrent.futures.ThreadPoolExecutor(_PIECES) as pool:
        total = sum(pool.map(piece, bounds[:-1], bounds[1:]))
    upper = total.transpose(0, 4, 2, 1, 5, 3).reshape(network.num_parameters, -1) / len(x)
    upper = np.triu(upper)  # the blocks p = q are whole
    return upper + np.triu(upper, 1).T


def _add_block(total: np.ndarray, network: ShortcutNetwork, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Adds to total the sum of a block of samples."""
    d = network.width
    depth = network.depth
    count = len(x)
    inputs, slopes, prediction = _forward(network, weights, x)
    sensitivities = _sensitivities(network, weights, slopes, count)  # A [N, m, k, i]
    joined = np.ascontiguousarray(sensitivities.transpose(1, 2, 0, 3)).reshape(count, d, depth * d)
    products = (joined.transpose(0, 2, 1) @ joined).reshape(count, depth, d, depth, d)  # Σ_k A_p[k,i₁] A_q[k,i₂]
    for p in range(depth):
        output_products = products[:, p, :, p:].transpose(2, 1, 3, 0).reshape(depth - p, d * d, count)
        input_products = (inputs[p][None, :, :, None] * inputs[p:, :, None, :]).reshape(depth - p, count, d * d)
        total[p, p:] += (output_products @ input_products).reshape(depth - p, d, d, d, d)
    errors = ((prediction - y)[:, None, None, :] @ sensitivities.transpose(1, 0, 2, 3))[:, :, 0]  # δ [m, N, d]
    for q, tangents in _tangents(network, weights, slopes, count):  # K_qp [q, m, i₁, j₂], p < q
        outer = inputs[:q, :, :, None] * errors[None, :, q, None, :]  # [q, m, j₁, i₂]
        bend = outer.reshape(q, count, d * d).transpose(0, 2, 1) @ tangents.reshape(q, count, d * d)
        total[:q, q] += bend.reshape(q, d, d, d, d).transpose(0, 3, 2, 1, 4)  # from [p, j₁, i₂, i₁, j₂]


def _forward(network: ShortcutNetwork, weights: np.ndarray, x: np.ndarray) -> tuple:
    """u [N, m, d]; slopes of the activation before each matrix [N, m, d] and after each unit's last [R, m, d]; ŷ."""
    pre, mid, post = network.activations
    inputs = []
    before = []
    after = []
    hidden = x
    for unit in weights:
        inside = hidden
        for layer, matrix in enumerate(unit):
            slope = _slope(mid if layer else pre, inside)
            before.append(slope)
            inputs.append(inside * slope)
            inside = inputs[-1] @ matrix.T
        after.append(_slope(post, inside))
        hidden = hidden * network.shortcut + inside * after[-1]
    return np.stack(inputs), (np.stack(before), np.stack(after)), hidden


def _slope(activation: str, z: np.ndarray) -> np.ndarray:
    return np.ones_like(z) if activation == "linear" else (z > 0).astype(z.dtype)


def _sensitivities(network: ShortcutNetwork, weights: np.ndarray, slopes: tuple, count: int) -> np.ndarray:
    """A_p = ∂ŷ/∂(W_p u_p) [N, m, k, i]."""
    before, after = slopes
    sensitivity = np.broadcast_to(np.eye(network.width), (count, network.width, network.width))
    sensitivities = np.empty((network.depth, *sensitivity.shape))
    for r in reversed(range(network.num_units)):
        inside = sensitivity * after[r][:, None]
        for layer in reversed(range(network.shortcut_depth)):
            p = r * network.shortcut_depth + layer
            sensitivities[p] = inside
            inside = (inside @ weights[r, layer]) * before[p][:, None]
        sensitivity = sensitivity * network.shortcut + inside
    return sensitivities


def _tangents(network: ShortcutNetwork, weights: np.ndarray, slopes: tuple, count: int) -> Iterator:
    """Yields, for q = 1 … N − 1, q and ∂u_q/∂(W_p u_p) for all p < q: [q, m, i (of W_p's output), j (of u_q)]."""
    before, after = slopes
    d = network.width
    # Derivatives of what stands between two matrices by each earlier W_p's output.
    output_tangents = np.zeros((network.depth, count, d, d))
    hidden_tangents = np.zeros((network.depth, count, d, d))
    for r in range(network.num_units):
        first = r * network.shortcut_depth
        output_tangents[:first] = hidden_tangents[:first]
        for layer in range(network.shortcut_depth):
            q = first + layer
            input_tangents = output_tangents[:q] * before[q][:, None]
            if q:
                yield q, input_tangents
            output_tangents[:q] = input_tangents @ weights[r, layer].T
            output_tangents[q] = np.eye(d)
        last = first + network.shortcut_depth
        hidden_tangents[:last] = hidden_tangents[:last] * network.shortcut + output_tangents[:last] * after[r][:, None]
