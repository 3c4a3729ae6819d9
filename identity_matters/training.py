"""Training: `train(config, run_dir)` starts a run or goes on with it.

Keras's fit runs from one event to the next, where an event is a checkpoint or an evaluation; whatever happens at an
event happens outside fit, on every Keras backend.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
from numpy.typing import ArrayLike

from identity_matters.comparators import build_network
from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArrayData
from identity_matters.data.batches import ArrayBatches, StreamedBatches
from identity_matters.data.loading import reporting_unreadable_data
from identity_matters.distributed.building import build
from identity_matters.distributed.startup import join, load_in_turn, open_run, recording_failure
from identity_matters.distributed.workers import Workers
from identity_matters.errors import Diverged, Preempted, WorkerLost, reporting_lack_of_memory
from identity_matters.export import write_results
from identity_matters.model import training_flops
from identity_matters.optimization import learning_rate_schedule, make_deterministic
from identity_matters.presets import TRAIN_PRESETS as PRESETS
from identity_matters.runs.callbacks import RunCallbacks, checked_callbacks
from identity_matters.runs.checkpoint import TrainingState
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.metrics_log import Recorder, describe, kernel_norms, was_done
from identity_matters.runs.progress import Progress, StepCallback
from identity_matters.runs.signals import StopRequest, deferring

if TYPE_CHECKING:
    from identity_matters.data.tfds import TfdsSource

__all__ = ["PRESETS", "Diverged", "Preempted", "TrainConfig", "WorkerLost", "learning_rate_schedule", "train"]


def train(
    config: TrainConfig,
    run_dir: str | os.PathLike,
    data: Sequence[ArrayLike] | None = None,
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None = None,
) -> dict[str, float]:
    """Trains to the end, from the newest intact checkpoint in run_dir if there is one.

    docs/run_directory.md says what it leaves in run_dir. A resumed run ends with the bits of an uninterrupted one, on
    the same machine and as many cores: under TensorFlow this turns op determinism on, for the whole process; JAX on
    GPUs needs a flag of XLA's for it. Each of several workers calls this, before anything else that TensorFlow
    computes; only the chief uses its run_dir.

    Args:
      config: TrainConfig. Its model's image_shape and num_classes are taken from the data.
      run_dir: str or Path.
      data: (x_train, y_train, x_test, y_test) in place of npz and dataset; see identity_matters.data.user_arrays.
      callbacks: Of Keras, one or several, for one process alone; identity_matters.runs.callbacks says what is called.

    Returns:
      The last row of metrics.csv, whose errors are fractions; {} on workers other than the chief.

    Raises:
      UserError: data, run_dir, workers or all together cannot be used, or there are checkpoints, but none can be read.
      OSError: a file cannot be written, or a checkpoint not be read now; earlier checkpoints stand.
      Diverged: the loss became NaN or infinite, now or in an earlier call.
      Preempted: SIGTERM came to one of the workers; a checkpoint was saved after the step under way.
      WorkerLost: another worker is gone; the last checkpoint stands.

    >>> import tempfile
    >>> from identity_matters.config import ModelConfig
    >>> tiny = ModelConfig(image_shape=(28, 28, 1), stem_width=2, widths=(2,), blocks_per_stage=(1,))
    >>> config = TrainConfig(model=tiny, dataset="mnist_sample", train_steps=2, decay_steps=(), eval_examples=100)
    >>> row = train(config, tempfile.mkdtemp())  # doctest: +ELLIPSIS
    step      2  loss 2.3...  train error ...%  test error ...%  ... images/s
    >>> row["step"], 0 <= row["test_top1_error"] <= 1
    (2, True)
    """
    workers = join(config)
    if workers is None:
        return {}
    callbacks = checked_callbacks(callbacks)  # before the data are read
    workers.check(config, callbacks)
    given, data = data, load_in_turn(config, workers, data)
    model_config = dataclasses.replace(config.model, image_shape=data.image_shape, num_classes=data.num_classes)
    model_config.check_image_shape()  # before there is a run directory
    named = {} if given is None else {"dataset": data.name, "data_dir": "", "npz": ""}
    config = dataclasses.replace(config, model=model_config, **named)
    with workers.active(), open_run(config, os.fspath(run_dir), workers, data.summary) as (directory, record):
        if record["status"] == "diverged":
            raise Diverged(record["diverged_at_step"], config.steps_per_execution)
        if record["final_row"]:
            return record["final_row"] if directory else {}
        too_large = f"batch_size {config.batch_size} and this network need more memory than there is; make one smaller"
        with recording_failure(directory, workers), reporting_lack_of_memory(too_large):
            with reporting_unreadable_data(), workers.reporting_lost_workers():
                return Training(config, data, workers, directory, callbacks).run()


class Training:
    """One run, from the newest checkpoint on.

    Args:
      config: TrainConfig. With the image shape and the number of classes of the data.
      data: ArrayData or TfdsSource.
      workers: Workers.
      directory: RunDirectory; None on workers other than the chief, which write nothing.
      callbacks: See `train`.
    """

    def __init__(
        self,
        config: TrainConfig,
        data: "ArrayData | TfdsSource",
        workers: Workers,
        directory: RunDirectory | None,
        callbacks: Sequence,
    ) -> None:
        make_deterministic(config.seed)
        self.config, self.workers, self.directory = config, workers, directory
        kind = ArrayBatches if isinstance(data, ArrayData) else StreamedBatches
        self.batches = kind(data, config, workers.rows(config.batch_size))
        self.epoch_steps = data.num_train / config.batch_size
        self.network, self.model = build(config, self.batches, workers)
        self.step_flops = training_flops(self.network) * config.batch_size
        self.state = TrainingState(self.network, self.model.optimizer)
        self.was_done = False
        if directory:
            self.state.restore(directory.file("checkpoints"), config.train_steps)
            self.was_done = was_done(directory, self.state.step)
            if not self.was_done:  # else it stays so: what interrupts the results must not have it train on
                directory.set_status("running")  # not before the network is built: a mistake must leave no config.json
        self.was_done = bool(workers.broadcast([self.was_done])[0])
        self.state.broadcast(workers)
        self.recorder = Recorder(directory, self.state.step)
        self.progress = Progress(config.train_steps, self.state.step, is_shown=bool(directory))
        self.stream = self.batches.train_batches(self.state.step)
        self.callbacks = RunCallbacks(() if self.was_done else callbacks, self.network, config)

    def run(self) -> dict[str, float]:
        """Trains to the end and writes the results; returns as `train` does."""
        with deferring() as stop:
            with self.progress:
                self.callbacks.begin(self.state.step, len(self.recorder.rows))
                if self._is_evaluated():  # of a run that ended between a checkpoint and its evaluation
                    self._evaluate_once()
                while not self._is_at_end():
                    self._advance(self._next_event(), stop)
                    is_leaving = stop.is_agreed  # read once: a signal may come between saving and leaving
                    # A checkpoint comes before the evaluation of its step, which can be long.
                    if self.directory and (self._is_saved() or is_leaving):
                        self.state.save(self.directory.file("checkpoints"))
                    if is_leaving and not self._is_at_end():
                        self.workers.meet()  # the chief once it has saved: where it could not, it is lost
                        raise Preempted(self.state.step)
                    if self._is_evaluated():
                        self._evaluate()
            return self._finish()

    def _next_event(self) -> int:
        """Returns the next step at which to save or to evaluate."""
        step, config = self.state.step, self.config
        intervals = (config.eval_every, config.checkpoint_every)
        return min(config.train_steps, *((step // interval + 1) * interval for interval in intervals))

    def _is_at_end(self) -> bool:
        is_stopped = self.was_done or (self.callbacks.is_stopping and self.state.step > 0)
        return self.state.step == self.config.train_steps or is_stopped

    def _is_saved(self) -> bool:
        may_end = self._is_at_end() or (self.callbacks.are_given and self._is_evaluated())
        return may_end or self.state.step % self.config.checkpoint_every == 0

    def _is_evaluated(self) -> bool:
        return self.state.step > 0 and (self._is_at_end() or self.state.step % self.config.eval_every == 0)

    def _advance(self, step: int, stop: StopRequest) -> None:
        """Trains up to a step, or less far where it is to stop."""
        num_steps = step - self.state.step
        callback = StepCallback(self.progress, self.state.step, stop)
        self.model.stop_request = stop
        history = self.model.fit(
            self.workers.distribute(itertools.islice(self.stream, num_steps)),
            steps_per_epoch=num_steps,
            shuffle=False,
            callbacks=[callback, self.callbacks],
            verbose=0,
        ).history
        self.state.advance(callback.step, {name: values[-1] for name, values in history.items()})

    def _evaluate_once(self) -> None:
        """Evaluates, unless metrics.csv has the row of this step."""
        rows = self.recorder.rows
        if self.workers.broadcast([bool(rows) and rows[-1]["step"] == self.state.step])[0]:
            self.state.take_means()  # they are in the row
        else:
            self._evaluate()

    def _evaluate(self) -> None:
        """Adds a row to metrics.csv. Its training figures are means over the steps since the row before."""
        test = self.model.evaluate(
            self.workers.distribute(self.batches.weighted_test_batches()),
            steps=self.batches.test_steps,
            verbose=0,
            return_dict=True,
        )
        if not np.isfinite(test["cross_entropy"]):
            raise Diverged(self.state.step, self.config.steps_per_execution)
        step, trained = self.state.step, self.state.take_means()
        row = {
            "step": step,
            "epoch": step / self.epoch_steps,
            # The rate of the update before this evaluation.
            "learning_rate": float(learning_rate_schedule(self.config)(step - 1)),
            "loss": trained["loss"],
            "train_cross_entropy": trained["cross_entropy"],
            "train_top1_error": 1 - trained["top1"],
            "train_top5_error": 1 - trained["top5"],
            "test_cross_entropy": test["cross_entropy"],
            "test_top1_error": 1 - test["top1"],
            "test_top5_error": 1 - test["top5"],
            "images_per_second": self.progress.take_rate() * self.config.batch_size,
            "train_flops": step * self.step_flops,
            **({"staleness": trained["staleness"]} if "staleness" in trained else {}),
            **kernel_norms(self.network),
        }
        self.recorder.add(row, self.network)
        self.progress.write(describe(row, self.config))
        self.callbacks.evaluated(step, row)

    def _finish(self) -> dict[str, float]:
        """Writes the results on the chief, while the other workers wait."""
        self.recorder.close()
        if self.directory:
            network = build_network(self.config.model, self.config.seed)  # of variables of this process alone
            network.set_weights(self.network.get_weights())
            write_results(self.config, network, self.recorder.rows, self.directory)
            self.callbacks.end(self.recorder.rows[-1])
            self.directory.set_status("done")
        elif self.recorder.rows:
            print(f"worker {self.workers.rank} is done: {describe(self.recorder.rows[-1], self.config)}", flush=True)
        self.workers.meet()  # the chief once it has written all: where it has not, the job is not done
        return self.recorder.rows[-1] if self.directory else {}
