"""The blocks of a network against references: dense matrices, networks changed by hand, exact values."""

import dataclasses
import functools
import logging

import keras
import numpy as np
import pytest
from keras import layers
from network_in_numpy import SMALL

from identity_matters import comparators, near_identity, networks, training
from identity_matters.config import ModelConfig
from identity_matters.convolution_norm import conv_norm
from identity_matters.errors import UserError
from identity_matters.model import all_conv_resnet, standardize
from identity_matters.runs.tables import read_rows
from identity_matters.untrusted import load_network


def images_for(network, count=7, seed=0):
    return np.random.default_rng(seed).normal(size=(count, *network.input_shape[1:])).astype(np.float32)


@pytest.mark.parametrize("size, shape, stride", [(3, (5, 6), 1), (3, (6, 8), 2), (1, (4, 4), 1), (3, (7, 5), 2)])
def test_norm_of_a_convolution_is_that_of_its_matrix(size, shape, stride):
    random = np.random.default_rng(size + stride)
    kernel, scale = random.normal(size=(size, size, 2, 3)).astype(np.float32), random.normal(size=3)
    basis = np.eye(2 * shape[0] * shape[1], dtype=np.float32).reshape(-1, *shape, 2)
    columns = keras.ops.conv(basis, kernel, strides=stride, padding="same")
    matrix = np.asarray(columns * scale).reshape(len(basis), -1)
    expected = np.linalg.norm(matrix, 2)
    assert conv_norm(kernel, shape, stride, scale) == pytest.approx(expected, rel=1e-3)


def test_norm_of_zero_and_of_tiny_maps_that_arpack_rejects():
    assert conv_norm(np.zeros((3, 3, 2, 2)), (4, 4)) == 0
    assert conv_norm(np.array([[[[3.0, 4.0, 0.0]]]]), (1, 1)) == pytest.approx(5)


@pytest.mark.parametrize("kind", ["small", "resnet", "preact_resnet"])
def test_the_blocks_and_the_head_are_the_network(kind):
    if kind == "small":
        network = all_conv_resnet(dataclasses.replace(SMALL, use_batch_norm=True))
    else:
        network = getattr(comparators, kind)(ModelConfig(image_shape=(16, 16, 3)), depth=8)
    blocks = near_identity.split(network)
    x = images = images_for(network)
    for block in blocks:
        stream, branch, *_ = block(x)
        np.testing.assert_allclose(block.whole(x), stream + branch, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(block.without(x), stream)
        x = stream + branch
        np.testing.assert_allclose(block.rest(x), network(images, training=False), rtol=1e-4, atol=1e-5)
    labels = np.argmax(network(images, training=False), axis=1)
    assert near_identity.errors_without(network, images, labels, []) == [0]
    norms = [norm for block in blocks for norm in near_identity.path_norms(block)]
    assert len(norms) >= 2 * len(blocks) and min(norms) > 0


def block_of(*branch, stream=(), is_turned=False, stem=()):
    """A network of one block on images [n, 8, 8, 4], of layers: the stem, then the branch beside the stream."""
    keras.utils.set_random_seed(0)
    images = keras.Input((8, 8, 4))
    x = functools.reduce(lambda x, layer: layer(x), stem, images)
    sides = [functools.reduce(lambda x, layer: layer(x), side, x) for side in (stream, branch)]
    added = layers.Add()(sides[::-1] if is_turned else sides)
    return keras.Model(images, layers.Dense(3)(layers.GlobalAveragePooling2D()(added)))


def convolution(size=3, padding="same", **options):
    return layers.Conv2D(4, size, padding=padding, bias_initializer="normal", **options)


def pooled(*size):
    return layers.AveragePooling2D(size)


BRANCH_AND_STREAM = {
    "usual": lambda: ([convolution()], []),
    "dilated down": lambda: ([convolution(dilation_rate=(3, 1))], []),
    "valid": lambda: ([convolution(padding="valid")], [layers.Cropping2D(1)]),
    "valid, strided": lambda: (
        [convolution((2, 3), "valid", strides=2)], [pooled(2, 2), layers.Cropping2D(((0, 0), (1, 0)))]
    ),
    "stride (2, 1)": lambda: ([convolution(strides=(2, 1))], [pooled(2, 1)]),
    "stride (1, 2), grouped": lambda: ([convolution(strides=(1, 2), groups=4)], [pooled(1, 2)]),
    "kernel (1, 4)": lambda: ([convolution((1, 4))], []),
    "normalised": lambda: (
        [convolution(groups=2, strides=2), layers.BatchNormalization()], [pooled(2, 2), layers.BatchNormalization()]
    ),
    "normalised alone": lambda: ([layers.BatchNormalization(epsilon=0.1)], []),
    "normalised without gamma": lambda: ([convolution(), layers.BatchNormalization(scale=False)], []),
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCH_AND_STREAM)
def test_the_bound_of_a_branch_is_the_norm_of_its_matrix(name):
    branch, stream = BRANCH_AND_STREAM[name]()
    network = block_of(*branch, stream=stream, is_turned=name.startswith("valid"))
    for layer in network.layers:
        if isinstance(layer, layers.BatchNormalization):
            *others, variance = (weights + 0.5 * np.arange(len(weights)) for weights in layer.get_weights())
            layer.set_weights([-weights for weights in others] + [variance])
    basis = np.eye(256, dtype=np.float32).reshape(-1, 8, 8, 4)
    (block,) = near_identity.split(network)
    values = [np.asarray(block(x)[1]).reshape(len(x), -1) for x in (basis, 0 * basis[:1])]
    (row,) = near_identity.measure(network, images_for(network), np.zeros(7, int), ablate=False)
    assert row["lipschitz"] == pytest.approx(np.linalg.norm(values[0] - values[1], 2), rel=1e-3)
    np.testing.assert_array_equal(block.without(basis), functools.reduce(lambda x, layer: layer(x), stream, basis))


@pytest.mark.parametrize("change", ["order", "activation", "argument"])
def test_a_block_written_otherwise_has_the_same_row(change):
    """The order of Add, and whether ReLU is a layer, an Activation or an argument, do not change the measurement."""

    def network(change):
        first = [convolution(strides=2, activation="relu" if change == "argument" else None), convolution()]
        relu = {"argument": [], "activation": [layers.Activation("relu")]}.get(change, [layers.ReLU()])
        return block_of(first[0], *relu, first[1], stream=[pooled(2, 2)], is_turned=change == "order")

    images = images_for(network(""))
    row, expected = (dict(*near_identity.measure(network(how), images, np.zeros(7, int))) for how in (change, ""))
    del row["block"], expected["block"]
    assert row == pytest.approx(expected, rel=1e-5, nan_ok=True) and 0 < row["active"] < 1


@pytest.mark.slow
def test_keras_resnet_is_measured():
    network = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    (_, second, *rest) = near_identity.split(network)
    assert len(rest) == 14 and second.keeps_shape and len(near_identity.path_norms(second)) == 3
    rows = near_identity.measure(network, images_for(network, count=2), np.zeros(2, int), ablate=False)
    first, row = next(rows), next(rows)
    assert 0 < row["ratio"] <= row["lipschitz"] and 0 < row["active"] < 1 and first["block"] == "conv2_block1"


def long_skip():
    images = keras.Input((8, 8, 4))
    x = layers.Add()([images, convolution()(images)])
    return keras.Model(images, layers.Add()([images, convolution()(x)]))


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda: networks.build(ModelConfig(network="all_cnn_c")), "has no residual blocks"),
        (long_skip, "is no chain of residual blocks: .* is also read beyond the next block"),
        (lambda: block_of(convolution(), stream=[convolution()]), "two tensors of as many layers with weights"),
        (lambda: block_of(layers.DepthwiseConv2D(3, padding="same")), "a layer depthwise_conv2d.* norm is not known"),
        (lambda: block_of(convolution(activation="gelu")), "a layer conv2d.* norm is not known"),
        (lambda: block_of(convolution(), layers.Activation("gelu")), "a layer activation.* norm is not known"),
        (lambda: block_of(convolution(), layers.Rescaling(3.0)), "a layer rescaling.* norm is not known"),
        (lambda: block_of(convolution(), layers.MaxPooling2D(3, 1, "same")), "a layer max_pooling2d.* is not known"),
        (lambda: block_of(convolution(), squeezed_and_excited), "a layer (multiply|global).* norm is not known"),
        (lambda: block_of(convolution(), lambda x: 3 * x), "a layer multiply.* norm is not known"),
    ],
)  # fmt: skip
def test_a_network_without_a_chain_of_blocks_is_a_short_error(make, reason):
    network = make()
    with pytest.raises(UserError, match=reason) as error:
        list(near_identity.measure(network, images_for(network), np.zeros(7, int), ablate=False))
    assert "\n" not in str(error.value)


def squeezed_and_excited(x):
    return layers.Multiply()([x, layers.GlobalAveragePooling2D(keepdims=True)(x)])


@pytest.mark.parametrize("num_blank", [3, 50])
def test_blank_images_are_skipped_with_a_note(num_blank, capfd):
    network, images = all_conv_resnet(SMALL), images_for(all_conv_resnet(SMALL), count=50)
    images[:num_blank] = 0
    rows = list(near_identity.measure(network, images, np.zeros(50, int), ablate=False))
    said = f"note: {num_blank} of 50 images, as blank ones, are 0 in the stream: ratio and cosine leave them out"
    assert capfd.readouterr().err.splitlines() == [said]
    names = "ratio", "ratio_low", "ratio_high", "cosine"
    if num_blank == 50:
        assert all(np.isnan(row[name]) for row in rows for name in names)
        return
    others = near_identity.measure(network, images[3:], np.zeros(47, int), ablate=False)
    assert not capfd.readouterr().err
    for row, expected in zip(rows, others):
        assert [row[name] for name in names] == pytest.approx([expected[name] for name in names], rel=1e-5)


def test_unequal_batches_count_by_their_images():
    """250 images are batches of 100, 100 and 50; the only channel that is ever above 0 is so in the last batch."""
    network = one_block(first=[2.0, 0.0, 0.0, 0.0], second=0.5)
    images = np.abs(images_for(network, count=250))
    images[:200] *= -1
    (row,) = near_identity.measure(network, images, np.zeros(250, int), ablate=False)
    assert (row["active"], row["dead"]) == pytest.approx((0.2 / 4, 0.75))


def test_what_remains_of_the_operations_is_the_share_of_the_blocks_left():
    network = all_conv_resnet(SMALL)
    names = [block.name for block in near_identity.split(network)]
    rows = near_identity.removed_rows(network, images_for(network), np.zeros(7, int), names[:-1], lambda share: None)
    cost = lambda name: sum(near_identity.forward_flops(network.get_layer(f"{name}_conv{k}")) for k in (1, 2))  # noqa: E731
    assert rows[0]["operations"] == 1
    assert rows[-1]["operations"] == pytest.approx(cost(names[-1]) / sum(map(cost, names)), rel=1e-6)


def one_block(first, second, channels=4):
    """x → x + second·ReLU(first·x) on every pixel, with a vector first, that is positive or negative by channel."""
    images = keras.Input((4, 4, channels))
    x = images
    for name, factors in (("a_conv1", first), ("a_conv2", [second] * channels)):
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False, name=name)(x)
        x = layers.ReLU(name="a_relu")(x) if name == "a_conv1" else x
    outputs = layers.GlobalAveragePooling2D()(layers.Add(name="a_add")([images, x]))
    network = keras.Model(images, outputs)
    for layer, factors in ((network.get_layer("a_conv1"), first), (network.get_layer("a_conv2"), [second] * channels)):
        kernel = np.zeros(layer.kernel.shape, np.float32)
        kernel[1, 1] = np.diag(factors)
        layer.kernel.assign(kernel)
    return network


def test_measures_of_a_block_that_is_known():
    network = one_block(first=[2.0, 2.0, -2.0, -2.0], second=0.5)
    images = np.abs(images_for(network, count=250))  # more than a batch
    images[:, :, :, 1] *= -1  # a channel whose hidden unit is dead, as the third, which the negative factor kills
    images[:, :2, :, 3] *= -1  # half of a channel's hidden values are above 0
    labels = np.argmax(images.mean((1, 2)), 1)
    labels[:50] = (labels[:50] + 1) % 4
    (row,) = near_identity.measure(network, images, labels)
    branch = np.stack([images[..., 0], *2 * [0 * images[..., 0]], np.maximum(-images[..., 3], 0)], -1)
    ratios = np.linalg.norm(branch.reshape(250, -1), axis=1) / np.linalg.norm(images.reshape(250, -1), axis=1)
    cosines = np.sum(branch * images, (1, 2, 3)) / np.linalg.norm(branch.reshape(250, -1), axis=1)
    cosines = cosines / np.linalg.norm(images.reshape(250, -1), axis=1)
    assert row["ratio"] == pytest.approx(np.median(ratios), rel=1e-5)
    assert row["ratio_low"] == pytest.approx(np.quantile(ratios, 0.25), rel=1e-5)
    assert row["ratio_high"] == pytest.approx(np.quantile(ratios, 0.75), rel=1e-5)
    assert row["cosine"] == pytest.approx(np.median(cosines), rel=1e-4)
    assert (row["active"], row["dead"]) == pytest.approx((1.5 / 4, 0.5))
    assert (row["norm_1"], row["norm_2"], row["lipschitz"]) == pytest.approx((2, 0.5, 1), rel=1e-3)
    assert row["error_without"] == pytest.approx(0.2) and np.isnan(row["error_swapped"])


def test_a_branch_of_zeros_has_the_ratio_and_the_cosine_0():
    network = one_block(first=[2.0, 2.0, -2.0, -2.0], second=0.0)
    (row,) = near_identity.measure(network, images_for(network), np.zeros(7, int), ablate=False)
    assert row["ratio"] == row["cosine"] == row["lipschitz"] == 0


def top1_error(network, images, labels):
    return np.mean(np.argmax(near_identity.ops.convert_to_numpy(network(images)), 1) != labels)


def test_blocks_are_measured_in_any_order_each_on_the_output_of_the_one_before():
    network = all_conv_resnet(SMALL)
    measurement = near_identity.Measurement(network, x := images_for(network), np.zeros(7, int), ablate=False)
    found = {number: measurement.row(number)["ratio"] for number in (2, 1, 0)}
    for number, block in enumerate(measurement.blocks[:3]):
        stream, branch, *_ = (np.asarray(part).reshape(7, -1) for part in block(x))
        ratios = np.linalg.norm(branch, axis=1) / np.linalg.norm(stream, axis=1)
        assert found[number] == pytest.approx(np.median(ratios), rel=1e-4)
        x = np.asarray(block.whole(x))


def test_errors_without_blocks_are_those_of_the_others_one_after_another():
    network = all_conv_resnet(dataclasses.replace(SMALL, residual_initializer="standard"))
    blocks, images, shares = near_identity.split(network), images_for(network, count=150), []
    labels, names = np.argmax(network(images), axis=1), [blocks[2].name, blocks[0].name]

    def error(left_out):
        x = images
        for block in blocks:
            x = block.without(x) if block.name in left_out else np.asarray(block.whole(x))
        return np.mean(np.argmax(blocks[-1].rest(x), axis=1) != labels)

    found = near_identity.errors_without(network, images, labels, names, shares.append)
    assert found == pytest.approx([error(names[:count]) for count in range(3)])
    assert 0 == found[0] < found[1] != found[2] and shares == [0.5, 0.5]  # 150 images are two batches


def test_a_wide_layer_inside_a_branch_does_not_change_the_shape_of_the_block():
    (block,) = near_identity.split(block_of(layers.Conv2D(8, 1), layers.ReLU(), convolution()))
    assert block.keeps_shape


@pytest.mark.slow
def test_errors_without_a_block_are_those_of_networks_changed_by_hand():
    network = all_conv_resnet(ModelConfig(image_shape=(8, 8, 3), widths=(8, 16), blocks_per_stage=(3, 2), stem_width=8,
                                          residual_initializer="standard"))  # fmt: skip
    images = images_for(network, count=150)
    labels = np.argmax(near_identity.ops.convert_to_numpy(network(images)), 1)
    rows = {row["block"]: row for row in near_identity.measure(network, images, labels)}
    names = list(rows)

    def zeroed(*blocks):
        other = keras.models.clone_model(network)
        other.set_weights(network.get_weights())
        for block in blocks:
            kernel = other.get_layer(f"{block}_conv2").kernel
            kernel.assign(np.zeros(kernel.shape))
        return top1_error(other, images, labels)

    for name in names:
        assert rows[name]["error_without"] == pytest.approx(zeroed(name))
    order, shares = [names[k] for k in (2, 3, 0, 1)], []  # the first block that changes is earlier, then later
    found = near_identity.errors_without(network, images, labels, order, shares.append)
    assert found == pytest.approx([zeroed(*order[:count]) for count in range(5)])
    assert found[0] == 0 and 0 < found[2] < 1 and shares == [0.5, 0.5]  # 150 images are two batches

    for conv in ("conv1", "conv2"):  # the last two of stage 1 exchanged; the first begins with the stem
        first, second = (network.get_layer(f"stage1_block{k}_{conv}").kernel for k in (2, 3))
        first_value = first.numpy()
        first.assign(second)
        second.assign(first_value)
    assert rows["stage1_block2"]["error_swapped"] == pytest.approx(top1_error(network, images, labels))
    assert {name for name, row in rows.items() if not np.isnan(row["error_swapped"])} == {"stage1_block2"}


def test_tensorflow_does_not_warn_of_many_compilations(monkeypatch):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow's warning")
    logger, messages = logging.getLogger("tensorflow"), []
    monkeypatch.setattr(logger, "handle", lambda record: messages.append(record) if logger.filter(record) else None)
    network = all_conv_resnet(dataclasses.replace(SMALL, blocks_per_stage=(4,) * len(SMALL.blocks_per_stage)))
    images = images_for(network, count=2)
    assert len(near_identity.errors_without(network, images, np.zeros(2, int), ["stage1_block2"])) == 2
    assert not messages and not logger.filters


@pytest.mark.slow
def test_the_callback_records_along_training_what_measure_says(tiny_config, tmp_path):
    images = np.asarray(standardize(images_for(all_conv_resnet(tiny_config.model), count=5)))
    callback = near_identity.BlockCallback(images, tmp_path / "blocks.csv")
    config = dataclasses.replace(tiny_config, eval_every=2)
    training.train(config, tmp_path / "run", callbacks=callback)
    rows = read_rows(str(tmp_path / "blocks.csv"))
    assert [row["epoch"] for row in rows] == [0, 0, 1, 1, 2, 2]
    network = load_network(str(tmp_path / "run" / "model.keras"))
    for row, found in zip(rows[-2:], near_identity.measure(network, images, np.zeros(5, int), ablate=False)):
        for name in ("ratio", "ratio_low", "ratio_high", "cosine", "active", "dead"):
            assert row[name] == pytest.approx(found[name], rel=1e-4), name  # model.keras standardises them once more
    assert rows[0]["ratio"] != rows[-2]["ratio"]


@pytest.mark.parametrize("is_used_again", [False, True])
def test_the_callback_of_a_run_that_resumes_keeps_its_rows(tmp_path, is_used_again):
    network = one_block(first=[2.0, 2.0, -2.0, -2.0], second=0.5)
    images, path = images_for(network), str(tmp_path / "blocks.csv")

    used = near_identity.BlockCallback(images, path)

    def run(*epochs):
        callback = used if is_used_again else near_identity.BlockCallback(images, path)
        callback.set_model(network)
        callback.on_train_begin()
        for epoch in epochs:
            callback.on_epoch_begin(epoch)
            callback.on_epoch_end(epoch)
        return [row["epoch"] for row in read_rows(path)]

    assert run(0, 1) == [0, 1, 2]
    assert run(1, 2) == [0, 1, 2, 3]  # the interrupted run's last epoch comes again
    assert run(0) == [0, 1]
