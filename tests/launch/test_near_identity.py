"""launch.near_identity: its output and files; test_experiment.py resumes it."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from begun import edit

from identity_matters.runs.tables import read_rows, write_metrics
from launch.near_identity import BLOCKS, REMOVED, smallest_first


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
    assert contents["num_examples"] == 40 and re.fullmatch("[0-9a-f]{16}", contents["weights_digest"])


def test_other_weights_are_rejected(launch, tiny_blocks, tmp_path):
    run_dir, flags, _ = tiny_blocks
    copy = shutil.copytree(run_dir, tmp_path / "blocks")
    edit(copy, weights_digest="0")
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
def test_a_run_does_not_resume_from_an_edited_table(launch, tiny_blocks, tmp_path, column, value, is_computed_on):
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


def test_two_networks_in_one_figure(launch, tiny_blocks, tmp_path):
    for name in "ab":
        shutil.copytree(tiny_blocks[0], tmp_path / name)
    code, out, err = launch("plot", f"--run_dir={tmp_path}/a", f"--beside={tmp_path}/b", "--names=first,second")
    assert code == 0 and out.strip() == f"{tmp_path}/a/comparison.png", err
