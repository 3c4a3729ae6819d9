"""The callback of each call of fit, and how it calls a user's Keras callbacks: which hooks, and when.

    hook                              when
    set_params, set_model             once, first; params: steps, epochs (evaluations in all); model: the network
    on_train_begin()                  the run begins or continues
    on_epoch_begin(i)                 before the first update of the part that ends with evaluation i, from 0
    on_train_batch_begin(step)        before each call of the compiled program, of steps_per_execution updates
    on_train_batch_end(step, logs)    after it: loss, cross_entropy, top1 and top5, means since the last checkpoint
                                      or evaluation
    on_epoch_end(i, logs)             after evaluation i: its row of metrics.csv, but for epoch, and the test or
                                      held-out loss as val_loss
    on_train_end(logs)                all results are written; the last row

So an epoch of Keras is the part of the run between two evaluations. `step` is the number of the call's last update,
from 0 over the whole run (in on_train_batch_begin of its first). No other hook is called, and none if the run was
done before, even if its results are written again. `self.model` is the network, not compiled, from standardised
images to logits; `self.model.optimizer` is the run's optimiser. A callback that sets `self.model.stop_training` ends
the run as its last step would: after the current call, or in on_train_begin after the first, with a checkpoint, an
evaluation and the results, status done. With callbacks there is a checkpoint at each evaluation, because many of them
end a run there.

Keras callbacks that would change what the run's config sets are refused before anything is written, and so are their
subclasses: TensorBoard, SwapEMAWeights, BackupAndRestore and OrbaxCheckpoint. LearningRateScheduler and
ReduceLROnPlateau are accepted if `train` was given an optimiser whose rate is a number. They act after an evaluation,
so after the checkpoint of its step: a run that is interrupted there continues at the rate before. EarlyStopping and
ModelCheckpoint need mode="min" or "max" if they monitor anything but a loss; restore_best_weights acts when the results
are written.

A callback that changes nothing leaves the run bit-identical. The state of callbacks is in no checkpoint: after an
interruption they start again at the step of the newest checkpoint, and are called for the updates since then again.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.config import TrainConfig
from identity_matters.errors import Diverged, UserError
from identity_matters.runs.signals import StopRequest

SNAPSHOT_SECONDS = 10  # between copies of the weights in memory: of the paper's network 0.1 s each
_HAS_SCHEDULE = (
    "its schedule sets the learning rate; train(…, optimizer=keras.optimizers.SGD(0.1)) leaves it to callbacks"
)
_HAS_CHECKPOINTS = "the run saves and restores checkpoints itself; ModelCheckpoint saves the network too"
# Names in keras.callbacks, and what a run does in their place.
REFUSED = {
    "BackupAndRestore": _HAS_CHECKPOINTS,
    "LearningRateScheduler": _HAS_SCHEDULE,
    "OrbaxCheckpoint": _HAS_CHECKPOINTS,
    "ReduceLROnPlateau": _HAS_SCHEDULE,
    "SwapEMAWeights": "the run's optimiser does not average weights",
    "TensorBoard": "the run writes TensorBoard events itself, into run_dir",
}


def checked_callbacks(
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None,
    may_set_rate: bool = False,
) -> tuple[keras.callbacks.Callback, ...]:
    """Returns callbacks, given as Keras takes them, after checking that a run can use them.

    may_set_rate: whether the run's optimiser has a learning rate that is a number, so that no schedule is in the way.

    Raises TypeError where one is not a Keras callback; UserError where one is in REFUSED, or a subclass of it, or does
    not know whether more or less of its metric is better.
    """
    unpacked = () if callbacks is None else tuple(_unpacked(callbacks))
    for callback in unpacked:
        class_name = type(callback).__name__
        for name, reason in REFUSED.items():
            is_allowed = may_set_rate and reason == _HAS_SCHEDULE
            if not is_allowed and isinstance(callback, getattr(keras.callbacks, name, ())):  # Keras 3.12 lacks some
                which = name if class_name == name else f"{class_name}, which is a {name}"
                raise UserError(f"{which} cannot be a callback of a run: {reason}")
        # Keras looks up what is better in the metrics of a compiled model, at the first evaluation.
        if isinstance(callback, (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint)):
            is_open = callback.mode == "auto" and callback.monitor_op is None
            if is_open and callback.monitor.removeprefix("val_") != "loss":
                raise UserError(
                    f"{class_name} needs to know what is better, mode='min' or 'max' for monitor={callback.monitor!r}"
                )
    return unpacked


def _unpacked(callbacks: Any) -> Iterator[keras.callbacks.Callback]:
    """Yields the callbacks, those of a list, Python's or Keras's, one by one; raises TypeError for anything else."""
    if isinstance(callbacks, keras.callbacks.Callback) and not isinstance(callbacks, keras.callbacks.CallbackList):
        yield callbacks
        return
    members = getattr(callbacks, "callbacks", callbacks)
    if not isinstance(members, Iterable) or isinstance(members, str):
        raise TypeError(f"callbacks must be keras.callbacks.Callback objects, got {callbacks!r}")
    for member in members:
        yield from _unpacked(member)


def _call(hook: Callable, *arguments: Any) -> None:
    """Calls a hook, whose StopIteration is an error as in a generator: fit would take it for the end of the data."""
    try:
        hook(*arguments)
    except StopIteration as error:
        raise RuntimeError("a callback raised StopIteration") from error


class RunCallback(keras.callbacks.Callback):
    """Follows every call of fit: the progress bar, the time, the check of the loss, stopping, the user's callbacks.

    Use it as a context, in which the progress bar is there; without has_bar nothing is printed. `step` counts the
    updates done. `on_finite` is given the step after a call whose loss is finite, at most every SNAPSHOT_SECONDS, so
    that weights can be kept of what diverges later. `stop` is checked after every call into the compiled program, and
    so is network.stop_training, which a user's callback, where `are_given`, may set.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        network: keras.Model,
        config: TrainConfig,
        step: int,
        stop: StopRequest,
        has_bar: bool,
        on_finite: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self._on_finite, self._next_snapshot = on_finite, time.perf_counter() + SNAPSHOT_SECONDS
        self.step, self.are_given = step, bool(callbacks)
        self._network, self._stop, self._has_bar = network, stop, has_bar
        self._num_steps, self._epoch, self._is_in_epoch = config.train_steps, 0, False
        self._timed_steps, self._seconds = 0, 0.0
        network.stop_training = False
        epochs = -(-config.train_steps // config.eval_every)
        self._list = keras.callbacks.CallbackList(
            list(callbacks), model=network, steps=config.train_steps, epochs=epochs, verbose=0
        )

    def __enter__(self) -> "RunCallback":
        self._bar = tqdm(
            total=self._num_steps,
            initial=self.step,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.1 if sys.stderr and sys.stderr.isatty() else 10,  # seconds; a log file is not redrawn
            disable=not (self._has_bar and sys.stderr),  # Python's streams are None in a process that has none
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    @property
    def is_stopping(self) -> bool:
        """Returns whether a user's callback has asked for the end of the run."""
        return self._network.stop_training

    def begin(self, num_evaluations: int) -> None:
        """Tells the user's callbacks that training continues after this number of evaluations."""
        self._epoch = num_evaluations
        self._list.on_train_begin()

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Starts the clock of one call of fit."""
        self._first_step, self._began, self._last = self.step, time.perf_counter(), None
        self._is_timed = False

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Passes on the beginning of a call into the compiled program, and of the epoch that it may begin."""
        if not self._is_in_epoch:
            self._is_in_epoch = True
            _call(self._list.on_epoch_begin, self._epoch)
        _call(self._list.on_train_batch_begin, self.step)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Records the updates of one call, and ends fit if a signal or a callback asks for it; raises Diverged."""
        step, loss, now = self._first_step + batch + 1, float(logs["loss"]), time.perf_counter()
        if not np.isfinite(loss):
            raise Diverged(step, step - self.step)
        if self._last:  # the first call of a fit may compile, so it is timed only where it is the only one
            self._count(step - self.step, now - self._last)
            self._is_timed = True
        self._last, self.step = now, step
        self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        self._bar.update(step - self._bar.n)
        if self._on_finite and now >= self._next_snapshot:
            _ = self.model  # under JAX, asking for it gives the network its current weights
            self._on_finite(step)
            self._next_snapshot = time.perf_counter() + SNAPSHOT_SECONDS
        if self.are_given:
            training = self.model  # under JAX, asking for it gives the network its current weights
            _call(self._list.on_train_batch_end, step - 1, logs)
            if self.is_stopping:
                training.stop_training = True
        if self._stop.should_stop:
            self.model.stop_training = True

    def on_train_end(self, logs: dict | None = None) -> None:
        """Times a single call, its compilation included, rather than nothing."""
        if self._last and not self._is_timed:
            self._count(self.step - self._first_step, self._last - self._began)

    def evaluated(self, row: dict[str, float], line: str) -> None:
        """Prints the line of an evaluation above the bar, and passes on its row."""
        if self._has_bar:
            with self._bar.external_write_mode():
                print(line)
        self._is_in_epoch = False
        logs = {name: value for name, value in row.items() if name != "epoch"}  # a word that Keras uses itself
        self._list.on_epoch_end(self._epoch, logs | {"val_loss": row["test_cross_entropy"]})
        self._epoch += 1

    def end(self, row: dict[str, float]) -> None:
        """Tells the user's callbacks that the results are written."""
        self._list.on_train_end(row)

    def take_rate(self) -> float:
        """Returns the steps per second since the last call; NaN if nothing was timed."""
        rate = self._timed_steps / self._seconds if self._seconds else float("nan")
        self._timed_steps, self._seconds = 0, 0.0
        return rate

    def _count(self, steps: int, seconds: float) -> None:
        self._timed_steps += steps
        self._seconds += seconds
