"""The one place that decides how pictures look: colours, fonts, sizes."""

import itertools
import struct

import matplotlib
import numpy as np
import pytest
from legible import assert_legible
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from identity_matters.runs.figure_style import PAGE, PALETTE, STYLES, styled
from identity_matters.runs.figures import mean_over_runs, save_figures

# Machado, Oliveira & Fernandes 2009, severity 1, on linear RGB.
COLOUR_BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
CLEARLY_DIFFERENT = 10  # in CIELAB; about four times what can just be seen side by side


def lab(colour, matrix) -> np.ndarray:
    """CIELAB (D65) of an sRGB colour as someone with a colour blindness sees it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(matrix) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ seen / [0.9505, 1, 1.089]
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def nearest(palette, matrix) -> float:
    return min(np.linalg.norm(lab(a, matrix) - lab(b, matrix)) for a, b in itertools.combinations(palette, 2))


@pytest.mark.parametrize("kind", COLOUR_BLINDNESS)
def test_the_colours_differ_clearly_also_for_the_colour_blind(kind):
    assert nearest(PALETTE, COLOUR_BLINDNESS[kind]) > CLEARLY_DIFFERENT


def test_matplotlibs_own_colours_would_fail():
    own = ["tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown"]
    assert min(nearest(own, matrix) for matrix in COLOUR_BLINDNESS.values()) < CLEARLY_DIFFERENT


def drawn() -> dict[str, Figure]:
    figure = Figure(figsize=(PAGE, 2))
    (line,) = figure.subplots().plot([0, 1], color="C3")
    figure.axes[0].set_title(r"$\|W\|_F$")
    figure.colour = line
    return {"a": figure}


@pytest.mark.parametrize("style, pixels", [("screen", 1600), ("paper", 2040)])
def test_a_style_sets_the_size_in_pixels_and_leaves_the_users_settings(tmp_path, style, pixels):
    before = dict(matplotlib.rcParams)
    save_figures(drawn, str(tmp_path), style=style)
    assert struct.unpack(">I", (tmp_path / "a.png").read_bytes()[16:20]) == (pixels,)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("style", STYLES)
def test_named_colour_is_the_palette_s_and_a_paper_uses_times_letters(style):
    with styled(style):
        figure = drawn()["a"]
        figure.canvas.draw()
        title = figure.axes[0].title
        assert matplotlib.colors.to_hex(matplotlib.colors.to_rgb("C3")).upper() == PALETTE[3]
        assert (title.get_fontfamily()[0] == "STIXGeneral") == (style == "paper")


def test_small_text_a_broad_page_and_a_literal_underscore_are_noticed():
    with styled():
        assert_legible(drawn()["a"])
        for spoil in (
            lambda figure: figure.axes[0].set_xlabel("‖W‖_F"),
            lambda figure: figure.axes[0].set_xlabel("tiny", fontsize=5),
            lambda figure: figure.set_figwidth(14),
        ):
            figure = drawn()["a"]
            spoil(figure)
            with pytest.raises(AssertionError):
                assert_legible(figure)


def test_the_mean_over_runs_counts_each_between_its_first_step_and_its_last():
    runs = [[{"step": step, "y": value} for step, value in run] for run in ([(1, 1.0), (3, 3.0)], [(1, 3.0), (2, 4.0)])]
    steps, mean, spread = mean_over_runs(runs, "y")
    assert steps.tolist() == [1, 2, 3]
    np.testing.assert_allclose(mean, [2, 3, 3])
    np.testing.assert_allclose(spread, [np.sqrt(2), np.sqrt(2), 0])
