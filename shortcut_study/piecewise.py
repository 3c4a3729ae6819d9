"""The exact Hessian of a network with linear and ReLU activations, summed over the data (after Bishop, 1992).

Where no pre-activation is 0 the network is, sample by sample, a product of the weight matrices and of
diagonal masks, so ∂²ŷ/∂W_p² = 0 and, for p before q,

    ∂²L/∂W_p[i₁,j₁]∂W_q[i₂,j₂] = (1/m) Σ_s [ Σ_k A_p[k,i₁] A_q[k,i₂] u_p[j₁] u_q[j₂] + δ_q[i₂] K_qp[j₂,i₁] u_p[j₁] ]

with, for the sample s, u_p the input of W_p, A_p = ∂ŷ/∂(W_p u_p), δ_q = A_qᵀ(ŷ − y), K_qp = ∂u_q/∂(W_p u_p). The
first term, Gauss–Newton's, is a product JᵀJ of d·m rows and costs d·m·P² operations (half of that by
symmetry), the second a tenth of it at d = 10. Blocks of samples keep J in the cache.
"""

import numpy as np

from shortcut_study.network import ShortcutNetwork

_BLOCK_BYTES = 2**24  # of J


def is_piecewise_linear(network: ShortcutNetwork) -> bool:
    return all(activation in ("linear", "relu") for activation in network.activations)


def piecewise_hessian(network: ShortcutNetwork, weights, x, y) -> np.ndarray:
    """`hessian.hessian` for linear and ReLU activations; at a kink ReLU's slope is taken as 0.

    Args and Returns as `hessian.hessian`.
    """
    rows = max(1, _BLOCK_BYTES // (8 * network.width * network.num_parameters))
    total = np.zeros((network.num_parameters, network.num_parameters))
    for start in range(0, len(x), rows):
        _add_block(total, network, weights, x[start : start + rows], y[start : start + rows])
    return total / len(x)


def _add_block(total, network: ShortcutNetwork, weights, x, y) -> None:
    """Adds the sum of a block of samples to the Hessian [P, P]."""
    d, depth, count = network.width, network.depth, len(x)
    inputs, slopes, prediction = _forward(network, weights, x)
    sensitivities = _sensitivities(network, weights, slopes, count)  # A [N, m, d (k), d (i)]
    jacobian = np.empty((count, d, depth, d, d))  # [m, k, p, j, i]
    for p in range(depth):
        np.multiply(inputs[p][:, None, :, None], sensitivities[p][:, :, None, :], out=jacobian[:, :, p])
    rows = jacobian.reshape(count * d, -1)
    total += rows.T @ rows
    errors = ((prediction - y)[:, None, None, :] @ sensitivities[:, :, :, :].transpose(1, 0, 2, 3))[:, :, 0]  # δ [m, N, d]
    blocks = total.reshape(depth, d, d, depth, d, d)
    for q, tangents in _tangents(network, weights, slopes, count):  # K_qp [q, m, i₁, j₂], p < q
        outer = inputs[:q, :, :, None] * errors[None, :, q, None, :]  # [q, m, j₁, i₂]
        bend = outer.reshape(q, count, d * d).transpose(0, 2, 1) @ tangents.reshape(q, count, d * d)
        bend = bend.reshape(q, d, d, d, d)  # [p, j₁, i₂, i₁, j₂]
        blocks[:q, :, :, q] += bend.transpose(0, 1, 3, 4, 2)
        blocks[q, :, :, :q] += bend.transpose(4, 2, 0, 1, 3)


def _forward(network: ShortcutNetwork, weights, x):
    """u [N, m, d]; slopes of the activation before each matrix [N, m, d] and after the last of each unit [R, m, d]; ŷ."""
    pre, mid, post = network.activations
    inputs, before, after, hidden = [], [], [], x
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


def _slope(activation: str, z) -> np.ndarray:
    return np.ones_like(z) if activation == "linear" else (z > 0).astype(z.dtype)


def _sensitivities(network: ShortcutNetwork, weights, slopes, count: int) -> np.ndarray:
    """A_p = ∂ŷ/∂(W_p u_p) [N, m, k, i]."""
    before, after = slopes
    of_hidden = np.broadcast_to(np.eye(network.width), (count, network.width, network.width))
    sensitivities = np.empty((network.depth, *of_hidden.shape))
    for r in reversed(range(network.num_units)):
        inside = of_hidden * after[r][:, None]
        for layer in reversed(range(network.shortcut_depth)):
            p = r * network.shortcut_depth + layer
            sensitivities[p] = inside
            inside = (inside @ weights[r, layer]) * before[p][:, None]
        of_hidden = of_hidden * network.shortcut + inside
    return sensitivities


def _tangents(network: ShortcutNetwork, weights, slopes, count: int):
    """Yields, for q = 1 … N − 1, q and ∂u_q/∂(W_p u_p) for all p < q: [q, m, i (of W_p's output), j (of u_q)]."""
    before, after = slopes
    d = network.width
    of_output = np.zeros((network.depth, count, d, d))  # of what stands between two matrices, by each earlier W_p's output
    of_hidden = np.zeros((network.depth, count, d, d))
    for r in range(network.num_units):
        first = r * network.shortcut_depth
        of_output[:first] = of_hidden[:first]
        for layer in range(network.shortcut_depth):
            q = first + layer
            of_input = of_output[:q] * before[q][:, None]
            if q:
                yield q, of_input
            of_output[:q] = of_input @ weights[r, layer].T
            of_output[q] = np.eye(d)
        last = first + network.shortcut_depth
        of_hidden[:last] = of_hidden[:last] * network.shortcut + of_output[:last] * after[r][:, None]
