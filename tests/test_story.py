"""website/story.py: the numbers in the README's picture."""

import numpy as np
from legible import assert_legible

from identity_matters.runs.figure_style import styled
from shortcut_study.architectures import ORTHOGONAL, TWO, XAVIER
from website import story

GRID = (-1.0, 0.0, 4.0, 8.0)


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


def spectrum_rows() -> tuple[list[dict], list[dict]]:
    """One known eigenvalue and two Ritz values, and a density."""
    values = ((-1, 7.0, 0.001), (0, -0.5, 0.4), (0, 0.1, 0.6))
    eigenvalues = [
        {"vector": vector, "eigenvalue": value, "weight": weight, "error_bound": 0.01, "rounding": 1e-6}
        for vector, value, weight in values
    ]
    density = [{"eigenvalue": x, "density": 10.0**-k, "standard_error": 0.0} for k, x in enumerate(GRID)]
    return eigenvalues, density


def test_the_left_panel_has_the_condition_numbers_and_the_right_one_the_spectrum():
    with styled():
        figure = story.story_figure(study_rows(), *spectrum_rows())
        assert_legible(figure)
    left, right = figure.axes
    found = {bars.get_label(): bars.lines[0].get_ydata() for bars in left.containers}
    np.testing.assert_allclose(found["shortcuts over two layers"], [2, 2])
    np.testing.assert_allclose(found["no shortcuts, Xavier"], [32, 2 * 6**4])
    density, largest = right.lines
    np.testing.assert_allclose(density.get_data(), [GRID, [1, 0.1, 0.01, 0.001]])
    np.testing.assert_allclose(largest.get_xdata(), [7])


def test_every_curve_has_its_name_beside_it_and_no_panel_a_legend():
    with styled():
        figure = story.story_figure(study_rows(), *spectrum_rows())
    left, right = figure.axes
    assert len(left.containers) == 3 and not left.get_legend() and not right.get_legend()
    assert {bars.get_label() for bars in left.containers} <= {text.get_text() for text in left.texts}
    assert "the largest: 7.0" in {text.get_text() for text in right.texts}
