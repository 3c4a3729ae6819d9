"""How the processes of TF_CONFIG connect: its checks, ports, waiting for all of them, the strategy."""

import functools
import json
import os
import socket
import sys
import time

import keras

from identity_matters.distributed.workers import Workers
from identity_matters.errors import MAX_REPR, UserError, WorkerLost, first_line, truncated_repr
from identity_matters.fields import require

RENDEZVOUS_TIMEOUT = 600  # seconds of waiting for the other workers: containers may still be on their way
JOIN_TIMEOUT = 30  # seconds in which the chief then lets a worker join, who answers no signal meanwhile
NOTICE_AFTER = 5  # seconds of it before a line says what is missing


def join() -> Workers:
    """Returns the workers of TF_CONFIG, once all of them are there, or the devices of this process alone.

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
            return Workers(distribution=keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False))
    if backend != "tensorflow":
        return Workers()
    import tensorflow as tf
    from tensorflow.python.eager import context as tf_context

    gpus = tf.config.list_physical_devices("GPU")
    if len(addresses) < 2:
        return Workers(tf.distribute.MirroredStrategy() if len(gpus) > 1 else None)
    bypass_proxy(addresses)
    _await_workers(addresses, rank)
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
    return Workers(strategy, rank, len(addresses))


def _await_workers(addresses: list[str], rank: int) -> None:
    """Waits until all workers can be reached. TensorFlow would wait for ever, silently, and ignore signals."""
    with listener_on(addresses[rank], f"worker {rank}"):
        await_listeners(
            [address for i, address in enumerate(addresses) if i != rank], f"worker {rank} ({addresses[rank]})"
        )


def await_listeners(addresses: list[str], who: str) -> None:
    """Waits until somebody listens on each address, host:port; prints a line as `who` if that takes long.

    Raises WorkerLost where an address is silent for RENDEZVOUS_TIMEOUT seconds.
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

    It takes http_proxy and https_proxy for every address, 127.0.0.1 too, and no_proxy only where there is no
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

    Its form is {"cluster": {"worker": [host:port, …]}, "task": {"type": "worker", "index": 0}}, with tasks of these
    types alone; raises UserError for any other.
    """
    try:
        config = json.loads(tf_config)
        cluster = config["cluster"]
        task = config["task"]
        task_type = task["type"]
        index = int(task["index"])
        others = sorted({task_type, *cluster} - set(task_types))
        require(not others, f"it has a {', '.join(others[:1])}, where only {' and '.join(task_types)} are used")
        is_of_lists = all(isinstance(addresses, list) for addresses in cluster.values())
        require(is_of_lists, f"the tasks of a type are not a list of addresses: {cluster}")
        require(0 <= index < len(cluster[task_type]), f"there is no {task_type} {index}")
        addresses = [*cluster["worker"], *(a for name in cluster if name != "worker" for a in cluster[name])]
        for address in addresses:
            require(addresses.count(address) == 1, f"{address} is given twice")
            host, port = host_and_port(address)
            require(0 < port < 2**16, f"{address} has no port")
            # Else sockets raise the UnicodeError, of an empty label say.
            require(host.encode("idna") != b"", f"{address} has no host that could be looked up")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)[:MAX_REPR]
        raise UserError(f"TF_CONFIG cannot be used: {reason}; it is {truncated_repr(tf_config)}") from None
    return cluster, task_type, index


def listener_on(address: str, task: str) -> socket.socket:
    """Returns a socket that listens on the port of the address; raises UserError where the port is taken."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", int(address.rpartition(":")[2])), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise UserError(f"{task} cannot listen on {address}: {os.strerror(error.errno)}") from None
