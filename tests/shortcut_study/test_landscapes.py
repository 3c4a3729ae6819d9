"""curvature.landscape: losses and their quadratic model against a network in NumPy, directions, cache, drawing."""

import re

import hessian_cases
import keras
import numpy as np
import pytest
from refusals import refused

from shortcut_study import curvature
from shortcut_study.curvature import landscapes, quadrature
from shortcut_study.curvature.landscapes import TOLERANCE, random_direction

X, CLASSES = hessian_cases.X, hessian_cases.CLASSES


@pytest.fixture(scope="module")
def h():
    keras.utils.set_random_seed(0)
    return curvature.Hessian(hessian_cases.plain(), X, CLASSES, dtype="float64", batch_size=4)


def test_plane_losses_equal_a_numpy_network_s_and_the_model_to_third_order(h):
    u, v = np.random.default_rng(0).standard_normal((2, 27))
    wide, narrow = (h.landscape((u, v), span=span, points=5, progress=False) for span in (0.2, 0.02))
    for found in (wide, narrow):
        exact = [[hessian_cases.numpy_loss(h.model, a * u + b * v) for b in found.positions] for a in found.positions]
        np.testing.assert_allclose(found.losses, exact, rtol=1e-12)
        assert found.loss_at_weights == pytest.approx(hessian_cases.numpy_loss(h.model), rel=1e-12)
    errors = [np.abs(found.losses - found.quadratic).max() for found in (wide, narrow)]
    assert 0 < errors[1] < 2e-3 * errors[0]  # a thousandth, at a tenth of the distance
    line = h.landscape(u, span=0.2, points=5, progress=False)
    np.testing.assert_allclose(line.losses, wide.losses[:, 2], rtol=1e-12)
    np.testing.assert_allclose(line.quadratic, wide.quadratic[:, 2], rtol=1e-12)


def test_directions_are_top_eigenvectors_or_random_ones_as_long_as_each_filter(h):
    values, vectors = np.linalg.eigh(h @ np.eye(27))
    order = np.argsort(-np.abs(values))[:2]
    found = h.landscape("eigenvectors", span=0.1, points=3, progress=False)
    gap = min(np.abs(values - value)[values != value].min() for value in values[order])
    angle = TOLERANCE * np.abs(values).max() / gap  # Davis & Kahan
    np.testing.assert_allclose(np.abs(found.directions @ vectors[:, order]), np.eye(2), atol=angle)
    np.testing.assert_allclose(np.diag(found.curvatures), values[order], rtol=TOLERANCE)
    assert angle < 0.05
    assert f"eigenvector of {values[order[0]]:.4g}" in str(found)
    random = h.landscape(points=3, progress=False)
    again, other = (h.landscape(points=3, seed=seed, progress=False).directions for seed in (0, 1))
    np.testing.assert_array_equal(random.directions, again)
    assert not np.allclose(random.directions, other)
    kernel, *_ = h.model.trainable_variables
    lengths = np.linalg.norm(random.directions[0, :12].reshape(4, 3), axis=0)
    np.testing.assert_allclose(lengths, np.linalg.norm(kernel.numpy(), axis=0), rtol=1e-6)
    assert not random.directions[:, 12:15].any() and random.directions[:, 15:24].all()  # biases stay
    convolution = keras.Variable(np.arange(24.0).reshape(2, 2, 2, 3))
    of_filters = random_direction([convolution], np.random.default_rng(0)).reshape(8, 3)
    np.testing.assert_allclose(
        np.linalg.norm(of_filters, axis=0), np.linalg.norm(np.arange(24.0).reshape(8, 3), axis=0)
    )


def test_at_a_saddle_too_the_search_for_its_directions_stops_when_they_are_found():
    keras.utils.set_random_seed(0)
    linear = [keras.layers.Dense(units, use_bias=False) for units in (12, 3)]
    model = keras.Sequential([keras.Input((4,)), *linear])
    for layer in linear:
        layer.kernel.assign(0.1 * layer.kernel)
    h, passes = curvature.Hessian(model, X, hessian_cases.TARGETS, loss="mse", dtype="float64"), []
    h.on_batch = lambda: passes.append(1)
    values = np.linalg.eigvalsh(h @ np.eye(h.shape[0]))
    assert h.shape[0] > 60 and values[0] < -0.5 * values[-1]
    passes.clear()
    found = h.landscape("eigenvectors", points=3, progress=False)
    assert len(passes) < 60
    for name in found.names:
        value, bound = map(float, name.removeprefix("eigenvector of ").split(" ± "))
        assert bound <= 1.1 * TOLERANCE * np.abs(values[[0, -1]]).min() and np.abs(values - value).min() < 1e-3


def test_a_block_moves_only_its_weights(h):
    _, _, last, offset = h.model.trainable_variables
    part = curvature.Hessian(h.model, X, CLASSES, variables=[offset, last], dtype="float64")
    direction = np.arange(12.0) / 12
    whole = np.zeros(27)
    whole[24:], whole[15:24] = direction[:3], direction[3:]
    found, same = part.landscape(direction, points=3, progress=False), h.landscape(whole, points=3, progress=False)
    assert same.losses[0] == pytest.approx(hessian_cases.numpy_loss(h.model, -whole))
    np.testing.assert_allclose(found.losses, same.losses, rtol=1e-12)
    np.testing.assert_allclose([*found.slopes, found.curvatures.item()], [*same.slopes, same.curvatures.item()])


def test_an_interrupted_landscape_resumes_with_the_rows_that_it_has(h, tmp_path, monkeypatch, capsys):
    calls, whole = [], curvature.Hessian.loss_at

    def counted(self, step):
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return whole(self, step)

    monkeypatch.setattr(curvature.Hessian, "loss_at", counted)
    with pytest.raises(KeyboardInterrupt):
        h.landscape(points=5, path=tmp_path / "kept", progress=False)
    found = h.landscape(points=5, path=tmp_path / "kept")
    assert len(calls) == 12 + 15  # two rows are there; a product that is there too is computed again, and agrees
    shown = capsys.readouterr().err
    assert "/56 " in shown and "at most" not in shown  # batches: two a pass, of 25 losses, 2 products, a gradient
    np.testing.assert_array_equal(found.losses, h.landscape(points=5, progress=False).losses)


def test_a_landscape_is_drawn_as_contours_or_a_curve_beside_its_quadratic_model(h):
    plane, line = (h.landscape(of, points=3, progress=False) for of in ("random", np.ones(27)))
    drawn = plane.plot("as titled").axes
    assert drawn[0].get_title() == "as titled" and drawn[0].get_xlabel() == "second random direction"
    curve, model = line.plot().axes[0].lines
    np.testing.assert_array_equal(curve.get_ydata(), line.losses)
    np.testing.assert_array_equal(model.get_ydata(), line.quadratic)
    heading = "mean cross-entropy of logits over 6 examples at 9 points around the 27 weights"
    losses, slopes = np.array([[5.0, 4, 6], [3, 2, 9], [1, 7, 8]]), np.array([0.25, -1])
    losses = np.insert(np.insert(losses, [1, 2], 8, 0), [1, 2], 8, 1)  # halfway
    curvatures, positions = np.array([[1.5, 0], [0, -2.5]]), np.linspace(-0.5, 0.5, 5)
    by_hand = plane._replace(losses=losses, slopes=slopes, curvatures=curvatures, positions=positions)
    assert str(by_hand).splitlines() == [
        heading,
        "at the weights 2; least 1 at (0.5, -0.5), largest 9",
        "along first random direction: slope 0.25, curvature 1.5; the loss at the ends 4, 7",
        "along second random direction: slope -1, curvature -2.5; the loss at the ends 3, 9",
    ]
    assert str(line).endswith(f"the loss at the ends {line.losses[0]:.4g}, {line.losses[-1]:.4g}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"points": 4}, "points must be odd and at least 3, span positive and finite, got 4 and 1.0"),
        ({"span": np.nan}, "got 25 and nan"),
        ({"span": 0.0}, "got 25 and 0.0"),
        ({"directions": "steepest"}, 'directions must be "random", "eigenvectors", or one or two vectors, got'),
        ({"directions": np.ones(26)}, r"vectors \[27\], got shape \(1, 26\)"),
        ({"directions": np.ones((3, 27))}, r"got shape \(3, 27\)"),
        ({"directions": np.append(np.ones(26), np.inf)}, "one or two finite vectors"),
    ],
)
def test_a_mistake_is_a_short_error(h, arguments, words):
    assert re.search(words, refused(h.landscape, progress=False, **arguments))


def test_eigenvectors_start_from_a_spectrum_s_first_vector_and_reuse_its_products(h, monkeypatch):
    seeds = []
    for module in (landscapes, quadrature):
        own = module.lanczos
        monkeypatch.setattr(
            module, "lanczos", lambda *given, own=own, **rest: seeds.append(given[3]) or own(*given, **rest)
        )
    h.spectrum(seed=3, order=5, num_vectors=1, progress=False)
    h.landscape("eigenvectors", points=3, seed=3, progress=False)
    assert seeds[0] == seeds[-1] == [3, 0] and len(seeds) > 2
