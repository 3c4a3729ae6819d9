"""Claims of Li et al., appendix A: spectrum, blocks and symmetries of the Hessian at zero."""

import itertools
from collections.abc import Callable

import numpy as np

from theory import shortcut_hessians
from theory.claim import claim
from theory.derivatives import mixed_derivative
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.mutations import changed, turned
from theory.shortcut import networks
from theory.shortcut.activations import ActivationLike
from theory.shortcut.measured import BENT, DIFFERENCES, numeric_hessian, random_data


def coupling(loss: Callable) -> Callable:
    """The mutation that adds a product of weights of two units to the loss."""
    return lambda weights, *a, **k: loss(weights, *a, **k) + weights[0].sum() * weights[-1].sum()


stretched = changed(lambda spectrum: shortcut_hessians.Spectrum(1.1 * spectrum.eigenvalues, spectrum.multiplicities))


@claim(
    id="li.eq_18",
    source="Li et al., (18)",
    statement="n = 2, linear: R copies of the d² values ±σ(A): ±σ_i(M), each sign d·R times",
    function=shortcut_hessians.spectrum_at_zero,
    mutation=stretched,
)
def eq_18(rng: np.random.Generator, trials: int) -> Pairs:
    """n = 2, linear: eigenvalues of the measured Hessian against ±σ_i(M), each sign d·R times."""
    return _spectrum_check(rng, trials, "linear", "linear", "linear")


@claim(
    id="li.eq_22",
    source="Li et al., (22)",
    statement="n = 2, activations: R copies of ±σ(A): ±|c|σ_i(M), each sign d·R times",
    function=shortcut_hessians.spectrum_at_zero,
    mutation=stretched,
)
def eq_22(rng: np.random.Generator, trials: int) -> Pairs:
    """n = 2, activations: eigenvalues of the measured Hessian against ±|c| σ_i(M), each sign d·R times."""
    return _spectrum_check(rng, trials, "tanh", BENT, BENT)


@claim(
    id="li.eq_25",
    source="Li et al., (25)",
    statement="n = 1, linear: B = P (I ⊗ Sxx) Pᵀ = Sxx ⊗ I",
    function=shortcut_hessians.hessian_at_zero,
    mutation=turned,
)
def eq_25(rng: np.random.Generator, trials: int) -> Pairs:
    """n = 1, linear: the measured diagonal blocks and `hessian_at_zero`'s against B = P (I ⊗ Sxx) Pᵀ = Sxx ⊗ I."""
    for _ in range(max(1, trials // 5)):
        x, y = random_data(rng)
        P = shortcut_hessians.commutation_matrix(3)
        moment = x.T @ x / len(x)
        B = P @ np.kron(np.eye(3), moment) @ P.T
        yield relative_error(np.kron(moment, np.eye(3)), B), ROUNDING
        yield relative_error(B, numeric_hessian(x, y, 2, 1)[:9, :9]), DIFFERENCES
        yield relative_error(shortcut_hessians.hessian_at_zero(x, y, 2, 1)[9:, 9:], B), ROUNDING


@claim(
    id="li.eq_28",
    source="Li et al., (28)",
    statement="n = 1, linear: A = (I ⊗ M) Pᵀ + B, with rows of the later unit",
    function=shortcut_hessians.hessian_at_zero,
    mutation=turned,
)
def eq_28(rng: np.random.Generator, trials: int) -> Pairs:
    """n = 1, linear: the block below the diagonal, measured and `hessian_at_zero`'s, against A = (I ⊗ M) Pᵀ + B."""
    for _ in range(max(1, trials // 5)):
        x, y = random_data(rng)
        measured = numeric_hessian(x, y, 2, 1)
        M = shortcut_hessians.moment_gap(x, y)
        moment = x.T @ x / len(x)
        A = np.kron(np.eye(3), M) @ shortcut_hessians.commutation_matrix(3).T + np.kron(moment, np.eye(3))
        yield relative_error(A, measured[9:, :9]), DIFFERENCES
        yield relative_error(shortcut_hessians.hessian_at_zero(x, y, 2, 1)[9:, :9], A), ROUNDING
        require(relative_error(A.T, measured[9:, :9]) > DIFFERENCES, "A and Aᵀ are the same within DIFFERENCES")


@claim(
    id="li.lemma_1",
    source="Li et al., Lemma 1",
    statement="an n-th derivative at zero is nonzero only if it has one weight of each layer of one unit",
    proof="complete: if σ_pre has the derivatives that it uses",
    function=networks.loss,
    mutation=coupling,
)
def lemma_1(rng: np.random.Generator, trials: int) -> Pairs:
    """Mixed derivatives at zero in n distinct weights that do not come one from each layer of one unit."""
    within = []
    for trial in range(max(9, trials)):
        depth = 2 + trial % 2
        d = 2
        x, y = random_data(rng, dimension=d)
        chosen = [tuple(rng.integers(0, (2, depth, d, d))) for _ in range(depth)]
        if len(set(chosen)) < depth:
            continue
        size = abs(mixed_derivative(networks.loss, chosen, (2, depth, d, d), x, y))
        if len({unit for unit, *_ in chosen}) == 1 and {layer for _, layer, *_ in chosen} == set(range(depth)):
            within.append(size)
        else:
            yield size, ROUNDING
    x, y = random_data(rng, dimension=2)
    one_unit = [(0, 0, 0, 0), (0, 1, 0, 0)]
    within.append(abs(mixed_derivative(networks.loss, one_unit, (2, 2, 2, 2), x, y)))
    require(max(within) > 0.01, "the derivatives that may be nonzero are zero too")


@claim(
    id="li.lemma_2",
    source="Li et al., Lemma 2",
    statement="second derivatives at zero depend on the order of the two units, not on their positions",
    function=shortcut_hessians.hessian_at_zero,
    mutation=turned,
)
def lemma_2(rng: np.random.Generator, trials: int) -> Pairs:
    """Second derivatives at zero against those with the units moved to 1 and 1 + [r₁ ≠ r₂]."""
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng, dimension=2)
        depth = 1 + trial % 2
        hessian = numeric_hessian(x, y, 3, depth, "tanh", "tanh", "tanh")
        formula = shortcut_hessians.hessian_at_zero(x, y, 3, depth, "tanh", "tanh", "tanh")
        yield relative_error(formula, hessian), DIFFERENCES
        blocks = hessian.reshape(3, 4 * depth, 3, 4 * depth)
        for first, second in itertools.combinations_with_replacement(range(3), 2):
            moved = blocks[0, :, int(first != second)]
            yield np.abs(blocks[first, :, second] - moved).max(), DIFFERENCES * np.abs(hessian).max()


def _spectrum_check(rng: np.random.Generator, trials: int, *activations: ActivationLike) -> Pairs:
    """Yields the d² positive values, each of ±σ_i(M) d times, and R copies of all: the largest d·R times."""
    for trial in range(max(3, trials // 5)):
        x, y = random_data(rng, dimension=2)
        units = 1 + trial % 3
        measured = np.linalg.eigvalsh(numeric_hessian(x, y, units, 2, *activations))
        spectrum = shortcut_hessians.spectrum_at_zero(x, y, units, 2, *activations)
        yield relative_error(np.repeat(*spectrum), measured), DIFFERENCES
        if len(spectrum.eigenvalues) == 4:
            yield np.abs(spectrum.multiplicities - 2 * units).max(), 0.0
