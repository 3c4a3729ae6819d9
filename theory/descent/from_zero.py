"""Gradient descent from zero on a linear residual network, eigenvalue by eigenvalue (Bartlett, Helmbold & Long 2018).

paper                               code
Θ_L ··· Θ_1, Θ_i = I at the start   I + A_i, A = 0 [ℓ, d, d], layer 1 first
Φ = the least squares map           R [d, d], normal (R Rᵀ = Rᵀ R) here, symmetric in the paper; Σ = I
eigenvalues of Φ                    phi [k], real or complex
eigenvalue of every layer           λ; w = λ^ℓ is that of the network

Source: Peter Bartlett, Dave Helmbold and Philip Long, *Gradient descent with identity initialization efficiently learns
positive definite linear transformations by deep residual networks*, ICML 2018. Their step counts are poly(ℓ, κ,
log(d/ε)), with constants that could not be verified; the other bounds of this module are not in the paper and are
proved in docs/appendix/proofs.md.

From zero descent does not reach every target; from `asymmetric_start`, one layer 0 and the others I, it does: Lei Wu,
Qingcan Wang and Chao Ma, *Global convergence of gradient descent for deep linear residual networks*, NeurIPS 2019,
arXiv 1911.00645. Its abstract: for an arbitrary target descent reaches an ε-optimal point in O(L³ log(1/ε)) steps. Only
the abstract was read; `asymmetric_flow_bound` is not in it and is proved in docs/appendix/proofs.md.

Learning rates are those of `linear_residual.gradient_descent`, whose risk has no ½: η below is twice the learning rate.
"""

import math

import numpy as np

from theory import factorization, linear_residual
from theory.arrays import finite, real, require_at_least, second_moment


def eigenvalue_recursion(phi: np.ndarray, num_layers: int, learning_rate: float, num_steps: int) -> np.ndarray:
    """Returns the iterates λ ← λ − η λ̄^{ℓ−1}(λ^ℓ − φ) of gradient descent from zero, Σ = I (Bartlett et al. 2018, §4).

    At A = 0 all layers are the same polynomial in R and Rᵀ, and stay so: they commute, and ∂f/∂A_i is the same for
    every i. So each eigenvalue of the layers evolves independently from λ = 1. Not in the paper: a normal R with
    complex eigenvalues, such as a rotation. In the limit η → 0 its w moves on the straight line from 1 to φ.

    Args:
      phi: [k], eigenvalues of R, real or complex. learning_rate: η/2.

    Returns:
      λ [num_steps + 1, k], the start first; infinite or NaN after divergence.
    """
    phi = np.asarray(phi)
    value = np.ones_like(phi, np.result_type(phi, np.float64))
    values = [value]
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(num_steps):
            value = value - 2 * learning_rate * np.conj(value) ** (num_layers - 1) * (value**num_layers - phi)
            values.append(value)
    return np.stack(values)


def recursion_risks(phi: np.ndarray, num_layers: int, learning_rate: float, num_steps: int) -> np.ndarray:
    """Returns Σ |λ^ℓ − φ|², the excess risk after 0 … num_steps steps; arguments as of `eigenvalue_recursion`."""
    values = eigenvalue_recursion(phi, num_layers, learning_rate, num_steps)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.square(np.abs(values**num_layers - np.asarray(phi))).sum(1)


def contraction(phi: np.ndarray, num_layers: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the least and largest q in λ⁺ − λ* = (1 − ηq)(λ − λ*), λ* = φ^{1/ℓ}, for λ between 1 and λ*.

    q = λ^{ℓ−1} Σ_k λ^k λ*^{ℓ−1−k} is exact, Σ_k φ^{k/ℓ} at λ = 1 and ℓφ^{2−2/ℓ} at λ*, and grows with λ. So the
    iterates approach λ* from one side, in each step by a factor between 1 − η·largest and 1 − η·least. For φ < 0 and ℓ
    ≥ 2, where λ* = 0, q = λ^{2ℓ−2} − φλ^{ℓ−2} lies between 0 and 1 − φ. For ℓ = 1 λ* is φ, of either sign, and q = 1.
    phi [k] is real, and so are the two arrays [k].
    """
    phi = real("phi", phi)
    positive = np.maximum(phi, 0)
    at_one = np.power.outer(positive, np.arange(num_layers) / num_layers).sum(-1)
    at_root = num_layers * positive ** (2 - 2 / num_layers)
    least, largest = np.minimum(at_one, at_root), np.maximum(at_one, at_root)
    return least, np.where((phi < 0) & (num_layers > 1), 1 - phi, largest)


def largest_learning_rate(phi: np.ndarray, num_layers: int) -> float:
    """Returns the largest learning rate at which no λ crosses its λ*: 1/(2 max q), q of `contraction`.

    Up to this rate λ goes to λ* monotonically: to φ^{1/ℓ} for φ ≥ 0 and, with ℓ ≥ 2, to 0 for φ < 0. Above it some λ
    crosses its λ* in the first step (φ < 1) or near the end (φ > 1). If a φ > 1 sets this rate, λ* is
    unstable beyond twice the rate. phi [k] is real.
    """
    return float(1 / (2 * contraction(phi, num_layers)[1].max()))


def step_bound(phi: np.ndarray, num_layers: int, learning_rate: float, tolerance: float) -> float:
    """Returns a number of steps after which the excess risk is at most `tolerance`, for positive φ.

    The paper has poly(ℓ, κ, log(d/ε)); not in the paper: |w − φ| ≤ C|1 − φ|(1 − η·least)^t, C = ℓφ^{1−1/ℓ}/least for
    φ > 1 and 1 else; each of k eigenvalues may keep tolerance/k. At `largest_learning_rate` this is at most κ^{2−2/ℓ}
    log(C√(k/tolerance)max|1 − φ|) + 1 steps, κ = max(φ, 1)/min(φ, 1), and so, at every depth, at most κ² log(…) + 1.

    Args:
      phi: [k], positive.
      num_layers: int ≥ 1.
      learning_rate: At most `largest_learning_rate`.
      tolerance: float > 0.

    Raises:
      ValueError: a φ that is not positive (see `excess_floor`, `singular_risk_bound`), or a learning rate that is not
        positive or too large.
    """
    phi = real("phi", phi)
    if not learning_rate > 0:
        raise ValueError(f"learning_rate must be positive, got {learning_rate:.6g}")
    if not phi.min() > 0:
        raise ValueError(f"step_bound is about positive eigenvalues, got {phi.min():.3g}")
    if learning_rate > largest_learning_rate(phi, num_layers) * (1 + 1e-12):
        largest = largest_learning_rate(phi, num_layers)
        raise ValueError(f"learning_rate must be at most {largest:.6g} for these eigenvalues, got {learning_rate:.6g}")
    least, _ = contraction(phi, num_layers)
    growth = np.where(phi > 1, num_layers * phi ** (1 - 1 / num_layers) / least, 1.0)
    ratio = growth * np.abs(1 - phi) * math.sqrt(len(phi) / tolerance)
    with np.errstate(divide="ignore"):
        steps = np.log(np.maximum(ratio, 1)) / -np.log1p(-np.minimum(2 * learning_rate * least, 1))
    return float(np.ceil(np.maximum(steps, ratio > 1).max()))


def excess_floor(phi: np.ndarray, num_layers: int, learning_rate: float) -> float:
    """Returns Σ_{φ<0} φ², to which the risk of descent from zero tends from above (Bartlett et al. 2018, failure).

    For a symmetric R, Σ = I, ℓ ≥ 2, a learning rate of at most `largest_learning_rate`; no λ becomes negative. Not in
    the paper: for even ℓ, w = λ^ℓ ≥ 0, so the floor holds at every learning rate and for every method whose layers stay
    equal and symmetric, such as momentum and orthogonalised updates. This is in exact arithmetic: rounding errors grow
    at the strict saddle of ℓ = 2, and orthogonalised updates turn them into full steps. The floor does not depend on
    the norm of the smallest solution: R = −I₂, ℓ = 8 has one of norm 2 sin(π/16) = 0.39, and descent ends at 2. For odd
    ℓ a long step crosses 0: R = −I₂, ℓ = 3 and a learning rate of ½ reach R in one step.

    Args:
      phi: [k], real. num_layers: int ≥ 2. learning_rate: float > 0.

    Raises:
      ValueError: one layer, which reaches every R; for odd ℓ a learning rate above `largest_learning_rate`.
    """
    phi = real("phi", phi)
    require_at_least(2, num_layers=num_layers)
    largest = largest_learning_rate(phi, num_layers)
    if num_layers % 2 and not learning_rate <= largest * (1 + 1e-12):
        raise ValueError(f"learning_rate must be at most {largest:.6g} for an odd num_layers, got {learning_rate:.6g}")
    return float(np.square(np.minimum(phi, 0)).sum())


def singular_risk_bound(num_layers: int, learning_rate: float, num_steps: int) -> float:
    """Returns (1 + 2(ℓ−1)ηt)^{−ℓ/(ℓ−1)}: an eigenvalue φ = 0 adds at most this to the risk after t steps.

    λ⁺ = λ(1 − ηλ^{2ℓ−2}) and (1 − u)^{−p} ≥ 1 + pu give λ^{−(2ℓ−2)} ≥ 1 + (2ℓ−2)ηt. Descent reaches
    a singular target for every ℓ ≥ 2, but not at a geometric rate: the number of steps grows like 1/ε^{1−1/ℓ}.

    Args:
      num_layers: int ≥ 2. learning_rate: float in (0, ½]. num_steps: int.

    Raises:
      ValueError: a number out of its range.
    """
    require_at_least(2, num_layers=num_layers)
    if not 0 < learning_rate <= 0.5:
        raise ValueError(f"learning_rate must lie in (0, ½], got {learning_rate}")
    return (1 + 4 * (num_layers - 1) * learning_rate * num_steps) ** (-num_layers / (num_layers - 1))


def distance_to_zero(phi: np.ndarray) -> np.ndarray:
    """Returns the distances [k] of 0 from the straight lines from 1 to φ, which bound the speed of gradient flow.

    Under gradient flow from zero w − φ = (1 − φ) s with ds/dt = −2ℓ|w|^{2−2/ℓ} s for every normal R. With ℓ ≥ 2 it
    fails exactly for φ on the negative real axis, where the line meets 0; elsewhere the excess risk falls at least at
    the rate 4ℓm^{2−2/ℓ}, m this distance. For a rotation by θ, m = cos(θ/2). The paper assumes uᵀRu > 0, here
    Re φ > 0, and uses another method (`balanced_projected_descent`).

    Args:
      phi: [k], real or complex.
    """
    phi = np.asarray(phi, np.complex128)
    direction = phi - 1
    square = np.square(np.abs(direction))
    nearest = np.clip(-direction.real / np.where(square > 0, square, 1), 0, 1)
    return np.abs(1 + nearest * direction)


def project_positive(W: np.ndarray, margin: float) -> np.ndarray:
    """Returns the matrix nearest to W [d, d] in Frobenius norm with uᵀWu ≥ margin·|u|² (Bartlett et al. 2018).

    The symmetric part and the rest are orthogonal, so eigenvalues of the former below the margin are raised to it.
    """
    W = finite("W", W)
    values, vectors = np.linalg.eigh((W + W.T) / 2)
    return (vectors * np.maximum(values, margin)) @ vectors.T + (W - W.T) / 2


def balanced_projected_descent(
    R: np.ndarray, num_layers: int, learning_rate: float, num_steps: int, margin: float
) -> linear_residual.Descent:
    """Returns descent from zero with a product kept positive and balanced layers (Bartlett et al. 2018, asymmetric Φ).

    After each gradient step W = (I + A_ℓ)···(I + A_1) is projected (`project_positive`), then factored into layers
    of equal singular values, by the polar construction `factorization.factorize`, whose layers are exactly balanced.
    Their theorem: it converges, at a rate polynomial in ℓ, for every R with uᵀRu ≥ margin·|u|². The order of the two
    projections was not verified against the text; the paper's constants are not used.

    Args:
      R: [d, d]. margin: γ of the paper, above 0.
    """
    d = len(R)
    identity = np.eye(len(R))
    A = np.zeros((num_layers, d, d))
    risks = [linear_residual.risk(A, R, identity)]
    norms = [0.0]
    for _ in range(num_steps):
        W = linear_residual.end_to_end(A - learning_rate * linear_residual.gradient(A, R, identity))
        A = factorization.factorize(project_positive(W, margin), num_layers)
        risks.append(linear_residual.risk(A, R, identity))
        norms.append(linear_residual.max_spectral_norm(A))
    return linear_residual.Descent(A, np.array(risks), np.array(norms))


def asymmetric_start(num_layers: int, dimension: int) -> np.ndarray:
    """Returns A [ℓ, d, d] with I + A_ℓ = 0 and I + A_i = I else: a network that is 0, with one layer that is not I.

    Raises:
      ValueError: fewer than one layer or dimension.
    """
    require_at_least(1, num_layers=num_layers, dimension=dimension)
    A = np.zeros((num_layers, dimension, dimension))
    A[-1] = -np.eye(dimension)
    return A


def asymmetric_flow_bound(Sigma: np.ndarray, time: float) -> float:
    """Returns e^{−4σ_min(Σ)t}, which bounds f/f(0) under gradient flow from `asymmetric_start`. Not in the papers.

    For every R and every depth: gradient flow conserves N_{i+1}ᵀN_{i+1} − N_iN_iᵀ, so N_{ℓ−1}N_{ℓ−1}ᵀ = I + N_ℓᵀN_ℓ and
    the other layers have the singular values of N_{ℓ−1}, 1 or more; then ‖∂f/∂A_ℓ‖² ≥ 4σ_min(Σ)(f − C). Equality: ℓ =
    1, Σ = sI. A step of descent is a time η, the learning rate of `linear_residual.gradient_descent`.

    Args:
      Sigma: [d, d]. time: t ≥ 0.

    Raises:
      ValueError: a Sigma that is no second moment, a negative time.
    """
    require_at_least(0, time=time)
    return math.exp(-4 * max(float(np.linalg.eigvalsh(second_moment("Sigma", Sigma))[0]), 0.0) * time)
