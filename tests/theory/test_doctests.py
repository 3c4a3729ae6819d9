"""The examples in the docstrings of theory give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import theory

EXAMPLES = {"claims": 3, "factorization": 4, "linear_residual": 5, "memorization": 5, "shortcut_hessians": 8}


@pytest.mark.parametrize("module", [module.name for module in pkgutil.iter_modules(theory.__path__)])
def test_the_examples_of_a_docstring_give_what_they_say(module):
    if module == "memorization_keras":
        pytest.importorskip("keras")
    results = doctest.testmod(importlib.import_module(f"theory.{module}"))
    assert results.failed == 0
    assert results.attempted >= EXAMPLES.get(module, 0)
