"""What a model is trained with: loss, optimiser, learning rates, metrics, determinism."""

import keras

from identity_matters.config import TrainConfig


def learning_rate_schedule(config: TrainConfig) -> keras.optimizers.schedules.LearningRateSchedule:
    """The learning rate of update 0, 1, …: both settings of Hardt & Ma §4, and a constant.

    piecewise: the rate is multiplied by decay_factor from update s on, for every s of
    decay_steps. exponential: by decay_factor^⌊update / decay_steps⌋.
    """
    schedules = keras.optimizers.schedules
    if config.schedule == "exponential":
        return schedules.ExponentialDecay(
            config.learning_rate, config.decay_steps[0], config.decay_factor, staircase=True
        )
    drops = config.decay_steps if config.schedule == "piecewise" else ()
    if not drops:
        return schedules.ExponentialDecay(config.learning_rate, 1, 1.0)
    rates = [config.learning_rate * config.decay_factor**i for i in range(len(drops) + 1)]
    # Keras keeps a rate up to and including its boundary.
    return schedules.PiecewiseConstantDecay([step - 1 for step in drops], rates)


def compile_model(model: keras.Model, config: TrainConfig, sgd=keras.optimizers.SGD) -> None:
    """Loss, optimiser of class sgd and metrics; the optimiser's variables are made at once, so that they can be restored."""
    metrics = [
        keras.metrics.SparseCategoricalCrossentropy(name="cross_entropy", from_logits=True),
        keras.metrics.SparseCategoricalAccuracy(name="top1"),
        keras.metrics.SparseTopKCategoricalAccuracy(k=min(5, config.model.num_classes), name="top5"),
    ]
    model.compile(
        optimizer=sgd(
            learning_rate_schedule(config),
            momentum=config.momentum,
            nesterov=config.optimizer == "nesterov",
            global_clipnorm=config.clip_norm or None,
            name="sgd",
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Weighted, so that the examples that fill up the last test batch do not count.
        weighted_metrics=metrics,
        jit_compile=_jit_compile(config.jit_compile),
        steps_per_execution=config.steps_per_execution,
    )
    model.optimizer.build(model.trainable_variables)


def _jit_compile(choice: str):
    """Keras's own "auto" asks for XLA; under TensorFlow it is slower on a CPU, and not taken under op determinism."""
    if choice == "auto":
        return False if keras.backend.backend() == "tensorflow" else "auto"
    return choice == "on"


def make_deterministic(seed: int) -> None:
    keras.utils.set_random_seed(seed)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
