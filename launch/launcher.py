"""Code of every launcher: the fields of a config become flags, and a user's mistake a one-line message.

A launcher is a module whose docstring is its manual, with
    def main(config, run_dir): …
    cli = launcher.command(main, PRESETS, manual=__doc__)

This module imports no TensorFlow, so `--help` and a mistyped flag answer at once.
"""

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Literal

from absl import flags, logging

from identity_matters.errors import (
    EXIT_CONTINUE,
    EXIT_ERROR,
    UserError,
    as_user_error,
    first_line,
    note,
    out_of_memory_error,
    translate_errors,
)
from identity_matters.runs import signals
from launch import config_flags, terminal

_REQUIRED = "Directory for the run's files; the same command continues the run. Required."
_OPTIONAL = "Directory for the run's files; without it nothing is written."


def run(
    main: Callable,
    presets: dict[str, Any],
    manual: str,
    run_dir: Literal["required", "optional", "none"] = "required",
    run_dir_text: str = "",
    takes_files: bool = False,
    unused_fields: Callable[[Any], dict[str, str]] = lambda config: {},
) -> None:
    """Parses sys.argv into a config, calls main, and exits.

    The exit code is 0 if main returned None, the int that it returned otherwise; 1 after an error, 75 after an
    exception whose same_command_continues is true, 130 after Ctrl-C. A UserError, an OSError and a mistake in the
    flags are shown without a traceback, any other error in full.

    Args:
      main: Takes the config, then run_dir and the files as the next arguments say; returns the exit code or None.
      presets: Name to config dataclass; the first is the default. With one entry there is no --preset flag.
      manual: What --help prints above the flags.
      run_dir: Whether there is a flag --run_dir, which main takes after the config; None if it is not given.
      run_dir_text: What --help says of --run_dir (empty: it is the directory for the run's files).
      takes_files: Whether main takes the arguments that are no flags, as a list of paths.
      unused_fields: Takes a config; returns the fields that nothing reads, and why. A note names each flag
        that sets one.
    """
    logging.set_verbosity(logging.ERROR)  # TFDS's warnings would stand before the one line of an error
    values = config_flags.define(presets, has_run_dir=run_dir != "none")
    try:
        with translate_errors(as_user_error):  # absl's ValueErrors, as of --noNAME=false
            rest = config_flags.parse(values, sys.argv)
        if values["help"].value:
            entries = config_flags.flag_entries(presets, values, describe_run_dir(run_dir, run_dir_text))
            with contextlib.suppress(BrokenPipeError):  # of --help | head
                print(config_flags.wrapped_entries(manual, entries))
            code = 0
        elif rest and not takes_files:
            raise UserError(f"unexpected argument {rest[0]!r}; flags are written --name=value")
        else:
            short = out_of_memory_error("there is not enough memory, or ulimit allows too little")
            with translate_errors(short, terminal.unusable_backend):
                arguments = [_config(values, presets, unused_fields)]
                if run_dir != "none":
                    arguments.append(_run_dir(values["run_dir"].value, is_required=run_dir == "required"))
                if takes_files:
                    arguments.append([os.path.expanduser(file) for file in rest])
                code = main(*arguments)
    except KeyboardInterrupt:
        resumes = "run_dir" in values and values["run_dir"].value
        print(f"\ninterrupted{'; the same command continues' if resumes else ''}", file=sys.stderr)
        code = 130
    except Exception as error:
        code = _report(error)
    signals.leave(code or 0)


def command(main: Callable, presets: dict[str, Any], manual: str, **options: Any) -> functools.partial[None]:
    """Returns the function that runs a launcher on the command line's flags; see `run` for the arguments."""
    return functools.partial(run, main, presets=presets, manual=manual, **options)


def describe_run_dir(run_dir: str = "required", text: str = "") -> str:
    """Returns what --help says of --run_dir."""
    return text or (_OPTIONAL if run_dir == "optional" else _REQUIRED)


def _config(values: flags.FlagValues, presets: dict[str, Any], unused_fields: Callable[[Any], dict[str, str]]) -> Any:
    """Returns the config that the flags give; prints a note for each flag that sets a field that nothing reads."""
    with translate_errors(as_user_error):
        config, changed = config_flags.config_from(values, presets)
    for name, why in unused_fields(config).items():
        if name in changed:
            note(f"--{name} has no effect: {why}")
    return config


def _run_dir(path: str | None, is_required: bool) -> str | None:
    """Returns the value of --run_dir; raises UserError if it cannot be a run directory."""
    if is_required and not path:
        raise UserError("--run_dir is missing: the directory for what the run writes, e.g. --run_dir=runs/first")
    if path and not path.isprintable():
        raise UserError(f"--run_dir holds characters that cannot be printed: {path!r}")
    return path


def _report(error: Exception) -> int:
    """Prints what ended the command; returns the exit code."""
    if getattr(error, "same_command_continues", False):
        print(f"stopped: {error}; the same command continues")
        return EXIT_CONTINUE
    if "--traceback" in sys.argv or not isinstance(error, (UserError, OSError, flags.Error)):
        traceback.print_exc()
    print(f"error: {first_line(error)}", file=sys.stderr)
    return EXIT_ERROR
