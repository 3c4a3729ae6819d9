"""What a Hessian is asked of is checked once, before the first number: what is differentiated is what Keras minimises.

    (a)  the loss is that of Keras's own code, and gives one value an example
    (b)  the gradient is that of the model's own variables, and the derivative of the loss along a line
    (c)  Hv is the central difference of gradients, and ⟨u, Hv⟩ = ⟨v, Hu⟩

They take a few examples of the first batch. (a) and the first half of (b) hold at the weights; the others at a random
point a third of the weights' size away, where a layer of zeros hides nothing and the loss is not near 0, with
differences in float64. Each is taken with a step and its half: where these disagree, as at a kink, they tell nothing.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.ops import convert_to_numpy

from identity_matters.dtypes import HALF
from identity_matters.errors import truncated_repr
from identity_matters.fields import require, require_counts
from shortcut_study.curvature.backend import Backend
from shortcut_study.curvature.examples import Examples
from shortcut_study.curvature.objective import Objective, Sum, own_dtype, parts_of

SHIFTS = 0.3, 0.01  # of the size of each weight matrix: to a generic point, where the loss is not near 0
# Of differences of losses and of gradients, as a share of the weights: small, so that few ReLUs pass their kink; then
# what rounding makes of the former, as a share of the loss.
STEPS = {"float64": (1e-6, 1e-8, 1e-6), "float32": (1e-2, 1e-3, 1e-4)}
# A loss is smooth whose second difference with a step is at most this share: curvature gives 1e-14, float32 1e-9.
BEND, SMOOTH = 1e-7, 1e-11
# Largest difference, as a share, by the type of the products; far above rounding, far below what a term makes.
SAME = {"float32": 1e-3, "float64": 1e-5}
SAME_IN_HALF = 0.25  # of a model that itself computes in half precision, whose sums cancel


def check_model(model: keras.Model, dtype: str | None = None) -> None:
    """Raises ValueError where a model is not built, has nothing to train, or has weights of unfit types."""
    is_built = isinstance(model, keras.Model) and model.built
    require(is_built, f"need a built keras.Model, with an Input or called once, got {truncated_repr(model)}")
    what = "the model has no trainable weights; set trainable = True where layers are frozen"
    require(bool(model.trainable_variables), what)
    require(dtype in (None, "float32", "float64"), f"dtype must be float32 or float64, got {dtype!r}")


def without_averages(model: keras.Model) -> list[str]:
    """Returns the names of the layers of batch normalisation whose averages are those they were made with, 0 and 1."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    averages = [(convert_to_numpy(layer.moving_mean), convert_to_numpy(layer.moving_variance)) for layer in layers]
    return [layer.name for layer, (mean, variance) in zip(layers, averages) if not mean.any() and (variance == 1).all()]


def check_examples(examples: Examples, loss: Any, is_default: bool, model: keras.Model | None = None) -> None:
    """Raises ValueError where examples make no loss, in batches, or none of a model if one is given."""
    require_counts(1, batch_size=examples.batch_size)
    x, y, weights = (keras.tree.flatten(tree) if tree is not None else [] for tree in examples[:3])
    shapes = [np.shape(array) for array in (*x, *y, *weights)]
    sizes = {shape[:1] for shape in shapes}
    are_as_many = len(sizes) == 1 and not sizes & {(), (0,)}
    received = ", ".join(map(str, shapes))
    require(are_as_many, f"need one label per image, and at least one image, got shapes {received}")
    require(
        not is_default or (len(y) == 1 and y[0].shape[1:] in ((), (1,)) and y[0].dtype.kind in "iub"),
        "the default loss takes one label per image, a whole number; compile the model, or pass loss=… (of one-hot "
        "rows and logits keras.losses.CategoricalCrossentropy(from_logits=True)), "
        f"got {y[0].shape} of {y[0].dtype}",
    )
    for name, arrays in (("images", x), ("labels", y), ("sample weights", weights)):
        are_finite = all(np.isfinite(array).all() for array in arrays)
        require(are_finite, f"the {name} hold NaN or infinite numbers; replace them, or leave these examples out")
    for name, arrays in (("labels", y), ("inputs", x if keras.backend.backend() == "jax" else ())):
        for array in arrays:
            if array.dtype.kind in "iu" and np.abs(array.astype(np.float64)).max() > np.iinfo(np.int32).max:
                raise ValueError(f"{name} that are whole numbers must be within int32, got {array.min()}–{array.max()}")
    if not getattr(model, "inputs", None):
        return
    inputs, outputs = model.inputs, model.outputs
    require(len(x) == len(inputs), f"the model takes {len(inputs)} inputs, got {len(x)} arrays")
    for taken, array in zip(inputs, x) if not isinstance(examples.x, dict) else ():
        fits = all(size in (None, given) for size, given in zip(taken.shape[1:], array.shape[1:]))
        wanted = ", ".join(map(str, taken.shape[1:]))
        message = f"images must be [m, {wanted}] as the model takes them, got {array.shape}"
        require(fits and len(taken.shape) in (array.ndim, array.ndim + 1), message)
    if len(outputs) > 1 or len(y) > 1:
        return
    given, labels, loss = outputs[0].shape[1:], y[0], keras.tree.flatten(loss)[0]
    takes = "the default loss takes [m, classes], at least two classes, the model gives"
    require(not is_default or (len(given) == 1 and given[0] != 1), f"{takes} {(None, *given)}: pass loss")
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    counted = labels[labels != getattr(loss, "ignore_class", None)]
    if "sparse_categorical" in name and given and given[-1] and counted.size:
        low, high, most = counted.min(), counted.max(), given[-1] - 1
        require(0 <= low <= high <= most, f"labels must lie in 0–{most}, the model's outputs, got {low}–{high}")


def check(backend: Backend, is_default: bool, is_hessian: bool) -> tuple[np.ndarray, float]:
    """Checks (a), (b) and (c), or raises ValueError with a line that names the suspect.

    Returns the scales of the outputs' losses, and the rounding of a product, a share; NaN where no derivative is
    finite.
    """
    size = min(backend.num_checked, len(backend.examples))
    few = backend.examples.first(size)
    sums = _check_objective(backend.over(few, np.ones(1)), is_default)
    own, factors = (np.array([part[i] for part in sums]) for i in (1, 2))
    by_shape = all(part.by_shape for part in sums)
    counts = own * len(backend.examples) / size if by_shape else backend.counts()
    require(counts.all(), "the loss ignores all labels")
    is_finite = own.all() and all(np.isfinite(part.total) for part in sums)
    rounding = _check_derivatives(backend, few, factors / own, is_hessian) if is_finite else math.nan
    return factors / counts, rounding


def _check_objective(backend: Backend, is_default: bool) -> list[Sum]:
    """Checks (a) at the weights over a few examples, and returns the `Sum` of each output."""
    objective, added, flags = backend.objective, [], []

    def ours(w: Any, others: list, batch: tuple) -> tuple:
        x, y, *sample_weight = batch
        with objective.at(w, others) as scope:
            outputs = objective.outputs(x)
            sums = objective.sums(y, outputs, *sample_weight)
            if len(backend.examples) > 1:  # of another number of examples, so that classes do not pass for them
                objective.sums(*keras.tree.map_structure(lambda array: array[:-1], (y, outputs, *sample_weight)))
        added.extend(scope.losses)
        flags.extend((part.factor, part.by_shape) for part in sums)
        first = keras.tree.flatten(outputs)[0]
        return [(part.total, part.count) for part in sums], keras.ops.sum(first, -1), keras.ops.min(first)

    def keras_own(batch: tuple) -> Any:
        x, y, *sample_weight = batch
        with keras.StatelessScope():
            return objective.by_keras(y, objective.outputs(x), *sample_weight)

    arguments = *backend.values, backend.on_device(next(backend.examples.batches()))
    pairs, rows, least = backend.evaluate(ours, *arguments)
    if added:
        layers = objective.model._flatten_layers()
        penalised = [layer.name for layer in layers if getattr(layer, "activity_regularizer", None)]
        subject = f"the activity_regularizer of layer {penalised[0]}" if penalised else "add_loss in a layer"
        raise ValueError(f"{subject} adds to the loss a term that is not a mean over examples and has no Hessian here")
    again, *_ = backend.evaluate(ours, *arguments)
    numbers, others = ([tuple(map(float, pair)) for pair in of] for of in (pairs, again))
    require(
        np.allclose(numbers, others, rtol=1e-3, equal_nan=True),
        "the model draws random numbers anew at each call, so that it is no one function; call it with "
        "training=False, or draw them from a keras.random.SeedGenerator",
    )
    require(
        not (is_default and float(least) >= 0 and np.allclose(convert_to_numpy(rows), 1, atol=1e-3)),
        "the model must give logits, but its outputs are probabilities, which sum to 1; take the layer before the "
        "softmax, compile the model, or pass loss=…",
    )
    sums = [Sum(*pair, *flag) for pair, flag in zip(numbers, flags)]
    if all(part.count for part in sums):  # else all labels of these examples are ignored
        value = sum(part.factor * part.total / part.count for part in sums)
        expected = float(backend.evaluate(keras_own, arguments[-1]))
        error, size = abs(value - expected), max(abs(value), abs(expected), 1e-2)
        require(
            not np.isfinite(value) or error <= _share(objective) * size,
            f"the loss is {value:.6g} here and {expected:.6g} by Keras's own code; a __call__ of the loss's own, or a "
            "layer that computes something else in another type, makes it another function",
        )
    return sums


def _share(objective: Objective) -> float:
    """Returns the largest difference, as a share, between a model in its own types and in the objective's."""
    if objective.draws and own_dtype(objective.model) != objective.dtype:  # then of other random numbers
        return math.inf
    is_half = any(layer.compute_dtype in HALF for layer in objective.model._flatten_layers())
    return SAME_IN_HALF if is_half else SAME["float32"]


def _check_derivatives(backend: Backend, few: Examples, scales: np.ndarray, is_hessian: bool) -> float:
    """Checks (b) and (c) over a few examples; returns the rounding of a product."""
    model, ours = backend.objective.model, backend.over(few, scales)
    variables, here, own = model.trainable_variables, ours.values[0], ours.own_gradient()
    if own is not None:
        _check_own(own, ours.gradient(here), variables, _share(backend.objective))

    w = np.array(convert_to_numpy(here), float)
    sizes = np.concatenate([np.full(a.size, np.sqrt(np.mean(a**2)) or 0.1) for a in parts_of(w, variables)])
    noise, u, v = np.random.default_rng(0).standard_normal((3, len(w))) * sizes
    # Another type draws other random numbers. Constants of a layer's own may be of the model's type alone.
    try:
        of = ours if backend.objective.draws else backend.over(few, scales, "float64")
        point, gradient = _generic_point(of, w, noise)
    except (TypeError, ValueError):
        of = ours
        point, gradient = _generic_point(of, w, noise)
    if not np.isfinite(gradient).all():
        return math.nan

    def loss(w: np.ndarray) -> np.ndarray:
        return np.array([of.loss(of.place(w))])

    here, *ends = (loss(point + step * v) for step in (0.0, BEND, -BEND))
    # An operation that computes in float32 in any case, as resizing on TensorFlow, makes a staircase of small steps.
    is_smooth = of.dtype == "float64" and abs(sum(ends) - 2 * here) <= SMOOTH * abs(here)
    step_of_loss, step_of_gradient, rounding = STEPS["float64" if is_smooth else "float32"]
    # Along each variable's own gradient, so that the part of a small one shows.
    pairs = zip(parts_of(gradient, variables), parts_of(u, variables))
    along = [np.ravel(part / size if (size := np.linalg.norm(part)) else other) for part, other in pairs]
    direction = np.concatenate(along) * sizes
    slopes = _differences(lambda step: loss(point + step * direction), step_of_loss)
    error = _difference(np.array([gradient @ direction]), slopes, rounding * abs(here[0]))
    require(
        not error > SAME["float32"],  # NaN tells nothing
        "the gradient is not the derivative of the loss: a layer or the loss stops or replaces a gradient, as "
        "reversal, clipping, rounding and stop_gradient do; training follows no function then, and there is no "
        f"Hessian (they differ by {error:.1g} of their size)",
    )
    changes = _differences(lambda step: of.gradient(of.place(point + step * v)).astype(float), step_of_gradient)
    at = point, u, v, changes, np.linalg.norm(gradient) if is_hessian else math.inf  # no Hessian is no difference
    try:
        return _check_products(ours, *at)[1]
    except ValueError:
        if of is ours:
            raise
        # Rounding too, where activations grow through many layers or the loss is near 0: then float64 is right.
        exact, _ = _check_products(of, *at)
        return float(np.linalg.norm(_product(ours, point, v) - exact) / np.linalg.norm(exact))


def _generic_point(of: Backend, w: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a point that is no special one, and the gradient there, which is finite at one of them if it can be."""
    for point in (w + shift * noise for shift in SHIFTS):
        gradient = of.gradient(of.place(point)).astype(float)
        if np.isfinite(gradient).all():
            break
    return point, gradient


def _product(of: Backend, point: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return of.product(of.place(point), vector[None])[0].astype(float)


def _check_products(
    of: Backend, point: np.ndarray, u: np.ndarray, v: np.ndarray, changes: list[np.ndarray], gradient: float
) -> tuple[np.ndarray, float]:
    """Checks (c) by differences along v of a gradient of some size; returns Hv, and how far H is from symmetric."""
    (hu, hv), same = (_product(of, point, vector) for vector in (u, v)), SAME[of.dtype]
    error, variables = _difference(hv, changes, same / 100 * gradient), of.objective.model.trainable_variables
    most = int(np.argmax([np.linalg.norm(part) for part in parts_of(hv - changes[1], variables)]))
    require(
        not error > same,
        "a Hessian product is not the difference of two gradients: an operation has a second derivative that "
        f"{keras.backend.backend()} does not know, as where a gradient function stops a gradient (they differ by "
        f"{error:.1g} of their size, most in {variables[most].path})",
    )
    asymmetry = abs(u @ hv - v @ hu) / ((np.linalg.norm(u) * np.linalg.norm(hv)) or 1.0)
    require(not asymmetry > same, f"products are not symmetric, by {asymmetry:.1g} of their size; take dtype='float64'")
    return hv, float(asymmetry)


def _check_own(own: np.ndarray, ours: np.ndarray, variables: list[keras.Variable], share: float) -> None:
    """Compares gradients in a model's own variables and in tensors in their place, in half precision all at once."""
    pairs = [(own, ours)] if share == SAME_IN_HALF else [*zip(parts_of(own, variables), parts_of(ours, variables))]
    sizes = [np.abs(expected).max(initial=0) for expected, _ in pairs]
    for variable, size, (expected, here) in zip(variables, sizes, pairs):
        if np.abs(expected - here).max(initial=0) > share * max(size, share * max(sizes)):  # not of NaN
            raise ValueError(
                f"the gradient in {'the weights' if len(pairs) == 1 else variable.path} is another where Keras takes "
                "it: a layer passes no gradient to a tensor in place of that weight, as with tf.recompute_grad (use "
                "keras.RematScope), or reads it as a tf.Variable"
            )


def _differences(function: Callable, step: float) -> list[np.ndarray]:
    """Returns central differences with a step and with its half."""
    return [(function(size) - function(-size)) / (2 * size) for size in (step, step / 2)]


def _difference(derivative: np.ndarray, differences: list[np.ndarray], rounding: float) -> float:
    """Returns by what share a derivative is no difference, beyond rounding and the differences' own error."""
    wide, narrow = differences
    size = np.linalg.norm(narrow)
    beyond = np.linalg.norm(derivative - narrow) - rounding - 10 * np.linalg.norm(wide - narrow)
    return float(beyond / size) if size else float(beyond > 0)
