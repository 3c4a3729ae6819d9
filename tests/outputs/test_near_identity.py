"""launch.near_identity and near_identity.measure: each column, line and series of the blocks, by hand."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from outputs.conftest import finished, initial_weights
from outputs.references import error, labelled, read_columns, standardized
from outputs.words import NEAR_IDENTITY

from identity_matters.near_identity import measure

NAMES = ["stage1_block1", "stage1_block2", "stage1_block3", "stage2_block1"]
NUM_IMAGES = 125  # not a multiple of the 100 that are computed at once
COLUMNS = (
    "block ratio ratio_low ratio_high cosine active dead norm_1 norm_2 lipschitz error_without error_swapped"
).split()


def convolved(x, kernel, stride=1) -> np.ndarray:
    return tf.nn.conv2d(tf.constant(x, tf.float32), kernel, stride, "SAME").numpy()


def through_block(x, kernels, number) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stream, the branch and the hidden values of block `number`, 0 to 3; the last one halves the sides."""
    hidden = np.maximum(convolved(x, kernels[1 + 2 * number], stride=2 if number == 3 else 1), 0)
    if number == 3:  # mean over 2 × 2 pixels, and a channel of zeros before and after
        x = x.reshape(len(x), 4, 2, 4, 2, 6).mean((2, 4))
        x = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1)))
    return x, convolved(hidden, kernels[2 + 2 * number]), hidden


def error_of(images, labels, weights, order=(0, 1, 2, 3), without=()) -> float:
    x = convolved(images, weights[0])
    for number in order:
        stream, branch, _ = through_block(x, weights, number)
        x = stream if number in without else stream + branch
    return error(x.mean((1, 2)) @ weights[-1], labels)


def conv_norm(kernel, side, stride) -> float:
    """The largest singular value of a convolution, whose matrix has a row for each unit image."""
    units = np.eye(side * side * kernel.shape[2]).reshape(-1, side, side, kernel.shape[2])
    matrix = convolved(units, kernel, stride).reshape(len(units), -1)
    return float(np.linalg.svd(matrix.astype(float), compute_uv=False)[0])


def expected_rows(images, labels, weights) -> list[dict]:
    rows, x = [], convolved(images, weights[0])
    for number, name in enumerate(NAMES):
        stream, branch, hidden = through_block(x, weights, number)
        flat = [part.reshape(len(part), -1).astype(float) for part in (stream, branch)]
        sizes, lengths = (np.linalg.norm(part, axis=1) for part in flat)
        seen = sizes > 0
        low, median, high = np.percentile(lengths[seen] / sizes[seen], [25, 50, 75])
        cosines = (flat[0] * flat[1]).sum(1)[seen] / (sizes * lengths)[seen]
        first = conv_norm(weights[1 + 2 * number], 8, 2 if number == 3 else 1)
        second = conv_norm(weights[2 + 2 * number], 4 if number == 3 else 8, 1)
        # The first block begins with the images, the last one has another shape: only two can change places.
        swapped = error_of(images, labels, weights, (0, 2, 1, 3)) if number == 1 else np.nan
        numbers = [median, low, high, np.median(cosines), np.mean(hidden > 0), np.mean(hidden.max((0, 1, 2)) == 0)]
        numbers += [first, second, first * second, error_of(images, labels, weights, without=[number]), swapped]
        rows.append(dict(zip(COLUMNS, [name, *numbers])))
        x = stream + branch
    return rows


def assert_rows(found: list[dict], expected: list[dict]):
    for row, other in zip(found, expected, strict=True):
        assert list(row) == COLUMNS and row["block"] == other["block"]
        for column in COLUMNS[1:]:
            assert row[column] == pytest.approx(other[column], rel=2e-4, abs=1e-6, nan_ok=True), column


@pytest.fixture(scope="module")
def weights(momentum_run):
    return keras.saving.load_model(momentum_run / "model.keras").get_weights()


@pytest.fixture(scope="module")
def tested(small_digits):
    return standardized(small_digits[2][:NUM_IMAGES]), small_digits[3][:NUM_IMAGES]


@pytest.fixture(scope="module")
def measured(momentum_run, tmp_path_factory):
    """A finished run of launch.near_identity: its directory, output and figure."""
    run_dir = tmp_path_factory.mktemp("blocks") / "blocks"
    return finished("near_identity", run_dir, f"--saved_run={momentum_run}", f"--examples={NUM_IMAGES}")


def test_results_csv_has_each_blocks_numbers_on_the_first_test_images(measured, weights, tested):
    expected = expected_rows(*tested, weights)
    assert_rows(measured.rows("results"), expected)
    errors = {row["error_without"] for row in expected} | {expected[1]["error_swapped"]}
    assert len(errors) > 2  # so that columns and blocks cannot be exchanged unnoticed


def test_removed_csv_has_the_error_without_the_smallest_branches(measured, weights, tested, small_digits):
    ratios = [row["ratio"] for row in expected_rows(*tested, weights)]
    order = sorted(range(4), key=ratios.__getitem__)
    operations = [2 * 6 * 6 * 64] * 3 + [6 * 8 * 16 + 8 * 8 * 16]  # of a block's two convolutions, over 18
    for count, row in enumerate(measured.rows("removed")):
        gone = order[:count]
        assert (row["num_removed"], row["last"]) == (count, NAMES[gone[-1]] if gone else "")
        assert row["error"] == pytest.approx(error_of(*tested, weights, without=gone), rel=1e-6)
        assert row["operations"] == pytest.approx(1 - sum(operations[number] for number in gone) / sum(operations))
    assert count == 3
    on_training = standardized(small_digits[0][:NUM_IMAGES]), small_digits[1][:NUM_IMAGES]
    assert error_of(*tested, weights) != error_of(*on_training, weights)


def test_the_printed_table_has_the_numbers_of_results_csv_below_their_heads(measured):
    table, lines = read_columns(measured[0] / "results.csv"), measured[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("block"))
    heads = ["block", *NEAR_IDENTITY["numbers"], *NEAR_IDENTITY["shares"]]
    assert lines[start].split() == " ".join(heads).split()
    for row, line in enumerate(lines[start + 1 : start + 5]):
        expected = [NAMES[row], *(f"{table[column][row]:.2g}" for column in NEAR_IDENTITY["numbers"].values())]
        for column in NEAR_IDENTITY["shares"].values():
            share = table[column][row]
            expected.append(NEAR_IDENTITY["none"] if np.isnan(share) else f"{100 * share:.2f} %")
        assert re.split(r"\s{2,}", line.strip()) == expected


def removal_line(errors, operations) -> str:
    """How many blocks can go before the error has grown by more than a percentage point."""
    count = 0
    while count < 3 and errors[count + 1] <= errors[0] + 0.01:
        count += 1
    if not count:
        return NEAR_IDENTITY["not removable"].format(errors[0], errors[1])
    how_many = "" if count == 1 else f"{count} "
    return NEAR_IDENTITY["removable"].format(errors[0], errors[count], how_many, 4, operations[count])


EDITED = [([0.1, 0.105, 0.13, 0.1], 80), ([0.2, 0.208, 0.19, 0.31], 290)]  # errors, and seconds that the run took


@pytest.mark.parametrize("errors, seconds", [(None, None), *EDITED])
def test_the_last_lines_count_blocks_and_name_the_duration(measured, tmp_path, errors, seconds):
    run_dir, out, _ = measured
    table = read_columns(run_dir / "removed.csv")
    if errors:  # the same command prints a finished run's table again
        run_dir = shutil.copytree(run_dir, tmp_path / "blocks")
        rows = [[int(count), last, e, left] for (count, last, _, left), e in zip(zip(*table.values()), errors)]
        text = "\n".join(",".join(map(str, row)) for row in [list(table), *rows])
        (run_dir / "removed.csv").write_text(f"{text}\n")
        record = json.loads((run_dir / "config.json").read_text())
        (run_dir / "config.json").write_text(json.dumps(record | {"seconds": seconds}))
        flags = [f"--saved_run={record['config']['saved_run']}", f"--examples={NUM_IMAGES}"]
        _, out, figures = finished("near_identity", run_dir, *flags)
        assert NEAR_IDENTITY["duration"][seconds] in out.splitlines()
        assert list(figures["blocks"].axes[2].get_lines()[1].get_ydata()) == [errors[0]] * 2  # of all blocks
    assert removal_line(errors or table["error"], table["operations"]) in out.splitlines()


def test_blocks_png_draws_each_column_in_its_panel(measured):
    run_dir, _, figures = measured
    figure = figures["blocks"]
    table, removed = (read_columns(run_dir / f"{name}.csv") for name in ("results", "removed"))
    words = NEAR_IDENTITY
    ratios, hidden, errors, left = figure.axes
    assert [axes.get_ylabel() for axes in figure.axes] == words["ylabels"] and ratios.get_yscale() == "log"
    assert [errors.get_xlabel(), left.get_xlabel()] == words["xlabels"]
    shown = {text.get_text() for text in figure.legends[0].get_texts()}
    assert shown == {*words["legend"].values(), words["dead"]}
    for axes, column in ((ratios, "ratio"), (ratios, "lipschitz"), (hidden, "active")):
        drawn = labelled(axes)[words["legend"][column]]
        assert list(drawn.get_xdata()) == [0, 1, 2, 3] and list(drawn.get_ydata()) == pytest.approx(table[column])
    quartiles = [segment[:, 1].tolist() for segment in ratios.collections[0].get_segments()]
    assert quartiles == [pytest.approx(pair) for pair in zip(table["ratio_low"], table["ratio_high"])]
    assert [bar.get_height() for bar in hidden.patches] == pytest.approx(table["dead"])
    assert hidden.containers[0].get_label() == words["dead"]
    assert list(errors.get_lines()[0].get_ydata()) == pytest.approx(table["error_without"])
    assert list(errors.get_lines()[1].get_ydata()) == pytest.approx([removed["error"][0]] * 2)
    assert list(left.get_lines()[0].get_xdata()) == removed["num_removed"]
    assert list(left.get_lines()[0].get_ydata()) == pytest.approx(removed["error"])
    assert [text.get_text() for text in ratios.texts] == words["stages"]
    assert all(axes.yaxis.get_major_formatter()(0.25) == "25%" for axes in (hidden, errors, left))
    assert [label.get_text() for label in errors.get_xticklabels()] == ["1", "2", "3", "4"]


def test_at_step_0_the_initial_weights_are_measured_without_errors(momentum_run, tested, tmp_path):
    flags = [f"--saved_run={momentum_run}", "--examples=40", "--at_step=0", "--noablate"]
    found = finished("near_identity", tmp_path / "start", *flags).rows("results")
    expected = expected_rows(tested[0][:40], tested[1][:40], initial_weights(momentum_run))
    expected = [row | {"error_without": np.nan, "error_swapped": np.nan} for row in expected]
    assert_rows(found, expected)


@pytest.mark.parametrize("blank", [[3, 101], range(1, NUM_IMAGES)])
def test_measure_leaves_blank_images_out_and_counts_dead_channels(weights, tested, plain_network, capfd, blank):
    images, weights = tested[0].copy(), [array.copy() for array in weights]
    weights[1][..., 2] = 0  # a hidden channel of the first block, dead
    weights[3][..., :2] = 0  # two of the second's
    images[blank] = 0
    expected = expected_rows(images, tested[1], weights)
    assert [row["dead"] for row in expected[:2]] == pytest.approx([1 / 6, 2 / 6])
    found = list(measure(plain_network(weights), images, tested[1]))
    assert_rows([row | {"block": name} for row, name in zip(found, NAMES)], expected)
    assert f"{len(blank)} of {NUM_IMAGES} images" in capfd.readouterr().err
