"""benchmarks.harness: the rounds, the table, and peers that fail."""

import contextlib
import os

import numpy as np
import pytest

from benchmarks import harness
from identity_matters.runs import machine


def peer_functions(start):
    return {"add": lambda number: start + number, "pid": os.getpid, "crash": lambda: os._exit(139), "fail": fail}


def fail():
    raise ArithmeticError("not the same function")


def missing():
    import no_such_framework  # noqa: F401


def test_measurements_take_turns_and_the_first_round_does_not_count():
    calls = []

    def measure(name):
        calls.append(name)
        return len(calls)

    found = harness.interleaved({name: lambda name=name: measure(name) for name in "ab"}, 2)
    assert calls == list("ababab")
    assert found["a"] == [3, 5] and found["b"] == [4, 6] and len(found[harness.OTHERS]) == 2


def test_without_proc_it_is_unknown_how_busy_the_machine_was(monkeypatch):
    monkeypatch.setattr(harness.os.path, "exists", lambda path: False)
    assert np.isnan(harness.interleaved({"a": lambda: 1}, 1)[harness.OTHERS]).all()


def test_a_peer_answers_from_its_own_process_which_ends_with_it():
    with harness.Peer(peer_functions, 3) as peer:
        assert peer.call("add", 4) == 7
        pid = peer.call("pid")
        assert pid != os.getpid()
        with pytest.raises(ArithmeticError, match="not the same function"):
            peer.functions["fail"]()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_peer_that_crashes_is_an_error_here_and_no_crash():
    with harness.Peer(peer_functions, 3) as peer, pytest.raises(RuntimeError, match="exit code 139"):
        peer.call("crash")


def test_a_peer_whose_framework_is_not_installed_is_omitted_with_a_note(capsys):
    assert harness.functions_of_peer(contextlib.ExitStack(), "torch", missing) == {}
    assert "torch is left out: No module named 'no_such_framework'" in capsys.readouterr().out


@pytest.mark.parametrize("system", ["Linux", "macOS"])
def test_the_environment_line_names_the_machine_and_the_versions(system, monkeypatch):
    if system == "macOS":
        monkeypatch.delattr(os, "sched_getaffinity")
        monkeypatch.setattr(os.path, "exists", lambda path: not path.startswith("/proc"))
    line = harness.environment()
    assert line.startswith(machine.machine()) and "numpy " in line


def test_a_table_is_aligned_and_a_range_has_three_digits():
    rows = [("step", harness.with_range([1.23456, 1234.5, 12.0]))]
    assert rows == [("step", "12 (1.23 – 1,234)")]
    lines = harness.table(("measured", "median (min – max)"), rows).splitlines()
    assert len({len(line) for line in lines}) == 1 and lines[1].startswith("| ----")


def test_a_ratio_is_that_of_the_first_to_the_second_in_each_round():
    assert harness.ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


def test_report_prints_a_dash_for_a_missing_column_and_a_ratio_otherwise(capsys):
    rows = {
        "a": {"sweep": [0.5, 0.25], "loop": [2.0, 0.1], "peer": [4.0, 4.0], harness.OTHERS: [0.5, 0.5]},
        "b": {"sweep": [0.5, 0.5], "loop": [2.0, 2.0]},
    }
    harness.report("sweeps", rows, {"peer / sweep": ("peer", "sweep")}, 2)
    _, title, *lines = filter(None, capsys.readouterr().out.splitlines())
    assert title == f"sweeps, 2 rounds; {harness.OTHERS}: 0.5"
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "--" not in line] == [
        ["", "sweep", "loop", "peer", "peer / sweep"],
        ["a", "0.375 (0.25 – 0.5)", "1.05 (0.1 – 2)", "4 (4 – 4)", "12 (8 – 16)"],
        ["b", "0.5 (0.5 – 0.5)", "2 (2 – 2)", "–", "–"],
    ]
    harness.report("one", {"a": {"sweep": [2.0], harness.OTHERS: [0.0]}}, {}, 1)
    assert "| sweep |          2 (2 – 2) |" in capsys.readouterr().out


@pytest.mark.parametrize("theirs", [[1.0, 2.1], [np.nan, 2.0]])
def test_results_that_differ_end_a_benchmark(theirs, capsys):
    harness.check_same("sums", np.array([1.0, 2.0]), np.array([1.0, 2.1]), 0.06)
    assert "differ by 5.0e-02 of the largest" in capsys.readouterr().out
    with pytest.raises(ArithmeticError, match="sums: theirs differ from ours"):
        harness.check_same("sums", np.array([1.0, 2.0]), np.array(theirs), 0.04)
