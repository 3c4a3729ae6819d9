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
import json
import os
import socket
import sys
import time

import keras
import numpy as np

from identity_matters.progress import WorkerLost

PATIENCE = 600  # seconds of waiting for the other workers: containers may still be on their way
QUIET = 5  # seconds of it without a word


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
            raise ValueError(
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
            lambda values: self.strategy.reduce("SUM", self.strategy.run(lambda value: value, args=(values,)), axis=None),
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
            if "Traceback (most recent call last)" in str(error):  # of Python code that TensorFlow called: reading data, say
                raise
            raise WorkerLost(f"worker {self.rank}", error) from error


def join() -> Workers:
    """The workers of TF_CONFIG, once all of them are there, or the devices of this process alone.

    Must come before anything that TensorFlow computes.

    Raises:
      ValueError: TF_CONFIG cannot be used, or the port that it gives this worker is taken.
      WorkerLost: another worker does not come.
    """
    if keras.backend.backend() != "tensorflow":
        return Workers()
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    addresses, rank = workers_of(os.environ.get("TF_CONFIG", ""))
    if len(addresses) < 2:
        return Workers(tf.distribute.MirroredStrategy() if len(gpus) > 1 else None)
    _meet(addresses, rank)
    implementations = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementations.NCCL if gpus else implementations.RING
    )
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except tf.errors.OpError as error:
        raise WorkerLost(f"worker {rank}", error) from error
    return Workers(strategy, rank, len(addresses))


def _meet(addresses: list[str], rank: int) -> None:
    """Until all workers can be reached. TensorFlow would wait for ever, in silence, and deaf to signals."""
    with _listening(addresses[rank], f"worker {rank}"):
        wait_for([address for i, address in enumerate(addresses) if i != rank], f"worker {rank} ({addresses[rank]})")


def wait_for(addresses: list[str], who: str) -> None:
    """Until somebody listens on each of them; says so where it takes long, and raises WorkerLost in the end."""
    began, has_said, missing = time.monotonic(), False, addresses
    while missing := [address for address in missing if not answers(address)]:
        waited = time.monotonic() - began
        if waited > PATIENCE:
            raise WorkerLost(who, TimeoutError(f"{', '.join(missing)} did not come within {PATIENCE} seconds"))
        if waited > QUIET and not has_said:
            has_said = True
            print(f"{who} waits for {', '.join(missing)}", file=sys.stderr, flush=True)
        time.sleep(0.1)


def answers(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        return True
    except OSError:
        return False


def workers_of(tf_config: str) -> tuple[list[str], int]:
    """Addresses host:port of the workers, the chief first, and this process's number, from TF_CONFIG's text.

    Raises:
      ValueError: see parsed; or it has tasks other than chief and worker.
    """
    if not tf_config:
        return [], 0
    cluster, kind, index = parsed(tf_config, ("chief", "worker"))
    chiefs = cluster.get("chief", [])
    return [*chiefs, *cluster["worker"]], index + (len(chiefs) if kind == "worker" else 0)


def parsed(tf_config: str, kinds: tuple[str, ...]) -> tuple[dict[str, list[str]], str, int]:
    """The cluster, and this task's type and index, from TF_CONFIG's text.

    Raises:
      ValueError: it is no JSON of the form {"cluster": {"worker": [host:port, …]}, "task": {"type": "worker", "index": 0}},
        or has tasks of other kinds.
    """
    try:
        config = json.loads(tf_config)
        cluster, task = config["cluster"], config["task"]
        kind, index = task["type"], int(task["index"])
        others = sorted({kind, *cluster} - set(kinds))
        if others:
            raise ValueError(f"it has a {others[0]}, where only {' and '.join(kinds)} are used")
        if not 0 <= index < len(cluster[kind]):
            raise ValueError(f"there is no {kind} {index}")
        for address in [*cluster["worker"], *cluster[kind]]:
            if not 0 < int(address.rpartition(":")[2]) < 2**16:
                raise ValueError(f"{address} has no port")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"TF_CONFIG cannot be used: {reason}; it is {tf_config}") from None
    return cluster, kind, index


def check_port(address: str, task: str) -> None:
    """Raises ValueError where the port is taken; TensorFlow would say it in a page, or share the port."""
    _listening(address, task).close()


def _listening(address: str, task: str) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", int(address.rpartition(":")[2])), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise ValueError(f"{task} cannot listen on {address}: {os.strerror(error.errno)}") from None
