"""docs/runs: the config of a run is that of its command, and the images that a network gets wrong are its errors."""

import json
import pathlib
import shlex

import pytest

from identity_matters.runs.directory import as_json
from identity_matters.runs.tables import read_metrics, read_rows
from launch import config_flags, train

RUNS = pathlib.Path(__file__).parents[1] / "docs" / "runs"
RECORDS = sorted(RUNS.glob("*/config.json"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.parent.name)
def test_training_run_s_config_is_its_command_s_and_names_no_local_folder(record):
    contents = json.loads(record.read_text())
    if contents["kind"] == "train":
        presets = train.cli.keywords["presets"]
        flags = config_flags.define(presets, has_run_dir=True)
        assert config_flags.parse(flags, shlex.split(contents["command"])[2:]) == []
        assert contents["config"] == as_json(config_flags.config_from(flags, presets)[0])
    assert not [word for word in ("/tmp", "/work", "/home", "/root") if word in record.read_text()]


@pytest.mark.parametrize("name", ["paper", "paper_seed1", "paper_crop2", "paper_bn", "paper_muon"])
def test_a_network_in_float32_has_the_error_of_its_run(name):
    wrong = {int(row["image"]) for row in read_rows(str(RUNS / name / "errors.csv"))}
    last = read_metrics(str(RUNS / name / "metrics.csv"))[-1]
    assert max(wrong) < 10_000 and len(wrong) / 10_000 == pytest.approx(last["test_top1_error"], abs=5e-4)


def test_the_run_with_a_trained_projection_diverged_at_the_page_s_step():
    record = json.loads((RUNS / "paper_projection" / "config.json").read_text())
    assert (record["status"], record["diverged_at_step"]) == ("diverged", 26_700)
    assert "NaN at step 26,700" in (RUNS.parent / "papers" / "hardt_ma.md").read_text()
