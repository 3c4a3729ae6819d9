"""What the fields of a config may hold."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from identity_matters.runs.errors import UserError


def require(condition: bool, message: str) -> None:
    """Raises UserError with the message unless the condition holds."""
    if not condition:
        raise UserError(message)


def check_fields(
    config: Any,
    at_least_1: Iterable[str] = (),
    at_least_0: Iterable[str] = (),
    above_0: Iterable[str] = (),
    at_most: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Checks the numbers of a config against their ranges, and its words against the choices of their fields.

    Args:
      config: A dataclass. A field of type Literal holds one of its words; every number must be finite, and a whole
        number, or the sum of several, below 2³².
      at_least_1, at_least_0, above_0: The names of the fields whose numbers must be ≥ 1, ≥ 0, > 0.
      at_most: Names of fields to the largest number that makes sense, or the largest sum of several numbers.

    Raises:
      UserError: a number is out of range, or a word is none of its field's choices.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, float):
            require(math.isfinite(value), f"{field.name} must be a finite number, got {value}")
        elif isinstance(value, int) or value and isinstance(value, tuple) and all(isinstance(n, int) for n in value):
            limit = at_most.get(field.name, 2**32 - 1)
            total = sum(value) if isinstance(value, tuple) else value
            require(total <= limit, f"{field.name} must be at most {limit}, got {total}")
    for name in at_least_1:
        require(getattr(config, name) >= 1, f"{name} must be at least 1, got {getattr(config, name)}")
    for name in at_least_0:
        require(getattr(config, name) >= 0, f"{name} must be at least 0, got {getattr(config, name)}")
    for name in above_0:
        require(getattr(config, name) > 0, f"{name} must be positive, got {getattr(config, name)}")
    for field in dataclasses.fields(config):
        choices = getattr(field.type, "__args__", ())
        if getattr(field.type, "__origin__", None) is Literal:
            value = getattr(config, field.name)
            require(value in choices, f"{field.name} must be one of {', '.join(filter(None, choices))}, got {value!r}")
