"""The processes that train one network together: what they exchange, and what they check before they train.

    environment                             strategy
    TF_CONFIG with several workers          MultiWorkerMirroredStrategy over all devices of all workers
    several GPUs                            MirroredStrategy over the GPUs
    several devices under JAX               keras.distribution.DataParallel over them
    otherwise, and under PyTorch            none

A batch is that of the whole job: a replica, which is one device, takes its share of the rows, and the gradients of the
replicas are summed. So the learning rate is that of the batch, however many replicas share it. Only the chief, worker
0, writes files; what it has read from them it broadcasts to the others.
"""

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.data.arrays import ArrayData
from identity_matters.data.batches import Batches, as_dataset
from identity_matters.data.loading import load
from identity_matters.errors import Diverged, EvaluationFailed, UserError, WorkerLost
from identity_matters.fields import require
from identity_matters.optimization import compile_model
from identity_matters.runs.checkpoint import list_checkpoints
from identity_matters.runs.directory import (
    DATA_PLACES,
    LOCK_TIMEOUT,
    RunDirectory,
    as_json,
    data_digest,
    differences,
    lock,
)
from identity_matters.runs.signals import StopRequest
from identity_matters.runs.tables import read_metrics

if TYPE_CHECKING:
    from identity_matters.data.image_folder import FolderSource
    from identity_matters.data.tfds import TfdsSource


class Workers:
    """The processes that train one network together, seen from one of them, whose number is `rank`.

    Attributes:
      strategy: tf.distribute.Strategy. None on a single device of a process that is alone, and without TensorFlow.
      distribution: keras.distribution.DataParallel. JAX's counterpart, for the devices of one process.
      num_replicas: How many devices all processes have together.
      has_peers: Whether another process can be lost.
      takes_streams: Whether the data need not fit in memory.
    """

    def __init__(self, strategy: Any = None, rank: int = 0, num_processes: int = 1, distribution: Any = None) -> None:
        self.strategy, self.rank, self.num_processes, self.distribution = strategy, rank, num_processes, distribution
        self.num_replicas = strategy.num_replicas_in_sync if strategy else 1
        if distribution:
            self.num_replicas = distribution.device_mesh.devices.size
        self.is_chief, self.has_peers, self.takes_streams = rank == 0, num_processes > 1, True

    def check(self, config: TrainConfig, callbacks: Sequence) -> slice:
        """Returns the rows of every batch that this process takes, or raises UserError where it cannot train so."""
        if callbacks and self.has_peers:
            raise UserError("callbacks are for one process alone; leave them out where several workers train")
        if config.jit_compile == "on" and keras.backend.backend() == "tensorflow":
            # Where operations are deterministic, Keras leaves XLA off in any case.
            raise UserError(
                "jit_compile = on needs KERAS_BACKEND=jax: under TensorFlow runs are deterministic, without XLA"
            )
        if config.steps_per_execution > 1 and keras.backend.backend() == "torch":
            raise UserError(f"steps_per_execution must be 1 with PyTorch, got {config.steps_per_execution}")
        return self.rows(config.batch_size)

    def rows(self, batch_size: int) -> slice:
        """Returns this process's rows of every batch; raises UserError where all devices together do not divide it."""
        devices = f"{self.num_replicas} on {self.num_processes} worker(s)"
        message = f"batch_size must be a multiple of the number of devices, {devices}, got {batch_size}"
        require(batch_size % self.num_replicas == 0, message)
        share = batch_size // self.num_processes
        return slice(self.rank * share, (self.rank + 1) * share)

    def active(self) -> contextlib.AbstractContextManager:
        """Returns the context of a whole run: under JAX, what is made and called in it lies on all devices."""
        return self.distribution.scope() if self.distribution else contextlib.nullcontext()

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which a network, its optimiser and its metrics are made."""
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def load_in_turn(
        self, config: TrainConfig, given: Sequence[Any] | None = None
    ) -> "ArrayData | FolderSource | TfdsSource":
        """Loads the data as `load`; a chief that may download them comes first, others may find them on its disk."""
        in_turn = self.broadcast([config.download])[0]
        if in_turn and not self.is_chief:
            self.all_reduce([0.0])  # not a barrier: where the chief could not download them, nobody can
        data = load(config, given)
        if in_turn and self.is_chief:
            self.barrier()
        if not self.takes_streams and not isinstance(data, ArrayData):
            name = config.strategy
            raise UserError(f"strategy {name} needs data that fit in memory, which those of {data.name} do not")
        return data

    def model_to_fit(
        self, network: keras.Model, batches: Batches, config: TrainConfig, stop: StopRequest
    ) -> keras.Model:
        """Returns the compiled model whose fit trains a network, made in `scope`, on the devices of all processes.

        Several processes agree on `stop` after each step.
        """
        if not self.strategy:
            model = batches.attach(network)
            compile_model(model, config)
            return model
        from identity_matters.distributed.replicated import ReplicatedModel, decorrelate_dropout

        with self.scope():
            model = batches.attach(decorrelate_dropout(network))
            model = ReplicatedModel(model.inputs, model.outputs, name=model.name, stop=stop)
            compile_model(model, config, on_replicas=True)
        return model

    def distribute(self, batches: Iterator[tuple[np.ndarray, ...]]) -> Iterable:
        """Returns batches of this process's rows in the form that fit and evaluate take, each device its share."""
        if not self.strategy:
            return as_dataset(batches)
        devices = self.num_replicas // self.num_processes

        def shares() -> Iterator[tuple[np.ndarray, ...]]:
            for batch in batches:
                for device in range(devices):
                    share = slice(*(len(batch[0]) * edge // devices for edge in (device, device + 1)))
                    yield tuple(array[share] for array in batch)

        import tensorflow as tf

        # It is not infinite, but all workers have as many batches, and fit takes no more. Of a set of known or unknown
        # length TensorFlow has the workers ask one another before each batch whether there is one: a collective a step.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        # On CPUs there is nothing to fetch to, and doing so takes time in every step.
        options = tf.distribute.InputOptions(experimental_fetch_to_device=bool(tf.config.list_logical_devices("GPU")))
        return self.strategy.distribute_datasets_from_function(lambda _: as_dataset(shares()).apply(endless), options)

    def all_reduce(self, vector: Any) -> np.ndarray:
        """Returns the sum over the processes of a float64 vector [n], n the same on each."""
        vector = np.asarray(vector, np.float64)
        if self.num_processes == 1:
            return vector
        import tensorflow as tf

        first = self.rank * (self.num_replicas // self.num_processes)

        def value_on_replica(context: Any) -> Any:
            return tf.constant(vector if context.replica_id_in_sync_group == first else np.zeros_like(vector))

        with self.reporting_lost_workers():
            return self._total(self.strategy.experimental_distribute_values_from_function(value_on_replica)).numpy()

    @functools.cached_property
    def _total(self) -> Callable:
        """Returns the compiled function from values per replica to their sum."""
        import tensorflow as tf

        def total(values: Any) -> Any:
            return self.strategy.reduce("SUM", self.strategy.run(lambda value: value, args=(values,)), axis=None)

        return tf.function(total, reduce_retracing=True)

    def broadcast(self, vector: Any) -> np.ndarray:
        """Returns the chief's float64 vector [n], bit by bit; the other processes give one of the same length."""
        return self.all_reduce(vector if self.is_chief else np.zeros(len(vector)))

    def broadcast_text(self, text: str) -> str:
        """Returns the chief's text; the text of the other processes is ignored."""
        values = np.frombuffer(text.encode(), np.uint8) if self.is_chief else []
        length = int(self.broadcast([len(values)])[0])
        return bytes(self.broadcast(values if self.is_chief else np.zeros(length)).astype(np.uint8)).decode()

    def barrier(self) -> None:
        """Returns when all processes have come here, or when one of them is gone."""
        with contextlib.suppress(WorkerLost):
            self.all_reduce([0.0])

    def meet(self) -> None:
        """Returns when all processes have come here; raises WorkerLost where one of them is gone before."""
        self.all_reduce([0.0])
        self.barrier()  # until the others have heard it: a sum fails where one has left

    @contextlib.contextmanager
    def reporting_lost_workers(self) -> Iterator[None]:
        """Opens a context that raises WorkerLost for the errors by which TensorFlow says that a worker is gone.

        Or UserError: the workers cannot train together, as they have different numbers or types of devices.
        """
        if not self.has_peers:
            yield
            return
        import tensorflow as tf

        errors = tf.errors
        try:
            yield
        except (errors.UnavailableError, errors.AbortedError, errors.DeadlineExceededError, errors.InternalError,
                errors.CancelledError, errors.FailedPreconditionError, errors.UnknownError) as error:  # fmt: skip
            # Python code that TensorFlow called has failed: reading data, say.
            if "Traceback (most recent call last)" in str(error):
                raise
            if re.search("is joining a group with (size|type)", str(error)):
                raise UserError(
                    f"worker {self.rank} has {self.num_replicas // self.num_processes} device(s), another worker has "
                    "another number or type of them: give all workers as many GPUs, e.g. by CUDA_VISIBLE_DEVICES"
                ) from error
            raise WorkerLost(f"worker {self.rank}", error) from error


@contextlib.contextmanager
def open_run(
    config: TrainConfig, run_dir: str, workers: Workers, data: str = "", digest: str | None = None
) -> Iterator[tuple[RunDirectory | None, dict]]:
    """Opens the run directory on the chief, and agrees on the config and a summary of the data with the other workers.

    digest is as in RunDirectory.

    Yields:
      (directory, contents): RunDirectory, which no other process can write to meanwhile, None on workers other than the
      chief; and the contents of its config.json, with a final_row where nothing is left to do.

    Raises:
      UserError: the chief cannot use its run_dir, or a worker has another config or other data; on all of them.
    """
    with contextlib.ExitStack() as stack:
        directory, contents = None, {}
        compared = as_json(config) | {"data": data, "digest of npz": data_digest(config) if digest is None else digest}
        if workers.is_chief:
            try:
                directory = RunDirectory(run_dir, config, data=data, digest=digest)
                is_complete = directory.status == "done" and _has_results(directory)
                if not is_complete and directory.status != "diverged":
                    # A job of one worker too: on another node it may come before the lock of its last try is gone.
                    lock(directory, stack, LOCK_TIMEOUT if workers.has_peers or "TF_CONFIG" in os.environ else 0)
                    _require_checkpoints(directory, config)
                final_row = read_metrics(directory.file("metrics.csv"))[-1] if is_complete else None
                contents = directory.contents | {"final_row": final_row}
            except ValueError as error:
                contents["mistake"] = str(error)
        contents = json.loads(workers.broadcast_text(json.dumps(contents | {"config": compared})))
        # They may lie elsewhere on each machine: a digest says whether they are the same.
        _require_agreement(contents, differences(contents["config"], compared, same=DATA_PLACES), workers)
        if contents["final_row"] or contents["status"] == "diverged":
            workers.barrier()  # until the others have heard it: a sum fails where one has left
        yield directory, contents


def _has_results(directory: RunDirectory) -> bool:
    """Returns whether a done run still has what it has exported; only TensorFlow writes a saved_model."""
    names = ("model.keras", "saved_model")[: 1 + (keras.backend.backend() == "tensorflow")]
    return all(os.path.exists(directory.file(name)) for name in names)


@contextlib.contextmanager
def recording_failure(directory: RunDirectory | None, workers: Workers) -> Iterator[None]:
    """Opens a `reporting_lost_workers` that notes in config.json how it failed, unless the same command continues."""
    try:
        with workers.reporting_lost_workers():
            yield
    except Exception as error:
        is_open = directory and directory.is_begun and directory.status != "done"  # done: results were written again
        if is_open and not getattr(error, "same_command_continues", False):
            with contextlib.suppress(OSError):  # which must not hide the error itself
                if isinstance(error, Diverged):
                    directory.set_status("diverged", diverged_at_step=error.step)
                else:
                    directory.set_status("failed", error=str(error))
        if isinstance(error, Diverged | EvaluationFailed):  # on all workers at once
            workers.barrier()  # until the chief has recorded it: a job may end with its first worker
        raise


def _require_agreement(contents: dict, differing: list[str], workers: Workers) -> None:
    """Raises UserError on all workers, once all of them know of it, where one of them cannot take part."""
    num_differing = int(workers.all_reduce([bool(differing)])[0])
    if "mistake" in contents or num_differing:
        workers.barrier()
    require("mistake" not in contents, contents.get("mistake", ""))
    who = (
        f"worker {workers.rank} has"
        if differing
        else f"{num_differing} of {workers.num_processes} workers were started with"
    )
    fields = f" (worker 0's, its own): {'; '.join(differing)}" if differing else ""
    require(not num_differing, f"{who} another config or other data than worker 0{fields}")


def _require_checkpoints(directory: RunDirectory, config: TrainConfig) -> None:
    """Raises UserError where a run has lost its checkpoints: to begin again would overwrite what is left of it."""
    if os.path.exists(metrics := directory.file("metrics.csv")) and not list_checkpoints(directory.file("checkpoints")):
        step = max((row["step"] for row in read_metrics(metrics)), default=0)
        advice = "so that nothing can be added; bring them back, or choose another run_dir"
        is_new = directory.status != "done" and step < config.checkpoint_every
        require(is_new, f"{directory.path} holds a run of {step} steps without its checkpoints, {advice}")
