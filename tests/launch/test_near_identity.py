"""launch.near_identity: what it prints and writes; test_experiment.py continues it."""

import shutil

import numpy as np
from begun import edit

from identity_matters.runs.tables import read_rows
from launch import trained_run


def test_it_prints_a_line_a_block_and_draws(tiny_blocks):
    run_dir, _, out = tiny_blocks
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["stage1_block1", "stage2_block1"]
    assert "of 2 branches" in out and (run_dir / "blocks.png").stat().st_size > 10_000
    rows, removed = (read_rows(str(run_dir / name)) for name in ("results.csv", "removed.csv"))
    assert [row["block"] for row in rows] == ["stage1_block1", "stage2_block1"]
    assert [row["num_removed"] for row in removed] == [0, 1]
    smallest = min(rows, key=lambda row: row["ratio"])
    assert removed[1]["last"] == smallest["block"] and removed[1]["error"] == smallest["error_without"]


def test_other_weights_are_refused(launch, tiny_blocks, tmp_path):
    run_dir, flags, _ = tiny_blocks
    copy = shutil.copytree(run_dir, tmp_path / "blocks")
    edit(copy, **{trained_run.DIGEST: "0"})
    code, _, err = launch("near_identity", f"--run_dir={copy}", *flags)
    assert code == 1 and "was computed for other weights" in err


def test_without_the_errors(launch, tiny_run, tmp_path):
    flags = f"--saved_run={tiny_run}", f"--run_dir={tmp_path / 'blocks'}", "--examples=20", "--noablate", "--at_step=0"
    code, out, err = launch("near_identity", *flags)
    assert code == 0, err
    assert all(np.isnan(row["error_without"]) for row in read_rows(str(tmp_path / "blocks" / "results.csv")))
    assert not (tmp_path / "blocks" / "removed.csv").exists() and " – " in out


def test_two_networks_in_one_figure(launch, tiny_blocks, tmp_path):
    for name in "ab":
        shutil.copytree(tiny_blocks[0], tmp_path / name)
    code, out, err = launch("plot", f"--run_dir={tmp_path}/a", f"--beside={tmp_path}/b", "--names=first,second")
    assert code == 0 and out.strip() == f"{tmp_path}/a/comparison.png", err
