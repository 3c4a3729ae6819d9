"""launch.plot: config.json says whose figures it draws, old ones by their config, lone tables by their columns."""

import importlib
import itertools
import os
import pathlib

import numpy as np
import pytest
from begun import begin, read_config_json
from launching import config_of
from legible import assert_legible
from matplotlib.figure import Figure

from identity_matters.config import DataConfig, ModelConfig, TrainConfig
from identity_matters.errors import UserError
from identity_matters.runs import figures
from identity_matters.runs.figure_style import styled
from identity_matters.runs.record import RUN_TYPES
from identity_matters.runs.tables import write_metrics
from launch import plot, train

DOCS_RUNS = pathlib.Path(__file__).parents[2] / "docs" / "runs"


@pytest.fixture
def drawn(monkeypatch):
    """The kinds of runs whose launcher was asked for figures."""
    asked = []
    for kind in RUN_TYPES:
        module = importlib.import_module(f"launch.{kind}")
        monkeypatch.setattr(module, "figures", lambda run_dir, kind=kind, **_: asked.append(kind) or {"a": Figure()})
    return asked


@pytest.mark.parametrize("kind", RUN_TYPES)
def test_the_launcher_that_config_json_names_draws_alone(tmp_path, kind, drawn):
    begin(tmp_path, config_of(kind), kind)
    assert read_config_json(str(tmp_path))["kind"] == kind
    plot.main(plot.PlotConfig(), str(tmp_path))
    assert drawn == [kind]


@pytest.mark.parametrize(
    "kind, name, columns",
    [
        ("train", "metrics.csv", {"step": 1}),
        ("ablations", "results.csv", {"variant": "paper", "step": 1}),
        ("shortcut_study", "results.csv", {"experiment": "norms"}),
        ("check_theory", "norms.csv", {"num_layers": 1}),
        ("relu_search", "results.csv", {"radius": 1}),
        ("descent_map", "results.csv", {"speed": 1}),
        ("hessian_spectrum", "density.csv", {"eigenvalue": 1.0}),
    ],
)
def test_a_table_without_its_config_json_is_drawn_by_its_launcher(tmp_path, drawn, kind, name, columns):
    write_metrics(str(tmp_path / name), [columns])
    plot.main(plot.PlotConfig(), str(tmp_path))
    assert drawn == [kind]


@pytest.mark.parametrize("name, start", [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_other_formats_are_drawn_for_papers(tmp_path, launch, name, start):
    columns = ("step", "loss", "learning_rate", "train_top1_error", "test_top1_error")
    write_metrics(str(tmp_path / "metrics.csv"), [dict.fromkeys(columns, 1)])
    code, out, err = launch("plot", f"--run_dir={tmp_path}", f"--format={name}")
    assert (code, out) == (0, f"{tmp_path}/convergence.{name}\n"), err
    written = (tmp_path / f"convergence.{name}").read_bytes()
    assert written.startswith(start)
    plot.main(plot.PlotConfig(format=name), str(tmp_path))
    assert (tmp_path / f"convergence.{name}").read_bytes() == written  # no date, no random names


@pytest.mark.parametrize(
    "kind, status, advice",
    [("check_theory", "running", "wait"), ("check_theory", "done", "done"), ("report", "done", "done")],
)
def test_a_run_whose_figures_have_no_data_is_named(tmp_path, kind, status, advice):
    begin(tmp_path, config_of(kind), kind, status)
    with pytest.raises(UserError, match=f"{tmp_path}.*{advice}"):
        plot.main(plot.PlotConfig(), str(tmp_path))


def test_the_rate_of_a_schedule_that_always_falls_has_no_drops():
    def drops(*rates):
        return figures.learning_rate_drops([{"step": i, "learning_rate": rate} for i, rate in enumerate(rates)])

    assert drops(4, 3, 2, 1) == drops(1, 2, 1) == drops(1) == []
    assert drops(2, 2, 1, 1, 0.5) == [1, 3]


def test_a_directory_with_signs_of_formulas_is_named_as_it_is(tmp_path):
    rows = [{"step": 1, "train_top1_error": 0.5, "test_top1_error": 0.5}]
    drawn = figures.comparison_figure([("$\\x$", "test", rows, "at the end")])
    figures.save_figures(lambda: {"a": drawn}, str(tmp_path), "svg")
    assert "<!-- $\\x$ (50.00 % test error at the end) -->" in (tmp_path / "a.svg").read_text()


def compared(monkeypatch, first, beside, names="", level=""):
    """The axes and the words of the legend of launch.plot --run_dir=FIRST --beside=BESIDE."""
    saved = {}
    monkeypatch.setattr(figures, "save_figures", lambda draw, *rest: saved.update(draw(), rest=rest) or ["path"])
    plot.main(plot.PlotConfig("as titled", "pdf", "paper", str(beside), names, level), str(first))
    assert saved.pop("rest") == (str(first), "pdf", "paper")
    ((axes,),) = (figure.axes for figure in saved.values())
    assert axes.get_title() == "as titled"
    return axes, [text.get_text() for text in axes.get_legend().texts]


def write_run(path, error, rates=(0.1, 0.1)):
    path.mkdir(parents=True, exist_ok=True)
    row = {"epoch": 1.0, "loss": 1.0, "train_cross_entropy": 1.0, "train_top1_error": 2 * error}
    rows = [
        row | {"step": step, "learning_rate": rate, "test_top1_error": error + (step < 10 * len(rates)) / 4}
        for step, rate in zip(itertools.count(10, 10), rates)
    ]
    write_metrics(f"{path}/metrics.csv", rows)
    return path


def test_several_runs_in_one_figure(tmp_path, monkeypatch):
    first, second = write_run(tmp_path / "first", 0.5), write_run(tmp_path / "second", 0.25)
    axes, labels = compared(monkeypatch, first, f" {second}, ")
    assert labels == [
        "first (50.00 % test error at the end)",
        "second (25.00 % test error at the end)",
        "training error",
    ]
    assert [list(line.get_ydata()) for line in axes.lines[:4]] == [[0.75, 0.5], [1, 1], [0.5, 0.25], [0.5, 0.5]]
    for beside in (first, f"{second},{second}/../first/", f"{first}x"):
        with pytest.raises(UserError, match=str(beside).rpartition(",")[2].rpartition("..")[0] or "first"):
            plot.main(plot.PlotConfig(beside=str(beside)), str(first))


def test_runs_of_one_name_share_a_colour_and_a_line_of_the_legend(tmp_path, monkeypatch):
    first, *others = (write_run(tmp_path / f"seed{i}", error) for i, error in enumerate((0.5, 0.25, 0.375)))
    beside = ",".join(map(str, others))
    axes, labels = compared(monkeypatch, first, beside, "our, its twin,our")
    assert labels == [
        "our (43.75 % ± 8.84 % test error at the end, n = 2)",
        "its twin (25.00 % test error at the end)",
        "training error",
        "± a standard deviation over runs",
    ]
    assert [line.get_ydata()[-1] for line in axes.lines[:4]] == [0.4375, 0.875, 0.25, 0.5]
    assert [line.get_color() for line in axes.lines[:4]] == ["C0"] * 2 + ["C1"] * 2
    band, *_ = axes.collections
    (upper,) = {y for x, y in band.get_paths()[0].vertices if x == 20 and y > 0.4375}
    assert upper == pytest.approx(0.4375 + np.std([0.5, 0.375], ddof=1))
    with pytest.raises(UserError, match="a,b"):
        compared(monkeypatch, first, beside, "a,b")


def test_a_level_is_only_for_training_runs(tmp_path):
    begin(tmp_path, config_of("check_theory"), "check_theory", "done")
    with pytest.raises(UserError, match="level .*check_theory"):
        plot.main(plot.PlotConfig(level="5 %"), str(tmp_path))


def test_runs_that_did_not_come_to_their_end_are_in_no_mean(tmp_path, monkeypatch):
    done, diverged, running = (tmp_path / name for name in ("done", "diverged", "running"))
    for path, status in ((diverged, "diverged"), (running, "running")):
        begin(path, TrainConfig(), status=status, **({"diverged_at_step": 23} if status == "diverged" else {}))
    for path, error in ((done, 0.5), (diverged, 0.25), (running, 0.125)):
        write_run(path, error)
    labels = compared(monkeypatch, done, f"{diverged},{running}", "a,a,a")[1]
    assert labels[0] == (
        "a (50.00 % test error at the end; 12.50 % test error at step 20; "
        "25.00 % test error at step 20, before it diverged)"
    )
    (axes,) = train.figures(str(diverged))["convergence"].axes
    assert axes.get_legend().texts[1].get_text() == "test error (25.00 % at step 20, before it diverged)"


def test_errors_on_held_out_images_are_called_so_beside_test_errors(tmp_path, monkeypatch):
    first, second = write_run(tmp_path / "first", 0.5), tmp_path / "second"
    begin(second, TrainConfig(data=DataConfig(validation_examples=100)), status="done")
    write_run(second, 0.25)
    labels = compared(monkeypatch, first, second)[1]
    assert labels[:2] == ["first (50.00 % test error at the end)", "second (25.00 % held-out error at the end)"]
    for path, split in ((first, "test"), (second, "held-out")):
        (axes,) = train.figures(str(path))["convergence"].axes
        assert all((np.diff(line.get_xdata()) > 0).all() for line in axes.lines)
        assert [text.get_text().split(" (")[0] for text in axes.get_legend().texts] == ["train error", f"{split} error"]


def test_runs_of_one_name_are_distinguished_by_the_folders_above(tmp_path, monkeypatch):
    paths = [write_run(tmp_path / name / "seed0", 0.5) for name in ("e1", "e2")]
    assert [label.split()[0] for label in compared(monkeypatch, *paths)[1][:2]] == ["e1/seed0", "e2/seed0"]
    monkeypatch.chdir(paths[0].parent)
    labels = compared(monkeypatch, "seed0", "../e2/seed0")[1]
    assert [label.split()[0] for label in labels[:2]] == ["e1/seed0", "e2/seed0"]


def test_runs_are_named_by_the_settings_in_which_they_differ(tmp_path, monkeypatch):
    model = ModelConfig(use_batch_norm=True)
    configs = [TrainConfig(), TrainConfig(seed=1), TrainConfig(model=model, learning_rate=0.03), TrainConfig(seed=2)]
    paths = [tmp_path / f"run{i}" for i in range(len(configs))]
    for path, config in zip(paths, configs):
        begin(path, config, status="done")
        write_run(path, 0.25)
    _, labels = compared(monkeypatch, paths[0], ",".join(map(str, paths[1:])))
    assert labels[0] == "learning rate 0.05, no batch norm (25.00 % ± 0.00 % test error at the end, n = 3)"
    assert labels[1] == "learning rate 0.03, batch norm (25.00 % test error at the end)"
    _, labels = compared(monkeypatch, paths[0], f"{paths[1]},{paths[3]}")
    assert labels[0] == "seeds 0, 1, 2 (25.00 % ± 0.00 % test error at the end, n = 3)"


# Those of seeds 1 and 2 look like that of seed 0.
DRAWN = [name for name in sorted(os.listdir(DOCS_RUNS)) if not name.endswith(("_seed1", "_seed2"))]


@pytest.mark.slow
@pytest.mark.parametrize("run", DRAWN)
def test_every_run_of_the_docs_draws_legibly(run):
    kind = plot._kind(str(DOCS_RUNS / run))
    with styled():
        drawn = importlib.import_module(f"launch.{kind}").figures(str(DOCS_RUNS / run))
        assert drawn
        for figure in drawn.values():
            assert_legible(figure)


def test_a_figure_for_a_paper_is_drawn_with_its_letters(tmp_path, launch):
    write_run(tmp_path, 0.25)
    code, _, err = launch("plot", f"--run_dir={tmp_path}", "--format=pdf", "--style=paper")
    assert code == 0, err
    assert b"STIXGeneral" in (tmp_path / "convergence.pdf").read_bytes()
