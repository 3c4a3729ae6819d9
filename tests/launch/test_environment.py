"""What the environment of a command holds ends it in no traceback, and a hang in none of its libraries."""

import os
import resource
import subprocess
import sys

import pytest
from processes import FLAGS


def command(name, *flags, **options):
    command = [sys.executable, "-m", f"launch.{name}", *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize("gibibytes", [0.4, 1, 2, 3])
def test_too_little_address_space_is_one_line_before_anything_is_imported(tmp_path, gibibytes):
    """TensorFlow and OpenBLAS hang, deaf to SIGTERM, or abort where they get less than they need."""
    limit = int(gibibytes * 2**30)
    done = command(
        "train", f"--run_dir={tmp_path}/run", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {limit:,} bytes of address space are too few: ulimit -v 4194304 or more\n"


@pytest.mark.slow
def test_a_backend_that_is_none_and_warnings_as_errors_end_no_command(tmp_path):
    environment = os.environ | {"MPLBACKEND": "nonsense", "PYTHONWARNINGS": "error"}
    for name, flags in (("train", [*FLAGS, "--train_steps=2", "--checkpoint_every=1"]), ("plot", ["--format=pdf"])):
        done = command(name, f"--run_dir={tmp_path}/run", *flags, env=environment)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


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


def test_help_without_docstrings_is_one_line():
    environment = os.environ | {"PYTHONOPTIMIZE": "2"}
    command = [sys.executable, "-m", "launch.evaluate", "--help"]  # which imports little, for nothing is cached
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: --help prints docstrings, which PYTHONOPTIMIZE=2")
    assert done.stderr.count("\n") == 1
