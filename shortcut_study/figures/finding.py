"""What Li et al. say they see in a figure, as checks on our rows: holds or does not hold, with the numbers.

The constants turn the paper's words into numbers. A claim is one that the paper makes, of the networks and depths of
which it makes it.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from shortcut_study.kinds import LABELS, TWO, Kind
from shortcut_study.rows import BestRate, along_loss, rows_of_kind, select

CONSTANT = 1.1  # "constant": largest over smallest mean below this
SAME = 3.0  # "roughly the same": ratio below this
NEAR_OPTIMAL = 1e-4  # "close to optimal": excess loss below this share of the lowest loss of a linear map
DEEP = 12  # "deep": so many weight matrices or more
DRAMATIC = 0.02  # "drops dramatically": by this share of all eigenvalues or more
BEYOND = 1 / np.finfo(np.float64).eps  # what an infinite condition number counts as
NOTHING_SHARED = "the runs have no losses in common"


class Finding(NamedTuple):
    """A statement of the paper and whether our rows show it.

    Attributes:
      figure: The paper's number.
      claim: The statement.
      holds: None where the rows cannot tell.
      numbers: What it is judged by.
      num_runs: The seeds whose runs it is judged by.
    """

    figure: str
    claim: str
    holds: bool | None
    numbers: str
    num_runs: int


def findings_table(findings: list[Finding], toys: Collection[str] = ()) -> str:
    """Returns the findings as a Markdown table; those of figures of toy size, by name, are not judged."""
    words = {True: "holds", False: "does not hold", None: "cannot be told"}
    lines = ["| figure | the paper says | on our data | numbers | n |", "|---|---|---|---|--:|"]
    for f in findings:
        answer = "not judged" if f.figure in toys else words[f.holds]
        lines.append(f"| {f.figure} | {f.claim} | {answer} | {f.numbers} | {f.num_runs} |".replace("|λ|", "\\|λ\\|"))
    return "\n".join(lines)


class Comparison(NamedTuple):
    """Two kinds of networks along the losses that both pass.

    Attributes:
      grid: [p], log₁₀ of the losses, ascending.
      two, other: [p], means over the runs of the 2-shortcut networks and of the others, log₁₀ if asked for.
      differences: [n], mean of other − two over the losses that both runs of a seed pass, by seed.
    """

    grid: np.ndarray
    two: np.ndarray
    other: np.ndarray
    differences: np.ndarray

    @property
    def num_runs(self) -> int:
        """Returns the number of seeds of which both runs pass losses in common."""
        return len(self.differences)


def compare_along_loss(rows: list[dict], kind: Kind, loss: str, name: str, log: bool = True) -> Comparison | None:
    """Returns 2-shortcut networks beside another kind along the loss; None where they pass no loss in common.

    An infinite value counts as BEYOND: a run whose condition number is infinite is no reason to leave it out.
    """
    rows = [row | {name: BEYOND} if row[name] == np.inf else row for row in rows]
    pair = _common(rows_of_kind(rows, TWO), rows_of_kind(rows, kind), loss, name, log)
    if pair is None:
        return None
    by_seed = []
    for seed in sorted({row["seed"] for row in rows}):
        of_seed = (rows_of_kind(select(rows, seed=seed), k) for k in (TWO, kind))
        if found := _common(*of_seed, loss, name, log):
            by_seed.append((found[2] - found[1]).mean())
    return Comparison(*pair, np.array(by_seed))


def _common(ours: list[dict], others: list[dict], loss: str, name: str, log: bool) -> tuple | None:
    two, other = (along_loss(rows, loss, name, log) for rows in (ours, others))
    if not len(two.x) or not len(other.x) or max(two.x[0], other.x[0]) >= min(two.x[-1], other.x[-1]):
        return None
    grid = np.linspace(max(two.x[0], other.x[0]), min(two.x[-1], other.x[-1]), 40)
    return grid, np.interp(grid, two.x, two.mean), np.interp(grid, other.x, other.mean)


def paired(differences: np.ndarray) -> str:
    """Returns the p-value of a two-sided t-test of paired differences [n] in words; empty where n is 1."""
    count = len(differences)
    spread = differences.std(ddof=1) if count > 1 else 0.0
    if spread == 0:
        return ""
    t = differences.mean() / (spread / np.sqrt(count))
    return f"; paired over {count} seeds p = {2 * stdtr(count - 1, -abs(t)):.2g}"


def paired_losses(ours: BestRate, other: BestRate) -> str:
    """Returns `paired` of the log₁₀ of final losses that have a seed in common."""
    shared = [seed for seed in ours.losses if seed in other.losses]
    return paired(np.array([np.log10(other.losses[seed] / ours.losses[seed]) for seed in shared]))


def in_both(others: dict, ours: dict, least_depth: int = 0) -> dict:
    """Returns depth -> (other, ours) of the depths that both have, from least_depth on."""
    return {depth: (others[depth], ours[depth]) for depth in others if depth in ours and depth >= least_depth}


def all_of(answers: list[bool]) -> bool | None:
    """Returns whether all answers are true; None where there is none."""
    return bool(all(answers)) if answers else None


def falls(values: np.ndarray) -> bool | None:
    """Returns whether every value is less than the one before; None for fewer than two."""
    return all_of([b < a for a, b in zip(values, values[1:])])


def grows(values: np.ndarray, bounds: np.ndarray) -> bool | None:
    """Returns whether every value is more than the one before, as far as that can be told; None where it never can.

    Args:
      values: [n], infinite where a value is too large to be known.
      bounds: [n], what such a value is above; elsewhere the value.
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


def named(what: str, depths: Collection[int]) -> str:
    """Returns depths in words, to follow on others; empty where there is none."""
    return f"; {what} at depth {', '.join(f'{depth:.0f}' for depth in depths)}" if depths else ""


def diverged_runs(rows: list[dict], *kinds: Kind) -> str:
    """Returns in words how many runs of these kinds diverged; empty where none did."""
    seeds = {kind: {row["seed"] for row in rows_of_kind(rows, kind)} for kind in kinds}
    lost = {kind: {row["seed"] for row in select(rows_of_kind(rows, kind), status="diverged")} for kind in kinds}
    return "".join(f"; {len(lost[k])} of {len(seeds[k])} runs of {label(k)} diverged" for k in kinds if lost[k])


def label(kind: Kind) -> str:
    """Returns the name of a kind of network."""
    return LABELS[kind]
