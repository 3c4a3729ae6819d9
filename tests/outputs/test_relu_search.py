"""What launch.relu_search counts, prints and draws, from its table of points."""

import numpy as np
import pytest
from outputs import references as ref
from outputs.conftest import finished
from outputs.words import RELU_SEARCH
from scipy import stats

TRIALS = 12
CATEGORIES = "global_minimum bad_local_minimum saddle zero_unit degenerate outside kink not_converged".split()
SETTING = ("d", "num_layers", "width", "samples", "radius", "method")
SHOWN = (("risk", "global_minimum"), ("risk", "bad_local_minimum"), ("gradient_norm", "saddle"))


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    searched = finished("relu_search", tmp_path_factory.mktemp("relu"), f"--trials={TRIALS}")
    table, figure = (searched.run_dir / "search.md").read_text(), searched.figures["relu_search"]
    return searched.rows("results"), searched.rows("points"), table, searched.out, figure


def interval_of(count):
    """Clopper and Pearson's interval of a share, in which 95 % of it lie: 2.5 % on either side."""
    low = stats.beta.ppf(0.025, count, TRIALS - count + 1) if count else 0.0
    high = stats.beta.ppf(0.975, count + 1, TRIALS - count) if count < TRIALS else 1.0
    return low, high


def ends_of(row, points):
    return ref.select(points, **{name: row[name] for name in SETTING})


def test_counts_intervals_and_risks_are_those_of_the_points(search):
    rows, points, *_ = search
    assert len(rows) == 2 * 11 and len(points) == len(rows) * TRIALS
    for row in rows:
        ends = ends_of(row, points)
        for name in CATEGORIES:
            count = len(ref.select(ends, category=name))
            found = [row[column] for column in (name, f"{name}_low", f"{name}_high")]
            assert found == pytest.approx([count, *interval_of(count)], rel=1e-5)
        bad = ref.select(ends, category="bad_local_minimum")
        if bad:
            risks = np.sort(ref.column(bad, "risk"))
            expected = [risks[0], (risks[(len(risks) - 1) // 2] + risks[len(risks) // 2]) / 2, risks[-1]]
            found = [row[f"bad_risk_{name}"] for name in ("least", "median", "largest")]
            assert found == pytest.approx(expected, rel=1e-5)
        assert row["tenfold_tried"] == min(len(bad), 5) >= row["tenfold_bad"]
        assert row["population_tried"] == (row["tenfold_tried"] if row["d"] == 2 else 0)
    for point in points:  # what each category means
        if point["category"] == "global_minimum":
            assert point["risk"] <= 1e-18
        if point["category"] in ("bad_local_minimum", "saddle"):
            assert (point["curvature"] > 0) == (point["category"] == "bad_local_minimum")
            assert point["gradient_norm"] <= 1e-11 and point["spectral_norm"] <= 1


def test_the_table_and_the_printed_lines_have_the_numbers_of_the_rows(search):
    rows, _, table, out, _ = search
    lines = out.splitlines()
    for row, cells in zip(rows, ref.markdown_tables(table)[0], strict=True):
        assert cells[0] == row["method"].replace("_", " ")
        ref.assert_numbers(cells[1], *(row[name] for name in SETTING[:-1]))
        for name, cell in zip(CATEGORIES, cells[3:11], strict=True):
            low, high = interval_of(row[name])
            ref.assert_numbers(cell.replace("–", " "), row[name] / TRIALS, low, high)
        if row["bad_local_minimum"]:
            ref.assert_numbers(cells[11], row["bad_risk_median"], row["bad_risk_largest"])
        for cell, name in zip(cells[12:], ("tenfold", "population"), strict=True):
            ref.assert_numbers(cell, row[f"{name}_bad"], row[f"{name}_tried"])
        share, interval = row["bad_local_minimum"] / TRIALS, interval_of(row["bad_local_minimum"])
        heading = next(i for i, line in enumerate(lines) if f"τ {row['radius']:g}, " in line)
        assert RELU_SEARCH["minimised"][row["method"]] in lines[heading]
        ref.assert_numbers(lines[heading], *(row[name] for name in SETTING[:-1]), TRIALS)
        counts = {name.replace("_", " "): row[name] for name in CATEGORIES if row[name]}
        assert lines[heading + 1].strip() == ", ".join(f"{count:g} {name}" for name, count in counts.items())
        assert lines[heading + 2].strip() == RELU_SEARCH["bad"].format(share, *interval)
        del lines[: heading + 3]


def test_the_figure_shows_points_shares_and_risks(search):
    rows, points, _, _, figure = search
    by_curvature, shares, risks = figure.axes
    for name in ("global_minimum", "bad_local_minimum", "saddle", "degenerate"):
        chosen = ref.select(points, category=name)
        line = ref.labelled(by_curvature)[f"{name.replace('_', ' ')} ({len(chosen)})"]
        ref.assert_line(line, ref.column(chosen, "curvature"), np.maximum(ref.column(chosen, "risk"), 1e-34))
    radii = [row for row in rows if (row["num_layers"], row["width"], row["samples"], row["d"]) == (2, 2, 100, 2)]
    for method, name in SHOWN:
        chosen = sorted(ref.select(radii, method=method), key=lambda row: row["radius"])
        bars = ref.labelled(shares)[f"{name.replace('_', ' ')}, {RELU_SEARCH['meaning'][method]}"]
        share, places = ref.column(chosen, name) / TRIALS, bars[0].get_xdata()
        assert np.round(places).tolist() == [0, 1, 2, 3]
        ref.assert_bars(bars, places, share, *np.transpose([interval_of(row[name]) for row in chosen]))
    assert [text.get_text() for text in shares.get_xticklabels()] == ["0.1", "0.3", "0.5", "0.9"]
    chosen = sorted(ref.select(radii, method="risk"), key=lambda row: row["radius"])
    radius = ref.column(chosen, "radius")
    median, *ends = (ref.column(chosen, f"bad_risk_{name}") for name in ("median", "least", "largest"))
    ref.assert_bars(ref.labelled(risks)[RELU_SEARCH["risks"]], radius, median, *ends)
    ref.assert_line(ref.labelled(risks)[RELU_SEARCH["guide"]], radius, median[0] * (radius / radius[0]) ** 4)


def test_the_seed_draws_other_teachers_and_starts(tmp_path):
    runs = [finished("relu_search", tmp_path / f"{seed}", "--trials=1", f"--seed={seed}") for seed in (0, 1)]
    first, second = ([row["risk"] for row in run.rows("points")] for run in runs)
    assert first != second
