"""The variants of the network: plain, batch-normalised, of other depth of a block, in mixed precision."""

import dataclasses

import numpy as np
import pytest
from keras import layers
from network_in_numpy import FLOAT32, SMALL, arrays, changed, convolutions, numpy_forward, relative_difference

from identity_matters.model import PRESETS, all_conv_resnet


def test_the_plain_network_has_the_same_kernels_and_no_shortcut(images):
    plain_config = dataclasses.replace(SMALL, shortcut=False)
    base, plain = all_conv_resnet(SMALL), all_conv_resnet(plain_config)
    assert arrays(base).keys() == arrays(plain).keys() and not changed(base, plain)
    assert not any(isinstance(layer, layers.Add) for layer in plain.layers)
    assert relative_difference(plain(images), numpy_forward(plain, plain_config, images)) < FLOAT32
    assert relative_difference(plain(images), base(images).numpy()) > 0.1


@pytest.mark.parametrize("num_convs", [1, 3, 4])
@pytest.mark.parametrize("shortcut", [True, False])
def test_block_of_1_or_3_convolutions_has_relus_between_them_as_in_numpy(num_convs, shortcut, images):
    c = dataclasses.replace(SMALL, convs_per_block=num_convs, shortcut=shortcut)
    network = all_conv_resnet(c, seed=3)
    assert relative_difference(network(images), numpy_forward(network, c, images)) < FLOAT32
    names = [layer.name for layer in network.layers if layer.name.startswith("stage2_block1_")]
    body = ["conv1", "relu", "conv2", "relu2", "conv3", "relu3", "conv4", "relu4"][: 2 * num_convs - shortcut]
    shortcut_layers = ["add", "pool"] if shortcut else []
    assert sorted(names) == sorted(f"stage2_block1_{name}" for name in body + shortcut_layers)
    strided = [layer.name for layer in convolutions(network) if layer.strides == (2, 2)]
    assert strided == ["stage2_block1_conv1", "stage3_block1_conv1"]
    if num_convs > 1:  # negative control
        one_less = dataclasses.replace(c, convs_per_block=num_convs - 1)
        assert relative_difference(network(images), numpy_forward(network, one_less, images)) > 100 * FLOAT32


def test_batch_normalised_variant_has_the_same_kernels_and_a_bn_per_convolution(images):
    base, twin = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, use_batch_norm=True))
    assert not changed(base, twin) and arrays(base).keys() < arrays(twin).keys()
    normalised = [layer for layer in twin.layers if isinstance(layer, layers.BatchNormalization)]
    assert [layer.input._keras_history.operation.name for layer in normalised] == [c.name for c in convolutions(twin)]
    assert normalised[1].name == "stage1_block1_bn1"
    # Untrained, its statistics are 0 and 1: a division by √(1 + ε).
    scale = (1 + normalised[0].epsilon) ** -0.5
    assert relative_difference(twin(images, training=False), numpy_forward(twin, SMALL, images, scale)) < FLOAT32
    assert relative_difference(twin(images, training=True), twin(images, training=False).numpy()) > 0.1


def test_a_trained_projection_changes_nothing_but_that(images):
    base, trained = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, train_projection=True))
    assert arrays(base).keys() == arrays(trained).keys() and not changed(base, trained)
    extra = {v.path for v in trained.trainable_variables} - {v.path for v in base.trainable_variables}
    assert extra == {"projection/kernel"}
    np.testing.assert_array_equal(base(images), trained(images))


def test_mixed_precision_uses_bfloat16_for_convolutions_and_float32_elsewhere(images):
    base, mixed = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, mixed_precision=True))
    assert not changed(base, mixed) and {v.dtype for v in mixed.variables} == {"float32"}
    dtypes = {layer.name: layer.output.dtype for layer in mixed.layers}
    in_bfloat16 = {name for name, dtype in dtypes.items() if dtype == "bfloat16"}
    assert in_bfloat16 == {name for name in dtypes if "conv" in name or "relu" in name}
    # A bfloat16 is off by at most 2⁻⁹; some 20 roundings on the way.
    assert 2**-14 < relative_difference(mixed(images), base(images).numpy()) < 20 * 2**-9


def branches_part(network, images) -> np.ndarray:
    """The residual branches' part of the logits: those of the network minus those of only its shortcuts."""
    logits = network(images).numpy()
    for layer in convolutions(network):
        if layer.name.endswith("_conv2"):
            layer.kernel.assign(np.zeros(layer.kernel.shape))
    return logits - network(images).numpy()


@pytest.mark.slow
def test_mixed_precision_keeps_the_small_branches_of_table_1_at_its_initial_weights():
    images = np.random.default_rng(0).standard_normal((4, 32, 32, 3), np.float32)
    expected = branches_part(all_conv_resnet(PRESETS["cifar10"]), images)
    mixed = all_conv_resnet(dataclasses.replace(PRESETS["cifar10"], mixed_precision=True))
    assert relative_difference(branches_part(mixed, images), expected) < 0.05
