"""Checks of what Li et al. say about a figure: holds or does not hold, with the numbers.

The constants turn the paper's words into numbers. A claim is checked for those networks and depths for which the paper
makes it.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from shortcut_study.aggregation import Band, BestRate, along_loss, rows_of_architecture, run_along_loss, select
from shortcut_study.architectures import LABELS, TWO, Architecture

CONSTANT = 1.1  # "constant": largest over smallest mean below this
SAME = 3.0  # "roughly the same": ratio below this
NEAR_OPTIMAL = 1e-4  # "close to optimal": excess loss below this share of the lowest loss of a linear map
DEEP = 12  # "deep": this number of weight matrices or more
DRAMATIC = 0.02  # "drops dramatically": by this share of all eigenvalues or more
BEYOND = 1 / np.finfo(np.float64).eps  # what an infinite condition number counts as
CHANCE = 0.05  # p of a paired difference from which on it is not significant
ANSWERS = {True: "holds", False: "does not hold", None: "open"}  # by Finding.holds
NO_ANSWER = "not evaluated"  # at smoke size
NOTHING_SHARED = "the runs have no losses in common"


class Finding(NamedTuple):
    """A statement of the paper and whether the rows show it.

    Attributes:
      figure: The paper's number.
      claim: The statement.
      holds: None if the rows do not decide it.
      numbers: Those that decide it, in words.
      num_runs: The seeds whose runs decide it.
    """

    figure: str
    claim: str
    holds: bool | None
    numbers: str
    num_runs: int


def findings_table(findings: list[Finding], smoke_size: Collection[str] = ()) -> str:
    """Returns the findings as a Markdown table; those of the figures named in smoke_size get no answer."""
    lines = ["| figure | the paper says | here | numbers | n |", "|---|---|---|---|--:|"]
    for f in findings:
        answer = NO_ANSWER if f.figure in smoke_size else ANSWERS[f.holds]
        # A bar that is not escaped would end the cell of the table.
        lines.append(f"| {f.figure} | {f.claim} | {answer} | {f.numbers} | {f.num_runs} |".replace("|λ|", "\\|λ\\|"))
    return "\n".join(lines)


class Comparison(NamedTuple):
    """2-shortcut networks and another architecture along the losses that both pass.

    Attributes:
      grid: [p], log₁₀ of the losses, ascending.
      two, other: [p], means over the runs of the 2-shortcut networks and of the others, log₁₀ if asked for.
      differences: [n], mean of other − two over the losses that both runs of a seed pass, by seed.
      curves: [n, p], other − two on the grid, by seed; NaN if not both runs of a seed pass.
      ends: [n, 2], other − two at the lowest and at the highest loss that both runs of a seed pass.
    """

    grid: np.ndarray
    two: np.ndarray
    other: np.ndarray
    differences: np.ndarray
    curves: np.ndarray
    ends: np.ndarray

    @property
    def num_runs(self) -> int:
        """Returns the number of seeds of which both runs pass losses in common."""
        return len(self.differences)


def compare_along_loss(
    rows: list[dict], arch: Architecture, loss: str, name: str, log: bool = True
) -> Comparison | None:
    """Returns 2-shortcut networks beside another architecture along the loss; None if they pass no common loss.

    An infinite value counts as BEYOND: a run is not dropped because its condition number is infinite.
    """
    rows = [row | {name: BEYOND} if row[name] == np.inf else row for row in rows]
    two, other = (along_loss(rows_of_architecture(rows, a), loss, name, log) for a in (TWO, arch))
    grid = _common_losses(two, other)
    if grid is None:
        return None
    differences, curves, ends = [], [], []
    for seed in sorted({row["seed"] for row in rows}):
        of_seed = [rows_of_architecture(select(rows, seed=seed), a) for a in (TWO, arch)]
        runs = [along_loss(run, loss, name, log) for run in of_seed]
        shared = _common_losses(*runs)
        if shared is not None:
            differences.append(_difference(shared, *runs).mean())
            # From the runs' own points: on the grid of along_loss a value would be interpolated twice.
            at_ends = [np.interp(shared[[0, -1]], *run_along_loss(run, loss, name, log)) for run in of_seed]
            ends.append(at_ends[1] - at_ends[0])
            curves.append(_difference(grid, *runs))
    means = (np.interp(grid, band.x, band.mean) for band in (two, other))
    curves = np.array(curves).reshape(-1, len(grid))
    return Comparison(grid, *means, np.array(differences), curves, np.array(ends).reshape(-1, 2))


def _common_losses(two: Band, other: Band) -> np.ndarray | None:
    if not len(two.x) or not len(other.x) or max(two.x[0], other.x[0]) >= min(two.x[-1], other.x[-1]):
        return None
    return np.linspace(max(two.x[0], other.x[0]), min(two.x[-1], other.x[-1]), 40)


def _difference(grid: np.ndarray, two: Band, other: Band) -> np.ndarray:
    """Returns other − two at the losses of the grid; NaN if one of them does not pass."""
    means = [np.interp(grid, band.x, band.mean, left=np.nan, right=np.nan) for band in (two, other)]
    return means[1] - means[0]


def always_smaller(compared: Comparison) -> tuple[bool | None, str]:
    """Returns whether the means of 2-shortcut networks are smaller at all losses, and the p-value otherwise, in words.

    None if they are larger at some losses, but not significantly by a paired t-test of the differences averaged over
    these losses.
    """
    is_larger = compared.two >= compared.other
    if not is_larger.any():
        return True, ""
    curves = compared.curves[:, is_larger]
    # Seeds without any value there are dropped first, because nanmean warns of rows that are all NaN.
    differences = np.nanmean(curves[np.isfinite(curves).any(axis=1)], axis=1)
    p = p_value(differences)
    return (False if p < CHANCE and differences.mean() < 0 else None), f"; where it is not, p = {p:.2g}"


def paired(differences: np.ndarray) -> str:
    """Returns the p-value of paired differences [n] in words; empty if n is 1 or all are alike."""
    p = p_value(differences)
    return f"; paired over {len(differences)} seeds p = {p:.2g}" if 0 < p < 1 else ""


def p_value(differences: np.ndarray) -> float:
    """Returns the p-value of a two-sided t-test of paired differences [n]: 1 for n < 2, 0 if all are alike, not 0."""
    count = len(differences)
    if count < 2 or not differences.any():
        return 1.0
    spread = differences.std(ddof=1)
    return float(2 * stdtr(count - 1, -abs(differences.mean()) / (spread / np.sqrt(count)))) if spread else 0.0


def log_ratios(best: BestRate, other: BestRate) -> np.ndarray:
    """Returns log₁₀ of the other's final loss over the first's, by seed, of those that have a seed in common."""
    shared = [seed for seed in best.losses if seed in other.losses]
    return np.array([np.log10(other.losses[seed] / best.losses[seed]) for seed in shared])


def in_both(first: dict, second: dict, least_depth: int = 0) -> dict:
    """Returns depth -> (first's, second's) of the depths that both have, from least_depth on."""
    return {depth: (first[depth], second[depth]) for depth in first if depth in second and depth >= least_depth}


def all_of(answers: list[bool]) -> bool | None:
    """Returns whether all answers are true; None if there is none."""
    return bool(all(answers)) if answers else None


def falls(values: np.ndarray) -> bool | None:
    """Returns whether every value is less than the one before; None for fewer than two."""
    return all_of([b < a for a, b in zip(values, values[1:])])


def grows(values: np.ndarray, bounds: np.ndarray) -> bool | None:
    """Returns whether every value is more than the one before, as far as that is known; None if it never is.

    Args:
      values: [n], infinite if a value is too large to be known.
      bounds: [n], a lower bound of such a value; elsewhere the value.
    """
    pairs = zip(values, values[1:], bounds[1:])
    return all_of([bool(bound > a) for a, b, bound in pairs if bound > a or b < np.inf])


def slope(depths: np.ndarray, logarithms: np.ndarray) -> float:
    """Returns the power of depth that fits log₁₀ values best; NaN for fewer than two."""
    return float(np.polyfit(np.log10(depths), logarithms, 1)[0]) if len(depths) > 1 else np.nan


def power(depths: np.ndarray, logarithms: np.ndarray) -> str:
    """Returns `slope` in words; empty for fewer than two."""
    return f" ∝ depth^{slope(depths, logarithms):.2f}" if len(depths) > 1 else ""


def series(depths: np.ndarray, values: np.ndarray) -> str:
    """Returns the finite ones of values by depth in words."""
    return ", ".join(f"{value:.3g} (depth {depth:.0f})" for depth, value in zip(depths, values) if np.isfinite(value))


def depth_note(text: str, depths: Collection[int]) -> str:
    """Returns depths in words, to append to others; empty if there are none."""
    return f"; {text} at depth {', '.join(f'{depth:.0f}' for depth in depths)}" if depths else ""


def diverged_runs(rows: list[dict], *architectures: Architecture) -> str:
    """Returns in words how many runs of these architectures diverged; empty if none did."""
    words = ""
    for arch in architectures:
        runs = rows_of_architecture(rows, arch)
        seeds, lost = ({row["seed"] for row in some} for some in (runs, select(runs, status="diverged")))
        words += f"; {len(lost)} of {len(seeds)} runs of {LABELS[arch]} diverged" if lost else ""
    return words
