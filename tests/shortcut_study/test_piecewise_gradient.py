"""shortcut_study.piecewise_gradient: the network's loss, differences, autodiff; the same bits however it is run."""

import concurrent.futures
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from shortcut_study import piecewise_gradient
from shortcut_study.network import ShortcutNetwork
from shortcut_study.piecewise_gradient import COLUMNS, piecewise_objective
from shortcut_study.tape import data_objective

D = 3  # here and in test_study_dynamics.py: for each width the compiler takes 15 seconds
ACTIVATIONS = list(itertools.product(["linear", "relu"], repeat=3))
PLACES = ("pre", "mid", "post")


def problem(shortcut_depth=2, activations=("relu",) * 3, shortcut=True, num_units=2, num_runs=1, count=COLUMNS + 6):
    rng = np.random.default_rng(5)
    network = ShortcutNetwork(D, num_units, shortcut_depth, *activations, shortcut)
    x, y = rng.standard_normal((2, count, D))
    return network, np.stack([network.initialize("xavier", seed) for seed in range(num_runs)]), x, y


def autodiff(network, weights, x, y):
    """TensorFlow's loss and gradient, not compiled: that would take a second a network."""
    loss, gradient = data_objective(network).python_function(*map(tf.constant, (weights, x, y)))
    return loss.numpy(), gradient.numpy()


def differences(network, weights, x, y, step=1e-7):
    """Central differences of ShortcutNetwork.loss in extended precision, without any gradient."""
    weights, gradient = weights.astype(np.longdouble), np.empty(weights.shape)
    for index in np.ndindex(weights.shape):
        moved = np.zeros_like(weights)
        moved[index] = step
        gradient[index] = (network.loss(weights + moved, x, y) - network.loss(weights - moved, x, y)) / (2 * step)
    return gradient


def assert_same(found, expected, tolerance=1e-12):
    """To a share of the largest entry; 1e-12 is some thousand roundings of float64."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("shortcut_depth", [1, 2, 3])
@pytest.mark.parametrize("activations", ACTIVATIONS, ids="-".join)
def test_it_is_the_networks_loss_its_difference_and_autodiff(activations, shortcut_depth, shortcut):
    network, weights, x, y = problem(shortcut_depth, activations, shortcut)
    (loss,), (gradient,) = piecewise_objective(network, x, y)(weights)
    assert loss == pytest.approx(network.loss(weights[0], x, y), rel=1e-12)
    # Where long double is no longer than float64, rounding over the step is 1e-16/1e-7.
    assert_same(gradient, differences(network, weights[0], x, y), 1e-7)
    (their_loss,), (theirs,) = autodiff(network, weights, x, y)
    assert loss == pytest.approx(their_loss, rel=1e-12)
    assert_same(gradient, theirs)


# Less than a block, whole blocks, and more blocks than there are pieces that cores share, with and without a rest.
@pytest.mark.parametrize("count", [1, COLUMNS - 1, COLUMNS, COLUMNS + 1, 10 * COLUMNS, 17 * COLUMNS + 5])
def test_every_sample_counts_once(count):
    network, weights, x, y = problem(count=count)
    (loss,), gradient = piecewise_objective(network, x, y)(weights)
    assert loss == pytest.approx(network.loss(weights[0], x, y), rel=1e-12)
    assert_same(gradient, autodiff(network, weights, x, y)[1])


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("activations", ACTIVATIONS, ids="-".join)
def test_a_run_among_many_is_the_single_run_bit_by_bit(activations, shortcut):
    network, weights, x, y = problem(2, activations, shortcut, num_units=3, num_runs=5, count=150)
    objective = piecewise_objective(network, x, y)
    losses, gradients = objective(weights)
    for run in range(len(weights)):
        alone, gradient = objective(weights[run : run + 1])
        assert alone[0] == losses[run] and np.array_equal(gradient[0], gradients[run])
    backwards, gradient = objective(weights[::-1])  # not contiguous in memory
    assert np.array_equal(backwards[::-1], losses) and np.array_equal(gradient[::-1], gradients)


@pytest.mark.parametrize("place", PLACES)
def test_at_a_kink_the_slope_of_relu_is_0(place):
    """A first matrix of 0 puts all that is behind it at the kink, wherever the ReLU stands."""
    first = {}
    for kind in ("linear", "relu"):
        activations = [kind if name == place else "linear" for name in PLACES]
        network, weights, x, y = problem(2, activations, shortcut=False)
        weights[:, 0, 0] = 0
        first[kind] = piecewise_objective(network, x, y)(weights)[1][0, 0, 0]
    assert first["linear"].any() and not first["relu"].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("activations", ACTIVATIONS, ids="-".join)
def test_a_weight_that_is_no_number_shows_only_in_the_loss_of_its_run(activations, value):
    for unit, layer in np.ndindex(2, 2):
        network, weights, x, y = problem(2, activations, num_runs=3)
        objective = piecewise_objective(network, x, y)
        losses, gradients = objective(weights)
        weights[1, unit, layer, 0, 0] = value
        spoiled, others = objective(weights)
        assert np.isfinite(spoiled).tolist() == [True, False, True], (unit, layer)
        assert np.array_equal(spoiled[::2], losses[::2]) and np.array_equal(others[::2], gradients[::2])


def test_a_target_that_is_no_number_shows_in_the_loss():
    network, weights, x, y = problem()
    y[3, 1] = np.nan
    assert np.isnan(piecewise_objective(network, x, y)(weights)[0]).all()


def test_the_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    network, weights, x, y = problem(num_runs=3, count=1000)
    objective = piecewise_objective(network, x, y)
    found = []
    for threads in (1, 2, 7):
        with concurrent.futures.ThreadPoolExecutor(threads) as cores:
            monkeypatch.setattr(piecewise_gradient, "_cores", lambda cores=cores: cores)
            found.append(objective(weights))
        assert len(cores._threads) >= min(threads, 2)
    for losses, gradients in found:
        assert np.array_equal(losses, found[0][0]) and np.array_equal(gradients, found[0][1])


@pytest.mark.slow  # it compiles: 20 seconds
def test_hutchinson_is_exact_on_diagonals_and_chance_agreement_does_not_stop_it(tmp_path):
    script = (
        "import numpy as np\n"
        "from shortcut_study.network import ShortcutNetwork\n"
        "from shortcut_study.piecewise_gradient import piecewise_objective\n"
        f"network = ShortcutNetwork({D}, 2, 2, mid='relu')\n"
        "x, y = np.random.default_rng(0).standard_normal((2, 1000, network.width))\n"
        "losses, gradients = piecewise_objective(network, x, y)(network.initialize('xavier', 0)[None])\n"
        "print(losses.tobytes().hex(), gradients.tobytes().hex())\n"
    )
    printed = set()
    for _ in range(2):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", script], check=False, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        printed.add(done.stdout)
    assert list(tmp_path.rglob("*_sums*.nbc")) and len(printed) == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 7])
def test_at_widths_below_and_above_a_tile_it_is_the_loss_and_autodiff(width):
    """Tiles of 2 rows and 5 columns: an odd width leaves a row over, 7 leaves two columns."""
    network = ShortcutNetwork(width, 2, 2, "linear", "relu", "linear")
    x, y = np.random.default_rng(0).standard_normal((2, 40, width))
    weights = network.initialize("xavier", 1)[None]
    (loss,), gradient = piecewise_objective(network, x, y)(weights)
    expected = autodiff(network, weights, x, y)
    assert loss == pytest.approx(expected[0][0], rel=1e-12)
    assert_same(gradient, expected[1])
