"""Which tf.distribute strategy a process trains under, and what its workers tell one another.

    environment                             strategy
    TF_CONFIG with several workers          MultiWorkerMirroredStrategy over all devices of all workers
    several GPUs                            MirroredStrategy over the GPUs
    otherwise, and other Keras backends     none

A batch is that of the whole job: a replica, which is one device, takes its share of the rows, and the
gradients of the replicas are summed. So the learning rate is that of the batch, however many share it.
Only the chief, worker 0, writes files; what it has read from them it sends to the others.
"""

import contextlib
import functools

import numpy as np

from identity_matters.runs.errors import UserError, WorkerLost


class Workers:
    """The processes that train one network together, seen from one of them.

    Attributes:
      strategy: tf.distribute.Strategy; None for a single device.
      rank: int. This process's number.
      count: int. How many processes there are.
      num_replicas: int. Devices of all processes.
      is_chief: bool. Whether this one writes the files.
      is_alone: bool. Whether no other process can be lost.
    """

    def __init__(self, strategy=None, rank: int = 0, count: int = 1):
        self.strategy, self.rank, self.count = strategy, rank, count
        self.num_replicas = strategy.num_replicas_in_sync if strategy else 1
        self.is_chief, self.is_alone = rank == 0, count == 1

    def rows(self, batch_size: int) -> slice:
        """The rows of every batch that the devices of this process take.

        Raises:
          ValueError: the devices of all processes do not divide the batch.
        """
        if batch_size % self.num_replicas:
            raise UserError(
                f"batch_size must be a multiple of the number of devices, {self.num_replicas} "
                f"on {self.count} worker(s), got {batch_size}"
            )
        share = batch_size // self.count
        return slice(self.rank * share, (self.rank + 1) * share)

    def scope(self):
        """The context in which a network, its optimiser and its metrics are made."""
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def distribute(self, batches, as_dataset):
        """What fit and evaluate take, of the process's own rows: every device its share of them."""
        if not self.strategy:
            return as_dataset(batches)
        devices = self.num_replicas // self.count

        def shares():
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

    def sum(self, vector) -> np.ndarray:
        """Sum over the processes of a float64 vector of the same length on each."""
        vector = np.asarray(vector, np.float64)
        if self.count == 1:
            return vector
        import tensorflow as tf

        first = self.rank * (self.num_replicas // self.count)

        def of_replica(context):
            return tf.constant(vector if context.replica_id_in_sync_group == first else np.zeros_like(vector))

        with self.watched():
            return self._total(self.strategy.experimental_distribute_values_from_function(of_replica)).numpy()

    @functools.cached_property
    def _total(self):
        """Values per replica -> their sum, compiled."""
        import tensorflow as tf

        return tf.function(
            lambda values: self.strategy.reduce(
                "SUM", self.strategy.run(lambda value: value, args=(values,)), axis=None
            ),
            reduce_retracing=True,
        )

    def from_chief(self, vector) -> np.ndarray:
        """The chief's float64 vector, bit by bit; those of the others must be as long."""
        return self.sum(vector if self.is_chief else np.zeros(len(vector)))

    def text_from_chief(self, text: str) -> str:
        """The chief's text; what the others give is not looked at."""
        values = np.frombuffer(text.encode(), np.uint8) if self.is_chief else []
        length = int(self.from_chief([len(values)])[0])
        return bytes(self.from_chief(values if self.is_chief else np.zeros(length)).astype(np.uint8)).decode()

    def wait(self) -> None:
        """Until all workers have come here, or one of them is gone."""
        with contextlib.suppress(WorkerLost):
            self.sum([0.0])

    @contextlib.contextmanager
    def watched(self):
        """Turns the errors by which TensorFlow says that another worker is gone into WorkerLost."""
        if self.is_alone:
            yield
            return
        import tensorflow as tf

        errors = tf.errors
        try:
            yield
        except (errors.UnavailableError, errors.AbortedError, errors.DeadlineExceededError, errors.InternalError,
                errors.CancelledError, errors.FailedPreconditionError, errors.UnknownError) as error:  # fmt: skip
            if "Traceback (most recent call last)" in str(
                error
            ):  # of Python code that TensorFlow called: reading data, say
                raise
            raise WorkerLost(f"worker {self.rank}", error) from error
