"""What happens at the end of every call into the compiled step: progress, timing, the check of the loss, leaving early."""

import contextlib
import re
import signal
import threading
import time

import keras
import numpy as np
from tqdm import tqdm


class Diverged(ArithmeticError):
    """The loss became NaN or infinite.

    Attributes:
      step: int. The number of the update, from 1.
    """

    def __init__(self, step: int):
        super().__init__(f"the loss became NaN or infinite at step {step}")
        self.step = step


class Preempted(Exception):
    """SIGTERM came before the end of the run.

    Attributes:
      step: int. Updates done when the run was saved; None: there was nothing new to save.
    """

    same_command_continues = True  # for launch.launcher

    def __init__(self, step: int | None = None):
        super().__init__(f"told to stop by SIGTERM, {'nothing new to save' if step is None else f'saved at step {step}'}")
        self.step = step


class WorkerLost(ConnectionError):
    """Another worker is gone, or never came: what is left of the job cannot go on."""

    same_command_continues = True

    def __init__(self, who: str, error: Exception):
        reason = re.sub(r"\{\{.*?\}\} *", "", next((line for line in str(error).splitlines() if line.strip()), ""))
        super().__init__(f"{who} lost another one ({type(error).__name__}: {reason.strip()[:200]})")


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


class Meter:
    """Steps per second, without the first call of a fit, which may compile, unless it is the only one."""

    def __init__(self):
        self._steps, self._seconds = 0, 0.0

    def add(self, steps: int, seconds: float) -> None:
        self._steps += steps
        self._seconds += seconds

    def take_rate(self) -> float:
        """Since the last call; NaN if nothing was timed."""
        rate = self._steps / self._seconds if self._seconds else float("nan")
        self._steps, self._seconds = 0, 0.0
        return rate


class Watch(keras.callbacks.Callback):
    """Moves the progress bar, times the steps, stops the run at the first loss that is not finite, and when it must leave.

    Args:
      bar: tqdm.
      meter: Meter.
      first_step: int.
      must_leave: callable. Asked after every call.

    Attributes:
      step: int. Updates done.
    """

    def __init__(self, bar: tqdm, meter: Meter, first_step: int, must_leave):
        super().__init__()
        self._bar, self._meter, self._first_step, self._must_leave = bar, meter, first_step, must_leave
        self.step, self._last = first_step, None
        self._timed = False

    def on_train_begin(self, logs=None):
        self._began = time.perf_counter()

    def on_train_end(self, logs=None):
        if self._last and not self._timed:  # a single call: better timed with its compilation than not at all
            self._meter.add(self._last[0] - self._first_step, self._last[1] - self._began)

    def on_train_batch_end(self, batch, logs=None):
        step, loss, now = self._first_step + batch + 1, float(logs["loss"]), time.perf_counter()
        if not np.isfinite(loss):
            raise Diverged(step)
        if self._last:
            self._meter.add(step - self._last[0], now - self._last[1])
            self._timed = True
        self._last, self.step = (step, now), step
        self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        self._bar.update(step - self._bar.n)
        if self._must_leave():
            self.model.stop_training = True
