"""Sweeps that can be interrupted: units of work, each with the rows it gives, saved one by one.

A row is a dict with the columns of COLUMNS; results.csv holds the rows of all units in the order
of the sweep, whatever the order in which they were computed.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

COLUMNS = (
    "experiment", "shortcut_depth", "initialisation", "activations", "batch_norm", "depth", "seed", "learning_rate",
    "epoch", "loss", "excess_loss", "condition_number", "max_abs", "p10_abs", "p10_low", "p10_high", "index",
    "gradient_norm", "norm", "status", "seconds",
)  # fmt: skip


class Unit(NamedTuple):
    """A piece of a sweep that is computed, and kept, as a whole.

    Attributes:
      key: The columns by which its rows are known from those of other units.
      cost: Seconds it takes on 2 cores, roughly: what the progress bar counts.
      compute: Takes a function to be called with the share of the work done since the last call; returns the rows.
    """

    key: dict
    cost: float
    compute: Callable[[Callable[[float], None]], list[dict]]


def run_sweep(units: list[Unit], rows: list[dict], save: Callable[[list[dict]], None], bar) -> list[dict]:
    """Computes the units that no row is of, saving after each.

    Args:
      units: In the order of the table.
      rows: Those of an earlier run; of units that are not asked for they are dropped.
      save: Called with all rows so far.
      bar: A tqdm bar, moved by the cost of what is done.

    Returns:
      The rows of all units, in their order.
    """
    found = [[row for row in rows if _is_of(row, unit.key)] for unit in units]
    bar.n = bar.initial = sum(unit.cost for unit, kept in zip(units, found) if kept)  # not of this call's rate
    bar.refresh()
    for i, unit in enumerate(units):
        if found[i]:
            continue
        bar.set_description(" ".join(map(str, unit.key.values())))
        done = bar.n
        start = time.perf_counter()
        computed = unit.compute(lambda share, cost=unit.cost: bar.update(share * cost))
        seconds = time.perf_counter() - start
        found[i] = [{column: "" for column in COLUMNS} | unit.key | row | {"seconds": seconds} for row in computed]
        bar.update(done + unit.cost - bar.n)
        save([row for kept in found for row in kept])
    return [row for kept in found for row in kept]


def _is_of(row: dict, key: dict) -> bool:
    return all(row.get(column) == value for column, value in key.items())
