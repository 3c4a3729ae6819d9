"""The processes and devices that train one network together: how they find each other, and what they exchange.

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
import itertools
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.data.batches import Batches, as_dataset
from identity_matters.errors import MAX_REPR, UserError, WorkerLost, first_line, translate_errors, truncated_repr
from identity_matters.fields import require
from identity_matters.optimization import compile_model
from identity_matters.runs.signals import StopRequest

RENDEZVOUS_TIMEOUT = 600  # seconds of waiting for the other workers: containers may still be on their way
JOIN_TIMEOUT = 30  # seconds in which the chief then lets a worker join; it answers no signal meanwhile
NOTICE_AFTER = 5  # seconds of waiting before a message names what is missing


class Cluster:
    """The processes that train one network together, seen from one of them, whose number is `rank`.

    Attributes:
      strategy: tf.distribute.Strategy. None for one process on one device, and without TensorFlow.
      distribution: keras.distribution.DataParallel. JAX's counterpart, for the devices of one process.
      num_replicas: How many devices all processes have together.
      has_peers: Whether another process can be lost.
    """

    def __init__(self, strategy: Any = None, rank: int = 0, num_processes: int = 1, distribution: Any = None) -> None:
        self.strategy = strategy
        self.rank = rank
        self.num_processes = num_processes
        self.distribution = distribution
        self.num_replicas = strategy.num_replicas_in_sync if strategy else 1
        if distribution:
            self.num_replicas = distribution.device_mesh.devices.size
        self.is_chief = rank == 0
        self.has_peers = num_processes > 1

    def rows(self, batch_size: int) -> slice:
        """Returns this process's rows of every batch; raises UserError if the number of devices does not divide it."""
        if batch_size % self.num_replicas:
            below = batch_size - batch_size % self.num_replicas
            nearest = " and ".join(str(size) for size in (below, below + self.num_replicas) if size)
            raise UserError(
                f"batch_size must be a multiple of the number of devices, {self.num_replicas} on {self.num_processes} "
                f"worker(s), got {batch_size}; the nearest are {nearest}"
            )
        share = batch_size // self.num_processes
        return slice(self.rank * share, (self.rank + 1) * share)

    def active(self) -> contextlib.AbstractContextManager:
        """Returns the context of a whole run: under JAX, what is made and called in it lies on all devices."""
        return self.distribution.scope() if self.distribution else contextlib.nullcontext()

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which a network, its optimiser and its metrics are made."""
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    @contextlib.contextmanager
    def chief_first(self, is_ordered: bool) -> Iterator[None]:
        """Context manager: if the chief's is_ordered is true, the others enter once it is through, as for a download.

        Raises WorkerLost on the others if the chief failed in it.
        """
        is_ordered = bool(self.broadcast([is_ordered])[0])
        if is_ordered and not self.is_chief:
            self.barrier()
        yield
        if is_ordered and self.is_chief:
            self.barrier()

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
        from identity_matters.replicated import ReplicatedModel, decorrelate_dropout

        with self.scope():
            model = batches.attach(decorrelate_dropout(network))
            model = ReplicatedModel(model.inputs, model.outputs, name=model.name, stop=stop)
            compile_model(model, config, on_replicas=True)
        return model

    def validation_data(self, batches: Batches) -> Any:
        """Returns the test batches in the form that fit takes, to be read again and again."""
        return self.distribute(batches.weighted_test_batches) if self.strategy else batches.test_data()

    def distribute(self, make_batches: Callable[[], Iterator[tuple[np.ndarray, ...]]]) -> Iterable:
        """Returns batches of this process's rows in the form that fit takes, each device its share."""
        if not self.strategy:
            return as_dataset(make_batches)
        devices = self.num_replicas // self.num_processes

        def shares() -> Iterator[tuple[np.ndarray, ...]]:
            for batch in make_batches():
                for device in range(devices):
                    share = slice(*(len(batch[0]) * edge // devices for edge in (device, device + 1)))
                    yield tuple(array[share] for array in batch)

        import tensorflow as tf

        # Declared infinite to avoid one collective per step, by which workers would ask one another whether there is a
        # batch; fit stops after its steps.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        # On CPUs there is nothing to fetch to, and doing so takes time in every step.
        options = tf.distribute.InputOptions(experimental_fetch_to_device=bool(tf.config.list_logical_devices("GPU")))
        return self.strategy.distribute_datasets_from_function(lambda _: as_dataset(shares).apply(endless), options)

    def all_reduce(self, vector: Any) -> np.ndarray:
        """Returns the sum over the processes of a float64 vector [n], n the same on each."""
        vector = np.asarray(vector, np.float64)
        if self.num_processes == 1:
            return vector
        import tensorflow as tf

        first = self.rank * (self.num_replicas // self.num_processes)

        def value_on_replica(context: Any) -> Any:
            return tf.constant(vector if context.replica_id_in_sync_group == first else np.zeros_like(vector))

        with translate_errors(self.translate_error):
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

    def broadcast_arrays(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the chief's arrays; the other processes give arrays of the same names and shapes, as float64."""
        flat = self.broadcast(np.concatenate([np.ravel(array).astype(np.float64) for array in arrays.values()]))
        ends = np.cumsum([np.size(array) for array in arrays.values()])
        parts = np.split(flat, ends[:-1])
        return {name: part.reshape(np.shape(array)) for (name, array), part in zip(arrays.items(), parts)}

    def broadcast_text(self, text: str) -> str:
        """Returns the chief's text; the text of the other processes is ignored."""
        values = np.frombuffer(text.encode(), np.uint8) if self.is_chief else []
        length = int(self.broadcast([len(values)])[0])
        return bytes(self.broadcast(values if self.is_chief else np.zeros(length)).astype(np.uint8)).decode()

    def barrier(self) -> None:
        """Returns when all processes have come here; raises WorkerLost if one of them ended before."""
        self.all_reduce([0.0])
        with contextlib.suppress(WorkerLost):
            self.all_reduce([0.0])  # until the others have it: a sum fails if one process has left

    def translate_error(self, error: Exception) -> Exception | None:
        """Returns WorkerLost for an error by which TensorFlow says that a worker is gone, None for any other error.

        Returns UserError if the workers have different numbers or types of devices. A rule of `translate_errors`.
        """
        if not self.has_peers:
            return None
        import tensorflow as tf

        errors = tf.errors
        signs = (errors.UnavailableError, errors.AbortedError, errors.DeadlineExceededError, errors.InternalError,
                 errors.CancelledError, errors.FailedPreconditionError, errors.UnknownError)  # fmt: skip
        # With a traceback, Python code that TensorFlow called has failed: reading data, say.
        if not isinstance(error, signs) or "Traceback (most recent call last)" in str(error):
            return None
        if re.search("is joining a group with (size|type)", str(error)):
            return UserError(
                f"worker {self.rank} has {self.num_replicas // self.num_processes} device(s), another worker has "
                "another number or type of them: give all workers as many GPUs, e.g. by CUDA_VISIBLE_DEVICES"
            )
        return WorkerLost(f"worker {self.rank}", error)


def from_environment() -> Cluster:
    """Returns the workers of TF_CONFIG, once all of them are there, or the devices of this process.

    It must be called before anything that TensorFlow computes.

    Raises:
      UserError: TF_CONFIG cannot be used, the port that it gives this worker is taken, or Keras cannot train.
      WorkerLost: another worker does not come.
    """
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax", "torch"):
        raise UserError(f"Keras does not train under KERAS_BACKEND={backend}; use tensorflow, jax or torch")
    addresses, rank = worker_addresses(os.environ.get("TF_CONFIG", ""))
    if backend != "tensorflow" and len(addresses) > 1:
        raise UserError(f"several workers need KERAS_BACKEND=tensorflow, got {backend}")
    if backend == "jax":
        devices = keras.distribution.list_devices()
        if len(devices) > 1:
            return Cluster(distribution=keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False))
    if backend != "tensorflow":
        return Cluster()
    import tensorflow as tf
    from tensorflow.python.eager import context as tf_context

    gpus = tf.config.list_physical_devices("GPU")
    if len(addresses) < 2:
        return Cluster(tf.distribute.MirroredStrategy() if len(gpus) > 1 else None)
    bypass_proxy(addresses)
    # TensorFlow would wait for ever, silently, and ignore signals.
    task = f"worker {rank}"
    with listener_on(addresses[rank], task):
        others = [address for i, address in enumerate(addresses) if i != rank]
        await_listeners(others, f"{task} ({addresses[rank]})")
    implementations = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementations.NCCL if gpus else implementations.RING
    )
    # MultiWorkerMirroredStrategy has no option for how long the chief waits for a worker, without reacting to signals;
    # the private context that it configures takes one.
    context = tf_context.context()
    context.configure_coordination_service = functools.partial(
        context.configure_coordination_service, cluster_register_timeout_in_ms=1000 * JOIN_TIMEOUT
    )
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except tf.errors.OpError as error:
        raise WorkerLost(f"worker {rank}", error) from error
    return Cluster(strategy, rank, len(addresses))


def await_listeners(addresses: list[str], who: str) -> None:
    """Waits until somebody listens on each address, host:port; prints a message as `who` if that takes long.

    Raises WorkerLost if an address is silent for RENDEZVOUS_TIMEOUT seconds.
    """
    began = time.monotonic()
    has_said = False
    missing = addresses
    while missing := [address for address in missing if not is_listening(address)]:
        waited = time.monotonic() - began
        if waited > RENDEZVOUS_TIMEOUT:
            raise WorkerLost(
                who, TimeoutError(f"{', '.join(missing)} could not be reached within {RENDEZVOUS_TIMEOUT} seconds")
            )
        if waited > NOTICE_AFTER and not has_said:
            has_said = True
            print(f"{who} waits for {', '.join(missing)}", file=sys.stderr, flush=True)
        time.sleep(0.1)


def bypass_proxy(addresses: list[str]) -> None:
    """Keeps gRPC from asking a proxy for the addresses of a cluster, before TensorFlow makes its first channel.

    It takes http_proxy and https_proxy for every address, 127.0.0.1 too, and no_proxy only without
    no_grpc_proxy, which nothing but gRPC reads.
    """
    given = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy", "")
    hosts = [*filter(None, given.split(",")), *(host_and_port(address)[0] for address in addresses)]
    os.environ["no_grpc_proxy"] = ",".join(dict.fromkeys(hosts))


def host_and_port(address: str) -> tuple[str, int]:
    """Returns the host, an IPv6 address without its brackets, and the port of host:port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_listening(address: str) -> bool:
    """Returns whether somebody listens on the address, host:port."""
    try:
        socket.create_connection(host_and_port(address), timeout=5).close()
        return True
    except OSError:
        return False


def worker_addresses(tf_config: str) -> tuple[list[str], int]:
    """Returns the addresses host:port of the workers, the chief first, and this process's number; [] without any.

    >>> worker_addresses('{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}')
    (['a:1', 'b:2'], 1)
    """
    if not tf_config:
        return [], 0
    cluster, task_type, index = parse_tf_config(tf_config, ("chief", "worker"))
    chiefs = cluster.get("chief", [])
    return [*chiefs, *cluster["worker"]], index + (len(chiefs) if task_type == "worker" else 0)


def parse_tf_config(tf_config: str, task_types: tuple[str, ...]) -> tuple[dict[str, list[str]], str, int]:
    """Returns the cluster, and this task's type and index, of the text of TF_CONFIG.

    Its form is {"cluster": {"worker": [host:port, …]}, "task": {"type": "worker", "index": 0}}. UserError is raised for
    any other, and for tasks of other types than task_types.
    """
    try:
        config = json.loads(tf_config)
        cluster = {name: list(addresses) for name, addresses in config["cluster"].items()}
        task_type = config["task"]["type"]
        index = int(config["task"]["index"])
        for name in (task_type, *cluster):
            require(name in task_types, f"it has a {name}, but only {' and '.join(task_types)} are used")
        require("worker" in cluster, "it has no worker")
        require(0 <= index < len(cluster[task_type]), f"there is no {task_type} {index}")
        addresses = list(itertools.chain(*cluster.values()))
        for address in addresses:
            require(addresses.count(address) == 1, f"{address} is given twice")
            host, port = host_and_port(address)
            require(bool(host) and 0 < port < 2**16, f"{address} has no host or no port")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)[:MAX_REPR]
        raise UserError(f"TF_CONFIG cannot be used: {reason}; it is {truncated_repr(tf_config)}") from None
    return cluster, task_type, index


def listener_on(address: str, task: str) -> socket.socket:
    """Returns a socket that listens on the port of the address; raises UserError if the port is taken."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", int(address.rpartition(":")[2])), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise UserError(f"{task} cannot listen on {address}: {os.strerror(error.errno)}") from None
