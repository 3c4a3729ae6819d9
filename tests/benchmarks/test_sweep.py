"""benchmarks.sweep: a clock that counts shows what its seconds are of."""

import numpy as np
import pytest

from benchmarks import sweep
from shortcut_study import dynamics
from shortcut_study.network import ShortcutNetwork

SET_UP, START, PER_RUN = 1000.0, 7.0, 1.0  # of a descent, of each of its epochs, of each run in an epoch


@pytest.fixture
def clock(monkeypatch):
    spent = [0.0]

    def descend(network, starts, x, y, rates, num_epochs):
        spent[0] += SET_UP + (num_epochs + 1) * (START + PER_RUN * len(starts))
        return dynamics.Descent(*[np.ones((num_epochs + 1, len(starts)))] * 6)

    def train(weights, rate, num_epochs):
        spent[0] += 3.0 * num_epochs
        return np.ones(num_epochs)

    def seconds(function, *arguments):
        before = spent[0]
        function(*arguments)
        return spent[0] - before

    monkeypatch.setattr(dynamics, "descend", descend)
    monkeypatch.setattr(sweep, "_gradient_tape_training", lambda *_: train)
    monkeypatch.setattr(sweep, "seconds", seconds)


def test_seconds_are_those_of_an_epoch_of_all_runs_without_set_up(clock):
    x = np.ones((4, 2))
    measured = sweep._measurements(ShortcutNetwork(2, 1, 2), x, x, runs=10, epochs=20, peer_epochs=5)
    found = {name: measure() for name, measure in measured.items()}
    assert found == {"sweep": START + 10 * PER_RUN, "loop": 10 * (START + PER_RUN), "GradientTape": 30.0}
