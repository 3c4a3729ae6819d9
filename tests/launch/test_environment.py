"""No environment variable ends a command in a traceback, or in a hang of one of its libraries."""

import importlib.util
import os
import subprocess
import sys

import pytest
from processes import FLAGS


def command(name, *flags, **options):
    command = [sys.executable, "-m", f"launch.{name}", *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is there")
@pytest.mark.parametrize(
    "name, flags",
    [
        ("shortcut_study", ["--preset=smoke"]),
        ("hessian_spectrum", ["--pretrained=digits"]),
        ("train", FLAGS),
        ("near_identity", ["--pretrained=digits"]),
        ("ablations", ["--preset=mnist"]),
    ],
)
def test_a_missing_backend_is_a_short_error_before_anything_is_computed(tmp_path, name, flags):
    done = command(name, f"--run_dir={tmp_path}/run", *flags, env=os.environ | {"KERAS_BACKEND": "torch"})
    assert done.returncode == 1 and not (tmp_path / "run" / "results.csv").exists()
    assert "KERAS_BACKEND=torch" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_lack_of_memory_anywhere_is_a_short_error(launch, tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("launch.plot.read_record", fail)
    code, _, err = launch("plot", f"--run_dir={tmp_path}")
    assert (code, err) == (1, "error: there is not enough memory, or ulimit allows too little\n")
