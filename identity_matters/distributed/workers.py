"""The processes that train one network together, and what they tell one another.

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
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.data.batches import as_dataset
from identity_matters.errors import UserError, WorkerLost


class Workers:
    """The processes that train one network together, seen from one of them.

    Attributes:
      strategy: tf.distribute.Strategy. None on a single device of a process that is alone, and without TensorFlow.
      distribution: keras.distribution.DataParallel. JAX's counterpart, for the devices of one process.
      rank: int. The number of this process, from 0.
      num_processes: int. How many processes there are.
      num_replicas: int. How many devices all processes have together.
      is_chief: bool. Whether this one writes the files.
      has_peers: bool. Whether another process can be lost.
    """

    def __init__(self, strategy: Any = None, rank: int = 0, num_processes: int = 1, distribution: Any = None) -> None:
        self.strategy, self.rank, self.num_processes, self.distribution = strategy, rank, num_processes, distribution
        self.num_replicas = strategy.num_replicas_in_sync if strategy else 1
        if distribution:
            self.num_replicas = distribution.device_mesh.devices.size
        self.is_chief, self.has_peers = rank == 0, num_processes > 1

    def check(self, config: TrainConfig, callbacks: Sequence) -> None:
        """Raises UserError where these processes cannot train so.

        See `rows`; callbacks are for one process alone. Where TensorFlow's operations are deterministic, as training
        has them, Keras leaves XLA off whatever is asked for. Keras's PyTorch backend has one step an execution.
        """
        is_asynchronous = config.strategy == "parameter_server"
        if callbacks and (self.has_peers or is_asynchronous):
            raise UserError("callbacks are for one process alone; leave them out where several workers train")
        if config.jit_compile == "on" and keras.backend.backend() == "tensorflow":
            raise UserError(
                "jit_compile = on needs KERAS_BACKEND=jax: under TensorFlow runs are deterministic, without XLA"
            )
        if config.steps_per_execution > 1 and keras.backend.backend() == "torch":
            raise UserError(f"steps_per_execution must be 1 with PyTorch, got {config.steps_per_execution}")
        self.rows(config.batch_size)

    def rows(self, batch_size: int) -> slice:
        """Returns the rows of every batch that the devices of this process take.

        Raises:
          UserError: the devices of all processes do not divide the batch.
        """
        if batch_size % self.num_replicas:
            raise UserError(
                f"batch_size must be a multiple of the number of devices, {self.num_replicas} "
                f"on {self.num_processes} worker(s), got {batch_size}"
            )
        share = batch_size // self.num_processes
        return slice(self.rank * share, (self.rank + 1) * share)

    def active(self) -> contextlib.AbstractContextManager:
        """Returns the context of a whole run: under JAX, what is made and called in it lies on all devices."""
        return self.distribution.scope() if self.distribution else contextlib.nullcontext()

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which a network, its optimiser and its metrics are made."""
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

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

        # All workers have as many batches; of a finite set they would ask each other before each whether there is one.
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
    def _total(self) -> Any:
        """Returns the compiled function from values per replica to their sum."""
        import tensorflow as tf

        return tf.function(
            lambda values: self.strategy.reduce(
                "SUM", self.strategy.run(lambda value: value, args=(values,)), axis=None
            ),
            reduce_retracing=True,
        )

    def broadcast(self, vector: Any) -> np.ndarray:
        """Returns the chief's float64 vector [n], bit by bit; the other processes give one of the same length."""
        return self.all_reduce(vector if self.is_chief else np.zeros(len(vector)))

    def broadcast_text(self, text: str) -> str:
        """Returns the chief's text; what the other processes give is not looked at."""
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

        Raises:
          UserError: the workers cannot train together, as they have different numbers or kinds of devices.
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
                    "more, fewer or other ones: give all of them as many GPUs, by CUDA_VISIBLE_DEVICES say"
                ) from error
            raise WorkerLost(f"worker {self.rank}", error) from error
