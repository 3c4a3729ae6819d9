"""Time the polar factorisation of Theorem 2.1 against standard decompositions and against its definition.

    python -m benchmarks.factorization                1 minute on 2 cores

"Ours" is theory.factorization.factorize(R, ℓ): SVD, the planes of the rotation Q, all ℓ layers. "SVD + Schur" is
numpy.linalg.svd(R) and the real scipy.linalg.schur(R), without any layer; the goal is at most twice its time at
d = 500. It is no lower bound: factorize takes the planes of Q from eigh((Q + Qᵀ)/2), which costs less than a Schur
form. "Layer by layer" is the definition, Q^{i/ℓ} P^{1/ℓ} Q^{−(i−1)/ℓ}, in dense products, from an SVD and a real
Schur form of Q. Both give the same layers, which is checked, and their product is R. Targets: Gaussian, a Haar
rotation, I + 0.3 Gaussian/√d; the sign of the first row is chosen for det R > 0. The measurements take turns, and
ratios are taken within a round.

Measured on 2 cores of an Intel Xeon, NumPy 2.4, SciPy 1.17, medians of 5, 0.02 cores busy with other things:

    | target, d         | ours, ms | / SVD + Schur |    min – max | layer by layer / ours | difference | error of R |
    | ----------------- | -------: | ------------: | -----------: | --------------------: | ---------: | ---------: |
    | Gaussian, 200     |     44.6 |         0.567 | 0.431 – 1.26 |                  5.72 |      1e-14 |      2e-14 |
    | rotation, 200     |     46.4 |         0.375 |  0.35 – 1.44 |                  5.96 |      9e-15 |      2e-14 |
    | I + 0.3 G/√d, 200 |     38.6 |          1.22 |   0.3 – 1.29 |                   6.3 |      8e-15 |      4e-15 |
    | Gaussian, 500     |      456 |          1.52 |  1.29 – 2.07 |                  4.89 |      2e-14 |      4e-14 |
    | rotation, 500     |      368 |          1.05 |  0.996 – 1.2 |                  5.91 |      1e-14 |      2e-14 |
    | I + 0.3 G/√d, 500 |      339 |           1.2 |   1.06 – 1.6 |                  6.45 |      1e-14 |      6e-15 |

On two threads the times at d = 200 vary up to fivefold between rounds: NumPy and SciPy each have a thread pool.
"""

import dataclasses
import functools
import importlib.metadata

import numpy as np
from scipy import linalg

from benchmarks.harness import OTHERS, environment, interleaved, ratios, seconds, spread, table
from identity_matters.fields import check_fields, option
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
OURS, YARDSTICK, NAIVE = "ours", "SVD + Schur", "layer by layer"


@dataclasses.dataclass(frozen=True)
class FactorizationBenchmark:
    """What is timed, and how often.

    Attributes:
      repeats: Rounds of (ours, SVD + Schur, layer by layer) for every target; medians are over the rounds.
      num_layers: Layers of a factorisation, ℓ.
      dimensions: Sizes d of the targets, with commas between.
      seed: Seed of the targets.
    """

    repeats: int = option(5, at_least=1)
    num_layers: int = option(100, at_least=1)
    dimensions: tuple[int, ...] = option((200, TARGET_DIMENSION), at_least=1)
    seed: int = option(0, at_least=0)

    def __post_init__(self) -> None:
        check_fields(self)


def main(benchmark: FactorizationBenchmark) -> None:
    """Times the three factorisations of every target in turns and prints the table."""
    num_layers = benchmark.num_layers
    targets = {(d, kind): target(d, kind, benchmark.seed) for d in benchmark.dimensions for kind in KINDS}
    accuracy = {name: check_layers(R, num_layers) for name, R in targets.items()}
    timed = {}
    for name, R in targets.items():
        timed[(*name, OURS)] = functools.partial(seconds, factorize, R, num_layers)
        timed[(*name, YARDSTICK)] = functools.partial(seconds, decompose, R)
        timed[(*name, NAIVE)] = functools.partial(seconds, layer_by_layer, R, num_layers)
    times = interleaved(timed, benchmark.repeats)
    rows = []
    for name in targets:
        ours, yardstick, naive = (times[(*name, what)] for what in (OURS, YARDSTICK, NAIVE))
        milliseconds, to_naive = spread(1000 * value for value in ours)[0], spread(ratios(naive, ours))[0]
        errors = (f"{value:.0e}" for value in accuracy[name])
        rows.append((f"{name[1]}, {name[0]}", milliseconds, *spread(ratios(ours, yardstick)), to_naive, *errors))
    header = ("target, d", "ours, ms", "/ SVD + Schur", "min – max", f"{NAIVE} / ours", "difference", "error of R")
    print(f"{environment()}, scipy {importlib.metadata.version('scipy')}")
    print(f"\n{num_layers} layers, {benchmark.repeats} rounds; {OTHERS}: {spread(times[OTHERS])[0]}")
    print(f"target: at most {TARGET:g} × SVD + Schur at d = {TARGET_DIMENSION}\n")
    print(table(header, rows))


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
