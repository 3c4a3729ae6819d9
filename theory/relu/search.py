"""A search for bad critical points of ReLU residual networks near zero: the conjecture of Hardt & Ma, §5.

They conjecture "that a result analogous to Theorem 2.2 is true for the general non-linear case", layers
x + V ReLU(U x). Read literally: with |||A||| = max(‖U_i‖, ‖V_i‖) ≤ τ < 1, every critical point is a global minimum.

    paper            code
    U_i, V_iᵀ        w[:, i, 0], w[:, i, 1] [n, width, d], n independent trials: see networks.py
    y                forward(teacher, x), x ~ N(0, I); a teacher of the student's shape in the same ball: min f = 0
    |||A||| ≤ τ      spectral_norm(balance(w)) ≤ radius

Proved facts (not in the paper; the tests check each numerically):
 1. w = 0 is critical: f(tD) − f(0) = t² q(D) + O(t⁴), q(D) = −(2/m) Σ rᵀV ReLU(U x) summed over blocks, r = y − x.
    q(−D) ≠ q(D), so there is no Hessian, unless Σ r|u·x| = 0 for all u, as for data symmetric about 0; q < 0 somewhere
    unless Σ r ReLU(u·x) = 0 for all u. So the literal analogue is false. Likewise a critical point stays critical when
    a unit u = v = 0 is added, and usually has a direction downhill then.
 2. f is constant along u → cu, v → v/c; units with one activation pattern on the sample mix by GL(s). These directions
    are projected out of the Hessian before its sign is determined. A unit that is active on no input is flat in all its
    2d directions.
 3. One block: f is homogeneous of degree 4 in (student, teacher) together, so the radius changes nothing.
 4. Two blocks of one unit, d ≥ 2, x of finite variance and positive density, a teacher τ·(fixed weights) strictly in
    the ball with u₁ ∦ u₂, v₁, v₂ ≠ 0, u₂·v₁ ≠ 0. For every small enough τ the population risk has a local minimum with
    f > 0 in the ball, near the teacher with its blocks swapped. Proof: f/τ⁴ tends, uniformly for weights of size τ, to
    the risk of ONE block with both units, which forgets their order. Among balanced weights near the swap this limit is
    0 only at the swap (kinks and jumps identify the units), so f ≥ cτ⁴ on a small sphere around it while f = o(τ⁴) at
    it: the least f in the sphere is a local minimum. It is not 0: the teacher's second kink, u₂·h = 0, has a bend at
    which its first unit switches on; the student's kink beside it is its first block's, a whole hyperplane.

Limits of the search: the shares depend on these draws and methods. Ends at a kink are counted separately (f is not
differentiable there, so they are not critical in this sense). Points that were not found may exist.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.stats import binomtest

from theory.parallel import single_threaded_products
from theory.relu.networks import Population, Sample, balance, forward, free_directions, kink_margin, spectral_norm

GRADIENT_TOLERANCE = 1e-11  # of τ‖∇f‖/f(0), which is free of scale
CURVATURE_TOLERANCE = 1e-8  # of the smallest over the largest eigenvalue
KINK_MARGIN = 1e-7  # |u·h|/(‖u‖‖h‖): nearer than this counts as on the kink
GLOBAL_RISK = 1e-18  # of f/f(0)
CATEGORIES = "global_minimum bad_local_minimum saddle zero_unit degenerate outside kink not_converged".split()
METHODS = ("gradient_norm", "risk")


class Setting(NamedTuple):
    """A setting of the search: inputs in R^d, blocks, units per block, inputs m of a sample, radius τ of the ball."""

    d: int = 2
    num_layers: int = 2
    width: int = 2
    samples: int = 100
    radius: float = 0.5


SETTINGS = (
    *(Setting(radius=radius) for radius in (0.1, 0.3, 0.5, 0.9)),
    *(Setting(samples=samples) for samples in (20, 500)),
    *(Setting(num_layers=num_layers) for num_layers in (1, 3)),
    Setting(width=1),
    Setting(width=4, num_layers=1),
    Setting(d=3, width=3),
)


def draw_weights(rng: np.random.Generator, n: int, setting: Setting, smallest: float = 0.0) -> np.ndarray:
    """Returns [n, ℓ, 2, width, d]: Gaussian matrices scaled to spectral norms uniform in (smallest, 1)·radius."""
    w = rng.standard_normal((n, setting.num_layers, 2, setting.width, setting.d))
    norms = rng.uniform(smallest, 1, (n, setting.num_layers, 2, 1, 1)) * setting.radius
    return w / np.linalg.norm(w, 2, axis=(-2, -1), keepdims=True) * norms


def find_critical_points(
    problem: "Sample | Population", w: np.ndarray, method: str, max_steps: int = 150
) -> np.ndarray:
    """Returns the ends of damped Newton steps from w [n, ℓ, 2, width, d]: balanced weights, critical unless at a kink.

    With e, Q the eigenpairs of the Hessian and s the damping (shrunk after a better point, raised otherwise), a step is
    −Q (e / (e² + s²)) Qᵀ∇f for "gradient_norm", Levenberg–Marquardt on ∇f = 0, which takes a lower ‖∇f‖ and so finds
    saddles; −Q (1 / (|e| + s)) Qᵀ∇f for "risk", which takes a lower f, or the same to 12 digits and half the gradient.
    """
    w = w.copy()
    everything = np.arange(len(w))
    f, g = problem.risk_and_gradient(w, everything)
    tolerance = GRADIENT_TOLERANCE / 100 * problem.risk_and_gradient(0 * w, everything)[0] / spectral_norm(w)
    e, q = np.linalg.eigh(problem.hessian(w, everything))
    damping = np.full(len(w), 1e-2)
    for _ in range(max_steps):
        i = np.flatnonzero((_norm(g) > tolerance) & (damping < 1e9))
        if not len(i):
            break
        s = (damping[i] * np.abs(e[i]).max(1))[:, None]
        scale = e[i] / (e[i] ** 2 + s**2) if method == "gradient_norm" else 1 / (np.abs(e[i]) + s)
        along = q[i].swapaxes(1, 2) @ g[i].reshape(len(i), -1, 1)
        trial = w[i] - (q[i] @ (scale[..., None] * along)).reshape(w[i].shape)
        f_trial, g_trial = problem.risk_and_gradient(trial, i)
        better = _norm(g_trial) < _norm(g[i])
        if method == "risk":
            better = (f_trial < f[i]) | ((f_trial <= f[i] * (1 + 1e-12)) & (_norm(g_trial) < _norm(g[i]) / 2))
        j = i[better]
        w[j], f[j], g[j] = trial[better], f_trial[better], g_trial[better]
        damping[i] = np.where(better, np.maximum(damping[i] / 5, 1e-10), damping[i] * 4)
        if len(j):
            e[j], q[j] = np.linalg.eigh(problem.hessian(w[j], j))
    return balance(w)


def _norm(g: np.ndarray) -> np.ndarray:
    return np.linalg.norm(g.reshape(len(g), -1), axis=1)


def least_curvature(hessian: np.ndarray, directions: np.ndarray) -> float:
    """Returns one Hessian's smallest eigenvalue across the free directions over the largest in absolute value."""
    across = linalg.null_space(directions, rcond=1e-8)
    eigenvalues = np.linalg.eigvalsh(across.T @ hessian @ across)
    return float(eigenvalues[0] / np.abs(eigenvalues).max())


def _leaves_zero_units_downhill(problem: "Sample | Population", w: np.ndarray, is_zero: np.ndarray) -> np.ndarray:
    """Returns whether, by fact 1, f falls along (tu, −t ∂f/∂v) for random u in a network's zero units: [n] bool."""
    downhill = np.zeros(len(w), bool)
    rng = np.random.default_rng(0)
    scale = problem.risk_and_gradient(0 * w, np.arange(len(w)))[0]
    for _ in range(8):
        tried = np.where(is_zero[:, :, None, :, None], 0, w)
        tried[:, :, 0] += is_zero[..., None] * rng.standard_normal(w[:, :, 0].shape)
        slope = problem.risk_and_gradient(tried, np.arange(len(w)))[1][:, :, 1] * is_zero[..., None]
        downhill |= _norm(slope) > 1e-6 * np.sqrt(scale)
    return downhill


def classify(problem: "Sample | Population", w: np.ndarray, radius: float) -> dict[str, np.ndarray]:
    """Returns the category, one of CATEGORIES, of each balanced w, and the numbers that decide it: arrays [n].

    Not critical (radius·‖∇f‖ > 1e-11 f(0)): kink, stopped at a jump of ∇f, or not_converged. Critical, in this order:
    outside, |||A||| > radius; global_minimum, f ≤ 1e-18 f(0); zero_unit, a unit is zero and f falls when it is switched
    on (fact 1); kink, at the edge of its linear region; and by the exact Hessian without the free directions: saddle,
    bad_local_minimum, or degenerate, the least eigenvalue 0 within 1e-8 of the largest (a dead unit, say; also zero
    units that no tried u switches on).

    Returns:
      category [n] str; risk, f / f(0); curvature, least over largest eigenvalue (NaN if it was not needed);
      gradient_norm, radius·‖∇f‖ / f(0); spectral_norm, |||A||| / radius.
    """
    everything = np.arange(len(w))
    f, g = problem.risk_and_gradient(w, everything)
    zero_risk = problem.risk_and_gradient(0 * w, everything)[0]
    gradient_norm = radius * _norm(g) / zero_risk
    curvature = np.full(len(w), np.nan)
    at_kink = kink_margin(w, problem.x) < KINK_MARGIN if isinstance(problem, Sample) else np.zeros(len(w), bool)
    is_zero = (np.linalg.norm(w, axis=-1) < 1e-6 * radius).any(2)
    has_zero = is_zero.any((1, 2))
    critical = gradient_norm <= GRADIENT_TOLERANCE
    smooth = np.flatnonzero(critical & ~has_zero & ~at_kink)
    if len(smooth):
        for i, h in zip(smooth, problem.hessian(w[smooth], smooth)):
            curvature[i] = least_curvature(h, free_directions(w[i], problem.x[i]))
    conditions = (
        (~critical & at_kink & ~has_zero, "kink"), (~critical, "not_converged"), (spectral_norm(w) > radius, "outside"),
        (f <= GLOBAL_RISK * zero_risk, "global_minimum"),
        (has_zero, np.where(_leaves_zero_units_downhill(problem, w, is_zero), "zero_unit", "degenerate")),
        (at_kink, "kink"),
        (curvature < -CURVATURE_TOLERANCE, "saddle"),
        (curvature > CURVATURE_TOLERANCE, "bad_local_minimum"),
    )  # fmt: skip
    category = np.select([c for c, _ in conditions], [name for _, name in conditions], "degenerate")
    numbers = {"risk": f / zero_risk, "curvature": curvature, "gradient_norm": gradient_norm}
    return {"category": category, **numbers, "spectral_norm": spectral_norm(w) / radius}


def measure(
    setting: Setting, method: str, trials: int, checks: int, seed: int | Sequence[int]
) -> tuple[dict, list[dict]]:
    """Returns the ends of random starts in the ball. Each trial draws its own teacher, sample and start.

    Both methods see the same draws of a seed. The teacher's spectral norms are uniform in (½, 1)·radius, the start's in
    (0, 1)·radius. The first `checks` bad local minima are searched again, by descent from them, with ten times the
    sample (the old one and nine new parts) and, for d = 2, in the population.

    Returns:
      A row and its points. The row: the setting, method, trials, each category's count and 95% interval (_low, _high);
      least, median and largest risk of the bad local minima as shares of f(0); `tenfold_bad` of `tenfold_tried`,
      `population_bad` of `population_tried`; seconds. A point for each trial: the setting, the method and what
      `classify` says.
    """
    begin = perf_counter()
    rng = np.random.default_rng(seed)
    teachers = draw_weights(rng, trials, setting, 0.5)
    starts = draw_weights(rng, trials, setting)
    x = rng.standard_normal((trials, 10 * setting.samples, setting.d))
    y = forward(teachers, x)
    shared = setting._asdict() | {"method": method}
    with single_threaded_products():  # on busy cores threads make small matrices 10 times slower
        problem = Sample(x[:, : setting.samples], y[:, : setting.samples])
        w = find_critical_points(problem, starts, method)
        result = classify(problem, w, setting.radius)
        bad = np.flatnonzero(result["category"] == "bad_local_minimum")
        tried = bad[:checks]
        still_bad = {"tenfold": _still_bad(Sample(x[tried], y[tried]), w[tried], setting.radius)}
        is_plane = setting.d == 2
        still_bad["population"] = _still_bad(Population(teachers[tried]), w[tried], setting.radius) if is_plane else 0
    row = shared | {"trials": trials}
    for name in CATEGORIES:
        count = int((result["category"] == name).sum())
        low, high = binomtest(count, trials).proportion_ci()  # floats, or NumPy's scalars from SciPy 1.17 on
        row |= {name: count, f"{name}_low": float(low), f"{name}_high": float(high)}
    quantiles = np.quantile(result["risk"][bad], (0, 0.5, 1)) if len(bad) else [np.nan] * 3
    row |= {f"bad_risk_{name}": float(q) for name, q in zip(("least", "median", "largest"), quantiles)}
    for name, count in still_bad.items():
        row |= {f"{name}_tried": len(tried) if name == "tenfold" or is_plane else 0, f"{name}_bad": count}
    points = [shared | {name: values[i].item() for name, values in result.items()} for i in range(trials)]
    return row | {"seconds": perf_counter() - begin}, points


def _still_bad(problem: "Sample | Population", w: np.ndarray, radius: float) -> int:
    """Returns how many of the bad local minima w stay bad after descent in another problem."""
    if not len(w):
        return 0
    w = find_critical_points(problem, w, "risk", max_steps=60)
    return int((classify(problem, w, radius)["category"] == "bad_local_minimum").sum())


def swapped_blocks(radius: float) -> dict:
    """Returns fact 4 in numbers: the end of descent from the teacher with its blocks swapped, in the population.

    d = 2, two blocks of one unit: u₁ = v₂ = 0.8τ e₁, v₁ = u₂ = 0.8τ e₂.
    """
    e1, e2 = np.eye(2)
    teacher = 0.8 * radius * np.reshape([[e1, e2], [e2, e1]], (1, 2, 2, 1, 2))
    problem = Population(teacher)
    zero = problem.risk_and_gradient(0 * teacher, np.array([0]))[0].item()
    point = classify(problem, find_critical_points(problem, teacher[:, ::-1], "risk"), radius)
    return {"radius": radius, "risk_at_zero": zero} | {name: values[0].item() for name, values in point.items()}
