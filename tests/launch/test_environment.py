"""What the environment of a command holds ends it in no traceback, and a hang in none of its libraries."""

import importlib.util
import os
import resource
import subprocess
import sys

import pytest
from processes import FLAGS


def command(name, *flags, **options):
    command = [sys.executable, "-m", f"launch.{name}", *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize("gibibytes", [0.4, 3])
def test_too_little_address_space_is_one_line_before_anything_is_imported(tmp_path, gibibytes):
    """TensorFlow and OpenBLAS hang, deaf to SIGTERM, or abort where they get less than they need."""
    limit = int(gibibytes * 2**30)
    done = command(
        "train", f"--run_dir={tmp_path}/run", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{limit:,}" in done.stderr and "ulimit" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_backend_that_is_none_and_warnings_as_errors_end_no_command(tmp_path):
    environment = os.environ | {"MPLBACKEND": "nonsense", "PYTHONWARNINGS": "error"}
    for name, flags in (("train", [*FLAGS, "--train_steps=2", "--checkpoint_every=1"]), ("plot", ["--format=pdf"])):
        done = command(name, f"--run_dir={tmp_path}/run", *flags, env=environment)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


END = """
import atexit, sys, time
from identity_matters.runs import signals
from launch import plot
path = sys.argv.pop(1)
atexit.register(lambda: open(path, "w").close())
if {hangs}:
    signals._LONGEST_END = 0.5
    atexit.register(time.sleep, 200)
plot.cli()
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_what_libraries_do_at_the_end_is_done_or_not_waited_for(tmp_path, hangs):
    flags = [f"{tmp_path}/ended", f"--run_dir={tmp_path}/none"]
    script = [sys.executable, "-c", END.format(hangs=hangs), *flags]
    done = subprocess.run(script, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert (tmp_path / "ended").exists() != hangs


STOPPED = """
import atexit, os, signal, sys, time
from identity_matters.runs import signals
atexit.register(lambda: open(sys.argv[1], "w").close())
with signals.handling_sigterm():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(100)
"""


def test_what_libraries_do_at_the_end_is_done_after_a_sigterm_that_ends_at_once(tmp_path):
    script = [sys.executable, "-c", STOPPED, f"{tmp_path}/ended"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 75 and done.stdout.startswith("stopped: ")
    assert (tmp_path / "ended").exists()


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
    assert "KERAS_BACKEND=torch" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_lack_of_memory_anywhere_is_one_line(launch, tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("launch.plot.read_config_json", fail)
    code, _, err = launch("plot", f"--run_dir={tmp_path}")
    assert code == 1 and "memory" in err and err.count("\n") == 1


def test_help_without_docstrings_is_one_line():
    environment = os.environ | {"PYTHONOPTIMIZE": "2"}
    command = [sys.executable, "-m", "launch.evaluate", "--help"]  # which imports little, for nothing is cached
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "PYTHONOPTIMIZE" in done.stderr and done.stderr.count("\n") == 1
