"""A program for test_distribution.py: trains on two logical CPUs and on one, prints the differences as JSON."""

import contextlib
import dataclasses
import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


import keras
import numpy as np
import tensorflow as tf

from identity_matters import training
from identity_matters.cluster import Cluster
from identity_matters.config import DataConfig, ModelConfig, TrainConfig
from identity_matters.data.batches import ArrayBatches
from identity_matters.data.source import open_source
from identity_matters.model import all_conv_resnet
from identity_matters.muon import Muon
from identity_matters.optimization import compile_model
from identity_matters.replicated import ReplicatedModel

CONFIG = TrainConfig(
    model=ModelConfig(
        (28, 28, 1), stem_width=4, widths=(4, 8), blocks_per_stage=(1, 1), residual_initializer="standard"
    ),
    data=DataConfig("mnist_sample", train_examples=200, eval_examples=43),  # which neither replicas nor batches divide
    crop_padding=2,
    batch_size=16,
    decay_steps=(5,),
    clip_norm=0.05,  # well below the gradients
    eval_every=2,
    checkpoint_every=2,
    train_steps=6,
    steps_per_execution=2,  # divides the training steps, and not the three of the test
)


KERAS_MOMENTUM = dataclasses.replace(CONFIG, optimizer="keras_momentum")
UNCLIPPED = dataclasses.replace(CONFIG, clip_norm=0.0)  # as the paper's presets
MUON = dataclasses.replace(CONFIG, optimizer="muon", learning_rate=0.02, decoupled_weight_decay=0.1)


def train(cluster: Cluster, config: TrainConfig = CONFIG, with_kerass_sgd: bool = False):
    """Returns the weights before and after, the logs and the test logs."""
    batches = ArrayBatches(open_source(config.data), config, cluster.rows(config.batch_size))
    if with_kerass_sgd:
        with cluster.scope():
            network = all_conv_resnet(config.model, config.seed)
            model = batches.attach(network)
            model = ReplicatedModel(model.inputs, model.outputs)
            compile_model(model, config)
    else:
        network, model = training.build(config, batches, cluster)
    before = np.concatenate([w.ravel() for w in network.get_weights()])
    batch_stream = lambda: batches.train_batches(0)  # noqa: E731
    logs = model.fit(
        cluster.distribute(batch_stream), steps_per_epoch=config.train_steps, shuffle=False, verbose=0
    ).history
    after = np.concatenate([w.ravel() for w in network.get_weights()])
    test = model.evaluate(
        cluster.distribute(batches.weighted_test_batches), steps=batches.test_steps, verbose=0, return_dict=True
    )
    test = {name: float(test[name]) for name in ("cross_entropy", "top1", "top5")}  # the loss counts what fills up
    return before, after, {name: float(values[-1]) for name, values in logs.items()}, test


def moments_before_and_after(cluster: Cluster):
    """Returns the moments of batch normalisation on each replica before a fit, before its averaging, and after it."""
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, use_batch_norm=True))
    batches = ArrayBatches(open_source(config.data), config, cluster.rows(config.batch_size))
    network, model = training.build(config, batches, cluster)
    moments = [v for v in network.non_trainable_variables if "moving" in v.path]
    copies = lambda: [[float(copy.numpy().sum()) for copy in v.value.values] for v in moments]  # noqa: E731
    before = copies()
    batch_stream = lambda: batches.train_batches(0)  # noqa: E731
    model.fit(cluster.distribute(batch_stream), steps_per_epoch=config.train_steps, shuffle=False, verbose=0)
    trained = copies()
    model.average_moments()
    return before, trained, copies()


def dropped(cluster: Cluster):
    """Returns what each replica drops of 1,000 ones, in two draws: by a layer of All-CNN-C as it is trained."""
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, network="all_cnn_c"))
    network, _ = training.build(
        config, ArrayBatches(open_source(config.data), config, cluster.rows(config.batch_size)), cluster
    )
    layer = network.get_layer("stage2_dropout")
    strategy = cluster.strategy or tf.distribute.get_strategy()
    draw = tf.function(lambda: strategy.run(lambda: layer(tf.ones([1000]), training=True)))
    return [[mask.numpy().tolist() for mask in strategy.experimental_local_results(draw())] for _ in range(2)]


def fitted_by_keras(scope):
    """Returns the weights before and after of a Keras model that Muon trains, clipped, by Keras's own fit."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((16, 6, 6, 1)).astype(np.float32), rng.integers(0, 2, 16)
    with scope:
        keras.utils.set_random_seed(0)
        layers = [keras.Input((6, 6, 1)), keras.layers.Conv2D(3, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(Muon(0.1, global_clipnorm=0.5), loss)
    before = np.concatenate([w.ravel() for w in model.get_weights()])
    model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return before, np.concatenate([w.ravel() for w in model.get_weights()])


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    two = Cluster(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    before, one, logs_of_one, test_of_one = train(Cluster())
    _, ours, logs, test = train(two)
    runs = {"clipped": (before, one, ours)}
    for name, config in (("keras_momentum", KERAS_MOMENTUM), ("unclipped", UNCLIPPED), ("muon", MUON)):
        runs[name] = (before, *(train(cluster, config)[1] for cluster in (Cluster(), two)))
    kerass_sgd = train(two, KERAS_MOMENTUM, with_kerass_sgd=True)[1]
    runs["Keras's SGD"] = (*runs["keras_momentum"][:2], kerass_sgd)
    fitted = [fitted_by_keras(scope) for scope in (contextlib.nullcontext(), two.strategy.scope())]
    runs["muon and Keras's fit"] = (*fitted[0], fitted[1][1])
    moments_before, moments_trained, moments = moments_before_and_after(two)
    found = {
        "dropped": dropped(two),
        "dropped_by_one": dropped(Cluster()),
        "moments_before": moments_before,
        "moments_trained": moments_trained,
        "moments": moments,
        "moved_and_apart": {
            name: [float(np.abs(one - before).max()), float(np.abs(one - two).max())]
            for name, (before, one, two) in runs.items()
        },
        "logs": logs,
        "logs_of_one": logs_of_one,
        "test": test,
        "test_of_one": test_of_one,
        "num_test": CONFIG.data.eval_examples,
    }
    print(json.dumps(found))


main()
