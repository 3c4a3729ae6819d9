"""Calls of a launcher in this process, which is quick and lets tests change its modules; and its presets."""

import contextlib
import importlib
import io
import sys

import pytest

from identity_matters.errors import as_user_error, translate_errors
from launch import config_flags, launcher

LAUNCHERS = (
    "train evaluate classify plot ablations check_theory relu_search descent_map shortcut_study hessian_spectrum "
    "near_identity cluster export_npz report"
).split()


def launched(name, *arguments) -> tuple[int, str, str]:
    """Runs launch.NAME with these arguments; returns its exit code, stdout and stderr. The fixture `launch` is this."""

    def leave(code):
        raise SystemExit(code)

    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(launcher.signals, "leave", leave)
        patch.setattr(sys, "argv", [f"launch/{name}.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            importlib.import_module(f"launch.{name}").cli()
    return exit.value.code, out.getvalue(), err.getvalue()


def presets_of(name):
    """The configs of a launcher by the names of its presets."""
    return importlib.import_module(f"launch.{name}").cli.keywords["presets"]


def config_of(name, *flags):
    """The config that a launcher makes of these flags; without any its default."""
    values = config_flags.define(presets_of(name), has_run_dir=True)
    with translate_errors(as_user_error):
        assert config_flags.parse(values, ["", *flags]) == []
        return config_flags.config_from(values, presets_of(name))[0]
