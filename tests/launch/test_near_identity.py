"""launch.near_identity: what it prints and writes; test_experiment.py continues it."""

import csv
import itertools
import json
import re
import shutil
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from begun import edit
from launching import config_of

from identity_matters.runs.tables import read_rows, write_metrics
from launch import near_identity, trained_run
from launch.near_identity import BLOCKS, REMOVED, removable, smallest_first


def test_it_prints_a_line_a_block_and_draws(tiny_blocks):
    run_dir, _, out = tiny_blocks
    assert re.search(r"^measured in \d+ seconds$", out, re.M)
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["stage1_block1", "stage2_block1"]
    assert "branch" in out and (run_dir / "blocks.png").stat().st_size > 10_000
    rows, removed = (read_rows(str(run_dir / name)) for name in ("results.csv", "removed.csv"))
    assert [row["block"] for row in rows] == ["stage1_block1", "stage2_block1"]
    assert [row["num_removed"] for row in removed] == [0, 1]
    smallest = min(rows, key=lambda row: row["ratio"])
    assert removed[1]["last"] == smallest["block"] and removed[1]["error"] == smallest["error_without"]
    contents = json.loads((run_dir / "config.json").read_text())
    assert contents["num_examples"] == 40 and re.fullmatch("[0-9a-f]{16}", contents[trained_run.DIGEST])


def test_how_many_blocks_can_be_removed_is_said_in_words_where_it_is_none_one_or_several():
    def removed(*errors):
        return [{"num_removed": k, "error": error, "operations": 1 - k / 10} for k, error in enumerate(errors)]

    assert removable(removed(0.05)) == "error 5.00%"
    assert removable(removed(0.05, 0.07, 0.05)) == (
        "error 5.00%; 7.00% without the smallest branch, so none can be removed"
    )
    assert "20.99% without the smallest of 2 branches" in removable(removed(0.2, 0.2099))  # a point or less
    assert "so none can be removed" in removable(removed(0.2, 0.2101))
    assert "; 5.50% without the smallest of 3 branches, with 90% of" in removable(removed(0.05, 0.055, 0.07))
    assert "; 5.70% without the 2 smallest of 3 branches, with 80% of" in removable(removed(0.05, 0.055, 0.057))


def test_other_weights_are_refused(launch, tiny_blocks, tmp_path):
    run_dir, flags, _ = tiny_blocks
    copy = shutil.copytree(run_dir, tmp_path / "blocks")
    edit(copy, **{trained_run.DIGEST: "0"})
    code, _, err = launch("near_identity", f"--run_dir={copy}", *flags)
    assert code == 1 and "was computed for other weights" in err


def with_cell(column, value):
    """Edits a table: the first row's cell of a column becomes the value; None removes the column."""

    def change(rows):
        k = rows[0].index(column)
        if value is None:
            return [row[:k] + row[k + 1 :] for row in rows]
        rows[1][k] = value
        return rows

    return change


@pytest.mark.parametrize("column, value, is_computed_on", [
    ("ratio", "x", True), ("ratio", None, True),  # which the job of removed.csv reads
    ("ratio", None, False), ("active", "x", False), ("num_removed", None, False), ("error", "nan", False),
    ("operations", None, False),
])  # fmt: skip
def test_a_run_does_not_go_on_from_an_edited_table(launch, tiny_blocks, tmp_path, column, value, is_computed_on):
    run_dir, flags, _ = tiny_blocks
    run = shutil.copytree(run_dir, tmp_path / "blocks")
    name = BLOCKS if column in ("ratio", "active") else REMOVED
    if is_computed_on:
        (run / REMOVED).unlink()
    rows = list(csv.reader((run / name).open()))
    with (run / name).open("w") as file:
        csv.writer(file, lineterminator="\n").writerows(with_cell(column, value)(rows))
    code, _, err = launch("near_identity", f"--run_dir={run}", *flags)
    assert (code, "Traceback" in err) == (1, True) and "cannot use the rows of" in err.splitlines()[-1], err
    assert str(run) in err.splitlines()[-1]


def test_blocks_are_removed_by_their_ratios_whatever_else_the_table_holds(tmp_path):
    ratios = {"a": 0.5, "b": np.nan, "other": 0.1, "c": 0.3}
    write_metrics(str(tmp_path / BLOCKS), [{"block": name, "ratio": ratio} for name, ratio in ratios.items()])
    assert smallest_first(str(tmp_path / BLOCKS), ["a", "b", "c"]) == ["c", "a", "b"]


def test_without_the_errors(launch, tiny_run, tmp_path):
    flags = f"--saved_run={tiny_run}", f"--run_dir={tmp_path / 'blocks'}", "--examples=20", "--noablate", "--at_step=0"
    code, out, err = launch("near_identity", *flags)
    assert code == 0, err
    assert all(np.isnan(row["error_without"]) for row in read_rows(str(tmp_path / "blocks" / "results.csv")))
    assert not (tmp_path / "blocks" / "removed.csv").exists() and " – " in out


def test_each_norm_has_a_column():
    numbers = "ratio lipschitz norm_1 norm_2 cosine active dead error_without error_swapped".split()
    head, row = near_identity.table([{"block": "a"} | dict.fromkeys(numbers, 0.5)]).splitlines()
    assert head.split()[2:5] == ["bound", "‖C1‖", "‖C2‖"] and len(row.split()) == 10


def test_two_networks_in_one_figure(launch, tiny_blocks, tmp_path):
    for name in "ab":
        shutil.copytree(tiny_blocks[0], tmp_path / name)
    code, out, err = launch("plot", f"--run_dir={tmp_path}/a", f"--beside={tmp_path}/b", "--names=first,second")
    assert code == 0 and out.strip() == f"{tmp_path}/a/comparison.png", err


@pytest.mark.parametrize("flags, duration", [([], "24 seconds"), (["--noablate"], "32 seconds")])
def test_the_first_of_eight_blocks_says_how_long_all_take_and_seven_are_left_out(flags, duration, monkeypatch, capsys):
    """A block takes 4 seconds. Errors without blocks are of ever fewer, three quarters of the first's on average."""
    names, tables = [f"b{k}" for k in range(8)], {}
    clock = itertools.chain([100, 104], itertools.count(200, 9))  # asked before each block, and after the first
    images, blocks = np.zeros(5), [SimpleNamespace(name=name) for name in names]
    measurement = MagicMock(return_value=SimpleNamespace(blocks=blocks, row=int))
    for place, value in {
        "launch.trained_run.read_config": MagicMock(),
        "launch.trained_run.first_examples": lambda *_: (images, images, ""),
        "launch.trained_run.load_model": lambda *_: ("network", ""),
        "launch.trained_run.weights_digest": lambda _: "digest",
        "identity_matters.near_identity.Measurement": measurement,
        "identity_matters.near_identity.removed_rows": lambda network, x, y, order, progress: order,
        "launch.near_identity.smallest_first": lambda path, names: names[::-1],
        "launch.near_identity.run": lambda experiment, *_: tables.update(experiment.tables),
        "launch.near_identity.table": str,
        "time.monotonic": lambda: next(clock),
    }.items():
        monkeypatch.setattr(place, value)
    near_identity.main(config_of("near_identity", *flags), "run")
    assert [job.compute(None) for job in tables[BLOCKS]] == [[k] for k in range(8)]
    assert capsys.readouterr().err == f"note: all 8 blocks will take about {duration}, by the first of them\n"
    assert [(job.key, job.label, job.num_rows) for job in tables[BLOCKS][:2]] == [
        ({"block": "b0"}, "b0", 1), ({"block": "b1"}, "b1", 1)
    ]  # fmt: skip
    removed = [(job.compute(None), job.num_rows) for job in tables.get(REMOVED, ())]
    assert removed == ([] if flags else [(names[:0:-1], 8)])  # all but the last, and the row of none
