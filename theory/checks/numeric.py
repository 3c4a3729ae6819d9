"""Derivatives without formulas, as references for the formulas."""

import itertools
import math

import numpy as np


def complex_step_gradient(function, weights) -> np.ndarray:
    """Gradient of an analytic real function, to full precision: Im f(w + iε)/ε, which subtracts nothing.

    Args:
      function: callable. Takes complex weights, returns a complex scalar.
      weights: float array of any shape.

    Returns:
      Of the shape of weights.
    """
    step, gradient = 1e-30, np.zeros(np.shape(weights))
    for index in np.ndindex(gradient.shape):
        moved = np.array(weights, complex)
        moved[index] += step * 1j
        gradient[index] = function(moved).imag / step
    return gradient


def difference_gradient(function, weights, step: float = 1e-5) -> np.ndarray:
    """Gradient by central differences."""
    gradient = np.zeros(np.shape(weights))
    for index in np.ndindex(gradient.shape):
        up, down = np.array(weights), np.array(weights)
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient


def difference_hessian(function, size: int, step: float = 1e-4) -> np.ndarray:
    """Hessian [size, size] at zero by central differences in extended precision.

    Args:
      function: callable. Takes a vector [size] of np.longdouble, returns a scalar of that precision.
    """
    step = np.longdouble(step)
    moves = step * np.eye(size, dtype=np.longdouble)
    hessian = np.zeros((size, size))
    for i, j in itertools.combinations_with_replacement(range(size), 2):
        plus, minus = function(moves[i] + moves[j]), function(-moves[i] - moves[j])
        mixed = function(moves[i] - moves[j]) + function(moves[j] - moves[i])
        hessian[i, j] = hessian[j, i] = float((plus - mixed + minus) / (4 * step**2))
    return hessian


def mixed_derivative(function, indices, shape) -> float:
    """∂ⁿf/∂w₁···∂w_n at zero, exact for a polynomial f of degree at most 2 in each of these n distinct weights.

    The coefficient of w₁···w_n is a discrete Fourier transform over cube roots of unity.

    Args:
      function: callable. Takes complex weights of the shape.
      indices: list of n distinct index tuples.
    """
    roots, total = np.exp(2j * math.pi * np.arange(3) / 3), 0
    for powers in itertools.product(range(3), repeat=len(indices)):
        weights = np.zeros(shape, complex)
        for index, power in zip(indices, powers):
            weights[index] = roots[power]
        total += function(weights) * np.prod(np.conj(roots[list(powers)]))
    return float(np.real(total) / 3 ** len(indices))
