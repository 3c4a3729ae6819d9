"""website/story.py: the numbers in the README's picture."""

import numpy as np
from legible import assert_legible

from identity_matters.runs.figure_style import styled
from shortcut_study.architectures import ORTHOGONAL, TWO, XAVIER
from website import story

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
