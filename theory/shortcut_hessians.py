"""The loss of an n-shortcut network at zero weights (Li et al., Theorem 1 and appendix A).

    paper                                        code
    W^{r,l}, r = 1 … R, l = 1 … n                weights [num_units, shortcut_depth, d, d]
    n, R, d                                      shortcut_depth, num_units, d
    x, y (columns), m                            x, y [m, d] (rows)
    σ_pre, σ_mid, σ_post                         pre, mid, post
    Σ^{Xσ_pre(X)} − Σ^{Yσ_pre(X)}                M = (1/m) Σ (x − y) σ_pre(x)ᵀ, moment_gap(x, y, pre)
    σ′_mid(0) σ′_post(0)                         c
    P, "1 if i = ((j−1) mod d)d + ⌈j/d⌉"         commutation_matrix(d)

A unit is h ← h + σ_post(W^{r,n} σ_mid(··· W^{r,1} σ_pre(h))); the loss is L = 1/(2m) Σ‖y − ŷ‖².
Parameters are ordered as in Definition 5: unit, layer in the unit, column, row.

σ_pre acts on the data, so its values (and for n = 1 its derivative) at the data matter; σ_mid and σ_post act on
zero, so their derivatives there matter. The paper also claims the theorem for ReLU: with ReLU at mid or post in general
no Hessian exists at zero (docs/appendix/proofs.md says when one does), and these functions raise ValueError.
"""

import math
from typing import NamedTuple

import numpy as np

from theory.arrays import mean_products
from theory.shortcut.activations import (
    ACTIVATIONS,
    Activation,
    ActivationLike,
    Activations,
    activation_named,
    derivatives_at_zero,
    first_derivative,
    values_at_data,
)
from theory.shortcut.networks import checked_counts, checked_data


def moment_gap(x: np.ndarray, y: np.ndarray, pre: ActivationLike = "linear") -> np.ndarray:
    """Returns M = (1/m) Σ (x − y) σ_pre(x)ᵀ [d, d]: the only moment in the Hessian for n = 2 (Li et al., (21)).

    For a linear network it is Sxx − Syx. It is exactly 0 if every entry is within rounding of 0, e.g. if the
    identity is the least squares map: zero is then degenerate, and rounding must not pass for a small M.

    Raises:
      ValueError: x and y of different shapes, non-finite numbers, an unknown activation, one that is not finite at the
        data; products of the data beyond float64's range.
    """
    x, y = checked_data(x, y)
    M, rounding = mean_products(x - y, values_at_data(pre, x))
    return M if (np.abs(M) > rounding).any() else np.zeros_like(M)


def hessian_at_zero(
    x: np.ndarray,
    y: np.ndarray,
    num_units: int,
    shortcut_depth: int,
    pre: ActivationLike = "linear",
    mid: ActivationLike = "linear",
    post: ActivationLike = "linear",
) -> np.ndarray:
    """Returns the Hessian of the loss at zero weights (Li et al., Theorem 1, (11), (13), (19)–(28)).

    n ≥ 3: zero. n = 2: I_R ⊗ [0 Aᵀ; A 0], A = c (I_d ⊗ M) P. n = 1: B in the diagonal blocks, A
    below them (row: the later unit), Aᵀ above; for linear networks B = Sxx ⊗ I, A = (I_d ⊗ M) P + B.
    The paper gives n = 1 for linear networks; with activations, s = σ_pre(x), p = σ_post:

        B[(j₁,i₁),(j₂,i₂)] = [i₁ = i₂] E[(p′(0)² − p″(0)(y − x)_{i₁}) s_{j₁} s_{j₂}]
        A[(j₁,i₁),(j₂,i₂)] = [i₁ = i₂] p′(0)² E[s_{j₁} s_{j₂}] + [j₁ = i₂] p′(0)² E[(x − y)_{i₁} σ′_pre(x_{j₁}) s_{j₂}].

    Args:
      x, y: [m, d] float.
      num_units: int. R ≥ 1.
      shortcut_depth: int. n ≥ 1.
      pre: str or Activation. A name of ACTIVATIONS, or one of your own.
      mid, post: str, Activation, or (σ′(0), σ″(0)) of a function with σ(0) = 0. mid has an effect for n ≥ 2.

    Returns:
      [P, P] float64, P = R·n·d².

    Raises:
      ValueError: a mid or post with σ(0) ≠ 0, for which zero weights do not give the identity,
        or without derivatives at 0, such as ReLU; for n = 1 and R ≥ 2 a pre without
        derivative at the data; data as in `moment_gap`.

    >>> x = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> y = np.array([[1.0, 0.0], [0.0, -2.0]])  # M = diag(1, 4)
    >>> eigenvalues = np.linalg.eigvalsh(hessian_at_zero(x, y, num_units=3, shortcut_depth=2))
    >>> np.unique(eigenvalues.round(12)).tolist()
    [-4.0, -1.0, 1.0, 4.0]
    """
    x, y, activations = _checked(x, y, num_units, shortcut_depth, Activations(pre, mid, post))
    d = x.shape[1]
    if shortcut_depth >= 3:
        return np.zeros((num_units * shortcut_depth * d * d,) * 2)
    if shortcut_depth == 2:
        A = activations.slope_at_zero(2) * np.kron(np.eye(d), moment_gap(x, y, pre)) @ commutation_matrix(d)
        zero = np.zeros_like(A)
        return np.kron(np.eye(num_units), np.block([[zero, A.T], [A, zero]]))
    first = first_derivative("post", post)
    second = derivatives_at_zero("post", post)[2]
    if not math.isfinite(second):
        raise ValueError(
            f"in general no Hessian exists at zero for n = 1 with {post!r} at post, which has no second derivative at 0"
        )
    A, B = _one_layer_blocks(x, y, activation_named(pre), first, second, several=num_units > 1)
    later = np.tri(num_units, k=-1)
    return np.kron(np.eye(num_units), B) + np.kron(later, A) + np.kron(later.T, A.T)


def _checked(
    x: np.ndarray, y: np.ndarray, num_units: int, shortcut_depth: int, activations: Activations
) -> tuple[np.ndarray, np.ndarray, Activations]:
    """Returns x, y in float64 and the activations; ValueError as `hessian_at_zero` says."""
    x, y = checked_data(x, y)
    checked_counts(num_units, shortcut_depth)
    activations.check(shortcut_depth)
    return x, y, activations


def commutation_matrix(d: int) -> np.ndarray:
    """Returns P [d², d²] with P vec(W) = vec(Wᵀ), vec by columns; symmetric and its own inverse (Li et al., (20))."""
    return np.eye(d * d).reshape(d, d, d, d).transpose(1, 0, 2, 3).reshape(d * d, d * d)


class Spectrum(NamedTuple):
    """Distinct eigenvalues in increasing order and how often each occurs."""

    eigenvalues: np.ndarray
    multiplicities: np.ndarray


def spectrum_at_zero(
    x: np.ndarray,
    y: np.ndarray,
    num_units: int,
    shortcut_depth: int,
    pre: ActivationLike = "linear",
    mid: ActivationLike = "linear",
    post: ActivationLike = "linear",
) -> Spectrum:
    """Returns the eigenvalues of `hessian_at_zero` (Li et al., (18), (22)).

    n = 2: ±|c| σ_i(M), each sign d·R times for every i: as the paper says, R copies, one per shortcut, of the d²
    values ±σ(A), of which d are equal. n ≥ 3: 0. n = 1: those of the matrix. Values equal within rounding are merged.

    Args and errors as `hessian_at_zero`.
    """
    x, y, activations = _checked(x, y, num_units, shortcut_depth, Activations(pre, mid, post))
    d = x.shape[1]
    if shortcut_depth >= 3:
        return Spectrum(np.zeros(1), np.array([num_units * shortcut_depth * d * d]))
    if shortcut_depth == 2:
        sigma = abs(activations.slope_at_zero(2)) * np.linalg.svd(moment_gap(x, y, pre), compute_uv=False)
        return _merged(np.concatenate([-sigma, sigma[::-1]]), d * num_units)
    return _merged(np.linalg.eigvalsh(hessian_at_zero(x, y, num_units, 1, *activations)), 1)


def _merged(eigenvalues: np.ndarray, copies: int) -> Spectrum:
    """Returns the spectrum of increasing eigenvalues, each `copies` times, with values equal within rounding merged."""
    # LAPACK may be off by n ε of the largest. Nearer values are merged.
    rounding = len(eigenvalues) * np.finfo(np.float64).eps * np.abs(eigenvalues).max()
    groups = np.split(eigenvalues, np.flatnonzero(np.diff(eigenvalues) > rounding) + 1)
    return Spectrum(np.array([group.mean() for group in groups]), copies * np.array([len(group) for group in groups]))


def condition_number_at_zero(
    x: np.ndarray,
    y: np.ndarray,
    num_units: int,
    shortcut_depth: int,
    pre: ActivationLike = "linear",
    mid: ActivationLike = "linear",
    post: ActivationLike = "linear",
) -> float:
    """Returns the largest over the smallest |eigenvalue| of `hessian_at_zero` (Li et al., (1), (12)); inf if singular.

    n = 2: cond(M), the same for every number of units. n = 1: at least `condition_number_lower_bound`.

    >>> x = np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> y = np.array([[1.0, 0.0], [0.0, -2.0]])
    >>> [round(condition_number_at_zero(x, y, units, 2), 6) for units in (1, 10)]
    [4.0, 4.0]
    >>> [round(condition_number_at_zero(x, y, units, 1), 1) for units in (2, 10)]
    [8.0, 56.0]

    Args and errors as `hessian_at_zero`.
    """
    sizes = np.abs(spectrum_at_zero(x, y, num_units, shortcut_depth, pre, mid, post).eigenvalues)
    if sizes.min() <= len(sizes) * np.finfo(np.float64).eps * sizes.max():
        return math.inf
    return float(sizes.max() / sizes.min())


def condition_number_lower_bound(x: np.ndarray, y: np.ndarray, num_units: int) -> float:
    """Returns R λ_max(Sxx)/σ_min(M) ≤ the condition number at zero, n = 1, linear, d ≥ 2, R ≥ 2. Not in the paper.

    The paper cites Gray's theory of Toeplitz matrices, which does not apply. For b the leading
    eigenvector of Sxx and a ⊥ b, moving every W_r by a bᵀ/√R has curvature R λ_max(Sxx); and
    ‖Hw‖ = σ_min(M)‖w‖ for a w that moves W_r and W_{r+1} apart along M's last singular pair.
    ValueError: d < 2 or R < 2; data as in `moment_gap`.
    """
    x, y = checked_data(x, y)
    if x.shape[1] < 2 or num_units < 2:
        raise ValueError(f"the bound needs d ≥ 2 and num_units ≥ 2, got {x.shape[1]} and {num_units}")
    smallest = np.linalg.svd(moment_gap(x, y), compute_uv=False)[-1]
    if smallest == 0:
        return math.inf
    return float(num_units * np.linalg.eigvalsh(mean_products(x, x)[0])[-1] / smallest)


def _one_layer_blocks(
    x: np.ndarray, y: np.ndarray, pre: Activation, first: float, second: float, several: bool
) -> tuple:
    """Returns A and B of (13), [d², d²] each; A only if there are several units."""
    m, d = x.shape
    s = values_at_data(pre, x)
    eye = np.eye(x.shape[1])
    moment, _ = mean_products(s, s)
    bent = np.einsum("mi,mj,mk->ijk", y - x, s, s, optimize=True) / m if second else np.zeros((d, d, d))
    B = np.einsum("ab,ij->jaib", eye, first**2 * moment) - second * np.einsum("ab,aij->jaib", eye, bent)
    if not several:
        return np.zeros((d * d, d * d)), B.reshape(d * d, d * d)
    slopes = np.asarray(pre.derivative(x))
    if not np.isfinite(slopes).all():
        raise ValueError(f"{pre!r} at pre has no derivative at some of the data: no Hessian for n = 1 in general")
    if pre is ACTIVATIONS["relu"] and (x == 0).any():
        raise ValueError("ReLU at pre has no derivative at the zeros among the data: no Hessian for n = 1 in general")
    passed = np.einsum("ma,mj,mi->aji", x - y, slopes, s, optimize=True) / m
    A = np.einsum("ab,ij->jaib", eye, moment) + np.einsum("jb,aji->jaib", eye, passed)
    return first**2 * A.reshape(d * d, d * d), B.reshape(d * d, d * d)
