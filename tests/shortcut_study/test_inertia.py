"""shortcut_study.inertia: counts of eigenvalues, and spectra from them, against LAPACK's eigenvalues of the matrix."""

import numpy as np
import pytest
from refusals import refused

from shortcut_study import inertia
from shortcut_study.hessian import hessian, hessian_from_moments, spectrum
from shortcut_study.inertia import Counter, eigenvalues_below, spectrum_by_counting, stages_of_units
from shortcut_study.network import ShortcutNetwork
from theory.shortcut.networks import moments
from theory.shortcut_hessians import spectrum_at_zero

D, M = 3, 40
NETWORKS = [ShortcutNetwork(D, 4, n, shortcut=shortcut) for n in (1, 2, 3, 4) for shortcut in (True, False)]


def name(network):
    return f"{network.shortcut_depth}-{'shortcut' if network.shortcut else 'plain'}"


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((M, D)) * [1.0, 2.0, 0.5] + 0.3
    return x, x @ rng.standard_normal((D, D)) + 0.5 * rng.standard_normal((M, D))


@pytest.mark.parametrize("network", NETWORKS, ids=name)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_as_many_eigenvalues_lie_below_a_shift_as_lapack_says(network, seed):
    weights, pair = 0.7 * network.initialize("xavier", seed), moments(*data(seed))
    eigenvalues = np.linalg.eigvalsh(hessian_from_moments(weights, *pair, shortcut=network.shortcut))
    stages, end = stages_of_units(weights, *pair, network.shortcut)
    middles = (eigenvalues[1:] + eigenvalues[:-1])[np.diff(eigenvalues) > 1e-6 * np.abs(eigenvalues).max()] / 2
    for shift in [eigenvalues[0] - 1, *middles, eigenvalues[-1] + 1]:
        assert Counter(stages, end)(shift) == (eigenvalues < shift).sum(), shift


@pytest.mark.parametrize("network", NETWORKS, ids=name)
def test_the_spectrum_is_that_of_the_dense_matrix(network):
    (x, y), weights = data(), 0.7 * network.initialize("xavier", 5)
    counted = spectrum_by_counting(weights, *moments(x, y), shortcut=network.shortcut, tolerance=1e-8)
    exact = spectrum(hessian(network, weights, x, y, method="closed_form"))
    np.testing.assert_allclose(counted[:3], exact[:3], rtol=1e-5)
    assert counted.index == pytest.approx(exact.index, abs=0.02)  # its eigenvalues below 1e-9 count as 0


def test_the_2_shortcuts_spectrum_at_zero_is_theorem_1_at_any_depth():
    x, y = data()
    predicted = spectrum_at_zero(x, y, 1, 2)
    sizes = np.abs(np.repeat(predicted.eigenvalues, predicted.multiplicities))
    for num_units in (1, 5, 40):
        found = spectrum_by_counting(np.zeros((num_units, 2, D, D)), *moments(x, y), tolerance=1e-8)
        np.testing.assert_allclose([found.max_abs, found.p10_abs], [sizes.max(), np.percentile(sizes, 10)], rtol=1e-6)
        assert found.index == 0.5


def test_a_percentile_too_small_to_count_gives_an_infinite_condition_number():
    plain = ShortcutNetwork(D, 60, 1, shortcut=False)
    found = spectrum_by_counting(plain.initialize("xavier", 0), *moments(*data()), shortcut=False)
    assert found.condition_number == np.inf and found.p10_abs == 0 and found.max_abs > 0


def test_sizes_whose_products_underflow_are_found_as_others():
    weights, pair = 0.7 * ShortcutNetwork(D, 3, 2).initialize("xavier", 0), moments(*data())
    small, usual = (spectrum_by_counting(weights, *(scale * moment for moment in pair)) for scale in (1e-200, 1.0))
    for name in ("max_abs", "p10_abs"):
        assert getattr(small, name) == pytest.approx(1e-200 * getattr(usual, name), rel=2 * inertia.TOLERANCE, abs=0)


def test_a_hessian_that_is_0_has_the_spectrum_of_the_zero_matrix():
    zero = spectrum(np.zeros((2, 2)))
    one_layer, random = np.zeros((2, 4, D, D)), np.random.default_rng(0).standard_normal((2, 2, D, D))
    one_layer[0, 0] = np.eye(D)  # the other three of its unit are 0
    assert not hessian_from_moments(one_layer, *moments(*data())).any()
    assert spectrum_by_counting(one_layer, *moments(*data())) == zero
    assert spectrum_by_counting(random, np.zeros((D, D)), np.zeros((D, D))) == zero  # no inputs
    assert spectrum_by_counting(np.zeros((3, 3, D, D)), *moments(*data())) == zero


def test_one_weight_is_counted_and_numbers_that_are_not_finite_are_rejected():
    one, moment = np.ones((1, 1, 1, 1)), np.ones((1, 1))
    for size in np.linspace(1, 2, 9):
        assert spectrum_by_counting(one, size * moment, moment).max_abs == pytest.approx(size, rel=0.51e-4)
    assert eigenvalues_below(*stages_of_units(one, moment, moment, True), 1.0)[0] == 0  # but one that is as large
    two = np.reshape([0.5, 1.0], (2, 1, 1, 1))
    counted = spectrum_by_counting(two, moment, 0.3 * moment, tolerance=1e-8)
    assert counted.p10_abs == pytest.approx(spectrum(hessian_from_moments(two, moment, 0.3 * moment)).p10_abs)
    assert "weights must be finite" in refused(spectrum_by_counting, np.nan * one, moment, moment)


@pytest.mark.parametrize("share, up_to_zero", [(1.1e-9, 0), (0.9e-9, 0.5)])
def test_a_billionth_of_the_largest_eigenvalue_counts_as_0(share, up_to_zero):
    """Of one layer's Hessian, Sxx ⊗ I."""
    counted = spectrum_by_counting(np.ones((1, 1, 2, 2)), np.diag([1, share]), np.zeros((2, 2)))
    assert counted.index_range == (0, up_to_zero)


def test_a_percentile_between_a_zero_and_another_size_is_not_infinite():
    """Seven of these 63 eigenvalues are 0, and the 10th percentile lies at place 6.2: numpy.percentile interpolates."""
    network = ShortcutNetwork(3, 7, 1)
    weights, pair = network.initialize("orthogonal", 4), moments(*np.random.default_rng(4).standard_normal((2, 300, 3)))
    exact, counted = spectrum(hessian_from_moments(weights, *pair)), spectrum_by_counting(weights, *pair)
    assert (
        counted.condition_number == pytest.approx(exact.condition_number, rel=1e-3) == pytest.approx(8989.7, rel=1e-3)
    )
    assert counted.index == exact.index and counted.index_range == exact.index_range


def ill_conditioned(num_cases=6):
    """Networks, shifts between their eigenvalues, and the right count; V grows too much unit by unit."""
    rng = np.random.default_rng(0)
    for seed in range(num_cases):
        network = ShortcutNetwork(D, int(rng.integers(5, 11)), 1 + seed % 3)
        weights, pair = network.initialize("orthogonal", seed), moments(*1e-3 * rng.standard_normal((2, 50, D)))
        eigenvalues = np.linalg.eigvalsh(hessian_from_moments(weights, *pair))
        top, stages = np.abs(eigenvalues).max(), stages_of_units(weights, *pair, True)
        for shift in top * 10 ** rng.uniform(-9, -7, 8) * rng.choice([-1, 1], 8):
            is_between = np.abs(eigenvalues - shift).min() > max(1e-12 * top, 1e-4 * abs(shift))
            if is_between and eigenvalues_below(*stages, shift)[1] > inertia.MAX_GROWTH:
                yield stages, shift, (eigenvalues < shift).sum()


def test_units_are_merged_if_one_is_no_safe_pivot_and_the_count_is_right(monkeypatch):
    cases = list(ill_conditioned())
    assert len(cases) > 20
    assert all(Counter(*stages)(shift) == count for stages, shift, count in cases)
    monkeypatch.setattr(inertia, "MAX_GROWTH", np.inf)  # what it was
    assert any(Counter(*stages)(shift) != count for stages, shift, count in cases)
