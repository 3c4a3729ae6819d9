"""The spectrum of a Hessian as rows of results.csv and density.csv, and its figure, drawn from them alone."""

import numpy as np
from matplotlib.figure import Figure

from shortcut_study.curvature.lanczos import Ritz
from shortcut_study.curvature.quadrature import Density, Quadrature, extreme_eigenvalues

NUM_MARKED = 3  # eigenvalues at either end


def ritz_rows(vector: int, ritz: Ritz) -> list[dict]:
    """Returns one row a Ritz value of a starting vector: vector, eigenvalue, weight, error_bound, rounding."""
    names = ("eigenvalue", "weight", "error_bound")
    columns = zip(ritz.values.tolist(), ritz.weights.tolist(), ritz.error_bounds.tolist())
    return [{"vector": vector} | dict(zip(names, row)) | {"rounding": ritz.rounding} for row in columns]


def density_rows(density: Density) -> list[dict]:
    """Returns one row a point of the grid: eigenvalue, density, standard_error."""
    return [
        {"eigenvalue": float(value), "density": float(height), "standard_error": float(error)}
        for value, height, error in zip(*density)
    ]


def quadrature_from_rows(rows: list[dict]) -> Quadrature:
    """Returns what `ritz_rows` of all starting vectors says; an earlier version's rows are without rounding."""
    columns = [
        np.array([float(row[name]) for row in rows]).reshape(len({row["vector"] for row in rows}), -1)
        for name in ("eigenvalue", "weight", "error_bound")
    ]
    return Quadrature(*columns, rounding=max(float(row.get("rounding", columns[2].min())) for row in rows))


def spectrum_figure(rows: list[dict], density: list[dict], title: str = "") -> Figure:
    """Draws the density of the eigenvalues on a logarithmic axis; triangles mark the extreme ones, with error bounds.

    Args:
      rows, density: as from `ritz_rows` and `density_rows`, or read from their CSV files.
      title: str.
    """
    grid, heights, errors = (
        np.array([float(row[name]) for row in density]) for name in ("eigenvalue", "density", "standard_error")
    )
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(grid, heights, color="tab:blue", label="density")
    axes.fill_between(grid, heights - errors, heights + errors, color="tab:blue", alpha=0.3)
    quadrature, lowest = quadrature_from_rows(rows), heights.max()
    for largest, name, colour in ((True, "largest", "tab:red"), (False, "smallest", "tab:green")):
        values, bounds = extreme_eigenvalues(quadrature, NUM_MARKED, largest)
        at = np.interp(values, grid, heights)
        axes.errorbar(values, at, xerr=bounds, fmt="v", ms=6, capsize=3, color=colour, label=f"{name}: {values[0]:.4g}")
        lowest = min(lowest, at.min())
    axes.axvline(0, color="0.6", linewidth=1, linestyle=":")
    axes.set(xlabel="eigenvalue λ of the Hessian", ylabel="density", yscale="log")
    axes.set_title(title, parse_math=False)
    axes.set_ylim(0.1 * lowest, 3 * heights.max())
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
