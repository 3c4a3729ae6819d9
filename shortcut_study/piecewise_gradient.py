"""Loss and gradient of many networks with linear and ReLU activations over the same data, compiled by Numba.

    paper                                   code
    x^μ, y^μ                                columns of x, y [blocks, d, COLUMNS]
    σ_pre, σ_mid, σ_post                    whether each of pre, mid, post is a ReLU
    ∂L/∂W^{r,l}                             gradient[unit, layer]

Matrices of width 10 are too small for a matrix library: TensorFlow does 9 GFLOP/s with them. With
the width known to the compiler the loop over a row of the matrix unrolls and that over the samples
becomes vector instructions; all hidden vectors of a block stay in the cache. The width is known
because it is the length of a tuple, `axis`, which is part of its type. Each sum runs in one order,
whatever the number of runs or of cores, so a run among many is the run alone bit by bit.
"""

import concurrent.futures
import functools
import itertools
import os

import numba
import numpy as np

from shortcut_study.network import ShortcutNetwork

COLUMNS = 64  # samples at a time
_TASKS = 8  # pieces of the data, summed apart, that cores share out among themselves
_FAST = {"contract", "reassoc", "nsz"}  # NaN and infinity keep their meaning
# Inlined, or what is compiled and what is read from disk would round differently.
_inlined = numba.njit(fastmath=_FAST, inline="always")


def piecewise_objective(network: ShortcutNetwork, x, y):
    """A function of weights [B, *network.shape] that returns the losses [B] and their gradients, as weights.

    6·m·d²·depth operations a run. At a kink ReLU's slope is taken as 0. The first call on a machine
    compiles for the width, some 10 seconds; the result is kept on disk.

    Args:
      network: ShortcutNetwork, with linear and ReLU activations.
      x, y: [m, d].
    """
    axis, relus = (0,) * network.width, tuple(activation == "relu" for activation in network.activations)
    x_blocks, y_blocks = _blocks(x), _blocks(y)
    bounds = [task * len(x_blocks) // _TASKS for task in range(_TASKS + 1)]

    def objective(weights):
        weights = np.ascontiguousarray(weights)

        def piece(run_and_task):
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
    """A thread a core: Numba's own, with a cache, rounds differently where it compiles and where it reads the cache."""
    return concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))


def _blocks(rows) -> np.ndarray:
    """Samples as columns [blocks, d, COLUMNS]; zeros fill the last block: the network maps 0 to 0."""
    count, width = rows.shape
    filled = np.zeros((-(-count // COLUMNS) * COLUMNS, width))
    filled[:count] = rows
    return np.ascontiguousarray(filled.reshape(-1, COLUMNS, width).swapaxes(1, 2))


@numba.njit(fastmath=_FAST, cache=True, nogil=True)
def _sums(axis, weights, x, y, shortcut, relus):
    """Σ‖y − ŷ‖² over blocks of samples, and half its gradient [R, n, d, d]; shortcut is 0 or 1."""
    d = len(axis)
    num_units, shortcut_depth = weights.shape[:2]
    loss, gradient = 0.0, np.zeros((num_units, shortcut_depth, d, d))
    hidden = np.empty((num_units + 1, d, COLUMNS))
    inputs = np.empty((num_units, shortcut_depth, d, COLUMNS))
    outputs = np.empty((num_units, d, COLUMNS))
    g, back = np.empty((d, COLUMNS)), np.empty((d, COLUMNS))
    for block in range(len(x)):
        hidden[0] = x[block]
        _forward(axis, weights, shortcut, relus, hidden, inputs, outputs)
        error = hidden[num_units]
        loss += _subtract(axis, error, y[block])
        _backward(axis, weights, shortcut, relus, inputs, outputs, error, gradient, g, back)
    return loss, gradient


@_inlined
def _forward(axis, weights, shortcut, relus, hidden, inputs, outputs):
    """Fills hidden [R + 1, d, s] from hidden[0], the inputs of the matrices [R, n, d, s], the outputs of the units."""
    pre, mid, post = relus
    last = weights.shape[1] - 1
    for r in range(len(weights)):
        for i in range(len(axis)):
            for s in range(COLUMNS):
                h = hidden[r, i, s]
                inputs[r, 0, i, s] = 0.0 if pre and h < 0.0 else h
        for layer in range(last):
            _multiply(axis, weights[r, layer], inputs[r, layer], mid, inputs[r, layer + 1])
        _multiply(axis, weights[r, last], inputs[r, last], post, outputs[r])
        for i in range(len(axis)):
            for s in range(COLUMNS):
                hidden[r + 1, i, s] = shortcut * hidden[r, i, s] + outputs[r, i, s]


@_inlined
def _backward(axis, weights, shortcut, relus, inputs, outputs, error, gradient, g, back):
    """Adds to gradient [R, n, d, d]; error [d, s] ends as that of the first input; g, back [d, s] are memory."""
    pre, mid, post = relus
    for r in range(len(weights) - 1, -1, -1):
        g[:] = error
        if post:
            _mask(axis, g, outputs[r])
        for layer in range(weights.shape[1] - 1, -1, -1):
            _add_outer_product(axis, g, inputs[r, layer], gradient[r, layer])
            _multiply_transposed(axis, weights[r, layer], g, back)
            if mid if layer else pre:
                _mask(axis, back, inputs[r, layer])
            g[:] = back
        for i in range(len(axis)):
            for s in range(COLUMNS):
                error[i, s] = shortcut * error[i, s] + g[i, s]


@_inlined
def _multiply(axis, matrix, h, relu, out):
    for i in range(len(axis)):
        for s in range(COLUMNS):
            total = 0.0
            for j in range(len(axis)):
                total += matrix[i, j] * h[j, s]
            out[i, s] = 0.0 if relu and total < 0.0 else total  # a NaN stays one


@_inlined
def _multiply_transposed(axis, matrix, h, out):
    for j in range(len(axis)):
        for s in range(COLUMNS):
            total = 0.0
            for i in range(len(axis)):
                total += matrix[i, j] * h[i, s]
            out[j, s] = total


@_inlined
def _add_outer_product(axis, g, h, out):
    for i in range(len(axis)):
        for j in range(len(axis)):
            total = 0.0
            for s in range(COLUMNS):
                total += g[i, s] * h[j, s]
            out[i, j] += total


@_inlined
def _mask(axis, g, active):
    for i in range(len(axis)):
        for s in range(COLUMNS):
            g[i, s] = g[i, s] if active[i, s] > 0.0 else 0.0


@_inlined
def _subtract(axis, prediction, target):
    """prediction − target, in place, and the sum of its squares."""
    total = 0.0
    for i in range(len(axis)):
        for s in range(COLUMNS):
            prediction[i, s] -= target[i, s]
            total += prediction[i, s] ** 2
    return total
