"""SIGTERM, by which schedulers ask a run to stop: one that trains saves a checkpoint first, others end at once; Ctrl-C.

One that has not left GRACE_PERIOD seconds later hangs, and ends at once too.

TensorFlow installs a handler of its own where several workers train, and a Python handler that raises inside one of its
collectives surfaces as some other error. So a command blocks the signal in every thread from its start
(`handling_sigterm`), and a thread of its own waits for it, which sets a flag that is checked between steps
(`deferring_sigterm`). Without that thread, in a notebook say, a Python handler sets the flag, while training lasts.
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
from typing import Any

from identity_matters.errors import EXIT_CONTINUE, Preempted
from identity_matters.runs.files import remove_temporary_folders

GRACE_PERIOD = 120.0  # seconds after SIGTERM in which a run saves and leaves, else it ends as it is
_LONGEST_END = 5.0  # seconds in which libraries close what is open
_AGAIN = 3.0  # seconds until a Ctrl-C that was lost comes again


class StopRequest:
    """A flag for whether this process, and the job that it belongs to, is to stop.

    Attributes:
      received: A signal came to this process.
      number, latest_at: The latest signal, and its time.monotonic().
      shared_decision: What several workers, which leave together, decided after the last step (None: one works alone).
    """

    def __init__(self) -> None:
        self.received, self.shared_decision = False, None
        self.number, self.latest_at = 0, 0.0

    def request(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """Takes notice of a signal; it can be a handler of signals."""
        self.number, self.latest_at = number, time.monotonic()
        self.received = True

    @property
    def should_stop(self) -> bool:
        """Returns whether to stop after the step under way."""
        return self.received if self.shared_decision is None else self.shared_decision


class _Listener:
    """The thread that SIGTERM comes to in a context of `handling_sigterm`."""

    def __init__(self) -> None:
        self.lock, self.stop, self._is_closed = threading.Lock(), None, False
        self._deadline = threading.Timer(GRACE_PERIOD, _leave_at_once)
        self._deadline.daemon = True
        self._thread = threading.Thread(target=self._wait, daemon=True, name="SIGTERM")
        self._thread.start()

    def _wait(self) -> None:
        """Waits for SIGTERM again and again, until `close`."""
        while True:
            signal.sigwait([signal.SIGTERM])
            with self.lock:
                if self._is_closed:
                    return
                if self.stop is None:
                    _leave_at_once()
                self.stop.request()
                if not self._deadline.ident:
                    self._deadline.start()

    def close(self) -> None:
        with self.lock:
            self._is_closed = True
            self._deadline.cancel()
            signal.pthread_kill(self._thread.ident, signal.SIGTERM)
        self._thread.join()


_listener: _Listener | None = None


@contextlib.contextmanager
def handling_sigterm() -> Iterator[None]:
    """Opens a context in which SIGTERM ends the process with exit code 75, or is acted on by `deferring_sigterm`.

    To be entered before TensorFlow is imported: existing threads still get the signal by the handler that is set.
    Processes started inside inherit that the signal is blocked.
    """
    global _listener
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    _listener = _Listener()
    try:
        yield
    finally:
        _listener.close()
        _listener = None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


@contextlib.contextmanager
def deferring_signals() -> Iterator[StopRequest]:
    """As `deferring_sigterm`, for Ctrl-C too; in the main thread only."""
    with deferring_sigterm() as stop:
        before = signal.signal(signal.SIGINT, stop.request)
        try:
            yield stop
        finally:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def deferring_sigterm(stop: StopRequest | None = None) -> Iterator[StopRequest]:
    """Opens a context in which SIGTERM makes the StopRequest that it yields, a new one or the given, and no more.

    Outside of `handling_sigterm` this works in the main thread only; in other threads SIGTERM acts as before.
    """
    stop = stop or StopRequest()
    if _listener:
        with _listener.lock:
            _listener.stop = stop
        try:
            yield stop
        finally:
            with _listener.lock:
                _listener.stop = None
    elif threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, stop.request)
        try:
            yield stop
        finally:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: TensorFlow's, which Python cannot restore
    else:
        yield stop


@contextlib.contextmanager
def raising_keyboard_interrupt() -> Iterator[None]:
    """Opens a context that Ctrl-C ends with KeyboardInterrupt, also where that gets lost.

    C++ code that calls Python, as TensorFlow's does in its imports and while it traces, may drop a KeyboardInterrupt or
    turn it into an error of its own. So it is raised again every few seconds until it comes out, and an error that
    comes out after Ctrl-C counts as one. To be entered in the main thread; a process that ignores Ctrl-C goes on to.
    """
    is_made = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_made
        is_made = True
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        raise KeyboardInterrupt

    def report(lost: Any) -> None:
        if lost.exc_type is not KeyboardInterrupt:  # which comes again; in a callback of the garbage collector, say
            unraisable(lost)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    unraisable, sys.unraisablehook = sys.unraisablehook, report
    before = [(number, signal.signal(number, interrupt)) for number in (signal.SIGINT, signal.SIGALRM)]
    try:
        yield
    except Exception as error:
        if is_made:
            raise KeyboardInterrupt from error
        raise
    finally:
        sys.unraisablehook = unraisable
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)


def _leave_at_once() -> None:
    """Ends the process with the exit code that means: the same command continues."""
    with contextlib.suppress(OSError, ValueError):
        print(f"stopped: {Preempted()}; the same command continues", flush=True)
    leave(EXIT_CONTINUE)


def _remove_compiled_autograph() -> None:
    """Removes what Python has compiled of the temporary modules of AutoGraph, which removes these alone."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__autograph_generated_file"):
            compiled = getattr(module.__spec__, "cached", None) or ""
            with contextlib.suppress(OSError):
                os.remove(compiled)
                os.rmdir(os.path.dirname(compiled))  # where it held nothing else


def leave(code: int) -> None:
    """Ends the process, from any thread, without the destructors of tf.data, which can take 7 to 27 seconds.

    That is longer than some schedulers wait after SIGTERM. What is to be done before is done: libraries close logs and
    remove temporary files, such as those of TensorFlow's AutoGraph.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    remove_temporary_folders()  # those whose removal a Ctrl-C has ended
    _remove_compiled_autograph()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # the error has been printed
        # In a thread that need not end: the writer of a log can wait for ever for a disk that was full.
        ending = threading.Thread(target=atexit._run_exitfuncs, daemon=True)
        ending.start()
        ending.join(_LONGEST_END)
        os._exit(code)  # not sys.exit, which ends one thread alone
