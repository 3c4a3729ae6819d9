"""Linear residual networks: risk, gradient and its lower bounds (Hardt & Ma §2), gradient descent.

paper                               code
ŷ = (I + A_ℓ)···(I + A_1) x         A [ℓ, d, d], layer 1 (the first to act) first
y = Rx + ξ, ξ ~ N(0, I)             R [d, d]
Σ = E[x xᵀ]                         Sigma [d, d]: the second moment, which is the covariance only if E x = 0
E = (I + A_ℓ)···(I + A_1) − R       end_to_end(A) − R
f(A) − C = ‖E Σ^½‖²_F               risk(A, R, Sigma); no ½, C = E‖ξ‖² = d left out
|||A|||, τ                          max_spectral_norm(A), radius
B_τ = {A : |||A||| ≤ τ}             the ball
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from theory.arrays import finite, real, require_at_least, second_moment
from theory.products import product_gradient, products

_EPSILON = np.finfo(np.float64).eps


def max_spectral_norm(A: np.ndarray) -> float:
    """Returns |||A||| = max_i ‖A_i‖ of A [ℓ, d, d] (Hardt & Ma §2)."""
    if np.ndim(A) != 3 or np.size(A) == 0:
        raise ValueError(f"A must have the shape [ℓ, d, d], got {np.shape(A)}")
    return float(np.linalg.norm(finite("A", A), 2, axis=(1, 2)).max())


def end_to_end(A: np.ndarray) -> np.ndarray:
    """Returns (I + A_ℓ)···(I + A_1) [d, d] (Hardt & Ma, (2.1))."""
    return products(np.eye(np.shape(A)[-1]) + A)[-1]


def risk(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> float:
    """Returns the excess population risk ‖E Σ^½‖²_F = tr(E Σ Eᵀ) (Hardt & Ma, Claim 2.3).

    f(A) = E‖y − ŷ‖² = risk + C with C = E‖ξ‖² = d, for x of any distribution with E[x xᵀ] = Σ.
    There is no ½. On a sample the same holds with `sample_problem`.

    Args:
      A: [ℓ, d, d].
      R: [d, d].
      Sigma: [d, d], symmetric, positive semidefinite.

    >>> R = np.diag([2.0, 1.0])
    >>> A = np.zeros((3, 2, 2))
    >>> risk(A, R, np.eye(2))
    1.0
    >>> gradient(A, R, np.eye(2))[0]
    array([[-2.,  0.],
           [ 0.,  0.]])
    >>> gradient_lower_bound(A, R, np.eye(2))  # of ‖∇f‖² = 12, by (2.3)
    12.0

    Raises:
      ValueError: shapes that do not fit together, non-finite numbers, a Sigma that is not a second moment, a risk
        beyond float64's range.
    """
    A, R, Sigma = checked_problem(A, R, Sigma)
    with np.errstate(over="ignore", invalid="ignore"):
        E = end_to_end(A) - R
        excess = float(np.vdot(E, E @ Sigma))
    if not math.isfinite(excess):
        raise ValueError("the risk must lie in the range of float64: rescale A, R and Sigma")
    return excess


def gradient(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> np.ndarray:
    """Returns ∂f/∂A_i = 2 ((I + A_ℓ)···(I + A_{i+1}))ᵀ E Σ ((I + A_{i−1})···(I + A_1))ᵀ (Hardt & Ma, Lemma 2.4, (2.5)).

    Args and errors as `risk`; returns [ℓ, d, d].
    """
    return _risk_and_gradient(*checked_problem(A, R, Sigma))[1]


def gradient_lower_bound(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> float:
    """Returns 4ℓ(1 − τ)^{2ℓ−2} σ_min(Σ) (f(A) − C), τ = |||A|||: no larger than ‖∇f(A)‖²_F (Hardt & Ma, (2.3)).

    Holds for any R, also one that no network reaches, with equality at A_i = −τI, Σ = sI. Hence
    Theorem 2.2: below τ = 1 a critical point is a global minimum. From τ = 1 on the bound is 0 for ℓ ≥ 2.
    For a singular Σ its smallest nonzero eigenvalue replaces σ_min, and the bound still holds: see `above_rounding`.

    Args and errors as `risk`.
    """
    A, R, Sigma = checked_problem(A, R, Sigma)
    moment, least = above_rounding(Sigma)
    num_layers = len(A)
    radius = max_spectral_norm(A)
    return 4 * num_layers * max(0.0, 1 - radius) ** (2 * num_layers - 2) * least * risk(A, R, moment)


def gradient_lower_bound_by_layer(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> float:
    """Returns 4 σ_min(Σ) (f(A) − C) Σ_i Π_{j≠i} σ_min(I + A_j)²: between (2.3) and ‖∇f(A)‖²_F. Not in the paper.

    The proof of (2.3) shows it before it uses σ_min(I + A_j) ≥ 1 − τ; it does not need τ < 1.

    Args and errors as `risk`.
    """
    A, R, Sigma = checked_problem(A, R, Sigma)
    moment, least = above_rounding(Sigma)
    smallest = np.linalg.svd(np.eye(A.shape[-1]) + A, compute_uv=False)[:, -1] ** 2
    others = [np.prod(np.delete(smallest, i)) for i in range(len(A))]
    return 4 * least * risk(A, R, moment) * float(np.sum(others))


def product_lower_bound(X: np.ndarray, Y: np.ndarray) -> float:
    """Returns σ_min(X)‖Y‖_F ≤ ‖XY‖_F (Hardt & Ma, Claim C.2), with equality for Y of X's last singular vector.

    Args:
      X: [m, d], m ≥ d: for a wide X, which has a kernel, no such bound exists.
      Y: [d, c].

    Raises:
      ValueError: a wide or empty X, numbers that are not real and finite.
    """
    X, Y = finite("X", X), finite("Y", Y)
    if X.ndim != 2 or X.size == 0 or X.shape[0] < X.shape[1]:
        raise ValueError(f"X must be square or tall, got shape {X.shape}")
    return float(np.linalg.svd(X, compute_uv=False)[-1] * np.linalg.norm(Y))


class Counterexample(NamedTuple):
    """A scalar problem with one layer, A = 0, and whole numbers R and Sigma."""

    R: int
    Sigma: int
    gradient_squared: float
    claimed: float


def smallest_counterexample(power: int, largest: int = 5) -> Counterexample | None:
    """Returns the least whole Σ, R ≥ 1 that break ‖∇f‖² ≥ 4ℓ(1 − τ)^{2ℓ−2} σ_min(Σ)^power (f − C), d = ℓ = 1, A = 0.

    power = 1 is Hardt & Ma's (2.3), which always holds: None. power = 2 is the review's (6).
    """
    zero = np.zeros((1, 1, 1))
    for R, Sigma in sorted(itertools.product(range(1, largest + 1), repeat=2), key=sum):
        problem = np.full((1, 1), R), np.full((1, 1), Sigma)
        squared = gradient(zero, *problem).item() ** 2
        claimed = 4 * Sigma**power * risk(zero, *problem)
        if squared < claimed * (1 - 1e-12):
            return Counterexample(R, Sigma, squared, claimed)
    return None


class SampleProblem(NamedTuple):
    """A finite sample as a population: (1/m) Σ‖y − ŷ‖² = risk(A, R, Sigma) + noise for every A."""

    R: np.ndarray
    Sigma: np.ndarray
    noise: float


def sample_problem(x: np.ndarray, y: np.ndarray) -> SampleProblem:
    """Returns W* = Syx Sxx⁺, Sxx and the least squares residual of a sample (Hardt & Ma, Claim 2.3 on a sample).

    In a sample the noise does not average out, so the true R leaves a cross term; W* leaves none.

    Args:
      x, y: [m, d], examples in rows.

    Raises:
      ValueError: no examples, different numbers of them in x and y, numbers that are not real and finite.
    """
    x, y = finite("x", x), finite("y", y)
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or 0 in (x.size, y.size):
        raise ValueError(f"x and y must both be [m, d], got shapes {x.shape} and {y.shape}")
    R = np.linalg.lstsq(x, y, rcond=None)[0].T
    return SampleProblem(R, x.T @ x / len(x), float(np.square(y - x @ R.T).sum() / len(x)))


def standard_gradient(W: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> np.ndarray:
    """Returns ∂/∂W_i ‖(W_ℓ···W_1 − R) Σ^½‖²_F [ℓ, d, d], which is 0 at W = 0 for ℓ ≥ 2 (Hardt & Ma §1.1)."""
    return gradient(real("W", W) - np.eye(np.shape(W)[-1]), R, Sigma)


def project(A: np.ndarray, radius: float) -> np.ndarray:
    """Returns the nearest point of B_τ in Frobenius norm: every singular value above τ becomes τ."""
    require_at_least(0, radius=radius)
    u, sigma, vt = np.linalg.svd(finite("A", A))
    return (u * np.minimum(sigma, radius)[..., None, :]) @ vt


def stationarity_in_ball(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray, radius: float) -> float:
    """Returns ‖A − project(A − ∇f(A))‖_F: zero exactly at the KKT points of min f over B_τ.

    Theorem 2.2 is about ∇f = 0; on the boundary there are KKT points that are not minima, such as
    A_i = −I/2 for R = −I₂, ℓ = 3, τ = ½ (the review's Theorem 1 overlooks them).
    """
    return float(np.linalg.norm(A - project(A - gradient(A, R, Sigma), radius)))


def smoothness_bound(Sigma: np.ndarray, num_layers: int, radius: float, excess_risk: float) -> float:
    """Returns L with ‖∇²f‖ ≤ L wherever |||A||| ≤ τ and f(A) − C ≤ excess_risk. Not in the paper.

    2ℓ(1+τ)^{2ℓ−2} λ_max(Σ) + 2(ℓ−1)(1+τ)^{ℓ−2} (λ_max(Σ) · excess_risk)^½: the first derivative of the
    product is at most √ℓ(1+τ)^{ℓ−1}‖Δ‖_F, the second at most (ℓ−1)(1+τ)^{ℓ−2}‖Δ‖²_F.
    """
    require_at_least(0, radius=radius, excess_risk=excess_risk)
    require_at_least(1, num_layers=num_layers)
    largest = np.linalg.eigvalsh(second_moment("Sigma", Sigma))[-1]
    growth = 1 + radius
    first = 2 * num_layers * growth ** (2 * num_layers - 2) * largest
    return float(first + 2 * (num_layers - 1) * growth ** (num_layers - 2) * math.sqrt(largest * excess_risk))


def convergence_rate_bound(Sigma: np.ndarray, num_layers: int, radius: float, learning_rate: float) -> float:
    """Returns 1 − 2ηℓ(1 − τ)^{2ℓ−2} σ_min(Σ), by (2.3) an upper bound on the factor of the excess risk in a step.

    For η ≤ 1/L, L of `smoothness_bound`, while iterates stay in B_τ, and `above_rounding`'s Σ; 1 from τ = 1 on, ℓ ≥ 2.
    """
    require_at_least(0, radius=radius)
    require_at_least(1, num_layers=num_layers)
    least = above_rounding(second_moment("Sigma", Sigma))[1]
    inside = max(0.0, 1 - radius)
    return 1 - 2 * learning_rate * num_layers * inside ** (2 * num_layers - 2) * least


class Descent(NamedTuple):
    """The end A [ℓ, d, d] of gradient descent, and the risk and max_spectral_norm of each iterate, start included."""

    A: np.ndarray
    risks: np.ndarray
    norms: np.ndarray

    @property
    def rate(self) -> float:
        """Returns the largest ratio of successive excess risks, as long as they are above rounding."""
        above = self.risks[:-1] > 1e-20 * self.risks[0]
        return float((self.risks[1:] / np.maximum(self.risks[:-1], 1e-300))[above].max(initial=0.0))


def gradient_descent(
    A: np.ndarray, R: np.ndarray, Sigma: np.ndarray, learning_rate: float, num_steps: int, radius: float | None = None
) -> Descent:
    """Returns the path of gradient descent on the risk, projected on B_τ if a radius is given (Hardt & Ma after (2.3)).

    Args:
      A: [ℓ, d, d]. The start. R, Sigma: [d, d].
      learning_rate: η > 0.
      num_steps: How many steps are taken.
      radius: τ ≥ 0 of the ball; None for no projection.

    Raises:
      ValueError: the descent diverged; a negative radius; as `risk`.
    """
    excess, slope = risk(A, R, Sigma), gradient(A, R, Sigma)  # which check the arguments; the steps below do not
    A, R, Sigma = checked_problem(A, R, Sigma)
    risks = [excess]
    norms = [max_spectral_norm(A)]
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(1, num_steps + 1):
            A = A - learning_rate * slope
            if radius is not None and np.isfinite(A).all():
                A = project(A, radius)
            excess, slope = _risk_and_gradient(A, R, Sigma)
            if not math.isfinite(excess):  # it is not if A is not
                message = f"gradient descent diverged in step {step}: learning_rate {learning_rate} is too large"
                raise ValueError(message)
            risks.append(excess)
            norms.append(max_spectral_norm(A))
    return Descent(A, np.array(risks), np.array(norms))


def _risk_and_gradient(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns `risk` and `gradient` of arguments that are known to be right."""
    layers = np.eye(len(R)) + A
    before = products(layers)
    E = before[-1] - R
    weighted = E @ Sigma
    return float(np.vdot(E, weighted)), product_gradient(layers, before, 2 * weighted)


def above_rounding(Sigma: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns Σ [d, d] without its eigenvalues within rounding of 0, for which (2.3) holds, and its least other one."""
    eigenvalues, vectors = np.linalg.eigh(finite("Sigma", Sigma))
    # eigh is off by d ε λ_max: a Σ of rank r has d − r eigenvalues of that size, of either sign, in place of 0.
    is_above = eigenvalues > len(eigenvalues) * _EPSILON * eigenvalues.max(initial=0.0)
    kept = eigenvalues[is_above]
    vectors = vectors[:, is_above]
    return (Sigma if is_above.all() else (vectors * kept) @ vectors.T), float(kept[0]) if len(kept) else 0.0


def checked_problem(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns A, R and Sigma in float64; raises ValueError as `risk`."""
    A, R, Sigma = finite("A", A), finite("R", R), finite("Sigma", Sigma)
    d = A.shape[-1] if A.ndim else 0
    if A.ndim != 3 or A.shape[1:] != (d, d) or R.shape != (d, d) or Sigma.shape != (d, d) or A.size == 0:
        raise ValueError(
            f"A, R and Sigma must have shapes [ℓ, d, d], [d, d] and [d, d], got {A.shape}, {R.shape} and {Sigma.shape}"
        )
    return A, R, second_moment("Sigma", Sigma)
