"""The loss on a line or a plane through the weights, beside the quadratic model that gradient and Hessian give.

    equations                                                       code
    L(w + a u + b v), w the weights, u and v directions             Landscape.losses [points], or [points, points]
    L(w) + ⟨g, d⟩ + ½⟨d, Hd⟩, d = a u + b v, g = ∇L(w)              Landscape.quadratic
    a random direction, each filter of which is as long as w's      random_direction

Source: Li, Xu, Taylor, Studer & Goldstein (2018), for filters normalised to the length of the weights' own, which make
pictures of networks comparable; vectors (biases, factors of normalisation) stay, as there. Batch normalisation is as in
the Hessian: by the averages at w, or with training=True by each batch's moments at each point.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from matplotlib.figure import Figure

from identity_matters.errors import UserError
from identity_matters.runs.product_cache import digest
from shortcut_study.curvature.lanczos import Ritz, lanczos, ritz
from shortcut_study.curvature.measurement import MeasurementContext
from shortcut_study.figures.spectrum import landscape_figure

ORDER = 60  # most steps of the iteration that finds two eigenvalues
TOLERANCE = 1e-3  # their largest relative error


class Landscape(NamedTuple):
    """Losses on a line or a plane: print them, or draw them with .plot()."""

    positions: np.ndarray  # [points], how far along each direction; 0 is the weights
    losses: np.ndarray  # [points], or [points, points], a down and b across
    quadratic: np.ndarray  # its quadratic model, at the same points
    directions: np.ndarray  # [1 or 2, dim], in the order of model.trainable_variables
    slopes: np.ndarray  # ⟨g, u⟩ [k] of the directions
    curvatures: np.ndarray  # ⟨u, Hv⟩ [k, k] of the directions
    names: tuple[str, ...]  # what the directions are, for the axes
    heading: str  # whose loss it is

    @property
    def loss_at_weights(self) -> float:
        """The loss at the weights."""
        return float(self.losses[(len(self.positions) // 2,) * self.losses.ndim])

    def __str__(self) -> str:
        least = np.unravel_index(np.argmin(self.losses), self.losses.shape)
        place = ", ".join(f"{self.positions[index]:.3g}" for index in least)
        ends = f"least {self.losses[least]:.4g} at ({place}), largest {self.losses.max():.4g}"
        lines = [self.heading, f"at the weights {self.loss_at_weights:.4g}; {ends}"]
        for k, name in enumerate(self.names):
            along = np.take(self.losses, len(self.positions) // 2, 1 - k) if self.losses.ndim == 2 else self.losses
            derivatives = f"slope {self.slopes[k]:.3g}, curvature {self.curvatures[k, k]:.4g}"
            lines.append(f"along {name}: {derivatives}; the loss at the ends {along[0]:.4g}, {along[-1]:.4g}")
        return "\n".join(lines)

    def plot(self, title: str = "") -> Figure:
        """Returns a Matplotlib figure: the curve, or contours, of the loss, dashed those of its quadratic model."""
        return landscape_figure(self.positions, self.losses, self.quadratic, self.names, title)


def losses_around(
    h: Any, measurement: MeasurementContext, directions: Any, span: float, points: int, seed: int
) -> Landscape:
    """Returns the losses around the weights of a Hessian, as `Hessian.landscape`."""
    fits = points >= 3 and points % 2 == 1 and 0 < span < np.inf
    if not fits:
        raise UserError(f"points must be odd and at least 3, span positive and finite, got {points} and {span}")
    chosen, names = _directions(h, measurement, directions, seed)
    measurement.plan("landscape", points ** len(chosen) + len(chosen) + 1, is_final=True)
    slopes = chosen @ h.gradient_at().astype(np.float64)
    product = measurement.product()
    curvatures = chosen @ np.stack([product(direction.astype(h.dtype)) for direction in chosen]).astype(np.float64).T
    positions = np.linspace(-span, span, points)
    directions_digest = digest([chosen])

    def row(start: np.ndarray) -> Callable:
        return lambda along: np.array([h.loss_at(start + b * chosen[-1]) for b in along])

    starts = {"line": 0 * chosen[0]} if len(chosen) == 1 else {f"row {a!r}": a * chosen[0] for a in positions}
    rows = [
        measurement.kept(row(start), f"{name} {directions_digest}", points)(positions) for name, start in starts.items()
    ]
    losses = rows[0] if len(chosen) == 1 else np.stack(rows)
    steps = np.stack(np.meshgrid(*[positions] * len(chosen), indexing="ij"), -1)
    loss_at_weights = losses[(points // 2,) * len(chosen)]
    quadratic = loss_at_weights + steps @ slopes + np.einsum("...i,ij,...j", steps, curvatures, steps) / 2
    heading = f"{h.loss_in_words} at {losses.size:,} points around the {h.shape[0]:,} weights"
    return Landscape(positions, losses, quadratic, chosen, slopes, curvatures, names, heading)


def _directions(
    h: Any, measurement: MeasurementContext, directions: Any, seed: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns one or two directions [k, dim], float64, and what they are."""
    if isinstance(directions, str):
        if directions not in ("random", "eigenvectors"):
            raise UserError(f'directions must be "random", "eigenvectors", or one or two vectors, got {directions!r}')
        if directions == "eigenvectors":
            return _eigenvectors(h, measurement, seed)
        random = np.random.default_rng(seed)
        chosen = np.stack([h.part(random_direction(h.model.trainable_variables, random)) for _ in range(2)])
        return chosen, ("first random direction", "second random direction")
    chosen = np.atleast_2d(np.asarray(directions, np.float64))
    dim = h.shape[0]
    fits = chosen.shape in ((1, dim), (2, dim)) and np.isfinite(chosen).all()
    if not fits:
        raise UserError(f"directions must be one or two finite vectors [{dim}], got shape {chosen.shape}")
    return chosen, ("first direction", "second direction")[: len(chosen)]


def random_direction(variables: Sequence[keras.Variable], random: np.random.Generator) -> np.ndarray:
    """Returns a Gaussian direction [dim], filters [..., i] of kernels as long as the weights' own; vectors stay."""
    parts = []
    for variable in variables:
        weights = np.asarray(keras.ops.convert_to_numpy(variable), np.float64)
        noise = random.standard_normal(weights.shape)
        axes = tuple(range(weights.ndim - 1))
        lengths = [np.sqrt(np.sum(array**2, axes)) for array in (weights, noise)] if axes else [0.0, 1.0]
        parts.append((noise * lengths[0] / lengths[1]).ravel())
    return np.concatenate(parts)


def _eigenvectors(h: Any, measurement: MeasurementContext, seed: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns eigenvectors, of length 1, of the two eigenvalues of largest size; only one for a single weight."""
    order, count = min(ORDER, h.shape[0]), min(2, h.shape[0])

    def largest(pairs: Ritz) -> np.ndarray:
        return np.argsort(-np.abs(pairs.values))[:count]

    def stop(pairs: Ritz) -> bool:
        indices = largest(pairs)
        return pairs.error_bounds[indices].max() <= TOLERANCE * np.abs(pairs.values[indices]).min()

    measurement.plan("", order)
    # From the first vector of a spectrum with this seed, whose products a folder may hold.
    done = lanczos(measurement.product(), h.shape[0], order, [seed, 0], h.dtype, stop=stop)
    measurement.plan("", len(done.diagonal), is_final=True)
    pairs = ritz(done)
    chosen = pairs.coefficients.T[largest(pairs)] @ done.basis.astype(np.float64)
    names = (f"eigenvector of {pairs.values[i]:.4g} ± {pairs.error_bounds[i]:.1g}" for i in largest(pairs))
    return chosen / np.linalg.norm(chosen, axis=1, keepdims=True), tuple(names)
