"""The printed construction of Theorem 2.1: the cases that exceed the printed bound, and its layers."""

import math
import pathlib

import numpy as np
import pytest
from factoring import gamma_of, multiply, norms, relative, target

from theory import factorization as fz
from theory.linear import paper_construction


def printed(gamma, num_layers) -> float:
    return (4 * math.pi + 3 * gamma) / num_layers


def least_worst_norm(gamma, num_layers) -> float:
    counts = range(1, (num_layers - 1) // 4 + 1)
    worst = [max(2 * math.sin(math.pi / 2 / q), math.exp(gamma / (num_layers - 4 * q)) - 1) for q in counts]
    return min(worst, default=math.inf)


@pytest.mark.parametrize(
    "num_layers, gamma, reached, polar",
    [(5, 1.6, 3.953, 0.888), (7, 0.2, 2.0, 0.463), (9, 1.5, 2.0, 0.4645), (100, 0.1, 0.1308, 0.0319)],
)
def test_the_printed_construction_misses_the_printed_bound_that_polar_meets(num_layers, gamma, reached, polar):
    R = np.diag([-math.exp(gamma), -1.0, 1.0])
    A = fz.factorize(R, num_layers, "paper")
    assert relative(multiply(A), R) < 1e-13
    assert norms(A).max() == pytest.approx(reached, rel=5e-4) and norms(A).max() > printed(gamma, num_layers) * 1.01
    assert norms(A).max() == pytest.approx(least_worst_norm(gamma, num_layers), rel=1e-12)
    assert fz.norm_bound(R, num_layers, "paper") == pytest.approx(printed(gamma, num_layers))
    assert not paper_construction.meets_printed_bound(gamma, num_layers)
    assert norms(fz.factorize(R, num_layers)).max() == pytest.approx(polar, rel=2e-3)


@pytest.mark.parametrize("num_layers", [5, 6, 13, 40])
@pytest.mark.parametrize("d", [1, 4, 7])
def test_paper_layers_are_rotations_then_scalings_then_rotations(num_layers, d):
    R = target("Q P", d, 2.0, "any", "generic", np.random.default_rng(d))
    gamma, A = gamma_of(R), fz.factorize(R, num_layers, "paper")
    assert relative(multiply(A), R) < 1e-12
    choice = paper_construction.allocation(gamma, num_layers)
    q, p = choice.num_rotations, choice.num_scalings
    assert q >= 1 <= p and 4 * q + p == num_layers == len(A)
    assert choice.norm == pytest.approx(least_worst_norm(gamma, num_layers), rel=1e-12)
    assert norms(A).max() <= choice.norm * (1 + 1e-12)
    layers = np.eye(d) + A
    for turn in (*layers[: 2 * q], *layers[2 * q + p :]):
        np.testing.assert_allclose(turn.T @ turn, np.eye(d), atol=1e-13)
    scaling = layers[2 * q]
    assert np.all(np.diag(scaling) > 0) and not np.any(scaling - np.diag(np.diag(scaling)))
    np.testing.assert_array_equal(layers[2 * q : 2 * q + p], np.repeat([scaling], p, axis=0))


@pytest.mark.parametrize("num_layers, low, high", [(9, 1.005, 1.811), (10, 2.13, 2.48)])
def test_the_second_interval_of_the_page_is_where_the_printed_bound_is_missed(num_layers, low, high):
    gammas = np.linspace(1, num_layers / 3, 5_000)
    missed = gammas[[not paper_construction.meets_printed_bound(gamma, num_layers) for gamma in gammas]]
    digits = len(f"{high}") - 2
    assert (round(missed.min(), digits), round(missed.max(), digits)) == (low, high)
    page = (pathlib.Path(__file__).parents[2] / "docs" / "papers" / "theorems.md").read_text()
    assert rf"({low}, {high}) for $\ell={num_layers}$" in page


@pytest.mark.parametrize("gamma", [1.5, -1.5])
def test_the_scalings_are_as_many_for_a_small_singular_value_as_for_a_large_one(gamma):
    A = fz.factorize(np.diag([math.exp(gamma), 1.0, 1.0]), 13, "paper")
    determinants = np.linalg.det(np.eye(3) + A)
    scalings = determinants[np.abs(determinants - 1) > 1e-9]
    assert len(scalings) == paper_construction.allocation(1.5, 13).num_scalings
    np.testing.assert_allclose(scalings, math.exp(gamma / len(scalings)))
