"""docs/runs, the measured runs: the docs print their numbers, and their commands train them."""

import json
import pathlib
import re
import shlex
import statistics

import pytest

from identity_matters.config import TrainConfig
from identity_matters.fields import from_json
from identity_matters.runs.tables import read_rows
from launch import config_flags, near_identity, train
from shortcut_study.curvature.quadrature import mean_eigenvalue
from shortcut_study.figures.spectrum import quadrature_from_rows
from tests import measured_runs

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUNS = sorted((DOCS / "runs").glob("*/config.json"))
TABLES = (DOCS / "appendix" / "tables.md").read_text()
# Pages that say what was found, and those on which all measured numbers stand.
FINDINGS = [*(DOCS / "papers" / f"{name}.md" for name in ("hardt_ma", "results", "near_identity")), ROOT / "README.md"]
SOURCES = TABLES + (DOCS / "appendix" / "runs.md").read_text()
# Numbers that are not of a run here: the paper's, published errors, and evaluations of weights that ship.
ELSEWHERE = {"6.38", "24.64", "35.29", "5.99 ± 0.14", "8.75", "8.91", "1.49 ± 0.05", "10.15"}
EVALUATED = {"0.50", "0.39", "10.76", "10.77", "10.50", "21.65", "45.98", "10.81 ± 0.19"}
# Smaller steps of the branches, which no command makes; and no errors: a share of hidden values, an eigenvalue.
OWN_OPTIMIZER = {"28.00 ± 0.51", "22.05", "24.30", "24.45", "26.90"}
NO_ERRORS = {"0.15", "0.34 ± 0.04"}
# tests/test_paper_runs.py computes these: differences, means and an eigenvalue of the networks of the paper's size.
COMPUTED = {"10.84 ± 0.13", "0.15 ± 0.30", "0.17 ± 0.29", "0.88 ± 0.31", "1.03 ± 0.30", "0.71 ± 0.30", "0.23 ± 0.02"}

# How the page on blocks prints ‖b(x)‖/‖x‖ over the blocks of a network.
MEDIAN_AND_SUM = (("{:.2f}", statistics.median), ("{:.1f}", sum))
# Networks of 55 narrow convolutions, with how each was trained, and of 19.
NARROW = sorted({path.parent.name[:-6] for path in RUNS if path.parent.name.startswith(("narrow_", "narrow3_muon"))})


def percentages(text: str) -> set[str]:
    """Returns the percentages of two decimals in a text, such as 11.66 ± 0.05, and what has a spread like that."""
    return set(re.findall(r"\d+\.\d\d ± \d+\.\d\d|\d+\.\d\d(?= %)", " ".join(text.split())))


def test_the_page_of_tables_is_that_of_the_runs():
    assert measured_runs.document() == TABLES, "python -m tests.measured_runs > docs/appendix/tables.md"


@pytest.mark.parametrize("page", FINDINGS, ids=lambda path: path.name)
def test_a_measured_number_on_a_page_of_findings_stands_in_the_tables(page):
    found = percentages(page.read_text())
    assert found and not found - percentages(SOURCES) - ELSEWHERE - EVALUATED - OWN_OPTIMIZER - NO_ERRORS - COMPUTED


def test_the_findings_have_the_headline_numbers_of_the_runs():
    pages = " ".join(" ".join(page.read_text().split()) for page in FINDINGS)
    headlines = [measured_runs.mean_error(names) for names in measured_runs.seed_groups().values()]
    headlines.remove(measured_runs.mean_error(measured_runs.seed_groups()["wide_bn_006"]))  # too high a rate
    for name in ("paper", "paper_muon", "long_bn_seed0"):
        headlines.append(measured_runs.mean_error([name]))
    assert len(headlines) == 18
    assert not [number for number in headlines if number not in pages]


# But for the second seed, whose summary tests/test_paper_runs.py compares.
BLOCKS_ON_PAGE = [path for path in RUNS if re.match(r"near_identity(?!.*(seed1|crop2))", path.parent.name)]


@pytest.mark.parametrize("record", BLOCKS_ON_PAGE, ids=str)
def test_the_page_on_blocks_has_the_numbers_of_the_runs(record):
    page = (DOCS / "papers" / "near_identity.md").read_text()
    rows, removed = (read_rows(str(record.parent / name)) for name in (near_identity.BLOCKS, near_identity.REMOVED))
    ratios = [[row["ratio"] for row in rows if row["block"].startswith(f"stage{i}")] for i in (1, 2, 3)]
    if removed:
        assert near_identity.removable(removed) in page
    if "start" not in record.parent.name:
        assert all("|".join(["", *(f"{ratio:.2g}" for ratio in stage), ""]) in page for stage in ratios)
    else:
        assert "{:.1g}, {:.1g} and {:.1g}".format(*map(statistics.median, ratios)) in " ".join(page.split())


@pytest.mark.parametrize("group", NARROW)
def test_the_page_on_blocks_has_dead_channels_and_errors_of_the_narrow_networks(group):
    names = [name for name, _ in measured_runs.records() if name[:-1] == f"{group}_seed"]
    assert f"|{len(names)}{measured_runs.blocks_cells(names)}" in (DOCS / "papers" / "near_identity.md").read_text()


@pytest.mark.parametrize("blocks, group", [(3, "narrow1_sgd"), (9, "narrow3_sgd"), (27, "narrow_sgd")])
def test_the_page_on_blocks_has_branches_by_depth(blocks, group):
    names = measured_runs.seed_groups()[group]
    ratios = [[row["ratio"] for row in measured_runs.last_blocks(name)] for name in names]
    assert [len(seed) for seed in ratios] == [blocks] * 3
    medians, sums = (", ".join(form.format(of(seed)) for seed in ratios) for form, of in MEDIAN_AND_SUM)
    assert f"|{blocks}|{medians}|{sums}|" in (DOCS / "papers" / "near_identity.md").read_text()


def test_the_page_on_the_study_has_the_norms_of_the_run():
    page, runs = (DOCS / "appendix" / "shortcut_study.md").read_text(), {}
    for row in measured_runs.rows("norms"):
        runs.setdefault(row["variant"], []).append(row)
    for first, *_, last in runs.values():
        assert f"{first['kernel_norm']:.2f}; {last['kernel_norm']:.2f}; {100 * last['test_top1_error']:.1f} %" in page


@pytest.mark.parametrize(
    "name, table, formats",
    [
        *((f"spectrum_paper{which}", "results.csv", (".3g", ".2g")) for which in ("", "_muon", "_start")),
        ("spectrum_paper_bn", "start_results.csv", (".1f", ".1f")),
        ("spectrum_paper_bn", "results.csv", (".1f", ".2f")),
    ],
)
def test_the_page_of_results_has_the_spectra_of_the_networks_of_the_papers_size(name, table, formats):
    rows, page = read_rows(str(DOCS / "runs" / name / table)), (DOCS / "papers" / "results.md").read_text()
    num_weights = json.loads((DOCS / "runs" / name / "config.json").read_text())["num_weights"]
    ends = (format(of(row["eigenvalue"] for row in rows), form) for of, form in zip((max, min), formats))
    trace = num_weights * mean_eigenvalue(quadrature_from_rows(rows))[0]
    line = r"[^|]*".join(rf"\|{number}" for number in (*ends, f"{trace:,.0f}")).replace("-", "−")
    assert re.search(line, page), line


def gap(group):
    """Returns the mean over the seeds of test minus training error at the end, in points."""
    names = [path.parent.name for path in RUNS if re.fullmatch(rf"{group}_seed\d", path.parent.name)]
    ends = [measured_runs.rows(name)[-1] for name in names]
    return f"{100 * statistics.mean(end['test_top1_error'] - end['train_top1_error'] for end in ends):.1f}"


def runs_of(name, phase):
    """Returns the rows of each run of an ablation by (variant, rate, seed)."""
    runs = {}
    for row in measured_runs.rows(name):
        if row["phase"] == phase:
            runs.setdefault((row["variant"], row["chosen_rate"], row["seed"]), []).append(row)
    return runs


def minutes(rows, batch_size=32):
    """Returns the minutes of training of a run, from the images a second between its evaluations."""
    steps = [0, *(row["step"] for row in rows)]
    return sum((b - a) * batch_size / row["images_per_second"] / 60 for a, b, row in zip(steps, steps[1:], rows))


def searched(name, variant):
    """Returns the held-out error of each rate that was tried for a variant."""
    return {
        rate: 100 * rows[-1]["test_top1_error"]
        for (v, rate, _), rows in runs_of(name, "search").items()
        if v == variant
    }


def pooled(are_plain):
    """Returns the pooled standard deviation of test errors over seeds, with Muon and shortcuts or without."""
    errors = {}
    for (variant, *_), rows in runs_of("statements", "test").items():
        if ("SGD" in variant or "no shortcuts" in variant) == are_plain and rows[-1]["status"] == "done":
            errors.setdefault(variant, []).append(100 * rows[-1]["test_top1_error"])
    return statistics.mean(statistics.variance(some) for some in errors.values() if len(some) == 3) ** 0.5


def numbers_of_results():
    yield f"6.4 points for both versions of `cifar10_wide`, {gap('fast')} (BN-free, n = 1) and {gap('fast_bn')} for"
    yield f"`cifar10_fast`, {gap('long')} and {gap('long_bn')} for widths"
    assert gap("wide") == gap("wide_bn") == "6.4"
    times = [minutes(rows) for rows in runs_of("initializers", "test").values() if rows[-1]["status"] == "done"]
    yield f"n = 3, {min(times):.1f}–{max(times):.1f} minutes a run on one core"
    machine = json.loads((DOCS / "runs" / "initializers" / "config.json").read_text())["versions"]["machine"]
    assert machine.endswith("1 core")
    largest, smallest = eigenvalues("spectrum_fast_end")
    yield f"`docs/runs/fast_seed0`: {largest['eigenvalue']:.1f} and {smallest['eigenvalue']:.2f} at the end".replace(
        "-", "−"
    )


def eigenvalues(name):
    """Returns the rows of the largest and the smallest eigenvalue of a kept spectrum."""
    found = [row for row in read_rows(str(DOCS / "runs" / name / "results.csv")) if row["vector"] == -1]
    return [extreme(found, key=lambda row: row["eigenvalue"]) for extreme in (max, min)]


LADDER = (
    ("ladder", "momentum SGD and batch norm and standard initializer", "batch-normalised, standard initialiser"),
    ("ladder", "momentum SGD and batch norm", "– small initialiser"),
    ("statements", "clipped momentum SGD and standard initializer", "not normalised but clipped, standard"),
    ("statements", "clipped momentum SGD", "– small initialiser"),
    ("statements", "momentum SGD", "– not clipped, as printed"),
    ("ladder", "momentum SGD and trained projection", "– projection trained"),
)


def numbers_of_runs():
    largest, smallest = eigenvalues("spectrum_fast_end")
    yield f"are {largest['error_bound']:.1e} (largest) and {smallest['error_bound']:.2g} (smallest)".replace(
        "e-0", "e-"
    )
    assert max(row["error_bound"] for row in eigenvalues("spectrum_fast_start")) < 1e-4
    yield "in `spectrum_fast_start` below 1e-4"
    trained = [name for name, _ in measured_runs.records() if name.startswith(("heldout", "pilot"))]
    held_out = {name: f"{100 * measured_runs.rows(name)[-1]['test_top1_error']:.2f}" for name in trained}
    deep = [held_out[f"pilot_deep{suffix}"] for suffix in ("", "_low", "_rate")]
    yield f"three times the operations {held_out['heldout_wide']} % (`heldout_wide`)"
    yield f"{deep[0]} % with 55 convolutions (`pilot_deep`; {deep[1]} and {deep[2]} % at 0.01 and 0.02)"
    yield f"{pooled(False):.2f} points with Muon and shortcuts, {pooled(True):.2f} otherwise"
    small = searched("statements", "9 blocks a stage with momentum SGD")
    yield (
        "ends the search at " + ", ".join(f"{small[rate]:.1f}" for rate in (0.05, 0.1, 0.2)) + " % with 0.05, 0.1, 0.2"
    )
    standard = searched("statements", "9 blocks a stage with momentum SGD and standard initializer")
    yield f"diverges from a rate of {min(rate for rate, error in standard.items() if error != error)} on"
    for run, variant, shown in LADDER:
        errors = searched(run, f"9 blocks a stage with {variant}")
        tried = (
            f"{errors[rate]:.1f}".replace("nan", "NaN") if rate in errors else "" for rate in (0.05, 0.1, 0.2, 0.4)
        )
        tests = [rows for (v, *_), rows in runs_of(run, "test").items() if v == f"9 blocks a stage with {variant}"]
        ends = [100 * rows[-1]["test_top1_error"] for rows in tests if rows[-1]["status"] == "done"]
        count = f"{len(ends)} of {len(tests)}" if len(ends) < len(tests) else f"{len(ends)}"
        spread = f" ± {statistics.stdev(ends):.2f}" if len(ends) > 1 else ""
        ended = f"{statistics.mean(ends):.2f}{spread} %, {count}" if ends else "not run"
        yield f"|{shown}|{'|'.join(tried)}|{ended}|"
    assert all(error >= 90 for rate, error in searched("rivals", "All-CNN-C with Muon").items() if rate == 0.06)
    clipped = searched("rivals", "All-CNN-C with clipped SGD")
    assert [rate for rate, error in clipped.items() if error >= 90] == [0.1, 0.25]
    yield "All-CNN-C learned nothing at 0.06 (Muon) and at 0.1, 0.25 (SGD)"
    starts = {v: searched("initializers", v)[0.003] for v in ("standard", "zero", "Fixup", "small", "ReZero")}
    yield f"the first two learn ({starts['standard']:.1f}, {starts['zero']:.1f} %), the others stay at 90 %"
    assert all(89 < starts[name] < 91 for name in ("Fixup", "small", "ReZero"))


def numbers_of_speed():
    tables = [measured_runs.rows(name) for name in ("paper", "paper_muon")]
    speeds = [statistics.median(row["images_per_second"] for row in rows[1:]) for rows in tables]
    last = measured_runs.rows("paper")[-1]
    share = speeds[0] * last["train_flops"] / last["step"] / 128 / 790e12
    yield "bfloat16 {:,.0f}; with Muon {:,.0f}".format(*(round(speed, -2) for speed in speeds))
    yield f"|{share:.0%} of 790 TFLOP/s|".replace("%", " %")


@pytest.mark.parametrize(
    "numbers, page",
    [
        (numbers_of_results, "papers/results.md"),
        (numbers_of_runs, "appendix/runs.md"),
        (numbers_of_speed, "appendix/speed.md"),
    ],
)
def test_the_pages_have_numbers_of_the_runs(numbers, page):
    text = " ".join((DOCS / page).read_text().split())
    phrases = [" ".join(phrase.split()) for phrase in numbers()]
    assert phrases and [phrase for phrase in phrases if phrase not in text] == []


@pytest.mark.parametrize("record", RUNS, ids=lambda path: path.parent.name)
def test_the_config_of_a_training_run_is_that_of_its_command_and_names_no_folder_of_a_machine(record):
    contents = json.loads(record.read_text())
    if contents["kind"] == "train":
        presets = train.cli.keywords["presets"]
        flags = config_flags.define(presets, has_run_dir=True)
        assert config_flags.parse(flags, shlex.split(contents["command"])[2:]) == []
        assert from_json(TrainConfig(), contents["config"]) == config_flags.config_from(flags, presets)[0]
    assert not [word for word in ("/tmp", "/work", "/home", "/root") if word in record.read_text()]
