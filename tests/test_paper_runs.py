"""docs/papers/hardt_ma.md and near_identity.md: numbers of runs at the paper's size, from docs/runs again."""

import json
import math
import pathlib
import re
import statistics

import pytest
from scipy.stats import spearmanr

from identity_matters.runs.tables import read_metrics, read_rows
from tests import measured_runs

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGE = " ".join((DOCS / "papers" / "hardt_ma.md").read_text().split())
IMAGES = 10_000
PRINTED = ("paper", "paper_seed1", "paper_crop2")


def wrong(name):
    """Which test images a network gets wrong, in float32."""
    return {int(row["image"]) for row in read_rows(str(DOCS / "runs" / name / "errors.csv"))}


def last(name):
    return measured_runs.rows(name)[-1]


def paired(first, second):
    """The difference of two test errors in points, and its standard error over the images."""
    a, b = wrong(first), wrong(second)
    difference = (len(a) - len(b)) / IMAGES
    variance = len(a ^ b) / IMAGES - difference**2
    return f"{100 * difference:.2f} ± {100 * math.sqrt(variance / IMAGES):.2f}".replace("-", "−")


@pytest.mark.parametrize("name", [*PRINTED, "paper_bn", "paper_muon"])
def test_in_float32_a_network_errs_as_in_its_run(name):
    assert max(wrong(name)) < IMAGES
    assert len(wrong(name)) / IMAGES == pytest.approx(last(name)["test_top1_error"], abs=5e-4)


def test_the_page_has_the_paired_differences():
    assert f"|as printed, two seeds|{paired('paper', 'paper_seed1')}|" in PAGE
    assert f"|crops of 4 against crops of 2|{paired('paper', 'paper_crop2')}|" in PAGE
    against = ", ".join(paired(name, "paper_bn") for name in PRINTED)
    assert f"|as printed (two seeds, crops of 2) against batch-normalised|{against}|" in PAGE
    assert not [difference for difference in against.split(", ") if float(difference.split(" ± ")[0]) < 0.7]


def test_the_page_has_errors_and_losses_at_the_end():
    error = {name: f"{last(name)['test_top1_error']:.2%}"[:-1] for name in (*PRINTED, "paper_bn", "paper_muon")}
    loss = {name: f"{last(name)['test_cross_entropy']:.2f}" for name in error}
    fitted = {name: f"{last(name)['train_top1_error']:.2%}"[:-1] for name in error}
    assert f"|**{error['paper']}**, **{error['paper_seed1']} %**|{fitted['paper']}, {fitted['paper_seed1']} %|" in PAGE
    assert f"|{loss['paper']}, {loss['paper_seed1']}|2|" in PAGE
    assert f"|{error['paper_crop2']} %|{fitted['paper_crop2']} %|{loss['paper_crop2']}|1|" in PAGE
    for name in ("paper_bn", "paper_muon"):
        assert f"|**{error[name]} %**|{fitted[name]} %|{loss[name]}|1|" in PAGE
    seeds = [100 * last(name)["test_top1_error"] for name in ("paper", "paper_seed1")]
    assert f"{statistics.mean(seeds):.2f} ± {statistics.stdev(seeds):.2f} %" in PAGE
    gaps = [100 * (last(name)["test_top1_error"] - last(name)["train_top1_error"]) for name in ("paper_bn", "paper")]
    assert "gaps of {:.1f} and {:.1f} points".format(*gaps) in PAGE


def test_the_page_has_where_the_trained_projection_ends():
    rows = {name: read_metrics(str(DOCS / "runs" / name / "metrics.csv")) for name in ("paper_projection", "paper")}
    losses = {name: {row["step"]: row["loss"] for row in rows[name]} for name in rows}
    record = json.loads((DOCS / "runs" / "paper_projection" / "config.json").read_text())
    assert (record["status"], record["diverged_at_step"]) == ("diverged", 26_700)
    assert "NaN at step 26,700" in PAGE and f"{last('paper_projection')['test_top1_error']:.2%}"[:-1] in PAGE
    at = "({:.2f} against {:.2f} at 26,000)".format(*(losses[name][26_000] for name in losses))
    assert at in PAGE


def test_what_the_copy_costs_is_a_factor():
    resnet, airbench = 100 * last("resnet20")["test_top1_error"], (5.99, 8.91)
    assert f"|8.75 %|{resnet:.2f} %|{resnet - 8.75:.1f}|{resnet / 8.75:.2f}|" in PAGE
    assert f"{airbench[1] - airbench[0]:.1f}|{airbench[1] / airbench[0]:.2f}|" in PAGE
    factor = (resnet / 8.75 + airbench[1] / airbench[0]) / 2
    of_copy = lambda percent: percent * (1 - percent / 100) / 100  # noqa: E731, variance over the images
    spread = math.hypot(*(math.sqrt(of_copy(error)) / known for error, known in ((resnet, 8.75), airbench[::-1]))) / 2
    printed, normalised = 10.84, 100 * last("paper_bn")["test_top1_error"]
    original = printed / factor
    half = 2 * original * math.hypot(math.sqrt(of_copy(printed)) / printed, spread / factor)
    assert f"about {original:.1f} % on the originals ({original - half:.1f} – {original + half:.1f}: two" in PAGE
    assert re.search(rf"batch-normalised one about {normalised / factor:.1f} %", PAGE)


def test_the_page_on_blocks_has_how_a_second_seed_agrees_and_the_bounds_of_the_batch_normalised_network():
    page = " ".join((DOCS / "papers" / "near_identity.md").read_text().split())
    blocks = {name: read_rows(str(DOCS / "runs" / f"near_identity_{name}" / "results.csv")) for name in PRINTED}
    ratios, bounds = (
        {name: [row[column] for row in blocks[name]] for name in blocks} for column in ("ratio", "lipschitz")
    )

    def agreement(name):
        """Of another run with that of seed 0: the rank correlation, and the largest factors between blocks."""
        pairs = [list(zip(of["paper"], of[name])) for of in (ratios, bounds)]
        factors = [max(max(a / b, b / a) for a, b in pair) for pair in pairs]
        return spearmanr(ratios["paper"], ratios[name])[0], *factors

    words = (
        "rank correlation over blocks {:.2f}, ratios within a factor of {:.2f}, bounds within {:.2f}; with crops of 2 "
    )
    words += "pixels {:.2f}, {:.2f}, {:.2f}"
    assert words.format(*agreement("paper_seed1"), *agreement("paper_crop2")) in page
    rows = read_rows(str(DOCS / "runs" / "near_identity_paper_bn" / "results.csv"))
    ends = [end(row[column] for row in rows) for column in ("ratio", "lipschitz", "active") for end in (min, max)]
    assert "{:.2g} to {:.2g} on images, bounds of {:.1f} to {:.0f}".format(*ends) in page
    assert f"it is {100 * ends[4]:.0f} to {100 * ends[5]:.0f} %" in page
    assert not any(row["dead"] for row in rows)
    errors = [end(100 * row[column] for row in rows if row[column] == row[column])
              for column in ("error_without", "error_swapped") for end in (min, max)]  # fmt: skip
    alone = [100 * row["error"] for row in read_rows(str(DOCS / "runs" / "near_identity_paper_bn" / "removed.csv"))]
    words = "is {:.1f} to {:.1f} %, with any two neighbours exchanged {:.1f} to {:.1f} %; but without the two smallest "
    words += "it is {:.1f} %, without the eight smallest {:.1f} %"
    assert words.format(*errors, alone[2], alone[8]) in page
