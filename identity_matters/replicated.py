"""A Keras model and an optimiser that train on the replicas of a tf.distribute strategy.

`fit` of Keras 3 fails under MultiWorkerMirroredStrategy (keras issue 20585): it builds the model from a
batch of values per replica, and reads every metric with collectives of its own. And Keras's optimisers clip the
gradient of each replica before they sum them, so that with clipping two replicas train otherwise than one; its dropout
drops the same entries of each replica's examples.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from identity_matters.runs.signals import StopRequest


class ReplicatedModel(keras.Model):
    """A model whose fit and evaluate run on all replicas; to be made and compiled in the strategy's scope.

    After every step of fit the workers agree on `stop`, once it is made on one of them.
    """

    def __init__(self, inputs: Any, outputs: Any, name: str | None = None, stop: StopRequest | None = None) -> None:
        super().__init__(inputs, outputs, name=name)
        self._stop = stop or StopRequest()

    def compile(self, **arguments: Any) -> None:
        """Compiles as keras.Model.compile, and makes the variables of the loss and of the metrics at once."""
        super().compile(**arguments)
        labels = tf.zeros([1], tf.int32)
        logits = tf.zeros([1, self.output_shape[-1]])
        self._compile_loss.build(labels, logits)
        self._compile_metrics.build(labels, logits)

    @functools.cached_property
    def average_moments(self) -> Callable[[], None]:
        """The function that gives every replica the mean of all replicas' moments of batch normalisation.

        Each replica keeps its own while it trains. They are averaged before a checkpoint and before an evaluation.
        """
        normalisations = [
            layer for layer in self._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)
        ]
        moments = [moment for layer in normalisations for moment in layer.non_trainable_weights]

        def average_on_replica() -> None:
            replica = tf.distribute.get_replica_context()
            means = replica.all_reduce(tf.distribute.ReduceOp.MEAN, [tf.identity(moment.value) for moment in moments])
            for moment, mean in zip(moments, means):
                moment.assign(mean)

        average = tf.function(lambda: self.distribute_strategy.run(average_on_replica))
        return average if moments else lambda: None

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """Evaluates as keras.Model.evaluate; steps, the number of batches, must be given."""
        self._test_steps_left = options["steps"]
        return super().evaluate(*arguments, **options)

    def make_train_function(self, force: bool = False) -> None:
        """Makes the function that fit calls: steps_per_execution training steps on all replicas."""
        if self.train_function is None or force:
            run = self._on_replicas(self.train_step)
            self.train_function = lambda iterator: run(iterator, self.steps_per_execution)

    def make_test_function(self, force: bool = False) -> None:
        """Makes the function that evaluate calls: steps_per_execution test steps, or as many as are left."""
        if self.test_function is not None and not force:
            return
        run = self._on_replicas(self.test_step)

        def run_next(iterator: Iterator) -> dict[str, float]:
            num_steps = min(self.steps_per_execution, self._test_steps_left)
            self._test_steps_left -= num_steps
            return run(iterator, num_steps)

        self.test_function = run_next

    @property
    def _means(self) -> list[keras.metrics.Mean]:
        """Returns the loss and the metrics, each of them a mean."""
        return [self._loss_tracker, *self._compile_metrics.metrics]

    def _on_replicas(self, step: Callable) -> Callable[[Iterator, int], dict[str, float]]:
        """Returns the function (iterator, num_steps) -> logs that runs a step on all replicas, num_steps times.

        The logs are means over all examples since the metrics were reset, and come from one collective.
        """
        strategy = self.distribute_strategy
        means = self._means

        def totals(is_stopping: tf.Tensor) -> tf.Tensor:
            pairs = [tf.stack([mean.total.value, mean.count.value]) for mean in means]
            return tf.concat([*pairs, [is_stopping]], axis=0)

        @tf.function(reduce_retracing=True)
        def run(iterator: Iterator, num_steps: tf.Tensor, is_stopping: tf.Tensor) -> tf.Tensor:
            for _ in tf.range(num_steps):
                strategy.run(step, args=(next(iterator),))
            return strategy.reduce("SUM", strategy.run(totals, args=(is_stopping,)), axis=None)

        def run_and_agree(iterator: Iterator, num_steps: int) -> dict[str, float]:
            is_stopping = tf.constant(float(self._stop.received))
            *pairs, num_stopping = run(iterator, tf.constant(num_steps), is_stopping).numpy()
            self._stop.shared_decision = bool(num_stopping)
            return {mean.name: pairs[2 * i] / pairs[2 * i + 1] for i, mean in enumerate(means)}

        return run_and_agree

    def reset_metrics(self) -> None:
        """Resets the metrics; keras.Model.reset_metrics would first sum every value over all workers."""
        self._reset_means()

    @functools.cached_property
    def _reset_means(self) -> Callable[[], None]:
        """Returns the function that resets the means on every replica."""

        def reset_on_replica() -> None:
            for mean in self._means:
                for variable in mean.variables:
                    variable.assign(tf.zeros_like(variable.value))

        return tf.function(lambda: self.distribute_strategy.run(reset_on_replica))

    # Keras calls these two, which are private. Its own build the model from a value per replica, which fails, and read
    # each metric by a collective: keras issue 20585 says when they can go.
    def _maybe_symbolic_build(self, iterator: Iterator | None = None, data_batch: Any = None) -> None:
        """Does nothing: model, metrics and optimiser are built before fit."""

    def _get_metrics_result_or_logs(self, logs: dict[str, float]) -> dict[str, float]:
        """Returns the logs: they are means over all replicas already."""
        return logs


def all_reduce_before_clipping(optimizer: type) -> type:
    """Returns the optimiser's class with the gradients of the replicas summed first, then clipped."""

    class SummingFirst(optimizer):
        def _clip_gradients(self, grads: list) -> list:
            replica = tf.distribute.get_replica_context()
            if replica and replica.num_replicas_in_sync > 1:
                grads = replica.all_reduce(tf.distribute.ReduceOp.SUM, grads)
            return super()._clip_gradients(grads)

        def _all_reduce_sum_gradients(self, grads_and_vars: list) -> list:
            return list(grads_and_vars)

    return SummingFirst


def decorrelate_dropout(network: keras.Model) -> keras.Model:
    """Returns the network, of which the dropout of each replica now draws other masks; Keras's draw the same.

    Its layers stay Keras's; their state, which checkpoints hold, is the same on each replica.
    """
    for layer in network.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.seed_generator.next = functools.partial(_next_seed, layer.seed_generator)
    return network


def _next_seed(generator: keras.random.SeedGenerator, ordered: bool = True) -> tf.Tensor:
    """Returns the next seed [2] of a replica: that of one device, with the replica's number added."""
    seed = keras.random.SeedGenerator.next(generator, ordered)
    if not (replica := tf.distribute.get_replica_context()):
        return seed
    return seed + tf.cast([replica.replica_id_in_sync_group, 0], seed.dtype)
