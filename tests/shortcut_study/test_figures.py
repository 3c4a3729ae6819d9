"""Every figure draws, and judges, the rows that real runs leave."""

import warnings

import numpy as np
import pytest
from legible import assert_legible
from matplotlib.figure import Figure
from study_rows import EPOCHS, PAPER, ROWS, change, diverging, infinite, of_figure, paper_rows

from identity_matters.runs.figures import figure_to_array
from identity_matters.runs.tables import read_rows, write_metrics
from shortcut_study.aggregation import along_loss
from shortcut_study.architectures import LABELS, TWO, XAVIER
from shortcut_study.figures import drawing
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.finding import findings_table

pytestmark = pytest.mark.usefixtures("screen_style")


# Which lack the most; the other kinds are slow tests.
QUICK = "with runs that diverged"


@pytest.fixture(
    scope="module", params=[pytest.param(kind, marks=[pytest.mark.slow] * (kind != QUICK)) for kind in ROWS]
)
def real_rows(request, tmp_path_factory):
    """As they come back from results.csv."""
    path = str(tmp_path_factory.mktemp("rows") / "results.csv")
    write_metrics(path, ROWS[request.param]())
    return read_rows(path)


@pytest.mark.parametrize("figure", PAPER)
def test_every_figure_draws_and_judges_without_a_warning(real_rows, figure):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = FIGURES[figure].draw(of_figure(real_rows, figure))
        assert_legible(drawn)
        drawn.set_dpi(40)
        image, found = figure_to_array(drawn), FIGURES[figure].findings(of_figure(real_rows, figure))
    assert image.std() > 0 and all(axes.get_xlabel() for axes in drawn.axes if axes.xaxis.get_visible())
    assert found and findings_table(found).count("\n") == len(found) + 1


@pytest.mark.parametrize("figure", PAPER)
def test_rows_from_the_file_give_the_findings_of_rows_from_memory(figure, tmp_path):
    rows = of_figure(diverging(paper_rows()), figure)
    write_metrics(str(tmp_path / "rows.csv"), rows)
    found, read = FIGURES[figure].findings(rows), FIGURES[figure].findings(read_rows(str(tmp_path / "rows.csv")))
    assert [(f.claim, f.holds) for f in found] == [(f.claim, f.holds) for f in read]


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_figure_5_shows_geometric_means_the_theory_and_where_it_is_infinite():
    rows = infinite(XAVIER, (12,))(of_figure(paper_rows(), "5"))
    axes = FIGURES["5"].draw(rows).axes[0]
    assert axes.get_yscale() == axes.get_xscale() == "log" and "2 runs each" in axes.get_title()
    bars = {bar.get_label(): bar.lines[0].get_xydata() for bar in axes.containers}
    assert list(bars) == list(LABELS.values())
    np.testing.assert_allclose(bars["2-shortcut"], [(depth, 5 * np.sqrt(1.01)) for depth in (2, 6, 12)])
    np.testing.assert_allclose(bars["Xavier, no shortcuts"], [(depth, depth**3 * np.sqrt(1.01)) for depth in (2, 6)])
    assert lines(axes)["beyond float64, in some or all runs"].get_xdata().tolist() == [12]
    np.testing.assert_allclose(lines(axes)["Theorem 1 at zero, 1-shortcut"].get_ydata(), [4, 12, 24])
    np.testing.assert_allclose(lines(axes)["Theorem 1 at zero, 2-shortcut"].get_ydata(), [5, 5, 5])


@pytest.mark.parametrize("figure", ["3", "6", "7", "8"])
def test_the_loss_grows_from_left_to_right_as_in_the_paper(figure):
    for axes in FIGURES[figure].draw(of_figure(paper_rows(), figure)).axes:
        if "loss" in axes.get_xlabel():
            left, right = axes.get_xlim()
            assert left < right and axes.get_xscale() == "log"


def test_figure_8_shows_the_index_where_it_starts_and_the_one_run():
    by_loss, by_epoch, of_gradient = FIGURES["8"].draw(of_figure(paper_rows(), "8")).axes
    assert lines(by_loss)["Theorem 1 at zero for 2-shortcut"].get_xydata().tolist() == [[3.0, 0.5]]
    curve = lines(by_loss)["2-shortcut, n = 2"].get_xydata()
    np.testing.assert_allclose(curve[[0, -1]], [(1e-3, 0), (3, 0.5)], atol=1e-9)
    assert by_epoch.get_lines()[0].get_xdata().tolist() == [epoch + 1 for epoch in EPOCHS]
    assert of_gradient.get_lines()[0].get_ydata().argmax() == 3


def test_the_guide_of_figure_3_begins_at_the_first_kind_that_has_ends():
    lost = {"loss": np.nan, "excess_loss": np.nan, "norm": np.nan, "status": "diverged"}
    rows = change(of_figure(paper_rows(), "3"), "norms", lambda r: lost if r["epoch"] else {}, activations="linear")
    final = FIGURES["3"].draw(rows).axes[2]
    (ends,) = [bar.lines[0] for bar in final.containers]
    guide = lines(final)[r"$\propto 1/\sqrt{\mathrm{depth}}$"]
    np.testing.assert_allclose(guide.get_xydata()[0], ends.get_xydata()[0])


@pytest.mark.parametrize("figure", ["6", "7"])
def test_no_curve_is_drawn_if_most_condition_numbers_are_infinite(figure):
    lost = {"condition_number": np.inf}
    rows = of_figure(paper_rows(seeds=(0, 1, 2)), figure)
    rows = change(rows, "spectrum_at_losses", lambda r: lost if r["epoch"] != "" and r["seed"] < 2 else {}, kind=XAVIER)
    ratio = FIGURES[figure].draw(rows).axes[2]
    labels = [line.get_label() for line in ratio.get_lines()]
    assert not [label for label in labels if label.startswith(f"{LABELS[XAVIER]}, n = ")]
    assert f"{LABELS[XAVIER]}: beyond float64" in labels


@pytest.mark.parametrize("figure, expected", [("9", [1e-6] * 3), ("10", [0.31] * 3)])
def test_figures_9_and_10_show_the_lowest_loss_and_the_rate_that_gave_it(figure, expected):
    final_loss, rate = FIGURES[figure].draw(of_figure(paper_rows(), figure)).axes
    bars = {bar.get_label(): bar.lines[0].get_xydata() for bar in final_loss.containers}
    np.testing.assert_allclose(bars["2-shortcut"], list(zip((2, 6, 12), expected)))
    assert lines(rate)["2-shortcut"].get_ydata().tolist() == [0.1] * 3
    assert "after 60 epochs" in final_loss.get_title()
    if figure == "9":
        np.testing.assert_allclose(
            lines(rate)[r"$2/|\lambda|_{\max}$ at zero for 1-shortcut"].get_ydata(), [2 / 4, 2 / 12, 2 / 24]
        )


@pytest.mark.parametrize("figure", ["9", "10"])
def test_the_bars_of_final_losses_are_a_standard_deviation_of_their_logarithms(figure):
    by_seed = lambda r: {name: r[name] * (1 + r["seed"]) for name in ("loss", "excess_loss")}  # noqa: E731
    rows = change(of_figure(paper_rows(), figure), "learning_rates", by_seed, kind=TWO)
    final_loss = FIGURES[figure].draw(rows).axes[0]
    (bar,) = [bar for bar in final_loss.containers if bar.get_label() == "2-shortcut"]
    factor = 10 ** np.std(np.log10([1, 2]), ddof=1)
    for (_, mean), segment in zip(bar.lines[0].get_xydata(), bar.lines[2][0].get_segments()):
        np.testing.assert_allclose(segment[:, 1], [mean / factor, mean * factor])


@pytest.mark.parametrize("figure", ["6", "7"])
def test_percentile_that_is_0_within_rounding_is_marked_and_excluded_from_the_mean(figure):
    lost = [{"condition_number": np.inf, "p10_abs": rounding} for rounding in (0.0, 1e-19)]
    rows = change(of_figure(paper_rows(seeds=(0, 1, 2)), figure), "spectrum_at_losses",
                  lambda r: lost[r["seed"]] if r["epoch"] == 77 and r["seed"] < 2 else {}, kind=XAVIER)  # fmt: skip
    largest, percentile, ratio = FIGURES[figure].draw(rows).axes
    (mark,) = [line for line in percentile.get_lines() if line.get_label() == f"{LABELS[XAVIER]}: 0 within rounding"]
    assert mark.get_marker() == "v" and len(mark.get_xdata()) == 2
    drawn = np.concatenate([line.get_ydata() for line in percentile.get_lines() if line is not mark])
    assert np.nanmin(drawn) == np.nanmax(drawn) == 1.0
    (mark,) = [line for line in ratio.get_lines() if line.get_label() == f"{LABELS[XAVIER]}: beyond float64"]
    assert len(mark.get_xdata()) == 2
    assert not [line for line in largest.get_lines() if ":" in line.get_label()]


def test_no_line_crosses_a_gap_in_the_losses():
    rows = [{"seed": seed, "loss": loss, "y": loss} for seed in (0, 1) for loss in (0.25, 0.5, 1.0, 5.0, 6.0)]
    axes = Figure().subplots()
    drawing.draw_band(axes, along_loss(rows, "loss", "y", largest_gap=3.0), "k", "a", log=True)
    (line, _), (band,) = axes.lines, axes.collections
    x, y = line.get_xdata(), line.get_ydata()
    known = np.isfinite(y)
    assert not ((x > 1.05) & (x < 4.9)).any() and np.isnan(y).sum() == 1  # the break
    assert 1 / 1.05 < x[known][np.flatnonzero(~known)[0] - 1] < 1.05 and x[-1] == pytest.approx(6)
    assert len(band.get_paths()) == 2
    whole = along_loss(rows, "loss", "y")
    assert (np.diff(whole.x) < 0.02).all()


def test_one_legend_serves_all_panels_and_counts_their_runs_together():
    figure = Figure()
    for axes, counts in zip(figure.subplots(1, 2), ("3 – 5", "2")):
        axes.plot([0], [0], label=f"2-shortcut, n = {counts}")
        axes.plot([0], [0], label="Theorem 1")
    drawing.shared_legend(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["2-shortcut, n = 2 – 5", "Theorem 1"]
