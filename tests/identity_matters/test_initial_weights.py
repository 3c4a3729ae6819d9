"""The weights that a network starts with: their distribution, and what variants share."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from network_in_numpy import SMALL, arrays, changed, convolutions, single_block

from identity_matters.config import ModelConfig
from identity_matters.convolutions import layer_seed
from identity_matters.model import all_conv_resnet, residual_stddev


def deviations(sample, stddev) -> tuple[float, float]:
    """How many standard errors the sample's mean and standard deviation lie from 0 and stddev, if it is Gaussian."""
    n = sample.size
    return abs(sample.mean()) / (stddev / n**0.5), abs(sample.std() / stddev - 1) * (2 * n) ** 0.5


def test_residual_kernels_start_gaussian_with_sigma_1_over_k2_c(cifar10):
    for layer in convolutions(cifar10)[1:]:
        sigma = 1 / (9 * layer.filters)
        assert residual_stddev(3, layer.filters) == sigma
        assert max(deviations(layer.kernel.numpy(), sigma)) < 5, layer.name
    kernel = cifar10.get_layer("stage2_block1_conv1").kernel.numpy()
    assert deviations(kernel, 1 / (9 * kernel.shape[2]))[1] > 50  # input channels in place of output channels
    assert np.abs(kernel).max() > 4 / (9 * 128)  # 73,728 draws: not truncated at two sigma


def test_the_stem_and_standard_kernels_start_with_sigma_1_over_k_root_c():
    wide = ModelConfig(widths=(64,), blocks_per_stage=(1,), stem_width=64, residual_initializer="standard")
    for layer in convolutions(all_conv_resnet(wide)):
        kernel = layer.kernel.numpy()
        assert max(deviations(kernel, 1 / (3 * 64**0.5))) < 5, layer.name
        assert deviations(kernel, 1 / (9 * 64))[1] > 50
    small = all_conv_resnet(dataclasses.replace(wide, residual_initializer="small", stem_kernel_size=7))
    assert max(deviations(small.get_layer("stem_conv").kernel.numpy(), 1 / (7 * 64**0.5))) < 5


def test_the_projection_is_random_with_variance_1_over_fan_in_and_not_trained(cifar10):
    projection = cifar10.get_layer("projection")
    kernel = projection.kernel.numpy()
    n, sigma = kernel.size, 256**-0.5
    assert not projection.trainable
    assert np.abs(kernel).max() <= 3**0.5 * sigma  # uniform
    assert abs(kernel.mean()) < 5 * sigma / n**0.5
    # A uniform distribution's fourth moment is 1.8 σ⁴.
    assert abs(kernel.std() / sigma - 1) < 5 * (0.8 / n) ** 0.5 / 2


def test_the_projection_scale_is_a_factor_only_on_the_projection():
    network, scaled = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, projection_scale=3.0))
    (path,) = changed(network, scaled)
    assert path == "projection/kernel"
    np.testing.assert_allclose(arrays(scaled)[path], 3 * arrays(network)[path], atol=1e-6)


def test_small_and_standard_initialisation_share_all_but_the_residual_kernels():
    standard, small = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, residual_initializer="small"))
    assert changed(standard, small) == {p for p in arrays(small) if p.startswith("stage")}
    assert layer_seed(0, "stem_conv") == 658_547_548  # as ever, so that networks of other versions have these kernels
    for path in changed(standard, small):  # one draw, scaled: by √c / (k c)
        kernel = arrays(small)[path]
        np.testing.assert_allclose(kernel * 3 * kernel.shape[3] ** 0.5, arrays(standard)[path], rtol=1e-5)


@pytest.mark.parametrize("num_convs", [1, 2, 3])
def test_the_zero_initialiser_zeroes_the_last_convolution(num_convs):
    c = dataclasses.replace(SMALL, convs_per_block=num_convs, residual_initializer="zero")
    network = all_conv_resnet(c)
    standard = all_conv_resnet(dataclasses.replace(c, residual_initializer="standard"))
    assert changed(standard, network) == {path for path in arrays(network) if path.endswith(f"conv{num_convs}/kernel")}
    assert not any(arrays(network)[path].any() for path in changed(standard, network))


BLOCKS = ("stage1_block1", "stage2_block1", "stage2_block2", "stage3_block1")  # of SMALL


@pytest.mark.parametrize("num_convs, factor", [(1, None), (2, 1 / 2), (3, 1 / 2**0.5)])  # 4^(−1/(2m − 2)), four blocks
def test_fixup_scales_the_branches_by_the_number_of_blocks_and_adds_its_scalars(num_convs, factor):
    c = dataclasses.replace(SMALL, convs_per_block=num_convs)
    network = arrays(all_conv_resnet(dataclasses.replace(c, residual_initializer="fixup"), seed=3))
    standard = arrays(all_conv_resnet(c, seed=3))
    for path, kernel in standard.items():
        is_last = path.endswith(f"conv{num_convs}/kernel")
        expected = kernel * (0 if is_last else factor) if path.startswith("stage") else kernel
        np.testing.assert_allclose(network[path], expected, rtol=1e-6, atol=0, err_msg=path)
    biased = [f"conv{i}" for i in range(1, num_convs + 1)] + [f"relu{i}" for i in range(1, num_convs)]
    scalars = {f"{block}_{layer}_bias/value": 0.0 for block in BLOCKS for layer in biased}
    scalars |= {f"{block}_multiplier/value": 1.0 for block in BLOCKS}
    assert {path: network[path].item() for path in network.keys() - standard.keys()} == scalars


@pytest.mark.parametrize("num_convs", [1, 2, 3])
def test_rezero_adds_a_multiplier_of_zero_to_each_branch_of_the_standard_network(num_convs):
    c = dataclasses.replace(SMALL, convs_per_block=num_convs)
    network, standard = all_conv_resnet(dataclasses.replace(c, residual_initializer="rezero")), all_conv_resnet(c)
    assert not changed(network, standard)
    multipliers = {path: arrays(network)[path].item() for path in arrays(network).keys() - arrays(standard).keys()}
    assert multipliers == {f"{block}_multiplier/value": 0.0 for block in BLOCKS}


@pytest.mark.parametrize("initializer", ["zero", "fixup", "rezero"])
@pytest.mark.parametrize("num_convs", [1, 3])
def test_a_block_of_zero_fixup_and_rezero_starts_bitwise_as_its_shortcut(initializer, num_convs):
    c = dataclasses.replace(SMALL, convs_per_block=num_convs, residual_initializer=initializer)
    x = np.random.default_rng(1).standard_normal((4, 8, 6, 5), np.float32)
    block = single_block(5, 5, 1, c)
    assert block(x).numpy().tobytes() == x.tobytes()
    for variable in block.trainable_variables:
        variable.assign(variable + 0.1)
    assert not np.array_equal(block(x), x)


@pytest.mark.parametrize(
    "changes, moved",
    [
        ({"residual_initializer": "zero"}, "conv2/kernel"),
        ({"residual_initializer": "fixup"}, "conv2/kernel"),
        ({"residual_initializer": "rezero"}, "multiplier/value"),
        # All gradients pass the projection, which Fixup starts at 0 where it is trained.
        ({"residual_initializer": "fixup", "train_projection": True}, "projection/kernel"),
    ],
)
def test_the_first_gradient_is_that_of_what_starts_at_zero_and_of_the_stem(changes, moved):
    network = all_conv_resnet(dataclasses.replace(SMALL, weight_decay=0.0, **changes))
    random = np.random.default_rng(0)
    images, labels = random.standard_normal((5, *SMALL.image_shape), np.float32), random.integers(0, 10, 5)
    with tf.GradientTape() as tape:
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images))
    gradients = tape.gradient(loss, [variable.value for variable in network.trainable_variables])
    nonzero = {v.path for v, gradient in zip(network.trainable_variables, gradients) if np.any(gradient)}
    expected = {v.path for v in network.trainable_variables if v.path.endswith(moved)}
    assert nonzero == (expected if "train_projection" in changes else expected | {"stem_conv/kernel"})


def test_networks_of_other_depth_share_the_kernels_of_the_same_name():
    one, two, three = (all_conv_resnet(dataclasses.replace(SMALL, convs_per_block=n), seed=1) for n in (1, 2, 3))
    assert not changed(one, two) and not changed(two, three)
    assert arrays(one).keys() < arrays(two).keys() < arrays(three).keys()
    base, deeper = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, blocks_per_stage=(2, 2, 2)))
    assert not changed(base, deeper) and len(arrays(deeper)) == len(arrays(base)) + 4


def test_one_seed_gives_one_network_and_another_seed_another():
    one, again, other = (all_conv_resnet(SMALL, seed) for seed in (1, 1, 2))
    assert not changed(one, again) and changed(one, other) == arrays(one).keys()
    # Nor are two kernels of one network the same draw.
    equal_shapes = [k for path, k in arrays(all_conv_resnet(SMALL)).items() if k.shape == (3, 3, 8, 8)]
    assert len(equal_shapes) == 3 and len({k.tobytes() for k in equal_shapes}) == 3
