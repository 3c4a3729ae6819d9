"""The ablations: what is compared, and that a diverged run is a result and not an accident."""

import dataclasses
import json

import numpy as np
import pytest
from begun import begin

from identity_matters import ablations
from identity_matters.ablations import VARIANTS, AblationConfig
from identity_matters.runs import figures, tables

CONFIG = AblationConfig(num_seeds=2)


@pytest.fixture
def run_dir(tmp_path):
    """Runs of 10 steps as training leaves them; both of standard_initializer diverged, one before its first row."""
    for i, (name, config) in enumerate(CONFIG.runs()):
        rows = [
            {
                "step": step,
                "loss": 2.0,
                "learning_rate": 0.05,
                "train_top1_error": 0.7,
                "test_top1_error": 0.6 + i / 100,
            }
            for step in (5, 10)
        ]
        details = {"status": "done"}
        if name.startswith("standard"):
            first = name.endswith("seed0")
            details, rows = {"status": "diverged", "diverged_at_step": 3 if first else 8}, rows[: not first]
        begin(tmp_path / name, config, **details)
        if rows:
            tables.write_metrics(str(tmp_path / name / "metrics.csv"), rows)
    return tmp_path


def test_every_variant_differs_from_the_paper_in_what_it_names_alone():
    runs = dict(CONFIG.runs())
    assert len(runs) == 2 * len(VARIANTS)
    for variant, changes in VARIANTS.items():
        paper, changed = runs["paper_seed1"].model, runs[f"{variant}_seed1"].model
        differing = {f.name for f in dataclasses.fields(paper) if getattr(paper, f.name) != getattr(changed, f.name)}
        assert differing == set(changes)


def test_the_table_counts_diverged_runs_and_averages_the_others(run_dir):
    lines = ablations.table(ablations.collect(CONFIG, run_dir)).splitlines()
    errors = [60, 60 + len(VARIANTS)]  # of the fixture's first run and the first of its second seed, in percent
    assert lines[2].startswith(f"| paper | 2 | 0 | {np.mean(errors):.2f} ± {np.std(errors, ddof=1):.2f} % |")
    assert lines[3].startswith("| standard initializer | 2 | 2 (3, 8) | – |")


def test_the_figure_redraws_from_results_csv_with_diverged_runs(run_dir, tmp_path):
    rows = ablations.collect(CONFIG, run_dir)
    tables.write_metrics(tmp_path / "results.csv", rows)
    again = tables.read_metrics(tmp_path / "results.csv")
    np.testing.assert_equal([{key: a[key] for key in row} for a, row in zip(again, rows, strict=True)], rows)
    axes = figures.ablation_figure(again).axes[0]
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[3, 8]]


def test_unprepared_data_leave_no_run_directory(tmp_path):
    config = dataclasses.replace(CONFIG, train=dataclasses.replace(CONFIG.train, data_dir=str(tmp_path)))
    with pytest.raises(ValueError, match="--download"):
        ablations.run_ablations(config, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_small_ablation_runs_and_is_finished_from_what_is_there(tmp_path, tiny_config):
    config = AblationConfig(train=tiny_config, num_seeds=1)
    rows = ablations.run_ablations(config, str(tmp_path / "run"))
    assert {row["variant"] for row in rows} == set(VARIANTS)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["status"] == "done"
    before = (tmp_path / "run" / "paper_seed0" / "metrics.csv").stat().st_mtime_ns
    np.testing.assert_equal(ablations.run_ablations(config, str(tmp_path / "run")), rows)
    assert (tmp_path / "run" / "paper_seed0" / "metrics.csv").stat().st_mtime_ns == before
