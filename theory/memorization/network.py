"""The network of Hardt & Ma §3 that `construction.memorize` builds: forward pass, gap, rounding, Keras.

    paper                                           code
    h_0 = A_0 x                                     projection [k, d]
    h_j = h_{j−1} + B_j ReLU(A_j h_{j−1} + b_j)     V[j] ReLU(U[j] h + s[j]), U, V [ℓ, k, k], s [ℓ, k]
    ŷ = B_{ℓ+1} ReLU(A_{ℓ+1} h_ℓ + b_{ℓ+1})         head_V, head_U, head_s: [r, r], [r, k], [r]
    k, ℓ                                            width, num_layers

The last block has no shortcut: ŷ = h + T(h) at the end of the paper's proof is a misprint,
and so are the shapes k × r and ŷ ∈ R^k of its §3.

The forward pass costs n·(d + 2kℓ)·k multiplications in the paper's formula. Here panels of
points that fit in the cache go through all blocks, one panel per core, and V is applied only
to the points that activate a unit of a block. On the sample each point does so in one block, which halves
the work; the result is the same for every input.
"""

import dataclasses
import math
import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from theory.memorization.blocks import apply_block
from theory.parallel import in_parallel

if TYPE_CHECKING:
    import keras

_UNIT_ROUNDOFF = 2.0**-24  # of float32
_DEVIATIONS = 5  # how many standard deviations the worst error may be
_PROJECTION_BYTES = 2**22  # of inputs that are projected at a time, per core
_PANEL_BYTES = 2**18  # of hidden vectors that go through all blocks at a time, per core; products take as much again


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MemorizingNetwork:
    """A residual network with one ReLU layer per block (Hardt & Ma §3).

    Attributes:
      projection: [k, d]. A_0.
      U, V: [ℓ, k, k]. A_j and B_j of the paper.
      s: [ℓ, k]. The biases b_j.
      head_U, head_V, head_s: [r, k], [r, r], [r]. The last block.
      smallest_gap: float. min_i (|z_i|² − m_i)/|z_i|²: see `blocks.relative_gap`.
      float32_error: float. An estimated upper limit of |score − one-hot| on the sample in float32: see
        `rounding_error`. Below ½ the largest score is the right one.
    """

    projection: np.ndarray
    U: np.ndarray
    V: np.ndarray
    s: np.ndarray
    head_U: np.ndarray
    head_V: np.ndarray
    head_s: np.ndarray
    smallest_gap: float
    float32_error: float

    def __repr__(self) -> str:
        inputs, classes = self.projection.shape[1], self.head_s.shape[0]
        return (
            f"MemorizingNetwork({inputs} inputs -> {classes} classes, width={self.width}, "
            f"num_layers={self.num_layers}, num_parameters={self.num_parameters})"
        )

    @property
    def width(self) -> int:
        """Returns k, the length of the hidden vectors."""
        return self.projection.shape[0]

    @property
    def num_layers(self) -> int:
        """Returns ℓ, the number of residual blocks."""
        return self.U.shape[0]

    @property
    def num_parameters(self) -> int:
        """Returns entries of all the arrays; by `construction.parameter_count`, kd + ⌈n/k⌉(2k² + k) + rk + r² + r."""
        return sum(weights.size for weights in self._weights(self.U.dtype))

    @property
    def fits_float32(self) -> bool:
        """Returns whether the sample comes out right in float32: float32_error < ½."""
        return self.float32_error < 0.5

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Returns scores of each label, one-hot on the sample.

        Args:
          x: [n, d]. Computed in float32 if that is its type, or it has up to 16 bits, such as
            uint8 images; otherwise, and if the network does not fit float32, in float64.

        Returns:
          [n, r] in the type of the computation.
        """
        x = np.asarray(x)
        return self.forward(x, working_dtype(x) if self.fits_float32 else np.float64)

    def forward(self, x: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        """Returns the scores computed in a given type, even in float32 for a network that does not fit it."""
        x = np.asarray(x)
        if np.iscomplexobj(x):
            raise ValueError(f"x must be real, got {x.dtype}")
        if x.ndim != 2 or x.shape[1] != self.projection.shape[1]:
            raise ValueError(f"x must be [n, {self.projection.shape[1]}], got shape {x.shape}")
        weights = self._weights(dtype)
        hidden = project(x, weights[0])
        scores = np.empty((len(x), len(self.head_s)), dtype)

        def run_panel(panel: slice) -> None:
            _through_blocks(hidden[panel], *weights[1:4])
            scores[panel] = apply_block(*weights[4:], hidden[panel])

        in_parallel(run_panel, _panels(len(x), _PANEL_BYTES // (self.width * hidden.itemsize)))
        return scores

    def hidden(self, x: np.ndarray) -> np.ndarray:
        """Returns the hidden vectors h_0 = A_0 x, h_1, …, h_ℓ of every row of x [n, d], in float64: [ℓ + 1, n, k]."""
        projection, U, V, s, *_ = self._weights(np.float64)
        states = [project(np.asarray(x, np.float64), projection)]
        for block in zip(U, V, s):
            states.append(states[-1] + apply_block(*block, states[-1]))
        return np.stack(states)

    def to_keras(self) -> "keras.Model":
        """Returns the same network as a keras.Model, float32 if that fits: see `keras_network`.

        A float64 model must be called, model(x), or exported: keras.Model.predict rounds NumPy inputs to float32.
        """
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before Keras imports TensorFlow, or that prints its build
        from theory.memorization.keras_network import keras_model

        dtype = "float32" if self.fits_float32 else "float64"
        return keras_model(self._weights(dtype), dtype)

    def _weights(self, dtype: DTypeLike) -> list[np.ndarray]:
        """Returns A_0, U, V, s, and U, V, s of the head."""
        fields = (self.projection, self.U, self.V, self.s, self.head_U, self.head_V, self.head_s)
        return [weights.astype(dtype, copy=False) for weights in fields]


def working_dtype(x: np.ndarray) -> np.dtype:
    """Returns float32 for float32 and for types of up to 16 bits, such as uint8 images; else float64."""
    return np.promote_types(x.dtype, np.float32)


def project(x: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """Returns A_0 x for every row of x: [n, k] in the type of the projection, a few rows at a time."""
    hidden = np.empty((len(x), len(projection)), projection.dtype)

    def run_panel(panel: slice) -> None:
        np.matmul(x[panel].astype(projection.dtype, copy=False), projection.T, out=hidden[panel])

    in_parallel(run_panel, _panels(len(x), _PROJECTION_BYTES // (x.shape[1] * projection.itemsize)))
    return hidden


def projected_term_size(x: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """Returns (Σ_al (A_0)_al² x_l²)^½ for every row of x, the size of the terms that A_0 x adds up: float64 [n]."""
    weights = np.square(projection, dtype=np.float64).sum(axis=0)
    size = np.empty(len(x))

    def run_panel(panel: slice) -> None:
        with np.errstate(over="ignore"):
            size[panel] = np.square(x[panel], dtype=projection.dtype) @ weights.astype(projection.dtype)

    in_parallel(run_panel, _panels(len(x), _PROJECTION_BYTES // (x.shape[1] * projection.itemsize)))
    return np.sqrt(size)


def _panels(num_rows: int, rows_per_panel: int) -> list[slice]:
    step = max(64, rows_per_panel)
    return [slice(start, start + step) for start in range(0, num_rows, step)]


def _through_blocks(h: np.ndarray, U: np.ndarray, V: np.ndarray, s: np.ndarray) -> None:
    """Sets h ← h + V_j ReLU(U_j h + s_j) for every row of h [m, k] and j = 1, …, ℓ, in place."""
    products = np.empty((h.shape[1], len(h)), h.dtype)
    awake = np.empty(products.shape, bool)
    for U_j, V_j, s_j in zip(U, V, s[:, :, None]):
        np.matmul(U_j, h.T, out=products)
        np.greater(products, -s_j, out=awake)
        # On the sample a point is active in one block only: V is applied to those that are active here.
        points = np.flatnonzero(awake.any(axis=0))
        if len(points):
            h[points] += np.maximum(products[:, points] + s_j, 0).T @ V_j.T


def rounding_error(weights: tuple[np.ndarray, ...], term_size: np.ndarray) -> float:
    """Returns an upper estimate of |ŷ − e_y| over the sample in float32. Not in the paper.

    To first order, with independent roundings of standard deviation u = 2⁻²⁴ times what is rounded, and
    1 + √m/3 times that for a sum of m terms: z is off by δ = (1 + √d/3)·u·(Σ_al (A_0)_al² x_l²)^½; an active
    unit by |U_i|·(u|z_j| + δ_j/√k); h_j by the root of the sum of squares of |V_i| times that, over the
    active units. Each point is moved in only one block, so errors of blocks do not add up, as long
    as the moved point is not so far off that it activates a later unit. The head repeats the sum at the
    surrogates. Five standard deviations are for the worst point.

    Args:
      weights: A_0, U, V, s, and U, V, s of the head. The sample's z are the rows of U.
      term_size: [ℓ, k]. `projected_term_size` of the point to which each row of U belongs.

    Returns:
      float; inf for a half and more, since a first-order estimate then means nothing, if moved points may
      activate units, or if A_0 does not fit the range of float32.
    """
    projection, U, V, s, *head = weights
    with np.errstate(over="ignore", invalid="ignore"):
        delta = (1 + projection.shape[1] ** 0.5 / 3) * _UNIT_ROUNDOFF * term_size
        error = np.hypot(delta, _block_error(U, V, s, delta / len(projection) ** 0.5)).max()
        moved_points_sleep = _DEVIATIONS * error < _distance_to_waking(U, s, head[0])
        head_U, head_V, head_s = (array[None] for array in head)
        output = _block_error(head_U, head_V, head_s, np.full(head_s.shape, error)).max()
    estimate = _DEVIATIONS * float(output)
    is_sound = moved_points_sleep and estimate < 0.5 and in_float32_range(np.abs(projection).max())
    return estimate if is_sound else math.inf


def in_float32_range(largest: float) -> bool:
    """Returns whether numbers of this size, and those 10⁷ times smaller, keep their precision in float32."""
    return bool(1e-30 < largest < 1e30)


def _distance_to_waking(U: np.ndarray, s: np.ndarray, surrogates: np.ndarray) -> float:
    """Returns how far the surrogates are from the nearest point that activates a unit."""
    norms = np.linalg.norm(U, axis=-1)
    used = norms > 0
    nearest = (U[used] @ surrogates.T).max(axis=-1) if used.any() else 0.0
    return float(np.min((-s[used] - nearest) / norms[used], initial=np.inf))


def _block_error(U: np.ndarray, V: np.ndarray, s: np.ndarray, input_error: np.ndarray) -> np.ndarray:
    """Returns [ℓ, k]: the error of h + T(h) at the points that are the rows of U, as a standard deviation.

    input_error [ℓ, k] is that of a point's component along a unit's row.
    """
    norms, columns = np.linalg.norm(U, axis=-1), np.linalg.norm(V, axis=-2)
    activations = U @ U.swapaxes(-1, -2) + s[..., None]  # of unit i at point j
    unit_error = norms[..., None] * (_UNIT_ROUNDOFF * norms + input_error)[..., None, :]
    is_awake = activations > -_DEVIATIONS * unit_error  # or may be, by rounding
    unit_error = np.hypot(unit_error, _UNIT_ROUNDOFF * activations) * is_awake
    moved = np.square(columns)[..., None, :] @ np.square(unit_error)
    return np.sqrt(moved[..., 0, :] + np.square(_UNIT_ROUNDOFF * norms))
