"""Checks of the fields of a config."""

import dataclasses
import math
import numbers
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from identity_matters.errors import UserError, truncated_repr

_EXPECTED = {bool: "True or False", int: "a whole number", float: "a number", str: "text", tuple: "whole numbers"}


def require(condition: bool, message: str) -> None:
    """Raises UserError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


def split_names(text: str) -> list[str]:
    """Returns the names in a text with commas between them, without the spaces around them and without empty ones.

    >>> split_names("paper, zero initializer,")
    ['paper', 'zero initializer']
    """
    return [name for part in text.split(",") if (name := part.strip(" "))]


def from_json(config: Any, values: Any) -> Any:
    """Returns a config, a dataclass that checks its fields, with the values of a JSON file in place of its own.

    Raises:
      UserError: it is not a dict, a name is not a field's, a value is of another type or rejected by the config.
    """
    require(isinstance(values, dict), f"{type(config).__name__} must be a JSON object, got {truncated_repr(values)}")
    changes = {}
    names = {field.name for field in dataclasses.fields(config)}
    for name, value in values.items():
        require(name in names, f"there is no field {truncated_repr(name)}")
        default = getattr(config, name)
        changes[name] = from_json(default, value) if dataclasses.is_dataclass(default) else value
    return dataclasses.replace(config, **changes)


def check_fields(
    config: Any,
    at_least_1: Iterable[str] = (),
    at_least_0: Iterable[str] = (),
    above_0: Iterable[str] = (),
    at_most: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Checks the numbers of a config against their ranges, and its words against the choices of their Literal.

    Values made in Python are first turned into the type of their field where that is harmless: a list or an array into
    a tuple, 1e3 into 1000, a Path into text, a scalar of NumPy into Python's. Every number must be finite, and a whole
    number, or the sum of several, at most what at_most has for its field, and below 2³². Of several numbers each must
    be at least what is asked, and there must be one.

    Raises:
      UserError: a value is of another type, a number is out of range, or a word is none of its field's choices.
    """
    for field in dataclasses.fields(config):
        value = converted(field.name, field.type, getattr(config, field.name))
        object.__setattr__(config, field.name, value)
        if get_origin(field.type) is Literal:
            choices = get_args(field.type)
            known = ", ".join(filter(None, choices))
            require(value in choices, f"{field.name} must be one of {known}, got {truncated_repr(value)}")
        elif isinstance(value, float):
            require(math.isfinite(value), f"{field.name} must be a finite number, got {value}")
        elif isinstance(value, int) or value and isinstance(value, tuple) and all(isinstance(n, int) for n in value):
            limit = at_most.get(field.name, 2**32 - 1)
            total = sum(value) if isinstance(value, tuple) else value
            require(total <= limit, f"{field.name} must be at most {limit}, got {total}")
    for least, names in ((1, at_least_1), (0, at_least_0)):
        for name in names:
            value = getattr(config, name)
            smallest = min(value, default=least - 1) if isinstance(value, tuple) else value
            words = "numbers of " if isinstance(value, tuple) else ""
            require(smallest >= least, f"{name} must be {words}at least {least}, got {value}")
    for name in above_0:
        require(getattr(config, name) > 0, f"{name} must be positive, got {getattr(config, name)}")


def converted(name: str, wanted: Any, value: Any) -> Any:
    """Returns the value as the type of its field, or raises UserError where the value is ambiguous."""
    given, wanted = value, get_origin(wanted) or wanted
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        require(isinstance(value, wanted), f"{name} must be a {wanted.__name__}, got {truncated_repr(given)}")
    if wanted not in _EXPECTED:
        return value
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if wanted is tuple and isinstance(value, list | tuple | range):
        return tuple(converted(name, int, item) for item in value)
    if wanted is float and is_number:
        return float(value)
    if wanted is int and is_number and (not isinstance(value, float) or value.is_integer()):
        return int(value)
    if wanted is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    is_of_type = wanted in (bool, str) and isinstance(value, wanted)
    require(is_of_type, f"{name} must be {_EXPECTED[wanted]}, got {truncated_repr(given)}")
    return value
