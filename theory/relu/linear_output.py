"""A linear output W(x + V f_θ(x)): no local minimum is worse than a linear predictor (Shamir; Kawaguchi & Bengio).

paper                                code
wᵀ(x + V f_θ(x)), W(x + V h)         W [r, d], V [d, p], x [m, d] and features f_θ(x) [m, p] in rows, y [m, r]
the best linear predictor            best_linear_risk(x, y)

Sources: Ohad Shamir, *Are ResNets provably better than linear predictors?*, NeurIPS 2018 (r = 1, any convex loss in
the output: no local minimum is worse than the best linear predictor); Kenji Kawaguchi and Yoshua Bengio, *Depth with
nonlinearity creates no bad local minima in ResNets*, Neural Networks 2019 (r ≥ 1). The statement of
`local_minimum_risk` is sharper than theirs and only for local minima in (W, V); the risk is a mean of squares.

    F(W, V) = G(A, B) with A = W, B = WV, G convex in the predictor A x + B f. At a critical point in (W, V)
    Wᵀ ∂G/∂B = 0 and ∂G/∂A + ∂G/∂B Vᵀ = 0. If W has rank r, ∂G/∂B = 0 and so ∂G/∂A = 0: a global minimum of G. If
    not, r ≤ d leaves a z ≠ 0 with Wz = 0: F is the same at V + zsᵀ, all s. At a local minimum all of these, near it,
    are local minima, so ∂G/∂B s zᵀ = 0 for all small s, and ∂G/∂B = 0 again.

The students x + Σ V_i ReLU(U_i h) of `search` have no output W, so the theorem does not cover them. `compare` adds an
output W = I to each local minimum of the search, and all weights descend to a local minimum again (not in the papers).
With one block the theorem holds as it stands. With more, only the last block's V is linear: the theorem then compares
with predictors of (h, f), h the input of the last block, not with predictors of x.
"""

import math

import numpy as np
from scipy import optimize

from theory.arrays import finite
from theory.relu import networks, search

CRITICAL = 1e-5  # of the gradient in (W, V) over f(0): below it a point counts as critical in them


def risk(W: np.ndarray, V: np.ndarray, x: np.ndarray, features: np.ndarray, y: np.ndarray) -> float:
    """Returns (1/m) Σ‖y − W(x + V f)‖², f the features; shapes as in the table of this module.

    Raises:
      ValueError: y and W(x + V f) differ in shape; NumPy would broadcast them.
    """
    return float(np.square(_error(W, x + features @ V.T, y)).sum() / len(x))


def gradient(
    W: np.ndarray, V: np.ndarray, x: np.ndarray, features: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ∂/∂W [r, d] and ∂/∂V [d, p] of `risk`; arguments and errors as `risk`."""
    hidden = x + features @ V.T
    error = 2 / len(x) * _error(W, hidden, y)
    return error.T @ hidden, W.T @ error.T @ features


def _error(W: np.ndarray, hidden: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns W hidden − y [m, r], for hidden [m, d]."""
    predicted = hidden @ W.T
    if np.shape(y) != predicted.shape:
        raise ValueError(f"y must have shape {predicted.shape}, got {np.shape(y)}")
    return predicted - y


def best_linear_risk(inputs: np.ndarray, y: np.ndarray) -> float:
    """Returns the least (1/m) Σ‖y − C x‖² over all C, without a bias. inputs: [m, p]; y: [m, r], finite."""
    inputs, y = finite("inputs", inputs), finite("y", y)
    return float(np.square(y - inputs @ np.linalg.lstsq(inputs, y, rcond=None)[0]).sum() / len(y))


def local_minimum_risk(x: np.ndarray, features: np.ndarray, y: np.ndarray) -> float:
    """Returns the risk of every local minimum in (W, V), r ≤ d: that of the best predictor linear in (x, f_θ(x)).

    θ may be any parameters, trained or not, critical or not. So no local minimum of (W, V, θ) is worse than the
    best linear predictor on x, as the papers say, nor (not in the papers) than the best one on (x, f_θ(x)).
    ValueError: r > d, for which the z of the proof need not exist.
    """
    if y.shape[1] > x.shape[1]:
        raise ValueError(f"y must have no more columns than x, got {y.shape[1]} and {x.shape[1]}")
    return best_linear_risk(np.hstack([x, features]), y)


def escape(
    W: np.ndarray, V: np.ndarray, x: np.ndarray, features: np.ndarray, y: np.ndarray, size: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a point of lower risk within `size` of a critical point in (W, V) that is not a local minimum.

    As in the proof, V moves by size·zsᵀ, Wz = 0, which does not change the risk and makes ∂F/∂W = size·(∂G/∂B s)zᵀ ≠ 0,
    s the leading right singular vector of ∂G/∂B; then W moves down that slope to the lowest point of the parabola, or
    by size/2.

    Raises:
      ValueError: W has rank d, or ∂G/∂B = 0: then the point is a global minimum of (W, V), if it is critical; or the
        gain at this size is smaller than the rounding errors of two evaluations of `risk`.
    """
    z = np.linalg.svd(W)[2][-1]
    slope = 2 / len(x) * ((x + features @ V.T) @ W.T - y).T @ features
    _, sigma, vt = np.linalg.svd(slope)
    scale = 2 / len(x) * np.linalg.norm(y) * np.linalg.norm(features)
    if np.linalg.norm(W @ z) > 1e-9 * np.linalg.norm(W) or sigma[0] <= 1e-12 * scale:
        raise ValueError(
            "the point has no such direction: W has a trivial kernel, or the features explain nothing more"
        )
    V = V + size / 2 * np.outer(z, vt[0])
    down = -gradient(W, V, x, features, y)[0]
    hidden = x + features @ V.T
    # Along W + t·down the risk is a parabola in t. Its gain comes from the coefficients: a difference of two risks
    # near each other is rounding, of a sign that changes with the library that multiplies the matrices.
    slope = np.square(down).sum()
    curvature = np.square(hidden @ down.T).sum() / len(x)
    step = min(slope / (2 * curvature), size / 2 / math.sqrt(slope))
    if step * (slope - step * curvature) <= 2 * _rounding_of_risk(W, V, x, features, y):
        raise ValueError(f"the gain within {size:g} is below rounding; take a larger size")
    return W + step * down, V


def _rounding_of_risk(W: np.ndarray, V: np.ndarray, x: np.ndarray, features: np.ndarray, y: np.ndarray) -> float:
    """Returns a bound on the rounding error of `risk`: n ε times the sizes of the n terms, summed in any order."""
    error = _error(W, x + features @ V.T, y)
    sizes = (np.abs(x) + np.abs(features) @ np.abs(V).T) @ np.abs(W).T + np.abs(y)
    num_terms = x.shape[1] + features.shape[1] + y.size
    return float(2 * num_terms * np.finfo(np.float64).eps * np.linalg.norm(error) * np.linalg.norm(sizes) / len(x))


def last_block(w: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (h, f): input and ReLU features of the last block of a network w [ℓ, 2, width, d], for x [m, d]."""
    h, z, on = networks.hidden_states(w[None], x[None])[-2]
    return h[0], np.where(on, z, 0)[0]


def descend(w: np.ndarray, W: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns the end (w, W) of BFGS on all weights from w and the output W [d, d], and ‖∂/∂(W, V_ℓ)‖/f(0) there.

    w is [ℓ, 2, width, d], x and y are [m, d].
    """
    scale = np.square(x - y).sum() / len(x)

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w_now, W_now = flat[: w.size].reshape(w.shape), flat[w.size :].reshape(W.shape)
        hidden = networks.forward(w_now[None], x[None])[0]
        error = hidden @ W_now.T - y
        fake = (hidden - error @ W_now)[None]  # the targets that make the backward pass start with error·W
        slope = networks.risk_and_gradient(w_now[None], x[None], fake)[1]
        gradient = np.append(slope, 2 / len(x) * error.T @ hidden)
        return np.square(error).sum() / len(x) / scale, gradient / scale

    start = np.append(w, W)
    solution = optimize.minimize(
        value_and_gradient, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 3_000}
    )
    w, W = solution.x[: w.size].reshape(w.shape), solution.x[w.size :].reshape(W.shape)
    h, features = last_block(w, x)
    slopes = gradient(W, w[-1, 1].T, h, features, y)
    return w, W, float(np.sqrt(sum(np.square(slope).sum() for slope in slopes)) / scale)


def compare(setting: search.Setting, trials: int, seed: int) -> list[dict]:
    """Returns a row per local or global minimum found with W = I: its risk, linear predictors' risks, the risk with W.

    Risks are shares of f(0), the risk of the identity. Columns: category, of `search.classify`; risk, of the minimum;
    linear, of the best linear predictor on x; with_output, after descent of W and all weights; last_block, of the best
    predictor linear in (h, f) there, which by the theorem is with_output; critical, whether (W, V) are critical.
    """
    rng = np.random.default_rng([seed, setting.num_layers, setting.width])
    teachers = search.draw_weights(rng, trials, setting, 0.5)
    starts = search.draw_weights(rng, trials, setting)
    x = rng.standard_normal((trials, setting.samples, setting.d))
    y = networks.forward(teachers, x)
    problem = networks.Sample(x, y)
    ends = search.find_critical_points(problem, starts, "risk")
    categories = search.classify(problem, ends, setting.radius)["category"]
    rows = []
    for k in np.flatnonzero(np.isin(categories, ("bad_local_minimum", "global_minimum"))):
        scale = np.square(x[k] - y[k]).sum() / len(x[k])
        w, W, slope = descend(ends[k], np.eye(setting.d), x[k], y[k])
        h, features = last_block(w, x[k])
        row = setting._asdict() | {"category": str(categories[k])}
        row["risk"] = risk(np.eye(setting.d), ends[k][-1, 1].T, *last_block(ends[k], x[k]), y[k]) / scale
        row["linear"] = best_linear_risk(x[k], y[k]) / scale
        row["with_output"] = risk(W, w[-1, 1].T, h, features, y[k]) / scale
        row["last_block"] = local_minimum_risk(h, features, y[k]) / scale
        row["critical"] = int(slope < CRITICAL)
        rows.append(row)
    return rows


def ball_risk_bound(num_layers: int, radius: float, second_moment: float) -> float:
    """Returns 4((1 + τ²)^ℓ − 1)² E‖x‖², near 4ℓ²τ⁴E‖x‖²: f ≤ this for any ReLU student and teacher in B_τ, any width.

    Each block x + V ReLU(U x) moves h by at most τ²‖h‖. So every local minimum in the ball has f ≤ c τ⁴, trivially; so
    has f(0), and f/f(0) need not be small: with one block f is homogeneous of degree 4 in (student, teacher), and a bad
    local minimum exists with the same f/f(0) for every τ. Not in the papers.

    Args:
      num_layers: ℓ blocks. radius: τ. second_moment: E‖x‖² = tr Σ.
    """
    return 4 * math.expm1(num_layers * math.log1p(radius**2)) ** 2 * second_moment


def reordering_risk_bound(num_layers: int, radius: float, second_moment: float) -> float:
    """Returns 4((1 + τ²)^ℓ − 1 − ℓτ²)² E‖x‖², near ℓ²(ℓ−1)²τ⁸E‖x‖²: f ≤ this at a teacher with regrouped units.

    Not in the papers. It holds for any student whose Σ_i V_i ReLU(U_i x) is the teacher's, e.g. its blocks in another
    order: each network differs from x plus that sum by Σ_i τ²‖h_{i−1} − x‖ ≤ ((1 + τ²)^ℓ − 1 − ℓτ²)‖x‖. The local
    minima of fact 4 of `search`, which descent finds from there, lie below it too: their f/f(0) is of order τ⁴, as f(0)
    is. The width does not matter.
    """
    growth = math.expm1(num_layers * math.log1p(radius**2)) - num_layers * radius**2
    return 4 * growth**2 * second_moment
