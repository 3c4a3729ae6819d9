"""The map: which targets linear residual networks reach and how fast, by start, method, depth and step size.

A job is one target, start, method and depth, run at all step sizes at once. Only the seed's numbers are random.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from theory import linear_residual
from theory.descent import balancedness, from_zero, update_rules
from theory.descent.update_rules import METHODS
from theory.linear.rotations import rotation
from theory.parallel import single_threaded_products
from theory.products import product_gradient, products

TARGETS = ("positive definite", "rotated", "indefinite", "singular")
STARTS = ("zero", "identity plus noise", "small random")
DEPTHS = (1, 2, 4, 8, 16, 32, 64)
SPEEDS = tuple(2.0**-k for k in range(11))  # η·ℓ, so that W moves at the same speed at every depth
TOLERANCE = 1e-3  # of the risk at A = 0: reached
MAX_STEPS = 500


class Job(NamedTuple):
    """One cell of the map: target, start, method, depth ℓ, dimension d."""

    target: str
    start: str
    method: update_rules.Method
    num_layers: int
    dimension: int


def jobs() -> list[Job]:
    """Returns all jobs: d = 6 at every depth, and d = 20 from zero at depth 16."""
    small = itertools.product(TARGETS, STARTS, METHODS, DEPTHS, (6,))
    large = itertools.product(TARGETS, STARTS[:1], METHODS, (16,), (20,))
    return [Job(*job) for job in (*small, *large)]


def target_matrix(name: str, d: int, seed: int) -> np.ndarray:
    """Returns a target R [d, d] in a random basis, det R ≥ 0, d ≥ 2.

    positive definite: eigenvalues 0.4 … 2. rotated: that matrix times rotations of planes by up to 2 radians.
    indefinite: the former with the signs of two eigenvalues changed. singular: its least eigenvalue replaced by 0.
    """
    rng = np.random.default_rng([seed, d])
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.geomspace(0.4, 2, d)
    if name == "indefinite":
        values[[0, d // 2]] *= -1
    if name == "singular":
        values[0] = 0
    R = (basis * values) @ basis.T
    if name == "rotated":
        other = np.linalg.qr(rng.standard_normal((d, d)))[0]
        for plane, angle in enumerate(np.linspace(0.5, 2, d // 2)):
            pair = other[:, 2 * plane : 2 * plane + 2]
            R = R + pair @ (rotation(angle) - np.eye(2)) @ (pair.T @ R)
    elif name not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {name!r}")
    return R


def start_layers(name: str, num_layers: int, d: int, seed: int) -> np.ndarray:
    """Returns A [ℓ, d, d]: zero; identity plus noise, Gaussian A of norm near 0.2/√ℓ; small random, I + A so."""
    if name == "zero":
        return np.zeros((num_layers, d, d))
    noise = np.random.default_rng([seed, num_layers, d]).standard_normal((num_layers, d, d)) / math.sqrt(d * num_layers)
    if name == "identity plus noise":
        return 0.1 * noise
    if name == "small random":
        return 0.1 * noise - np.eye(d)
    raise ValueError(f"start must be one of {', '.join(STARTS)}, got {name!r}")


def run_job(job: Job, seed: int = 0, speeds: tuple[float, ...] = SPEEDS, max_steps: int = MAX_STEPS) -> list[dict]:
    """Returns one row for each step size η = speed/ℓ: the outcome of the job.

    status: reached (excess risk at most 0.001 f(A = 0) after `steps`), stalled (not within max_steps) or diverged.
    excess: the last excess risk over f(A = 0). norm, least_singular: the largest |||A||| and the least σ_min(W),
    measured every tenth step. promised_exact, promised_2_3, promised_margin: the steps that `from_zero.step_bound`,
    (2.3) and the margin bound allow, the last two with the measured norm and σ_min(W) and for η ≤ 1/L only; NaN if they
    guarantee nothing. largest_rate: `from_zero.largest_learning_rate` for descent from zero on symmetric targets, else
    NaN.
    """
    R = target_matrix(job.target, job.dimension, seed)
    d = job.dimension
    rates = np.array(speeds) / job.num_layers
    A = np.repeat(start_layers(job.start, job.num_layers, d, seed)[None], len(rates), axis=0)
    buffer = np.zeros_like(A)
    unit = float(np.square(np.eye(d) - R).sum())
    active = np.arange(len(rates))
    status = np.full(len(rates), "stalled", dtype=object)
    steps = np.full(len(rates), max_steps)
    excess = np.full_like(rates, np.inf)
    norm = np.zeros_like(rates)
    least = np.full_like(rates, np.inf)
    with single_threaded_products():  # on busy cores threads make small matrices 10 times slower
        first = float(risk_and_gradient(A[:1], R)[1][0])
        for step in range(max_steps + 1):
            W, risk, gradient = risk_and_gradient(A[active], R)
            ends = (risk <= TOLERANCE * unit) | ~(risk < 1e4 * unit)
            excess[active] = risk / unit
            steps[active] = step
            if step % 10 == 0 or ends.any():
                finite = active[np.isfinite(risk)]
                norm[finite] = np.maximum(norm[finite], np.linalg.norm(A[finite], 2, axis=(2, 3)).max(1))
                values = np.linalg.svd(W[np.isfinite(risk)], compute_uv=False)[:, -1]
                least[finite] = np.minimum(least[finite], values)
            status[active[ends]] = np.where(risk[ends] <= TOLERANCE * unit, "reached", "diverged")
            active, gradient = active[~ends], gradient[~ends]
            if not len(active):
                break
            move, buffer[active] = update_rules.direction(job.method, gradient, buffer[active])
            A[active] -= rates[active, None, None, None] * move
    names = ("speed", "learning_rate", "status", "steps", "excess", "norm", "least_singular")
    columns = zip(speeds, *(values.tolist() for values in (rates, status, steps, excess, norm, least)))
    rows = [job._asdict() | dict(zip(names, row)) for row in columns]
    return [row | _promised(row, R, unit, first) for row in rows]


def risk_and_gradient(A: np.ndarray, R: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns W, ‖W − R‖²_F and ∂/∂A_i for networks A [n, ℓ, d, d]; infinite or NaN once they have diverged."""
    layers = np.eye(len(R)) + A
    with np.errstate(over="ignore", invalid="ignore"):
        before = products(layers)
        E = before[:, -1] - R
        return before[:, -1], np.square(E).sum((1, 2)), product_gradient(layers, before, 2 * E)


def _promised(row: dict, R: np.ndarray, unit: float, first: float) -> dict[str, float]:
    """Returns the three guaranteed numbers of steps of a row, from the risk `first`; NaN unless it is plain descent."""
    promised = dict.fromkeys(("promised_exact", "promised_2_3", "promised_margin", "largest_rate"), math.nan)
    if row["method"] != "descent":
        return promised
    depth = row["num_layers"]
    rate = row["learning_rate"]
    identity = np.eye(len(R))
    # Then eigenvalues move independently, and layers stay balanced.
    alone = row["start"] == "zero" and row["target"] != "rotated"
    if alone:
        phi = np.linalg.eigvalsh(R)
        promised["largest_rate"] = from_zero.largest_learning_rate(phi, depth)
        if row["target"] == "positive definite" and rate <= promised["largest_rate"]:
            promised["promised_exact"] = from_zero.step_bound(phi, depth, rate, TOLERANCE * unit)
    if row["status"] == "diverged":
        return promised
    if rate <= 1 / linear_residual.smoothness_bound(identity, depth, row["norm"], first):
        if row["norm"] < 1:
            shrinks = linear_residual.convergence_rate_bound(identity, depth, row["norm"], rate)
            promised["promised_2_3"] = _steps(shrinks, TOLERANCE * unit / first)
        if alone:
            shrinks = balancedness.margin_rate(depth, row["least_singular"], rate)
            promised["promised_margin"] = _steps(shrinks, TOLERANCE)
    return promised


def _steps(shrinks: float, to: float) -> float:
    """Returns the steps in which the risk falls to a share `to`, if each multiplies it by at most `shrinks`."""
    return math.log(to) / math.log(shrinks) if 0 < shrinks < 1 else math.nan
