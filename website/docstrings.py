"""Docstrings as Markdown: ours are plain text, with formulas in unicode, doctests and short lists in them."""

import re
from typing import Any

import griffe

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
_TABLE_ROW = re.compile(r"\S.* {3,}\S")  # of a table from the papers' symbols to names
_ITEM = re.compile(r"  (?=\S)(\d\. |[\w, *]+: )?")


class PlainText(griffe.Extension):
    """Rewrites each docstring before Griffe looks for its sections."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Called by Griffe for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Returns a docstring with doctests fenced, lists marked, and in running text _ and < as they are.

    Sections stay for Griffe to read: only what follows the name of an argument is text.
    """
    text = re.sub(r"  # doctest: .*", "", text)
    lines, section, fenced, in_list = [], False, False, False
    for line in text.splitlines():
        if fenced and not line.strip():
            lines.append("```")
            fenced = False
        if _SECTION.match(line):
            section = True
        elif line[:1].strip():
            section = False
        if _TABLE_ROW.match(line) and not fenced:
            line = "    " + line
        if line.startswith(">>> ") and not fenced:
            lines += ["", "```pycon"]
            fenced = True
        if fenced or line.startswith("    ") and not (section or in_list) or _SECTION.match(line):
            lines.append(line)
        elif section:
            name, colon, rest = line.partition(": ") if re.match(r"  \S", line) else ("", "", line)
            lines.append(name + colon + _escaped(rest))
        else:
            in_list, line = _as_list_item(line, lines, in_list)
            lines.append(line)
    return "\n".join(lines + ["```"] * fenced)


def _as_list_item(line: str, before: list[str], in_list: bool) -> tuple[bool, str]:
    """Returns whether a line of running text belongs to a list, and the line as Markdown has it."""
    item = _ITEM.match(line)
    if not item:
        return in_list and line.startswith("    "), _escaped(line)
    if not in_list and before and before[-1]:
        before.append("")
    name = (item[1] or "").strip()
    mark = f"{name} " if name.endswith(".") else f"- `{name[:-1]}`: " if name else "- "
    return True, mark + _escaped(line[item.end() :])


def _escaped(text: str) -> str:
    """Returns text of which Markdown takes no _ for emphasis and no < for a tag, outside of backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("_", r"\_").replace("<", "&lt;") for part in parts)
