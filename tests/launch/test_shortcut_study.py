"""launch.shortcut_study: every figure end to end, resumption, TensorBoard, and short errors."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
from begun import begin
from boards import metrics_and_sessions, tensorboard
from launching import launched
from study_rows import PAPER
from tiny_studies import FLAGS, load_three_digits, run_study

from identity_matters.runs.tables import read_rows, write_metrics
from launch import shortcut_study
from shortcut_study.config import PRESETS
from shortcut_study.figures import convolutional, figure_3, figure_5, figure_6, figure_8, figure_9, figure_10
from shortcut_study.figures.all_figures import FIGURES
from shortcut_study.report import seconds_by_experiment


@pytest.fixture
def launch():
    """launch("--flag=value", …) -> (exit code, stdout, stderr), in this process."""
    return lambda *flags, program="shortcut_study": launched(program, *flags)


@pytest.fixture(scope="module")
def study(tiny_study, tmp_path_factory):
    """study(figure) -> the directory of a finished study of it. Read only."""
    folder, computed = tmp_path_factory.mktemp("figures"), {"5": tiny_study}

    def run(figure):
        if figure not in computed:
            run_study(folder / figure, figure)
            computed[figure] = folder / figure
        return computed[figure]

    return run


@pytest.fixture
def three_digits(monkeypatch):
    monkeypatch.setattr(shortcut_study, "load_images", load_three_digits)


def without_seconds(run_dir):
    """Lines of results.csv without the last column, which is seconds."""
    lines = (run_dir / "results.csv").read_text().splitlines()
    assert lines[0].endswith(",seconds")
    return [line.rsplit(",", 1)[0] for line in lines]


def experiments_of(rows):
    return {(row["experiment"], row["activations"]) for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("figure", PAPER)
def test_every_figure_leaves_its_rows_findings_picture_and_events(study, figure):
    run_dir = study(figure)
    rows = read_rows(run_dir / "results.csv")
    assert experiments_of(rows) == set(FIGURES[figure].EXPERIMENTS)
    assert all(np.isfinite(row["seconds"]) for row in rows)
    seconds = json.loads((run_dir / "config.json").read_text())["seconds"]
    assert seconds == pytest.approx(sum(seconds_by_experiment(rows).values()))
    assert (run_dir / f"figure_{figure}.png").read_bytes().startswith(b"\x89PNG")
    with_it = {"figure_6.png"} if figure == "8" else set()  # of the same rows
    assert {path.name for path in run_dir.glob("figure_*")} == {f"figure_{figure}.png"} | with_it
    assert list(run_dir.glob("events.out.tfevents*")) and not list(run_dir.glob(".tmp*"))
    text = (run_dir / "results.md").read_text()
    answers = [line.split(" | ") for line in text.splitlines() if line.startswith(f"| {figure} |")]
    assert [claim for _, claim, *_ in answers] == [f.claim for f in FIGURES[figure].findings(rows)]
    assert {answer for _, _, answer, *_ in answers} == {"not evaluated"}  # at this size
    assert run_dir.with_suffix(".out").read_text() == f"{text}\nfiles: {run_dir}\n"
    record = json.loads((run_dir / "config.json").read_text())
    assert (record["status"], record["num_examples"], record["config"]["figure"]) == ("done", 200, figure)
    assert "100%" in run_dir.with_suffix(".err").read_text()


@pytest.mark.slow
def test_all_figures_together_share_their_data(launch, three_digits, tmp_path, monkeypatch):
    monkeypatch.setattr(convolutional, "jobs", lambda *_: [])  # longer than all others
    code, _, err = launch("--figure=all", f"--run_dir={tmp_path}/run", *FLAGS)
    assert code == 0, err
    run_dir = tmp_path / "run"
    assert {path.name for path in run_dir.glob("*.png")} == {f"figure_{figure}.png" for figure in PAPER}
    rows = read_rows(run_dir / "results.csv")
    assert experiments_of(rows) == {pair for figure in PAPER for pair in FIGURES[figure].EXPERIMENTS}
    told = (run_dir / "results.md").read_text()
    assert [line.split()[1] for line in told.splitlines() if line.startswith("| ")][1:-1].count("9") == 8
    for experiment, activations in experiments_of(rows):
        assert told.count(f"\n| {experiment} | {activations} |") == 1


def events(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(path))
    found.Reload()
    return found


@pytest.mark.slow
def test_tensorboard_has_the_figure_and_on_request_hparams_for_every_network(launch, three_digits, tmp_path):
    run_dir = tmp_path / "runs" / "study"
    flags = ("--figure=9", f"--run_dir={run_dir}", *FLAGS)
    code, _, err = launch(*flags)
    assert code == 0, err
    assert events(run_dir).Tags()["images"] == ["pictures/figure_9"]
    assert not (run_dir / "learning_rates").exists()

    other = run_dir / "other" / "events.out.tfevents.1"  # of another run: not ours to remove
    other.parent.mkdir()
    other.write_bytes(b"")
    code, _, err = launch(*flags, "--hparams")  # nothing is computed again
    assert code == 0 and other.exists() and "NaN" not in err, err
    rows = [row for row in read_rows(run_dir / "results.csv") if row["experiment"] == "learning_rates"]
    assert {row["status"] for row in rows} == {"done", "diverged"}
    names = ("shortcut_depth", "initialisation", "depth", "learning_rate")
    by_network = {}
    for row in rows:
        by_network.setdefault(tuple(row[name] for name in names), []).append(row)
    with tensorboard(tmp_path / "runs") as ask:
        metrics, groups = metrics_and_sessions(ask)
    assert metrics == ["final/excess_loss", "final/loss", "final/share_diverged"]
    assert len(groups) == len(by_network) == len(rows) / 2
    for group in groups:
        values = {value["name"]["tag"]: float(value["value"]) for value in group["metricValues"]}
        seeds = by_network[tuple(group["hparams"][name] for name in names)]
        share = np.mean([row["status"] == "diverged" for row in seeds])
        mean = np.nan if share else np.mean([row["excess_loss"] for row in seeds])
        assert values["final/share_diverged"] == share
        assert values["final/excess_loss"] == pytest.approx(mean, rel=1e-6, nan_ok=True)

    assert launch(*flags)[0] == 0
    assert not list(run_dir.glob("learning_rates/*/*"))  # they are gone where they are not asked for


# What computes a job of which figure, and at which call of it the study is interrupted.
INTERRUPTIONS = {
    "3": (figure_3, "descend", 4),
    "5": (figure_5, "spectrum", 7),
    "6": (figure_6, "descend", 3),
    "8": (figure_8, "loss_and_gradient", 1),
    "9": (figure_9, "descend", 5),
    "10": (figure_10, "descend", 4),
}


@pytest.mark.parametrize(
    "figure", [pytest.param(name, marks=[pytest.mark.slow] if name in "3689" else []) for name in INTERRUPTIONS]
)
def test_an_interrupted_study_continues_to_the_same_rows(launch, study, three_digits, tmp_path, monkeypatch, figure):
    for name in ("figures", "_write_events"):  # the rows alone
        monkeypatch.setattr(shortcut_study, name, lambda *_: {})
    module, name, at = INTERRUPTIONS[figure]
    function, calls = getattr(module, name), []

    def counted(*arguments, **named):
        calls.append(0)
        if len(calls) == at:
            raise KeyboardInterrupt
        return function(*arguments, **named)

    monkeypatch.setattr(module, name, counted)
    run_dir = tmp_path / "run"
    asked = [f"--figure={figure}", f"--run_dir={run_dir}", *FLAGS]
    code, out, err = launch(*asked)
    assert code == 130 and not out and "the same command continues" in err
    assert json.loads((run_dir / "config.json").read_text())["status"] == "running"
    kept = (run_dir / "results.csv").read_text().splitlines()
    assert launch(*asked)[0] == 0
    assert without_seconds(run_dir) == without_seconds(study(figure))
    assert set(kept) <= set((run_dir / "results.csv").read_text().splitlines()), "a finished job was computed again"
    assert len(kept) > 1


@pytest.mark.slow
def test_descents_that_all_diverge_are_a_result_and_no_accident(launch, three_digits, tmp_path):
    code, out, err = launch("--figure=6", f"--run_dir={tmp_path}/run", *FLAGS, "--learning_rate=1000")
    assert code == 0, err
    rows = read_rows(tmp_path / "run" / "results.csv")
    assert {row["status"] for row in rows if row["experiment"] == "spectrum_at_losses"} == {"diverged"}
    assert "the runs have no losses in common" in out


def test_plot_redraws_the_figures_of_a_study_only_from_its_csv(launch, tiny_study, tmp_path):
    for name in ("results.csv", "config.json"):  # which says that this is of smoke size
        shutil.copy(tiny_study / name, tmp_path)
    code, out, err = launch(f"--run_dir={tmp_path}", program="plot")
    assert (code, out) == (0, f"{tmp_path}/figure_5.png\n"), err
    assert (tmp_path / "figure_5.png").read_bytes() == (tiny_study / "figure_5.png").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["config.json", "figure_5.png", "results.csv"]


@pytest.mark.parametrize(
    "examples, details, are_small", [(0, {}, False), (300, {}, True), (0, {"num_examples": 300}, True)]
)
def test_a_study_of_few_examples_is_of_smoke_size(examples, details, are_small, tmp_path):
    begin(tmp_path, dataclasses.replace(PRESETS["paper"], examples=examples), "shortcut_study", **details)
    assert shortcut_study.smoke_size(str(tmp_path)) == list(FIGURES) * are_small


def test_a_table_of_another_kind_is_no_study(tmp_path):
    write_metrics(str(tmp_path / "results.csv"), [{"variant": "paper", "step": 1, "loss": 0.5}])
    assert not shortcut_study.figures(str(tmp_path)) and not shortcut_study.figures(str(tmp_path / "none"))
