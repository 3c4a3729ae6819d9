"""shortcut_study.analysis, findings and figures on rows made by hand: known answers, claims that hold and that do not."""

import functools
import warnings

import numpy as np
import pytest

from identity_matters.runs.figures import figure_to_array
from identity_matters.runs.tables import read_rows, write_metrics
from shortcut_study import analysis, findings
from shortcut_study.analysis import ROUNDING, along_loss, best_rates, over_seeds
from shortcut_study.figures import DATA, FIGURES
from shortcut_study.findings import CONSTANT, FINDINGS, NEAR_OPTIMAL, SAME
from shortcut_study.sweep import COLUMNS

XAVIER, ORTHOGONAL, ONE, TWO, THREE = KINDS = list(analysis.LABELS)
PAPER = ("3", "5", "6", "7", "8", "9", "10")  # figures
EPOCHS, LAST = range(41), 40
LEVELS = np.geomspace(3, 1e-3, 12)
RATES = (0.01, 0.1, 1.0)
LEAST = 0.3  # loss of the best linear map


def row(experiment, kind, depth, seed="", activations="linear", **values):
    known = {"experiment": experiment, "shortcut_depth": kind[0], "initialisation": kind[1], "depth": depth}
    row = dict.fromkeys(COLUMNS, "") | known | {"seed": seed, "activations": activations, "seconds": 1.5} | values
    assert set(row) == set(COLUMNS)
    return row


def paper_rows(depths=(2, 6, 12), seeds=(0, 1)):
    """Rows of all experiments on which everything holds that the paper says."""
    rows = []
    for activations in ("linear", "relu_mid"):
        for depth, seed, epoch in ((d, s, e) for d in depths for s in seeds for e in EPOCHS):
            excess = 10 ** (0.5 - epoch / 10)
            norm = 0.01 + (1 + 0.01 * seed) * epoch / LAST / np.sqrt(depth)
            values = {"epoch": epoch, "loss": excess + LEAST, "excess_loss": excess, "norm": norm, "status": "done"}
            rows.append(row("norms", TWO, depth, seed, activations, **values))
        for kind, seed in ((k, s) for k in (XAVIER, ORTHOGONAL, TWO) for s in seeds):
            rows.append(row("spectrum_at_losses", kind, 4, seed, activations, status="done"))
            for i, level in enumerate(LEVELS):
                rows.append(row("spectrum_at_losses", kind, 4, seed, activations, **at_level(kind, seed, i, level)))
    for depth in depths:
        condition_numbers = {XAVIER: depth**3.0, ORTHOGONAL: 2.0 * depth, ONE: 2.0 * depth, TWO: 5.0, THREE: 40.0}
        for kind, number in condition_numbers.items():
            for seed in seeds:
                values = {
                    "condition_number": (1 + 0.01 * seed) * number,
                    "max_abs": number,
                    "p10_abs": 1.0,
                    "index": 0.5,
                }
                rows.append(row("initial_spectrum", kind, depth, seed, **values))
        for kind in (ONE, TWO):
            number = condition_numbers[kind]
            values = {"condition_number": number, "max_abs": number, "p10_abs": 1.0, "index": 0.5}
            rows.append(row("spectrum_at_zero", (kind[0], "exact_zero"), depth, **values))
        linear = {XAVIER: 1e-3 * depth, ORTHOGONAL: 1e-4, ONE: 1.2e-4, TWO: 1e-6, THREE: 1e-5}
        relu = {XAVIER: 0.33 + 0.05 * depth, ORTHOGONAL: 0.32 + 0.02 * depth, TWO: 0.31}
        for kind, excess in linear.items():
            rows += final_rows(kind, depth, seeds, "linear", excess)
        for kind, loss in relu.items():
            rows += final_rows(kind, depth, seeds, "relu_mid", loss - LEAST)
    for epoch in EPOCHS:
        values = {
            "epoch": epoch,
            "excess_loss": 3 * 10 ** (-epoch / 10),
            "gradient_norm": 0.01 + np.exp(-((epoch - 3) ** 2) / 4),
        }
        index = np.clip(0.5 - 0.12 * (epoch - 1), 0.05, 0.5)
        rows.append(row("single_run", TWO, 4, 0, index=index, status="done", **values))
    return rows


def at_level(kind, seed, i, level):
    done = i / (len(LEVELS) - 1)
    condition_number = 10 ** (0.7 + done) * {XAVIER: 100, ORTHOGONAL: 2, TWO: 1}[kind] * (1 + 0.01 * seed)
    index = {XAVIER: 0.1, ORTHOGONAL: 0.05, TWO: 0.0}[kind] + 0.5 * (1 - done)
    sizes = {"condition_number": condition_number, "max_abs": condition_number, "p10_abs": 1.0}
    return {"epoch": 7 * i, "loss": level + LEAST, "excess_loss": level, "index": index, "status": "done"} | sizes


def final_rows(kind, depth, seeds, activations, excess):
    """The rate 0.1 is best, at 1.0 the second seed diverges."""
    rows = []
    for seed, rate in ((s, r) for s in seeds for r in RATES):
        values = {"learning_rate": rate, "epoch": 60, "norm": 0.5}
        if rate == 1.0 and seed == seeds[-1]:
            values |= {"status": "diverged", "loss": np.nan, "excess_loss": np.nan, "norm": np.nan}
        else:
            of_rate = excess * (1 + 5 * abs(np.log10(rate / 0.1)))
            values |= {"status": "done", "loss": LEAST + of_rate, "excess_loss": of_rate}
        rows.append(row("learning_rates", kind, depth, seed, activations, **values))
    return rows


def change(rows, experiment, change, kind=None, **columns):
    """Copies of the rows, with change(row) in place of those of an experiment, a kind and values of other columns."""
    columns |= {"experiment": experiment} | ({"shortcut_depth": kind[0], "initialisation": kind[1]} if kind else {})
    return [r | change(r) if all(r[name] == value for name, value in columns.items()) else r for r in rows]


def of_figure(rows, figure):
    present = DATA[figure]
    return [r for r in rows if (r["experiment"], r["activations"]) in present]


def scale(name, factor):
    return lambda r: {name: r[name] * factor} if r[name] != "" else {}


def at(place, wanted, otherwise):
    """A change of the rows with that epoch (or depth) alone."""
    return lambda r: otherwise(r) if r[place] == wanted else {}


# --- analysis


def test_over_seeds_are_means_and_deviations_of_logarithms():
    rows = [row("initial_spectrum", TWO, depth, seed, condition_number=value)
            for depth, seed, value in [(6, 0, 10.0), (6, 1, 1000.0), (2, 0, 10.0), (2, 1, np.inf), (3, 0, np.inf), (4, 0, "")]]  # fmt: skip
    band = over_seeds(rows, "depth", "condition_number")
    assert band.x.tolist() == [2, 6] and band.count.tolist() == [1, 2]  # the infinite and the empty are out
    np.testing.assert_allclose(band.mean, [1, 2])
    np.testing.assert_allclose(band.std, [0, np.sqrt(2)])
    np.testing.assert_allclose(over_seeds(rows, "depth", "condition_number", log=False).mean, [10, 505])


def test_over_seeds_of_nothing_is_empty():
    rows = [row("initial_spectrum", XAVIER, 2, 0, condition_number=np.inf)]
    for nothing in ([], rows):
        assert all(len(part) == 0 for part in over_seeds(nothing, "depth", "condition_number"))


def runs(*of_seeds):
    return [row("norms", TWO, 2, seed, loss=loss, norm=norm) for seed, run in enumerate(of_seeds) for loss, norm in run]


def test_along_the_loss_is_linear_in_the_logarithm_of_the_loss():
    band = along_loss(runs([(1.0, 0.0), (0.01, 4.0)]), "loss", "norm", log=False, num_points=5)
    np.testing.assert_allclose(band.x, [-2, -1.5, -1, -0.5, 0])
    np.testing.assert_allclose(band.mean, [4, 3, 2, 1, 0], atol=1e-12)
    assert not band.std.any() and band.count.tolist() == [1] * 5
    band = along_loss(runs([(1.0, 10.0), (0.01, 1000.0)]), "loss", "norm", num_points=3)
    np.testing.assert_allclose(band.mean, [3, 2, 1])


def test_along_the_loss_a_run_counts_where_it_has_been_and_half_of_the_runs_are_enough():
    long, short = [(1.0, 1.0), (1e-4, 5.0)], [(1.0, 3.0), (1e-2, 3.0)]
    band = along_loss(runs(long, short), "loss", "norm", log=False, num_points=5)
    assert band.x.tolist() == [-4, -3, -2, -1, 0] and band.count.tolist() == [1, 1, 2, 2, 2]
    np.testing.assert_allclose(band.mean, [5, 4, 3, 2.5, 2])
    np.testing.assert_allclose(band.std, [0, 0, 0, 0.5 * np.sqrt(2), np.sqrt(2)], atol=1e-12)
    band = along_loss(runs(long, short, short), "loss", "norm", log=False, num_points=5)
    np.testing.assert_allclose(band.x, [-2, -1, 0])  # one of three is not


def test_along_the_loss_takes_rows_in_any_order_and_leaves_out_those_without_values():
    rows = runs([(1.0, 1.0), (0.1, 2.0), (0.01, 3.0)])
    expected = along_loss(rows, "loss", "norm")
    others = [row("norms", TWO, 2, 0, loss="", norm=9.0), row("norms", TWO, 2, 0, loss=0.5, norm="")]
    np.testing.assert_array_equal(along_loss(others + rows[::-1], "loss", "norm"), expected)
    assert all(len(part) == 0 for part in along_loss(rows[:1], "loss", "norm"))  # one point is no line
    assert all(len(part) == 0 for part in along_loss([], "loss", "norm"))


def test_along_the_loss_leaves_out_what_comes_after_a_divergence():
    rows = runs([(1.0, 1.0), (0.1, 2.0)])
    diverged = [row("norms", TWO, 2, seed, loss=np.nan, norm=np.nan, status="diverged") for seed in (0, 1)]
    np.testing.assert_array_equal(along_loss(rows + diverged, "loss", "norm"), along_loss(rows, "loss", "norm"))


def final(depth, rate, *losses):
    return [row("learning_rates", TWO, depth, seed, learning_rate=rate, excess_loss=loss, status="done" if np.isfinite(loss) else "diverged")
            for seed, loss in enumerate(losses)]  # fmt: skip


def test_the_best_rate_has_the_lowest_mean_and_no_seed_that_diverges():
    rows = [*final(4, 0.1, 2.0, 4.0), *final(4, 1.0, 0.5, np.nan), *final(4, 0.01, 3.0, 3.5), *final(2, 0.1, 1.0, 1.0)]
    first, second = best_rates(rows, "excess_loss")
    assert first == (2, 0.1, 1.0, 0.0, 2)
    assert second[:3] == (4, 0.1, 3.0) and second.std == pytest.approx(np.sqrt(2)) and second.count == 2
    assert [best.depth for best in best_rates(rows + final(3, 0.1, np.nan, 1.0), "excess_loss")] == [2, 4]
    assert best_rates(final(2, 0.1, 7.0), "excess_loss") == [(2, 0.1, 7.0, 0.0, 1)]
    assert best_rates([], "excess_loss") == []


def test_losses_below_rounding_are_taken_as_rounding():
    (best,) = best_rates([*final(2, 0.1, 1e-30, -1e-33), *final(2, 1.0, 1.0, 1.0)], "excess_loss")
    assert (best.rate, best.mean) == (0.1, ROUNDING)


# --- findings


@functools.cache
def claims(figure):
    return {finding.claim: finding for finding in FINDINGS[figure](of_figure(paper_rows(), figure))}


@pytest.mark.parametrize("figure", PAPER)
def test_every_claim_holds_on_rows_of_which_it_is_true(figure):
    assert claims(figure) and all(finding.holds and finding.figure == figure for finding in claims(figure).values())
    assert all("nan" not in finding.numbers for finding in claims(figure).values())


def slow_fall(r):
    return {"index": 0.5 if r["epoch"] < 2 else 0.44 if r["epoch"] < 20 else 0.05}


def in_between(r):
    return {"norm": 10 * r["norm"]} if 10 <= r["epoch"] <= 30 else {}


def better_at_1(kind, depth):
    """At the rate 1 no seed diverges and the loss is lower than at 0.1."""
    return {"kind": kind, "depth": depth, "activations": "linear", "learning_rate": 1.0,
                "change": lambda r: {"status": "done", "excess_loss": 1e-5, "loss": LEAST + 1e-5, "norm": 0.5}}  # fmt: skip


def excess(factor):
    return lambda r: {"excess_loss": r["excess_loss"] * factor, "loss": LEAST + r["excess_loss"] * factor}


# Figure, how each claim begins (or ends, after …), and what to change so that it, and no other, is false.
CONTROLS = [
    ("3", "linear: the deeper", "norms", {"activations": "linear", "change": at("epoch", LAST, lambda r: scale("norm", r["depth"])(r))}),
    ("3", "linear: the same at", "norms", {"activations": "linear", "depth": 12, "change": in_between}),
    ("3", "relu_mid: the deeper", "norms", {"activations": "relu_mid", "change": at("epoch", LAST, lambda r: scale("norm", r["depth"])(r))}),
    ("3", "relu_mid: the same at", "norms", {"activations": "relu_mid", "depth": 12, "change": in_between}),
    ("5", "2-shortcut networks have constant", "initial_spectrum", {"kind": TWO, "depth": 12, "change": scale("condition_number", 1.2)}),
    ("5", "Xavier, no shortcuts: the condition", "initial_spectrum", {"kind": XAVIER, "depth": 12, "change": scale("condition_number", 0.1)}),
    ("5", "orthogonal, no shortcuts: the condition", "initial_spectrum",
     {"kind": ORTHOGONAL, "depth": 12, "change": scale("condition_number", 0.4)}),
    ("5", "it grows more slowly", "initial_spectrum",
     {"kind": ORTHOGONAL, "change": lambda r: scale("condition_number", float(r["depth"]) ** 3)(r)}),
    *(
        control
        for figure, activations in (("6", "linear"), ("7", "relu_mid"))
        for control in (
            (figure, "… smaller than of orthogonal, no shortcuts", "spectrum_at_losses",
             {"kind": ORTHOGONAL, "activations": activations, "epoch": 35, "change": scale("condition_number", 0.1)}),
            (figure, "… smaller than of Xavier, no shortcuts", "spectrum_at_losses",
             {"kind": XAVIER, "activations": activations, "epoch": 35, "change": scale("condition_number", 0.001)}),
            (figure, "2-shortcut and orthogonal evolve", "spectrum_at_losses",
             {"kind": ORTHOGONAL, "activations": activations, "epoch": 77, "change": scale("condition_number", 10)}),
        )
    ),
    ("8", "… smaller than of orthogonal, no shortcuts", "spectrum_at_losses", {"kind": ORTHOGONAL, "epoch": 35, "change": scale("index", 0.5)}),
    ("8", "… smaller than of Xavier, no shortcuts", "spectrum_at_losses", {"kind": XAVIER, "epoch": 35, "change": scale("index", 0.5)}),
    ("8", "the index drops dramatically", "single_run", {"change": slow_fall}),
    ("8", "the gradient is largest", "single_run", {"epoch": 30, "change": scale("gradient_norm", 1e3)}),
    ("9", "the final losses", "learning_rates", {"activations": "linear", "change": excess(1e4)}),
    ("9", "2-shortcut ends lower than Xavier", "learning_rates", {"kind": XAVIER, "activations": "linear", "change": excess(1e-5)}),
    ("9", "2-shortcut ends lower than orthogonal", "learning_rates",
     {"kind": ORTHOGONAL, "depth": 2, "activations": "linear", "change": excess(1e-3)}),
    ("9", "2-shortcut ends lower than 1-shortcut", "learning_rates", {"kind": ONE, "depth": 2, "activations": "linear", "change": excess(1e-3)}),
    ("9", "2-shortcut ends lower than 3-shortcut", "learning_rates", {"kind": THREE, "depth": 6, "activations": "linear", "change": excess(0.01)}),
    ("9", "2-shortcut takes learning rates as high as Xavier", "learning_rates", better_at_1(XAVIER, 12)),
    ("9", "2-shortcut takes learning rates as high as orthogonal", "learning_rates", better_at_1(ORTHOGONAL, 2)),
    ("9", "1-shortcut learns like orthogonal", "learning_rates", {"kind": ONE, "depth": 12, "activations": "linear", "change": excess(10)}),
    ("10", "2-shortcut: the deepest", "learning_rates",
     {"kind": TWO, "activations": "relu_mid", "depth": 12, "change": lambda r: {"loss": r["loss"] * 1.2}}),
    ("10", "2-shortcut ends lower than orthogonal", "learning_rates",
     {"kind": ORTHOGONAL, "activations": "relu_mid", "depth": 2, "change": lambda r: {"loss": r["loss"] * 0.5}}),
    ("10", "2-shortcut ends lower than Xavier", "learning_rates",
     {"kind": XAVIER, "activations": "relu_mid", "depth": 2, "change": lambda r: {"loss": r["loss"] * 0.5}}),
    ("10", "orthogonal, no shortcuts: the deepest", "learning_rates",
     {"kind": ORTHOGONAL, "activations": "relu_mid", "change": lambda r: {"loss": 0.35} if r["status"] == "done" else {}}),
    ("10", "Xavier, no shortcuts: the deepest", "learning_rates",
     {"kind": XAVIER, "activations": "relu_mid", "change": lambda r: {"loss": 0.35} if r["status"] == "done" else {}}),
]  # fmt: skip


def is_named(claim, name):
    return claim.endswith(name[2:]) if name.startswith("… ") else claim.startswith(name)


@pytest.mark.parametrize("figure, name, experiment, changes", CONTROLS, ids=[f"{c[0]}: {c[1]}" for c in CONTROLS])
def test_a_claim_is_denied_on_rows_of_which_it_is_false_and_no_other_is(figure, name, experiment, changes):
    rows = change(of_figure(paper_rows(), figure), experiment, **changes)
    found = FINDINGS[figure](rows)
    assert [finding.claim for finding in found if not finding.holds] == [c for c in claims(figure) if is_named(c, name)]
    assert sum(not finding.holds for finding in found) == 1


def test_every_claim_has_its_control():
    for figure in PAPER:
        for claim in claims(figure):
            assert [name for where, name, *_ in CONTROLS if where == figure and is_named(claim, name)], claim


# How a claim with a threshold answers just below and just above it.
THRESHOLDS = {
    "constant": ("5", "2-shortcut networks have constant", "initial_spectrum", {"kind": TWO, "depth": 12}, "condition_number", CONSTANT),
    "roughly the same": ("6", "2-shortcut and orthogonal evolve", "spectrum_at_losses", {"kind": ORTHOGONAL, "epoch": 77}, "condition_number", SAME / 2),
    "close to optimal": ("9", "the final losses", "learning_rates", {"activations": "linear"}, "excess_loss", NEAR_OPTIMAL * LEAST / 1e-6),
    "like orthogonal": ("9", "1-shortcut learns like", "learning_rates", {"kind": ONE, "activations": "linear"}, "excess_loss", SAME / 1.2),
    "as low as any": ("10", "2-shortcut: the deepest", "learning_rates", {"kind": TWO, "activations": "relu_mid", "depth": 12}, "loss", CONSTANT),
}  # fmt: skip


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_words_of_the_paper_end_where_their_constants_say(name):
    figure, claim, experiment, columns, value, factor = THRESHOLDS[name]
    for margin, holds in ((0.98, True), (1.02, False)):
        changed = excess(margin * factor) if value == "excess_loss" else scale(value, margin * factor)
        found = FINDINGS[figure](change(of_figure(paper_rows(), figure), experiment, changed, **columns))
        assert [bool(finding.holds) for finding in found if is_named(finding.claim, claim)] == [holds]


def test_without_losses_in_common_nothing_can_be_told():
    for figure, experiment in (("6", "condition_number"), ("8", "index")):
        rows = of_figure(paper_rows(), figure)
        rows = [
            r
            for r in rows
            if r["experiment"] != "spectrum_at_losses"
            or (r["epoch"] == "" or r["epoch"] < 30) == (r["shortcut_depth"] == 2)
        ]
        found = [
            finding
            for finding in FINDINGS[figure](rows)
            if "always smaller" in finding.claim or "smaller condition" in finding.claim
        ]
        assert len(found) == 2 and all(finding.holds is None for finding in found), experiment


def test_depths_of_infinite_condition_numbers_are_named_with_their_kind():
    rows = infinite(XAVIER, (12,))(of_figure(paper_rows(), "5"))
    numbers = {finding.claim.split(":")[0]: finding.numbers for finding in FINDINGS["5"](rows)}
    assert numbers["Xavier, no shortcuts"].endswith("(depth 6); beyond float64 at depth 12")
    assert "beyond" not in numbers["orthogonal, no shortcuts"]


def test_one_depth_shows_no_growth():
    one_depth = paper_rows(depths=(6,))
    for figure, word in (("3", "the deeper"), ("5", "grows"), ("10", "ends higher")):
        found = [finding for finding in FINDINGS[figure](of_figure(one_depth, figure)) if word in finding.claim]
        assert found and not any(finding.holds for finding in found), figure


def test_the_report_is_a_markdown_table_with_a_line_a_claim():
    told = [findings.Finding("5", "of |λ|", holds, "1, 2") for holds in (True, False, None)]
    lines = findings.report(told).splitlines()
    assert len(lines) == 5 and lines[1] == "|---|---|---|---|"
    assert lines[2] == "| 5 | of \\|λ\\| | holds | 1, 2 |"
    assert "does not hold" in lines[3] and "cannot be told" in lines[4]


# --- all of it on the rows that real runs leave


def diverging(rows):
    """The descents of Figures 3, 6 and 8 diverge early; of Figures 9 and 10 all rates of Xavier's deepest network."""
    lost = {"loss": np.nan, "excess_loss": np.nan, "norm": np.nan, "status": "diverged"}
    rows = change(rows, "norms", lambda r: lost if r["epoch"] >= 10 else {}, depth=12)
    rows = [
        r
        for r in rows
        if r["experiment"] != "spectrum_at_losses" or r["seed"] == 0 or r["epoch"] == 0 or r["shortcut_depth"] == 2
    ]
    rows = [r for r in rows if r["experiment"] != "single_run" or r["epoch"] < 15]
    rows.append(row("single_run", TWO, 4, 0, epoch=15, learning_rate=0.1, status="diverged"))
    return change(rows, "learning_rates", lambda r: lost, kind=XAVIER, depth=12)


def all_diverging(rows):
    """Only where they start has a loss."""
    lost = {"loss": np.nan, "excess_loss": np.nan, "norm": np.nan, "status": "diverged"}
    rows = change(rows, "norms", lambda r: lost if r["epoch"] > 0 else {})
    rows = [r for r in rows if r["experiment"] not in ("spectrum_at_losses", "single_run") or r["epoch"] in ("", 0)]
    rows.append(row("single_run", TWO, 4, 0, epoch=1, learning_rate=0.1, status="diverged"))
    return change(rows, "learning_rates", lambda r: lost)


def infinite(kind, depths):
    lost = {"condition_number": np.inf, "p10_abs": 0.0}
    return lambda rows: change(
        change(rows, "initial_spectrum", lambda r: lost if r["depth"] in depths else {}, kind=kind),
        "spectrum_at_losses", lambda r: lost if r["epoch"] != "" and r["epoch"] > 40 else {}, kind=kind,
    )  # fmt: skip


ROWS = {
    "as the paper has them": lambda: paper_rows(),
    "of one seed": lambda: paper_rows(seeds=(3,)),
    "of one depth": lambda: paper_rows(depths=(6,)),
    "with infinite condition numbers": lambda: infinite(XAVIER, (12,))(paper_rows()),
    "with no finite condition number of a kind": lambda: infinite(XAVIER, (2, 6, 12))(paper_rows()),
    "with runs that diverged": lambda: diverging(paper_rows()),
    "of runs that all diverged": lambda: all_diverging(paper_rows()),
}


@pytest.fixture(scope="module", params=ROWS)
def real_rows(request, tmp_path_factory):
    """As they come back from results.csv."""
    path = str(tmp_path_factory.mktemp("rows") / "results.csv")
    write_metrics(path, ROWS[request.param]())
    return read_rows(path)


@pytest.mark.parametrize("figure", PAPER)
def test_every_figure_draws_without_a_warning(real_rows, figure):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = FIGURES[figure](of_figure(real_rows, figure))
        drawn.set_dpi(40)
        image = figure_to_array(drawn)
    assert image.std() > 0 and all(axes.get_xlabel() for axes in drawn.axes if axes.xaxis.get_visible())


@pytest.mark.parametrize("figure", PAPER)
def test_every_claim_is_judged_without_a_warning(real_rows, figure):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = FINDINGS[figure](of_figure(real_rows, figure))
    assert found and findings.report(found).count("\n") == len(found) + 1


@pytest.mark.parametrize("figure", PAPER)
def test_rows_from_the_file_give_the_findings_of_rows_from_memory(figure, tmp_path):
    rows = of_figure(diverging(paper_rows()), figure)
    write_metrics(str(tmp_path / "rows.csv"), rows)
    found, read = FINDINGS[figure](rows), FINDINGS[figure](read_rows(str(tmp_path / "rows.csv")))
    assert [(f.claim, f.holds) for f in found] == [(f.claim, f.holds) for f in read]


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_figure_5_shows_geometric_means_the_theory_and_where_it_is_infinite():
    rows = infinite(XAVIER, (12,))(of_figure(paper_rows(), "5"))
    axes = FIGURES["5"](rows).axes[0]
    assert axes.get_yscale() == axes.get_xscale() == "log" and "2 runs each" in axes.get_title()
    bars = {bar.get_label(): bar.lines[0].get_xydata() for bar in axes.containers}
    assert list(bars) == list(analysis.LABELS.values())
    np.testing.assert_allclose(bars["2-shortcut"], [(depth, 5 * np.sqrt(1.01)) for depth in (2, 6, 12)])
    np.testing.assert_allclose(bars["Xavier, no shortcuts"], [(depth, depth**3 * np.sqrt(1.01)) for depth in (2, 6)])
    assert lines(axes)["beyond float64, in some runs or all"].get_xdata().tolist() == [12]
    np.testing.assert_allclose(lines(axes)["Theorem 1 at zero, n = 1"].get_ydata(), [4, 12, 24])
    np.testing.assert_allclose(lines(axes)["Theorem 1 at zero, n = 2"].get_ydata(), [5, 5, 5])


@pytest.mark.parametrize("figure", ["3", "6", "7", "8"])
def test_the_loss_falls_from_left_to_right(figure):
    for axes in FIGURES[figure](of_figure(paper_rows(), figure)).axes:
        if "loss" in axes.get_xlabel():
            left, right = axes.get_xlim()
            assert left > right and axes.get_xscale() == "log"


def test_figure_8_shows_the_index_where_it_starts_and_the_one_run():
    by_loss, by_epoch, of_gradient = FIGURES["8"](of_figure(paper_rows(), "8")).axes
    assert lines(by_loss)["Theorem 1 at zero, n = 2"].get_xydata().tolist() == [[3.0, 0.5]]
    curve = lines(by_loss)["2-shortcut"].get_xydata()
    np.testing.assert_allclose(curve[[0, -1]], [(1e-3, 0), (3, 0.5)], atol=1e-9)
    assert by_epoch.get_lines()[0].get_xdata().tolist() == [epoch + 1 for epoch in EPOCHS]
    assert of_gradient.get_lines()[0].get_ydata().argmax() == 3


@pytest.mark.parametrize("figure, expected", [("9", [1e-6] * 3), ("10", [0.31] * 3)])
def test_figures_9_and_10_show_the_lowest_loss_and_the_rate_that_gave_it(figure, expected):
    final_loss, rate = FIGURES[figure](of_figure(paper_rows(), figure)).axes
    bars = {bar.get_label(): bar.lines[0].get_xydata() for bar in final_loss.containers}
    np.testing.assert_allclose(bars["2-shortcut"], list(zip((2, 6, 12), expected)))
    assert lines(rate)["2-shortcut"].get_ydata().tolist() == [0.1] * 3
    assert "after 60 epochs" in final_loss.get_title()
    if figure == "9":
        np.testing.assert_allclose(lines(rate)["2/|λ|_max at zero, n = 1"].get_ydata(), [2 / 4, 2 / 12, 2 / 24])
