"""launch.plot of training runs: the series of metrics.csv, one run and several beside each other."""

import json

import numpy as np
import pytest
from outputs.references import band, captured_figures, lines_by_label, read_table
from outputs.words import PLOT

STEPS, RATES = [2, 4, 6], [0.1, 0.1, 0.01]
# By run: training and test errors at these steps. The first two are seeds of one setting, the last is another one.
ERRORS = {
    "first": ([0.8, 0.5, 0.3], [0.82, 0.56, 0.41]),
    "second": ([0.7, 0.45, 0.2], [0.9, 0.6, 0.33]),
    "third": ([0.75, 0.4, 0.28], [0.78, 0.61, 0.37]),
    "other": ([0.6, 0.3, 0.1], [0.71, 0.52, 0.47]),
}


@pytest.fixture
def run_dirs(momentum_run, tmp_path):
    """Directories of finished runs with ERRORS for their metrics: seeds 0 to 2, and seed 0 at another momentum."""
    record = json.loads((momentum_run / "config.json").read_text())
    for seed, (name, (train, test)) in enumerate(ERRORS.items()):
        (tmp_path / name).mkdir()
        changes = {"seed": seed % 3, "momentum": 0.5 if name == "other" else 0.9}
        (tmp_path / name / "config.json").write_text(json.dumps(record | {"config": record["config"] | changes}))
        rows = [f"{s},{a},{b},{r},2.0" for s, a, b, r in zip(STEPS, train, test, RATES)]
        header = "step,train_top1_error,test_top1_error,learning_rate,loss"
        (tmp_path / name / "metrics.csv").write_text("\n".join([header, *rows]) + "\n")
    return {name: tmp_path / name for name in ERRORS}


def drawn(launch, monkeypatch, *flags):
    with captured_figures(monkeypatch) as figures:
        code, out, err = launch("plot", *flags)
    assert code == 0, err
    ((name, figure),) = figures.items()
    (axes,) = figure.axes
    assert out.splitlines()[0].endswith(f"{name}.png") and not axes.get_title()
    labels = (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_yscale())
    assert labels == (PLOT["xlabel"], PLOT["ylabel"], "linear", "linear")
    assert axes.yaxis.get_major_formatter()(0.125) == "12.5%" and axes.xaxis.get_major_formatter()(3000) == "3,000"
    assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0
    return name, axes, lines_by_label(axes)


def assert_line(line, y, x=STEPS):
    assert list(line.get_xdata()) == pytest.approx(x) and list(line.get_ydata()) == pytest.approx(y)


def test_one_run_has_its_errors_its_drop_and_the_level_that_is_asked_for(launch, momentum_run, run_dirs, monkeypatch):
    level = "6.38% as the paper prints it"
    name, axes, lines = drawn(launch, monkeypatch, f"--run_dir={run_dirs['first']}", f"--level={level}")
    train, test = ERRORS["first"]
    texts = [PLOT["train"].format(0.3), PLOT["test"].format(0.41), PLOT["drops"], level]
    assert name == "convergence" and list(lines) == texts
    for text, values in zip(texts, (train, test)):
        assert_line(lines[text], values)
    # The rate was 0.1 up to step 4; the last row is that of 0.01.
    assert_line(lines[PLOT["drops"]], [0, 1], x=[4, 4])
    assert_line(lines[level], [0.0638] * 2, x=[0, 1])
    *_, lines = drawn(launch, monkeypatch, f"--run_dir={momentum_run}")
    table = read_table(momentum_run / "metrics.csv")
    for text, column in (("train", "train_top1_error"), ("test", "test_top1_error")):
        assert_line(lines[PLOT[text].format(table[column][-1])], table[column])


def test_seeds_are_one_curve_with_a_band_of_the_sample_deviation(launch, run_dirs, monkeypatch):
    beside = ",".join(str(run_dirs[name]) for name in ("second", "third", "other"))
    flags = (f"--run_dir={run_dirs['first']}", f"--beside={beside}")
    name, axes, lines = drawn(launch, monkeypatch, *flags)
    seeds = {part: np.array([ERRORS[run][part] for run in ("first", "second", "third")]) for part in (0, 1)}
    last = seeds[1][:, -1]
    group = PLOT["group"].format(name="momentum 0.9", mean=last.mean(), deviation=last.std(ddof=1), count=3)
    one = PLOT["one"].format(name="momentum 0.5", error=0.47)
    drops = [PLOT["drops of"].format(name=f"momentum {value}") for value in (0.9, 0.5)]
    expected = [group, drops[0], one, drops[1], PLOT["training"], PLOT["band"]]
    assert name == "comparison" and list(lines) == expected
    assert_line(lines[group], seeds[1].mean(0))
    assert_line(lines[one], ERRORS["other"][1])
    dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--" and len(line.get_xdata())]
    assert [line.get_color() for line in dashed] == [lines[group].get_color(), lines[one].get_color()]
    assert_line(dashed[0], seeds[0].mean(0))
    assert_line(dashed[1], ERRORS["other"][0])
    for collection, part in zip(axes.collections, (1, 0)):  # test, then training
        x, low, high = band(collection)
        mean, deviation = seeds[part].mean(0), seeds[part].std(0, ddof=1)
        assert [*x, *low, *high] == pytest.approx([*STEPS, *(mean - deviation), *(mean + deviation)])


def test_given_names_belong_to_the_runs_in_their_order(launch, run_dirs, monkeypatch):
    flags = (f"--run_dir={run_dirs['other']}", f"--beside={run_dirs['first']}", "--names=low,high")
    *_, lines = drawn(launch, monkeypatch, *flags)
    for name, run in (("low", "other"), ("high", "first")):
        test = ERRORS[run][1]
        assert_line(lines[PLOT["one"].format(name=name, error=test[-1])], test)
