"""Time the polar factorisation of Theorem 2.1 against standard decompositions and against its definition.

    python -m benchmarks.factorization                1 minute on 2 cores

"Ours" is theory.factorization.factorize(R, ℓ): SVD, the planes of the rotation Q, all ℓ layers. "SVD + Schur" is
numpy.linalg.svd(R) and the real scipy.linalg.schur(R), without any layer; the goal is at most twice its time at
d = 500. It is no lower bound: factorize takes the planes of Q from eigh((Q + Qᵀ)/2), which costs less than a Schur
form. "Layer by layer" is the definition, Q^{i/ℓ} P^{1/ℓ} Q^{−(i−1)/ℓ}, in dense products, from an SVD and a real
Schur form of Q. Both give the same layers, which is checked, and their product is R. Targets: Gaussian, a Haar
rotation, I + 0.3 Gaussian/√d; the sign of the first row is chosen for det R > 0. The measurements take turns, and
ratios are taken within a round.

Measured on 2 cores of an Intel Xeon, NumPy 2.4, SciPy 1.17, medians of 5, at d = 500: ours takes 340 to 460 ms, 1.05 to
1.52 times SVD + Schur (0.996 – 2.07) and a fifth to a sixth of layer by layer; layers and product differ by at most
4e-14. On two threads the times at d = 200 vary up to fivefold between rounds: NumPy and SciPy each have a thread pool.
"""

import dataclasses
import functools
import itertools

import numpy as np
from scipy import linalg

from benchmarks.harness import Benchmark, interleaved, report, seconds
from identity_matters.fields import option
from launch import launcher
from theory.factorization import factorize

TARGET_DIMENSION, TARGET = 500, 2.0  # ours, at most, in units of SVD + Schur
# Rounding, 500 ε, divided by the gap of 3e-3 that theory.linear.rotations leaves between clusters of eigenvalues.
MAX_DIFFERENCE = 1e-10
KINDS = {
    "Gaussian": lambda d, random: random.standard_normal((d, d)),
    "rotation": lambda d, random: _haar(random.standard_normal((d, d))),
    "I + 0.3 G/√d": lambda d, random: np.eye(d) + 0.3 * random.standard_normal((d, d)) / d**0.5,
}
OURS, YARDSTICK, NAIVE = "ours, s", "SVD + Schur, s", "layer by layer, s"
PAIRS = {"ours / SVD + Schur": (OURS, YARDSTICK), "layer by layer / ours": (NAIVE, OURS)}


@dataclasses.dataclass(frozen=True)
class FactorizationBenchmark(Benchmark):
    """What is timed, and how often.

    Attributes:
      repeats: Rounds of (ours, SVD + Schur, layer by layer) for every target; medians are over the rounds.
      num_layers: Layers of a factorisation, ℓ.
      dimensions: Sizes d of the targets, with commas between.
      seed: Seed of the targets.
    """

    num_layers: int = option(100, at_least=1)
    dimensions: tuple[int, ...] = option((200, TARGET_DIMENSION), at_least=1)
    seed: int = option(0, at_least=0)


def main(benchmark: FactorizationBenchmark) -> None:
    """Times the three factorisations of every target in turns and prints the table."""
    num_layers, rows, errors = benchmark.num_layers, {}, []
    for d, kind in itertools.product(benchmark.dimensions, KINDS):
        R = target(d, kind, benchmark.seed)
        errors.append(check_layers(R, num_layers))
        cases = {
            OURS: functools.partial(seconds, factorize, R, num_layers),
            YARDSTICK: functools.partial(seconds, decompose, R),
            NAIVE: functools.partial(seconds, layer_by_layer, R, num_layers),
        }
        rows[f"{kind}, {d}"] = interleaved(cases, benchmark.repeats)
    goal = f"at most {TARGET:g} × SVD + Schur at d = {TARGET_DIMENSION}"
    report(f"{num_layers} layers; target: {goal}", rows, PAIRS, benchmark.repeats)
    difference, error = np.max(errors, axis=0)
    print(f"\nour layers differ from the definition by at most {difference:.0e}, their product from R by {error:.0e}")


def target(d: int, kind: str, seed: int) -> np.ndarray:
    """Returns a target R [d, d] of one of KINDS, with det R > 0."""
    R = KINDS[kind](d, np.random.default_rng(seed))
    R[0] *= np.linalg.slogdet(R)[0]
    return R


def _haar(gaussian: np.ndarray) -> np.ndarray:
    q, r = np.linalg.qr(gaussian)
    return q * np.sign(np.diag(r))


def decompose(R: np.ndarray) -> tuple:
    """Returns a singular value decomposition and a real Schur form of R [d, d]."""
    return np.linalg.svd(R), linalg.schur(R, output="real")


def layer_by_layer(R: np.ndarray, num_layers: int) -> np.ndarray:
    """Returns A [ℓ, d, d] by the definition, each layer in dense products; no eigenvalue of Q may be −1."""
    u, sigma, vt = np.linalg.svd(R)
    root = (vt.T * sigma ** (1 / num_layers)) @ vt
    D, S = linalg.schur(u @ vt, output="real")
    first = np.flatnonzero(np.abs(np.diag(D, -1)) > 1e-12)
    angles = np.arctan2(D[first + 1, first], D[first, first])

    def power(t: float) -> np.ndarray:
        turned = S.copy()
        cosine, sine = np.cos(t * angles), np.sin(t * angles)
        turned[:, first] = S[:, first] * cosine + S[:, first + 1] * sine
        turned[:, first + 1] = S[:, first + 1] * cosine - S[:, first] * sine
        return turned @ S.T

    identity = np.eye(len(R))
    return np.stack([
        power(i / num_layers) @ root @ power((1 - i) / num_layers) - identity for i in range(1, num_layers + 1)
    ])  # fmt: skip


def check_layers(R: np.ndarray, num_layers: int) -> tuple[float, float]:
    """Returns the largest difference of our layers from those of the definition, and ‖(I + A_ℓ)···(I + A_1) − R‖/‖R‖.

    Raises ArithmeticError if either is more than rounding.
    """
    A, product = factorize(R, num_layers), np.eye(len(R))
    for layer in A:
        product += layer @ product
    difference = float(np.abs(A - layer_by_layer(R, num_layers)).max())
    error = float(np.linalg.norm(product - R) / np.linalg.norm(R))
    if not (difference <= MAX_DIFFERENCE and error <= MAX_DIFFERENCE):
        raise ArithmeticError(
            f"our layers differ from the definition by {difference:.1e}, their product from R by {error:.1e}"
        )
    return difference, error


cli = launcher.command(main, {"": FactorizationBenchmark()}, manual=__doc__)

if __name__ == "__main__":
    cli()
