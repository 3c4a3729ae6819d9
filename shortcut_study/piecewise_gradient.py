"""Loss and gradient of many networks with linear and ReLU activations over the same data, compiled by Numba.

    paper                                   code
    x^μ, y^μ                                columns of x, y [blocks, d, COLUMNS]
    σ_pre, σ_mid, σ_post                    whether each of pre, mid, post is a ReLU
    ∂L/∂W^{r,l}                             gradient[unit, layer]

Matrices of width 10 are too small for a matrix library: TensorFlow does 9 GFLOP/s with them. With
the width known to the compiler the loop over a row of the matrix unrolls and that over the samples
becomes vector instructions; two rows at a time share what they load. The width is known
because it is the length of a tuple, `axis`, which is part of its type. Each sum runs in one order,
whatever the number of runs or of cores, so a run in a batch equals the single run bit by bit.
"""

import concurrent.futures
import functools
import itertools
from collections.abc import Callable

import llvmlite.binding
import numba
import numpy as np

from shortcut_study.network import ShortcutNetwork
from theory.parallel import available_cores

_features = llvmlite.binding.get_host_cpu_features()
if _features.get("avx512f") and numba.config.CPU_FEATURES is None:
    # LLVM prefers vectors of half the length that these CPUs have, which costs a quarter of the speed here.
    # Numba reads this when it compiles, and its files on disk are kept by it: so at import, before anything else.
    numba.config.CPU_NAME = numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    numba.config.CPU_FEATURES = f"{_features.flatten()},-prefer-256-bit"

COLUMNS = 128  # samples at a time
_TASKS = 8  # pieces of the data, summed apart, that cores share out among themselves
_FAST = {"contract", "reassoc", "nsz"}  # NaN and infinity keep their meaning
# Inlined, or code compiled now and code read from disk would round differently.
_inlined = numba.njit(fastmath=_FAST, inline="always")


def piecewise_objective(network: ShortcutNetwork, x: np.ndarray, y: np.ndarray) -> Callable:
    """Returns a function of weights [B, *network.shape] that gives the losses [B] and their gradients, as weights.

    6·m·d²·depth operations a run. At a kink ReLU's slope is taken as 0. The first call on a machine
    compiles for the width, some 10 seconds; the result is kept on disk.
    """
    axis = (0,) * network.width
    relus = tuple(activation == "relu" for activation in network.activations)
    x_blocks, y_blocks = _blocks(x), _blocks(y)
    bounds = [task * len(x_blocks) // _TASKS for task in range(_TASKS + 1)]

    def objective(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = np.ascontiguousarray(weights)

        def piece(run_and_task: tuple[int, int]) -> tuple[float, np.ndarray]:
            run, task = run_and_task
            some = slice(bounds[task], bounds[task + 1])
            return _sums(axis, weights[run], x_blocks[some], y_blocks[some], float(network.shortcut), relus)

        pieces = list(_cores().map(piece, itertools.product(range(len(weights)), range(_TASKS))))
        losses = np.array([loss for loss, _ in pieces]).reshape(-1, _TASKS)
        gradients = np.array([gradient for _, gradient in pieces]).reshape(-1, _TASKS, *network.shape)
        return losses.sum(1) / (2 * len(x)), gradients.sum(1) / len(x)

    return objective


@functools.cache
def _cores() -> concurrent.futures.ThreadPoolExecutor:
    """One thread per core; Numba's own threads, with a cache, round differently when they read the cache."""
    return concurrent.futures.ThreadPoolExecutor(available_cores())


def _blocks(rows: np.ndarray) -> np.ndarray:
    """Samples as columns [blocks, d, COLUMNS]; zeros fill the last block: the network maps 0 to 0."""
    count, width = rows.shape
    filled = np.zeros((-(-count // COLUMNS) * COLUMNS, width))
    filled[:count] = rows
    return np.ascontiguousarray(filled.reshape(-1, COLUMNS, width).swapaxes(1, 2))


# nogil: the pieces run on Python's threads. cache: compiling takes 15 seconds for each width.
@numba.njit(fastmath=_FAST, cache=True, nogil=True)
def _sums(axis: tuple, weights: np.ndarray, x: np.ndarray, y: np.ndarray, shortcut: float, relus: tuple) -> tuple:
    """Σ‖y − ŷ‖² over blocks of samples, and half its gradient [R, n, d, d]; shortcut is 0 or 1."""
    d = len(axis)
    num_units, shortcut_depth = weights.shape[:2]
    loss = 0.0
    gradient = np.zeros((num_units, shortcut_depth, d, d))
    hidden = np.empty((num_units + 1, d, COLUMNS))
    inputs = np.empty((num_units, shortcut_depth, d, COLUMNS))
    outputs = np.empty((num_units, d, COLUMNS))
    g, back = np.empty((d, COLUMNS)), np.empty((d, COLUMNS))
    for block in range(len(x)):
        for i in range(d):
            for s in range(COLUMNS):
                hidden[0, i, s] = x[block, i, s]
        _forward(axis, weights, shortcut, relus, hidden, inputs, outputs)
        for i in range(d):
            for s in range(COLUMNS):
                hidden[num_units, i, s] -= y[block, i, s]
                loss += hidden[num_units, i, s] ** 2
        _backward(axis, weights, shortcut, relus, inputs, outputs, hidden, gradient, g, back)
    return loss, gradient


# No slices of arrays below: the reference counts of views would halve the speed.


@_inlined
def _forward(
    axis: tuple,
    weights: np.ndarray,
    shortcut: float,
    relus: tuple,
    hidden: np.ndarray,
    inputs: np.ndarray,
    outputs: np.ndarray,
) -> None:
    """Fills hidden [R + 1, d, s] from hidden[0], the inputs of the matrices [R, n, d, s], the outputs of the units."""
    pre, mid, post = relus
    last = weights.shape[1] - 1
    for r in range(len(weights)):
        for i in range(len(axis)):
            for s in range(COLUMNS):
                h = hidden[r, i, s]
                inputs[r, 0, i, s] = 0.0 if pre and h < 0.0 else h  # a NaN stays one
        for layer in range(last + 1):
            for i in range(0, len(axis), 2):
                k = min(i + 1, len(axis) - 1)  # of an odd width the last row is computed twice
                for s in range(COLUMNS):
                    first, second = 0.0, 0.0
                    for j in range(len(axis)):
                        first += weights[r, layer, i, j] * inputs[r, layer, j, s]
                        second += weights[r, layer, k, j] * inputs[r, layer, j, s]
                    if layer < last:
                        inputs[r, layer + 1, i, s] = 0.0 if mid and first < 0.0 else first
                        inputs[r, layer + 1, k, s] = 0.0 if mid and second < 0.0 else second
                    else:
                        outputs[r, i, s] = 0.0 if post and first < 0.0 else first
                        outputs[r, k, s] = 0.0 if post and second < 0.0 else second
        for i in range(len(axis)):
            for s in range(COLUMNS):
                hidden[r + 1, i, s] = shortcut * hidden[r, i, s] + outputs[r, i, s]


@_inlined
def _backward(
    axis: tuple,
    weights: np.ndarray,
    shortcut: float,
    relus: tuple,
    inputs: np.ndarray,
    outputs: np.ndarray,
    hidden: np.ndarray,
    gradient: np.ndarray,
    g: np.ndarray,
    back: np.ndarray,
) -> None:
    """Adds to gradient [R, n, d, d]; the error comes in hidden[R], which is changed; g, back [d, s] are memory."""
    pre, mid, post = relus
    end = len(weights)
    for r in range(end - 1, -1, -1):
        for i in range(len(axis)):
            for s in range(COLUMNS):
                g[i, s] = 0.0 if post and outputs[r, i, s] <= 0.0 else hidden[end, i, s]
        for layer in range(weights.shape[1] - 1, -1, -1):
            _add_products(axis, g, inputs, gradient, r, layer)
            relu = mid if layer else pre
            for j in range(0, len(axis), 2):
                k = min(j + 1, len(axis) - 1)
                for s in range(COLUMNS):
                    first, second = 0.0, 0.0
                    for i in range(len(axis)):
                        first += weights[r, layer, i, j] * g[i, s]
                        second += weights[r, layer, i, k] * g[i, s]
                    back[j, s] = 0.0 if relu and inputs[r, layer, j, s] <= 0.0 else first
                    back[k, s] = 0.0 if relu and inputs[r, layer, k, s] <= 0.0 else second
            for i in range(len(axis)):
                for s in range(COLUMNS):
                    g[i, s] = back[i, s]
        for i in range(len(axis)):
            for s in range(COLUMNS):
                hidden[end, i, s] = shortcut * hidden[end, i, s] + g[i, s]


@_inlined
def _add_products(axis: tuple, g: np.ndarray, inputs: np.ndarray, gradient: np.ndarray, r: int, layer: int) -> None:
    """Adds Σ_s g[i, s] · inputs[r, layer, j, s] to gradient[r, layer, i, j], 2 rows and 5 columns at a time.

    Ten sums that do not wait for each other keep the multipliers busy, and fit the registers. If the width is no
    multiple of the tile, the last row or column fills the missing places, and its sums are not added again.
    """
    last = len(axis) - 1
    for i in range(0, len(axis), 2):
        k = min(i + 1, last)
        for j in range(0, len(axis), 5):
            j1, j2, j3, j4 = min(j + 1, last), min(j + 2, last), min(j + 3, last), min(j + 4, last)
            a0, a1, a2, a3, a4 = 0.0, 0.0, 0.0, 0.0, 0.0
            b0, b1, b2, b3, b4 = 0.0, 0.0, 0.0, 0.0, 0.0
            for s in range(COLUMNS):
                u, v = g[i, s], g[k, s]
                a0 += u * inputs[r, layer, j, s]
                a1 += u * inputs[r, layer, j1, s]
                a2 += u * inputs[r, layer, j2, s]
                a3 += u * inputs[r, layer, j3, s]
                a4 += u * inputs[r, layer, j4, s]
                b0 += v * inputs[r, layer, j, s]
                b1 += v * inputs[r, layer, j1, s]
                b2 += v * inputs[r, layer, j2, s]
                b3 += v * inputs[r, layer, j3, s]
                b4 += v * inputs[r, layer, j4, s]
            row, below = (a0, a1, a2, a3, a4), (b0, b1, b2, b3, b4)
            for n in range(min(5, len(axis) - j)):
                gradient[r, layer, i, j + n] += row[n]
                if k > i:
                    gradient[r, layer, k, j + n] += below[n]
