"""The fields of a config: their rules, which stand beside them, and the checks of their values."""

import dataclasses
import math
import numbers
import os
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from identity_matters.errors import UserError, truncated_repr

_EXPECTED = {bool: "True or False", int: "a whole number", float: "a number", str: "text", tuple: "whole numbers"}


def require(condition: bool, message: str) -> None:
    """Raises UserError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


def require_counts(at_least: int, **values: Any) -> None:
    """Raises UserError unless each of the named values is a whole number of at least that size."""
    for name, value in values.items():
        is_count = isinstance(value, numbers.Integral) and int(value) >= at_least
        require(is_count, f"{name} must be a whole number of at least {at_least}, got {truncated_repr(value)}")


def split_names(text: str) -> list[str]:
    """Returns the names in a text with commas between them, without the spaces around them and without empty ones.

    >>> split_names("paper, zero initializer,")
    ['paper', 'zero initializer']
    """
    return [name for part in text.split(",") if (name := part.strip(" "))]


def from_json(config: Any, values: Any) -> Any:
    """Returns a config, a dataclass that checks its fields, with the values of a JSON file in place of its own.

    Fields of a config in it may stand beside it, as flags do.

    Raises:
      UserError: it is not a dict, a name is not a field's, a value is of another type or rejected by the config.
    """
    require(isinstance(values, dict), f"{type(config).__name__} must be a JSON object, got {truncated_repr(values)}")
    changes = {}
    names = {field.name for field in dataclasses.fields(config)}
    for name, value in nested(config, values).items():
        require(name in names, f"there is no field {truncated_repr(name)}")
        default = getattr(config, name)
        changes[name] = from_json(default, value) if dataclasses.is_dataclass(default) else value
    return dataclasses.replace(config, **changes)


def nested(config: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Returns values by name, with those of fields of the configs in a config moved into a dict for each of these."""
    result = dict(values)
    for field in dataclasses.fields(config):
        inner = getattr(config, field.name)
        part = result.get(field.name, {})
        if dataclasses.is_dataclass(inner) and isinstance(part, dict):
            names = {name.name for name, _ in all_fields(inner) if name.metadata.get("flag", True)}
            inner_fields = dataclasses.fields(inner)
            # Only the config of a whole run has configs among its fields.
            if any(dataclasses.is_dataclass(getattr(inner, field.name)) for field in inner_fields):
                names |= {field.name for field in inner_fields}
            beside = {name: result.pop(name) for name in (names - part.keys()) & result.keys()}
            if beside or part:
                result[field.name] = nested(inner, beside | part)
    return result


def merged(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config, and of the configs in it, as dicts, with others in their place.

    >>> merged({"model": {"widths": [16], "shortcut": True}, "fresh": ""}, {"model": {"widths": [8]}, "seed": 1})
    {'model': {'widths': [8], 'shortcut': True}, 'fresh': '', 'seed': 1}
    """
    shared = values.keys() & others.keys()
    inner = [name for name in shared if isinstance(values[name], dict) and isinstance(others[name], dict)]
    return values | others | {name: merged(values[name], others[name]) for name in inner}


def with_fields(config: Any, **changes: Any) -> Any:
    """Returns a config with other values of some fields, its own or those of the configs in it.

    >>> from identity_matters.config import TrainConfig
    >>> with_fields(TrainConfig(), npz="mine.npz", train_steps=40).data.npz
    'mine.npz'

    Raises:
      UserError: there is no field of a name, or it does not take the value.
    """
    names = {field.name for field, _ in all_fields(config)} | {field.name for field in dataclasses.fields(config)}
    for name in changes:
        require(name in names, f"there is no field {truncated_repr(name)}")
    return _with_fields(config, changes)


def _with_fields(config: Any, changes: dict[str, Any]) -> Any:
    values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in changes and (
            field.metadata.get("flag", True) or dataclasses.is_dataclass(changes[field.name])
        ):
            values[field.name] = changes[field.name]
        elif dataclasses.is_dataclass(value):
            values[field.name] = _with_fields(value, changes)
    return dataclasses.replace(config, **values)


def option(default: Any, **rules: Any) -> Any:
    """Returns a field of a config with its rules.

    Args:
      default: Any. The value if none is given.
      at_least, above, at_most: numbers. The range; of several numbers, each is at least `at_least` and their sum at
        most `at_most`.
      path: bool. It holds a path, or several with commas between them.
      compared: bool. False: another value does not change what a run computes, so that the run can continue with it.
      flag: bool. False: launchers have no flag for it.
      source: str. For a field that names the data of a run: the "module:Class" of identity_matters.data that reads
        them.
    """
    return dataclasses.field(default=default, metadata=rules)


def all_fields(config: Any) -> Iterator[tuple[dataclasses.Field, Any]]:
    """Yields (field, config that holds it) of a config, and of the configs in it, which come last."""
    nested = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            nested.append(value)
        else:
            yield field, config
    for value in nested:
        yield from all_fields(value)


def absolute_paths(config: Any) -> Any:
    """Returns a config whose fields that hold paths name the files and folders that exist by their absolute paths."""
    changes = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = absolute_paths(value)
        elif field.metadata.get("path"):
            paths = [os.path.abspath(path) if os.path.exists(path) else path for path in value.split(",")]
            changes[field.name] = ",".join(paths)
    return dataclasses.replace(config, **changes)


def fields_with_metadata(config: Any, rule: str, value: Any = ...) -> tuple[str, ...]:
    """Returns the names of the fields that have a rule, or this value of it, in a config and the configs in it."""
    rules = ((field.name, field.metadata.get(rule)) for field, _ in all_fields(config) if rule in field.metadata)
    return tuple(name for name, held in rules if value in (..., held))


class Checked:
    """A base of dataclasses whose fields `check_fields` checks when one is made."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(config: Any) -> None:
    """Checks the numbers of a config against the rules of their fields, and its words against their Literal.

    Values made in Python are first converted to the type of their field if that is harmless: a list or an array into
    a tuple, 1e3 into 1000, a Path into text, a scalar of NumPy into Python's. Every number must be finite, and a whole
    number, or the sum of several, below 2³² unless the field has `at_most`. If `at_least` is given, there must be at
    least one number.

    Raises:
      UserError: a value is of another type, a number is out of range, or a word is none of its field's choices.
    """
    for field in dataclasses.fields(config):
        name = field.name
        rules = field.metadata
        value = coerce(name, field.type, getattr(config, name))
        object.__setattr__(config, name, value)
        if get_origin(field.type) is Literal:
            choices = get_args(field.type)
            allowed = ", ".join(filter(None, choices))
            require(value in choices, f"{name} must be one of {allowed}, got {truncated_repr(value)}")
        elif isinstance(value, float):
            require(math.isfinite(value), f"{name} must be a finite number, got {value}")
        is_several = isinstance(value, tuple) and all(isinstance(number, int) for number in value)
        if isinstance(value, int | float) or value and is_several:
            total = sum(value) if isinstance(value, tuple) else value
            limit = rules.get("at_most", math.inf if isinstance(value, float) else 2**32 - 1)
            require(total <= limit, f"{name} must be at most {limit:.12g}, got {total:.12g}")
        if "at_least" in rules:
            least = rules["at_least"]
            smallest = min(value, default=least - 1) if is_several else value
            words = "numbers of " if is_several else ""
            require(smallest >= least, f"{name} must be {words}at least {least}, got {value}")
        require(value > rules["above"] if "above" in rules else True, f"{name} must be positive, got {value}")


def coerce(name: str, wanted: Any, value: Any) -> Any:
    """Returns the value as the type of its field; raises UserError if the value is ambiguous."""
    given = value
    wanted = get_origin(wanted) or wanted
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        require(isinstance(value, wanted), f"{name} must be a {wanted.__name__}, got {truncated_repr(given)}")
    if wanted not in _EXPECTED:
        return value
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if wanted is tuple and isinstance(value, list | tuple | range):
        return tuple(coerce(name, int, item) for item in value)
    if wanted is float and is_number:
        return float(value)
    if wanted is int and is_number and (not isinstance(value, float) or value.is_integer()):
        return int(value)
    if wanted is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    is_of_type = wanted in (bool, str) and isinstance(value, wanted)
    require(is_of_type, f"{name} must be {_EXPECTED[wanted]}, got {truncated_repr(given)}")
    return value
