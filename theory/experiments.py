"""The data of the figures of docs/theory.md: one function per figure, rows of plain numbers and words.

Rows go to a CSV file, and theory/figures.py draws from that file alone.
"""

from collections.abc import Sequence

import numpy as np

from theory import factorization, gradient_bounds, linear_residual, memorization, paper_construction, shortcut_hessians
from theory.checks.hessian import numeric_hessian

WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
LAYERS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def norms_against_layers(seed: int = 0, layers: Sequence[int] = LAYERS) -> list[dict]:
    """Returns |||A||| of every method, the proved bounds and the lower bound, for three R and ℓ = 1 … 128."""
    rng = np.random.default_rng(seed)
    gaussian = rng.standard_normal((10, 10))
    targets = {
        "Gaussian, d = 10, rescaled": factorization.rescale(_positive(gaussian))[0],
        "I + ½ Gaussian/√d, d = 10": _positive(np.eye(10) + rng.standard_normal((10, 10)) / np.sqrt(40)),
        "diag(−e, −1/e)": np.diag([-np.e, -1 / np.e]),
    }
    rows = []
    for target, R in targets.items():
        gamma = factorization.log_condition(R)
        for num_layers in layers:
            row = {"target": target, "num_layers": num_layers, "log_condition": gamma}
            for method in ("paper", "polar", "principal"):
                row[method] = _norm(R, num_layers, method)
            row["printed_bound"] = (
                factorization.norm_bound(R, num_layers, "paper") if num_layers >= 3 * gamma else np.nan
            )
            row["polar_bound"] = factorization.norm_bound(R, num_layers, "polar")
            row["lower_bound"] = factorization.norm_lower_bound(R, num_layers)
            rows.append(row)
    return rows


def printed_construction(seed: int = 0, num_gammas: int = 120) -> list[dict]:
    """Where the printed construction with integers misses (4π + 3γ)/ℓ: worst norm over bound for γ ≤ ℓ/3, ℓ = 5 … 32.

    The seed is not used: nothing here is random.
    """
    return [
        {
            "num_layers": num_layers,
            "log_condition": float(gamma),
            "norm_over_bound": float(
                paper_construction.allocation(gamma, num_layers).norm
                / paper_construction.printed_bound(gamma, num_layers)
            ),
        }
        for num_layers in range(5, 33)
        for gamma in np.linspace(0, num_layers / 3, num_gammas + 1)[1:]
    ]


def gradient_ratios(seed: int = 0, instances: int = 4_000) -> list[dict]:
    """Returns ‖∇f‖² over (2.3)'s bound and over the product form's, for random A, R and Σ, τ = 0.1 … 0.7."""
    rng = np.random.default_rng(seed)
    rows = []
    for instance in range(instances):
        radius = (0.1, 0.3, 0.5, 0.7)[instance % 4]
        A = rng.standard_normal((5, 4, 4))
        A *= radius / np.linalg.norm(A, 2, axis=(1, 2), keepdims=True)
        R, root = rng.standard_normal((2, 4, 4))
        Sigma = root @ root.T + 0.1 * np.eye(4)
        squared = np.square(linear_residual.gradient(A, R, Sigma)).sum()
        bounds = (
            linear_residual.gradient_lower_bound(A, R, Sigma),
            gradient_bounds.gradient_lower_bound_by_layer(A, R, Sigma),
        )
        rows.append({"radius": radius, "printed": float(squared / bounds[0]), "by_layer": float(squared / bounds[1])})
    return rows


def descent_rates(seed: int = 0, num_steps: int = 60) -> list[dict]:
    """Excess risk of gradient descent, projected on B_τ, beside the rate that (2.3) guarantees, τ = 0.05, 0.15, 0.3."""
    rng = np.random.default_rng(seed)
    rows = []
    for radius in (0.05, 0.15, 0.3):
        A, target = (0.9 * radius * _unit_layers(rng, 8, 5) for _ in range(2))
        R, Sigma = linear_residual.end_to_end(target), np.eye(5)
        start = linear_residual.risk(A, R, Sigma)
        learning_rate = 1 / linear_residual.smoothness_bound(Sigma, 8, radius, start)
        descent = linear_residual.gradient_descent(A, R, Sigma, learning_rate, num_steps, radius)
        bound = linear_residual.convergence_rate_bound(Sigma, 8, radius, learning_rate)
        for step, risk in enumerate(descent.risks):
            guaranteed = float(start * bound**step)
            rows.append({"radius": radius, "step": step, "excess_risk": float(risk), "guaranteed": guaranteed})
    return rows


def memorizing_networks(
    x: np.ndarray, labels: np.ndarray, num_classes: int, seed: int = 0, widths: Sequence[int] = WIDTHS
) -> list[dict]:
    """Parameters per sample, smallest gap, and errors in float64 and float32 of the peeling network at each width.

    Args:
      x: [n, d]. labels: [n] int.
    """
    one_hot = np.eye(num_classes)[labels]
    rows = []
    for width in widths:
        for whiten in (False, True):
            row = {"width": width, "whitened": int(whiten), "num_points": len(x)}
            for dtype in (np.float64, np.float32):
                points = np.asarray(x, dtype)
                network = memorization.memorize(points, labels, num_classes, width, seed=seed, whiten=whiten)
                scores = network.forward(points, dtype)
                row[f"{dtype.__name__}_error"] = float(np.abs(scores - one_hot).max())
                row[f"{dtype.__name__}_accuracy"] = float((scores.argmax(1) == labels).mean())
            row |= {"smallest_gap": network.smallest_gap, "float32_error_expected": network.float32_error}
            row["parameters_per_point"] = network.num_parameters / len(x)
            rows.append(row)
    return rows


def spectra_at_zero(seed: int = 0, dimension: int = 3, num_units: int = 4) -> list[dict]:
    """Sorted eigenvalues of the Hessian at zero for n = 1, 2, 3: of differences of the loss, and as predicted."""
    x, y = _regression(seed, dimension)
    rows = []
    for depth in (1, 2, 3):
        measured = np.linalg.eigvalsh(numeric_hessian(x, y, num_units, depth))
        predicted = np.sort(np.repeat(*shortcut_hessians.spectrum_at_zero(x, y, num_units, depth)))
        for index, pair in enumerate(zip(measured, predicted)):
            row = {"shortcut_depth": depth, "share": (index + 0.5) / len(measured)}
            rows.append(row | {"measured": float(pair[0]), "predicted": float(pair[1])})
    return rows


def condition_numbers_at_zero(
    seed: int = 0, dimension: int = 6, units: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
) -> list[dict]:
    """The condition number at zero against the number of units, n = 1 and n = 2, and the lower bound for n = 1."""
    x, y = _regression(seed, dimension)
    return [
        {
            "num_units": num_units,
            "one_shortcut": shortcut_hessians.condition_number_at_zero(x, y, num_units, 1),
            "two_shortcut": shortcut_hessians.condition_number_at_zero(x, y, num_units, 2),
            "lower_bound": shortcut_hessians.condition_number_lower_bound(x, y, num_units) if num_units > 1 else np.nan,
        }
        for num_units in units
    ]


def _positive(R: np.ndarray) -> np.ndarray:
    return R if np.linalg.det(R) > 0 else factorization.flip_label(R)


def _norm(R: np.ndarray, num_layers: int, method: str) -> float:
    """|||A|||, NaN where the method has no factorisation."""
    try:
        return linear_residual.max_spectral_norm(factorization.factorize(R, num_layers, method))
    except ValueError:
        return np.nan


def _unit_layers(rng: np.random.Generator, num_layers: int, dimension: int) -> np.ndarray:
    layers = rng.standard_normal((num_layers, dimension, dimension))
    return layers / np.linalg.norm(layers, 2, axis=(1, 2), keepdims=True)


def _regression(seed: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """Whitened x and noisy linear y [m, d], m = 20 d, as Li et al. use."""
    rng = np.random.default_rng(seed)
    x = np.linalg.qr(rng.standard_normal((20 * dimension, dimension)))[0] * np.sqrt(20 * dimension)
    return x, x @ rng.standard_normal((dimension, dimension)).T / 2 + 0.1 * rng.standard_normal(x.shape)


EXPERIMENTS = {
    "norms": norms_against_layers,
    "printed_construction": printed_construction,
    "gradient_ratios": gradient_ratios,
    "descent": descent_rates,
    "memorization": memorizing_networks,
    "spectra": spectra_at_zero,
    "condition_numbers": condition_numbers_at_zero,
}
