"""SIGTERM: what it does while a run starts, trains and ends."""

import contextlib
import signal
import threading

from identity_matters.runs.errors import Preempted


def leave_at_once() -> None:
    raise Preempted()


@contextlib.contextmanager
def on_sigterm(act):
    """SIGTERM calls act(), in place of whatever it did (TensorFlow ignores it where workers train); only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: TensorFlow's, which Python cannot restore
