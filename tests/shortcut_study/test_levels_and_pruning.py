"""The losses at which Figures 6 to 8 take Hessians, and the learning rate that Figure 10 gives up."""

import numpy as np
import pytest

from shortcut_study.architectures import TWO
from shortcut_study.config import StudyConfig
from shortcut_study.dataset import StudyData
from shortcut_study.dynamics import Descent
from shortcut_study.figures import figure_6, figure_10

D = 3


@pytest.fixture(scope="module")
def data():
    x, noise = np.random.default_rng(0).standard_normal((2, 40, D))
    return StudyData(x, x @ np.diag([1.0, 0.5, -0.3]) + 0.1 * noise)


def test_hessians_are_taken_at_the_same_epochs_whatever_the_unit_of_the_loss(data):
    """A loss averaged over the outputs is 2/d of the other, so at d/2 of its rate descent takes the same path."""
    config = StudyConfig(depth=4, learning_rate=0.1, descent_epochs=60, num_levels=3)
    averaged = StudyConfig(depth=4, learning_rate=0.1 * D / 2, descent_epochs=60, num_levels=3, mean_over_outputs=True)
    unit = 2 / D
    scaled = StudyData(unit**0.5 * data.x, unit**0.5 * data.y)
    pairs = [figure_6.jobs_along_loss(*of, "linear", 1, (0.2, 0.1)) for of in ((config, data), (averaged, scaled))]
    for plain, mean in zip(*pairs, strict=True):
        rows, others = ([row for row in job.compute(lambda share: None) if row["epoch"] != ""] for job in (plain, mean))
        assert [row["epoch"] for row in rows] == [row["epoch"] for row in others] and len(rows) > 1
        for row, other in zip(rows, others):
            assert other["excess_loss"] == pytest.approx(unit * row["excess_loss"])


@pytest.mark.parametrize("elsewhere, at_same_time, is_given_up", [(1.0, 2.0, True), (2.0, 1.0, False)])
def test_a_rate_is_given_up_by_the_loss_of_the_higher_one_at_the_same_time(
    data, monkeypatch, elsewhere, at_same_time, is_given_up
):
    """40 epochs at 0.01 are 10 at 0.04, at which the higher rate's loss differs from elsewhere; it ends at 1.5."""

    def descend(network, weights, x, y, rates, num_epochs, on_epoch):
        losses = np.full((num_epochs + 1, len(rates)), elsewhere)
        if num_epochs == 36:  # after the probe of 4 epochs
            losses[10 - 4], losses[-1] = at_same_time, 1.5
        return Descent(losses, losses, losses, np.full(len(rates), -1), weights, np.empty(0))

    monkeypatch.setattr(figure_10, "descend", descend)
    network = TWO.network(D, 2, "relu_mid")
    start = network.initialize("zero", 0)
    _, bounded_by = figure_10.descend_pruned(network, start, data, np.array([0.01, 0.04]), 40)
    assert bounded_by == ({0: 0.04} if is_given_up else {})
