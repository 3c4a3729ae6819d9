"""Docstrings as Markdown: doctests become blocks of code, and < in running text stays as it is."""

import re
from typing import Any

import griffe

# A doctest with its output; a line of a table or a formula, which Markdown shows as code; text in backticks.
_KEPT = re.compile(r"((?:^ *>>> .*\n?(?: *\S.*\n?)*)|^ {4,}.*$|`[^`\n]*`)", re.M)


class PlainText(griffe.Extension):
    """Rewrites each docstring before Griffe looks for its sections."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Called by Griffe for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Returns a docstring with doctests in fences, and in running text no < that begins a tag."""
    parts = _KEPT.split(re.sub(r"  # doctest: .*", "", text))
    return "".join(_kept(part) if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(parts))


def _kept(part: str) -> str:
    return f"```pycon\n{part.rstrip()}\n```\n" if part.lstrip().startswith(">>> ") else part
