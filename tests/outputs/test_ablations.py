"""launch.ablations: which runs are made, and the table, rows and figures of their errors. Training is a stand-in."""

import dataclasses
import json
import os

import numpy as np
import pytest
from outputs.conftest import finished
from outputs.references import labelled, read_columns
from outputs.words import ABLATIONS

from identity_matters import training

BATCH, OPERATIONS, NUM_TRAIN, HELD_OUT = 256, 4e11, 4000, 1000
# Held-out errors by learning rate; None: it diverged. If the best of three is the first or last, two more are tried.
SEARCHES = {
    "BN-free": {0.015: 0.4, 0.03: 0.3, 0.06: 0.35},
    "momentum SGD": {0.05: 0.5, 0.1: 0.6, 0.2: None, 0.025: 0.55},
    "1 block a stage": {0.015: 0.7, 0.03: 0.6, 0.06: 0.5, 0.12: 0.45, 0.24: 0.46},
}
RATES = {"BN-free": 0.03, "momentum SGD": 0.05, "1 block a stage": 0.12}
# Test error, training error and cross-entropy of the seeds 5, 6 and 7 at the end.
TESTS = {
    "BN-free": [(0.30, 0.21, 1.1), (0.34, 0.22, 1.3), (0.35, 0.26, 1.2)],
    "momentum SGD": [(0.52, 0.41, 1.9), None, (0.58, 0.45, 1.8)],
    "1 block a stage": [(0.25, 0.31, 0.9), (0.26, 0.35, 0.7), (0.21, 0.36, 0.8)],
}
ENDED = {name: [seed for seed in seeds if seed] for name, seeds in TESTS.items()}
COLUMNS = "step,epoch,learning_rate,loss,train_cross_entropy,train_top1_error,test_top1_error,test_cross_entropy"


def variant_of(config) -> str:
    deep = {2: "BN-free", 1: "1 block a stage"}[config.model.blocks_per_stage[0]]
    return "momentum SGD" if config.optimizer == "keras_momentum" else deep


def stand_in(calls):
    """Training that leaves a run's files with the errors above; those before the last one are lower."""

    def train(config, run_dir):
        calls.append(config)
        end = TESTS[variant_of(config)][config.seed - 5]
        if config.data.validation_examples:
            found = SEARCHES[variant_of(config)][config.learning_rate]
            end = found and (found, found, 10 - 10 * found)  # of another order
        os.makedirs(run_dir)
        record = {"kind": "train", "status": "done" if end else "diverged", "config": dataclasses.asdict(config)}
        with open(f"{run_dir}/config.json", "w") as file:
            json.dump(record | {"diverged_at_step": 2}, file)
        if end is None:
            raise training.Diverged(2)
        with open(f"{run_dir}/metrics.csv", "w") as file:
            print(COLUMNS, file=file)
            for step in (*range(config.eval_every, config.train_steps, config.eval_every), config.train_steps):
                shares = [part if step == config.train_steps else 0.5 * part for part in end[::-1]]
                print(step, step * BATCH / NUM_TRAIN, config.learning_rate, 2.0, *shares, 1, sep=",", file=file)

    return train


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A finished comparison: its directory, output, figures, and the configs of its runs."""
    run_dir, calls = tmp_path_factory.mktemp("runs") / "compared", []
    flags = ["--dataset=mnist_sample", "--image_size=16", f"--validation_examples={HELD_OUT}", "--seeds=3", "--seed=5"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "train", stand_in(calls))
        only = f"--only={','.join(TESTS)}"
        return *finished("ablations", run_dir, *flags, only, f"--operations={OPERATIONS}"), calls


def steps_of(name: str, operations: float) -> int:
    """How many updates these operations allow: 2k²ab for each output pixel, three times except for the first kernel."""
    blocks, width = (1, 32) if name == "1 block a stage" else (2, 24)
    forward, channels = [2 * 9 * width * 16**2], width
    for stage, side in enumerate((8, 4, 2)):  # the stem's output is pooled
        for _ in range(2 * blocks):
            forward.append(2 * 9 * channels * (width << stage) * side**2)
            channels = width << stage
    return max(1, round(operations / (BATCH * (3 * sum(forward) - forward[0]))))


def test_rates_are_sought_on_held_out_images_in_half_the_operations_then_seeds_run(compared):
    calls = compared[3]
    found = [(variant_of(c), c.learning_rate, c.seed, c.data.validation_examples, c.train_steps) for c in calls]
    half, whole = ({name: steps_of(name, share * OPERATIONS) for name in TESTS} for share in (0.5, 1))
    expected = [(name, rate, 5, HELD_OUT, half[name]) for name in TESTS for rate in SEARCHES[name]]
    expected += [(name, RATES[name], seed, 0, whole[name]) for seed in (5, 6, 7) for name in TESTS]
    assert found == expected and {c.batch_size for c in calls} == {BATCH} and half["BN-free"] > 20


def test_the_printed_table_has_means_and_sample_deviations_of_the_last_errors(compared):
    lines = [line.strip("| ").split(" | ") for line in compared[1].splitlines() if line.startswith("|")]
    assert "|".join(lines[0]) == ABLATIONS["heads"] and len(lines) == 5
    for name, cells in zip(TESTS, lines[2:]):
        steps, tried = steps_of(name, OPERATIONS), ", ".join(f"{rate:g}" for rate in sorted(SEARCHES[name]))
        expected = [name, f"{RATES[name]:g} ({tried})", f"{steps:,}", f"{steps * BATCH / NUM_TRAIN:.1f}"]
        expected += [f"{3 - len(ENDED[name])} of 3"]
        for values, scale, unit in zip(np.transpose(ENDED[name]), (100, 100, 1), (" %", " %", "")):
            expected.append(f"{scale * values.mean():.2f} ± {scale * values.std(ddof=1):.2f}{unit}")
        assert cells == expected


def test_results_csv_names_variant_phase_rate_and_seed_of_each_run(compared):
    table = read_columns(compared[0] / "results.csv")
    names = ("variant", "phase", "chosen_rate", "seed", "status", "test_top1_error")
    last = {row[:4]: row[4:] for row in zip(*(table[name] for name in names))}  # the last row of each run
    expected = {(name, "search", rate, 5): error for name in TESTS for rate, error in SEARCHES[name].items()}
    expected |= {(name, "test", RATES[name], 5 + i): s and s[0] for name in TESTS for i, s in enumerate(TESTS[name])}
    assert last.keys() == expected.keys() and len(table["variant"]) > len(last)  # a row for each evaluation
    for key, error in expected.items():
        assert last[key] == ("done", error) if error else last[key][0] == "diverged" and np.isnan(last[key][1])


def dots_of(axes) -> list[tuple[float, float, str]]:
    """Points (x, y, colour) that are drawn as dots."""
    dots = [line for line in axes.get_lines() if line.get_marker() == "o"]
    return [(x, y, line.get_color()) for line in dots for x, y in zip(*line.get_data())]


def test_ablations_png_has_a_dot_for_each_seed_and_a_bar_at_the_mean(compared):
    figure = compared[2]["ablations"]
    (legend,) = figure.legends
    colours = {text.get_text(): handle.get_color() for text, handle in zip(legend.get_texts(), legend.legend_handles)}
    assert list(colours) == ABLATIONS["optimisers"] and len({*colours.values()}) == 2
    ordered = ["1 block a stage", "BN-free", "momentum SGD"]  # by mean test error
    for axes, column, label in zip(figure.axes, (0, 1), ABLATIONS["xlabels"]):
        assert axes.get_xlabel() == label and axes.xaxis.get_major_formatter()(0.5) == "50%"
        values = [[seed[column] for seed in ENDED[name]] for name in ordered]
        own = [colours["momentum SGD" if "SGD" in name else "Muon"] for name in ordered]
        assert dots_of(axes) == [(x, i, own[i]) for i in range(3) for x in values[i]]
        bars = [line.get_xdata()[0] for line in axes.get_lines() if line.get_linewidth() == 2]
        (compared_with,) = [line.get_xdata()[0] for line in axes.get_lines() if line.get_linestyle() == ":"]
        assert [*bars, compared_with] == pytest.approx([*map(np.mean, values), np.mean(values[1])])  # the first variant
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == [*ordered[:2], ABLATIONS["diverged"].format("momentum SGD", 1, 3)]


def test_depths_png_has_the_errors_by_the_number_of_convolutions(compared):
    for axes, column in zip(compared[2]["depths"].axes, (0, 1)):
        values = {7: TESTS["1 block a stage"], 13: TESTS["BN-free"]}  # 1 + 2 · 3 blocks, 1 + 2 · 6
        expected = [(depth, seed[column]) for depth, seeds in values.items() for seed in seeds]
        assert [dot[:2] for dot in dots_of(axes)] == expected and axes.get_xlabel() == ABLATIONS["depth"][0]
        line = labelled(axes)[ABLATIONS["depth"][1]]
        means = [np.mean([seed[column] for seed in seeds]) for seeds in values.values()]
        assert [*line.get_xdata(), *line.get_ydata()] == pytest.approx([7, 13, *means])
