"""benchmarks.memorization: what it refuses."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("flag", ["--width=0", "--width=1", "--widths=8,0"])
def test_a_width_that_no_network_has_is_one_line(flag):
    done = subprocess.run([sys.executable, "-m", "benchmarks.memorization", flag], capture_output=True, text=True)
    assert done.returncode != 0 and done.stderr.count("\n") == 1, done.stderr
    assert "width and widths must be at least 2, got" in done.stderr
