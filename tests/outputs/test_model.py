"""identity_matters.model and the presets: the numbers that Hardt & Ma print, and standardised images."""

import keras
import numpy as np
import pytest
from outputs.references import standardized

from identity_matters.data.digits import mnist_sample
from identity_matters.model import PRESETS, ModelConfig, all_conv_resnet, residual_stddev, standardize
from identity_matters.training import PRESETS as RUNS
from identity_matters.training import learning_rate_schedule


def convolutions(network) -> list[np.ndarray]:
    return [layer.kernel.numpy() for layer in network.layers if isinstance(layer, keras.layers.Conv2D)]


def num_weights(config) -> tuple[int, int]:
    """The numbers of convolutions and of their weights, counted by hand: two 3 × 3 convolutions in a block."""
    sizes = [config.stem_kernel_size**2 * config.image_shape[-1] * config.stem_width]
    channels = config.stem_width
    for width, blocks in zip(config.widths, config.blocks_per_stage):
        for _ in range(blocks):
            sizes += [9 * channels * width, 9 * width * width]
            channels = width
    return len(sizes), sum(sizes)


def test_cifars_network_has_table_1s_55_convolutions_and_13_5_million_weights():
    # Table 1: "Architecture for CIFAR10/100 (55 convolutions, 13.5M parameters)", nine blocks a stage.
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        config = PRESETS[name]
        assert num_weights(config) == (55, 13_538_736) and config.num_classes == classes
        assert (config.image_shape, config.stem_width, config.stem_kernel_size) == ((32, 32, 3), 16, 3)
        assert (config.widths, config.blocks_per_stage) == ((64, 128, 256), (9, 9, 9))
    network = all_conv_resnet(PRESETS["cifar100"])
    kernels = convolutions(network)
    assert (len(kernels), sum(kernel.size for kernel in kernels)) == (55, 13_538_736)
    assert sum(np.size(weights) for weights in network.trainable_variables) == 13_538_736
    assert network.get_layer("projection").kernel.shape == (256, 100)


def test_imagenets_networks_have_the_blocks_of_34_layers_and_35_7_million_weights():
    # §4.2: "an all-convolutional variant of the 34-layer network in [6] … 35.7M trainable parameters".
    sizes = {name: num_weights(config) for name, config in PRESETS.items() if name.startswith("imagenet")}
    assert sorted(round(weights / 1e6, 1) for _, weights in sizes.values()) == [21.1, 35.7]
    for name in sizes:
        config = PRESETS[name]
        assert (config.blocks_per_stage, config.num_classes, config.image_shape) == ((3, 4, 6, 3), 1000, (224, 224, 3))


def test_presets_train_as_sections_4_1_and_4_2_say():
    # §4.1: momentum 0.9, batch size 128, weight decay 0.0001, rate 0.05, which drops by 10 at step 30,000; the best
    # at around 50,000 steps. Figure 1: "One step is a gradient update with batch size 128".
    for name in ("cifar10", "cifar100"):
        run = RUNS[name]
        assert (run.optimizer, run.momentum, run.batch_size, run.train_steps) == ("momentum", 0.9, 128, 50_000)
        assert (run.data.dataset, run.model.weight_decay, run.clip_norm, run.random_flip) == (name, 1e-4, 0, True)
        rates = [float(learning_rate_schedule(run)(step)) for step in (0, 29_999, 30_000, 49_999)]
        assert rates == pytest.approx([0.05, 0.05, 0.005, 0.005])
        assert not run.model.use_batch_norm and not run.model.train_projection
    # §4.2: rate 0.1, 0.94 every two epochs of 1,281,167 images in batches of 256, momentum 0.9, 700,000 steps.
    run = RUNS["imagenet"]
    assert (run.momentum, run.batch_size, run.train_steps, run.data.dataset) == (0.9, 256, 700_000, "imagenet2012")
    two_epochs = 2 * 1_281_167 // 256
    rates = [float(learning_rate_schedule(run)(step)) for step in (two_epochs - 1, two_epochs + 1, 10 * two_epochs + 5)]
    assert rates == pytest.approx([0.1, 0.094, 0.1 * 0.94**10])


@pytest.mark.parametrize("initializer, power", [("small", 1), ("standard", 0.5)])
def test_kernels_start_with_the_deviation_that_section_4_1_states(initializer, power):
    # §4.1: "standard deviation σ = 1/k²c, rather than 1/(k√c) used for standard convolutional layers".
    config = ModelConfig(stem_width=48, widths=(48, 96), blocks_per_stage=(1, 1), residual_initializer=initializer)
    kernels = convolutions(all_conv_resnet(config, seed=4))
    assert kernels[0].std() == pytest.approx(1 / (3 * 48**0.5), rel=0.1)
    for kernel in kernels[1:]:
        expected = 1 / (9 * kernel.shape[-1]) if initializer == "small" else 1 / (3 * kernel.shape[-1] ** 0.5)
        assert kernel.std() == pytest.approx(expected, rel=0.03) and abs(kernel.mean()) < 0.03 * expected
        assert np.mean(np.abs(kernel) < expected) == pytest.approx(0.683, abs=0.02)  # Gaussian
    assert residual_stddev(3, 64) == pytest.approx(1 / 576) and residual_stddev(5, 7) == pytest.approx(1 / 175)


def test_the_fixed_projection_has_variance_1_over_the_number_of_its_inputs():
    projection = all_conv_resnet(ModelConfig(stem_width=4, widths=(256,), blocks_per_stage=(1,), num_classes=100))
    kernel = projection.get_layer("projection").kernel.numpy()
    assert kernel.var() == pytest.approx(1 / 256, rel=0.03) and np.abs(kernel).max() <= (3 / 256) ** 0.5


def test_images_are_standardised_over_pixels_and_channels_and_constant_ones_are_0():
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3)).astype(np.uint8)
    images[1] = 77
    images[2] = 100
    images[2, 0, 0, 0] = 101  # a deviation below 1/√90
    np.testing.assert_allclose(standardize(images), standardized(images), rtol=1e-3, atol=1e-4)
    assert not np.any(standardize(images)[1])


def test_the_embedded_digits_are_400_and_100_of_each_class_in_turn():
    data = mnist_sample()
    assert [part.shape for part in data] == [(4000, 28, 28, 1), (4000,), (1000, 28, 28, 1), (1000,)]
    assert (
        np.bincount(data.train_labels).tolist() == [400] * 10 and np.bincount(data.test_labels).tolist() == [100] * 10
    )
    train = {image.tobytes() for image in data.train_images}
    assert not any(image.tobytes() in train for image in data.test_images) and data.train_images.max() == 255
