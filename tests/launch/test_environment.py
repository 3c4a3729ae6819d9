"""What the environment of a command holds ends it in no traceback, and a hang in none of its libraries."""

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
@pytest.mark.parametrize(
    "name, flags",
    [
        pytest.param("evaluate", ["--pretrained=digits", "--max_examples=20"], marks=pytest.mark.nightly),
        ("train", [*FLAGS, "--train_steps=2", "--checkpoint_every=1"]),
    ],
)
def test_nothing_is_left_in_the_temporary_folder(tmp_path, name, flags):
    (tmp_path / "temporary").mkdir()
    flags = [*flags, f"--run_dir={tmp_path}/run"] if name == "train" else flags
    done = command(name, *flags, env=os.environ | {"TMPDIR": f"{tmp_path}/temporary", "PYTHONDONTWRITEBYTECODE": ""})
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "temporary") == []


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
def test_a_backend_that_is_not_installed_is_one_line_before_anything_is_computed(tmp_path, name, flags):
    done = command(name, f"--run_dir={tmp_path}/run", *flags, env=os.environ | {"KERAS_BACKEND": "torch"})
    assert done.returncode == 1 and not (tmp_path / "run" / "results.csv").exists()
    assert done.stderr.splitlines()[-1] == "error: KERAS_BACKEND=torch cannot be used: No module named 'torch'"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name, flag", [("plot", "run_dir"), ("evaluate", "saved_model"), ("train", "run_dir"), ("train", "npz")]
)
def test_a_name_of_300_characters_is_one_line(launch, tmp_path, name, flag):
    flags = [f"--{flag}={tmp_path}/{'x' * 300}"]
    code, _, err = launch(name, *flags, *([f"--run_dir={tmp_path}/run"] if flag == "npz" else []))
    assert code == 1 and err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_lack_of_memory_anywhere_is_one_line(launch, tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("launch.plot.read_config_json", fail)
    code, _, err = launch("plot", f"--run_dir={tmp_path}")
    assert (code, err) == (1, "error: there is not enough memory, or ulimit allows too little\n")
