"""What shortcut_study.curvature prints and draws of a Keras model of 63 weights, against its loss in NumPy."""

import keras
import numpy as np
import pytest
from outputs import references as ref
from outputs.words import CURVATURE, SPECTRUM
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from shortcut_study import curvature

RNG = np.random.default_rng(5)
X, LABELS = RNG.standard_normal((12, 8)), RNG.integers(0, 3, 12)
PARTS = {"hidden": slice(0, 45), "out": slice(45, 63)}


def model_of(seed=0):
    keras.utils.set_random_seed(seed)
    hidden, out = keras.layers.Dense(5, "tanh", name="hidden"), keras.layers.Dense(3, name="out")
    return keras.Sequential([keras.Input((8,)), hidden, out])


def flat_weights(model):
    return np.concatenate([v.numpy().ravel() for v in model.trainable_variables]).astype(np.float64)


def loss_of(weights):
    """The mean cross-entropy of weights [..., 63], which may be complex."""
    first, bias, second, last = np.split(weights, [40, 45, 60], axis=-1)
    hidden = np.tanh(X @ first.reshape(*weights.shape[:-1], 8, 5) + bias[..., None, :])
    z = hidden @ second.reshape(*weights.shape[:-1], 5, 3) + last[..., None, :]
    return (np.log(np.exp(z).sum(-1)) - z[..., np.arange(12), LABELS]).mean(-1)


def gradient_of(weights):
    steps = 1e-30j * np.eye(63)
    return loss_of(np.asarray(weights)[..., None, :] + steps).imag / 1e-30


def hessian_of(weights):
    steps = 1e-6 * np.eye(63)
    return (gradient_of(weights + steps) - gradient_of(weights - steps)) / 2e-6


@pytest.fixture(scope="module")
def model():
    return model_of()


@pytest.fixture(scope="module")
def h(model):
    return curvature.Hessian(model, X, LABELS, batch_size=5, dtype="float64")


@pytest.fixture(scope="module")
def matrix(model):
    return hessian_of(flat_weights(model))


def test_the_printed_spectrum_is_that_of_the_dense_hessian(h, matrix):
    exact = np.linalg.eigvalsh(matrix)
    spectrum = h.spectrum(order=63, progress=False)
    heading, _, *ends, trace, ratio, index = str(spectrum).splitlines()
    assert heading.startswith(CURVATURE["heading"].format("Hessian", 12, 63))
    assert ref.printed_numbers(heading)[-1].value == 63  # products: as many as there are eigenvalues
    for i, line in enumerate(ends):
        high, _, low, _ = ref.printed_numbers(line)
        assert (high.value, low.value) == pytest.approx((exact[-1 - i], exact[i]), abs=1e-4)
    assert spectrum.largest[0] == pytest.approx(exact[-1], abs=1e-5)
    assert spectrum.smallest[0] == pytest.approx(exact[0], abs=1e-5)
    assert ref.printed_numbers(trace.removeprefix(SPECTRUM["trace"]))[0].value == pytest.approx(exact.sum(), rel=1e-3)
    expected = ref.eigenvalue_summary(exact)
    condition, largest, _, tenth = ref.printed_numbers(ratio.removeprefix(SPECTRUM["condition number"]))
    assert condition.value == pytest.approx(expected["condition_number"], rel=1e-2)
    assert largest.value == pytest.approx(expected["max_abs"], rel=1e-3)
    assert tenth.value == pytest.approx(expected["p10_abs"], rel=5e-2)
    negative, *_ = ref.printed_numbers(index.removeprefix(SPECTRUM["index"]))
    assert negative.value == pytest.approx(np.mean(exact < -1e-6), abs=0.03)
    (axes,) = spectrum.plot("as titled").axes
    assert axes.get_title() == "as titled"
    assert any(label.startswith(f"3 largest, the outermost {exact[-1]:.3g}"[:31]) for label in ref.labelled(axes))


@pytest.mark.parametrize("name", PARTS)
def test_the_spectrum_of_chosen_variables_is_that_of_their_block_and_counts_them(model, matrix, name):
    variables = model.get_layer(name).trainable_variables
    spectrum = curvature.spectrum(model, X, LABELS, variables=variables, progress=False)
    part = PARTS[name]
    exact = np.linalg.eigvalsh(matrix[part, part])
    size = part.stop - part.start
    assert str(spectrum).startswith(CURVATURE["heading"].format("Hessian", 12, size)) and spectrum.dim == size
    assert (spectrum.largest[0], spectrum.smallest[0]) == pytest.approx((exact[-1], exact[0]), abs=1e-5)
    assert spectrum.trace[0] == pytest.approx(exact.sum(), abs=1e-5)


def test_products_the_loss_and_the_gradient_are_those_of_numpy(model, h, matrix):
    weights, vectors = flat_weights(model), RNG.standard_normal((63, 2))
    np.testing.assert_allclose(h @ vectors, matrix @ vectors, atol=1e-5)
    np.testing.assert_allclose(h.to_scipy() @ vectors[:, 0], matrix @ vectors[:, 0], atol=1e-5)
    step = 0.1 * vectors[:, 1]
    assert (h.loss_at(), h.loss_at(step)) == pytest.approx((loss_of(weights), loss_of(weights + step)), rel=1e-5)
    np.testing.assert_allclose(h.gradient_at(step), gradient_of(weights + step), atol=1e-6)


def test_the_printed_trace_and_diagonal_are_those_of_the_dense_hessian(h, matrix):
    trace = h.trace(num_products=20, progress=False)
    assert abs(trace.value - np.trace(matrix)) < 3 * trace.error < 2 * np.trace(matrix)
    assert str(trace) == CURVATURE["trace"].format(trace.value, trace.error, 20)
    assert h.trace(num_products=63, progress=False).value == pytest.approx(np.trace(matrix), rel=1e-5)
    for method, count in (("hutchinson", 30), ("xdiag", 63)):
        diagonal = h.diagonal(num_vectors=count, method=method, progress=False)
        found = diagonal.diagonal
        numbers = diagonal.trace, diagonal.trace_error, 63, found.min(), found.max(), count
        assert str(diagonal) == CURVATURE["diagonal"].format(*numbers)
        assert diagonal.trace == pytest.approx(found.sum(), rel=1e-5)
        errors = np.abs(found - np.diag(matrix))
        assert np.mean(errors <= diagonal.diagonal_error + 1e-5) > 0.8
        assert method == "hutchinson" or errors.max() < 1e-5


def test_layers_are_the_diagonal_blocks_in_table_and_figure(h, matrix):
    layers = h.per_layer(progress=False)
    _, *lines = str(layers).splitlines()
    for row, line, (name, part) in zip(layers.rows, lines, PARTS.items(), strict=True):
        exact = np.linalg.eigvalsh(matrix[part, part])
        assert row["part"] == name and row["num_weights"] == len(exact)
        assert (row["largest"], row["smallest"]) == pytest.approx((exact[-1], exact[0]), abs=1e-5)
        high, low, total = (ref.printed_numbers(line.removeprefix(name))[i] for i in (1, 3, 4))
        assert (high.value, total.value) == pytest.approx((exact[-1], exact.sum()), rel=1e-3)
        assert low.value == pytest.approx(exact[0], abs=1e-4)
    left, right = layers.plot().axes
    for end in ("largest", "smallest"):
        found = ref.labelled(left)[end][0].get_xdata()
        assert list(found) == [row[end] for row in layers.rows]
    assert [text.get_text() for text in left.get_yticklabels()] == [*PARTS]
    assert list(right.containers[0][0].get_xdata()) == [row["trace"] for row in layers.rows]


@pytest.mark.parametrize("count", [1, 2])
def test_the_landscape_is_the_loss_along_its_directions_in_text_and_figure(model, h, matrix, count):
    weights = flat_weights(model)
    directions = np.random.default_rng(0).standard_normal((count, 63)) / 4
    landscape = h.landscape(directions, span=1.5, points=5, progress=False)
    positions = np.linspace(-1.5, 1.5, 5)
    places = np.stack(np.meshgrid(*[positions] * count, indexing="ij"), -1)  # the first direction varies down
    steps = places @ directions
    losses = loss_of(weights + steps)
    assert losses.argmax() < 5 ** (count - 1)  # in the first row alone
    here, slope, curved = loss_of(weights), gradient_of(weights) @ directions.T, directions @ matrix @ directions.T
    quadratic = here + places @ slope + np.einsum("...i,ij,...j", places, curved, places) / 2
    np.testing.assert_allclose(landscape.losses, losses, rtol=1e-5)
    np.testing.assert_allclose(landscape.quadratic, quadratic, atol=1e-4)
    least = np.unravel_index(losses.argmin(), losses.shape)
    where = ", ".join(f"{positions[i]:.3g}" for i in least)
    lines = str(landscape).splitlines()
    assert lines[0] == CURVATURE["landscape heading"].format(12, 5**count, 63)
    assert lines[1] == CURVATURE["landscape here"].format(here, losses.min(), where, losses.max())
    for k, line in enumerate(lines[2:]):
        along = losses if count == 1 else losses[:, 2] if k == 0 else losses[2]
        name, numbers = CURVATURE["directions"][k], (slope[k], curved[k, k], along[0], along[-1])
        expected = ref.printed_numbers(CURVATURE["landscape along"].format(name, *numbers))
        for number, wanted in zip(ref.printed_numbers(line), expected, strict=True):
            assert number.value == pytest.approx(wanted.value, rel=1e-2, abs=1e-3)
    axes = landscape.plot("as titled").axes[0]
    if count == 1:
        ref.assert_line(ref.labelled(axes)[CURVATURE["loss"]], positions, losses)
        ref.assert_line(ref.labelled(axes)[CURVATURE["quadratic model"]], positions, landscape.quadratic)
        assert (axes.get_xlabel(), axes.get_ylabel()) == (CURVATURE["directions"][0], CURVATURE["loss"])
    else:  # a down, b across
        assert (axes.get_ylabel(), axes.get_xlabel()) == CURVATURE["directions"]


def test_the_callback_records_the_spectrum_after_each_epoch(tmp_path):
    model, seen, logged = model_of(1), [], []
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    measure = curvature.HessianCallback(X, LABELS, tmp_path, every=2, order=63, num_vectors=2)
    keep = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(flat_weights(model)),
        on_epoch_end=lambda epoch, logs: logged.append(dict(logs)),
    )
    model.fit(X, LABELS, epochs=4, verbose=0, callbacks=[measure, keep])
    seen.append(flat_weights(model))
    assert [row["epoch"] for row in measure.history] == [0, 2, 4]
    board = EventAccumulator(str(tmp_path), {"tensors": 0}).Reload()
    for place, row in enumerate(measure.history):
        exact = np.linalg.eigvalsh(hessian_of(seen[row["epoch"]]))
        assert (row["largest"], row["smallest"]) == pytest.approx((exact[-1], exact[0]), abs=1e-5)
        assert abs(row["trace"] - exact.sum()) < 2 * row["trace_error"]
        for name in ("largest", "smallest", "trace"):
            event = board.Tensors(f"hessian/{name}")[place]
            assert event.step == row["epoch"]
            assert make_ndarray(event.tensor_proto) == pytest.approx(row[name], rel=1e-6)
            if row["epoch"]:
                assert logged[row["epoch"] - 1][f"hessian_{name}"] == row[name]
    assert np.isnan(logged[0]["hessian_largest"])
