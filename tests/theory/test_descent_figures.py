"""The figures of docs/appendix/descent.md: data that say what the text says, and pictures from text as a CSV file has
it.
"""

import itertools

import numpy as np
import pytest
from legible import assert_legible

from theory.descent import figures, target_map
from theory.relu import figures as relu
from theory.relu import search

pytestmark = pytest.mark.usefixtures("screen_style")


def as_text(rows):
    return [{name: str(value) for name, value in row.items()} for row in rows]


def by(rows, **values):
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def test_eigenvalues_fall_to_zero_or_to_their_floor():
    rows = figures.eigenvalues(num_steps=2_000)
    for value in figures.EIGENVALUES:
        last = by(rows, eigenvalue=value)[-1]["excess"]
        assert last < 1e-3 if value >= 0 else value**2 <= last < value**2 + 0.05
    assert_legible(figures.eigenvalues_figure(as_text(rows)))


def test_rotations_stay_near_the_straight_line():
    rows = figures.rotations(learning_rate=0.001, num_steps=1_000)
    for angle in (60, 150):
        w = np.array([row["real"] + 1j * row["imaginary"] for row in by(rows, angle=angle)])
        assert np.abs(((w - 1) * np.conj(np.exp(1j * np.radians(angle)) - 1)).imag).max() < 0.02
    assert_legible(figures.rotations_figure(as_text(rows)))


@pytest.mark.slow
def test_the_promised_rates_lie_above_what_is_seen_and_the_margin_below_2_3():
    rows = figures.rates()
    for row in rows:
        assert row["excess"] <= row["by_seen_margin"] * (1 + 1e-9) + 1e-28
        assert row["by_seen_margin"] <= row["by_norm"] * (1 + 1e-3) and row["drift"] <= row["drift_bound"] + 1e-15
    assert_legible(figures.rates_figure(as_text(rows)))


def test_minima_beside_linear_predictors_are_drawn(monkeypatch):
    monkeypatch.setattr(search, "SETTINGS", [search.Setting(width=1), search.Setting(width=4, num_layers=1)])
    rows = relu.linear_output(trials=6)
    assert any(row["category"] == "bad_local_minimum" for row in rows)
    assert_legible(relu.linear_output_figure(as_text(rows)))


def test_the_excess_by_radius_lies_below_its_bounds():
    rows = relu.excess_by_radius()
    assert all(row["swapped"] <= row["swapped_bound"] and row["at_zero"] <= row["ball_bound"] for row in rows)
    assert_legible(relu.excess_by_radius_figure(as_text(rows)))


def test_the_map_is_that_of_its_page():
    jobs = target_map.jobs()
    assert sorted({(job.dimension, job.num_layers) for job in jobs}) == [*((6, 2**i) for i in range(7)), (20, 16)]
    assert target_map.SPEEDS == tuple(1 / 2**i for i in range(11)) and target_map.MAX_STEPS == 500


@pytest.mark.slow
def test_the_map_has_a_panel_a_target_start_and_method(monkeypatch):
    rows = []
    for job in (
        target_map.Job(t, s, m, 2, 6) for t in target_map.TARGETS for s in target_map.STARTS for m in target_map.METHODS
    ):
        rows += target_map.run_job(job, speeds=target_map.SPEEDS[:4], max_steps=5)
    drawn = figures.map_figures(as_text(rows))
    assert list(drawn) == ["map", "map_momentum", "map_orthogonalised"]
    assert all(len(figure.axes) == 12 + 1 for figure in drawn.values())
    assert_legible(drawn["map"])  # the one with a red line; the others differ in title and colours


@pytest.mark.slow
def test_the_saddle_experiment_meets_its_prediction():
    rows = figures.saddle()
    for row in rows:
        if row["method"] == "descent" and row["shortcut_depth"] > 1:
            assert row["aligned"] == pytest.approx(row["predicted"], rel=0.05, abs=3)
        assert row["least"] <= row["random"]
    assert_legible(figures.saddle_figure(as_text(rows)))


def test_random_starts_leave_the_saddle_at_the_median_and_not_before_the_bound(monkeypatch):
    steps = itertools.cycle([7, 10, 90, 20])  # of the aligned start, then of three random ones
    bounds = itertools.cycle([3, 8, 4])  # of the random ones
    monkeypatch.setattr(figures.saddle_escape, "steps_to_leave", lambda *_: next(steps))
    monkeypatch.setattr(figures.saddle_escape, "least_steps", lambda *_: next(bounds))
    assert {(row["aligned"], row["random"], row["least"]) for row in figures.saddle()} == {(7, 20, 4)}
