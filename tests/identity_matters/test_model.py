"""The network: what Table 1 says, layer by layer, and a NumPy forward pass written separately."""

import ast
import dataclasses
import importlib.util
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import identity_matters
from identity_matters import ablations, config
from identity_matters.config import ModelConfig
from identity_matters.model import PRESETS, all_conv_resnet, residual_block, residual_stddev, standardize

PROJECT = pathlib.Path(identity_matters.__file__).parents[1]
# Not square; 3 and 5 new channels at the strides; standard kernels, so that the blocks matter.
SMALL = ModelConfig(
    image_shape=(16, 12, 3),
    stem_width=5,
    widths=(5, 8, 13),
    blocks_per_stage=(1, 2, 1),
    residual_initializer="standard",
)
WITH_POOL = dataclasses.replace(SMALL, image_shape=(32, 48, 3), stem_kernel_size=7, stem_stride=2, stem_pool=2)


@pytest.fixture(scope="module")
def cifar10():
    return all_conv_resnet(PRESETS["cifar10"])


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).standard_normal((3, *SMALL.image_shape), np.float32)


def convolutions(network) -> list[layers.Conv2D]:
    return [layer for layer in network.layers if isinstance(layer, layers.Conv2D)]


def arrays(network) -> dict[str, np.ndarray]:
    return {v.path: v.numpy() for v in network.variables}


def count(variables) -> int:
    return sum(int(np.prod(v.shape)) for v in variables)


def changed(network, other) -> set[str]:
    """The paths of the variables that both have but with other values."""
    a, b = arrays(network), arrays(other)
    return {path for path in a.keys() & b.keys() if not np.array_equal(a[path], b[path])}


# Reference: the same network in NumPy, float64.


def convolve(x, kernel, stride=1, odd_row_first=False):
    """TensorFlow's SAME padding: ⌈n/stride⌉ outputs, the odd row of zeros after the image."""
    k, outputs, pads = len(kernel), [], []
    for n in x.shape[1:3]:
        outputs.append(-(-n // stride))
        total = max((outputs[-1] - 1) * stride + k - n, 0)
        before = (total + odd_row_first) // 2
        pads.append((before, total - before))
    x = np.pad(x.astype(np.float64), ((0, 0), *pads, (0, 0)))
    rows, columns = (stride * (n - 1) + 1 for n in outputs)
    return sum(
        x[:, i : i + rows : stride, j : j + columns : stride] @ kernel[i, j].astype(np.float64)
        for i in range(k)
        for j in range(k)
    )


def average_pool(x, size):
    n, height, width, channels = x.shape
    return x.reshape(n, height // size, size, width // size, size, channels).mean((2, 4))


def pad_channels(x, before, after):
    return np.concatenate([np.zeros((*x.shape[:3], before)), x, np.zeros((*x.shape[:3], after))], axis=3)


def numpy_forward(network, c: ModelConfig, x, scale=1.0, odd_row_first=False, all_channels_after=False):
    """Logits; each convolution times `scale`. The last two arguments are mistakes to be caught."""
    weights = arrays(network)

    def conv(x, name, stride=1):
        return scale * convolve(x, weights[f"{name}/kernel"], stride, odd_row_first)

    x = average_pool(conv(x, "stem_conv", c.stem_stride), c.stem_pool)
    for stage, (width, blocks) in enumerate(zip(c.widths, c.blocks_per_stage), start=1):
        for block in range(1, blocks + 1):
            name, stride = f"stage{stage}_block{block}", 2 if stage > 1 and block == 1 else 1
            y = conv(x, f"{name}_conv1", stride)
            for i in range(2, c.convs_per_block + 1):
                y = conv(np.maximum(y, 0), f"{name}_conv{i}")
            new = width - x.shape[3]
            before = 0 if all_channels_after else new // 2
            x = pad_channels(average_pool(x, stride), before, new - before) + y if c.shortcut else np.maximum(y, 0)
    return x.mean((1, 2)) @ weights["projection/kernel"].astype(np.float64)


def relative_difference(a, b) -> float:
    return float(np.max(np.abs(np.asarray(a) - b)) / np.max(np.abs(b)))


# Half the digits of float32: some 10 layers deep, sums of about 100 terms.
FLOAT32 = 1e-5


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


@pytest.mark.parametrize(
    "preset, convolution_count, weights",
    [
        ("mnist", 13, None),
        ("cifar10", 55, 13_538_736),
        ("cifar100", 55, 13_538_736),
        ("imagenet", 33, 21_095_616),
        ("imagenet_wide", 33, 35_675_772),
    ],
)
def test_every_preset_builds_with_the_convolution_weights_of_its_table(preset, convolution_count, weights):
    network = all_conv_resnet(PRESETS[preset])
    classes = {"cifar100": 100, "imagenet": 1000, "imagenet_wide": 1000}.get(preset, 10)
    assert network.output_shape == (None, classes)
    assert len(convolutions(network)) == convolution_count
    if weights:
        assert count(layer.kernel for layer in convolutions(network)) == weights


def test_the_presets_of_the_model_are_the_five_that_were_built_above():
    assert set(PRESETS) == {"mnist", "cifar10", "cifar100", "imagenet", "imagenet_wide"}


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


def test_no_relu_follows_the_last_addition(cifar10):
    assert [layer.name for layer in cifar10.layers[-3:]] == ["stage3_block9_add", "average_pool", "projection"]
    assert sum(isinstance(layer, layers.ReLU) for layer in cifar10.layers) == 27


def test_layers_are_named_by_stage_and_block(cifar10):
    expected = ["stem_conv"]
    for stage in (1, 2, 3):
        for block in range(1, 10):
            expected += [f"stage{stage}_block{block}_conv1", f"stage{stage}_block{block}_conv2"]
    assert [layer.name for layer in convolutions(cifar10)] == expected


def test_the_first_convolution_of_a_later_stage_halves_the_resolution(cifar10):
    strides = {layer.name: layer.strides for layer in convolutions(cifar10) if layer.strides != (1, 1)}
    assert strides == {"stage2_block1_conv1": (2, 2), "stage3_block1_conv1": (2, 2)}
    assert cifar10.get_layer("stage3_block9_add").output.shape == (None, 8, 8, 256)


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
    stem = all_conv_resnet(dataclasses.replace(wide, residual_initializer="small", stem_kernel_size=7)).get_layer(
        "stem_conv"
    )
    assert max(deviations(stem.kernel.numpy(), 1 / (7 * 64**0.5))) < 5


def test_the_projection_is_random_with_variance_1_over_fan_in_and_not_trained(cifar10):
    projection = cifar10.get_layer("projection")
    kernel = projection.kernel.numpy()
    n, sigma = kernel.size, 256**-0.5
    assert not projection.trainable
    assert np.abs(kernel).max() <= 3**0.5 * sigma  # uniform
    assert abs(kernel.mean()) < 5 * sigma / n**0.5
    # A uniform distribution's fourth moment is 1.8 σ⁴.
    assert abs(kernel.std() / sigma - 1) < 5 * (0.8 / n) ** 0.5 / 2


def block(width_in, width, stride, c=SMALL) -> keras.Model:
    x = keras.Input((8, 6, width_in))
    return keras.Model(x, residual_block(x, c, width, stride, "block"))


def test_a_zeroed_second_convolution_makes_a_block_bitwise_the_identity():
    model = block(5, 5, stride=1)
    x = np.random.default_rng(1).standard_normal((4, 8, 6, 5), np.float32)
    assert not np.array_equal(model(x), x)
    kernel = model.get_layer("block_conv2").kernel
    kernel.assign(np.zeros(kernel.shape))
    assert model(x).numpy().tobytes() == x.tobytes()


@pytest.mark.parametrize(
    "width_in, width, stride, before", [(4, 8, 2, 2), (5, 8, 2, 1), (4, 5, 2, 0), (6, 6, 2, 0), (3, 8, 1, 2)]
)
def test_the_shortcut_is_pooling_then_zero_channels_half_before_half_after(width_in, width, stride, before):
    model = block(width_in, width, stride, dataclasses.replace(SMALL, residual_initializer="zero"))
    x = np.random.default_rng(1).integers(0, 256, (4, 8, 6, width_in)).astype(np.float32)  # exact means
    expected = pad_channels(average_pool(x, stride), before, width - width_in - before)
    np.testing.assert_array_equal(model(x), expected)
    if stride == 2:  # subsampling would be another shortcut
        assert not np.array_equal(model(x), pad_channels(x[:, ::2, ::2], before, width - width_in - before))


def test_zero_initialised_blocks_differ_from_standard_ones_in_the_second_kernels_only(images):
    standard, zero = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, residual_initializer="zero"))
    assert changed(standard, zero) == {p for p in arrays(zero) if p.endswith("conv2/kernel")}
    assert not any(arrays(zero)[path].any() for path in changed(standard, zero))
    assert relative_difference(zero(images), numpy_forward(zero, SMALL, images)) < FLOAT32


def test_small_and_standard_initialisation_share_all_but_the_residual_kernels():
    standard, small = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, residual_initializer="small"))
    assert changed(standard, small) == {p for p in arrays(small) if p.startswith("stage")}
    for path in changed(standard, small):  # one draw, scaled: by √c / (k c)
        kernel = arrays(small)[path]
        np.testing.assert_allclose(kernel * 3 * kernel.shape[3] ** 0.5, arrays(standard)[path], rtol=1e-5)


def test_the_plain_network_has_the_same_kernels_and_no_shortcut(images):
    plain_config = dataclasses.replace(SMALL, shortcut=False)
    base, plain = all_conv_resnet(SMALL), all_conv_resnet(plain_config)
    assert arrays(base).keys() == arrays(plain).keys() and not changed(base, plain)
    assert not any(isinstance(layer, layers.Add) for layer in plain.layers)
    assert relative_difference(plain(images), numpy_forward(plain, plain_config, images)) < FLOAT32
    assert relative_difference(plain(images), base(images).numpy()) > 0.1


@pytest.mark.parametrize("num_convs", [1, 3, 4])
@pytest.mark.parametrize("shortcut", [True, False])
def test_a_block_of_another_number_of_convolutions_has_relus_between_them_as_in_numpy(num_convs, shortcut, images):
    c = dataclasses.replace(SMALL, convs_per_block=num_convs, shortcut=shortcut)
    network = all_conv_resnet(c, seed=3)
    assert relative_difference(network(images), numpy_forward(network, c, images)) < FLOAT32
    names = [layer.name for layer in network.layers if layer.name.startswith("stage2_block1_")]
    body = ["conv1", "relu", "conv2", "relu2", "conv3", "relu3", "conv4", "relu4"][: 2 * num_convs - shortcut]
    shortcut_layers = ["add", "pool"] if shortcut else []
    assert sorted(names) == sorted(f"stage2_block1_{name}" for name in body + shortcut_layers)
    assert [layer.name for layer in convolutions(network) if layer.strides == (2, 2)] == [
        "stage2_block1_conv1",
        "stage3_block1_conv1",
    ]
    if num_convs > 1:  # negative control
        one_less = dataclasses.replace(c, convs_per_block=num_convs - 1)
        assert relative_difference(network(images), numpy_forward(network, one_less, images)) > 100 * FLOAT32


def test_the_number_of_weights_is_that_of_the_convolutions_per_block():
    # Stem 3·3·3·5; the first convolution of a stage widens, the others do not.
    first, others = 9 * (5 * 5 + 5 * 8 + 8 * 8 + 8 * 13), 9 * (5 * 5 + 2 * 8 * 8 + 13 * 13)
    for num_convs in (1, 2, 3):
        network = all_conv_resnet(dataclasses.replace(SMALL, convs_per_block=num_convs))
        assert count(network.trainable_variables) == 135 + first + (num_convs - 1) * others
        assert len(convolutions(network)) == 1 + 4 * num_convs


def test_networks_of_other_numbers_of_convolutions_share_the_kernels_of_the_same_name():
    one, two, three = (all_conv_resnet(dataclasses.replace(SMALL, convs_per_block=n), seed=1) for n in (1, 2, 3))
    assert not changed(one, two) and not changed(two, three)
    assert arrays(one).keys() < arrays(two).keys() < arrays(three).keys()


@pytest.mark.parametrize("num_convs", [1, 3])
def test_the_zero_initialiser_zeroes_the_last_convolution_so_that_each_block_is_its_shortcut(num_convs):
    c = dataclasses.replace(SMALL, convs_per_block=num_convs, residual_initializer="zero")
    network = all_conv_resnet(c)
    standard = all_conv_resnet(dataclasses.replace(c, residual_initializer="standard"))
    assert changed(standard, network) == {path for path in arrays(network) if path.endswith(f"conv{num_convs}/kernel")}
    assert not any(arrays(network)[path].any() for path in changed(standard, network))
    x = np.random.default_rng(1).standard_normal((4, 8, 6, 5), np.float32)
    assert block(5, 5, stride=1, c=c)(x).numpy().tobytes() == x.tobytes()
    assert not np.array_equal(block(5, 5, 1, dataclasses.replace(c, residual_initializer="small"))(x), x)


@pytest.mark.parametrize("num_convs", [1, 3])
def test_batch_normalisation_follows_each_convolution_of_a_block(num_convs):
    twin = all_conv_resnet(dataclasses.replace(SMALL, convs_per_block=num_convs, use_batch_norm=True))
    normalised = [layer for layer in twin.layers if isinstance(layer, layers.BatchNormalization)]
    assert [layer.input._keras_history.operation.name for layer in normalised] == [c.name for c in convolutions(twin)]
    assert [layer.name for layer in normalised[1 : 1 + num_convs]] == [
        f"stage1_block1_bn{i}" for i in range(1, num_convs + 1)
    ]


def test_a_block_has_a_convolution_at_least():
    with pytest.raises(ValueError, match="convs_per_block must be at least 1, got 0"):
        dataclasses.replace(SMALL, convs_per_block=0)


def test_the_batch_normalised_twin_has_the_same_kernels_and_a_bn_after_each_convolution(images):
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


def test_a_deeper_network_shares_the_kernels_of_the_same_name():
    base, deeper = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, blocks_per_stage=(2, 2, 2)))
    assert not changed(base, deeper) and len(arrays(deeper)) == len(arrays(base)) + 4


def test_one_seed_gives_one_network_and_another_seed_another():
    assert not changed(all_conv_resnet(SMALL, seed=1), all_conv_resnet(SMALL, seed=1))
    assert (
        changed(all_conv_resnet(SMALL, seed=1), all_conv_resnet(SMALL, seed=2)) == arrays(all_conv_resnet(SMALL)).keys()
    )


def test_no_two_kernels_of_one_network_are_the_same_draw():
    equal_shapes = [k for path, k in arrays(all_conv_resnet(SMALL)).items() if k.shape == (3, 3, 8, 8)]
    assert len(equal_shapes) == 3 and len({k.tobytes() for k in equal_shapes}) == 3


def test_mixed_precision_computes_the_convolutions_in_bfloat16_and_all_else_in_float32(images):
    base, mixed = all_conv_resnet(SMALL), all_conv_resnet(dataclasses.replace(SMALL, mixed_precision=True))
    assert not changed(base, mixed) and {v.dtype for v in mixed.variables} == {"float32"}
    dtypes = {layer.name: layer.output.dtype for layer in mixed.layers}
    in_bfloat16 = {name for name, dtype in dtypes.items() if dtype == "bfloat16"}
    assert in_bfloat16 == {name for name in dtypes if "conv" in name or "relu" in name}
    # A bfloat16 is off by at most 2⁻⁹; some 20 roundings on the way.
    assert 2**-14 < relative_difference(mixed(images), base(images).numpy()) < 20 * 2**-9


def branches_part(network, images) -> np.ndarray:
    """What the residual branches add to the logits: those of the network less those of its shortcuts alone."""
    logits = network(images).numpy()
    for layer in convolutions(network):
        if layer.name.endswith("_conv2"):
            layer.kernel.assign(np.zeros(layer.kernel.shape))
    return logits - network(images).numpy()


def test_mixed_precision_keeps_the_small_branches_of_table_1_at_its_initial_weights():
    images = np.random.default_rng(0).standard_normal((4, 32, 32, 3), np.float32)
    expected = branches_part(all_conv_resnet(PRESETS["cifar10"]), images)
    mixed = all_conv_resnet(dataclasses.replace(PRESETS["cifar10"], mixed_precision=True))
    assert relative_difference(branches_part(mixed, images), expected) < 0.05


@pytest.mark.parametrize("changes", [{}, {"use_batch_norm": True}, {"mixed_precision": True}, {"shortcut": False}])
def test_a_keras_file_gives_back_the_same_network_exactly(changes, images, tmp_path):
    network = all_conv_resnet(dataclasses.replace(SMALL, **changes), seed=5)
    network.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert json.dumps(loaded.get_config()) == json.dumps(network.get_config())
    assert arrays(loaded).keys() == arrays(network).keys() and not changed(loaded, network)
    assert [v.path for v in loaded.trainable_variables] == [v.path for v in network.trainable_variables]
    np.testing.assert_array_equal(loaded(images), network(images))


@pytest.mark.parametrize("changes", [{}, {"train_projection": True}, {"mixed_precision": True}])
def test_weight_decay_is_half_lambda_times_the_squared_norm_of_the_convolutions(changes):
    network = all_conv_resnet(dataclasses.replace(SMALL, weight_decay=0.3, **changes))
    squared = sum(np.sum(k.astype(np.float64) ** 2) for path, k in arrays(network).items() if "conv" in path)
    assert float(sum(network.losses)) == pytest.approx(0.3 / 2 * squared, rel=1e-5)


def test_without_weight_decay_there_is_no_penalty():
    assert all_conv_resnet(dataclasses.replace(SMALL, weight_decay=0.0)).losses == []


def test_standardised_images_have_mean_0_and_standard_deviation_1():
    images = np.random.default_rng(3).integers(0, 256, (5, 4, 3, 2), np.uint8)
    axes = {"axis": (1, 2, 3), "keepdims": True}
    expected = (images - images.mean(**axes)) / images.std(**axes)  # n, not n − 1: 2 % apart here
    for dtype in (np.uint8, np.int32, np.float32):
        np.testing.assert_allclose(standardize(images.astype(dtype)), expected, atol=1e-5)


def test_a_constant_image_standardises_to_zeros_and_a_faint_one_is_not_blown_up():
    images = np.full((2, 8, 8, 1), 7, np.uint8)
    images[1, 3, 3] = 8
    result = standardize(images).numpy()
    assert not result[0].any()
    # The standard deviation √(1/64 · 63/64) is below 1/√64, which then divides.
    assert result[1, 3, 3, 0] == pytest.approx((1 - 1 / 64) * 8, rel=1e-5)
    assert result[1].std() < 1


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="Keras's NumPy backend takes its convolution from JAX")
def test_the_numpy_backend_answers_as_tensorflow_does_and_does_not_import_it(images, tmp_path):
    network = all_conv_resnet(SMALL, seed=4)
    np.savez(tmp_path / "in.npz", images=images, **arrays(network))
    code = inspect.cleandoc(
        f"""
        import sys
        import numpy as np
        from identity_matters.model import ModelConfig, all_conv_resnet, standardize
        network = all_conv_resnet({SMALL!r}, seed=4)
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


class _Reads(ast.NodeVisitor):
    """The attributes read off a config, by its own methods too, but not by the checks of __post_init__."""

    def __init__(self):
        self.found, self._owner = set(), ""

    def visit_ClassDef(self, node):
        self._owner = "|self" if node.name.endswith("Config") else ""
        self.generic_visit(node)
        self._owner = ""

    def visit_FunctionDef(self, node):
        if node.name != "__post_init__":
            self.generic_visit(node)

    def visit_Attribute(self, node):
        if re.fullmatch(rf"((self\.)?\w*config{self._owner})(\.train)?(\.model)?", ast.unparse(node.value)):
            self.found.add(node.attr)
        self.generic_visit(node)


def fields_read() -> set[str]:
    reads = _Reads()
    for path in (PROJECT / "identity_matters").rglob("*.py"):
        reads.visit(ast.parse(path.read_text()))
    return reads.found


@pytest.mark.parametrize("kind", [config.ModelConfig, config.TrainConfig, ablations.AblationConfig])
def test_every_field_of_a_config_is_read_somewhere(kind):
    read = fields_read()
    assert {field.name for field in dataclasses.fields(kind)} - read == set()
    assert not {"trainable_variables", "shape"} & read  # attributes of other things do not count
