"""What happens during a run, as callbacks of its one `fit`; a user's callbacks come behind them in the same list.

An epoch is the part of a run between two evaluations. In this order:

    TrackState       the step, and the means of the training figures since the last evaluation
    StopOnNaN        ends the run if the loss is not finite
    Progress         the bar, and the images per second
    LogRow           a row of metrics.csv and of TensorBoard after each evaluation
    LogBatches       points of TensorBoard between evaluations
    SaveCheckpoint   checkpoints, and the end of the run after SIGTERM
    …                the user's
    EndRun           ends fit at the last step, or after a callback has set `self.model.stop_training`

In all of them `self.model` is the network, from standardised images to logits, compiled with the run's optimiser, loss
and metrics. The model that fit trains looks up the images of a batch first, and holds the data set.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.cluster import Cluster
from identity_matters.data.batches import Batches
from identity_matters.errors import Diverged, EvaluationFailed, Preempted, UserError, note
from identity_matters.optimization import learning_rate
from identity_matters.run import Run
from identity_matters.runs import checkpoint
from identity_matters.runs.checkpoint import TRAINING_FIGURES, TrainingState
from identity_matters.runs.metrics_log import MEANS, describe, kernel_norms
from identity_matters.runs.signals import StopRequest

SNAPSHOT_SECONDS = 10  # between copies of the weights in memory: of the paper's network 0.1 s each
# They write files, so that of several workers only the chief has them.
_WRITERS = ("ModelCheckpoint", "TensorBoard", "CSVLogger")
_RESTORES = ("BackupAndRestore", "OrbaxCheckpoint")


def checked_callbacks(callbacks: Any, cluster: Cluster) -> list[keras.callbacks.Callback]:
    """Returns a user's callbacks, one or several, without those that write files on workers other than the chief.

    Raises:
      TypeError: one is not a Keras callback.
      UserError: one saves and restores the run, which the run does itself.
    """
    found = list(_flatten(callbacks))
    for callback in found:
        if isinstance(callback, _types(_RESTORES)):
            name = type(callback).__name__
            raise UserError(f"{name} cannot be a callback of a run, which saves and restores its checkpoints itself")
    if cluster.is_chief:
        return found
    return [callback for callback in found if not isinstance(callback, _types(_WRITERS))]


def _types(names: Iterable[str]) -> tuple[type, ...]:
    """Returns Keras's callbacks of these names; Keras 3.12 lacks some."""
    return tuple(getattr(keras.callbacks, name) for name in names if hasattr(keras.callbacks, name))


def _flatten(callbacks: Any) -> Iterator[keras.callbacks.Callback]:
    if callbacks is None:
        return
    if isinstance(callbacks, keras.callbacks.Callback) and not isinstance(callbacks, keras.callbacks.CallbackList):
        yield callbacks
        return
    members = getattr(callbacks, "callbacks", callbacks)
    if not isinstance(members, Iterable) or isinstance(members, str):
        raise TypeError(f"callbacks must be keras.callbacks.Callback objects, got {callbacks!r}")
    for member in members:
        yield from _flatten(member)


def callback_list(
    callbacks: Sequence[keras.callbacks.Callback], network: keras.Model, model: Any, steps: int, epochs: int
) -> keras.callbacks.CallbackList:
    """Returns the list that `model.fit` calls, in whose callbacks `self.model` is the network."""
    if keras.backend.backend() == "jax":
        # While fit trains, the weights are in its state; asking a callback for self.model puts them into the network.
        def jax_state_sync() -> None:
            model.jax_state_sync()
            type(network).jax_state_sync(network)

        network.jax_state_sync = jax_state_sync
    result = keras.callbacks.CallbackList(
        list(callbacks), add_history=True, model=network, steps=steps, epochs=epochs, verbose=0
    )
    model.history = network.history  # which fit returns
    return result


class TrackState(keras.callbacks.Callback):
    """Keeps in the state, which checkpoints hold, the step and the means of the training figures."""

    def __init__(self, state: TrainingState) -> None:
        super().__init__()
        self._state = state

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Begins to count the steps of an epoch, or of what is left of it."""
        self._state.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts the steps of a call of the compiled program; logs are means since on_epoch_begin."""
        self._state.advance(batch + 1, logs)


class StopOnNaN(keras.callbacks.Callback):
    """Raises Diverged after a call of the compiled program whose loss is not finite.

    The last finite weights are copied at most every SNAPSHOT_SECONDS if they are to be kept (keeps_weights).
    """

    def __init__(self, state: TrainingState, steps_per_execution: int, keeps_weights: bool) -> None:
        super().__init__()
        self._state = state
        self._steps_per_execution = steps_per_execution
        self._snapshot: dict[str, np.ndarray] | None = None
        self._next_snapshot = time.perf_counter() + SNAPSHOT_SECONDS if keeps_weights else np.inf

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Checks the loss, and copies the weights from time to time."""
        if not np.isfinite(float(logs["loss"])):
            raise Diverged(self._state.step, self._steps_per_execution)
        if time.perf_counter() >= self._next_snapshot:
            _ = self.model  # under JAX, asking for it gives the network its current weights
            arrays = self._state.arrays()
            if all(np.isfinite(array).all() for array in arrays.values()):  # an update after a finite loss need not be
                self._snapshot = {name: array.copy() for name, array in arrays.items()}
            self._next_snapshot = time.perf_counter() + SNAPSHOT_SECONDS

    def on_test_end(self, logs: dict | None = None) -> None:
        """Raises EvaluationFailed if only the evaluation is not finite, Diverged if the weights are not either."""
        if np.isfinite(logs["cross_entropy"]):
            return
        images = np.random.default_rng(0).standard_normal((2, *self.model.input_shape[1:])).astype(np.float32)
        if np.isfinite(keras.ops.convert_to_numpy(self.model(images, training=False))).all():
            raise EvaluationFailed(self._state.step, self._state.means().get("loss", np.nan))
        raise Diverged(self._state.step, self._steps_per_execution)

    def write_snapshot(self, folder: str) -> None:
        """Writes the last finite weights of a run that diverged, if no checkpoint is as new."""
        if self._snapshot is None:
            return
        step = int(self._snapshot["step"])
        if step > max((saved for saved, _ in checkpoint.list_checkpoints(folder)), default=0):
            path = checkpoint.save(folder, self._snapshot)
            note(f"the last finite weights, of step {step}, are in {path} (--at_step={step})")


class Progress(keras.callbacks.Callback):
    """The progress bar, and the time of training; a context manager, in which the bar is shown."""

    def __init__(self, state: TrainingState, is_visible: bool) -> None:
        super().__init__()
        self._state = state
        self._is_visible = is_visible
        self._num_calls = 0
        self._timed_steps = 0
        self._seconds = 0.0

    def __enter__(self) -> "Progress":
        self._bar = tqdm(
            total=self._state.num_steps,
            initial=self._state.step,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.1 if sys.stderr and sys.stderr.isatty() else 10,  # seconds; a log file is not redrawn
            disable=not (self._is_visible and sys.stderr),  # Python's streams are None in a process that has none
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Starts the clock."""
        self._last_step = self._state.step
        self._last_time = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Moves the bar, and adds the time of the call."""
        step = self._state.step
        now = time.perf_counter()
        if self._num_calls == 1:  # the first one compiled
            self._timed_steps = 0
            self._seconds = 0.0
        self._timed_steps += step - self._last_step
        self._seconds += now - self._last_time
        self._num_calls += 1
        self._last_step = step
        self._last_time = now
        self._bar.set_postfix(loss=f"{float(logs['loss']):.3f}", refresh=False)
        self._bar.update(step - self._bar.n)

    def pop_steps_per_second(self) -> float:
        """Returns the rate since the last call; NaN if nothing was timed."""
        rate = self._timed_steps / self._seconds if self._seconds else float("nan")
        self._timed_steps = 0
        self._seconds = 0.0
        return rate

    def print(self, line: str) -> None:
        """Prints a line above the bar."""
        if self._is_visible:
            with self._bar.external_write_mode():
                print(line)


class LogRow(keras.callbacks.Callback):
    """Adds a row to metrics.csv and TensorBoard after each evaluation, and prints it.

    Its training figures are means over the steps since the row before.
    """

    def __init__(self, state: TrainingState, run: Run, progress: Progress, batches: Batches, flops: float) -> None:
        super().__init__()
        self._state = state
        self._config = run.config
        self._log = run.log
        self._progress = progress
        self._epoch_steps = batches.num_train / run.config.batch_size
        self._filling = batches.test_steps * run.config.batch_size / batches.num_test
        self._step_flops = flops * run.config.batch_size

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adds the row of an evaluation, whose figures in logs begin with val_."""
        step = self._state.step
        trained = self._state.pop_means()
        # The last test batch is filled up with examples of weight 0, which count in Keras's mean of the losses.
        penalty = float(sum(self.model.losses))
        logs["val_loss"] = penalty + (logs["val_loss"] - penalty) * self._filling
        row = {
            "step": step,
            "epoch": step / self._epoch_steps,
            # The rate of the update before this evaluation.
            "learning_rate": learning_rate(self.model.optimizer, step - 1),
            "loss": trained["loss"],
            "train_cross_entropy": trained["cross_entropy"],
            "train_top1_error": 1 - trained["top1"],
            "train_top5_error": 1 - trained["top5"],
            **self._test_columns(logs, "val_"),
            "images_per_second": self._progress.pop_steps_per_second() * self._config.batch_size,
            "train_flops": step * self._step_flops,
            # Those that only one strategy has.
            **{name: trained[name] for name in sorted(trained.keys() - set(TRAINING_FIGURES))},
            **kernel_norms(self.model),
        }
        self._log.add(row, self.model)
        note_on_means = "" if len(self._log.rows) > 1 else f"\n{MEANS}"
        self._progress.print(describe(row, self._config) + note_on_means)

    def replace_last(self, logs: dict[str, float]) -> None:
        """Takes the figures of an evaluation after fit, whose weights callbacks may have changed, into the last row."""
        if not self._log.rows:  # a worker that is not the chief, in a run that had ended
            return
        changed = self._log.rows[-1] | self._test_columns(logs, "") | kernel_norms(self.model)
        if self._log.replace_last(changed):
            self._progress.print(f"the weights that a callback left: {describe(self._log.rows[-1], self._config)}")

    @staticmethod
    def _test_columns(logs: dict[str, float], prefix: str) -> dict[str, float]:
        return {
            "test_cross_entropy": float(logs[f"{prefix}cross_entropy"]),
            "test_top1_error": 1 - float(logs[f"{prefix}top1"]),
            "test_top5_error": 1 - float(logs[f"{prefix}top5"]),
        }


class LogBatches(keras.callbacks.Callback):
    """Writes means over the last log_every steps to TensorBoard, after the call of the compiled program that ends them.

    The gradient norm is that of the last step, before clipping, if the optimiser records it. A run begins with a
    picture of its first input images, after augmentation.
    """

    def __init__(self, state: TrainingState, run: Run, batches: Batches, model: Any) -> None:
        super().__init__()
        self._state = state
        self._log = run.log
        self._config = run.config
        self._batches = batches
        self._training_model = model

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Draws the first images of the run."""
        if self._state.step == 0:
            self._log.add_input_images(self._batches.input_images(step=0, count=16))

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Begins a mean, as an evaluation has ended the one before."""
        self._begin()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Writes the means once there are log_every steps."""
        step = self._state.step
        num_steps = step - self._first_step
        if num_steps < self._config.log_every:
            return
        sums = self._state.sums()
        means = {name: (total - self._first_sums.get(name, 0.0)) / num_steps for name, total in sums.items()}
        values = {
            "loss": means["loss"],
            "top1_error": 1 - means["top1"],
            "top5_error": 1 - means["top5"],
            "images_per_second": num_steps * self._config.batch_size / (time.perf_counter() - self._start),
            "learning_rate": learning_rate(self._training_model.optimizer, step - 1),
        }
        if hasattr(self._training_model.optimizer, "gradient_norm"):
            _ = self.model  # under JAX, asking for it gives the optimiser its current variables
            values["gradient_norm"] = float(self._training_model.optimizer.gradient_norm)
        self._log.add_batches(step, values)
        self._begin()

    def _begin(self) -> None:
        self._first_step = self._state.step
        self._first_sums = self._state.sums()
        self._start = time.perf_counter()


class SaveCheckpoint(keras.callbacks.Callback):
    """Saves checkpoints; ends the run after SIGTERM with Preempted, once a checkpoint is saved.

    The checkpoint of an evaluation's step is saved before the evaluation, which can take minutes: what kills the run in
    it must not cost the updates before. With callbacks of a user each evaluation has one, as many of them end a run
    there.

    Args:
      model: The model that fit trains. On replicas it averages the moments of batch normalisation, which all workers
        call.
    """

    def __init__(self, state: TrainingState, run: Run, stop: StopRequest, model: Any, saves_every_epoch: bool) -> None:
        super().__init__()
        self._state = state
        self._run = run
        self._config = run.config
        self._stop = stop
        self._average_moments = getattr(model, "average_moments", lambda: None)
        self._saves_every_epoch = saves_every_epoch

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Saves inside an epoch, and leaves if a stop was requested."""
        step = self._state.step
        is_at_end = step >= self._config.train_steps
        is_leaving = self._stop.should_stop and not is_at_end  # read once: a signal may come between save and leave
        is_inside = step % self._config.eval_every != 0 and not is_at_end
        if is_leaving or (is_inside and step % self._config.checkpoint_every == 0):
            self.save()
        if is_leaving:
            self._leave()

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Saves before an evaluation. The last epoch of a run that a callback ends may end anywhere."""
        if self._state.is_end:
            return
        step = self._state.step
        is_last = step >= self._config.train_steps or step % self._config.eval_every != 0
        if is_last or self._saves_every_epoch or self._stop.should_stop or step % self._config.checkpoint_every == 0:
            self.save()
        else:
            self._average_moments()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Saves and leaves after the evaluation in which a stop was requested."""
        if self._stop.should_stop and self._state.step < self._config.train_steps:
            self.save()  # on_test_begin need not have done so
            self._leave()

    def save(self, is_end: bool = False) -> None:
        """Writes a checkpoint on the chief, marked as the end of the run if it is."""
        self._average_moments()
        self._state.is_end = is_end
        _ = self.model  # under JAX, asking for it gives the network its current weights
        self._run.save(self._state)

    def _leave(self) -> None:
        self._run.cluster.barrier()  # the chief comes after it has saved; if it could not save, it is lost
        raise Preempted(self._state.step)


class EndRun(keras.callbacks.Callback):
    """Ends fit at the last step, or after a callback has set stop_training of the network."""

    def __init__(self, state: TrainingState, network: keras.Model, model: Any) -> None:
        super().__init__()
        self._state = state
        self._network = network  # self.model would copy the weights of a JAX program after each call
        self._training_model = model

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Ends the epoch, after which fit evaluates."""
        if self._network.stop_training or self._state.step >= self._state.num_steps:
            self._training_model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Ends fit."""
        if self._network.stop_training:
            self._training_model.stop_training = True
