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
    """Measured Hessian against I_R ⊗ [0 Aᵀ; A 0]; the escape's curvature, said and measured, against λ_min."""
    pairs = []
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng)
        activations = [("linear",) * 3, ("relu", "tanh", BENT)][trial % 2]
        measured = numeric_hessian(x, y, 2, 2, *activations)
        pairs.append(
            (relative_error(shortcut_hessians.hessian_at_zero(x, y, 2, 2, *activations), measured), DIFFERENCES)
        )
        escape = stationarity.escape_from_saddle(x, y, 2, *activations)
        w, least = _by_definition_5(escape.direction), np.linalg.eigvalsh(measured)[0]
        pairs += [(abs(curvature / least - 1), DIFFERENCES) for curvature in (w @ measured @ w, escape.curvature)]
    x, _ = random_data(rng)
    require(not shortcut_hessians.moment_gap(x, x).any(), "M ≠ 0 for y = x")
    around = [shortcut_networks.loss(0.1 * rng.standard_normal((2, 2, 3, 3)), x, x) for _ in range(20)]
    require(min(around) > shortcut_networks.loss(np.zeros((2, 2, 3, 3)), x, x) == 0, "zero is no minimum for M = 0")
    return at_most(pairs)._replace(
        counterexample="y = x has M = 0, a degenerate case: zero is a global minimum, no saddle"
    )


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
    gradient = shortcut_networks.gradient(np.zeros((2, 1, 3, 3)), x, y)
    pairs.append((relative_error(gradient[1, 0], shortcut_hessians.moment_gap(x, y)), ROUNDING))
    return at_most(pairs)._replace(
        counterexample=f"zero is not stationary for n = 1: the gradient is M, here up to {np.abs(gradient).max():.2f}"
    )


def one_shortcut_growth(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 1, linear: the condition number against R λ_max(Sxx)/σ_min(M), and the bound against its proof's vectors."""
    pairs = []
    for trial in range(max(1, trials // 2)):
        x, y = random_data(rng)
        units = 2 + trial % 15
        bound = shortcut_hessians.condition_number_lower_bound(x, y, units)
        pairs.append((shortcut_hessians.condition_number_at_zero(x, y, units, 1), bound * (1 - ROUNDING)))
        H = shortcut_hessians.hessian_at_zero(x, y, units, 1)
        steep = np.linalg.eigh(x.T @ x / len(x))[1][:, -1]
        across = np.linalg.svd(steep[None])[2][1]
        together = np.repeat(np.outer(across, steep)[None, None], units, axis=0)
        u, _, vt = np.linalg.svd(shortcut_hessians.moment_gap(x, y))
        apart = np.zeros_like(together)
        apart[0, 0], apart[1, 0] = np.outer(u[:, -1], vt[-1]), -np.outer(u[:, -1], vt[-1])
        first, second = (_by_definition_5(w) / np.linalg.norm(w) for w in (together, apart))
        of_the_proof = first @ H @ first / np.linalg.norm(H @ second)
        pairs += [(bound, of_the_proof * (1 - 1e-6)), (of_the_proof, bound * (1 - 1e-6))]
    return at_least(pairs)


def one_shortcut_of_the_paper(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 1, linear, d = 3: the condition number of the measured Hessian; its growth from R = 2 to 64; d = 1."""
    pairs = []
    for _ in range(max(1, trials // 5)):
        x, y = random_data(rng)
        sizes = np.abs(np.linalg.eigvalsh(numeric_hessian(x, y, 2, 1)))
        number = shortcut_hessians.condition_number_at_zero(x, y, 2, 1)
        pairs.append((abs(sizes.max() / sizes.min() / number - 1), DIFFERENCES * number))
        least = 20 * np.linalg.eigvalsh(x.T @ x / len(x))[-1]
        least /= np.linalg.svd(shortcut_hessians.moment_gap(x, y), compute_uv=False)[-1]
        pairs.append((least, shortcut_hessians.condition_number_at_zero(x, y, 20, 1)))
    x = np.array([[1.0], [-1.0]])
    scalar = {R: shortcut_hessians.condition_number_at_zero(x, 2 * x, R, 1) for R in (2, 7, 40)}
    require(max(scalar.values()) < 1 + ROUNDING, "for d = 1 it grows")
    return at_most(pairs)._replace(counterexample="d = 1, y = 2x: the condition number is 1 for R = 2, 7 and 40")


def eq_12(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 2: the condition number of the measured Hessian against cond(M), R = 1, 2, 3; and c = 0 with M invertible."""
    pairs = []
    for trial in range(max(1, trials // 5)):
        x, y = random_data(rng)
        M = shortcut_hessians.moment_gap(x, y)
        sizes = np.abs(np.linalg.eigvalsh(numeric_hessian(x, y, 1 + trial % 3, 2)))
        pairs.append((abs(sizes.max() / sizes.min() / np.linalg.cond(M) - 1), DIFFERENCES * np.linalg.cond(M)))
        for units in (1, 10):
            number = shortcut_hessians.condition_number_at_zero(x, y, units, 2)
            pairs.append((abs(number / np.linalg.cond(M) - 1), ROUNDING * np.linalg.cond(M)))
    singular = np.diag([1.0, 0.0])
    infinite = shortcut_hessians.condition_number_at_zero(np.eye(2), np.eye(2) - singular, 2, 2)
    require(infinite == math.inf, "a singular M must give an infinite condition number")
    square = Activation(lambda z: z * z, lambda z: 2 * z, (0.0, 0.0, 2.0))  # c = 0
    largest = np.abs(numeric_hessian(x, y, 1, 2, "linear", square, "linear")).max()
    printed = np.linalg.cond(M)
    require(largest < DIFFERENCES and math.isfinite(printed), "H is not 0 for c = 0")
    number = shortcut_hessians.condition_number_at_zero(x, y, 1, 2, "linear", square)
    require(number == math.inf, "c = 0 must give an infinite condition number")
    return at_most(pairs)._replace(
        counterexample=f"σ_mid(z) = z² has c = 0: H = 0 (measured {largest:.0e}), where (12) says {printed:.1f}, as M "
        "is invertible"
    )


def eq_18(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 2, linear: eigenvalues of the measured Hessian against ±σ_i(M), each sign d·R times."""
    return _spectrum_check(rng, trials, "linear", "linear", "linear")


def eq_22(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 2, activations: eigenvalues of the measured Hessian against ±|c| σ_i(M), each sign d·R times."""
    return _spectrum_check(rng, trials, "tanh", BENT, BENT)


def eq_25(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 1, linear: the measured diagonal blocks and `hessian_at_zero`'s against B = P (I ⊗ Sxx) Pᵀ = Sxx ⊗ I."""
    pairs = []
    for _ in range(max(1, trials // 5)):
        x, y = random_data(rng)
        P, moment = shortcut_hessians.commutation_matrix(3), x.T @ x / len(x)
        B = P @ np.kron(np.eye(3), moment) @ P.T
        pairs.append((relative_error(np.kron(moment, np.eye(3)), B), ROUNDING))
        pairs.append((relative_error(B, numeric_hessian(x, y, 2, 1)[:9, :9]), DIFFERENCES))
        pairs.append((relative_error(shortcut_hessians.hessian_at_zero(x, y, 2, 1)[9:, 9:], B), ROUNDING))
    return at_most(pairs)


def eq_28(rng: np.random.Generator, trials: int) -> Evidence:
    """n = 1, linear: the block below the diagonal, measured and `hessian_at_zero`'s, against A = (I ⊗ M) Pᵀ + B."""
    pairs = []
    for _ in range(max(1, trials // 5)):
        x, y = random_data(rng)
        measured = numeric_hessian(x, y, 2, 1)
        M, moment = shortcut_hessians.moment_gap(x, y), x.T @ x / len(x)
        A = np.kron(np.eye(3), M) @ shortcut_hessians.commutation_matrix(3).T + np.kron(moment, np.eye(3))
        pairs.append((relative_error(A, measured[9:, :9]), DIFFERENCES))
        pairs.append((relative_error(shortcut_hessians.hessian_at_zero(x, y, 2, 1)[9:, :9], A), ROUNDING))
        require(relative_error(A.T, measured[9:, :9]) > DIFFERENCES, "A and Aᵀ cannot be told apart")
    return at_most(pairs)


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
        ours = shortcut_hessians.hessian_at_zero(x, y, 3, depth, "tanh", "tanh", "tanh")
        pairs.append((relative_error(ours, hessian), DIFFERENCES))
        blocks = hessian.reshape(3, 4 * depth, 3, 4 * depth)
        for first, second in itertools.combinations_with_replacement(range(3), 2):
            moved = blocks[0, :, int(first != second)]
            pairs.append((np.abs(blocks[first, :, second] - moved).max(), DIFFERENCES * np.abs(hessian).max()))

    return at_most(pairs)


def _spectrum_check(rng: np.random.Generator, trials: int, *activations: ActivationLike) -> Evidence:
    """d² positive values, each of ±σ_i(M) d times, and R copies of all: the largest d·R times."""
    pairs = []
    for trial in range(max(3, trials // 5)):
        x, y = random_data(rng, dimension=2)
        units = 1 + trial % 3
        measured = np.linalg.eigvalsh(numeric_hessian(x, y, units, 2, *activations))
        spectrum = shortcut_hessians.spectrum_at_zero(x, y, units, 2, *activations)
        pairs.append((relative_error(np.repeat(*spectrum), measured), DIFFERENCES))
        if len(spectrum.eigenvalues) == 4:
            pairs.append((np.abs(spectrum.multiplicities - 2 * units).max(), 0.0))
    return at_most(pairs)


def _by_definition_5(weights: np.ndarray) -> np.ndarray:
    """The weights as a vector: unit, layer, column, row."""
    return np.swapaxes(weights, -1, -2).ravel()


def random_data(rng: np.random.Generator, dimension: int = 3, examples: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Returns Gaussian x, y [m, d]."""
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

    def loss(vector: np.ndarray) -> np.longdouble:
        weights = np.swapaxes(vector.reshape(units, depth, d, d), -1, -2)
        return shortcut_networks.loss(weights, x, y, pre, mid, post)

    return difference_hessian(loss, units * depth * d * d)
