"""Checks that Keras minimises the differentiated function: once, on the problem itself, before the first number.

    over all examples, at the weights, batch by batch
      compare_losses         the loss is that of Keras's own code; that of a batch is the sum over its halves
      compare_gradients      the gradient is that of Keras's own loss in the model's own variables (TensorFlow)
      slope_error            ⟨∇L, d⟩ is the difference of losses along a line
      check_loss             first and second derivative of the loss in the outputs are differences, in float64
    over 32 examples drawn from those that count, at the weights and near them, in float64
      slope_error            as above
      check_products         Hv is the difference of gradients, with a step that shrinks until a step and its half agree
      check_gauss_newton     ⟨u, Gv⟩ = ⟨Ju, ∇²ℓ Jv⟩, with Ju and Jv by differences of outputs

Differences of gradients over all examples would step over kinks of ReLU. A difference that does not settle, as at a
kink, tells nothing: then products are "not checked by differences", which is no refusal.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras.ops import convert_to_numpy

from identity_matters.errors import UserError
from shortcut_study.curvature.backend import Backend
from shortcut_study.curvature.differences import (
    Line,
    Sketch,
    line_along,
    noise_like,
    norms_by_variable,
    settled_difference,
    settled_slope_error,
)
from shortcut_study.curvature.examples import Examples, indices_that_count, num_examples
from shortcut_study.curvature.loss_checks import (
    CANCELLED,
    SAME,
    BatchLoss,
    check_loss,
    compare_gradients,
    compare_losses,
    is_additive_at,
    losses_over,
    require_uncoupled,
)
from shortcut_study.curvature.objective import parts_of

NUM_CHECKED = 32  # examples on which products are checked
SHIFTS = 0.3, 0.01  # of the size of each weight matrix: to a generic point with a loss that is not near 0
FAR = 1.0  # the same, to a point at which the coupling of examples shows
PRODUCT_STEPS = 1e-5, 1e-6, 1e-7, 1e-8  # of differences of gradients, relative to the weights
SLOPE_STEPS = {"float64": (1e-6, 1e-4, 1e-2), "float32": (1e-3, 1e-2)}  # of differences of losses


class Checked(NamedTuple):
    """The result of the checks."""

    scales: np.ndarray  # of each output's loss: its weight over the number of values that count
    rounding: float  # relative, of a product; NaN if not checked by differences
    by_differences: bool  # whether products agree with differences, at the weights or near them
    is_coupled: bool  # whether the loss of an example depends on the others of its batch


def check(backend: Backend, is_default: bool) -> Checked:
    """Makes all checks, or raises a ValueError that names the suspect.

    Args:
      backend: With all examples; its scales are not read.
      is_default: bool. Whether the loss is the default one, the cross-entropy of logits.
    """
    backend.trace_products()
    loss = BatchLoss(backend)
    losses, is_coupled = compare_losses(backend, loss, is_default)
    if not losses.counts.sum(0).all():
        raise UserError("the loss ignores all labels")
    sample = draw(backend)
    ours = backend.with_examples(sample, losses_over(backend, loss, sample).scales)
    point = np.array(convert_to_numpy(backend.values[0]))
    variables = backend.objective.model.trainable_variables
    exact, typical = _exact(backend, ours, point)
    whole = backend.with_examples(backend.examples, losses.batch_scales)
    reference = (exact or backend).with_examples(whole.examples, whole.scales)
    line = line_along(point, compare_gradients(whole, typical), typical, variables)
    error = slope_error(reference, point, line)
    if error and exact is not None and exact is not backend:
        # It may be rounding, if the loss is near 0: then the gradient in float64 is right.
        gradient = reference.total(reference.gradient, reference.weights(point))
        error = slope_error(reference, point, line_along(point, gradient, typical, variables))
    _require_derivative(error)
    del line
    check_loss(reference, point)
    exact = exact and exact.with_examples(sample, ours.scales)
    roundings = [_check_derivatives(ours, exact, point)]
    for shift in SHIFTS:
        near = _check_derivatives(ours, exact, _shifted(point, shift, variables))
        if near is not None:
            roundings.append(near)
            break
    if not is_coupled:
        is_coupled = not is_additive_at(ours, loss, _shifted(point, FAR, variables))
        require_uncoupled(backend, is_coupled, num_examples(sample.batches[0]))
    finite_roundings = [value for value in roundings if value is not None and math.isfinite(value)]
    return Checked(losses.scales, max(finite_roundings, default=math.nan), bool(finite_roundings), is_coupled)


def draw(backend: Backend) -> Examples:
    """Returns 32 examples drawn at random from those that count, or all of these."""
    examples = backend.examples
    losses = keras.tree.flatten(backend.objective.loss)
    ignored = getattr(losses[0], "ignore_class", None) if len(losses) == 1 else None
    indices = indices_that_count(examples, ignored)
    count = backend.num_checked(min(NUM_CHECKED, len(indices)))
    random = np.random.default_rng(0)
    is_enough = count <= len(indices)
    chosen = random.choice(indices, count, replace=False) if is_enough else np.resize(indices, count)
    return examples.take(np.sort(chosen), min(count, examples.batch_size))


def _exact(backend: Backend, ours: Backend, point: np.ndarray) -> tuple[Backend | None, np.ndarray]:
    """Returns the backend in float64, if there is one, and the norms of the gradient over few examples by variable.

    There is none if a layer has constants in float32, or draws random numbers, which are others in another type.
    """
    variables = backend.objective.model.trainable_variables
    if not backend.objective.draws or backend.dtype == "float64":
        try:
            exact = backend.exact()
            sample = exact.with_examples(ours.examples, ours.scales)
            return exact, norms_by_variable(sample.total(sample.gradient, sample.weights(point)), variables)
        except (TypeError, ValueError):
            pass
    return None, norms_by_variable(ours.total(ours.gradient, ours.place(point)), variables)


def _shifted(point: np.ndarray, shift: float, variables: Sequence) -> np.ndarray:
    """Returns a generic point near the weights."""
    near = noise_like(point, shift, variables).astype(point.dtype, copy=False)
    near += point
    return near


def slope_error(backend: Backend, point: np.ndarray, line: Line) -> float:
    """Returns the relative error of a line's slope against differences of losses; 0 if it agrees or cannot be tested.

    A loss is continuous at the kinks of ReLU. But at a kink itself, as of a layer of zeros, the differences to both
    sides disagree, and tell nothing.
    """

    def loss(step: float) -> float:
        return float(backend.total(backend.loss, backend.weights(point, step, line.direction)))

    floor = SAME["float32"] * CANCELLED * line.magnitude
    steps = SLOPE_STEPS[backend.dtype]
    return settled_slope_error(loss, line.slope, floor, steps, SAME["float32"], backend.dtype)


def _require_derivative(error: float) -> None:
    if error:
        raise UserError(
            "the gradient is not the derivative of the loss: a layer or the loss stops or replaces a gradient, as "
            "reversal, clipping, rounding and stop_gradient do; training follows no function then, and there is no "
            f"Hessian (they differ by {error:.1g} of their size)"
        )


def _check_derivatives(ours: Backend, exact: Backend | None, point: np.ndarray) -> float | None:
    """Checks slope and products at a point; returns the rounding of a product, NaN if no difference tells.

    None if the gradient there is not finite.
    """
    variables = ours.objective.model.trainable_variables
    product = _product(ours, point)
    reference = exact or ours
    gradient = reference.total(reference.gradient, reference.weights(point))
    norms = norms_by_variable(gradient, variables)
    if not all(np.isfinite(part).all() for part in parts_of(gradient, variables)):
        return None
    line = line_along(point, gradient, norms, variables)
    del gradient
    _require_derivative(slope_error(reference, point, line))
    del line
    if not np.isfinite(product).all():
        raise UserError(
            "a Hessian product is NaN or infinite: an operation of the model or the loss has no finite second "
            f"derivative in {keras.backend.backend()} there"
        )
    if exact is None:
        return math.nan
    if ours.gauss_newton:
        return check_gauss_newton(ours, exact, point, product)
    sketch = Sketch(variables)
    sketched = sketch(product)
    del product
    return check_products(ours, exact, point, sketch, sketched)


def _product(ours: Backend, point: np.ndarray) -> np.ndarray:
    """Returns the product at a point with a vector as large as the weights."""
    direction = noise_like(point, 1.0, ours.objective.model.trainable_variables)
    vectors = ours.place(direction[None])
    del direction
    return ours.total(ours.products, ours.place(point), vectors)[0]


def check_products(ours: Backend, exact: Backend, point: np.ndarray, sketch: Sketch, product: np.ndarray) -> float:
    """Compares a sketched product with differences of gradients in float64; returns its rounding, or NaN."""
    variables = ours.objective.model.trainable_variables
    direction = noise_like(point, 1.0, variables)

    def gradient(step: float) -> np.ndarray:
        return sketch(exact.total(exact.gradient, exact.weights(point, step, direction)))

    size = np.linalg.norm(gradient(0.0))
    difference = settled_difference(gradient, PRODUCT_STEPS)
    if difference is None:
        return math.nan
    rounding = float(np.linalg.norm(product - difference) / (np.linalg.norm(difference) or 1.0))
    error = _product_error(product, difference, size, SAME[ours.dtype])
    if error <= SAME[ours.dtype]:
        return rounding
    if ours is not exact and ours.dtype != exact.dtype:
        # It may be rounding, if activations grow through many layers or the loss is near 0: then float64 is right.
        product = sketch(exact.total(exact.product, exact.weights(point), exact.weights(direction)))
        if _product_error(product, difference, size, SAME[exact.dtype]) <= SAME[exact.dtype]:
            return rounding
    most = int(np.argmax(Sketch.norms(product - difference)))
    raise ValueError(
        "a Hessian product is not the difference of two gradients: an operation has a second derivative that "
        f"{keras.backend.backend()} does not know, as where a gradient function stops a gradient (they differ by "
        f"{error:.1g} of their size, most in {variables[most].path})"
    )


def _product_error(product: np.ndarray, difference: np.ndarray, gradient: float, tolerance: float) -> float:
    """Returns the largest relative error of a sketched product in a variable, each no less than 1 % of all of it."""
    errors = Sketch.norms(product - difference)
    sizes = Sketch.norms(difference)
    sizes = np.maximum(sizes, CANCELLED * np.linalg.norm(sizes))
    floor = tolerance * CANCELLED * gradient
    beyond = np.maximum(errors - floor, 0)
    return float(np.max(np.divide(beyond, sizes, out=np.where(beyond > 0, np.inf, 0.0), where=sizes > 0)))


def check_gauss_newton(ours: Backend, exact: Backend, point: np.ndarray, product: np.ndarray) -> float:
    """Compares ⟨u, Gv⟩ with ⟨Ju, ∇²ℓ Jv⟩, J by differences of outputs in float64; returns the error, or NaN."""
    variables = ours.objective.model.trainable_variables
    direction = noise_like(point, 1.0, variables)
    other = line_along(point, product, np.zeros(len(variables)), variables).direction

    def outputs(step: float, along: np.ndarray) -> np.ndarray:
        w = exact.weights(point, step, along)
        found = [
            exact.evaluate(lambda *arguments: exact.outputs(*arguments)[0], w, exact.values[1], exact.on_device(batch))
            for batch in exact.examples.batches
        ]
        return np.concatenate([np.ravel(convert_to_numpy(z)) for z in keras.tree.flatten(found)])

    pushed = settled_difference(lambda step: outputs(step, direction), PRODUCT_STEPS)
    others = settled_difference(lambda step: outputs(step, other), PRODUCT_STEPS)
    if pushed is None or others is None:
        return math.nan
    expected, magnitude = _curvature_of_loss(exact, point, pushed, others)
    found = float(np.dot(other.astype(float), product))
    error = abs(found - expected) / magnitude if magnitude else float(found != expected)
    if not error <= SAME[ours.dtype]:
        raise UserError(
            "a Gauss–Newton product is not that of differences of outputs: an operation has a derivative that "
            f"{keras.backend.backend()} does not know, or stops a gradient (they differ by {error:.1g} of their size)"
        )
    return error


def _curvature_of_loss(exact: Backend, point: np.ndarray, v: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """Returns Σ ⟨u, ∇²ℓ v⟩ over all batches for directions in their flat outputs, and the sum of the terms' sizes."""

    def curved(w: Any, others: list, batch: tuple, scales: Any, along: Any) -> list:
        flat, like = exact.outputs(w, others, batch)
        parts = []
        start = 0
        for z in flat:
            parts.append(keras.ops.reshape(along[start : start + math.prod(z.shape)], z.shape))
            start += math.prod(z.shape)
        found = exact.second_derivative(exact.loss_of_outputs(w, others, batch, scales, like), flat, parts)
        return [keras.ops.reshape(part, (-1,)) for part in found]

    terms = []
    start = 0
    scales = exact.place(exact.scales)
    for batch in exact.examples.batches:
        device = exact.on_device(batch)
        with exact.context():
            size = sum(math.prod(z.shape) for z in exact.outputs(exact.weights(point), exact.values[1], device)[0])
        along = exact.place(v[start : start + size])
        found = exact.evaluate(curved, exact.weights(point), exact.values[1], device, scales, along)
        product = np.concatenate([convert_to_numpy(part) for part in found])
        terms.append(u[start : start + size] * product)
        start += size
    terms = np.concatenate(terms)
    return float(terms.sum()), float(abs(terms).sum())
