"""Importing and using the library from Python writes no more to the terminal than a launcher does."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "use",
    [
        "from identity_matters import pretrained; pretrained.load('digits')",
        "from identity_matters.evaluation import evaluate",
        "import shortcut_study.curvature.operator",
        "import identity_matters, importlib.util; importlib.util.find_spec('tensorflow'); import tensorflow",
    ],
)
@pytest.mark.slow
def test_nothing_is_written_to_the_terminal(use):
    done = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_what_is_written_after_the_import_is_shown():
    code = "import identity_matters, tensorflow, os; os.write(2, b'seen')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == "seen"
