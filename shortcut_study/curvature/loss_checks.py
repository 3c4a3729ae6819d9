"""Checks of the loss over all examples, at the weights: it is that which Keras minimises, and so is its gradient."""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
from keras.ops import convert_to_numpy

from identity_matters.dtypes import HALF
from identity_matters.errors import UserError
from shortcut_study.curvature.backend import Backend
from shortcut_study.curvature.differences import settled_slope_error
from shortcut_study.curvature.examples import Examples, num_examples, rows
from shortcut_study.curvature.objective import COMPUTE_LOSS, first_reason, parts_of, weights_dtype

# Largest relative difference, by the type of the numbers: far above rounding, far below what a missing term makes.
SAME = {"float32": 1e-3, "float64": 1e-5}
SAME_IN_HALF = 0.25  # for a model that itself computes in half precision, whose sums cancel
# Between the loss of a batch and its halves. Factors rounded to TensorFloat-32 are 1e-3 off.
ADDITIVE = {"highest": 1e-4, "high": 1e-3, "default": 5e-3}
SMALL_LOSS = 1e-3  # for a smaller loss the tolerances are relative to this number
# Relative to the gradient over few examples: a smaller gradient over all examples is rounding, as at a minimum.
CANCELLED = 1e-2
SLOPE = {"float64": 1e-7, "float32": 1e-3}  # between slopes of the loss in the outputs: one example of very many shows
LOSS_STEPS = {
    "float64": (1e-6, 1e-4),
    "float32": (1e-3, 1e-2),
}  # of differences in the outputs, relative to each output


class Losses(NamedTuple):
    """The loss of each output over each batch."""

    totals: np.ndarray  # [batches, outputs]
    counts: np.ndarray  # [batches, outputs], how many values count
    factors: np.ndarray  # [outputs], the weights of the outputs' losses
    sizes: np.ndarray  # [batches], numbers of examples

    @property
    def scales(self) -> np.ndarray:
        """The scale of each output's loss in the mean over all examples [outputs]; 0 if no value counts."""
        counts = self.counts.sum(0)
        return np.divide(self.factors, counts, out=np.zeros_like(counts), where=counts > 0)

    @property
    def batch_scales(self) -> np.ndarray:
        """The scales in the mean over batches, by their sizes, of Keras's loss [batches, outputs]."""
        factors = self.factors * (self.sizes / self.sizes.sum())[:, None]
        return np.divide(factors, self.counts, out=np.zeros_like(self.counts), where=self.counts > 0)


class BatchLoss:
    """The loss of a batch, as it is differentiated and as Keras's own code computes it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.factors: list[float] = []
        self.added: list[Any] = []  # terms of add_loss and of activity regularisers
        objective = backend.objective

        def parts(w: Any, others: list, batch: tuple) -> tuple:
            x, y, *sample_weight = batch
            with objective.bind(w, others) as scope:
                outputs = objective.outputs(x)
                sums = objective.sums(x, y, outputs, *sample_weight)
            self.added.extend(scope.losses)
            self.factors[:] = [part.factor for part in sums]
            first = keras.tree.flatten(outputs)[0]
            return [(part.total, part.count) for part in sums], keras.ops.sum(first, -1), keras.ops.min(first)

        def keras_loss(batch: tuple) -> Any:
            x, y, *sample_weight = batch
            with keras.StatelessScope(collect_losses=True):
                return objective.keras_loss(x, y, objective.outputs(x), *sample_weight)

        self._parts = parts
        self._keras_loss = keras_loss

    def parts(self, batch: tuple, w: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the total [outputs] and the count [outputs] of a batch on the device, at the weights or at w."""
        backend = self._backend
        pairs, self.rows, self.least = backend.evaluate(
            self._parts, backend.values[0] if w is None else w, backend.values[1], batch
        )
        totals, counts = np.array([[float(number) for number in pair] for pair in pairs]).T
        return totals, counts

    def keras_loss(self, batch: tuple) -> float:
        """Returns Keras's loss of a batch on the device, in its own types."""
        try:
            return float(self._backend.evaluate(self._keras_loss, batch))
        except Exception as error:  # whatever Keras or a user's loss says of shapes
            shapes = ", ".join(str(tuple(array.shape)) for array in keras.tree.flatten(batch[1:]))
            raise ValueError(
                f"Keras's own code does not take labels and sample weights of shapes {shapes}: {first_reason(error)}"
            ) from error

    def halves(self, batch: tuple, w: Any = None) -> np.ndarray | None:
        """Returns the sum of the totals [outputs] of both halves of a batch of NumPy; None if it has none."""
        size = num_examples(batch)
        half = size // 2
        keeps_size = self._backend.compiles_by_shape or self._backend.fixed_size is not None
        if size % 2 == 0 and keeps_size:  # each half twice
            halves = [np.tile(np.arange(start, start + half), 2) for start in (0, half)]
            share = 0.5
        else:
            halves = [np.arange(half), np.arange(half, size)]
            share = 1.0
        if size == 1 or (self._backend.fixed_size and size % 2):
            return None
        return share * sum(self.parts(self._backend.on_device(rows(batch, chosen)), w)[0] for chosen in halves)


def compare_losses(backend: Backend, loss: BatchLoss, is_default: bool) -> tuple[Losses, bool]:
    """Compares the loss of each batch with that of Keras's own code, and with the losses of its halves.

    Returns the losses, and whether the loss of an example depends on the others of its batch.
    """
    is_coupled = backend.objective.training
    rows_of_losses = []
    start = 0
    for batch in backend.examples.batches:
        stop = start + num_examples(batch)
        device = backend.on_device(batch)
        totals, counts = loss.parts(device)
        if not rows_of_losses:
            _check_first(backend, loss, is_default)
        if not np.isfinite(totals[counts > 0]).all():
            raise UserError(
                f"the loss of examples {start}–{stop - 1} is NaN or infinite at these weights, so that there is no "
                "Hessian"
            )
        factors = np.array(loss.factors)
        if counts.all():  # else Keras divides by 0
            _compare_with_keras(float(np.sum(factors * totals / counts)), loss.keras_loss(device), backend)
        if not is_coupled:
            is_coupled = not _is_additive(backend, totals, counts, loss.halves(batch))
            require_uncoupled(backend, is_coupled, stop - start)
        rows_of_losses.append((totals, counts, stop - start))
        start = stop
    totals, counts, sizes = (np.array(column, float) for column in zip(*rows_of_losses))
    return Losses(totals, counts, factors, sizes), is_coupled


def _check_first(backend: Backend, loss: BatchLoss, is_default: bool) -> None:
    """Raises ValueError for terms that layers add to the loss, and for probabilities in place of logits."""
    if loss.added and backend.objective.loss is not COMPUTE_LOSS:
        layers = backend.objective.model._flatten_layers()
        penalised = [layer.name for layer in layers if getattr(layer, "activity_regularizer", None)]
        subject = f"the activity_regularizer of layer {penalised[0]}" if penalised else "add_loss in a layer"
        raise ValueError(f"{subject} adds to the loss a term that is not a mean over examples and has no Hessian here")
    if is_default and float(loss.least) >= 0 and np.allclose(convert_to_numpy(loss.rows), 1, atol=1e-3):
        raise UserError(
            "the model must give logits, but its outputs are probabilities, which sum to 1; take the layer before the "
            "softmax, compile the model, or pass loss=…"
        )


def _compare_with_keras(value: float, expected: float, backend: Backend) -> None:
    size = max(abs(value), abs(expected), SMALL_LOSS)
    if not abs(value - expected) <= _tolerance(backend) * size:  # nor if Keras's is NaN
        raise ValueError(
            f"the loss is {value:.6g} here and {expected:.6g} by Keras's own code: the model draws random numbers anew "
            "at each call (take a keras.random.SeedGenerator), the loss has its own __call__, or a layer computes "
            "something else in another type"
        )


def require_uncoupled(backend: Backend, is_coupled: bool, size: int) -> None:
    """Raises ValueError if the examples of a batch of some size are coupled, unless one batch holds all."""
    if is_coupled and len(backend.examples.batches) != 1 and backend.fixed_size is None:
        raise UserError(
            f"the loss of a batch of {size} examples is not the sum over its halves: a layer or the loss couples the "
            "examples of a batch, so that products would depend on batch_size; with "
            f"batch_size={len(backend.examples)} one batch holds all examples"
        )


def is_additive_at(sample: Backend, loss: BatchLoss, point: np.ndarray) -> bool:
    """Returns whether the loss of the first batch at a point is that of its halves; True if it is not finite."""
    batch = sample.examples.batches[0]
    w = sample.place(point)
    totals, counts = loss.parts(sample.on_device(batch), w)
    return not np.isfinite(totals).all() or _is_additive(sample, totals, counts, loss.halves(batch, w))


def _is_additive(backend: Backend, totals: np.ndarray, counts: np.ndarray, halves: np.ndarray | None) -> bool:
    """Returns whether totals [outputs] of a batch are those of its halves; True for one example."""
    if halves is None:
        return not backend.fixed_size
    size = np.maximum(np.maximum(abs(totals), abs(halves)), SMALL_LOSS * counts)
    return bool((abs(totals - halves) <= ADDITIVE[backend.precision] * size).all())


def losses_over(backend: Backend, loss: BatchLoss, examples: Examples) -> Losses:
    """Returns the losses over other examples."""
    parts = [loss.parts(backend.on_device(batch)) for batch in examples.batches]
    totals, counts = (np.array(column) for column in zip(*parts))
    return Losses(totals, counts, np.array(loss.factors), np.array([num_examples(b) for b in examples.batches], float))


def _tolerance(backend: Backend) -> float:
    """Returns the largest relative difference between a model in its own types and in the objective's."""
    objective = backend.objective
    if objective.draws and weights_dtype(objective.model) != objective.dtype:  # then it draws other random numbers
        return math.inf
    is_half = any(layer.compute_dtype in HALF for layer in objective.model._flatten_layers())
    return SAME_IN_HALF if is_half else SAME["float32"]


def compare_gradients(backend: Backend, typical: np.ndarray) -> np.ndarray:
    """Compares the gradient of each batch with that of Keras's own loss; returns the sum.

    In half precision all variables are compared at once. `typical` are the norms of the gradient over few examples.
    """
    variables = backend.objective.model.trainable_variables
    tolerance = _tolerance(backend)
    total: Any = 0
    for batch, scales, share in zip(backend.examples.batches, backend.scales, _shares(backend.examples)):
        device = backend.on_device(batch)
        with backend.context():
            gradient = convert_to_numpy(backend.gradient(*backend.values, device, backend.place(scales)))
        if not np.isfinite(gradient).all():
            raise UserError("the gradient of the loss is NaN or infinite at these weights, so that there is no Hessian")
        total = total + gradient
        keras_gradient = backend.keras_gradient(device, share) if scales.all() and tolerance < math.inf else None
        if keras_gradient is not None:
            _compare_gradient(gradient, keras_gradient, variables, tolerance, typical * share)
    return total


def _shares(examples: Examples) -> np.ndarray:
    return np.array([num_examples(batch) / len(examples) for batch in examples.batches])


def _compare_gradient(
    gradient: np.ndarray, keras_gradient: list[np.ndarray], variables: list, tolerance: float, typical: np.ndarray
) -> None:
    """Raises ValueError if a gradient [dim] is not that in the model's own variables."""
    pairs = [*zip(parts_of(gradient, variables), keras_gradient)]
    errors = np.array([np.linalg.norm(part - expected) for part, expected in pairs])
    sizes = np.array([max(np.linalg.norm(part), np.linalg.norm(expected)) for part, expected in pairs])
    sizes = np.maximum(sizes, CANCELLED * typical)
    if tolerance == SAME_IN_HALF:
        errors, sizes = np.array([np.linalg.norm(errors)]), np.array([np.linalg.norm(sizes)])
    is_off = errors > tolerance * np.maximum(sizes, tolerance * sizes.max())
    if is_off.any():
        name = "the weights" if len(errors) == 1 else variables[int(np.argmax(is_off))].path
        raise ValueError(
            f"the gradient in {name} is another where Keras takes it: a layer passes no gradient to a tensor in place "
            "of that weight, as with tf.recompute_grad (use keras.RematScope), or reads it as a tf.Variable"
        )


def check_loss(backend: Backend, point: np.ndarray) -> None:
    """Compares first and second derivative of the loss in the outputs with differences, over all examples.

    Each output is moved relative to its size, and each example is compared by itself.
    """
    is_precise = backend.dtype == "float64"
    steps = LOSS_STEPS[backend.dtype]
    moves = [sign * step for step in steps for sign in (1, -1, 0.5, -0.5)]

    def derivatives(w: Any, others: list, batch: tuple, scales: Any) -> tuple:
        outputs, like = backend.outputs(w, others, batch)
        loss = backend.loss_of_outputs(w, others, batch, scales, like)
        sizes = [_output_sizes(z) for z in outputs]
        gradient = backend.grad(loss)(outputs)
        along = [_direction(g * size) * size for g, size in zip(gradient, sizes)]
        moved = [[z + move * v for z, v in zip(outputs, along)] for move in moves]
        slopes = [keras.ops.reshape(g * v, (len(g), -1)) for g, v in zip(gradient, along)]
        product = backend.second_derivative(loss, outputs, along)
        vectors = [gradient, product, *(backend.grad(loss)(outputs_moved) for outputs_moved in moved)]
        scaled = [
            [keras.ops.reshape(part * size, (len(part), -1)) for part, size in zip(vector, sizes)] for vector in vectors
        ]
        values = keras.ops.stack([loss(outputs), *(loss(outputs_moved) for outputs_moved in moved)])
        return values, keras.ops.concatenate(slopes, 1), [keras.ops.concatenate(parts, 1) for parts in scaled]

    w = backend.weights(point)
    for batch, scales in zip(backend.examples.batches, backend.scales):
        device = backend.on_device(batch)
        found = backend.evaluate(derivatives, w, backend.values[1], device, backend.place(scales))
        values, slopes, *vectors = (convert_to_numpy(array).astype(float) for array in (*found[:2], *found[2]))
        losses = dict(zip([0.0, *moves], values))
        floor = SLOPE[backend.dtype] * float(abs(slopes).sum())
        at_step = losses.__getitem__
        slope = float(slopes.sum())
        error = settled_slope_error(at_step, slope, floor, steps, SLOPE[backend.dtype], backend.dtype)
        if error:
            raise UserError(
                f"the gradient of the loss in the outputs is not its derivative in {keras.backend.backend()}, as of "
                "TensorFlow's cross-entropy for label rows that do not sum to 1, or where the loss stops a gradient "
                f"(they differ by {error:.1g} of their size)"
            )
        _check_loss_products(vectors[0], vectors[1], dict(zip(moves, vectors[2:])), steps, 1e-6 if is_precise else 1e-2)


def _direction(gradient: Any) -> Any:
    """Returns a direction like a gradient, random and along it, so that an error of few examples does not cancel."""
    typical = keras.ops.sqrt(keras.ops.mean(keras.ops.square(gradient)))
    typical = keras.ops.where(typical > 0, typical, keras.ops.ones_like(typical))
    noise = keras.ops.cast(keras.random.normal(gradient.shape, seed=0), gradient.dtype)
    return noise + keras.ops.clip(gradient / typical, -3, 3)


def _output_sizes(z: Any) -> Any:
    """Returns the size of each number of an output; for zeros that of all, or 1."""
    typical = keras.ops.sqrt(keras.ops.mean(keras.ops.square(z)))
    typical = keras.ops.where(typical > 0, typical, keras.ops.ones_like(typical))
    return keras.ops.where(z == 0, typical, keras.ops.abs(z))


def _check_loss_products(
    gradient: np.ndarray, product: np.ndarray, gradients: dict[float, np.ndarray], steps: tuple, rounding: float
) -> None:
    """Raises ValueError if second derivatives of the loss [m, outputs] along a line are not differences of gradients"""
    floor = rounding * np.linalg.norm(gradient, axis=1)
    is_right = np.zeros(len(product), bool)
    is_settled = np.ones(len(product), bool)
    before = None
    for step in steps:
        wide = (gradients[step] - gradients[-step]) / (2 * step)
        narrow = (gradients[step / 2] - gradients[-step / 2]) / step
        size = np.maximum(np.linalg.norm(narrow, axis=1), np.linalg.norm(product, axis=1))
        change = np.linalg.norm(wide - narrow, axis=1)
        error = np.linalg.norm(product - narrow, axis=1)
        is_right |= error <= 1e-4 * size + 10 * change + floor
        is_settled &= change <= 1e-3 * size
        if before is not None:  # rounding makes two steps agree by chance, but not four
            is_settled &= np.linalg.norm(narrow - before, axis=1) <= 1e-3 * size
        before = narrow
    if (is_settled & ~is_right).any():
        raise UserError(
            "the second derivative of the loss in the outputs is not the difference of its gradients: the loss has an "
            f"operation whose second derivative {keras.backend.backend()} does not know, or stops a gradient"
        )
