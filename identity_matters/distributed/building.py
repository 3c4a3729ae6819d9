"""What fit trains: the network with its data pipeline, compiled for the devices and processes that there are."""

import keras

from identity_matters.batch_norm import fuse
from identity_matters.comparators import build_network
from identity_matters.config import TrainConfig
from identity_matters.data.batches import ArrayBatches, StreamedBatches
from identity_matters.distributed.workers import Workers
from identity_matters.optimization import compile_model


def build(
    config: TrainConfig, batches: ArrayBatches | StreamedBatches, workers: Workers
) -> tuple[keras.Model, keras.Model]:
    """Returns the network, and the compiled model that fit trains: from a batch's first array to the logits."""
    with workers.scope():
        network = fuse(build_network(config.model, config.seed))
        if workers.strategy:
            from identity_matters.distributed.replicated import ReplicatedModel, decorrelate_dropout

            model = batches.attach(decorrelate_dropout(network))
            model = ReplicatedModel(model.inputs, model.outputs, name=model.name)
            compile_model(model, config, on_replicas=True)
            return network, model
    if config.strategy == "parameter_server":
        from identity_matters.distributed.parameter_server import AsynchronousModel

        return network, AsynchronousModel(network, batches, config, workers)
    model = batches.attach(network)
    compile_model(model, config)
    return network, model
