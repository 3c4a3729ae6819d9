"""Exact Hessians of n-shortcut networks, and summaries of their spectra (Li et al. §5, appendix B).

    paper                                   code
    H, in the order of Definition 5         hessian(…) [P, P]: unit, layer in unit, column, row
    |λ|_max, |λ|_(0.1)                      Spectrum.max_abs, p10_abs
    index                                   Spectrum.index, the share of negative eigenvalues; index_range

For a linear network ŷ = Wx the loss depends on the data only through Sxx = (1/m) Σ x xᵀ and Syx. Write
W = F_p W_p B_p + (terms without W_p) for a weight matrix W_p: F_p is the product of the factors after it, B_p of those
before. For p before q, K_qp is what lies between, in a later unit or in the same one, and G = W Sxx − Syx. Then, for
all p, q, and with the second term for p ≠ q only,

    ∂²L/∂W_p[i₁,j₁]∂W_q[i₂,j₂] = (F_pᵀ F_q)[i₁,i₂] (B_p Sxx B_qᵀ)[j₁,j₂] + K_qp[j₂,i₁] (B_p Gᵀ F_q)[j₁,i₂].

The first term is Gauss–Newton's, the second the curvature of the network. Both are products of
two small matrices, so the cost is that of writing P² numbers.
"""

from typing import NamedTuple

import numpy as np

from shortcut_study.conditioning import Spectrum, summarize
from shortcut_study.curvature.lanczos import SYMMETRY_TOLERANCE
from shortcut_study.network import ShortcutNetwork
from shortcut_study.piecewise import is_piecewise_linear, piecewise_hessian
from theory.arrays import finite
from theory.shortcut.networks import moments

METHODS = ("auto", "closed_form", "piecewise", "tape")


def hessian(
    network: ShortcutNetwork, weights: np.ndarray, x: np.ndarray, y: np.ndarray, method: str = "auto"
) -> np.ndarray:
    """Returns the Hessian of L = 1/(2m) Σ‖y − ŷ‖² in the weights (Li et al., Definition 5).

    For 2-shortcut networks whose mid and post activations are smooth and 0 at 0, the Hessian at zero weights is I_R ⊗
    [0 Aᵀ; A 0] (Theorem 1): half of its eigenvalues are negative if A is invertible. The slope of a ReLU at its kink is
    taken as 0. If the data put a ReLU at its kink, as zero weights do for ReLUs at mid and post, the loss has in
    general no Hessian, and the result is not one.

    >>> x, y = np.random.default_rng(0).standard_normal((2, 50, 3))
    >>> network = ShortcutNetwork(width=3, num_units=4, shortcut_depth=2)
    >>> matrix = hessian(network, network.initialize("exact_zero", seed=0), x, y)
    >>> matrix.shape, spectrum(matrix).index
    ((72, 72), 0.5)

    Args:
      weights: [num_units, shortcut_depth, width, width].
      x, y: [m, width].
      method: str. closed_form, for linear networks; piecewise, for linear and ReLU activations;
        tape, automatic differentiation, for any; auto, the first of these that applies.

    Returns:
      [P, P] float64, symmetric, parameters ordered by unit, layer in unit, column, row.

    Raises:
      ValueError: an unknown method, or one that does not apply; shapes that do not belong together, non-finite numbers;
        a user's activation that does not take tensors, or without a second derivative in TensorFlow.
    """
    weights = finite("weights", weights)
    (x, y) = network.examples(x, y)
    if weights.shape != network.shape:
        raise ValueError(f"weights must have shape {network.shape}, got {weights.shape}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    applies = {"closed_form": network.is_linear, "piecewise": is_piecewise_linear(network), "tape": True}
    if method == "auto":
        method = next(name for name in applies if applies[name])
    if not applies[method]:
        needed = "a linear network" if method == "closed_form" else "linear and ReLU activations"
        raise ValueError(f"method {method} needs {needed}, got activations {network.activations}; use tape")
    if method == "closed_form":
        return hessian_from_moments(weights, *moments(x, y), shortcut=network.shortcut)
    if method == "piecewise":
        return piecewise_hessian(network, weights, x, y)
    from shortcut_study.tape import tape_hessian

    return tape_hessian(network, weights, x, y)


def hessian_from_moments(
    weights: np.ndarray, input_moment: np.ndarray, cross_moment: np.ndarray, shortcut: bool = True
) -> np.ndarray:
    """Returns the Hessian of a linear network from Sxx = (1/m) Σ x xᵀ and Syx = (1/m) Σ y xᵀ.

    Costs P² multiplications and additions and as many writes, P = N d², N weight matrices.

    Args:
      weights: [num_units, shortcut_depth, d, d].
      input_moment, cross_moment: [d, d].

    Returns:
      [P, P].
    """
    num_units, shortcut_depth, d, _ = weights.shape
    paths = _paths(weights, shortcut)
    error = (paths.end_to_end @ input_moment - cross_moment).T  # Gᵀ
    after = paths.after
    before = paths.before
    size = num_units * shortcut_depth
    rows_after = after.transpose(1, 0, 2).reshape(d, -1)
    rows_before = before.reshape(-1, d)
    newton_rows = (rows_after.T @ rows_after).reshape(size, d, size, d)  # [p, i₁, q, i₂]
    newton_columns = (rows_before @ input_moment @ rows_before.T).reshape(size, d, size, d)  # [p, j₁, q, j₂]
    bent = (rows_before @ error @ rows_after).reshape(size, d, size, d)  # [p, j₁, q, i₂]
    result = np.empty((size, d, d, size, d, d))
    for p in range(size):
        block = newton_columns[p, :, None, p:, :, None] * newton_rows[p, None, :, p:, None, :]
        between = paths.between[p + 1 :, p].transpose(2, 0, 1)  # [i₁, q, j₂]
        block[:, :, 1:] += between[None, :, :, :, None] * bent[p, :, None, p + 1 :, None, :]
        result[p, :, :, p:] = block
        result[p:, :, :, p] = block.transpose(2, 3, 4, 0, 1)
    return result.reshape(size * d * d, size * d * d)


class _Paths(NamedTuple):
    """The maps before, after and between the weight matrices of a linear network.

    Attributes:
      end_to_end: W [d, d].
      before, after: B_p and F_p [N, d, d].
      between: K_qp for p before q, 0 for others [q: N, p: N, d, d].
    """

    end_to_end: np.ndarray
    before: np.ndarray
    after: np.ndarray
    between: np.ndarray


def _paths(weights: np.ndarray, shortcut: bool) -> _Paths:
    num_units, shortcut_depth, d, _ = weights.shape
    # Products of a unit's layers from one up to, but without, another: [R, to, from, d, d]; 0 for to < from.
    inside = np.zeros((num_units, shortcut_depth + 1, shortcut_depth + 1, d, d))
    for start in range(shortcut_depth + 1):
        inside[:, start, start] = np.eye(d)
        for layer in range(start, shortcut_depth):
            inside[:, layer + 1, start] = weights[:, layer] @ inside[:, layer, start]
    units = inside[:, -1, 0] + (np.eye(d) if shortcut else 0)
    between = np.zeros((num_units, shortcut_depth, num_units, shortcut_depth, d, d))
    up_to, beyond = [np.eye(d)], [np.eye(d)]
    reached = np.zeros((num_units, shortcut_depth, d, d))  # from behind each earlier matrix up to the current unit
    for r, unit in enumerate(units):
        between[r, :, :r] = inside[r, :-1, 0][:, None, None] @ reached[:r]
        for layer in range(shortcut_depth):
            between[r, layer, r, :layer] = inside[r, layer, 1 : layer + 1]
        reached[:r] = unit @ reached[:r]
        reached[r] = inside[r, -1, 1:]
        up_to.append(unit @ up_to[-1])
        beyond.append(beyond[-1] @ units[-1 - r])
    return _Paths(
        end_to_end=up_to[-1],
        before=(inside[:, :-1, 0] @ np.stack(up_to[:-1])[:, None]).reshape(-1, d, d),
        after=(np.stack(beyond[-2::-1])[:, None] @ inside[:, -1, 1:]).reshape(-1, d, d),
        between=between.reshape(num_units * shortcut_depth, num_units * shortcut_depth, d, d),
    )


def spectrum(hessian: np.ndarray) -> Spectrum:
    """Returns the summary of a Hessian's eigenvalues (Li et al., footnote 1 and §5.2).

    >>> summary = spectrum(np.diag([-4.0, 0.0, 1.0, 2.0, 8.0]))
    >>> summary.max_abs, summary.index, summary.index_range
    (8.0, 0.2, (0.2, 0.4))

    An eigenvalue counts as 0 within P · ε · max |λ|, ε of the type in which the matrix comes.

    Args:
      hessian: [P, P], symmetric, P ≥ 1. Numbers that float32 arithmetic gave must come as float32.

    Raises:
      ValueError: no square matrix, entries that are not real and finite, or a matrix that is not symmetric.
    """
    given = np.asarray(hessian).dtype
    matrix = finite("hessian", hessian)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"hessian must be [P, P], P at least 1, got shape {matrix.shape}")
    scale = max(matrix.max(), -matrix.min())
    asymmetry = max(np.abs(row - column).max() for row, column in zip(matrix, matrix.T))
    if asymmetry > SYMMETRY_TOLERANCE * scale:
        raise ValueError(f"hessian is not symmetric: |H − Hᵀ| reaches {asymmetry:.3g}, H itself {scale:.3g}")
    eigenvalues = np.linalg.eigvalsh(matrix)
    epsilon = max(np.finfo(kind).eps for kind in (np.float64, given if given.kind == "f" else np.float64))
    return summarize(eigenvalues, len(eigenvalues) * epsilon * np.abs(eigenvalues).max())
