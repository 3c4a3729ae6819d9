"""What happens after every call into the compiled step: progress bar, timing, the check of the loss, stopping."""

import sys
import time
from types import TracebackType

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.errors import Diverged
from identity_matters.runs.signals import StopRequest


class Progress:
    """The progress bar of a run, and its speed; a context in which the bar is there.

    Args:
      num_steps: int. Updates of the whole run.
      first_step: int. Updates done before.
      is_shown: bool. Whether there is a bar at all.
    """

    def __init__(self, num_steps: int, first_step: int, is_shown: bool) -> None:
        self._num_steps, self._first_step = num_steps, first_step
        self._is_shown, self._steps, self._seconds = is_shown, 0, 0.0

    def __enter__(self) -> "Progress":
        self._bar = tqdm(
            total=self._num_steps,
            initial=self._first_step,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.1 if sys.stderr.isatty() else 10,  # seconds; a log file is not redrawn
            disable=not self._is_shown,
        )
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._bar.close()

    def show(self, step: int, loss: float) -> None:
        """Moves the bar to a step, and shows the loss beside it."""
        self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        self._bar.update(step - self._bar.n)

    def write(self, line: str) -> None:
        """Prints a line above the bar."""
        if self._is_shown:
            self._bar.write(line)

    def time(self, steps: int, seconds: float) -> None:
        """Counts steps, and the seconds that they took."""
        self._steps += steps
        self._seconds += seconds

    def take_rate(self) -> float:
        """Returns the steps per second since the last call; NaN if nothing was timed."""
        rate = self._steps / self._seconds if self._seconds else float("nan")
        self._steps, self._seconds = 0, 0.0
        return rate


class StepCallback(keras.callbacks.Callback):
    """Follows one call of fit: shows and times its steps, and ends it where the loss is not finite or on request.

    The first call of a fit may compile, so it is not timed unless it is the only one.

    Args:
      progress: Progress.
      first_step: int. Updates done before.
      stop: StopRequest. Looked at after every call.

    Attributes:
      step: int. Updates done.
    """

    def __init__(self, progress: Progress, first_step: int, stop: StopRequest) -> None:
        super().__init__()
        self._progress, self._first_step, self._stop = progress, first_step, stop
        self.step, self._last, self._is_timed = first_step, None, False

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Takes in the steps of one call.

        Raises:
          Diverged: the loss is NaN or infinite.
        """
        step, loss, now = self._first_step + batch + 1, float(logs["loss"]), time.perf_counter()
        if not np.isfinite(loss):
            raise Diverged(step, step - self.step)
        if self._last:
            self._progress.time(step - self.step, now - self._last)
            self._is_timed = True
        self._last, self.step = now, step
        self._progress.show(step, loss)
        if self._stop.is_agreed:
            self.model.stop_training = True

    def on_train_end(self, logs: dict | None = None) -> None:
        """Times a single call, its compilation included, rather than nothing."""
        if self._last and not self._is_timed:
            self._progress.time(self.step - self._first_step, self._last - self._began)
