"""The numbers of ReZero and Fixup in a network: what they compute, and in which type."""

import dataclasses

import keras
import numpy as np
import pytest
from network_in_numpy import FLOAT32, SMALL, arrays, numpy_forward, relative_difference

from identity_matters.config import TrainConfig
from identity_matters.model import all_conv_resnet

INITIALIZERS = ("fixup", "rezero")


def moved(c, seed=0) -> keras.Model:
    """The network of a config, away from its initial weights, at which branches are 0."""
    network, random = all_conv_resnet(c, seed), np.random.default_rng(seed)
    for variable in network.trainable_variables:
        variable.assign(variable + 0.1 * random.standard_normal(variable.shape))
    return network


@pytest.mark.parametrize("num_convs", [1, 2, 3])
@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_the_network_equals_a_forward_pass_in_numpy(initializer, num_convs, images):
    c = dataclasses.replace(SMALL, convs_per_block=num_convs, residual_initializer=initializer)
    network = moved(c)
    logits = network(images)
    assert relative_difference(logits, numpy_forward(network, c, images)) < FLOAT32
    numbers = [variable for variable in network.variables if variable.path.endswith("/value")]
    for variable in numbers[:: len(numbers) - 1]:  # the first and the last
        variable.assign(variable + 0.1)
        assert relative_difference(logits, numpy_forward(network, c, images)) > 10 * FLOAT32, variable.path
        variable.assign(variable - 0.1)


@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_scalars_are_float32_in_mixed_precision_and_keep_their_initial_value(initializer):
    network = all_conv_resnet(dataclasses.replace(SMALL, residual_initializer=initializer, mixed_precision=True))
    copy = keras.models.clone_model(network)  # new weights, from the layers' configurations
    numbers = {path: value for path, value in arrays(network).items() if path.endswith("/value")}
    assert numbers and {path: arrays(copy)[path] for path in numbers} == numbers
    scalars = [layer for layer in network.layers if layer.name.endswith(("_bias", "_multiplier"))]
    assert len(scalars) == {"fixup": 16, "rezero": 4}[initializer]
    assert {layer.output.dtype for layer in scalars} == {v.dtype for layer in scalars for v in layer.variables}
    assert {layer.output.dtype for layer in scalars} == {"float32"}
    assert network.get_layer("stage1_block1_conv1").compute_dtype == "bfloat16"


def test_only_fixup_s_trained_projection_starts_at_zero_and_ignores_its_scale():
    def of(**changes):
        return dataclasses.replace(SMALL, **changes)

    for initializer, is_trained in (("fixup", True), ("fixup", False), ("rezero", True)):
        c = of(residual_initializer=initializer, train_projection=is_trained)
        is_zero = initializer == "fixup" and is_trained
        assert np.any(arrays(all_conv_resnet(c))["projection/kernel"]) != is_zero
        assert ("projection_scale" in TrainConfig(model=c).unused_fields()) == is_zero
