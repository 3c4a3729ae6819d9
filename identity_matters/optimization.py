"""The loss, the optimiser, the learning rates and the metrics of a training run."""

from typing import Any

import keras
from keras import ops

from identity_matters import given_optimizer
from identity_matters.config import TrainConfig
from identity_matters.momentum import Momentum
from identity_matters.muon import Muon


def learning_rate_schedule(config: TrainConfig) -> keras.optimizers.schedules.LearningRateSchedule:
    """Returns the learning rate of update 0, 1, … as a function of its number.

    piecewise: the rate is multiplied by decay_factor from update s on, for every s of decay_steps (Hardt & Ma §4.1).
    exponential: by decay_factor^⌊update / decay_steps⌋ (§4.2). linear, cosine: it falls to 0 at update train_steps,
    which is the first that is not made. Over the first warmup_steps updates it is also multiplied by
    (update + 1) / warmup_steps. A Keras schedule that `train` was given replaces all this.
    """
    given = given_optimizer.from_text(config.keras_optimizer)
    if isinstance(given, given_optimizer.Schedule):
        return given
    schedules = keras.optimizers.schedules
    rate = config.learning_rate
    steps = config.train_steps
    if config.schedule == "exponential":
        schedule = schedules.ExponentialDecay(rate, config.decay_steps[0], config.decay_factor, staircase=True)
    elif config.schedule == "linear":
        schedule = schedules.PolynomialDecay(rate, steps, end_learning_rate=0.0)
    elif config.schedule == "cosine":
        schedule = schedules.CosineDecay(rate, steps)
    elif config.schedule == "piecewise" and config.decay_steps:
        rates = [rate * config.decay_factor**i for i in range(len(config.decay_steps) + 1)]
        # Keras keeps a rate up to and including its boundary.
        schedule = schedules.PiecewiseConstantDecay([step - 1 for step in config.decay_steps], rates)
    else:
        schedule = schedules.ExponentialDecay(rate, 1, 1.0)
    return WarmUp(schedule, config.warmup_steps) if config.warmup_steps else schedule


@keras.saving.register_keras_serializable("identity_matters")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule, multiplied by (update + 1) / steps while that is below 1.

    To load a model that was compiled with it, import this module first: it registers the class.
    """

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, steps: int) -> None:
        self.schedule = schedule
        self.steps = steps

    def __call__(self, step: Any) -> Any:
        """Returns the rate of update `step`."""
        return self.schedule(step) * ops.minimum((ops.cast(step, "float32") + 1) / self.steps, 1.0)

    def get_config(self) -> dict:
        """The arguments, as Keras saves them."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "steps": self.steps}

    @classmethod
    def from_config(cls, config: dict) -> "WarmUp":
        """Returns the schedule from the arguments that `get_config` gave."""
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["steps"])


def learning_rate(optimizer: keras.optimizers.Optimizer, update: int) -> float:
    """Returns an optimiser's learning rate of update 0, 1, …, or the present one without a schedule."""
    rate = optimizer.get_config()["learning_rate"]
    if not isinstance(rate, dict):
        return float(rate)
    return float(keras.saving.deserialize_keras_object(rate)(update))


def optimizer(config: TrainConfig, on_replicas: bool = False) -> keras.optimizers.Optimizer:
    """Returns the optimiser of the config, perhaps for the replicas of a tf.distribute strategy."""
    given = given_optimizer.from_text(config.keras_optimizer)
    if isinstance(given, keras.optimizers.Optimizer):
        return _on_replicas(type(given)).from_config(given.get_config()) if on_replicas else given
    options = {
        "learning_rate": learning_rate_schedule(config),
        "momentum": config.momentum,
        "weight_decay": config.decoupled_weight_decay or None,
        "global_clipnorm": config.clip_norm or None,
    }
    if config.optimizer == "muon":
        optimizer_type = Muon
        options |= {"newton_schulz_steps": config.newton_schulz_steps, "name": "muon"}
    elif config.optimizer == "momentum":
        optimizer_type = Momentum
    else:
        optimizer_type = keras.optimizers.SGD
        options |= {"nesterov": config.optimizer == "nesterov", "name": "sgd"}
    return (_on_replicas(optimizer_type) if on_replicas else optimizer_type)(**options)


def _on_replicas(optimizer_type: type) -> type:
    """Returns the class of an optimiser with the gradients of the replicas summed before they are clipped."""
    from identity_matters.replicated import all_reduce_before_clipping

    # Muon sums first by itself.
    return optimizer_type if issubclass(optimizer_type, Muon) else all_reduce_before_clipping(optimizer_type)


def compile_model(model: keras.Model, config: TrainConfig, on_replicas: bool = False) -> None:
    """Compiles a model that returns logits with loss, optimiser and metrics; see `optimizer` for on_replicas.

    The optimiser's variables are made at once, to be restored into.
    """
    model.compile(
        optimizer=optimizer(config, on_replicas),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Weighted, so that the examples that fill up the last test batch do not count.
        weighted_metrics=_metrics(),
        jit_compile=_jit_compile(config.jit_compile),
        steps_per_execution=config.steps_per_execution,
    )
    # fit would make the optimiser's variables in its first step, too late to restore a checkpoint into them.
    variables = model.trainable_variables
    if not isinstance(given_optimizer.from_text(config.keras_optimizer), keras.optimizers.Optimizer):
        model.optimizer.exclude_from_weight_decay([variable for variable in variables if len(variable.shape) != 4])
    model.optimizer.build(variables)


def compile_network(network: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Compiles the network itself, which callbacks see, with the optimiser that trains it."""
    network.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=_metrics(),
    )
    # EarlyStopping asks the metrics for their directions, which Keras makes in the first evaluation of a model.
    network._compile_metrics.build(ops.zeros([1], "int32"), ops.zeros([1, network.output_shape[-1]]))


def _metrics() -> list[keras.metrics.Metric]:
    return [
        keras.metrics.SparseCategoricalCrossentropy(name="cross_entropy", from_logits=True),
        InTopK(name="top1", count=1),
        InTopK(name="top5", count=5),
    ]


@keras.saving.register_keras_serializable("identity_matters")
class InTopK(keras.metrics.MeanMetricWrapper):
    """The share of examples whose label is among the `count` highest logits, as `in_top_k` counts ties."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(in_top_k, name=name, count=count)
        self._direction = "up"  # by which EarlyStopping and ModelCheckpoint know what is better
        self._count = count

    def get_config(self) -> dict:
        """The arguments, as Keras saves them."""
        return {"name": self.name, "count": self._count}

    @classmethod
    def from_config(cls, config: dict) -> "InTopK":
        """Returns the metric from the arguments that `get_config` gave."""
        return cls(config["name"], config["count"])


def in_top_k(labels: Any, logits: Any, count: int) -> Any:
    """Returns whether each label's logit is one of the `count` highest, as 1 or 0; ties and NaN count against it.

    Keras's top-k counts every tie as right, so that a network with dead outputs, whose logits are all equal, has error
    0. `evaluation.evaluate` uses this function too.

    Labels [n] or [n, 1] and logits [n, r] give float32 [n].
    """
    labels = ops.cast(ops.reshape(labels, (-1, 1)), "int32")
    # Scores below it are counted: TensorFlow replaces the negation of a < b by a ≥ b, which differs for NaN.
    # The label's logit, a sum with zeros: to trace take_along_axis takes a sixth of the time of a small run.
    own = ops.sum(ops.where(labels == ops.arange(logits.shape[-1]), logits, 0), axis=1, keepdims=True)
    below = ops.sum(ops.cast(logits < own, "int32"), axis=1)
    return ops.cast(below >= logits.shape[-1] - count, "float32")


def _jit_compile(choice: str) -> bool | str:
    """Keras's "auto" asks for XLA, which it then warns that it does not take under TensorFlow's op determinism."""
    if keras.backend.backend() == "tensorflow":
        return False
    return "auto" if choice == "auto" else choice == "on"
