"""What a Hessian is asked of is checked once, before the first number: what is differentiated is what Keras minimises.

    (a)  the loss is that of Keras's own code, and gives one value an example
    (b)  the gradient is that of the model's own variables, and the derivative of the loss along a line
    (c)  Hv is the central difference of gradients, and ⟨u, Hv⟩ = ⟨v, Hu⟩

They take a few examples of the first batch. (a) and the first half of (b) hold at the weights. The others are taken at
a random point a third of the weights' size away, where a layer of zeros hides nothing and the loss is not near 0, with
differences in float64. Each difference is taken twice, with a step and its half: where these disagree, as at a kink,
they tell nothing.
"""

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from identity_matters.errors import truncated_repr
from shortcut_study.curvature.dtypes import HALF
from shortcut_study.curvature.examples import Examples, mapped
from shortcut_study.curvature.objective import Objective, Sum, flat

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
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"need a built keras.Model, with an Input or called once, got {truncated_repr(model)}")
    if not model.trainable_variables:
        raise ValueError("the model has no trainable weights; set trainable = True where layers are frozen")
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")


def without_averages(model: keras.Model) -> list[str]:
    """Returns the names of the layers of batch normalisation whose averages are those they were made with, 0 and 1."""
    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and not np.any(keras.ops.convert_to_numpy(layer.moving_mean))
        and np.all(keras.ops.convert_to_numpy(layer.moving_variance) == 1)
    ]


def check_examples(examples: Examples, loss: Any, is_default: bool, model: keras.Model | None = None) -> None:
    """Checks what a Hessian is asked of: a loss over examples, in batches, of a model if one is given.

    Raises:
      ValueError: no image, not one label per image, no whole batch_size, NaN; images that the model does not take;
        with the default loss, labels that are not whole numbers [m] or [m, 1]; classes without an output of the model;
        whole numbers beyond int32.
    """
    if not isinstance(examples.batch_size, numbers.Integral) or examples.batch_size < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, got {examples.batch_size!r}")
    x, y, weights = (keras.tree.flatten(tree) if tree is not None else [] for tree in examples[:3])
    shapes = [np.shape(array) for array in (*x, *y, *weights)]
    if not shapes[0][:1] > (0,) or any(shape[:1] != shapes[0][:1] for shape in shapes):
        raise ValueError(f"need one label per image, and at least one image, got shapes {', '.join(map(str, shapes))}")
    if is_default and (len(y) > 1 or y[0].shape[1:] not in ((), (1,)) or y[0].dtype.kind not in "iub"):
        raise ValueError(
            "the default loss takes one label per image, a whole number; compile the model, or pass loss=… (of one-hot "
            "rows and logits keras.losses.CategoricalCrossentropy(from_logits=True)), "
            f"got {y[0].shape} of {y[0].dtype}"
        )
    for name, arrays in (("the images", x), ("the labels", y), ("the sample weights", weights)):
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError(f"{name} hold NaN or infinite numbers; replace them, or leave these examples out")
    for name, arrays in (("labels", y), ("inputs", x if keras.backend.backend() == "jax" else ())):
        for array in arrays:
            if array.dtype.kind in "iu" and np.abs(array.astype(np.float64)).max() > np.iinfo(np.int32).max:
                raise ValueError(f"{name} that are whole numbers must be within int32, got {array.min()}–{array.max()}")
    if not getattr(model, "inputs", None):
        return
    if len(x) != len(model.inputs):
        raise ValueError(f"the model takes {len(model.inputs)} inputs, got {len(x)} arrays")
    for taken, array in zip(model.inputs, x) if not isinstance(examples.x, dict) else ():
        if any(size not in (None, given) for size, given in zip(taken.shape[1:], array.shape[1:])) or (
            len(taken.shape) not in (array.ndim, array.ndim + 1)
        ):
            wanted = ", ".join(map(str, taken.shape[1:]))
            raise ValueError(f"images must be [m, {wanted}] as the model takes them, got {array.shape}")
    if len(model.outputs) == 1 and len(y) == 1:
        _check_classes(model.outputs[0].shape[1:], y[0], keras.tree.flatten(loss)[0], is_default)


def _check_classes(given: tuple, labels: np.ndarray, loss: Any, is_default: bool) -> None:
    if is_default and (len(given) != 1 or given[0] == 1):
        raise ValueError(
            f"the default loss takes [m, classes], at least two classes, the model gives {(None, *given)}: pass loss"
        )
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    counted = labels[labels != getattr(loss, "ignore_class", None)]
    if "sparse_categorical" in name and given and given[-1] and counted.size:
        if not 0 <= counted.min() <= counted.max() < given[-1]:
            found = f"got {counted.min()}–{counted.max()}"
            raise ValueError(f"labels must lie in 0–{given[-1] - 1}, the model's outputs, {found}")


def check_objective(
    objective: Objective, backend: Any, weights: list, others: list, batch: tuple, is_default: bool
) -> list:
    """Checks (a) at the weights, and returns the `Sum` of each output.

    Raises:
      ValueError: another number at a second call; terms that are no mean over examples; probabilities for the default
        loss; another loss than Keras's.
    """
    x, y, sample_weight = batch
    added, flags = [], []

    def ours(weights: list, others: list, x: Any, y: Any, sample_weight: Any) -> tuple:
        with objective.at(weights, others) as scope:
            outputs = objective.outputs(x)
            found = objective.sums(y, outputs, sample_weight)
            if len(keras.tree.flatten(x)[0]) > 1:  # of another number of examples, so that classes do not pass for them
                objective.sums(*mapped(lambda array: array[:-1], (y, outputs, sample_weight)))
        added.extend(scope.losses)
        flags.extend((part.factor, part.by_shape) for part in found)
        first = keras.tree.flatten(outputs)[0]
        return [(part.total, part.count) for part in found], keras.ops.sum(first, -1), keras.ops.min(first)

    def keras_own(others: list, x: Any, y: Any, sample_weight: Any) -> Any:
        with keras.StatelessScope():
            return objective.by_keras(y, objective.outputs(x), sample_weight)

    arguments = weights, others, *backend.on_device((x, y, sample_weight))
    found, rows, least = backend.evaluate(ours, *arguments)
    if added:
        penalised = [
            layer.name for layer in objective.model._flatten_layers() if getattr(layer, "activity_regularizer", None)
        ]
        subject = f"the activity_regularizer of layer {penalised[0]}" if penalised else "add_loss in a layer"
        raise ValueError(f"{subject} adds to the loss a term that is not a mean over examples and has no Hessian here")
    found = [(float(total), float(count)) for total, count in found]
    again, *_ = backend.evaluate(ours, *arguments)
    if not np.allclose(found, [tuple(map(float, pair)) for pair in again], rtol=1e-3, equal_nan=True):
        raise ValueError(
            "the model draws random numbers anew at each call, so that it is no one function; call it with "
            "training=False, or draw them from a keras.random.SeedGenerator"
        )
    if is_default and float(least) >= 0 and np.allclose(np.asarray(rows, float), 1, atol=1e-3):
        raise ValueError(
            "the model must give logits, but its outputs are probabilities, which sum to 1; take the layer before the "
            "softmax, compile the model, or pass loss=…"
        )
    sums = [Sum(*pair, *flag) for pair, flag in zip(found, flags)]
    if not all(part.count for part in sums):  # all labels of these examples are ignored
        return sums
    value = sum(part.factor * part.total / part.count for part in sums)
    expected = float(backend.evaluate(keras_own, *arguments[1:]))
    tolerance = _share(objective)
    if np.isfinite(value) and not abs(value - expected) <= tolerance * max(abs(value), abs(expected), 1e-2):
        raise ValueError(
            f"the loss is {value:.6g} here and {expected:.6g} by Keras's own code; a __call__ of the loss's own, or a "
            "layer that computes something else in another type, makes it another function"
        )
    return sums


def _share(objective: Objective) -> float:
    """Returns the largest difference, as a share, between a model in its own types and in the objective's."""
    is_half = any(layer.compute_dtype in HALF for layer in objective.model._flatten_layers())
    return SAME_IN_HALF if is_half else SAME["float32"]


def check_derivatives(
    objective: Objective, backend: Any, weights: list, others: list, batch: tuple, scales: np.ndarray, is_hessian: bool
) -> float:
    """Checks (b) and (c); returns the rounding of a product, as a share of it, NaN where no derivative is finite.

    Raises:
      ValueError: a derivative is another; the line names the suspect.
    """
    placed, shapes = backend.on_device(batch), [tuple(weight.shape) for weight in weights]
    paths = [variable.path for variable in objective.model.trainable_variables]

    def loss_in(dtype: str, others: list) -> tuple[Callable, Callable]:
        part = objective.in_dtype(dtype)
        return backend.gradient_of(lambda weights: part.total(weights, others, placed, scales))

    own = backend.own_gradient(batch, scales)
    if own is not None:
        _check_own(own, loss_in(objective.dtype, others)[1](weights), _share(objective), paths)

    random = np.random.default_rng(0)
    arrays = [np.asarray(keras.ops.convert_to_numpy(weight), np.float64) for weight in weights]
    sizes = np.concatenate([np.full(w.size, np.sqrt(np.mean(w**2)) or 0.1) for w in arrays])
    noise, u, v = random.standard_normal((3, len(sizes))) * sizes

    draws = objective.training and any("seed_generator" in variable.path for variable in objective.model.variables)
    # Another type draws other random numbers. Constants of a layer's own may be of the model's type alone.
    for wide in [objective.dtype] if draws else dict.fromkeys(["float64", objective.dtype]):

        def tensors(vector: np.ndarray, dtype: str = wide) -> list:
            return backend.tensors(parts_of(vector, shapes), dtype)

        try:
            loss, gradient_at = loss_in(wide, backend.in_float64(others) if wide == "float64" else others)
            for shift in SHIFTS:
                point = flat(arrays) + shift * noise
                gradient = flat(gradient_at(tensors(point))).astype(np.float64)
                if np.isfinite(gradient).all():
                    break
            else:
                return math.nan
            break
        except (TypeError, ValueError, *backend.refusals):
            if wide == objective.dtype:
                raise
    here, *ends = (float(loss(tensors(point + step * v))) for step in (0.0, BEND, -BEND))
    # An operation that computes in float32 in any case, as resizing on TensorFlow, makes a staircase of small steps.
    is_smooth = wide == "float64" and abs(sum(ends) - 2 * here) <= SMOOTH * abs(here)
    step_of_loss, step_of_gradient, rounding = STEPS["float64" if is_smooth else "float32"]
    # Along each variable's own gradient, so that the part of a small one shows.
    pairs = zip(parts_of(gradient, shapes), parts_of(u, shapes))
    along = flat([part / size if (size := np.linalg.norm(part)) else other for part, other in pairs]) * sizes
    slopes = _differences(lambda step: np.array([float(loss(tensors(point + step * along)))]), step_of_loss)
    error = _difference(np.array([gradient @ along]), slopes, rounding * abs(here))
    if error > SAME["float32"]:
        raise ValueError(
            "the gradient is not the derivative of the loss: a layer or the loss stops or replaces a gradient, as "
            "reversal, clipping, rounding and stop_gradient do; training follows no function then, and there is no "
            f"Hessian (they differ by {error:.1g} of their size)"
        )
    changes = _differences(lambda step: flat(gradient_at(tensors(point + step * v))), step_of_gradient)

    def product(of: Any, values: list, vector: np.ndarray) -> np.ndarray:
        at, placed = tensors(point, of.objective.dtype), of.tensors([vector[None]], of.objective.dtype)
        return np.asarray(of.product(at, values, *placed, batch, scales))[0].astype(np.float64)

    size = np.linalg.norm(gradient) if is_hessian else math.inf  # no Hessian is no difference of gradients
    try:
        return _check_product(
            functools.partial(product, backend, others), u, v, changes, size, objective.dtype, paths, shapes
        )
    except ValueError:
        if wide == objective.dtype:
            raise
        # Rounding too, where activations grow through many layers or the loss is near 0: then float64 is right.
        exact = functools.partial(product, backend.in_type_float64(), backend.in_float64(others))
        _check_product(exact, u, v, changes, size, "float64", paths, shapes)
        return float(np.linalg.norm(product(backend, others, v) - (right := exact(v))) / np.linalg.norm(right))


def _check_product(
    product: Callable,
    u: np.ndarray,
    v: np.ndarray,
    changes: list[np.ndarray],
    gradient: float,
    dtype: str,
    paths: list[str],
    shapes: list[tuple],
) -> float:
    """Checks (c) by differences along v of a gradient of some size; returns how far a product is from symmetric."""
    hu, hv, same = product(u), product(v), SAME[dtype]
    error = _difference(hv, changes, same / 100 * gradient)
    if error > same:
        errors = [np.linalg.norm(part) for part in parts_of(hv - changes[1], shapes)]
        raise ValueError(
            "a Hessian product is not the difference of two gradients: an operation has a second derivative that "
            f"{keras.backend.backend()} does not know, as where a gradient function stops a gradient (they differ by "
            f"{error:.1g} of their size, most in {paths[int(np.argmax(errors))]})"
        )
    asymmetry = abs(u @ hv - v @ hu) / ((np.linalg.norm(u) * np.linalg.norm(hv)) or 1.0)
    if asymmetry > same:
        raise ValueError(f"products are not symmetric, by {asymmetry:.1g} of their size; take dtype='float64'")
    return float(asymmetry)


def _check_own(own: list, ours: list, share: float, paths: list[str]) -> None:
    """Compares gradients in a model's own variables and in tensors in their place, in half precision all at once."""
    if share == SAME_IN_HALF:
        own, ours, paths = [flat(own)], [flat(ours)], ["the weights"]
    pairs = [[keras.ops.convert_to_numpy(g).astype(np.float64) for g in pair] for pair in zip(own, ours)]
    sizes = [np.abs(expected).max(initial=0) for expected, _ in pairs]
    for path, size, (expected, found) in zip(paths, sizes, pairs):
        if np.abs(expected - found).max(initial=0) > share * max(size, share * max(sizes)):  # not of NaN
            raise ValueError(
                f"the gradient in {path} is another where Keras takes it: a layer passes no gradient to a tensor in "
                "place of that weight, as with tf.recompute_grad (use keras.RematScope), or reads it as a tf.Variable"
            )


def _differences(function: Callable, step: float) -> list[np.ndarray]:
    """Returns central differences with a step and with its half."""
    ends = [[function(sign * size) for sign in (1, -1)] for size in (step, step / 2)]
    return [(high.astype(float) - low) / (2 * size) for (high, low), size in zip(ends, (step, step / 2))]


def _difference(found: np.ndarray, differences: list[np.ndarray], rounding: float) -> float:
    """Returns by what share a derivative is no difference, beyond rounding and the differences' own error."""
    wide, narrow = differences
    size = np.linalg.norm(narrow)
    beyond = np.linalg.norm(found - narrow) - rounding - 10 * np.linalg.norm(wide - narrow)
    return float(beyond / size) if size else float(beyond > 0)


def parts_of(vector: np.ndarray, shapes: list[tuple]) -> list[np.ndarray]:
    """Returns a flat vector in arrays of some shapes."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends), shapes)]
