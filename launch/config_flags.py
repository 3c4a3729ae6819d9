"""The fields of a config as flags: defined, read from a command line, written again, described by --help.

A config's class may have WITHOUT_FLAGS, names of fields of the configs in it that get no flag, and ALIASES, other names
of flags.
"""

import dataclasses
import difflib
import inspect
import os
import re
import shutil
import textwrap
from typing import Any, Literal, get_args, get_origin

from absl import flags

from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import all_fields, from_json, merged, nested, with_fields
from identity_matters.runs.files import read_json
from identity_matters.runs.record import flat

_INDENT = 30  # columns of --help


class _WholeNumbersParser(flags.ArgumentParser):
    def parse(self, argument: str) -> tuple[int, ...]:
        return tuple(map(int, argument.split(","))) if argument else ()


_PARSERS = {
    bool: (flags.BooleanParser, "true or false"),
    int: (flags.IntegerParser, "a whole number"),
    float: (flags.FloatParser, "a number"),
    str: (flags.ArgumentParser, "text"),
    tuple: (_WholeNumbersParser, "whole numbers with commas between"),
}


class FieldFlag(flags.Flag):
    """A flag of the type of a config's field, `kind` in _PARSERS; its value is None if it is not given.

    A shell leaves the ~ of --run_dir=~/first as it is, so a flag that holds a path replaces it.
    """

    def __init__(self, name: str, kind: type, is_path: bool = False) -> None:
        self._is_path = is_path
        parser, self._expected = _PARSERS[kind]
        super().__init__(parser(), None, name, None, "", boolean=kind is bool)

    def parse(self, argument: str) -> None:
        """Sets the value, with the ~ before a path replaced by the home directory; raises UserError for a wrong one."""
        try:
            if self._is_path:
                argument = re.sub(r"(^|, *)(~[^,]*)", lambda match: match[1] + os.path.expanduser(match[2]), argument)
            super().parse(argument)
        except flags.IllegalFlagValueError:
            advice = f"; write --{self.name} or --no{self.name}" if self.boolean else ""
            raise UserError(f"{self.name} must be {self._expected}, got {argument!r}{advice}") from None


def flag_fields(config: Any) -> list[tuple[dataclasses.Field, Any, Any]]:
    """Returns (field, default, config that holds it) of every flag; those of nested configs come last."""
    fields = [(field, getattr(holder, field.name), holder) for field, holder in all_fields(config)]
    hidden = getattr(config, "WITHOUT_FLAGS", ())
    return [entry for entry in fields if entry[0].metadata.get("flag", True) and entry[0].name not in hidden]


def define(presets: dict[str, Any], has_run_dir: bool) -> flags.FlagValues:
    """Returns the flags of a launcher: --help, --traceback, one per field, and --preset if there are several."""
    values = flags.FlagValues()
    flags.DEFINE_boolean("help", False, "", short_name="h", flag_values=values)
    flags.DEFINE_boolean("traceback", False, "", flag_values=values)
    if len(presets) > 1:
        flags.DEFINE_enum("preset", next(iter(presets)), list(presets), "", flag_values=values)
    if has_run_dir:
        for name in ("run_dir", "config"):
            flags.DEFINE_flag(FieldFlag(name, str, is_path=True), flag_values=values)
    config = next(iter(presets.values()))
    for field, default, _ in flag_fields(config):
        is_path = field.metadata.get("path", False)
        flags.DEFINE_flag(FieldFlag(field.name, type(default), is_path), flag_values=values)
    for alias, name in getattr(config, "ALIASES", {}).items():
        flags.DEFINE_alias(alias, name, flag_values=values)
    return values


def parse(values: flags.FlagValues, argv: list[str]) -> list[str]:
    """Sets the flags from a command line and returns the rest; raises ValueError or flags.Error for a mistake."""
    try:
        return values(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        near = difflib.get_close_matches(error.flagname, list(values), n=3)
        hint = f"did you mean {' or '.join(f'--{name}' for name in near)}?" if near else "--help lists them all"
        raise UserError(f"there is no flag --{error.flagname}; {hint}") from None


def _base(values: flags.FlagValues, presets: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the config that the flags begin with, and the fields of it that a --config of flags changes.

    The former is the config of the run that --config names, or else that of a preset.

    Raises:
      UserError: --config holds no JSON object or no config of this launcher, or is a run's and --preset is given too.
    """
    preset = presets[values["preset"].value] if "preset" in values else next(iter(presets.values()))
    path = values["config"].value if "config" in values else None
    if not path:
        return preset, {}
    try:
        contents = read_json(os.path.join(path, "config.json") if os.path.isdir(path) else path)
        if not isinstance(contents, dict):
            raise UserError(f"it must be a JSON object, got {truncated_repr(contents)}")
        if "config" not in contents:
            return preset, nested(preset, contents)
        if "preset" in values and values["preset"].present:
            raise UserError("it is the config of a run; leave out --preset")
        return from_json(preset, contents["config"]), {}
    except (OSError, ValueError) as error:
        raise UserError(f"--config={path} cannot be used: {error}") from error


def config_from(values: flags.FlagValues, presets: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns `_base` with the given flags in place of its values, and those of them that differ from these, by name.

    Raises:
      UserError: as `_base`, or a flag is invalid with the others, or the config is invalid.
    """
    config, in_file = _base(values, presets)
    before = {field.name: default for field, default, _ in flag_fields(config)}
    for name, value in flat(in_file).items():
        before[name] = tuple(value) if isinstance(value, list) else value
    changed = {}
    for field, _, _ in flag_fields(config):
        value = values[field.name].value
        if value is not None and value != before[field.name]:
            changed[field.name] = value
    if not in_file:
        return with_fields(config, **changed), changed
    try:  # together: what a file lacks, a flag may give
        return from_json(config, merged(in_file, nested(config, changed))), changed
    except UserError as error:
        try:
            from_json(config, in_file)
        except UserError:
            raise UserError(f"--config={values['config'].value} cannot be used: {error}") from error
        raise


def flags_of(config: Any, presets: dict[str, Any]) -> list[str]:
    """Returns the flags that give this config: --preset, of the nearest preset, and what differs from it."""

    def differing(preset: Any) -> list[str]:
        pairs = zip(flag_fields(config), flag_fields(preset))
        return [_written(field.name, value) for (field, value, _), (_, old, _) in pairs if value != old]

    return min(([f"--preset={name}", *differing(preset)] for name, preset in presets.items()), key=len)


def _written(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{'' if value else 'no'}{name}"
    return f"--{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"


def flag_entries(presets: dict[str, Any], values: flags.FlagValues, run_dir_text: str) -> list[tuple[str, str]]:
    """Returns (flag with its default, meaning) of each flag."""
    name = values["preset"].value if "preset" in values else next(iter(presets))
    preset = presets[name]
    entries = [("--run_dir=DIR", run_dir_text)] if "run_dir" in values else []
    if "config" in values:
        entries.append(
            ("--config=FILE", "Start from the settings in a file: a run's config.json, or a JSON object of flags.")
        )
    if len(presets) > 1:
        text = f"Named settings to start from: {', '.join(presets)}. The defaults below are those of {name}."
        entries.append((f"--preset={name}", text))
    for field, default, holder in flag_fields(preset):
        example = f"--[no]{field.name}" if isinstance(default, bool) else _written(field.name, default)
        text = field_descriptions(holder)[field.name]
        if isinstance(default, bool):  # others show their default as --name=value
            text += f" (default: {'on' if default else 'off'})"
        if get_origin(field.type) is Literal:
            text += f" One of {', '.join(filter(None, get_args(field.type)))}."
        entries.append((example, text))
    return [*entries, ("--traceback", "Print the full traceback of an error.")]


def field_descriptions(config: Any) -> dict[str, str]:
    """Returns, by field name, the text under "Attributes:" in the docstrings of the config's class and of its bases."""
    kinds = filter(dataclasses.is_dataclass, reversed(type(config).__mro__))
    # Python 3.13 strips the indentation of docstrings itself, earlier ones do not.
    text = "\n".join(inspect.getdoc(kind).partition("Attributes:")[2] for kind in kinds)
    return {
        name: re.sub(r"\s+", " ", description).strip()
        for name, description in re.findall(r"^ {2}(\w+): (.*?)(?=^ {,2}\w|\Z)", text, re.M | re.S)
    }


def wrapped_entries(manual: str, entries: list[tuple[str, str]]) -> str:
    """Returns the manual and, as wide as the terminal allows, the entries: (flag, meaning) of each."""
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
