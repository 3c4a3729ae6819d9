"""Mutations: planted errors in a function. A claim names the mutations that its check must notice.

A mutation takes the function that the claim lists and returns a broken one, which tests/theory/test_mutations.py puts
in its place while the check runs. So a check that does not call the function of its claim fails the test.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Mutation: TypeAlias = Callable[[Callable], Callable]


def changed(change: Callable[[Any], Any]) -> Mutation:
    """Returns the mutation that replaces the function's result by change(result)."""
    return lambda function: lambda *a, **k: change(function(*a, **k))


def scaled(factor: float) -> Mutation:
    """Returns the mutation that multiplies the function's result."""
    return changed(lambda result: factor * result)


vanishing, larger, slower = scaled(0), scaled(1.1), scaled(0.5)
transposed = changed(lambda result: np.swapaxes(result, -1, -2))
first_transposed = changed(lambda results: (results[0].T, *results[1:]))
turned = changed(lambda result: result[::-1, ::-1])
reversed_layers = changed(lambda result: result[::-1])
