"""What launch.hessian_spectrum computes, draws and prints, against dense matrices of a network of 90 weights.

The network is written again in ten lines; TensorFlow differentiates it in float64.
"""

import dataclasses
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from outputs import references as ref
from outputs.conftest import finished
from outputs.words import SPECTRUM
from scipy import stats

from identity_matters.data.digits import mnist_sample
from identity_matters.model import PRESETS, all_conv_resnet

EXAMPLES = 20
TRAIN = (
    "--preset=mnist --stem_width=2 --widths=2 --blocks_per_stage=1 --train_examples=200 --eval_examples=20 "
    "--batch_size=16 --train_steps=6 --decay_steps= --eval_every=6 --checkpoint_every=6 --learning_rate=0.3"
).split()
# Of the second run the order is too small for all eigenvalues.
RUNS = {
    "exact": "--order=100 --per_layer --with_start",
    "estimated": "--order=8 --num_vectors=7 --per_block --num_eigenvalues=4 --seed=4",
    "other seed": "--order=8 --num_vectors=7",
    "gauss_newton": "--order=100 --gauss_newton --at_step=0",
}
PARTS = {"stem_conv": slice(0, 18), "stage1_block1_conv1": slice(18, 54), "stage1_block1_conv2": slice(54, 90)}


def dense_matrices(model):
    """The Hessian [90, 90] of the mean cross-entropy of a network, and its Gauss–Newton matrix, in float64."""
    digits = mnist_sample()
    pixels = digits.train_images[:EXAMPLES].astype(np.float64)
    deviations = pixels.std((1, 2, 3), keepdims=True)
    x, labels = (pixels - pixels.mean((1, 2, 3), keepdims=True)) / deviations, digits.train_labels[:EXAMPLES]
    projection = next(v.numpy() for v in model.non_trainable_variables if v.shape == (2, 10)).astype(np.float64)
    kernels = [v.numpy().astype(np.float64) for v in model.trainable_variables]
    weights = tf.constant(np.concatenate([kernel.ravel() for kernel in kernels]))

    def logits(weights):
        stem, first, second = (
            tf.reshape(part, kernel.shape) for part, kernel in zip(tf.split(weights, [18, 36, 36]), kernels)
        )
        stream = tf.nn.conv2d(x, stem, 1, "SAME")
        branch = tf.nn.conv2d(tf.nn.relu(tf.nn.conv2d(stream, first, 1, "SAME")), second, 1, "SAME")
        return tf.reduce_mean(stream + branch, (1, 2)) @ projection

    @tf.function
    def matrices():
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(weights)
            with tf.GradientTape() as inner:
                inner.watch(weights)
                z = logits(weights)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, z))
            slope = inner.gradient(loss, weights)
        return outer.jacobian(slope, weights), outer.jacobian(z, weights), tf.nn.softmax(z)

    matrix, jacobian, p = (tensor.numpy() for tensor in matrices())
    of_loss = np.einsum("mi,ij->mij", p, np.eye(10)) - np.einsum("mi,mj->mij", p, p)
    return matrix, np.einsum("mip,mij,mjq->pq", jacobian, of_loss, jacobian) / EXAMPLES


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """measured[name]: what each of RUNS has left; and matrices by name."""
    folder = tmp_path_factory.mktemp("spectra")
    finished("train", folder / "trained", *TRAIN)
    size = (f"--examples={EXAMPLES}", "--batch_size=10", f"--saved_run={folder}/trained")
    runs = {name: finished("hessian_spectrum", folder / name, *size, *flags.split()) for name, flags in RUNS.items()}
    trained = keras.saving.load_model(folder / "trained" / "model.keras")
    start = all_conv_resnet(dataclasses.replace(PRESETS["mnist"], stem_width=2, widths=(2,), blocks_per_stage=(1,)))
    return runs | {"matrices": {"trained": dense_matrices(trained), "start": dense_matrices(start)}}


def test_all_eigenvalues_are_those_of_the_dense_hessian_in_table_and_text(measured):
    run_dir, out, _ = measured["exact"]
    assert out.startswith(SPECTRUM["heading"].format(run_dir.parent / "trained", 90, EXAMPLES))
    for prefix, weights, heading in (("", "trained", "matrix"), ("start_", "start", "at start")):
        exact = np.linalg.eigvalsh(measured["matrices"][weights][0])
        rows = ref.read_table(run_dir / f"{prefix}results.csv")
        assert list(rows[0]) == ["vector", "eigenvalue", "weight", "error_bound", "rounding"]
        tolerance = 1e-4 * exact[-1]
        np.testing.assert_allclose(ref.column(rows, "eigenvalue"), exact, atol=tolerance)
        np.testing.assert_allclose(ref.column(rows, "weight"), 1 / 90, rtol=1e-5)
        pattern = re.escape(SPECTRUM[heading].format(SPECTRUM["hessian"])) + r"(?:, [\d.]+ minutes)?\n"
        text = re.split(pattern, out)[-1]
        _, *ends, trace, ratio, index = text.splitlines()[:9]
        largest, smallest = exact[::-1], exact
        for i, line in enumerate(ends):
            high, _, low, _ = ref.printed_numbers(line)
            assert (high.value, low.value) == pytest.approx((largest[i], smallest[i]), abs=tolerance)
        total, *_ = ref.printed_numbers(trace.removeprefix(SPECTRUM["trace"]))
        assert total.value == pytest.approx(exact.sum(), rel=2e-3)
        assert ratio.startswith(SPECTRUM["condition number"])
        assert ref.printed_numbers(ratio)[0].value == pytest.approx(np.abs(exact).max(), rel=1e-3)
        rounding = rows[0]["rounding"]
        negative, zero = np.mean(exact < -rounding), np.mean(np.abs(exact) <= rounding)
        for number, share in zip(ref.printed_numbers(index), (negative, zero)):
            assert number.value == pytest.approx(share, abs=0.03)  # float32 decides which are 0


def test_the_text_says_the_minutes_and_the_seed_draws_the_vectors(measured):
    run_dir, out, _ = measured["estimated"]
    seconds = json.loads((run_dir / "config.json").read_text())["seconds"]
    assert f"{SPECTRUM['matrix'].format(SPECTRUM['hessian'])}, {seconds / 60:.1f} minutes" in out.splitlines()
    tables = [[row["eigenvalue"] for row in measured[name].rows("results")] for name in ("estimated", "other seed")]
    assert tables[0][-3:] != tables[1][-3:]


def assert_parts_figure(figure, rows):
    left, right = figure.axes
    assert (left.get_xlabel(), right.get_xlabel()) == (SPECTRUM["part axis"], SPECTRUM["trace axis"])
    assert [text.get_text() for text in left.get_yticklabels()] == [row["part"].replace("_", " ") for row in rows]
    for bars, name, error in (
        (ref.labelled(left)["largest"], "largest", "largest_error_bound"),
        (ref.labelled(left)["smallest"], "smallest", "smallest_error_bound"),
        (right.containers[0], "trace", "trace_error"),
    ):
        value, reach = ref.column(rows, name), ref.column(rows, error)
        ref.assert_bars(bars, range(len(rows)), value, value - reach, value + reach, horizontal=True)


def test_layers_are_the_diagonal_blocks_in_table_text_and_figure(measured):
    run_dir, out, figures = measured["exact"]
    for prefix, weights in (("", "trained"), ("start_", "start")):
        matrix = measured["matrices"][weights][0]
        rows = ref.read_table(run_dir / f"{prefix}layers.csv")
        assert [(row["part"], row["num_weights"]) for row in rows] == [
            (name, part.stop - part.start) for name, part in PARTS.items()
        ]
        assert_parts_figure(figures[f"{prefix}layers"], rows)
        for row, part in zip(rows, PARTS.values()):
            exact = np.linalg.eigvalsh(matrix[part, part])
            numbers = (row["largest"], row["smallest"], row["trace"])
            assert numbers == pytest.approx((exact[-1], exact[0], exact.sum()), abs=1e-4 * np.abs(exact).max())


def test_an_estimate_has_bounds_that_hold_and_the_trace_of_its_probes(measured):
    run_dir, out, figures = measured["estimated"]
    exact = np.linalg.eigvalsh(measured["matrices"]["trained"][0])
    rows = ref.read_table(run_dir / "results.csv")
    probes = [row["eigenvalue"] for row in rows if np.isnan(row["error_bound"])]
    known = ref.select(rows, vector=-1.0)
    vectors = [known + ref.select(rows, vector=float(vector)) for vector in range(4)]
    assert len(probes) == 7 - 4 and known
    for vector in vectors:  # each is a measure of the whole spectrum
        assert sum(row["weight"] for row in vector) == pytest.approx(1, rel=1e-5)
    for row in known:
        assert np.abs(exact - row["eigenvalue"]).min() <= row["error_bound"] + 1e-6
    below_heads = out.partition("error bound\n")[2].splitlines()[:4]
    # The outermost of each rank over the vectors, with the bound of the row that has it.
    for sign, place in ((-1, 0), (1, 2)):
        ranked = [sorted(vector, key=lambda row: sign * row["eigenvalue"]) for vector in vectors]
        best = [min(rank, key=lambda row: sign * row["eigenvalue"]) for rank in zip(*ranked)]
        for row, line in zip(best, below_heads):
            value, bound = ref.printed_numbers(line)[place : place + 2]
            assert abs(value.value - row["eigenvalue"]) <= 1.02 * value.half_unit
            assert abs(bound.value - row["error_bound"]) <= 1.02 * bound.half_unit
        (axes,) = figures["spectrum"].axes
        values, bounds = (np.array([row[name] for row in best[:3]]) for name in ("eigenvalue", "error_bound"))
        density = ref.read_table(run_dir / "density.csv")
        heights = np.interp(values, ref.column(density, "eigenvalue"), ref.column(density, "density"))
        (label,) = [text for text in ref.labelled(axes) if SPECTRUM["outermost"].format(values[0], bounds[0]) in text]
        assert label.startswith(f"3 {'largest' if sign < 0 else 'smallest'}")
        bars = ref.labelled(axes)[label]
        ref.assert_bars(bars, heights, values, values - bounds, values + bounds, horizontal=True)
    rest = [row for vector in range(4) for row in ref.select(rows, vector=float(vector))]
    centre = np.average(ref.column(rest, "eigenvalue"), weights=ref.column(rest, "weight"))
    reach = max(abs(row["eigenvalue"] - centre) + row["error_bound"] for row in rest)
    alike = max((len(exact) / reach) ** 2 * np.var(probes, ddof=1) / 2, 1)  # eigenvalues that hold the probes' spread
    error = stats.t.ppf(0.975, 2) * (1 + 8.7 / 3 / alike) * np.std(probes, ddof=1) / np.sqrt(3)  # 95 %, two-sided
    (trace,) = [line for line in out.splitlines() if line.startswith(SPECTRUM["trace"])]
    assert SPECTRUM["interval"] in trace
    ref.assert_numbers(trace.replace(SPECTRUM["interval"], ""), 90 * np.mean(probes), 90 * error)
    (near,) = [line for line in out.splitlines() if line.startswith(SPECTRUM["near zero"])]
    part, low, high = ref.printed_numbers(near.removeprefix(SPECTRUM["near zero"]))
    share = np.mean(np.abs(exact) < part.value * np.abs(exact).max())
    assert low.value - 1e-4 <= share <= high.value + 1e-4


def test_the_density_and_its_figure_are_those_of_the_ritz_values(measured):
    run_dir, _, figures = measured["estimated"]
    rows, density = ref.read_table(run_dir / "results.csv"), ref.read_table(run_dir / "density.csv")
    assert list(density[0]) == ["eigenvalue", "density", "standard_error"]
    values = ref.column([row for row in rows if not np.isnan(row["error_bound"])], "eigenvalue")
    width = 0.01 * np.ptp(values)
    grid = ref.column(density, "eigenvalue")

    def gaussians(chosen):
        places, weights = ref.column(chosen, "eigenvalue"), ref.column(chosen, "weight")
        bumps = np.exp(-(((grid[:, None] - places) / width) ** 2) / 2) / (width * np.sqrt(2 * np.pi))
        return bumps @ weights

    known = gaussians(ref.select(rows, vector=-1.0))
    by_vector = np.array([known + gaussians(ref.select(rows, vector=float(vector))) for vector in range(4)])
    mean, error = by_vector.mean(0), by_vector.std(0, ddof=1) / 2
    np.testing.assert_allclose(ref.column(density, "density"), mean, rtol=1e-3, atol=1e-4 * mean.max())
    np.testing.assert_allclose(ref.column(density, "standard_error"), error, rtol=1e-3, atol=1e-4 * mean.max())
    assert np.trapezoid(mean, grid) == pytest.approx(1, abs=1e-3)
    (axes,) = figures["spectrum"].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == (SPECTRUM["eigenvalue axis"], SPECTRUM["density axis"])
    line = ref.labelled(axes)[SPECTRUM["density"]]
    ref.assert_line(line, grid, ref.column(density, "density"))
    edges = {grid[i]: (mean[i] - error[i], mean[i] + error[i]) for i in np.argsort(error)[-9:]}
    ref.assert_area(axes, ref.colour_of(line), edges, rtol=1e-3)


def test_the_table_of_blocks_shows_each_number_of_its_row(measured):
    run_dir, out, figures = measured["estimated"]
    matrix = measured["matrices"]["trained"][0]
    rows = ref.read_table(run_dir / "blocks.csv")
    assert_parts_figure(figures["blocks"], rows)
    for row, part in zip(rows, (slice(0, 18), slice(18, 90)), strict=True):
        exact = np.linalg.eigvalsh(matrix[part, part])
        for name, value in (("largest", exact[-1]), ("smallest", exact[0])):
            assert abs(row[name] - value) <= row[f"{name}_error_bound"] + 1e-6
        (line,) = [line for line in out.splitlines() if line.startswith(f"{row['part']} ")]
        names = ("num_weights", "largest", "largest_error_bound", "smallest", "trace", "trace_error")
        ref.assert_numbers(line.removeprefix(row["part"]), *(row[name] for name in names))
    assert any(f"{row['largest_error_bound']:.1g}" != f"{row['smallest_error_bound']:.1g}" for row in rows)


def test_the_gauss_newton_matrix_at_the_start_is_that_of_the_jacobian(measured):
    run_dir, out, _ = measured["gauss_newton"]
    exact = np.linalg.eigvalsh(measured["matrices"]["start"][1])
    found = ref.column(ref.read_table(run_dir / "results.csv"), "eigenvalue")
    np.testing.assert_allclose(found, exact, atol=1e-4 * exact[-1])
    assert SPECTRUM["matrix"].format(SPECTRUM["gauss_newton"]) in out and " after 0 steps: " in out
