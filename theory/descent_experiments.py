"""The data of the figures of docs/descent.md: one function a figure, rows of plain numbers and words.

Rows go to a CSV file, and theory/descent_figures.py draws from that file alone.
"""

import itertools

import numpy as np

from theory import balancedness, descent, linear_residual, relu_linear_output, relu_search, saddle_escape
from theory import linear_output as output_bounds
from theory.rotations import rotation

EIGENVALUES = (-1.0, -0.5, 0.0, 0.25, 0.5, 1.5, 2.0)
ANGLES = (60, 120, 150, 170, 180)


def eigenvalues(seed: int = 0, num_layers: int = 8, num_steps: int = 3_000) -> list[dict]:
    """Excess |w − φ|² and |λ − 1| of gradient descent from zero by eigenvalue φ, at the largest learning rate of all.

    Args:
      seed: Not used: nothing here is random.
      num_layers: ℓ.
      num_steps: The last step; steps are listed more sparsely the later they are.
    """
    learning_rate = descent.largest_learning_rate(np.array(EIGENVALUES), num_layers)
    values = descent.eigenvalue_recursion(np.array(EIGENVALUES), num_layers, learning_rate, num_steps)
    steps = np.unique(np.append(0, np.geomspace(1, num_steps, 120).astype(int)))
    return [
        {
            "num_layers": num_layers,
            "learning_rate": learning_rate,
            "eigenvalue": eigenvalue,
            "step": int(step),
            "excess": float((values[step, k] ** num_layers - eigenvalue) ** 2),
            "norm": float(abs(values[step, k] - 1)),
        }
        for k, eigenvalue in enumerate(EIGENVALUES)
        for step in steps
    ]


def rotations(seed: int = 0, num_layers: int = 8, learning_rate: float = 0.01, num_steps: int = 3_000) -> list[dict]:
    """w of gradient descent from zero on rotations by 60 … 180 degrees: points of the complex plane.

    Args:
      seed: Not used.
      num_layers: ℓ. learning_rate: Below that of stability, 1/ℓ. num_steps: The last step.
    """
    phi = np.exp(1j * np.radians(np.array(ANGLES)))
    phi[-1] = -1  # exactly: rounding off the axis would let descent escape in the end
    w = descent.eigenvalue_recursion(phi, num_layers, learning_rate, num_steps) ** num_layers
    return [
        {"angle": angle, "step": step, "real": float(w[step, k].real), "imaginary": float(w[step, k].imag)}
        for k, angle in enumerate(ANGLES)
        for step in [*range(400), *range(400, num_steps + 1, 50)]
    ]


def saddle(seed: int = 0) -> list[dict]:
    """Steps to leave zero by shortcut depth, method and size of the start: measured, predicted, and the least possible.

    aligned: one unit that starts along the target. random: the median of three starts of three units with Gaussian
    entries. The gap is orthogonal, d = 4. The sizes w₀ are those of the aligned weights; random ones have norms near.
    """
    gap = np.linalg.qr(np.random.default_rng(seed).standard_normal((4, 4)))[0]
    rates, rows = {"descent": 0.05, "momentum": 0.005, "orthogonalised": 0.01}, []
    for n, (method, rate), size in itertools.product((1, 2, 3), rates.items(), np.geomspace(0.002, 0.2, 7)):
        aligned = saddle_escape.aligned_start(size, n, gap)
        random = [size / 2 * np.random.default_rng([seed, k]).standard_normal((3, n, 4, 4)) for k in range(3)]
        seen, *others = (saddle_escape.steps_to_leave(method, s, gap, rate, 60_000) for s in (aligned, *random))
        rows.append({"shortcut_depth": n, "method": method, "learning_rate": rate, "size": float(size)})
        rows[-1] |= {"aligned": seen, "random": float(np.median(others))}
        rows[-1]["predicted"] = saddle_escape.predicted_steps(method, n, 1.0, size, rate)
        rows[-1]["least"] = float(np.median([saddle_escape.least_steps(method, s, gap, rate) for s in random]))
    return rows


def rates(seed: int = 0) -> list[dict]:
    """Excess of descent from zero beside what (2.3), the margin seen and the margin c at the start promise, η = 1/L.

    Targets: I + a Gaussian matrix of Frobenius norm ½, d = 5, and the rotation of the plane by 100 degrees, for which
    no margin c is positive. (2.3) has the norm seen so far, the margin bound the σ_min(W) seen so far.
    """
    noise, angle = np.random.default_rng(seed).standard_normal((5, 5)), np.radians(100)
    near = np.eye(5) + 0.5 * noise / np.linalg.norm(noise)
    turn = ("rotation by 100°", rotation(angle), 32, 600, angle)
    cases = (("near I", near, 2, 80, 0.5), ("near I", near, 32, 80, 0.5), turn)
    return [row for case in cases for row in _rates(*case)]


def _rates(target: str, R: np.ndarray, depth: int, num_steps: int, reach: float) -> list[dict]:
    """The rows of one target and depth; |||A||| stays below reach/ℓ."""
    identity, rows = np.eye(len(R)), []
    A, c = np.zeros((depth, *R.shape)), balancedness.deficiency_margin(identity, R)
    start = linear_residual.risk(A, R, identity)
    rate = 1 / linear_residual.smoothness_bound(identity, depth, reach / depth, start)
    promised = {"by_norm": start, "by_seen_margin": start, "by_margin": start if c > 0 else np.nan}
    norm, least = 0.0, 1.0
    for step in range(num_steps + 1):
        excess = linear_residual.risk(A, R, identity)
        drift = np.linalg.svd(balancedness.imbalances(A), compute_uv=False).sum(1).max()
        row = {"target": target, "num_layers": depth, "step": step, "excess": excess, "drift": float(drift)}
        rows.append(row | promised | {"drift_bound": balancedness.drift_bound(rate, start, excess)})
        norm = max(norm, linear_residual.max_spectral_norm(A))
        least = min(least, float(np.linalg.svd(linear_residual.end_to_end(A), compute_uv=False)[-1]))
        promised["by_norm"] *= linear_residual.convergence_rate_bound(identity, depth, norm, rate)
        promised["by_seen_margin"] *= balancedness.margin_rate(depth, least, rate)
        promised["by_margin"] *= balancedness.margin_rate(depth, max(c, 0.0), rate)
        A = A - rate * linear_residual.gradient(A, R, identity)
    return rows


def linear_output(seed: int = 0, trials: int = 100) -> list[dict]:
    """The minima of relu_search beside linear predictors, and with a trained output W, for all its settings."""
    return [row for setting in relu_search.SETTINGS for row in relu_linear_output.compare(setting, trials, seed)]


def excess_by_radius(seed: int = 0) -> list[dict]:
    """f and f(0) at the local minimum beside the teacher with its blocks swapped, and both bounds, by the radius.

    Args:
      seed: Not used.
    """
    rows = []
    for radius in np.geomspace(0.02, 0.9, 12):
        point = relu_search.swapped_blocks(radius)
        zero = point["risk_at_zero"]
        row = {"radius": float(radius), "at_zero": zero, "swapped": point["risk"] * zero}
        row["ball_bound"] = output_bounds.ball_risk_bound(2, 0.8 * radius, 2.0)
        rows.append(row | {"swapped_bound": output_bounds.reordering_risk_bound(2, 0.8 * radius, 2.0)})
    return rows


EXPERIMENTS = {
    "eigenvalues": eigenvalues,
    "rotations": rotations,
    "saddle": saddle,
    "rates": rates,
    "linear_output": linear_output,
    "excess_by_radius": excess_by_radius,
}
