"""Differences of losses and gradients along lines, in float64, and when they tell something.

A difference tells something if those with a step and with its half agree: not at a kink, nor if rounding drowns it.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from shortcut_study.curvature.objective import parts_of

AGREEMENT = 1e-4  # of the differences with a step and its half, relative to them
ROUNDING = {"float64": 100 * np.finfo(float).eps, "float32": 1e-5}  # relative, of losses and gradients


def norms_by_variable(vector: np.ndarray | list, variables: Sequence) -> np.ndarray:
    """Returns the norm of each variable's part of a vector, 0 for those that are not finite."""
    return np.nan_to_num([np.linalg.norm(part) for part in parts_of(vector, variables)], nan=0, posinf=0)


def settled_slope_error(
    loss: Callable[[float], float], expected: float, floor: float, steps: tuple, tolerance: float, dtype: str
) -> float:
    """Returns the relative error of a slope, or 0 if it is right with some step or no difference tells.

    It is wrong if two successive steps say the same, each with its half. An operation that computes in float32 in any
    case makes a staircase of small steps, so that larger ones, in ascending order, tell more.

    Args:
      loss: callable. The loss of a step along the line.
      expected, floor: float. The slope, and an error that is none.
      steps, tolerance, dtype: Steps of the differences, the largest relative error, and the type of the losses.
    """
    before = None
    for step in steps:
        above, below = loss(step), loss(-step)
        slope = (above - below) / (2 * step)
        rounding = ROUNDING[dtype] * abs(above) / step
        error = abs(slope - expected) - floor - rounding
        if not error > tolerance * abs(expected):  # nor if NaN
            return 0.0
        half_above, half_below, middle = loss(step / 2), loss(-step / 2), loss(0.0)
        half = (half_above - half_below) / step
        # The difference of the slopes to both sides: of a smooth loss it halves with the step, at a kink it stays.
        kink = abs(4 * (half_above + half_below - 2 * middle) - (above + below - 2 * middle)) / step
        is_settled = max(abs(half - slope), kink) <= 0.1 * error
        if is_settled and before is not None and abs(slope - before) <= 0.1 * error:
            return error / max(abs(slope), abs(expected))
        before = slope if is_settled else None
    return 0.0


def settled_difference(function: Callable[[float], np.ndarray], steps: tuple) -> np.ndarray | None:
    """Returns the central difference of a function with the first step that agrees with its half, or None.

    At a kink in all of it, as of ReLU at zeros, the central difference is the mean of those to both sides: it would
    agree with its half, but these do not with each other.
    """
    middle = function(0.0)
    for step in steps:
        above, below, half_above, half_below = (function(position) for position in (step, -step, step / 2, -step / 2))
        wide = (above - below) / (2 * step)
        narrow = (half_above - half_below) / step
        kink = (4 * (half_above + half_below - 2 * middle) - (above + below - 2 * middle)) / step
        change = max(np.linalg.norm(wide - narrow), np.linalg.norm(kink) / 10)
        rounding = ROUNDING["float64"] * np.linalg.norm(middle) / step
        if change <= AGREEMENT * np.linalg.norm(narrow) + rounding:
            return narrow
    return None


class Line(NamedTuple):
    """A line through a point, and the slope that a gradient gives the loss along it."""

    direction: np.ndarray  # [dim], float32
    slope: float
    magnitude: float  # of the slope, if no parts of it cancelled


def line_along(point: np.ndarray, gradient: np.ndarray | list, typical: np.ndarray, variables: Sequence) -> Line:
    """Returns a line: for each variable along its gradient and a random direction, as long as its weights.

    `typical` are norms by variable of a gradient that has not cancelled.
    """
    direction = np.random.default_rng(0).standard_normal(len(point), np.float32)
    slope, magnitude = 0.0, 0.0
    parts = zip(*(parts_of(vector, variables) for vector in (direction, gradient, point)), typical)
    for along, part, weights, norm in parts:
        along /= np.linalg.norm(along)
        if size := np.linalg.norm(part):
            along += (part / size).astype(np.float32)
        along *= _size(weights) * math.sqrt(along.size)
        slope += float(np.vdot(part.astype(float), along))
        magnitude += float(norm * np.linalg.norm(along))
    return Line(direction, slope, magnitude)


def _size(weights: np.ndarray) -> float:
    """The root mean square of a variable's weights, or 0.1 for zeros."""
    return float(np.sqrt(np.mean(np.square(weights, dtype=float)))) or 0.1


def noise_like(point: np.ndarray, factor: float, variables: Sequence) -> np.ndarray:
    """Returns random numbers [dim] in float32, as large as the weights of each variable times a factor."""
    noise = np.random.default_rng(1).standard_normal(len(point), np.float32)
    for part, weights in zip(parts_of(noise, variables), parts_of(point, variables)):
        part *= factor * _size(weights)
    return noise


class Sketch:
    """Norms of the parts of vectors, by variable, from a few numbers each, so that no vector need be kept.

    A count sketch: entries with random signs are summed in 16 buckets, whose squares add up to about the squared norm.
    Source: Charikar, Chen & Farach-Colton (2002).
    """

    NUM_BUCKETS = 16

    def __init__(self, variables: Sequence) -> None:
        self._variables = variables
        size = sum(math.prod(variable.shape) for variable in variables)
        self._signs = 2 * np.random.default_rng(2).integers(0, 2, size, np.int8) - 1

    def __call__(self, vector: np.ndarray | list) -> np.ndarray:
        """Returns the sketch [variables, 16]; it is linear in the vector."""
        pairs = zip(parts_of(vector, self._variables), parts_of(self._signs, self._variables))
        return np.array([self._buckets(part.ravel(), signs.ravel()) for part, signs in pairs])

    def _buckets(self, part: np.ndarray, signs: np.ndarray) -> np.ndarray:
        sums = np.zeros(self.NUM_BUCKETS)
        for start in range(0, len(part), 2**20):
            signed = part[start : start + 2**20] * signs[start : start + 2**20]
            whole = len(signed) - len(signed) % self.NUM_BUCKETS
            sums += signed[:whole].reshape(-1, self.NUM_BUCKETS).sum(0, dtype=float)
            sums[: len(signed) - whole] += signed[whole:]
        return sums

    @staticmethod
    def norms(sketch: np.ndarray) -> np.ndarray:
        """Returns the estimated norm of each variable's part."""
        return np.linalg.norm(sketch, axis=1)
