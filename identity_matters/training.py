"""Training: `train(config, run_dir)` starts a run or continues it.

join     the processes and devices that train together
open     the data, whose shape the config takes over
agree    on the config and on the steps already done; the run directory is locked
build    the network, the compiled model, and their state from the newest checkpoint
fit      one call of Keras's fit; what happens meanwhile is in callbacks.py
export   the figure, model.keras and the SavedModel
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import keras

from identity_matters import given_optimizer, networks
from identity_matters.callbacks import (
    EndRun,
    LogRow,
    Progress,
    SaveCheckpoint,
    StopOnNaN,
    TrackState,
    callback_list,
    checked_callbacks,
)
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
from identity_matters.optimization import compile_network, learning_rate_schedule
from identity_matters.presets import TRAIN_PRESETS as PRESETS
from identity_matters.runs.checkpoint import TrainingState
from identity_matters.runs.directory import RunDirectory
from identity_matters.runs.metrics_log import MetricsLog, describe
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
      callbacks: One or several Keras callbacks. An epoch is the part of the run between two evaluations; self.model is
        the network, from standardised images to logits, compiled as the run is. After an interruption they start
        again, at the newest checkpoint.
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
    callbacks = checked_callbacks(callbacks, workers)
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
        check_intervals(config)
        with recording_failure(directory, workers), explained:
            return run(config, batches, workers, directory, callbacks, source.class_names)


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
    model = workers.model_to_fit(network, batches, config, stop or StopRequest())
    with workers.scope():
        compile_network(network, model.optimizer)  # for callbacks
    return network, model


def run(
    config: TrainConfig,
    batches: Batches,
    workers: Workers,
    directory: RunDirectory | None,
    callbacks: list[keras.callbacks.Callback],
    class_names: Sequence[str] = (),
) -> dict[str, float]:
    """Trains from the newest checkpoint on, and writes the results; returns as `train` does.

    directory is None on workers other than the chief, which write nothing.
    """
    make_deterministic(config.seed)
    stop = StopRequest()
    network, model = build(config, batches, workers, stop)
    state = TrainingState(network, model.optimizer)
    if directory:
        restore(state, config, directory, class_names)
    share_state(state, workers)
    log = MetricsLog(directory, state.step)
    if workers.broadcast([log.has_row(state.step)])[0]:
        state.pop_means()  # they are in the row
    folder = directory.file("checkpoints") if directory else ""
    stop_on_nan = StopOnNaN(state, config.steps_per_execution, keeps_weights=bool(directory))
    progress = Progress(state, config.train_steps, is_visible=bool(directory))
    log_row = LogRow(state, config, log, progress, batches, training_flops(network))
    save_checkpoint = SaveCheckpoint(state, config, workers, stop, folder, model, bool(callbacks))
    own: list[keras.callbacks.Callback] = [TrackState(state), stop_on_nan, progress, log_row, save_checkpoint]
    every = config.eval_every
    epochs = -(-config.train_steps // every)
    validation = workers.validation_data(batches)

    def evaluate() -> dict[str, float]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(validation)
        return model.evaluate(
            x=x,
            y=y,
            sample_weight=weights,
            batch_size=config.batch_size,
            steps=batches.test_steps,
            callbacks=callback_list(own, network, model, every, epochs),
            verbose=0,
            return_dict=True,
        )

    def fit(first_epoch: int, last_epoch: int, steps: int) -> None:
        first_step = state.step
        listed = [*own, *callbacks, EndRun(state, config.train_steps, network, model)]
        model.fit(
            workers.distribute(lambda: batches.train_batches(first_step)),
            steps_per_epoch=steps,
            initial_epoch=first_epoch,
            epochs=last_epoch,
            shuffle=False,  # the stream is shuffled by (seed, step)
            validation_data=validation,
            validation_batch_size=config.batch_size,
            validation_steps=batches.test_steps,
            callbacks=callback_list(listed, network, model, steps, epochs),
            verbose=0,
        )

    try:
        with deferring_sigterm(stop), progress:
            if state.means() and (state.step >= config.train_steps or state.step % every == 0):
                # It was killed in this evaluation.
                logs = {f"val_{name}": value for name, value in evaluate().items()}
                for callback in own:
                    callback.on_epoch_end(state.step // every, logs)
            if state.step % every and not is_at_end(state, config.train_steps, network):  # the rest of an epoch
                fit(state.step // every, state.step // every + 1, every - state.step % every)
            if not is_at_end(state, config.train_steps, network):
                fit(state.step // every, epochs, every)
            if callbacks:
                save_checkpoint.save(is_end=True)
            if state.is_end:  # a callback may have changed the weights, EarlyStopping to the best ones
                log_row.replace_last(evaluate())
    except Diverged:
        stop_on_nan.write_snapshot(folder)
        raise
    return finish(config, network, log, workers, directory)


def check_intervals(config: TrainConfig) -> None:
    """Raises UserError unless checkpoints lie at evaluations, or divide the steps between two of them."""
    saved = config.checkpoint_every
    evaluated = config.eval_every
    if saved % evaluated == 0 or evaluated % saved == 0:
        return
    factors = [every for every in range(1, evaluated + 1) if evaluated % every == 0]
    multiple = round(saved / evaluated) * evaluated
    nearest = min([*factors, multiple or evaluated], key=lambda every: abs(every - saved))
    raise UserError(
        f"checkpoint_every must divide eval_every = {evaluated:,} or be a multiple of it, got {saved:,}; "
        f"the nearest that does is {nearest:,}"
    )


def restore(state: TrainingState, config: TrainConfig, directory: RunDirectory, class_names: Sequence[str]) -> None:
    """Takes the newest checkpoint, or the weights that a run starts with; notes in config.json that the run goes on."""
    if class_names:  # what the numbers that the network gives mean
        directory.contents["class_names"] = list(class_names)
    state.restore(directory.file("checkpoints"), config.train_steps)
    metrics = directory.file("metrics.csv")
    if directory.status == "done" and os.path.exists(metrics):
        # It lost what it exported: only that is written again.
        state.is_end = read_metrics(metrics)[-1]["step"] == state.step
    if config.init_from and not state.step:
        note(take_weights(state.network, config.init_from, directory.contents, config.fresh))
    if directory.status != "done" or not state.is_end:
        directory.set_status("running")  # not before the network is built: a mistake must leave no config.json


def share_state(state: TrainingState, workers: Workers) -> None:
    """Gives the other workers the state that the chief has read."""
    if workers.num_processes > 1:
        figures, values = state.flat()
        state.take_flat(workers.broadcast_text(figures), workers.broadcast(values))


def is_at_end(state: TrainingState, num_steps: int, network: keras.Model) -> bool:
    """Returns whether no update is left: after the last step, or where a callback has ended the run."""
    return state.is_end or state.step >= num_steps or (network.stop_training and state.step > 0)


def finish(
    config: TrainConfig, network: keras.Model, log: MetricsLog, workers: Workers, directory: RunDirectory | None
) -> dict[str, float]:
    """Writes the results on the chief, while the other workers wait; returns the last row of metrics.csv."""
    log.close()
    if directory:
        exported = networks.build(config.model, config.seed)  # of variables of this process alone
        exported.set_weights(network.get_weights())
        write_results(config, exported, log.rows, directory)
        directory.set_status("done")
    elif log.rows:
        print(f"worker {workers.rank} is done: {describe(log.rows[-1], config)}", flush=True)
    workers.meet()  # the chief once it has written all: where it has not, the job is not done
    return log.rows[-1] if directory else {}
