"""identity_matters.model and the presets: the numbers that Hardt & Ma print, standardised images, embedded digits."""

import numpy as np
import pytest
from outputs.references import standardized

from identity_matters.data.digits import mnist_sample
from identity_matters.model import PRESETS, residual_stddev, standardize
from identity_matters.training import PRESETS as RUNS
from identity_matters.training import learning_rate_schedule


def num_weights(config) -> tuple[int, int]:
    """The numbers of convolutions and of their weights, counted by hand: two 3 × 3 convolutions in a block."""
    sizes = [config.stem_kernel_size**2 * config.image_shape[-1] * config.stem_width]
    channels = config.stem_width
    for width, blocks in zip(config.widths, config.blocks_per_stage):
        sizes += [9 * channels * width, 9 * width * width] + [9 * width * width] * 2 * (blocks - 1)
        channels = width
    return len(sizes), sum(sizes)


def test_the_presets_have_the_sizes_that_the_paper_prints():
    # Table 1: "Architecture for CIFAR10/100 (55 convolutions, 13.5M parameters)", nine blocks in each of three stages.
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        config = PRESETS[name]
        assert num_weights(config) == (55, 13_538_736) and config.num_classes == classes
        assert (config.image_shape, config.stem_width, config.widths) == ((32, 32, 3), 16, (64, 128, 256))
    # §4.2: "an all-convolutional variant of the 34-layer network in [6] … 35.7M trainable parameters"; the paper gives
    # no widths. imagenet_narrow has those of He et al. and 21.1M.
    imagenet = [PRESETS["imagenet"], PRESETS["imagenet_narrow"]]
    assert [round(num_weights(config)[1] / 1e6, 1) for config in imagenet] == [35.7, 21.1]
    shapes = {(config.blocks_per_stage, config.num_classes, config.image_shape) for config in imagenet}
    assert shapes == {((3, 4, 6, 3), 1000, (224, 224, 3))}
    # §4.1: "standard deviation σ = 1/k²c" for k × k kernels of c output channels.
    assert residual_stddev(3, 64) == pytest.approx(1 / 576) and residual_stddev(5, 7) == pytest.approx(1 / 175)


def test_presets_train_as_sections_4_1_and_4_2_say():
    # §4.1: momentum 0.9, batch size 128, weight decay 0.0001, rate 0.05, which drops by 10 at step 30,000; the best
    # at around 50,000 steps. The last layer is a random projection that is not trained.
    for name in ("cifar10", "cifar100"):
        run = RUNS[name]
        assert (run.optimizer, run.momentum, run.batch_size, run.train_steps) == ("momentum", 0.9, 128, 50_000)
        assert (run.data.dataset, run.model.weight_decay, run.clip_norm, run.random_flip) == (name, 1e-4, 0, True)
        rates = [float(learning_rate_schedule(run)(step)) for step in (0, 29_999, 30_000, 49_999)]
        assert rates == pytest.approx([0.05, 0.05, 0.005, 0.005])
        assert not run.model.use_batch_norm and not run.model.train_projection
    # §4.2: rate 0.1, 0.94 every two epochs of 1,281,167 images in batches of 256, momentum 0.9, 700,000 steps.
    run, two_epochs = RUNS["imagenet"], 2 * 1_281_167 // 256
    assert (run.momentum, run.batch_size, run.train_steps, run.data.dataset) == (0.9, 256, 700_000, "imagenet2012")
    rates = [float(learning_rate_schedule(run)(step)) for step in (two_epochs - 1, two_epochs + 1, 10 * two_epochs + 5)]
    assert rates == pytest.approx([0.1, 0.094, 0.1 * 0.94**10])


def test_images_are_standardised_over_pixels_and_channels_and_constant_ones_are_0():
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 3)).astype(np.uint8)
    images[1:] = 100
    images[2, 0, 0, 0] = 101  # a deviation below 1/√90
    np.testing.assert_allclose(standardize(images), standardized(images), rtol=1e-3, atol=1e-4)
    assert not np.any(standardize(images)[1])


def test_the_embedded_digits_are_400_and_100_of_each_class_in_turn():
    data = mnist_sample()
    assert data.train_labels[:12].tolist() == [*range(10), 0, 1] and data.train_images.shape == (4000, 28, 28, 1)
    assert [np.bincount(labels).tolist() for labels in data[1::2]] == [[400] * 10, [100] * 10]
    train = {image.tobytes() for image in data.train_images}
    assert not any(image.tobytes() in train for image in data.test_images)
