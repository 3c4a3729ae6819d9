"""Numbers on the pages: tables are what website.tables writes from docs/runs, and prose repeats them."""

import json
import math
import re
import shutil

import numpy as np
import pytest
from scipy.stats import spearmanr

from shortcut_study.aggregation import rows_of_architecture, select
from shortcut_study.architectures import ORTHOGONAL, TWO
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.figures.finding import p_value
from website import tables

PAGES = [page for page in tables.PAGES if "<!-- table\n" in page.read_text()]
# Pages that say what was found. Their percentages of two decimals stand in a table, here or on these pages, or are
# published errors, evaluations of weights that ship, and numbers of runs that were not kept.
FINDINGS = ("README.md", "docs/papers/hardt_ma.md", "docs/papers/results.md", "docs/papers/near_identity.md")
RUNS_PAGE = "docs/appendix/runs.md"
ELSEWHERE = {"6.38", "24.64", "35.29", "8.75", "8.91", "0.50", "0.39", "10.76", "10.77", "10.50", "21.65", "45.98"}
ELSEWHERE |= {"10.81 ± 0.19", "5.99 ± 0.14", "28.00 ± 0.51", "22.05", "24.30", "24.45", "26.90", "0.15", "0.34 ± 0.04"}

STUDY = "study_mnist/results.csv, condition_number"
START = "experiment=initial_spectrum, activations=linear"
BN = "near_identity_paper_bn"
ERROR = "metrics.csv, test_top1_error, .2%"
# Sentences of the pages, with formulas as website.tables has them in place of the numbers.
PROSE = {
    "docs/papers/hardt_ma.md": [
        "test error is {mean paper/metrics.csv paper_seed1/metrics.csv} on a JPEG copy",
        "({last paper_projection/metrics.csv, loss, .2f, step=26000} against "
        "{last paper/metrics.csv, loss, .2f, step=26000} at 26,000)",
    ],
    "docs/papers/results.md": [
        "**{mean wide_seed*/metrics.csv}** on CIFAR-10 in two hours",
        "`docs/runs/fast_seed0`: {max spectrum_fast_end/results.csv, eigenvalue, .1f} and "
        "{min spectrum_fast_end/results.csv, eigenvalue, .2f} at the end",
        "Small ({mean initializers/results.csv, small}), zero ({mean initializers/results.csv, zero}) and "
        "Fixup ({mean initializers/results.csv, Fixup})",
    ],
    "docs/papers/near_identity.md": [
        "At the start SGD's are {median near_identity_start/results.csv, ratio, .1g, block=stage1_*},",
        f"{{min {BN}/results.csv, ratio, .2g}} to {{max {BN}/results.csv, ratio, .2g}} on images, bounds of "
        f"{{min {BN}/results.csv, lipschitz, .1f}} to {{max {BN}/results.csv, lipschitz, .0f}}, no dead channel",
        f"without the two smallest it is {{last {BN}/removed.csv, error, .1%, num_removed=2}}, without the eight "
        f"smallest {{last {BN}/removed.csv, error, .1%, num_removed=8}}",
    ],
    RUNS_PAGE: [
        f"three times the operations {{last heldout_wide/{ERROR}}} (`heldout_wide`)",
        f"{{last pilot_deep/{ERROR}}} with 55 convolutions",
        f"has {{last fast_seed0/{ERROR}}} (`fast_seed0`, in the figure)",
        "bounds are {last spectrum_fast_end/results.csv, error_bound, .1e, eigenvalue=96.98319} (largest)",
        "learn ({last initializers/results.csv, test_top1_error, .1%, chosen_rate=0.003, variant=standard}, "
        "{last initializers/results.csv, test_top1_error, .1%, chosen_rate=0.003, variant=zero})",
    ],
    "docs/papers/li_et_al.md": [
        f"1-shortcut networks grow from {{median {STUDY}, .2f, {START}, shortcut_depth=1, depth=2}} to "
        f"{{median {STUDY}, .0f, {START}, shortcut_depth=1, depth=96}}",
    ],
    "docs/appendix/speed.md": [
        "bfloat16 {median paper/metrics.csv, images_per_second, ,.0f}; with Muon "
        "{median paper_muon/metrics.csv, images_per_second, ,.0f}",
    ],
}


def text_of(page):
    return " ".join((tables.ROOT / page).read_text().split())


def percentages(text):
    """The percentages of two decimals in a text, such as 11.66 ± 0.05, with their spread."""
    return set(re.findall(r"\d+\.\d\d ± \d+\.\d\d|\d+\.\d\d(?= %)", " ".join(text.split())))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_runs(page):
    assert tables.rewrite(page.read_text()) == page.read_text(), "python -m website.tables"


def test_an_error_in_a_table_or_in_a_run_is_noticed(tmp_path, monkeypatch):
    page = (tables.ROOT / "README.md").read_text()
    assert tables.rewrite(page.replace("|9.89 %, n = 1|", "|9.88 %, n = 1|")) == page
    shutil.copytree(tables.RUNS, tmp_path / "runs")
    monkeypatch.setattr(tables, "RUNS", tmp_path / "runs")
    table = tmp_path / "runs" / "paper_bn" / "metrics.csv"
    table.write_text(table.read_text().replace(",0.09889996,", ",0.0988,"))
    assert "|9.88 %, n = 1|" in tables.rewrite(page)
    table.unlink()
    with pytest.raises(FileNotFoundError, match="paper_bn/metrics.csv"):
        tables.rewrite(page)


@pytest.mark.parametrize("page, sentence", [(page, sentence) for page in PROSE for sentence in PROSE[page]])
def test_a_sentence_has_the_numbers_of_the_runs(page, sentence):
    assert re.sub(r"(?<=%), n = \d+", "", tables.evaluate(sentence)) in text_of(page)


@pytest.mark.parametrize("page", FINDINGS)
def test_a_percentage_on_a_page_of_findings_stands_in_a_table(page):
    texts = [path.read_text() for path in PAGES]
    written = " ".join(table for text in texts for table in re.findall(r"^-->\n(.*?)<!-- end -->", text, re.M | re.S))
    prose = re.sub(r"^ {4}.*\n", "", (tables.ROOT / page).read_text(), flags=re.M)  # without what a command prints
    found = percentages(prose)
    assert found and not found - percentages(written) - percentages(text_of(RUNS_PAGE)) - ELSEWHERE


def test_a_second_seed_of_the_papers_network_has_blocks_of_the_same_size():
    blocks = {name: tables.read_rows(str(tables.RUNS / f"near_identity_{name}" / "results.csv"))
              for name in ("paper", "paper_seed1", "paper_crop2")}  # fmt: skip
    words = []
    for name in ("paper_seed1", "paper_crop2"):
        pairs = [[(row[column], other[column]) for row, other in zip(blocks["paper"], blocks[name])]
                 for column in ("ratio", "lipschitz")]  # fmt: skip
        factors = [max(max(a / b, b / a) for a, b in pair) for pair in pairs]
        words.append((spearmanr(pairs[0])[0], *factors))
    sentence = "over blocks {:.2f}, ratios within a factor of {:.2f}, bounds within {:.2f}; with crops of 2 pixels "
    assert (sentence + "{:.2f}, {:.2f}, {:.2f}").format(*words[0], *words[1]) in text_of("docs/papers/near_identity.md")


def test_what_the_jpeg_copy_costs_is_a_factor():
    page = text_of("docs/papers/hardt_ma.md")
    names = ("resnet20", "paper/metrics.csv paper_seed1", "paper_bn")
    resnet, printed, normalised = (float(tables.mean(f"{name}/metrics.csv").split()[0]) for name in names)
    assert f"|8.75 %|{resnet:.2f} %|{resnet - 8.75:.1f}|{resnet / 8.75:.2f}|" in page
    factor = (resnet / 8.75 + 8.91 / 5.99) / 2
    assert f"about {printed / factor:.1f} % on the originals" in page
    assert f"the batch-normalised one about {normalised / factor:.1f} %" in page


def test_the_page_counts_the_statements_that_hold_and_has_the_time_of_the_study():
    page = text_of("docs/papers/li_et_al.md")
    rows = tables.read_rows(str(tables.RUNS / "study_mnist" / "results.csv"))
    plots = [name for name in FIGURES if name not in ("4", "11", "convolutional")]  # 4 and 11 are diagrams
    holds = [finding.holds for name in plots for finding in FIGURES[name].findings(rows)]
    assert (holds.count(True), holds.count(None), holds.count(False), len(holds)) == (27, 2, 2, 31)
    assert "31 statements about its plots 27 hold**, two are open at some losses, and two do not hold" in page
    row = "[statements about Li et al.'s plots](docs/papers/li_et_al.md)|31|27 hold, two are open, two are false|"
    assert row in text_of("README.md")
    record = json.loads((tables.RUNS / "study_mnist" / "config.json").read_text())
    assert f"in {record['seconds'] / 60:.0f} minutes on 2 cores of an AMD EPYC" in page
    deep = [re.findall(r"(\S+) \(depth 48\)", finding.numbers)[0] for finding in FIGURES["9"].findings(rows)[:5]]
    cells = re.findall(r"\|9: (?:excess at|factor|–) [^|]*\|([^|]*)\|", text_of("docs/appendix/shortcut_study.md"))
    from_cell = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", ",")
    assert [float(cell.replace("·10", "e").translate(from_cell)) for cell in cells] == pytest.approx(
        [float(number) for number in deep], rel=0.08
    )
    ratios = [seed_ratio(rows, seed) for seed in range(10)]
    mean, low, high = (10 ** end(ratios) for end in (np.mean, np.min, np.max))
    chance = p_value(np.array(ratios) - np.log10(3))
    assert (
        f"the ratio is {mean:.0f} ({low:.2f}–{float(f'{high:.3g}'):,.0f}), which could be 3 (p = {chance:.2g})" in page
    )


def seed_ratio(rows, seed):
    """log₁₀ of orthogonal over 2-shortcut condition numbers at an excess loss of 0.0021, of a seed of Figure 6."""
    values = []
    for arch in (TWO, ORTHOGONAL):
        found = select(rows, experiment="spectrum_at_losses", activations="linear", seed=seed)
        run = rows_of_architecture(found, arch)
        points = sorted(
            (math.log10(row["excess_loss"]), math.log10(row["condition_number"])) for row in run if row["loss"]
        )
        values.append(np.interp(math.log10(0.0021), *zip(*points), left=np.nan))
    return values[1] - values[0]
