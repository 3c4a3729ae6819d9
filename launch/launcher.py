"""Code of every launcher: the fields of a config become flags, and a user's mistake one line.

A launcher is a module whose docstring is its manual, with
    def main(config, run_dir): …
    cli = launcher.command(main, PRESETS, manual=__doc__)

Nothing here imports TensorFlow, so `--help` and a mistyped flag answer at once.
"""

import contextlib
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from absl import flags, logging

from identity_matters.errors import (
    EXIT_CONTINUE,
    EXIT_ERROR,
    UserError,
    explaining,
    first_line,
    lack_of_memory,
    note,
    refused_value,
)
from identity_matters.runs import signals
from launch import config_flags, terminal

_REQUIRED = "Directory for the run's files; the same command continues the run. Required."
_OPTIONAL = "Directory for the run's files; without it nothing is written."


def run(
    main: Callable,
    presets: dict[str, Any],
    manual: str,
    run_dir_text: str = "",
    without_effect: Callable[[Any], dict[str, str]] = lambda config: {},
) -> None:
    """Parses sys.argv into a config, calls main, and exits.

    The exit code is 0 where main returned None, the int that it returned otherwise; 1 after an error, 75 after an
    exception whose same_command_continues is true, 130 after Ctrl-C. A UserError, an OSError and a mistake in the
    flags are shown as one line, any other error in full.

    Args:
      main: main(config); or main(config, run_dir), with a flag --run_dir; or main(config, run_dir=None), where that
        flag may be left out; or main(config, files), which takes the arguments that are no flags.
      presets: Name to config dataclass; the first is the default. With one entry there is no --preset flag.
      manual: What --help prints above the flags.
      run_dir_text: What --help says of --run_dir (empty: it is the directory for the run's files).
      without_effect: Takes a config; returns the fields that nothing reads, and why. A line names those of them that a
        flag has set.
    """
    logging.set_verbosity(logging.ERROR)  # TFDS's warnings would stand before the one line of an error
    values = config_flags.define(presets, run_dir_parameter(main) is not None)
    try:
        with explaining(refused_value):  # absl's ValueErrors, as of --noNAME=false
            rest = config_flags.parse(values, sys.argv)
        if values["help"].value:
            entries = config_flags.flag_entries(presets, values, describe_run_dir(main, run_dir_text))
            with contextlib.suppress(BrokenPipeError):  # of --help | head
                print(config_flags.wrapped_entries(manual, entries))
            code = 0
        elif rest and not takes_files(main):
            raise UserError(f"unexpected argument {rest[0]!r}; flags are written --name=value")
        else:
            short = lack_of_memory("there is not enough memory, or ulimit allows too little")
            with explaining(short, terminal.unusable_backend):
                code = _call(main, presets, values, without_effect, rest)
    except KeyboardInterrupt:
        resumes = "run_dir" in values and values["run_dir"].value
        print(f"\ninterrupted{'; the same command continues' if resumes else ''}", file=sys.stderr)
        code = 130
    except Exception as error:
        code = _report(error)
    signals.leave(code or 0)


def command(main: Callable, presets: dict[str, Any], manual: str, **options: Any) -> functools.partial[None]:
    """Returns the function that runs a launcher on the command line's flags; `run` says what the arguments are."""
    return functools.partial(run, main, presets=presets, manual=manual, **options)


def run_dir_parameter(main: Callable) -> inspect.Parameter | None:
    """Returns the parameter run_dir of a launcher's main, None where it has none."""
    return inspect.signature(main).parameters.get("run_dir")


def takes_files(main: Callable) -> bool:
    """Returns whether a launcher's main takes the arguments that are no flags."""
    return "files" in inspect.signature(main).parameters


def describe_run_dir(main: Callable, run_dir_text: str = "") -> str:
    """Returns what --help says of --run_dir."""
    parameter = run_dir_parameter(main)
    return run_dir_text or (_OPTIONAL if parameter and parameter.default is None else _REQUIRED)


def _call(
    main: Callable,
    presets: dict[str, Any],
    values: flags.FlagValues,
    without_effect: Callable[[Any], dict[str, str]],
    files: list[str],
) -> int | None:
    """Calls main with the config that the flags give; returns what main returns."""
    with explaining(refused_value):
        config, changed = config_flags.config_from(values, presets)
    for name, why in without_effect(config).items():
        if name in changed:
            note(f"--{name} has no effect: {why}")
    if takes_files(main):
        return main(config, [os.path.expanduser(file) for file in files])
    parameter = run_dir_parameter(main)
    if parameter is None:
        return main(config)
    run_dir = values["run_dir"].value
    if parameter.default is parameter.empty and not run_dir:
        raise UserError("--run_dir is missing: the directory for what the run writes, e.g. --run_dir=runs/first")
    if run_dir and not run_dir.isprintable():
        raise UserError(f"--run_dir holds characters that cannot be printed: {run_dir!r}")
    return main(config, run_dir)


def _report(error: Exception) -> int:
    """Prints what ended the command; returns the exit code."""
    if getattr(error, "same_command_continues", False):
        print(f"stopped: {error}; the same command continues")
        return EXIT_CONTINUE
    if "--traceback" in sys.argv or not isinstance(error, (UserError, OSError, flags.Error)):
        traceback.print_exc()
    print(f"error: {first_line(error)}", file=sys.stderr)
    return EXIT_ERROR
