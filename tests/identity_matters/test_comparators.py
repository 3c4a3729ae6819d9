"""The networks for comparison: the papers' counts, a NumPy forward pass written separately, the rules of model.py."""

import dataclasses
import functools
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers
from network_in_numpy import arrays, relative_difference

from identity_matters import networks
from identity_matters.comparators import NETWORKS, all_cnn_c, densenet, densenet_bc, preact_resnet, resnet
from identity_matters.config import ModelConfig
from identity_matters.convolutions import training_flops
from identity_matters.errors import UserError
from identity_matters.untrusted import load_network

# Sides that are halved to odd ones, and two to six layers a stage: every kind of unit occurs.
SMALL = ModelConfig(image_shape=(16, 12, 3), num_classes=7, weight_decay=0.3)
ANY_SIZE = dataclasses.replace(SMALL, widths=(16,), blocks_per_stage=(1,))  # a ModelConfig checks sides by its stages
SMALL_NETWORKS = {
    "all_cnn_c": all_cnn_c,
    "resnet": functools.partial(resnet, depth=14),
    "preact_resnet": functools.partial(preact_resnet, depth=14),
    "densenet": functools.partial(densenet, depth=10, growth_rate=5),
    "densenet_bc": functools.partial(densenet_bc, depth=16, growth_rate=5),
}
each_architecture = pytest.mark.parametrize("kind", SMALL_NETWORKS)


@functools.cache
def cifar10_network(name: str) -> keras.Model:
    return networks.build(ModelConfig(network=name))


@functools.cache
def small_network(kind: str) -> keras.Model:
    """Read only."""
    return SMALL_NETWORKS[kind](SMALL, 3)


def layers_of(network, *kinds) -> list[layers.Layer]:
    return [layer for layer in network.layers if isinstance(layer, kinds)]


QUICK = ("all_cnn_c", "resnet_20", "preact_resnet_8")

# Numbers of parameters, and as the papers print them, where they do.
PARAMETERS = {
    "all_cnn_c": (1_369_738, "1.4M"),
    "resnet_20": (269_722, "0.27M"),
    "resnet_32": (464_154, "0.46M"),
    "resnet_44": (658_586, "0.66M"),
    "resnet_56": (853_018, "0.85M"),
    "resnet_110": (1_727_962, "1.7M"),
    "preact_resnet_8": (75_290, ""),
    "preact_resnet_14": (172_506, ""),
    "preact_resnet_20": (269_722, ""),
    "preact_resnet_32": (464_154, ""),
    "densenet_100_24": (27_249_082, "27.2M"),
    "densenet_bc_100_12": (769_162, "0.8M"),
}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]
)
def test_every_network_has_the_parameters_of_its_table_and_the_layers_of_its_name(name):
    network = cifar10_network(name)
    number, printed = PARAMETERS[name]
    assert sum(int(np.prod(v.shape)) for v in network.trainable_variables) == number
    decimals = len(printed.rpartition(".")[2]) - 1
    assert not printed or f"{number / 1e6:.{decimals}f}M" == printed
    depth = {"all_cnn_c": 9, "densenet_100_24": 100, "densenet_bc_100_12": 100}.get(name) or int(name.split("_")[-1])
    assert len(layers_of(network, layers.Conv2D, layers.Dense)) == depth and network.name == name


def test_bottlenecks_transitions_and_subsampling_are_those_of_the_papers():
    filters = [layer.filters for layer in layers_of(small_network("densenet_bc"), layers.Conv2D)]
    assert filters == [10, *2 * [20, 5], 20 // 2, *2 * [20, 5], 20 // 2, *2 * [20, 5]]  # k = 5
    filters = [layer.filters for layer in layers_of(small_network("densenet"), layers.Conv2D)]
    assert filters == [16, 5, 5, 26, 5, 5, 36, 5, 5]
    for kind in ("resnet", "preact_resnet"):
        names = [layer.name for layer in layers_of(small_network(kind), layers.AveragePooling2D)]
        assert names == ["stage2_block1_subsample", "stage3_block1_subsample"]


def test_the_docstrings_state_these_numbers():
    assert NETWORKS.keys() == PARAMETERS.keys()
    for builder in (all_cnn_c, resnet, preact_resnet, densenet, densenet_bc):
        names = [name for name in NETWORKS if name.rstrip("_0123456789") == builder.__name__]
        numbers = [f"{PARAMETERS[name][0]:,}" for name in names]
        assert numbers and [number for number in numbers if number not in builder.__doc__] == []


def test_training_needs_the_operations_counted_by_hand():
    # Multiplications and additions forward: inputs of one output, output channels, output pixels.
    all_cnn = 2 * (
        27 * 96 * 32**2 + 864 * 96 * 32**2 + 864 * 96 * 16**2
        + 864 * 192 * 16**2 + 1728 * 192 * 16**2 + 1728 * 192 * 8**2
        + 1728 * 192 * 6**2 + 192 * 192 * 6**2 + 192 * 10 * 6**2
    )  # fmt: skip
    assert training_flops(cifar10_network("all_cnn_c")) == 3 * all_cnn - 2 * 27 * 96 * 32**2 == 1_619_481_600
    stages = 6 * 144 * 16 * 32**2 + (144 + 5 * 288) * 32 * 16**2 + (288 + 5 * 576) * 64 * 8**2
    stem = 27 * 16 * 32**2
    for name in ("resnet_20", "preact_resnet_20"):
        assert training_flops(cifar10_network(name)) == 2 * (3 * (stem + stages) - stem) == 242_417_664


@each_architecture
def test_images_of_9_pixels_are_accepted_and_of_8_raise_a_short_error(kind):
    network = SMALL_NETWORKS[kind](dataclasses.replace(ANY_SIZE, image_shape=(9, 32, 3)))
    assert network.output_shape == (None, 7) and network.inputs[0].name == "images"
    name = next(name for name in NETWORKS if name.startswith(kind))
    with pytest.raises(UserError, match=rf"^{name} needs images of at least 9 pixels a side, got 8x32$"):
        networks.build(dataclasses.replace(ANY_SIZE, image_shape=(8, 32, 3), network=name))


def test_an_unknown_network_and_an_impossible_depth_raise_a_short_error():
    with pytest.raises(
        UserError, match="^network must be one of all_conv_resnet, .*densenet_bc_100_12, got 'resnet_18'$"
    ):
        ModelConfig(network="resnet_18")
    rules = {resnet: "6n + 2", preact_resnet: "6n + 2", densenet: "3n + 4", densenet_bc: "6n + 4"}
    for build, depths in {resnet: (2, 18), preact_resnet: (2, 111), densenet: (4, 101), densenet_bc: (4, 103)}.items():
        for depth in depths:
            message = f"depth must be {rules[build]} with n at least 1, got {depth}"
            with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
                build(ModelConfig(), depth=depth)


class Reference:
    """The networks in NumPy, float64, from the papers, with a network's weights; `mistake` names one to be caught."""

    def __init__(self, network, mistake: str = ""):
        self.weights = {path: a.astype(np.float64) for path, a in arrays(network).items()}
        self.mistake = mistake

    def conv(self, x, name, stride=1, padded=True):
        """Sums over the k×k pixels around every stride-th one, from the first; zeros outside of the image."""
        kernel = self.weights[f"{name}/kernel"]
        if padded:
            margin = len(kernel) // 2
            x = np.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
        first = int(self.mistake == "strides from the second pixel" and stride == 2)
        patches = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], (1, 2))[:, first::stride, first::stride]
        return np.einsum("nhwaij,ijab->nhwb", patches, kernel) + self.weights.get(f"{name}/bias", 0)

    def bn(self, x, name):
        parts = ("moving_mean", "moving_variance", "gamma", "beta")
        mean, variance, gamma, beta = (self.weights[f"{name}/{part}"] for part in parts)
        return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    def bn_relu(self, x, name):
        return self.bn(np.maximum(x, 0), name) if self.mistake == "ReLU before BN" else np.maximum(self.bn(x, name), 0)

    def shortcut(self, x, width, stride):
        x = x[:, ::stride, ::stride]
        zeros = np.zeros((*x.shape[:3], width - x.shape[3]))
        return np.concatenate([zeros, x] if self.mistake == "zero channels first" else [x, zeros], axis=3)

    def dense(self, x):
        return x.mean((1, 2)) @ self.weights["dense/kernel"] + self.weights["dense/bias"]

    def all_cnn_c(self, x):
        for stage in (1, 2, 3):
            for i in (1, 2, 3):
                padded = stage < 3 or self.mistake == "seventh convolution padded"
                x = self.conv(x, f"stage{stage}_conv{i}", 2 if stage < 3 and i == 3 else 1, padded)
                x = x if self.mistake == "no last ReLU" and (stage, i) == (3, 3) else np.maximum(x, 0)
        return x.mean((1, 2))

    def resnet(self, x):
        x = self.bn_relu(self.conv(x, "stem_conv"), "stem_bn")
        for stage in (1, 2, 3):
            for block in (1, 2):
                name, stride = f"stage{stage}_block{block}", 2 if stage > 1 and block == 1 else 1
                y = self.conv(self.bn_relu(self.conv(x, f"{name}_conv1", stride), f"{name}_bn1"), f"{name}_conv2")
                x = self.shortcut(x, 8 * 2**stage, stride) + self.bn(y, f"{name}_bn2")
                x = x if self.mistake == "no ReLU after the sum" else np.maximum(x, 0)
        return self.dense(x)

    def preact_resnet(self, x):
        x = self.conv(x, "stem_conv")
        for stage in (1, 2, 3):
            for block in (1, 2):
                name, stride = f"stage{stage}_block{block}", 2 if stage > 1 and block == 1 else 1
                a = self.bn_relu(x, f"{name}_bn1")
                y = self.bn_relu(self.conv(a, f"{name}_conv1", stride), f"{name}_bn2")
                shared = (block == 1) != (self.mistake == "other shortcuts")
                x = self.shortcut(a if shared else x, 8 * 2**stage, stride) + self.conv(y, f"{name}_conv2")
        return self.dense(self.bn_relu(x, "final_bn"))

    def densenet(self, x):
        return self.densenet_bc(x, num_convolutions=1)

    def densenet_bc(self, x, num_convolutions=2):
        x = self.conv(x, "stem_conv")
        for block in (1, 2, 3):
            for layer in (1, 2):
                name = f"block{block}_layer{layer}"
                y = x
                for i in range(1, num_convolutions + 1):
                    y = self.conv(self.bn_relu(y, f"{name}_bn{i}"), f"{name}_conv{i}")
                x = np.concatenate([y, x] if self.mistake == "new channels first" else [x, y], axis=3)
            if block < 3:
                x = self.conv(self.bn_relu(x, f"transition{block}_bn"), f"transition{block}_conv")
                n, height, width, channels = x.shape
                x = x[:, : height // 2 * 2, : width // 2 * 2]
                x = x.reshape(n, height // 2, 2, width // 2, 2, channels).mean((2, 4))
        return self.dense(self.bn_relu(x, "final_bn"))


MISTAKES = {
    "all_cnn_c": ["strides from the second pixel", "seventh convolution padded", "no last ReLU"],
    "resnet": ["ReLU before BN", "strides from the second pixel", "zero channels first", "no ReLU after the sum"],
    "preact_resnet": ["ReLU before BN", "strides from the second pixel", "zero channels first", "other shortcuts"],
    "densenet": ["ReLU before BN", "new channels first"],
    "densenet_bc": ["ReLU before BN", "new channels first"],
}


def with_random_statistics(network, seed=1) -> keras.Model:
    """The network with values of batch normalisation and biases that a layer cannot leave out unnoticed."""
    generator = np.random.default_rng(seed)
    for variable in network.variables:
        if len(variable.shape) == 1 and variable.dtype == "float32":
            low, high = (-0.5, 0.5) if variable.name in ("beta", "moving_mean", "bias") else (0.5, 1.5)
            variable.assign(generator.uniform(low, high, variable.shape))
    return network


@pytest.mark.parametrize("sides", [(16, 12), pytest.param((18, 9), marks=pytest.mark.slow)])
@each_architecture
def test_each_network_equals_a_forward_pass_in_numpy(kind, sides):
    config = dataclasses.replace(ANY_SIZE, image_shape=(*sides, 3))
    x = np.random.default_rng(0).standard_normal((3, *config.image_shape))
    network = with_random_statistics(SMALL_NETWORKS[kind](config, seed=2))
    logits = network(x.astype(np.float32))
    assert relative_difference(logits, getattr(Reference(network), kind)(x)) < 1e-5  # half the digits of float32
    for mistake in MISTAKES[kind] if sides == (16, 12) else ():
        assert relative_difference(logits, getattr(Reference(network, mistake), kind)(x)) > 1e-2, mistake


@each_architecture
def test_a_kernel_depends_on_the_seed_and_the_name_of_its_layer_only(kind):
    build = SMALL_NETWORKS[kind]
    first, again, other = map(arrays, (small_network(kind), build(SMALL, 3), build(SMALL, 4)))
    kernels = [path for path in first if path.endswith("kernel")]
    assert first.keys() == again.keys() == other.keys()  # what a checkpoint is keyed by
    assert not [path for path in first if not np.array_equal(first[path], again[path])]
    assert not [path for path in kernels if np.array_equal(first[path], other[path])]
    assert len({first[path].ravel()[:5].tobytes() for path in kernels}) == len(kernels)


@pytest.mark.parametrize("name", ["all_cnn_c", "resnet_20", pytest.param("densenet_bc_100_12", marks=pytest.mark.slow)])
def test_kernels_start_gaussian_with_variance_2_over_fan_in(name):
    for path, kernel in arrays(cifar10_network(name)).items():
        if path.endswith("kernel"):
            stddev = (2 / np.prod(kernel.shape[:-1])) ** 0.5
            assert abs(kernel.std() / stddev - 1) < 5 / (2 * kernel.size) ** 0.5, path
            assert abs(kernel.mean()) < 5 * stddev / kernel.size**0.5, path
            # Of a uniform one the mean fourth power would be 1.8, of one truncated at two sigma 2.36.
            assert abs((kernel / stddev) ** 4).mean() == pytest.approx(3, abs=5 * (96 / kernel.size) ** 0.5), path
        elif path.endswith("bias"):
            assert not kernel.any()


@each_architecture
def test_one_step_of_training_without_decay_moves_every_weight_and_statistic(kind):
    network = SMALL_NETWORKS[kind](dataclasses.replace(SMALL, weight_decay=0.0))
    assert network.losses == []
    before = arrays(network)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=True)  # one step takes less time than its graph
    x = np.random.default_rng(0).standard_normal((32, *SMALL.image_shape), np.float32)
    network.train_on_batch(x, np.arange(32) % SMALL.num_classes)
    assert [path for path, array in arrays(network).items() if np.array_equal(array, before[path])] == []


def test_all_cnn_c_drops_out_inputs_at_20_percent_and_strided_outputs_at_50(images):
    network = all_cnn_c(SMALL)
    dropped = [(layer.rate, layer.input.shape[1:]) for layer in layers_of(network, layers.Dropout)]
    assert dropped == [(0.2, (16, 12, 3)), (0.5, (8, 6, 96)), (0.5, (4, 3, 192))]
    assert not np.array_equal(network(images, training=True), network(images))
    without = all_cnn_c(SMALL, dropout=(0.0, 0.0))
    assert layers_of(without, layers.Dropout) == []
    np.testing.assert_array_equal(without(images, training=True), network(images))


@each_architecture
def test_weight_decay_is_half_lambda_times_the_squared_kernel_norm(kind):
    network = small_network(kind)
    kernels = [a for path, a in arrays(network).items() if path.endswith("kernel") and "conv" in path]
    squared = sum(np.sum(kernel.astype(np.float64) ** 2) for kernel in kernels)
    assert float(sum(network.losses)) == pytest.approx(0.3 / 2 * squared, rel=1e-5)


@each_architecture
def test_mixed_precision_uses_bfloat16_for_convolutions_and_their_relus_only(kind, images):
    base = small_network(kind)
    mixed = SMALL_NETWORKS[kind](dataclasses.replace(SMALL, mixed_precision=True), 3)
    assert {v.dtype for v in mixed.trainable_variables} == {mixed.output.dtype} == {"float32"}
    for layer in mixed.layers:
        half = isinstance(layer, (layers.Conv2D, layers.ZeroPadding2D))
        if isinstance(layer, layers.ReLU):
            readers = [op for op in mixed.operations if any(t is layer.output for t in keras.tree.flatten(op.input))]
            half = all(isinstance(op, (layers.Conv2D, layers.ZeroPadding2D, layers.Dropout)) for op in readers)
        assert layer.compute_dtype == ("bfloat16" if half else "float32"), layer.name
    # A bfloat16 is off by at most 2⁻⁹; some 30 roundings on the way.
    assert 2**-14 < relative_difference(mixed(images), np.asarray(base(images))) < 30 * 2**-9


@each_architecture
def test_a_keras_file_gives_back_the_same_network_exactly_without_layers_of_ours(kind, images, tmp_path):
    network = with_random_statistics(SMALL_NETWORKS[kind](SMALL, seed=5))
    used = {type(operation) for operation in network.operations}
    assert all(layer.__module__.startswith("keras.") for layer in used) and layers.Lambda not in used
    network.save(tmp_path / "model.keras")
    loaded = load_network(str(tmp_path / "model.keras"))
    assert [layer.name for layer in loaded.layers] == [layer.name for layer in network.layers]
    np.testing.assert_array_equal(loaded(images), network(images))


JAX = """
from test_comparators import SMALL, SMALL_NETWORKS, keras, np
keras.initializers.VarianceScaling.__call__ = lambda _, shape, dtype: np.zeros(shape, dtype)  # no draws to compile
for kind, build in SMALL_NETWORKS.items():
    network = build(SMALL)
    network.load_weights(f"{kind}.weights.h5")
    np.save(f"{kind}.npy", network.predict(np.load("images.npy")))
"""


@pytest.mark.slow
def test_the_jax_backend_answers_as_tensorflow_does(images, tmp_path):
    pytest.importorskip("jax")
    np.save(tmp_path / "images.npy", images)
    networks = {kind: with_random_statistics(build(SMALL)) for kind, build in SMALL_NETWORKS.items()}
    for kind, network in networks.items():
        network.save_weights(tmp_path / f"{kind}.weights.h5")
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", JAX], cwd=tmp_path, env=environment, check=True)
    for kind, network in networks.items():
        assert relative_difference(np.load(tmp_path / f"{kind}.npy"), np.asarray(network(images))) < 1e-5, kind
