"""launch.near_identity: what it prints and writes, and that it goes on where it was."""

import shutil

import numpy as np
import pytest
from launching import launched

from identity_matters.runs.tables import read_rows, write_metrics
from launch import near_identity


@pytest.fixture(scope="module")
def measured(tiny_run, tmp_path_factory):
    """A finished run of the launcher on tiny_run, and what it printed. Read only."""
    run_dir = tmp_path_factory.mktemp("blocks") / "blocks"
    code, out, err = launched("near_identity", f"--saved_run={tiny_run}", f"--run_dir={run_dir}", "--examples=40")
    assert code == 0, err
    return run_dir, out


def test_it_prints_a_line_a_block_and_draws(measured):
    run_dir, out = measured
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["stage1_block1", "stage2_block1"]
    assert "of 2 branches" in out and (run_dir / "blocks.png").stat().st_size > 10_000
    rows, removed = (read_rows(str(run_dir / name)) for name in ("results.csv", "removed.csv"))
    assert [row["block"] for row in rows] == ["stage1_block1", "stage2_block1"]
    assert [row["num_removed"] for row in removed] == [0, 1]
    smallest = min(rows, key=lambda row: row["ratio"])
    assert removed[1]["last"] == smallest["block"] and removed[1]["error"] == smallest["error_without"]


def test_the_same_command_goes_on(measured, tiny_run, tmp_path):
    run_dir, out = measured
    shutil.copytree(run_dir, tmp_path / "blocks")
    rows = read_rows(str(run_dir / "results.csv"))
    write_metrics(str(tmp_path / "blocks" / "results.csv"), [rows[0] | {"cosine": 0.25}])
    code, again, err = launched(
        "near_identity", f"--saved_run={tiny_run}", f"--run_dir={tmp_path / 'blocks'}", "--examples=40"
    )
    assert code == 0, err
    found = read_rows(str(tmp_path / "blocks" / "results.csv"))
    assert found[0]["cosine"] == 0.25 and found[1].keys() == rows[1].keys()  # the first is not computed again
    for name in found[1].keys() - {"error_swapped", "block"}:
        assert found[1][name] == pytest.approx(rows[1][name], rel=1e-6), name


def test_other_weights_are_refused(measured, tiny_run, tmp_path):
    run_dir, _ = measured
    shutil.copytree(run_dir, tmp_path / "blocks")
    text = (tmp_path / "blocks" / "config.json").read_text()
    digest = near_identity.trained_run.DIGEST
    (tmp_path / "blocks" / "config.json").write_text(text.replace(f'"{digest}": "', f'"{digest}": "0'))
    code, _, err = launched(
        "near_identity", f"--saved_run={tiny_run}", f"--run_dir={tmp_path / 'blocks'}", "--examples=40"
    )
    assert code == 1 and "was computed for other weights" in err


def test_without_the_errors(tiny_run, tmp_path):
    flags = f"--saved_run={tiny_run}", f"--run_dir={tmp_path / 'blocks'}", "--examples=20", "--noablate", "--at_step=0"
    code, out, err = launched("near_identity", *flags)
    assert code == 0, err
    assert all(np.isnan(row["error_without"]) for row in read_rows(str(tmp_path / "blocks" / "results.csv")))
    assert not (tmp_path / "blocks" / "removed.csv").exists() and " – " in out


def test_two_networks_in_one_figure(launch, measured, tmp_path):
    for name in "ab":
        shutil.copytree(measured[0], tmp_path / name)
    code, out, err = launch("plot", f"--run_dir={tmp_path}/a", f"--beside={tmp_path}/b", "--names=first,second")
    assert code == 0 and out.strip() == f"{tmp_path}/a/comparison.png", err
