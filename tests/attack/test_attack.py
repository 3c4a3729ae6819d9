"""The attack runs, finds nothing in a few tries of each kind, and reports what a kind finds."""

import subprocess
import sys

import pytest

from attack.__main__ import attempt


def attack(*flags):
    """Runs the command in a process that has not computed anything, which is what can be forked."""
    return subprocess.run([sys.executable, "-m", "tests.attack", *flags], capture_output=True, text=True)


@pytest.mark.slow
def test_a_try_of_each_kind():
    done = attack("--tries=1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_ten_minutes_of_all_kinds():
    done = attack("--minutes=10", "--seed=1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_finding_is_reported_with_the_seed_that_makes_it_again():
    def finds(random, folder):
        assert folder.is_dir() and random.random() > 2, "found"

    report = attempt({"bad": finds}, 3, "bad", 5)
    assert report.startswith("--seed=3 --only='bad':5 in ") and "AssertionError: found" in report
    assert attempt({"good": lambda random, folder: None}, 3, "good", 5) == ""
