"""The examples in the docstrings of shortcut_study give what they say."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name, examples", [("hessian", 2), ("hutchinson", 1), ("lanczos", 2), ("model_hessian", 1), ("network", 1)]
)
def test_the_examples_give_what_they_say(name, examples):
    module = importlib.import_module(f"shortcut_study.{name}")
    found = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    assert len(found) == examples
    for test in found:
        assert doctest.DocTestRunner(verbose=False).run(test).failed == 0, test.name
