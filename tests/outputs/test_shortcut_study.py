"""The rows of launch.shortcut_study, computed again from the digits: descents and dense Hessians in NumPy."""

import itertools
import math

import numpy as np
import pytest
from outputs import references as ref
from outputs.conftest import finished
from outputs.words import ARCHITECTURES, NOT_EVALUATED, STUDY_COLUMNS
from threadpoolctl import threadpool_limits

from identity_matters.data.digits import mnist_sample
from shortcut_study.figures.all_figures import FIGURES

EXAMPLES, RELU_EXAMPLES, EPOCHS, SWEEP_EPOCHS, DEPTH = 80, 40, 150, 20, 4
RATE, XAVIER_RATE = 0.1, 0.04
TINY = (
    f"--preset=smoke --examples={EXAMPLES} --relu_examples={RELU_EXAMPLES} --depths=2,3,6 --relu_depths=2,4 "
    f"--depth={DEPTH} --num_runs=2 --sweep_runs=2 --relu_runs=2 --num_epochs={SWEEP_EPOCHS} --rates_per_decade=1 "
    f"--descent_epochs={EPOCHS} --num_levels=3 --learning_rate={RATE} --xavier_learning_rate={XAVIER_RATE}"
).split()
SPECTRUM = ("max_abs", "p10_abs", "condition_number", "index")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small matrices on one thread: those of two processes of tests would wait for each other."""
    with threadpool_limits(1):
        yield


def reads(figure, flag):
    """Whether a figure accepts a flag; one that it does not read is an error."""
    return flag in ("preset", "examples", *FIGURES[figure].READS)


@pytest.fixture(scope="module")
def tiny_rows(tmp_path_factory):
    """The rows of results.csv of a small study of every figure but the convolutional one."""
    rows = []
    for figure in ("3", "4", "5", "7", "8", "9", "10", "11"):
        flags = [flag for flag in TINY if reads(figure, flag[2:].partition("=")[0])]
        study = finished("shortcut_study", tmp_path_factory.mktemp("study"), f"--figure={figure}", *flags)
        assert {row[2] for row in ref.markdown_tables(study.out)[0]} == {NOT_EVALUATED}
        rows += study.rows("results")
    return rows


def data_of(activations="linear"):
    digits = mnist_sample()
    x, y = ref.whitened(digits.train_images[:EXAMPLES], digits.train_labels[:EXAMPLES])
    return (x, y) if activations == "linear" else (x[:RELU_EXAMPLES], y[:RELU_EXAMPLES])


def network_of(row):
    """The weights that a row's network starts from, whether it has shortcuts, and whether ReLUs."""
    n, depth, is_relu = int(row["shortcut_depth"]), int(row["depth"]), row["activations"] == "relu_mid"
    layers = n or (2 if is_relu else 1)
    normal = np.random.default_rng(int(row["seed"] or 0)).standard_normal((depth // layers, layers, 10, 10))
    if row["initialisation"] == "orthogonal":  # QᵀX is triangular, with a positive diagonal
        q, r = np.linalg.qr(normal)
        return q * np.sign(np.einsum("...jj->...j", r))[..., None, :], n > 0, is_relu
    return {"xavier": 1, "zero": 0.01, "exact_zero": 0}[row["initialisation"]] * normal / 10**0.5, n > 0, is_relu


def assert_spectrum(row, matrix, rel=1e-5):
    exact = ref.eigenvalue_summary(np.linalg.eigvalsh(matrix))
    assert [row[name] for name in SPECTRUM] == pytest.approx([exact[name] for name in SPECTRUM], rel=rel), row


def test_the_rows_have_the_columns_and_one_job_for_each_network(tiny_rows):
    assert list(tiny_rows[0]) == STUDY_COLUMNS
    for experiment, depths in (("initial_spectrum", (2, 3, 6)), ("learning_rates", (2, 3, 6))):
        rows = ref.select(tiny_rows, experiment=experiment, activations="linear")
        found = {(row["shortcut_depth"], row["initialisation"], row["depth"]) for row in rows}
        assert found == {(*kind, d) for kind in ARCHITECTURES for d in depths if not kind[0] or d % kind[0] == 0}
    rates = {row["learning_rate"] for row in ref.select(tiny_rows, experiment="learning_rates")}
    assert sorted(rates) == pytest.approx([0.001, 0.01, 0.1, 1, 10])


def test_norms_and_losses_are_those_of_a_plain_descent(tiny_rows):
    for activations, depth, seed in itertools.product(("linear", "relu_mid"), (2, 6), (0, 1)):
        rows = ref.select(tiny_rows, experiment="norms", activations=activations, depth=depth, seed=seed)
        start, *kind = network_of(rows[0])
        data = data_of(activations)
        path = ref.descent(start, *data, RATE, EPOCHS, *kind)
        assert {0, 1, 2, EPOCHS} <= {row["epoch"] for row in rows} and len(rows) > 40
        assert {(row["learning_rate"], row["status"]) for row in rows} == {(RATE, "done")}
        expected = np.array([path[int(row["epoch"])][1:3] for row in rows])
        np.testing.assert_allclose(ref.column(rows, "loss"), expected[:, 0], rtol=2e-6)
        np.testing.assert_allclose(ref.column(rows, "norm"), expected[:, 1], rtol=2e-6)
        excess = expected[:, 0] - ref.lowest_linear_loss(*data)
        np.testing.assert_allclose(ref.column(rows, "excess_loss"), excess, rtol=2e-5, atol=1e-7)


def test_spectra_where_training_starts_and_at_zero_are_those_of_the_dense_hessian(tiny_rows):
    rows = [row for row in ref.select(tiny_rows, experiment="initial_spectrum") if row["seed"] == 1]
    rows += ref.select(tiny_rows, experiment="spectrum_at_zero")
    assert {row["shortcut_depth"] for row in rows} == {0, 1, 2, 3}
    for row in rows:
        start, *kind = network_of(row)
        assert_spectrum(row, ref.hessian(start, *data_of(), *kind))


@pytest.mark.parametrize("activations", ["linear", "relu_mid"])
def test_hessians_along_the_descent_are_those_where_it_first_reaches_each_loss(tiny_rows, activations):
    data = data_of(activations)
    column = "excess_loss" if activations == "linear" else "loss"
    levels = [math.inf, *np.geomspace(*((10**0.5, 1e-3) if activations == "linear" else (1.0, 0.18)), 3)]
    for kind in ((0, "xavier"), (0, "orthogonal"), (2, "zero")):
        known = {"shortcut_depth": kind[0], "initialisation": kind[1], "activations": activations, "seed": 1}
        first, *rows = ref.select(tiny_rows, experiment="spectrum_at_losses", **known)
        rate = XAVIER_RATE if (kind[1], activations) == ("xavier", "linear") else RATE
        assert {row["learning_rate"] for row in (first, *rows)} == {rate} and first["status"] == "done"
        start, *shape = network_of(first)
        path = ref.descent(start, *data, rate, EPOCHS, *shape)
        least = ref.lowest_linear_loss(*data)
        losses = np.array([loss for _, loss, *_ in path]) - (least if activations == "linear" else 0.0)
        epochs = [int(np.argmax(losses <= level)) for level in levels if (losses <= level).any()]
        assert [row["epoch"] for row in rows] == epochs and len(rows) >= 2
        assert [row[column] for row in rows] == pytest.approx(list(losses[epochs]), rel=1e-5)
        for row in rows:
            assert_spectrum(row, ref.hessian(path[int(row["epoch"])][0], *data, *shape), rel=1e-4)


def test_gradient_norm_and_index_of_the_single_run_are_those_of_its_descent(tiny_rows):
    rows = ref.select(tiny_rows, experiment="single_run")
    start, *kind = network_of(rows[0])
    path = ref.descent(start, *data_of(), RATE, EPOCHS, *kind)
    norms = [path[int(row["epoch"])][3] for row in rows]
    np.testing.assert_allclose(ref.column(rows, "gradient_norm"), norms, rtol=1e-5)
    for row in rows[:: len(rows) // 4]:
        assert_spectrum(row, ref.hessian(path[int(row["epoch"])][0], *data_of(), *kind), rel=1e-4)


def test_final_losses_are_those_of_a_descent_at_each_learning_rate(tiny_rows):
    for activations in ("linear", "relu_mid"):
        data = data_of(activations)
        rows = ref.select(tiny_rows, experiment="learning_rates", activations=activations, depth=2)
        num_diverged = 0
        for row in rows:
            start, *kind = network_of(row)
            with np.errstate(all="ignore"):
                path = ref.descent(start, *data, row["learning_rate"], SWEEP_EPOCHS, *kind)
            losses = np.array([loss for _, loss, *_ in path])
            limit = 1e6 * max(losses[0], np.square(data[1]).sum() / (2 * len(data[1])))
            if row["status"] == "done":
                assert row["loss"] == pytest.approx(losses[-1], rel=1e-5) and row["epoch"] == SWEEP_EPOCHS
                assert row["excess_loss"] == pytest.approx(losses[-1] - ref.lowest_linear_loss(*data), rel=1e-4)
                assert row["norm"] == pytest.approx(path[-1][2], rel=1e-5)
            elif row["status"] == "diverged":
                assert not (losses <= limit).all()
                num_diverged += 1
            if row["perturbed_loss"] != "":  # of a start that differs by a share of 1e-12
                assert row["perturbed_loss"] == pytest.approx(row["loss"], rel=1e-4)
        assert num_diverged


def test_extremes_and_their_equivalents_descend_with_the_losses_of_plain_descent(tiny_rows):
    x, y = data_of()
    small = 0.01 * np.random.default_rng(0).standard_normal((DEPTH, 1, 10, 10)) / 10**0.5
    q, r = np.linalg.qr(np.random.default_rng(0).standard_normal((1, DEPTH, 10, 10)))
    orthogonal = q * np.sign(np.einsum("...jj->...j", r))[..., None, :]
    runs = {
        ("equivalent_start", 1): (small, y, True),
        ("equivalent_start", 0): (np.eye(10) + small, y, False),
        ("equivalent_outputs", DEPTH): (orthogonal, y, True),
        ("equivalent_outputs", 0): (orthogonal.reshape(DEPTH, 1, 10, 10), y - x, False),
    }
    for (experiment, n), (start, targets, has_shortcut) in runs.items():
        rows = ref.select(tiny_rows, experiment=experiment, shortcut_depth=n)
        path = ref.descent(start, x, targets, RATE, EPOCHS, has_shortcut)
        assert len(rows) > 40 and {(row["learning_rate"], row["status"]) for row in rows} == {(RATE, "done")}
        expected = [path[int(row["epoch"])][1] for row in rows]
        np.testing.assert_allclose(ref.column(rows, "loss"), expected, rtol=2e-6)


def test_the_blocks_at_zero_are_those_of_the_dense_hessian(tiny_rows):
    rows = ref.select(tiny_rows, experiment="blocks_at_zero")
    matrix = ref.hessian(np.zeros((DEPTH // 2, 2, 10, 10)), *data_of(), True)
    x, y = data_of()
    gap = (x - y).T @ x / len(x)
    # ∂²L/∂W₂[i₂, j₂]∂W₁[i₁, j₁] = [j₂ = i₁] M[i₂, j₁], with M of (11); rows before columns, as the matrix has them.
    A = np.einsum("ab,cd->acdb", gap, np.eye(10)).reshape(100, 100)
    assert len(rows) == DEPTH**2
    for row in rows:
        i, j = int(row["row_layer"]) - 1, int(row["column_layer"]) - 1
        block = matrix[100 * i : 100 * i + 100, 100 * j : 100 * j + 100]
        assert row["norm"] == pytest.approx(np.linalg.norm(block), rel=1e-6)
        expected = {"A": A, "A transposed": A.T, "zero": 0 * A}[row["block"]]
        np.testing.assert_allclose(block, expected, atol=1e-6)
