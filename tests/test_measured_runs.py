"""docs/runs: that the figures on the pages of the docs are those of the runs, and that launch.plot draws these."""

import json
import pathlib
import shutil
import statistics

import pytest

from identity_matters.config import TrainConfig
from identity_matters.fields import from_json
from identity_matters.runs.tables import ablation_table, read_metrics, read_rows
from launch import near_identity, plot

DOCS = pathlib.Path(__file__).parents[1] / "docs"
RESULTS = (DOCS / "appendix" / "results.md").read_text()
BLOCKS = (DOCS / "papers" / "near_identity.md").read_text()
RUNS = sorted((DOCS / "runs").glob("*/config.json"))


def test_there_are_runs():
    assert RUNS


@pytest.mark.parametrize("record", RUNS, ids=lambda path: path.parent.name)
def test_the_figures_of_a_run_are_in_the_results(record):
    kind = json.loads(record.read_text())["kind"]
    if kind == "ablations":
        assert ablation_table(read_metrics(str(record.parent / "results.csv"))) in RESULTS
    elif kind == "near_identity":
        rows, removed = (read_rows(str(record.parent / name)) for name in (near_identity.BLOCKS, near_identity.REMOVED))
        ratios = [[row["ratio"] for row in rows if row["block"].startswith(f"stage{i}")] for i in (1, 2, 3)]
        if removed:
            assert near_identity.removable(removed) in BLOCKS
            assert all(" | ".join(["", *(f"{ratio:.2g}" for ratio in stage), ""]).strip() in BLOCKS for stage in ratios)
        else:
            assert "{:.1g}, {:.1g} and {:.1g}".format(*map(statistics.median, ratios)) in " ".join(BLOCKS.split())
    else:
        (line,) = (line for line in RESULTS.splitlines() if line.startswith("|") and f"`{record.parent.name}`" in line)
        assert (
            f"{read_metrics(str(record.parent / 'metrics.csv'))[-1]['test_top1_error']:.2%}".replace("%", " %") in line
        )


@pytest.mark.parametrize("record", RUNS, ids=lambda path: path.parent.name)
def test_the_config_of_a_training_run_is_one_of_today_and_names_no_folder_of_a_machine(record):
    contents = json.loads(record.read_text())
    if contents["kind"] == "train":
        from_json(TrainConfig(), contents["config"])
    assert not [word for word in ("/tmp", "/work", "/home", "/root") if word in record.read_text()]


@pytest.mark.parametrize("record", RUNS, ids=lambda path: path.parent.name)
def test_a_run_can_be_drawn_again(record, tmp_path):
    run_dir = shutil.copytree(record.parent, tmp_path / "run")
    plot.main(plot.PlotConfig(), str(run_dir))
    assert list(run_dir.glob("*.png"))
