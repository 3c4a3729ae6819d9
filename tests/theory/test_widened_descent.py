"""Linear residual networks between two fixed maps: gradient, guarantee and descent from zero."""

import math

import numpy as np
import pytest

from theory.descent import widened
from theory.linear import landscape


def problem_for(R, margin=1.0):
    return widened.identity_maps(R, math.sqrt(4 * math.exp(1.5) * np.linalg.norm(R) * margin))


def test_without_maps_around_the_risk_and_gradient_are_hardt_and_ma_s():
    rng = np.random.default_rng(0)
    layers, R = 0.3 * rng.standard_normal((4, 3, 3)), rng.standard_normal((3, 3))
    Sigma = np.diag([1.0, 2.0, 3.0])
    risk, gradient = widened.risk_and_gradient(widened.Widened(np.eye(3), np.eye(3), R, Sigma), layers)
    assert risk == pytest.approx(landscape.risk(layers, R, Sigma))
    np.testing.assert_allclose(gradient, landscape.gradient(layers, R, Sigma))


def test_the_guaranteed_rate_does_not_fade_with_depth():
    rates = [widened.guarantee(problem_for(np.diag([1.0, -2.0])), depth).rate for depth in (8, 64, 1024)]
    assert max(rates) < 0.87
