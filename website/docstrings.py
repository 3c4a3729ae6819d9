"""Docstrings as Markdown: ours are plain text, with formulas in unicode, doctests and short lists in them."""

import re
from typing import Any

import griffe

from website import api

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):$")
_TABLE_ROW = re.compile(r"\S.* {3,}\S")  # of a table from the papers' symbols to names
_ITEM = re.compile(r" {1,3}(?=\S)(\d\. |[\w, *]+: )?")


class PlainText(griffe.Extension):
    """Rewrites each docstring before Griffe looks for its sections; `on_package` comes before `on_object`."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Called by Griffe for every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **options: Any) -> None:
        """Called by Griffe when all modules of a package are there: names in backticks become links."""
        for module in {module for page in api.PAGES.values() for module in page.members}:
            if module.split(".")[0] == pkg.name:
                _link_names(pkg[module.partition(".")[2]])


def _link_names(module: griffe.Module) -> None:
    """Makes links of the names in backticks of a module's docstrings that the same page shows."""
    chosen = {name for page in api.PAGES.values() for name in page.members.get(module.path, ())}
    shown = {
        name: member
        for name, member in module.members.items()
        if not member.is_alias and member.docstring and not name.startswith("_") and (name in chosen or not chosen)
    }
    for member in shown.values():
        for part in (member, *(part for part in member.members.values() if not part.is_alias)):
            if part.docstring:
                part.docstring.value = re.sub(
                    r"(?<!\[)`(\w+)`(?!:)",
                    lambda found: f"[{found[0]}][{shown[found[1]].path}]" if found[1] in shown else found[0],
                    part.docstring.value,
                )


def as_markdown(text: str) -> str:
    """Returns a docstring with doctests fenced, lists marked, and in running text _ and < as they are.

    Sections stay for Griffe to read: only what follows the name of an argument is text.
    """
    text = re.sub(r"  # doctest: .*", "", text)
    lines, section, fenced, in_list = [], "", False, False
    for line in text.splitlines():
        if fenced and not line.strip():
            lines.append("```")
            fenced = False
        if _SECTION.match(line):
            section = line
        elif line[:1].strip():
            section = ""
        if _TABLE_ROW.match(line) and not fenced:
            line = "    " + line
        if line.startswith(">>> ") and not fenced:
            lines += ["", "```pycon"]
            fenced = True
        if fenced or line.startswith("    ") and not (section or in_list) or _SECTION.match(line):
            lines.append(line)
        elif section:
            lines.append(_in_section(line, section))
        else:
            in_list, line = _as_list_item(line, lines, in_list)
            lines.append(line)
    return "\n".join(lines + ["```"] * fenced)


def _in_section(line: str, section: str) -> str:
    """Returns a line of a section in which Griffe finds names of arguments and errors, but no type of a result."""
    if section in ("Returns:", "Yields:"):
        return _escaped(line).replace(": ", "&#58; ")
    name, colon, rest = line.partition(": ") if re.match(r"  \S", line) else ("", "", line)
    return name + colon + _escaped(rest)


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
    """Returns text in which no _ is emphasis and no < a tag, outside of backticks and the links of these."""
    parts = re.split(r"(`[^`]*`(?:\]\[[^\]]*\])?)", text)
    return "".join(part if part.startswith("`") else _as_text(part) for part in parts)


def _as_text(part: str) -> str:
    part = part.replace("_", r"\_").replace("<", "&lt;")
    return re.sub(r"docs/([\w/\\]+)\.md", lambda found: f"[{found[0]}](../../{found[1]}.md)".replace(r"\_", "_"), part)
