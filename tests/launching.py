"""How tests call a launcher: in this process, where it is quick and its modules can be changed; and its presets."""

import importlib
import sys

import pytest

from launch import launcher

LAUNCHERS = (
    "train evaluate plot ablations check_theory relu_search descent_map shortcut_study hessian_spectrum cluster "
    "export_npz report"
).split()


def launch_in_process(monkeypatch, capsys, name, *arguments) -> tuple[int, str, str]:
    """Runs launch.NAME with these arguments; returns its exit code, stdout and stderr. The fixture `launch` is this."""

    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(launcher, "_leave", leave)
    monkeypatch.setattr(sys, "argv", [f"launch/{name}.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        importlib.import_module(f"launch.{name}").cli()
    return exit.value.code, *capsys.readouterr()


def presets_of(name):
    """What a launcher hands to launcher.run, without running it."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "run", lambda main, presets, **_: found.append(presets))
        importlib.import_module(f"launch.{name}").cli()
    return found[0]
