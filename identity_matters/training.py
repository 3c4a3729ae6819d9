"""Training: `train(config, run_dir)` starts a run or continues it.

    join     the processes and devices that train together
    open     the data, whose shape the config takes over
    agree    on the config and on the steps already done; the run directory is locked
    build    the network, the compiled model, and their state from the newest checkpoint
    loop     Keras's fit from one event to the next, where an event is a checkpoint or an evaluation
    export   the figure, model.keras and the SavedModel

What is done at an event is done outside fit, on every Keras backend.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from identity_matters import given_optimizer, networks
from identity_matters.config import DataConfig, TrainConfig
from identity_matters.convolutions import training_flops
from identity_matters.data.base import Source
from identity_matters.data.batches import Batches, open_batches
from identity_matters.data.folder import check_run_dir_outside_images
from identity_matters.data.source import config_of_given, open_source
from identity_matters.distributed import rendezvous
from identity_matters.distributed.shared_run import open_run, recording_failure
from identity_matters.distributed.workers import Workers
from identity_matters.errors import (
    Diverged,
    EvaluationFailed,
    Preempted,
    UserError,
    WorkerLost,
    explaining,
    lack_of_memory,
    note,
    truncated_repr,
    unreadable_data,
)
from identity_matters.export import write_results
from identity_matters.fields import with_fields
from identity_matters.model import check_image_shape, require_usual_keras
from identity_matters.optimization import learning_rate, learning_rate_schedule
from identity_matters.presets import TRAIN_PRESETS as PRESETS
from identity_matters.runs import checkpoint
from identity_matters.runs.callbacks import RunCallback, checked_callbacks
from identity_matters.runs.checkpoint import TrainingState
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.metrics_log import MEANS, MetricsLog, describe, kernel_norms
from identity_matters.runs.signals import StopRequest, deferring_sigterm
from identity_matters.runs.tables import read_metrics
from identity_matters.starting_weights import freeze, take_weights

__all__ = [
    "PRESETS",
    "DataConfig",
    "Diverged",
    "Preempted",
    "TrainConfig",
    "WorkerLost",
    "learning_rate_schedule",
    "train",
    "with_fields",
]

_FIGURES = {"loss", "cross_entropy", "top1", "top5"}  # of every training step


def train(
    config: TrainConfig,
    run_dir: str | bytes | os.PathLike,
    data: Sequence[Any] | None = None,
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None = None,
    init_from: str | os.PathLike = "",
    optimizer: keras.optimizers.Optimizer | keras.optimizers.schedules.LearningRateSchedule | None = None,
) -> dict[str, float]:
    """Trains to the end, from the newest intact checkpoint in run_dir if there is one.

    docs/guides/run_directory.md lists the files in run_dir. A resumed run ends with the same bits as an uninterrupted
    one on as many cores of the same machine: under TensorFlow this turns on op determinism, for the whole process; JAX
    on GPUs needs a flag of XLA's. Each worker calls this, before TensorFlow computes; only the chief uses its run_dir.

    Args:
      config: Its model's image_shape and num_classes are taken from the data.
      run_dir: The directory of this run alone.
      data: (x_train, y_train, x_test, y_test), as identity_matters.data.arrays takes them, or (train, test): batches
        (images, labels) of a tf.data.Dataset, a PyDataset or another iterable.
      init_from: In place of the config's: a network with whose weights the run starts.
      callbacks: One or several Keras callbacks, for a single process; identity_matters.runs.callbacks has the hooks.
      optimizer: A Keras optimiser in place of the config's, or a schedule in place of its learning rates.

    Returns:
      The last row of metrics.csv, whose errors are fractions; {} on workers other than the chief.

    Raises:
      UserError: data, run_dir or workers cannot be used, or do not fit together, or no checkpoint is intact.
      OSError: a file cannot be written, or a checkpoint cannot be read now; earlier checkpoints remain.
      Diverged: the loss became NaN or infinite, now or earlier. EvaluationFailed: only that of an evaluation did.
      Preempted, WorkerLost: a worker received SIGTERM, or was lost; the last checkpoint remains.

    >>> import tempfile
    >>> tiny = dataclasses.replace(PRESETS["mnist"].model, widths=(16,), blocks_per_stage=(1,))
    >>> data = DataConfig("mnist_sample", eval_examples=100)
    >>> config = TrainConfig(tiny, data, train_steps=2, decay_steps=())
    >>> row = train(config, tempfile.mkdtemp())  # doctest: +ELLIPSIS
    step      2  loss 2.3...  train error ...%  test error ...%  ... images/s...
    >>> assert 0 <= row["test_top1_error"] <= 1
    """
    workers = join(config)
    if workers is None:
        return {}
    given: dict[str, Any] = {"init_from": os.fspath(init_from), "keras_optimizer": given_optimizer.as_text(optimizer)}
    config = dataclasses.replace(config, **{name: text for name, text in given.items() if text})
    callbacks = checked_callbacks(callbacks, given_optimizer.has_fixed_rate(config.keras_optimizer))
    rows = workers.check(config, callbacks)
    check_run_dir_outside_images(config.data, os.fsdecode(run_dir))
    with workers.in_turn(config.data.download), workers.active():
        source = open_source(config.data, data)
        config = fitted_to(source, config, is_given=data is not None)
        batches = open_batches(source, config, rows)
    with (
        workers.active(),
        open_run(config, os.fsdecode(run_dir), workers, source.digest, batches.summary) as (directory, contents),
    ):
        if contents["status"] == "diverged":
            raise Diverged(contents["diverged_at_step"], contents["config"]["steps_per_execution"])
        if contents["final_row"]:
            return contents["final_row"] if directory else {}
        too_large = f"batch_size {config.batch_size} and this network need more memory than there is; reduce one"
        explained = explaining(lack_of_memory(too_large), unreadable_data, workers.lost)
        with recording_failure(directory, workers), explained:
            return Training(config, batches, workers, directory, callbacks, source.class_names).run()


def fitted_to(source: Source, config: TrainConfig, is_given: bool = False) -> TrainConfig:
    """Returns the config with the images and classes of a source, by whose name data that were given are called.

    Raises UserError where the strides of the network do not divide the images; there is no run directory yet.
    """
    model = dataclasses.replace(config.model, image_shape=source.image_shape, num_classes=source.num_classes)
    check_image_shape(model)
    data = config_of_given(source, config.data) if is_given else config.data
    return dataclasses.replace(config, model=model, data=data)


def join(config: TrainConfig) -> Workers | None:
    """Returns the workers, once all of them are there; None on a parameter server or its worker, whose chief is gone.

    Raises UserError where config is not a TrainConfig, TF_CONFIG cannot be used, or Keras has unusual settings.
    """
    if not isinstance(config, TrainConfig):
        raise UserError(f"config must be a TrainConfig, e.g. training.PRESETS['mnist'], got {truncated_repr(config)}")
    require_usual_keras()
    if config.strategy == "synchronous":
        return rendezvous.join()
    from identity_matters.distributed import parameter_server

    return parameter_server.join()


def make_deterministic(seed: int) -> None:
    """Seeds Keras, NumPy and Python and, under TensorFlow, has every operation give the same bits every time."""
    keras.utils.set_random_seed(seed)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # For the whole process: it cannot be turned off again. Without it, sums of a step depend on which thread is
        # first, and a resumed run would not end with the bits of an uninterrupted one.
        tf.config.experimental.enable_op_determinism()


def build(
    config: TrainConfig, batches: Batches, workers: Workers, stop: StopRequest | None = None
) -> tuple[keras.Model, keras.Model]:
    """Returns the network, and the compiled model that fit trains: from a batch's first array to the logits."""
    with workers.scope():
        network = networks.build(config.model, config.seed)
    freeze(network, config.freeze)
    return network, workers.model_to_fit(network, batches, config, stop or StopRequest())


class Training:
    """One run, from the newest checkpoint on.

    directory is None on workers other than the chief, which write nothing.
    """

    def __init__(
        self,
        config: TrainConfig,
        batches: Batches,
        workers: Workers,
        directory: RunDirectory | None,
        callbacks: Sequence,
        class_names: Sequence[str] = (),
    ) -> None:
        make_deterministic(config.seed)
        self.config, self.workers, self.directory, self.stop = config, workers, directory, StopRequest()
        self.batches, self.epoch_steps = batches, batches.num_train / config.batch_size
        self.network, self.model = build(config, self.batches, workers, self.stop)
        self.step_flops = training_flops(self.network) * config.batch_size
        self.state = TrainingState(self.network, self.model.optimizer)
        # True if an earlier call finished training, perhaps by a callback. Then only the result files are rewritten,
        # and the status stays done, so an interruption cannot restart training.
        self.has_ended = False
        if directory:
            if class_names:  # what the numbers that the network gives mean
                directory.contents["class_names"] = list(class_names)
            self.state.restore(directory.file("checkpoints"), config.train_steps)
            metrics = directory.file("metrics.csv")
            if directory.status == "done" and os.path.exists(metrics):
                self.has_ended = read_metrics(metrics)[-1]["step"] == self.state.step
            if config.init_from and not self.state.step:
                note(take_weights(self.network, config.init_from, directory.contents, config.fresh))
            if not self.has_ended:
                directory.set_status("running")  # not before the network is built: a mistake must leave no config.json
        if workers.num_processes > 1:  # the others take what the chief has read
            self.has_ended = bool(workers.broadcast([self.has_ended])[0])
            figures, values = self.state.flat()
            self.state.take_flat(workers.broadcast_text(figures), workers.broadcast(values))
        step = self.state.step
        self.log = MetricsLog(directory, step)
        self.network.optimizer = self.model.optimizer  # for callbacks
        self.callback = RunCallback(
            () if self.has_ended else callbacks,
            self.network,
            config,
            step,
            self.stop,
            has_bar=bool(directory),
            on_finite=self._take_snapshot if directory else None,
        )
        self._snapshot: tuple[int, dict[str, np.ndarray]] | None = None  # the last finite weights, and their step
        self.stream = self.batches.train_batches(step)

    def _take_snapshot(self, step: int) -> None:
        arrays = self.state.arrays()
        if all(np.isfinite(array).all() for array in arrays.values()):  # the update after a finite loss need not be
            self._snapshot = step, {name: array.copy() for name, array in arrays.items()}

    def _keep_snapshot(self) -> None:
        """Writes the last finite weights of a run that diverged, where no checkpoint is as new."""
        if self.directory and self._snapshot:
            (step, arrays), folder = self._snapshot, self.directory.file("checkpoints")
            if step > max((saved for saved, _ in checkpoint.list_checkpoints(folder)), default=0):
                path = checkpoint.save(folder, step, arrays)
                note(f"the last finite weights, of step {step}, are in {path} (--at_step={step})")

    def run(self) -> dict[str, float]:
        """Trains to the end and writes the results; returns as `train` does."""
        try:
            return self._run()
        except Diverged:
            self._keep_snapshot()
            raise

    def _run(self) -> dict[str, float]:
        with deferring_sigterm(self.stop):
            with self.callback:
                self.callback.begin(len(self.log.rows))
                if self._is_evaluated():  # of a run that ended between a checkpoint and its evaluation
                    self._evaluate_once()
                while not self._is_at_end():
                    self._fit_until(self._next_event())
                    is_leaving = self.stop.should_stop  # read once: a signal may come between saving and leaving
                    # The checkpoint comes before the evaluation of its step: an evaluation can take minutes, and what
                    # kills the run in it must not cost the updates before. _evaluate_once makes up for it.
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
        is_stopped = self.has_ended or (self.callback.is_stopping and self.state.step > 0)
        return self.state.step == self.config.train_steps or is_stopped

    def _is_saved(self) -> bool:
        may_end = self._is_at_end() or (self.callback.are_given and self._is_evaluated())
        return may_end or self.state.step % self.config.checkpoint_every == 0

    def _is_evaluated(self) -> bool:
        return self.state.step > 0 and (self._is_at_end() or self.state.step % self.config.eval_every == 0)

    def _fit_until(self, step: int) -> None:
        """Trains up to a step, or to an earlier one where a stop is requested."""
        num_steps = step - self.state.step
        history = self.model.fit(
            # A slice of one endless stream: fit must not take a batch more than it trains on, or the next call would
            # miss it. So one call of fit is not an epoch; shuffling is the stream's, by (seed, step).
            self.workers.distribute(itertools.islice(self.stream, num_steps)),
            steps_per_epoch=num_steps,
            shuffle=False,
            callbacks=[self.callback],
            verbose=0,
        ).history
        self.state.advance(self.callback.step, {name: values[-1] for name, values in history.items()})

    def _evaluate_once(self) -> None:
        """Evaluates, unless metrics.csv has the row of this step."""
        rows = self.log.rows
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
        step, trained = self.state.step, self.state.take_means()
        if not np.isfinite(test["cross_entropy"]):
            images = np.random.default_rng(0).standard_normal((2, *self.config.model.image_shape))
            if np.isfinite(keras.ops.convert_to_numpy(self.network(images.astype(np.float32), training=False))).all():
                raise EvaluationFailed(step, trained["loss"])
            raise Diverged(step, self.config.steps_per_execution)
        row = {
            "step": step,
            "epoch": step / self.epoch_steps,
            # The rate of the update before this evaluation.
            "learning_rate": learning_rate(self.model.optimizer, step - 1),
            "loss": trained["loss"],
            "train_cross_entropy": trained["cross_entropy"],
            "train_top1_error": 1 - trained["top1"],
            "train_top5_error": 1 - trained["top5"],
            "test_cross_entropy": test["cross_entropy"],
            "test_top1_error": 1 - test["top1"],
            "test_top5_error": 1 - test["top5"],
            "images_per_second": self.callback.take_rate() * self.config.batch_size,
            "train_flops": step * self.step_flops,
            **{name: trained[name] for name in sorted(trained.keys() - _FIGURES)},  # those of a strategy alone
            **kernel_norms(self.network),
        }
        self.log.add(row, self.network)
        note_on_means = "" if len(self.log.rows) > 1 else f"\n{MEANS}"
        self.callback.evaluated(row, describe(row, self.config) + note_on_means)

    def _finish(self) -> dict[str, float]:
        """Writes the results on the chief, while the other workers wait."""
        self.log.close()
        if self.directory:
            network = networks.build(self.config.model, self.config.seed)  # of variables of this process alone
            network.set_weights(self.network.get_weights())
            write_results(self.config, network, self.log.rows, self.directory)
            self.callback.end(self.log.rows[-1])
            self.directory.set_status("done")
        elif self.log.rows:
            print(f"worker {self.workers.rank} is done: {describe(self.log.rows[-1], self.config)}", flush=True)
        self.workers.meet()  # the chief once it has written all: where it has not, the job is not done
        return self.log.rows[-1] if self.directory else {}
