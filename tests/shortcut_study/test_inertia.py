"""shortcut_study.inertia: counts of eigenvalues, and spectra from them, against LAPACK's eigenvalues of the matrix."""

import numpy as np
import pytest

from shortcut_study.hessian import hessian, hessian_from_moments, spectrum
from shortcut_study.inertia import _stages, eigenvalues_below, spectrum_by_counting
from shortcut_study.network import ShortcutNetwork
from theory.shortcut_hessians import spectrum_at_zero
from theory.shortcut_networks import moments

D, M = 3, 40
NETWORKS = [ShortcutNetwork(D, 4, n, shortcut=shortcut) for n in (1, 2, 3, 4) for shortcut in (True, False)]


def name(network):
    return f"{network.shortcut_depth}-{'shortcut' if network.shortcut else 'plain'}"


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((M, D)) * [1.0, 2.0, 0.5] + 0.3
    return x, x @ rng.standard_normal((D, D)) + 0.5 * rng.standard_normal((M, D))


@pytest.mark.parametrize("network", NETWORKS, ids=name)
@pytest.mark.parametrize("seed", range(3))
def test_as_many_eigenvalues_lie_below_a_shift_as_lapack_says(network, seed):
    weights, pair = 0.7 * network.initialize("xavier", seed), moments(*data(seed))
    eigenvalues = np.linalg.eigvalsh(hessian_from_moments(weights, *pair, shortcut=network.shortcut))
    stages, end = _stages(weights, *pair, network.shortcut)
    middles = (eigenvalues[1:] + eigenvalues[:-1])[np.diff(eigenvalues) > 1e-6 * np.abs(eigenvalues).max()] / 2
    for shift in [eigenvalues[0] - 1, *middles, eigenvalues[-1] + 1]:
        assert eigenvalues_below(stages, end, shift) == (eigenvalues < shift).sum(), shift


@pytest.mark.parametrize("network", NETWORKS, ids=name)
def test_the_spectrum_is_that_of_the_matrix_by_automatic_differentiation(network):
    (x, y), weights = data(), 0.7 * network.initialize("xavier", 5)
    counted = spectrum_by_counting(weights, *moments(x, y), shortcut=network.shortcut)
    exact = spectrum(hessian(network, weights, x, y, method="tape"))
    np.testing.assert_allclose(counted[:3], exact[:3], rtol=1e-5)
    assert counted.index == pytest.approx(exact.index, abs=0.02)  # eigenvalues that are 0 but for rounding


def test_the_2_shortcuts_spectrum_at_zero_is_theorem_1_at_any_depth():
    x, y = data()
    predicted = spectrum_at_zero(x, y, 1, 2)
    sizes = np.abs(np.repeat(predicted.eigenvalues, predicted.multiplicities))
    for num_units in (1, 5, 40):
        found = spectrum_by_counting(np.zeros((num_units, 2, D, D)), *moments(x, y))
        np.testing.assert_allclose([found.max_abs, found.p10_abs], [sizes.max(), np.percentile(sizes, 10)], rtol=1e-6)
        assert found.index == 0.5


def test_the_1_shortcuts_condition_number_grows_and_the_2_shortcuts_does_not():
    pair = moments(*data())
    small = [spectrum_by_counting(ShortcutNetwork(D, 6 // n, n).initialize("zero", 0), *pair) for n in (1, 2)]
    deep = [spectrum_by_counting(ShortcutNetwork(D, 60 // n, n).initialize("zero", 0), *pair) for n in (1, 2)]
    assert deep[0].condition_number > 5 * small[0].condition_number
    assert deep[1].condition_number < 1.1 * small[1].condition_number


def test_a_percentile_too_small_to_count_gives_an_infinite_condition_number():
    plain = ShortcutNetwork(D, 60, 1, shortcut=False)
    found = spectrum_by_counting(plain.initialize("xavier", 0), *moments(*data()), shortcut=False)
    assert found.condition_number == np.inf and found.p10_abs == 0 and found.max_abs > 0


def test_the_counts_know_the_cross_moment_from_its_transpose():
    network = ShortcutNetwork(D, 4, 2)
    weights, (input_moment, cross_moment) = 0.7 * network.initialize("xavier", 0), moments(*data())
    right, wrong = (spectrum_by_counting(weights, input_moment, c) for c in (cross_moment, cross_moment.T))
    assert abs(wrong.max_abs / right.max_abs - 1) > 1e-3
