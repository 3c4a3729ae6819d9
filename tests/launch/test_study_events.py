"""The TensorBoard files of launch.shortcut_study: its own are replaced, those of others stay."""

import dataclasses
import json
import time

import numpy as np
import pytest
from study_rows import of_figure, paper_rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.tables import read_rows
from launch import shortcut_study
from shortcut_study.config import PRESETS
from shortcut_study.dataset import load_images, study_data
from shortcut_study.hessian import hessian
from shortcut_study.network import ShortcutNetwork

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


def test_each_trained_network_has_its_curve(launch, tmp_path):
    code, _, err = launch("shortcut_study", "--preset=smoke", "--figure=3", "--depths=2,6", f"--run_dir={tmp_path}/run")
    assert code == 0, err
    rows = [row for row in read_rows(tmp_path / "run" / "results.csv") if row["depth"] == 6 and row["seed"] == 1]
    rows = [row for row in rows if row["activations"] == "linear"]
    (folder,) = (tmp_path / "run" / "networks").glob("norms_2-shortcut_zero_linear_depth_6_seed_1_rate_*")
    events = EventAccumulator(str(folder)).Reload()
    for column in ("loss", "excess_loss", "norm"):
        points = events.Scalars(f"network/{column}")
        assert [point.step for point in points] == [row["epoch"] for row in rows]
        assert [point.value for point in points] == pytest.approx([row[column] for row in rows], rel=1e-6)


def test_the_eigenvalues_are_histograms(launch, tmp_path):
    """Those of one network are recomputed by GradientTape."""
    flags = ["--preset=smoke", "--figure=5", "--depths=2,6", "--num_runs=1", "--examples=200"]
    code, _, err = launch("shortcut_study", *flags, f"--run_dir={tmp_path}/run")
    assert code == 0, err
    config = dataclasses.replace(PRESETS["smoke"], figure="5", depths=(2, 6), num_runs=1, examples=200)
    data = study_data(config, load_images(config))
    network = ShortcutNetwork(data.x.shape[1], 6, 1)
    expected = np.linalg.eigvalsh(hessian(network, network.initialize("zero", 0), data.x, data.y, "tape"))
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    drawn = events.Histograms("eigenvalues/1-shortcut_zero_depth_6")[-1].histogram_value
    found = [drawn.num, drawn.min, drawn.max, drawn.sum, drawn.sum_squares]
    moments = [expected.min(), expected.max(), expected.sum(), np.sum(expected**2)]
    assert found == pytest.approx([len(expected), *moments], rel=1e-4)


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
