"""shortcut_study.dynamics: a batch of runs equals the separate runs."""

import numpy as np
import pytest
from refusals import refused

from shortcut_study import dynamics, tape
from shortcut_study.dynamics import descend
from shortcut_study.network import ShortcutNetwork
from theory.shortcut.networks import minimum_loss

D, M = 3, 40
NETWORKS = {
    "2-shortcut": ShortcutNetwork(D, 3, 2),
    "1-shortcut": ShortcutNetwork(D, 4, 1),
    "3-shortcut": ShortcutNetwork(D, 2, 3),
    "plain": ShortcutNetwork(D, 2, 2, shortcut=False),
    "relu": ShortcutNetwork(D, 2, 2, mid="relu"),
    "plain relu": ShortcutNetwork(D, 2, 2, mid="relu", shortcut=False),
    "tanh": ShortcutNetwork(D, 2, 2, "tanh", "tanh", "tanh"),
}
RATES = np.array([0.01, 0.05, 0.1])


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((M, D))
    return x, 0.5 * x @ rng.standard_normal((D, D)) + 0.1 * rng.standard_normal((M, D))


def starts(network):
    return np.stack([0.5 * network.initialize("xavier", seed) for seed in range(len(RATES))])


def one_by_one(network, weights, x, y, rate, num_epochs):
    """Losses of gradient descent with central differences of the loss for a gradient."""
    weights, losses = weights.copy(), []
    for _ in range(num_epochs + 1):
        losses.append(network.loss(weights, x, y))
        gradient = np.zeros_like(weights)
        for index in np.ndindex(weights.shape):
            up, down = weights.copy(), weights.copy()
            up[index] += 1e-6
            down[index] -= 1e-6
            gradient[index] = (network.loss(up, x, y) - network.loss(down, x, y)) / 2e-6
        weights -= rate * gradient
    return losses


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_gradient_descent(name):
    network, (x, y) = NETWORKS[name], data()
    found = descend(network, starts(network), x, y, RATES, 4)
    for run, rate in enumerate(RATES):
        expected = one_by_one(network, starts(network)[run], x, y, rate, 4)
        np.testing.assert_allclose(found.losses[:, run], expected, rtol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_many_runs_at_once_are_single_runs(name):
    network, (x, y) = NETWORKS[name], data()
    together = descend(network, starts(network), x, y, RATES, 30)
    for run in range(len(RATES)):
        alone = descend(network, starts(network)[run : run + 1], x, y, RATES[run : run + 1], 30)
        np.testing.assert_allclose(alone.losses[:, 0], together.losses[:, run], rtol=1e-12)
        np.testing.assert_allclose(alone.weights[0], together.weights[run], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name, num_epochs", [("2-shortcut", 400), pytest.param("plain", 3000, marks=pytest.mark.slow)])
def test_the_excess_loss_of_a_linear_network_does_not_cancel_near_the_optimum(name, num_epochs):
    network, (x, y) = NETWORKS[name], data()
    found = descend(network, starts(network)[2:], x, y, np.array([0.2]), num_epochs)
    assert 0 <= found.excess_losses[-1, 0] < 1e-18
    np.testing.assert_allclose(found.losses[:, 0] - minimum_loss(x, y), found.excess_losses[:, 0], atol=1e-14)


def test_a_run_that_diverges_is_marked_and_stops_no_other():
    network, (x, y) = NETWORKS["2-shortcut"], data()
    rates = np.array([0.05, 50.0, 0.05])
    found = descend(network, starts(network), x, y, rates, 20)
    kept = descend(network, starts(network)[::2], x, y, rates[::2], 20)
    assert found.diverged_at[1] >= 1 and list(found.diverged_at[::2]) == [-1, -1]
    assert np.isnan(found.losses[found.diverged_at[1] :, 1]).all()
    assert np.isfinite(found.losses[: found.diverged_at[1], 1]).all()
    assert np.isfinite(found.weights).all()
    np.testing.assert_allclose(found.losses[:, ::2], kept.losses, rtol=1e-12)


@pytest.mark.parametrize(
    "target, rate, start, at",
    [(1e3, 1e307, 1, 1), (1, 1e308, 1, 1), (1, 0.01, 1e45, 0)],
    ids=["weights that overflow in one step", "a loss that is no number", "a first loss that is infinite"],
)
def test_nan_is_a_divergence_too(target, rate, start, at):
    network, (x, y) = NETWORKS["relu"], data()
    weights = starts(network)
    weights[1] *= start
    found = descend(network, weights, x, y * target, np.array([1e-5, rate, 1e-5]), 5)
    assert found.diverged_at.tolist() == [-1, at, -1] and np.isfinite(found.weights).all()
    assert np.isnan(found.losses[at:, 1]).all()


def test_a_snapshot_is_taken_at_the_first_epoch_below_its_loss():
    network, (x, y) = NETWORKS["2-shortcut"], data()
    whole = descend(network, starts(network), x, y, RATES, 60)
    levels = [whole.excess_losses[0].max() * 2, whole.excess_losses[20, 2], 1e-30]
    found = descend(network, starts(network), x, y, RATES, 60, levels)
    np.testing.assert_array_equal(found.snapshots[0], starts(network))
    epoch = int(np.argmax(whole.excess_losses[:, 2] <= levels[1]))
    until = descend(network, starts(network), x, y, RATES, epoch)
    np.testing.assert_allclose(found.snapshots[1, 2], until.weights[2], rtol=1e-12)
    assert np.isnan(found.snapshots[2]).all() and len(found.snapshots) == 3


def test_the_norm_is_the_average_frobenius_norm():
    network, (x, y) = NETWORKS["3-shortcut"], data()
    found = descend(network, starts(network), x, y, RATES, 3)
    np.testing.assert_allclose(found.norms[0], np.linalg.norm(starts(network), axis=(3, 4)).mean((1, 2)))
    np.testing.assert_allclose(found.norms[-1], np.linalg.norm(found.weights, axis=(3, 4)).mean((1, 2)))


def test_the_data_may_come_in_blocks(monkeypatch):
    network = NETWORKS["tanh"]  # networks with ReLUs have blocks of their own
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 150, D))
    whole = descend(network, starts(network), x, y, RATES, 10)
    monkeypatch.setattr(tape, "_OBJECTIVE_BYTES", 1)
    tape.data_objective.cache_clear()  # it reads them when it is traced
    np.testing.assert_allclose(descend(network, starts(network), x, y, RATES, 10).losses, whole.losses, rtol=1e-12)


@pytest.mark.parametrize(
    "weights, named",
    [
        (np.zeros((2, 1, 2, D, D)), "weights and learning_rates must have shapes"),
        (np.zeros((3, 3, 2, D, D)), "weights and learning_rates must have shapes"),
        (np.full((2, 3, 2, D, D), 1j), "weights must be real numbers, got complex128"),
    ],
)
def test_weights_of_another_shape_and_complex_ones_are_rejected(weights, named):
    assert named in refused(descend, NETWORKS["2-shortcut"], weights, *data(), RATES[:2], 1)


@pytest.mark.slow
def test_descent_does_not_cross_the_singular_maps():
    """Why 1-shortcut and half of the orthogonal networks end above the optimum if det W* ≤ 0."""
    rng = np.random.default_rng(3)
    x = np.linalg.qr(rng.standard_normal((M, D)))[0] * np.sqrt(M)  # Sxx = I
    left, _, right = np.linalg.svd(rng.standard_normal((D, D)))
    best = left @ np.diag([1.0, 0.7, 0.1]) @ right
    best *= -np.sign(np.linalg.det(best))  # D is odd: the determinant is now negative
    y = x @ best.T
    plain, one = ShortcutNetwork(D, 6, 1, shortcut=False), ShortcutNetwork(D, 6, 1)
    starts = np.stack([plain.initialize("orthogonal", seed) for seed in range(6)])
    signs = [np.sign(np.linalg.det(np.linalg.multi_dot(start[::-1, 0]))) for start in starts]
    assert {-1, 1} == set(signs)
    final = descend(plain, starts, x, y, np.full(6, 0.05), 2500).excess_losses[-1]
    of_one = descend(one, one.initialize("zero", 0)[None], x, y, [0.05], 2500).excess_losses[-1]
    ends = {-1: final[np.equal(signs, -1)], 1: np.append(final[np.equal(signs, 1)], of_one)}
    assert max(ends[-1]) < 1e-12
    np.testing.assert_allclose(ends[1], 0.1**2 / 2, rtol=0.05)  # the nearest singular map


@pytest.mark.parametrize("name", ["2-shortcut", "relu", "tanh"])
@pytest.mark.parametrize("shapes", [((5, 3), (5, 2)), ((5, 2), (5, 3)), ((5, 3), (6, 3))])
def test_data_that_do_not_belong_together_are_rejected(name, shapes):
    network, (x, y) = NETWORKS[name], map(np.ones, shapes)
    message = refused(descend, network, np.zeros((1, *network.shape)), x, y, [0.1], 2)
    assert all(str(shape) in message for shape in shapes)


@pytest.mark.parametrize(
    "second, limit, at", [(0.9e6, 0.0, -1), (1.1e6, 0.0, 1), (1.1e6, 1.2e6, -1), (1.3e6, 1.2e6, 1)]
)
def test_a_run_has_diverged_a_million_times_above_its_first_loss_or_the_limit(second, limit, at):
    losses = iter([0.5, 0.5 * second])

    def objective(weights):
        return np.array([next(losses)]), np.zeros_like(weights)

    start = np.zeros((1, 1, 1, 2, 2))
    found = dynamics._loop(objective, start, np.ones(1), 1, np.array([]), 0.5 * limit, None)
    assert found.diverged_at.tolist() == [at]


def test_the_limit_is_a_million_times_the_loss_of_an_output_of_zeros(monkeypatch):
    seen = []

    def loop(objective, weights, rates, num_epochs, snapshots, limit, on_epoch):
        seen.append(limit)
        return dynamics.Descent(*np.zeros((6, 1, 1)))

    monkeypatch.setattr(dynamics, "_loop", loop)
    x, y = np.random.default_rng(0).standard_normal((2, 7, 2))
    descend(ShortcutNetwork(2, 1, 1), np.zeros((1, 1, 1, 2, 2)), x, y, np.ones(1), 1)
    assert seen == [pytest.approx(1e6 * np.square(y).sum() / 14)]
