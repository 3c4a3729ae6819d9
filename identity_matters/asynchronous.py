"""Asynchronous training: parameter servers hold the weights, workers update them whenever they have a gradient.

Hardt & Ma trained on ImageNet in this way (§4.2). A worker reads the weights, computes the gradient of a batch and
sends it to the servers, which may have applied other gradients meanwhile; their number is its staleness. Keras's SGD
would read a momentum and write it back, and lose updates made in between; here a server applies each gradient as one
locked operation, as TensorFlow's did then.

A job is a chief, which hands out batches, saves and evaluates, workers, and servers (ps), as TF_CONFIG says.
"""

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from identity_matters import optimization
from identity_matters.cluster import (
    Cluster,
    await_listeners,
    bypass_proxy,
    is_listening,
    listener_on,
    parse_tf_config,
)
from identity_matters.config import TrainConfig
from identity_matters.data.batches import ArrayBatches, Batches, StreamedBatches, planned_images
from identity_matters.errors import UserError, WorkerLost
from identity_matters.fields import require
from identity_matters.model import standardize
from identity_matters.optimization import compile_model, in_top_k, learning_rate_schedule
from identity_matters.runs.signals import StopRequest, deferring_sigterm

PREFETCH = 2  # batches handed out to each worker before its answers are read
MAX_FAILED_PINGS = 10  # in a row, after which a server or worker takes the chief for gone
_PING_SECONDS = 1.0  # between two of them


class Coordinator(Cluster):
    """The chief of a job with parameter servers; to all but the training step it is the only process."""

    def __init__(self, strategy: tf.distribute.ParameterServerStrategy, num_workers: int) -> None:
        super().__init__()
        self.parameter_servers = strategy
        self.num_workers = num_workers
        # Every worker holds all images or reads them by itself; the chief hands out plans of batches.
        self.has_peers = True
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which variables are made on the servers."""
        return self.parameter_servers.scope()

    def model_to_fit(
        self, network: keras.Model, batches: Batches, config: TrainConfig, stop: StopRequest
    ) -> "AsynchronousModel":
        """Returns the object that hands out the batches; only the chief checks `stop`."""
        return AsynchronousModel(network, batches, config, self, stop)

    def distribute(self, make_batches: Callable[[], Iterator]) -> Iterator:
        """Returns no batches: AsynchronousModel hands out its own."""
        return iter(())


def from_environment() -> Coordinator | None:
    """Returns the coordinator on the chief, once all workers and servers are there; None on these, once it is gone.

    Raises:
      UserError: TF_CONFIG is missing or cannot be used, the port that it gives this task is taken, or Keras runs on
        another backend than TensorFlow.
      WorkerLost: another task does not come.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise UserError(f"strategy parameter_server needs KERAS_BACKEND=tensorflow, got {backend}")
    if not os.environ.get("TF_CONFIG"):
        raise UserError(
            "strategy parameter_server needs several processes, named in TF_CONFIG: python -m launch.cluster "
            "--strategy=parameter_server starts them on this machine"
        )
    cluster, task_type, index = parse_tf_config(os.environ["TF_CONFIG"], ("chief", "worker", "ps"))
    for needed in ("chief", "worker", "ps"):
        require(cluster.get(needed), f"strategy parameter_server needs {needed} in TF_CONFIG, there is no {needed}")
    address = cluster[task_type][index]
    task = f"{task_type} {index}"
    bypass_proxy([address for addresses in cluster.values() for address in addresses])
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if task_type == "chief":
        with listener_on(address, task):  # until TensorFlow does: the others leave a chief that does not
            await_listeners([*cluster["worker"], *cluster["ps"]], "the chief")
        return Coordinator(tf.distribute.ParameterServerStrategy(resolver), len(cluster["worker"]))
    listener_on(address, task).close()  # TensorFlow would say in a page that the port is taken, or share it
    threads = 1 + sum(map(len, cluster.values()))  # on a single core TensorFlow has one, and waits in it for ever
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=task_type, task_index=index, protocol="grpc", start=True,
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=max(threads, os.cpu_count())),
    )  # fmt: skip
    with deferring_sigterm():  # the chief saves first; when it is gone, so is this
        await_listeners([cluster["chief"][0]], "this task")
        _await_end(cluster["chief"][0])
    del server
    return None


def _await_end(chief: str) -> None:
    """Returns when the chief, at this address, is gone; a single failed check can be a fault of the network."""
    failures = 0
    while failures < MAX_FAILED_PINGS:
        time.sleep(_PING_SECONDS)
        failures = 0 if is_listening(chief) else failures + 1


class HeldImages:
    """Training batches of images that every worker holds whole."""

    def __init__(
        self, batches: ArrayBatches, image_shape: tuple[int, int, int], coordinator: tf.distribute.coordinator
    ) -> None:
        self._batches = batches
        self._image_shape = image_shape
        pixels = batches.device_images.pixels.numpy()[: batches.num_train]  # uint8 [N, h·w·c]
        # A worker gives the same tensor again and again.
        images = coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.from_tensors(pixels).repeat())
        self._images = iter(images)

    def located_batches(self, first_step: int) -> Iterator[tuple]:
        """Yields (images of the worker, plan [b, 4], labels [b]) of first_step, first_step + 1, …"""
        for plan, labels in self._batches.train_batches(first_step):
            yield self._images, plan, labels

    def read_located(self, images: Iterator, plan: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns images float32 [b, h, w, c], augmented, and labels [b]."""
        return planned_images(next(images), plan, self._image_shape), labels


class AsynchronousModel:
    """Offers what training needs of a keras.Model: fit runs on the workers, evaluate in this process.

    The momenta of its optimizer lie on the servers, as the given network's weights do. Once a callback has set
    stop_training nothing more is handed out.
    """

    def __init__(
        self, network: keras.Model, batches: Batches, config: TrainConfig, chief: Coordinator, stop: StopRequest
    ) -> None:
        self._network = network
        self._config = config
        self._chief = chief
        self._stop = stop
        self._evaluated = keras.models.clone_model(network)  # whose weights lie in this process
        self._local = batches.attach(self._evaluated)
        compile_model(self._local, config)
        with chief.scope():
            self.optimizer = optimization.optimizer(config)
            self.optimizer.build(network.trainable_variables)
            self._begun = tf.Variable(0, name="begun")  # updates that a worker began in this fit
        if isinstance(batches, StreamedBatches):
            self._input: HeldImages | StreamedBatches = batches
        else:
            self._input = HeldImages(batches, config.model.image_shape, chief.coordinator)
        self._update = tf.function(self._compute_and_send_gradient)

    def fit(
        self,
        batches: Iterable,
        steps_per_epoch: int,
        initial_epoch: int,
        epochs: int,
        validation_data: tuple[np.ndarray, ...],
        callbacks: keras.callbacks.CallbackList,
        **_: Any,
    ) -> None:
        """Trains and evaluates as keras.Model.fit, of which it takes the arguments that a run gives.

        Raises WorkerLost if a worker ended in an update, which may be in the weights twice or in part: TensorFlow
        gives the batch to another worker.
        """
        self.stop_training = False
        x, y, weights = keras.utils.unpack_x_y_sample_weight(validation_data)
        requests = self._input.located_batches(int(self.optimizer.iterations))
        callbacks.on_train_begin()
        for epoch in range(initial_epoch, epochs):
            callbacks.on_epoch_begin(epoch)
            logs = self._train(requests, steps_per_epoch, callbacks)
            test = self.evaluate(
                x=x,
                y=y,
                sample_weight=weights,
                batch_size=self._config.batch_size,
                callbacks=callbacks,
                verbose=0,
                return_dict=True,
            )
            callbacks.on_epoch_end(epoch, logs | {f"val_{name}": value for name, value in test.items()})
            if self.stop_training:
                break
        callbacks.on_train_end()

    def _train(self, requests: Iterator, num_steps: int, callbacks: keras.callbacks.CallbackList) -> dict[str, float]:
        """Hands out num_steps requests of a batch, and reads what came of each.

        The means over these steps that it returns, the staleness among them, are those of all updates that were read.
        """
        totals = {}
        num_read = 0
        self._begun.assign(0)
        waiting = deque()

        def read_one() -> None:
            nonlocal num_read
            for name, value in waiting.popleft().fetch().items():
                totals[name] = totals.get(name, 0.0) + float(value)
            num_read += 1
            # A run leaves, as it saves, when no update is on its way.
            self._stop.shared_decision = self._stop.received and not waiting
            means = {name: total / num_read for name, total in totals.items()}
            callbacks.on_train_batch_end(num_read - 1, means)

        first_step = int(self.optimizer.iterations)
        for number, request in enumerate(itertools.islice(requests, num_steps), 1):
            arguments = tuple(tf.constant(part) if isinstance(part, np.ndarray) else part for part in request)
            waiting.append(self._chief.coordinator.schedule(self._update, args=arguments))
            is_saved = (first_step + number) % self._config.checkpoint_every == 0
            while waiting and (is_saved or len(waiting) >= PREFETCH * self._chief.num_workers):
                read_one()
            if self.stop_training or self._stop.received:
                break
        while waiting:
            read_one()
        if (begun := int(self._begun)) != num_read:
            raise WorkerLost("the chief", ConnectionError(f"{num_read} updates were read, {begun} begun"))
        return {name: total / num_read for name, total in totals.items()}

    def evaluate(self, **arguments: Any) -> dict[str, float]:
        """Evaluates the weights as they are now, in this process; see keras.Model.evaluate."""
        self._evaluated.set_weights(self._network.get_weights())
        return self._local.evaluate(**arguments)

    def _apply(
        self, variable: keras.Variable, momentum: keras.Variable | None, gradient: tf.Tensor, rate: tf.Tensor
    ) -> tf.Operation:
        """Updates a variable, and its momentum if it has one, on its server, as one locked operation."""
        if momentum is None:
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.value.handle, alpha=rate, delta=gradient, use_locking=True
            )
        # The former is the operation of tf.train.MomentumOptimizer.
        is_tensorflows = self._config.optimizer == "momentum"
        apply = tf.raw_ops.ResourceApplyMomentum if is_tensorflows else tf.raw_ops.ResourceApplyKerasMomentum
        return apply(
            var=variable.value.handle,
            accum=momentum.value.handle,
            lr=rate,
            grad=gradient,
            momentum=self._config.momentum,
            use_locking=True,
            use_nesterov=self._config.optimizer == "nesterov",
        )

    def _compute_and_send_gradient(self, *request: Any) -> dict[str, tf.Tensor]:
        """Computes a gradient on a worker and sends it to the servers; returns the figures from before the update."""
        config = self._config
        network = self._network
        optimizer = self.optimizer
        begun = self._begun.assign_add(1)
        read = tf.identity(optimizer.iterations.value)
        with tf.control_dependencies([read]), tf.GradientTape() as tape:  # no weight is older than that number
            images, labels = self._input.read_located(*request)
            logits = network(standardize(images), training=True)
            cross_entropy = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            loss = tf.add_n([cross_entropy, *network.losses])
        gradients = tape.gradient(loss, [variable.value for variable in network.trainable_variables])
        norm = tf.linalg.global_norm(gradients)
        if config.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, config.clip_norm, norm)
        if hasattr(optimizer, "gradient_norm"):
            optimizer.gradient_norm.value.assign(norm)
        rate = tf.cast(learning_rate_schedule(config)(read), tf.float32)
        momenta = optimizer.momentums or [None] * len(gradients)  # none if momentum is 0
        with tf.control_dependencies([begun]):
            applied = [
                self._apply(variable, momentum, gradient, rate)
                for variable, momentum, gradient in zip(network.trainable_variables, momenta, gradients, strict=True)
            ]
        with tf.control_dependencies(applied):
            number = optimizer.iterations.value.assign_add(1)
        return {
            "loss": loss,
            "cross_entropy": cross_entropy,
            "top1": tf.reduce_mean(in_top_k(labels, logits, 1)),
            "top5": tf.reduce_mean(in_top_k(labels, logits, 5)),
            "staleness": tf.cast(number - read - 1, tf.float32),
        }
