"""The TensorBoard files of launch.shortcut_study: its own are replaced, those of others stay."""

import json
import time

import pytest
from study_rows import of_figure, paper_rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from identity_matters.runs.directory import RunDirectory
from launch import shortcut_study
from shortcut_study.config import PRESETS

ROWS = of_figure(paper_rows(depths=(2,)), "9")


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Writes the TensorBoard files of a study without figures into tmp_path/run; returns their names."""
    monkeypatch.setattr(shortcut_study, "figures", lambda *_: {})

    def write():
        with RunDirectory(str(tmp_path / "run"), PRESETS["smoke"], "shortcut_study") as run:
            run.set_status("running")
            shortcut_study._write_events(run, ROWS, has_hparams=True)
            run.set_status("done")
            return sorted(run.record.event_files)

    return write


def event_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*tfevents*"))


def test_a_study_replaces_the_tensorboard_files_that_it_has_written_itself(tmp_path, study):
    first = study()
    assert len(first) > 2 and event_files(tmp_path / "run") == first
    (tmp_path / "run" / first[-1]).unlink()
    time.sleep(1.1)  # their names have seconds
    second = study()
    assert event_files(tmp_path / "run") == second and not set(first) & set(second)
    assert not list((tmp_path / "run").glob(".tmp*"))


def test_the_metrics_of_each_network_and_rate_stand_at_their_epoch(tmp_path, study):
    folders = {(tmp_path / "run" / name).parent for name in study() if name.startswith("learning_rates")}
    steps = {event.step for of in folders for event in EventAccumulator(str(of)).Reload().Scalars("final/loss")}
    assert len(folders) > 2 and steps == {row["epoch"] for row in ROWS if row["experiment"] == "learning_rates"}


def test_the_tensorboard_files_of_others_stay(tmp_path, study):
    study()
    run_dir = tmp_path / "run"
    foreign = [
        "events.out.tfevents.1.me",
        "first/events.out.tfevents.1.me",
        "learning_rates/x/events.out.tfevents.1.me",
    ]
    foreign += ["../outside/events.out.tfevents.1.me", "learning_rates/x/y/events.out.tfevents.1.me", "notes"]
    for name in foreign:
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text("mine")
    record = json.loads((run_dir / "config.json").read_text())
    record["event_files"] += [*foreign[3:], str(tmp_path / "outside" / "events.out.tfevents.1.me"), 5, None]
    (run_dir / "config.json").write_text(json.dumps(record))
    study()
    assert all((run_dir / name).read_text() == "mine" for name in foreign)
