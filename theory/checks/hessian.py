"""Checks of Li et al., Theorem 1.2 and 1.3 and appendix A: the Hessian at zero against differences of the loss.

As in linear.py: random instances, the worst of them as Evidence.
"""

import itertools
import math

import numpy as np

from theory import shortcut_hessians, shortcut_networks, stationarity
from theory.activations import Activation, ActivationLike
from theory.checks.evidence import ROUNDING, Evidence, at_least, at_most, relative_error, require
from theory.checks.numeric import difference_hessian, mixed_derivative

DIFFERENCES = 1e-5  # relative: central differences with step 1e-4 in extended precision
# σ(0) = 0, and derivatives that no formula can drop unseen.
BENT = Activation(lambda z: 0.7 * z + 0.4 * z * z, lambda z: 0.7 + 0.8 * z, (0.0, 0.7, 0.8))


def theorem_1_2(rng: np.random.Generator, trials: int) -> Evidence:
    """Measured Hessian against I_R ⊗ [0 Aᵀ; A 0]; the curvature along the escape direction against −|c| σ_max(M)."""
    pairs = []
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng)
        activations = [("linear",) * 3, ("relu", "tanh", BENT)][trial % 2]
        measured = numeric_hessian(x, y, 2, 2, *activations)
        pairs.append(
            (relative_error(shortcut_hessians.hessian_at_zero(x, y, 2, 2, *activations), measured), DIFFERENCES)
        )
        escape = stationarity.escape_from_saddle(x, y, 2, *activations)
        w = _by_definition_5(escape.direction)
        pairs.append((abs(w @ measured @ w - np.linalg.eigvalsh(measured)[0]) / abs(escape.curvature), DIFFERENCES))

    x, _ = random_data(rng)
    require(not shortcut_hessians.moment_gap(x, x).any(), "M = 0 for y = x")
    return at_most(pairs)._replace(counterexample="y = x has M = 0: zero is a global minimum, no saddle")


def theorem_1_3(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 1: the measured Hessian is the block Toeplitz matrix (13) of B and A, linear and with activations."""
    pairs = []
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng)
        activations = [("linear",) * 3, ("tanh", "linear", BENT)][trial % 2]
        measured = numeric_hessian(x, y, 3, 1, *activations)
        pairs.append(
            (relative_error(shortcut_hessians.hessian_at_zero(x, y, 3, 1, *activations), measured), DIFFERENCES)
        )
        blocks = measured.reshape(3, 9, 3, 9).transpose(0, 2, 1, 3)
        pairs.append((relative_error(blocks[2, 1], blocks[1, 0]), DIFFERENCES))
        pairs.append((relative_error(blocks[2, 0], blocks[1, 0]), DIFFERENCES))

    x, y = random_data(rng)
    slope = np.abs(shortcut_networks.gradient(np.zeros((2, 1, 3, 3)), x, y)).max()
    require(slope > 0.01, "zero is stationary for n = 1")
    return at_most(pairs)._replace(
        counterexample=f"zero is not stationary for n = 1: the gradient is M, here up to {slope:.2f}"
    )


def one_shortcut_growth(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 1, linear: the condition number at zero against R λ_max(Sxx)/σ_min(M)."""
    pairs = []
    for trial in range(max(1, trials // 2)):
        x, y = random_data(rng)
        units = 2 + trial % 15
        bound = shortcut_hessians.condition_number_lower_bound(x, y, units)
        pairs.append((shortcut_hessians.condition_number_at_zero(x, y, units, 1), bound * (1 - ROUNDING)))

    x = np.array([[1.0], [-1.0]])
    scalar = shortcut_hessians.condition_number_at_zero(x, 2 * x, 7, 1)
    return at_least(pairs)._replace(counterexample=f"not for d = 1: y = 2x has condition number {scalar:.0f} for R = 7")


def eq_12(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 2: the condition number of the measured Hessian against cond(M), R = 1, 2, 3; for n = 1 it grows with R."""
    growth = []

    pairs = []
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng)
        M = shortcut_hessians.moment_gap(x, y)
        sizes = np.abs(np.linalg.eigvalsh(numeric_hessian(x, y, 1 + trial % 3, 2)))
        pairs.append((abs(sizes.max() / sizes.min() / np.linalg.cond(M) - 1), DIFFERENCES * np.linalg.cond(M)))
        growth.append(
            shortcut_hessians.condition_number_at_zero(x, y, 8, 1)
            / shortcut_hessians.condition_number_at_zero(x, y, 2, 1)
        )

    singular = np.diag([1.0, 0.0])
    infinite = shortcut_hessians.condition_number_at_zero(np.eye(2), np.eye(2) - singular, 2, 2)
    require(infinite == math.inf, "a singular M must give an infinite condition number")
    return at_most(pairs)._replace(
        counterexample="infinite where M is singular, as with fewer samples than dimensions; "
        f"for n = 1 it grows {np.median(growth):.1f} times from R = 2 to 8"
    )


def eq_18(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 2, linear: eigenvalues of the measured Hessian against ±σ_i(M), each sign d·R times."""
    return _spectrum_check(rng, trials, "linear", "linear", "linear")


def eq_22(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 2, activations: eigenvalues of the measured Hessian against ±|c| σ_i(M), each sign d·R times."""
    return _spectrum_check(rng, trials, "tanh", BENT, BENT)


def eq_25(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 1, linear: the measured diagonal blocks against B = P (I ⊗ Sxx) Pᵀ = Sxx ⊗ I."""
    pairs = []
    for _ in range(max(1, trials // 5)):
        x, y = random_data(rng)
        measured = numeric_hessian(x, y, 2, 1)
        P, moment = shortcut_hessians.commutation_matrix(3), x.T @ x / len(x)
        B = P @ np.kron(np.eye(3), moment) @ P.T
        pairs.append((relative_error(np.kron(moment, np.eye(3)), B), ROUNDING))
        pairs.append((relative_error(B, measured[:9, :9]), DIFFERENCES))

    return at_most(pairs)


def eq_28(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 1, linear: the measured block below the diagonal against A = (I ⊗ M) Pᵀ + B; above it stands Aᵀ."""
    swapped = []

    pairs = []
    for _ in range(max(1, trials // 5)):
        x, y = random_data(rng)
        measured = numeric_hessian(x, y, 2, 1)
        M, moment = shortcut_hessians.moment_gap(x, y), x.T @ x / len(x)
        A = np.kron(np.eye(3), M) @ shortcut_hessians.commutation_matrix(3).T + np.kron(moment, np.eye(3))
        pairs.append((relative_error(A, measured[9:, :9]), DIFFERENCES))
        swapped.append(relative_error(A.T, measured[9:, :9]))

    return at_most(pairs)._replace(counterexample=f"with A and Aᵀ exchanged the error is {min(swapped):.0%} or more")


def lemma_1(rng: np.random.Generator, trials: int) -> Evidence:
    """Mixed derivatives at zero in n distinct weights that do not come one from each layer of one unit."""
    within = []

    pairs = []
    for trial in range(max(9, trials)):
        depth, d = 2 + trial % 2, 2
        x, y = random_data(rng, dimension=d)
        chosen = [tuple(rng.integers(0, (2, depth, d, d))) for _ in range(depth)]
        if len(set(chosen)) < depth:
            continue
        size = abs(mixed_derivative(shortcut_networks.loss, chosen, (2, depth, d, d), x, y))
        if len({unit for unit, *_ in chosen}) == 1 and {layer for _, layer, *_ in chosen} == set(range(depth)):
            within.append(size)
        else:
            pairs.append((size, ROUNDING))
    x, y = random_data(rng, dimension=2)
    one_unit = [(0, 0, 0, 0), (0, 1, 0, 0)]
    within.append(abs(mixed_derivative(shortcut_networks.loss, one_unit, (2, 2, 2, 2), x, y)))

    evidence = at_most(pairs)
    require(max(within) > 0.01, "the derivatives that may be nonzero are zero too")
    return evidence


def lemma_2(rng: np.random.Generator, trials: int) -> Evidence:
    """Second derivatives at zero against those with the units moved to 1 and 1 + [r₁ ≠ r₂]."""
    pairs = []
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng, dimension=2)
        depth = 1 + trial % 2
        hessian = numeric_hessian(x, y, 3, depth, "tanh", "tanh", "tanh")
        blocks = hessian.reshape(3, 4 * depth, 3, 4 * depth)
        for first, second in itertools.combinations_with_replacement(range(3), 2):
            moved = blocks[0, :, int(first != second)]
            pairs.append((np.abs(blocks[first, :, second] - moved).max(), DIFFERENCES * np.abs(hessian).max()))

    return at_most(pairs)


def _spectrum_check(rng: np.random.Generator, trials: int, *activations) -> Evidence:
    copies = []

    pairs = []
    for trial in range(max(3, trials // 5)):
        x, y = random_data(rng, dimension=2)
        units = 1 + trial % 3
        measured = np.linalg.eigvalsh(numeric_hessian(x, y, units, 2, *activations))
        copies.append((int((measured > measured[-1] * (1 - 1e-4)).sum()), units))
        expected = shortcut_hessians.spectrum_at_zero(x, y, units, 2, *activations)
        pairs.append((relative_error(np.repeat(*expected), measured), DIFFERENCES))

    evidence = at_most(pairs)
    count, units = copies[2]
    require(count == 2 * units, "the largest eigenvalue does not occur d·R times")
    return evidence._replace(
        counterexample=f"d = 2, R = {units}: the largest eigenvalue occurs {count} times, not {units}"
    )


def _by_definition_5(weights: np.ndarray) -> np.ndarray:
    """The weights as a vector: unit, layer, column, row."""
    return np.swapaxes(weights, -1, -2).ravel()


def random_data(rng: np.random.Generator, dimension: int = 3, examples: int = 12):
    """Gaussian x, y [m, d]."""
    return rng.standard_normal((examples, dimension)), rng.standard_normal((examples, dimension))


def numeric_hessian(
    x: np.ndarray,
    y: np.ndarray,
    units: int,
    depth: int,
    pre: ActivationLike = "linear",
    mid: ActivationLike = "linear",
    post: ActivationLike = "linear",
) -> np.ndarray:
    """Hessian of the loss at zero by differences, in the order of Definition 5."""
    d = x.shape[1]
    x, y = x.astype(np.longdouble), y.astype(np.longdouble)

    def loss(vector: np.ndarray):
        weights = np.swapaxes(vector.reshape(units, depth, d, d), -1, -2)
        return shortcut_networks.loss(weights, x, y, pre, mid, post)

    return difference_hessian(loss, units * depth * d * d)
