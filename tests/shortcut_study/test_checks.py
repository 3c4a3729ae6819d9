"""The limits of what a Hessian is checked for, by backends in NumPy that are off by a little less and a little more."""

import contextlib
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from shortcut_study.curvature import checks
from shortcut_study.curvature.backend import Backend
from shortcut_study.curvature.examples import Examples
from shortcut_study.curvature.objective import Sum, _like

FOUR = Examples(np.zeros((6, 2)), np.zeros(6, int), None, 4)
WEIGHTS = np.r_[2.0, -3, 1, 4, 0, 0, 0]  # of a kernel, and of a bias that noise of a size of its own moves
MATRIX = np.diag(np.arange(1.0, 8)) + 0.5


class Quadratic:
    """A loss ½ wᵀAw, with a gradient, products and a symmetry that are off by a share, from a place on or in float32.

    `asked` holds the points at which the loss and the gradient were asked for.
    """

    num_checked, examples, scales = 4, FOUR, np.ones(1)

    def __init__(self, gradient=0.0, product=0.0, skew=0.0, bend=0.0, own=None, dtype="float64", exact=None):
        self.errors, self.bend, self.own, self.dtype, self.exact = (gradient, product, skew), bend, own, dtype, exact
        self.values, self.asked = (WEIGHTS, []), {"loss": [], "gradient": []}
        variables = [SimpleNamespace(shape=(2, 2), path="a/kernel"), SimpleNamespace(shape=(3,), path="a/bias")]
        model = SimpleNamespace(trainable_variables=variables, _flatten_layers=list, variables=variables)
        self.objective = SimpleNamespace(model=model, draws=False, dtype=dtype)

    def over(self, examples, scales, dtype=None):
        assert len(examples) == 4
        return self.exact if dtype and self.exact else self

    place = staticmethod(np.asarray)

    def loss(self, w):
        self.asked["loss"].append(w)
        is_near = 0 < np.abs(w - self.asked["loss"][0]).max() < 1e-5
        return (w @ MATRIX @ w / 2) * (1 + is_near * self.bend / 2)

    def gradient(self, w):
        self.asked["gradient"].append(w)
        return (1 + self.errors[0]) * MATRIX @ w

    def product(self, w, vectors):
        turned = np.roll(vectors, 1) - np.roll(vectors, -1)  # antisymmetric
        return (1 + self.errors[1]) * vectors @ MATRIX + self.errors[2] * turned

    def own_gradient(self):
        return self.own


def derivatives(backend, is_hessian=True):
    return checks._check_derivatives(backend, FOUR.first(4), np.ones(1), is_hessian)


# A product's error is compared with the gradient's size too: a hundredth of the limit, 1.01 to 1.1 times in all.
@pytest.mark.parametrize(
    "taken, refused, reason",
    [
        ({"gradient": 0.9e-3, "product": 0.9e-3}, {"gradient": 1.2e-3, "product": 1.2e-3}, "derivative of the loss"),
        ({"product": 0.9e-5}, {"product": 1.2e-5}, "difference of two gradients: .* most in a/kernel"),
        ({"product": 0.9e-3, "dtype": "float32"}, {"product": 1.2e-3, "dtype": "float32"}, "by 0.001 of their size"),
    ],
)
def test_derivatives_are_off_by_less_than_a_thousandth_and_products_in_float64_by_a_hundredth_of_that(
    taken, refused, reason
):
    for shift in (1, -1):
        derivatives(Quadratic(**{k: v if k == "dtype" else shift * v for k, v in taken.items()}))
        with pytest.raises(ValueError, match=reason):
            derivatives(Quadratic(**{k: v if k == "dtype" else shift * v for k, v in refused.items()}))
    assert derivatives(Quadratic(product=0.5), is_hessian=False) < 1e-12  # of a Gauss–Newton matrix


@pytest.mark.parametrize("dtype, same", [("float64", 1e-5), ("float32", 1e-3)])
def test_products_may_be_off_by_a_hundredth_of_their_limit_times_the_gradient_and_are_symmetric(dtype, same):
    u, v = np.random.default_rng(1).standard_normal((2, 7))
    right, gradient = MATRIX @ v, 300 * np.linalg.norm(MATRIX @ v)  # so that four times the limit are taken
    for share, is_taken in ((3.9, True), (4.1, False)):
        with contextlib.nullcontext() if is_taken else pytest.raises(ValueError, match="of two gradients"):
            checks._check_products(Quadratic(product=share * same, dtype=dtype), WEIGHTS, u, v, [right] * 2, gradient)
    backend = Quadratic(skew=1.0)
    skew = abs(u @ backend.product(WEIGHTS, v[None])[0] - v @ backend.product(WEIGHTS, u[None])[0])
    symmetric = "are not symmetric, by .*; take dtype"
    for share, is_taken in ((0.9, True), (1.1, False)):
        backend = Quadratic(skew=share * same * np.linalg.norm(u) * np.linalg.norm(right) / skew, dtype=dtype)
        with contextlib.nullcontext() if is_taken else pytest.raises(ValueError, match=symmetric):
            hv, found = checks._check_products(backend, WEIGHTS, u, v, [right] * 2, np.inf)
            assert found == pytest.approx(share * same, rel=1e-3) and hv == pytest.approx(right, rel=0.1)


def test_products_in_float32_that_are_off_more_are_compared_with_those_in_float64():
    backend = Quadratic(product=2e-3, dtype="float32", exact=Quadratic())
    assert derivatives(backend) == pytest.approx(2e-3)
    assert not backend.asked["loss"] and len(backend.exact.asked["loss"]) == 7


@pytest.mark.parametrize(
    "bend, of_loss, of_gradient", [(0.9e-11, 1e-6, 1e-8), (1.1e-11, 1e-2, 1e-3), (-1.1e-11, 1e-2, 1e-3)]
)
def test_steps_are_small_where_the_loss_is_smooth_and_large_where_it_has_stairs(bend, of_loss, of_gradient):
    backend = Quadratic(bend=bend)
    derivatives(backend)
    first, *bends, one, other, half, _ = np.array(backend.asked["loss"])
    sizes = np.r_[np.full(4, np.sqrt(30 / 4)), np.full(3, 0.1)]  # of each variable; of zeros a tenth
    noise, u, v = np.random.default_rng(0).standard_normal((3, 7)) * sizes
    np.testing.assert_allclose(first, WEIGHTS + 0.3 * noise)
    np.testing.assert_allclose(bends - first, [1e-7 * v, -1e-7 * v], atol=1e-14)
    for part in (slice(4), slice(4, 7)):  # along the gradient of each variable, by its size
        assert np.linalg.norm((one - first)[part] / sizes[part]) == pytest.approx(of_loss)
        assert (one - first)[part] @ (MATRIX @ first / sizes)[part] > 0
    np.testing.assert_allclose([one + other, 2 * (half - first)], [2 * first, one - first], atol=1e-14)
    ends = np.array(backend.asked["gradient"][1:])
    np.testing.assert_allclose(ends - first, of_gradient * np.outer([1, -1, 0.5, -0.5], v), atol=1e-14)


def test_a_gradient_may_be_off_by_what_rounding_makes_of_the_loss_and_by_what_differences_tell_nothing_of():
    seen, difference = [], checks._difference
    for bend, share in ((0.0, 1e-6), (1.0, 1e-4)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "_difference", lambda *given: seen.append(given) or difference(*given))
            backend = Quadratic(bend=bend)
            derivatives(backend)
        assert seen[0][2] == pytest.approx(share * backend.loss(backend.asked["loss"][0]))
        seen.clear()
    right = np.array([3.0, 4.0])  # of size 5
    for off, rounding, between, expected in ((1, 0, 0, 0.2), (1, 0.25, 0.05, 0.05), (0, 1, 0, -0.2)):
        shift = np.array([0.6, 0.8])
        assert difference(right + off * shift, [right + between * shift, right], rounding) == pytest.approx(expected)
    zero = np.zeros(2)
    assert [difference(right, [zero, zero], of) for of in (4.9, 5.0)] == [1.0, 0.0]
    np.testing.assert_allclose(checks._differences(lambda step: step**3 + step + 1, 0.2), [1.04, 1.01])


def test_a_point_where_no_derivative_is_finite_is_left_for_one_near_the_weights():
    asked, noise = [], np.ones(7)
    backend = SimpleNamespace(place=np.asarray, gradient=lambda w: asked.append(w) or np.where(w < 4.2, w, np.nan))
    point, gradient = checks._generic_point(backend, WEIGHTS, noise)
    assert np.isfinite(gradient).all() and np.array_equal(gradient, point)
    np.testing.assert_allclose(asked, [WEIGHTS + 0.3, WEIGHTS + 0.01])
    backend.own_gradient, backend.values, backend.objective = lambda: None, (9 + WEIGHTS, []), Quadratic().objective
    backend.over = lambda *_: backend
    assert np.isnan(derivatives(backend))


@pytest.mark.parametrize("share, together", [(1e-3, False), (checks.SAME_IN_HALF, True)])
def test_a_gradient_in_the_model_s_variables_is_the_same_up_to_a_share_of_its_largest_entry(share, together):
    ours, variables = np.r_[8.0, 1, 2, 3, 0.5, 0.25, -4], Quadratic().objective.model.trainable_variables
    small = np.r_[8.0, 1, 2, 3, 1e-9, 0, 0]  # of which a share of a share of the largest counts
    for own, entry, size in ((ours, 4, 8 if together else 4), (ours, 1, 8), (small, 5, 8 if together else 8 * share)):
        name = "the weights" if together else ("a/kernel" if entry < 4 else "a/bias")
        for off in np.eye(7)[entry] * share * size, -np.eye(7)[entry] * share * size:
            checks._check_own(own + 0.99 * off, own, variables, share)
            with pytest.raises(ValueError, match=f"the gradient in {name} is another where Keras"):
                checks._check_own(own + 1.01 * off, own, variables, share)
    with pytest.raises(ValueError, match="the gradient in"):
        derivatives(Quadratic(own=2 * MATRIX @ WEIGHTS))


def test_models_that_draw_or_compute_in_half_precision_are_compared_less():
    layers = [SimpleNamespace(compute_dtype="float32"), SimpleNamespace(compute_dtype="bfloat16")]
    objective = Quadratic().objective
    objective.model._flatten_layers = lambda: layers[:1]
    variable = SimpleNamespace(dtype="float32")
    objective.model.trainable_variables = [variable]
    assert checks._share(objective) == 1e-3
    objective.model._flatten_layers = lambda: layers
    assert checks._share(objective) == 0.25
    objective.draws = True
    assert checks._share(objective) == np.inf  # as the objective is in float64
    objective.dtype = "float32"
    assert checks._share(objective) == 0.25


class Scripted:
    """A backend whose loss has a value at each call, and one by Keras."""

    def __init__(self, totals, by_keras, rows):
        totals, self.values = iter(totals), (None, None)
        self.examples = Examples(np.zeros((1, 2)), np.zeros(1), None, 1)
        model = SimpleNamespace(_flatten_layers=list)
        self.objective = SimpleNamespace(
            at=lambda *_: contextlib.nullcontext(SimpleNamespace(losses=[])), outputs=lambda x: np.array(rows),
            sums=lambda *_: [Sum(next(totals), 2.0, 3.0, True)], by_keras=lambda *_: by_keras, draws=False, model=model,
            dtype="float32",
        )  # fmt: skip

    def on_device(self, batch):
        return batch

    def evaluate(self, function, *arguments):
        return function(*arguments)


HALVES = [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize(
    "totals, by_keras, rows, is_default, reason",
    [
        ((2.0, 2.0 * (1 + 0.9e-3)), 3.0, HALVES, False, None),
        ((2.0, 2.0 * (1 + 1.1e-3)), 3.0, HALVES, False, "draws random numbers anew"),
        ((2.0, 2.0), 3.0, HALVES, True, "its outputs are probabilities"),
        ((2.0, 2.0), 3.0, [[0.5, 0.5 + 0.9e-3]], True, "its outputs are probabilities"),
        ((2.0, 2.0), 3.0, [[0.5, 0.5 + 1.1e-3]], True, None),
        ((2.0, 2.0), 3.0, [[0.5, 0.51, -0.01]], True, None),
        ((2.0, 2.0), 3.0 * (1 + 0.9e-3), HALVES, False, None),
        ((-2.0, -2.0), -3.0 * (1 - 0.9995e-3), HALVES, False, None),  # of the larger of the two
        ((-2.0, -2.0), -3.0 * (1 + 1.0005e-3), HALVES, False, None),
        ((2.0, 2.0), 3.0 * (1 - 1.1e-3), HALVES, False, "the loss is 3 here and 2.9967 by Keras"),
        ((2.0, 2.0), 3.0 * (1 + 1.1e-3), HALVES, False, "the loss is 3 here and 3.0033 by Keras"),
        ((2e-3, 2e-3), 3e-3 + 0.9e-5, HALVES, False, None),  # of a loss below 0.01 a thousandth of that
        ((2e-3, 2e-3), 3e-3 + 1.1e-5, HALVES, False, "the loss is 0.003 here"),
        ((np.nan, np.nan), 3.0, HALVES, False, None),
    ],
)
def test_the_loss_is_that_of_keras_s_own_code_up_to_a_thousandth(totals, by_keras, rows, is_default, reason):
    with contextlib.nullcontext() if reason is None else pytest.raises(ValueError, match=reason):
        (found,) = checks._check_objective(Scripted(totals, by_keras, rows), is_default)
        assert found[1:] == (2.0, 3.0, True)


def functional(*outputs):
    inputs = [SimpleNamespace(shape=(None, 2, 1))]
    return SimpleNamespace(inputs=inputs, outputs=[SimpleNamespace(shape=shape) for shape in outputs])


MOST = np.iinfo(np.int32).max


@pytest.mark.parametrize(
    "y, loss, outputs, reason",
    [
        ([0, 2], None, [(None, 3)], None),
        ([[0], [2]], None, [(None, 3)], None),
        ([[0, 1], [2, 1]], None, [(None, 3)], r"got \(2, 2\) of int"),
        ([0.0, 1.0], None, [(None, 3)], "a whole number"),
        ([0, 3], None, [(None, 3)], "must lie in 0–2, the model's outputs, got 0–3"),
        ([-1, 2], None, [(None, 3)], "must lie in 0–2, the model's outputs, got -1–2"),
        ([0, 0], None, [(None, 2)], None),
        ([0, 0], None, [(None, 1)], "at least two classes"),
        ([0, 0], None, [(None, 2, 2)], "at least two classes"),
        ([0, 0], None, [(None, 1), (None, 3)], None),  # then each loss has its labels
        ([MOST, -MOST], "mse", [(None, 3)], None),
        ([MOST + 1, 0], "mse", [(None, 3)], "within int32, got 0–2147483648"),
        ([-MOST - 1, 0], "mse", [(None, 3)], "within int32, got -2147483648–0"),
        ([0, 5], "mse", [(None, 3)], None),
        ([0, 5], "sparse_categorical_crossentropy", [(None, 3)], "must lie in 0–2"),
        ([0, 5], SimpleNamespace(name="sparse_categorical_crossentropy", ignore_class=5), [(None, 3)], None),
        ([5, 5], SimpleNamespace(name="sparse_categorical_crossentropy", ignore_class=5), [(None, 3)], None),
    ],
)
def test_labels_are_classes_of_the_outputs_and_within_int32(y, loss, outputs, reason):
    given = Examples(np.zeros((2, 2, 1)), np.array(y), None, 1)
    loss = loss or SimpleNamespace(name="sparse_categorical_crossentropy")
    is_default = getattr(loss, "name", "") != "" and not hasattr(loss, "ignore_class")
    with contextlib.nullcontext() if reason is None else pytest.raises(ValueError, match=reason):
        checks.check_examples(given, loss, is_default, functional(*outputs))


def test_the_loss_itself_says_what_it_makes_of_labels_of_several_outputs():
    given = Examples(np.zeros((2, 2, 1)), [np.array([5, 6]), np.zeros(2)], None, 1)
    checks.check_examples(given, "sparse_categorical_crossentropy", False, functional((None, 3)))


@pytest.mark.parametrize("shapes, is_taken", [([(1, 2, 1), (1,)], True), ([(2, 2, 1), (1,)], False), ([(), ()], False)])
def test_there_is_one_label_per_image_and_one_image_at_least(shapes, is_taken):
    message = re.escape(f"at least one image, got shapes {shapes[0]}, {shapes[1]}") + "$"
    with contextlib.nullcontext() if is_taken else pytest.raises(ValueError, match=message):
        checks.check_examples(Examples(*map(np.zeros, shapes), None, 1), "mse", False)


@pytest.mark.parametrize("shape, is_taken", [((3, 2), True), ((3, 2, 1), True), ((3, 3, 1), False), ((3,), False)])
def test_images_are_of_the_shape_that_the_model_takes_or_lack_its_last_axis(shape, is_taken):
    given, refused = Examples(np.zeros(shape), np.zeros(3), None, 1), pytest.raises(ValueError, match=r"be \[m, 2, 1\]")
    with contextlib.nullcontext() if is_taken else refused:
        checks.check_examples(given, "mse", False, functional((None, 3)))


def test_averages_that_one_channel_has_left_are_averages():
    layers = [keras.layers.BatchNormalization(name=name) for name in ("fresh", "mean", "variance", "both")]
    for layer in layers:
        layer.build((None, 2))
    layers[1].moving_mean.assign([0.0, 0.5])
    layers[2].moving_variance.assign([1.0, 0.5])
    layers[3].moving_mean.assign([0.5, 0.5])
    model = SimpleNamespace(_flatten_layers=lambda: [keras.layers.ReLU(), *layers])
    assert checks.without_averages(model) == ["fresh"]


SECOND = Sum(1.0, 4.0, 3.0, True)  # of two outputs; the first has Sum(1.0, 8.0, 0.5, True)


@pytest.mark.parametrize(
    "second, counts, scales, is_checked",
    [
        (SECOND, [7, 9], [0.5 / 12, 3 / 6], True),
        (SECOND._replace(total=np.nan), [7, 9], [0.5 / 12, 3 / 6], False),
        (SECOND._replace(by_shape=False), [7, 9], [0.5 / 7, 3 / 9], True),
        (SECOND._replace(by_shape=False, count=0.0), [7, 9], [0.5 / 7, 3 / 9], False),
        (SECOND._replace(by_shape=False), [7, 0], None, False),
    ],
)
def test_the_loss_of_each_output_is_over_its_values_that_count(second, counts, scales, is_checked, monkeypatch):
    """Six examples in batches of four: where no value is left out their number follows from that of the four."""
    backend = Quadratic()
    backend.counts = lambda: np.array(counts)
    monkeypatch.setattr(checks, "_check_objective", lambda *_: [Sum(1.0, 8.0, 0.5, True), second])
    monkeypatch.setattr(checks, "_check_derivatives", lambda *given: given[2])
    with contextlib.nullcontext() if scales else pytest.raises(ValueError, match="the loss ignores all labels"):
        found, of_four = checks.check(backend, False, True)
        np.testing.assert_allclose(found, scales)
        np.testing.assert_allclose(of_four, [0.5 / 8, 3 / 4] if is_checked else np.nan)


@pytest.mark.parametrize("count, asked", [(1, [1]), (2, [2, 1]), (4, [4, 3])])
def test_the_loss_is_asked_of_one_example_less_too(count, asked):
    backend, seen = Scripted((), 3.0, HALVES * count), []
    backend.examples = Examples(np.zeros((count, 2)), np.zeros(count), None, count)
    ignored = Sum(0.0, 0.0, 1.0, False)  # a second output, of labels that do not count
    backend.objective.sums = lambda y, *_: seen.append(len(y)) or [Sum(2.0, 2.0, 3.0, True), ignored]
    checks._check_objective(backend, False)
    assert seen == 2 * asked


@pytest.mark.parametrize("has_forward_mode", [True, False])
def test_a_second_derivative_is_that_of_the_gradient_in_either_mode(has_forward_mode):
    def jvp(function, at, v):
        if not has_forward_mode:
            raise NotImplementedError
        return function(*at), function(*v)  # which is linear

    linear = SimpleNamespace(grad=lambda _: MATRIX.__matmul__, jvp=jvp, vjp=lambda f, at: (f(at), lambda v: (f(v),)))
    found = Backend.second_derivative(linear, None, WEIGHTS, WEIGHTS**2)
    np.testing.assert_array_equal(found, MATRIX @ WEIGHTS**2)


@pytest.mark.parametrize("shape, of", [((2,), (2, 3, 4)), ((2, 3), (2, 3, 4)), ((2, 3, 1), (2, 3)), ((2, 3), (2, 3))])
def test_weights_and_masks_are_of_the_first_axes_of_the_values_that_they_multiply(shape, of):
    factors = np.arange(np.prod(shape)).reshape(shape)
    found = np.asarray(_like(factors, np.zeros(of)))
    expected = factors.reshape(shape[: len(of)] + (1,) * (len(of) - len(shape)))
    np.testing.assert_array_equal(np.broadcast_to(found, of), np.broadcast_to(expected, of))
