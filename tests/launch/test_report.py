"""launch.report: what stands on the page, what cannot get onto it, and quick runs that go on where they stopped."""

import dataclasses
import html.parser
import os
import pathlib
import re
import shutil
import signal
import sys

import processes
import pytest
from begun import begin, edit
from study_rows import of_figure, paper_rows

from identity_matters.config import DataConfig
from identity_matters.errors import Preempted, UserError
from identity_matters.experiments.ablations import AblationConfig
from identity_matters.presets import MODEL_PRESETS, TRAIN_PRESETS
from identity_matters.runs import machine
from identity_matters.runs.config_json import read_config_json
from identity_matters.runs.tables import read_metrics, write_metrics
from launch import check_theory, report
from launch.reporting import figures, page
from launch.reporting.runs import MAX_SVG, Run, evaluations, picture, read_run
from shortcut_study.config import PRESETS
from theory.claims import CLAIMS


class Page(html.parser.HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag, name):
        return [attributes[name] for found, attributes in self.tags if found == tag and name in attributes]


@pytest.fixture(scope="module")
def study_run(tmp_path_factory):
    """The directory of a study of the paper's size, of rows made by hand on which everything holds."""
    path = tmp_path_factory.mktemp("runs") / "study"
    rows = [row | {"job": f"{row['experiment']} {row['activations']}"} for row in paper_rows()]
    begin(path, PRESETS["paper"], "shortcut_study", "done", rows, seconds=30.0)
    return path


@pytest.fixture(scope="module")
def checked_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "checked"
    assert check_theory.main(check_theory.CheckConfig(claim="review.eq_6", trials=3), str(path)) == 0
    return path


def written(runs, run_dir):
    report.main(report.ReportConfig(runs=",".join(map(str, runs))), str(run_dir))
    return (run_dir / "report.html").read_text()


@pytest.mark.slow
def test_the_page_has_the_figures_the_claims_the_runs_and_what_was_not_run(tiny_run, study_run, checked_run, tmp_path):
    text = written([tiny_run, study_run, checked_run], tmp_path / "report")
    found = Page(text)
    last = read_metrics(tiny_run / "metrics.csv")[-1]
    assert f"{last['test_top1_error']:.2%} top-1 test error after 4 steps" in found.text
    titles = ["Hardt & Ma, Figure 1", *(f"Li et al., Figure {n}" for n in (3, 5, 6, 7, 8, 9, 10))]
    assert re.findall(r"<h3>(.*, Figure \d+)</h3>", text) == [title.replace("&", "&amp;") for title in titles]
    (holding, evaluated) = re.search(r"(\d+) of (\d+) statements hold in these runs", found.text).groups()
    assert holding == evaluated and int(evaluated) > 20
    assert "16 < 32" in found.text and "1 of 1 checks pass" in found.text  # of review.eq_6
    assert found.text.count("not checked in this report") == len(CLAIMS) - 1
    for command in ("--preset=cifar10", "--preset=cifar100", "--preset=imagenet_wide"):
        assert command in found.text
    assert "at the paper's size" not in found.text  # the study is
    assert read_config_json(str(tiny_run))["versions"]["machine"] in found.text
    pictures = found.all("img", "src")
    assert len(pictures) == len(titles) and all(src.startswith("data:image/svg+xml;base64,") for src in pictures)
    assert all(found.all("img", "alt"))


def test_an_unfinished_study_is_drawn_and_says_nothing(tmp_path):
    begin(tmp_path, PRESETS["paper"], "shortcut_study", rows=of_figure(paper_rows(), "5"))
    found = read_run(str(tmp_path), str(tmp_path))
    assert not found.problem and not found.findings and "figure_5" in found.pictures


def test_training_runs_are_compared_by_the_settings_that_differ(tiny_run, tmp_path):
    slower = shutil.copytree(tiny_run, tmp_path / "slower")
    edit(slower, {"learning_rate": 0.0123}, status="diverged", diverged_at_step=5)
    text = written([tiny_run, slower], tmp_path / "report")
    (header,) = re.findall(r"<h3>Training runs and the settings that differ</h3>.*?<thead>(.*?)</thead>", text, re.S)
    assert re.findall("<th>(.*?)</th>", header)[5:] == ["learning_rate"]
    assert "<td>0.0123</td>" in text and "Its status is diverged" in text
    assert "the settings that differ" not in written([tiny_run], tmp_path / "one")


def test_ablations_have_their_table_and_picture(tmp_path):
    row = {"variant": "paper", "phase": "test", "chosen_rate": 0.03, "seed": 0, "status": "done", "step": 5}
    row |= {"epoch": 1.0, "loss": 1.0, "train_cross_entropy": 1.0, "test_top1_error": 0.25}
    row |= {"learning_rate": 0.1, "train_top1_error": 0.5}
    begin(tmp_path / "run", AblationConfig(), "ablations", "done", [row])
    found = Page(written([tmp_path / "run"], tmp_path / "report"))
    assert "25.00 %" in found.text and len(found.all("img", "src")) == 1


def test_a_run_on_a_file_is_shown_with_the_file_and_not_with_the_preset_s_data_set(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    edit(tmp_path / "run", {"npz": "mine.npz"})
    (figure,) = figures.paper_figures([read_run(str(tmp_path / "run"), str(tmp_path))])
    assert figure.shown == "Top-1 error during training on mine.npz"


@pytest.fixture
def paper_run(tmp_path):
    """Makes the directory of a finished run of the cifar10 preset, shortened or changed, and reads it."""

    def make(**changes):
        path, steps = tmp_path / f"run{len(os.listdir(tmp_path))}", changes.pop("train_steps", 50_000)
        config = dataclasses.replace(TRAIN_PRESETS["cifar10"], train_steps=steps, **changes)
        names = ("loss", "learning_rate", "train_top1_error", "test_top1_error", "test_top5_error", "images_per_second")
        begin(path, config, status="done", rows=[dict.fromkeys(names, 0.25) | {"step": steps}])
        return read_run(str(path), str(tmp_path))

    return make


TABLE_2 = "Hardt & Ma, Table 2: cifar10"


def test_a_run_of_the_paper_s_network_and_length_is_its_table_2(paper_run):
    run = paper_run(seed=3, model=dataclasses.replace(TRAIN_PRESETS["cifar10"].model, mixed_precision=True))
    (figure,) = figures.paper_figures([run])
    assert figure.statements[0].says == "6.38% top-1 test error (Table 2, the full run)"
    assert "25.00% top-1 test error" in figure.statements[0].result
    assert TABLE_2 not in [line.what for line in figures.missing([run], [figure])]
    short = paper_run(train_steps=49_999)
    (line,) = [line for line in figures.missing([short], []) if line.what == TABLE_2]
    assert line.why == "49,999 steps were run, of 50,000"


def test_the_paper_s_own_run_is_figure_1_and_table_2_though_its_images_came_from_a_file(tmp_path):
    path = pathlib.Path(__file__).parents[2] / "docs" / "runs" / "paper"
    run = read_run(str(path), str(tmp_path))
    (figure,) = figures.paper_figures([run])
    assert figure.statements[0].says == "6.38% top-1 test error (Table 2, the full run)"
    assert figure.statements[0].result == "10.75% top-1 test error after 50,000 steps"
    assert figure.shown.endswith("on cifar10") and "H200" in run.machine
    assert TABLE_2 not in [line.what for line in figures.missing([run], [figure])]
    other = run._replace(contents=run.contents | {"data": "50000 training and 10000 test images, 32x32x3, labels 0"})
    assert "the user's own" in figures.paper_figures([other])[0].statements[0].says
    assert TABLE_2 in [line.what for line in figures.missing([other], [])]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"model": MODEL_PRESETS["cifar10_fast"]}, "differs in stem_width, stem_pool, widths, blocks_per_stage"),
        ({"data": DataConfig(validation_examples=5_000)}, "differs in validation_examples"),
    ],
)
def test_another_network_or_data_does_not_stand_for_table_2(paper_run, changes, said):
    run = paper_run(**changes)
    (figure,) = figures.paper_figures([run])
    assert said in figure.statements[0].says
    assert ("held-out error" in figure.statements[0].result) == ("data" in changes)
    assert TABLE_2 in [line.what for line in figures.missing([run], [figure])]


def test_links_lead_to_the_files_of_the_runs(tiny_run, tmp_path):
    found = Page(written([tiny_run], tmp_path / "a report"))
    links = [href for href in found.all("a", "href") if not href.startswith(("#", "https://arxiv.org/abs/"))]
    assert len(links) >= 5 and all((tmp_path / "a report" / link).exists() for link in links)
    assert not [src for tag in ("script", "link", "iframe") for src in found.all(tag, "src") + found.all(tag, "href")]


def test_names_and_values_are_escaped(tiny_run, checked_run, tmp_path):
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    trained, checked = tmp_path / evil.replace("/", "∕"), tmp_path / "checked"
    shutil.copytree(tiny_run, trained)
    shutil.copytree(checked_run, checked)
    for path in (trained, checked):
        edit(path, {evil: evil}, command=evil, versions={"machine": evil, evil: evil})
    rows = read_metrics(str(trained / "metrics.csv"))
    write_metrics(str(trained / "metrics.csv"), [row | {"test_top5_error": evil} for row in rows])
    cells = {"counterexample": evil, "verdict": evil, "relation": evil, "measured": evil, "instances": 1}
    write_metrics(str(checked / "results.csv"), [{"claim": "review.eq_6", "bound": evil} | cells])
    runs = [read_run(str(path), str(tmp_path)) for path in (trained, checked)]
    found = Page(page.render(runs))
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert not [attributes for _, attributes in found.tags if "onerror" in attributes]
    assert all(src.startswith("data:") for src in found.all("img", "src")) and found.text.count(evil) > 8
    # A metrics.csv with a word for a number is refused by what draws it, and the page says so.
    assert "cannot be used" in found.text


def test_a_config_of_wrong_types_is_shown_as_it_is(tiny_run, tmp_path):
    odd = shutil.copytree(tiny_run, tmp_path / "odd")
    fields = {"dataset": ["cifar10"], "batch_size": "many"}
    edit(odd, fields, versions=["x"], command={"a": 1}, seconds="long")
    text = Page(written([odd], tmp_path / "report")).text
    assert "on ['cifar10']" in text and text.count("not recorded") >= 3


@pytest.mark.parametrize("damage", ["", "\0\0", "step,loss\n1\n"])
def test_a_damaged_run_does_not_take_the_others_along(tiny_run, tmp_path, damage):
    broken = shutil.copytree(tiny_run, tmp_path / "broken")
    (broken / "metrics.csv").write_text(damage)
    problem = read_run(str(broken), str(tmp_path)).problem
    assert problem.startswith(("the run has no results", "the tables of the run cannot be used: cannot read the"))
    if damage == "\0\0":
        found = Page(written([broken, tiny_run], tmp_path / "report"))
        assert "No figures" in found.text and len(found.all("img", "src")) == 1


def test_a_short_time_is_said_in_words_that_are_true():
    for seconds, words in ((1.4, "less than 2 seconds"), (1.6, "2 seconds"), (7200, "2.0 hours")):
        assert Run("run", {"seconds": seconds}, []).time == words


def test_the_time_of_training_is_that_of_all_steps_at_their_rates():
    rows = [{"step": 100, "images_per_second": 50.0}, {"step": 400, "images_per_second": 20.0}]
    run = Run("run", {"kind": "train", "config": {"batch_size": 10}}, [], rows=rows)
    assert run.time == "2.8 minutes (training steps only)"  # 100 · 10 / 50 + 300 · 10 / 20 = 170 seconds


@pytest.mark.parametrize("cores, words", [([3], "1 core"), ([0, 1], "2 cores")])
def test_a_machine_of_one_core_has_one_core(monkeypatch, cores, words):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    assert words in machine.machine().split(", ")


def test_a_picture_of_too_many_points_is_embedded_as_pixels():
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure()
    figure.add_subplot().plot(*np.random.default_rng(0).random((2, MAX_SVG // 40)), ".")
    assert picture(figure).address.startswith("data:image/png;base64,")


@pytest.mark.parametrize("runs", ["{tmp}/none", "{tmp}", "{run},{run}/../{name}", ",", "{run}\n"])
def test_what_is_no_run_is_named_in_one_line_and_nothing_is_left(launch, tmp_path, tiny_run, runs):
    runs = runs.format(tmp=tmp_path, run=tiny_run, name=tiny_run.name)
    code, _, err = launch("report", f"--runs={runs}", f"--run_dir={tmp_path}/report")
    assert code == 1 and err.count("\n") == 1 and "runs" in err
    assert not (tmp_path / "report").exists()


def test_a_report_is_not_reported_on_and_named_as_one(tmp_path):
    begin(tmp_path, report.ReportConfig(), "report")
    with pytest.raises(UserError, match="is not the directory of a run: it is a report"):
        read_run(str(tmp_path), str(tmp_path))


SMALL = (
    report.Quick("claims", "launch.check_theory", ("--claim=review.eq_6", "--trials=2"), "a second"),
    report.Quick("study", "launch.check_theory", ("--claim=hm.eq_2.3", "--trials=2"), "a second"),
)


@pytest.mark.slow
def test_the_quick_runs_are_computed_once_and_go_on_where_they_stopped(launch, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "QUICK", SMALL)
    real, calls = report._run, []

    def run(command, log):
        calls.append(command)
        if len(calls) == 2:
            raise Preempted()
        return real(command, log)

    monkeypatch.setattr(report, "_run", run)
    code, out, _ = launch("report", f"--run_dir={tmp_path}/report")
    assert code == 75 and "[1/2] claims: done after" in out and "the same command continues" in out
    assert not (tmp_path / "report" / "report.html").exists()
    code, out, err = launch("report", f"--run_dir={tmp_path}/report")
    assert code == 0, err
    assert "[1/2] claims: already done" in out and "[2/2] study: done after" in out and len(calls) == 3
    assert "2 of 2 checks" not in out and read_config_json(f"{tmp_path}/report")["status"] == "done"
    assert "16 < 32" in Page((tmp_path / "report" / "report.html").read_text()).text


@pytest.mark.slow
def test_a_quick_run_that_fails_is_named_with_its_log(launch, tmp_path, monkeypatch):
    monkeypatch.setattr(
        report, "QUICK", (report.Quick("claims", "launch.check_theory", ("--claim=hm.none",), "a second"),)
    )
    code, _, err = launch("report", f"--run_dir={tmp_path}/report")
    assert code == 1 and "launch.check_theory ended with exit code 1" in err and f"{tmp_path}/report/claims.log" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a killed report leaves the run under way")
@pytest.mark.slow
def test_a_report_that_is_killed_takes_the_run_under_way_along(tmp_path, number):
    started = processes.start(tmp_path / "report", "report")
    processes.until((tmp_path / "report" / "claims" / "config.json").exists, started, seconds=60)
    (child,) = processes.children(started)
    started.send_signal(number)
    assert started.wait(60) == (75 if number == signal.SIGTERM else -signal.SIGKILL)
    processes.until(lambda: not processes.is_alive(child), seconds=60)


def test_a_table_of_evaluations_has_a_dash_for_a_column_that_a_run_lacks():
    row = {"step": 5, "loss": 1.0, "train_top1_error": 0.5, "test_top1_error": 0.25, "learning_rate": 0.1}
    assert evaluations(Run("run", {}, [], rows=[row])) == [["5", "1", "50.00%", "25.00%", "–", "0.1"]]


def test_a_table_of_evaluations_ends_with_the_last_and_skips_as_many_between_any_two():
    row = {"loss": 1.0, "train_top1_error": 0.5, "test_top1_error": 0.25, "learning_rate": 0.1}
    cells = evaluations(Run("run", {}, [], rows=[row | {"step": step} for step in range(1, 27)]))
    assert [step for step, *_ in cells] == [str(step) for step in range(2, 27, 3)]
