"""Training: momentum SGD on keras.Model.fit, evaluated, recorded, resumable at any step.

`train` calls fit once for each stretch of steps between two events (an evaluation, a
checkpoint), so whatever happens at an event happens outside fit, on every Keras backend.
"""

import dataclasses
import itertools
import os
import sys

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.batches import ArrayBatches, StreamedBatches
from identity_matters.checkpoint import TrainingState
from identity_matters.config import TRAIN_PRESETS as PRESETS
from identity_matters.config import TrainConfig
from identity_matters.data import ArrayData, load
from identity_matters.figures import convergence_figure, read_metrics, save_figure
from identity_matters.model import all_conv_resnet
from identity_matters.progress import Diverged, Meter, Watch
from identity_matters.recording import Recorder, kernel_norms
from identity_matters.run_directory import RunDirectory, replacing

__all__ = ["Diverged", "PRESETS", "TrainConfig", "learning_rate_schedule", "train"]


def train(config: TrainConfig, run_dir: str) -> dict[str, float]:
    """Trains to the end, from the newest intact checkpoint in run_dir if there is one.

    Leaves in run_dir: config.json, metrics.csv, TensorBoard events, checkpoints/,
    convergence.png, model.keras (the network alone, on standardised images) and, under
    TensorFlow, saved_model/. The weights after a resumed run are bit-identical to those of an
    uninterrupted one on the same machine: under TensorFlow this turns op determinism on, for
    the whole process.

    Args:
      config: TrainConfig. Its model's image_shape and num_classes are taken from the data.
      run_dir: str.

    Returns:
      The last row of metrics.csv; errors are fractions.

    Raises:
      ValueError: the data, the run directory or their combination cannot be used.
      Diverged: the loss became NaN or infinite, now or in an earlier call.
    """
    data = load(config)
    model_config = dataclasses.replace(config.model, image_shape=data.image_shape, num_classes=data.num_classes)
    config = dataclasses.replace(config, model=model_config)
    run = RunDirectory(run_dir, config)
    if run.status == "diverged":
        raise Diverged(run.record["diverged_at_step"])
    if run.status == "done" and (os.path.exists(run.file("saved_model")) or not _can_export()):
        return read_metrics(run.file("metrics.csv"))[-1]
    with run:
        try:
            return _train(config, data, run)
        except Diverged as error:
            run.set_status("diverged", diverged_at_step=error.step)
            raise
        except Exception as error:
            run.set_status("failed", error=str(error))
            raise


def _train(config: TrainConfig, data, run: RunDirectory) -> dict[str, float]:
    make_deterministic(config.seed)
    network = all_conv_resnet(config.model, config.seed)
    batches = (ArrayBatches if isinstance(data, ArrayData) else StreamedBatches)(data, config)
    model = batches.attach(network)
    compile_model(model, config)
    state = TrainingState(network, model.optimizer)
    state.restore(run.file("checkpoints"))
    recorder = Recorder(run, state.step)
    if state.step < config.train_steps:
        run.set_status("running")
        _fit(config, model, batches, state, recorder, run, images_per_epoch=data.num_train)
    recorder.close()
    _write_results(config, network, recorder.rows, run)
    run.set_status("done")
    return recorder.rows[-1]


def _fit(config, model, batches, state, recorder, run, images_per_epoch) -> None:
    """From state.step to config.train_steps."""
    stream = batches.train_batches(state.step)
    meter = Meter()
    interval = 0.1 if sys.stderr.isatty() else 10  # seconds; a log file is not redrawn
    bar = tqdm(total=config.train_steps, initial=state.step, unit="step", dynamic_ncols=True, mininterval=interval)
    with bar:
        while state.step < config.train_steps:
            stop = min(config.train_steps, _next_multiple(state.step, config.eval_every, config.checkpoint_every))
            steps = stop - state.step
            logs = model.fit(
                feed(itertools.islice(stream, steps)),
                steps_per_epoch=steps,
                shuffle=False,
                callbacks=[Watch(bar, meter, state.step)],
                verbose=0,
            ).history
            state.advance(stop, {name: values[-1] for name, values in logs.items()})
            at_end = stop == config.train_steps
            if at_end or stop % config.eval_every == 0:
                row = _evaluate(config, model, batches, state, meter, images_per_epoch)
                recorder.add(row)
                recorder.add_network(state.network, stop)
                bar.write(_describe(row))
            if at_end or stop % config.checkpoint_every == 0:
                state.save(run.file("checkpoints"))


def feed(batches):
    """The batches in the form that fit and evaluate take them quickest."""
    if keras.backend.backend() != "tensorflow":
        return (batch for batch in batches)
    import tensorflow as tf

    first = next(batches)
    signature = tuple(tf.TensorSpec(array.shape, array.dtype) for array in first)
    dataset = tf.data.Dataset.from_generator(lambda: itertools.chain([first], batches), output_signature=signature)
    options = tf.data.Options()
    # Its thread can hold up the end of every fit for 2.5 s.
    options.autotune.enabled = False
    return dataset.with_options(options).prefetch(2)


def _evaluate(config, model, batches, state, meter, images_per_epoch) -> dict[str, float]:
    """One row of metrics.csv. Training figures are means over the steps since the row before."""
    test = model.evaluate(feed(batches.test_batches()), steps=batches.test_steps, verbose=0, return_dict=True)
    if not np.isfinite(test["cross_entropy"]):
        raise Diverged(state.step)
    trained = state.take_means()
    schedule = learning_rate_schedule(config)
    return {
        "step": state.step,
        "epoch": state.step * config.batch_size / images_per_epoch,
        # The rate of the update before this evaluation.
        "learning_rate": float(schedule(state.step - 1)),
        "loss": trained["loss"],
        "train_cross_entropy": trained["cross_entropy"],
        "train_top1_error": 1 - trained["top1"],
        "train_top5_error": 1 - trained["top5"],
        "test_cross_entropy": test["cross_entropy"],
        "test_top1_error": 1 - test["top1"],
        "test_top5_error": 1 - test["top5"],
        "images_per_second": meter.take_rate() * config.batch_size,
        **kernel_norms(state.network),
    }


def _describe(row: dict[str, float]) -> str:
    return (
        f"step {row['step']:>6}  loss {row['loss']:.4f}  train error {row['train_top1_error']:.2%}  "
        f"test error {row['test_top1_error']:.2%}  {row['images_per_second']:.0f} images/s"
    )


def _write_results(config: TrainConfig, network: keras.Model, rows: list[dict], run: RunDirectory) -> None:
    """The figure, model.keras and, under TensorFlow, the SavedModel."""
    save_figure(convergence_figure(rows), run.file("convergence.png"))
    with replacing(run.file("model.keras")) as temporary:
        network.save(temporary)
    if _can_export():
        from identity_matters.evaluation import export

        export(network, config, run.file("saved_model"))


def _can_export() -> bool:
    return keras.backend.backend() == "tensorflow"


def learning_rate_schedule(config: TrainConfig) -> keras.optimizers.schedules.LearningRateSchedule:
    """The learning rate of update 0, 1, …: both settings of Hardt & Ma §4, and a constant.

    piecewise: the rate is multiplied by decay_factor from update s on, for every s of
    decay_steps. exponential: by decay_factor^⌊update / decay_steps⌋.
    """
    schedules = keras.optimizers.schedules
    if config.schedule == "exponential":
        return schedules.ExponentialDecay(
            config.learning_rate, config.decay_steps[0], config.decay_factor, staircase=True
        )
    drops = config.decay_steps if config.schedule == "piecewise" else ()
    if not drops:
        return schedules.ExponentialDecay(config.learning_rate, 1, 1.0)
    rates = [config.learning_rate * config.decay_factor**i for i in range(len(drops) + 1)]
    # Keras keeps a rate up to and including its boundary.
    return schedules.PiecewiseConstantDecay([step - 1 for step in drops], rates)


def compile_model(model: keras.Model, config: TrainConfig) -> None:
    metrics = [
        keras.metrics.SparseCategoricalCrossentropy(name="cross_entropy", from_logits=True),
        keras.metrics.SparseCategoricalAccuracy(name="top1"),
        keras.metrics.SparseTopKCategoricalAccuracy(k=min(5, config.model.num_classes), name="top5"),
    ]
    model.compile(
        optimizer=keras.optimizers.SGD(
            learning_rate_schedule(config),
            momentum=config.momentum,
            nesterov=config.optimizer == "nesterov",
            global_clipnorm=config.clip_norm or None,
            name="sgd",
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Weighted, so that the examples that fill up the last test batch do not count.
        weighted_metrics=metrics,
        jit_compile=_jit_compile(config.jit_compile),
        steps_per_execution=config.steps_per_execution,
    )
    model.optimizer.build(model.trainable_variables)


def _jit_compile(choice: str):
    """Keras's own "auto" asks for XLA; under TensorFlow it is slower on a CPU, and not taken under op determinism."""
    if choice == "auto":
        return False if keras.backend.backend() == "tensorflow" else "auto"
    return choice == "on"


def make_deterministic(seed: int) -> None:
    keras.utils.set_random_seed(seed)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()


def _next_multiple(step: int, *intervals: int) -> int:
    """The first step after `step` that is a multiple of one of the intervals."""
    return min((step // interval + 1) * interval for interval in intervals)
