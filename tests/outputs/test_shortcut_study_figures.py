"""The figures and findings of launch.shortcut_study, computed again from its rows.

The rows are made up, at random, so that no two series, seeds or depths can be taken for each other.
"""

import itertools
import math

import numpy as np
import pytest
from begun import begin
from launching import config_of
from outputs import references as ref
from outputs.conftest import finished
from outputs.words import ANSWERS, ARCHITECTURES, STUDY, STUDY_COLUMNS
from scipy import stats

SPECTRUM = ("max_abs", "p10_abs", "condition_number", "index")
SEEDS, DEPTHS, DEPTH = (0, 1, 2), (2, 6, 12), 4
PLAIN, TWO = ((0, "orthogonal"), (0, "xavier")), (2, "zero")
MADE_UP = (
    "--preset=paper --figure=all --depths=2,6,12 --relu_depths=2,12 --conv_depths=6,12 --depth=4 "
    "--num_runs=3 --sweep_runs=3 --relu_runs=3 --conv_runs=3"
).split()
LEAST = 0.3  # loss of the best linear map
EXTREMES = {"equivalent_start": ((1, "zero"), (0, "identity")),
            "equivalent_outputs": ((DEPTH, "orthogonal"), (0, "orthogonal"))}  # fmt: skip
SOLVED = {((1, "zero"), 2), ((1, "zero"), 6), ((0, "orthogonal"), 6)}  # where final losses are close to it


def made_up_rows():
    """Rows of every job of MADE_UP, drawn at random; some runs diverge, some condition numbers are infinite."""
    rng = np.random.default_rng(0)
    rows = []

    def add(experiment, kind, depth, seed="", activations="linear", **values):
        key = {"experiment": experiment, "shortcut_depth": kind[0], "initialisation": kind[1], "depth": depth}
        known = key | {"activations": activations, "seed": seed, "job": f"{key}{activations}{seed}", "seconds": 2.0}
        rows.append(dict.fromkeys(STUDY_COLUMNS, "") | known | values)

    def numbers():
        return {name: 10 ** rng.uniform(0, 2) for name in SPECTRUM[:3]} | {"index": rng.uniform(0, 0.5)}

    for activations, depth, seed in itertools.product(("linear", "relu_mid"), DEPTHS, SEEDS):
        # The curves of the last two depths cross, so the claim holds at some losses.
        first, slope = {2: (2, 1), 6: (1, 1), 12: (1.2, 0.6)}[depth]
        shift = rng.uniform(0, 0.05)
        for epoch in range(41):
            excess, norm = 3 * 10 ** (-epoch / 20), first + shift + slope * epoch / 40
            values = {"epoch": epoch, "loss": excess + LEAST, "excess_loss": excess, "norm": norm, "status": "done"}
            if (activations, depth, seed) == ("relu_mid", 12, 2) and epoch > 25:
                values |= dict.fromkeys(("loss", "excess_loss", "norm"), math.nan) | {"status": "diverged"}
            add("norms", TWO, depth, seed, activations, **values)
    for kind, depth, seed in itertools.product(ARCHITECTURES, DEPTHS, SEEDS):
        lost = (kind, depth, seed) == ((0, "xavier"), 12, 2)
        infinite = {"condition_number": math.inf, "p10_abs": 1e-18} if lost else {}
        add("initial_spectrum", kind, depth, seed, **numbers() | infinite)
    for n, depth in itertools.product((1, 2), DEPTHS):
        add("spectrum_at_zero", (n, "exact_zero"), depth, **numbers())
    for activations, kind, seed in itertools.product(("linear", "relu_mid"), (*PLAIN, TWO), SEEDS):
        lost = (activations, kind, seed) == ("linear", (0, "xavier"), 2)
        known = {"status": "diverged" if lost else "done", "learning_rate": 0.05}
        add("spectrum_at_losses", kind, DEPTH, seed, activations, **known)
        for place, excess in enumerate(np.geomspace(0.7, 0.02, 5)[: 3 if lost else 5]):
            known |= {"epoch": 7 * place, "loss": excess + LEAST, "excess_loss": excess} | numbers()
            if (activations, kind, seed, place) == ("linear", (0, "orthogonal"), 0, 4):
                known |= {"condition_number": math.inf, "p10_abs": 1e-19}
            add("spectrum_at_losses", kind, DEPTH, seed, activations, **known)
    for activations, depths in (("linear", DEPTHS), ("relu_mid", (2, 12))):
        for kind, depth, seed, rate in itertools.product(ARCHITECTURES, depths, SEEDS, (0.01, 0.1, 1.0)):
            loss = LEAST + 10 ** rng.uniform(-6, -1) * (1e-5 if (kind, depth) in SOLVED else 1)
            known = {"epoch": 1000, "learning_rate": rate, "status": "done", "loss": loss, "excess_loss": loss - LEAST}
            if activations == "relu_mid":
                known["perturbed_loss"] = loss * (1.5 if rate == 1.0 else 1 + 1e-6)
            if rate == 1.0 and seed == 2:
                known |= dict.fromkeys(("loss", "excess_loss"), math.nan) | {"status": "diverged", "perturbed_loss": ""}
            if kind[0] in ((0, 2) if activations == "relu_mid" else (0, 1, 2, 3)):
                add("learning_rates", kind, depth, seed, activations, **known)
    for epoch in range(41):
        values = {"epoch": epoch, "excess_loss": 3 * 10 ** (-epoch / 10), "status": "done"}
        values |= {"gradient_norm": 1 + np.exp(-((epoch - 9) ** 2)), "index": 0.4 - 0.3 * min(epoch / 30, 1) ** 2}
        add("single_run", TWO, DEPTH, 0, **values)
    for experiment, kinds in EXTREMES.items():
        for kind, epoch in itertools.product(kinds, range(41)):
            loss = LEAST + 10 ** rng.uniform(0, 2)
            add(experiment, kind, DEPTH, 0, epoch=epoch, loss=loss, excess_loss=loss - LEAST, status="done")
    for i, j in itertools.product(range(1, 5), repeat=2):
        block = str(rng.choice(["A", "A transposed", "zero"]))
        add("blocks_at_zero", (2, "exact_zero"), DEPTH, row_layer=i, column_layer=j, norm=float(i), block=block)
    for n, batch_norm, depth, seed in itertools.product((1, 2, 3), (0, 1), (6, 12), SEEDS):
        for initialisation in ("small",) if batch_norm else ("small", "standard"):
            known = {"batch_norm": batch_norm, "status": "done"} | numbers()
            add("convolutional", (n, initialisation), depth, seed, "relu", **known)
    return [row for row in rows if not row["shortcut_depth"] or row["depth"] % row["shortcut_depth"] == 0]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The made-up rows as a finished study of the paper's size: the rows, the figures, and the findings by figure."""
    run_dir = tmp_path_factory.mktemp("made_up") / "study"
    begin(run_dir, config_of("shortcut_study", *MADE_UP), "shortcut_study", status="done", num_examples=4000)
    ref.write_table(run_dir / "results.csv", made_up_rows())
    network = {"shortcut_depth": 1, "initialisation": "zero", "depth": 2}
    ref.write_table(run_dir / "eigenvalues.csv", [network | {"eigenvalue": value} for value in (-1.0, 2.0)])
    study = finished("shortcut_study", run_dir, *MADE_UP)
    assert "is already finished" in study.out and len(study.figures) == 10
    return study.rows("results"), study.figures, *ref.markdown_tables(study.out)


def findings_of(told, figure):
    """The answer, the numbers in words and the number of runs of each statement about a figure."""
    return [(answer, text, int(count)) for name, _, answer, text, count in told[2] if name == figure]


def kind_of(rows, kind):
    return ref.select(rows, shortcut_depth=kind[0], initialisation=kind[1])


def test_the_seconds_are_the_sums_over_jobs(told):
    rows, _, _, seconds = told
    for experiment, activations, total in seconds:
        jobs = {row["job"] for row in ref.select(rows, experiment=experiment, activations=activations)}
        assert float(total) == 2.0 * len(jobs)


def test_figure_3_and_its_findings_are_those_of_the_rows(told):
    figure = told[1]["figure_3"]
    left, right, final = figure.axes
    for axes, activations, loss, findings in (
        (left, "linear", "excess_loss", findings_of(told, "3")[:2]),
        (right, "relu_mid", "loss", findings_of(told, "3")[2:]),
    ):
        rows = ref.select(told[0], experiment="norms", activations=activations)
        assert axes.get_xscale() == "log" and axes.get_ylabel() == STUDY["norm"]
        assert axes.get_xlabel() == STUDY["excess" if loss == "excess_loss" else "loss"]
        by_depth = {depth: ref.select(rows, depth=depth) for depth in DEPTHS}
        for depth, chosen in by_depth.items():
            ref.assert_band(axes, str(depth), chosen, loss, "norm", log=False)
        last = [row for row in rows if row["epoch"] == 40]
        ends = ref.by_place(last, "depth", "norm")
        means = [10**mean for mean, _ in ends.values()]
        ref.assert_bars(ref.labelled(final)[STUDY[activations]], DEPTHS, means, *zip(*ref.spreads(ends).values()))
        plain = [mean for mean, _ in ref.by_place(last, "depth", "norm", log=False).values()]
        power = np.polyfit(np.log10(DEPTHS), np.log10(plain), 1)[0]
        (answer, text, count), (other_answer, other_text, _) = findings
        ref.assert_numbers(text, *np.ravel(list(zip(plain, DEPTHS))), power)
        assert answer == ANSWERS[plain[0] > plain[1] > plain[2]] and count == (3 if loss == "excess_loss" else 2)
        grid = np.linspace(*np.log10([by_depth[2][40][loss], by_depth[2][0][loss]]), 20)[1:-1]
        runs = (ref.values_at(ref.runs_along(chosen, loss, "norm", log=False), grid) for chosen in by_depth.values())
        curves = np.array([np.nanmean([*values.values()], axis=0) for values in runs])
        share = np.mean((curves[0] > curves[1]) & (curves[1] > curves[2]))
        assert 0.1 < share < 0.9 and share != np.mean(np.diff(curves, axis=0) < 0)
        ref.assert_numbers(other_text, share, by_depth[2][0][loss], by_depth[2][40][loss])
        assert other_answer == ANSWERS[False]
        if loss == "excess_loss":
            ref.assert_line(ref.labelled(final)[STUDY["guide"]], DEPTHS, means[0] * (2 / np.array(DEPTHS)) ** 0.5)
    ref.assert_legend(figure.legends[0], (left, right))


def test_figure_5_and_its_findings_are_those_of_the_rows(told):
    rows, figure = ref.select(told[0], experiment="initial_spectrum"), told[1]["figure_5"]
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_ylabel()) == ("log", "log", STUDY["condition number"])
    bands = {kind: ref.by_place(kind_of(rows, kind), "depth", "condition_number") for kind in ARCHITECTURES}
    for kind, band in bands.items():
        means = [10**mean for mean, _ in band.values()]
        ref.assert_bars(ref.labelled(axes)[ARCHITECTURES[kind]], [*band], means, *zip(*ref.spreads(band).values()))
    assert ref.labelled(axes)[STUDY["infinite"]].get_xdata().tolist() == [12]
    at_zero = {n: ref.select(told[0], experiment="spectrum_at_zero", shortcut_depth=n) for n in (1, 2)}
    for n, chosen in at_zero.items():
        line = ref.labelled(axes)[STUDY["at zero"].format(n)]
        ref.assert_line(line, DEPTHS, ref.column(chosen, "condition_number"))
    ref.assert_legend(figure.legends[0], [axes])
    series = {k: np.ravel([(10**mean, depth) for depth, (mean, _) in band.items()]) for k, band in bands.items()}
    powers = {k: np.polyfit(np.log10([*b]), [mean for mean, _ in b.values()], 1)[0] for k, b in bands.items()}
    two, xavier, orthogonal, slower = findings_of(told, "5")
    ref.assert_numbers(two[1], *series[TWO], at_zero[2][0]["condition_number"])
    ref.assert_numbers(xavier[1], *series[0, "xavier"], 12)
    ref.assert_numbers(orthogonal[1], *series[0, "orthogonal"])
    ref.assert_numbers(slower[1], powers[0, "orthogonal"], powers[0, "xavier"])
    assert slower[0] == ANSWERS[bool(powers[0, "orthogonal"] < powers[0, "xavier"])]
    assert {count for *_, count in (two, xavier, orthogonal, slower)} == {3}


def assert_along_losses(told, figure, activations, loss):
    """Checks the three panels of Figure 6 or 7, and returns their rows by architecture."""
    rows = ref.select(told[0], experiment="spectrum_at_losses", activations=activations)
    by_kind = {kind: kind_of(rows, kind) for kind in (*PLAIN, TWO)}
    for axes, name in zip(figure.axes, SPECTRUM):
        assert (axes.get_title(), axes.get_xscale(), axes.get_yscale()) == (STUDY[name], "log", "log")
        assert axes.get_xlabel() == STUDY["excess" if activations == "linear" else "loss"]
        for kind, chosen in by_kind.items():
            is_ratio = name in ("p10_abs", "condition_number")
            lost = [row for row in chosen if is_ratio and row["condition_number"] == math.inf]
            known = [row | {name: math.nan} if row in lost else row for row in chosen]
            ref.assert_band(axes, ARCHITECTURES[kind], known, loss, name)
            colour = ref.colour_of(dict(ref.drawn_names(axes))[ARCHITECTURES[kind]])
            (points,) = [line for line in axes.lines if line.get_marker() == "." and ref.colour_of(line) == colour]
            finite = [row for row in known if row[loss] != "" and math.isfinite(row[name])]
            ref.assert_line(points, ref.column(finite, loss), ref.column(finite, name))
    return by_kind


def compared(by_kind, kind, loss, name, log=True):
    """2-shortcut and another architecture along the losses that both pass, and their difference by seed."""
    known = {
        k: [row | {name: 2.0**52} if row[name] == math.inf else row for row in by_kind[k]] for k in (TWO, kind)
    }  # an infinite one counts as the largest that float64 resolves
    runs = {k: ref.runs_along(rows, loss, name, log) for k, rows in known.items()}
    ends = [[(run[0].min(), run[0].max()) for run in some.values()] for some in runs.values()]
    # Where fewer than half of the runs are there is no mean.
    low = max(sorted(low for low, _ in some)[1] for some in ends)
    high = min(sorted(high for _, high in some)[1] for some in ends)
    grid = np.linspace(low, high, 40)
    means = [np.nanmean([*ref.values_at(some, grid).values()], axis=0) for some in runs.values()]
    differences, curves, growths = [], [], []
    for seed in SEEDS:
        two, other = runs[TWO][seed], runs[kind][seed]
        shared = np.linspace(max(two[0].min(), other[0].min()), min(two[0].max(), other[0].max()), 40)
        along = np.interp(shared, *other) - np.interp(shared, *two)
        differences.append(along.mean())
        growths.append(along[-1] - along[0])
        inside = (grid >= shared[0] - 1e-9) & (grid <= shared[-1] + 1e-9)
        curves.append(np.where(inside, np.interp(grid, *other) - np.interp(grid, *two), np.nan))
    return grid, *means, np.array(differences), np.array(curves), np.array(growths)


def p_of(differences):
    return stats.ttest_1samp(differences, 0).pvalue


def assert_smaller(finding, by_kind, kind, loss, name, log=True):
    """Checks the finding that a quantity of 2-shortcut networks is smaller than that of others at all losses."""
    grid, two, other, differences, curves, _ = compared(by_kind, kind, loss, name, log)
    is_larger = two >= other
    chosen = [curve[is_larger & np.isfinite(curve)] for curve in curves]
    somewhere = np.array([values.mean() for values in chosen if len(values)])
    numbers = [np.mean(~is_larger)]
    if log:
        numbers += [10 ** grid[-1], 10 ** grid[0], 10 ** (other - two)[-1], 10 ** (other - two)[0]]
    else:
        numbers += [two.mean(), other.mean()]
    numbers += [3, p_of(differences), p_of(somewhere)]
    lost = kind == (0, "xavier") and loss == "excess_loss"
    answer, text, count = finding
    ref.assert_numbers(text, *numbers, *([1, 3] if lost else []), slack=1.6)
    assert answer == ANSWERS[False if p_of(somewhere) < 0.05 and somewhere.mean() < 0 else None] and count == 3


def test_figure_6_and_its_findings_are_those_of_the_rows(told):
    figure = told[1]["figure_6"]
    by_kind = assert_along_losses(told, figure, "linear", "excess_loss")
    at_zero = ref.select(told[0], experiment="spectrum_at_zero", shortcut_depth=2)[0]
    start = [row for row in by_kind[TWO] if row["epoch"] == 0][0]
    for axes, name in zip(figure.axes, SPECTRUM):
        star = ref.labelled(axes)[STUDY["start at zero"]]
        ref.assert_line(star, [start["excess_loss"]], [at_zero[name]])
    mark = ref.labelled(figure.axes[2])[STUDY["infinite along"].format(ARCHITECTURES[0, "orthogonal"])]
    assert mark.get_xdata() == pytest.approx([0.02])
    ref.assert_legend(figure.legends[0], figure.axes)
    orthogonal, xavier, large, near = findings_of(told, "6")
    assert_smaller(orthogonal, by_kind, PLAIN[0], "excess_loss", "condition_number")
    assert_smaller(xavier, by_kind, PLAIN[1], "excess_loss", "condition_number")
    numbers = []
    for kind in PLAIN:
        growth = compared(by_kind, kind, "excess_loss", "condition_number")[-1]
        numbers += [10 ** growth.mean(), 3, p_of(growth)]
    ref.assert_numbers(large[1], *numbers, 1, 3, slack=1.6)
    grid, *_, curves, _ = compared(by_kind, PLAIN[0], "excess_loss", "condition_number")
    ends = curves[:, 0]
    beyond = p_of(np.sign(ends.mean()) * ends - np.log10(3))
    ratios = 10 ** np.array([ends.mean(), ends.min(), ends.max()])
    ref.assert_numbers(near[1], *ratios, 10 ** grid[0], beyond, 3)
    assert near[0] == ANSWERS[bool(abs(ends.mean()) < np.log10(3)) or (False if beyond < 0.05 else None)]


def test_figure_7_and_its_findings_are_those_of_the_rows(told):
    figure = told[1]["figure_7"]
    by_kind = assert_along_losses(told, figure, "relu_mid", "loss")
    assert {axes.get_xlim()[1] for axes in figure.axes} == {1.1}
    ref.assert_legend(figure.legends[0], figure.axes)
    for finding, kind in zip(findings_of(told, "7"), PLAIN):
        assert_smaller(finding, by_kind, kind, "loss", "condition_number")


def test_figure_8_and_its_findings_are_those_of_the_rows(told):
    by_loss, by_epoch, of_gradient = told[1]["figure_8"].axes
    rows = ref.select(told[0], experiment="spectrum_at_losses", activations="linear")
    by_kind = {kind: kind_of(rows, kind) for kind in (*PLAIN, TWO)}
    for kind, chosen in by_kind.items():
        ref.assert_band(by_loss, ARCHITECTURES[kind], chosen, "excess_loss", "index", log=False)
    assert (by_loss.get_ylabel(), by_epoch.get_ylabel()) == (STUDY["index"], "index")
    assert of_gradient.get_ylabel() == STUDY["gradient"] and by_epoch.get_xscale() == "log"
    run = ref.select(told[0], experiment="single_run")
    epochs, index, slopes = (ref.column(run, name) for name in ("epoch", "index", "gradient_norm"))
    ref.assert_line(by_epoch.lines[0], epochs + 1, index)
    ref.assert_line(of_gradient.lines[0], epochs + 1, slopes)
    assert ref.colour_of(by_epoch.lines[0]) != ref.colour_of(of_gradient.lines[0])
    assert by_epoch.yaxis.label.get_color() == by_epoch.lines[0].get_color()
    orthogonal, xavier, drop, steepest = findings_of(told, "8")
    assert_smaller(orthogonal, by_kind, PLAIN[0], "excess_loss", "index", log=False)
    assert_smaller(xavier, by_kind, PLAIN[1], "excess_loss", "index", log=False)
    falls = []
    for seed in SEEDS:
        taken = [row for row in ref.select(by_kind[TWO], seed=seed) if row["index"] != ""]
        half = [row["excess_loss"] <= taken[0]["excess_loss"] / 2 for row in taken].index(True)
        values = [row["index"] for row in taken]
        falls.append((values[0], min(values[: half + 1]), min(values)))
    ref.assert_numbers(drop[1], *np.mean(falls, axis=0))
    fall = index[0] - index.min()
    first, last = (epochs[np.argmax(index <= index[0] - part * fall)] for part in (0.1, 0.9))
    ref.assert_numbers(steepest[1], epochs[slopes.argmax()], 0.1, first, 0.9, last)
    assert steepest[0] == ANSWERS[bool(first - 1 <= epochs[slopes.argmax()] <= last)] and steepest[2] == 1


def best_rates(rows, loss):
    """By depth: the learning rate of the lowest mean final loss, and the losses by seed there."""
    best = {}
    for depth in sorted({row["depth"] for row in rows}):
        means = {}
        for rate in (0.01, 0.1, 1.0):
            chosen = ref.select(rows, depth=depth, learning_rate=rate)
            if {row["status"] for row in chosen} == {"done"}:  # at 1.0 a seed diverges
                means[rate] = ref.column(chosen, loss)
        rate = min(means, key=lambda rate: means[rate].mean())
        best[depth] = rate, means[rate]
    return best


def assert_final_losses(figure, rows, loss):
    """Checks both panels of Figure 9 or 10; returns the best rates by architecture."""
    final, winner = figure.axes
    is_linear = loss == "excess_loss"
    assert (final.get_ylabel(), winner.get_ylabel()) == (STUDY["excess" if is_linear else "loss"], "learning rate")
    best = {kind: best_rates(chosen, loss) for kind in ARCHITECTURES if (chosen := kind_of(rows, kind))}
    for kind, by_depth in best.items():
        means = np.array([losses.mean() for _, losses in by_depth.values()])
        factors = 10 ** np.array([ref.spread(np.log10(losses)) for _, losses in by_depth.values()])
        name = ARCHITECTURES[kind]
        ref.assert_bars(ref.labelled(final)[name], [*by_depth], means, means / factors, means * factors)
        ref.assert_line(ref.labelled(winner)[name], [*by_depth], [rate for rate, _ in by_depth.values()])
        assert ref.colour_of(ref.labelled(winner)[name]) == ref.colour_of(ref.labelled(final)[name])
    assert "after 1000 epochs" in final.get_title() and "3 runs" in final.get_title()
    return best


def assert_lower(findings, best, others):
    """Checks the findings that deep 2-shortcut networks end lower than each of the others."""
    for (answer, text, count), kind in zip(findings, others, strict=True):
        ratios = {d: best[kind][d][1].mean() / best[TWO][d][1].mean() for d in best[kind] if d in best[TWO]}
        differences = np.log10(best[kind][12][1] / best[TWO][12][1])
        ref.assert_numbers(text, *np.ravel([(ratio, d) for d, ratio in ratios.items()]), 3, p_of(differences))
        is_significant = p_of(differences) < 0.05
        assert answer == ANSWERS[bool(ratios[12] > 1) if is_significant else None] and count == 3


def test_figure_9_and_its_findings_are_those_of_the_rows(told):
    figure = told[1]["figure_9"]
    rows = ref.select(told[0], experiment="learning_rates", activations="linear")
    best = assert_final_losses(figure, rows, "excess_loss")
    for n in (1, 2):
        largest = ref.column(ref.select(told[0], experiment="spectrum_at_zero", shortcut_depth=n), "max_abs")
        line = ref.labelled(figure.axes[1])[STUDY["stable"].format(ARCHITECTURES[n, "zero"])]
        ref.assert_line(line, DEPTHS, 2 / largest)
    ref.assert_legend(figure.legends[0], figure.axes)
    near, *lower, xavier, orthogonal, alike = findings_of(told, "9")
    means = {kind: {d: losses.mean() for d, (_, losses) in by_depth.items()} for kind, by_depth in best.items()}
    close = [d for kind in means if kind != TWO for d, mean in means[kind].items() if mean < 1e-4 * LEAST]
    ref.assert_numbers(near[1], *np.ravel([(mean, d) for d, mean in means[TWO].items()]), LEAST, *close)
    assert near[0] == ANSWERS[all(mean < 1e-4 * LEAST for mean in means[TWO].values())]
    assert_lower(lower, best, [kind for kind in ARCHITECTURES if kind != TWO])
    for (answer, text, _), kind in ((xavier, (0, "xavier")), (orthogonal, (0, "orthogonal"))):
        ratio = best[TWO][12][0] / best[kind][12][0]
        ref.assert_numbers(text, ratio, 12)
        assert answer == ANSWERS[ratio > 1]
    pairs = {d: (mean, means[0, "orthogonal"][d]) for d, mean in means[1, "zero"].items()}
    ref.assert_numbers(alike[1], *np.ravel([(one / other, d) for d, (one, other) in pairs.items()]), 6)  # 6: solved
    ratios = [one / other for one, other in np.maximum([*pairs.values()], 1e-4 * LEAST)]
    assert alike[0] == ANSWERS[all(1 / 3 < ratio < 3 for ratio in ratios)]


def test_figure_10_and_its_findings_are_those_of_the_rows(told):
    figure = told[1]["figure_10"]
    rows = ref.select(told[0], experiment="learning_rates", activations="relu_mid")
    best = assert_final_losses(figure, rows, "loss")
    crosses = [line for line in figure.axes[1].lines if line.get_marker() == "+" and len(line.get_xdata())]
    for cross in crosses:  # at 1.0 the loss of a perturbed start is 1.5 times as large
        ref.assert_line(cross, (2, 12), (0.1, 0.1))
    assert len(crosses) == 3 and STUDY["insensitive"] in ref.labelled(figure.axes[1])
    *deepest, orthogonal, xavier = findings_of(told, "10")
    for (answer, text, _), (kind, by_depth) in zip(deepest, best.items()):
        means = [losses.mean() for _, losses in by_depth.values()]
        ref.assert_numbers(text, means[0], 2, means[1], 12, 0.1, 2, 0.1, 12)
        assert answer == ANSWERS[bool(means[1] <= 1.1 * min(means)) == (kind == TWO)]
    assert_lower((orthogonal, xavier), best, [kind for kind in best if kind != TWO])


def test_figure_4_and_its_findings_are_those_of_the_rows(told):
    panels = told[1]["figure_4"].axes
    for axes, (experiment, kinds), names, finding in zip(
        panels, EXTREMES.items(), zip(STUDY["extremes"], STUDY["equivalents"]), findings_of(told, "4"), strict=True
    ):
        losses = []
        for kind, name in zip(kinds, names):
            rows = kind_of(ref.select(told[0], experiment=experiment), kind)
            losses.append(ref.column(rows, "loss"))
            ref.assert_line(ref.labelled(axes)[name], np.arange(41) + 1, losses[-1])
        assert (axes.get_xscale(), axes.get_yscale(), axes.get_xlabel()) == ("log", "log", "epoch + 1")
        assert axes.get_ylabel() == STUDY["loss"]
        ref.assert_numbers(finding[1], np.abs(losses[1] / losses[0] - 1).max(), 40)
        assert finding[0] == ANSWERS[False] and finding[2] == 1


def test_figure_11_and_its_findings_are_those_of_the_rows(told):
    figure = told[1]["figure_11"]
    (axes,) = figure.axes
    rows = ref.select(told[0], experiment="blocks_at_zero")
    places = {(row["row_layer"], row["column_layer"]): row["block"] for row in rows}
    drawn = {}
    for patch in axes.patches:
        x, y = patch.get_xy()
        assert (patch.get_width(), patch.get_height()) == (1, 1)
        drawn[y + 0.5, x + 0.5] = patch.get_facecolor(), patch.get_hatch()
    assert drawn.keys() == {place for place, block in places.items() if block != "zero"}
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    counts = {block: [*places.values()].count(block) for block in STUDY["blocks"]}
    assert texts == [STUDY["blocks"][block].format(count) for block, count in counts.items()]
    styles = {b: (patch.get_facecolor(), patch.get_hatch()) for b, patch in zip(counts, legend.get_patches())}
    assert drawn == {place: styles[block] for place, block in places.items() if block != "zero"}
    assert len(set(styles.values())) == 3
    assert axes.get_ylim() == (4.5, 0.5) and axes.get_xlim() == (0.5, 4.5)  # row 1 on top
    only, same = findings_of(told, "11")
    pairs = [place for place in places if place[0] != place[1] and sum(place) in (3, 7)]
    filled = [place for place, block in places.items() if block != "zero"]
    ref.assert_numbers(only[1], len(filled), 16, 0, len(set(filled) & set(pairs)))
    assert only[0] == same[0] == ANSWERS[False]
    below = [place for place in pairs if place[0] > place[1] and place in filled]
    above = [place for place in pairs if place[0] < place[1] and place in filled]
    equal = [sum(places[place] == name for place in side) for side, name in ((below, "A"), (above, "A transposed"))]
    ref.assert_numbers(same[1], equal[0], len(below), equal[1], len(above))


def test_the_convolutional_figure_and_its_findings_are_those_of_the_rows(told):
    figure = told[1]["figure_convolutional"]
    rows = ref.select(told[0], experiment="convolutional")
    findings = findings_of(told, "convolutional")
    for column, batch_norm in enumerate((0, 1)):
        for panel, name in ((figure.axes[column], "condition_number"), (figure.axes[2 + column], "max_abs")):
            assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
            assert panel.get_ylabel() == ("" if column else STUDY[f"conv {name}"])
            chosen = ref.select(rows, batch_norm=batch_norm)
            for n, kind in {(row["shortcut_depth"], row["initialisation"]) for row in chosen}:
                band = ref.by_place(ref.select(chosen, shortcut_depth=n, initialisation=kind), "depth", name)
                line = ref.labelled(panel)[STUDY["convolutions"].format(int(n), kind)]
                ref.assert_line(line, [*band], [10**mean for mean, _ in band.values()])
                ref.assert_area(panel, ref.colour_of(line), ref.spreads(band))
    variants = ((0, "small"), (0, "standard"), (1, "small"))
    for (answer, text, count), (batch_norm, kind) in zip(findings, variants, strict=True):
        numbers = []
        for n in (1, 2, 3):
            chosen = ref.select(rows, batch_norm=batch_norm, initialisation=kind, shortcut_depth=n)
            band = ref.by_place(chosen, "depth", "condition_number")
            numbers += [n, *np.ravel([(10**mean, depth) for depth, (mean, _) in band.items()])]
        ref.assert_numbers(text, *numbers)
        assert answer == ANSWERS[max(numbers[6], numbers[8]) < 1.1 * min(numbers[6], numbers[8])] and count == 3
