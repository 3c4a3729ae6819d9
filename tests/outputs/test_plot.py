"""launch.plot of training runs: the series of metrics.csv, one run and several beside each other."""

import json

import numpy as np
import pytest
from outputs import references as ref
from outputs.conftest import finished
from outputs.words import PLOT

STEPS, RATES = [2, 4, 6], [0.1, 0.1, 0.01]
LEVEL = "6.38% as the paper prints it"
# By run: training and test errors at these steps. The first three are seeds of one setting; the last rises at the end.
ERRORS = {
    "first": ([0.8, 0.5, 0.3], [0.82, 0.56, 0.41]),
    "second": ([0.7, 0.45, 0.2], [0.9, 0.6, 0.33]),
    "third": ([0.75, 0.4, 0.28], [0.78, 0.61, 0.37]),
    "other": ([0.6, 0.3, 0.1], [0.71, 0.44, 0.47]),
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


def drawn(run_dir, *flags):
    _, out, figures = finished("plot", run_dir, *flags)
    ((name, figure),) = figures.items()
    (axes,) = figure.axes
    ref.assert_legend(axes.get_legend(), [axes])
    assert out.splitlines()[0].endswith(f"{name}.png") and not axes.get_title()
    labels = (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_yscale())
    assert labels == (PLOT["xlabel"], PLOT["ylabel"], "linear", "linear")
    assert axes.yaxis.get_major_formatter()(0.125) == "12.5%" and axes.xaxis.get_major_formatter()(3000) == "3,000"
    assert axes.get_xlim()[0] == axes.get_ylim()[0] == 0
    return name, axes, ref.labelled(axes)


def test_one_run_has_its_errors_its_drop_and_the_level_that_is_asked_for(momentum_run, run_dirs):
    name, axes, lines = drawn(run_dirs["first"], f"--level={LEVEL}")
    train, test = ERRORS["first"]
    texts = [PLOT["train"].format(0.3), PLOT["test"].format(0.41), PLOT["drops"], LEVEL]
    assert name == "convergence" and list(lines) == texts
    for text, values in zip(texts, (train, test)):
        ref.assert_line(lines[text], STEPS, values)
    # The rate was 0.1 up to step 4; the last row is that of 0.01.
    ref.assert_line(lines[PLOT["drops"]], [4, 4], [0, 1])
    ref.assert_line(lines[LEVEL], [0, 1], [0.0638] * 2)
    *_, lines = drawn(momentum_run)
    table = ref.read_columns(momentum_run / "metrics.csv")
    for text, column in (("train", "train_top1_error"), ("test", "test_top1_error")):
        ref.assert_line(lines[PLOT[text].format(table[column][-1])], STEPS, table[column])


def test_seeds_are_one_curve_with_a_band_of_the_sample_deviation(run_dirs):
    beside = ",".join(str(run_dirs[name]) for name in ("second", "third", "other"))
    name, axes, lines = drawn(run_dirs["first"], f"--beside={beside}", f"--level={LEVEL}")
    seeds = {part: np.array([ERRORS[run][part] for run in ("first", "second", "third")]) for part in (0, 1)}
    last = seeds[1][:, -1]
    group = PLOT["group"].format(name="momentum 0.9", mean=last.mean(), deviation=last.std(ddof=1), count=3)
    one = PLOT["one"].format(name="momentum 0.5", error=0.47)
    drops = [PLOT["drops of"].format(name=f"momentum {value}") for value in (0.9, 0.5)]
    expected = [group, drops[0], one, drops[1], PLOT["training"], PLOT["band"], LEVEL]
    assert name == "comparison" and list(lines) == expected
    ref.assert_line(lines[group], STEPS, seeds[1].mean(0))
    ref.assert_line(lines[one], STEPS, ERRORS["other"][1])
    ref.assert_line(lines[LEVEL], [0, 1], [0.0638] * 2)
    dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--" and len(line.get_xdata())]
    assert [line.get_color() for line in dashed] == [lines[group].get_color(), lines[one].get_color()]
    ref.assert_line(dashed[0], STEPS, seeds[0].mean(0))
    ref.assert_line(dashed[1], STEPS, ERRORS["other"][0])
    for part in (0, 1):
        mean, deviation = seeds[part].mean(0), seeds[part].std(0, ddof=1)
        edges = dict(zip(STEPS, zip(mean - deviation, mean + deviation)))
        ref.assert_area(axes, ref.colour_of(lines[group]), edges)


def test_given_names_belong_to_the_runs_in_their_order(run_dirs):
    *_, lines = drawn(run_dirs["other"], f"--beside={run_dirs['first']}", "--names=low,high")
    for name, run in (("low", "other"), ("high", "first")):
        test = ERRORS[run][1]
        ref.assert_line(lines[PLOT["one"].format(name=name, error=test[-1])], STEPS, test)
