"""The examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("identity_matters", "shortcut_study", "theory", "launch")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_give_what_they_say(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0
