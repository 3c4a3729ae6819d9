"""What launch.check_theory draws, writes and prints: the formulas of Hardt & Ma and Li et al., typed anew."""

import math
import re

import numpy as np
import pytest
from outputs import references as ref
from outputs.conftest import finished
from outputs.words import THEORY

DRAWN = "norms printed_construction gradient_ratios descent identity_ball memorized_plane spectra".split()
UNITS = (1, 2, 8)


@pytest.fixture(scope="module")
def lecture(tmp_path_factory):
    """The tables and the figures of a run that draws; two tables, which take long, are made up."""
    run_dir = tmp_path_factory.mktemp("theory") / "lecture"
    finished("check_theory", run_dir, f"--draw={','.join(DRAWN)}")
    rng = np.random.default_rng(0)
    names = ("one_shortcut", "two_shortcut", "lower_bound")
    keys = [{"instance": instance, "num_units": units} for instance in range(3) for units in UNITS]
    rows = [key | {name: 10 ** rng.uniform(0, 2) for name in names} for key in keys]
    ref.write_table(run_dir / "condition_numbers.csv", rows)
    names = "parameters_per_point smallest_gap float32_error float32_error_expected float64_error".split()
    keys = [{"width": width, "whitened": whitened} for width in (2, 4, 8) for whitened in (0, 1)]
    rows = [key | {name: 10 ** rng.uniform(-3, 0) for name in names} for key in keys]
    ref.write_table(run_dir / "memorization.csv", rows)
    drawn = finished("plot", run_dir)
    assert len(drawn.figures) == len(DRAWN) + 2
    return {name: drawn.rows(name) for name in drawn.figures}, drawn.figures


def test_norms_are_those_of_theorem_2_1_in_table_and_figure(lecture):
    tables, figures = lecture
    for row in tables["norms"]:  # Theorem 2.1: (4π + 3γ)/ℓ for ℓ ≥ 3γ
        count, gamma = row["num_layers"], row["log_condition"]
        printed = (4 * math.pi + 3 * gamma) / count if count >= 3 * gamma else math.nan
        assert row["printed_bound"] == pytest.approx(printed, rel=1e-6, nan_ok=True)
        polar = 2 * math.sin(math.pi / 2 / count) + math.exp(gamma / count) - 1
        assert row["polar_bound"] == pytest.approx(polar, rel=1e-6) and row["polar"] <= polar * (1 + 1e-6)
    angles = np.linspace(0, math.pi, 20001)
    x = np.stack([np.cos(angles), np.sin(angles)])
    image = np.diag([-math.e, -1 / math.e]) @ x
    lengths = np.linalg.norm(image, axis=0)
    logarithms = np.log(lengths) + 1j * np.arccos((x * image).sum(0) / lengths)
    rows = ref.select(tables["norms"], target="diag(−e, −1/e)")
    assert len(rows) > 10
    for row in rows:  # R = −P: each polar layer is a turn by π/ℓ after P^(1/ℓ); no root is real for the principal one
        count = row["num_layers"]
        layer = ref.turn(math.pi / count) @ np.diag([math.exp(1 / count), math.exp(-1 / count)])
        assert row["log_condition"] == pytest.approx(1) and math.isnan(row["principal"])
        assert row["polar"] == pytest.approx(np.linalg.norm(layer - np.eye(2), 2), rel=1e-6)
        if count > 1:
            lower = np.abs(np.exp(logarithms / count) - 1).max()
            assert row["lower_bound"] == pytest.approx(lower, rel=1e-4)
    targets = dict.fromkeys(row["target"] for row in tables["norms"])
    for axes, target in zip(figures["norms"].axes, targets, strict=True):
        rows = ref.select(tables["norms"], target=target)
        count, drawn = ref.column(rows, "num_layers"), ref.labelled(axes)
        assert f"{rows[0]['log_condition']:.2f}" in axes.get_title()
        for name in ("printed_bound", "polar_bound", "paper", "principal", "polar"):
            ref.assert_line(drawn[THEORY[name]], count, count * ref.column(rows, name))
        edges = {x: (0.1, x * row["lower_bound"]) for x, row in zip(count, rows)}
        ref.assert_area(axes, ref.colour_of(drawn[THEORY["no factorisation"]]), edges)
    assert (figures["norms"].axes[0].get_xlabel(), figures["norms"].axes[0].get_ylabel()) == THEORY["norms"]
    ref.assert_legend(figures["norms"].legends[0], figures["norms"].axes[:1])


def test_the_printed_construction_is_the_best_of_all_whole_numbers(lecture):
    rows = lecture[0]["printed_construction"]
    for row in rows[::97]:
        count, gamma = int(row["num_layers"]), row["log_condition"]
        norms = []
        for turns in range(1, (count - 1) // 4 + 1):  # 4q + p = ℓ
            norms.append(max(2 * math.sin(math.pi / 2 / turns), math.exp(gamma / (count - 4 * turns)) - 1))
        assert row["norm_over_bound"] == pytest.approx(min(norms) * count / (4 * math.pi + 3 * gamma), rel=1e-5)
    assert {row["num_layers"] for row in rows} == {*range(5, 33)}


def test_gradient_ratios_are_those_of_2_3_and_counted_by_radius(lecture):
    rows, figure = lecture[0]["gradient_ratios"], lecture[1]["gradient_ratios"]
    rng = np.random.default_rng(0)
    for row in rows[:8]:  # five layers of four weights a side, of norm τ
        layers = rng.standard_normal((5, 4, 4))
        layers *= row["radius"] / np.linalg.norm(layers, 2, axis=(1, 2), keepdims=True)
        target, root = rng.standard_normal((2, 4, 4))
        moment = root @ root.T + 0.1 * np.eye(4)
        steps = layers + 1e-30j * np.eye(80).reshape(80, 5, 4, 4)
        whole = np.eye(4)
        for i in range(5):
            whole = (np.eye(4) + steps[:, i]) @ whole
        error = whole - target
        risks = np.einsum("nij,jk,nik->n", error, moment, error)  # ‖EΣ^½‖²_F
        least = np.linalg.eigvalsh(moment)[0]
        bound = 4 * 5 * (1 - row["radius"]) ** 8 * least * risks[0].real
        assert row["printed"] == pytest.approx(np.square(risks.imag / 1e-30).sum() / bound, rel=1e-5)
    assert all(row["printed"] >= row["by_layer"] * (1 - 1e-6) >= 1 - 2e-6 for row in rows)
    for axes, (name, title) in zip(figure.axes, THEORY["gradient ratios"].items()):
        assert axes.get_title() == title
        for patch in axes.patches:  # a step outline for each radius
            radius = float(re.search(r"[\d.]+", patch.get_label())[0])
            ratios = np.log10(ref.column(ref.select(rows, radius=radius), name))
            counts = np.histogram(ratios, np.linspace(0, 8, 81))[0]
            assert patch.get_xy()[1:-1:2, 1].tolist() == counts.tolist()
    assert len(figure.axes[0].patches) == 4 and f" {len(rows) // 4:,} " in figure.axes[0].get_ylabel()


def test_the_guaranteed_descent_has_the_rate_of_2_3(lecture):
    rows, (axes,) = lecture[0]["descent"], lecture[1]["descent"].axes
    for radius in (0.05, 0.15, 0.3):
        chosen = ref.select(rows, radius=radius)
        excess, steps = ref.column(chosen, "excess_risk"), ref.column(chosen, "step")
        # ℓ = 8, Σ = I; η = 1/L, and by (2.3) a step leaves a share of 1 − 2ηℓ(1 − τ)^(2ℓ − 2).
        smooth = 2 * 8 * (1 + radius) ** 14 + 2 * 7 * (1 + radius) ** 6 * math.sqrt(excess[0])
        guaranteed = excess[0] * (1 - 2 * 8 * (1 - radius) ** 14 / smooth) ** steps
        np.testing.assert_allclose(ref.column(chosen, "guaranteed"), guaranteed, rtol=1e-5)
        assert (excess <= guaranteed * (1 + 1e-6)).all()
        measured = ref.labelled(axes)[THEORY["measured"].format(radius)]
        ref.assert_line(measured, steps, excess)
        lines = [line for line in axes.lines if ref.colour_of(line) == ref.colour_of(measured) and line is not measured]
        ref.assert_line(lines[0], steps, guaranteed)
        assert lines[0].get_label() == THEORY["guaranteed"]


def test_the_ball_around_the_identity_has_the_risk_the_paths_and_the_bound_of_2_3(lecture):
    rows, figure = lecture[0]["identity_ball"], lecture[1]["identity_ball"]
    for row in ref.select(rows, kind="plane")[::101]:
        assert row["risk"] == pytest.approx(((1 + row["a"]) * (1 + row["b"]) - 0.4) ** 2, rel=1e-5, abs=1e-5)
    path = ref.select(rows, kind="path", path=0.0)
    a, b = path[0]["a"], path[0]["b"]
    for row in path:
        assert (row["a"], row["b"]) == pytest.approx((a, b), abs=1e-5)
        error = (1 + a) * (1 + b) - 0.4
        a, b = a - 0.02 * 2 * error * (1 + b), b - 0.02 * 2 * error * (1 + a)
    edges = ref.select(rows, kind="edge")
    radius = ref.column(edges, "radius")
    bound = 4 * 2 * (1 - radius) ** 2  # 4ℓ(1 − τ)^(2ℓ − 2) σ_min(Σ), ℓ = 2, Σ = 1
    np.testing.assert_allclose(ref.column(edges, "bound"), bound, atol=1e-5)
    least = ref.column(edges, "least_ratio")
    np.testing.assert_allclose(least, bound, atol=1e-5)  # equality where a = b = −τ
    ratio = figure.axes[1]
    ref.assert_line(ref.labelled(ratio)[THEORY["least ratio"]], radius, least)
    ref.assert_line(ref.labelled(ratio)[THEORY["ratio bound"]], radius, ref.column(edges, "bound"))


def test_spectra_at_zero_are_those_of_theorem_1_in_table_and_figure(lecture):
    rows, figure = lecture[0]["spectra"], lecture[1]["spectra"]
    two = {units: ref.select(rows, shortcut_depth=2.0, num_units=units) for units in (2.0, 4.0, 16.0)}
    for units, chosen in two.items():  # pairs ± σ, the same at every depth
        values = ref.column(chosen, "predicted")
        assert len(values) == units * 2 * 9 and (np.diff(values) >= 0).all()
        np.testing.assert_allclose(values, -values[::-1], atol=1e-6)
        np.testing.assert_allclose(np.unique(values.round(5)), np.unique(ref.column(two[2.0], "predicted").round(5)))
    assert not ref.column(ref.select(rows, shortcut_depth=3.0), "predicted").any()
    measured = [row for row in rows if not math.isnan(row["measured"])]
    np.testing.assert_allclose(ref.column(measured, "measured"), ref.column(measured, "predicted"), atol=1e-4)
    for axes, depth in zip(figure.axes, (1.0, 2.0, 3.0), strict=True):
        assert f"n = {depth:g}" in axes.get_title()
        for units in (2, 4, 16):
            chosen = ref.select(rows, shortcut_depth=depth, num_units=float(units))
            line = ref.labelled(axes)[THEORY["predicted"].format(units)]
            ref.assert_line(line, ref.column(chosen, "share"), ref.column(chosen, "predicted"))
            share = (np.arange(len(chosen)) + 0.5) / len(chosen)
            np.testing.assert_allclose(ref.column(chosen, "share"), share, rtol=1e-5)
            if units == 4:
                dots = ref.labelled(axes)[THEORY["measured at zero"].format(units)]
                ref.assert_line(dots, share, ref.column(chosen, "measured"))


def test_condition_numbers_are_drawn_as_geometric_means_with_a_standard_deviation(lecture):
    rows, (axes,) = lecture[0]["condition_numbers"], lecture[1]["condition_numbers"].axes
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_xlabel()) == ("log", "log", THEORY["units"])
    for name in ("one_shortcut", "two_shortcut", "lower_bound"):
        band = ref.by_place(rows, "num_units", name)
        line = ref.labelled(axes)[THEORY[name]]
        ref.assert_line(line, UNITS, [10**mean for mean, _ in band.values()])
        if name != "lower_bound":
            ref.assert_area(axes, ref.colour_of(line), ref.spreads(band))
    assert "3 random regressions" in axes.get_title()


def test_the_memorisation_figure_shows_each_column_of_raw_and_whitened_points(lecture):
    rows, figure = lecture[0]["memorization"], lecture[1]["memorization"]
    count, gap, error = figure.axes
    for whitened, name in ((0.0, THEORY["raw"]), (1.0, THEORY["whitened"])):
        chosen = ref.select(rows, whitened=whitened)
        ref.assert_line(ref.labelled(gap)[name], (2, 4, 8), ref.column(chosen, "smallest_gap"))
        lines = {"float32": "float32_error", "expected": "float32_error_expected", "float64": "float64_error"}
        for label, column in lines.items():
            ref.assert_line(ref.labelled(error)[THEORY[label].format(name)], (2, 4, 8), ref.column(chosen, column))
        if not whitened:
            ref.assert_line(count.lines[0], (2, 4, 8), ref.column(chosen, "parameters_per_point"))


def test_the_memorised_plane_ends_at_a_star_for_each_label(lecture):
    rows, figure = lecture[0]["memorized_plane"], lecture[1]["memorized_plane"]
    hidden = ref.select(rows, kind="hidden")
    blocks = sorted({row["block"] for row in hidden})
    assert blocks == list(range(-1, 1 + 36 // 2))  # 36 points, and a block of width 2 moves two
    for axes, block in zip(figure.axes, (-1, 0, blocks[-1] // 3, 2 * blocks[-1] // 3, blocks[-1])):
        for label, line in zip((0.0, 1.0, 2.0), axes.lines):
            chosen = ref.select(hidden, block=float(int(block)), label=label)
            ref.assert_line(line, ref.column(chosen, "first"), ref.column(chosen, "second"))
            if block == blocks[-1]:
                assert max(np.ptp(line.get_xdata()), np.ptp(line.get_ydata())) < 1e-5
    (image,) = figure.axes[-1].images
    left, right, *_ = image.get_extent()
    assert image.origin == "lower"
    for row in ref.select(rows, kind="region")[::97]:  # of a grid of 141 × 141
        across, up = (round(140 * (row[name] - left) / (right - left)) for name in ("first", "second"))
        assert image.get_array()[up, across] == row["label"]


def test_a_claim_prints_the_numbers_of_its_row_and_a_counterexample_that_is_one(tmp_path):
    checked = finished("check_theory", tmp_path, "--claim=review.eq_6", "--trials=3")
    (row,), out = checked.rows("results"), checked.out
    assert THEORY["all pass"] in out
    measured, bound = row["measured"], row["bound"]
    assert row["relation"] == "≥" and measured >= bound and row["holds"] == "True"
    assert f"{measured:.4g}, which must be ≥ {bound:.4g}; of {row['instances']:g} pairs" in out
    # The review's (6) has σ_min(Σ)²; with one layer of one weight, A = 0: ∇f = 2(1 − R)Σ and f = (1 − R)²Σ.
    second, target, squared, claimed = (
        int(n) for n in re.search(r"Σ = (\d), R = (\d).* = (\d+) < (\d+)", out).groups()
    )
    assert squared == (2 * (1 - target) * second) ** 2
    assert claimed == 4 * second**2 * (1 - target) ** 2 * second > squared


def test_every_claim_prints_its_worst_instance_and_how_far_it_is_from_its_bound(tmp_path):
    checked = finished("check_theory", tmp_path, "--trials=1", "--verbose", "--nofigures")
    rows, lines = checked.rows("results"), checked.out.splitlines()
    assert lines[-1] == THEORY["all pass"]
    assert len(rows) > 100 and all(row["holds"] == "True" for row in rows)
    for row in rows:
        larger = max(abs(row["measured"]), abs(row["bound"]), 1e-300)
        slack = (row["bound"] - row["measured"]) * (1 if row["relation"] == "≤" else -1) / larger
        assert row["slack"] == pytest.approx(slack, abs=1e-6) and row["slack"] >= 0
        (line,) = [line for line in lines if line.startswith(f"{row['claim']} ") and " slack " in line]
        assert f"{row['measured']:.4g} {row['relation']} {row['bound']:.4g}, slack {row['slack']:.2g}" in line
        assert f", n = {row['instances']:g}" in line and line.endswith(f"  {row['verdict']}")
    table = ref.markdown_tables((tmp_path / "claims.md").read_text())[0]
    for row, cells in zip(rows, table, strict=True):
        assert cells[4:6] == [f"{row['instances']:g}", f"{row['measured']:.4g} {row['relation']} {row['bound']:.4g}"]


@pytest.mark.slow
def test_condition_numbers_and_parameters_are_those_of_the_theorems(tmp_path):
    drawn = finished("check_theory", tmp_path, "--draw=condition_numbers,memorization")
    rows = drawn.rows("condition_numbers")
    for instance in range(10):
        chosen = ref.select(rows, instance=float(instance))
        assert np.ptp(ref.column(chosen, "two_shortcut")) <= 1e-5 * chosen[0]["two_shortcut"]  # Theorem 1, n = 2
        several = [row for row in chosen if row["num_units"] > 1]
        assert all(row["lower_bound"] <= row["one_shortcut"] for row in several)
        bound = ref.column(several, "lower_bound") / ref.column(several, "num_units")
        np.testing.assert_allclose(bound, bound[0], rtol=1e-5)  # R λ_max(Sxx)/σ_min(M)
    for row in drawn.rows("memorization"):  # Theorem 3.2; 500 digits of 784 pixels
        k, n, d, r = row["width"], row["num_points"], 784, 10
        most = k * d + math.ceil(n / k) * (2 * k**2 + k) + r * k + r**2 + r
        assert n == 500 and row["parameters_per_point"] * n <= most and row["float64_accuracy"] == 1
