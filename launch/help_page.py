"""What --help prints."""

import dataclasses
import inspect
import re
import shutil
import textwrap
from typing import Any, Literal, get_args, get_origin

_INDENT = 30  # columns


def field_descriptions(config: Any) -> dict[str, str]:
    """Returns, by field name, the text under "Attributes:" in the docstring of the config's class."""
    # Python 3.13 strips the indentation of docstrings itself, earlier ones do not.
    text = inspect.getdoc(type(config)).split("Attributes:")[1]
    return {
        name: re.sub(r"\s+", " ", description).strip()
        for name, description in re.findall(r"^ {2}(\w+): (.*?)(?=^ {,2}\w|\Z)", text, re.M | re.S)
    }


def description(field: dataclasses.Field, config: Any) -> str:
    """Returns what --help says of a field of a config: its text, the words to choose from, whether a switch is on."""
    text = field_descriptions(config)[field.name]
    if field.type is bool:  # others show their default as --name=value
        text += f" (default: {'on' if getattr(config, field.name) else 'off'})"
    if get_origin(field.type) is Literal:
        text += f" One of {', '.join(filter(None, get_args(field.type)))}."
    return text


def help_page(manual: str, entries: list[tuple[str, str]]) -> str:
    """Returns the manual and one entry per flag, as wide as the terminal allows.

    Args:
      manual: The docstring of a launcher.
      entries: (flag, what it means) of each flag.
    """
    width = max(2 * _INDENT, min(shutil.get_terminal_size().columns, 110))
    lines = [manual.strip(), "", "Flags:"]
    for flag, text in entries:
        wrapped = textwrap.wrap(text, width - _INDENT)
        start = f"  {flag}"
        if len(start) >= _INDENT:
            lines.append(start)
            start = ""
        lines += [f"{start:<{_INDENT}}{wrapped[0]}", *(" " * _INDENT + line for line in wrapped[1:])]
    return "\n".join(lines)
