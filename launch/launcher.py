"""What every launcher shares: a config's fields become flags, a user's mistake becomes one line.

A launcher is a module whose docstring is its manual, with
    def main(config, run_dir): …
    def cli(): launcher.run(main, PRESETS, manual=__doc__)
A config may have a method refusals(flags): from the values of all flags by name, None where one is not given, it
returns {name: why} of those without effect. --help leaves these out; where they change the preset they are refused.

Nothing here imports TensorFlow, so `--help` and a mistyped flag answer at once.
"""

import contextlib
import dataclasses
import difflib
import functools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from absl import flags

from identity_matters.data.arrays import note
from identity_matters.errors import EXIT_CONTINUE, EXIT_ERROR, UserError, first_line
from identity_matters.runs import signals
from launch import terminal
from launch.config_flags import flag_fields, written
from launch.help_page import description, help_page

# Flags that hold a path, or several with commas between them. A shell leaves the ~ of --run_dir=~/first as it is.
PATHS = {"run_dir", "data_dir", "npz", "saved_model", "saved_run", "runs", "beside", "write"}


def run(
    main: Callable,
    presets: dict[str, Any],
    manual: str,
    has_run_dir: bool = True,
    needs_run_dir: bool = True,
    run_dir_text: str = "Where the run's files go; the same command again continues it. Required.",
    without_effect: Callable[[Any], dict[str, str]] = lambda config: {},
) -> None:
    """Parses sys.argv into a config, calls main, and exits.

    The exit code is 0 where main returned None, the int that it returned otherwise; 1 after an error, 75 after an
    exception whose same_command_continues is true, 130 after Ctrl-C. A UserError, an OSError and a mistake in the
    flags are shown as one line, any other error in full.

    Args:
      main: main(config, run_dir), or main(config) without has_run_dir.
      presets: Name to config dataclass; the first is the default. With one entry there is no --preset flag.
      manual: What --help prints above the flags.
      has_run_dir: Whether there is a --run_dir flag.
      needs_run_dir: Whether it must be given; else main may get None.
      run_dir_text: What --help says of it.
      without_effect: Gives for a config the fields that nothing reads, and why; a line names those of them that a flag
        has set.
    """
    terminal.open_outputs()
    with terminal.ignoring_hangup(), signals.handling_sigterm():
        values = _define_flags(presets, has_run_dir)
        try:
            with signals.raising_keyboard_interrupt():
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # see launch/__init__.py
                help_text = functools.partial(_help, manual, presets, values, run_dir_text)
                code = _call(main, presets, values, help_text, needs_run_dir, without_effect)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # twice says no more than once
            resumes = has_run_dir and values["run_dir"].value
            print(f"\ninterrupted{'; the same command continues' if resumes else ''}", file=sys.stderr)
            code = 130
        except Exception as error:
            code = _report(error)
        _leave(code or 0)


def _call(
    main: Callable,
    presets: dict,
    values: flags.FlagValues,
    help_text: Callable[[], str],
    needs_run_dir: bool,
    without_effect: Callable[[Any], dict[str, str]],
) -> int | None:
    """Calls main with the config that the command line gives, or prints the help; returns what main returns."""
    arguments = _parse(values, sys.argv)
    if values["help"].value:
        return print(help_text())
    if arguments:
        raise UserError(f"unexpected argument {arguments[0]!r}; flags are written --name=value")
    with user_errors():
        config = _config(values, presets)
    given = _changes(_preset(values, presets), values)
    for name, why in without_effect(config).items():
        if name in given:
            note(f"--{name} has no effect: {why}")
    if "run_dir" not in values:
        return main(config)
    run_dir = values["run_dir"].value
    if needs_run_dir and not run_dir:
        raise UserError("--run_dir is missing: the directory for what the run writes, e.g. --run_dir=runs/first")
    require_printable("run_dir", run_dir or "")
    return main(config, run_dir)


def _report(error: Exception) -> int:
    """Says what has ended the command; returns the exit code."""
    if getattr(error, "same_command_continues", False):
        print(f"stopped: {error}; the same command continues")
        return EXIT_CONTINUE
    if "--traceback" in sys.argv or not isinstance(error, (UserError, OSError, flags.Error)):
        traceback.print_exc()
    print(f"error: {first_line(error)}", file=sys.stderr)
    return EXIT_ERROR


def _leave(code: int) -> None:
    """Exits without the destructors of tf.data, which can stall for many seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def require_printable(name: str, text: str) -> None:
    """Raises UserError for a flag with control characters: one that reaches a script could add a line to it."""
    if not text.isprintable():
        raise UserError(f"--{name} holds characters that cannot be printed: {text!r}")


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turns the ValueErrors of a library function, called with what the user gave, into UserErrors."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def _define_flags(presets: dict, has_run_dir: bool) -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_boolean("help", False, "", short_name="h", flag_values=values)
    flags.DEFINE_boolean("traceback", False, "", flag_values=values)
    if has_run_dir:
        flags.DEFINE_string("run_dir", None, "", flag_values=values)
    if len(presets) > 1:
        flags.DEFINE_string("preset", next(iter(presets)), "", flag_values=values)
    for field, default, _ in flag_fields(next(iter(presets.values()))):
        define = flags.DEFINE_boolean if isinstance(default, bool) else flags.DEFINE_string  # _value reads numbers
        define(field.name, None, "", flag_values=values)
    return values


def _parse(values: flags.FlagValues, argv: list[str]) -> list[str]:
    """Sets the flags, a leading ~ of their paths expanded; returns what is left of the command line."""
    try:
        rest = values(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        near = difflib.get_close_matches(error.flagname, list(values), n=3)
        hint = f"did you mean {' or '.join(f'--{name}' for name in near)}?" if near else "--help lists them all"
        raise UserError(f"there is no flag --{error.flagname}; {hint}") from None
    except flags.IllegalFlagValueError as error:  # of a switch alone: absl takes the others for text
        name, value = re.match(r"flag --(\w+)=(.*?): \('Non-boolean", str(error), re.S).groups()
        raise UserError(f"{name} must be true or false, got {value!r}; write --{name} or --no{name}") from None
    except flags.Error:
        raise
    except ValueError as error:  # absl's own, of --noNAME=false
        raise UserError(f"{error}; write --NAME, --noNAME or --NAME=false") from None
    for name in PATHS.intersection(values):
        if path := values[name].value:
            values[name].value = re.sub(r"(^|, *)(~[^,]*)", lambda part: part[1] + os.path.expanduser(part[2]), path)
    return rest


def _preset(values: flags.FlagValues, presets: dict[str, Any]) -> Any:
    """Returns the preset that the flags name, or the only one."""
    if "preset" in values and values["preset"].value not in presets:
        raise UserError(f"preset must be one of {', '.join(presets)}, got {values['preset'].value!r}")
    return presets[values["preset"].value] if "preset" in values else next(iter(presets.values()))


def _config(values: flags.FlagValues, presets: dict[str, Any]) -> Any:
    """Returns the preset with the given flags in place of its values."""
    preset = _preset(values, presets)
    changes = _changes(preset, values)
    refused = _refusals(preset, values)
    for name in changes:
        if name in refused:
            raise UserError(f"--{name} is {refused[name]}")
    return _replaced(preset, changes)


def _changes(preset: Any, values: flags.FlagValues) -> dict[str, Any]:
    """Returns the given flags that differ from the preset, by name."""
    given = {}
    for field, default, _ in flag_fields(preset):
        text = values[field.name].value
        if text is not None and (value := _value(field.name, type(default), text)) != default:
            given[field.name] = value
    return given


def _refusals(config: Any, values: flags.FlagValues) -> dict[str, str]:
    return config.refusals(values.flag_values_dict()) if hasattr(config, "refusals") else {}


def _replaced(config: Any, changes: dict[str, Any]) -> Any:
    own = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            own[field.name] = _replaced(value, changes)
        elif field.metadata.get("flag", True) and field.name in changes:
            own[field.name] = changes[field.name]
    return dataclasses.replace(config, **own)


def _value(name: str, kind: type, text: str | bool) -> Any:
    """Returns what a flag holds as the type of its field."""
    try:
        return tuple(map(int, text.split(","))) if kind is tuple and text else kind(text)
    except ValueError:
        wanted = {int: "a whole number", float: "a number", tuple: "whole numbers with commas between"}[kind]
        raise UserError(f"{name} must be {wanted}, got {text!r}") from None


def _help(manual: str, presets: dict, values: flags.FlagValues, run_dir_text: str) -> str:
    """Returns the manual and one entry per flag that is not refused beside those given."""
    first = next(iter(presets.values()))
    refused = _refusals(first, values)
    entries = [("--run_dir=DIR", run_dir_text)] if "run_dir" in values else []
    if len(presets) > 1:
        entries.append(
            (f"--preset={next(iter(presets))}", f"One of {', '.join(presets)}; the defaults below are the first's.")
        )
    for field, default, holder in (entry for entry in flag_fields(first) if entry[0].name not in refused):
        example = f"--[no]{field.name}" if isinstance(default, bool) else written(field.name, default)
        entries.append((example, description(field, holder)))
    entries.append(("--traceback", "Show where in the code an error arose."))
    return help_page(manual, entries)
