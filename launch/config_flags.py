"""The fields of a config as flags."""

import dataclasses
from typing import Any


def flag_fields(config: Any) -> list[tuple[dataclasses.Field, Any, Any]]:
    """Returns (field, default, config that holds it) of every flag; those of nested configs come after its own."""
    own, nested = [], []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            nested += flag_fields(value)
        elif field.metadata.get("flag", True):
            own.append((field, value, config))
    return own + nested


def flags_of(config: Any, presets: dict[str, Any]) -> list[str]:
    """Returns the flags that give this config: --preset, of the nearest preset, and what differs from it."""

    def differing(preset: Any) -> list[str]:
        pairs = zip(flag_fields(config), flag_fields(preset))
        return [written(field.name, value) for (field, value, _), (_, old, _) in pairs if value != old]

    found = [[f"--preset={name}", *differing(preset)] for name, preset in presets.items()]
    return min(found, key=len)


def written(name: str, value: Any) -> str:
    """Returns a field's value as a flag."""
    if isinstance(value, bool):
        return f"--{'' if value else 'no'}{name}"
    return f"--{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
