"""Time a training step with fused batch normalisation against Keras's own layer.

    python -m benchmarks.batch_norm                   3 minutes on 2 cores

The networks are those of docs/papers/results.md that normalise: cifar10_fast's batch-normalised version, ResNet-20 and
pre-activation ResNet-20, on random images, with momentum SGD. Both sides of a network have the same weights, and their
losses are checked to agree over the first steps. The bound is the same network without any normalisation, where there
is one: cifar10_fast.

Measured on 2 cores of an Intel Xeon (AVX-512), TensorFlow 2.21, Keras 3.15, milliseconds a step of 128, medians of 5
rounds of 5 steps, no other process busy (the ranges of the milliseconds are left out):

    | network                  | without | fused | Keras | Keras / fused |   min – max |
    | ------------------------ | ------: | ----: | ----: | ------------: | ----------: |
    | cifar10_fast with BN     |     193 |   212 |   271 |          1.27 | 1.11 – 1.35 |
    | ResNet-20                |         |   183 |   272 |          1.49 | 1.44 – 1.56 |
    | pre-activation ResNet-20 |         |   184 |   272 |          1.47 | 1.38 – 1.52 |
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from benchmarks.harness import OTHERS, environment, interleaved, rate, ratios, spread, table
from identity_matters.config import ModelConfig
from identity_matters.fields import check_fields, option
from identity_matters.presets import MODEL_PRESETS
from launch import launcher

_FAST = MODEL_PRESETS["cifar10_fast"]
NETWORKS = {
    "cifar10_fast with BN": dataclasses.replace(_FAST, use_batch_norm=True, residual_initializer="standard"),
    "ResNet-20": ModelConfig(network="resnet_20"),
    "pre-activation ResNet-20": ModelConfig(network="preact_resnet_20"),
}
NONE, FUSED, KERAS = "without", "fused", "Keras"
MAX_DIFFERENCE = 1e-4  # of the losses of the first three steps, over their size


@dataclasses.dataclass(frozen=True)
class BatchNormBenchmark:
    """What is timed, and how often.

    Attributes:
      repeats: Rounds in which each is timed once; medians and ranges are over the rounds.
      steps: Training steps in a round.
      batch_size: Images in a step.
    """

    repeats: int = option(5, at_least=1)
    steps: int = option(5, at_least=1)
    batch_size: int = option(128, at_least=1)

    def __post_init__(self) -> None:
        check_fields(self)


def main(benchmark: BatchNormBenchmark) -> None:
    """Times the three networks, each with both layers in turns, and prints the table."""
    steps = {("cifar10_fast with BN", NONE): training_step(_FAST, benchmark)}
    for name, config in NETWORKS.items():
        both = {kind: training_step(config, benchmark, fused=kind == FUSED) for kind in (FUSED, KERAS)}
        losses = {kind: np.array([step() for _ in range(3)]) for kind, step in both.items()}
        if not np.allclose(losses[FUSED], losses[KERAS], rtol=MAX_DIFFERENCE, atol=0):
            raise ArithmeticError(f"{name}: the losses differ, {losses[FUSED]} and {losses[KERAS]}")
        steps |= {(name, kind): step for kind, step in both.items()}
    timed = {key: lambda step=step: 1e3 / rate(step, benchmark.steps, 1) for key, step in steps.items()}
    times = interleaved(timed, benchmark.repeats)
    print(environment())
    print(f"\nmilliseconds a step of {benchmark.batch_size}, {benchmark.repeats} rounds of {benchmark.steps} steps\n")
    print(table(("network", NONE, FUSED, "min – max", KERAS, "min – max", "Keras / fused", "min – max"), _rows(times)))


def _rows(times: dict) -> list[tuple[str, ...]]:
    rows = []
    for name in NETWORKS:
        bare = spread(times[name, NONE])[0] if (name, NONE) in times else ""
        cells = [cell for kind in (FUSED, KERAS) for cell in spread(times[name, kind])]
        rows.append((name, bare, *cells, *spread(ratios(times[name, KERAS], times[name, FUSED]))))
    return [*rows, (OTHERS, "", *spread(times[OTHERS]), "", "", "", "")]


def training_step(config: ModelConfig, benchmark: BatchNormBenchmark, fused: bool = True) -> Callable[[], float]:
    """Returns a function that does one update on a fixed batch and returns the loss before it."""
    import keras
    import tensorflow as tf

    from identity_matters import batch_norm, networks

    network = networks.build(config)
    network = batch_norm.fuse(network) if fused else network
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(network.trainable_variables)
    rng = np.random.default_rng(0)
    images = tf.constant(rng.standard_normal((benchmark.batch_size, *config.image_shape), np.float32))
    labels = tf.constant(rng.integers(0, config.num_classes, benchmark.batch_size))

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        optimizer.apply(tape.gradient(loss, network.trainable_variables), network.trainable_variables)
        return loss

    compiled = step.get_concrete_function()
    return lambda: float(compiled())


cli = launcher.command(main, {"": BatchNormBenchmark()}, manual=__doc__)

if __name__ == "__main__":
    cli()
