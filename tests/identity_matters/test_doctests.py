"""The examples in the docstrings do what they show."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module", ["data.arrays", "data.batches", "distributed.rendezvous", "evaluation", "fields", "model", "training"]
)
def test_the_examples_of_a_module_show_what_happens(module):
    failed, attempted = doctest.testmod(importlib.import_module(f"identity_matters.{module}"))
    assert attempted > 0 and failed == 0
