"""docs/runs, the measured runs: the docs print their numbers, their commands train them, launch.plot draws them."""

import json
import pathlib
import re
import shlex
import shutil
import statistics

import pytest

from identity_matters.config import TrainConfig
from identity_matters.fields import from_json
from identity_matters.runs.tables import read_rows
from launch import config_flags, near_identity, plot, train
from shortcut_study.curvature.quadrature import mean_eigenvalue
from shortcut_study.curvature.report import quadrature_from_rows
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


def test_there_are_runs():
    assert RUNS


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


@pytest.mark.parametrize("record", [path for path in RUNS if "near_identity" in path.parent.name], ids=str)
def test_the_page_on_blocks_has_the_numbers_of_the_runs(record):
    page = (DOCS / "papers" / "near_identity.md").read_text()
    rows, removed = (read_rows(str(record.parent / name)) for name in (near_identity.BLOCKS, near_identity.REMOVED))
    ratios = [[row["ratio"] for row in rows if row["block"].startswith(f"stage{i}")] for i in (1, 2, 3)]
    if removed:
        assert near_identity.removable(removed) in page
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


@pytest.mark.parametrize("name", ["spectrum_paper", "spectrum_paper_muon", "spectrum_paper_start"])
def test_the_page_of_results_has_the_spectra_of_the_network_of_the_paper(name):
    rows, page = read_rows(str(DOCS / "runs" / name / "results.csv")), (DOCS / "papers" / "results.md").read_text()
    num_weights = json.loads((DOCS / "runs" / name / "config.json").read_text())["num_weights"]
    largest, smallest = (extreme(row["eigenvalue"] for row in rows) for extreme in (max, min))
    trace = num_weights * mean_eigenvalue(quadrature_from_rows(rows))[0]
    line = rf"\|{largest:.3g}[^|]*\|{smallest:.2g}[^|]*\|{trace:,.0f}\|".replace("-", "−")
    assert re.search(line, page), line


@pytest.mark.parametrize("record", RUNS, ids=lambda path: path.parent.name)
def test_the_config_of_a_training_run_is_that_of_its_command_and_names_no_folder_of_a_machine(record):
    contents = json.loads(record.read_text())
    if contents["kind"] == "train":
        presets = train.cli.keywords["presets"]
        flags = config_flags.define(presets, has_run_dir=True)
        assert config_flags.parse(flags, shlex.split(contents["command"])[2:]) == []
        assert from_json(TrainConfig(), contents["config"]) == config_flags.config_from(flags, presets)
    assert not [word for word in ("/tmp", "/work", "/home", "/root") if word in record.read_text()]


@pytest.mark.parametrize("record", RUNS, ids=lambda path: path.parent.name)
def test_a_run_can_be_drawn_again(record, tmp_path):
    run_dir = shutil.copytree(record.parent, tmp_path / "run")
    plot.main(plot.PlotConfig(), str(run_dir))
    assert list(run_dir.glob("*.png"))
