"""Statistics over the rows of results.csv, for the figures and their findings."""

from typing import NamedTuple

import numpy as np

from shortcut_study.architectures import LABELS, Architecture
from theory.arrays import column

ROUNDING = 1e-20  # excess losses below this are rounding
SAME_AT_ALL_RATES = 0.01  # losses that differ by less at every learning rate: the network learned nothing
INSENSITIVE = 0.01  # a final loss that a perturbed start changes by a smaller share


def select(rows: list[dict], **columns: object) -> list[dict]:
    """Returns the rows with these values in these columns."""
    return [row for row in rows if all(row[name] == value for name, value in columns.items())]


def rows_of_architecture(rows: list[dict], arch: Architecture) -> list[dict]:
    """Returns the rows of one architecture."""
    return select(rows, shortcut_depth=arch.shortcut_depth, initialisation=arch.initialisation)


def architectures_in(rows: list[dict]) -> list[Architecture]:
    """Returns the architectures of the rows, in the order of LABELS."""
    present = {(row["shortcut_depth"], row["initialisation"]) for row in rows}
    return [arch for arch in LABELS if arch in present]


def depths_in(rows: list[dict]) -> list[int]:
    """Returns the depths of the rows, ascending."""
    return sorted({row["depth"] for row in rows})


def num_seeds(rows: list[dict]) -> int:
    """Returns the number of seeds with a run in the rows that has not diverged."""
    return len({row["seed"] for row in rows if row.get("status") != "diverged"})


def done_rows(rows: list[dict]) -> list[dict]:
    """Returns the rows of runs that had not diverged."""
    return [row for row in rows if row["status"] == "done"]


class Band(NamedTuple):
    """Mean and standard deviation over seeds at places x; std is 0 for one seed.

    Attributes:
      x, mean, std: [p].
      count: [p], the number of seeds in the mean.
    """

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    count: np.ndarray


def over_seeds(rows: list[dict], x: str, y: str, log: bool = True) -> Band:
    """Returns column y (log₁₀ y if log) by column x over the rows with a finite y."""
    measured = [row for row in rows if is_number(row[y])]
    places = np.unique(column(measured, x)) if measured else np.empty(0)
    values = [column(select(measured, **{x: place}), y) for place in places]
    values = [np.log10(value) if log else value for value in values]
    summary = [[v.mean(), v.std(ddof=1) if len(v) > 1 else 0.0, len(v)] for v in values]
    return Band(places, *np.array(summary).reshape(-1, 3).T)


def along_loss(
    rows: list[dict], loss: str, y: str, log: bool = True, num_points: int = 200, largest_gap: float = np.inf
) -> Band:
    """Returns y (or log₁₀ y) against log₁₀ of the loss, interpolated linearly in each run, as the paper does.

    A run counts only between its lowest and highest loss, not next to a value that is not finite, and not before a fall
    in loss by more than a factor of largest_gap; a point needs half of all runs, those included that have fewer than
    two losses.
    """
    seeds = sorted({row["seed"] for row in rows})
    runs = [run_along_loss(select(rows, seed=seed), loss, y, log) for seed in seeds]
    runs = [run for run in runs if run]
    if not runs:
        return Band(*np.empty((4, 0)))
    grid = np.linspace(min(losses[0] for losses, _ in runs), max(losses[-1] for losses, _ in runs), num_points)
    values = np.array([_interpolated(grid, *run, np.log10(largest_gap)) for run in runs])
    count = np.isfinite(values).sum(0)
    kept = 2 * count >= len(seeds)
    mean = np.nanmean(values[:, kept], axis=0)
    squares = np.nansum((values[:, kept] - mean) ** 2, axis=0)
    return Band(grid[kept], mean, np.sqrt(squares / np.maximum(count[kept] - 1, 1)), count[kept])


def _interpolated(grid: np.ndarray, losses: np.ndarray, values: np.ndarray, largest_gap: float) -> np.ndarray:
    """Returns a run's values at the points of a grid, NaN outside of its losses and in gaps between them."""
    interpolated = np.interp(grid, losses, values, left=np.nan, right=np.nan)
    above = np.clip(np.searchsorted(losses, grid), 1, len(losses) - 1)  # of the pair around each point
    is_in_gap = (losses[above] - losses[above - 1] > largest_gap) & (grid > losses[above - 1]) & (grid < losses[above])
    return np.where(is_in_gap, np.nan, interpolated)


def run_along_loss(rows: list[dict], loss: str, y: str, log: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """One run's log₁₀ losses, ascending, and its values there, NaN for infinite ones; None for fewer than two."""
    measured = [row for row in rows if is_number(row[loss]) and row[y] != ""]
    losses = np.log10(column(measured, loss))
    values = column(measured, y)
    values[~np.isfinite(values)] = np.nan  # no line is drawn past it
    losses, first = np.unique(losses, return_index=True)
    if len(losses) < 2:
        return None
    return losses, np.log10(np.maximum(values, 1e-300))[first] if log else values[first]


def is_number(value: object) -> bool:
    """Returns whether a field holds a finite number: it is neither empty nor a value after divergence."""
    return value != "" and bool(np.isfinite(value))


class BestRate(NamedTuple):
    """The learning rate of the lowest mean final loss (the highest of equals), and that loss over the seeds.

    Attributes:
      depth: int.
      rate: float. NaN if a seed diverged at every rate.
      mean: The mean of the final losses; infinite if a seed diverged at every rate.
      log_std: The standard deviation of their log₁₀.
      losses: The final losses, by seed.
      is_bound: Whether a seed was given up at this rate. A higher rate's loss, assumed to be no higher than its own
        (figure_10.descend_pruned), replaces it, so the mean is a lower bound.
      learned: Whether the final loss depends on the rate at all; if not, the rate means nothing (Li et al.,
        captions of Figures 9 and 10).
    """

    depth: int
    rate: float
    mean: float
    log_std: float
    losses: dict[int, float]
    is_bound: bool = False
    learned: bool = False


def best_rates(rows: list[dict], loss: str) -> dict[int, BestRate]:
    """Returns the best learning rate by depth, for rows of one architecture.

    A rate at which a seed diverges is excluded. Losses are at least ROUNDING.
    """
    return {depth: _best_rate(depth, select(rows, depth=depth), loss) for depth in depths_in(rows)}


def _best_rate(depth: int, rows: list[dict], loss: str) -> BestRate:
    candidates = []
    for rate, rows_at_rate in _surviving_rates(rows).items():
        losses = np.maximum(column(rows_at_rate, loss), ROUNDING)
        log_std = np.log10(losses).std(ddof=1) if len(losses) > 1 else 0.0
        by_seed = dict(zip((row["seed"] for row in rows_at_rate), losses))
        is_bound = any(row["learning_rate"] != rate for row in rows_at_rate)
        candidates.append(BestRate(depth, rate, float(losses.mean()), log_std, by_seed, is_bound))
    if not candidates:
        return BestRate(depth, np.nan, np.inf, 0.0, {})
    final = [candidate.mean for candidate in candidates if not candidate.is_bound]
    learned = len(final) < 3 or max(final) > (1 + SAME_AT_ALL_RATES) * min(final)
    return min(candidates, key=lambda best: (best.mean, -best.rate))._replace(learned=learned)


def _surviving_rates(rows: list[dict]) -> dict[float, list[dict]]:
    """The rows by learning rate, without rates at which a seed diverged.

    A run that was given up is replaced by that of the rate which bounds it (figure_10.descend_pruned).
    """
    finished = {(row["seed"], f"bounded by {row['learning_rate']:g}"): row for row in done_rows(rows)}
    rates = {rate: select(rows, learning_rate=rate) for rate in sorted({row["learning_rate"] for row in rows})}
    survivors = {
        rate: [row if row["status"] == "done" else finished.get((row["seed"], row["status"])) for row in rows_at_rate]
        for rate, rows_at_rate in rates.items()
    }
    return {rate: rows_at_rate for rate, rows_at_rate in survivors.items() if all(rows_at_rate)}


def insensitive_rates(rows: list[dict]) -> dict[int, float]:
    """Returns, by depth, the highest learning rate up to which no seed's final loss depends on rounding.

    A seed's is the highest at which its final loss and that of a start perturbed by a share of 1e-12 differ by less
    than INSENSITIVE; lower rates were not run again. A depth at which a seed has none is omitted.
    """
    insensitive = {}
    for depth in depths_in(rows):
        by_seed = {row["seed"]: [] for row in select(rows, depth=depth)}
        for row in select(rows, depth=depth):
            if _is_insensitive(row):
                by_seed[row["seed"]].append(row["learning_rate"])
        if all(by_seed.values()):
            insensitive[depth] = min(map(max, by_seed.values()))
    return insensitive


def _is_insensitive(row: dict) -> bool:
    perturbed = row["perturbed_loss"]
    return is_number(perturbed) and abs(perturbed - row["loss"]) < INSENSITIVE * row["loss"]
