"""docs/runs/study_mnist, the study of Li et al. at the paper's size: each number of its two pages that the run has."""

import functools
import json
import pathlib
import re

import numpy as np
import pytest

from identity_matters.runs.tables import read_rows
from shortcut_study.aggregation import best_rates, over_seeds, rows_of_architecture, select
from shortcut_study.architectures import LINEAR, ONE, ORTHOGONAL, RELU_MID, THREE, TWO, XAVIER
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.finding import DEEP, compare_along_loss, p_value, slope
from shortcut_study.report import figures_with_data, seconds_by_experiment

DOCS = pathlib.Path(__file__).parents[1] / "docs"
RUN = DOCS / "runs" / "study_mnist"
PAGE, DETAILS = DOCS / "papers" / "li_et_al.md", DOCS / "appendix" / "shortcut_study.md"
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@functools.cache
def rows(experiment, activations=LINEAR, **columns):
    return select(table(), experiment=experiment, activations=activations, **columns)


@functools.cache
def table():
    return read_rows(str(RUN / "results.csv"))


def power(x, digits=0):
    """Returns 1940000 as 2·10⁶."""
    factor, exponent = f"{x:.{digits}e}".split("e")
    return f"{factor}·10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def two_digits(x):
    """Returns 12744 as 13,000."""
    return f"{float(f'{x:.2g}'):,.0f}"


def by_depth(experiment, activations, arch, quantity, log=True, **columns):
    """Returns mean and spread over the seeds by depth; of log₁₀ if asked for."""
    found = rows_of_architecture(rows(experiment, activations, **columns), arch)
    band = over_seeds(found, "depth", quantity, log)
    return {depth: (10**mean if log else mean, std) for depth, mean, std in zip(band.x, band.mean, band.std)}


def conditions(arch):
    return {depth: mean for depth, (mean, _) in by_depth("initial_spectrum", LINEAR, arch, "condition_number").items()}


def compared(arch, activations=LINEAR, seeds=10):
    loss = "excess_loss" if activations == LINEAR else "loss"
    found = [row for row in rows("spectrum_at_losses", activations) if row["seed"] < seeds]
    return compare_along_loss(found, arch, loss, "condition_number")


def growth(arch, activations=LINEAR):
    """Returns log₁₀ of the ratio at each seed's highest loss over that at its lowest."""
    ends = compared(arch, activations).ends
    return ends[:, 1] - ends[:, 0]


def best(arch, activations=LINEAR):
    return best_rates(
        rows_of_architecture(rows("learning_rates", activations), arch),
        "excess_loss" if activations == LINEAR else "loss",
    )


def factors(arch, activations=LINEAR):
    """Returns the best final loss of an architecture over that of 2-shortcut networks, by depth from 12 on."""
    two = best(TWO, activations)
    return {depth: other.mean / two[depth].mean for depth, other in best(arch, activations).items() if depth >= DEEP}


def span(values, form=two_digits):
    return f"{form(min(values))}–{form(max(values))}"


def at_0_0021():
    """Returns log₁₀ of orthogonal over 2-shortcut condition numbers at an excess loss of 0.0021, by seed."""
    ratios = []
    for seed in range(10):
        values = []
        for arch in (TWO, ORTHOGONAL):
            run = rows_of_architecture(rows("spectrum_at_losses", seed=seed), arch)
            points = sorted((np.log10(r["excess_loss"]), np.log10(r["condition_number"])) for r in run if r["loss"])
            values.append(np.interp(np.log10(0.0021), *zip(*points), left=np.nan))
        ratios.append(values[1] - values[0])
    return np.array(ratios)


def start_and_meeting():
    start, plain, xavier = conditions(TWO), conditions(ORTHOGONAL), conditions(XAVIER)
    pair = compared(ORTHOGONAL)
    meet = 10 ** pair.grid[pair.two >= pair.other]
    ends = pair.curves[:, 0][np.isfinite(pair.curves[:, 0])]
    lowest = 10 ** pair.grid[0]
    later = at_0_0021()
    low, high = 10 ** np.array([ends.min(), ends.max()])
    spread = by_depth("initial_spectrum", LINEAR, TWO, "condition_number", log=False)[96][1]
    yield f"is {start[2]:.2f} at depth 2 and {start[96]:.2f} at 96"
    yield f"grows to {plain[96]:.0f} (orthogonal) and beyond float64 (Xavier)"
    yield f"{start[2]:.3f} at depth 2, {start[96]:.3f} ± {spread:.3f} at 96"
    yield f"orthogonal {plain[2]:.2f} to {plain[96]:.0f}; Xavier {xavier[2]:.0f} at depth 2, beyond float64 at 48"
    powers = [
        slope(np.array([*c]), np.log10([*c.values()])) for c in (plain, {d: xavier[d] for d in (2, 3, 6, 12, 24)})
    ]
    yield r"as $\text{{depth}}^{{{:.1f}}}$ against $\text{{depth}}^{{{:.1f}}}$".format(*powers)
    one, three = conditions(ONE), conditions(THREE)
    yield f"1-shortcut networks grow from {one[2]:.2f} to {one[96]:.0f}; 3-shortcut ones stay at "
    yield f"stay at {span(three.values(), '{:.0f}'.format)}"
    apart = f"{10 ** np.mean(ends):.0f} times apart at {lowest:.3g}"
    yield f"{apart} ({low:.1f}–{float(f'{high:.3g}'):,.0f}, the {len(ends)} seeds"
    yield f"p = {p_value(ends - np.log10(3)):.1g} against this study's limit of 3"
    yield f"which all {np.isfinite(later).sum()} reach, it is {10 ** later.mean():.0f} times "
    yield f"times ({10 ** later.min():.2f}–"
    yield f"–{float(f'{10 ** later.max():.3g}'):,.0f}), which could be 3 (p = {p_value(later - np.log10(3)):.2g})"
    yield f"losses of {meet.max():.2g}–{meet.min():.1g}; {10 ** np.mean(ends):.0f} times at {lowest:.3g}"
    yield f"{10 ** (pair.other - pair.two)[-1]:.0f} times at the start"
    yield f"open at {(pair.two >= pair.other).mean():.0%}".replace("%", " %")


def along_the_descent():
    high, low = (10 ** (compared(XAVIER).other - compared(XAVIER).two)[i] for i in (-1, 0))
    yield f"{power(high)} times at the highest common loss, {power(low)} at the lowest"
    plain, xavier = growth(ORTHOGONAL), growth(XAVIER)
    yield f"on average {10 ** -plain.mean():.0f} times smaller at a seed's highest loss"
    yield f"(p = {p_value(plain):.1g}); Xavier: {10 ** xavier.mean():.0f} times larger"
    assert p_value(xavier) < 1e-5
    relu = [compared(arch, RELU_MID) for arch in (ORTHOGONAL, XAVIER)]
    ends = [power(10 ** (pair.other - pair.two)[0]) for pair in relu]
    chance = ", ".join(f"{p_value(pair.differences):.1g}" for pair in relu)
    high, low = (10 ** relu[0].grid[i] for i in (-1, 0))
    yield f"at losses near {high:.1f}; {ends[0]} and {ends[1]} at {low:.2f} (p = {chance})"
    assert {power(10 ** (pair.other - pair.two)[-1]) for pair in relu} == {"2·10⁶"}
    yield "2·10⁶ times at losses near"
    assert {f"{p_value(growth(arch, RELU_MID)):.1g}" for arch in (ORTHOGONAL, XAVIER)} == {"0.3"}
    yield "the ratios are no larger at large losses (p = 0.3)"


def index():
    for arch, where in ((ORTHOGONAL, "|holds|"), (XAVIER, "; no significant difference at an excess loss of 0.08|")):
        pair = compare_along_loss(rows("spectrum_at_losses"), arch, "excess_loss", "index", log=False)
        yield f"{100 * pair.two.mean():.1f} against {100 * pair.other.mean():.1f} %{where}"
        not_smaller = 10 ** pair.grid[pair.two >= pair.other]
        assert [f"{loss:.2f}" for loss in not_smaller] == ([] if arch == ORTHOGONAL else ["0.08"])
    *_, drop, gradient = (finding.numbers for finding in FIGURES["8"].findings(table()))
    first, least = re.findall(r"[\d.]+(?=%)", drop)[::2]
    yield f"{first} to {least} %"
    largest, begins, ends = re.findall(r"(?:epoch |by )(\d+)", gradient.replace("90 % by", "by"))
    yield f"the drop is at epochs {begins}–{ends}, the maximum at {largest}"


def learning_rates():
    two = best(TWO)
    yield f"below {power(1.4e-5, 1)} to depth 96" if max(b.mean for b in two.values()) < 1.4e-5 else "too high"
    deep = {arch: factors(arch).values() for arch in (ORTHOGONAL, XAVIER, ONE, THREE)}
    yield f"{span(deep[ORTHOGONAL])} times than orthogonal, {span(deep[XAVIER], power)} Xavier, "
    yield f"{span(deep[ONE])} 1-shortcut, {span(deep[THREE])} 3-shortcut"
    yield f"reach excess losses {span(deep[ORTHOGONAL])} times lower"
    rates = [
        [two[depth].rate / other.rate for depth, other in best(arch).items() if depth >= DEEP and other.learned]
        for arch in (ORTHOGONAL, XAVIER)
    ]
    yield "{} times orthogonal's, {} times Xavier's".format(*(span(pair, "{:.3g}".format) for pair in rates))
    one, plain = best(ONE), best(ORTHOGONAL)
    yield f"within a factor {max(one[d].mean / plain[d].mean for d in one if d >= 6):.1f} from depth 6"
    relu = {arch: {depth: b.mean for depth, b in best(arch, RELU_MID).items()} for arch in (TWO, XAVIER, ORTHOGONAL)}
    yield f"loss {relu[TWO][64]:.3f} at depth 64, {relu[TWO][2]:.2f} at 2"
    times = [", ".join(f"{x:.2g}" for x in factors(arch, RELU_MID).values()) for arch in (ORTHOGONAL, XAVIER)]
    yield "at depths 16, 32, 64 {} times (orthogonal), {} (Xavier)".format(*times)
    (a, b), (c, d) = ([relu[arch][depth] for depth in (8, 32)] for arch in (XAVIER, ORTHOGONAL))
    yield f"Xavier {a:.2f} at depth 8, {b:.2f} at 32; orthogonal {c:.2f}, {d:.2f}; both {relu[XAVIER][64]:.3f} at 64"
    assert relu[ORTHOGONAL][64] == pytest.approx(relu[XAVIER][64], abs=5e-4)


def norms_and_convolutions():
    ends = []
    for activations in (LINEAR, RELU_MID):
        last = rows("norms", activations, epoch=3_000)
        band = over_seeds(last, "depth", "norm", log=False)
        ends.append((band.mean[0], band.mean[-1], slope(band.x, np.log10(band.mean))))
    (a, b, p), (c, d, q) = ends
    yield f"falls from {a:.2f} at depth 2 to {b:.3f} at 96 (linear) and from {c:.2f} to {d:.3f} (ReLUs)"
    yield rf"as $\text{{depth}}^{{{p:.2f}}}$ and $\text{{depth}}^{{{q:.2f}}}$"
    small = [
        select(rows("convolutional", "relu"), initialisation="small", batch_norm=0, shortcut_depth=n) for n in (1, 2)
    ]
    one, two = (10 ** over_seeds(found, "depth", "condition_number").mean for found in small)
    yield f"varies by a factor of {two.max() / two.min():.1f} from 6 to 24 convolutions, the 1-shortcut one grows "
    yield f"one grows {one[-1] / one[0]:.1f} times"


# Of each figure, statements that hold, that the seeds leave open, and that do not hold.
VERDICTS = {"3": (4, 0, 0), "5": (4, 0, 0), "6": (1, 1, 2), "7": (2, 0, 0), "8": (3, 1, 0), "9": (8, 0, 0)}
VERDICTS |= {"10": (5, 0, 0), "convolutional": (0, 0, 3)}


def counts_and_time():
    verdicts = {name: [finding.holds for finding in figure.findings(table())] for name, figure in FIGURES.items()}
    counts = {name: tuple(map(holds.count, (True, None, False))) for name, holds in verdicts.items()}
    assert counts == VERDICTS and set(figures_with_data(table())) == set(FIGURES)
    found = [holds for name, of_figure in verdicts.items() if name.isdigit() for holds in of_figure]
    words = {2: "two"}
    yield f"**Of the paper's {len(found)} statements about its figures {found.count(True)} hold**"
    yield f"{words[found.count(None)]} are open at some losses"
    yield f"and {words[found.count(False)]} do not hold"
    record = json.loads((RUN / "config.json").read_text())
    assert record["versions"]["machine"] == "AMD EPYC, 2 cores"
    yield f"in {record['seconds'] / 60:.0f} minutes on 2 cores of an AMD EPYC"


def details():
    tested = [  # what is compared, and its seeds' differences
        (compared(XAVIER).differences, "|6|Xavier; orthogonal|{}; "),
        (compared(ORTHOGONAL).differences, "; {} (0.7 between 0.026 and 0.009)|"),
        (growth(XAVIER), "|6, larger ratio at large losses|Xavier; orthogonal|{}; "),
    ]
    yield from (form.format(power(p_value(differences))) for differences, form in tested)
    excess = {arch: {depth: b for depth, b in best(arch).items()} for arch in (TWO, ORTHOGONAL, XAVIER, ONE, THREE)}
    at_48 = {arch: factors(arch)[48] for arch in (ORTHOGONAL, XAVIER, ONE, THREE)}
    yield f"|9: excess at depth 48|{power(excess[TWO][48].mean)}|"
    yield f"|9: factor below Xavier|{power(at_48[XAVIER])}|"
    for arch, name in ((ORTHOGONAL, "orthogonal"), (ONE, "1-shortcut"), (THREE, "3-shortcut")):
        yield f"|9: – {name}|{two_digits(at_48[arch])}|"
    first = compared(ORTHOGONAL, seeds=5)
    yield f"|6: same as orthogonal, ratio|**{two_digits(10 ** (first.other - first.two)[0])}**|"
    largest = {arch: by_depth("initial_spectrum", LINEAR, arch, "max_abs")[96][0] for arch in (THREE, TWO)}
    yield f"of 3-shortcut networks is {largest[THREE]:.1g}, of 2-shortcut ones {largest[TWO]:.1f}"
    yield f"number is {power(conditions(XAVIER)[24], 1)} at depth 24"
    for start, batch_norm, name in (
        ("small", 0, "small"), ("standard", 0, "standard"), ("small", 1, "small, batch normalisation")
    ):  # fmt: skip
        found = rows("convolutional", "relu", initialisation=start, batch_norm=batch_norm)
        bands = [over_seeds(select(found, shortcut_depth=n), "depth", "condition_number") for n in (1, 2, 3)]
        cells = [", ".join(f"{float(f'{10**mean:.3g}'):,.0f}" for mean in band.mean) for band in bands]
        yield f"|{'|'.join([name, *cells])}|"
    seconds = seconds_by_experiment(table())
    names = (("initial_spectrum", LINEAR), ("learning_rates", RELU_MID), ("convolutional", "relu"))
    minutes = [f"{seconds[name] / 60:.0f}" for name in names]
    yield "Of the kept study's 166 minutes Figure 5 takes {}, Figure 10 {}, convolutions {} ".format(*minutes)


SECTIONS = (start_and_meeting, along_the_descent, index, learning_rates, norms_and_convolutions, counts_and_time)


@pytest.mark.parametrize("section, page", [*((s, PAGE) for s in SECTIONS), (details, DETAILS)])
def test_the_pages_have_the_numbers_of_the_run(section, page):
    text = " ".join(page.read_text().split())
    phrases = [phrase for phrase in section()]
    assert phrases and [phrase for phrase in phrases if phrase not in text] == []
