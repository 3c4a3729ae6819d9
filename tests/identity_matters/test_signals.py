"""Ctrl-C that gets lost; SIGTERM and Ctrl-C of whole commands are in tests/launch/test_signals.py."""

import contextlib
import gc
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from identity_matters.errors import EXIT_CONTINUE
from identity_matters.runs import signals


@pytest.fixture(autouse=True)
def heeding():
    """Ctrl-C as in a terminal: a shell's background job ignores it, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_lost_ctrl_c_comes_again(monkeypatch):
    monkeypatch.setattr(signals, "_AGAIN", 0.05)
    with pytest.raises(KeyboardInterrupt), signals.raising_keyboard_interrupt():
        for _ in range(2):  # as C++ code does that calls Python
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        time.sleep(20)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_ctrl_c_that_the_garbage_collector_loses_comes_again_and_nothing_is_printed(monkeypatch):
    """JAX has the collector call it back; Python drops what is raised there, and prints it."""
    monkeypatch.setattr(signals, "_AGAIN", 0.05)
    printed, pending = [], [signal.SIGINT]
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: printed.append(lost.exc_type))
    gc.callbacks.append(collected := lambda *_: pending and signal.raise_signal(pending.pop()))
    try:
        with pytest.raises(KeyboardInterrupt), signals.raising_keyboard_interrupt():
            gc.collect()
            time.sleep(20)
    finally:
        gc.callbacks.remove(collected)
    assert not pending and not printed and sys.unraisablehook(SimpleNamespace(exc_type=ValueError)) is None
    assert printed == [ValueError]


def test_an_error_after_ctrl_c_counts_as_one_and_any_other_stays():
    def fail():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise TypeError

    with pytest.raises(KeyboardInterrupt), signals.raising_keyboard_interrupt():
        fail()
    with pytest.raises(TypeError), signals.raising_keyboard_interrupt():
        raise TypeError


def test_who_ignores_ctrl_c_goes_on_to():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals.raising_keyboard_interrupt():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


BLOCKED = """
import signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # as launch/__init__.py does, before there are threads
"""
HANGS = f"""{BLOCKED}
from identity_matters.runs import signals
signals.GRACE_PERIOD = 0.3
with signals.handling_sigterm(), signals.deferring_sigterm():
    print("ready", flush=True)
    time.sleep(60)
"""


def test_sigterm_ends_what_hangs_after_a_grace_period():
    process = subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.communicate(timeout=20)[0].startswith("stopped: ") and process.returncode == EXIT_CONTINUE


WRITES = f"""{BLOCKED}
from identity_matters.runs import signals
from identity_matters.runs.files import replacing
with signals.handling_sigterm(), replacing(sys.argv[1]) as temporary, open(temporary, "w") as file:
    file.write("half")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_sigterm_leaves_no_temporary_file_beside_what_is_written(tmp_path):
    """As launch.export_npz did, in a folder that no later command tidies."""
    process = subprocess.Popen([sys.executable, "-c", WRITES, tmp_path / "a.npz"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n" and len(list(tmp_path.iterdir())) == 1
    process.terminate()
    assert process.wait(20) == EXIT_CONTINUE and not list(tmp_path.iterdir())
