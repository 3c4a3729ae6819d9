"""shortcut_study.sweep: what is computed when, what is saved, and that a killed sweep loses one unit at most."""

import io

import pytest
from tqdm import tqdm

from identity_matters.runs.tables import read_rows, write_metrics
from shortcut_study.sweep import COLUMNS, Unit, run_sweep

ALL = [("norms", 2), ("norms", 4), ("single_run", 4), ("spectrum", 2)]


class Sweep:
    """A few units, their log, and what was saved, to a file as launch.shortcut_study does."""

    def __init__(self, path, names=ALL, fails_at=None):
        self.path, self.computed, self.saved, self.fails_at = str(path), [], [], fails_at
        self.units = [
            Unit({"experiment": name, "depth": depth}, depth / 2, self._compute(name, depth)) for name, depth in names
        ]
        self.bar = tqdm(total=sum(unit.cost for unit in self.units), file=io.StringIO())

    def _compute(self, name, depth):
        def compute(progress):
            progress(0.25)
            if (name, depth) == self.fails_at:
                raise KeyboardInterrupt
            progress(0.25)
            self.computed.append((name, depth))
            # A unit has a seed in its key, or rows of several seeds.
            return [{"seed": seed, "epoch": 5, "loss": depth / 3, "status": "done"} for seed in range(depth)]

        return compute

    def _save(self, rows):
        self.saved.append([(row["experiment"], row["depth"], row["seed"]) for row in rows])
        write_metrics(self.path, rows)

    def run(self):
        return run_sweep(self.units, read_rows(self.path), self._save, self.bar)


def without_seconds(path):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_rows(path)]


def test_units_are_computed_in_order_and_saved_one_by_one(tmp_path):
    sweep = Sweep(tmp_path / "rows.csv")
    rows = sweep.run()
    assert sweep.computed == ALL
    expected = [[(name, depth, seed) for name, depth in ALL[: i + 1] for seed in range(depth)] for i in range(len(ALL))]
    assert sweep.saved == expected
    assert [(row["experiment"], row["depth"], row["seed"]) for row in rows] == expected[-1]


def test_every_row_has_all_columns_and_the_seconds_of_its_unit(tmp_path):
    rows = Sweep(tmp_path / "rows.csv").run()
    assert all(tuple(row) == COLUMNS for row in rows)
    assert rows[0]["norm"] == "" and rows[0]["loss"] == 2 / 3 and rows[0]["seed"] == 0
    assert all(row["seconds"] >= 0 for row in rows)
    assert all(len({row["seconds"] for row in rows if (row["experiment"], row["depth"]) == unit}) == 1 for unit in ALL)


def test_the_bar_counts_cost_and_ends_at_its_total(tmp_path):
    sweep = Sweep(tmp_path / "rows.csv")
    sweep.run()
    assert sweep.bar.n == pytest.approx(sweep.bar.total) == pytest.approx(6)


@pytest.mark.parametrize("fails_at", ALL)
def test_a_killed_sweep_continues_to_the_same_rows_and_computes_nothing_twice(tmp_path, fails_at):
    whole = Sweep(tmp_path / "whole.csv")
    whole.run()
    killed = Sweep(tmp_path / "rows.csv", fails_at=fails_at)
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    kept = read_rows(tmp_path / "rows.csv")
    resumed = Sweep(tmp_path / "rows.csv")
    resumed.run()
    assert killed.computed + resumed.computed == ALL
    assert without_seconds(resumed.path) == without_seconds(whole.path)
    assert read_rows(resumed.path)[: len(kept)] == kept  # seconds and all
    assert resumed.bar.n == pytest.approx(resumed.bar.total)


def test_a_finished_sweep_computes_and_saves_nothing(tmp_path):
    Sweep(tmp_path / "rows.csv").run()
    again = Sweep(tmp_path / "rows.csv")
    rows = again.run()
    assert again.computed == again.saved == [] and rows == read_rows(again.path)
    assert again.bar.n == pytest.approx(again.bar.total)


def test_a_unit_missing_in_the_middle_is_computed_and_takes_its_place(tmp_path):
    whole = Sweep(tmp_path / "whole.csv")
    whole.run()
    Sweep(tmp_path / "rows.csv", names=[ALL[3], ALL[0]]).run()
    rest = Sweep(tmp_path / "rows.csv")
    rest.run()
    assert rest.computed == ALL[1:3]
    assert without_seconds(rest.path) == without_seconds(whole.path)


def test_rows_of_units_that_are_not_asked_for_are_dropped(tmp_path):
    Sweep(tmp_path / "rows.csv").run()
    fewer = Sweep(tmp_path / "rows.csv", names=ALL[1:2])
    rows = fewer.run()
    assert {(row["experiment"], row["depth"]) for row in rows} == {ALL[1]} and fewer.computed == []


def test_units_are_told_apart_by_every_column_of_their_keys(tmp_path):
    keys = [
        {"experiment": "norms", "depth": 2, "seed": seed, "activations": a}
        for seed in (0, 1)
        for a in ("linear", "relu_mid")
    ]
    done = []

    def unit(key):
        return Unit(key, 1.0, lambda _: done.append(key) or [{"loss": 1.0}])

    path = str(tmp_path / "rows.csv")
    for count in range(1, 5):
        with tqdm(total=count, file=io.StringIO()) as bar:
            run_sweep([unit(key) for key in keys[:count]], read_rows(path), lambda rows: write_metrics(path, rows), bar)
    assert done == keys


def test_the_bar_names_the_unit_in_hand(tmp_path):
    sweep, names = Sweep(tmp_path / "rows.csv"), []
    sweep.bar.set_description = names.append
    sweep.run()
    assert names == ["norms 2", "norms 4", "single_run 4", "spectrum 2"]
