"""Configs: every field is read somewhere."""

import ast
import dataclasses
import pathlib
import re

import pytest

import identity_matters
from identity_matters import ablations, config

PROJECT = pathlib.Path(identity_matters.__file__).parents[1]


class _Reads(ast.NodeVisitor):
    """The attributes read off a config, by its own methods too, but not by the checks of __post_init__."""

    def __init__(self):
        self.found, self._owner = set(), ""

    def visit_ClassDef(self, node):
        self._owner = "|self" if node.name.endswith("Config") else ""
        self.generic_visit(node)
        self._owner = ""

    def visit_FunctionDef(self, node):
        if node.name != "__post_init__":
            self.generic_visit(node)

    def visit_Attribute(self, node):
        if re.fullmatch(rf"((self\.)?\w*config{self._owner})(\.train)?(\.model)?", ast.unparse(node.value)):
            self.found.add(node.attr)
        self.generic_visit(node)


def fields_read() -> set[str]:
    reads = _Reads()
    for path in (PROJECT / "identity_matters").rglob("*.py"):
        reads.visit(ast.parse(path.read_text()))
    return reads.found


@pytest.mark.parametrize("kind", [config.ModelConfig, config.TrainConfig, ablations.AblationConfig])
def test_every_field_of_a_config_is_read_somewhere(kind):
    read = fields_read()
    assert {field.name for field in dataclasses.fields(kind)} - read == set()
    assert not {"trainable_variables", "shape"} & read  # attributes of other things do not count
