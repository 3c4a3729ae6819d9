"""SIGTERM, by which schedulers ask a run to stop: while it trains, the run saves a checkpoint and leaves.

At any other time SIGTERM ends a process as it ends every program, and Ctrl-C raises KeyboardInterrupt as in every
Python program.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """A flag for whether this process, and the job that it belongs to, is to stop.

    Attributes:
      received: A signal came to this process.
      number, latest_at: The latest signal, and its time.monotonic().
      shared_decision: The decision of several workers, which leave together, after the last step (None: a single
        worker).
    """

    def __init__(self) -> None:
        self.received = False
        self.shared_decision: bool | None = None
        self.number = 0
        self.latest_at = 0.0

    def request(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """Takes notice of a signal; it can be a handler of signals."""
        self.number = number
        self.latest_at = time.monotonic()
        self.received = True

    @property
    def should_stop(self) -> bool:
        """Whether to stop after the step under way."""
        return self.received if self.shared_decision is None else self.shared_decision


@contextlib.contextmanager
def deferring_sigterm(stop: StopRequest | None = None) -> Iterator[StopRequest]:
    """Context manager: SIGTERM sets the flag of the StopRequest that it yields, a new one or the given.

    A Python handler that raises inside one of TensorFlow's collectives surfaces as some other error, so that the flag
    is looked at between steps. Outside the main thread, the only one that can handle signals, SIGTERM acts as before.
    """
    stop = stop or StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, stop.request)
    try:
        yield stop
    finally:
        # None is a handler of TensorFlow's C++ code, which Python cannot restore.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def deferring_signals() -> Iterator[StopRequest]:
    """Context manager: as `deferring_sigterm`, for Ctrl-C too; in the main thread only."""
    with deferring_sigterm() as stop:
        before = signal.signal(signal.SIGINT, stop.request)
        try:
            yield stop
        finally:
            signal.signal(signal.SIGINT, before)


def leave(code: int) -> None:
    """Ends the process without the destructors of tf.data, which can take 7 to 27 seconds.

    That is longer than some schedulers wait after SIGTERM. What libraries have registered with atexit, as the removal
    of temporary files, is done.
    """
    with contextlib.suppress(OSError):  # a pipe whose reader has gone
        sys.stdout.flush()
        sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(code)
