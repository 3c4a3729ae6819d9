"""launch.ablations: which runs are made, and the table, rows and figures of their errors. Training is a stand-in."""

import dataclasses
import json
import os

import numpy as np
import pytest
from launching import launched
from outputs.references import captured_figures, read_table
from outputs.words import ABLATIONS

from identity_matters import training

BATCH, OPERATIONS, NUM_TRAIN, HELD_OUT = 256, 4e11, 4000, 1000
VARIANTS = ["BN-free", "momentum SGD", "1 block a stage"]
# Held-out errors by learning rate: beyond the best of three rates, if it is the last, up to two more are tried.
SEARCHES = {
    "BN-free": {0.015: 0.4, 0.03: 0.3, 0.06: 0.35},
    "momentum SGD": {0.05: 0.5, 0.1: 0.6, 0.2: None, 0.025: 0.55},  # None: it diverged
    "1 block a stage": {0.015: 0.7, 0.03: 0.6, 0.06: 0.5, 0.12: 0.45, 0.24: 0.46},
}
RATES = {"BN-free": 0.03, "momentum SGD": 0.05, "1 block a stage": 0.12}
# Test errors, training errors and cross-entropies of the seeds 5, 6 and 7 at the end.
TESTS = {
    "BN-free": [(0.30, 0.21, 1.1), (0.34, 0.22, 1.3), (0.35, 0.26, 1.2)],
    "momentum SGD": [(0.52, 0.41, 1.9), None, (0.58, 0.45, 1.8)],
    "1 block a stage": [(0.25, 0.31, 0.9), (0.26, 0.35, 0.7), (0.21, 0.36, 0.8)],
}


def variant_of(config) -> str:
    if config.optimizer == "momentum":
        return "momentum SGD"
    return {2: "BN-free", 1: "1 block a stage"}[config.model.blocks_per_stage[0]]


def stand_in(calls):
    """Training that leaves a run's files with the errors above; those before the last one are lower."""

    def train(config, run_dir, *_, **__):
        calls.append(config)
        name, path = variant_of(config), run_dir
        is_search = bool(config.data.validation_examples)
        end = SEARCHES[name][config.learning_rate] if is_search else TESTS[name][config.seed - 5]
        end = (end, end, 10 * end) if isinstance(end, float) else end
        record = {"kind": "train", "status": "done" if end else "diverged", "config": dataclasses.asdict(config)}
        os.makedirs(path)
        if end is None:
            record["diverged_at_step"] = 2
        with open(f"{path}/config.json", "w") as file:
            json.dump(record, file)
        if end is None:
            raise training.Diverged(2)
        lines = [
            "step,epoch,learning_rate,loss,train_cross_entropy,train_top1_error,test_top1_error,test_cross_entropy"
        ]
        for step in (*range(config.eval_every, config.train_steps, config.eval_every), config.train_steps):
            share = 1.0 if step == config.train_steps else 0.5
            epoch = step * config.batch_size / NUM_TRAIN
            numbers = [config.learning_rate, 2.0, end[2] * share, end[1] * share, end[0] * share, 1.0]
            lines.append(",".join(map(str, [step, epoch, *numbers])))
        with open(f"{path}/metrics.csv", "w") as file:
            file.write("\n".join(lines) + "\n")

    return train


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A finished comparison: its directory, what it printed, its figures, and the configs of its runs."""
    run_dir, calls = tmp_path_factory.mktemp("runs") / "compared", []
    with pytest.MonkeyPatch.context() as patch, captured_figures(pytest.MonkeyPatch(), are_written=False) as figures:
        patch.setattr(training, "train", stand_in(calls))
        flags = ["--dataset=mnist_sample", "--image_size=16", f"--validation_examples={HELD_OUT}", "--seeds=3"]
        flags += [f"--only={','.join(VARIANTS)}", f"--operations={OPERATIONS}", "--seed=5"]
        code, out, err = launched("ablations", f"--run_dir={run_dir}", *flags)
    assert code == 0, err
    return run_dir, out, figures, calls


def steps_of(name: str, operations: float) -> int:
    """How many updates these operations allow: 2k²ab for each output pixel, three times but for the first kernel."""
    blocks, width = (1, 32) if name == "1 block a stage" else (2, 24)
    forward, channels = [2 * 9 * width * 16**2], width
    for stage, side in enumerate((8, 4, 2)):  # the stem's output is pooled
        for _ in range(2 * blocks):
            forward.append(2 * 9 * channels * (width << stage) * side**2)
            channels = width << stage
    return max(1, round(operations / (BATCH * (3 * sum(forward) - forward[0]))))


def test_rates_are_sought_on_held_out_images_in_half_the_operations_and_seeds_tested(compared):
    found = [(variant_of(c), c.learning_rate, c.seed, c.data.validation_examples, c.train_steps) for c in compared[3]]
    expected = [
        (name, rate, 5, HELD_OUT, steps_of(name, OPERATIONS / 2)) for name in VARIANTS for rate in SEARCHES[name]
    ]
    expected += [(name, RATES[name], seed, 0, steps_of(name, OPERATIONS)) for seed in (5, 6, 7) for name in VARIANTS]
    assert found == expected
    assert {c.batch_size for c in compared[3]} == {BATCH} and steps_of("BN-free", OPERATIONS) > 20


def mean_and_deviation(values, scale, unit) -> str:
    values = scale * np.array(values)
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}{unit}"


def test_the_printed_table_has_means_and_sample_deviations_of_the_last_errors(compared):
    lines = [
        [cell.strip() for cell in line.strip("| \n").split(" | ")]
        for line in compared[1].splitlines()
        if line[:1] == "|"
    ]
    assert lines[0] == ABLATIONS["heads"] and len(lines) == 5
    for name, cells in zip(VARIANTS, lines[2:]):
        ended = [seed for seed in TESTS[name] if seed]
        steps, tried = steps_of(name, OPERATIONS), ", ".join(f"{rate:g}" for rate in sorted(SEARCHES[name]))
        expected = [name, f"{RATES[name]:g} ({tried})", f"{steps:,}", f"{steps * BATCH / NUM_TRAIN:.1f}"]
        expected += [f"{3 - len(ended)} of 3"]
        for column, scale, unit in ((0, 100, " %"), (1, 100, " %"), (2, 1, "")):
            expected.append(mean_and_deviation([seed[column] for seed in ended], scale, unit))
        assert cells == expected


def test_results_csv_names_variant_phase_rate_and_seed_of_each_run(compared):
    table = read_table(compared[0] / "results.csv")
    names = ("variant", "phase", "chosen_rate", "seed", "status", "test_top1_error", "train_top1_error")
    last = {row[:4]: row[4:] for row in zip(*(table[name] for name in names))}  # the last row of each run
    searches = {
        (name, "search", rate, 5.0): ("done", error, error) if error else ("diverged", "", "")
        for name, errors in SEARCHES.items()
        for rate, error in errors.items()
    }
    tests = {
        (name, "test", RATES[name], 5.0 + i): ("done", *seed[:2]) if seed else ("diverged", "", "")
        for name, seeds in TESTS.items()
        for i, seed in enumerate(seeds)
    }
    assert {key: tuple("" if v != v else v for v in values) for key, values in last.items()} == searches | tests
    assert len(table["variant"]) > len(last)  # a row for each evaluation


def dots_of(axes) -> list[tuple[float, float, str]]:
    """Points (x, y, colour) that are drawn as dots."""
    dots = [line for line in axes.get_lines() if line.get_marker() == "o" and len(line.get_xdata())]
    return [(x, y, line.get_color()) for line in dots for x, y in zip(*line.get_data())]


def test_ablations_png_has_a_dot_for_each_seed_and_a_bar_at_the_mean(compared):
    figure = compared[2]["ablations"]
    ordered = ["1 block a stage", "BN-free", "momentum SGD"]  # by mean test error
    for axes, column, label in zip(figure.axes, (0, 1), ABLATIONS["xlabels"]):
        assert axes.get_xlabel() == label and axes.xaxis.get_major_formatter()(0.5) == "50%"
        colours = [ABLATIONS["optimisers"]["momentum SGD" if "SGD" in name else "Muon"] for name in ordered]
        values = [[seed[column] for seed in TESTS[name] if seed] for name in ordered]
        assert dots_of(axes) == [(x, i, colours[i]) for i in range(3) for x in values[i]]
        bars = [line for line in axes.get_lines() if line.get_linewidth() == 2]
        assert [bar.get_xdata()[0] for bar in bars] == pytest.approx([np.mean(part) for part in values])
        (compared_line,) = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
        assert compared_line.get_xdata()[0] == pytest.approx(np.mean(values[1]))  # BN-free, the first variant
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == [*ordered[:2], ABLATIONS["diverged"].format("momentum SGD", 1, 3)]
    (legend,) = figure.legends
    shown = {text.get_text(): handle.get_color() for text, handle in zip(legend.get_texts(), legend.legend_handles)}
    assert shown == ABLATIONS["optimisers"]


def test_depths_png_has_the_errors_by_the_number_of_convolutions(compared):
    figure = compared[2]["depths"]
    for axes, column in zip(figure.axes, (0, 1)):
        values = {7: TESTS["1 block a stage"], 13: TESTS["BN-free"]}  # 1 + 2 · 3 blocks, 1 + 2 · 6
        expected = [(depth, seed[column]) for depth, seeds in values.items() for seed in seeds]
        assert [dot[:2] for dot in dots_of(axes)] == expected and axes.get_xlabel() == ABLATIONS["depth"][0]
        line = next(line for line in axes.get_lines() if line.get_label() == ABLATIONS["depth"][1])
        assert line.get_xdata().tolist() == [7, 13] and axes.get_xscale() == "log"
        means = [np.mean([seed[column] for seed in seeds]) for seeds in values.values()]
        assert line.get_ydata().tolist() == pytest.approx(means)
