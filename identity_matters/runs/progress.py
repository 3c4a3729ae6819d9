"""What happens at the end of every call into the compiled step: progress, timing, the check of the loss, leaving early."""

import time

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.runs.errors import Diverged


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
