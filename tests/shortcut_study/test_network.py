"""shortcut_study.network and dataset: initialisations, forward pass, whitened components."""

import numpy as np
import pytest
import tensorflow as tf
from refusals import refused

from shortcut_study import tape
from shortcut_study.dataset import whitened_components
from shortcut_study.network import ShortcutNetwork
from theory.shortcut import networks as shortcut_networks
from theory.shortcut.activations import ACTIVATIONS


def test_xavier_has_variance_1_over_width_and_zero_a_hundredth_of_its_weights():
    network = ShortcutNetwork(50, 4, 2)
    xavier = network.initialize("xavier", 0)
    assert xavier.shape == (4, 2, 50, 50) and xavier.dtype == np.float64
    assert xavier.std() == pytest.approx(50**-0.5, rel=0.02) and abs(xavier.mean()) < 0.01
    np.testing.assert_allclose(network.initialize("zero", 0), 0.01 * xavier, rtol=1e-15)
    assert not network.initialize("exact_zero", 0).any()


def test_orthogonal_weights_are_orthogonal_and_of_haar_measure():
    draws = ShortcutNetwork(2, 3000, 1).initialize("orthogonal", 0)[:, 0]
    np.testing.assert_allclose(draws @ draws.transpose(0, 2, 1), np.broadcast_to(np.eye(2), draws.shape), atol=1e-14)
    # Under Haar measure half are reflections and every entry has mean 0; QR with its own signs has neither.
    assert (np.linalg.det(draws) > 0).mean() == pytest.approx(0.5, abs=0.03)
    assert np.abs(draws.mean(axis=0)).max() < 0.05


@pytest.mark.parametrize("activations", [("linear",) * 3, ("relu", "tanh", "softplus")])
def test_with_shortcuts_it_is_the_network_of_the_theory(activations):
    network = ShortcutNetwork(3, 2, 3, *activations)
    weights, (x, y) = network.initialize("xavier", 0), np.random.default_rng(0).standard_normal((2, 5, 3))
    np.testing.assert_allclose(network.forward(weights, x), shortcut_networks.forward(weights, x, *activations))
    assert network.loss(weights, x, y) == pytest.approx(shortcut_networks.loss(weights, x, y, *activations))


def test_without_shortcuts_it_is_the_product_of_its_matrices():
    network = ShortcutNetwork(3, 2, 2, shortcut=False)
    weights, x = network.initialize("xavier", 0), np.random.default_rng(0).standard_normal((5, 3))
    product = weights[1, 1] @ weights[1, 0] @ weights[0, 1] @ weights[0, 0]
    np.testing.assert_allclose(network.forward(weights, x), x @ product.T, atol=1e-14)


def test_an_activation_of_your_own_is_applied_in_its_place():
    network = ShortcutNetwork(3, 1, 2, mid=np.square)
    weights, x = network.initialize("xavier", 0), np.random.default_rng(0).standard_normal((5, 3))
    np.testing.assert_allclose(network.forward(weights, x), x + (x @ weights[0, 0].T) ** 2 @ weights[0, 1].T)


@pytest.mark.parametrize(
    "arguments, named",
    [((0, 1, 1), "width"), ((3, 0, 1), "num_units"), ((3, 1, 0), "shortcut_depth"), ((3, 1, 1, "swish"), "'swish'")],
)
def test_an_impossible_network_raises_a_short_error(arguments, named):
    assert named in refused(ShortcutNetwork, *arguments)


def test_compiling_process_and_cached_process_compute_the_same_bits():
    network, x = ShortcutNetwork(3, 2, 2), np.ones((4, 3))
    for arguments in ((network.forward, np.ones((5, 2, 3, 3)), x), (network.loss, np.ones((5, 2, 3, 3)), x, x)):
        assert "got (5, 2, 3, 3)" in refused(*arguments)
    assert "got (1, 3)" in refused(network.loss, network.initialize("xavier", 0), x, x[:1])
    assert "'he'" in refused(network.initialize, "he", 0)


@pytest.fixture(scope="module")
def digits():
    from identity_matters.data.digits import mnist_sample

    data = mnist_sample()
    return data.train_images[:300, ::2, ::2], data.train_labels[:300]


def test_the_components_are_white_and_the_targets_one_hot(digits):
    x, y = whitened_components(*digits, num_classes=10)
    assert x.shape == y.shape == (300, 10)
    np.testing.assert_allclose(x.T @ x / 300, np.eye(10), atol=1e-10)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-10)
    assert np.array_equal(y.argmax(1), digits[1]) and np.array_equal(y.sum(1), np.ones(300))


@pytest.mark.parametrize("rank", [1, 2])
def test_images_that_span_too_few_dimensions_are_rejected_with_their_number(rank):
    images = np.random.default_rng(0).standard_normal((20, rank)) @ np.random.default_rng(1).standard_normal((rank, 9))
    assert f"only {rank} dimensions" in refused(whitened_components, images, np.arange(20) % 3, num_classes=3)


@pytest.mark.parametrize("x, y", [((5, 3), (4, 3)), ((5, 2), (5, 2)), ((5,), (5,)), ((0, 3), (0, 3))])
def test_examples_are_as_wide_as_the_network_as_many_as_targets_and_not_none(x, y):
    message = refused(ShortcutNetwork(3, 1, 1).examples, np.ones(x), np.ones(y))
    assert message == f"x and y must both be [m, 3], got shapes {x} and {y}"


def test_a_direction_counts_down_to_a_millionth_of_the_largest():
    images = np.random.default_rng(0).standard_normal((20, 3)) * [1, 1e-4, 1e-4]  # as standard deviations
    x, _ = whitened_components(images, np.arange(20) % 3, num_classes=3)
    np.testing.assert_allclose(x.T @ x / 20, np.eye(3), atol=1e-6)
    for scales in ([1, 1, 1e-4], [1, 1]):
        message = refused(whitened_components, images[:, : len(scales)] * scales, np.arange(20) % 3, num_classes=3)
        assert "span only 2 dimensions, there are 3 classes" in message


def test_inputs_have_the_scale_that_is_asked_for_and_their_mean_where_it_is_kept(digits):
    x, _ = whitened_components(*digits, num_classes=10, scale=0.316)
    np.testing.assert_allclose(x.T @ x / 300, 0.316**2 * np.eye(10), atol=1e-11)
    x, _ = whitened_components(*digits, num_classes=10, centred=False)
    np.testing.assert_allclose(x.T @ x / 300, np.eye(10), atol=1e-10)
    assert np.abs(x.mean(axis=0)).max() > 0.5


def test_a_loss_averaged_over_the_outputs_is_the_mean_of_all_squares(digits):
    x, y = whitened_components(*digits, num_classes=10)
    network = ShortcutNetwork(10, 2, 2, mid="relu")
    weights = 0.1 * np.random.default_rng(0).standard_normal(network.shape)
    averaged = network.loss(weights, *whitened_components(*digits, num_classes=10, mean_over_outputs=True))
    assert averaged == pytest.approx(np.square(y - network.forward(weights, x)).mean())


def test_they_are_the_leading_left_singular_vectors(digits):
    pixels = digits[0].reshape(300, -1).astype(float)
    left = np.linalg.svd(pixels - pixels.mean(axis=0), full_matrices=False)[0][:, :10]
    x, _ = whitened_components(*digits, num_classes=10)
    np.testing.assert_allclose(np.abs(left.T @ x) / np.sqrt(300), np.eye(10), atol=1e-8)


def test_too_few_images_and_labels_of_no_class_are_rejected(digits):
    assert "only 4 dimensions" in refused(whitened_components, digits[0][:5], digits[1][:5], num_classes=10)
    for wrong, named in ((digits[1] - 1, "got -1–8"), (digits[1] + 1, "got 1–10")):
        assert named in refused(whitened_components, digits[0], wrong, num_classes=10)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_tensors_are_those_of_arrays(name):
    z = np.array([-3.0, -0.4, 0.0, 0.7, 2.0])
    np.testing.assert_allclose(tape._FUNCTIONS[name](tf.constant(z)).numpy(), ACTIVATIONS[name].function(z), rtol=1e-12)


@pytest.mark.parametrize(
    "depth, shortcut_depth, num_units",
    [(6, 2, 3), (6, 6, 1), (5, 1, 5), (1, 1, 1), (7, 2, None), (0, 1, None), (4, 0, None)],
)
def test_a_network_of_a_depth_has_whole_units(depth, shortcut_depth, num_units):
    if num_units:
        network = ShortcutNetwork.with_depth(3, depth, shortcut_depth)
        assert (network.num_units, network.depth, network.num_parameters) == (num_units, depth, 9 * depth)
        return
    message = refused(ShortcutNetwork.with_depth, 3, depth, shortcut_depth)
    assert f"multiple of shortcut_depth {shortcut_depth}, got {depth}" in message
