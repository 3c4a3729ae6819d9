"""Importing and using the library from Python writes no more to the terminal than a launcher does."""

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        "import shortcut_study.curvature.operator; from identity_matters import pretrained; pretrained.load('digits')",
        "import identity_matters, importlib.util; importlib.util.find_spec('tensorflow'); import tensorflow",
    ],
)
def test_nothing_is_written_to_the_terminal_but_what_is_after_the_import(use):
    code = f"{use}; import os; os.write(2, b'seen')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "seen")
