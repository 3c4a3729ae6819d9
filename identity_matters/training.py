"""Training: momentum SGD on keras.Model.fit, evaluated, recorded, resumable at any step, on one device or many.

`train` calls fit once for each stretch of steps between two events (an evaluation, a
checkpoint), so whatever happens at an event happens outside fit, on every Keras backend.
"""

import contextlib
import dataclasses
import itertools
import sys
import threading

import keras
import numpy as np
from tqdm import tqdm

from identity_matters.config import TRAIN_PRESETS as PRESETS
from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArrayData
from identity_matters.data.batches import ArrayBatches, StreamedBatches
from identity_matters.data.loading import load
from identity_matters.distributed import agreement
from identity_matters.model import all_conv_resnet
from identity_matters.optimization import compile_model, learning_rate_schedule, make_deterministic
from identity_matters.runs.checkpoint import TrainingState
from identity_matters.runs.directory import RunDirectory, replacing
from identity_matters.runs.errors import Diverged, Preempted, UserError, WorkerLost
from identity_matters.runs.figures import convergence_figure, save_figure
from identity_matters.runs.progress import Meter, Watch
from identity_matters.runs.recording import Recorder, kernel_norms
from identity_matters.runs.signals import leave_at_once, on_sigterm

__all__ = ["Diverged", "PRESETS", "Preempted", "TrainConfig", "WorkerLost", "learning_rate_schedule", "train"]


def train(config: TrainConfig, run_dir: str) -> dict[str, float]:
    """Trains to the end, from the newest intact checkpoint in run_dir if there is one.

    Leaves in run_dir: config.json, metrics.csv, TensorBoard events, checkpoints/,
    convergence.png, model.keras (the network alone, on standardised images) and, under
    TensorFlow, saved_model/. The weights after a resumed run are bit-identical to those of an
    uninterrupted one on the same machine: under TensorFlow this turns op determinism on, for
    the whole process.

    Where there are several workers (see distributed/workers.py) each calls this, before anything else that
    TensorFlow computes; only worker 0, the chief, uses its run_dir.

    Args:
      config: TrainConfig. Its model's image_shape and num_classes are taken from the data.
      run_dir: str.

    Returns:
      The last row of metrics.csv, whose errors are fractions; {} on workers other than the chief.

    Raises:
      ValueError: the data, the run directory, the workers or their combination cannot be used.
      OSError: a file cannot be written; earlier checkpoints stand.
      Diverged: the loss became NaN or infinite, now or in an earlier call.
      Preempted: SIGTERM came to one of the workers; while they train, a checkpoint was saved after the step under way.
      WorkerLost: another worker is gone; the last checkpoint stands.
    """
    workers = agreement.join(config)
    if workers is None:
        return {}
    with on_sigterm(leave_at_once):
        return _join_in(config, run_dir, workers)


def _join_in(config: TrainConfig, run_dir: str, workers) -> dict[str, float]:
    """train, once the workers are together."""
    rows = workers.rows(config.batch_size)
    data = _load_in_turn(config, workers)
    if config.strategy == "parameter_server" and not isinstance(data, ArrayData):
        raise UserError(f"strategy parameter_server needs data that fit in memory, which those of {data.name} do not")
    model_config = dataclasses.replace(config.model, image_shape=data.image_shape, num_classes=data.num_classes)
    config = dataclasses.replace(config, model=model_config)
    with contextlib.ExitStack() as stack:
        run, record = agreement.agree(config, run_dir, workers, stack)
        if record["status"] == "diverged":
            raise Diverged(record["diverged_at_step"])
        if record["final_row"]:
            return record["final_row"] if run else {}
        batches = (ArrayBatches if isinstance(data, ArrayData) else StreamedBatches)(data, config, rows)
        try:
            with workers.watched():
                return _train(config, batches, data.num_train, run, workers)
        except Diverged as error:
            _set_status(run, "diverged", diverged_at_step=error.step)
            raise
        except (Preempted, WorkerLost):
            raise
        except Exception as error:
            _set_status(run, "failed", error=str(error))
            raise


def _load_in_turn(config: TrainConfig, workers):
    """The data; where the chief may download them it comes first: the others may find them on the same disk then."""
    in_turn = workers.from_chief([config.download])[0]
    if in_turn and not workers.is_chief:
        workers.wait()
    data = load(config)
    if in_turn and workers.is_chief:
        workers.wait()
    return data


def _set_status(run: RunDirectory | None, status: str, **details) -> None:
    """Of the chief's run; what goes wrong then must not hide why the status changes."""
    if run:
        with contextlib.suppress(OSError):
            run.set_status(status, **details)


def _train(config: TrainConfig, batches, images_per_epoch: int, run, workers) -> dict[str, float]:
    make_deterministic(config.seed)
    network, model = _model(config, batches, workers)
    state = TrainingState(network, model.optimizer)
    if run:
        state.restore(run.file("checkpoints"))
    state.take_from_chief(workers)
    recorder = Recorder(run, state.step)
    if run:
        run.set_status("running")
    _fit(config, model, batches, state, recorder, run, workers, images_per_epoch)
    recorder.close()
    if run:
        if workers.strategy or not workers.is_alone:
            network, trained = all_conv_resnet(config.model, config.seed), network  # of variables of this process alone
            network.set_weights(trained.get_weights())
        _write_results(config, network, recorder.rows, run)
        run.set_status("done")
    elif recorder.rows:
        print(f"worker {workers.rank} is done: {_describe(recorder.rows[-1])}", flush=True)
    workers.sum([0.0])  # for the chief to have written all: where it has not, the job is not done
    workers.wait()  # for the others to have heard it: a sum fails where one has left
    return recorder.rows[-1] if run else {}


def _model(config: TrainConfig, batches, workers) -> tuple[keras.Model, keras.Model]:
    """The network, and the compiled model that fit trains."""
    with workers.scope():
        network = all_conv_resnet(config.model, config.seed)
        if workers.strategy:
            from identity_matters.distributed.replicated import ReplicatedModel

            model = batches.attach(network)
            model = ReplicatedModel(model.inputs, model.outputs, name=model.name)
            compile_model(model, config, on_replicas=True)
            return network, model
    if config.strategy == "parameter_server":
        from identity_matters.distributed.parameter_server import AsynchronousModel

        return network, AsynchronousModel(network, batches, config, workers)
    model = batches.attach(network)
    compile_model(model, config)
    return network, model


def _fit(config, model, batches, state, recorder, run, workers, images_per_epoch) -> None:
    """From state.step to config.train_steps. A checkpoint comes before the evaluation of its step, which can be long."""

    def evaluate():
        row = _evaluate(config, model, batches, state, meter, workers, images_per_epoch)
        recorder.add(row, state.network)
        if run:
            bar.write(_describe(row))

    def is_evaluated(step):
        return step == config.train_steps or step % config.eval_every == 0

    stream = batches.train_batches(state.step)
    meter = Meter()
    interval = 0.1 if sys.stderr.isatty() else 10  # seconds; a log file is not redrawn
    bar = tqdm(
        total=config.train_steps, initial=state.step, unit="step", dynamic_ncols=True, mininterval=interval,
        disable=not run,
    )  # fmt: skip
    notice = threading.Event()
    must_leave = notice.is_set
    if workers.strategy:  # all leave at the same step
        model.wants_to_leave, must_leave = notice.is_set, lambda: model.is_leaving
    with bar, on_sigterm(notice.set):
        if state.step and is_evaluated(state.step):
            if workers.from_chief([bool(recorder.rows) and recorder.rows[-1]["step"] == state.step])[0]:
                state.take_means()  # they are in the row
            else:
                evaluate()
        while state.step < config.train_steps:
            stop = min(config.train_steps, _next_multiple(state.step, config.eval_every, config.checkpoint_every))
            steps = stop - state.step
            watch = Watch(bar, meter, state.step, must_leave)
            logs = model.fit(
                workers.distribute(itertools.islice(stream, steps), feed),
                steps_per_epoch=steps,
                shuffle=False,
                callbacks=[watch],
                verbose=0,
            ).history
            state.advance(watch.step, {name: values[-1] for name, values in logs.items()})
            at_end = watch.step == config.train_steps
            is_left = not at_end and (watch.step < stop or must_leave())
            if run and (is_left or at_end or stop % config.checkpoint_every == 0):
                state.save(run.file("checkpoints"))
            if is_left:
                workers.wait()  # for the chief to have saved
                raise Preempted(state.step)
            if is_evaluated(stop):
                evaluate()


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


def _evaluate(config, model, batches, state, meter, workers, images_per_epoch) -> dict[str, float]:
    """One row of metrics.csv. Training figures are means over the steps since the row before."""
    test_batches = workers.distribute(batches.test_batches(), feed)
    test = model.evaluate(test_batches, steps=batches.test_steps, verbose=0, return_dict=True)
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
        **({"staleness": trained["staleness"]} if "staleness" in trained else {}),
        **kernel_norms(state.network),
    }


def _describe(row: dict[str, float]) -> str:
    rate = row["images_per_second"]  # NaN where nothing was timed: a run that goes on with an evaluation
    return (
        f"step {row['step']:>6}  loss {row['loss']:.4f}  train error {row['train_top1_error']:.2%}  "
        f"test error {row['test_top1_error']:.2%}" + (f"  {rate:.0f} images/s" if np.isfinite(rate) else "")
    )


def _write_results(config: TrainConfig, network: keras.Model, rows: list[dict], run: RunDirectory) -> None:
    """The figure, model.keras and, under TensorFlow, the SavedModel."""
    save_figure(convergence_figure(rows), run.file("convergence.png"))
    with replacing(run.file("model.keras")) as temporary:
        network.save(temporary)
    if agreement.can_export():
        from identity_matters.evaluation import export

        export(network, config, run.file("saved_model"))


def _next_multiple(step: int, *intervals: int) -> int:
    """The first step after `step` that is a multiple of one of the intervals."""
    return min((step // interval + 1) * interval for interval in intervals)
