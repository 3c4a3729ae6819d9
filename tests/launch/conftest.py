"""Runs of commands that several files of this folder read."""

import re

import pytest
from launching import launched


@pytest.fixture(scope="session")
def tiny_blocks(tiny_run, tmp_path_factory):
    """A finished run of launch.near_identity on tiny_run: its directory, its flags, and its output. Read only."""
    run_dir = tmp_path_factory.mktemp("blocks") / "blocks"
    flags = [f"--saved_run={tiny_run}", "--examples=40"]
    code, out, err = launched("near_identity", f"--run_dir={run_dir}", *flags)
    assert code == 0, err
    assert re.search(r"^note: all 2 blocks will take about \d+ seconds, by the first of them$", err, re.M)
    return run_dir, flags, out
