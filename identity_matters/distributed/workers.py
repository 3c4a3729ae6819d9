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
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from identity_matters.config import TrainConfig
from identity_matters.data.batches import Batches, as_dataset
from identity_matters.errors import UserError, WorkerLost, explaining
from identity_matters.optimization import compile_model
from identity_matters.runs.signals import StopRequest


class Workers:
    """The processes that train one network together, seen from one of them, whose number is `rank`.

    Attributes:
      strategy: tf.distribute.Strategy. None on a single device of a process that is alone, and without TensorFlow.
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

    def check(self, config: TrainConfig, callbacks: Sequence) -> slice:
        """Returns the rows of every batch that this process takes, or raises UserError where it cannot train so."""
        if callbacks and config.strategy != "synchronous":
            raise UserError(f"strategy {config.strategy} takes no callbacks")
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
        if batch_size % self.num_replicas:
            raise UserError(
                f"batch_size must be a multiple of the number of devices, {self.num_replicas} on {self.num_processes} "
                f"worker(s), got {batch_size}"
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
    def in_turn(self, is_ordered: bool) -> Iterator[None]:
        """Opens a context that the chief enters first if it is ordered so; then others find what it has downloaded."""
        is_ordered = bool(self.broadcast([is_ordered])[0])
        if is_ordered and not self.is_chief:
            self.all_reduce([0.0])  # not a barrier: where the chief could not download them, nobody can
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
        from identity_matters.distributed.replicated import ReplicatedModel, decorrelate_dropout

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

        with explaining(self.lost):
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

    def lost(self, error: Exception) -> Exception | None:
        """The rule for `explaining` that makes WorkerLost of the errors by which TensorFlow says that a worker is gone.

        Or UserError: the workers cannot train together, as they have different numbers or types of devices.
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
