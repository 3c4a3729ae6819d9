"""The network: what Table 1 says, layer by layer, and a NumPy forward pass written separately."""

import dataclasses
import importlib.util
import inspect
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from keras import layers
from network_in_numpy import (
    FLOAT32,
    SMALL,
    arrays,
    average_pool,
    changed,
    convolutions,
    count,
    numpy_forward,
    pad_channels,
    relative_difference,
    single_block,
)
from refusals import refused

import identity_matters
from identity_matters import networks
from identity_matters.convolutions import training_flops
from identity_matters.model import (
    PRESETS,
    all_conv_resnet,
    check_image_shape,
    has_standardization,
    standardize,
    with_standardization,
)
from identity_matters.untrusted import load_network

PROJECT = pathlib.Path(identity_matters.__file__).parents[1]


WITH_POOL = dataclasses.replace(SMALL, image_shape=(32, 48, 3), stem_kernel_size=7, stem_stride=2, stem_pool=2)


@pytest.mark.parametrize("c", [SMALL, WITH_POOL], ids=["as for CIFAR", "as for ImageNet"])
def test_the_network_equals_a_forward_pass_in_numpy(c):
    images = np.random.default_rng(0).standard_normal((3, *c.image_shape), np.float32)
    network = all_conv_resnet(c, seed=2)
    logits = network(images).numpy()
    assert relative_difference(logits, numpy_forward(network, c, images)) < FLOAT32
    assert relative_difference(logits, numpy_forward(network, c, images, odd_row_first=True)) > 1000 * FLOAT32
    assert relative_difference(logits, numpy_forward(network, c, images, all_channels_after=True)) > 1000 * FLOAT32


def test_the_cifar10_network_trains_13538736_weights_in_55_convolutions(cifar10):
    assert len(convolutions(cifar10)) == 55
    assert count(cifar10.trainable_variables) == count(layer.kernel for layer in convolutions(cifar10)) == 13_538_736
    assert [v.path for v in cifar10.non_trainable_variables] == ["projection/kernel"]
    assert cifar10.get_layer("projection").kernel.shape == (256, 10)
    assert 128 * training_flops(cifar10) == pytest.approx(1.515e12, rel=5e-4)


# Preset: convolutions, their weights, classes.
TABLE = {
    "mnist": (13, 170_640, 10),
    "cifar10_fast": (13, 1_535_760, 10),
    "cifar10_wide": (15, 6_086_664, 10),
    "imagenet": (33, 35_675_772, 1000),
    "imagenet_narrow": (33, 21_095_616, 1000),
}


@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=pytest.mark.slow) if name == "imagenet_narrow" else name for name in TABLE]
)
def test_every_preset_builds_with_the_convolution_weights_of_its_table(preset):
    assert PRESETS.keys() == {"cifar10", "cifar100", *TABLE}  # as another test has
    network = all_conv_resnet(PRESETS[preset])
    weights = count(layer.kernel for layer in convolutions(network))
    assert (len(convolutions(network)), weights, network.output_shape[1]) == TABLE[preset]


def not_in_the_paper(network) -> list[str]:
    """What Table 1 rules out: normalisation, dropout, maximum pooling, a bias."""
    words = ("Normalization", "Dropout", "MaxPool")
    return [
        layer.name
        for layer in network.operations
        if any(word in type(layer).__name__ for word in words) or getattr(layer, "use_bias", False)
    ]


def test_there_is_no_batch_norm_bias_dropout_or_max_pooling(cifar10):
    assert not_in_the_paper(cifar10) == []
    allowed = {"InputLayer", "Conv2D", "ReLU", "Add", "AveragePooling2D", "Pad", "GlobalAveragePooling2D", "Dense"}
    assert {type(operation).__name__ for operation in cifar10.operations} == allowed
    twin = all_conv_resnet(dataclasses.replace(SMALL, use_batch_norm=True))
    assert len(not_in_the_paper(twin)) == len(convolutions(twin)) == 9


def test_layers_are_named_by_stage_and_block_and_no_relu_follows_the_last_addition(cifar10):
    assert [layer.name for layer in cifar10.layers[-3:]] == ["stage3_block9_add", "average_pool", "projection"]
    assert sum(isinstance(layer, layers.ReLU) for layer in cifar10.layers) == 27
    pools = [layer.name for layer in cifar10.layers if isinstance(layer, layers.AveragePooling2D)]
    assert pools == ["stage2_block1_pool", "stage3_block1_pool"]
    expected = ["stem_conv"]
    for stage in (1, 2, 3):
        for block in range(1, 10):
            expected += [f"stage{stage}_block{block}_conv1", f"stage{stage}_block{block}_conv2"]
    assert [layer.name for layer in convolutions(cifar10)] == expected


def test_the_first_convolution_of_a_later_stage_halves_the_resolution(cifar10):
    strides = {layer.name: layer.strides for layer in convolutions(cifar10) if layer.strides != (1, 1)}
    assert strides == {"stage2_block1_conv1": (2, 2), "stage3_block1_conv1": (2, 2)}
    assert cifar10.get_layer("stage3_block9_add").output.shape == (None, 8, 8, 256)


@pytest.mark.parametrize(
    "width_in, width, stride, before", [(4, 8, 2, 2), (5, 8, 2, 1), (4, 5, 2, 0), (6, 6, 2, 0), (3, 8, 1, 2)]
)
def test_the_shortcut_is_pooling_then_zero_channels_half_before_half_after(width_in, width, stride, before):
    model = single_block(width_in, width, stride, dataclasses.replace(SMALL, residual_initializer="zero"))
    x = np.random.default_rng(1).integers(0, 256, (4, 8, 6, width_in)).astype(np.float32)  # exact means
    expected = pad_channels(average_pool(x, stride), before, width - width_in - before)
    np.testing.assert_array_equal(model(x), expected)
    if stride == 2:  # subsampling would be another shortcut
        assert not np.array_equal(model(x), pad_channels(x[:, ::2, ::2], before, width - width_in - before))


@pytest.mark.parametrize(
    "changes",
    [
        {"shortcut": False}, {"use_batch_norm": True, "mixed_precision": True},
        {"residual_initializer": "fixup"}, {"residual_initializer": "rezero"},
    ],
)  # fmt: skip
def test_a_keras_file_gives_back_the_same_network_exactly(changes, images, tmp_path):
    network = all_conv_resnet(dataclasses.replace(SMALL, **changes), seed=5)
    network.save(tmp_path / "model.keras")
    loaded = load_network(str(tmp_path / "model.keras"))
    # Our layer of batch normalisation is saved as Keras's, which has no registered name of its own.
    ours = json.dumps(network.get_config()).replace('"BatchNormalization", "build_config"', 'null, "build_config"')
    assert json.dumps(loaded.get_config()) == ours
    assert arrays(loaded).keys() == arrays(network).keys() and not changed(loaded, network)
    assert [v.path for v in loaded.trainable_variables] == [v.path for v in network.trainable_variables]
    np.testing.assert_array_equal(loaded(images), network(images))


def test_weight_decay_is_half_lambda_times_the_squared_norm_of_the_convolutions():
    changes = {"train_projection": True, "mixed_precision": True}
    network = all_conv_resnet(dataclasses.replace(SMALL, weight_decay=0.3, **changes))
    squared = sum(np.sum(k.astype(np.float64) ** 2) for path, k in arrays(network).items() if "conv" in path)
    assert float(sum(network.losses)) == pytest.approx(0.3 / 2 * squared, rel=1e-5)
    assert all_conv_resnet(dataclasses.replace(SMALL, weight_decay=0.0, **changes)).losses == []


def test_standardised_images_have_mean_0_and_standard_deviation_1():
    images = np.random.default_rng(3).integers(0, 256, (5, 4, 3, 2), np.uint8)
    axes = {"axis": (1, 2, 3), "keepdims": True}
    expected = (images - images.mean(**axes)) / images.std(**axes)  # n, not n − 1: 2 % apart here
    for dtype in (np.uint8, np.int32, np.float32):
        np.testing.assert_allclose(standardize(images.astype(dtype)), expected, atol=1e-5)


def test_a_constant_image_standardises_to_zeros_and_a_faint_one_is_not_blown_up():
    images = np.full((2, 8, 4, 2), 7, np.uint8)
    images[1, 3, 3, 0] = 8
    result = standardize(images).numpy()
    assert not result[0].any()
    # The standard deviation √(1/64 · 63/64) is below 1/√64, which then divides.
    assert result[1, 3, 3, 0] == pytest.approx((1 - 1 / 64) * 8, rel=1e-5)
    assert result[1].std() < 1


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="Keras's NumPy backend takes its convolution from JAX")
def test_the_numpy_backend_answers_as_tensorflow_does_and_does_not_import_it(images, tmp_path):
    c = dataclasses.replace(SMALL, residual_initializer="fixup")  # whose layers are ours
    network = all_conv_resnet(c, seed=4)
    for variable in network.trainable_variables:
        variable.assign(variable + 0.01)  # away from the start, where branches are 0
    np.savez(tmp_path / "in.npz", images=images, **arrays(network))
    code = inspect.cleandoc(
        f"""
        import sys
        import numpy as np
        from identity_matters.model import ModelConfig, all_conv_resnet, standardize
        network = all_conv_resnet({c!r}, seed=4)
        given = np.load(r"{tmp_path / "in.npz"}")
        for variable in network.variables:
            variable.assign(given[variable.path])
        logits = network(standardize(given["images"]))
        assert type(logits) is np.ndarray and "tensorflow" not in sys.modules
        np.save(r"{tmp_path / "out.npy"}", logits)
        """
    )
    environment = os.environ | {"KERAS_BACKEND": "numpy", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=environment, check=True)
    expected = network(standardize(images)).numpy()
    assert relative_difference(np.load(tmp_path / "out.npy"), expected) < FLOAT32


@pytest.mark.parametrize(
    "config, factor, sides, nearest",
    [
        (SMALL, 4, (30, 26), 32), (SMALL, 4, (24, 30), 32), (SMALL, 4, (30, 24), 32), (SMALL, 4, (1, 1), 4),
        (dataclasses.replace(SMALL, widths=(5, 8), blocks_per_stage=(1, 2)), 2, (7, 8), 8),
        (WITH_POOL, 16, (32, 44), 48), (dataclasses.replace(WITH_POOL, stem_pool=3), 24, (48, 32), 48),
    ],
)  # fmt: skip
def test_strides_that_do_not_divide_the_images_are_rejected_with_the_nearest_size(config, factor, sides, nearest):
    message = refused(check_image_shape, dataclasses.replace(config, image_shape=(*sides, 3)))
    advice = f"divide {sides[0]}x{sides[1]} pixels; try --image_size={nearest} (image_size={nearest}), or fewer stages"
    assert message == f"the strides divide the image by {factor}, which does not {advice}"
    check_image_shape(dataclasses.replace(config, image_shape=(nearest, 2 * nearest, 3)))


def test_a_comparator_needs_nine_pixels_a_side():
    for sides in ((8, 9), (9, 8)):
        config = dataclasses.replace(SMALL, network="all_cnn_c", image_shape=(*sides, 3))
        assert f"needs images of at least 9 pixels a side, got {sides[0]}x{sides[1]}" in refused(
            check_image_shape, config
        )
    check_image_shape(dataclasses.replace(config, image_shape=(9, 9, 3)))


@pytest.mark.parametrize("changes", [{"use_batch_norm": True}, {"network": "preact_resnet_8"}])
def test_a_network_that_takes_raw_images_standardises_them_itself(changes):
    network = networks.build(dataclasses.replace(SMALL, **changes))
    raw = np.random.default_rng(0).integers(0, 256, (3, *SMALL.image_shape)).astype(np.uint8)
    copy = with_standardization(network)
    assert has_standardization(copy) and not has_standardization(network)
    assert [variable.path for variable in copy.variables] == [variable.path for variable in network.variables]
    expected = network(standardize(raw), training=False)
    np.testing.assert_array_equal(copy(raw, training=False), expected)
    np.testing.assert_allclose(copy(standardize(raw), training=False), expected, rtol=1e-4, atol=1e-5)
