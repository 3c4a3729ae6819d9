"""launch.report: the runs that it takes, and a page that loads and runs nothing. tests/outputs checks its numbers."""

import html.parser
import pathlib
import shutil

import pytest
from begun import begin, edit, read_config_json
from chromium import CHROMIUM, visit

from launch import report
from shortcut_study.config import PRESETS


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


def written(runs, run_dir) -> str:
    report.main(report.ReportConfig(runs=",".join(map(str, runs))), str(run_dir))
    return (run_dir / "report.html").read_text()


def test_a_page_loads_nothing_and_links_lead_to_the_runs(tiny_run, tmp_path):
    found = Page(written([tiny_run], tmp_path / "a report"))
    (link,) = found.all("a", "href")
    assert (tmp_path / "a report" / link / "metrics.csv").exists()
    (picture,) = found.all("img", "src")
    assert picture.startswith("data:image/png;base64,") and found.all("img", "alt") == ["convergence"]
    assert not {"script", "link", "iframe"}.intersection(tag for tag, _ in found.tags)
    assert read_config_json(str(tiny_run))["versions"]["machine"] in found.text
    assert read_config_json(str(tmp_path / "a report"))["status"] == "done"


@pytest.mark.parametrize(
    "name, figures",
    [
        ("paper", ["convergence"]),
        ("statements", ["ablations", "depths"]),
        ("norms", ["ablations", "kernel_norms"]),
        ("near_identity_paper", ["blocks"]),
        ("spectrum_paper", ["spectrum"]),
        pytest.param(
            "study_mnist",
            [f"figure_{name}" for name in (3, 4, 5, 6, 7, 8, 9, 10, 11, "convolutional")],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_kept_run_has_the_figures_that_the_guide_lists(name, figures, tmp_path):
    runs = pathlib.Path(__file__).parents[2] / "docs" / "runs"
    assert Page(written([runs / name], tmp_path / "report")).all("img", "alt") == figures


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")
def test_a_browser_asks_for_nothing_and_finds_no_error(tiny_run, tmp_path):
    written([tiny_run], tmp_path / "report")
    found = visit(tmp_path / "report" / "report.html", tmp_path)
    assert not found.console and not found.requests


def test_names_and_values_are_escaped(tiny_run, tmp_path):
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    run = shutil.copytree(tiny_run, tmp_path / evil.replace("/", "∕"))
    edit(run, {evil: evil}, versions={"machine": evil, evil: evil})
    found = Page(written([run], tmp_path / "report"))
    assert found.text.count(evil) >= 5 and not [attributes for _, attributes in found.tags if "onerror" in attributes]
    assert "script" not in [tag for tag, _ in found.tags]


def test_a_run_without_results_is_named_and_the_others_are_shown(tiny_run, tmp_path):
    begin(tmp_path / "begun", PRESETS["paper"], "shortcut_study")
    found = Page(written([tmp_path / "begun", tiny_run], tmp_path / "report"))
    assert "The run has no results yet" in found.text and len(found.all("img", "src")) == 1


def test_a_damaged_table_is_named_and_nothing_is_left(launch, tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    (run / "metrics.csv").write_text("step,loss\n1\n")
    code, _, err = launch("report", f"--runs={run}", f"--run_dir={tmp_path}/report")
    assert code == 1 and str(run) in err and not (tmp_path / "report").exists()


@pytest.mark.parametrize("runs", ["", ",", "{tmp}/none", "{tmp}", "{run},{run}/../{name}", "{report}"])
def test_directories_that_are_no_runs_are_named(launch, tmp_path, tiny_run, runs):
    begin(tmp_path / "old", report.ReportConfig(), "report")
    runs = runs.format(tmp=tmp_path, run=tiny_run, name=tiny_run.name, report=tmp_path / "old")
    code, _, err = launch("report", f"--runs={runs}", f"--run_dir={tmp_path}/report")
    assert code == 1 and err.count("\n") == 1 and "--runs" in err and runs in err
    assert not (tmp_path / "report").exists()
