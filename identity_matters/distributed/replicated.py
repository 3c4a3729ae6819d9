"""A Keras model and an optimiser that train on the replicas of a tf.distribute strategy.

`fit` of Keras 3 fails under MultiWorkerMirroredStrategy (keras issue 20585): it builds the model from a
batch of values per replica, and reads every metric with collectives of its own. And Keras's optimisers clip the
gradient of each replica before they sum them, so that with clipping two replicas train otherwise than one.
"""

import functools

import keras
import tensorflow as tf

from identity_matters.runs.signals import StopRequest


class ReplicatedModel(keras.Model):
    """A model whose fit and evaluate run on all replicas; to be made and compiled in the strategy's scope.

    Attributes:
      stop_request: StopRequest. After every step of fit it is agreed on where it is made on one of the workers.
    """

    stop_request = StopRequest()

    def compile(self, **arguments):
        super().compile(**arguments)
        labels, logits = tf.zeros([1], tf.int32), tf.zeros([1, self.output_shape[-1]])
        self._compile_loss.build(labels, logits)
        self._compile_metrics.build(labels, logits)

    def fit(self, *arguments, **options):
        """As keras.Model.fit; then the moments of batch normalisation, which each replica has followed alone, are averaged."""
        history = super().fit(*arguments, **options)
        self._average_moments()
        return history

    @functools.cached_property
    def _average_moments(self):
        normalisations = [
            layer for layer in self._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)
        ]
        moments = [moment for layer in normalisations for moment in layer.non_trainable_weights]

        def of_replica():
            replica = tf.distribute.get_replica_context()
            means = replica.all_reduce(tf.distribute.ReduceOp.MEAN, [tf.identity(moment.value) for moment in moments])
            for moment, mean in zip(moments, means):
                moment.assign(mean)

        @tf.function
        def average():
            self.distribute_strategy.run(of_replica)

        return average if moments else lambda: None

    def evaluate(self, *arguments, **options):
        """As keras.Model.evaluate, one batch a call: steps_per_execution need not divide them."""
        steps, self.steps_per_execution = self.steps_per_execution, 1
        try:
            return super().evaluate(*arguments, **options)
        finally:
            self.steps_per_execution = steps

    def make_train_function(self, force=False):
        if self.train_function is None or force:
            self.train_function = self._on_replicas(self.train_step, self.steps_per_execution)

    def make_test_function(self, force=False):
        if self.test_function is None or force:
            self.test_function = self._on_replicas(self.test_step, 1)

    @property
    def _means(self) -> list[keras.metrics.Mean]:
        return [self._loss_tracker, *self._compile_metrics.metrics]

    def _on_replicas(self, step, num_steps: int):
        """iterator -> logs: means over all examples since the metrics were reset, from one collective."""
        strategy, means = self.distribute_strategy, self._means

        def totals(is_stopping):
            pairs = [tf.stack([mean.total.value, mean.count.value]) for mean in means]
            return tf.concat([*pairs, [is_stopping]], axis=0)

        @tf.function(reduce_retracing=True)
        def run(iterator, is_stopping):
            for _ in tf.range(num_steps):
                strategy.run(step, args=(next(iterator),))
            return strategy.reduce("SUM", strategy.run(totals, args=(is_stopping,)), axis=None)

        def function(iterator):
            stop = self.stop_request
            *pairs, num_stopping = run(iterator, tf.constant(float(stop.is_made))).numpy()
            stop.is_collective, stop.is_agreed = True, bool(num_stopping)
            return {mean.name: pairs[2 * i] / pairs[2 * i + 1] for i, mean in enumerate(means)}

        return function

    def reset_metrics(self):
        """As keras.Model.reset_metrics, which would first sum every value over all workers."""
        self._reset_means()

    @functools.cached_property
    def _reset_means(self):
        def of_replica():
            for mean in self._means:
                for variable in mean.variables:
                    variable.assign(tf.zeros_like(variable.value))

        @tf.function
        def reset():
            self.distribute_strategy.run(of_replica)

        return reset

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """All is built."""

    def _get_metrics_result_or_logs(self, logs):
        return logs


def summing_first(optimizer: type) -> type:
    """Returns the optimiser's class with the gradients of the replicas summed first, then clipped."""

    class SummingFirst(optimizer):
        def _clip_gradients(self, grads: list) -> list:
            replica = tf.distribute.get_replica_context()
            return super()._clip_gradients(replica.all_reduce(tf.distribute.ReduceOp.SUM, grads))

        def _all_reduce_sum_gradients(self, grads_and_vars: list) -> list:
            return list(grads_and_vars)

    return SummingFirst
