"""launch.story: both papers in one picture, from tables alone."""

import numpy as np
import pytest
from legible import assert_legible

from identity_matters.runs.figure_style import styled
from identity_matters.runs.tables import write_metrics
from launch import story
from shortcut_study.architectures import ORTHOGONAL, TWO, XAVIER

RATIOS = (11.0, 0.1, 0.2)


def study_rows() -> list[dict]:
    """Condition numbers of Figure 5 at depths 2 and 6 for three kinds of networks, two seeds each."""
    growth = {XAVIER: 4, ORTHOGONAL: 1, TWO: 0}
    return [
        {"experiment": "initial_spectrum", "shortcut_depth": arch.shortcut_depth, "depth": depth, "seed": seed}
        | {"initialisation": arch.initialisation, "condition_number": 2.0 * depth**power, "status": "done"}
        for arch, power in growth.items()
        for depth in (2, 6)
        for seed in (0, 1)
    ]


def block_rows() -> list[dict]:
    names = ("stage1_block1", "stage1_block2", "stage2_block1")
    return [{"block": n, "ratio": r, "ratio_low": r / 2, "ratio_high": 2 * r} for n, r in zip(names, RATIOS)]


@pytest.fixture
def tables(tmp_path):
    for name, rows in (("study", study_rows()), ("blocks", block_rows())):
        (tmp_path / name).mkdir()
        write_metrics(str(tmp_path / name / "results.csv"), rows)
    return f"--study={tmp_path}/study", f"--blocks={tmp_path}/blocks", "--names=trained"


def test_the_left_panel_has_the_condition_numbers_and_the_right_one_the_blocks():
    with styled():
        figure = story.story_figure(study_rows(), {"trained": block_rows()})
        assert_legible(figure)
    left, right = figure.axes
    found = {bars.get_label(): bars.lines[0].get_ydata() for bars in left.containers}
    np.testing.assert_allclose(found["2-shortcuts"], [2, 2])
    np.testing.assert_allclose(found["no shortcuts, Xavier"], [32, 2 * 6**4])
    (blocks,) = [line for line in right.lines if line.get_label() == "trained"]
    assert tuple(blocks.get_ydata()) == RATIOS
    assert [list(line.get_xdata()) for line in right.lines if line.get_linestyle() == ":"] == [[2.5, 2.5]]


def test_the_command_writes_the_picture_and_names_a_table_that_is_missing(launch, tables, tmp_path):
    code, out, err = launch("story", *tables, f"--run_dir={tmp_path}/out")
    assert (code, out) == (0, f"{tmp_path}/out/story.png\n"), err
    code, _, err = launch("story", "--study=nowhere", *tables[1:], f"--run_dir={tmp_path}/none")
    assert code == 1 and err == "error: nowhere holds no results.csv of a run, or an empty one\n"
    assert not (tmp_path / "none").exists()
    code, _, err = launch("story", f"--study={tmp_path}/blocks", *tables[1:], f"--run_dir={tmp_path}/none")
    assert code == 1 and err == f"error: {tmp_path}/blocks does not hold the data of Figure 5\n"
    code, _, err = launch("story", *tables, "--names=a,b", f"--run_dir={tmp_path}/none")
    assert code == 1 and err == "error: names has 2 names for 1 directories of blocks: a,b\n"
    code, _, err = launch("story", f"--blocks={tmp_path}/blocks,{tmp_path}/blocks", "--names=a,a")
    assert code == 1 and err == "error: names has 1 names for 2 directories of blocks: a,a\n"
    code, _, err = launch("story", "--blocks=", "--names=", f"--run_dir={tmp_path}/none")
    assert code == 1 and err == "error: blocks must name a directory\n"
