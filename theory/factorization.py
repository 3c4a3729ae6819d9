"""Near-identity factorisations R = (I + A_ℓ)···(I + A_1) (Hardt & Ma, Theorem 2.1).

    paper                     code
    R [d, d], det R > 0       R
    ℓ                         num_layers
    γ = max |log σ_i(R)|      log_condition(R)
    A_1, …, A_ℓ               A [ℓ, d, d], layer 1 (the first to act) first
    |||A||| = max_i ‖A_i‖     linear_residual.max_spectral_norm(A)

Theorem 2.1 says that |||A||| ≤ (4π + 3γ)/ℓ is possible for ℓ ≥ 3γ. That is true, but not by the
printed construction (paper_construction.py). Not in the paper: the method `polar`, which proves

    |||A||| ≤ 2 sin(π/2ℓ) + e^{γ/ℓ} − 1 ≤ (π + 1.19 γ)/ℓ     (the last step for ℓ ≥ 3γ),

and `norm_lower_bound`, which holds for every factorisation. docs/appendix/proofs.md has the proofs.
"""

import contextlib
import math
import numbers
import warnings

import numpy as np
from scipy import linalg, optimize

from theory.arrays import finite
from theory.linear import paper_construction
from theory.linear.rotations import conjugate, rotation_planes, turn_minus_identity, turn_rows

METHODS = ("polar", "principal", "best", "paper")
_EPSILON = np.finfo(np.float64).eps
_LARGEST_EXPONENT = 700  # e^709 is the largest float64


class NoLogarithm(ValueError):
    """R has no principal logarithm, or one that float64 does not find."""


def factorize(R: np.ndarray, num_layers: int, method: str = "polar") -> np.ndarray:
    """Returns layers A with (I + A_ℓ)···(I + A_1) = R, all of them small (Hardt & Ma, Theorem 2.1).

    Methods, of which only `paper` is in the paper:
      polar: R = Q P with Q a rotation, P positive definite; layer i is
        Q^{i/ℓ} P^{1/ℓ} Q^{−(i−1)/ℓ} − I. Any ℓ ≥ 1, all layers of the same norm. For a positive
        definite or an orthogonal R no factorisation has a smaller |||A|||.
      principal: every layer is R^{1/ℓ} − I. Needs an R without eigenvalues on (−∞, 0].
      best: polar or principal, whichever has the smaller |||A|||.
      paper: R = U K Vᵀ; U and V in 2q rotations each, K in p scalings, 4q + p = ℓ ≥ 5.

    In everything tried best was polar: no R is known for which principal is smaller.

    >>> R = np.diag([-2.0, -0.5])
    >>> A = factorize(R, 8)
    >>> np.allclose(np.linalg.multi_dot(np.eye(2) + A[::-1]), R)
    True
    >>> float(np.linalg.norm(A, 2, axis=(1, 2)).max().round(3))  # Theorem 2.1 promises 1.83
    0.478

    Args:
      R: [d, d] float. Its determinant must be positive: see `flip_label` and `augment`.
      num_layers: int. ℓ ≥ 1.
      method: str. One of METHODS.

    Returns:
      A [ℓ, d, d] float64.

    Raises:
      ValueError: R is not a square matrix of finite numbers, is singular, or has a negative
        determinant; ℓ < 1; an unknown method; `principal` on an R with eigenvalues on (−∞, 0];
        `paper` with ℓ < 5; an R so small, ‖R‖ < ε^{ℓ/2}, that I + A loses half of its digits when A is rounded.
    """
    R, parts = _checked(R, num_layers, method)
    A = _layers(R, parts, num_layers, method)
    norm = parts[1][0]
    # A has entries near −1, so I + A, of size ‖R‖^{1/ℓ}, is known to ε.
    if math.log(norm) < num_layers * math.log(_EPSILON) / 2:
        needed = math.ceil(2 * math.log(norm) / math.log(_EPSILON))
        raise ValueError(
            f"R, of norm {norm:.3g}, is too small for I + A in float64 with ℓ = {num_layers}: "
            f"rescale(R), or take ℓ ≥ {needed}"
        )
    return A


def _layers(R: np.ndarray, parts: tuple, num_layers: int, method: str) -> np.ndarray:
    if method == "paper":
        return paper_construction.layers(parts, num_layers)
    if method == "principal":
        return _principal(_logarithm(R), num_layers)
    polar = _polar(parts, num_layers)
    if method == "polar":
        return polar
    try:
        principal = _principal(_logarithm(R), num_layers)
    except NoLogarithm:
        return polar
    return principal if np.linalg.norm(principal[0], 2) < np.linalg.norm(polar[0], 2) else polar


def norm_bound(R: np.ndarray, num_layers: int, method: str = "polar") -> float:
    """Returns the bound on |||A||| for a method (Hardt & Ma, Theorem 2.1, and not in the paper).

    paper: (4π + 3γ)/ℓ for ℓ ≥ 3γ, else inf; the printed construction does not always meet it
    (`paper_construction.allocation`), polar does. polar: 2 sin(π/2ℓ) + e^{γ/ℓ} − 1. principal:
    e^{‖log R‖/ℓ} − 1. best: the smaller of these two. ValueError: as `factorize`.
    """
    R, _ = _checked(R, num_layers, method)
    gamma = log_condition(R)
    if method == "paper":
        return paper_construction.printed_bound(gamma, num_layers) if num_layers >= 3 * gamma else math.inf
    with np.errstate(over="ignore"):
        polar = 2 * math.sin(math.pi / (2 * num_layers)) + float(np.expm1(gamma / num_layers))
    if method == "polar":
        return polar
    try:
        norm = np.linalg.norm(_logarithm(R), 2)
    except NoLogarithm:
        if method == "best":
            return polar
        raise
    with np.errstate(over="ignore"):
        principal = float(np.expm1(norm / num_layers))
    return principal if method == "principal" else min(polar, principal)


def norm_lower_bound(R: np.ndarray, num_layers: int) -> float:
    """Returns a lower bound on |||A||| for every factorisation of R into ℓ layers. Not in the paper.

    For a real factorisation with ε = |||A||| and any x ≠ 0,

        ε ≥ |exp((log(|Rx|/|x|) + i·angle(x, Rx))/ℓ) − 1|:

    in the plane of h and (I + A_i)h a layer multiplies by a z with |z − 1| ≤ ε; logarithms of
    lengths add up, angles add up to angle(x, Rx) at least, and for ε ≤ 1 {log z: |z − 1| ≤ ε} is
    convex; docs/appendix/proofs.md has the proof, also for ε > 1. BFGS searches the best x, from the
    singular vectors and the invariant planes of R; any x gives a valid bound, so a search that
    stops early only loosens it. For ℓ = 1 it is ‖R − I‖. ValueError: as `factorize`.
    """
    R, (_, sigma, vt) = _checked(R, num_layers)
    if num_layers == 1:
        return float(np.linalg.norm(R - np.eye(len(R)), 2))
    size = math.exp((math.log(sigma[0]) + math.log(sigma[-1])) / 2)
    R = R / size  # squares of entries of R might overflow
    log_size = math.log(size)
    vectors = np.linalg.eig(R)[1]
    starts = np.concatenate([vt, vectors.real.T, vectors.imag.T, (vectors.real + vectors.imag).T])
    starts = starts[np.linalg.norm(starts, axis=1) > 1e-8]
    starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    values = np.array([_turn_and_stretch(x, R, log_size, num_layers)[0] for x in starts])
    squared = values.max()
    for x in starts[np.argsort(values)[-3:]]:
        solution = optimize.minimize(
            lambda x: [-part for part in _turn_and_stretch(x, R, log_size, num_layers)], x, jac=True
        )
        squared = max(squared, -solution.fun)
    return math.sqrt(squared)


def _turn_and_stretch(x: np.ndarray, R: np.ndarray, log_size: float, num_layers: int) -> tuple[float, np.ndarray]:
    """Returns |exp((log(s|Rx|/|x|) + i·angle(x, Rx))/ℓ) − 1|² for s = exp(log_size), and its gradient in x [d]."""
    y = R @ x
    squared, image_squared = x @ x, y @ y
    cosine = min(1.0, max(-1.0, x @ y / math.sqrt(squared * image_squared)))
    before, after = x / math.sqrt(squared), y / math.sqrt(image_squared)
    angle = 2 * math.atan2(np.linalg.norm(after - before), np.linalg.norm(after + before))  # acos is off by 1e-8 at 0
    gain = math.exp((math.log(image_squared / squared) / 2 + log_size) / num_layers)
    turn = angle / num_layers
    d_log_gain = (R.T @ y / image_squared - x / squared) / num_layers
    d_cosine = (y + R.T @ x) / math.sqrt(squared * image_squared) - cosine * (x / squared + R.T @ y / image_squared)
    d_turn = -d_cosine / max(math.sqrt(1 - cosine**2), 1e-8) / num_layers  # not smooth at angles 0 and π
    value = (gain - 1) ** 2 + 4 * gain * math.sin(turn / 2) ** 2
    return value, 2 * gain * ((gain - math.cos(turn)) * d_log_gain + math.sin(turn) * d_turn)


def _polar(parts: tuple[np.ndarray, np.ndarray, np.ndarray], num_layers: int) -> np.ndarray:
    """Returns A_i = Q^{(i−1)/ℓ} A_1 Q^{−(i−1)/ℓ} with A_1 = Q^{1/ℓ} P^{1/ℓ} − I.

    In the basis S of Q's planes, t ↦ Q^t A_1 Q^{−t} is a sum of waves of frequency 2φ at most, φ
    the largest angle. So its values at m ≤ 22 Chebyshev points give all ℓ layers to rounding:
    2m dense products in place of 2ℓ.
    """
    u, sigma, vt = parts
    basis, angles = rotation_planes(u @ vt)
    turned = vt @ basis  # Sᵀ(P^{1/ℓ} − I)S = (Vᵀ S)ᵀ diag(σ^{1/ℓ} − 1) (Vᵀ S), without cancellation
    stretch = turned.T @ (np.expm1(np.log(sigma) / num_layers)[:, None] * turned)
    first = turn_rows(stretch, angles / num_layers) + turn_minus_identity(angles / num_layers, len(basis))
    times = np.arange(num_layers) / num_layers
    points, interpolation = _wave_interpolation(times, frequency=2 * np.abs(angles).max(initial=0.0))
    at_points = basis @ np.stack([conjugate(first, t * angles) for t in points]) @ basis.T
    if interpolation is None:
        return at_points
    return (interpolation @ at_points.reshape(len(points), -1)).reshape(num_layers, *first.shape)


def _wave_interpolation(times: np.ndarray, frequency: float) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns points [m] and the matrix [ℓ, m] that maps a wave's values there to its values at the times [ℓ].

    On an interval of length T, m Chebyshev points give exp(iωt) to within 4 (ωT/4)^m / m!, here
    below rounding. If m ≥ ℓ, the points are the times, and the matrix is None.
    """
    quarter = frequency * (times[-1] - times[0]) / 4
    num_points = 1
    error = 4 * quarter
    while error > _EPSILON / 4:
        num_points += 1
        error *= quarter / num_points
    if num_points >= len(times):
        return times, None
    nodes = np.cos(np.pi * (np.arange(num_points) + 0.5) / num_points)
    vandermonde = np.polynomial.chebyshev.chebvander
    to_coefficients = 2 / num_points * vandermonde(nodes, num_points - 1)
    to_coefficients[:, 0] /= 2
    interpolation = vandermonde(np.linspace(-1, 1, len(times)), num_points - 1) @ to_coefficients.T
    return times[0] + (times[-1] - times[0]) * (nodes + 1) / 2, interpolation


def _principal(logarithm: np.ndarray, num_layers: int) -> np.ndarray:
    root = linalg.expm(logarithm / num_layers)
    return np.repeat((root - np.eye(len(root)))[None], num_layers, axis=0)


def _logarithm(R: np.ndarray) -> np.ndarray:
    """Returns the principal logarithm [d, d]; raises NoLogarithm if there is none."""
    eigenvalues = np.linalg.eigvals(R)
    # eigvals is off by √ε for a defective pair: eigenvalues nearer to the cut than that count as on it.
    on_cut = (eigenvalues.real <= 0) & (np.abs(eigenvalues.imag) <= 1e-8 * np.abs(eigenvalues))
    if on_cut.any():
        worst = eigenvalues[on_cut][0].real
        raise NoLogarithm(f"method principal needs an R without eigenvalues on (−∞, 0], got {worst:.4g}; use polar")
    # Near defective eigenvalues on (−∞, 0] the exponential of SciPy's log R is not R.
    with contextlib.suppress(Exception), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # and SciPy raises a bare Exception on some R of subnormal numbers
        logarithm = np.real(linalg.logm(R))
        if np.abs(linalg.expm(logarithm) - R).max() <= 1e-8 * np.abs(R).max():
            return logarithm
    raise NoLogarithm(
        "method principal finds no logarithm of R, which is too near to eigenvalues on (−∞, 0]; use polar"
    )


def _checked(R: np.ndarray, num_layers: int, method: str = "polar") -> tuple[np.ndarray, tuple]:
    """Returns R in float64 and its singular value decomposition; ValueError as `factorize` says."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if not isinstance(num_layers, numbers.Integral) or num_layers < 1:
        raise ValueError(f"num_layers must be a whole number of at least 1, got {num_layers!r}")
    R, (u, sigma, vt) = singular_parts(R)
    if np.linalg.slogdet(u)[0] * np.linalg.slogdet(vt)[0] < 0:
        raise ValueError("det R must be positive, got a negative one; flip_label(R) or augment(R) changes its sign")
    return R, (u, sigma, vt)


def singular_parts(R: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns R [d, d] in float64 and its U, σ, Vᵀ.

    Raises:
      ValueError: R is not a square matrix of finite real numbers, or is singular within rounding.
    """
    R = _square(R)
    u, sigma, vt = np.linalg.svd(R)
    if not sigma[-1] > len(R) * _EPSILON * sigma[0]:
        raise ValueError(f"R must not be singular, got singular values from {sigma[0]:.3g} down to {sigma[-1]:.3g}")
    return R, (u, sigma, vt)


def log_condition(R: np.ndarray) -> float:
    """Returns γ = max(|log σ_max(R)|, |log σ_min(R)|) (Hardt & Ma §2), for det R of either sign."""
    _, (_, sigma, _) = singular_parts(R)
    return float(np.abs(np.log(sigma)).max())


def augment(R: np.ndarray) -> np.ndarray:
    """Returns [[R, 0], [0, −1]]: the target after appending b to x and −b to y (Hardt & Ma §2); its γ is that of R."""
    return linalg.block_diag(_square(R), -1.0)


def flip_label(R: np.ndarray, coordinate: int = 0) -> np.ndarray:
    """Returns R with the sign of one coordinate of y changed: det R changes sign, γ does not. Not in the paper.

    This works in every dimension and adds none; the paper's y → −y works only in odd dimensions.
    """
    flipped = _square(R).copy()
    flipped[coordinate] *= -1
    return flipped


def rescale(R: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns (sR, s) with σ_min(sR) = 1/√κ and σ_max(sR) = √κ, so that γ = ½ log κ is least (Hardt & Ma §2)."""
    R, (_, sigma, _) = singular_parts(R)
    exponent = -(math.log(sigma[0]) + math.log(sigma[-1])) / 2
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f"R must not need a factor of e^{exponent:.0f}, which exceeds float64: scale it first")
    scale = math.exp(exponent)
    return scale * R, scale


def _square(R: np.ndarray) -> np.ndarray:
    """Returns R in float64; ValueError unless it is a square matrix of finite real numbers."""
    R = finite("R", R)
    if R.ndim != 2 or R.shape[0] != R.shape[1] or R.size == 0:
        raise ValueError(f"R must be a square matrix, got shape {R.shape}")
    return R
