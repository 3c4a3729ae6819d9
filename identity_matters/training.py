"""Training: `train(config, run_dir)` starts a run or continues it.

cluster  the processes and devices that train together (cluster.py)
data     whose image shape and classes the config takes over (data/)
run      the workers agree on the config and on the steps already done; the run directory is locked (run.py)
model    the network and the compiled model, whose state is that of the newest checkpoint
fit      one call of Keras's fit; what happens meanwhile is in callbacks.py
finish   the figure, model.keras and the SavedModel
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import keras

from identity_matters import given_optimizer, networks
from identity_matters.callbacks import (
    EndRun,
    LogBatches,
    LogRow,
    Progress,
    SaveCheckpoint,
    StopOnNaN,
    TrackState,
    callback_list,
    checked_callbacks,
)
from identity_matters.cluster import Cluster, from_environment
from identity_matters.config import DataConfig, TrainConfig
from identity_matters.convolutions import training_flops
from identity_matters.data.base import Source
from identity_matters.data.batches import Batches, open_batches
from identity_matters.data.folder import check_run_dir_outside_images
from identity_matters.data.source import config_of_given, open_source
from identity_matters.errors import (
    Diverged,
    Preempted,
    UserError,
    WorkerLost,
    out_of_memory_error,
    translate_errors,
    truncated_repr,
    unreadable_data,
)
from identity_matters.fields import with_fields
from identity_matters.model import check_image_shape, require_usual_keras
from identity_matters.optimization import compile_network, learning_rate_schedule
from identity_matters.presets import TRAIN_PRESETS as PRESETS
from identity_matters.run import Run
from identity_matters.runs.checkpoint import TrainingState
from identity_matters.runs.signals import StopRequest, deferring_sigterm
from identity_matters.starting_weights import freeze

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
      run_dir: A directory for this run only.
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
    cluster = join(config)
    if cluster is None:
        return {}
    given: dict[str, Any] = {"init_from": os.fspath(init_from), "keras_optimizer": given_optimizer.as_text(optimizer)}
    config = dataclasses.replace(config, **{name: text for name, text in given.items() if text})
    callbacks = checked_callbacks(callbacks, cluster)
    check(config, callbacks)
    check_run_dir_outside_images(config.data, os.fsdecode(run_dir))
    rows = cluster.rows(config.batch_size)
    with cluster.chief_first(config.data.download), cluster.active():
        source = open_source(config.data, data)
        config = fitted_to(source, config, is_given=data is not None)
        batches = open_batches(source, config, rows)
    with cluster.active(), Run.open(os.fsdecode(run_dir), config, cluster, source.digest, batches.summary) as run:
        if run.final_row:
            return run.final_row if cluster.is_chief else {}
        check_intervals(config)
        too_large = f"batch_size {config.batch_size} and this network need more memory than there is; reduce one"
        with translate_errors(out_of_memory_error(too_large), unreadable_data, cluster.translate_error):
            network = fit(config, batches, run, callbacks, source.class_names)
            return run.finish(network)


def join(config: TrainConfig) -> Cluster | None:
    """Returns the workers, once all of them are there; None on a parameter server or its worker, whose chief is gone.

    Raises UserError if config is not a TrainConfig, TF_CONFIG cannot be used, or Keras has unusual settings.
    """
    if not isinstance(config, TrainConfig):
        raise UserError(f"config must be a TrainConfig, e.g. training.PRESETS['mnist'], got {truncated_repr(config)}")
    require_usual_keras()
    if config.strategy == "synchronous":
        return from_environment()
    from identity_matters import asynchronous

    return asynchronous.from_environment()


def check(config: TrainConfig, callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raises UserError for settings that the Keras backend or the strategy cannot follow."""
    backend = keras.backend.backend()
    if callbacks and config.strategy != "synchronous":
        raise UserError(f"strategy {config.strategy} takes no callbacks")
    if config.jit_compile == "on" and backend == "tensorflow":
        # Where operations are deterministic, Keras leaves XLA off in any case.
        raise UserError(
            "jit_compile = on needs KERAS_BACKEND=jax: under TensorFlow runs are deterministic, without XLA"
        )
    if config.steps_per_execution > 1 and backend == "torch":
        raise UserError(f"steps_per_execution must be 1 with PyTorch, got {config.steps_per_execution}")


def check_intervals(config: TrainConfig) -> None:
    """Raises UserError unless checkpoints lie at evaluations, or divide the steps between two of them.

    Runs that are done may have other intervals.
    """
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


def fitted_to(source: Source, config: TrainConfig, is_given: bool = False) -> TrainConfig:
    """Returns the config with the images and classes of a source, by whose name data that were given are called.

    Raises UserError if the strides of the network do not divide the images; there is no run directory yet.
    """
    model = dataclasses.replace(config.model, image_shape=source.image_shape, num_classes=source.num_classes)
    check_image_shape(model)
    data = config_of_given(source, config.data) if is_given else config.data
    return dataclasses.replace(config, model=model, data=data)


def make_deterministic(seed: int) -> None:
    """Seeds Keras, NumPy and Python and, under TensorFlow, has every operation give the same bits every time."""
    keras.utils.set_random_seed(seed)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # For the whole process: it cannot be turned off again. Without it, sums of a step depend on which thread is
        # first, and a resumed run would not end with the bits of an uninterrupted one.
        tf.config.experimental.enable_op_determinism()


def build(
    config: TrainConfig, batches: Batches, cluster: Cluster, stop: StopRequest | None = None
) -> tuple[keras.Model, keras.Model]:
    """Returns the network, and the compiled model that fit trains: from a batch's first array to the logits."""
    with cluster.scope():
        network = networks.build(config.model, config.seed)
    freeze(network, config.freeze)
    model = cluster.model_to_fit(network, batches, config, stop or StopRequest())
    with cluster.scope():
        compile_network(network, model.optimizer)  # for callbacks
    return network, model


def fit(
    config: TrainConfig,
    batches: Batches,
    run: Run,
    callbacks: list[keras.callbacks.Callback],
    class_names: Sequence[str] = (),
) -> keras.Model:
    """Trains from the newest checkpoint on; returns the network, whose evaluation is the last row of the run's log."""
    make_deterministic(config.seed)
    stop = StopRequest()
    network, model = build(config, batches, run.cluster, stop)
    state = TrainingState(network, model.optimizer, config.train_steps)
    run.restore(state, class_names)
    stop_on_nan = StopOnNaN(state, config.steps_per_execution, keeps_weights=run.cluster.is_chief)
    progress = Progress(state, is_visible=run.cluster.is_chief)
    log_row = LogRow(state, run, progress, batches, training_flops(network))
    save_checkpoint = SaveCheckpoint(state, run, stop, model, saves_every_epoch=bool(callbacks))
    own: list[keras.callbacks.Callback] = [TrackState(state), stop_on_nan, progress, log_row]
    if run.cluster.is_chief:  # the others have no TensorBoard
        own.append(LogBatches(state, run, batches, model))
    own.append(save_checkpoint)
    every = config.eval_every
    epochs = -(-config.train_steps // every)
    validation = run.cluster.validation_data(batches)

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

    def fit_epochs(first_epoch: int, last_epoch: int, steps: int) -> None:
        first_step = state.step
        listed = [*own, *callbacks, EndRun(state, network, model)]
        model.fit(
            run.cluster.distribute(lambda: batches.train_batches(first_step)),
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
            if state.means() and (state.step == state.num_steps or state.step % every == 0):
                # It was killed in this evaluation.
                logs = {f"val_{name}": value for name, value in evaluate().items()}
                for callback in own:
                    callback.on_epoch_end(state.step // every, logs)
            if state.step % every and not is_at_end(state, network):  # the rest of an epoch
                fit_epochs(state.step // every, state.step // every + 1, every - state.step % every)
            if not is_at_end(state, network):
                fit_epochs(state.step // every, epochs, every)
            if callbacks:
                save_checkpoint.save(is_end=True)
            if state.is_end:  # a callback may have changed the weights, EarlyStopping to the best ones
                log_row.replace_last(evaluate())
    except Diverged:
        stop_on_nan.write_snapshot(run.checkpoints)
        raise
    return network


def is_at_end(state: TrainingState, network: keras.Model) -> bool:
    """Returns whether no update is left: after the last step, or after a callback has ended the run."""
    return state.is_end or state.step >= state.num_steps or (network.stop_training and state.step > 0)
