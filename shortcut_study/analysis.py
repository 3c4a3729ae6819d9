"""What figures and findings both read off the rows of results.csv."""

from typing import NamedTuple

import numpy as np

from theory.figures import column

LABELS = {
    (0, "xavier"): "Xavier, no shortcuts",
    (0, "orthogonal"): "orthogonal, no shortcuts",
    (1, "zero"): "1-shortcut",
    (2, "zero"): "2-shortcut",
    (3, "zero"): "3-shortcut",
}


def select(rows, **columns) -> list[dict]:
    """The rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in columns.items())]


def kinds(rows) -> list[tuple[int, str]]:
    """(shortcut_depth, initialisation) of the rows, in the order of LABELS."""
    present = {(row["shortcut_depth"], row["initialisation"]) for row in rows}
    return [kind for kind in LABELS if kind in present]


def of_kind(rows, kind) -> list[dict]:
    return select(rows, shortcut_depth=kind[0], initialisation=kind[1])


def depths(rows) -> list[int]:
    return sorted({row["depth"] for row in rows})


class Band(NamedTuple):
    """Mean and standard deviation over seeds at places x; std is 0 for one seed."""

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    count: np.ndarray


def over_seeds(rows, x: str, y: str, log: bool = True) -> Band:
    """y by x over the rows with a finite y; of log₁₀ y if log."""
    measured = [row for row in rows if np.isfinite(float(row[y] or "nan"))]
    places = np.unique(column(measured, x)) if measured else np.empty(0)
    values = [column([row for row in measured if row[x] == place], y) for place in places]
    values = [np.log10(of_place) if log else of_place for of_place in values]
    return Band(
        places, *np.array([[v.mean(), v.std(ddof=1) if len(v) > 1 else 0.0, len(v)] for v in values]).reshape(-1, 3).T
    )


def along_loss(rows, loss: str, y: str, log: bool = True, num_points: int = 200) -> Band:
    """y (or log₁₀ y) against log₁₀ of the loss, interpolated linearly in each run, as the paper does; mean over runs.

    A run counts only between its lowest and highest loss; a point needs half of the runs.
    """
    runs = []
    for seed in sorted({row["seed"] for row in rows}):
        of_seed = [row for row in select(rows, seed=seed) if _is_number(row[loss]) and _is_number(row[y])]
        losses, values = np.log10(column(of_seed, loss)), column(of_seed, y)
        losses, first = np.unique(losses, return_index=True)
        if len(losses) > 1:
            runs.append((losses, np.log10(np.maximum(values, 1e-300))[first] if log else values[first]))
    if not runs:
        return Band(*np.empty((4, 0)))
    grid = np.linspace(min(losses[0] for losses, _ in runs), max(losses[-1] for losses, _ in runs), num_points)
    values = np.array([np.interp(grid, *run, left=np.nan, right=np.nan) for run in runs])
    count = np.isfinite(values).sum(0)
    kept = 2 * count >= len(runs)
    mean = np.nanmean(values[:, kept], axis=0)
    squares = np.nansum((values[:, kept] - mean) ** 2, axis=0)
    return Band(grid[kept], mean, np.sqrt(squares / np.maximum(count[kept] - 1, 1)), count[kept])


ROUNDING = 1e-20  # excess losses below this are rounding


def _is_number(value) -> bool:
    """Not the empty field of a CSV file, nor what comes after a divergence."""
    return value != "" and np.isfinite(value)


class BestRate(NamedTuple):
    """The learning rate of the lowest mean final loss, the highest of equals, and that loss over the seeds."""

    depth: int
    rate: float
    mean: float
    std: float
    count: int


def best_rates(rows, loss: str) -> list[BestRate]:
    """By depth. A rate at which a seed diverges is out; a depth where all are is left out. Losses are at least ROUNDING."""
    found = []
    for depth in depths(rows):
        of_depth = select(rows, depth=depth)
        candidates = []
        for rate in sorted({row["learning_rate"] for row in of_depth}):
            of_rate = select(of_depth, learning_rate=rate)
            if all(row["status"] == "done" for row in of_rate):
                losses = np.maximum(column(of_rate, loss), ROUNDING)
                spread = losses.std(ddof=1) if len(losses) > 1 else 0.0
                candidates.append(BestRate(depth, rate, losses.mean(), spread, len(losses)))
        if candidates:
            found.append(min(candidates, key=lambda best: (best.mean, -best.rate)))
    return found
