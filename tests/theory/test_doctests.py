"""The examples in the docstrings of theory give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import theory

MODULES = [module.name for module in pkgutil.iter_modules(theory.__path__) if module.name != "memorization_keras"]
EXAMPLES = {"claims": 3, "factorization": 4, "linear_residual": 5, "memorization": 4, "shortcut_hessians": 8}


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_docstring_give_what_they_say(module):
    results = doctest.testmod(importlib.import_module(f"theory.{module}"))
    assert results.failed == 0
    assert results.attempted >= EXAMPLES.get(module, 0)
