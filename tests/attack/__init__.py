"""A fuzz of the whole project with hostile input: python -m tests.attack --minutes=10.

A kind is a function of a random generator and an empty folder that makes one hostile input, gives it to a launcher or
a public function, and raises AssertionError where what must hold does not. KINDS has them by name; the modules of this
package register them with `kind`.
"""

import importlib
import pathlib
import pkgutil
from collections.abc import Callable

import numpy as np

Kind = Callable[[np.random.Generator, pathlib.Path], None]
KINDS: dict[str, Kind] = {}


def kind(name: str) -> Callable[[Kind], Kind]:
    """Registers a function that makes one try; the name says what is tried and stands in the table."""

    def register(function: Kind) -> Kind:
        assert name not in KINDS, name
        KINDS[name] = function
        return function

    return register


def collect() -> dict[str, Kind]:
    """Imports all modules of kinds; returns KINDS."""
    for module in pkgutil.iter_modules(__path__):
        if module.name.endswith("_kinds"):
            importlib.import_module(f"{__name__}.{module.name}")
    return KINDS
