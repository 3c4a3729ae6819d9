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

σ_pre acts on the data, so what counts there is its values (and for n = 1 its derivative) at the
data; σ_mid and σ_post act on zero, so what counts is their derivatives there. The paper also
claims the theorem for ReLU: at mid or post no Hessian exists at zero, and these functions say so.
"""

import math
import numbers
from typing import NamedTuple

import numpy as np

from theory.activations import ACTIVATIONS, Activation, activation_named, derivatives_at_zero


def moment_gap(x, y, pre="linear") -> np.ndarray:
    """M = (1/m) Σ (x − y) σ_pre(x)ᵀ [d, d]: all that the Hessian for n = 2 knows of the data (Li et al., (21)).

    For a linear network it is Sxx − Syx.

    Raises:
      ValueError: x and y of different shapes, non-finite numbers, an unknown activation.
    """
    x, y = _checked_data(x, y)
    return (x - y).T @ activation_named(pre).function(x) / len(x)


def hessian_at_zero(x, y, num_units: int, shortcut_depth: int, pre="linear", mid="linear", post="linear") -> np.ndarray:
    """Hessian of the loss at zero weights (Li et al., Theorem 1, (11), (13), (19)–(28)).

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
      mid, post: str, Activation, or (σ′(0), σ″(0)) of a function with σ(0) = 0. mid counts for n ≥ 2.

    Returns:
      [P, P] float64, P = R·n·d².

    Raises:
      ValueError: a mid or post with σ(0) ≠ 0, for which zero weights do not give the identity,
        or without derivatives at 0, such as ReLU; for n = 1 and R ≥ 2 a pre without
        derivative at the data; data as in `moment_gap`.
    """
    x, y = _checked_data(x, y)
    _, first, second = _slopes(num_units, shortcut_depth, mid, post)
    d = x.shape[1]
    if shortcut_depth >= 3:
        return np.zeros((num_units * shortcut_depth * d * d,) * 2)
    if shortcut_depth == 2:
        A = unit_block(x, y, pre, mid, post)
        zero = np.zeros_like(A)
        return np.kron(np.eye(num_units), np.block([[zero, A.T], [A, zero]]))
    A, B = _one_layer_blocks(x, y, activation_named(pre), first, second, several=num_units > 1)
    later = np.tri(num_units, k=-1)
    return np.kron(np.eye(num_units), B) + np.kron(later, A) + np.kron(later.T, A.T)


def unit_block(x, y, pre="linear", mid="linear", post="linear") -> np.ndarray:
    """A = c (I_d ⊗ M) P [d², d²]: rows the second matrix of a unit, columns the first (Li et al., (19)–(21))."""
    x, y = _checked_data(x, y)
    slope, _, _ = _slopes(1, 2, mid, post)
    d = x.shape[1]
    return slope * np.kron(np.eye(d), moment_gap(x, y, pre)) @ commutation_matrix(d)


def commutation_matrix(d: int) -> np.ndarray:
    """P [d², d²] with P vec(W) = vec(Wᵀ), vec by columns; symmetric and its own inverse (Li et al., (20))."""
    return np.eye(d * d).reshape(d, d, d, d).transpose(1, 0, 2, 3).reshape(d * d, d * d)


class Spectrum(NamedTuple):
    """Distinct eigenvalues in increasing order and how often each occurs."""

    eigenvalues: np.ndarray
    multiplicities: np.ndarray


def spectrum_at_zero(x, y, num_units: int, shortcut_depth: int, pre="linear", mid="linear", post="linear") -> Spectrum:
    """Eigenvalues of `hessian_at_zero` (Li et al., (18), (22)).

    n = 2: ±|c| σ_i(M), each sign d·R times for every i (the paper's "number of shortcuts" counts
    the d² × d² matrix A). n ≥ 3: 0. n = 1: those of the matrix, each once.

    Args and errors as `hessian_at_zero`.
    """
    x, y = _checked_data(x, y)
    slope, _, _ = _slopes(num_units, shortcut_depth, mid, post)
    d = x.shape[1]
    if shortcut_depth >= 3:
        return Spectrum(np.zeros(1), np.array([num_units * shortcut_depth * d * d]))
    if shortcut_depth == 2:
        sigma = abs(slope) * np.linalg.svd(moment_gap(x, y, pre), compute_uv=False)
        return Spectrum(np.concatenate([-sigma, sigma[::-1]]), np.full(2 * d, d * num_units))
    eigenvalues = np.linalg.eigvalsh(hessian_at_zero(x, y, num_units, 1, pre, mid, post))
    return Spectrum(eigenvalues, np.ones(len(eigenvalues), int))


def condition_number_at_zero(
    x, y, num_units: int, shortcut_depth: int, pre="linear", mid="linear", post="linear"
) -> float:
    """Largest over smallest |eigenvalue| of `hessian_at_zero` (Li et al., (1), (12)); inf where it is singular.

    n = 2: cond(M), the same for every number of units. n = 1: at least `condition_number_lower_bound`.

    Args and errors as `hessian_at_zero`.
    """
    sizes = np.abs(spectrum_at_zero(x, y, num_units, shortcut_depth, pre, mid, post).eigenvalues)
    if sizes.min() <= len(sizes) * np.finfo(np.float64).eps * sizes.max():
        return math.inf
    return float(sizes.max() / sizes.min())


def condition_number_lower_bound(x, y, num_units: int) -> float:
    """R λ_max(Sxx)/σ_min(M) ≤ the condition number at zero, n = 1, linear, d ≥ 2, R ≥ 2. Not in the paper.

    The paper cites Gray's theory of Toeplitz matrices, which does not apply. For b the leading
    eigenvector of Sxx and a ⊥ b, moving every W_r by a bᵀ/√R has curvature R λ_max(Sxx); and
    ‖Hw‖ = σ_min(M)‖w‖ for a w that moves W_r and W_{r+1} apart along M's last singular pair.

    Raises:
      ValueError: d < 2 or R < 2; data as in `moment_gap`.
    """
    x, y = _checked_data(x, y)
    if x.shape[1] < 2 or num_units < 2:
        raise ValueError(f"the bound needs d ≥ 2 and num_units ≥ 2, got {x.shape[1]} and {num_units}")
    smallest = np.linalg.svd(moment_gap(x, y), compute_uv=False)[-1]
    if smallest == 0:
        return math.inf
    return float(num_units * np.linalg.eigvalsh(x.T @ x / len(x))[-1] / smallest)


class Escape(NamedTuple):
    """A unit vector of weights, direction [num_units, shortcut_depth, d, d], and its curvature wᵀHw = λ_min < 0."""

    direction: np.ndarray
    curvature: float


def escape_from_saddle(x, y, num_units: int, pre="linear", mid="linear", post="linear") -> Escape:
    """Certificate that zero is a strict saddle for n = 2: λ_min = −|c| σ_max(M) (Li et al., Theorem 1.2).

    The direction moves one unit, by W^{1,1} = v eᵀ-like rank 1 matrices along M's first singular pair.

    Args and errors as `hessian_at_zero`.

    Raises:
      ValueError: c M = 0, where zero is no strict saddle (for a linear network it is a global minimum).
    """
    x, y = _checked_data(x, y)
    slope, _, _ = _slopes(num_units, 2, mid, post)
    u, sigma, vt = np.linalg.svd(moment_gap(x, y, pre))
    if slope * sigma[0] == 0:
        raise ValueError("zero is no strict saddle: σ′_mid(0) σ′_post(0) M is 0")
    d = len(sigma)
    direction = np.zeros((num_units, 2, d, d))
    direction[0, 0, 0] = vt[0] / math.sqrt(2)
    direction[0, 1, :, 0] = -math.copysign(1, slope) * u[:, 0] / math.sqrt(2)
    return Escape(direction, -abs(slope) * float(sigma[0]))


class Stationarity(NamedTuple):
    """Order k of a stationary point (Li et al., Definition 4), and whether it is of no higher order."""

    order: int
    exact: bool


def order_of_stationarity(x, y, shortcut_depth: int, pre="linear", mid="linear", post="linear") -> Stationarity:
    """n − 1, and exactly that unless c M = 0 (Li et al., Theorem 1.1): L − L(0) = `leading_term`·tⁿ + o(tⁿ).

    Holds for ReLU at mid or post too, where exact is left False: its leading term is another.
    For n = 1 the order is 0: zero is no stationary point, the gradient in each W_r is σ′_post(0) M.
    """
    x, y = _checked_data(x, y)
    if shortcut_depth < 1:
        raise ValueError(f"shortcut_depth must be at least 1, got {shortcut_depth}")
    slope = derivatives_at_zero("post", post)[1]
    if shortcut_depth > 1:
        slope *= derivatives_at_zero("mid", mid)[1] ** (shortcut_depth - 1)
    exact = bool(np.isfinite(slope) and slope != 0 and moment_gap(x, y, pre).any())
    return Stationarity(shortcut_depth - 1, exact)


def leading_term(weights, x, y, pre="linear", mid="linear", post="linear") -> float:
    """c Σ_r tr(W^{r,n}···W^{r,1} Mᵀ), c = σ′_post(0) σ′_mid(0)^{n−1}: the coefficient of tⁿ in L(tW) − L(0), n ≥ 1.

    Not in the paper. For n = 1 it is the directional derivative.

    Args:
      weights: [num_units, shortcut_depth, d, d]. Others and errors as `hessian_at_zero`.
    """
    x, y = _checked_data(x, y)
    weights = np.asarray(weights, np.float64)
    slope, _, _ = _slopes(weights.shape[0], weights.shape[1], mid, post)
    M = moment_gap(x, y, pre)
    products = (np.linalg.multi_dot([*unit[::-1], M.T]) if len(unit) > 0 else M.T for unit in weights)
    return float(slope * sum(np.trace(product) for product in products))


def _one_layer_blocks(x, y, pre: Activation, first: float, second: float, several: bool):
    """A and B of (13), [d², d²] each; A only where there are several units."""
    m, d = x.shape
    s, eye = pre.function(x), np.eye(x.shape[1])
    moment = s.T @ s / m
    bent = np.einsum("mi,mj,mk->ijk", y - x, s, s, optimize=True) / m if second else np.zeros((d, d, d))
    B = np.einsum("ab,ij->jaib", eye, first**2 * moment) - second * np.einsum("ab,aij->jaib", eye, bent)
    if not several:
        return np.zeros((d * d, d * d)), B.reshape(d * d, d * d)
    slopes = pre.derivative(x)
    if pre is ACTIVATIONS["relu"] and (x == 0).any():
        raise ValueError("ReLU at pre has no derivative at the zeros among the data: no Hessian exists for n = 1")
    passed = np.einsum("ma,mj,mi->aji", x - y, slopes, s, optimize=True) / m
    A = np.einsum("ab,ij->jaib", eye, moment) + np.einsum("jb,aji->jaib", eye, passed)
    return first**2 * A.reshape(d * d, d * d), B.reshape(d * d, d * d)


def _slopes(num_units: int, shortcut_depth: int, mid, post) -> tuple[float, float, float]:
    """c = σ′_post(0) σ′_mid(0)^{n−1}, σ′_post(0), σ″_post(0); ValueError where the theorem does not apply."""
    if not all(isinstance(n, numbers.Integral) and n >= 1 for n in (num_units, shortcut_depth)):
        raise ValueError(
            f"num_units and shortcut_depth must be whole numbers of at least 1, got {num_units!r} and {shortcut_depth!r}"
        )
    checked = [("post", post)] + [("mid", mid)] * (shortcut_depth > 1)
    for position, activation in checked:
        _, first, second = derivatives_at_zero(position, activation)
        if not (math.isfinite(first) and math.isfinite(second)):
            raise ValueError(
                f"no Hessian exists at zero with {activation!r} at {position}, which lacks a first or second derivative "
                f"at 0; put it at pre, or use a smooth activation"
            )
    _, post_first, post_second = derivatives_at_zero("post", post)
    mid_first = derivatives_at_zero("mid", mid)[1] if shortcut_depth > 1 else 1.0
    return post_first * mid_first ** (shortcut_depth - 1), post_first, post_second


def _checked_data(x, y):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 2 or x.shape != y.shape or x.size == 0:
        raise ValueError(f"x and y must both be [m, d], got shapes {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("x and y must be finite, got an infinite or NaN entry")
    return x, y
