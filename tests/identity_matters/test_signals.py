"""Ctrl-C that gets lost; SIGTERM and Ctrl-C of whole commands are in tests/launch/test_signals.py."""

import contextlib
import signal
import time

import pytest

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
