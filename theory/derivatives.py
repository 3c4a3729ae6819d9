"""Derivatives without formulas, as references for the formulas."""

import itertools
import math
from collections.abc import Callable

import numpy as np


def complex_step_gradient(function: Callable, weights: np.ndarray, *arguments: np.ndarray) -> np.ndarray:
    """Returns the gradient of an analytic real function to full precision: Im f(w + iε)/ε, without cancellation.

    The function takes complex weights and the further arguments and returns a complex scalar.
    """
    step = 1e-30
    gradient = np.zeros(np.shape(weights))
    for index in np.ndindex(gradient.shape):
        moved = np.array(weights, complex)
        moved[index] += step * 1j
        gradient[index] = function(moved, *arguments).imag / step
    return gradient


def difference_gradient(function: Callable, weights: np.ndarray, *arguments: np.ndarray) -> np.ndarray:
    """Returns the gradient of function(weights, *arguments) by central differences, of the shape of the weights."""
    step = 1e-5
    gradient = np.zeros(np.shape(weights))
    for index in np.ndindex(gradient.shape):
        up, down = np.array(weights), np.array(weights)
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up, *arguments) - function(down, *arguments)) / (2 * step)
    return gradient


def difference_hessian(function: Callable, size: int, step: float = 1e-4) -> np.ndarray:
    """Returns the Hessian [size, size] at zero of a function of a vector of np.longdouble, by central differences."""
    step = np.longdouble(step)
    moves = step * np.eye(size, dtype=np.longdouble)
    hessian = np.zeros((size, size))
    for i, j in itertools.combinations_with_replacement(range(size), 2):
        plus, minus = function(moves[i] + moves[j]), function(-moves[i] - moves[j])
        mixed = function(moves[i] - moves[j]) + function(moves[j] - moves[i])
        hessian[i, j] = hessian[j, i] = float((plus - mixed + minus) / (4 * step**2))
    return hessian


def mixed_derivative(function: Callable, indices: list[tuple], shape: tuple, *arguments: np.ndarray) -> float:
    """Returns ∂ⁿf/∂w₁···∂w_n at zero, exact for a polynomial f of degree at most 2 in each of these n distinct weights.

    The coefficient of w₁···w_n is a discrete Fourier transform over cube roots of unity.

    The function takes complex weights of that shape and the further arguments.
    """
    roots = np.exp(2j * math.pi * np.arange(3) / 3)
    total = 0
    for powers in itertools.product(range(3), repeat=len(indices)):
        weights = np.zeros(shape, complex)
        for index, power in zip(indices, powers):
            weights[index] = roots[power]
        total += function(weights, *arguments) * np.prod(np.conj(roots[list(powers)]))
    return float(np.real(total) / 3 ** len(indices))
