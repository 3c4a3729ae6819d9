"""Linear residual networks: risk, gradient and its lower bound (Hardt & Ma §2), gradient descent.

paper                               code
ŷ = (I + A_ℓ)···(I + A_1) x         A [ℓ, d, d], layer 1 (the first to act) first
y = Rx + ξ, ξ ~ N(0, I)             R [d, d]
Σ = E[x xᵀ]                         Sigma [d, d]: the second moment, which is the covariance only if E x = 0
E = (I + A_ℓ)···(I + A_1) − R       error(A, R)
f(A) − C = ‖E Σ^½‖²_F               risk(A, R, Sigma); no ½, C = E‖ξ‖² = d left out
|||A|||, τ                          max_spectral_norm(A), radius
B_τ = {A : |||A||| ≤ τ}             the ball
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

_EPSILON = np.finfo(np.float64).eps


def max_spectral_norm(A) -> float:
    """|||A||| = max_i ‖A_i‖ (Hardt & Ma §2)."""
    return float(np.linalg.norm(np.asarray(A, np.float64), 2, axis=(1, 2)).max())


def end_to_end(A) -> np.ndarray:
    """(I + A_ℓ)···(I + A_1) [d, d] (Hardt & Ma, (2.1))."""
    return _products(A)[0][-1]


def error(A, R) -> np.ndarray:
    """E = (I + A_ℓ)···(I + A_1) − R [d, d] (Hardt & Ma, Claim 2.3)."""
    return end_to_end(A) - np.asarray(R, np.float64)


def risk(A, R, Sigma) -> float:
    """Excess population risk ‖E Σ^½‖²_F = tr(E Σ Eᵀ) (Hardt & Ma, Claim 2.3).

    f(A) = E‖y − ŷ‖² = risk + C with C = E‖ξ‖² = d, for x of any distribution with E[x xᵀ] = Σ.
    There is no ½. On a sample the same holds with `sample_problem`.

    Args:
      A: [ℓ, d, d]. R: [d, d]. Sigma: [d, d], symmetric, positive semidefinite.

    Raises:
      ValueError: shapes that do not belong together, non-finite numbers, a Sigma that is no second moment.
    """
    A, R, Sigma = _checked(A, R, Sigma)
    E = error(A, R)
    return float(np.vdot(E, E @ Sigma))


def gradient(A, R, Sigma) -> np.ndarray:
    """∂f/∂A_i = 2 ((I + A_ℓ)···(I + A_{i+1}))ᵀ E Σ ((I + A_{i−1})···(I + A_1))ᵀ (Hardt & Ma, Lemma 2.4, (2.5)).

    The text has lost the transposes, and the last line of A.2 has the factors in reverse.

    Args and errors as `risk`.

    Returns:
      [ℓ, d, d].
    """
    A, R, Sigma = _checked(A, R, Sigma)
    up_to, after = _products(A)
    middle = 2 * (up_to[-1] - R) @ Sigma
    return after[1:].transpose(0, 2, 1) @ middle @ up_to[:-1].transpose(0, 2, 1)


def gradient_lower_bound(A, R, Sigma) -> float:
    """4ℓ(1 − τ)^{2ℓ−2} σ_min(Σ) (f(A) − C), τ = |||A|||: no larger than ‖∇f(A)‖²_F (Hardt & Ma, (2.3)).

    Holds for any R, also one that no network reaches, with equality at A_i = −τI, Σ = sI. Hence
    Theorem 2.2: below τ = 1 a critical point is a global minimum. From τ = 1 on the bound is 0 for ℓ ≥ 2.
    For a singular Σ its smallest nonzero eigenvalue stands for σ_min, and the bound still holds.

    Args and errors as `risk`.
    """
    excess = risk(A, R, Sigma)
    num_layers, radius = len(A), max_spectral_norm(A)
    return 4 * num_layers * max(0.0, 1 - radius) ** (2 * num_layers - 2) * _least_nonzero(Sigma) * excess


def gradient_lower_bound_by_layer(A, R, Sigma) -> float:
    """4 σ_min(Σ) (f(A) − C) Σ_i Π_{j≠i} σ_min(I + A_j)²: between (2.3) and ‖∇f(A)‖²_F. Not in the paper.

    It is what the proof of (2.3) shows before σ_min(I + A_j) ≥ 1 − τ, and needs no τ < 1.

    Args and errors as `risk`.
    """
    A, R, Sigma = _checked(A, R, Sigma)
    excess = risk(A, R, Sigma)
    smallest = np.linalg.svd(np.eye(A.shape[-1]) + A, compute_uv=False)[:, -1] ** 2
    others = [np.prod(np.delete(smallest, i)) for i in range(len(A))]
    return 4 * _least_nonzero(Sigma) * excess * float(np.sum(others))


class SampleProblem(NamedTuple):
    """A finite sample seen as a population: (1/m) Σ‖y − ŷ‖² = risk(A, R, Sigma) + noise for every A."""

    R: np.ndarray
    Sigma: np.ndarray
    noise: float


def sample_problem(x, y) -> SampleProblem:
    """W* = Syx Sxx⁺, Sxx and the least squares residual of a sample (Hardt & Ma, Claim 2.3 on a sample).

    The noise does not average out of a sample, so the true R leaves a cross term; W* leaves none.

    Args:
      x, y: [m, d], examples in rows.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    R = np.linalg.lstsq(x, y, rcond=None)[0].T
    return SampleProblem(R, x.T @ x / len(x), float(np.square(y - x @ R.T).sum() / len(x)))


def standard_gradient(W, R, Sigma) -> np.ndarray:
    """∂/∂W_i ‖(W_ℓ···W_1 − R) Σ^½‖²_F [ℓ, d, d]: the standard parametrisation (Hardt & Ma §1.1).

    At W = 0 it vanishes for ℓ ≥ 2 whatever the risk: the bad critical point that residual networks lack.
    """
    return gradient(np.asarray(W, np.float64) - np.eye(np.shape(W)[-1]), R, Sigma)


def project(A, radius: float) -> np.ndarray:
    """The nearest point of B_τ in Frobenius norm: every singular value above τ becomes τ."""
    u, sigma, vt = np.linalg.svd(A)
    return (u * np.minimum(sigma, radius)[..., None, :]) @ vt


def stationarity_in_ball(A, R, Sigma, radius: float) -> float:
    """‖A − project(A − ∇f(A))‖_F: zero exactly at the KKT points of min f over B_τ.

    Theorem 2.2 is about ∇f = 0; on the boundary there are KKT points that are no minima, such as
    A_i = −I/2 for R = −I₂, ℓ = 3, τ = ½ (the review's Theorem 1 overlooks them).
    """
    return float(np.linalg.norm(A - project(A - gradient(A, R, Sigma), radius)))


def smoothness_bound(R, Sigma, num_layers: int, radius: float, excess_risk: float) -> float:
    """L with ‖∇²f‖ ≤ L wherever |||A||| ≤ τ and f(A) − C ≤ excess_risk. Not in the paper.

    2ℓ(1+τ)^{2ℓ−2} λ_max(Σ) + 2(ℓ−1)(1+τ)^{ℓ−2} (λ_max(Σ) · excess_risk)^½: the first derivative of the
    product costs at most √ℓ(1+τ)^{ℓ−1} a unit of ‖Δ‖_F, the second (ℓ−1)(1+τ)^{ℓ−2}.
    """
    largest, growth = np.linalg.eigvalsh(Sigma)[-1], 1 + radius
    first = 2 * num_layers * growth ** (2 * num_layers - 2) * largest
    return float(first + 2 * (num_layers - 1) * growth ** (num_layers - 2) * math.sqrt(largest * excess_risk))


def convergence_rate_bound(Sigma, num_layers: int, radius: float, learning_rate: float) -> float:
    """1 − 2ηℓ(1 − τ)^{2ℓ−2} σ_min(Σ): what (2.3) allows the excess risk to shrink by a step, at least.

    Holds for η ≤ 1/L, L of `smoothness_bound`, while the iterates stay in B_τ.
    """
    return 1 - 2 * learning_rate * num_layers * (1 - radius) ** (2 * num_layers - 2) * _least_nonzero(Sigma)


class Descent(NamedTuple):
    """Where gradient descent ended, A [ℓ, d, d], and per iterate, the first included, risks and max_spectral_norms."""

    A: np.ndarray
    risks: np.ndarray
    norms: np.ndarray

    @property
    def rate(self) -> float:
        """Largest ratio of one excess risk to the one before, while above rounding."""
        above = self.risks[:-1] > 1e-20 * self.risks[0]
        return float((self.risks[1:] / np.maximum(self.risks[:-1], 1e-300))[above].max(initial=0.0))


def gradient_descent(A, R, Sigma, learning_rate: float, num_steps: int, radius: float | None = None) -> Descent:
    """Gradient descent on the risk, or with a radius projected gradient descent on B_τ (Hardt & Ma after (2.3))."""
    A = np.array(A, np.float64)
    risks, norms = [risk(A, R, Sigma)], [max_spectral_norm(A)]
    for _ in range(num_steps):
        A = A - learning_rate * gradient(A, R, Sigma)
        if radius is not None:
            A = project(A, radius)
        risks.append(risk(A, R, Sigma))
        norms.append(max_spectral_norm(A))
    return Descent(A, np.array(risks), np.array(norms))


class Counterexample(NamedTuple):
    """A scalar problem with one layer: whole numbers R and Sigma, A = 0."""

    R: int
    Sigma: int
    gradient_squared: float
    claimed: float


def smallest_counterexample(power: int, largest: int = 5) -> Counterexample | None:
    """Least whole numbers Σ, R ≥ 1 that break ‖∇f‖² ≥ 4ℓ(1 − τ)^{2ℓ−2} σ_min(Σ)^power (f − C), d = ℓ = 1, A = 0.

    power = 1 is Hardt & Ma's (2.3), which nothing breaks: None. power = 2 is the review's (6).
    """
    zero = np.zeros((1, 1, 1))
    for R, Sigma in sorted(itertools.product(range(1, largest + 1), repeat=2), key=sum):
        problem = np.full((1, 1), R), np.full((1, 1), Sigma)
        squared = float(np.square(gradient(zero, *problem)).sum())
        claimed = 4 * Sigma**power * risk(zero, *problem)
        if squared < claimed * (1 - 1e-12):
            return Counterexample(R, Sigma, squared, claimed)
    return None


def _products(A) -> tuple[np.ndarray, np.ndarray]:
    """(I + A_i)···(I + A_1) and (I + A_ℓ)···(I + A_{i+1}) for i = 0 … ℓ: two arrays [ℓ + 1, d, d]."""
    layers = np.eye(np.shape(A)[-1]) + A
    up_to, after = [np.eye(layers.shape[-1])], [np.eye(layers.shape[-1])]
    for first, last in zip(layers, layers[::-1]):
        up_to.append(first @ up_to[-1])
        after.append(after[-1] @ last)
    return np.stack(up_to), np.stack(after[::-1])


def _least_nonzero(Sigma) -> float:
    eigenvalues = np.linalg.eigvalsh(Sigma)
    nonzero = eigenvalues[eigenvalues > len(eigenvalues) * _EPSILON * eigenvalues[-1]]
    return float(nonzero.min(initial=math.inf)) if len(nonzero) else 0.0


def _checked(A, R, Sigma):
    A, R, Sigma = (np.asarray(value, np.float64) for value in (A, R, Sigma))
    d = A.shape[-1] if A.ndim else 0
    if A.ndim != 3 or A.shape[1:] != (d, d) or R.shape != (d, d) or Sigma.shape != (d, d) or A.size == 0:
        raise ValueError(
            f"A, R and Sigma must have shapes [ℓ, d, d], [d, d] and [d, d], got {A.shape}, {R.shape} and {Sigma.shape}"
        )
    for name, value in (("A", A), ("R", R), ("Sigma", Sigma)):
        if not np.isfinite(value).all():
            raise ValueError(f"{name} must be finite, got an infinite or NaN entry")
    if not np.allclose(Sigma, Sigma.T, rtol=1e-10, atol=1e-12 * np.abs(Sigma).max()):
        raise ValueError("Sigma must be symmetric: it is the second moment E[x xᵀ]")
    eigenvalues = np.linalg.eigvalsh(Sigma)
    if eigenvalues[0] < -1e-10 * abs(eigenvalues[-1]):
        raise ValueError(f"Sigma must be positive semidefinite, as E[x xᵀ] is, got an eigenvalue {eigenvalues[0]:.3g}")
    return A, R, Sigma
