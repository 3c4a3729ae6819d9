"""Differences of losses and gradients along lines, in float64, and when they tell something.

A difference tells something if those with a step and with its half agree: not at a kink, nor if rounding drowns it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shortcut_study.curvature.objective import parts_of

AGREEMENT = 1e-4  # of the differences with a step and its half, relative to them
EPSILON = np.finfo(float).eps


def norms_by_variable(vector: np.ndarray, variables: Sequence) -> np.ndarray:
    """Returns the norm of each variable's part of a vector, 0 for those that are not finite."""
    return np.nan_to_num([np.linalg.norm(part) for part in parts_of(vector, variables)], nan=0, posinf=0)


def settled_slope_error(
    loss: Callable[[float], float], expected: float, floor: float, steps: tuple, tolerance: float
) -> float:
    """Returns the relative error of a slope, or 0 if it is right or no difference tells.

    loss: of a step along the line. An operation that computes in float32 in any case makes a staircase of small steps,
    so that larger ones, in ascending order, tell more.
    """
    for step in steps:
        above, below = loss(step), loss(-step)
        slope = (above - below) / (2 * step)
        rounding = 100 * EPSILON * abs(above) / step if len(steps) > 1 else 1e-5 * abs(above) / step
        error = abs(slope - expected) - floor - rounding
        if not error > tolerance * abs(expected):  # nor if NaN
            return 0.0
        here = loss(0.0)
        half = (loss(step / 2) - loss(-step / 2)) / step
        kink = abs(above + below - 2 * here) / step
        if abs(half - slope) <= 0.1 * error and kink <= 0.1 * error:
            return error / max(abs(slope), abs(expected))
    return 0.0


def settled_difference(function: Callable[[float], Any], steps: tuple, size: float) -> np.ndarray | None:
    """Returns the central difference of a function with the first step that agrees with its half, or None."""
    for step in steps:
        wide, narrow = ((function(at) - function(-at)) / (2 * at) for at in (step, step / 2))
        rounding = 100 * EPSILON * size / step
        if np.linalg.norm(wide - narrow) <= AGREEMENT * np.linalg.norm(narrow) + rounding:
            return narrow
    return None


def gradient_direction(point: np.ndarray, gradient: np.ndarray, variables: Sequence) -> np.ndarray:
    """Returns a direction [dim]: of each variable its gradient's and a random one, as long as its weights."""
    direction = np.random.default_rng(0).standard_normal(len(point), np.float32)
    for along, part, weights in zip(*(parts_of(vector, variables) for vector in (direction, gradient, point))):
        along /= np.linalg.norm(along)
        if size := np.linalg.norm(part):
            along += (part / size).astype(np.float32)
        along *= _size(weights) * math.sqrt(along.size)
    return direction


def _size(weights: np.ndarray) -> float:
    """The root mean square of a variable's weights, or 0.1 for zeros."""
    return float(np.sqrt(np.mean(np.square(weights, dtype=float)))) or 0.1


def moved(point: np.ndarray, step: float, direction: np.ndarray, dtype: str) -> np.ndarray:
    """Returns a point, a step along a direction away from another one, in a type."""
    result = np.multiply(direction, step, dtype=dtype)
    result += point
    return result


def noise_like(point: np.ndarray, factor: float, variables: Sequence) -> np.ndarray:
    """Returns random numbers [dim] in float32, as large as the weights of each variable times a factor."""
    noise = np.random.default_rng(1).standard_normal(len(point), np.float32)
    for part, weights in zip(parts_of(noise, variables), parts_of(point, variables)):
        part *= factor * _size(weights)
    return noise


class Sketch:
    """Inner products of the part of each variable with random signs: norms of vectors that are not kept."""

    NUM = 8

    def __init__(self, variables: Sequence) -> None:
        self._variables = variables
        self._bits = np.frombuffer(np.random.default_rng(2).bytes(sum(math.prod(v.shape) for v in variables)), np.uint8)

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """Returns the sketch [variables, 8]; its root mean square in a row is about the norm of that part."""
        parts = zip(parts_of(vector, self._variables), parts_of(self._bits, self._variables))
        rows_of_sketch = []
        for part, bits in parts:
            part, bits = part.ravel(), bits.ravel()
            row = np.zeros(self.NUM)
            for start in range(0, part.size, 2**20):
                numbers = part[start : start + 2**20].astype(float)
                signs = np.unpackbits(bits[start : start + 2**20, None], axis=1).astype(np.float64)
                row += numbers @ (2 * signs - 1)
            rows_of_sketch.append(row)
        return np.array(rows_of_sketch)

    @classmethod
    def norms(cls, sketch: np.ndarray) -> np.ndarray:
        """Returns the estimated norm of each variable's part."""
        return np.linalg.norm(sketch, axis=1) / math.sqrt(cls.NUM)
